"""What the coordinator does with requests, messages, answers and time: each rule a sentence."""

import pytest

from moorage_state.coordinator import (
    AcknowledgeCheckpoint,
    CheckpointException,
    CheckpointFailureReason,
    CheckpointIdCounter,
    CheckpointProperties,
    CheckpointType,
    FailJob,
    FinalizeCheckpoint,
    JobEnd,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    TaskId,
    ToleranceAction,
    ToleranceExceeded,
    TriggerTasks,
)
from moorage_state.coordinator.checkpoint import MessageOutcome
from moorage_state.coordinator.effects import ScheduleAt
from moorage_state.errors import AlreadyExists, Bug, UserError

Reason = CheckpointFailureReason
SAVEPOINT = CheckpointProperties.for_savepoint()


# A checkpoint's way.


def test_a_checkpoint_is_triggered_acknowledged_finalized_and_told(make):
    h = make()
    future = h.coordinator.trigger_checkpoint()
    h.coordinator.triggered(1)
    h.finish(1)
    h.drain()
    kinds = [type(effect) for effect in h.effects if not isinstance(effect, ScheduleAt)]
    assert kinds == [TriggerTasks, FinalizeCheckpoint, NotifyCheckpointComplete]
    assert future.result().states == {task: f"count-{task.subtask}@1" for task in h.tasks}
    assert h.latest_id == 1


def test_one_missing_acknowledgement_holds_it_back(make):
    h = make()
    h.begin()
    h.ack(1)
    assert not h.all(FinalizeCheckpoint)


def test_acknowledgements_may_come_before_the_trigger_is_over(make):
    h = make()
    h.coordinator.trigger_checkpoint()
    h.ack_all(1)
    assert not h.all(FinalizeCheckpoint)
    h.coordinator.triggered(1)
    assert h.ids(FinalizeCheckpoint) == [1]


def test_a_job_without_stateful_tasks_completes_at_the_boundary(make):
    h = make(tasks=())
    h.begin()
    assert h.ids(FinalizeCheckpoint) == [1]


def test_a_listener_finds_the_coordinator_at_rest_and_may_call_it(make):
    h = make()
    _, future = h.begin()
    again = []
    future.add_done_callback(lambda _: again.append(h.coordinator.trigger_checkpoint()))
    h.finish(1)
    assert h.ids(TriggerTasks) == [1, 2]
    assert not again[0].done


def test_the_fault_of_a_listener_does_not_stop_the_coordinator(make, caplog):
    h = make()
    _, future = h.begin()
    future.add_done_callback(lambda _: 1 / 0)
    h.finish(1)
    assert h.latest_id == 1
    assert "ZeroDivisionError" in caplog.text


def test_a_place_of_its_own_is_for_savepoints(make):
    with pytest.raises(UserError, match=r"location=s3://b/x"):
        make().coordinator.trigger_checkpoint(None, "s3://b/x")


def test_the_place_of_a_savepoint_reaches_the_tasks_and_the_finalization(make):
    h = make()
    h.coordinator.trigger_savepoint("s3://b/x")
    h.coordinator.triggered(1)
    h.ack_all(1)
    assert h.all(TriggerTasks)[0].options.target_location == "s3://b/x"
    assert h.all(FinalizeCheckpoint)[0].external_location == "s3://b/x"


# Several at once.


def test_a_second_request_waits_for_the_first_and_then_starts(make):
    h = make()
    h.begin()
    h.coordinator.trigger_checkpoint()
    assert h.ids(TriggerTasks) == [1]
    h.finish(1)
    assert h.ids(TriggerTasks) == [1, 2]


def test_a_savepoint_starts_beside_the_most_that_may_be_pending(make):
    h = make()
    h.begin()
    h.coordinator.trigger_savepoint()
    assert h.coordinator.pending_ids == (1, 2)


def test_nothing_starts_while_a_trigger_waits_for_its_boundary_not_even_a_savepoint(make):
    h = make(max_concurrent=3)
    h.coordinator.trigger_checkpoint()
    h.coordinator.trigger_savepoint()
    assert h.coordinator.pending_ids == (1,)
    h.coordinator.triggered(1)
    assert h.coordinator.pending_ids == (1, 2)


def test_a_newer_checkpoint_subsumes_older_checkpoints_but_no_savepoint_and_no_forced_one(make):
    h = make(max_concurrent=4)
    futures = [
        h.begin(properties)[1]
        for properties in (None, SAVEPOINT, CheckpointProperties(forced=True), None)
    ]
    h.finish(4)
    assert [future.done for future in futures] == [True, False, False, True]
    assert futures[0].exception().reason is Reason.CHECKPOINT_SUBSUMED


def test_a_plain_savepoint_subsumes_nothing_is_not_retained_and_not_told(make):
    h = make()
    h.begin()
    future = h.coordinator.trigger_savepoint()
    h.coordinator.triggered(2)
    h.finish(2)
    assert future.result().checkpoint_id == 2
    assert h.coordinator.pending_ids == (1,)
    assert h.latest_id == 0
    assert not h.all(NotifyCheckpointComplete)


def test_checkpoints_are_finalized_one_at_a_time_in_the_order_they_were_acknowledged(make):
    h = make(max_concurrent=2)
    h.begin()
    h.begin(SAVEPOINT)
    h.ack_all(2)
    h.ack_all(1)
    assert h.ids(FinalizeCheckpoint) == [2]
    h.finalize(2)
    assert h.ids(FinalizeCheckpoint) == [2, 1]


# Messages that nobody waits for.


def test_a_task_counts_once(make):
    h = make()
    h.begin()
    h.ack(1)
    assert h.ack(1, state="again") is MessageOutcome.DUPLICATE
    h.ack(1, h.tasks[1])
    assert h.all(FinalizeCheckpoint)[0].states[h.tasks[0]] != "again"


def test_an_unknown_task_changes_nothing_and_the_checkpoint_goes_on(make):
    h = make()
    h.begin()
    assert h.ack(1, TaskId("count", 9), "stray") is MessageOutcome.UNKNOWN_TASK
    assert h.coordinator.pending_ids == (1,)


def test_what_comes_after_the_failure_comes_late(make):
    h = make(timeout=60)
    h.begin()
    h.wait(60)
    assert h.ack(1, state="late") is MessageOutcome.LATE


@pytest.mark.parametrize("properties", [None, SAVEPOINT])
def test_what_comes_after_the_completion_comes_late(make, properties):
    h = make()
    h.checkpoint(properties)
    assert h.ack(1, state="again") is MessageOutcome.LATE
    assert h.decline(1) is MessageOutcome.LATE


def test_a_checkpoint_that_nobody_remembers_is_unknown(make):
    h = make()
    assert h.ack(77) is MessageOutcome.UNKNOWN_CHECKPOINT
    assert h.decline(77) is MessageOutcome.UNKNOWN_CHECKPOINT


def test_a_message_of_another_job_is_not_taken(make):
    h = make()
    h.begin()
    message = AcknowledgeCheckpoint("other", h.tasks[0], 1, state="x")
    assert h.coordinator.receive_acknowledge_message(message) is MessageOutcome.WRONG_JOB
    assert len(h.coordinator._life.pending[1].states) == 0


def test_a_decline_of_a_task_that_is_not_the_jobs_aborts_nothing(make):
    h = make()
    h.begin()
    assert h.decline(1, task=TaskId("count", 9)) is MessageOutcome.UNKNOWN_TASK
    assert h.coordinator.pending_ids == (1,)


def test_a_decline_while_it_is_finalized_comes_too_late(make):
    h = make()
    h.begin()
    h.ack_all(1)
    assert h.decline(1) is MessageOutcome.DUPLICATE
    h.finalize(1)
    assert h.latest_id == 1


@pytest.mark.parametrize("answer", ["triggered", "trigger_failed"])
def test_the_answer_to_a_trigger_that_was_aborted_is_ignored(make, answer):
    h = make(timeout=60)
    h.coordinator.trigger_checkpoint()
    h.wait(60)
    assert not getattr(h.coordinator, answer)(1)
    h.coordinator.trigger_checkpoint()
    assert h.coordinator.pending_ids == (2,)


# Failures.


def test_a_failed_checkpoint_is_told(make):
    h = make(retain=2)
    h.checkpoint()
    h.begin()
    h.ack(2, state="half")
    h.decline(2, task=h.tasks[1])
    (told,) = h.all(NotifyCheckpointAborted)
    assert (told.checkpoint_id, told.tasks) == (2, h.tasks)


def test_one_failure_too_many_fails_the_job(make):
    h = make(tolerable=1)
    for _ in range(2):
        checkpoint_id, _ = h.begin()
        h.decline(checkpoint_id)
    assert [effect.cause.reason for effect in h.all(FailJob)] == [Reason.CHECKPOINT_DECLINED]


def test_or_is_only_said_where_the_job_is_to_run_on(make):
    h = make(on_tolerance_exceeded=ToleranceAction.DEGRADE)
    h.begin()
    h.decline(1)
    assert not h.all(FailJob)
    assert len(h.all(ToleranceExceeded)) == 1


def test_a_declined_savepoint_of_a_stop_fails_the_job_even_so(make):
    h = make(tolerable=None, on_tolerance_exceeded=ToleranceAction.DEGRADE)
    h.coordinator.trigger_synchronous_savepoint(terminate=True)
    h.coordinator.triggered(1)
    h.decline(1, Reason.CHECKPOINT_DECLINED_TASK_NOT_READY)
    assert len(h.all(FailJob)) == 1


def test_an_answer_to_a_finalization_that_was_not_asked_for_is_a_bug(make):
    h = make()
    with pytest.raises(Bug, match="checkpoint=1"):
        h.coordinator.finalize_failed(1, OSError("full"))


def test_one_whose_id_was_taken_begins_again_for_who_waits_and_is_no_failure(make):
    h = make(tolerable=0, on_tolerance_exceeded=ToleranceAction.FAIL_JOB)
    _, future = h.begin()
    h.ack_all(1)
    h.coordinator.finalize_failed(1, AlreadyExists("object exists: key=chk-1/MANIFEST"))
    assert not future.done
    assert h.ids(NotifyCheckpointAborted) == [1]
    assert h.ids(TriggerTasks) == [1, 2]
    h.coordinator.triggered(2)
    h.finish(2)
    assert future.result().checkpoint_id == 2
    assert not h.all(FailJob)


def test_one_whose_id_was_taken_begins_not_again_once_the_run_has_ended(make):
    h = make()
    _, future = h.begin()
    h.ack_all(1)
    h.coordinator.suspend()
    h.coordinator.finalize_failed(1, AlreadyExists("object exists: key=chk-1/MANIFEST"))
    assert future.exception().reason is Reason.CHECKPOINT_COORDINATOR_SUSPEND
    assert h.ids(TriggerTasks) == [1]


# Time.


def test_the_first_periodic_checkpoint_comes_between_the_pause_and_the_interval(make):
    h = make(interval=60, min_pause=20)
    h.coordinator.start_checkpoint_scheduler()
    assert h.now + 20 <= h.coordinator.next_wake <= h.now + 60


def test_periodic_checkpoints_follow_in_the_interval(make):
    h = make(interval=60)
    h.coordinator.start_checkpoint_scheduler()
    first = h.coordinator.next_wake
    h.wait(first - h.now)
    h.coordinator.triggered(1)
    h.finish(1)
    assert h.coordinator.next_wake == first + 60


def test_an_interval_below_the_pause_is_the_pause(make):
    h = make(interval=1, min_pause=30)
    h.coordinator.start_checkpoint_scheduler()
    assert h.coordinator.next_wake == h.now + 30


def test_the_pause_counts_from_the_completion_and_the_periodic_one_comes_when_it_is_over(make):
    h = make(interval=20, min_pause=10)
    h.coordinator.start_checkpoint_scheduler()
    h.wait(h.coordinator.next_wake - h.now)
    h.coordinator.triggered(1)
    h.now += 15
    h.finish(1)
    done = h.now
    h.wait(5)
    assert h.ids(TriggerTasks) == [1]
    assert h.coordinator.next_wake == done + 10
    h.wait(5)
    assert h.ids(TriggerTasks) == [1, 2]


@pytest.mark.scenario(17)
def test_times_that_passed_unnoticed_are_left_out(make):
    h = make(interval=10)
    h.coordinator.start_checkpoint_scheduler()
    first = h.coordinator.next_wake
    h.wait(first - h.now + 35)
    assert h.coordinator.next_wake == first + 40
    assert len(h.coordinator.queued) == 0
    assert h.ids(TriggerTasks) == [1]


@pytest.mark.parametrize("name", ["interval", "timeout"])
@pytest.mark.parametrize("seconds", [0.0, 0.009, -1.0, float("nan")])
def test_what_is_shorter_than_flinks_ten_milliseconds_is_refused(make, name, seconds):
    with pytest.raises(UserError, match=f"{name} is 10 ms at least: {name}={seconds}; give more"):
        make(**{name: seconds})
    make(**{name: 0.01})


@pytest.mark.parametrize(("coalesce", "waiting"), [(False, 3), (True, 1)])
@pytest.mark.scenario(17)
def test_a_slow_checkpoint_lets_periodic_requests_wait_or_leaves_all_but_one_out(
    make, coalesce, waiting
):
    h = make(interval=10, coalesce_periodic=coalesce)
    h.coordinator.start_checkpoint_scheduler()
    h.wait(h.coordinator.next_wake - h.now)
    for _ in range(3):
        h.wait(10)
    assert len(h.coordinator.queued) == waiting


def test_a_calendar_takes_the_place_of_the_interval(make):
    h = make(next_time=lambda after: (after // 3600 + 1) * 3600)
    h.coordinator.start_checkpoint_scheduler()
    first = h.coordinator.next_wake
    assert (1_000_000 + first) % 3600 == 0
    h.wait(first - h.now)
    h.coordinator.triggered(1)
    h.finish(1)
    assert h.coordinator.next_wake == first + 3600


def test_periodic_checkpoints_need_a_schedule(make):
    with pytest.raises(UserError, match="interval or"):
        make().coordinator.start_checkpoint_scheduler()


def test_a_timeout_counts_the_wait_for_the_boundary(make):
    h = make(timeout=60)
    future = h.coordinator.trigger_checkpoint()
    h.wait(59)
    assert not future.done
    h.wait(1)
    assert future.exception().reason is Reason.CHECKPOINT_EXPIRED
    assert "missing=count/0,count/1" in str(future.exception())


def test_a_finalization_does_not_expire(make):
    h = make(timeout=60)
    h.begin()
    h.ack_all(1)
    assert h.wait(1000) is None
    h.finalize(1)
    assert h.latest_id == 1


def test_the_driver_is_told_when_to_call(make):
    h = make(timeout=60)
    h.begin()
    assert [effect.time for effect in h.all(ScheduleAt)] == [h.now + 60]
    h.ack_all(1)
    assert h.all(ScheduleAt)[-1].time is None


# Stopping.


def test_a_stopped_scheduler_aborts_what_is_pending_and_queued(make):
    h = make(interval=60)
    h.coordinator.start_checkpoint_scheduler()
    futures = [h.begin()[1], h.coordinator.trigger_checkpoint()]
    h.coordinator.stop_checkpoint_scheduler()
    reasons = {future.exception().reason for future in futures}
    assert reasons == {Reason.CHECKPOINT_COORDINATOR_SUSPEND}
    assert h.coordinator.next_wake is None


def test_the_savepoint_of_a_stop_ends_the_others_and_is_told(make):
    h = make(interval=60)
    h.coordinator.start_checkpoint_scheduler()
    _, other = h.begin()
    future = h.coordinator.trigger_synchronous_savepoint(terminate=True)
    h.coordinator.triggered(2)
    h.finish(2)
    assert other.exception().reason is Reason.CHECKPOINT_COORDINATOR_SUSPEND
    assert future.result().checkpoint_id == 2
    assert h.ids(NotifyCheckpointComplete) == [2]
    assert h.coordinator.next_wake is None


def test_nothing_is_built_on_the_savepoint_of_a_stop(make):
    h = make(retain=2)
    h.checkpoint()
    h.checkpoint(CheckpointProperties.for_sync_savepoint(terminate=False))
    h.begin()
    assert h.all(TriggerTasks)[-1].base_id == 1


def test_a_stop_whose_savepoint_fails_lets_periodic_checkpoints_go_on(make):
    h = make(interval=60)
    h.coordinator.start_checkpoint_scheduler()
    h.coordinator.trigger_synchronous_savepoint(terminate=False)
    h.coordinator.trigger_failed(1, error=OSError("full"))
    assert h.coordinator.next_wake is not None


@pytest.mark.parametrize("status", [JobEnd.FINISHED, JobEnd.SUSPENDED])
def test_an_ended_coordinator_takes_no_messages_and_no_requests(make, status):
    h = make(interval=60)
    h.begin()
    h.coordinator.shutdown(status)
    assert h.ack(1) is MessageOutcome.SHUT_DOWN
    assert h.decline(1) is MessageOutcome.SHUT_DOWN
    assert h.coordinator.trigger_checkpoint().done
    assert h.coordinator.on_time(h.now + 1000) is None
    with pytest.raises(Bug, match="has ended"):
        h.coordinator.start_checkpoint_scheduler()


@pytest.mark.parametrize("status", [JobEnd.CANCELED, JobEnd.SUSPENDED])
def test_a_finalization_that_ends_after_the_job_still_completes(make, status):
    h = make()
    _, future = h.begin()
    h.ack_all(1)
    h.coordinator.shutdown(status)
    assert not future.done
    h.finalize(1)
    assert future.result().checkpoint_id == 1
    assert not h.all(NotifyCheckpointComplete)


def test_a_finalization_that_fails_after_the_job_ended_fails_for_that_reason(make):
    h = make()
    _, future = h.begin()
    h.ack_all(1)
    h.coordinator.shutdown(JobEnd.FAILED)
    h.coordinator.finalize_failed(1, OSError("full"))
    assert future.exception().reason is Reason.CHECKPOINT_COORDINATOR_SHUTDOWN


# Restoring.


def test_what_a_run_begins_from_is_restored_and_built_on(make):
    h = make()
    manifest = h.lineage.complete(7, "count")
    restored = h.restores(manifest)
    assert (restored.checkpoint_id, restored.payload) == (7, manifest)
    assert restored.states[TaskId("count", 1)].start == 64
    h.begin()
    assert h.all(TriggerTasks)[-1].base_id == 7


@pytest.mark.parametrize("error", [True, False])
def test_an_empty_start_is_an_error_only_where_a_checkpoint_must_be(make, error):
    h = make()
    h.store.begin_from(None)
    if not error:
        assert h.coordinator.restore_latest_checkpointed_state(error, True) is None
        return
    with pytest.raises(UserError, match="no completed checkpoint to restore"):
        h.coordinator.restore_latest_checkpointed_state(error, True)


@pytest.mark.parametrize("all_or_nothing", [True, False])
def test_state_of_an_operator_that_is_gone_is_left_only_if_not_all_must_be_taken(
    make, all_or_nothing
):
    h = make()
    manifest = h.lineage.complete(7, "count", "old")
    if not all_or_nothing:
        assert h.restores(manifest, all_or_nothing=False).operators == {"count", "old"}
        return
    with pytest.raises(UserError, match=r"uids=\['old'\] job=\['count'\]"):
        h.restores(manifest, all_or_nothing=True)


def test_nothing_references_files_of_what_lies_elsewhere_until_a_checkpoint_is_complete(make):
    h = make(ids=CheckpointIdCounter(8))
    h.restores(h.lineage.manifest(7, "count"), own=False)
    h.checkpoint()
    h.checkpoint()
    told = [(one.options.checkpoint_type, one.base_id) for one in h.all(TriggerTasks)]
    assert told == [(CheckpointType.FULL_CHECKPOINT, 0), (CheckpointType.CHECKPOINT, 8)]


def test_an_ended_coordinator_restores_nothing(make):
    h = make()
    h.coordinator.suspend()
    with pytest.raises(Bug, match="has ended"):
        h.coordinator.restore_latest_checkpointed_state(False, True)


def test_a_result_is_not_there_before_it_is(make):
    _, future = make().begin()
    with pytest.raises(Bug, match="not done"):
        future.result()


def test_a_failed_future_raises_its_reason(make):
    h = make()
    _, future = h.begin()
    h.decline(1)
    with pytest.raises(CheckpointException, match="operator=count subtask=0"):
        future.result()
