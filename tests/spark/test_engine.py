"""The epoch engine on one machine: jobs of several shapes against real state servers."""

import datetime
import decimal
import itertools
import os
import random
import signal
from collections import Counter, defaultdict
from pathlib import Path

import pandas as pd
import pytest
from moorage_testing.engine import Collect, Engine, input_stream, rows_of

from moorage import (
    FileSink,
    KeyedProcessFunction,
    ListStateDescriptor,
    StreamEnvironment,
    ValueStateDescriptor,
)
from moorage.engine.failures import UserFunctionError
from moorage_state.errors import UserError
from moorage_state.server.group import ServerGroup

pytestmark = pytest.mark.spark

EVENTS = "user string, amount long"
TIMED = "user string, at long"


# --- functions under test -------------------------------------------------------------------------


class Sum(KeyedProcessFunction):
    """Counts and sums per key, sends the running count."""

    def open(self, ctx):
        self.n = ctx.get_state(ValueStateDescriptor("n", "long"))
        self.total = ctx.get_state(ValueStateDescriptor("total", "long"))

    def process(self, row, ctx):
        n = (self.n.value() or 0) + 1
        self.n.update(n)
        self.total.update((self.total.value() or 0) + row.amount)
        yield ctx.key, n, row.amount


SUMS = "user string, n long, amount long"


class ToBucket(KeyedProcessFunction):
    """Numbers the rows of a user and sends them on to one of three buckets."""

    def open(self, ctx):
        self.n = ctx.get_state(ValueStateDescriptor("n", "long"))

    def process(self, row, ctx):
        n = (self.n.value() or 0) + 1
        self.n.update(n)
        return [{"n": n, "bucket": row.amount % 3, "user": ctx.key, "amount": row.amount}]


BUCKETED = "bucket long, user string, n long, amount long"


class Remember(KeyedProcessFunction):
    """Keeps what it sees, in the order in which it sees it."""

    def __init__(self, columns):
        self.columns = columns

    def open(self, ctx):
        self.seen = ctx.get_list_state(ListStateDescriptor("seen", "string"))

    def process(self, row, ctx):
        text = " ".join(str(getattr(row, c)) for c in self.columns)
        self.seen.add(text)
        yield str(ctx.key), text


REMEMBERED = "key string, seen string"


class Alarm(KeyedProcessFunction):
    """Sends a row 100 ms of event time after each row, and says what time it was."""

    def open(self, ctx):
        self.fired = ctx.get_list_state(ListStateDescriptor("fired", "long"))

    def process(self, row, ctx):
        assert ctx.timestamp() == row.at
        ctx.timer_service().register_event_time_timer(row.at + 100)
        yield "row", ctx.key, row.at

    def on_timer(self, timestamp, ctx):
        assert ctx.timestamp() == timestamp
        self.fired.add(timestamp)
        yield "timer", ctx.key, timestamp


ALARMS = "what string, user string, at long"


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


class KillsAServer(Sum):
    """In subtask 0, once, kills a state server: among the rows, or when all is prepared."""

    def __init__(self, pid, marker, when):
        self.pid, self.marker, self.when = pid, marker, when

    def open(self, ctx):
        super().open(ctx)
        self.subtask = ctx.subtask

    def process(self, row, ctx):
        self.kill("process")
        return super().process(row, ctx)

    def close(self):
        self.kill("close")

    def kill(self, when):
        if self.when == when and self.subtask == 0 and not self.marker.exists():
            self.marker.touch()
            os.kill(self.pid, signal.SIGKILL)


class Fussy(KeyedProcessFunction):
    """Fails where it is told to."""

    def __init__(self, where="", output=None):
        self.where = where
        self.output = output

    def open(self, ctx):
        self.n = ctx.get_state(ValueStateDescriptor("n", "long"))
        if self.where == "open":
            raise KeyError("no model")

    def process(self, row, ctx):
        self.n.update((self.n.value() or 0) + 1)
        if self.where == "process" and row.amount < 0:
            raise ZeroDivisionError("negative amount")
        if self.output is not None and row.amount < 0:
            return self.output
        return [(ctx.key,)]

    def close(self):
        if self.where == "close":
            raise OSError("cannot hang up")


# --- how tests are arranged -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    with ServerGroup(2, tmp_path_factory.mktemp("state")) as servers:
        yield servers


@pytest.fixture(scope="module")
def fences():
    return itertools.count(1)


@pytest.fixture
def start(spark, group, fences):
    """Starts engines, each from empty state; the last one holds the ranges."""
    engines = []

    def start(build, **options) -> Engine:
        engine = Engine(spark, group, build, fence=next(fences), **options)
        engines.append(engine)
        return engine

    yield start
    for engine in engines:
        engine.fleet.close()


def summing(env):
    stream = input_stream(env, "events", EVENTS)
    sums = stream.key_by("user").process(Sum(), uid="sum", output=SUMS)
    sums.sink_to(Collect(), uid="out")


def chained(env):
    stream = input_stream(env, "events", EVENTS)
    first = stream.key_by("user").process(ToBucket(), uid="first", output=BUCKETED)
    second = first.key_by("bucket").process(
        Remember(["user", "n", "amount"]), uid="second", output=REMEMBERED
    )
    second.sink_to(Collect(), uid="out")


def alarms(env):
    stream = input_stream(env, "events", TIMED).with_event_time("at")
    stream.key_by("user").process(Alarm(), uid="alarm", output=ALARMS).sink_to(Collect(), uid="out")


def some_events(seed, count=400, users=23):
    generator = random.Random(seed)
    return [(f"u{generator.randrange(users)}", generator.randrange(1000)) for _ in range(count)]


def totals(events):
    sums: Counter[str] = Counter()
    for user, amount in events:
        sums[user] += amount
    return dict(sums)


def counts(events):
    return dict(Counter(user for user, _ in events))


def by_key(texts):
    """`user n amount` of a bucket as, by user, the list of n in the order seen."""
    seen = defaultdict(list)
    for text in texts:
        user, n, _ = text.split()
        seen[user].append(int(n))
    return seen


# --- one operator ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parallelism", "max_parallelism"), [(1, 1), (2, 16), (3, 7), (5, 5), (4, 32768)]
)
def test_counts_are_right_over_several_epochs(spark, start, parallelism, max_parallelism):
    engine = start(summing, parallelism=parallelism, max_parallelism=max_parallelism)
    so_far, sent = [], []
    for seed in range(3):
        events = some_events(seed)
        outcome = engine.epoch(spark.createDataFrame(events, EVENTS).repartition(3))
        so_far += events
        sent += rows_of(outcome, "out")
        assert outcome.rows_in({"sum"}) == len(events)
        assert engine.values("sum", "total") == totals(so_far)
        assert engine.values("sum", "n") == counts(so_far)
    assert engine.runner.epoch == 3
    assert sorted((user, n) for user, n, _ in sent) == sorted(
        (user, n + 1) for user, total in counts(so_far).items() for n in range(total)
    )


def test_a_key_whose_rows_fill_several_arrow_batches_is_one_key(spark, start):
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "3")
    try:
        engine = start(chained, parallelism=5)
        events = some_events(1, count=200, users=4)
        engine.epoch(spark.createDataFrame(events, EVENTS))
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert engine.values("first", "n") == counts(events)
    seen = engine.lists("second", "seen")
    assert sum(map(len, seen.values())) == len(events)


def test_rows_of_a_key_keep_the_order_of_their_source_partition(spark, start):
    def build(env):
        stream = input_stream(env, "events", EVENTS)
        stream.key_by("user").process(Remember(["amount"]), uid="seen", output=REMEMBERED)

    engine = start(build, parallelism=3)
    events = [(f"u{i % 7}", i) for i in range(300)]
    engine.epoch(spark.createDataFrame(events, EVENTS).coalesce(1))
    engine.epoch(spark.createDataFrame(events, EVENTS).coalesce(1))
    for user, seen in engine.lists("seen", "seen").items():
        mine = [str(i) for u, i in events if u == user]
        assert seen == mine + mine


def test_subtasks_without_rows_take_part_and_an_empty_batch_is_an_epoch(spark, start):
    engine = start(chained, parallelism=4)
    rows = spark.createDataFrame([("only", 3)], EVENTS)
    batches = [rows, rows.where("1 = 0"), spark.createDataFrame([], rows.schema), rows]
    outcomes = [engine.epoch(batch) for batch in batches]
    outcomes.append(engine.epoch())
    for outcome in outcomes:
        assert sorted(outcome.acks) == sorted(itertools.product(["first", "second"], range(4)))
    assert [rows_of(outcome, "out") for outcome in outcomes] == [
        [("0", "only 1 3")], [], [], [("0", "only 2 3")], []
    ]  # fmt: skip
    assert engine.runner.epoch == 5
    assert engine.values("first", "n") == {"only": 2}


# --- several inputs -------------------------------------------------------------------------------


def test_inputs_of_other_schemas_reach_their_own_operators(spark, start):
    def build(env):
        events = input_stream(env, "events", EVENTS)
        visits = input_stream(env, "visits", "page string, who struct<name:string>, t timestamp")
        events.key_by("user").process(Sum(), uid="sum", output=SUMS)
        visits.key_by("page").process(
            Remember(["who", "t"]), uid="pages", output=REMEMBERED
        ).sink_to(Collect(), uid="out")

    engine = start(build)
    events = some_events(5)
    when = datetime.datetime(2026, 1, 2, 3, 4, 5, 678900, datetime.UTC)
    visit = spark.createDataFrame(
        [("home", ("ann",), when), ("home", None, None)],
        "page string, who struct<name:string>, t timestamp",
    ).coalesce(1)
    engine.epoch(spark.createDataFrame(events, EVENTS), visit)
    engine.epoch(spark.createDataFrame(events, EVENTS), visit.limit(0))
    assert engine.values("sum", "total") == totals(events + events)
    seen = engine.lists("pages", "seen")
    assert list(seen) == ["home"]
    assert seen["home"][0].startswith("{'name': 'ann'} 2026-01-02 03:04:05.678900")
    assert seen["home"][1] == "None None"


def test_a_union_is_one_stream_and_an_input_may_also_be_read_alone(spark, start):
    def build(env):
        left = input_stream(env, "left", EVENTS)
        right = input_stream(env, "right", EVENTS)
        both = left.union(right.transform(lambda df: df.selectExpr("user", "-amount AS amount")))
        both.key_by("user").process(Sum(), uid="both", output=SUMS)
        left.key_by("user").process(Sum(), uid="alone", output=SUMS)
        left.union(left).key_by("user").process(Sum(), uid="twice", output=SUMS)

    engine = start(build, parallelism=3)
    left, right = some_events(1), some_events(2)
    engine.epoch(spark.createDataFrame(left, EVENTS), spark.createDataFrame(right, EVENTS))
    taken = [(user, -amount) for user, amount in right]
    assert engine.values("both", "total") == totals(left + taken)
    assert engine.values("both", "n") == counts(left + right)
    assert engine.values("alone", "total") == totals(left)
    assert engine.values("twice", "total") == totals(left + left)


# --- operators after operators --------------------------------------------------------------------


def test_a_second_operator_gets_all_that_the_first_one_sent_in_its_order(spark, start):
    engine = start(chained, parallelism=3)
    so_far = []
    for seed in range(3):
        events = some_events(seed)
        so_far += events
        outcome = engine.epoch(spark.createDataFrame(events, EVENTS).coalesce(1))
        assert len(rows_of(outcome, "out")) == len(events)
    seen = engine.lists("second", "seen")
    amounts: Counter[str] = Counter()
    for bucket, texts in seen.items():
        for user, numbers in by_key(texts).items():
            assert numbers == sorted(numbers), f"order of {user} in {bucket}"
        for text in texts:
            user, _, amount = text.split()
            assert int(amount) % 3 == bucket
            amounts[user] += int(amount)
    assert amounts == Counter(totals(so_far))
    assert engine.values("first", "n") == counts(so_far)


def test_an_output_is_read_by_two_operators_and_a_sink_and_a_third_reads_one_of_them(spark, start):
    def build(env):
        stream = input_stream(env, "events", EVENTS)
        first = stream.key_by("user").process(ToBucket(), uid="first", output=BUCKETED)
        first.sink_to(Collect(), uid="from-first")
        again = first.key_by("user").process(Sum(), uid="again", output=SUMS)
        first.key_by("bucket", "user").process(
            Remember(["n"]), uid="pairs", output=REMEMBERED
        ).sink_to(Collect(), uid="from-pairs")
        again.key_by("n").process(Sum(), uid="third", output="n long, k long, amount long")

    engine = start(build, parallelism=3)
    so_far = []
    for seed in range(2):
        events = some_events(seed)
        so_far += events
        outcome = engine.epoch(spark.createDataFrame(events, EVENTS))
        assert len(outcome.acks) == 4 * 3
        assert len(rows_of(outcome, "from-first")) == len(events)
        assert len(rows_of(outcome, "from-pairs")) == len(events)
    assert engine.values("again", "total") == totals(so_far)
    pairs = Counter((amount % 3, user) for user, amount in so_far)
    assert {k: len(v) for k, v in engine.lists("pairs", "seen").items()} == pairs
    per_count = Counter(n + 1 for total in counts(so_far).values() for n in range(total))
    assert engine.values("third", "n") == per_count
    assert not spark.sparkContext._jsc.getPersistentRDDs()


# --- sinks ----------------------------------------------------------------------------------------


def test_a_file_sink_publishes_what_was_acknowledged_from_operators_and_inputs(
    spark, start, tmp_path
):
    sums, raw = FileSink(tmp_path / "sums"), FileSink(tmp_path / "raw")

    def build(env):
        stream = input_stream(env, "events", "user string, amount long, t timestamp")
        stream.sink_to(raw, uid="raw")
        stream.key_by("user").process(Sum(), uid="sum", output=SUMS).sink_to(sums, uid="sums")

    engine = start(build, parallelism=3)
    when = datetime.datetime(2026, 7, 1, tzinfo=datetime.UTC)
    events = some_events(3)
    frame = spark.createDataFrame(
        [(*event, when) for event in events], "user string, amount long, t timestamp"
    )
    staged = engine.epoch(frame).committables()
    engine.epoch()
    assert not list(tmp_path.glob("*/*.parquet"))
    assert raw.publish("lineage", 1, staged["raw"]) == len(events)
    assert sums.publish("lineage", 1, staged["sums"]) == len(events)

    published = pd.read_parquet([str(f) for f in Path(raw.path).glob("*.parquet")])
    assert sorted(zip(published.user, published.amount, strict=True)) == sorted(events)
    assert set(published.t) == {pd.Timestamp(when)}
    published = pd.read_parquet([str(f) for f in Path(sums.path).glob("*.parquet")])
    assert sorted(zip(published.user, published.amount, strict=True)) == sorted(events)
    assert published.groupby("user").n.max().to_dict() == counts(events)


# --- keys -----------------------------------------------------------------------------------------


def test_null_keys_fail_the_epoch_and_change_nothing(spark, start):
    engine = start(summing)
    engine.epoch(spark.createDataFrame([("a", 1)], EVENTS))
    nulls = spark.createDataFrame([(None, 7), ("a", 1), (None, 8)], EVENTS)
    with pytest.raises(UserError, match=r"null key: operator=sum key=\['user'\] rows=2;"):
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
    assert outcome.null_keys() == {"first": 3}
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


# --- event time -----------------------------------------------------------------------------------


def test_rows_come_in_event_time_order_and_timers_before_the_rows_after_them(spark, start):
    engine = start(alarms, delays={"events": 0}, parallelism=3)
    rows = [("a", 250), ("b", 10), ("a", 0), ("a", 90), ("b", 5)]
    outcome = engine.epoch(spark.createDataFrame(rows, TIMED).repartition(4))
    sent = rows_of(outcome, "out")
    assert [(what, at) for what, user, at in sent if user == "a"] == [
        ("row", 0), ("row", 90), ("timer", 100), ("timer", 190), ("row", 250)
    ]  # fmt: skip
    assert [(what, at) for what, user, at in sent if user == "b"] == [("row", 5), ("row", 10)]


def test_a_tick_fires_what_is_due_for_keys_without_rows_once(spark, start):
    engine = start(alarms, delays={"events": 0}, parallelism=3)
    users = [f"u{i}" for i in range(40)]
    engine.epoch(spark.createDataFrame([(user, 5) for user in users], TIMED))
    assert rows_of(engine.epoch(), "out") == []
    engine.epoch(spark.createDataFrame([("late", 500)], TIMED))
    assert engine.runner.watermarks.current == 499
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
        timed.key_by("what").process(Remember(["at"]), uid="second", output=REMEMBERED)

    engine = start(build, delays={"events": 50}, parallelism=3)
    rows = [(f"u{i}", i) for i in (7, 3, 9, 1)]
    engine.epoch(spark.createDataFrame([*rows, ("x", 1000)], TIMED))
    engine.epoch()
    assert engine.lists("second", "seen") == {
        "row": ["1", "3", "7", "9", "1000"],
        "timer": ["101", "103", "107", "109"],
    }


def test_rows_without_an_event_time_are_processed_and_hold_nothing_back(spark, start):
    def build(env):
        stream = input_stream(env, "events", TIMED).with_event_time("at")
        stream.key_by("user").process(Remember(["at"]), uid="seen", output=REMEMBERED)

    engine = start(build, delays={"events": 0})
    engine.epoch(spark.createDataFrame([("a", 4), ("a", None), ("a", 2)], TIMED))
    assert engine.lists("seen", "seen") == {"a": ["None", "2", "4"]}
    assert engine.runner.watermarks.current == 3


# --- state servers that die -----------------------------------------------------------------------


@pytest.mark.parametrize(("when", "given_up"), [("process", 1), ("close", 0)])
def test_a_state_server_killed_in_an_epoch_comes_back_with_what_was_committed(
    spark, start, group, tmp_path, caplog, when, given_up
):
    function = KillsAServer(group.pids[0], tmp_path / "killed", when)

    def build(env):
        stream = input_stream(env, "events", EVENTS)
        stream.key_by("user").process(function, uid="sum", output=SUMS)

    engine = start(build)
    for seed in range(2):
        engine.epoch(spark.createDataFrame(some_events(seed), EVENTS))
    assert (tmp_path / "killed").exists()
    assert caplog.text.count("epoch attempt failed, trying again: epoch=1") == given_up
    assert engine.values("sum", "total") == totals(some_events(0) + some_events(1))


# --- errors of user code --------------------------------------------------------------------------


def fussy(where="", output=None):
    def build(env):
        stream = input_stream(env, "events", EVENTS)
        stream.key_by("user").process(Fussy(where, output), uid="fussy", output="user string")

    return build


def test_an_exception_names_operator_and_key_and_changes_nothing(spark, start):
    engine = start(fussy("process"), parallelism=3)
    good = spark.createDataFrame(some_events(1), EVENTS)
    engine.epoch(good)
    bad = spark.createDataFrame([*some_events(1), ("mallory", -1)], EVENTS)
    with pytest.raises(UserFunctionError) as caught:
        engine.epoch(bad)
    message = str(caught.value)
    assert message.startswith("operator=fussy subtask=")
    assert "key='mallory': ZeroDivisionError: negative amount" in message
    assert "in process" in message
    assert "at org.apache.spark" not in message
    engine.epoch(good)
    assert engine.runner.epoch == 2
    assert engine.values("fussy", "n") == counts(some_events(1) * 2)


@pytest.mark.parametrize(
    ("where", "message"), [("open", "KeyError: 'no model'"), ("close", "OSError: cannot hang up")]
)
def test_open_and_close_fail_an_epoch_as_rows_do(spark, start, where, message):
    engine = start(fussy(where))
    with pytest.raises(UserFunctionError, match=message):
        engine.epoch(spark.createDataFrame([("a", 1)], EVENTS))
    assert engine.runner.epoch == 0


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ([("a", 1)], "must yield rows, each a tuple of 1 values or a dict: operator=fussy"),
        ([{"usr": "a"}], r"does not declare: operator=fussy columns=\['usr'\]"),
        ([(3,)], "does not fit its column: operator=fussy column=user"),
        ("text", "must yield rows"),
    ],
)
def test_a_wrong_output_row_is_the_users_to_mend(spark, start, output, message):
    engine = start(fussy(output=output))
    with pytest.raises(UserError, match=message):
        engine.epoch(spark.createDataFrame([("a", -1)], EVENTS))
    assert engine.runner.epoch == 0
    engine.epoch(spark.createDataFrame([("a", 1)], EVENTS))
    assert engine.values("fussy", "n") == {"a": 1}
