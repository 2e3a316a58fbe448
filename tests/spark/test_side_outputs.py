"""Side outputs by Spark: to sinks and on to other operators, from rows, timers and broadcasts."""

# ruff: noqa: ARG002 - functions have the signature that the API gives them

import runpy

import pyarrow.compute as pc
import pytest
from moorage_testing.engine import Collect, input_stream, rows_of
from moorage_testing.pages import blocks

from moorage import (
    KeyedBatchFunction,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    OutputTag,
    ValueStateDescriptor,
)
from moorage.engine.acks import OddCounts
from moorage_state.errors import UserError

pytestmark = pytest.mark.spark

PAGE = "docs/side-outputs.md"

EVENTS = "user string, n long, at timestamp"
RULES = MapStateDescriptor("rules", "string", "long")
NULLS = OutputTag("nulls")
ODD = OutputTag("odd", "n long not null, who struct<user: string, tags: map<string, int>>")
SUM = "user string, total long"


class Sums(KeyedProcessFunction):
    """Sums per user; odd numbers go aside."""

    def open(self, ctx):
        self.total = ctx.get_state(ValueStateDescriptor("total", "long"))

    def process(self, row, ctx):
        if row.n % 2:
            yield ODD, {"n": row.n, "who": {"user": ctx.key, "tags": {"x": 1}}}
        self.total.update((self.total.value() or 0) + row.n)
        yield ctx.key, self.total.value()


class Counts(KeyedProcessFunction):
    def open(self, ctx):
        self.n = ctx.get_state(ValueStateDescriptor("n", "long"))

    def process(self, row, ctx):
        self.n.update((self.n.value() or 0) + 1)
        yield str(ctx.key), self.n.value()


def events(spark, *rows):
    return spark.createDataFrame([(user, n, None) for user, n in rows], EVENTS)


def test_rows_of_all_outputs_are_read_by_operators_and_sinks(spark, start):
    def build(env):
        keyed = input_stream(env, "events", EVENTS).key_by("user")
        sums = keyed.process(Sums(), uid="sum", output=SUM, side_outputs=[ODD], null_key=NULLS)
        odd, nulls = sums.get_side_output(ODD), sums.get_side_output(NULLS)
        odd.sink_to(Collect(), uid="odd")
        for uid, stream, key in (("o", odd, "n"), ("m", sums, "user"), ("z", nulls, "n")):
            counts = stream.key_by(key).process(Counts(), uid=uid, output="k string, n long")
            counts.sink_to(Collect(), uid=f"{uid}-out")

    engine = start(build)
    rows = [("a", 1), ("b", 2), (None, 7), ("a", 3), ("c", 3), (None, 8)]
    outcome = engine.epoch(events(spark, *rows))
    assert sorted(rows_of(outcome, "o-out")) == [("1", 1), ("3", 1), ("3", 2)]
    assert sorted(rows_of(outcome, "m-out")) == [("a", 1), ("a", 2), ("b", 1), ("c", 1)]
    assert sorted(rows_of(outcome, "z-out")) == [("7", 1), ("8", 1)]
    found = sorted((n, who["user"], dict(who["tags"])) for n, who in rows_of(outcome, "odd"))
    assert found == [(1, "a", {"x": 1}), (3, "a", {"x": 1}), (3, "c", {"x": 1})]
    assert outcome.odd_rows() == {"sum": OddCounts(null_feeds={0: 2})}
    outcome = engine.epoch(events(spark, ("d", 5), ("d", 3)))
    assert sorted(rows_of(outcome, "o-out")) == [("3", 3), ("5", 1)]
    assert engine.values("o", "n") == {1: 1, 3: 3, 5: 1}
    assert engine.values("z", "n") == {7: 1, 8: 1}


def test_an_operator_may_read_a_side_output_alone(spark, start):
    def build(env):
        keyed = input_stream(env, "events", EVENTS).key_by("user")
        sums = keyed.process(Sums(), uid="sum", output=SUM, side_outputs=[ODD])
        numbers = sums.get_side_output(ODD).key_by("n")
        numbers.process(Counts(), uid="o", output="k string, n long").sink_to(Collect(), uid="out")

    engine = start(build)
    outcome = engine.epoch(events(spark, ("a", 1), ("b", 2), ("c", 1)))
    assert rows_of(outcome, "out") == [("1", 1), ("1", 2)]
    assert outcome.rows_in({"o"}) == 2


class Alarm(KeyedProcessFunction):
    """Late rows go aside; a timer says that it fired, aside."""

    def process(self, row, ctx):
        if ctx.timestamp() <= ctx.timer_service().current_watermark():
            yield NULLS, row
        else:
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + 1)

    def on_timer(self, timestamp, ctx):
        ctx.output(ODD, (timestamp, {"user": ctx.key}))


def test_late_rows_and_timers_go_aside(spark, start):
    def build(env):
        stream = input_stream(env, "events", "user string, at long").with_event_time("at")
        alarms = stream.key_by("user").process(
            Alarm(), uid="alarm", output="none string", side_outputs=[ODD, NULLS]
        )
        late = alarms.get_side_output(NULLS).with_event_time("at")
        late.key_by("user").process(Counts(), uid="late", output="user string, n long")
        alarms.get_side_output(ODD).sink_to(Collect(), uid="fired")

    def batch(*rows):
        return spark.createDataFrame(list(rows), "user string, at long")

    engine = start(build)
    engine.epoch(batch(("a", 100), ("b", 200)))
    outcome = engine.epoch(batch(("b", 150), ("b", 300)))
    fired = sorted((n, who["user"]) for n, who in rows_of(outcome, "fired"))
    assert fired == [(101, "a"), (201, "b")]
    assert engine.values("late", "n") == {"b": 1}
    assert outcome.late_rows == 1


class Prices(KeyedBroadcastProcessFunction):
    def process_broadcast_element(self, row, ctx):
        ctx.get_broadcast_state(RULES).put(row.user, row.n)
        yield ODD, (row.n, None)

    def process_element(self, row, ctx):
        ctx.output(ODD, (ctx.get_broadcast_state(RULES).get(row.user) + row.n, None))


def test_a_function_over_two_streams_sends_aside_from_both(spark, start):
    def build(env):
        rules, rows = input_stream(env, "rules", EVENTS), input_stream(env, "events", EVENTS)
        prices = rows.key_by("user").connect(rules, RULES)
        sent = prices.process(Prices(), uid="prices", output=SUM, side_outputs=[ODD])
        sent.get_side_output(ODD).sink_to(Collect(), uid="odd")

    engine = start(build)
    outcome = engine.epoch(events(spark, ("a", 10)), events(spark, ("a", 1), ("a", 2)))
    assert sorted(n for n, _ in rows_of(outcome, "odd")) == [10, 10, 11, 12]


class Tables(KeyedBatchFunction):
    def process_batch(self, keys, table, ctx):
        small = pc.less(table.column("n"), 10)
        ctx.output(NULLS, table.filter(small))
        return table.filter(pc.invert(small)).select(["user", "n"])


def test_a_vectorized_function_sends_tables_aside(spark, start):
    def build(env):
        keyed = input_stream(env, "events", EVENTS).key_by("user")
        rows = keyed.process(Tables(), uid="t", output="user string, n long", side_outputs=[NULLS])
        small = rows.get_side_output(NULLS).key_by("user")
        small.process(Counts(), uid="small", output="user string, n long")
        rows.sink_to(Collect(), uid="large")

    engine = start(build)
    outcome = engine.epoch(events(spark, ("a", 1), ("a", 20), ("b", 3), ("a", 5)))
    assert rows_of(outcome, "large") == [("a", 20)]
    assert engine.values("small", "n") == {"a": 2, "b": 1}


def test_what_is_wrong_with_a_row_is_said_with_its_side_output(spark, start):
    class Wrong(KeyedProcessFunction):
        def process(self, row, ctx):
            yield ODD, (str(row.n), None)

    def build(env):
        keyed = input_stream(env, "events", EVENTS).key_by("user")
        rows = keyed.process(Wrong(), uid="wrong", output=SUM, side_outputs=[ODD])
        rows.get_side_output(ODD).sink_to(Collect(), uid="odd")

    words = "operator=wrong side_output=odd column=n declared=int64: got '1' of Python type str"
    with pytest.raises(UserError, match=words):
        start(build).epoch(events(spark, ("a", 1)))


def test_the_example_of_the_documentation_does_what_it_says(spark, start, tmp_path):
    job = tmp_path / "job.py"
    job.write_text(blocks(PAGE, "python")[0].code)
    example = runpy.run_path(str(job))

    def build(env):
        env.base_dir = str(tmp_path)
        env.read_stream = lambda uid, _format, **given: input_stream(env, uid, given["schema"])
        example["build"](env)

    payments = [("a", 5), ("a", 2000), (None, 7), ("b", -1), ("b", 3)]
    outcome = start(build).epoch(spark.createDataFrame(payments, "user string, amount long"))
    staged = outcome.committables()
    rows = {uid: sum(item["rows"] for item in items) for uid, items in staged.items()}
    assert rows == {"spent-out": 3, "large-out": 1, "refused-out": 2}
