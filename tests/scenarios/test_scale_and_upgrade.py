"""New versions, other parallelism."""

import pytest
from moorage_testing.world.scene import SAVEPOINTS, job

pytestmark = pytest.mark.scenarios


@pytest.mark.scenario(50)
@pytest.mark.parametrize("parallelism", [17, 0])
async def test_a_parallelism_that_cannot_be_is_refused_and_the_job_runs_on(running, parallelism):
    told = running.refusal(job(scaling={"parallelism": parallelism, "maxParallelism": 16}))
    assert "parallelism" in told
    assert running.object()["spec"]["scaling"]["parallelism"] == 2
    await running.run(10)
    assert running.is_running()
    assert len(running.drivers.by_pod) == 1


@pytest.mark.scenario(51)
async def test_another_number_of_key_groups_is_refused_unless_the_state_is_given_up(running):
    scaling = {"parallelism": 2, "maxParallelism": 32}
    told = running.refusal(job(scaling=scaling))
    assert "maxParallelism is 32 and was 16: it is fixed for a lineage" in told
    assert running.object()["spec"]["scaling"]["maxParallelism"] == 16
    empty = {"mode": "Empty", "acknowledgeStateLoss": True, "nonce": 1}
    assert running.refusal(job(scaling=scaling, restore=empty)) == ""


@pytest.mark.scenario(52)
async def test_a_rescale_goes_by_a_checkpoint_and_loses_nothing(running):
    running.edit(scaling__parallelism=5, scaling__mode="InPlace")
    await running.until(
        lambda: running.is_running() and running.status().scaling.observed_parallelism == 5
    )
    assert running.drivers.restored[-1].epoch == running.drivers.restored[-1].newest
    assert len(running.drivers.by_pod) == 2
    running.edit(scaling__parallelism=5)
    await running.run(30)
    assert len(running.drivers.by_pod) == 2


@pytest.mark.scenario(52)
@pytest.mark.parametrize(("mode", "drivers"), [("InPlaceParallelism", 1), ("Restart", 2)])
async def test_of_two_rescales_the_last_one_wins(running, mode, drivers):
    running.edit(scaling__parallelism=3, scaling__mode=mode)
    await running.run(2)
    running.edit(scaling__parallelism=7)
    await running.until(
        lambda: running.is_running() and running.status().scaling.observed_parallelism == 7
    )
    assert len(running.drivers.by_pod) == drivers


async def test_a_parallelism_is_followed_where_the_mode_leaves_it_to_a_restart_meanwhile(running):
    running.edit(scaling__mode="InPlaceParallelism")
    await running.run(2)
    running.drivers.habits.deaf = True
    running.edit(scaling__parallelism=5)
    await running.until(lambda: getattr(running.status().operation, "step", "") == "Rescaling")
    running.edit(scaling__mode="InPlace")
    await running.run(3)
    running.drivers.habits.deaf = False
    await running.until(lambda: running.is_running() and running.status().operation is None, 600)
    assert running.driver().parallelism == 5
    assert running.condition("Reconciled") == "True/UpToDate"


@pytest.mark.parametrize("ends", ["set back", "preflight fails"])
async def test_a_rescale_in_place_that_an_edit_overtook_is_taken_back_where_nothing_comes_of_that(
    running, ends
):
    habits, image = running.drivers.habits, "registry.example/clicks:2"
    if ends == "preflight fails":
        habits.preflight_fails, habits.preflight_fails_of = "no", image
    running.edit(
        scaling__mode="InPlaceParallelism", upgrade={"preflight": bool(habits.preflight_fails)}
    )
    await running.run(2)
    running.edit(scaling__parallelism=5)
    await running.until(lambda: getattr(running.status().operation, "step", "") == "Rescaling")
    habits.deaf = True
    await running.until(lambda: running.driver().parallelism == 5)
    running.edit(image=image, scaling__parallelism=2)
    await running.until(lambda: running.status().operation.type == "Upgrade")
    if ends == "set back":
        running.edit(image="registry.example/clicks:1")
    habits.deaf = False
    await running.run(60)
    assert running.status().operation is None
    assert running.status().attempt.number == 1
    assert running.driver().parallelism == 2


async def test_a_rescale_in_place_that_was_overtaken_is_no_way_to_an_edit_without_room(running):
    habits = running.drivers.habits
    running.edit(scaling__mode="InPlaceParallelism", upgrade={"preflight": True})
    await running.run(2)
    running.edit(scaling__parallelism=5)
    await running.until(lambda: getattr(running.status().operation, "step", "") == "Rescaling")
    habits.deaf = True
    await running.until(lambda: running.driver().parallelism == 5)
    running.edit(image="registry.example/clicks:2", scaling__parallelism=2)
    await running.until(lambda: getattr(running.status().operation, "step", "") == "Preflight")
    running.set_quota(requests_memory="1Gi")
    running.edit(driver={"memory": "96Gi"})
    habits.deaf = False
    await running.run(60)
    assert running.driver().manifest["spec"]["image"] == "registry.example/clicks:1"
    assert running.condition("Reconciled") == "False/QuotaExceeded"
    running.set_quota(requests_memory="512Gi")
    await running.until(lambda: running.condition("Reconciled") == "True/UpToDate", 600)
    assert running.driver().manifest["spec"]["image"] == "registry.example/clicks:2"
    assert running.driver().parallelism == 2


async def test_another_number_of_executors_is_reached_while_the_stream_runs(running):
    running.edit(executor__instances=3)
    await running.until(lambda: "RescaledInPlace" in running.events())
    assert running.is_running()
    assert running.status().executors.ready == 3
    assert running.condition("Reconciled") == "True/UpToDate"
    assert len(running.drivers.by_pod) == 1


@pytest.mark.scenario(52)
async def test_with_its_mode_another_parallelism_is_reached_while_the_stream_runs(running):
    running.edit(scaling__mode="InPlaceParallelism")
    running.edit(scaling__parallelism=5)
    await running.until(lambda: "RescaledInPlace" in running.events())
    assert running.is_running()
    assert running.status().scaling.observed_parallelism == 5
    assert running.condition("Reconciled") == "True/UpToDate"
    running.edit(scaling__parallelism=3)
    await running.until(lambda: running.status().scaling.observed_parallelism == 3)
    assert len(running.drivers.by_pod) == 1
    running.drivers.newest.kill()
    await running.until(lambda: len(running.drivers.by_pod) == 2 and running.is_running())
    assert running.status().scaling.observed_parallelism == 3


@pytest.mark.scenario(53)
async def test_a_live_rescale_that_is_refused_is_done_by_a_checkpoint_and_a_restart(running):
    running.drivers.habits.rescale_fails = True
    running.edit(executor__instances=3)
    await running.until(lambda: len(running.drivers.by_pod) == 2 and running.is_running())
    assert "RescaleFallback" in running.events()
    assert running.drivers.restored[-1].epoch == running.drivers.restored[-1].newest > 0
    assert running.status().executors.desired == 3


@pytest.mark.scenario(53)
async def test_a_driver_that_dies_half_way_to_another_width_comes_back_with_it(running):
    running.drivers.habits.stuck = True
    running.edit(executor__instances=3)
    await running.run(3)
    assert running.phase() == "Rescaling"
    assert running.condition("Ready") == "True/Running"
    running.drivers.habits.stuck = False
    running.drivers.newest.kill()
    await running.until(lambda: len(running.drivers.by_pod) == 2 and running.is_running())
    assert running.status().executors.desired == 3
    assert running.drivers.restored[-1].epoch == running.drivers.restored[-1].newest > 0


@pytest.mark.scenario(55)
async def test_a_savepoint_upgrade_of_a_failing_job_falls_back_to_its_last_checkpoint(running):
    running.drivers.habits.savepoints_fail = 99
    running.edit(image="registry.example/clicks:2")
    await running.until(
        lambda: len(running.drivers.by_pod) == 2 and running.is_running(), seconds=1800
    )
    assert "UpgradeModeFallback" in running.events()
    assert running.drivers.restored[-1].epoch == running.drivers.restored[-1].newest > 0


@pytest.mark.scenario(55)
async def test_an_upgrade_waits_no_longer_for_a_savepoint_of_a_driver_that_hangs(running):
    running.edit(failurePolicy={"health": {"noProgressFor": "60s"}}, savepoint={"timeout": "30m"})
    await running.run(5)
    running.drivers.newest.hung = True
    began = running.elapsed
    running.edit(image="registry.example/clicks:2")
    await running.until(
        lambda: len(running.drivers.by_pod) == 2 and running.is_running(), seconds=1800
    )
    assert running.elapsed - began < 300
    assert "UpgradeModeFallback" in running.events()
    assert running.drivers.restored[-1].epoch == running.drivers.restored[-1].newest > 0


@pytest.mark.scenario(55)
async def test_whoever_wants_hanging_jobs_left_alone_has_an_upgrade_wait(running):
    actions = {"noProgress": "Alert"}
    running.edit(failurePolicy={"health": {"noProgressFor": "60s", "actions": actions}})
    await running.run(5)
    running.drivers.newest.hung = True
    running.edit(image="registry.example/clicks:2")
    await running.run(600)
    assert running.drivers.newest.alive
    running.drivers.newest.hung = False
    await running.until(
        lambda: len(running.drivers.by_pod) == 2 and running.is_running(), seconds=600
    )
    assert running.drivers.restored[-1].path.startswith(SAVEPOINTS)


@pytest.mark.scenario(55)
async def test_without_fallback_an_upgrade_waits_for_a_savepoint(running):
    running.edit(upgrade={"mode": "Savepoint", "fallback": "Wait"})
    await running.run(5)
    running.drivers.habits.savepoints_fail = 3
    running.edit(image="registry.example/clicks:2")
    await running.until(
        lambda: len(running.drivers.by_pod) == 2 and running.is_running(), seconds=1800
    )
    assert running.drivers.restored[-1].path.startswith(SAVEPOINTS)


async def test_an_upgrade_by_the_last_checkpoint_takes_no_savepoint(running):
    running.edit(upgrade={"mode": "LastCheckpoint"})
    await running.run(5)
    running.edit(image="registry.example/clicks:2")
    await running.until(lambda: len(running.drivers.by_pod) == 2 and running.is_running())
    assert not running.snapshots()
    assert running.drivers.restored[-1].epoch == running.drivers.restored[-1].newest > 0


async def test_a_restart_is_asked_for_by_annotation(running):
    running.annotate(restart="1")
    await running.until(lambda: len(running.drivers.by_pod) == 2 and running.is_running())
    await running.run(60)
    assert len(running.drivers.by_pod) == 2


async def test_an_edit_that_concerns_the_operator_alone_restarts_nothing(running):
    running.edit(failurePolicy={"maxRestarts": 7}, ttlAfterFinished="1h")
    await running.run(30)
    assert len(running.drivers.by_pod) == 1
    assert running.status().observed_generation == running.object()["metadata"]["generation"]
    assert running.condition("Reconciled").startswith("True")


async def test_a_driver_that_ignores_the_stop_is_ended_and_nothing_is_lost(running):
    running.drivers.habits.ignore_stop = True
    running.edit(image="registry.example/clicks:2")
    await running.until(
        lambda: len(running.drivers.by_pod) == 2 and running.is_running(), seconds=3600
    )
    assert running.drivers.restored[-1].epoch == running.drivers.restored[-1].newest > 0


async def test_suspend_and_resume_keep_every_epoch(running):
    running.edit(desiredState="Suspended")
    await running.until(lambda: running.phase() == "Suspended")
    assert not running.drivers.living
    assert not running.pods("executor")
    stopped_at = running.drivers.newest.epoch
    assert running.condition("Suspended").startswith("True")
    await running.run(600)
    running.edit(desiredState="Running")
    await running.until(running.is_running)
    assert running.drivers.restored[-1].epoch == stopped_at


async def test_a_job_that_is_suspended_from_the_start_starts_nothing(world):
    world.apply(job(desiredState="Suspended"))
    await world.run(60)
    assert world.phase() == "Suspended"
    assert not world.pods()
    world.edit(desiredState="Running")
    await world.until(world.is_running)


@pytest.mark.parametrize("acknowledged", [True, False])
@pytest.mark.parametrize("step", ["Snapshotting", "Verifying"])
async def test_a_stateless_upgrade_that_is_to_keep_state_before_it_ran_begins_with_it(
    running, step, acknowledged
):
    habits, kubelet = running.drivers.habits, running.kubelet
    if step == "Snapshotting":
        habits.ignore_stop = True
    else:
        kubelet.image_error = "ImagePullBackOff"
    leaves = {"acknowledgeStateLoss": True}
    running.edit(image="registry.example/clicks:2", upgrade={"mode": "Stateless"}, restore=leaves)
    await running.until(lambda: getattr(running.status().operation, "step", "") == step)
    running.edit(
        image="registry.example/clicks:3",
        upgrade={"mode": "LastCheckpoint"},
        restore={"acknowledgeStateLoss": acknowledged},
    )
    await running.run(5)
    habits.ignore_stop, kubelet.image_error = False, ""
    await running.until(lambda: running.is_running() and len(running.drivers.restored) == 2, 600)
    last = running.drivers.restored[-1]
    assert last.epoch == last.newest > 0
    assert running.driver().manifest["spec"]["image"] == "registry.example/clicks:3"


async def upgrade_in_vain(running, fallback="Wait"):
    """Ask for another version by a savepoint, of which none is ever taken."""
    running.drivers.habits.savepoints_fail = 1000
    rules = {"mode": "Savepoint", "fallback": fallback}
    running.edit(image="registry.example/clicks:2", upgrade=rules)
    await running.until(lambda: "SavepointFailed" in running.events())


@pytest.mark.parametrize("fallback", ["Wait", "Fail"])
async def test_an_upgrade_that_waits_for_a_savepoint_goes_on_where_none_is_wanted_any_more(
    running, fallback
):
    await upgrade_in_vain(running, fallback)
    running.edit(upgrade__mode="LastCheckpoint")
    await running.until(lambda: len(running.drivers.restored) == 2 and running.is_running(), 600)
    assert running.driver().manifest["spec"]["image"] == "registry.example/clicks:2"
    last = running.drivers.restored[-1]
    assert last.epoch == last.newest > 0
    assert running.condition("Reconciled") == "True/UpToDate"


@pytest.mark.parametrize("why", ["no savepoint", "no store"])
async def test_a_job_is_suspended_while_an_upgrade_of_it_waits(running, why):
    if why == "no store":
        running.buckets.down = True
        await running.until(lambda: running.report().storage_error)
    await upgrade_in_vain(running)
    running.edit(desiredState="Suspended")
    await running.run(2)
    assert running.phase() == "Suspending"
    await running.until(lambda: running.phase() == "Suspended", 3000)
    running.buckets.down = False
    running.edit(desiredState="Running")
    await running.until(running.is_running)
    assert running.driver().manifest["spec"]["image"] == "registry.example/clicks:2"
    last = running.drivers.restored[-1]
    assert last.epoch == last.newest > 0


async def test_an_upgrade_that_waits_and_of_which_a_rescale_is_left_is_done_as_one(running):
    await upgrade_in_vain(running)
    running.edit(image="registry.example/clicks:1", scaling__parallelism=4)
    await running.until(lambda: len(running.drivers.restored) == 2 and running.is_running(), 600)
    assert running.driver().parallelism == 4
    last = running.drivers.restored[-1]
    assert last.epoch == last.newest > 0


async def test_an_upgrade_waits_on_after_a_suspension_that_was_taken_back(running):
    await upgrade_in_vain(running)
    running.edit(desiredState="Suspended")
    await running.run(2)
    running.edit(desiredState="Running")
    await running.run(2000)
    assert running.phase() == "Upgrading"
    assert running.driver().manifest["spec"]["image"] == "registry.example/clicks:1"
    running.drivers.habits.savepoints_fail = 0
    await running.until(lambda: running.condition("Reconciled") == "True/UpToDate", 3000)
    assert running.driver().manifest["spec"]["image"] == "registry.example/clicks:2"


async def test_an_edit_without_room_that_overtakes_a_rescale_in_place_stops_nothing(running):
    running.edit(scaling__mode="InPlaceParallelism")
    await running.run(2)
    running.edit(scaling__parallelism=5)
    await running.until(lambda: getattr(running.status().operation, "step", "") == "Rescaling")
    running.set_quota(requests_memory="1Gi")
    running.edit(driver={"memory": "96Gi"})
    await running.run(60)
    assert running.is_running(), running.status().message
    assert running.condition("Reconciled") == "False/QuotaExceeded"
    assert running.report().parallelism == 5
    running.set_quota(requests_memory="512Gi")
    await running.until(lambda: running.condition("Reconciled") == "True/UpToDate", 3000)
    assert running.driver().manifest["spec"]["driver"]["memory"] == "96Gi"
