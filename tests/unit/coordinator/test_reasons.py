"""Every reason is raised by its situation, and counts as the table says."""

import pickle
import re
from pathlib import Path

import pytest

from moorage_state.coordinator import (
    CheckpointException,
    CheckpointFailureReason,
    CheckpointProperties,
    JobEnd,
)
from moorage_state.coordinator.failures import reason_of
from moorage_state.errors import (
    Bug,
    Fenced,
    LocalDiskError,
    StaleLease,
    StoreUnavailable,
    error_from_wire,
    error_to_wire,
)

Reason = CheckpointFailureReason
SITUATIONS = {}

# Pre-flight or not, counted or not: the union of the old names and those of 2.3, as executed there.
# The two legacy names that no longer exist there count no more than their kind.
TABLE = {
    "PERIODIC_SCHEDULER_SHUTDOWN": (True, False),
    "TOO_MANY_CHECKPOINT_REQUESTS": (True, False),
    "MINIMUM_TIME_BETWEEN_CHECKPOINTS": (True, False),
    "NOT_ALL_REQUIRED_TASKS_RUNNING": (True, False),
    "IO_EXCEPTION": (True, True),
    "BLOCKING_OUTPUT_EXIST": (True, False),
    "CHECKPOINT_ASYNC_EXCEPTION": (False, True),
    "CHANNEL_STATE_SHARED_STREAM_EXCEPTION": (False, False),
    "CHECKPOINT_EXPIRED": (False, True),
    "CHECKPOINT_SUBSUMED": (False, False),
    "CHECKPOINT_DECLINED": (False, True),
    "CHECKPOINT_DECLINED_TASK_NOT_READY": (False, False),
    "CHECKPOINT_DECLINED_TASK_CLOSING": (False, False),
    "CHECKPOINT_DECLINED_SUBSUMED": (False, False),
    "CHECKPOINT_DECLINED_TIME_OUT": (False, False),
    "CHECKPOINT_DECLINED_ALIGNMENT_LIMIT_EXCEEDED": (False, False),
    "CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER": (False, False),
    "CHECKPOINT_DECLINED_INPUT_END_OF_STREAM": (False, False),
    "CHECKPOINT_COORDINATOR_SHUTDOWN": (False, False),
    "CHECKPOINT_COORDINATOR_SUSPEND": (False, False),
    "JOB_FAILOVER_REGION": (False, False),
    "TASK_FAILURE": (False, False),
    "TASK_CHECKPOINT_FAILURE": (False, False),
    "UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE": (False, False),
    "FINALIZE_CHECKPOINT_FAILURE": (False, True),
    "TRIGGER_CHECKPOINT_FAILURE": (False, False),
}


def raises(reason):
    """Register the situation that raises a reason; it returns the harness and the future."""

    def register(situation):
        SITUATIONS[reason] = situation
        return situation

    return register


class BrokenCounter:
    """An id counter whose store does not answer."""

    def __init__(self, error):
        self.error = error

    def get_and_increment(self):
        raise self.error

    def set_count(self, value):
        raise AssertionError(value)


@raises(Reason.PERIODIC_SCHEDULER_SHUTDOWN)
def a_periodic_request_without_a_running_scheduler(make):
    h = make(tolerable=9, interval=10)
    return h, h.coordinator.trigger_checkpoint(is_periodic=True)


@raises(Reason.TOO_MANY_CHECKPOINT_REQUESTS)
def the_request_after_a_thousand_that_people_wait_for(make):
    h = make(tolerable=9)
    h.begin()
    for _ in range(1000):
        h.coordinator.trigger_checkpoint()
    return h, h.coordinator.trigger_checkpoint()


@raises(Reason.MINIMUM_TIME_BETWEEN_CHECKPOINTS)
def a_periodic_request_during_the_pause(make):
    h = make(tolerable=9, interval=60, min_pause=30)
    h.coordinator.start_checkpoint_scheduler()
    h.checkpoint()
    return h, h.coordinator.trigger_checkpoint(is_periodic=True)


@raises(Reason.NOT_ALL_REQUIRED_TASKS_RUNNING)
def a_range_that_is_leased_to_nobody(make):
    h = make(tolerable=9, ready=lambda: Reason.NOT_ALL_REQUIRED_TASKS_RUNNING)
    return h, h.coordinator.trigger_checkpoint()


@raises(Reason.IO_EXCEPTION)
def an_id_that_cannot_be_claimed(make):
    h = make(tolerable=9, ids=BrokenCounter(StoreUnavailable("s3 is down")))
    return h, h.coordinator.trigger_checkpoint()


@raises(Reason.BLOCKING_OUTPUT_EXIST)
def a_job_on_the_batch_backend(make):
    h = make(tolerable=9, ready=lambda: Reason.BLOCKING_OUTPUT_EXIST)
    return h, h.coordinator.trigger_checkpoint()


@raises(Reason.CHECKPOINT_EXPIRED)
def a_timeout(make):
    h = make(tolerable=9, timeout=60)
    checkpoint_id, future = h.begin()
    h.ack(checkpoint_id)
    h.wait(60)
    return h, future


@raises(Reason.CHECKPOINT_SUBSUMED)
def a_newer_checkpoint_that_completes_first(make):
    h = make(tolerable=9, max_concurrent=2)
    _, future = h.begin()
    h.checkpoint()
    return h, future


@raises(Reason.CHECKPOINT_DECLINED_TIME_OUT)
def a_boundary_that_does_not_come(make):
    h = make(tolerable=9, timeout=600, aligned_timeout=30)
    future = h.coordinator.trigger_checkpoint()
    h.wait(30)
    return h, future


@raises(Reason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER)
def an_epoch_that_the_driver_gave_up(make):
    h = make(tolerable=9)
    future = h.coordinator.trigger_checkpoint()
    h.coordinator.trigger_failed(1, Reason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER)
    return h, future


@raises(Reason.CHECKPOINT_DECLINED_INPUT_END_OF_STREAM)
def a_query_that_ended_before_the_boundary(make):
    h = make(tolerable=9)
    future = h.coordinator.trigger_checkpoint()
    h.coordinator.trigger_failed(1, Reason.CHECKPOINT_DECLINED_INPUT_END_OF_STREAM)
    return h, future


@raises(Reason.CHECKPOINT_COORDINATOR_SHUTDOWN)
def the_end_of_the_job(make):
    h = make(tolerable=9)
    _, future = h.begin()
    h.coordinator.shutdown(JobEnd.CANCELED)
    return h, future


@raises(Reason.CHECKPOINT_COORDINATOR_SUSPEND)
def a_lost_fence(make):
    h = make(tolerable=9)
    _, future = h.begin()
    h.coordinator.suspend()
    return h, future


@raises(Reason.JOB_FAILOVER_REGION)
def a_retried_stage(make):
    h = make(tolerable=9)
    checkpoint_id, future = h.begin()
    h.decline(checkpoint_id, Reason.JOB_FAILOVER_REGION)
    return h, future


@raises(Reason.TASK_FAILURE)
def a_lost_state_server(make):
    h = make(tolerable=9)
    checkpoint_id, future = h.begin()
    h.decline(checkpoint_id, Reason.TASK_FAILURE)
    return h, future


@raises(Reason.UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE)
def a_trigger_under_a_stale_lease(make):
    h = make(tolerable=9)
    future = h.coordinator.trigger_checkpoint()
    h.coordinator.trigger_failed(1, error=StaleLease("not leased here"))
    return h, future


@raises(Reason.FINALIZE_CHECKPOINT_FAILURE)
def a_manifest_that_cannot_be_written(make):
    h = make(tolerable=9)
    checkpoint_id, future = h.begin()
    h.ack_all(checkpoint_id)
    h.coordinator.finalize_failed(checkpoint_id, StoreUnavailable("s3 is down"))
    return h, future


@raises(Reason.TRIGGER_CHECKPOINT_FAILURE)
def an_error_that_nobody_expected(make):
    h = make(tolerable=9)
    future = h.coordinator.trigger_checkpoint()
    h.coordinator.trigger_failed(1, error=ZeroDivisionError("division by zero"))
    return h, future


# What a state server says for itself when it does not take part.
for declined in (
    Reason.CHECKPOINT_ASYNC_EXCEPTION,  # an upload failed
    Reason.CHANNEL_STATE_SHARED_STREAM_EXCEPTION,  # a range in the same packed file failed
    Reason.CHECKPOINT_DECLINED,  # it refuses
    Reason.CHECKPOINT_DECLINED_TASK_NOT_READY,  # it is restoring
    Reason.CHECKPOINT_DECLINED_TASK_CLOSING,  # it drains
    Reason.CHECKPOINT_DECLINED_SUBSUMED,  # it saw a newer one
    Reason.CHECKPOINT_DECLINED_ALIGNMENT_LIMIT_EXCEEDED,  # its overlay is over the limit
    Reason.TASK_CHECKPOINT_FAILURE,  # it could not hard-link
):

    def a_decline(make, reason=declined):
        h = make(tolerable=9)
        checkpoint_id, future = h.begin()
        h.decline(checkpoint_id, reason)
        return h, future

    SITUATIONS[declined] = a_decline


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.name)
def test_every_reason_is_raised_by_its_situation_and_counts_as_the_table_says(reason, make):
    h, future = SITUATIONS[reason](make)
    assert future.exception().reason is reason
    assert (reason.pre_flight, reason.counts) == TABLE[reason.name]
    assert h.failures.count == int(reason.counts)


@pytest.mark.parametrize("reason", Reason, ids=lambda reason: reason.name)
def test_every_reason_has_a_text_for_people_and_a_situation(reason):
    assert re.fullmatch(r"[a-z].*[^.]", reason.message)
    assert re.fullmatch(r"[A-Z].*\.", reason.__doc__)


def test_the_table_has_every_reason():
    assert set(TABLE) == {reason.name for reason in Reason}


def test_the_old_name_of_a_task_failure_is_the_same_reason():
    assert CheckpointFailureReason["TASK_FAILURE_DURING_CHECKPOINT"] is Reason.TASK_FAILURE


def test_the_documentation_has_every_reason_with_what_it_is():
    text = (Path(__file__).parents[3] / "docs" / "coordinator.md").read_text()
    text = text.partition("### Which of them a job meets")[0]
    rows = dict(re.findall(r"^\| `([A-Z_]+)` \| (.*) \|$", text, re.MULTILINE))
    expected = {
        r.name: f"{'yes' if r.pre_flight else '-'} | {'yes' if r.counts else '-'} | {r.__doc__}"
        for r in Reason
    }
    assert rows == expected


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError("full"), Reason.IO_EXCEPTION),
        (StoreUnavailable("down"), Reason.IO_EXCEPTION),
        (LocalDiskError("full"), Reason.IO_EXCEPTION),
        (StaleLease("gone"), Reason.UNKNOWN_TASK_CHECKPOINT_NOTIFICATION_FAILURE),
        (Fenced("newer"), Reason.CHECKPOINT_COORDINATOR_SUSPEND),
        (CheckpointException(Reason.CHECKPOINT_EXPIRED), Reason.CHECKPOINT_EXPIRED),
        (Bug("broken"), Reason.TRIGGER_CHECKPOINT_FAILURE),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_stands_for_a_reason(error, reason):
    assert reason_of(error) is reason


def test_input_and_output_are_found_beneath_what_was_made_of_them():
    wrapped = CheckpointException(Reason.TRIGGER_CHECKPOINT_FAILURE, "no", OSError("disk"))
    assert reason_of(wrapped) is Reason.IO_EXCEPTION


def test_an_exception_says_what_failed_and_why():
    error = CheckpointException(Reason.CHECKPOINT_EXPIRED)
    assert str(error) == "the checkpoint did not complete in time: reason=CHECKPOINT_EXPIRED"


@pytest.mark.parametrize(
    "carry", [lambda e: pickle.loads(pickle.dumps(e)), lambda e: error_from_wire(error_to_wire(e))]
)
def test_an_exception_crosses_process_boundaries_with_its_reason(carry):
    error = carry(CheckpointException(Reason.TASK_FAILURE, "gone: task=3"))
    assert isinstance(error, CheckpointException)
    assert (error.reason, str(error)) == (Reason.TASK_FAILURE, "gone: task=3: reason=TASK_FAILURE")


def test_an_id_that_is_not_new_fails_the_request_and_not_the_coordinator(make):
    h = make(ids=type("Stuck", (), {"get_and_increment": lambda _: 1})())
    _, first = h.begin(CheckpointProperties.for_savepoint())
    second = h.coordinator.trigger_savepoint()
    assert second.exception().reason is Reason.TRIGGER_CHECKPOINT_FAILURE
    assert not first.done
