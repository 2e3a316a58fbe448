"""Event time in the epoch engine: the order of rows, and timers with and without rows."""

from typing import Any

import pytest
from moorage_testing.engine import Collect, input_stream, rows_of
from tests.spark.engine_jobs import REMEMBERED, Remember

from moorage import KeyedProcessFunction, ListStateDescriptor, OutputTag
from moorage_state.errors import UserError

pytestmark = pytest.mark.spark

TIMED = "user string, at long"
ALARMS = "what string, user string, at long"


class Alarm(KeyedProcessFunction):
    """Sends a row 100 ms of event time after each row, and says what time it was."""

    def open(self, ctx):
        self.fired = ctx.get_list_state(ListStateDescriptor("fired", "long"))

    def process(self, row, ctx):
        assert ctx.timestamp() == row.at
        ctx.timer_service().register_event_time_timer(row.at + 100)
        yield "row", ctx.key, row.at

    def on_timer(self, timestamp, ctx):
        assert ctx.timestamp() == timestamp <= ctx.timer_service().current_watermark()
        self.fired.add(timestamp)
        yield "timer", ctx.key, timestamp


class OnTime(Remember):
    """Takes no late rows."""

    def process(self, row, ctx):
        assert ctx.timestamp() > ctx.timer_service().current_watermark()
        yield from super().process(row, ctx)


def alarms(env):
    stream = input_stream(env, "events", TIMED).with_event_time("at")
    stream.key_by("user").process(Alarm(), uid="alarm", output=ALARMS).sink_to(Collect(), uid="out")


def test_rows_come_in_event_time_order_and_timers_before_the_rows_after_them(spark, start):
    engine = start(alarms, parallelism=3)
    rows = [("a", 250), ("b", 10), ("a", 0), ("a", 90), ("b", 5)]
    outcome = engine.epoch(spark.createDataFrame(rows, TIMED).repartition(4))
    sent = rows_of(outcome, "out")
    assert [(what, at) for what, user, at in sent if user == "a"] == [
        ("row", 0), ("row", 90), ("timer", 100), ("timer", 190), ("row", 250)
    ]  # fmt: skip
    assert [(what, at) for what, user, at in sent if user == "b"] == [("row", 5), ("row", 10)]


def test_a_tick_fires_what_is_due_for_keys_without_rows_once(spark, start):
    engine = start(alarms, parallelism=3)
    users = [f"u{i}" for i in range(40)]
    engine.epoch(spark.createDataFrame([(user, 5) for user in users], TIMED))
    assert rows_of(engine.epoch(), "out") == []
    engine.epoch(spark.createDataFrame([("late", 500)], TIMED))
    assert engine.runner.watermarks.of("alarm") == 499
    due = engine.epoch()
    assert sorted(rows_of(due, "out")) == sorted(("timer", user, 105) for user in users)
    assert rows_of(engine.epoch(), "out") == []
    engine.runner.watermarks = engine.runner.watermarks.drain()
    assert rows_of(engine.epoch(), "out") == [("timer", "late", 600)]
    assert engine.lists("alarm", "fired") == {**{user: [105] for user in users}, "late": [600]}


def test_a_timer_of_the_first_operator_reaches_the_second_in_a_tick(spark, start):
    def build(env):
        stream = input_stream(env, "events", TIMED).with_event_time("at", max_delay="50ms")
        alarm = stream.key_by("user").process(Alarm(), uid="alarm", output=ALARMS)
        timed = alarm.with_event_time("at")
        timed.key_by("what").process(OnTime(["at"]), uid="second", output=REMEMBERED)

    engine = start(build, parallelism=3)
    rows = [(f"u{i}", i) for i in (7, 3, 9, 1)]
    engine.epoch(spark.createDataFrame([*rows, ("x", 1000)], TIMED))
    # What the first sends because of a watermark is not late by that watermark.
    engine.epoch()
    assert engine.lists("second", "seen") == {
        "row": ["1", "3", "7", "9", "1000"],
        "timer": ["101", "103", "107", "109"],
    }


class Punctual(KeyedProcessFunction):
    """Judges as the docs do whether a row is late; yields one row in two without a time."""

    def process(self, row, ctx):
        assert ctx.timestamp() > ctx.timer_service().current_watermark()
        yield ctx.key, row.n, row.at if row.n % 2 else None


READINGS = "user string, n long, at timestamp"
UNTIMED = OutputTag("untimed")


def test_rows_whose_time_spark_cannot_read_go_where_the_job_says(spark, start, tmp_path):
    lines = [
        '{"user": "a", "n": 1, "at": "2026-01-01T00:00:05Z"}',
        '{"user": "b", "n": 2, "at": "2026-01-01T00:00:09Z"}',
        '{"user": "c", "n": 3, "at": "yesterday"}',
        '{"user": "d", "n": 4}',
        "no json at all",
        '{"user": "e", "n"',
    ]
    (tmp_path / "lines.json").write_text("\n".join(lines))
    told: dict[str, Any] = {"bad_time": "fail", "null_key": "drop"}

    def build(env):
        stream = input_stream(env, "events", READINGS).with_event_time("at")
        first = stream.key_by("user").process(Punctual(), uid="first", output=READINGS, **told)
        timed = first.with_event_time("at").key_by("user")
        timed.process(Remember(["n"]), uid="second", output=REMEMBERED, bad_time="drop")
        if told["bad_time"] is UNTIMED:
            first.get_side_output(UNTIMED).sink_to(Collect(), uid="out")

    frame = spark.read.schema(READINGS).json(str(tmp_path / "lines.json"))
    engine = start(build)
    words = r"operator=first input=events column=at key='[cd]' rows=2; .*bad_time='drop'"
    with pytest.raises(UserError, match=words):
        engine.epoch(frame)
    assert engine.runner.epoch == 0
    told["bad_time"] = UNTIMED
    engine = start(build)
    outcome = engine.epoch(frame)
    assert sorted(row[:2] for row in rows_of(outcome, "out")) == [("c", 3), ("d", 4)]
    assert engine.lists("second", "seen") == {"a": ["1"]}
    first, second = outcome.odd_rows()["first"], outcome.odd_rows()["second"]
    assert (first.null_keys, first.null_rows, first.bad_times) == (2, 2, 2)
    assert (second.bad_times, second.bad_time) == (1, "column=at key='b'")
    assert engine.runner.watermarks.of("first") == 1_767_225_609_000 - 1
    kept = spark.read.schema(f"{READINGS}, _corrupt_record string").json(str(tmp_path)).collect()
    unread = {row.user: row._corrupt_record for row in kept if row._corrupt_record is not None}
    assert unread["c"] == lines[2]
    assert unread[None] in lines[4:]


def test_a_timer_waits_for_the_slowest_input_of_its_own_operator(spark, start):
    def build(env):
        fast = input_stream(env, "fast", TIMED).with_event_time("at")
        slow = input_stream(env, "slow", TIMED).with_event_time("at")
        for uid, stream in (("both", fast.union(slow)), ("own", fast)):
            stream.key_by("user").process(Alarm(), uid=uid, output=ALARMS).sink_to(
                Collect(), uid=f"of-{uid}"
            )

    def epoch(*times):
        frames = (spark.createDataFrame([("a", at) for at in mine], TIMED) for mine in times)
        return engine.epoch(*frames)

    def said(outcome, uid):
        return [(what, at) for what, _, at in rows_of(outcome, f"of-{uid}")]

    engine = start(build, parallelism=2)
    outcome = epoch([20, 500], [10])
    assert said(outcome, "both") == [("row", 10), ("row", 20), ("row", 500)]
    assert said(outcome, "own") == [("row", 20), ("timer", 120), ("row", 500)]
    assert engine.runner.watermarks.of("own") == 499
    outcome = epoch([], [50, 600])
    assert said(outcome, "both") == [("row", 50), ("row", 600)]
    assert said(engine.epoch(), "both") == [("timer", at) for at in (110, 120, 150)]


def test_an_input_that_counts_by_partition_waits_for_the_slowest(spark, start):
    def build(env):
        ddl = "user string, at long, part int"
        stream = input_stream(env, "events", ddl).with_event_time("at", per="part")
        stream = stream.transform(lambda rows: rows.where("at >= 0"))
        stream.key_by("user").process(Alarm(), uid="alarm", output=ALARMS).sink_to(
            Collect(), uid="out"
        )

    def epoch(*rows):
        return said(engine.epoch(spark.createDataFrame(rows, "user string, at long, part int")))

    def said(outcome):
        return [(what, at) for what, _, at in rows_of(outcome, "out")]

    engine = start(build, parallelism=2)
    rows = [("a", 10, 0), ("a", 500, 1), ("a", 30, None)]
    assert epoch(*rows) == [("row", 10), ("row", 30), ("row", 500)]
    assert engine.runner.watermarks.of("alarm") == 9
    assert epoch(("a", 200, 0), ("a", 140, None)) == [("row", 140), ("row", 200)]
    assert said(engine.epoch()) == [("timer", 110), ("timer", 130)]
