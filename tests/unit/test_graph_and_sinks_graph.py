"""What `build(env)` may describe; without Spark, which only has to say what columns there are."""

from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from moorage.api import streams
from moorage.api.declarations import check_per, parse_duration
from moorage.api.file_sink import FileSink
from moorage.api.functions import KeyedProcessFunction
from moorage.api.streams import DataStream, StreamEnvironment
from moorage_state.errors import UserError


class Frame:
    """A streaming DataFrame as far as the graph looks at it."""

    def __init__(self, *, isStreaming=True, **columns):  # noqa: N803 - Spark's name
        self.isStreaming = isStreaming
        self.schema = StructType([StructField(n, t) for n, t in columns.items()])

    def with_columns(self, **columns):
        return Frame(**{f.name: f.dataType for f in self.schema} | columns)

    def without(self, name):
        return Frame(**{f.name: f.dataType for f in self.schema if f.name != name})


class Reader:
    """`spark.readStream`; records what is asked of it."""

    def __init__(self, frame, error=None):
        self.frame, self.error = frame, error
        self.asked: dict[str, Any] = {}

    def format(self, source):
        self.asked["format"] = source
        return self

    def schema(self, schema):
        self.asked["schema"] = schema
        return self

    def option(self, name, value):
        self.asked[name] = value
        return self

    def load(self, path=None):
        self.asked["path"] = path
        if self.error is not None:
            raise self.error
        return self.frame


class Spark:
    def __init__(self, frame=None, error=None):
        self.readStream = Reader(frame or CLICKS, error)


CLICKS = Frame(user=StringType(), n=LongType(), at=TimestampType())


class Echo(KeyedProcessFunction):
    def process(self, row, ctx):
        """Gives nothing."""


def make_env(spark=None, **settings):
    return StreamEnvironment(cast("SparkSession", spark or Spark()), **settings)


@pytest.fixture
def env():
    return make_env()


@pytest.fixture
def clicks(env) -> DataStream:
    return env.from_spark("clicks", CLICKS)


@pytest.fixture
def read_ddl(monkeypatch):
    """DDL needs a JVM; here every output has two columns."""
    schema = StructType([StructField("user", StringType()), StructField("n", LongType())])
    monkeypatch.setattr(streams, "parse_output", lambda _uid, _ddl: schema)


def refused(words):
    return pytest.raises(UserError, match=words)


# -- inputs -----------------------------------------------------------------------------------


def test_a_source_gets_its_format_schema_options_and_path():
    env = make_env(base_dir="/job")
    env.read_stream("clicks", "json", schema="a long", path="in", maxFilesPerTrigger=3)
    assert cast("Any", env.spark).readStream.asked == {
        "format": "json",
        "schema": "a long",
        "maxFilesPerTrigger": 3,
        "path": "/job/in",
    }
    assert env.graph.inputs[0].files == "/job/in"


@pytest.mark.parametrize(
    ("path", "resolved"),
    [
        ("in/clicks", "/job/in/clicks"),
        ("/data/in", "/data/in"),
        ("file:///data/in", "file:///data/in"),
        ("file:/data/in", "file:/data/in"),
        ("s3a://bucket/in", "s3a://bucket/in"),
        ("in/a:b", "/job/in/a:b"),
    ],
)
def test_relative_paths_belong_to_the_job_file(path, resolved):
    env = make_env(base_dir="/job")
    env.read_stream("clicks", "json", path=path)
    assert cast("Any", env.spark).readStream.asked["path"] == resolved


@pytest.mark.parametrize(
    ("source", "options", "limit"),
    [
        ("kafka", {}, {"maxOffsetsPerTrigger": 500}),
        ("rate-micro-batch", {}, {"rowsPerBatch": 500}),
        ("kafka", {"maxOffsetsPerTrigger": 7}, {"maxOffsetsPerTrigger": 7}),
        ("json", {}, {"maxBytesPerTrigger": 32_000}),
        ("json", {"maxFilesPerTrigger": 1}, {"maxFilesPerTrigger": 1}),
        ("JSON", {}, {"maxBytesPerTrigger": 32_000}),
        ("xml", {}, {"maxBytesPerTrigger": 32_000}),
        ("avro", {}, {"maxBytesPerTrigger": 32_000}),
        ("Kafka", {}, {"maxOffsetsPerTrigger": 500}),
    ],
)
def test_the_record_limit_of_the_job_becomes_the_sources_option(source, options, limit):
    env = make_env(max_records_per_epoch=500)
    env.read_stream("clicks", source, **options)
    asked = cast("Any", env.spark).readStream.asked
    assert {k: v for k, v in asked.items() if k not in {"format", "path"}} == limit


@pytest.mark.parametrize(
    ("source", "options", "asked"),
    [
        ("kafka", {}, {"failOnDataLoss": "false"}),
        ("kafka", {"failondataloss": True}, {"failondataloss": True}),
        ("Kafka", {}, {"failOnDataLoss": "false"}),
        ("json", {}, {}),
    ],
)
def test_missing_offsets_are_skipped_where_the_manifest_says_so_and_the_job_nothing_else(
    source, options, asked
):
    for skip in (True, False):
        env = make_env(skip_missing_offsets=skip)
        env.read_stream("clicks", source, **options)
        found = cast("Any", env.spark).readStream.asked
        left = {k: v for k, v in found.items() if k not in {"format", "path"}}
        assert left == (asked if skip else options)


@pytest.mark.parametrize("source", ["parquet", "CSV", "xml", "avro"])
def test_a_sink_does_not_write_where_an_input_reads_files(source):
    env = make_env()
    env.read_stream("clicks", source, path="/data")
    with refused(r"a sink writes where an input of the job reads, .*uids=\['clicks', 'out'\]"):
        env.claim_directory("out", FileSink("/data"))


def test_only_file_sources_are_known_by_their_files():
    env = make_env()
    env.read_stream("events", "kafka", subscribe="events")
    assert env.graph.inputs[0].files is None


FROM_JAVA = "An error occurred while calling o92.load.\n: java.Oops: no such source\n\tat Java"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("no such source\nat JVM"), "format=nope: no such source$"),
        (ValueError(), "format=nope: ValueError$"),
        (ValueError(FROM_JAVA), "format=nope: java.Oops: no such source$"),
        (ValueError("[PATH_NOT_FOUND] not there: /in"), "format=nope: .*/in; make that folder, "),
    ],
)
def test_a_source_that_spark_refuses_is_named_with_sparks_first_line(error, words):
    with refused(f"cannot open this input: uid=clicks {words}"):
        make_env(Spark(error=error)).read_stream("clicks", "nope")


def test_a_table_is_no_stream(env):
    with refused("not a stream; use spark.readStream: uid=clicks"):
        env.from_spark("clicks", Frame(isStreaming=False, a=LongType()))


@pytest.mark.parametrize("uid", ["", "-a", "a b", "a/b", "a" * 64, "\u00e9", "a\n", None, 5])
def test_a_uid_must_be_fit_for_names_of_files(env, uid):
    with refused("a uid starts with a letter or digit"):
        env.from_spark(uid, CLICKS)


@pytest.mark.usefixtures("read_ddl")
def test_two_things_cannot_share_a_uid(env, clicks):
    with refused("the same uid; rename one: uid=clicks"):
        env.from_spark("clicks", CLICKS)
    with refused("uid=clicks"):
        clicks.sink_to(FileSink("/out"), uid="clicks")
    with refused("uid=clicks"):
        clicks.key_by("user").process(Echo(), uid="clicks", output="a long")


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"_m_kind": LongType()}, r"starting with '_m_' are reserved.*columns=\['_m_kind'\]"),
        ({"User": StringType(), "user": LongType()}, "two columns have the same name: in=input x"),
    ],
)
def test_columns_that_the_engine_needs_and_twins_are_refused(env, columns, words):
    with refused(words):
        env.from_spark("x", Frame(**columns))


# -- transformations --------------------------------------------------------------------------


def test_a_transformation_changes_the_columns_and_is_applied_in_order(clicks):
    stream = clicks.transform(lambda f: f.with_columns(a=LongType()))
    stream = stream.transform(lambda f: f.without("n"))
    assert stream.schema.names == ["user", "at", "a"]
    assert stream.branches[0].apply(CLICKS).schema.names == ["user", "at", "a"]
    assert clicks.schema.names == ["user", "n", "at"]


def test_a_transformation_may_not_make_reserved_columns(clicks):
    with refused("in=transform"):
        clicks.transform(lambda f: f.with_columns(_m_x=LongType()))


def test_a_transformation_keeps_the_event_time_a_time(clicks):
    timed = clicks.with_event_time("at")
    with refused("drops the event time column; keep it, .* column=at"):
        timed.transform(lambda f: f.without("at"))
    with refused("event time must be a timestamp .* column=at type=string"):
        timed.transform(lambda f: f.with_columns(at=StringType()))
    assert timed.transform(lambda f: f.without("n")).branches[0].event_time == "at"


def derived(f):
    return f.with_columns(seen=TimestampType())


def counted(uid, stream, column="seen"):
    stream.with_event_time(column).key_by("user").process(Echo(), uid=uid, output="...")


@pytest.mark.usefixtures("read_ddl")
def test_two_event_times_of_an_input_that_transformations_give_one_name_are_refused(env, clicks):
    # Both would be the clock `clicks`, as far as the newer of both.
    counted("starts", clicks.transform(derived))
    other = clicks.transform(lambda f: f.with_columns(seen=TimestampType()))
    counted("ends", other.transform(lambda f: f.without("n")))
    with refused("input=clicks column=seen; give different times different names, or make"):
        env.graph.check()


def times_from(column):
    return lambda f: f.with_columns(seen=f.schema[column].dataType)


def wrapped(function):
    return lambda f: function(f.without("n"))


def of_region(f, region, column="at"):
    return f.with_columns(seen=f.schema[column].dataType, **{region: LongType()})


@pytest.mark.usefixtures("read_ddl")
@pytest.mark.parametrize(
    "transforms",
    [
        [times_from("at"), times_from("n")],
        [wrapped(derived), wrapped(times_from("at"))],
        [partial(of_region, region="eu"), partial(of_region, region="eu", column="n")],
        [lambda f, at=column: times_from(at)(f) for column in ("at", "n")],
    ],
    ids=["closures", "functions", "partials", "defaults"],
)
def test_functions_that_hold_other_columns_or_functions_make_other_times(env, clicks, transforms):
    for uid, transform in zip("ab", transforms, strict=True):
        counted(uid, clicks.transform(transform))
    with refused("input=clicks column=seen"):
        env.graph.check()


@pytest.mark.usefixtures("read_ddl")
@pytest.mark.parametrize(
    "make",
    [
        lambda region: lambda f: of_region(f, region),
        lambda region: lambda f, r=region: of_region(f, r),
        lambda region: lambda f, *, r=region: of_region(f, r),
        lambda region: partial(of_region, region=region),
        lambda region: partial(of_region, region=region, column="at"),
    ],
    ids=["closure", "default", "keyword", "partial", "partial-of-a-column"],
)
def test_one_function_that_is_given_other_values_makes_one_time(env, clicks, make):
    for region in ("eu", "us"):
        counted(region, clicks.transform(make(region)))
    env.graph.check()


@pytest.mark.usefixtures("read_ddl")
def test_one_event_time_is_read_by_as_many_streams_as_one_likes(env, clicks):
    seen = clicks.transform(derived)
    counted("all", seen)
    counted("some", seen.transform(lambda f: f.without("n")))
    counted("again", clicks.transform(derived).transform(lambda f: f.with_columns(a=LongType())))
    # The input's own, and another that has another name.
    counted("own", clicks.transform(lambda f: f.without("n")), "at")
    counted("own_too", clicks.transform(lambda f: f.with_columns(b=LongType())), "at")
    counted("ends", clicks.transform(lambda f: f.with_columns(ended=TimestampType())), "ended")
    env.graph.check()


@pytest.mark.usefixtures("read_ddl")
def test_transformations_come_before_the_first_operator(clicks):
    counts = clicks.key_by("user").process(Echo(), uid="count", output="...")
    with refused("transform works on inputs, .* operator=count"):
        counts.transform(lambda f: f)


# -- event time -------------------------------------------------------------------------------


@pytest.mark.parametrize("column", ["at", "n"])
def test_event_time_is_a_timestamp_or_a_long(clicks, column):
    (branch,) = clicks.with_event_time(column, "5m").branches
    assert (branch.event_time, branch.max_delay_ms) == (column, 300_000)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (StringType(), "string"),
        (DateType(), "date"),
        (TimestampNTZType(), "timestamp_ntz"),
        (DoubleType(), "double"),
    ],
)
def test_nothing_else_is_event_time(env, kind, name):
    with refused(f"event time must be .* column=at type={name}"):
        env.from_spark("x", Frame(at=kind)).with_event_time("at")


@pytest.mark.parametrize("column", ["user", "n"])
def test_event_time_counts_by_a_column_of_text_or_integers(clicks, column):
    (branch,) = clicks.with_event_time("at", per=column).branches
    assert branch.per == column
    assert clicks.with_event_time("at").branches[0].per == ""


def test_event_time_counts_by_no_other_column(clicks):
    with refused(r"counts by a column that the stream must keep: per='x' columns=\['user', "):
        clicks.with_event_time("at", per="x")
    with refused("a column of text or integers, .* per=at type=timestamp; cast it to a string"):
        clicks.with_event_time("n", per="at")
    collated = StructType([StructField("part", StringType("UTF8_LCASE"))])
    with refused("per=part type=string collate UTF8_LCASE; cast it to a string"):
        check_per(collated, "part")
    timed = clicks.with_event_time("at", per="n")
    with refused("counts by a column that the stream must keep: per='n'"):
        timed.transform(lambda f: f.without("n"))


@pytest.mark.usefixtures("read_ddl")
def test_by_which_column_event_time_counts_is_declared_on_inputs(clicks):
    counts = clicks.key_by("user").process(Echo(), uid="count", output="...")
    with refused("declared on inputs; leave out per on the output .* operator=count per=user"):
        counts.with_event_time("n", per="user")


def test_event_time_needs_a_column_that_is_there(clicks):
    with refused(r"no such column for event time: column=ts columns=\['user', 'n', 'at'\]"):
        clicks.with_event_time("ts")


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0s", 0),
        ("500ms", 500),
        ("10s", 10_000),
        ("5m", 300_000),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
    ],
)
def test_durations_have_a_unit(text, milliseconds):
    assert parse_duration(text) == milliseconds


@pytest.mark.parametrize(
    "text", ["", "5", "s", "-5s", "1.5s", "5 s", "10 seconds", "5M", "5s\n", 5, None]
)
def test_other_durations_are_refused_with_examples(clicks, text):
    with refused("write 500ms, 10s, 5m, 2h or 1d: duration="):
        clicks.with_event_time("at", text)


@pytest.mark.usefixtures("read_ddl")
def test_the_output_of_an_operator_may_have_event_time_too(clicks):
    counts = clicks.key_by("user").process(Echo(), uid="count", output="...")
    assert counts.with_event_time("n").event_time == "n"


# -- unions -----------------------------------------------------------------------------------


def test_a_union_has_the_branches_of_all(env, clicks):
    views = env.from_spark("views", CLICKS).with_event_time("at", "1s")
    both = clicks.union(views)
    assert [(b.node.uid, b.event_time) for b in both.branches] == [
        ("clicks", None),
        ("views", "at"),
    ]


def test_a_union_needs_one_schema(env, clicks):
    other = env.from_spark("other", CLICKS.without("n"))
    with refused("union needs one schema: struct<user:string,n:bigint,.*> is not struct<user:"):
        clicks.union(other)


@pytest.mark.usefixtures("read_ddl")
def test_the_output_of_an_operator_cannot_be_united(clicks):
    counts = clicks.key_by("user").process(Echo(), uid="count", output="...")
    for one, other in ((counts, clicks), (clicks, counts), (counts, counts)):
        with refused("union joins inputs"):
            one.union(other)


# -- operators --------------------------------------------------------------------------------


@pytest.mark.usefixtures("read_ddl")
def test_an_operator_knows_its_key(clicks, env):
    clicks.key_by("n", "user").process(Echo(), uid="count", output="...", null_key="drop")
    (node,) = env.graph.operators
    assert (node.key_columns, node.key_types) == (("n", "user"), ("bigint", "string"))
    assert node.null_key == "drop"


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ((), r"key_by needs columns of the stream: missing=\[\]"),
        (("user", "user"), r"names a column twice; name each once: columns=\('user', 'user'\)"),
        (("who",), r"missing=\['who'\] columns=\['user', 'n', 'at'\]"),
        ((["user", "n"],), r"missing=\[\['user', 'n'\]\]"),
    ],
)
def test_a_key_is_made_of_columns_of_the_stream(clicks, columns, words):
    with refused(words):
        clicks.key_by(*columns)


@pytest.mark.parametrize("kind", [DoubleType(), ArrayType(LongType()), TimestampNTZType()])
def test_a_key_has_a_canonical_form(env, kind):
    with refused(r"cannot key by these columns: columns=\('k',\)"):
        env.from_spark("x", Frame(k=kind)).key_by("k")


@pytest.mark.parametrize(
    "kind",
    [LongType(), StringType(), BinaryType(), DateType(), TimestampType(), DecimalType(38, 9)],
)
def test_scalars_are_keys(env, kind):
    env.from_spark("x", Frame(k=kind)).key_by("k")


@pytest.mark.parametrize("function", [Echo, None, print, "Echo"])
def test_an_operator_takes_an_instance_of_a_function(clicks, function):
    with refused("an instance of a KeyedProcessFunction: uid=count got="):
        clicks.key_by("user").process(function, uid="count", output="...")


def test_null_keys_are_failed_or_dropped(clicks):
    with refused("null_key is 'fail', 'drop' or the OutputTag of .*: uid=count null_key='keep'"):
        clicks.key_by("user").process(Echo(), uid="count", output="...", null_key="keep")


# -- sinks and the whole ----------------------------------------------------------------------


def test_a_stream_may_go_to_several_sinks_and_on(clicks, env):
    same = clicks.sink_to(FileSink("/a"), uid="a").sink_to(FileSink("/b"), uid="b")
    assert same is clicks
    assert [node.uid for node in env.graph.sinks] == ["a", "b"]


@pytest.mark.parametrize("sink", ["/out", Path("/out"), None])
def test_a_sink_is_no_path(clicks, sink):
    with refused(r"sink_to takes a sink such as FileSink\(path\): uid=out got="):
        clicks.sink_to(sink, uid="out")


@pytest.mark.parametrize("second", ["/out", "/out/", "file:///out"])
def test_two_file_sinks_cannot_share_a_directory(clicks, second):
    clicks.sink_to(FileSink("/out"), uid="a")
    with refused(r"write to one directory; give each its own: uids=\['a', 'b'\] path=/out"):
        clicks.sink_to(FileSink(second), uid="b")


def test_a_job_reads_something(env):
    with refused("the job reads nothing: build"):
        env.graph.check()


def test_a_job_does_something(env, clicks):
    with refused("the job does nothing"):
        env.graph.check()
    clicks.sink_to(FileSink("/out"), uid="out")
    env.graph.check()


@pytest.mark.usefixtures("read_ddl")
def test_operators_that_nobody_reads_are_known(env, clicks):
    first = clicks.key_by("user").process(Echo(), uid="first", output="...")
    second = first.key_by("user").process(Echo(), uid="second", output="...")
    assert env.graph.unread() == ["second"]
    second.sink_to(FileSink("/out"), uid="out")
    assert env.graph.unread() == []
