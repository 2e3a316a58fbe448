"""A version that never becomes stable makes room for the one before it."""

import pytest

pytestmark = pytest.mark.scenarios

OLD, BAD, NEXT = (f"registry.example/clicks:{n}" for n in (1, 2, 3))
RULES = {"upgrade": {"rollback": {"enabled": True, "readinessTimeout": "5m"}}}


@pytest.fixture
async def stable(running):
    """A job whose version is stable."""
    running.edit(**RULES)
    await running.until(lambda: running.condition("Stable") == "True/Stable", 600)
    return running


def image(world):
    driver = world.driver()
    return driver.manifest["spec"]["image"] if driver is not None else ""


async def crashing(world, seconds, of=BAD, *, early=False):
    """Time passes, and drivers of this image fail as soon as they run, or before."""
    for _ in range(seconds):
        for driver in world.drivers.living:
            ran = driver.running_since is not None
            if driver.manifest["spec"]["image"] == of and (ran or early):
                driver.fail("user_function", 3)
        await world.run(1)


async def published(world, name=BAD):
    """A version that has completed checkpoints; returns the one that was stable before."""
    stable = world.status().reconciliation.stable_revision
    world.edit(image=name)
    await world.until(lambda: image(world) == name and world.report().completed_checkpoints > 1)
    return stable


@pytest.mark.scenario(56)
@pytest.mark.scenario(57)
async def test_a_version_that_only_crashes_is_rolled_back_to_where_the_old_one_stopped(stable):
    stable.edit(image=BAD)
    await crashing(stable, 420)
    await stable.until(lambda: image(stable) == OLD and stable.is_running())
    restored = stable.drivers.restored[-1]
    assert restored.epoch == restored.newest
    assert "RolledBack" in stable.events()
    reconciled = stable.status().condition("Reconciled")
    assert (reconciled.status, reconciled.reason) == ("False", "Rejected")
    assert "within 5m; UserCodeFailed: it broke" in reconciled.message
    await stable.run(600)
    assert image(stable) == OLD
    assert stable.condition("Stable") == "True/Stable"


@pytest.mark.scenario(56)
async def test_a_version_that_cannot_be_restored_is_rolled_back_at_once(stable):
    stable.drivers.habits.fail_restore = "restore_point_incompatible"
    stable.edit(image=BAD)
    await stable.until(lambda: "RollbackStarted" in stable.events(), 120)
    stable.drivers.habits.fail_restore = ""
    await stable.until(lambda: image(stable) == OLD and stable.is_running())
    assert not stable.status().blocked_reason


@pytest.mark.scenario(56)
async def test_a_version_whose_image_cannot_be_pulled_is_rolled_back_in_time(stable):
    stable.kubelet.image_error = "ImagePullBackOff"
    stable.edit(image=BAD)
    await stable.until(lambda: "RollbackStarted" in stable.events(), 420)
    stable.kubelet.image_error = ""
    await stable.until(lambda: image(stable) == OLD and stable.is_running())


@pytest.mark.scenario(56)
async def test_a_version_that_gets_nowhere_is_stopped_without_a_checkpoint(stable):
    stable.drivers.habits.stuck = True
    stable.edit(image=BAD, upgrade__mode="LastCheckpoint")
    await stable.until(lambda: "RollbackStarted" in stable.events(), 600)
    published = len(stable.buckets.completed("s3://state/clicks"))
    stable.drivers.habits.stuck = False
    await stable.until(lambda: image(stable) == OLD and stable.is_running())
    before = [d for d in stable.drivers.by_pod.values() if d.manifest["spec"]["image"] == BAD]
    assert all(driver.last_checkpoint is None for driver in before)
    assert published <= len(stable.buckets.completed("s3://state/clicks"))


async def test_a_version_that_is_slow_to_start_publishes_nothing_when_its_time_is_over(stable):
    stable.drivers.habits.restore = 310.0
    stable.edit(image=BAD)
    await stable.until(lambda: "RollbackStarted" in stable.events(), 420)
    stable.drivers.habits.restore = 3.0
    await stable.until(lambda: image(stable) == OLD and stable.is_running())
    slow = [d for d in stable.drivers.by_pod.values() if d.manifest["spec"]["image"] == BAD]
    assert len(slow) == 1
    assert slow[0].last_checkpoint is None
    assert stable.drivers.restored[-1].epoch == stable.drivers.restored[-2].epoch


@pytest.mark.scenario(86)
@pytest.mark.parametrize("publishes", [True, False])
async def test_what_nobody_could_read_is_read_before_a_version_makes_room(stable, publishes):
    stable.edit(image=BAD)
    await stable.until(lambda: image(stable) == BAD and stable.is_running())
    trial = stable.status().reconciliation.trial
    stable.drivers.habits.deaf = True  # what it does from now on is heard by nobody
    if publishes:
        await stable.run(25)
        assert stable.drivers.newest.last_checkpoint is not None
    stable.buckets.down = True
    stable.kubelet.image_error = "ImagePullBackOff"
    stable.kubelet.kill_container("clicks-2-driver", "Error")
    await stable.until(lambda: stable.condition("Stable") == "False/RollbackWaits", 600)
    assert stable.status().snapshots.last_checkpoint.id <= trial.checkpoint_id
    assert "RollbackStarted" not in stable.events()
    stable.buckets.down, stable.drivers.habits.deaf = False, False
    if publishes:
        await stable.until(lambda: stable.condition("Stable") == "False/RollbackBlocked", 60)
        assert "RollbackStarted" not in stable.events()
    else:
        stable.kubelet.image_error = ""
        await stable.until(lambda: image(stable) == OLD and stable.is_running(), 120)


@pytest.mark.scenario(73)
async def test_once_output_was_published_a_person_decides(stable):
    old = stable.status().reconciliation.stable_revision
    stable.edit(image=BAD)
    await stable.until(lambda: image(stable) == BAD and stable.report().completed_checkpoints > 1)
    at = stable.drivers.restored[-1].epoch
    await crashing(stable, 420)
    blocked = stable.status().condition("Stable")
    assert (blocked.status, blocked.reason) == ("False", "RollbackBlocked")
    assert f"moorage.dev/rollback={old}" in blocked.message
    assert "RollbackBlocked" in stable.events()
    assert "RollbackStarted" not in stable.events()
    stable.annotate(rollback=old)
    await crashing(stable, 60)
    await stable.until(lambda: image(stable) == OLD and stable.is_running())
    assert stable.drivers.restored[-1].epoch == at
    assert stable.drivers.restored[-1].explicit
    await stable.run(120)
    assert image(stable) == OLD


async def test_after_a_restore_it_is_said_that_going_back_leaves_what_was_restored(stable):
    at = stable.status().snapshots.last_checkpoint
    old = await published(stable)
    stopped = stable.drivers.restored[-1].epoch
    stable.edit(restore={"mode": "Path", "path": at.path, "nonce": 1})
    await stable.until(lambda: stable.drivers.restored[-1].path == at.path)
    await stable.until(lambda: stable.is_running() and stable.report().completed_checkpoints > 1)
    await crashing(stable, 420)
    blocked = stable.status().condition("Stable")
    assert (blocked.status, blocked.reason) == ("False", "RollbackBlocked")
    assert "what was restored since is left" in blocked.message
    assert "it goes on from before the upgrade" not in blocked.message
    assert "RollbackStarted" not in stable.events()
    stable.annotate(rollback=old)
    await crashing(stable, 60)
    await stable.until(lambda: image(stable) == OLD and stable.is_running())
    assert stable.drivers.restored[-1].epoch == stopped > at.epoch


async def test_a_version_that_becomes_stable_stays(stable):
    stable.edit(image=BAD)
    await stable.run(900)
    assert image(stable) == BAD
    assert stable.condition("Stable") == "True/Stable"
    assert stable.status().reconciliation.trial is None


@pytest.mark.scenario(57)
async def test_what_was_rolled_back_is_tried_again_when_a_person_says_so(stable):
    stable.drivers.habits.fail_restore = "restore_point_incompatible"
    stable.edit(image=BAD)
    await stable.until(lambda: "RollbackStarted" in stable.events(), 120)
    stable.drivers.habits.fail_restore = ""
    await stable.until(lambda: image(stable) == OLD and stable.is_running())
    stable.annotate(restart="try again")
    await stable.until(lambda: image(stable) == BAD and stable.is_running())


async def test_without_the_policy_a_bad_version_is_tried_for_ever(running):
    await running.until(lambda: running.condition("Stable") == "True/Stable", 600)
    running.edit(image=BAD)
    await crashing(running, 900)
    assert "RollbackStarted" not in running.events()


async def test_there_is_no_way_back_to_what_is_not_known(stable):
    stable.annotate(rollback="clicks-0000000000")
    await stable.run(10)
    assert "RollbackRefused" in stable.events()
    assert image(stable) == OLD
    assert len(stable.drivers.by_pod) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"upgrade__mode": "Stateless", "restore": {"acknowledgeStateLoss": True}},
        {"restore": {"mode": "Empty", "nonce": 1, "acknowledgeStateLoss": True}},
    ],
    ids=["stateless", "empty"],
)
async def test_one_that_began_with_nothing_is_not_followed_by_the_old_one_with_nothing(
    stable, other
):
    old, before = stable.status().reconciliation.stable_revision, stable.report().epoch
    stable.edit(image=BAD, **other)
    await crashing(stable, 420, early=True)
    assert "RollbackStarted" not in stable.events()
    assert stable.status().condition("Stable").reason == "RollbackBlocked"
    stable.annotate(rollback=old)
    await stable.until(lambda: image(stable) == OLD and stable.is_running())
    assert stable.drivers.restored[-1].epoch >= before


@pytest.mark.parametrize("how", ["blocked", "starting", "pulling"])
async def test_the_way_back_is_open_whatever_the_new_version_does(stable, how):
    if how == "blocked":
        stable.edit(failurePolicy={"maxRestarts": 2})
    old = await published(stable)
    if how == "pulling":
        stable.kubelet.image_error = "ImagePullBackOff"
        stable.driver().fail("user_function", 3)
        await stable.run(60)
    await crashing(stable, 240, early=how == "starting")
    assert bool(stable.status().blocked_reason) == (how == "blocked")
    stable.annotate(rollback=old)
    await stable.run(10)
    stable.kubelet.image_error = ""
    await stable.until(lambda: image(stable) == OLD and stable.is_running())


async def test_an_order_is_followed_once_and_never_for_a_later_version(stable):
    old = await published(stable)
    stable.annotate(rollback=old)
    await stable.until(lambda: image(stable) == OLD and stable.is_running())
    await stable.until(lambda: stable.condition("Stable") == "True/Stable", 600)
    await published(stable, NEXT)
    await stable.run(30)
    assert image(stable) == NEXT
    stable.annotate(rollback=None)
    await stable.run(5)
    stable.annotate(rollback=old)
    await stable.until(lambda: image(stable) == OLD and stable.is_running())


@pytest.mark.parametrize("how", ["corrected", "rescaled in place"])
async def test_what_was_published_counts_on_for_what_follows_on_trial(stable, how):
    await published(stable)
    first = stable.status().reconciliation.trial
    if how == "corrected":
        stable.edit(image=NEXT)
        await crashing(stable, 400, of=NEXT)
    else:
        stable.edit(executor__instances=3)
        await stable.until(lambda: "RescaledInPlace" in stable.events())
        await crashing(stable, 400)
    assert "RollbackStarted" not in stable.events()
    trial = stable.status().reconciliation.trial
    assert trial is None or trial.restore_point == first.restore_point


async def test_a_version_that_only_cannot_be_reached_runs_on(stable):
    stable.edit(image=BAD)
    await stable.until(lambda: stable.drivers.newest.manifest["spec"]["image"] == BAD)
    stable.drivers.newest.cut_off = True
    await stable.run(500)
    assert "RollbackStarted" not in stable.events()


async def test_a_version_whose_checkpoints_are_far_apart_has_the_time_for_them(running):
    running.edit(checkpoint={"interval": "900s"}, upgrade={"rollback": {"enabled": True}})
    await running.until(lambda: running.condition("Stable") == "True/Stable", 1500)
    running.edit(image=BAD)
    await running.run(1500)
    assert image(running) == BAD
    assert "RollbackStarted" not in running.events()


async def test_a_driver_that_another_one_fenced_is_not_followed_by_any(stable):
    stable.edit(image=BAD)
    for _ in range(120):
        for driver in stable.drivers.living:
            if image(stable) == BAD:
                driver.fail("fenced", 6, "another driver took the lineage over")
        await stable.run(1)
    assert "RollbackStarted" not in stable.events()
    assert stable.status().blocked_reason == "Fenced"


async def test_time_in_which_a_job_is_suspended_is_none_on_trial(stable):
    stable.kubelet.image_error = "ImagePullBackOff"
    stable.edit(image=BAD)
    await stable.run(60)
    stable.edit(desiredState="Suspended")
    await stable.until(lambda: stable.phase() == "Suspended")
    stable.kubelet.image_error = ""
    await stable.run(600)
    stable.edit(desiredState="Running")
    await stable.until(stable.is_running)
    assert image(stable) == BAD


async def test_a_restart_that_is_asked_for_meanwhile_tries_the_new_version_again(stable):
    stable.drivers.habits.fail_restore = "restore_point_incompatible"
    stable.edit(image=BAD)
    await stable.until(lambda: "RollbackStarted" in stable.events(), 120)
    stable.drivers.habits.fail_restore = ""
    stable.annotate(restart="try again")
    await stable.until(lambda: image(stable) == BAD and stable.is_running())


@pytest.mark.parametrize("moment", ["before the old one starts", "before it runs"])
async def test_another_version_that_is_asked_for_on_the_way_back_is_an_upgrade(stable, moment):
    done = stable.status().reconciliation
    stable.drivers.habits.fail_restore = "restore_point_incompatible"
    stable.edit(image=BAD)
    await stable.until(lambda: "RollbackStarted" in stable.events(), 120)
    stable.drivers.habits.fail_restore = ""
    if moment == "before it runs":
        old, stable.kubelet.image_error = done.stable_revision, "ImagePullBackOff"
        await stable.until(lambda: stable.status().attempt.revision == old)
        await stable.until(lambda: bool(stable.status().attempt.driver_uid))
        stable.kubelet.image_error = ""
    stable.edit(image=NEXT)
    kinds = []
    while not (image(stable) == NEXT and stable.is_running()):
        await stable.run(1)
        operation = stable.status().operation
        kinds += [operation.type] if operation is not None else []
    assert kinds[-1] == "Upgrade"
    assert "RolledBack" not in stable.events()


# -- output that may be taken back


async def retracting(world, **more):
    """A stable job that wants published output taken back, and a version that has published."""
    world.edit(upgrade={"rollback": {"retractOutput": True}, **more})
    return await published(world)


@pytest.mark.scenario(73)
async def test_where_every_sink_takes_output_back_and_a_person_wants_it_one_that_published_goes(
    stable,
):
    old = await retracting(stable)
    at = stable.drivers.restored[-1].epoch
    await crashing(stable, 420)
    await stable.until(lambda: image(stable) == OLD and stable.is_running())
    restored = stable.drivers.restored[-1]
    assert (restored.epoch, restored.explicit) == (at, True)
    assert stable.status().reconciliation.current_revision == old
    assert "RollbackBlocked" not in stable.events()
    await stable.run(600)
    assert image(stable) == OLD
    assert stable.condition("Stable") == "True/Stable"


@pytest.mark.scenario(73)
@pytest.mark.parametrize(
    ("sinks", "said"),
    [
        ({"out": "folder", "topic": ""}, "takes output back: topic"),
        ({"out": "another folder"}, "takes output back: out"),
        (None, "no driver of clicks-"),
    ],
    ids=["one cannot", "another folder", "nobody said"],
)
async def test_a_sink_that_cannot_take_its_output_back_is_named_and_a_person_decides(
    stable, sinks, said
):
    stable.edit(upgrade={"rollback": {"retractOutput": True}})
    await stable.run(10)
    stable.drivers.habits.sinks = sinks
    await published(stable)
    await crashing(stable, 420)
    blocked = stable.status().condition("Stable")
    assert (blocked.status, blocked.reason) == ("False", "RollbackBlocked")
    assert said in blocked.message
    assert "RollbackStarted" not in stable.events()


async def test_output_is_not_taken_back_to_a_checkpoint_that_may_be_gone(stable):
    await retracting(stable, mode="LastCheckpoint")
    await stable.until(lambda: stable.report().completed_checkpoints > 4)
    await crashing(stable, 420)
    assert "checkpoint.retain" in stable.status().condition("Stable").message
    assert "RollbackStarted" not in stable.events()


async def test_what_an_earlier_version_on_trial_published_is_of_its_sinks_too(stable):
    stable.edit(upgrade={"rollback": {"retractOutput": True}})
    await stable.run(10)
    stable.drivers.habits.sinks = {"out": "folder", "topic": ""}
    await published(stable)
    stable.drivers.habits.sinks = {"out": "folder"}
    await published(stable, NEXT)
    await crashing(stable, 420, of=NEXT)
    assert "takes output back: topic" in stable.status().condition("Stable").message


async def test_a_version_that_was_rescaled_in_place_on_trial_is_rolled_back_as_well(stable):
    scaling = {"mode": "InPlaceParallelism", "parallelism": 2, "maxParallelism": 16}
    stable.edit(scaling=scaling)
    await stable.until(lambda: stable.condition("Stable") == "True/Stable", 600)
    await retracting(stable)
    stable.edit(scaling__parallelism=4)
    await stable.until(lambda: "RescaledInPlace" in stable.events())
    await crashing(stable, 420)
    await stable.until(lambda: image(stable) == OLD and stable.is_running())


# -- a lag that grows


async def test_a_version_that_falls_behind_is_not_stable(stable):
    stable.drivers.habits.arrivals["clicks"] = 1000.0
    stable.drivers.habits.each = 100.0
    stable.edit(image=BAD, upgrade__rollback__retractOutput=True)
    await stable.until(lambda: image(stable) == BAD and stable.is_running())
    await stable.run(200)
    assert stable.condition("Stable") == "False/LagGrowing"
    assert stable.phase() == "Running"
    await stable.until(lambda: "RollbackStarted" in stable.events(), 300)


async def test_a_lag_that_may_grow_keeps_nobody_from_being_stable(stable):
    stable.drivers.habits.arrivals["clicks"] = 1000.0
    stable.drivers.habits.each = 100.0
    stable.edit(image=BAD, upgrade__rollback__stableAfter={"lagMayGrow": True})
    await stable.until(lambda: image(stable) == BAD and stable.is_running())
    await stable.until(lambda: stable.condition("Stable") == "True/Stable", 200)


async def test_one_that_only_falls_behind_is_given_more_subtasks(stable):
    stable.drivers.habits.arrivals["clicks"] = 1000.0
    stable.drivers.habits.each = 400.0
    scaler = {"enabled": True, "dryRun": False, "min": 1, "max": 8, "window": "60s"}
    width = {"parallelism": 1, "maxParallelism": 16, "mode": "InPlaceParallelism"}
    stable.edit(image=BAD, scaling={**width, "autoscaler": scaler})
    await stable.until(lambda: "RescaledInPlace" in stable.events(), 900)
    await stable.until(lambda: stable.condition("Stable") == "True/Stable", 1500)
    assert image(stable) == BAD
    assert "RollbackStarted" not in stable.events()


# -- figures that are older than the upgrade


async def test_a_driver_that_went_without_a_word_is_no_reason_to_hold_a_rollback_back(stable):
    """The status names an older checkpoint than the one that the new version began from."""
    stable.drivers.habits.deaf = True
    await stable.run(45)
    stable.kubelet.image_error = "ImagePullBackOff"
    stable.edit(image=BAD)
    stable.drivers.newest.kill()
    await stable.until(lambda: "RollbackStarted" in stable.events(), 500)
    stable.kubelet.image_error, stable.drivers.habits.deaf = "", False
    await stable.until(lambda: image(stable) == OLD and stable.is_running())
    restored = stable.drivers.restored[-1]
    assert restored.epoch == restored.newest


# -- what became of each


async def test_the_status_tells_what_became_of_each_version(stable):
    stable.edit(image=BAD)
    await crashing(stable, 420)
    await stable.until(lambda: image(stable) == OLD and stable.is_running())
    first, bad, again = stable.status().revisions
    assert (first.outcome, first.changed) == ("Stable", ())
    assert bad.changed == (f"spec.image: {OLD} -> {BAD}",)
    assert (bad.outcome, bad.attempt > 0) == ("RolledBack", True)
    assert "did not become stable" in bad.message
    assert (again.name, again.outcome) == (first.name, "")
    await stable.until(lambda: stable.condition("Stable") == "True/Stable", 600)
    assert stable.status().revisions[-1].outcome == "Stable"


async def test_a_version_that_never_ran_is_told_as_well_and_one_that_was_replaced(stable):
    stable.drivers.habits.preflight_fails = "no"
    stable.edit(image=BAD, upgrade={"preflight": True})
    await stable.until(lambda: "PreflightFailed" in stable.events())
    stable.drivers.habits.preflight_fails = ""
    stable.edit(image=NEXT)
    await stable.until(lambda: image(stable) == NEXT and stable.is_running())
    stable.edit(image="registry.example/clicks:4")
    await stable.until(lambda: image(stable).endswith(":4") and stable.is_running())
    found = stable.status().revisions
    assert [one.outcome for one in found] == ["Stable", "Rejected", "Superseded", ""]
    assert found[1].attempt == 0
    assert "no" in found[1].message
    assert found[2].changed == (f"spec.image: {OLD} -> {NEXT}",)


@pytest.mark.scenario(79)
async def test_a_clock_that_is_put_forward_makes_no_version_late_and_none_stable(stable):
    stable.drivers.habits.snapshot = 30.0
    stable.edit(image=NEXT)
    await stable.until(lambda: image(stable) == NEXT and stable.is_running())
    stable.operators_clock.put(900)
    await stable.run(30)
    assert "RollbackStarted" not in stable.events()
    assert stable.condition("Stable") == "False/NotYet"
    await stable.until(lambda: stable.condition("Stable") == "True/Stable", 400)
    assert image(stable) == NEXT


async def test_a_version_that_fails_has_no_more_time_after_a_clock_was_put_back(stable):
    stable.operators_clock.put(-3600)
    stable.kubelet.unschedulable = "no node has room"
    stable.edit(image=NEXT)
    await stable.until(lambda: "RollbackStarted" in stable.events(), 720)


@pytest.mark.scenario(56)
async def test_a_version_has_its_time_while_an_operator_sees_to_it(stable):
    stable.kubelet.unschedulable = "no node has room"
    stable.edit(image=NEXT)
    await stable.until(lambda: stable.status().attempt.number == 2)
    await stable.without_operator(720)
    await stable.run(200)
    assert "RollbackStarted" not in stable.events()
    stable.kubelet.unschedulable = ""
    await stable.until(lambda: stable.condition("Stable") == "True/Stable", 400)
    assert image(stable) == NEXT


@pytest.mark.parametrize("desired", ["Running", "Suspended"])
async def test_a_finished_version_that_is_rolled_back_has_not_finished_any_more(stable, desired):
    before = stable.status().reconciliation.stable_revision
    stable.edit(image=NEXT, ttlAfterFinished="10m")
    await stable.until(lambda: image(stable) == NEXT and stable.is_running())
    stable.drivers.habits.finish_at = stable.driver().epoch + 3
    await stable.until(lambda: stable.phase() == "Finished")
    stable.drivers.habits.finish_at = 0
    stable.edit(desiredState=desired)
    stable.annotate(rollback=before)
    if desired == "Suspended":
        await stable.run(30)
        assert not stable.drivers.living
        stable.edit(desiredState="Running")
    await stable.until(lambda: image(stable) == OLD and stable.is_running())
    await stable.run(900)
    assert stable.is_running()
    assert stable.status().finished_at is None
    assert stable.status().attempt.number == 3
