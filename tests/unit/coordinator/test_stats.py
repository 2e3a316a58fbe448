"""Numbers and history."""

from moorage_state.coordinator import (
    CheckpointMetrics,
    CheckpointProperties,
    CheckpointStatus,
    JobStatus,
)

ONE = CheckpointMetrics(sync_duration=0.1, async_duration=2.0, size=100, full_size=1000)
TWO = CheckpointMetrics(sync_duration=0.3, async_duration=1.0, size=10, full_size=5000)


def measured(h):
    h.begin()
    h.now += 7
    h.ack(1, h.tasks[0], metrics=ONE)
    h.ack(1, h.tasks[1], metrics=TWO)
    h.finalize(1)
    return h


def test_before_the_first_checkpoint_the_gauges_say_so(make):
    gauges = make().coordinator.stats.gauges()
    assert gauges["lastCompletedCheckpointId"] == -1
    assert gauges["lastCheckpointExternalPath"] == ""
    assert gauges["totalNumberOfCheckpoints"] == 0


def test_the_gauges_describe_the_last_completed_checkpoint(make):
    h = measured(make())
    assert h.coordinator.stats.gauges() == {
        "lastCheckpointDuration": 7.0,
        "lastCheckpointSize": 110,
        "lastCheckpointFullSize": 6000,
        "lastCompletedCheckpointId": 1,
        "lastCheckpointCompletedTimestamp": 1_000_107.0,
        "lastCheckpointExternalPath": "chk-1",
        "lastCheckpointRestoreTimestamp": -1.0,
        "numberOfInProgressCheckpoints": 0,
        "numberOfCompletedCheckpoints": 1,
        "numberOfFailedCheckpoints": 0,
        "totalNumberOfCheckpoints": 1,
    }


def test_the_history_has_what_every_subtask_measured(make):
    h = measured(make())
    (one,) = h.coordinator.stats.history
    assert one.status is CheckpointStatus.COMPLETED
    assert one.subtasks == {h.tasks[0]: ONE, h.tasks[1]: TWO}


def test_a_task_that_answers_after_the_failure_is_in_the_history(make):
    h = make()
    h.begin()
    h.decline(1)
    h.ack(1, h.tasks[1], metrics=TWO)
    (one,) = h.coordinator.stats.history
    assert one.status is CheckpointStatus.FAILED
    assert one.subtasks == {h.tasks[1]: TWO}


def test_the_history_holds_the_newest_ten(make):
    h = make()
    for _ in range(12):
        h.checkpoint()
        h.clean()
    assert [one.checkpoint_id for one in h.coordinator.stats.history] == list(range(3, 13))


def test_checkpoints_in_progress_and_those_that_never_began_are_counted(make):
    h = make()
    h.begin()
    h.coordinator.trigger_checkpoint(is_periodic=True)
    h.decline(1)
    h.begin()
    counts = h.coordinator.stats.counts
    assert (counts.in_progress, counts.completed, counts.failed, counts.total) == (1, 0, 2, 3)


def test_a_savepoint_is_not_the_last_checkpoint(make):
    h = make()
    h.checkpoint(CheckpointProperties.for_savepoint())
    assert h.coordinator.stats.last_completed is None
    assert h.coordinator.stats.last_savepoint.checkpoint_id == 1


def test_the_history_says_whose_files_are_gone(make):
    h = make()
    h.checkpoint()
    h.coordinator.shutdown(JobStatus.FINISHED)
    assert h.coordinator.stats.history[0].is_discarded
