"""Defaults and limits of many jobs: taken at once, with the next restart, or refused in words."""

import pytest
from moorage_testing.world import World
from moorage_testing.world.scene import job

pytestmark = pytest.mark.scenarios

STANDARD = """
profile: standard
profiles:
  standard: {ttlAfterFinished: 2h, checkpoint: {timeout: 7m}, driver: {memory: 3Gi}}
"""
WIDER = STANDARD.replace("3Gi", "4Gi")
PATIENT = STANDARD.replace("2h", "3h")


def told(world: World):
    """The spec that the newest driver was told."""
    newest = max(world.drivers.by_pod.values(), key=lambda driver: driver.order.attempt)
    return newest.manifest["spec"]


def said(world: World, kind: str) -> str:
    found = world.status().condition(kind)
    return found.message if found else ""


async def begun(world: World, fleet: str, **spec) -> World:
    world.set_fleet(fleet)
    world.apply(job(**spec))
    await world.until(lambda: world.is_running() and world.report().last_checkpoint is not None)
    return world


async def test_a_job_has_the_values_of_its_profile_and_its_own_win(world):
    await begun(world, STANDARD, driver={"memory": "5Gi"})
    assert told(world)["checkpoint"]["timeout"] == "7m"
    assert told(world)["checkpoint"]["interval"] == "10s"
    assert told(world)["driver"]["memory"] == "5Gi"
    shown = world.status().profile
    assert (shown.name, shown.values["ttlAfterFinished"]) == ("standard", "2h")


async def test_what_the_api_server_filled_in_counts_as_not_said(world):
    # Of a real one, and of the emulator: both are the definitions' defaults.
    await begun(world, STANDARD, driver={"memory": "2Gi", "cores": 1})
    assert told(world)["driver"]["memory"] == "3Gi"


@pytest.mark.scenario(82)
async def test_an_edit_of_a_profile_that_needs_no_restart_is_taken_at_once(world):
    await begun(world, STANDARD)
    world.set_fleet(PATIENT)
    await world.until(lambda: world.status().profile.values["ttlAfterFinished"] == "3h")
    await world.run(60)
    assert world.status().attempt.number == 1
    assert world.condition("Reconciled") == "True/UpToDate"
    assert "ProfileTaken" in world.events()


@pytest.mark.scenario(82)
async def test_one_that_needs_a_restart_waits_for_an_edit_that_restarts_the_job(world):
    await begun(world, STANDARD)
    world.set_fleet(WIDER)
    await world.until(lambda: "ProfileWaits" in world.events())
    world.edit(ttlAfterFinished="9h")
    await world.run(60)
    assert world.status().attempt.number == 1
    assert world.condition("Reconciled") == "True/UpToDate"
    assert "spec.driver.memory" in said(world, "Reconciled")
    world.edit(image="registry.example/clicks:2")
    await world.until(lambda: world.is_running() and world.status().attempt.number == 2)
    assert told(world)["driver"]["memory"] == "4Gi"
    assert said(world, "Reconciled") == ""


async def test_a_restart_that_a_person_asks_for_takes_it_and_the_next_one_nothing(world):
    await begun(world, STANDARD)
    world.set_fleet(WIDER)
    world.annotate(restart="1")
    await world.until(lambda: world.is_running() and world.status().attempt.number == 2)
    assert told(world)["driver"]["memory"] == "4Gi"
    world.restart_operator()
    await world.run(120)
    assert world.status().attempt.number == 2
    world.annotate(restart="2")
    await world.until(lambda: world.is_running() and world.status().attempt.number == 3)
    assert told(world)["driver"]["memory"] == "4Gi"


async def test_a_suspended_job_takes_it_when_it_is_to_run_again(world):
    await begun(world, STANDARD)
    world.edit(desiredState="Suspended")
    await world.until(lambda: world.phase() == "Suspended")
    world.set_fleet(WIDER)
    await world.run(60)
    assert world.status().profile.waiting
    world.edit(desiredState="Running")
    await world.until(world.is_running)
    assert told(world)["driver"]["memory"] == "4Gi"
    assert not world.status().profile.waiting


async def test_a_driver_that_fails_comes_back_as_it_was(world):
    await begun(world, STANDARD)
    world.set_fleet(WIDER)
    world.driver().fail("internal", 1)
    await world.until(lambda: world.status().attempt.number == 2 and world.is_running())
    assert told(world)["driver"]["memory"] == "3Gi"


async def test_the_first_profile_of_a_job_that_runs_stops_it_as_little(world):
    await begun(world, "")
    world.set_fleet(STANDARD)
    await world.until(lambda: "ProfileWaits" in world.events())
    await world.run(60)
    assert world.status().attempt.number == 1
    world.set_fleet("")
    await world.until(lambda: world.status().profile is None)


async def test_an_unknown_profile_is_refused_and_what_runs_goes_on(world):
    await begun(world, STANDARD)
    world.edit(profile="fast", image="registry.example/clicks:2")
    await world.until(lambda: world.condition("SpecValid") == "False/Invalid")
    assert "spec.profile: names a profile that is not there: fast" in said(world, "SpecValid")
    await world.run(30)
    assert world.is_running()
    assert world.status().attempt.number == 1
    world.edit(profile="none")
    await world.until(lambda: world.is_running() and world.status().attempt.number == 2)
    assert "memory" not in told(world).get("driver", {})


WRONG = [
    ("profile: standard\nprofiles: {standard: {driver: {memory: much}}}", "driver.memory"),
    ("profile: standard\nprofiles: {standard: {image: a}}", "image is each job's own"),
    ("profiles: [", "is not YAML"),
    ("profile: other\nprofiles: {}", "has no such profile"),
]


@pytest.mark.parametrize(("text", "word"), WRONG, ids=["value", "field", "file", "name"])
async def test_a_wrong_profile_is_said_and_what_runs_goes_on_and_comes_back(world, text, word):
    await begun(world, STANDARD)
    world.set_fleet(text)
    await world.until(lambda: world.condition("SpecValid") == "False/Invalid")
    assert word in said(world, "SpecValid")
    world.driver().fail("internal", 1)
    await world.until(lambda: world.status().attempt.number == 2 and world.is_running())
    assert told(world)["driver"]["memory"] == "3Gi"
    world.set_fleet(STANDARD)
    await world.until(lambda: world.condition("SpecValid") == "True/Valid")
    await world.run(30)
    assert world.status().attempt.number == 2


async def test_a_job_that_never_ran_waits_for_its_profile_to_be_put_right(world):
    world.set_fleet("profiles: {}")
    world.apply(job(profile="standard"))
    await world.until(lambda: world.phase() == "Blocked")
    assert "standard" in world.status().message
    world.set_fleet(STANDARD)
    await world.until(world.is_running)


async def test_limits_refuse_an_edit_before_anything_is_stopped(world):
    await begun(world, "limits: {executors: 4}")
    world.edit(scaling__parallelism=16)
    await world.until(lambda: world.condition("SpecValid") == "False/Invalid")
    assert "makes 8 executors, and limits.executors is 4" in said(world, "SpecValid")
    await world.run(30)
    assert world.is_running()
    assert world.status().attempt.number == 1


async def test_limits_that_are_lowered_stop_nothing(world):
    await begun(world, "")
    world.set_fleet(f"namespaces: {{{world.namespace}: {{limits: {{parallelism: 1}}}}}}")
    await world.until(lambda: world.condition("SpecValid") == "False/Invalid")
    await world.run(60)
    assert world.is_running()
    assert world.status().attempt.number == 1


LOWERED = [
    "limits: {parallelism: 1, memory: 1Gi, images: ['registry.elsewhere/*']}",
    "limits: [",
    "profile: other\nprofiles: {}",
]


def states(world: World) -> set[str]:
    return {one.get("status", {}).get("state", "") for one in world.snapshots().values()}


BEYOND = pytest.mark.parametrize("text", LOWERED, ids=["limits", "file", "profile"])


@pytest.mark.scenario(83)
@BEYOND
async def test_what_runs_can_be_stopped_and_saved_whatever_the_fleet_file_says(world, text):
    await begun(world, "")
    world.set_fleet(text)
    await world.until(lambda: world.condition("SpecValid") == "False/Invalid")
    assert world.condition("Reconciled") == "True/UpToDate"
    world.annotate(savepoint="before")
    await world.until(lambda: "Completed" in states(world))
    world.driver().fail("internal", 1)
    await world.until(lambda: world.status().attempt.number == 2 and world.is_running())
    world.edit(desiredState="Suspended")
    await world.until(lambda: world.phase() == "Suspended")
    # What is to begin anew is judged.
    world.edit(desiredState="Running")
    await world.run(60)
    assert world.phase() == "Suspended"
    assert world.condition("SpecValid") == "False/Invalid"
    world.set_fleet("")
    await world.until(world.is_running)


@pytest.mark.scenario(83)
@BEYOND
async def test_what_runs_can_be_deleted_whatever_the_fleet_file_says(world, text):
    await begun(world, "")
    world.set_fleet(text)
    await world.until(lambda: world.condition("SpecValid") == "False/Invalid")
    world.delete()
    await world.until(lambda: world.object() is None)


@pytest.mark.scenario(83)
@pytest.mark.parametrize("text", LOWERED[:2], ids=["limits", "file"])
async def test_what_runs_can_become_smaller_and_not_larger(world, text):
    await begun(world, "", scaling={"parallelism": 8, "maxParallelism": 16})
    world.set_fleet(text)
    await world.until(lambda: world.condition("SpecValid") == "False/Invalid")
    world.edit(scaling__parallelism=12)
    await world.run(60)
    assert world.status().attempt.number == 1
    assert world.condition("Reconciled") == "False/SpecInvalid"
    world.edit(scaling__parallelism=4)
    await world.until(lambda: world.status().scaling.observed_parallelism == 4)
    await world.until(world.is_running)


async def test_a_policy_of_a_job_beyond_its_limits_is_followed_and_a_new_version_is_not(world):
    await begun(world, "")
    world.set_fleet(LOWERED[0])
    world.edit(ttlAfterFinished="9h")
    await world.run(30)
    assert world.condition("Reconciled") == "True/UpToDate"
    world.edit(image="registry.example/clicks:2")
    await world.until(lambda: world.condition("Reconciled") == "False/SpecInvalid")
    world.edit(desiredState="Suspended")
    await world.until(lambda: world.phase() == "Suspended")
    assert world.status().attempt.revision == world.status().reconciliation.current_revision


async def test_a_job_may_be_more_patient_than_the_operator(world):
    world.apply(job(operator={"startTimeout": "20m"}))
    await world.until(lambda: world.status().operation is not None)
    await world.until(lambda: world.status().operation.step == "Verifying")
    operation = world.status().operation
    assert (operation.deadline - world.status().attempt.started_at).total_seconds() == 1200


async def test_a_snapshot_of_a_job_that_never_ran_reaches_the_store_as_its_profile_says(world):
    """An import is verified by the job's own way to the store."""
    world.set_fleet(
        "profile: standard\nprofiles: {standard: {state: {credentialsSecretRef: {name: keys}}}}"
    )
    world.apply(job(desiredState="Suspended"))
    world.snapshot("imported", existingPath="s3://savepoints/elsewhere/before")
    await world.run(5)
    found = world.object()
    facts = await world.operator.reconciler._observer._job_facts(found)
    assert facts.spec.state.credentials_secret_ref.name == "keys"
    assert facts.newest.state.credentials_secret_ref.name == "keys"
