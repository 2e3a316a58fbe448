"""Pods that an API server refuses, and pods that fail, as Spark's own allocator meets them."""

import pytest
from moorage_testing.executor_pods import ApiServer, session
from moorage_testing.jobs import wait_until

from moorage.cluster.executors import PodFailures, SparkExecutors
from moorage.engine.task_failures import SparkEnded

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

MOST = 3
WAIT_SECONDS = 240.0
ORDERED = {"spark.executor.maxNumFailures": str(MOST), PodFailures.WINDOW: "600000ms"}


def scenario():
    api = ApiServer()
    api.full, api.phase = True, "Failed"
    with session(api, ORDERED) as spark:
        context = spark.sparkContext
        executors = SparkExecutors(context, 2, PodFailures(context, MOST))
        before = api.refused
        wait_until(lambda: api.refused > before + 4 * MOST, WAIT_SECONDS)
        seen: dict[str, object] = {
            "while_full": sorted(executors.registered()),
            "trouble": executors.trouble(),
        }
        api.full = False
        try:
            wait_until(executors.registered, WAIT_SECONDS)
        except SparkEnded as error:
            seen["ended"] = str(error)
        seen["lives"] = not context._jsc.sc().isStopped()
    return seen


@pytest.fixture(scope="module")
def seen(fresh_process):
    return fresh_process(scenario, timeout=540)


def test_a_driver_outlives_a_quota_without_room_for_its_executors(seen):
    assert seen["while_full"] == []
    assert seen["lives"]


def test_pods_that_are_not_made_are_told_of(seen):
    assert seen["trouble"].startswith("the API server does not make their pods")


def test_pods_that_fail_again_and_again_end_it(seen):
    assert "too many pods of executors failed" in seen["ended"]
    assert f"max={MOST}" in seen["ended"]
