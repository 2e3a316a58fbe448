"""The process over HTTP: /healthz and /readyz for the kubelet, /metrics for Prometheus.

Health says nothing about jobs: one in trouble is no reason to restart the operator. Anybody whom
the network lets in may ask, so that connections are few: strangers that hold many would else take
the memory of the operator, and the kubelet would not be answered.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

_MOST = 64


class _Newest:
    """Makes the protocols of connections; of more than so many the oldest is closed.

    Whoever asks is answered in milliseconds, so that it is never among the oldest.
    """

    def __init__(self, server: web.Server) -> None:
        self._server = server
        self._held: deque[web.RequestHandler] = deque()

    def __call__(self) -> web.RequestHandler:
        handler = self._server()
        self._held.append(handler)
        if len(self._held) > _MOST:
            self._held.popleft().force_close()
        return handler


@asynccontextmanager
async def health_server(
    host: str,
    port: int,
    *,
    trouble: Callable[[], str],
    waits_for: Callable[[], str],
    registry: CollectorRegistry,
) -> AsyncIterator[int]:
    """Serve while inside; yields the port.

    Args:
        trouble: why the process should be restarted; empty if it should not.
        waits_for: why it is not ready: it is once it works, or stands by to; empty then.
    """

    async def healthz(_: web.Request) -> web.Response:
        why = trouble()
        return web.Response(text=why or "ok", status=500 if why else 200)

    async def readyz(_: web.Request) -> web.Response:
        why = waits_for()
        return web.Response(text=why or "ok", status=503 if why else 200)

    async def metrics(_: web.Request) -> web.Response:
        text = await asyncio.to_thread(generate_latest, registry)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes(
        [web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)]
    )
    runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=1.0, access_log=None)
    await runner.setup()
    try:
        if runner.server is None:
            raise RuntimeError("the server of probes and metrics is not set up")
        newest = _Newest(runner.server)
        server = await asyncio.get_running_loop().create_server(newest, host or None, port)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
    finally:
        await runner.cleanup()
