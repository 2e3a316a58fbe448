"""Kopf watches, and every event only wakes the loop.

Kopf runs in a thread and an event loop of its own: what it installs and cancels there is not ours,
and a flood of events does not hold up passes. It has low-level event handlers only, so it writes
nothing to the objects: no finalizer, no annotation.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import kopf
from kopf._cogs.structs.references import Insights  # the one word on when Kopf has begun
from kubernetes.aio.client import Configuration

from moorage_operator.children.names import JOB_LABEL

__all__ = ["Watching"]

_GROUP = ("moorage.dev", "v1alpha1")
_TOLD_EVERY = 0.05
_SCAN_SECONDS = 3.0

Wake = Callable[[str, str, dict[str, Any]], None]
"""Called with the event's type, the kind, and the object."""


class Watching:
    """Watches of jobs, snapshots and the jobs' pods.

    Args:
        found: how the API server is reached.
        namespaces: which to watch; all if empty.
        wake: called in the loop that `run` is awaited in.
    """

    def __init__(self, found: Configuration, namespaces: Iterable[str], wake: Wake) -> None:
        self._configuration = found
        self._namespaces = tuple(namespaces)
        self._wake = wake
        self._stop = threading.Event()

    async def run(self) -> None:
        """Watch until cancelled.

        Raises:
            RuntimeError: Kopf ended by itself.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        thread = threading.Thread(target=self._thread, args=(loop, ended), name="kopf", daemon=True)
        thread.start()
        try:
            await ended
        finally:
            self._stop.set()
            await asyncio.shield(asyncio.to_thread(thread.join, 10.0))
        raise RuntimeError("the watches ended by themselves; the process must start anew")

    def _thread(self, loop: asyncio.AbstractEventLoop, ended: asyncio.Future[None]) -> None:
        failure: Exception | None = None
        try:
            asyncio.run(self._operator(loop))
        except Exception as error:  # noqa: BLE001  told to whoever awaits
            failure = error
        except BaseException as error:  # noqa: BLE001  an exit of this thread is not the process's
            failure = RuntimeError(f"the watches were ended: problem={error!r}")
            failure.__cause__ = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(_finish, ended, failure)

    async def _operator(self, loop: asyncio.AbstractEventLoop) -> None:
        insights, stop = Insights(), asyncio.Event()
        told = asyncio.create_task(self._when_told(insights, stop))
        try:
            await kopf.operator(
                registry=self._registry(loop),
                settings=_settings(),
                # Else Kopf asks who the user is, which an image need not know; there is no peering.
                identity="moorage",  # type: ignore[arg-type]  # Kopf has a NewType for it
                insights=insights,
                stop_flag=stop,
                clusterwide=not self._namespaces,
                namespaces=self._namespaces,
            )
        finally:
            told.cancel()

    async def _when_told(self, insights: Insights, stop: asyncio.Event) -> None:
        """End Kopf, but not while it looks which resources there are: it would try again then."""
        while not self._stop.is_set():  # noqa: ASYNC110  it is set in another thread
            await asyncio.sleep(_TOLD_EVERY)
        with suppress(TimeoutError):
            async with asyncio.timeout(_SCAN_SECONDS):
                await insights.ready_resources.wait()
        stop.set()

    def _registry(self, loop: asyncio.AbstractEventLoop) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        def woken(kind: str) -> Callable[..., Any]:
            async def handler(event: dict[str, Any], body: Any, **_: Any) -> None:
                loop.call_soon_threadsafe(self._wake, event["type"] or "", kind, dict(body))

            handler.__name__ = f"wake_{kind.lower()}"
            return handler

        kopf.on.event(*_GROUP, "statefulsparkjobs", registry=registry)(woken("StatefulSparkJob"))
        kopf.on.event(*_GROUP, "statefulsparksnapshots", registry=registry)(
            woken("StatefulSparkSnapshot")
        )
        kopf.on.event("", "v1", "pods", labels={JOB_LABEL: kopf.PRESENT}, registry=registry)(
            woken("Pod")
        )
        kopf.on.login(registry=registry)(self._login)
        return registry

    async def _login(self, **_: Any) -> kopf.ConnectionInfo:
        """As the client of the loop does it; asked again when the API server refuses."""
        found = self._configuration
        token = await found.get_api_key_with_prefix("BearerToken", alias="authorization")
        scheme, _space, secret = (token or "").rpartition(" ")
        return kopf.ConnectionInfo(
            server=found.host.rstrip("/"),
            ca_path=found.ssl_ca_cert,
            insecure=not found.verify_ssl,
            scheme=(scheme or "Bearer").capitalize() if secret else None,
            token=secret or None,
            certificate_path=found.cert_file,
            private_key_path=found.key_file,
        )


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    settings.posting.enabled = False
    settings.networking.request_timeout = 30.0
    settings.watching.server_timeout = 270
    # What the server does not end, because nobody is there any more, ends here. A stream without
    # so much as a bookmark for a little more than a minute is ended by Kopf.
    settings.watching.client_timeout = 300
    settings.watching.chunk_size = 500
    settings.watching.label_selectors["", "v1", "pods"] = JOB_LABEL
    settings.scanning.disabled = True
    settings.process.ultimate_exiting_timeout = None
    return settings


def _finish(ended: asyncio.Future[None], failure: Exception | None) -> None:
    if ended.done():
        return
    if failure is not None:
        ended.set_exception(failure)
    else:
        ended.set_result(None)
