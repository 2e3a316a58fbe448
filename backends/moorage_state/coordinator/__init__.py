"""The checkpoint coordinator: which checkpoints are taken, when they exist, and which may go.

A state machine with Flink's rules and names. It decides and does nothing: no threads, no clock, no
store. The driver calls it with requests, messages of tasks and the time, and carries out the
effects that it then drains, in their order. Calls come one at a time, under the driver's lock. It
must not know what lies in a state handle, how a manifest is written, or what an epoch is beyond
"the boundary came".

    completed = CompletedCheckpointStore(log, checkpoints, retain, retention)
    completed.begin_from(manifest, "chk-7")     # or None: the job begins with nothing
    coordinator = CheckpointCoordinator(
        job_id, config, tasks, tasks, tasks, CheckpointIdCounter(checkpoints.next_id(log.entries)),
        completed, CheckpointFailureManager(tolerable), monotonic, wall_clock=time.time,
        tracker=tracker,
    )
    restored = coordinator.restore_latest_checkpointed_state(False, True)
    coordinator.start_checkpoint_scheduler()
    while running:
        for effect in coordinator.drain():
            match effect:
                case TriggerTasks(checkpoint_id=n):            # at the next epoch boundary:
                    snapshot(effect); coordinator.triggered(n)     # or trigger_failed(n, error=e)
                case FinalizeCheckpoint(checkpoint_id=n):      # manifest, then the log's entry:
                    write(effect); coordinator.finalized(n, effect.completed(time.time(), path))
                    # or finalize_failed(n, error)
                case ScheduleAt(time=t): timer.set(t, coordinator.on_time)
                case FailJob(cause=e): stop(e)
                case other: tell(other)                        # notifications
        # from tasks: receive_acknowledge_message, receive_decline_message
    completed.shutdown(JobEnd.FINISHED)      # deletes what must not outlive such an end

Three effects want an answer: `TriggerTasks`, `FinalizeCheckpoint`, and `ScheduleAt`, whose answer
is `on_time`. An effect for a checkpoint that a later one aborts may be left out; its answer is then
ignored, but for `FinalizeCheckpoint`, which is never aborted and must always be answered, also
after `shutdown` and `suspend`.
"""

from moorage_state.coordinator.checkpoint import AcknowledgeCheckpoint as AcknowledgeCheckpoint
from moorage_state.coordinator.checkpoint import CheckpointFuture as CheckpointFuture
from moorage_state.coordinator.checkpoint import CompletedCheckpoint as CompletedCheckpoint
from moorage_state.coordinator.checkpoint import DeclineCheckpoint as DeclineCheckpoint
from moorage_state.coordinator.checkpoint import PendingCheckpoint as PendingCheckpoint
from moorage_state.coordinator.checkpoint import Phase as Phase
from moorage_state.coordinator.checkpoint import TaskId as TaskId
from moorage_state.coordinator.completed import CompletedCheckpointStore as CompletedCheckpointStore
from moorage_state.coordinator.coordinator import CheckpointCoordinator as CheckpointCoordinator
from moorage_state.coordinator.coordinator import check_all_restored as check_all_restored
from moorage_state.coordinator.effects import Effect as Effect
from moorage_state.coordinator.effects import FailJob as FailJob
from moorage_state.coordinator.effects import FinalizeCheckpoint as FinalizeCheckpoint
from moorage_state.coordinator.effects import NotifyCheckpointAborted as NotifyCheckpointAborted
from moorage_state.coordinator.effects import NotifyCheckpointComplete as NotifyCheckpointComplete
from moorage_state.coordinator.effects import ToleranceExceeded as ToleranceExceeded
from moorage_state.coordinator.effects import TriggerTasks as TriggerTasks
from moorage_state.coordinator.failures import CheckpointException as CheckpointException
from moorage_state.coordinator.failures import CheckpointFailureManager as CheckpointFailureManager
from moorage_state.coordinator.failures import CheckpointFailureReason as CheckpointFailureReason
from moorage_state.coordinator.lifecycle import CheckpointTracker as CheckpointTracker
from moorage_state.coordinator.properties import CheckpointConfig as CheckpointConfig
from moorage_state.coordinator.properties import CheckpointingMode as CheckpointingMode
from moorage_state.coordinator.properties import CheckpointMetaData as CheckpointMetaData
from moorage_state.coordinator.properties import CheckpointOptions as CheckpointOptions
from moorage_state.coordinator.properties import CheckpointProperties as CheckpointProperties
from moorage_state.coordinator.properties import (
    CheckpointRetentionPolicy as CheckpointRetentionPolicy,
)
from moorage_state.coordinator.properties import CheckpointType as CheckpointType
from moorage_state.coordinator.properties import JobEnd as JobEnd
from moorage_state.coordinator.properties import SavepointFormat as SavepointFormat
from moorage_state.coordinator.properties import ToleranceAction as ToleranceAction
from moorage_state.coordinator.trigger import CheckpointIdCounter as CheckpointIdCounter
from moorage_state.coordinator.trigger import Decision as Decision
