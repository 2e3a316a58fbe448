"""A namespace whose ResourceQuota has no room for pods that are to come."""

import pytest
from moorage_testing.world import World
from moorage_testing.world.scene import job

pytestmark = [
    pytest.mark.scenarios,
    pytest.mark.in_memory("there it sets what a quota's controller would"),
]


def said(world: World, kind: str) -> str:
    found = world.status().condition(kind)
    return found.message if found else ""


@pytest.mark.scenario(81)
async def test_a_start_without_room_waits_and_says_what_is_missing(world):
    world.set_quota(requests_memory="2Gi")
    world.apply()
    await world.until(lambda: world.condition("Progressing") == "False/QuotaExceeded")
    lacks = "ResourceQuota compute has no room for requests.memory"
    assert lacks in said(world, "Progressing")
    await world.run(60)
    assert world.pods() == []
    assert world.events().count("QuotaExceeded") == 1
    world.set_quota(requests_memory="64Gi")
    await world.until(world.is_running)


async def test_with_room_for_some_executors_it_begins_with_fewer(world):
    world.set_quota(pods="2")
    world.apply(job(scaling={"parallelism": 4, "maxParallelism": 16}))
    await world.until(world.pods)
    world.set_quota(pods="2", used="2")
    await world.until(world.is_running)
    await world.run(20)
    assert world.events().count("QuotaExceeded") == 1


@pytest.mark.scenario(81)
async def test_an_edit_without_room_stops_nothing_until_there_is(world):
    world.apply()
    await world.until(lambda: world.is_running() and world.report().last_checkpoint is not None)
    world.set_quota(requests_memory="1Gi")
    world.edit(driver={"memory": "12Gi"})
    await world.until(lambda: world.condition("Reconciled") == "False/QuotaExceeded")
    assert "requests.memory" in said(world, "Reconciled")
    await world.run(60)
    assert world.is_running()
    assert world.status().attempt.number == 1
    world.set_quota(requests_memory="64Gi")
    await world.until(lambda: world.is_running() and world.status().attempt.number == 2)


async def test_an_edit_that_asks_for_no_more_needs_no_room(world):
    world.apply()
    await world.until(lambda: world.is_running() and world.report().last_checkpoint is not None)
    world.set_quota(requests_memory="0", pods="0")
    world.edit(image="registry.example/clicks:2")
    await world.until(lambda: world.status().operation is not None)
    assert world.status().operation.type == "Upgrade"


async def test_a_restart_in_a_namespace_that_just_fits_warns_of_nothing(world):
    world.apply()
    await world.until(lambda: world.is_running() and world.report().last_checkpoint is not None)
    full = {"pods": str(len(world.pods()) + len(world.pods("executor"))), "used": "2"}
    world.set_quota(**full)
    world.annotate(restart="1")

    def is_empty():
        operation = world.status().operation
        fencing = operation is not None and operation.step == "Fencing"
        return fencing and not [p for p in world.pods() if p["status"]["phase"] == "Running"]

    await world.until(is_empty)
    # The quota's controller has not seen yet that they are gone.
    await world.run(4)
    assert is_empty()
    world.set_quota(**{**full, "used": "0"})
    await world.until(lambda: world.is_running() and world.status().attempt.number == 2)
    await world.run(20)
    assert "QuotaExceeded" not in world.events()


async def test_a_status_says_the_same_whatever_others_take(world):
    world.set_quota(pods="1", used="0")
    world.apply()
    await world.until(lambda: world.condition("Progressing") == "False/QuotaExceeded")
    await world.run(11)
    before = world.object()["metadata"]["resourceVersion"]
    for used in ("1", "0", "1"):
        world.set_quota(pods="1", used=used)
        await world.run(21)
    assert world.object()["metadata"]["resourceVersion"] == before


LOCAL = {"type": "ReusedPVC", "size": "10Gi", "storageClassName": "fast"}
REUSED = {
    "checkpointDir": "s3://state/clicks",
    "savepointDir": "s3://savepoints/clicks",
    "local": LOCAL,
}


async def test_claims_that_the_job_keeps_need_no_room_again(world):
    world.apply(job(state=REUSED))
    await world.until(lambda: world.is_running() and world.report().last_checkpoint is not None)
    await world.until(lambda: world.pods("executor"))
    world.set_quota(persistentvolumeclaims="1", used="1")
    world.annotate(restart="1")
    await world.until(lambda: world.is_running() and world.status().attempt.number == 2, 30)


async def test_claims_that_the_next_version_does_not_ask_for_make_room_for_its_own(world):
    world.apply(job(state=REUSED))
    await world.until(lambda: world.is_running() and world.report().last_checkpoint is not None)
    await world.until(lambda: world.pods("executor"))
    await world.run(5)
    world.set_quota(persistentvolumeclaims="1", used="1")
    world.edit(state={"local": {**LOCAL, "type": "EphemeralPVC"}})
    await world.until(lambda: world.is_running() and world.status().attempt.number == 2, 60)
    assert world.api.list("PersistentVolumeClaim") == []


async def test_claims_of_a_driver_that_ended_do_not_keep_the_next_one_waiting(world):
    world.apply(job(state=REUSED))
    await world.until(lambda: world.is_running() and world.report().last_checkpoint is not None)
    first = world.pods()[0]["metadata"]["name"]
    # Nothing is kept: what the quota counts is the driver's, or another one's.
    for claim in world.api.list("PersistentVolumeClaim"):
        world.api.delete("PersistentVolumeClaim", world.namespace, claim["metadata"]["name"])
    world.set_quota(persistentvolumeclaims="2", used="2")
    world.annotate(restart="1")
    await world.until(lambda: first not in [p["metadata"]["name"] for p in world.pods()])
    assert world.status().attempt.number == 1
    # With the pod its claims go.
    world.set_quota(persistentvolumeclaims="2", used="0")
    await world.until(lambda: world.is_running() and world.status().attempt.number == 2)


WARM = {"image": "registry.example/clicks:2", "upgrade": {"strategy": "WarmStandby"}}


@pytest.mark.scenario(81)
async def test_a_version_that_is_to_stand_by_waits_for_room_beside_the_one_that_runs(world):
    world.apply()
    await world.until(lambda: world.is_running() and world.report().last_checkpoint is not None)
    # As many pods once more do not fit, though none of the new version is larger.
    world.set_quota(pods="3", used="2")
    world.edit(**WARM)
    await world.until(lambda: world.condition("Reconciled") == "False/QuotaExceeded")
    assert "beside the version that runs" in said(world, "Reconciled")
    await world.run(1200)
    assert world.status().operation is None
    assert len(world.pods()) == 1
    assert not {"StandbyFailed", "ActionFailed"} & set(world.events())
    world.set_quota(pods="8", used="2")
    await world.until(lambda: "StandbyPromoted" in world.events(), 600)


async def test_with_another_strategy_the_same_edit_needs_no_room(world):
    world.apply()
    await world.until(lambda: world.is_running() and world.report().last_checkpoint is not None)
    world.set_quota(pods="3", used="2")
    world.edit(**WARM)
    await world.until(lambda: world.condition("Reconciled") == "False/QuotaExceeded")
    world.edit(upgrade={"strategy": "Restart"})
    await world.until(lambda: world.status().operation is not None)
    assert world.status().operation.step != "Standby"


async def test_a_standby_whose_room_is_gone_is_not_tried_for_again_and_again(world):
    world.apply()
    await world.until(lambda: world.is_running() and world.report().last_checkpoint is not None)
    world.set_quota(pods="3", used="2")
    world.edit(**WARM)
    world.annotate(restart="all the same")
    await world.until(lambda: world.condition("Reconciled") == "False/Standby")
    await world.run(60)
    assert "ResourceQuota compute has no room for pods" in said(world, "Reconciled")
    assert len(world.pods()) == 1
    world.set_quota(pods="8", used="2")
    await world.until(lambda: "StandbyPromoted" in world.events(), 600)


async def test_a_start_after_a_standby_that_died_says_at_once_what_is_missing(world):
    world.apply()
    await world.until(lambda: world.is_running() and world.report().last_checkpoint is not None)
    world.drivers.habits.linger = True
    world.edit(**WARM)
    await world.until(lambda: "StandbyReady" in world.events(), 600)
    world.drivers.newest.kill()
    world.set_quota(pods="1", used="1")
    await world.until(lambda: world.status().operation.step == "Fencing", 60)
    await world.until(lambda: not world.drivers.living)
    await world.until(lambda: world.condition("Progressing") == "False/QuotaExceeded", 20)
    assert "QuotaExceeded" in world.events()
    world.set_quota(pods="8", used="1")
    await world.until(lambda: world.is_running() and world.status().attempt.number == 3)


async def test_what_an_ended_driver_left_makes_room_for_the_next_ones_orders(world):
    world.apply()
    await world.until(lambda: world.is_running() and world.report().last_checkpoint is not None)
    first = world.pods()[0]["metadata"]["name"]
    world.set_quota(configmaps="2", used="2")
    world.annotate(restart="1")
    await world.until(lambda: first not in [p["metadata"]["name"] for p in world.pods()])
    assert world.status().attempt.number == 1
    assert world.api.get("ConfigMap", world.namespace, "clicks-1-config") is None
    # With the pod goes what Spark made for its executors.
    world.set_quota(configmaps="2", used="0")
    await world.until(lambda: world.is_running() and world.status().attempt.number == 2)


async def test_what_was_left_when_an_operator_died_is_found_though_no_pod_is(world):
    world.apply()
    await world.until(lambda: world.is_running() and world.report().last_checkpoint is not None)
    orders = world.api.get("ConfigMap", world.namespace, "clicks-1-config")
    world.set_quota(configmaps="2", used="2")
    world.annotate(restart="1")
    await world.until(lambda: not world.pods() and world.status().operation is not None)
    await world.run(30)
    meta = {key: orders["metadata"][key] for key in ("name", "namespace", "labels")}
    meta["ownerReferences"] = orders["metadata"]["ownerReferences"]
    world.api.apply({**orders, "metadata": meta}, manager="moorage-operator")

    def is_gone():
        return world.api.get("ConfigMap", world.namespace, "clicks-1-config") is None

    assert not is_gone()
    await world.until(is_gone, 90)
    assert world.status().attempt.number == 1


@pytest.mark.scenario(81)
async def test_a_version_that_is_to_be_tried_waits_for_room_for_its_pod(world):
    world.apply()
    await world.until(lambda: world.is_running() and world.report().last_checkpoint is not None)
    world.set_quota(pods="2", used="2")
    world.edit(image="registry.example/clicks:2", upgrade={"preflight": True})
    await world.until(lambda: world.condition("Reconciled") == "False/QuotaExceeded")
    assert "for the pod of the preflight beside the version that runs" in said(world, "Reconciled")
    await world.run(1200)
    assert world.status().operation is None
    assert not {"PreflightFailed", "ActionFailed"} & set(world.events())
    world.set_quota(pods="8", used="2")
    await world.until(lambda: world.is_running() and world.status().attempt.number == 2, 600)


async def test_an_edit_whose_container_lacks_what_a_quota_asks_of_all_stops_nothing(world):
    world.apply()
    await world.until(lambda: world.is_running() and world.report().last_checkpoint is not None)
    world.set_quota(limits_cpu="64")
    proxy = {"name": "proxy", "image": "registry.example/proxy:1", "restartPolicy": "Always"}
    world.edit(driver={"podTemplate": {"spec": {"initContainers": [proxy]}}})
    await world.until(lambda: world.condition("Reconciled") == "False/QuotaExceeded")
    assert "asks every container for limits.cpu, and proxy says none" in said(world, "Reconciled")
    usual = {"type": "Container", "default": {"cpu": "1"}, "defaultRequest": {"cpu": "100m"}}
    body = {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": {"name": "usual", "namespace": world.namespace},
        "spec": {"limits": [usual]},
    }
    world.api.apply(body, manager="people")
    await world.until(lambda: world.is_running() and world.status().attempt.number == 2)
