"""The thread that Kopf runs in."""

import asyncio

import kopf
import pytest
from kubernetes.aio.client import Configuration

from moorage_operator.shards import Selection
from moorage_operator.watches import Watching


async def test_an_exit_inside_of_kopf_is_told_and_ends_nothing_else(monkeypatch):
    async def leave(**_):
        raise SystemExit(3)

    monkeypatch.setattr(kopf, "spawn_tasks", leave)
    watching = Watching(Configuration(), Selection(), lambda *_: None)
    async with asyncio.timeout(20):
        with pytest.raises(RuntimeError, match=r"SystemExit\(3\)"):
            await watching.run()
