"""One pass at a time for an object, many objects at once, and no wake-up lost."""

import asyncio
import random

import pytest

from moorage_operator.loop import Pass
from moorage_operator.ports import Ref
from moorage_operator.workqueue import WorkQueue

A, B = Ref("StatefulSparkJob", "n", "a"), Ref("StatefulSparkJob", "n", "b")
STILL = Pass(changed=False, again_after=3600.0)
GONE = Pass(changed=False, again_after=None)


class Hands:
    """Passes that a test begins and ends."""

    def __init__(self):
        self.begun, self.answers, self.gates = [], {}, {}
        self.at_once, self.most = 0, 0

    async def __call__(self, ref):
        self.begun.append(ref)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            if ref in self.gates:
                await self.gates[ref].wait()
            answer = self.answers.get(ref, STILL)
            if isinstance(answer, list):
                answer = answer.pop(0) if answer else STILL
            if isinstance(answer, Exception):
                raise answer
            return answer
        finally:
            self.at_once -= 1


@pytest.fixture
async def hands():
    return Hands()


@pytest.fixture
async def queue(hands):
    queue = WorkQueue(hands, 4, random.Random(1), pace=0.0)
    running = asyncio.create_task(queue.run())
    yield queue
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def turns(count=20):
    for _ in range(count):
        await asyncio.sleep(0)


async def until(there, seconds=5.0):
    async with asyncio.timeout(seconds):
        while not there():  # noqa: ASYNC110  what is waited for is a timer
            await asyncio.sleep(0.005)


async def test_wake_ups_before_a_pass_are_one(queue, hands):
    for _ in range(5):
        queue.wake(A)
    await turns()
    assert hands.begun == [A]


async def test_a_wake_up_during_a_pass_leads_to_one_more(queue, hands):
    hands.gates[A] = asyncio.Event()
    queue.wake(A)
    await turns()
    for _ in range(3):
        queue.wake(A)
    await turns()
    assert hands.begun == [A]
    hands.gates[A].set()
    await turns()
    assert hands.begun == [A, A]


async def test_passes_of_one_object_never_overlap_and_others_go_on(queue, hands):
    hands.gates[A] = asyncio.Event()
    queue.wake(A)
    await turns()
    queue.wake(A)
    queue.wake(B)
    await turns()
    assert hands.begun == [A, B]
    assert hands.most == 2


async def test_no_more_passes_at_once_than_workers(queue, hands):
    gate = asyncio.Event()
    refs = [Ref("StatefulSparkJob", f"n{n % 2}", str(n)) for n in range(20)]
    for ref in refs:
        hands.gates[ref] = gate
        queue.wake(ref)
    await turns()
    assert hands.most == 4
    gate.set()
    await until(lambda: len(hands.begun) == 20)


async def test_a_pass_that_changed_something_is_followed_at_once(queue, hands):
    hands.answers[A] = [Pass(changed=True, again_after=30.0)] * 3
    queue.wake(A)
    await turns(60)
    assert hands.begun == [A] * 4


async def test_changes_without_end_are_slowed_down(queue, hands):
    hands.answers[A] = Pass(changed=True, again_after=0.0)
    queue.wake(A)
    await turns(500)
    assert len(hands.begun) == 10


async def test_a_pass_comes_again_after_its_time(queue, hands):
    hands.answers[A] = [Pass(changed=False, again_after=0.05)]
    queue.wake(A)
    await until(lambda: hands.begun == [A, A])


async def test_an_earlier_wish_wins_over_a_later_one(queue, hands):
    queue.wake(A, 3600.0)
    queue.wake(A, 0.02)
    queue.wake(A, 1800.0)
    await until(lambda: hands.begun == [A])


async def test_a_gone_object_is_forgotten_unless_it_was_woken_meanwhile(queue, hands):
    hands.answers[A] = GONE
    queue.wake(A)
    await turns()
    assert queue.known == 0
    hands.gates[A] = asyncio.Event()
    queue.wake(A)
    await turns()
    queue.wake(A)
    hands.gates[A].set()
    await turns()
    assert hands.begun == [A, A, A]
    assert queue.known == 0


async def test_a_storm_of_events_is_a_pass_now_and_then(hands):
    queue = WorkQueue(hands, 4, random.Random(1), pace=0.2)
    running = asyncio.create_task(queue.run())
    loop = asyncio.get_running_loop()
    begun = loop.time()
    while (spent := loop.time() - begun) < 0.9 or (len(hands.begun) < 2 and spent < 20):
        queue.wake(A)
        await asyncio.sleep(0.002)
    spent = loop.time() - begun
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert 2 <= len(hands.begun) <= 1 + spent / 0.2


async def test_the_last_event_of_a_storm_is_not_lost(hands):
    queue = WorkQueue(hands, 4, random.Random(1), pace=0.1)
    running = asyncio.create_task(queue.run())
    hands.gates[A] = asyncio.Event()
    queue.wake(A)
    await turns()
    queue.wake(A)
    hands.gates[A].set()
    await turns()
    assert hands.begun == [A]
    await until(lambda: hands.begun == [A, A])
    queue.wake(A)
    await until(lambda: hands.begun == [A, A, A])
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_an_object_that_time_does_not_change_is_looked_at_again_only_when_woken(queue, hands):
    hands.answers[A] = Pass(changed=False, again_after=None)
    queue.wake(A)
    await turns()
    assert (hands.begun, queue.known) == ([A], 0)
    queue.wake(A)
    await turns()
    assert hands.begun == [A, A]


async def test_what_changed_nothing_is_not_repeated_sooner_than_the_pace(queue, hands):
    """Whatever it asks for: else an object that others hold would be looked at all the time."""
    queue.pace = 0.1
    hands.answers[A] = [Pass(changed=False, again_after=0.0)] * 3
    begun = asyncio.get_running_loop().time()
    queue.wake(A)
    await until(lambda: hands.begun == [A, A, A])
    assert asyncio.get_running_loop().time() - begun >= 0.19


async def test_a_bug_about_one_object_does_not_stop_the_others(queue, hands, caplog):
    hands.answers[A] = [RuntimeError("bug")]
    queue.wake(A)
    await turns()
    queue.wake(B)
    await turns()
    assert hands.begun == [A, B]
    assert "bug" in caplog.text
    await until(lambda: hands.begun == [A, B, A])


async def test_draining_ends_what_is_under_way_and_begins_nothing(queue, hands):
    hands.gates[A] = asyncio.Event()
    queue.wake(A)
    await turns()
    draining = asyncio.create_task(queue.drain(5.0))
    await turns()
    queue.wake(B)
    await turns()
    assert not draining.done()
    hands.gates[A].set()
    assert await draining
    await turns()
    assert hands.begun == [A]


async def test_draining_does_not_wait_for_ever(queue, hands):
    hands.gates[A] = asyncio.Event()
    queue.wake(A)
    await turns()
    assert queue.longest() >= 0.0
    assert not await queue.drain(0.01)


async def test_how_long_an_object_waited_for_a_worker_is_told(queue, hands):
    waits, all_told = [], asyncio.Event()

    def waited(seconds):
        waits.append(seconds)
        if len(waits) == 5:
            all_told.set()

    queue.waited = waited
    hands.gates = {Ref("StatefulSparkJob", "n", str(n)): asyncio.Event() for n in range(4)}
    for ref in hands.gates:
        queue.wake(ref)
    queue.wake(A)
    await asyncio.sleep(0.05)
    for gate in hands.gates.values():
        gate.set()
    async with asyncio.timeout(5):
        await all_told.wait()
    assert max(waits) >= 0.04


async def test_a_namespace_whose_passes_all_hang_leaves_workers_to_the_others(queue, hands):
    stuck = [Ref("StatefulSparkJob", "n", str(number)) for number in range(6)]
    gate = asyncio.Event()
    hands.gates = dict.fromkeys(stuck, gate)
    for ref in stuck:
        queue.wake(ref)
    other = Ref("StatefulSparkJob", "elsewhere", "a")
    queue.wake(other)
    await turns(50)
    assert sorted(hands.begun) == sorted([*stuck[: queue.share], other])
    assert queue.waiting == len(stuck) - queue.share
    gate.set()
    await turns(50)
    assert sorted(hands.begun) == sorted([*stuck, other])
    assert not queue.waiting


async def test_all_that_is_due_at_the_start_is_seen_once_each_pass_of_it_has_ended(queue, hands):
    hands.gates = {A: asyncio.Event(), B: asyncio.Event()}
    others = [Ref("StatefulSparkJob", "n", f"c{number}") for number in range(4)]
    hands.gates |= {one: asyncio.Event() for one in others}
    for ref in (A, B, *others):
        queue.wake(ref)
    seen = asyncio.create_task(queue.once())
    await turns()
    *first, last = hands.gates.values()
    for gate in first:
        gate.set()
    await turns(50)
    assert not queue.waiting
    assert not seen.done(), "one is under way"
    queue.wake(A)
    last.set()
    async with asyncio.timeout(5.0):
        assert await seen == 6
    assert set(hands.begun) == {A, B, *others}
