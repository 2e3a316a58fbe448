"""The page over HTTP: to this machine only, or as an answer of a server that has its own rules.

Decides what may be asked and what a browser may do with the answer. Read-only; on this machine the
page needs no token, since what is shown holds no values of state: to ask for those one must know
the address that the run has printed. Called by the command line and by the endpoint of a driver on
a cluster.
"""

import asyncio
import logging
import os
import secrets
from collections.abc import Callable
from hmac import compare_digest

from aiohttp import web

from moorage.driver.lookup_answers import look_up
from moorage.driver.lookups import StateLookups
from moorage.http_server import HttpServer, Refused
from moorage_api.driver import STATE_PATH
from moorage_state.errors import UserError

_log = logging.getLogger(__name__)
HOST = "127.0.0.1"
Draw = Callable[[str], str]
"""The whole document; given the nonce that its style and script must carry, or "" for a file."""

REPORT = "report.html"
"""The page as one file, below the path of the page."""

_NAMES = frozenset({"localhost", HOST})
_MOST = 16
_SECONDS = 20.0
_STATE = f"{STATE_PATH}/"
_POLICY = "img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'"
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


async def page_answer(page: Draw, *, as_file: bool = False) -> web.Response:
    """The document, as it is at this moment; drawn in another thread, the loop has others."""
    nonce = "" if as_file else secrets.token_urlsafe(16)
    try:
        text = await asyncio.to_thread(page, nonce)
    except ModuleNotFoundError as error:
        return _told(501, f"{error.name} is not installed here; install moorage[runtime,cli]")
    except Exception:  # noqa: BLE001 - its own fault must not look like a lost connection
        _log.exception("page_failed")
        return _told(500, "the page cannot be drawn; see the log, or what was printed")
    if as_file:
        answer = _answer(200, "text/html", text, "style-src 'unsafe-inline'; ")
        answer.headers["Content-Disposition"] = f"attachment; filename={REPORT}"
        return answer
    allowed = f"style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; "
    return _answer(200, "text/html", text, allowed)


class PageServer:
    """Serves the page until it is closed.

    Nobody can hold up a run by it: so many connections at once, the oldest of which makes room
    for another, and so long for each.

    Args:
        port: 0 for any that is free.
        seconds: what a connection has for all that it does.
        lookups: who answers what is asked of the job's state; None: nobody.

    Raises:
        UserError: the port cannot be listened on.
    """

    def __init__(
        self,
        page: Draw,
        *,
        port: int,
        seconds: float = _SECONDS,
        most: int = _MOST,
        lookups: StateLookups | None = None,
    ) -> None:
        self._page = page
        self._lookups = lookups
        self._token = secrets.token_urlsafe(16)
        self._opens = f"Bearer {self._token}".encode()
        try:
            self._server = HttpServer(
                self._handle, name="moorage-page", host=HOST, port=port, seconds=seconds, most=most
            )
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise UserError(
                f"the page cannot be served: host={HOST} port={port} error={reason}; "
                f"choose another port with --page PORT"
            ) from error
        self.port = self._server.port
        self._server.start()

    @property
    def url(self) -> str:
        """For people; with what opens values of state, which a browser does not send by itself."""
        plain = f"http://localhost:{self.port}"
        return plain if self._lookups is None else f"{plain}/#values={self._token}"

    def close(self) -> None:
        """Serve no more."""
        self._server.close()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        hosts = request.headers.getall("Host", [])
        # A name that somebody else's DNS points here would let his pages read this one.
        if len(hosts) != 1 or hosts[0].partition(":")[0] not in _NAMES:
            return _told(403, f"open http://localhost:{self.port}")
        if request.method != "GET":
            return _told(405, "the page can only be read")
        path = request.rel_url.raw_path
        if path.startswith(_STATE) and self._lookups is not None:
            return await self._values(self._lookups, path.removeprefix(_STATE), request)
        if path not in {"/", f"/{REPORT}"}:
            return _told(404, f"there is only /, and /{REPORT} to keep")
        return await page_answer(self._page, as_file=path != "/")

    async def _values(
        self, lookups: StateLookups, name: str, request: web.BaseRequest
    ) -> web.Response:
        try:
            self._authorize(request)
            answer = await look_up(lookups, name, request)
        except Refused as refused:
            answer = refused.answer()
        answer.headers.update(_HEADERS)
        answer.force_close()
        return answer

    def _authorize(self, request: web.BaseRequest) -> None:
        given = request.headers.getall("Authorization", [])
        if len(given) != 1 or not compare_digest(given[0].encode(), self._opens):
            told = "values of state are for who opens the whole address that the run printed"
            raise Refused(401, "unauthorized", told)


def _told(status: int, text: str) -> web.Response:
    return _answer(status, "text/plain", f"{text}\n")


def _answer(status: int, kind: str, text: str, allowed: str = "") -> web.Response:
    policy = f"default-src 'none'; {allowed}{_POLICY}; frame-ancestors 'none'"
    headers = {**_HEADERS, "Content-Security-Policy": policy}
    answer = web.Response(
        status=status, text=text, content_type=kind, charset="utf-8", headers=headers
    )
    answer.force_close()  # nobody is kept: a reader comes again with another connection
    return answer
