"""The retained checkpoints: what the log of a real lineage says, and what goes from it when."""

import pytest

from moorage_state.coordinator import (
    CheckpointRetentionPolicy,
    CompletedCheckpointStore,
    JobEnd,
)
from moorage_state.errors import Fenced, UserError
from moorage_state.snapshots import LogWriter, Owner, Retire, retained

Policy = CheckpointRetentionPolicy


def ids(entries):
    return [entry.checkpoint_id for entry in entries]


def store_of(lineage, retain=2, retention=None):
    return CompletedCheckpointStore(lineage.log, lineage.checkpoints, retain, retention)


def test_the_newest_are_retained_newest_last(lineage):
    store = store_of(lineage)
    for checkpoint_id in (1, 2, 3):
        lineage.complete(checkpoint_id)
    assert store.subsume().checkpoint_ids == (1,)
    assert ids(store.checkpoints) == [2, 3]


def test_what_another_hand_writes_into_the_log_is_what_the_store_says(lineage):
    store = store_of(lineage)
    assert store.checkpoints == ()
    lineage.complete(1)
    lineage.complete(2)
    lineage.log.append(Retire(lineage.log.fence, 2))
    assert ids(store.checkpoints) == [1]


def test_one_is_retained_at_least(lineage):
    with pytest.raises(UserError, match="max_retained=0"):
        store_of(lineage, retain=0)


def test_what_is_under_way_keeps_what_it_builds_on(lineage):
    store = store_of(lineage, retain=1)
    for checkpoint_id in (1, 2, 3):
        lineage.complete(checkpoint_id)
    store.subsume(pinned=[1])
    assert ids(store.checkpoints) == [1, 3]


ENDS = {
    None: set(),
    Policy.NEVER_RETAIN_AFTER_TERMINATION: {"FINISHED", "CANCELED", "FAILED"},
    Policy.RETAIN_ON_FAILURE: {"FINISHED", "CANCELED"},
    Policy.RETAIN_ON_CANCELLATION: {"FINISHED"},
}


@pytest.mark.parametrize("policy", ENDS)
@pytest.mark.parametrize("status", JobEnd)
def test_the_end_of_the_job_discards_what_was_agreed(lineage, policy, status):
    store = store_of(lineage, retention=policy)
    lineage.complete(1, "count")
    lineage.complete(2, "count")
    discards = status.name in ENDS[policy]
    assert store.shutdown(status) == (2 if discards else 0)
    assert ids(retained(lineage.log.entries)) == ([] if discards else [2, 1])
    left = [info.key for info in lineage.objects.list("chk-")]
    assert bool(left) != discards


def test_another_driver_that_took_over_keeps_its_checkpoints(lineage):
    store = store_of(lineage, retention=Policy.NEVER_RETAIN_AFTER_TERMINATION)
    lineage.complete(1)
    LogWriter.claim(lineage.objects, Owner("c", "n", "flights", "u"), "successor")
    with pytest.raises(Fenced):
        store.shutdown(JobEnd.FINISHED)
    assert [info.key for info in lineage.objects.list("chk-")]
