# ruff: noqa: ARG002  functions are written as people write them
"""`run_job`: a job file in this process."""

from datetime import datetime, timedelta
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark import SparkContext
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from moorage import (
    FileSink,
    KeyedBatchFunction,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    OutputTag,
    Session,
    Sliding,
    Tumbling,
    ValueStateDescriptor,
    count,
    sum_,
)
from moorage.testing import run_job
from moorage.testing.shuffle import input_table
from moorage_state.errors import UserError

EVEN = OutputTag("even", "user string, n long")


class Sum(KeyedProcessFunction):
    def __init__(self, *, tells=False):
        self.tells = tells

    def open(self, ctx):
        self.sum = ctx.get_state(ValueStateDescriptor("sum", "long"))

    def process(self, row, ctx):
        self.sum.update((self.sum.value() or 0) + row.n)
        if self.tells and self.sum.value() % 2 == 0:
            yield EVEN, (ctx.key, self.sum.value())
        yield ctx.key, self.sum.value()


def build(env):
    (out,) = env.args
    left = env.read_stream("left", "json", schema="user string, n long, at long", path="x")
    right = env.read_stream("right", "json", schema="user string, n long, at long", path="y")
    both = left.with_event_time("at").union(right.with_event_time("at"))
    sums = both.key_by("user").process(
        Sum(tells=True), uid="sum", output="user string, n long", side_outputs=[EVEN]
    )
    sums.get_side_output(EVEN).sink_to(FileSink(f"{out}/even"), uid="even")
    again = sums.key_by("user").process(Sum(), uid="again", output="user string, n long")
    again.sink_to(FileSink(f"{out}/sums"), uid="sums")
    windows = both.key_by("user").window(Tumbling("10ms")).aggregate(uid="w", rows=count())
    windows.sink_to(FileSink(f"{out}/windows"), uid="windows")


def test_operators_after_one_another_unions_side_outputs_and_windows(tmp_path):
    epochs: list[Any] = [
        {"left": [("a", 1, 1), ("b", 2, 1)], "right": [("a", 2, 3)]},
        {"right": [{"user": "a", "n": 1, "at": 15}]},
    ]
    found = run_job(build, epochs, args=[str(tmp_path)], parallelism=3)
    assert sorted(found["sums"]) == [("a", 1), ("a", 4), ("a", 8), ("b", 2)]
    assert sorted(found["even"]) == [("a", 4), ("b", 2)]
    assert sorted((row.user, row.rows) for row in found["windows"]) == [
        ("a", 1),
        ("a", 2),
        ("b", 1),
    ]
    assert list(tmp_path.iterdir()) == []


class Where(KeyedProcessFunction):
    """Counts, and says of how many subtasks it is one."""

    def open(self, ctx):
        self.n = ctx.get_state(ValueStateDescriptor("n", "long"))
        self.parallelism = ctx.parallelism

    def process(self, row, ctx):
        self.n.update((self.n.value() or 0) + 1)
        yield self.n.value(), self.parallelism


def test_each_epoch_may_have_a_number_of_subtasks_and_state_and_time_go_along():
    def described(env):
        users = env.read_stream("users", "json", schema="user string, at long")
        keyed = users.with_event_time("at").key_by("user")
        keyed.process(Where(), uid="where", output="n long, of int").sink_to(FileSink("a"), uid="a")
        windows = keyed.window(Tumbling("10ms")).aggregate(uid="windows", rows=count())
        windows.sink_to(FileSink("b"), uid="b")

    epochs = [{"users": [("ann", at)]} for at in (1, 15, 3, 16)]
    found = run_job(described, epochs, parallelism=[2, 2, 5, 1])
    assert found["a"] == [(1, 2), (2, 2), (3, 5), (4, 1)]
    # The third is late: the watermark went along.
    assert [row.rows for row in found["b"]] == [1, 2]
    for numbers in ([2], [1] * 5, []):
        with pytest.raises(UserError, match="a number for each epoch: epochs=4"):
            run_job(described, epochs, parallelism=numbers)


def test_what_needs_spark_is_said(tmp_path):
    def transformed(env):
        stream = env.read_stream("s", "json", schema="user string, n long")
        stream.transform(lambda frame: frame.select("user", "n"))

    with pytest.raises(UserError, match=r"without Spark.*input=s asked=select; .*moorage_spark"):
        run_job(transformed, {})

    def unchanged(env):
        stream = env.read_stream("s", "json", schema="user string", path="in")
        stream.transform(lambda frame: frame).sink_to(FileSink("out"), uid="out")

    with pytest.raises(UserError, match=r"without Spark.*input=s asked=transform; .*moorage_spark"):
        run_job(unchanged, {})
    with pytest.raises(UserError, match=r"without Spark.*env\.spark asked=table"):
        run_job(lambda env: env.spark.table("t"), {})
    with pytest.raises(UserError, match="name them with schema"):
        run_job(lambda env: env.read_stream("s", "rate"), {})
    with pytest.raises(UserError, match=r"no such input: inputs=\['other'\] has=\[.*\]$"):
        run_job(build, {"other": []}, args=[str(tmp_path)])
    with pytest.raises(UserError, match=r"inputs=\['lefts'\].*; did you mean left\?"):
        run_job(build, {"lefts": [], "right": []}, args=[str(tmp_path)])
    with pytest.raises(UserError, match=r"; not a column: 'usr'; did you mean user\?$"):
        run_job(build, {"left": [{"usr": "a", "n": 1, "at": 5}]}, args=[str(tmp_path)])
    with pytest.raises(UserError, match="without sinks"):
        run_job(lambda env: env.read_stream("s", "json", schema="a long"), {})


def test_expressions_of_spark_where_none_runs_are_told_what_to_do(monkeypatch):
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)

    def described(env):
        env.read_stream("s", "json", schema="a long").transform(lambda f: f.where(F.col("a") > 1))

    def asserts(env):
        raise AssertionError(env.args)

    with pytest.raises(UserError, match=r"without Spark.*pyspark\.sql\.functions; .*moorage_spark"):
        run_job(lambda _: F.col("a"), {})
    with pytest.raises(UserError, match="without Spark"):
        run_job(described, {})
    with pytest.raises(AssertionError, match=r"\('mine',\)"):
        run_job(asserts, {}, args=["mine"])


def test_what_goes_to_functions_of_the_job_is_given_back_too():
    def handed(env):
        rows = env.read_stream("rows", "json", schema="user string, n long")
        sums = rows.key_by("user").process(Sum(), uid="sum", output="user string, n long")
        sums.foreach_epoch(refuse, uid="epochs")
        sums.foreach_checkpoint(refuse, uid="checkpoints")

    def refuse(*_):
        raise AssertionError("sinks are not opened")

    found = run_job(handed, {"rows": [("a", 1)]})
    assert found == {"epochs": [("a", 1)], "checkpoints": [("a", 1)]}


@pytest.mark.parametrize("source", ["kafka", "moorage-kafka"])
def test_the_columns_of_kafka_are_known(source):
    class Values(KeyedProcessFunction):
        def process(self, row, ctx):
            yield row.partition, row.value.decode(), len(row.headers)

    def records(env):
        options = {"kafka.bootstrap.servers": "b:1", "subscribe": "t", "includeHeaders": "true"}
        rows = env.read_stream("t", source, **options)
        out = rows.key_by("partition").process(
            Values(), uid="v", output="partition int, value string, headers int"
        )
        out.foreach_epoch(print, uid="out")

    record = {"partition": 3, "value": b"x", "headers": [{"key": "h", "value": b""}]}
    assert run_job(records, {"t": [record]}) == {"out": [(3, "x", 1)]}


LIMITS = MapStateDescriptor("limits", "string", "long")


class Beyond(KeyedBroadcastProcessFunction):
    def process_element(self, row, ctx):
        if row.n > ctx.get_broadcast_state(LIMITS).get(row.user, row.n):
            yield row.user, row.n

    def process_broadcast_element(self, row, ctx):
        ctx.get_broadcast_state(LIMITS).put(row.user, row.n)


def test_broadcast_rows_and_inputs_that_go_straight_to_a_sink():
    def alerts(env):
        schema = "user string, n long"
        rows, limits = (env.read_stream(uid, "json", schema=schema) for uid in ("rows", "limits"))
        rows.foreach_epoch(print, uid="all")
        beyond = rows.key_by("user").connect(limits, LIMITS)
        made = beyond.process(Beyond(), uid="beyond", output=schema)
        made.foreach_epoch(print, uid="beyond-limits")

    epochs = [
        {"rows": [("a", 5), ("b", 5)], "limits": [("a", 3)]},
        {"rows": [("a", 4), ("b", 9)]},
    ]
    found = run_job(alerts, epochs)
    assert found["beyond-limits"] == [("a", 5), ("a", 4)]
    assert found["all"] == [("a", 5), ("b", 5), ("a", 4), ("b", 9)]


class Widths(KeyedBatchFunction):
    """Tells which columns its rows have."""

    reads = ("n",)

    def process_batch(self, keys, table, ctx):
        return pa.table({"names": [",".join(table.schema.names)]})


def test_a_vectorized_function_gets_the_columns_that_it_reads_and_those_of_its_key():
    def wide(env, **options):
        rows = env.read_stream("rows", "json", schema="a long, n long, b string, k long", path="in")
        widths = rows.key_by("k").process(Widths(), uid="w", output="names string", **options)
        widths.sink_to(FileSink("a"), uid="out")

    given = {"rows": [(1, 2, "x", 3)]}
    assert run_job(wide, given)["out"] == [("n,k",)]
    # What goes aside goes as it came.
    odd = OutputTag("odd")
    assert run_job(lambda env: wide(env, null_key=odd), given)["out"] == [("a,n,b,k",)]


def test_columns_that_a_stream_has_not_cannot_be_read():
    def narrow(env):
        rows = env.read_stream("rows", "json", schema="k long, m long", path="in")
        rows.key_by("k").process(Widths(), uid="w", output="names string")

    with pytest.raises(UserError, match=r"uid=w reads=\['n'\] columns=\['k', 'm'\]"):
        run_job(narrow, {"rows": []})


@pytest.mark.parametrize(
    ("windows", "copies"), [(Sliding("20ms", "5ms"), 4), (Session("6ms"), 1), (Tumbling("7ms"), 1)]
)
def test_windows_of_results_of_windows_lose_no_row(windows, copies):
    def nested(env):
        rows = env.read_stream("rows", "json", schema="k long, at long", path="in")
        first = rows.with_event_time("at", max_delay="9ms").key_by("k").window(windows)
        counted = first.aggregate(uid="first", rows=count())
        whole = counted.key_by("k").window(Tumbling("10ms")).aggregate(uid="w", rows=sum_("rows"))
        whole.sink_to(FileSink("a"), uid="out")

    rng = Random(str(windows))
    epochs = [
        {"rows": [(rng.randint(0, 2), 9 * epoch + rng.randint(0, 8)) for _ in range(20)]}
        for epoch in range(12)
    ]
    found = run_job(nested, epochs, parallelism=2)["out"]
    assert sum(row.rows for row in found) == 12 * 20 * copies
    # Each key and window has one result: all that belongs to it came before its end.
    assert len({row[:2] for row in found}) == len(found) > 2
    assert all(row.window_end - row.window_start == timedelta(milliseconds=10) for row in found)


class Stamp(KeyedProcessFunction):
    """The event time of each row."""

    def process(self, row, ctx):
        yield (ctx.timestamp(),)


@pytest.mark.parametrize("way", ["windows", "joined", "pairs"])
def test_results_carry_the_event_time_that_flink_gives_them(way):
    def stamped(env):
        rows = env.read_stream("rows", "json", schema="k long, at long", path="in")
        one, two = (rows.with_event_time("at").key_by("k") for _ in range(2))
        if way == "windows":
            made = one.window(Sliding("10ms", "5ms")).aggregate(uid="w", k2=count())
        elif way == "joined":
            joined = one.join(two).window(Sliding("10ms", "5ms"))
            made = joined.select(uid="w", k="left.k", until="window.end", since="window.start")
        else:
            pairs = one.interval_join(two).between("1ms", "9ms")
            made = pairs.select(uid="w", k="left.k", late="pair.time")
        made.key_by("k").process(Stamp(), uid="s", output="at long").sink_to(FileSink("a"), uid="o")

    found = run_job(stamped, {"rows": [(1, 3), (1, 7)]})["o"]
    expected = {"windows": [4, 9, 14], "joined": [4, 9, 9, 9, 9, 14], "pairs": [7]}
    assert sorted(at for (at,) in found) == expected[way]


def test_the_start_of_a_window_that_is_over_is_no_event_time():
    def early(env):
        rows = env.read_stream("rows", "json", schema="k long, at long", path="in")
        keyed = rows.with_event_time("at").key_by("k")
        keyed.window(Session("1s")).aggregate(uid="w", n=count()).with_event_time("window_start")

    with pytest.raises(UserError, match=r"operator=w column=window_start; leave with_event_time"):
        run_job(early, {"rows": []})


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("2026-01-02T00:00:00Z", r"; give a datetime with a time zone, as datetime\(2026, 1, 2, "),
        (datetime(2026, 1, 2), r"time zone; give it one, for example datetime.timezone.utc$"),  # noqa: DTZ001
    ],
)
def test_a_time_that_is_none_is_told_once_what_to_give(value, words):
    with pytest.raises(UserError, match=words):
        input_table("clicks", pa.schema([("at", pa.timestamp("us", "UTC"))]), [(value,)])


ODD_NAMES = "`user-id` string, `größe` long, `event type` struct<`a b`:array<string>>, at long"


def test_columns_whose_names_are_no_words_go_through_windows_joins_and_the_rest():
    def odd(env):
        one, two = (
            env.read_stream(uid, "json", schema=ODD_NAMES, path="x")
            .with_event_time("at")
            .key_by("user-id")
            for uid in ("one", "two")
        )
        hour = Tumbling("1h")
        named = {"who": "left.user-id", "much": "right.größe", "what": "left.event type"}
        made = {
            "reduced": one.window(hour).reduce(lambda _, b: b, uid="r"),
            "summed": one.window(hour).aggregate(uid="a", n=sum_("größe")),
            "top": one.top_n(1, by="größe", uid="t"),
            "once": one.deduplicate("größe", uid="d"),
            "windows": one.join(two).window(hour).select(uid="w", **named),
            "near": one.interval_join(two).between("0s", "1s").select(uid="i", **named),
            "versions": one.temporal_join(two).select(uid="v", **named),
        }
        for uid, stream in made.items():
            stream.sink_to(FileSink(uid), uid=uid)

    found = run_job(odd, {"one": [("a", 1, (["x"],), 5)], "two": [("a", 2, (["y"],), 5)]})
    kind = {"a b": ["x"]}
    whole = ("a", 1, kind, 5)
    assert len(found["summed"]) == 1
    assert found["reduced"] == found["once"] == [whole]
    assert found["top"] == [(*whole, 1)]
    assert found["windows"] == found["near"] == found["versions"] == [("a", 2, kind)]
