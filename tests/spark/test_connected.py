"""Two keyed streams in one operator, by Spark: what is sent without Spark is sent by it."""

from typing import Any

import pytest
from moorage_testing import two_inputs
from moorage_testing.engine import Collect, input_stream, rows_of
from moorage_testing.two_inputs import ORDERS, SHIPS, order, pairs_of_outputs, ship, told

from moorage.testing import run_job

pytestmark = pytest.mark.spark


def jobs(env):
    streams: dict[str, Any] = {}
    opened = env.read_stream

    def read(uid, *args, **options):
        if uid not in streams:
            streams[uid] = opened(uid, *args, **options)
        return streams[uid]

    env.read_stream = read
    told(env)
    pairs_of_outputs(env, "twice", "plain", "mixed")


def test_rows_of_two_inputs_and_of_operators_come_as_they_do_without_spark(
    spark, start, monkeypatch
):
    def build(env):
        env.read_stream = lambda uid, *_, schema, **__: input_stream(env, uid, schema)
        jobs(env)

    keys = [f"k{i % 7}" for i in range(60)]
    rows: dict[str, list[Any]] = {
        "orders": [order(key, 97 * i % 400) for i, key in enumerate(keys)],
        "ships": [ship(key, 89 * i % 500) for i, key in enumerate(keys)],
    }
    expected = run_job(jobs, rows)
    monkeypatch.setattr(two_inputs, "FileSink", lambda _path: Collect())
    engine = start(build, parallelism=2)
    orders = spark.createDataFrame(rows["orders"], ORDERS).repartition(3)
    outcomes = [engine.epoch(orders, spark.createDataFrame(rows["ships"], SHIPS))]
    engine.runner.watermarks = engine.runner.watermarks.drain()
    outcomes.append(engine.epoch())
    found = {uid: [row for one in outcomes for row in rows_of(one, uid)] for uid in expected}
    assert {uid: sorted(rows) for uid, rows in found.items()} == {
        uid: sorted(map(tuple, rows)) for uid, rows in expected.items()
    }
    by_key = {key: [row[1:] for row in found["out"] if row[0] == key] for key in keys}
    assert by_key == {
        key: [tuple(row)[1:] for row in expected["out"] if row.key == key] for key in keys
    }
