"""Executors that go, and the volumes under them, which are only caches."""

import json

import pytest
import yaml
from moorage_testing.world.scene import job

pytestmark = pytest.mark.scenarios

EXECUTOR = "clicks-1-exec-1"


def with_volume(**local):
    body = job()
    body["spec"]["state"]["local"] = local
    return body


async def executor_again(world, before):
    """Wait for an executor that is not the one before."""
    await world.until(
        lambda: [
            pod
            for pod in world.pods("executor")
            if pod["metadata"]["uid"] != before["metadata"]["uid"]
        ],
        seconds=120,
    )


def file_of(world, attempt, name):
    found = world.api.get("ConfigMap", world.namespace, f"clicks-{attempt}-config")
    return found["data"][name]


@pytest.mark.scenario(40)
@pytest.mark.parametrize("how", ["evicted", "gone"])
async def test_an_executor_that_goes_is_sparks_to_replace_and_no_reason_to_restart(running, how):
    await running.until(lambda: running.pods("executor"))
    (before,) = running.pods("executor")
    if how == "evicted":
        running.kubelet.drain(EXECUTOR)
    else:
        running.api.delete("Pod", running.namespace, EXECUTOR, grace=0)
    await executor_again(running, before)
    await running.run(30)
    assert running.is_running()
    assert len(running.drivers.by_pod) == 1
    assert running.status().restarts.total == 0


@pytest.mark.scenario(41)
async def test_executors_that_crash_again_and_again_end_the_attempt_and_the_job_waits(running):
    limits = json.loads(file_of(running, 1, "spark.json"))
    assert int(limits["spark.executor.maxNumFailures"]) > 0
    assert limits["spark.executor.failuresValidityInterval"]
    why = "spark's process has ended: max number of executor failures (20) reached"
    running.drivers.newest.fail("spark_ended", 1, why)
    await running.run(3)
    assert running.phase() == "BackOff"
    restarts = running.status().restarts
    assert "executor failures" in restarts.last_message
    assert len(restarts.window) == 1
    await running.until(lambda: len(running.drivers.by_pod) == 2 and running.is_running())
    assert running.drivers.restored[-1].epoch == running.drivers.restored[-1].newest > 0


@pytest.mark.scenario(43)
async def test_a_claim_belongs_to_its_executor_and_a_drained_one_is_followed_by_another(world):
    world.apply(with_volume(type="EphemeralPVC", size="1Gi", storageClassName="fast"))
    await world.until(lambda: world.is_running() and world.pods("executor"))
    template = yaml.safe_load(file_of(world, 1, "executor.yaml"))
    (volume,) = [v for v in template["spec"]["volumes"] if v["name"] == "moorage-local"]
    # The cluster makes such a claim for one pod, where that is, and deletes it with the pod.
    assert volume["ephemeral"]["volumeClaimTemplate"]["spec"]["storageClassName"] == "fast"
    assert world.api.list("PersistentVolumeClaim") == []
    (before,) = world.pods("executor")
    world.kubelet.drain(EXECUTOR)
    await executor_again(world, before)
    await world.run(30)
    assert world.is_running()
    assert world.status().restarts.total == 0


@pytest.mark.scenario(45)
async def test_claims_that_executors_share_go_with_the_driver_so_another_start_gets_others(world):
    world.apply(with_volume(type="ReusedPVC", size="1Gi", storageClassName="fast"))
    await world.until(lambda: world.is_running() and world.report().last_checkpoint is not None)
    settings = json.loads(file_of(world, 1, "spark.json"))
    claim = "spark.kubernetes.executor.volumes.persistentVolumeClaim.moorage-local.options"
    assert settings[f"{claim}.claimName"] == "OnDemand"
    assert settings["spark.kubernetes.driver.ownPersistentVolumeClaim"] == "true"
    why = (
        "no executor in 200 s: pod clicks-1-exec-2 is pending: Multi-Attach error for volume pvc-7"
    )
    world.drivers.newest.fail("no_executors", 1, why)
    await world.run(3)
    assert "Multi-Attach" in world.status().restarts.last_message
    await world.until(lambda: len(world.drivers.by_pod) == 2 and world.is_running())
    assert world.drivers.restored[-1].epoch == world.drivers.restored[-1].newest > 0
    assert file_of(world, 2, "executor.yaml")
    assert world.api.list("PersistentVolumeClaim") == []
