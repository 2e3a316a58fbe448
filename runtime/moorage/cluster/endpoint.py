"""The driver's HTTP endpoint: a doorbell and a view, never the record of what happened.

Decides who is let in, to read only or to give orders, what a request may be, and what each answer
is. It touches nothing that could make its loop wait: the board has what there is to see, and
requests are put where the driver finds them at its next boundary. The size of a request is bounded
here, how many there may be and how long each may take by `HttpServer`. Called by `main`.
"""

import base64
import hmac
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec
from aiohttp import web
from pydantic import ValidationError

from moorage.cluster.board import Board
from moorage.cluster.metrics import CONTENT_TYPE, DriverMetrics
from moorage.cluster.orders import MIN_TOKEN, sample_request
from moorage.driver.lookup_answers import look_up
from moorage.driver.lookups import StateLookups
from moorage.driver.requests import (
    CheckpointRequest,
    JobEnding,
    JobRequest,
    PromoteRequest,
    RequestConflict,
    Requests,
    RescaleRequest,
    SavepointRequest,
    StopRequest,
    TooManyRequests,
)
from moorage.http_server import HttpServer, Refused, body_of, json_answer
from moorage.page.server import REPORT, Draw, page_answer
from moorage_api.driver import (
    CHECKPOINTS_PATH,
    HEALTH_PATH,
    METRICS_PATH,
    PAGE_PATH,
    PROMOTE_PATH,
    REQUESTS_PATH,
    RESCALE_PATH,
    SAVEPOINTS_PATH,
    STATE_PATH,
    STATUS_PATH,
    STOP_PATH,
    CheckpointBody,
    PromoteBody,
    RescaleBody,
    SavepointBody,
    StopBody,
)
from moorage_api.model import Model
from moorage_state.errors import UserError
from moorage_state.file_marks import Marks, marks
from moorage_state.server.addresses import EVERYWHERE
from moorage_state.server.tls import TlsFiles, certificates

_log = logging.getLogger(__name__)
MAX_BODY_BYTES = 16 << 10
_REQUEST_SECONDS = 15.0
"""For a whole request, from its connection or from the answer before it: also the time that an
idle connection is kept."""

_LOOKUPS = f"{STATE_PATH}/"
_PATHS = frozenset(
    {
        HEALTH_PATH,
        STATE_PATH,
        STATUS_PATH,
        CHECKPOINTS_PATH,
        METRICS_PATH,
        SAVEPOINTS_PATH,
        STOP_PATH,
        RESCALE_PATH,
        PROMOTE_PATH,
    }
)
_M = TypeVar("_M", bound=Model)


class Endpoint:
    """Serves one driver until it is closed.

    Args:
        page: draws the page to look at.
        lookups: who answers what is asked of the job's state.
        scrape: a file with the token of who may only read, looked at anew each time, since it may
            change or come late.
        tls: the certificate that it shows; None: it speaks in the clear.
        port: 0 for any that is free.
        seconds: how long one request may take to arrive.

    Raises:
        UserError: the address cannot be listened on.
    """

    def __init__(
        self,
        board: Board,
        requests: Requests,
        metrics: DriverMetrics,
        token: str,
        *,
        page: Draw,
        lookups: StateLookups | None = None,
        scrape: Path | None = None,
        tls: TlsFiles | None = None,
        port: int,
        host: str = "",
        seconds: float = _REQUEST_SECONDS,
        lost: Callable[[str], object] = lambda _reason: None,
    ) -> None:
        self._board = board
        self._requests = requests
        self._metrics = metrics
        self._token = token
        self._page = page
        self._lookups = lookups or StateLookups()
        self._scrape_file = scrape
        self._scrape_seen: Marks = ()
        self._scrape_text = ""
        try:
            self._server = HttpServer(
                self._handle,
                name="endpoint",
                host=host or EVERYWHERE,
                port=port,
                seconds=seconds,
                secured=None if tls is None else certificates(tls).server,
                lost=lost,
            )
        except OSError as error:
            raise UserError(
                f"the endpoint cannot listen: host={host or '*'} port={port} "
                f"error={error.strerror or error}; end what holds the port"
            ) from error
        self.port = self._server.port
        self._server.start()

    def close(self) -> None:
        """Serve no more; connections are closed."""
        self._server.close()

    # -- requests --------------------------------------------------------------------------

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            answer = await self._answer(request)
        except Refused as refused:
            answer = refused.answer()
        except Exception:  # noqa: BLE001 - its own fault must not look like a lost connection
            _log.exception("endpoint_failed: path=%.100s", request.rel_url.raw_path)
            answer = json_answer(
                {"error": {"code": "internal", "message": "see the driver's log"}}, 500
            )
        return answer

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        path = request.rel_url.raw_path
        if path == HEALTH_PATH and request.method == "GET":
            return self._health()
        self._authorize(request)
        if _is_page(request):
            _require(request, {"GET"})
            return await page_answer(self._page, as_file=path.endswith(f"/{REPORT}"))
        if path.startswith(f"{REQUESTS_PATH}/"):
            _require(request, {"GET"})
            return self._one_request(path.removeprefix(f"{REQUESTS_PATH}/"))
        looked_up = _looked_up(request)
        if looked_up:
            _require(request, {"GET", "POST"})
            return await look_up(self._lookups, looked_up, request)
        views = self._views().get(path)
        orders = self._orders().get(path)
        if views is None and orders is None:
            raise Refused(404, "not_found", f"no such path: path={path:.100}")
        methods = {name for name, way in (("GET", views), ("POST", orders)) if way is not None}
        _require(request, methods)
        if request.method == "GET" and views is not None:
            return views()
        body = await body_of(request, MAX_BODY_BYTES)
        if orders is None:
            raise Refused(405, "method_not_allowed", f"not to be posted to: path={path:.100}")
        return self._ask(orders(body))

    def _views(self) -> Mapping[str, Callable[[], web.Response]]:
        return {
            HEALTH_PATH: self._health,
            STATE_PATH: lambda: json_answer(self._board.state().to_json()),
            STATUS_PATH: lambda: json_answer(msgspec.to_builtins(self._board.status())),
            CHECKPOINTS_PATH: lambda: json_answer(self._board.checkpoints()),
            METRICS_PATH: self._scrape,
        }

    def _orders(self) -> Mapping[str, Callable[[bytes], JobRequest]]:
        return {
            CHECKPOINTS_PATH: _checkpoint,
            SAVEPOINTS_PATH: _savepoint,
            STOP_PATH: _stop,
            RESCALE_PATH: _rescale,
            PROMOTE_PATH: _promote,
        }

    def _health(self) -> web.Response:
        """A driver that stands by is not ready: the job's Service leads to the one that leads.

        One that was told to end says so: executors whose node is drained stay as long as it needs
        them (`decom.sh` of the image).
        """
        if self._board.progress.standby:
            return web.Response(text="stands by\n", status=503)
        return web.Response(text="ends\n" if self._requests.ending else "ok\n")

    def _authorize(self, request: web.BaseRequest) -> None:
        sent = _shown(request)
        commands = _is(sent, self._token)
        if not commands and not _is(sent, self._scrape_token()):
            browsed = _is_page(request)
            raise Refused(
                401,
                "unauthorized",
                "a bearer token is needed: one of those in the job's Secrets",
                **{"WWW-Authenticate": 'Basic realm="moorage"' if browsed else "Bearer"},
            )
        self._server.trust(request)
        reads = request.method == "GET" or bool(_looked_up(request))
        if not commands and not reads:
            raise Refused(403, "forbidden", "this token only reads: orders need the attempt's")

    def _scrape_token(self) -> str:
        if self._scrape_file is None:
            return ""
        seen = marks([self._scrape_file])
        if seen != self._scrape_seen:
            try:
                self._scrape_text = self._scrape_file.read_text().strip()
            except (OSError, UnicodeDecodeError):
                return ""
            self._scrape_seen = seen
        return self._scrape_text

    def _scrape(self) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    def _one_request(self, request_id: str) -> web.Response:
        found = self._requests.get(request_id)
        if found is None:
            message = f"no such request is remembered: request={request_id:.128}; ask again"
            raise Refused(404, "request_not_found", message)
        return json_answer(self._board.request(found).to_json())

    def _ask(self, request: JobRequest) -> web.Response:
        try:
            known = self._requests.ask(request)
        except RequestConflict as error:
            raise Refused(409, error.code, str(error)) from error
        except JobEnding as error:
            raise Refused(503, error.code, str(error)) from error
        except TooManyRequests as error:
            raise Refused(429, error.code, str(error), **{"Retry-After": "5"}) from error
        except UserError as error:
            raise Refused(400, error.code, str(error)) from error
        view = self._board.request(known)
        return json_answer(view.to_json(), 200 if view.state in {"Completed", "Failed"} else 202)


def _is_page(request: web.BaseRequest) -> bool:
    """Whether the page is meant: at its own path, or below one that an Ingress has put before it.

    That is any other that ends as the page's own, or that a browser wants to show.
    """
    path = request.rel_url.raw_path
    if path == PAGE_PATH or request.method != "GET":
        return path == PAGE_PATH
    if path in _PATHS or path.startswith((_LOOKUPS, f"{REQUESTS_PATH}/")) or _looked_up(request):
        return False
    return path.endswith(("/", f"/{REPORT}")) or "text/html" in request.headers.get("Accept", "")


def _looked_up(request: web.BaseRequest) -> str:
    """The name, still quoted, whose state is asked for; below a path of an Ingress's as well."""
    path = request.rel_url.raw_path
    ours = path.startswith(_LOOKUPS) or request.method == "GET"
    return path.rpartition(_LOOKUPS)[2] if ours and _LOOKUPS in path else ""


def _shown(request: web.BaseRequest) -> bytes:
    """The token that a request shows, or nothing.

    For what is only read it may be a password as well: browsers know no other way. Never for
    orders, to which the page of somebody else could send a browser that remembers it.
    """
    given = request.headers.getall("Authorization", [])
    scheme, _, shown = given[0].partition(" ") if len(given) == 1 else ("", "", "")
    if scheme == "Bearer":
        return shown.encode("utf-8", errors="surrogateescape")
    if scheme != "Basic" or request.method != "GET":
        return b""
    try:
        return base64.b64decode(shown, validate=True).partition(b":")[2]
    except ValueError:
        return b""


def _is(sent: bytes, token: str) -> bool:
    """Whether it is this token; a short one, or none, opens nothing."""
    return len(token) >= MIN_TOKEN and hmac.compare_digest(sent, token.encode())


def _checkpoint(data: bytes) -> JobRequest:
    body = _parsed(CheckpointBody, data)
    return CheckpointRequest(sample_request(body.sample), request_id=body.request_id)


def _savepoint(data: bytes) -> JobRequest:
    body = _parsed(SavepointBody, data)
    return SavepointRequest(
        body.name, body.format, attempt=body.attempt or "", request_id=body.request_id
    )


def _stop(data: bytes) -> JobRequest:
    body = _parsed(StopBody, data)
    savepoint: SavepointRequest | None = None
    if body.mode == "Savepoint":
        if body.name is None:
            raise _bad("name: is missing for mode Savepoint")
        savepoint = SavepointRequest(body.name, body.format, True, request_id=body.request_id)
    elif body.name is not None:
        raise _bad(f"name: is given, and mode is {body.mode}")
    return StopRequest(body.mode, savepoint, body.release, request_id=body.request_id)


def _rescale(data: bytes) -> JobRequest:
    body = _parsed(RescaleBody, data)
    if body.parallelism is None and body.executors is None:
        raise _bad("parallelism: is missing, and so is executors")
    asked = body.parallelism, body.executors, body.declared
    return RescaleRequest(*asked, request_id=body.request_id)


def _promote(data: bytes) -> JobRequest:
    return PromoteRequest(request_id=_parsed(PromoteBody, data).request_id)


def _parsed(model: type[_M], data: bytes) -> _M:
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False, include_context=False)
        text = "; ".join(f"{_field(p['loc'])}: {p['msg']}" for p in problems[:5])
        raise _bad(text) from error


def _field(location: tuple[int | str, ...]) -> str:
    return ".".join(f"{part:.64}" if isinstance(part, str) else str(part) for part in location) or (
        "body"
    )


def _bad(problem: str) -> Refused:
    return Refused(400, "bad_request", f"the body is not as it must be: {problem}")


def _require(request: web.BaseRequest, methods: set[str]) -> None:
    if request.method not in methods:
        allowed = ", ".join(sorted(methods))
        raise Refused(
            405,
            "method_not_allowed",
            f"not with this method: method={request.method:.20} allowed={allowed}",
            Allow=allowed,
        )
