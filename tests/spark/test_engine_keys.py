"""Keys in the epoch engine: of every type, null, and of columns with odd names."""

import datetime
import decimal

import pytest
from moorage_testing.engine import Collect, input_stream, rows_of
from tests.spark.engine_jobs import EVENTS, REMEMBERED, SUMS, Remember, Sum, summing

from moorage import KeyedProcessFunction, StreamEnvironment, ValueStateDescriptor
from moorage.engine.acks import OddCounts
from moorage_state.errors import UserError

pytestmark = pytest.mark.spark


def spelled(key):
    """The key with its types, except for the class that a time zone is an instance of."""
    if isinstance(key, tuple):
        return " ".join(map(spelled, key))
    return key.isoformat() if isinstance(key, datetime.datetime) else repr(key)


class KeyAsGiven(KeyedProcessFunction):
    """Counts, and sends its key as text both from a row and from a timer of a later epoch."""

    def open(self, ctx):
        self.n = ctx.get_state(ValueStateDescriptor("n", "long"))

    def process(self, row, ctx):  # noqa: ARG002
        self.n.update((self.n.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(0)
        yield "row", spelled(ctx.key)

    def on_timer(self, timestamp, ctx):  # noqa: ARG002
        yield "timer", spelled(ctx.key)


def test_null_keys_fail_the_epoch_and_change_nothing(spark, start):
    engine = start(summing)
    engine.epoch(spark.createDataFrame([("a", 1)], EVENTS))
    nulls = spark.createDataFrame([(None, 7), ("a", 1), (None, 8)], EVENTS)
    with pytest.raises(
        UserError, match=r"null key: operator=sum input=events key=\['user'\] rows=2;"
    ):
        engine.epoch(nulls)
    assert engine.runner.epoch == 1
    engine.epoch(spark.createDataFrame([("a", 1)], EVENTS))
    assert engine.values("sum", "n") == {"a": 2}


def test_null_keys_are_dropped_where_that_is_asked_for_and_counted(spark, start):
    def build(env):
        stream = input_stream(env, "events", EVENTS)
        first = stream.key_by("user", "amount").process(
            Remember(["user"]), uid="first", output="k string, user string", null_key="drop"
        )
        first.key_by("user").process(
            Remember(["k"]), uid="second", output=REMEMBERED, null_key="drop"
        )

    engine = start(build)
    rows = [(None, 1), ("a", None), (None, None), ("a", 1), ("", 0)]
    outcome = engine.epoch(spark.createDataFrame(rows, EVENTS))
    assert outcome.odd_rows() == {"first": OddCounts(null_feeds={0: 3}, null_rows=1)}
    assert outcome.rows_in({"first"}) == outcome.rows_in({"second"}) == 2
    assert set(engine.lists("first", "seen")) == {("a", 1), ("", 0)}
    assert set(engine.lists("second", "seen")) == {"a", ""}


KEYS: dict[str, list] = {
    "string": ["", "a", "ä\u0000z", "\U0001f6a2" * 40],
    "binary": [b"", b"\xff\xff", b"\x00"],
    "boolean": [True, False],
    "tinyint": [-128, 0, 127],
    "bigint": [-(2**63), -1, 0, 2**63 - 1],
    "date": [datetime.date(1, 1, 1), datetime.date(1969, 12, 31), datetime.date(9999, 12, 31)],
    "timestamp": [datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, datetime.UTC)],
    "decimal(10,2)": [decimal.Decimal("-1.50"), decimal.Decimal("0.00"), decimal.Decimal("1.50")],
    "decimal(38,18)": [decimal.Decimal("1.000000000000000001"), decimal.Decimal("1E-18")],
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_every_type_are_counted_and_come_back_from_state(spark, start, kind):
    def build(env):
        stream = input_stream(env, "events", f"k {kind}, other string")
        for uid, columns in {"one": ["k"], "two": ["other", "k"]}.items():
            stream.key_by(*columns).process(
                KeyAsGiven(), uid=uid, output="what string, k string"
            ).sink_to(Collect(), uid=f"{uid}-out")

    engine = start(build, parallelism=2)
    keys = KEYS[kind]
    rows = [(key, "x") for key in keys for _ in range(3)]
    frame = spark.createDataFrame(rows, f"k {kind}, other string")
    engine.epoch(frame)
    second = engine.epoch(frame)
    engine.runner.watermarks = engine.runner.watermarks.drain()
    drained = engine.epoch()
    assert engine.values("one", "n") == dict.fromkeys(keys, 6)
    assert engine.values("two", "n") == {("x", key): 6 for key in keys}
    for uid in ("one-out", "two-out"):
        given = {k for what, k in rows_of(second, uid) if what == "row"}
        assert len(given) == len(keys)
        assert sorted(rows_of(drained, uid)) == sorted(("timer", k) for k in given)


def test_columns_may_have_names_that_are_no_identifiers(spark, start):
    ddl = "`the user` string, `a-b` long, `class` string, `_x` long"

    def build(env):
        stream = input_stream(env, "events", ddl)
        other = input_stream(env, "other", EVENTS)
        stream.key_by("the user", "a-b").process(
            KeyAsGiven(), uid="odd", output="`what ever` string, `a b` string"
        ).key_by("what ever").process(KeyAsGiven(), uid="next", output="a string, b string")
        other.key_by("user").process(Sum(), uid="sum", output=SUMS)

    engine = start(build)
    frame = spark.createDataFrame([("a", 1, "c", 2), ("a", 1, "c", 3), ("b", 1, "c", 4)], ddl)
    engine.epoch(frame, spark.createDataFrame([], EVENTS))
    assert engine.values("odd", "n") == {("a", 1): 2, ("b", 1): 1}
    assert engine.values("next", "n") == {"row": 3}


@pytest.mark.parametrize("name", ["a.b", "a`b"])
def test_columns_that_cannot_reach_a_function_are_refused_when_the_job_is_described(spark, name):
    env = StreamEnvironment(spark)
    odd = name.replace("`", "``")
    stream = input_stream(env, "events", f"user string, `{odd}` long")
    with pytest.raises(UserError, match=r"dot or a backtick in its name.*columns=\['a.b'\]"):
        stream.key_by("user")
    renamed = stream.transform(lambda df: df.toDF("user", "b"))
    renamed.key_by("user")


@pytest.mark.parametrize("name", ["_m_kind", "_M_Kind"])
def test_columns_that_spark_would_mix_up_with_the_engines_are_refused(spark, name):
    with pytest.raises(UserError, match="are reserved; rename them"):
        input_stream(StreamEnvironment(spark), "events", f"user string, {name} long")
