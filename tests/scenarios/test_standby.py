"""A new version runs beside the old one, is judged, and takes over while all of it is warm."""

from typing import Any

import pytest
from moorage_testing.world.scene import job

from moorage_operator import objects

pytestmark = pytest.mark.scenarios

OLD, NEW, NEXT = (f"registry.example/clicks:{n}" for n in (1, 2, 3))
OBSERVED = {"observeFor": "20s"}
RULES: dict[str, Any] = {"strategy": "WarmStandby", "standby": OBSERVED}
WARM: dict[str, Any] = {"image": NEW, "upgrade": RULES}


def image(world):
    driver = world.driver()
    return driver.manifest["spec"]["image"] if driver is not None else ""


def standbys(world):
    return [driver for driver in world.drivers.living if driver.standby]


async def beside(world):
    """A job whose new version runs beside the old one."""
    world.edit(**WARM)
    await world.until(lambda: any(one.phase == "running" for one in standbys(world)))
    (found,) = standbys(world)
    return found


async def taken_over(world, name=NEW):
    def done():
        status = world.status()
        return image(world) == name and world.is_running() and status.operation is None

    await world.until(done, 600)


def untouched(world):
    """The old version has run on as if nothing had been edited."""
    assert image(world) == OLD
    assert world.is_running()
    assert world.status().attempt.number == 1
    assert [one.attempt for one in world.drivers.restored] == [1]
    assert world.drivers.living == [world.driver()]
    assert world.status().restarts.total == 0


@pytest.mark.scenario(71)
async def test_a_version_that_keeps_up_takes_over_with_the_driver_that_ran_beside(running):
    driver = await beside(running)
    assert image(running) == OLD
    assert running.condition("Ready") == "True/Running"
    assert running.condition("Reconciled") == "False/Standby"
    await taken_over(running)
    assert running.driver() is driver
    assert len(running.drivers.by_pod) == 2
    last = running.drivers.restored[-1]
    assert (last.attempt, last.epoch) == (2, last.newest)
    assert running.status().attempt.number == 2
    assert running.condition("Reconciled") == "True/UpToDate"
    assert {"StandbyReady", "StandbyPromoted", "DriverReady"} <= set(running.events())


@pytest.mark.scenario(71)
async def test_the_old_version_runs_until_the_new_one_has_kept_up_for_as_long_as_asked(running):
    running.edit(image=NEW, upgrade={"strategy": "WarmStandby"})
    await kept_up(running, 55)
    assert image(running) == OLD
    await taken_over(running)


async def test_the_condition_says_what_keeps_a_version_that_restores_from_getting_there(running):
    habits = running.drivers.habits
    habits.restore, habits.standby_says = 600.0, "2 checkpoints were let go before that"
    running.edit(image=NEW, upgrade={"strategy": "WarmStandby"})
    await running.run(20)
    reconciled = running.status().condition("Reconciled")
    assert (reconciled.status, reconciled.reason) == ("False", "Standby")
    assert "it is restoring (2 checkpoints were let go before that)" in reconciled.message


@pytest.mark.scenario(72)
async def test_a_version_that_fails_beside_the_old_one_is_given_up_and_says_why(running):
    running.drivers.habits.standby_fails = "it broke: line=3"
    running.edit(**WARM)
    await running.until(lambda: "StandbyFailed" in running.events())
    await running.run(120)
    untouched(running)
    reconciled = running.status().condition("Reconciled")
    assert (reconciled.status, reconciled.reason) == ("False", "Rejected")
    assert "it broke: line=3 (code user_function)" in reconciled.message
    assert running.events().count("StandbyFailed") == 1
    running.drivers.habits.standby_fails = ""
    running.annotate(restart="again")
    await taken_over(running)


@pytest.mark.scenario(72)
@pytest.mark.parametrize(
    ("habit", "value", "said"),
    [
        ("standby_behind", True, "was not good within 1m"),
        ("standby_bytes", 3 << 30, "maxStatePercent 200"),
        ("standby_rate", 40.0, "minRatePercent 50"),
    ],
)
async def test_a_version_that_does_worse_is_given_up(running, habit, value, said):
    setattr(running.drivers.habits, habit, value)
    rules = {"strategy": "WarmStandby", "standby": {"catchUpTimeout": "1m", **OBSERVED}}
    running.edit(image=NEW, upgrade=rules)
    await running.until(lambda: "StandbyFailed" in running.events(), 600)
    await running.run(30)
    untouched(running)
    assert said in running.status().condition("Reconciled").message


@pytest.mark.scenario(72)
@pytest.mark.parametrize("gives", [0.0, 1.0, 4.0])
async def test_a_version_that_gives_other_rows_is_given_up_where_that_was_asked_for(running, gives):
    running.drivers.habits.arrivals = {"clicks": 100.0}
    running.drivers.habits.standby_output, running.drivers.habits.load_window = gives, 30.0
    rules = {"maxOutputDifferencePercent": 20, **OBSERVED}
    running.edit(image=NEW, upgrade={"strategy": "WarmStandby", "standby": rules})
    await running.until(lambda: "StandbyFailed" in running.events(), 600)
    await running.run(30)
    untouched(running)
    said = running.status().condition("Reconciled").message
    assert (
        f"counts gives {gives:.2f} rows for each that it takes, and the old version's 2.00" in said
    )


@pytest.mark.parametrize(("gives", "most"), [(2.2, 20), (0.0, None)])
async def test_one_that_gives_about_as_many_or_that_nobody_compares_takes_over(
    running, gives, most
):
    running.drivers.habits.arrivals = {"clicks": 100.0}
    running.drivers.habits.standby_output, running.drivers.habits.load_window = gives, 30.0
    rules = {**({"maxOutputDifferencePercent": most} if most else {}), **OBSERVED}
    running.edit(image=NEW, upgrade={"strategy": "WarmStandby", "standby": rules})
    await taken_over(running)


async def test_what_it_gave_while_it_caught_up_is_not_compared(running):
    running.drivers.habits.arrivals = {"clicks": 100.0}
    running.drivers.habits.standby_output, running.drivers.habits.standby_behind = 4.0, True
    running.drivers.habits.load_window = 90.0
    rules = {"maxOutputDifferencePercent": 20, **OBSERVED}
    running.edit(image=NEW, upgrade={"strategy": "WarmStandby", "standby": rules})
    await running.until(lambda: standbys(running))
    await running.run(60)
    running.drivers.habits.standby_behind = False
    await kept_up(running, 40)
    said = running.status().condition("Reconciled").message
    assert "once all of scaling.autoscaler.window is since then" in said
    running.drivers.habits.standby_output = 2.0
    await taken_over(running)


async def test_it_waits_until_the_old_version_has_a_whole_window_as_well(running):
    running.drivers.habits.arrivals = {"clicks": 100.0}
    running.drivers.habits.load_window, running.drivers.habits.standby_output = 90.0, 4.0
    rules = {"maxOutputDifferencePercent": 20, **OBSERVED}
    running.edit(image=NEW, upgrade={"strategy": "WarmStandby", "standby": rules})
    await kept_up(running, 60)
    # As after a rewind, from which on it counts anew
    running.driver().parallel_since = running.clock.now()
    await running.run(60)
    assert "once all of scaling.autoscaler.window" in (
        running.status().condition("Reconciled").message
    )
    assert "StandbyFailed" not in running.events()
    await running.until(lambda: "StandbyFailed" in running.events(), 120)


async def test_one_whose_output_can_never_be_compared_in_time_is_given_up_and_says_why(running):
    running.drivers.habits.arrivals = {"clicks": 100.0}
    running.drivers.habits.load_window, running.drivers.habits.standby_behind = 180.0, True
    rules = {"maxOutputDifferencePercent": 20, "catchUpTimeout": "2m", **OBSERVED}
    running.edit(image=NEW, upgrade={"strategy": "WarmStandby", "standby": rules})
    await running.until(lambda: any(one.phase == "running" for one in standbys(running)))
    await running.run(30)
    running.drivers.habits.standby_behind = False
    await running.until(lambda: "StandbyFailed" in running.events(), 600)
    await running.run(30)
    untouched(running)
    said = running.status().condition("Reconciled").message
    assert "was not good within 2m: " in said
    assert "or a longer upgrade.standby.catchUpTimeout, gives it time" in said


def comparing(**rules):
    compare = {"samplePercent": 50, "minRows": 50, **rules}
    return {"strategy": "WarmStandby", "standby": {"compareOutputs": compare, **OBSERVED}}


@pytest.mark.scenario(72)
async def test_a_version_that_gives_rows_of_other_values_is_given_up_where_they_are_compared(
    running,
):
    running.drivers.habits.standby_differs = 10
    running.edit(image=NEW, upgrade=comparing(maxDifferingPercent=5))
    await running.until(lambda: "StandbyFailed" in running.events(), 600)
    await running.run(30)
    untouched(running)
    said = running.status().condition("Reconciled").message
    assert "its output is another one: of " in said
    assert "sampled rows of the sink out were given " in said
    assert "by the new version alone (hashes 0" in said
    assert "upgrade.standby.compareOutputs.maxDifferingPercent 5 allows fewer" in said


@pytest.mark.parametrize(("differs", "most"), [(0, 0), (50, 5)])
async def test_one_whose_rows_are_the_same_or_as_good_as_that_takes_over(running, differs, most):
    leader = running.driver()
    running.drivers.habits.standby_differs = differs
    running.edit(image=NEW, upgrade=comparing(maxDifferingPercent=most, exceptColumns=["at"]))
    await running.until(lambda: standbys(running))
    (beside,) = standbys(running)
    asked = leader.sampling
    assert (asked.percent, asked.except_columns, asked.seconds) == (50, ("at",), 1800)
    assert (beside.sampling.percent, beside.sampling.except_columns) == (50, ("at",))
    await taken_over(running)
    assert running.driver() is beside
    assert beside.sampling is None


async def test_nobody_is_asked_for_a_sample_where_none_is_compared(running):
    await beside(running)
    assert running.driver().sampling is None
    assert [one.sampling for one in standbys(running)] == [None]
    assert not running.driver().asked


async def test_too_few_rows_are_waited_for_and_said_when_the_time_is_over(running):
    rules = comparing(minRows=500)
    rules["standby"]["catchUpTimeout"] = "2m"
    running.edit(image=NEW, upgrade=rules)
    await running.until(lambda: "StandbyFailed" in running.events(), 600)
    await running.run(30)
    untouched(running)
    said = running.status().condition("Reconciled").message
    assert "was not good within 2m: " in said
    assert "compareOutputs.minRows 500 rows of the sample" in said


async def test_a_comparison_that_is_asked_for_meanwhile_is_made_with_another_driver(running):
    first = await beside(running)
    running.edit(upgrade=comparing())
    await running.until(lambda: standbys(running) and standbys(running) != [first], 300)
    await running.until(lambda: running.driver().sampling is not None)
    await taken_over(running)
    assert running.driver() is not first


async def test_an_old_version_that_cannot_tell_of_its_output_is_named_and_runs_on(running):
    leader = running.driver()
    leader.knows_samples = False
    rules = comparing()
    rules["standby"]["catchUpTimeout"] = "1m"
    running.edit(image=NEW, upgrade=rules)
    await running.until(lambda: "StandbyFailed" in running.events(), 600)
    await running.run(30)
    untouched(running)
    said = running.status().condition("Reconciled").message
    assert "upgrade it once without upgrade.standby.compareOutputs" in said


async def kept_up(world, seconds):
    """Run until the new version has kept up for so long."""

    def keeps_up():
        operation = world.status().operation
        return operation is not None and operation.standby.caught_up_since is not None

    await world.until(keeps_up)
    await world.run(seconds)


async def test_a_version_is_not_judged_by_a_moment_in_which_it_had_nothing_to_read(running):
    running.edit(**WARM)
    await kept_up(running, 16)
    running.drivers.habits.standby_rate = 0.0
    await running.run(6)
    running.drivers.habits.standby_rate = 100.0
    await taken_over(running)


async def test_nor_by_a_moment_in_which_it_read_as_much_as_the_old_one(running):
    running.drivers.habits.standby_rate = 30.0
    running.edit(**WARM)
    await kept_up(running, 16)
    running.drivers.habits.standby_rate = 100.0
    await running.until(lambda: "StandbyFailed" in running.events(), 60)
    await running.run(30)
    untouched(running)


@pytest.mark.parametrize("seconds", [17, 19, 45])
async def test_nor_by_the_moment_in_which_an_old_version_answers_that_did_not(running, seconds):
    running.drivers.habits.standby_rate = 40.0
    leader = running.driver()
    running.edit(**WARM)
    await running.until(lambda: standbys(running))
    leader.cut_off = True
    await kept_up(running, seconds)
    leader.cut_off = False
    await running.until(lambda: "StandbyFailed" in running.events(), 60)
    await running.run(30)
    untouched(running)
    assert "minRatePercent 50" in running.status().condition("Reconciled").message


async def test_nor_by_a_moment_in_which_the_old_version_did_not_answer(running):
    running.drivers.habits.standby_rate = 40.0
    running.edit(**WARM)
    await kept_up(running, 15)
    leader = running.driver()
    leader.cut_off = True
    await running.run(20)
    known = running.status().operation.standby
    assert known.message == "it keeps up, and is compared once the old version answers"
    leader.cut_off = False
    await running.until(lambda: "StandbyFailed" in running.events(), 60)
    await running.run(30)
    untouched(running)


async def test_an_old_version_that_answers_no_more_is_not_waited_for_for_ever(running):
    running.edit(checkpoint__timeout="1m")
    await beside(running)
    running.driver().cut_off = True
    await running.until(lambda: "StandbyReady" in running.events(), 90)
    await taken_over(running)


async def test_what_the_old_version_reads_again_after_a_rewind_is_not_asked_of_the_new_one(running):
    running.edit(**WARM)
    await kept_up(running, 16)
    leader = running.driver()
    leader.lose_executor()
    leader.rows += 100_000
    await taken_over(running)


async def test_a_store_that_is_away_is_no_fault_of_the_version(running):
    running.buckets.down = True
    running.edit(**WARM)
    await running.run(100)
    assert "StandbyFailed" not in running.events()
    operation = running.status().operation
    assert operation.standby.waits > 1
    assert "another one is made in" in running.status().condition("Reconciled").message
    # Not one after the other for as long as it is away
    assert operation.standby.attempt < 8
    running.buckets.down = False
    await taken_over(running)


async def test_a_store_that_stays_away_longer_than_the_version_has_is_said(running):
    rules = {"strategy": "WarmStandby", "standby": {"catchUpTimeout": "1m", **OBSERVED}}
    running.buckets.down = True
    running.edit(image=NEW, upgrade=rules)
    await running.until(lambda: "StandbyFailed" in running.events(), 300)
    running.buckets.down = False
    await running.run(30)
    untouched(running)
    assert "was not good within 1m" in running.status().condition("Reconciled").message


@pytest.mark.scenario(72)
async def test_what_a_person_does_meanwhile_ends_it_and_the_old_version_runs_on(running):
    await beside(running)
    running.edit(image=OLD)
    await running.run(30)
    untouched(running)
    assert "OperationCancelled" in running.events()
    assert running.condition("Reconciled") == "True/UpToDate"


async def test_another_edit_meanwhile_takes_its_place(running):
    await beside(running)
    running.edit(image=NEXT)
    await taken_over(running, NEXT)
    assert len(running.drivers.by_pod) == 3
    assert [one.attempt for one in running.drivers.restored] == [1, 3]


def width(world):
    return world.status().scaling.observed_parallelism


WIDTH = {"parallelism": 2, "maxParallelism": 16, "mode": "InPlaceParallelism"}


@pytest.mark.scenario(85)
async def test_a_parallelism_that_is_written_again_and_again_meanwhile_waits_for_it(world):
    world.apply(job(scaling=WIDTH))
    await world.until(lambda: world.is_running() and world.report().last_checkpoint is not None)
    world.drivers.habits.standby_behind = True
    driver = await beside(world)
    until = world.status().operation.deadline
    for wish in (3, 4, 6, 5):
        world.edit(scaling__parallelism=wish)
        await world.run(120)
        assert standbys(world) == [driver]
    assert world.status().operation.deadline == until
    assert "OperationCancelled" not in world.events()
    assert "RescaleHeld" in world.events()
    reconciled = world.status().condition("Reconciled")
    assert reconciled.reason == "Standby"
    assert "5 subtasks are asked for while a version with 2 is tried" in reconciled.message
    world.drivers.habits.standby_behind = False
    await world.until(lambda: width(world) == 5 and world.status().operation is None, 600)
    assert image(world) == NEW
    assert world.driver() is driver
    assert len(world.drivers.by_pod) == 2
    assert world.condition("Reconciled") == "True/UpToDate"


@pytest.mark.scenario(85)
@pytest.mark.parametrize("step", ["Snapshotting", "Verifying"])
async def test_nor_does_one_that_is_written_as_it_takes_over_end_its_driver(world, step):
    world.apply(job(scaling=WIDTH))
    await world.until(lambda: world.is_running() and world.report().last_checkpoint is not None)
    driver = await beside(world)
    await world.until(lambda: world.status().operation.step == step, 300)
    world.edit(scaling__parallelism=4)
    await world.until(lambda: width(world) == 4 and world.status().operation is None, 300)
    assert world.driver() is driver
    assert image(world) == NEW
    assert [one.attempt for one in world.drivers.restored] == [1, 2]


@pytest.mark.scenario(85)
async def test_what_runs_gets_it_where_the_version_is_given_up(world):
    world.apply(job(scaling=WIDTH))
    await world.until(lambda: world.is_running() and world.report().last_checkpoint is not None)
    world.drivers.habits.standby_behind = True
    rules = {"strategy": "WarmStandby", "standby": {"catchUpTimeout": "2m", **OBSERVED}}
    world.edit(image=NEW, upgrade=rules)
    await world.run(30)
    world.edit(scaling__parallelism=4)
    await world.until(lambda: width(world) == 4 and world.status().operation is None, 300)
    assert image(world) == OLD
    assert "StandbyFailed" in world.events()
    assert world.condition("Reconciled") == "False/Rejected"
    assert world.drivers.living == [world.driver()]


async def test_a_job_that_is_suspended_or_deleted_meanwhile_leaves_nothing(running):
    await beside(running)
    running.edit(desiredState="Suspended")
    await running.until(lambda: running.phase() == "Suspended" and not running.drivers.living)
    assert [one.attempt for one in running.drivers.restored] == [1]


async def test_a_strategy_that_is_changed_meanwhile_is_followed(running):
    await beside(running)
    running.edit(upgrade={"strategy": "Restart"})
    await taken_over(running)
    assert [one.attempt for one in running.drivers.restored] == [1, 3]


async def test_an_old_version_that_fails_meanwhile_is_followed_by_the_new_one(running):
    await beside(running)
    running.driver().fail("user_function", 3)
    await taken_over(running)
    last = running.drivers.restored[-1]
    assert last.epoch == last.newest


async def test_a_driver_that_the_cluster_takes_away_is_made_again_and_no_fault_of_the_version(
    running,
):
    first = await beside(running)
    running.kubelet.drain(first.pod)
    await running.until(lambda: standbys(running) and standbys(running) != [first], 300)
    await taken_over(running)
    assert running.driver().order.attempt == 3


async def test_a_driver_that_dies_when_it_is_to_lead_is_followed_by_an_ordinary_start(running):
    driver = await beside(running)
    await running.until(lambda: running.status().operation.step != "Standby")
    driver.kill()
    await taken_over(running)
    last = running.drivers.restored[-1]
    assert last.epoch == last.newest
    assert running.driver() is not driver


async def test_pods_beside_the_jobs_do_not_count_where_evictions_are_held_up(running):
    running.edit(failurePolicy={"disruptionBudget": {"driver": True}})
    await beside(running)
    await running.run(5)
    assert protected(running, "driver") == ["clicks-1-driver"]
    await taken_over(running)
    await running.run(5)
    assert protected(running, "driver") == ["clicks-2-driver"]


def protected(world, role):
    """The pods that a PodDisruptionBudget keeps from eviction."""
    [found] = [
        one
        for one in world.api.list("PodDisruptionBudget")
        if one["metadata"]["name"] == f"clicks-{role}"
    ]
    wanted = found["spec"]["selector"]["matchLabels"].items()
    pods = [one["metadata"] for one in world.api.list("Pod")]
    return [pod["name"] for pod in pods if wanted <= pod["labels"].items()]


async def test_a_driver_without_room_says_what_it_waits_for(running):
    running.kubelet.unschedulable = "0/1 nodes are available: insufficient memory"
    running.edit(**WARM)
    await running.run(10)
    assert "insufficient memory" in running.status().condition("Reconciled").message
    assert image(running) == OLD
    running.kubelet.unschedulable = ""
    await taken_over(running)


async def test_executors_that_the_api_server_does_not_take_are_named(running):
    def admission(body):
        role = body["metadata"]["labels"]["moorage.dev/role"]
        return "no such class" if role == "executor" else ""

    running.api.admission = admission
    running.drivers.habits.restore = 3600.0  # as one that has no executors
    running.edit(**WARM)
    await running.run(90)
    assert running.condition("Reconciled") == "False/Standby"
    said = running.status().condition("Reconciled").message
    assert "takes no executor: " in said
    assert "no such class" in said
    assert running.condition("Ready") == "True/Running"
    assert image(running) == OLD


async def test_an_operator_without_a_status_keeps_the_driver_that_has_the_lineage(running):
    await beside(running)
    leader = running.driver()
    found = running.object()
    running.api.replace_status({**found, "status": {}})
    await running.run(5)
    assert running.driver() is leader
    assert leader.alive


@pytest.mark.scenario(76)
async def test_an_operator_that_does_not_know_the_step_holds_the_job_as_it_is(running, monkeypatch):
    """As after `helm rollback`: it reads format 1 and knows no step Standby."""
    beside_it, leader = await beside(running), running.driver()
    before = running.object()["status"]
    with monkeypatch.context() as older:
        older.setattr(objects, "STATUS_FORMAT", 1)
        running.edit(image=NEXT)
        await running.run(120)
        assert running.driver() is leader
        assert running.drivers.living == [leader, beside_it]
        status = running.object()["status"]
        [held] = [one for one in status["conditions"] if one["type"] == "Blocked"]
        assert (held["status"], held["reason"]) == ("True", "OperatorTooOld")
        assert "format 2 and this operator knows up to 1" in held["message"]
        rest = [one for one in before["conditions"] if one["type"] != "Blocked"]
        assert {**status, "conditions": ()} == {**before, "conditions": ()}
        assert [one for one in status["conditions"] if one is not held] == rest
    await taken_over(running, NEXT)
    assert running.condition("Blocked") == "False/NotBlocked"
    assert running.object()["status"]["format"] == 1
    assert [one.attempt for one in running.drivers.restored] == [1, 3]


async def test_nor_does_it_wait_for_a_driver_that_nobody_told_to_lead(running, monkeypatch):
    driver = await beside(running)
    await running.until(lambda: running.status().attempt.number == 2)
    assert driver.standby
    assert running.object()["status"]["format"] == 2
    with monkeypatch.context() as older:
        older.setattr(objects, "STATUS_FORMAT", 1)
        await running.run(60)
        assert running.driver() is driver
    await taken_over(running)
    assert running.object()["status"]["format"] == 1


async def test_a_preflight_comes_first(running):
    running.edit(image=NEW, upgrade={**RULES, "preflight": True})
    await taken_over(running)
    told = running.events()
    assert told.index("PreflightPassed") < told.index("StandbyPromoted")


async def test_a_job_without_a_checkpoint_is_upgraded_by_a_restart(world):
    world.apply(job(checkpoint={"interval": "3600s"}))
    await world.until(world.is_running)
    world.edit(**WARM)
    await taken_over(world)
    assert "StandbyReady" not in world.events()


@pytest.mark.scenario(72)
async def test_a_version_beside_has_its_time_while_an_operator_looks_at_it(running):
    running.drivers.habits.standby_behind = True
    standby = {"observeFor": "20s", "catchUpTimeout": "5m"}
    running.edit(image=NEW, upgrade={"strategy": "WarmStandby", "standby": standby})
    await running.until(lambda: any(one.phase == "running" for one in standbys(running)))
    (driver,) = standbys(running)
    await running.without_operator(720)
    await running.run(200)
    assert "StandbyFailed" not in running.events()
    running.drivers.habits.standby_behind = False
    await taken_over(running)
    assert running.driver() is driver
