"""What a start begins from, and what it refuses."""

import pytest
from moorage_testing.world.scene import CHECKPOINTS, SAVEPOINTS, job

from moorage_state.snapshots import Checkpoint, Fence

pytestmark = pytest.mark.scenarios


@pytest.mark.scenario(29)
async def test_a_savepoint_that_is_not_there_blocks_and_names_the_path_tried(world):
    body = job(restore={"mode": "Path", "path": f"{SAVEPOINTS}/nowhere"})
    world.apply(body)
    await world.until(lambda: world.phase() == "Blocked")
    assert f"{SAVEPOINTS}/nowhere" in world.status().message
    assert not world.drivers.restored
    assert "RestorePointNotFound" in world.events()


@pytest.mark.scenario(29)
async def test_a_snapshot_object_that_is_not_there_blocks(world):
    world.apply(job(restore={"mode": "Snapshot", "snapshotName": "nowhere"}))
    await world.run(30)
    assert not world.drivers.restored
    assert "nowhere" in world.status().message


@pytest.mark.scenario(33)
async def test_an_emptied_directory_is_begun_with_by_nobodys_will_but_a_persons(running):
    """So it is with an endpoint that is edited alone: the directory of that name is another one."""
    await running.until(lambda: running.status().snapshots.last_checkpoint is not None)
    store = running.buckets.store(CHECKPOINTS)
    kept = {one.key: store.get(one.key) for one in store.list("")}
    for key in kept:
        store.delete(key)
    restored = len(running.drivers.restored)
    running.driver().kill()
    await running.until(lambda: running.phase() == "Blocked")
    last = running.status().snapshots.last_checkpoint.path.rpartition("/")[2]
    assert last in running.status().message
    assert "RestorePointNotFound" in running.events()
    # Brought back, a person has it tried once more.
    for one in list(store.list("")):
        store.delete(one.key)
    for key, data in kept.items():
        store.put(key, data)
    running.annotate(restart="brought back")
    await running.until(lambda: len(running.drivers.restored) > restored and running.is_running())
    assert running.drivers.restored[-1].epoch > 0
    for one in list(store.list("")):
        store.delete(one.key)
    running.driver().kill()
    await running.until(lambda: running.phase() == "Blocked")
    running.edit(restore={"mode": "Empty", "nonce": 1, "acknowledgeStateLoss": True})
    await running.until(running.is_running)
    assert running.drivers.restored[-1].epoch == 0
    # Before there is a checkpoint again, what was heard of before tells nothing.
    running.driver().kill()
    await running.until(lambda: running.drivers.restored[-1].attempt > 4)
    await running.until(running.is_running)


@pytest.mark.scenario(30)
@pytest.mark.scenario(31)
@pytest.mark.scenario(32)
@pytest.mark.parametrize("code", ["restore_point_corrupt", "restore_point_incompatible"])
async def test_a_restore_point_that_cannot_be_used_blocks_and_is_not_tried_for_ever(world, code):
    world.drivers.habits.fail_restore = code
    world.apply()
    await world.until(lambda: world.phase() == "Blocked")
    attempts = len(world.drivers.by_pod)
    await world.run(600)
    assert len(world.drivers.by_pod) == attempts


@pytest.mark.scenario(33)
async def test_a_job_that_failed_before_its_first_checkpoint_starts_again_from_its_restore_source(
    running,
):
    running.annotate(savepoint="seed")
    await running.until(lambda: running.buckets.has_savepoint(f"{SAVEPOINTS}/seed"))
    body = job("other", restore={"mode": "Path", "path": f"{SAVEPOINTS}/seed"})
    body["spec"]["checkpoint"] = {"interval": "1000s"}
    running.apply(body)
    await running.until(lambda: running.is_running("other"))
    first = running.drivers.restored[-1]
    running.driver("other").kill()
    await running.until(lambda: running.drivers.restored[-1].attempt == 2)
    await running.until(lambda: running.is_running("other"))
    assert running.drivers.restored[-1].epoch == first.epoch > 0


@pytest.mark.scenario(34)
async def test_a_start_that_keeps_failing_in_restore_ends_blocked(running):
    running.drivers.habits.fail_restore = "internal"
    running.drivers.newest.kill()
    await running.until(lambda: running.phase() == "Blocked", seconds=3600)
    assert running.status().blocked_reason == "RestoreFailing"
    running.drivers.habits.fail_restore = ""
    running.annotate(restart="again")
    await running.until(running.is_running)


@pytest.mark.scenario(35)
async def test_what_an_old_driver_completes_until_the_fence_is_restored_and_nothing_after_it(
    running,
):
    running.kubelet.lose_node()
    old = running.drivers.newest
    await running.until(lambda: len(running.drivers.restored) == 2, seconds=600)
    assert old.epoch > 40, "the old driver went on all the while"
    restored = running.drivers.restored[-1]
    assert restored.epoch == restored.newest
    await running.until(lambda: old.exit_code == 6)
    entries = running.buckets.entries(CHECKPOINTS)
    claimed = entries.index(next(e for e in entries if isinstance(e, Fence) and e.fence == 2))
    completed = [(at, e) for at, e in enumerate(entries) if isinstance(e, Checkpoint)]
    assert max(e.epoch for at, e in completed if at < claimed) == restored.epoch
    assert {e.fence for at, e in completed if at > claimed} <= {2}


@pytest.mark.scenario(36)
async def test_a_source_that_lost_the_next_offsets_blocks_the_job_and_nothing_is_skipped(running):
    why = "[KAFKA_DATA_LOSS.START_OFFSET_RESET] clicks-0 begins at 500, and 300 is next"
    running.drivers.newest.fail("source_offsets_lost", 2, why)
    await running.until(lambda: running.phase() == "Blocked")
    assert running.status().blocked_reason == "SourceOffsetsLost"
    assert "KAFKA_DATA_LOSS" in running.status().message
    await running.run(600, step=5.0)
    assert len(running.drivers.by_pod) == 1
    assert "spec.restore.onMissingOffsets: Skip" in running.status().message
    running.edit(restore={"onMissingOffsets": "Skip"})
    running.annotate(restart="what is lost is lost")
    await running.until(running.is_running)
    assert running.drivers.restored[-1].epoch == running.drivers.restored[-1].newest > 0


@pytest.mark.scenario(37)
async def test_a_higher_nonce_restores_once_and_recovery_goes_on_from_the_newest(running):
    running.annotate(savepoint="past")
    await running.until(lambda: running.buckets.has_savepoint(f"{SAVEPOINTS}/past"))
    await running.run(60)
    before = running.report().epoch
    running.edit(restore={"mode": "Path", "path": f"{SAVEPOINTS}/past", "nonce": 1})
    await running.until(lambda: len(running.drivers.by_pod) == 2 and running.is_running())
    assert running.drivers.restored[-1].epoch < before
    assert running.drivers.restored[-1].explicit
    await running.run(60)
    running.drivers.newest.kill()
    await running.until(lambda: len(running.drivers.by_pod) == 3 and running.is_running())
    assert not running.drivers.restored[-1].explicit
    assert running.drivers.restored[-1].epoch > running.drivers.restored[-2].epoch


async def test_restoring_from_a_snapshot_object_follows_its_path(running):
    running.annotate(savepoint="named")
    await running.until(
        lambda: (
            (running.snapshots().get("clicks-named") or {}).get("status", {}).get("state")
            == "Completed"
        )
    )
    await running.run(30)
    running.edit(restore={"mode": "Snapshot", "snapshotName": "clicks-named", "nonce": 1})
    await running.until(lambda: len(running.drivers.by_pod) == 2 and running.is_running())
    assert running.drivers.restored[-1].path == f"{SAVEPOINTS}/named"


async def test_an_empty_start_over_state_needs_an_acknowledgement(running):
    running.edit(restore={"mode": "Empty", "nonce": 1})
    await running.run(60)
    assert all(r.epoch or r.attempt == 1 for r in running.drivers.restored)
    assert "acknowledgeStateLoss" in str(running.object()["status"])
    running.edit(restore={"mode": "Empty", "nonce": 2, "acknowledgeStateLoss": True})
    await running.until(lambda: running.drivers.restored[-1].attempt > 1 and running.is_running())
    assert running.drivers.restored[-1].epoch == 0
