"""`run_job` with a session: what Spark does to inputs, and the rest as a job does it.

The blocks of docs/testing.md that need Spark are run here.
"""

from datetime import UTC, datetime
from typing import Any

import pytest
from moorage_testing.engine import Collect, input_stream, rows_of
from moorage_testing.pages import blocks
from pyspark.sql import functions as sf

from moorage import FileSink, OutputTag, Tumbling, count
from moorage.testing import run_job
from moorage_state.errors import UserError

pytestmark = pytest.mark.spark

PAGE = "docs/testing.md"
ZONE = "spark.sql.session.timeZone"
CLICKS = "line string"
LATE = OutputTag("late")


def read(frame):
    """Lines such as `ann 2026-01-01T00:00:05 /`."""
    parts = sf.split("line", " ")
    return frame.select(
        parts[0].alias("user"), sf.to_timestamp(parts[1]).alias("at"), parts[2].alias("page")
    ).where("user != 'robot'")


def build(env, sink=FileSink):
    """Visits of known pages in each minute; lines that come late; all that were read."""
    pages = env.spark.createDataFrame(
        [("/", "home"), ("/cart", "shop")], "page string, part string"
    )
    lines = env.read_stream("lines", "text", schema=CLICKS, path="in").transform(read)
    timed = lines.with_event_time("at").transform(lambda frame: frame.join(pages, "page"))
    visits = timed.key_by("user", "part").window(Tumbling("1m"), late=LATE)
    made = visits.aggregate(uid="visits", clicks=count())
    made.sink_to(sink("out"), uid="out")
    made.get_side_output(LATE).sink_to(sink("late"), uid="late")
    lines.sink_to(sink("read"), uid="read")


EPOCHS = [
    ["ann 2026-01-01T00:00:05 /", "robot 2026-01-01T00:00:06 /", "ann 2026-01-01T00:00:07 /none"],
    ["bob 2026-01-01T00:01:05 /cart", "ann 2026-01-01T00:01:06 /"],
    ["ann 2026-01-01T00:00:09 /", "bob 2026-01-01T00:03:00 /"],
]


def test_it_gives_what_the_engine_gives_and_in_the_time_zone_of_jobs(spark, start):
    def described(env):
        env.read_stream = lambda uid, *_, schema, **__: input_stream(env, uid, schema)
        build(env, lambda _: Collect())

    expected: dict[str, list[Any]] = {"out": [], "late": [], "read": []}
    before = spark.conf.get(ZONE)
    try:
        spark.conf.set(ZONE, "UTC")
        engine = start(described)
        for lines in [*EPOCHS, []]:
            outcome = engine.epoch(spark.createDataFrame([(line,) for line in lines], CLICKS))
            for uid, rows in expected.items():
                rows.extend(rows_of(outcome, uid))
        spark.conf.set(ZONE, "America/New_York")
        epochs = [{"lines": [(line,) for line in lines]} for lines in EPOCHS]
        found = run_job(build, epochs, spark=spark)
        assert spark.conf.get(ZONE) == "America/New_York"
    finally:
        spark.conf.set(ZONE, before)
    assert [row.user for row in found["read"]] == ["ann", "ann", "bob", "ann", "ann", "bob"]
    assert found["read"] == [tuple(row) for row in expected["read"]]
    assert found["late"] == [tuple(row) for row in expected["late"]] != []
    # The engine was not told that its input ends: the last minute is still open.
    ended = [
        row for row in found["out"] if row.window_start < datetime(2026, 1, 1, 0, 3, tzinfo=UTC)
    ]
    assert sorted(ended) == sorted(tuple(row) for row in expected["out"]) != []
    assert len(found["out"]) == len(ended) + 1


def test_rows_of_an_epoch_pass_a_transform_together_and_no_others(spark):
    seen = []

    def counted(frame):
        if not frame.isStreaming:
            seen.append([row.n for row in frame.collect()])
        return frame

    def described(env):
        rows = env.read_stream("rows", "json", schema="n long", path="in")
        rows.transform(counted).sink_to(FileSink("out"), uid="out")

    epochs = [{"rows": [(n,) for n in range(1000)]}, {"rows": [(7,)]}]
    found = run_job(described, epochs, spark=spark)
    assert seen == [list(range(1000)), [7], []]
    assert found["out"] == [(n,) for n in [*range(1000), 7]]


def test_what_spark_refuses_in_a_job_is_refused(spark):
    def counted(env):
        rows = env.read_stream("rows", "json", schema="n long", path="in")
        rows.transform(lambda frame: frame.groupBy("n").count()).sink_to(FileSink("o"), uid="o")

    with pytest.raises(UserError, match="spark's own stateful operations"):
        run_job(counted, {}, spark=spark)

    def divided(env):
        rows = env.read_stream("rows", "json", schema="n long", path="in")
        rows = rows.transform(lambda frame: frame.select((sf.lit(1) / sf.col("n")).alias("x")))
        rows.sink_to(FileSink("o"), uid="o")

    with pytest.raises(UserError, match=r"spark could not run the epoch: .*DIVIDE_BY_ZERO"):
        run_job(divided, {"rows": [(0,)]}, spark=spark)


def test_spark_finds_the_columns_that_are_not_named(spark):
    def described(env):
        env.read_stream("rows", "rate").sink_to(FileSink("out"), uid="out")
        env.from_spark("own", env.spark.readStream.format("rate").load()).sink_to(
            FileSink("own"), uid="own-out"
        )

    row = {"value": 7}
    found = run_job(described, {"rows": [row], "own": [row]}, spark=spark)
    assert found == {"out": [(None, 7)], "own-out": [(None, 7)]}


def test_the_cast_that_a_text_as_event_time_is_refused_with_makes_it_a_time(spark):
    made: dict[str, Any] = {}

    def described(env):
        texts = env.read_stream("texts", "json", schema="k string, at string", path="in")
        with pytest.raises(UserError, match="column=at type=string; ") as caught:
            texts.with_event_time("at")
        call = str(caught.value).rpartition("cast it before that: ")[2]
        times = eval(f"texts.{call}", {"texts": texts})  # noqa: S307  our own message
        times.with_event_time("at").sink_to(FileSink("out"), uid="out")
        made["type"] = times.schema["at"].dataType.simpleString()

    found = run_job(described, {"texts": [("a", "2026-01-01 00:00:05")]}, spark=spark)
    assert made["type"] == "timestamp"
    assert found["out"] == [("a", datetime(2026, 1, 1, 0, 0, 5, tzinfo=UTC))]


def test_what_is_no_session_is_refused():
    session: Any = True
    with pytest.raises(UserError, match=r"spark=True.*the fixture moorage_spark"):
        run_job(build, {}, spark=session)


def test_the_fixture_is_the_session_that_runs_already(spark, moorage_spark):
    assert moorage_spark is spark


def test_the_page_has_a_job_with_a_transform_tested(moorage_spark):
    (block,) = [one for one in blocks(PAGE, "python") if "run-by" in one.options]
    names: dict[str, Any] = {}
    exec(compile(block.code, PAGE, "exec"), names)  # noqa: S102  our own page
    (test,) = [value for name, value in names.items() if name.startswith("test_")]
    test(moorage_spark)
