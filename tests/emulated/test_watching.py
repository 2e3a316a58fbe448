"""Kopf in its thread, ended at any moment of its beginning."""

import asyncio
import logging

import kmock
import pytest
from kubernetes.aio.client import Configuration
from moorage_testing.kube.emulator import Emulator

from moorage_operator.shards import Selection
from moorage_operator.watches import Watching


@pytest.fixture
async def found():
    async with Emulator() as emulator, kmock.Server(emulator):
        yield Configuration(host=str(emulator.url).rstrip("/"))


@pytest.mark.parametrize("seconds", [0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1])
async def test_watches_that_are_ended_while_they_begin_end_without_a_complaint(
    found, caplog, seconds
):
    watching = Watching(found, Selection(), lambda *_: None)
    task = asyncio.create_task(watching.run())
    await asyncio.sleep(seconds)
    task.cancel()
    async with asyncio.timeout(3.0):
        await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    assert not [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]
