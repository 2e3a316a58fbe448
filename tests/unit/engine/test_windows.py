"""Windows: what comes out is what an oracle computes again from all rows, epoch by epoch.

The oracle keeps rows, not windows: after each change it puts all rows that still count into windows
anew. Streams are made from a seed: rows out of order and late, several keys, epochs cut anywhere.
"""

from collections import defaultdict
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from moorage_testing.fake_range import FakeRange
from pyspark.sql.types import LongType, StringType, StructField, StructType

from moorage.api import window_times
from moorage.api.aggregates import avg, bound, count, max_, min_, sum_
from moorage.api.functions import MAX_WATERMARK, OutputTag
from moorage.api.window_columns import by_column
from moorage.api.window_operator import Aggregated, Collected, Reduced, WindowOperator
from moorage.api.windows import (
    Count,
    EachCount,
    Early,
    Global,
    Never,
    ProcessWindowFunction,
    Session,
    Sliding,
    Tumbling,
    windowing,
)
from moorage.engine import subtask
from moorage.engine.acks import decode_ack
from moorage.engine.columns import ACK_COLUMN, GROUP_COLUMN
from moorage.engine.subtask_plan import NEVER, UNKNOWN, SideOutputPlan, Upstream
from moorage.engine.task_failures import SubtaskFailure
from moorage.testing import KeyedHarness
from moorage_state.columnar.arrow import arrow_type
from moorage_state.descriptors import ValueStateDescriptor
from moorage_state.errors import UserError
from moorage_state.keygroups import range_of
from moorage_state.types import parse_type

STREAM = StructType([StructField("user", StringType()), StructField("n", LongType())])
AGGREGATES = {"rows": count(), "total": sum_("n"), "least": min_("n"), "most": max_("n")}
LATE = OutputTag("late")
TIMED = [(f"window_{end}", pa.timestamp("us", "UTC")) for end in ("start", "end")]
KEYS = "abc"
ROW = pa.schema([("user", pa.string()), ("n", pa.int64())])
SEEDS, SOAK_SEEDS = 1, 60


def output(*, timed=True):
    values = [(name, pa.int64()) for name in AGGREGATES]
    return pa.schema([("user", pa.string()), *(TIMED if timed else []), *values])


def by_rows(assigner, trigger=None, lateness="0s", aggregates=AGGREGATES):
    windows = windowing(assigner, trigger, lateness, LATE if assigner.domain == 0 else "drop")
    contents = Aggregated(bound("w", aggregates, STREAM), timed=assigner.domain is not None)
    return WindowOperator(windows, contents)


def untyped(value: Any) -> Any:
    return value


def by_columns(assigner, trigger=None, lateness="0s", aggregates=AGGREGATES):
    windows = windowing(assigner, trigger, lateness, LATE if assigner.domain == 0 else "drop")
    contents = Aggregated(bound("w", aggregates, STREAM), timed=assigner.domain is not None)
    return by_column(windows, contents, ("user",))


WAYS = {"rows": by_rows, "columns": by_columns}


class Run:
    """Epochs of one operator over rows that are sorted as Spark sorts them."""

    def __init__(self, operator, rows, make, schema, rng, **changes):
        self._operator, self._batch, self._make, self._rng = operator, rows, make, rng
        self._schema = schema
        late = pa.schema([("user", pa.string()), ("n", pa.int64())])
        sides = (SideOutputPlan("late", late, read=True),)
        self._changes = {"timer_delay_ms": None, "side_outputs": sides} | changes

    def epoch(self, rows, watermark, now_ms=0, before=None):
        """Results as (user, start, end, ...) and late rows, both sorted."""
        rows = sorted(rows, key=lambda row: (sum(row[0].encode()) % 128, row[0], row[2]))
        step = self._rng.randint(1, 6)
        batches = [self._batch(*rows[at : at + step]) for at in range(0, len(rows), step)]
        fleet = isinstance(self._operator, Fleet)
        done = self._operator.epoch(
            self._make if fleet else self._make(),
            batches,
            watermark=watermark,
            row_watermark=watermark if before is None else before,
            now_ms=now_ms,
            output=self._schema,
            **self._changes,
        )
        made, late = [], []
        for batch in done.batches[:-1]:
            for row in batch.to_pylist():
                if row.get("_m_o0") is not None:
                    late.append(tuple(row["_m_o0"].values()))
                else:
                    made.append(tuple(_plain(row[name]) for name in self._schema.names))
        return sorted(made), sorted(late)


def _plain(value):
    return round(value.timestamp() * 1000) if hasattr(value, "timestamp") else value


def aggregated(rows):
    numbers = [n for _, n in rows]
    return len(numbers), sum(numbers), min(numbers), max(numbers)


class Oracle:
    """Windows of event time over all rows of each key that still count.

    Args:
        windows_of: from all (time, n) of a key to its windows: (start, end) -> rows.
    """

    def __init__(self, windows_of, lateness):
        self.windows_of, self.lateness = windows_of, lateness
        self.rows = defaultdict(list)
        self.before = -(1 << 63)

    def epoch(self, rows, watermark):
        made, late = [], []
        for user, kept in self.rows.items():
            for (start, end), mine in self.windows_of(kept).items():
                if self.before < end - 1 <= watermark:
                    made.append((user, start, end, *aggregated(mine)))
        for user in self.rows:
            self.rows[user] = self._alive(self.rows[user], watermark)
        for user, n, at in sorted(rows, key=lambda row: row[2]):
            kept = self.rows[user]
            open_ones = {
                window: mine
                for window, mine in self.windows_of([*kept, (at, n)]).items()
                if (at, n) in mine and window[1] - 1 + self.lateness > watermark
            }
            if not open_ones:
                if at + self.lateness <= watermark:
                    late.append((user, n))
                continue
            kept.append((at, n))
            for (start, end), mine in open_ones.items():
                if end - 1 <= watermark:
                    made.append((user, start, end, *aggregated(mine)))
        self.before = max(self.before, watermark)
        return sorted(made), sorted(late)

    def _alive(self, rows, watermark):
        found = []
        for (_, end), mine in self.windows_of(rows).items():
            if end - 1 + self.lateness > watermark:
                found += [row for row in mine if row not in found]
        return found


def sliding(size, slide, offset=0):
    def windows_of(rows):
        found = defaultdict(list)
        for at, n in rows:
            for k in range(-(size // slide) - 1, 2):
                start = ((at - offset) // slide + k) * slide + offset
                if start <= at < start + size:
                    found[start, start + size].append((at, n))
        return found

    return windows_of


def sessions(gap):
    def windows_of(rows):
        found: list = []
        for at, n in sorted(rows):
            if found and at <= found[-1][-1][0] + gap:
                found[-1].append((at, n))
            else:
                found.append([(at, n)])
        return {(mine[0][0], mine[-1][0] + gap): mine for mine in found}

    return windows_of


CASES = {
    "tumbling": (Tumbling("20ms"), sliding(20, 20)),
    "tumbling with an offset": (Tumbling("20ms", offset="7ms"), sliding(20, 20, 7)),
    "sliding": (Sliding("20ms", "5ms"), sliding(20, 5)),
    "sliding by an odd step": (Sliding("20ms", "7ms"), sliding(20, 7)),
    "with gaps": (Sliding("5ms", "20ms"), sliding(5, 20)),
    "sessions": (Session("10ms"), sessions(10)),
}


def stream(rng, epochs=6):
    """Rows (user, n, time) and the watermark of each epoch; the last one is the end."""
    at, watermark = 0, -(1 << 63)
    for epoch in range(epochs):
        rows = [
            (rng.choice(KEYS), rng.randint(-9, 9), max(-30, at + rng.randint(-40, 25)))
            for _ in range(rng.randint(0, 14))
        ]
        # Sets of rows: of two that are equal the oracle could not say which is late.
        yield list({(row[0], row[2]): row for row in rows}.values()), watermark
        at += rng.randint(0, 30)
        ahead = max(watermark, at - rng.randint(1, 10))
        watermark = ahead if epoch + 2 < epochs else MAX_WATERMARK


class Dict(FakeRange):
    """A range of a subtask: the part of a dict that has its key groups."""

    def __init__(self, entries, groups):
        super().__init__()
        self.entries = {
            key: value
            for key, value in entries.items()
            if groups.start <= int.from_bytes(key[:2], "big") <= groups.end
        }

    def next_timer(self, _after_ms, _kind):
        return None

    def prepare(self):
        self.commit()
        return "delta"


class Fleet:
    """An operator on dicts, with another number of subtasks in each epoch: snapshot and restore."""

    def __init__(self, operator, head, monkeypatch, rng):
        self._head = head
        self.entries: dict[bytes, bytes] = {}
        self._operator, self._rng = operator, rng
        monkeypatch.setattr(subtask, "connect_to", lambda *_: SimpleNamespace(close=lambda: None))
        monkeypatch.setattr(subtask, "BoundRange", lambda *_: self._ranges[-1])
        self._ranges: list[Dict] = []
        self._schemas: tuple[Any, ...] = ()

    def epoch(self, make, batches, **changes):
        count, found = self._rng.randint(1, 3), []
        self._ranges = []
        schemas: dict[str, Any] = {}
        for index in range(count):
            groups = range_of(index, count, 128)
            self._ranges.append(Dict(self.entries, groups))
            mine = [_of_groups(one, groups) for one in batches]
            plan = self._operator.plan(make(), **changes, downstream=True)
            plan = replace(plan, parallelism=count, ranges=[plan.ranges[0]] * count)
            plan = replace(plan, schemas=self._schemas)
            header = self._head(start=[index])
            *made, last = subtask.run_subtask(plan, iter([header, *mine]))
            found += made
            ack = decode_ack(last.column(ACK_COLUMN)[0].as_py())
            schemas |= {schema.name: schema for schema in ack.schemas}
        self.entries = {k: v for one in self._ranges for k, v in one.entries.items()}
        self._schemas = tuple(schemas.values())
        return SimpleNamespace(batches=[*found, None])


def _of_groups(batch, groups):
    mine = pc.is_in(
        batch.column(GROUP_COLUMN), pa.array(range(groups.start, groups.end + 1), "int32")
    )
    return batch.filter(mine)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("lateness", [0, 15])
@pytest.mark.parametrize("way", ["rows", "both"])
def test_windows_of_event_time_are_those_of_all_rows(
    case, lateness, way, operator, batch, head, monkeypatch
):
    judge(range(SEEDS), case, lateness, way, operator, batch, head, monkeypatch)


@pytest.mark.soak
@pytest.mark.parametrize("case", CASES)
def test_windows_are_those_of_all_rows_for_many_seeds(case, operator, batch, head, monkeypatch):
    for lateness in (0, 1, 15, 100):
        judge(range(SEEDS, SOAK_SEEDS), case, lateness, "both", operator, batch, head, monkeypatch)


def judge(seeds, case, lateness, way, operator, batch, head, monkeypatch):
    assigner, windows_of = CASES[case]
    if by_columns(assigner) is None:
        way = "rows"
    for seed in seeds:
        rng = Random(f"{case} {lateness} {way} {seed}")
        oracle, fleet = Oracle(windows_of, lateness), Fleet(operator, head, monkeypatch, rng)

        def make(rng=rng, way=way):
            # Over one state, in turns: what one way stores the other goes on with.
            name = way if way in WAYS else rng.choice(list(WAYS))
            return WAYS[name](assigner, None, f"{lateness}ms")

        run = Run(fleet, batch, make, output(), rng)
        seen = set()
        for given, watermark in stream(rng):
            rows = [row for row in given if (row[0], row[2]) not in seen]
            seen |= {(row[0], row[2]) for row in rows}
            assert run.epoch(rows, watermark) == oracle.epoch(rows, watermark), (seed, watermark)
        assert not fleet.entries, "windows that are gone leave nothing"


@pytest.fixture
def run(operator, batch):
    def make(make_function, schema=None, **changes):
        return Run(operator, batch, make_function, schema or output(), Random(1), **changes)

    return make


def test_each_count_fires_with_every_nth_row_of_a_window_and_not_at_its_end(run):
    windows = run(lambda: by_rows(Tumbling("10ms"), EachCount(2)))
    rows = [("a", 1, 1), ("a", 2, 2), ("a", 3, 3), ("a", 4, 12), ("b", 5, 1)]
    assert windows.epoch(rows, 0)[0] == [("a", 0, 10, 2, 3, 1, 2)]
    assert windows.epoch([("a", 9, 4)], 0)[0] == [("a", 0, 10, 4, 15, 1, 9)]
    assert windows.epoch([], MAX_WATERMARK)[0] == []


@pytest.mark.parametrize("way", WAYS)
def test_windows_of_a_count_take_so_many_rows_each_over_any_epochs(run, way):
    windows = run(lambda: WAYS[way](Count(3)), output(timed=False))
    assert windows.epoch([("a", n, n) for n in range(8)], 0)[0] == [
        ("a", 3, 3, 0, 2),
        ("a", 3, 12, 3, 5),
    ]
    assert windows.epoch([("a", 8, 1), ("b", 1, 1)], 5)[0] == [("a", 3, 21, 6, 8)]


def test_counts_of_sessions_that_merge_are_added(run):
    windows = run(lambda: by_rows(Session("10ms"), EachCount(4)))
    assert windows.epoch([("a", 1, 0), ("a", 2, 15), ("a", 3, 16)], -1)[0] == []
    assert windows.epoch([("a", 4, 8)], -1)[0] == [("a", 0, 26, 4, 10, 1, 4)]


def test_a_global_window_gives_nothing_unless_its_trigger_does(run):
    assert run(lambda: by_rows(Global()), output(timed=False)).epoch(
        [("a", 1, 1)], MAX_WATERMARK
    ) == ([], [])


def test_early_results_come_each_interval_until_the_end(run):
    windows = run(lambda: by_rows(Tumbling("1s"), Early("10s")))
    assert windows.epoch([("a", 1, 5)], 0, now_ms=1_000)[0] == []
    assert windows.epoch([("a", 2, 6)], 0, now_ms=9_999)[0] == []
    assert windows.epoch([], 0, now_ms=47_000)[0] == [("a", 0, 1000, 2, 3, 1, 2)]
    assert windows.epoch([], 0, now_ms=49_999)[0] == []
    assert windows.epoch([("a", 4, 7)], 0, now_ms=50_000)[0] == [("a", 0, 1000, 2, 3, 1, 2)]
    assert windows.epoch([], 999, now_ms=50_001)[0] == [("a", 0, 1000, 3, 7, 1, 4)]
    assert windows.epoch([], MAX_WATERMARK, now_ms=90_000)[0] == []


BY_THE_CLOCK = pytest.mark.parametrize(
    ("way", "assigner"),
    [
        ("rows", Tumbling("10s", time="processing")),
        ("columns", Tumbling("10s", time="processing")),
        ("rows", Session("4s", time="processing")),
        ("columns", Session("4s", time="processing")),
    ],
)


@BY_THE_CLOCK
def test_windows_of_processing_time_end_by_the_clock(run, way, assigner):
    windows = run(lambda: WAYS[way](assigner))
    assert windows.epoch([("a", 1, 77), ("a", 2, 3)], 0, now_ms=6_000)[0] == []
    end = 10_000
    start = 0 if isinstance(assigner, Sliding) else 6_000
    assert windows.epoch([], 0, now_ms=end - 2)[0] == []
    assert windows.epoch([], 0, now_ms=end - 1)[0] == []
    assert windows.epoch([], 0, now_ms=end)[0] == [("a", start, end, 2, 3, 1, 2)]
    assert windows.epoch([], MAX_WATERMARK, now_ms=end + 90_000)[0] == []


@BY_THE_CLOCK
@pytest.mark.parametrize("next_timer", [UNKNOWN, NEVER])
def test_rows_of_the_last_millisecond_of_a_window_of_the_clock_are_in_it(
    run, way, assigner, next_timer
):
    windows = run(lambda: WAYS[way](assigner), next_timers=(next_timer,))
    assert windows.epoch([("a", 1, 77), ("a", 2, 3)], 0, now_ms=6_000)[0] == []
    known = run(lambda: WAYS[way](assigner), next_timers=(min(next_timer, 9_999),))
    assert known.epoch([("a", 5, 7)], 0, now_ms=9_999)[0] == []
    (result,), _ = known.epoch([], 0, now_ms=20_000)
    assert result[3:] == (3, 8, 1, 5)
    assert known.epoch([], 0, now_ms=90_000)[0] == []


def test_a_key_with_very_many_open_windows_is_left_with_none(new_operator, batch):
    made = []
    for way in WAYS:
        windows = Run(
            new_operator(),
            batch,
            lambda w=way: WAYS[w](Sliding("1200ms", "2ms")),
            output(),
            Random(1),
        )
        first = windows.epoch([("a", 1, 0), ("b", 1, 700)], -1)[0]
        some = windows.epoch([("a", 2, 650)], 300)[0]
        rest = windows.epoch([], MAX_WATERMARK)[0]
        assert windows.epoch([], MAX_WATERMARK) == ([], [])
        made.append((first, some, rest))
    assert made[0] == made[1]
    assert [len(part) for part in made[0]] == [0, 150, 775 + 600]


class Newest(ProcessWindowFunction):
    def open(self, ctx):
        self.windows = ctx.get_state(ValueStateDescriptor("windows", "long"))

    def process(self, key, ctx, rows):
        seen = (self.windows.value() or 0) + 1
        self.windows.update(seen)
        yield key, ctx.window.start, seen, [row.n for row in rows]


def test_a_function_gets_all_rows_of_its_window_in_their_order(run):
    schema = pa.schema(
        [
            ("user", pa.string()),
            ("start", pa.int64()),
            ("seen", pa.int64()),
            ("all", pa.list_(pa.int64())),
        ]
    )
    row = STREAM.simpleString()
    windows = run(
        lambda: WindowOperator(
            windowing(Session("10ms"), None, "5ms", "drop"), Collected(row, Newest())
        ),
        schema,
    )
    assert windows.epoch([("a", 3, 0), ("a", 1, 20), ("a", 2, 3)], -1)[0] == []
    assert windows.epoch([("a", 5, 11)], 12)[0] == [("a", 0, 1, [3, 2])]
    # Both sessions became one, which has what each had: the earlier one's first.
    assert windows.epoch([], MAX_WATERMARK)[0] == [("a", 0, 2, [3, 2, 1, 5])]


@pytest.mark.parametrize("way", WAYS)
def test_after_another_operator_rows_count_before_the_watermark_that_came_with_them(run, way):
    windows = run(lambda: WAYS[way](Tumbling("10ms"), None, "0s"), upstreams=(Upstream("before"),))
    rows = [("a", 1, 3), ("a", 2, 15), ("b", 3, 4), ("c", 4, 8)]
    # What is before knew of 2 when it sent them, and then forwarded 12.
    assert windows.epoch(rows, 12, before=2)[0] == [
        ("a", 0, 10, 1, 1, 1, 1),
        ("b", 0, 10, 1, 3, 3, 3),
        ("c", 0, 10, 1, 4, 4, 4),
    ]
    assert windows.epoch([("a", 5, 9), ("a", 6, 14)], 20, before=12) == (
        [("a", 10, 20, 2, 8, 2, 6)],
        [("a", 5)],
    )


@pytest.mark.parametrize("way", WAYS)
def test_with_the_backend_batch_all_windows_end_with_their_key(run, way):
    windows = run(lambda: WAYS[way](Tumbling("10ms")), batch=True)
    rows = [("a", 1, 3), ("a", 2, 15), ("b", 3, 4), ("a", 4, 8)]
    assert windows.epoch(rows, -(1 << 63))[0] == [
        ("a", 0, 10, 2, 5, 1, 4),
        ("a", 10, 20, 1, 2, 2, 2),
        ("b", 0, 10, 1, 3, 3, 3),
    ]


@pytest.mark.parametrize("way", WAYS)
def test_with_the_backend_batch_windows_that_wait_for_late_rows_ignore_no_timer(run, way, caplog):
    windows = run(lambda: WAYS[way](Tumbling("10ms"), None, "5ms"), batch=True)
    assert windows.epoch([("a", 1, 3), ("b", 3, 4), ("a", 4, 8)], -(1 << 63))[0] == [
        ("a", 0, 10, 2, 5, 1, 4),
        ("b", 0, 10, 1, 3, 3, 3),
    ]
    assert caplog.messages == []


@pytest.mark.parametrize("way", WAYS)
def test_a_time_that_no_window_can_have_is_refused(run, way):
    with pytest.raises(SubtaskFailure, match="too far away for a window: milliseconds=1780"):
        run(lambda: WAYS[way](Tumbling("1h"))).epoch([("a", 1, 1_780_000_000_000_000_000)], 0)


@pytest.mark.parametrize("way", WAYS)
def test_a_row_in_very_many_windows_is_in_all_of_them(run, way, monkeypatch):
    monkeypatch.setattr(window_times, "_PAIRS", 7)
    windows = run(lambda: WAYS[way](Sliding("5ms", "1ms")))
    windows.epoch([("a", n, n) for n in range(4)], -1)
    assert [row[3] for row in windows.epoch([], MAX_WATERMARK)[0]] == [1, 2, 3, 4, 4, 3, 2, 1]


def tens(one, other):
    return one.user, one.n * 10 + other.n


def test_structs_in_rows_are_reduced_as_named_tuples_whether_they_come_or_were_kept():
    def farther(stream):
        later = lambda one, other: max(one, other, key=lambda row: row.point.x)  # noqa: E731
        return stream.window(Session("5ms")).reduce(later, uid="w")

    schema = "k string, point struct<x:int>, at long"
    with KeyedHarness(farther, schema, "k", event_time="at") as harness:
        harness.process(("a", {"x": 4}, 0), ("a", {"x": 7}, 1), ("a", {"x": 9}, 11))
        harness.process(("a", {"x": 5}, 6))
        assert harness.end_input() == [("a", {"x": 9}, 11)]


def test_rows_of_a_window_are_reduced_two_by_two(run):
    schema = pa.schema([("user", pa.string()), ("n", pa.int64())])
    row = STREAM.simpleString()
    windows = run(
        lambda: WindowOperator(windowing(Tumbling("10ms"), None, "0s", "drop"), Reduced(row, tens)),
        schema,
    )
    assert windows.epoch([("a", 1, 0), ("a", 2, 5), ("a", 3, 7)], -1)[0] == []
    assert windows.epoch([], 9)[0] == [("a", 123)]


@pytest.mark.parametrize("way", WAYS)
def test_the_least_long_is_a_sum(run, way):
    least = -(1 << 63)
    windows = run(lambda: WAYS[way](Tumbling("1s")))
    windows.epoch([("a", least, 0), ("b", least + 1, 0)], 0)
    windows.epoch([("b", -1, 0)], 0)
    assert sorted(row[4] for row in windows.epoch([], 999)[0]) == [least, least]


LAST_DAY = 253_402_300_799_999


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("assigner", "fits", "beyond"),
    [
        (Tumbling("1s"), LAST_DAY - 1000, LAST_DAY),
        (Tumbling("1s"), -62_135_596_800_000, -62_135_596_800_001),
        (Sliding("2s", "1s"), LAST_DAY - 2000, LAST_DAY - 1000),
        (Sliding("2s", "1s"), -62_135_596_799_000, -62_135_596_800_000),
        (Session("1s"), LAST_DAY - 1000, LAST_DAY - 999),
        (Tumbling("1s"), 0, 1_760_000_000_000_000),
        (Session("1s"), 0, 1_760_000_000_000_000),
    ],
    ids=str,
)
def test_a_time_of_which_a_window_is_beyond_what_python_knows_is_refused(
    run, way, assigner, fits, beyond
):
    windows = run(lambda: WAYS[way](assigner))
    windows.epoch([("a", 1, fits)], -(1 << 63))
    with pytest.raises(SubtaskFailure, match=f"too far away for a window: milliseconds={beyond};"):
        windows.epoch([("a", 1, 0), ("a", 1, beyond)], -(1 << 63))


@pytest.mark.parametrize("way", WAYS)
def test_a_sum_that_does_not_fit_is_refused_by_its_column(run, way):
    with pytest.raises(SubtaskFailure, match="does not fit 64 bits: column=n"):
        run(lambda: WAYS[way](Tumbling("1s"))).epoch([("a", (1 << 63) - 1, 0), ("a", 1, 0)], 0)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "values",
    [
        pytest.param([5 * 10**18], id="one great value"),
        pytest.param([5 * 10**18, -5 * 10**18, 7], id="values of both signs"),
        pytest.param([10**16, *[1] * 500], id="one great value among many rows"),
    ],
)
def test_a_sum_that_fits_is_made_whatever_its_values_are(run, way, values):
    windows = run(lambda: WAYS[way](Tumbling("1s")))
    windows.epoch([("a", value, 0) for value in values], -1)
    windows.epoch([("a", 1, 1)], 0)
    assert windows.epoch([], 999)[0][0][4] == sum(values) + 1


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("assigner", [Tumbling("1s"), Session("1s")], ids=["tumbling", "session"])
def test_a_sum_that_fits_is_made_of_rows_that_do_not_fit_without_those_before(run, way, assigner):
    windows, great = run(lambda: WAYS[way](assigner)), 5 * 10**18
    windows.epoch([("a", -great, 0)], -1)
    windows.epoch([("a", great, 1), ("a", great, 2)], -1)
    assert windows.epoch([], MAX_WATERMARK)[0][0][4] == great


@pytest.mark.parametrize("trigger", [None, Early("1h")], ids=["columns", "rows"])
def test_very_many_late_rows_of_one_session_give_a_result_each(trigger):
    def totals(stream):
        windows = stream.window(Session("10ms"), trigger=trigger, allowed_lateness="1h")
        return windows.aggregate(uid="w", rows=count(), total=sum_("n"), most=max_("n"))

    # Were each result made of all rows before it, this would take a gigabyte of memory.
    schema, most = "user string, n long, at long", 5_000
    with KeyedHarness(totals, schema, "user", event_time="at", batch_rows=2 * most) as harness:
        harness.process(("a", 0, 0), ("a", 0, 30))
        harness.process_watermark(1_000)
        # Rows of a key come by their times: first those of one session, then those that join both.
        late = [("a", n, 0 if n < most - 20 else 5 + n % 22) for n in range(1, most)]
        found = [row[3:] for row in harness.process(*late)]
    assert found[: most - 21] == [(n + 1, n * (n + 1) // 2, n) for n in range(1, most - 20)]
    assert found[-1] == (most + 1, most * (most - 1) // 2, most - 1)
    assert len(found) == most - 1


@pytest.mark.parametrize("before", [None, Early("1h")], ids=["columns", "early"])
@pytest.mark.parametrize("after", [None, Early("1h")], ids=["columns", "early"])
@pytest.mark.parametrize(
    "windows", [Session("10ms"), Tumbling("10ms")], ids=["session", "tumbling"]
)
def test_another_trigger_gives_the_results_of_windows_that_were_open_before(windows, before, after):
    def by(trigger):
        return lambda s: s.window(windows, trigger=trigger).aggregate(uid="w", rows=count())

    columns = ("user string, at long", "user")
    with KeyedHarness(by(before), *columns, event_time="at") as harness:
        harness.process(("a", 1), ("a", 50))
        snapshot = harness.snapshot()
    with KeyedHarness(by(after), *columns, event_time="at", restore=snapshot) as harness:
        harness.process(("a", 3))
        assert [row.rows for row in harness.process_watermark(100)] == [2, 1]


@pytest.mark.parametrize("before", [EachCount(3), Never()], ids=["each-count", "never"])
@pytest.mark.parametrize("after", ["columns", "rows"])
@pytest.mark.parametrize(
    "windows", [Session("10ms"), Tumbling("10ms")], ids=["session", "tumbling"]
)
def test_windows_of_a_trigger_without_an_end_give_results_when_it_is_taken_away(
    windows, before, after
):
    def by(trigger):
        given = {"trigger": trigger, "allowed_lateness": "20ms"}
        if after == "rows":
            return lambda s: s.window(windows, **given).reduce(max, uid="w")
        return lambda s: s.window(windows, **given).aggregate(uid="w", rows=count())

    place = (1, 11) if windows.merges else (0, 10)
    columns = ("user string, at long", "user")
    with KeyedHarness(by(before), *columns, event_time="at") as harness:
        harness.process(("a", 1), ("a", 4), ("a", 50))
        snapshot = harness.snapshot()
        # By itself it gives none at the end, and nothing of its windows is left.
        assert harness.process_watermark(30) + harness.process_watermark(1_000) == []
        assert harness.num_timers() == 0
        assert harness.state("window-contents", "a", place) is None
    with KeyedHarness(by(None), *columns, event_time="at", restore=snapshot) as harness:
        harness.process(("a", 52))
        assert len(harness.process_watermark(20)) == 1
        assert len(harness.process_watermark(1_000)) == 1
        assert harness.num_timers() == 0
        assert harness.state("window-contents", "a", place) is None


@pytest.mark.parametrize(
    "between", [(None, "0s"), (Early("1h"), "5ms")], ids=["no-early", "lateness"]
)
def test_windows_that_ended_under_other_settings_leave_no_state(between):
    def by(trigger, lateness):
        return lambda s: s.window(
            Tumbling("10ms"), trigger=trigger, allowed_lateness=lateness
        ).aggregate(uid="w", rows=count())

    columns = ("user string, at long", "user")
    with KeyedHarness(by(Early("1h"), "20ms"), *columns, event_time="at") as harness:
        harness.process(("a", 1))
        assert harness.state("window-set", "a") == [(0, 10, 0, 10)]
        snapshot = harness.snapshot()
    with KeyedHarness(by(*between), *columns, event_time="at", restore=snapshot) as harness:
        assert [row.rows for row in harness.process_watermark(100)] == [1]
        snapshot = harness.snapshot()
    with KeyedHarness(
        by(Early("1h"), "0s"), *columns, event_time="at", restore=snapshot
    ) as harness:
        harness.process(("a", 200))
        assert [row.rows for row in harness.process_watermark(300)] == [1]
        assert harness.state("window-set", "a") is None
        assert harness.state("window-contents", "a", (0, 10)) is None


@pytest.mark.parametrize("way", ["columns", "rows", "each-count"])
@pytest.mark.parametrize(("before", "after"), [("20ms", "5ms"), ("5ms", "20ms"), ("0s", "5ms")])
@pytest.mark.parametrize("windows", [Session("9ms"), Tumbling("10ms")], ids=["session", "tumbling"])
def test_windows_that_end_with_another_lateness_are_gone_after_it(windows, before, after, way):
    def by(lateness):
        if way == "rows":
            return lambda s: s.window(windows, allowed_lateness=lateness).reduce(max, uid="w")
        trigger = EachCount(2) if way == "each-count" else None
        return lambda s: s.window(windows, trigger=trigger, allowed_lateness=lateness).aggregate(
            uid="w", n=count()
        )

    columns = ("user string, at long", "user")
    with KeyedHarness(by(before), *columns, event_time="at") as harness:
        harness.process(("a", 1))
        snapshot = harness.snapshot()
    with KeyedHarness(by(after), *columns, event_time="at", restore=snapshot) as harness:
        found = harness.process_watermark(10) + harness.process_watermark(1_000)
        assert len(found) == (way != "each-count")
        place = (1, 10) if windows.merges else (0, 10)
        assert harness.state("window-contents", "a", place) is None
        assert harness.num_timers() == 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("windows", "first", "last"),
    [(Tumbling("10ms"), 0, 50), (Session("9ms"), 0, 50), (Sliding("20ms", "10ms"), -10, 40)],
    ids=["tumbling", "session", "sliding"],
)
def test_windows_of_which_some_are_gone_when_others_end_have_one_result_each(
    run, windows, first, last, way
):
    """What is gone with one that ends later has the same time."""
    late = run(lambda: WAYS[way](windows, None, "20ms"))
    assert late.epoch([("a", at, at) for at in range(0, 60, 10)], 0) == ([], [])
    made, _ = late.epoch([], 60)
    assert [start for _, start, *_ in made] == [*range(first, last + 1, 10)]


@pytest.mark.parametrize("way", ["columns", "rows"])
@pytest.mark.parametrize(("before", "after"), [("20ms", "5ms"), ("5ms", "20ms")])
def test_sessions_that_had_ended_with_another_lateness_go_with_the_next_one(before, after, way):
    def by(lateness):
        trigger = Early("1h") if way == "rows" else None
        return lambda s: s.window(
            Session("9ms"), trigger=trigger, allowed_lateness=lateness
        ).aggregate(uid="w", n=count())

    columns = ("user string, at long", "user")
    with KeyedHarness(by(before), *columns, event_time="at") as harness:
        harness.process(("a", 1))
        assert len(harness.process_watermark(12)) == 1
        snapshot = harness.snapshot()
    with KeyedHarness(by(after), *columns, event_time="at", restore=snapshot) as harness:
        harness.process(("a", 50))
        assert len(harness.process_watermark(1_000)) == 1
        assert harness.state("window-contents", "a", (1, 10)) is None
        assert harness.state("window-set", "a") is None
        assert harness.process(("a", 5)) == []


@pytest.mark.parametrize("trigger", [None, Early("1h")], ids=["columns", "rows"])
@pytest.mark.parametrize(
    ("times", "at_once", "later"),
    [([7], [2], []), ([5, 6], [2, 3], []), ([7, 8], [2], [3]), ([7, 30], [2], [1])],
)
def test_a_late_row_of_a_session_that_another_lateness_kept_gives_one_result(
    times, at_once, later, trigger
):
    def by(lateness):
        return lambda s: s.window(
            Session("4ms"), trigger=trigger, allowed_lateness=lateness
        ).aggregate(uid="w", n=count())

    columns = ("user string, at long", "user")
    with KeyedHarness(by("20ms"), *columns, event_time="at") as harness:
        harness.process(("a", 3))
        assert len(harness.process_watermark(10)) == 1
        snapshot = harness.snapshot()
    with KeyedHarness(by("0s"), *columns, event_time="at", restore=snapshot) as harness:
        found = [row.n for at in times for row in harness.process(("a", at))]
        assert found == at_once
        assert [row.n for row in harness.process_watermark(1_000)] == later
        assert harness.state("window-set", "a") is None
        assert harness.state("window-contents", "a", (3, 7)) is None
        assert harness.num_timers() == 0


@pytest.mark.parametrize("way", ["columns", "rows"])
@pytest.mark.parametrize("waiting", [5, 7])
def test_a_window_of_a_smaller_count_is_full_with_the_next_row(waiting, way):
    def of(size):
        trigger = EachCount(size, purge=True)
        windows = Count(size) if way == "columns" else Global()
        return lambda s: s.window(windows, trigger=trigger).aggregate(uid="w", n=count())

    columns = ("user string, at long", "user")
    with KeyedHarness(of(10), *columns) as harness:
        assert harness.process(*[("a", at) for at in range(waiting)]) == []
        snapshot = harness.snapshot()
    with KeyedHarness(of(5), *columns, restore=snapshot) as harness:
        assert harness.process(*[("a", at) for at in range(7)]) == [("a", waiting + 1), ("a", 5)]
        assert harness.state("window-count", "a", Global().assign(0)[0]) == 1


class CountRows(ProcessWindowFunction):
    def process(self, key, ctx, rows):
        yield key, ctx.window.start, len(rows)


COUNTED = "user string, window_start long, n long"


def start_of(row):
    start = row.window_start
    return start if isinstance(start, int) else round(start.timestamp() * 1000)


@pytest.mark.parametrize("way", ["columns", "rows", "early"])
@pytest.mark.parametrize("lateness", ["0s", "10ms"])
@pytest.mark.parametrize(
    "versions",
    [
        (Tumbling("10ms"), Tumbling("4ms"), Tumbling("7ms")),
        (Tumbling("10ms"), Tumbling("10ms", offset="5ms")),
        (Sliding("10ms", "5ms"), Tumbling("10ms"), Sliding("10ms", "5ms")),
        (Tumbling("1000ms"), Tumbling("1s")),
    ],
    ids=["size", "offset", "slide", "same"],
)
def test_windows_that_are_open_end_as_they_would_have_in_later_versions(versions, lateness, way):
    def by(windows):
        trigger = Early("1h") if way == "early" and windows is versions[-1] else None
        given = {"allowed_lateness": lateness, "trigger": trigger}
        if way == "rows":
            return lambda s: s.window(windows, **given).process(
                CountRows(), uid="w", output=COUNTED
            )
        return lambda s: s.window(windows, **given).aggregate(uid="w", n=count())

    expected, snapshot = [], None
    for number, windows in enumerate(versions):
        at = 3_000 * number
        with KeyedHarness(
            by(windows), "user string, at long", "user", event_time="at", restore=snapshot
        ) as harness:
            # Each version has a key of its own: its windows are open when the next one begins.
            harness.process((f"k{number}", at + 1), (f"k{number}", at + 2))
            for window in {*windows.assign(at + 1), *windows.assign(at + 2)}:
                rows = sum(window.start <= at + n < window.end for n in (1, 2))
                expected.append((f"k{number}", window.start, rows))
            snapshot = harness.snapshot()
            if windows is not versions[-1]:
                continue
            found = harness.process_watermark(100_000)
            assert sorted((one.user, start_of(one), one.n) for one in found) == sorted(expected)
            assert harness.num_timers() == 0
            # One that fires early looks at the key once more, by the clock.
            assert harness.keys() == ([f"k{number}"] if way == "early" else [])
            harness.set_processing_time(10_000_000)
            assert harness.keys() == []
            assert harness.process_watermark(200_000) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Session("10ms"), Session("4ms")),
        (Tumbling("10ms"), Tumbling("4ms")),
        (Tumbling("10ms"), Tumbling("10ms", offset="5ms")),
    ],
)
def test_windows_in_the_set_end_as_they_would_have_though_the_size_is_another(before, after):
    def by(windows):
        return lambda s: s.window(windows, trigger=Early("1h")).aggregate(uid="w", rows=count())

    columns = ("user string, at long", "user")
    with KeyedHarness(by(before), *columns, event_time="at") as harness:
        harness.process(("a", 1), ("a", 2))
        snapshot = harness.snapshot()
    with KeyedHarness(by(after), *columns, event_time="at", restore=snapshot) as harness:
        harness.process(("a", 40))
        assert sorted(row.rows for row in harness.process_watermark(100)) == [1, 2]
        assert harness.state("window-set", "a") is None


@pytest.mark.parametrize("trigger", [None, Early("1h")], ids=["columns", "rows"])
@pytest.mark.parametrize(
    "windows", [Session("10ms"), Tumbling("10ms")], ids=["session", "tumbling"]
)
def test_very_many_windows_of_one_key_are_looked_at_one_at_a_time(windows, trigger):
    def counted(stream):
        return stream.window(windows, trigger=trigger).aggregate(uid="w", rows=count())

    # Were all looked at for each row and timer, this would take minutes.
    with KeyedHarness(counted, "user string, at long", "user", event_time="at") as harness:
        harness.process(*[("a", 100 * n) for n in range(3_000)])
        harness.process(("a", 105), ("a", 95), ("a", 100_002))
        found = harness.process_watermark(299_000)
    assert [row.rows for row in found][:3] == ([1, 3, 1] if windows.merges else [1, 1, 2])
    assert len(found) == (2_990 if windows.merges else 2_991)


@pytest.mark.parametrize("trigger", [None, Early("1h")], ids=["columns", "rows"])
def test_no_digit_of_a_sum_of_decimals_is_lost(trigger):
    def totals(stream):
        return stream.window(Tumbling("1s"), trigger=trigger).aggregate(uid="w", total=sum_("n"))

    value, least = Decimal("12345678901.123456789012345678"), Decimal("1e-18")
    schema = "user string, n decimal(38,18), at long"
    with KeyedHarness(totals, schema, "user", event_time="at") as harness:
        harness.process(("a", value, 1), ("a", least, 2))
        harness.process(("a", value, 3))
        (row,) = harness.process_watermark(1_000)
    assert str(row.total) == "24691357802.246913578024691357"


@pytest.mark.parametrize("trigger", [None, Early("1h")], ids=["columns", "rows"])
def test_a_sum_of_decimals_that_does_not_fit_is_refused_by_its_column(trigger):
    def totals(stream):
        return stream.window(Tumbling("1s"), trigger=trigger).aggregate(uid="w", total=sum_("n"))

    schema = "user string, n decimal(38,0), at long"
    with KeyedHarness(totals, schema, "user", event_time="at") as harness:
        most = Decimal("9" * 38)
        with pytest.raises(UserError, match="decimals does not fit 38 digits: column=n"):
            harness.process(("a", most, 1), ("a", Decimal(1), 2))


def test_a_window_whose_times_python_cannot_have_is_refused_with_its_row(run):
    windows = run(lambda: by_rows(Tumbling("1d")))
    with pytest.raises(SubtaskFailure, match="too far away for a window: milliseconds=2534022"):
        windows.epoch([("a", 1, 253_402_214_400_000)], 0)


@pytest.mark.parametrize("trigger", [None, Early("1h")], ids=["columns", "rows"])
@pytest.mark.parametrize("kind", ["float", "double"])
def test_the_least_and_the_sum_of_zeros_have_one_sign_whichever_came_first(kind, trigger):
    def totals(stream):
        named = {"least": min_("x"), "most": max_("x"), "total": sum_("x")}
        return stream.window(Tumbling("9ms"), trigger=trigger).aggregate(uid="w", **named)

    with KeyedHarness(totals, f"k string, x {kind}, at long", "k", event_time="at") as harness:
        harness.process(("a", -0.0, 1), ("a", 0.0, 2), ("b", 0.0, 1), ("b", -0.0, 2))
        harness.process(("c", -0.0, 1), ("c", None, 2))
        zeros = [value for row in harness.end_input() for value in row[3:]]
    assert str(zeros) == str([0.0] * 9)


@pytest.mark.parametrize("trigger", [None, Early("1h")], ids=["columns", "rows"])
def test_the_mean_of_one_decimal_is_that_decimal(trigger):
    def mean(stream):
        return stream.window(Tumbling("9ms"), trigger=trigger).aggregate(uid="w", mean=avg("x"))

    texts = ["0.3", "9398597.79", "-52269232824128204657.176319965406467895", "0"]
    schema = "k string, x decimal(38,18), at long"
    with KeyedHarness(mean, schema, "k", event_time="at") as harness:
        harness.process(*[(text, Decimal(text), 1) for text in texts], ("none", None, 1))
        means = {row.k: row.mean for row in harness.end_input()}
    assert means == {text: float(text) for text in texts} | {"none": None}


@pytest.mark.parametrize("way", WAYS)
def test_means_and_counts_pass_nulls_over(run, way):
    schema = pa.schema([("user", pa.string()), *TIMED, ("mean", pa.float64()), ("n", pa.int64())])
    windows = run(
        lambda: WAYS[way](Tumbling("10ms"), aggregates={"mean": avg("n"), "n": count("n")}), schema
    )
    windows.epoch([("a", 1, 0), ("a", None, 1), ("a", 4, 2), ("b", None, 0)], -1)
    assert windows.epoch([], 9)[0] == [("a", 0, 10, 2.5, 2), ("b", 0, 10, None, 0)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda: Tumbling("0s"), "a window needs some time"),
        (lambda: Tumbling("10"), "not a duration"),
        (lambda: Tumbling("10s", offset="10s"), "less than one slide"),
        (lambda: Session("1s", time=untyped("wall")), "event time or processing time"),
        (lambda: Count(0), "positive integer: size=0"),
        (lambda: EachCount(True), "positive integer: count=True"),
        (lambda: windowing(untyped("1m"), None, "0s", "drop"), "window takes Tumbling"),
        (lambda: windowing(Count(1), untyped("often"), "0s", "drop"), "a trigger is AtEnd"),
        (lambda: windowing(Tumbling("1s"), None, "0s", "keep"), "late is 'drop' or the OutputTag"),
        (lambda: windowing(Count(1), None, "1s", "drop"), "leave out allowed_lateness"),
        (lambda: bound("w", {}, STREAM), "name at least one aggregate"),
        (lambda: bound("w", {"x": "n"}, STREAM), r"x='n'"),
        (lambda: bound("w", {"x y": count()}, STREAM), "name='x y'"),
        (lambda: bound("w", {"x": sum_("m")}, STREAM), "no such column to aggregate"),
        (lambda: bound("w", {"x": sum_("user")}, STREAM), "has no sum: .*type=string"),
    ],
)
def test_what_makes_no_window_is_refused(given, message):
    with pytest.raises(UserError, match=message):
        given()


TYPED: dict[str, Any] = {
    "d": ("decimal(9,2)", pa.decimal128(9, 2), [Decimal("1.50"), Decimal("-7.25"), None]),
    "s": ("string", pa.string(), ["b", "", None, "ä"]),
    "day": ("date", pa.date32(), [date(2026, 1, 2), date(1960, 5, 5), None]),
    "at": (
        "timestamp",
        pa.timestamp("us", "UTC"),
        [datetime(2026, 1, 2, 3, 4, 5, 678, UTC), datetime(1969, 1, 1, tzinfo=UTC), None],
    ),
    "x": ("double", pa.float64(), [0.5, float("nan"), float("-inf"), None]),
    "f": ("float", pa.float32(), [0.5, -2.0, None]),
    "b": ("boolean", pa.bool_(), [True, False, None]),
    "i": ("short", pa.int16(), [7, -3, None]),
}


def test_aggregates_of_every_type_are_the_same_by_row_and_by_column(new_operator, batch):
    ddl = ", ".join(f"{name} {spec[0]}" for name, spec in TYPED.items())
    stream = StructType.fromJson(
        {
            "type": "struct",
            "fields": [
                {"name": n, "type": t, "nullable": True, "metadata": {}}
                for n, t in (
                    part.split(" ", 1) for part in f"user string, n long, {ddl}".split(", ")
                )
            ],
        }
    )
    arrow = pa.schema([*ROW, *((name, spec[1]) for name, spec in TYPED.items())])
    numbers = ("d", "x", "f", "i")
    named = {f"least_{c}": min_(c) for c in TYPED} | {f"most_{c}": max_(c) for c in TYPED}
    named |= {f"sum_{c}": sum_(c) for c in numbers} | {f"avg_{c}": avg(c) for c in numbers}
    aggregates = bound("w", named, stream)
    kinds = [arrow_type(parse_type(kind)) for _, kind, _ in aggregates.results]
    schema = pa.schema([("user", pa.string()), *TIMED, *zip(named, kinds, strict=True)])
    windows = windowing(Tumbling("10ms"), None, "0s", "drop")
    contents = Aggregated(aggregates, timed=True)
    ways = {
        "rows": lambda: WindowOperator(windows, contents),
        "columns": lambda: by_column(windows, contents, ("user",)),
    }
    made = []
    for make in ways.values():
        rng, operator = Random(5), new_operator()
        columns = {"columns": tuple(arrow.names), "output": schema, "timer_delay_ms": None}
        for _ in range(2):
            rows = [
                (user, n, *(rng.choice(spec[2]) for spec in TYPED.values()), n)
                for user in KEYS
                for n in range(rng.randint(1, 9))
            ]
            operator.epoch(make(), [batch(*rows, stream=arrow)], watermark=-1, **columns)
        made.append(sorted(map(repr, operator.epoch(make(), watermark=99, **columns).rows)))
    assert made[0] == made[1]
    assert len(made[0]) == len(KEYS)


@pytest.mark.parametrize("way", WAYS)
def test_the_driver_knows_that_windows_of_time_wait_for_timers(way):
    """Else it would end a bounded job without the epoch in which the last windows give theirs."""
    assert WAYS[way](Tumbling("1s")).has_timers


@pytest.mark.parametrize("way", WAYS)
def test_rows_that_are_dropped_as_too_late_are_counted(way, operator, batch):
    windows = windowing(Tumbling("10ms"), None, "5ms", "drop")
    contents = Aggregated(bound("w", AGGREGATES, STREAM), timed=True)
    columns = by_column(windows, contents, ("user",))
    made = WindowOperator(windows, contents) if way == "rows" else columns
    rows = [("a", 1, 3), ("a", 1, 9), ("b", 1, 12), ("b", 1, 4)]
    for watermark, dropped in ((-1, 0), (13, 0), (14, 3), (40, 4)):
        done = operator.attempt(
            made, [batch(*rows)], watermark=watermark, timer_delay_ms=None, output=output()
        )
        assert done.ack.late_rows_dropped == dropped
