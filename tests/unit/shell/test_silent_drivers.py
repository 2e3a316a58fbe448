"""Drivers that accept a connection and never answer: they hold up nobody of another namespace."""

import asyncio
import random
import time
from contextlib import asynccontextmanager

import pytest

from moorage_operator import workqueue
from moorage_operator.endpoint import HttpDrivers
from moorage_operator.loop import Pass
from moorage_operator.ports import DriverTarget, EndpointUnreachable, Ref
from moorage_operator.workqueue import WorkQueue

STILL = Pass(changed=False, again_after=3600.0)
PATIENCE = 1.0


def jobs(namespace, count):
    return [Ref("StatefulSparkJob", namespace, str(number)) for number in range(count)]


@asynccontextmanager
async def server(answer):
    """Yields a port and how many connections there are."""
    now = {"open": 0, "most": 0}

    async def accept(reader, writer):
        now["open"] += 1
        now["most"] = max(now["most"], now["open"])
        try:
            await answer(reader, writer)
        finally:
            now["open"] -= 1
            writer.close()

    served = await asyncio.start_server(accept, "0.0.0.0", 0, backlog=1024)  # noqa: S104
    try:
        yield served.sockets[0].getsockname()[1], now
    finally:
        served.close()


async def silent(reader, _writer):
    await reader.read()


async def healthy(reader, writer):
    await reader.readuntil(b"\r\n\r\n")
    body = b'{"attempt": 1, "jobUid": "u", "phase": "running"}'
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()


class Passes:
    """Each asks its job's driver, as passes do."""

    def __init__(self, drivers, ports):
        self.drivers, self.ports = drivers, ports
        self.answered, self.gave_up = {}, []
        self.queue = WorkQueue(self, 4, random.Random(1), pace=0.0)

    async def __call__(self, ref):
        pod = f"127.1.{1 + list(self.ports).index(ref.namespace)}.{1 + int(ref.name)}"
        target = DriverTarget(pod, self.ports[ref.namespace], "token")
        try:
            async with self.queue.aside(), asyncio.timeout(PATIENCE):
                await self.drivers.state(target)
        except (EndpointUnreachable, TimeoutError):
            self.gave_up.append(ref)
        else:
            self.answered[ref] = time.monotonic()
        return STILL


@asynccontextmanager
async def passes(ports):
    drivers = HttpDrivers(connections=workqueue.MOST_UNDER_WAY)
    made = Passes(drivers, ports)
    running = asyncio.create_task(made.queue.run())
    try:
        yield made
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await drivers.close()


async def until(there, seconds=10.0):
    async with asyncio.timeout(seconds):
        while not there():  # noqa: ASYNC110  what it waits for is in sockets
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("tenants", [1, 12])
async def test_drivers_that_never_answer_hold_up_nobody_elses(tenants, monkeypatch):
    monkeypatch.setattr(workqueue, "MOST_UNDER_WAY", 60)
    async with server(silent) as (hole, held), server(healthy) as (port, _):
        bad = [f"bad-{number}" for number in range(tenants)]
        async with passes({**dict.fromkeys(bad, hole), "good": port}) as made:
            for namespace in bad:
                for ref in jobs(namespace, 40):
                    made.queue.wake(ref)
            await until(lambda: held["open"] >= min(30, tenants * 4))
            begun, good = time.monotonic(), jobs("good", 20)
            for ref in good:
                made.queue.wake(ref)
            await until(lambda: len(made.answered) == len(good))
            assert max(made.answered.values()) - begun < PATIENCE
            assert not [ref for ref in made.gave_up if ref.namespace == "good"]
            assert held["most"] <= 60


async def test_every_silent_driver_has_its_turn(monkeypatch):
    monkeypatch.setattr(workqueue, "MOST_UNDER_WAY", 60)
    async with server(silent) as (hole, held), passes({"bad": hole}) as made:
        for ref in jobs("bad", 50):
            made.queue.wake(ref)
        await until(lambda: len(made.gave_up) == 50)
        assert held["most"] <= 32
        assert not made.queue.waiting


async def test_a_pass_whose_driver_has_answered_waits_for_a_worker():
    at_once, most, gate = 0, 0, asyncio.Event()

    async def one(_ref):
        nonlocal at_once, most
        async with queue.aside():
            await gate.wait()
        at_once += 1
        most = max(most, at_once)
        for _ in range(3):
            await asyncio.sleep(0)
        at_once -= 1
        done.append(_ref)
        return STILL

    done: list[Ref] = []
    queue = WorkQueue(one, 2, random.Random(1), pace=0.0)
    running = asyncio.create_task(queue.run())
    wanted = [ref for n in "abc" for ref in jobs(n, 5)]
    for ref in wanted:
        queue.wake(ref)
    await until(lambda: not queue.waiting)
    gate.set()
    await until(lambda: len(done) == len(wanted))
    assert most <= 2
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_the_end_of_the_process_waits_for_no_driver():
    async def one(_ref):
        async with queue.aside():
            await asyncio.Event().wait()
        return STILL

    queue = WorkQueue(one, 2, random.Random(1), pace=0.0)
    running = asyncio.create_task(queue.run())
    for ref in jobs("a", 8):
        queue.wake(ref)
    await until(lambda: not queue.waiting)
    running.cancel()
    async with asyncio.timeout(5):
        await asyncio.gather(running, return_exceptions=True)


async def test_without_a_queue_a_pass_waits_as_it_is():
    async with WorkQueue(lambda _: asyncio.sleep(0, STILL)).aside():
        pass
