"""The windows example on Spark: what it says of trips that come twice, late, and out of order."""

import importlib
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from moorage_testing.engine import Collect, input_stream, rows_of

pytestmark = pytest.mark.spark

EXAMPLE = Path(__file__).parents[2] / "examples" / "windows"
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


@pytest.fixture
def job(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLE)
    yield importlib.import_module("job")
    sys.modules.pop("job", None)


def trip(number, taxi, minutes, fare):
    return f"t{number}", taxi, NOON + timedelta(minutes=minutes), fare


def since(rows):
    """Times as minutes since noon, which are read more easily."""
    return sorted(
        tuple(
            (v.astimezone(UTC) - NOON) // timedelta(minutes=1) if isinstance(v, datetime) else v
            for v in row
        )
        for row in rows
    )


def test_the_windows_example_says_what_a_person_would(job, spark, start, monkeypatch):
    monkeypatch.setattr(job, "FileSink", lambda _path: Collect())

    def build(env):
        env.args = ("in", "out")
        env.read_stream = lambda uid, *_, schema, **__: input_stream(env, uid, schema)
        job.build(env)

    engine = start(build)
    first = [trip(1, "a", 5, 10.0), trip(2, "a", 20, 30.0), trip(3, "a", 55, 20.0)]
    one = engine.epoch(spark.createDataFrame([*first, first[1], trip(4, "b", 50, 5.0)], job.TRIPS))
    assert since(rows_of(one, "hourly-out")) == []
    assert sorted(r[1:] for r in rows_of(one, "dearest-out")) == [
        ("a", NOON + timedelta(minutes=5), 10.0, 3),
        ("a", NOON + timedelta(minutes=20), 30.0, 1),
        ("a", NOON + timedelta(minutes=55), 20.0, 2),
        ("b", NOON + timedelta(minutes=50), 5.0, 1),
    ]
    # The watermark passes one o'clock: the next epoch has the first hour's results.
    engine.epoch(spark.createDataFrame([trip(5, "b", 75, 7.0)], job.TRIPS))
    late = [trip(6, "a", 59, 40.0), trip(7, "a", 2, 1.0)]
    three = engine.epoch(spark.createDataFrame(late, job.TRIPS))
    assert since(rows_of(three, "hourly-out")) == [
        ("a", 0, 60, 4, 90.0, 30.0),
        ("a", 0, 60, 5, 91.0, 30.0),
        ("a", 0, 60, 6, 131.0, 40.0),
        ("b", 0, 60, 1, 5.0, 5.0),
    ]
    engine.epoch(spark.createDataFrame([trip(8, "b", 200, 7.0)], job.TRIPS))
    gone = engine.epoch(spark.createDataFrame([trip(9, "a", 30, 2.0)], job.TRIPS))
    assert since(rows_of(gone, "late-out")) == [("t9", "a", 30, 2.0)]
