"""What of a job only Spark can judge: output DDL, sources, and its own stateful operations."""

from typing import Any

import pytest
from moorage_testing.pages import blocks
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from moorage.api.declarations import columns_of
from moorage.api.functions import KeyedProcessFunction
from moorage.api.streams import DataStream, StreamEnvironment
from moorage_state.errors import UserError

pytestmark = pytest.mark.spark


class Echo(KeyedProcessFunction):
    def process(self, row: Any, ctx: Any) -> None:
        """Gives nothing."""


@pytest.fixture
def env(spark: SparkSession) -> StreamEnvironment:
    return StreamEnvironment(spark)


@pytest.fixture
def ticks(env: StreamEnvironment) -> DataStream:
    return env.read_stream("ticks", "rate")


@pytest.mark.usefixtures("spark")
def test_without_spark_columns_have_the_types_that_spark_gives_them(monkeypatch):
    ddl = """a tinyint, b smallint, c int, d bigint, e float, f double, g string, h binary,
        i boolean, j date, k timestamp, l decimal(12,3), m array<struct<x: int, y: string>>,
        n map<string, array<double>>, `o` long, p integer, q struct<r: timestamp>"""
    with_spark = columns_of(ddl)
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    assert columns_of(ddl) == with_spark


@pytest.mark.parametrize(
    ("ddl", "columns"),
    [
        ("user string, n long", ["user", "n"]),
        ("`from` string, at timestamp", ["from", "at"]),
        ("n long not null", ["n"]),
    ],
)
def test_an_output_is_ddl(ticks, ddl, columns):
    counts = ticks.key_by("value").process(Echo(), uid="count", output=ddl)
    assert counts.schema.names == columns
    assert counts.operator.uid == "count"


@pytest.mark.parametrize(
    ("ddl", "words"),
    [
        ("long", "write DDL such as 'user string, n long': uid=count output='long'"),
        ("array<long>", "write DDL"),
        ("", "write DDL"),
        ("user strng", "write DDL"),
        ("user string n long", "write DDL"),
        (None, "write DDL"),
        ("_m_kind long", "reserved; rename them: in=output of count"),
        ("n long, N long", "two columns have the same name: in=output of count"),
    ],
)
def test_what_is_no_list_of_columns_is_refused(ticks, ddl, words):
    with pytest.raises(UserError, match=words):
        ticks.key_by("value").process(Echo(), uid="count", output=ddl)


@pytest.mark.parametrize(
    ("source", "settings"),
    [
        ("nope", {}),
        ("json", {"path": "/moorage/is/not/there", "schema": "a long"}),
        ("json", {"path": "/tmp", "schema": "a lng"}),
        ("json", {"path": "/tmp"}),
    ],
)
def test_a_source_that_does_not_open_is_named(env, source, settings):
    with pytest.raises(UserError, match=f"cannot open this input: uid=x format={source}"):
        env.read_stream("x", source, **settings)


def test_a_source_that_is_nearly_one_that_is_known_is_told_which(env):
    with pytest.raises(UserError, match="did you mean json"):
        env.read_stream("x", "jsn", path="/tmp", schema="a long")


def numbered(frame: DataFrame) -> DataFrame:
    window = Window.partitionBy("value").orderBy("timestamp")
    return frame.withColumn("i", F.row_number().over(window))


STATEFUL = {
    "Aggregate": lambda f: f.groupBy("value").count(),
    "Deduplicate": lambda f: f.dropDuplicates(["value"]),
    "DeduplicateWithinWatermark": lambda f: f.withWatermark(
        "timestamp", "1 second"
    ).dropDuplicatesWithinWatermark(["value"]),
    "FlatMapGroupsInPandas": lambda f: f.groupBy("value").applyInPandas(lambda p: p, f.schema),
    "GlobalLimit": lambda f: f.limit(5),
    "Join": lambda f: f.join(f.select("value"), "value"),
    "Window": numbered,
}


@pytest.mark.parametrize("operation", sorted(STATEFUL))
def test_sparks_own_state_is_refused_wherever_it_stands(env, ticks, operation):
    function = STATEFUL[operation]
    with pytest.raises(UserError, match=rf"in=transform found=\[.*'{operation}'") as caught:
        ticks.transform(lambda frame: function(frame).where("1 = 1"))
    assert "use key_by(...).process(...)" in str(caught.value)
    frame = env.spark.readStream.format("rate").load()
    with pytest.raises(UserError, match=f"in=input other .*'{operation}'"):
        env.from_spark("other", function(frame))


def test_stateless_operations_and_joins_with_tables_are_fine(env, ticks):
    totals = env.spark.range(5).groupBy("id").count().withColumnRenamed("id", "value")

    def stateless(frame: DataFrame) -> DataFrame:
        joined = frame.join(totals, "value", "left").where("value % 2 = 0").dropna()
        return joined.select("*", F.explode(F.array("value")).alias("x")).union(
            joined.select("*", "value")
        )

    assert ticks.transform(stateless).schema.names == ["value", "timestamp", "count", "x"]


PAGES = {"docs/jobs.md": ["silence"], "README.md": ["count"]}


@pytest.mark.parametrize("page", PAGES)
def test_the_jobs_that_the_pages_show_can_be_built(spark, tmp_path, page):
    names: dict[str, Any] = {}
    exec(compile(blocks(page, "python")[0].code, page, "exec"), names)  # noqa: S102 - the page is the test
    (tmp_path / "in").mkdir()
    env = StreamEnvironment(spark, base_dir=str(tmp_path), staging=f"file://{tmp_path}/state")
    names["build"](env)
    env.graph.check()
    assert [operator.uid for operator in env.graph.operators] == PAGES[page]
