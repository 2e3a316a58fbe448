"""Executors that go, and the volumes under them, which are only caches."""

import json

import pytest
import yaml
from moorage_testing.world.scene import job

from moorage_operator.ports import ApiUnavailable, Forbidden

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


def claims(world):
    """Names of claims, and who owns them."""
    return {
        claim["metadata"]["name"]: claim["metadata"]["ownerReferences"][0]["kind"]
        for claim in world.api.list("PersistentVolumeClaim")
    }


def claim_of(world, executor):
    found = world.api.get("Pod", world.namespace, executor)
    return found["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"]


async def started_again(world, attempt):
    name = f"clicks-{attempt}-exec-1"
    await world.until(lambda: world.status().attempt.number == attempt and world.is_running())
    await world.until(lambda: world.api.exists("Pod", world.namespace, name))
    await world.run(5)
    return claim_of(world, name)


FAR = "0/1 nodes are available: 1 node(s) had volume node affinity conflict"
REUSED = {"type": "ReusedPVC", "size": "1Gi", "storageClassName": "fast"}


@pytest.fixture
async def reusing(world):
    """A job on claims that are reused, which has run for longer than Spark calls one young."""
    world.apply(with_volume(**REUSED))
    await world.until(lambda: world.is_running() and world.report().last_checkpoint is not None)
    await world.run(70)
    assert claims(world) == {"clicks-1-exec-1-pvc-0": "StatefulSparkJob"}
    return world


@pytest.mark.scenario(45)
@pytest.mark.parametrize("how", ["killed", "evicted", "edited"])
async def test_a_claim_is_found_again_by_an_executor_of_the_next_driver(reusing, how):
    if how == "killed":
        reusing.drivers.newest.fail("user_function", 1, "boom")
    elif how == "evicted":
        reusing.kubelet.drain("clicks-1-driver")
    else:
        reusing.edit(image="registry.example/clicks:2")
    assert await started_again(reusing, 2) == "clicks-1-exec-1-pvc-0"
    assert claims(reusing) == {"clicks-1-exec-1-pvc-0": "StatefulSparkJob"}


async def test_claims_go_with_the_job(reusing):
    reusing.delete()
    await reusing.until(lambda: reusing.object() is None)
    await reusing.run(5)
    assert claims(reusing) == {}


@pytest.mark.parametrize(
    "local",
    [
        {"size": "2Gi"},
        {"storageClassName": "slow"},
        {"type": "EmptyDir", "size": None, "storageClassName": None},
    ],
)
async def test_a_claim_that_the_spec_does_not_ask_for_any_more_is_deleted(reusing, local):
    reusing.edit(state={"local": local})
    await reusing.until(lambda: reusing.status().attempt.number == 2 and reusing.is_running())
    await reusing.run(5)
    assert "clicks-1-exec-1-pvc-0" not in claims(reusing)
    assert len(claims(reusing)) == (0 if "type" in local else 1)


@pytest.mark.scenario(45)
async def test_an_executor_that_its_volume_keeps_waiting_gets_another_one(reusing):
    reusing.drivers.newest.fail("user_function", 1, "boom")
    reusing.kubelet.held_claims["clicks-1-exec-1-pvc-0"] = FAR
    assert await started_again(reusing, 2) == "clicks-1-exec-1-pvc-0"
    await reusing.run(150)
    assert claims(reusing) == {"clicks-1-exec-1-pvc-0": "StatefulSparkJob"}
    await reusing.run(60)
    assert "VolumeGivenUp" in reusing.events()
    assert claim_of(reusing, "clicks-2-exec-1") != "clicks-1-exec-1-pvc-0"
    assert list(claims(reusing).values()) == ["StatefulSparkJob"]


async def test_an_executor_that_no_node_has_room_for_keeps_its_volume_however_long_it_waits(
    reusing,
):
    reusing.drivers.newest.fail("user_function", 1, "boom")
    text = "0/3 nodes are available: 3 Insufficient memory. No preemption victims found"
    reusing.kubelet.held_claims["clicks-1-exec-1-pvc-0"] = text
    assert await started_again(reusing, 2) == "clicks-1-exec-1-pvc-0"
    await reusing.run(400)
    assert claims(reusing) == {"clicks-1-exec-1-pvc-0": "StatefulSparkJob"}
    assert "VolumeGivenUp" not in reusing.events()


async def test_a_claim_that_cannot_be_given_up_holds_up_nothing_else(reusing):
    reusing.drivers.newest.fail("user_function", 1, "boom")
    reusing.kubelet.held_claims["clicks-1-exec-1-pvc-0"] = FAR
    assert await started_again(reusing, 2) == "clicks-1-exec-1-pvc-0"
    reusing.operator.cluster.fail(Forbidden("no"), kind="PersistentVolumeClaim", times=-1)
    passes = []
    reconcile = reusing.operator.reconciler.reconcile

    async def watched(ref):
        passes.append(await reconcile(ref))
        return passes[-1]

    reusing.operator.reconciler.reconcile = watched
    await reusing.run(300)
    assert "VolumeGivenUp" in reusing.events()
    assert [one.problem for one in passes if one.problem] == []


async def test_claims_are_handed_on_once_the_api_server_answers_again(reusing):
    reusing.drivers.newest.fail("user_function", 1, "boom")
    reusing.operator.cluster.fail(ApiUnavailable("503"), kind="PersistentVolumeClaim", times=2)
    assert await started_again(reusing, 2) == "clicks-1-exec-1-pvc-0"


async def test_claims_that_were_not_kept_in_time_are_handed_on_with_their_driver_still_there(
    reusing,
):
    """As where no operator was there while the driver ran."""
    (driver,) = [p for p in reusing.pods() if p["metadata"]["name"] == "clicks-1-driver"]
    uid = driver["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "clicks-1-driver", "uid": uid}
    change = {"metadata": {"ownerReferences": [owner | {"controller": True}]}}
    reusing.api.patch("PersistentVolumeClaim", reusing.namespace, "clicks-1-exec-1-pvc-0", change)
    reusing.drivers.newest.fail("user_function", 1, "boom")
    assert await started_again(reusing, 2) == "clicks-1-exec-1-pvc-0"
    assert claims(reusing) == {"clicks-1-exec-1-pvc-0": "StatefulSparkJob"}


RULES = {"strategy": "WarmStandby", "standby": {"observeFor": "20s"}}


async def test_a_version_that_fails_while_it_stands_by_leaves_no_claims(reusing):
    reusing.edit(image="registry.example/clicks:2", upgrade=RULES)
    await reusing.until(lambda: len(claims(reusing)) == 2)
    standby = next(one for one in reusing.drivers.living if one.standby)
    standby.fail("user_function", 1, "boom")
    await reusing.until(lambda: reusing.condition("Reconciled") == "False/Rejected", 600)
    await reusing.run(60)
    assert claims(reusing) == {"clicks-1-exec-1-pvc-0": "StatefulSparkJob"}


@pytest.mark.parametrize("local", [REUSED, {"type": "EmptyDir"}])
async def test_a_version_that_stood_by_has_its_own_claims_and_leaves_no_others(reusing, local):
    whole = {"type": "EmptyDir", "size": None, "storageClassName": None} | local
    reusing.edit(image="registry.example/clicks:2", upgrade=RULES, state={"local": whole})
    await reusing.until(lambda: reusing.status().attempt.stood_by, 600)
    await reusing.until(lambda: reusing.status().operation is None and reusing.is_running(), 600)
    await reusing.run(60)
    own = [name.partition("-exec-")[0] for name in claims(reusing)]
    assert own == (["clicks-2"] if local is REUSED else [])
    assert set(claims(reusing).values()) <= {"StatefulSparkJob"}


async def test_an_operator_that_may_not_touch_claims_holds_nothing_up(world):
    world.operator.cluster.fail(Forbidden("no"), kind="PersistentVolumeClaim", times=-1)
    world.apply(with_volume(**REUSED))
    await world.until(lambda: world.is_running() and world.pods("executor"))
    world.drivers.newest.fail("user_function", 1, "boom")
    await world.until(lambda: world.status().attempt.number == 2 and world.is_running())


@pytest.mark.scenario(45)
async def test_executors_without_a_volume_end_the_attempt_and_the_next_one_tries_again(world):
    world.apply(with_volume(**REUSED))
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
