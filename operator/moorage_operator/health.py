"""The process's own small web server: /healthz and /readyz for the kubelet, /metrics.

It runs from the first moment on, also in a process that waits to lead. It says nothing about jobs:
a job in trouble is no reason to restart the operator.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

__all__ = ["health_server"]

_CONTENT_TYPE = "Content-Type"


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
        host: the address to listen on; empty for all.
        port: the port, 0 for any.
        trouble: why the process should be restarted; empty if it should not.
        waits_for: why it is not ready: it is once it works, or stands by to; empty then.
        registry: the metrics.
    """

    async def healthz(_: web.Request) -> web.Response:
        why = trouble()
        return web.Response(text=why or "ok", status=500 if why else 200)

    async def readyz(_: web.Request) -> web.Response:
        why = waits_for()
        return web.Response(text=why or "ok", status=503 if why else 200)

    async def metrics(_: web.Request) -> web.Response:
        text = await asyncio.to_thread(generate_latest, registry)
        return web.Response(body=text, headers={_CONTENT_TYPE: CONTENT_TYPE_LATEST})

    app = web.Application()
    app.add_routes(
        [web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)]
    )
    runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=1.0, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host or None, port)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
