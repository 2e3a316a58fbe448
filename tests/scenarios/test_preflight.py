"""A new version tries itself before the old one is stopped."""

import pytest

from moorage_operator.ports import ApiUnavailable

pytestmark = pytest.mark.scenarios

NEW = "registry.example/clicks:2"
TRIED = {"image": NEW, "upgrade": {"preflight": True}}


def tries(world):
    return len(world.buckets.preflights)


def trials(world):
    """Images of the pods that try a version, and have not ended."""
    return [
        pod["spec"]["containers"][0]["image"]
        for pod in world.pods("errand")
        if pod.get("status", {}).get("phase", "Pending") in ("Pending", "Running")
    ]


async def test_a_version_that_passes_takes_over(running):
    running.edit(**TRIED)
    await running.run(3)
    assert running.driver() is running.drivers.newest
    assert running.condition("Reconciled") == "False/Preflight"
    assert running.condition("Ready") == "True/Running"
    await running.until(lambda: len(running.drivers.by_pod) == 2 and running.is_running())
    assert running.driver().manifest["spec"]["image"] == NEW
    assert tries(running) == 1
    assert list(running.buckets.preflights.values()) == [NEW]
    assert "PreflightPassed" in running.events()


@pytest.mark.scenario(69)
async def test_a_version_that_fails_leaves_the_old_one_running_and_says_why(running):
    running.drivers.habits.preflight_fails = "the job file cannot be imported: line=3"
    running.edit(**TRIED)
    await running.until(lambda: "PreflightFailed" in running.events())
    await running.run(60)
    assert len(running.drivers.by_pod) == 1
    assert running.is_running()
    assert running.status().operation is None
    reconciled = running.status().condition("Reconciled")
    assert (reconciled.status, reconciled.reason) == ("False", "Rejected")
    assert "failed its preflight: the job file cannot be imported: line=3" in reconciled.message
    assert tries(running) == 1


async def test_a_version_that_failed_is_tried_again_when_somebody_asks_or_corrects_it(running):
    running.drivers.habits.preflight_fails = "no"
    running.edit(**TRIED)
    await running.until(lambda: "PreflightFailed" in running.events())
    running.annotate(restart="again")
    await running.until(lambda: running.events().count("PreflightFailed") == 2)
    running.drivers.habits.preflight_fails = ""
    running.edit(image="registry.example/clicks:3")
    await running.until(lambda: len(running.drivers.by_pod) == 2 and running.is_running())
    assert running.driver().manifest["spec"]["image"] == "registry.example/clicks:3"
    assert running.condition("Reconciled") == "True/UpToDate"
    assert tries(running) == 3


async def test_an_edit_that_is_taken_back_meanwhile_stops_nothing(running):
    running.drivers.habits.preflight = 60.0
    running.edit(**TRIED)
    await running.run(5)
    assert trials(running) == [NEW]
    running.edit(image="registry.example/clicks:1")
    await running.run(5)
    assert trials(running) == []
    await running.run(90)
    assert len(running.drivers.by_pod) == 1
    assert "OperationCancelled" in running.events()
    assert running.condition("Reconciled") == "True/UpToDate"


async def test_another_edit_meanwhile_is_tried_in_its_place(running):
    running.drivers.habits.preflight = 30.0
    running.edit(**TRIED)
    await running.run(5)
    running.edit(image="registry.example/clicks:3")
    await running.run(5)
    assert trials(running) == ["registry.example/clicks:3"]
    await running.until(lambda: len(running.drivers.by_pod) == 2 and running.is_running(), 600)
    assert running.driver().manifest["spec"]["image"] == "registry.example/clicks:3"
    assert tries(running) == 2


@pytest.mark.scenario(85)
async def test_another_parallelism_meanwhile_is_what_the_new_version_starts_with(running):
    running.drivers.habits.preflight = 60.0
    running.edit(**TRIED)
    await running.run(5)
    for wish in (3, 4):
        running.edit(scaling__parallelism=wish)
        await running.run(20)
    assert trials(running) == [NEW]
    await running.until(lambda: len(running.drivers.by_pod) == 2 and running.is_running(), 600)
    manifest = running.driver().manifest["spec"]
    assert (manifest["image"], manifest["scaling"]["parallelism"]) == (NEW, 4)
    assert tries(running) == 1
    assert "OperationCancelled" not in running.events()


async def test_a_job_that_is_suspended_meanwhile_is_suspended(running):
    running.drivers.habits.preflight = 60.0
    running.edit(**TRIED)
    await running.run(5)
    running.edit(desiredState="Suspended")
    await running.until(lambda: running.phase() == "Suspended")
    assert len(running.drivers.by_pod) == 1


@pytest.mark.parametrize(
    "act",
    [
        lambda world: world.edit(desiredState="Suspended"),
        lambda world: world.delete(),
        lambda world: world.driver().fail("user_function", 3),
        lambda world: world.edit(upgrade={"preflight": False}),
        lambda world: world.edit(restore={"mode": "Latest", "nonce": 1}),
    ],
    ids=["suspended", "deleted", "failed", "switched off", "a nonce"],
)
async def test_a_pod_whose_answer_nobody_waits_for_is_deleted_at_once(running, act):
    """A last savepoint takes its time: the pod does not hold a driver's memory for so long."""
    running.drivers.habits.preflight, running.drivers.habits.snapshot = 600.0, 60.0
    running.edit(**TRIED)
    await running.run(5)
    assert trials(running) == [NEW]
    act(running)
    await running.run(5)
    assert trials(running) == []


@pytest.mark.parametrize("when", ["before", "after"])
async def test_an_operator_that_dies_over_it_leaves_no_pod(running, when):
    running.drivers.habits.preflight = 600.0
    running.edit(**TRIED)
    await running.run(5)
    running.points.crash_at, running.points.crash_when = running.points.count + 1, when
    running.edit(image="registry.example/clicks:1")
    await running.run(10)
    assert running.deaths == 1
    assert trials(running) == []


async def test_a_pod_that_has_answered_stays_for_its_log(running):
    running.drivers.habits.preflight_fails = "no"
    running.edit(**TRIED)
    await running.until(lambda: "PreflightFailed" in running.events())
    await running.run(60)
    assert len(running.pods("errand")) == 1


async def test_a_driver_that_fails_meanwhile_is_followed_by_the_new_version(running):
    """As without a preflight: nothing runs any more that could be spared."""
    running.drivers.habits.preflight = 600.0
    running.edit(**TRIED)
    await running.run(5)
    running.driver().fail("user_function", 3)
    await running.until(lambda: len(running.drivers.by_pod) == 2 and running.is_running())
    assert running.driver().manifest["spec"]["image"] == NEW


@pytest.mark.parametrize("seconds", [55, 58, 61, 64])
async def test_a_pod_that_never_answers_is_given_up_in_time(running, seconds):
    """Until then it is tried again and again: what ended it may be over, such as an eviction.

    The time may be over while another one is tried: how the ones before ended is said.
    """
    running.drivers.habits.preflight, running.drivers.habits.preflight_breaks = 0.0, True
    running.edit(operator={"startTimeout": f"{seconds}s"}, **TRIED)
    await running.until(lambda: "PreflightFailed" in running.events(), 120)
    assert len(running.drivers.by_pod) == 1
    assert running.is_running()
    assert "ended without an answer" in running.status().condition("Reconciled").message


async def test_a_pod_that_nobody_lets_in_is_said_at_once_and_given_up_in_time(running):
    running.drivers.habits.preflight_refused = "exceeded quota: pods=10"
    running.edit(**TRIED)
    await running.until(lambda: "ActionFailed" in running.events())
    assert "exceeded quota" in running.status().condition("Degraded").message
    await running.until(lambda: "PreflightFailed" in running.events(), 1200)
    assert "exceeded quota" in running.status().condition("Reconciled").message
    running.drivers.habits.preflight_refused = ""
    await running.run(60)
    assert len(running.drivers.by_pod) == 1
    assert running.condition("Degraded") == "False/Healthy"


async def test_a_preflight_that_is_switched_off_meanwhile_is_not_waited_for(running):
    running.drivers.habits.preflight_breaks = True
    running.edit(**TRIED)
    await running.run(20)
    running.edit(upgrade={"preflight": False})
    await running.until(lambda: len(running.drivers.by_pod) == 2 and running.is_running())
    assert running.driver().manifest["spec"]["image"] == NEW


async def test_a_rescale_and_a_restart_of_what_runs_try_nothing(running):
    running.edit(upgrade={"preflight": True}, executor__instances=3)
    await running.until(lambda: "RescaledInPlace" in running.events())
    running.annotate(restart="1")
    await running.until(lambda: len(running.drivers.by_pod) == 2 and running.is_running())
    assert tries(running) == 0


async def test_the_operator_dies_and_the_pod_is_found_again(running):
    running.drivers.habits.preflight = 20.0
    running.edit(**TRIED)
    await running.run(5)
    running.restart_operator()
    await running.until(lambda: len(running.drivers.by_pod) == 2 and running.is_running())
    assert tries(running) == 1


# -- what the API server says of the pods


def quota(used, limited="pods=3"):
    """A ResourceQuota that is used up, as the API server tells it."""
    text = 'pods "x" is forbidden: exceeded quota: small, requested: pods=1'
    return lambda body: f"{text}, used: pods={used}, limited: {limited}" if body else ""


@pytest.mark.scenario(69)
async def test_pods_that_the_api_server_would_not_take_are_said_before_anything_is_tried(running):
    reason = 'pods "x" is forbidden: violates PodSecurity "restricted:latest": hostPath volumes'
    running.api.admission = lambda body: reason if "exec" in body["metadata"]["name"] else ""
    running.edit(**TRIED)
    await running.until(lambda: "PreflightFailed" in running.events())
    reconciled = running.status().condition("Reconciled")
    assert reconciled.reason == "Rejected"
    assert f"executor: {reason}" in reconciled.message
    assert tries(running) == 0
    assert len(running.drivers.by_pod) == 1
    assert running.is_running()


async def test_a_quota_that_the_old_version_alone_uses_up_refuses_nothing(running):
    running.api.admission = quota(len(running.pods()) + len(running.pods("executor")), "pods=2")
    running.edit(executor={"instances": 1}, **TRIED)
    await running.until(lambda: len(running.drivers.by_pod) == 2 and running.is_running())


@pytest.mark.scenario(69)
async def test_a_quota_without_room_for_all_executors_refuses_and_says_what_is_short(running):
    running.api.admission = quota(2, "pods=2")
    running.edit(executor={"instances": 4}, **TRIED)
    await running.until(lambda: "PreflightFailed" in running.events())
    message = running.status().condition("Reconciled").message
    assert "ResourceQuota small has no room for pods 5 of 2" in message
    assert len(running.drivers.by_pod) == 1


async def test_while_the_api_server_does_not_say_the_old_version_runs_and_it_is_asked_again(
    running,
):
    running.operator.cluster.fail(
        ApiUnavailable("a webhook does not answer"), verb="try_create", times=1_000_000
    )
    running.edit(**TRIED)
    await running.run(30)
    assert "a webhook does not answer" in running.status().condition("Reconciled").message
    assert tries(running) == 0
    running.operator.cluster.heal()
    await running.until(lambda: len(running.drivers.by_pod) == 2 and running.is_running())


async def test_a_version_whose_executors_no_node_could_hold_passes_with_a_warning(running):
    for node in running.api.list("Node"):
        node["status"] = {**node.get("status", {}), "allocatable": {"cpu": "8", "memory": "16Gi"}}
        running.api.replace_status(node)
    running.edit(executor={"memory": "64Gi"}, **TRIED)
    await running.until(lambda: "PreflightPassed" in running.events())
    told = [one for one in running.api.list("Event") if one["reason"] == "PreflightPassed"]
    assert told[0]["type"] == "Warning"
    assert "no node there is could hold its pods: executor: of " in told[0]["message"]
