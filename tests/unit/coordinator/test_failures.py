"""Failures in a row."""

import pytest

from moorage_state.coordinator import (
    CheckpointException,
    CheckpointFailureManager,
    CheckpointFailureReason,
    CheckpointProperties,
)
from moorage_state.coordinator.failures import Verdict
from moorage_state.errors import UserError

PLAIN = CheckpointProperties()
SAVEPOINT = CheckpointProperties.for_savepoint()
STOP = CheckpointProperties.for_sync_savepoint(terminate=False)
EXPIRED = CheckpointException(CheckpointFailureReason.CHECKPOINT_EXPIRED)
DECLINED = CheckpointException(CheckpointFailureReason.CHECKPOINT_DECLINED)
NOT_READY = CheckpointException(CheckpointFailureReason.CHECKPOINT_DECLINED_TASK_NOT_READY)
IO = CheckpointException(CheckpointFailureReason.IO_EXCEPTION)


def test_by_default_the_first_counted_failure_is_one_too_many():
    assert CheckpointFailureManager().failed(PLAIN, EXPIRED, 1).exceeded


def test_one_more_than_is_tolerated_is_too_many_and_clears_the_counter():
    manager = CheckpointFailureManager(2)
    verdicts = [manager.failed(PLAIN, EXPIRED, n).exceeded for n in (1, 2, 3, 4)]
    assert verdicts == [False, False, True, False]
    assert manager.count == 1


def test_a_newer_success_clears_the_counter():
    manager = CheckpointFailureManager(1)
    manager.failed(PLAIN, EXPIRED, 1)
    manager.succeeded(2)
    assert not manager.failed(PLAIN, EXPIRED, 3).exceeded


def test_an_older_success_clears_nothing():
    manager = CheckpointFailureManager(5)
    manager.succeeded(4)
    manager.failed(PLAIN, EXPIRED, 5)
    manager.succeeded(3)
    assert manager.count == 1


def test_a_failure_older_than_the_last_success_is_ignored():
    manager = CheckpointFailureManager()
    manager.succeeded(4)
    assert not manager.failed(PLAIN, EXPIRED, 3).exceeded


def test_a_checkpoint_counts_once():
    manager = CheckpointFailureManager(5)
    for _ in range(3):
        manager.failed(PLAIN, DECLINED, 1, on_task=True)
    assert manager.count == 1


def test_failures_without_an_id_count_each():
    manager = CheckpointFailureManager(5)
    for _ in range(3):
        manager.failed(PLAIN, IO)
    assert manager.count == 3


@pytest.mark.parametrize("properties", [SAVEPOINT, STOP])
@pytest.mark.parametrize("failure", [EXPIRED, IO])
def test_a_savepoint_that_fails_in_the_coordinator_never_counts(properties, failure):
    manager = CheckpointFailureManager()
    verdict = manager.failed(properties, failure, 1)
    assert (verdict, manager.count) == (Verdict(), 0)


def test_a_savepoint_that_a_task_declines_counts():
    assert CheckpointFailureManager().failed(SAVEPOINT, DECLINED, 1, on_task=True).exceeded


@pytest.mark.parametrize("failure", [DECLINED, NOT_READY])
def test_the_savepoint_of_a_stop_that_fails_on_a_task_fails_the_job_whatever_is_tolerated(failure):
    assert CheckpointFailureManager(None).failed(STOP, failure, 1, on_task=True).must_fail


def test_a_pre_flight_failure_is_never_a_tasks():
    assert not CheckpointFailureManager().failed(STOP, IO, 1, on_task=True).must_fail


def test_any_number_may_be_tolerated():
    manager = CheckpointFailureManager(None)
    assert not any(manager.failed(PLAIN, EXPIRED, n).exceeded for n in range(1, 50))


def test_a_negative_number_is_refused():
    with pytest.raises(UserError, match="tolerable_failures=-1"):
        CheckpointFailureManager(-1)
