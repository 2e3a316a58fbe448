"""The retained checkpoints."""

import pytest

from moorage_state.coordinator import (
    CheckpointProperties,
    CheckpointRetentionPolicy,
    ClaimMode,
    CompletedCheckpointStore,
    JobStatus,
    SharedStateKey,
    TaskId,
)
from moorage_state.errors import Bug, UserError

STOP = CheckpointProperties.for_sync_savepoint(terminate=True)
KEY = SharedStateKey("db", "1.sst")


def ids(checkpoints):
    return [one.checkpoint_id for one in checkpoints]


def test_the_newest_are_retained_newest_last(completed):
    store = CompletedCheckpointStore(2)
    changes = [store.add(completed(n)) for n in (1, 2, 3)]
    assert ids(store.checkpoints) == [2, 3]
    assert ids(changes[2].discard) == [1]
    assert changes[2].notify_subsumed == 1


def test_one_is_retained_at_least():
    with pytest.raises(UserError, match="num_retained=0"):
        CompletedCheckpointStore(0)


def test_one_that_completes_after_a_newer_one_is_not_the_newest(completed):
    store = CompletedCheckpointStore(2)
    store.add(completed(2))
    store.add(completed(1))
    assert store.latest_id == 2


def test_a_checkpoint_is_added_once(completed):
    store = CompletedCheckpointStore(2)
    store.add(completed(1))
    with pytest.raises(Bug, match="checkpoint=1"):
        store.add(completed(1))


def test_savepoints_count_among_the_retained_and_go_without_being_discarded(completed):
    legacy = completed(1, CheckpointProperties.for_savepoint())
    store = CompletedCheckpointStore(1, recovered=[legacy])
    change = store.add(completed(2))
    assert ids(store.checkpoints) == [2]
    assert ids(change.subsumed) == [1]
    assert not change.discard
    assert change.notify_subsumed is None


def test_the_newest_checkpoint_stays_below_a_savepoint_that_the_job_goes_on_after(completed):
    store = CompletedCheckpointStore(1)
    store.add(completed(1))
    store.add(completed(2, CheckpointProperties.for_savepoint()))
    assert ids(store.checkpoints) == [1, 2]


def test_a_savepoint_that_the_job_stops_with_subsumes_every_checkpoint(completed):
    store = CompletedCheckpointStore(1)
    store.add(completed(1))
    change = store.add(completed(2, STOP))
    assert ids(store.checkpoints) == [2]
    assert ids(change.discard) == [1]


@pytest.mark.parametrize(
    ("policy", "discarding"),
    [
        ("NEVER_RETAIN_AFTER_TERMINATION", {"FINISHED", "CANCELED", "FAILED"}),
        ("RETAIN_ON_FAILURE", {"FINISHED", "CANCELED"}),
        ("RETAIN_ON_CANCELLATION", {"FINISHED"}),
    ],
)
@pytest.mark.parametrize("status", JobStatus)
def test_the_end_of_the_job_discards_what_was_agreed(completed, policy, discarding, status):
    properties = CheckpointProperties.for_checkpoint(CheckpointRetentionPolicy[policy])
    store = CompletedCheckpointStore(1)
    store.add(completed(1, properties))
    assert bool(store.shutdown(status).discard) == (status.name in discarding)
    assert store.latest is None


@pytest.mark.parametrize("status", JobStatus)
@pytest.mark.parametrize("properties", [STOP, CheckpointProperties.for_unclaimed_snapshot()])
def test_no_end_of_the_job_discards_a_savepoint(completed, status, properties):
    store = CompletedCheckpointStore(1, recovered=[completed(1, properties)])
    assert not store.shutdown(status).discard


def with_file(completed, checkpoint_id, handle, **fields):
    return completed(checkpoint_id, shared={TaskId("count", 0): {KEY: handle}}, **fields)


def add_using(store, checkpoint, handle):
    store.registry.register(KEY, handle, checkpoint.checkpoint_id)
    store.registry.checkpoint_completed(checkpoint.checkpoint_id)
    return store.add(checkpoint)


def test_shared_files_go_with_the_last_checkpoint_that_used_them(completed):
    store = CompletedCheckpointStore(1)
    add_using(store, completed(1), "one")
    assert add_using(store, completed(2), None).unused == ()
    assert store.add(completed(3)).unused == ("one",)


def test_the_base_of_a_pending_checkpoint_keeps_its_shared_files(completed):
    store = CompletedCheckpointStore(1)
    add_using(store, completed(1), "one")
    assert store.add(completed(2), pinned=[1]).unused == ()
    assert store.add(completed(3)).unused == ("one",)


def test_a_claimed_snapshot_goes_only_when_nothing_it_brought_is_used(completed):
    store = CompletedCheckpointStore(1)
    store.restored(with_file(completed, 1, "old"), ClaimMode.CLAIM)
    assert add_using(store, completed(2), None).discard == ()
    change = store.add(completed(3))
    assert ids(change.discard) == [1, 2]
    assert change.unused == ("old",)


def test_a_snapshot_that_was_not_claimed_is_never_discarded(completed):
    store = CompletedCheckpointStore(1)
    unclaimed = with_file(
        completed, 1, "old", properties=CheckpointProperties.for_unclaimed_snapshot()
    )
    store.restored(unclaimed, ClaimMode.NO_CLAIM)
    changes = [store.add(completed(2)), store.shutdown(JobStatus.FINISHED)]
    assert [ids(change.discard) for change in changes] == [[], [2]]
    assert [change.unused for change in changes] == [(), ()]


def test_a_snapshot_older_than_what_is_retained_cannot_be_restored_beside_it(completed):
    store = CompletedCheckpointStore(1, recovered=[completed(5)])
    with pytest.raises(Bug, match="snapshot=4 latest=5"):
        store.restored(completed(4), ClaimMode.CLAIM)
