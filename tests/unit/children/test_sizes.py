"""How the memory of pods is divided, and which settings of Spark are nobody else's."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moorage_testing.attempts import META, ORDER, SMALL

from moorage_api import JobSpec, Quantity, StatefulSparkJob, cluster_problems
from moorage_api.compute import DriverSpec, ExecutorSpec
from moorage_api.sizing import (
    driver_memory,
    executor_count,
    executor_memory,
    least_driver_memory,
    least_executor_memory,
    least_sidecar_memory,
    sidecar_memory,
)
from moorage_operator.children.spark_conf import DEFAULTS, spark_settings

MIB = 1 << 20
CORES = st.integers(1, 64)
ABOVE = st.integers(0, 200_000)


def mib(quantity):
    return int(quantity.value) // MIB


@given(ABOVE)
def test_a_driver_has_all_its_memory_and_a_heap_that_spark_starts_with(above):
    total = mib(least_driver_memory()) + above
    memory = driver_memory(DriverSpec(memory=Quantity(f"{total}Mi")))
    assert memory.total == total
    assert memory.heap >= 450
    assert memory.besides >= 640


@given(CORES, ABOVE)
def test_an_executor_has_all_its_memory_and_room_for_a_python_worker_a_core(cores, above):
    total = mib(least_executor_memory(ExecutorSpec(cores=cores))) + above
    memory = executor_memory(ExecutorSpec(cores=cores, memory=Quantity(f"{total}Mi")))
    assert memory.total == total
    assert memory.heap >= 450
    assert memory.besides >= 384 + 256 * cores


@given(CORES, ABOVE)
def test_a_sidecar_keeps_room_for_its_processes_beside_the_databases(cores, above):
    least = mib(least_sidecar_memory(ExecutorSpec(cores=cores)))
    resources = {"limits": {"memory": f"{least + above}Mi"}}
    executor = ExecutorSpec.model_validate({"cores": cores, "sidecar": {"resources": resources}})
    memory = sidecar_memory(executor)
    assert memory.limit == least + above
    assert memory.databases >= 32 * cores
    assert memory.limit - memory.databases >= 64 + 256 * cores


def test_the_sizes_that_nobody_gives_are_large_enough():
    assert driver_memory(DriverSpec()).total == 2048
    assert executor_memory(ExecutorSpec()).total == 4096
    for cores in (1, 2, 16):
        executor = ExecutorSpec(cores=cores)
        assert sidecar_memory(executor).limit >= mib(least_sidecar_memory(executor))


@given(st.integers(1, 1000), CORES)
def test_there_are_as_many_executors_as_the_parallelism_needs(parallelism, cores):
    count = executor_count(ExecutorSpec(cores=cores), parallelism)
    assert count == math.ceil(parallelism / cores)
    assert executor_count(ExecutorSpec(cores=cores, instances=3), parallelism) == 3


LOCAL = [
    {"type": "EmptyDir"},
    {"type": "ReusedPVC", "size": "1Gi", "storageClassName": "fast"},
]


@pytest.mark.parametrize("local", LOCAL, ids=lambda local: local["type"])
def test_no_job_can_set_what_the_operator_sets(local):
    """Each setting of ours in a job's own sparkConf is refused; those with a default are free."""
    state = {**SMALL["state"], "local": local}
    settings = spark_settings(META, JobSpec.model_validate({**SMALL, "state": state}), ORDER)
    for key in settings:
        spec = {**SMALL, "state": state, "sparkConf": {key: "x"}}
        try:
            job = StatefulSparkJob.model_validate(
                {
                    "apiVersion": "moorage.dev/v1alpha1",
                    "kind": "StatefulSparkJob",
                    "metadata": {"name": "clicks"},
                    "spec": spec,
                }
            )
        except ValueError:
            continue
        assert bool(cluster_problems(job)) == (key not in DEFAULTS), key
        assert (spark_settings(META, job.spec, ORDER)[key] == "x") == (key in DEFAULTS), key


def test_settings_are_texts_and_hold_no_secret(spec, meta, order):
    settings = spark_settings(meta, spec({"state.credentialsSecretRef": {"name": "s3"}}), order)
    assert all(isinstance(value, str) and value for value in settings.values())
    assert "s3" not in json.dumps({k: v for k, v in settings.items() if "label" not in k})
    assert settings["spark.authenticate.secret.file"] == "/etc/moorage/token/spark-file"
    assert not [name for name in settings if "oauthToken" in name]


def test_a_request_for_cpu_of_its_own_reaches_spark(spec, meta, order):
    settings = spark_settings(meta, spec({"executor": {"cores": 4, "cpuRequest": "250m"}}), order)
    assert settings["spark.executor.cores"] == "4"
    assert settings["spark.kubernetes.executor.request.cores"] == "250m"


@pytest.mark.scenario(41)
def test_executor_failures_are_bounded_by_the_policy(spec, meta, order):
    policy = {"failurePolicy.executorFailures": {"max": 0, "window": "1500ms"}}
    settings = spark_settings(meta, spec(policy), order)
    assert settings["spark.executor.maxNumFailures"] == "0"
    assert settings["spark.executor.failuresValidityInterval"] == "1500ms"
