"""A subtask whose state expires: by the plan's time, against real state servers."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from moorage import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from moorage_state.rocks import RocksOptions
from moorage_state.server.group import ServerGroup
from moorage_state.state_backends import EmbeddedRocksDBStateBackend

MINUTE = 60_000
NOW = 1_700_000_000_000


class Remembers(KeyedProcessFunction):
    """Sends how many rows its key had in the last ten minutes, by every kind of state."""

    def open(self, ctx):
        ttl = StateTtlConfig(timedelta(minutes=10))
        self.count = ctx.get_reducing_state(ReducingStateDescriptor("count", "long", "sum", ttl))
        self.rows = ctx.get_list_state(ListStateDescriptor("rows", "long", ttl))
        self.seen = ctx.get_map_state(MapStateDescriptor("seen", "long", "boolean", ttl))
        self.ever = ctx.get_state(ValueStateDescriptor("ever", "boolean"))

    def process(self, row, ctx):
        self.count.add(1)
        self.rows.add(row.n)
        self.seen.put(row.n, True)
        self.ever.update(True)
        yield ctx.key, self.count.get() * 100 + len(self.rows.get()) * 10 + len(self.seen.keys())


@pytest.fixture(scope="module", params=[False, True], ids=["rocksdb timers", "heap timers"])
def servers(request: Any, tmp_path_factory: Any) -> Iterator[ServerGroup]:
    backend = EmbeddedRocksDBStateBackend(tuned=RocksOptions(heap_timers=request.param))
    with ServerGroup(1, tmp_path_factory.mktemp("state"), backend=backend) as group:
        yield group


def entries(operator: Any) -> int:
    """How much is stored under all key groups, indexes included."""
    prefixes = [group.to_bytes(2, "big") for group in range(128)]
    found = operator.client.range(operator.lease).scan_many(operator.version, prefixes)
    return sum(len(scan.keys) for scan in found)


def test_state_expires_by_the_plans_time_and_goes_without_its_key(
    operator: Any, batch: Callable[..., Any]
) -> None:
    first = operator.epoch(Remembers(), [batch(("a", 1), ("a", 2), ("b", 3))], now_ms=NOW)
    assert dict(first.rows) == {"a": 222, "b": 111}
    stored = entries(operator)
    later = operator.epoch(Remembers(), [batch(("b", 4))], now_ms=NOW + 9 * MINUTE)
    assert later.rows == [("b", 222)]
    assert entries(operator) > stored
    operator.epoch(Remembers(), [batch(("c", 1))], now_ms=NOW + 11 * MINUTE)
    after = operator.epoch(Remembers(), [batch(("b", 5))], now_ms=NOW + 12 * MINUTE)
    assert after.rows == [("b", 322)]
    for minutes in (24, 36):
        operator.epoch(Remembers(), [batch(("z", 1))], now_ms=NOW + minutes * MINUTE)
    operator.epoch(Remembers(), [], start=True, now_ms=NOW + 60 * MINUTE)
    operator.epoch(Remembers(), [], start=True, now_ms=NOW + 61 * MINUTE)
    assert entries(operator) == 4


class Counts(KeyedProcessFunction):
    """Keeps a number for each key, swept or not."""

    def __init__(self, ttl=None):
        self._ttl = ttl

    def open(self, ctx):
        self.count = ctx.get_state(ValueStateDescriptor("n", "long", self._ttl))

    def process(self, row, _ctx):
        self.count.update(row.n)
        return ()


def test_what_was_stored_before_it_had_a_time_to_live_goes_without_its_key(
    operator: Any, batch: Callable[..., Any]
) -> None:
    operator.epoch(Counts(), [batch(*[(f"key-{n}", n) for n in range(200)])], now_ms=NOW)
    swept = Counts(StateTtlConfig(timedelta(minutes=10)))
    for minutes in (1, 2, 3):
        operator.epoch(swept, [], start=True, now_ms=NOW + minutes * MINUTE)
    assert entries(operator) >= 200
    operator.epoch(swept, [], start=True, now_ms=NOW + 15 * MINUTE)
    assert entries(operator) == 0


def test_an_attempt_that_is_repeated_sweeps_the_same(
    operator: Any, batch: Callable[..., Any]
) -> None:
    operator.epoch(Remembers(), [batch(("a", 1), ("b", 2))], now_ms=NOW)
    rows = [batch(("b", 2), ("c", 3))]
    one, other = (operator.attempt(Remembers(), rows, now_ms=NOW + 11 * MINUTE) for _ in range(2))
    assert one.ack.delta == other.ack.delta
