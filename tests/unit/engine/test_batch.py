"""The backend batch inside a subtask: nothing is read or kept, and timers fire with their key."""

from typing import Any

import pytest

from moorage.api.functions import (
    MAX_WATERMARK,
    NO_WATERMARK,
    KeyedProcessFunction,
    ProcessContext,
    TimerService,
)
from moorage.engine.range_access import LeasedRange, ServerDoor
from moorage.engine.subtask_plan import NEVER
from moorage.engine.timers import FiringAtTheEnd, NothingStored
from moorage_state.keyed import KeyedStateStore, KeyTimers
from moorage_state.keylayout import key_prefix
from moorage_state.server.operations import Lease, Prepared, Version


class NoServer:
    """A state server that may only be asked to prepare an empty delta."""

    def __init__(self):
        self.prepared = []

    def range(self, lease):
        self.lease = lease
        return self

    def prepare(self, *arguments):
        self.prepared.append((self.lease, *arguments))
        return Prepared("empty", 0, 0)


@pytest.fixture
def server():
    return NoServer()


@pytest.fixture
def bound(server):
    leased = LeasedRange(Lease("op", 0, "f1r0"), ServerDoor("unix:x"), Version(0, ""))
    return NothingStored(server, leased, 1, "attempt")


class Out:
    full = False

    def __init__(self):
        self.rows = []

    def extend(self, rows):
        self.rows += rows


class Repeats(KeyedProcessFunction):
    """Says what fired and at which watermark; every timer sets itself anew, and deletes another."""

    def on_timer(self, timestamp, ctx):
        service = ctx.timer_service()
        service.register_event_time_timer(timestamp + 1)
        service.register_processing_time_timer(timestamp + 1)
        if timestamp == 10:
            service.delete_event_time_timer(30)
        yield ctx.key, timestamp, service.current_watermark()


def outcome(firing):
    return firing._out.rows


def test_nothing_is_read_and_what_is_written_is_dropped(bound, server):
    assert bound.get_many([b"a", b"b"]) == [None, None]
    assert [scan.keys for scan in bound.scan_many([b"a"], 1, 1)] == [[]]
    assert bound.scan_from(b"a", b"", 1).complete
    assert bound.due_timers(MAX_WATERMARK, 10, b"") == []
    assert bound.next_timer(0, 3) is None
    bound.stage(b"not even a frame")
    assert bound.prepare() == "empty"
    assert server.prepared == [(Lease("op", 0, "f1r0"), 1, "attempt", "", 0)]


@pytest.fixture
def firing(bound):
    store = KeyedStateStore(bound, 1)
    timers = KeyTimers(store)
    ctx = ProcessContext(TimerService(timers, NO_WATERMARK, 1000))
    out: Any = Out()
    made = FiringAtTheEnd(Repeats(), ctx, timers, out)
    store.begin_chunk([key_prefix(1, b"k"), key_prefix(1, b"l")])
    store.switch_to(0)
    ctx.key = "k"
    return made, ctx, store


def test_a_key_without_timers_has_none_due(firing):
    made, _, _ = firing
    assert not made.any_due()


def test_what_is_left_fires_at_the_end_of_the_key_up_to_the_end_of_time(firing, bound):
    made, ctx, store = firing
    service = ctx.timer_service()
    for time in (10, 500, 20, 30):
        service.register_event_time_timer(time)
    service.register_processing_time_timer(5_000)
    assert service.current_watermark() == NO_WATERMARK
    assert made.any_due()
    assert made.go_on()
    fired = [(time, watermark) for _, time, watermark in outcome(made)]
    assert fired == [(time, MAX_WATERMARK) for time in (10, 20, 500, 5_000)]
    made.key_done(store.prefix)
    store.switch_to(1)
    made.begin_key()
    assert service.current_watermark() == NO_WATERMARK
    assert not made.any_due()
    store.finish()
    assert made.next_timer(bound) == NEVER
    assert list(made.pages(bound)) == []


def test_what_timers_set_at_the_end_of_their_key_is_ignored_and_said_once(firing, caplog):
    made, ctx, store = firing
    service = ctx.timer_service()
    for index, key in enumerate("kl"):
        store.switch_to(index)
        ctx.key = key
        service.register_event_time_timer(10)
        assert made.go_on()
        assert not made.any_due()
    assert [row[:2] for row in outcome(made)] == [("k", 10), ("l", 10)]
    (said,) = caplog.messages
    assert said.startswith("timers set at the end of their key are ignored: key='k';")


def test_where_the_output_is_full_the_rest_of_the_timers_waits_and_goes_on(firing):
    made, ctx, _ = firing
    for time in (10, 20):
        ctx.timer_service().register_event_time_timer(time)
    ctx.timer_service().register_processing_time_timer(5)
    made._out.full = True
    went_on = [made.go_on() for _ in range(4)]
    assert went_on == [False, False, False, True]
    assert [time for _, time, _ in outcome(made)] == [10, 20, 5]
