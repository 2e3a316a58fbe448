"""Event time in the epoch engine: the order of rows, and timers with and without rows."""

import pytest
from moorage_testing.engine import Collect, input_stream, rows_of
from tests.spark.engine_jobs import REMEMBERED, Remember

from moorage import KeyedProcessFunction, ListStateDescriptor

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


def test_rows_without_an_event_time_are_processed_and_hold_nothing_back(spark, start):
    def build(env):
        stream = input_stream(env, "events", TIMED).with_event_time("at")
        stream.key_by("user").process(Remember(["at"]), uid="seen", output=REMEMBERED)

    engine = start(build)
    engine.epoch(spark.createDataFrame([("a", 4), ("a", None), ("a", 2)], TIMED))
    assert engine.lists("seen", "seen") == {"a": ["None", "2", "4"]}
    assert engine.runner.watermarks.of("seen") == 3


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
