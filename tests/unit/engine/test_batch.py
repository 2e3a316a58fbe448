"""The backend batch inside a subtask: nothing is read or kept, and timers fire with their key."""

from typing import Any

import pytest

from moorage.engine.batch import FiringAtTheEnd, NothingStored
from moorage.engine.range_access import LeasedRange, ServerDoor
from moorage.engine.subtask_plan import NEVER
from moorage.functions import (
    MAX_WATERMARK,
    NO_WATERMARK,
    KeyedProcessFunction,
    ProcessContext,
    TimeDomain,
    TimerService,
)
from moorage_state.keyed import KeyedStateStore, KeyTimers
from moorage_state.keys import key_prefix
from moorage_state.server.api import Prepared, Version


class NoServer:
    """A state server that may only be asked to prepare an empty delta."""

    def __init__(self):
        self.prepared = []

    def prepare(self, *arguments):
        self.prepared.append(arguments)
        return Prepared("empty", 0, 0)


@pytest.fixture
def server():
    return NoServer()


@pytest.fixture
def bound(server):
    leased = LeasedRange("op", 0, "f1r0", ServerDoor("unix:x"), Version(0, ""))
    return NothingStored(server, leased, 1, "attempt")


class Out:
    full = False

    def __init__(self):
        self.rows = []

    def extend(self, rows):
        self.rows += rows


class Repeats(KeyedProcessFunction):
    """Says what fired and at which watermark; one timer sets two others."""

    def on_timer(self, timestamp, ctx):
        service = ctx.timer_service()
        if timestamp == 10:
            service.register_event_time_timer(7)
            service.register_event_time_timer(MAX_WATERMARK)
        yield ctx.key, timestamp, service.current_watermark()


class Alternates(KeyedProcessFunction):
    """An event-time timer sets one of processing time, which sets itself for a time that was."""

    def on_timer(self, timestamp, ctx):
        domain = ctx.time_domain()
        ctx.timer_service().register_processing_time_timer(timestamp - domain)
        yield ctx.key, timestamp, domain


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
    assert server.prepared == [("op", 0, "f1r0", 1, "attempt", "", 0)]


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
    for time in (10, 500, 20):
        service.register_event_time_timer(time)
    service.register_processing_time_timer(5_000)
    assert service.current_watermark() == NO_WATERMARK
    assert made.any_due()
    assert made.go_on()
    fired = [(time, watermark) for _, time, watermark in outcome(made)]
    expected = [5_000, 10, 7, 20, 500, MAX_WATERMARK]
    assert fired == [(time, MAX_WATERMARK) for time in expected]
    assert service.current_watermark() == NO_WATERMARK
    made.key_done(store.prefix)
    store.switch_to(1)
    assert not made.any_due()
    store.finish()
    assert made.next_timer(bound) == NEVER
    assert list(made.pages(bound)) == []


def test_what_an_event_time_timer_sets_for_processing_time_fires_at_the_end_too(firing):
    made, ctx, _ = firing
    made._function = Alternates()
    ctx.timer_service().register_event_time_timer(10)
    assert made.any_due()
    assert made.go_on()
    fired = [(time, domain) for _, time, domain in outcome(made)]
    assert fired == [(10, TimeDomain.EVENT_TIME), (10, TimeDomain.PROCESSING_TIME)]
    assert not made.any_due()
