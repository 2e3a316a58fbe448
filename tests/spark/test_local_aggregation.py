"""Rows added up before they travel: the same as one by one, whatever the rows."""

import datetime
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from moorage_testing.engine import Collect, input_stream, rows_of
from pyspark.sql import functions as sf

from moorage import Session, Sliding, Tumbling, avg, count, max_, min_, sum_
from moorage.engine import local_aggregation
from moorage.engine.local_aggregation import LocalAggregation
from moorage_state.errors import UserError

pytestmark = pytest.mark.spark

ROWS = "user string, part int, at long, v long, w double, b boolean, day date, small smallint"
NAMED: dict[str, Any] = {
    "n": count(),
    "there": count("v"),
    "total": sum_("v"),
    "again": sum_("v"),
    "smalls": sum_("small"),
    "least": min_("v"),
    "most": max_("w"),
    "lowest": min_("w"),
    "any": max_("b"),
    "first": min_("day"),
    "newest": max_("at"),
}
MOST = (1 << 63) - 1


def some_rows(seed: int, first: int, last: int) -> list[tuple[Any, ...]]:
    """Rows of some users, some late, with nulls, and numbers whose sums need nearly all bits."""
    dice = random.Random(seed)

    def maybe(value: Any) -> Any:
        return None if dice.random() < 0.1 else value

    return [
        (
            f"u{dice.randrange(9)}",
            dice.randrange(3),
            dice.randrange(first, last),
            maybe(dice.choice([dice.randrange(-9, 9), MOST >> 6, -MOST >> 6])),
            maybe(dice.choice([dice.random(), float("nan"), float("inf"), -1.5])),
            maybe(dice.random() < 0.5),
            maybe(datetime.date(2026, 1, 1 + dice.randrange(28))),
            maybe(dice.randrange(-999, 999)),
        )
        for _ in range(300)
    ]


@dataclass
class Told:
    """What epochs gave, and what they counted."""

    sent: list[list[str]] = field(default_factory=list)
    counted: list[tuple[Any, ...]] = field(default_factory=list)


@pytest.fixture
def added(monkeypatch):
    """How often rows were added up; every operator that can does it from its second epoch on."""
    monkeypatch.setattr(local_aggregation, "ROWS_TO_SAVE", 0)
    done = []
    inner = LocalAggregation.added_up

    def counting(self, rows, watermark):
        made = inner(self, rows, watermark)
        done.append(made is not None)
        return made

    monkeypatch.setattr(LocalAggregation, "added_up", counting)
    return done


def told(engine, frames_of_epochs) -> Told:
    found = Told()
    for frames in [*frames_of_epochs, ()]:
        if not frames:
            engine.runner.watermarks = engine.runner.watermarks.drain()
        outcome = engine.epoch(*frames)
        found.sent.append(sorted(map(repr, rows_of(outcome, "out"))))
        acks = outcome.acks.values()
        found.counted.append(
            (
                sum(ack.rows_in for ack in acks),
                outcome.late_rows,
                outcome.late_rows_dropped,
                outcome.max_event_time,
                outcome.value_times,
                [(o.null_feeds, o.null_rows, o.bad_times) for o in outcome.odd_rows().values()],
                engine.runner.watermarks.to_json(),
            )
        )
    return found


def both_ways(monkeypatch, start, build, frames) -> tuple[Told, Told]:
    """The same epochs in two phases and in one."""
    two = told(start(build, parallelism=3), frames)
    monkeypatch.setattr(local_aggregation, "ROWS_TO_SAVE", 1 << 60)
    return two, told(start(build, parallelism=3), frames)


WINDOWS = {
    "tumbling": Tumbling("10s", offset="3s"),
    "sliding": Sliding("10s", "4s"),
    "processing": Tumbling("1d", time="processing"),
}


@pytest.mark.parametrize(
    ("kind", "per"),
    [("tumbling", None), ("sliding", None), ("processing", None), ("tumbling", "part")],
)
def test_what_comes_out_and_what_is_counted_is_the_same(
    spark, start, added, monkeypatch, kind, per
):
    def build(env):
        rows = input_stream(env, "rows", ROWS).with_event_time("at", max_delay="2s", per=per)
        windows = rows.key_by("user").window(WINDOWS[kind])
        named = {name: one for name, one in NAMED.items() if name != "total" or kind != "sliding"}
        windows.aggregate(uid="w", null_key="drop", bad_time="drop", **named).sink_to(
            Collect(), uid="out"
        )

    frames = []
    for number in range(4):
        rows = some_rows(number, max(0, 10_000 * number - 15_000), 10_000 * (number + 1))
        rows += [(None, 1, 5, 7, None, None, None, None), ("u1", 2, None, 7, 1.0, True, None, 3)]
        # Two lines that Spark could not read, beside a row without key and time that it could.
        rows += [(None,) * 8, (None,) * 8, (None, None, None, 7, None, None, None, None)]
        frames.append([spark.createDataFrame(rows, ROWS).repartition(4)])
    two, one = both_ways(monkeypatch, start, build, frames)
    assert added == [True] * 3
    # Windows of processing time end when they do.
    assert kind == "processing" or two.sent == one.sent
    assert [len(sent) for sent in two.sent] == [len(sent) for sent in one.sent]
    assert two.counted == one.counted
    if kind != "processing":
        assert any(late and dropped for _, late, dropped, *_ in one.counted)


def test_inputs_of_a_union_are_added_up_each_by_its_own_clock(spark, start, added, monkeypatch):
    def build(env):
        first = input_stream(env, "a", ROWS).with_event_time("at")
        second = input_stream(env, "b", ROWS).with_event_time("at", max_delay="5s")
        windows = first.union(second).key_by("user", "part").window(Tumbling("10s"))
        windows.aggregate(uid="w", **NAMED).sink_to(Collect(), uid="out")

    frames = [
        [
            spark.createDataFrame(some_rows(2 * n + i, 0, 9_000 * (n + 1)), ROWS).repartition(2)
            for i in range(2)
        ]
        for n in range(3)
    ]
    two, one = both_ways(monkeypatch, start, build, frames)
    assert added == [True] * 4
    assert (two.sent, two.counted) == (one.sent, one.counted)


@pytest.mark.parametrize(
    "build",
    [
        lambda keyed: keyed.window(Session("10s")).aggregate(uid="w", n=count()),
        lambda keyed: keyed.window(Tumbling("10s")).aggregate(uid="w", mean=avg("v")),
        lambda keyed: keyed.window(Tumbling("10s")).aggregate(uid="w", total=sum_("w")),
        lambda keyed: keyed.window(Tumbling("10s")).aggregate(uid="w", last=max_("user")),
        lambda keyed: keyed.window(Sliding("4s", "10s")).aggregate(uid="w", n=count()),
        lambda keyed: keyed.window(Tumbling("10s"), allowed_lateness="1s").aggregate(
            uid="w", n=count()
        ),
        lambda keyed: keyed.aggregate(uid="w", n=count()),
    ],
)
def test_where_rows_are_needed_one_by_one_they_come_so(spark, start, added, build):
    engine = start(
        lambda env: build(
            input_stream(env, "rows", ROWS).with_event_time("at").key_by("part")
        ).sink_to(Collect(), uid="out")
    )
    for _ in range(2):
        engine.epoch(spark.createDataFrame(some_rows(1, 0, 9), ROWS).repartition(2))
    assert added == []


def test_rows_that_lie_by_key_already_come_one_by_one(spark, start, added, monkeypatch):
    """Spark has nothing to exchange then, and no half of a plan to take."""

    def build(env):
        rows = input_stream(env, "rows", ROWS).transform(lambda frame: frame.repartition(2, "user"))
        keyed = rows.with_event_time("at").key_by("user", "part")
        keyed.window(Tumbling("10s")).aggregate(uid="w", n=count()).sink_to(Collect(), uid="out")

    frames = [[spark.createDataFrame(some_rows(n, 0, 30_000), ROWS)] for n in range(2)]
    two, one = both_ways(monkeypatch, start, build, frames)
    assert added == [False]
    assert (two.sent, two.counted) == (one.sent, one.counted)


def test_the_aggregation_of_a_table_is_not_taken_for_that_of_the_stream(
    spark, start, added, monkeypatch
):
    users = [(f"u{number % 9}", number) for number in range(2000)]
    table = spark.createDataFrame(users, "user string, x int").groupBy("user")
    # Its half has as many columns as ours.
    table = table.agg(sf.count("*").alias("many"), sf.max("x").alias("x")).where(
        "many > 2 and x > 0"
    )

    def build(env):
        rows = input_stream(env, "rows", ROWS)
        joined = rows.transform(lambda frame: table.hint("merge").join(frame, "user"))
        keyed = joined.key_by("user").window(Tumbling("1d", time="processing"))
        keyed.aggregate(uid="w", n=count()).sink_to(Collect(), uid="out")

    frames = [[spark.createDataFrame(some_rows(n, 0, 30_000), ROWS).repartition(2)] for n in (1, 2)]
    two, one = both_ways(monkeypatch, start, build, frames)
    assert added == [False]
    assert [counted[0] for counted in two.counted] == [300, 300, 0]
    assert two.counted == one.counted


def test_a_time_that_no_window_can_have_is_told(spark, start, added):
    def build(env):
        rows = input_stream(env, "rows", ROWS).with_event_time("at")
        rows.key_by("user").window(Tumbling("10s", offset="3s")).aggregate(uid="w", n=count())

    engine = start(build)
    engine.epoch(spark.createDataFrame(some_rows(1, 0, 9), ROWS))
    for far in (MOST, -MOST - 1):
        row = ("u", 1, far, None, None, None, None, None)
        with pytest.raises(UserError, match=f"too far away for a window: milliseconds={far};"):
            engine.epoch(spark.createDataFrame([row], ROWS).repartition(2))
    assert added == [True, True]


def test_a_sum_that_does_not_fit_is_told_as_of_rows(spark, start, added):
    def build(env):
        rows = input_stream(env, "rows", ROWS).with_event_time("at")
        made = rows.key_by("user").window(Tumbling("10s")).aggregate(uid="w", total=sum_("v"))
        made.sink_to(Collect(), uid="out")

    def rows_with(*values):
        rows = [("u", 1, 5, value, None, None, None, None) for value in values]
        return spark.createDataFrame(rows, ROWS).repartition(2)

    engine = start(build)
    engine.epoch(rows_with(-1))
    # Too much in between, and brought back by a later one.
    engine.epoch(rows_with(MOST, MOST, MOST, -MOST, -MOST))
    with pytest.raises(UserError, match="does not fit 64 bits: column=v"):
        engine.epoch(rows_with(MOST, MOST))
    assert added == [True, True]


def test_no_code_is_made_anew_for_another_watermark(spark, start, added):
    def build(env):
        rows = input_stream(env, "rows", ROWS).with_event_time("at")
        rows.key_by("user").window(Tumbling("10s")).aggregate(uid="w", n=count())

    def compiled():
        return spark._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()

    engine, counts = start(build), []
    for number in range(5):
        rows = some_rows(number, 1000 * number, 1000 * (number + 1))
        engine.epoch(spark.createDataFrame(rows, ROWS).repartition(2))
        counts.append(compiled().getCount())
    assert added == [True] * 4
    assert counts[2] == counts[4] > counts[0]
