"""Strangers that hold connections keep nobody from being answered."""

import asyncio
from contextlib import AsyncExitStack

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from moorage_operator.health_server import health_server


@pytest.fixture
def server():
    return health_server(
        "127.0.0.1",
        0,
        trouble=lambda: "",
        waits_for=lambda: "",
        registry=CollectorRegistry(),
    )


async def test_who_holds_many_connections_loses_the_oldest(server):
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(server)
        held = []
        for _ in range(200):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: ")
            held.append(reader)
        session = await stack.enter_async_context(aiohttp.ClientSession())
        async with session.get(f"http://127.0.0.1:{port}/healthz") as answer:
            assert (answer.status, await answer.text()) == (200, "ok")
        gone = [await asyncio.wait_for(reader.read(), 30) for reader in held[:137]]
        assert set(gone) == {b""}
        assert not held[-1].at_eof()
