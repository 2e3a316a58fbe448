"""The checkpoint coordinator: which checkpoints are taken, when they exist, and which may go.

A state machine with Flink's rules and names. It decides and does nothing: no threads, no clock, no
store. The driver calls it with requests, messages of tasks and the time, and carries out the
effects that it then drains, in their order. Calls come one at a time, under the driver's lock. It
must not know what lies in a state handle, how a manifest is written, or what an epoch is beyond
"the boundary came".

    coordinator = CheckpointCoordinator(
        job_id, config, tasks, tasks, tasks, CountingIdCounter(store.next_id(log)),
        CompletedCheckpointStore(config_retain), CheckpointFailureManager(tolerable), monotonic,
        wall_clock=time.time,
    )
    coordinator.restore_latest_checkpointed_state(False, False)
    coordinator.start_checkpoint_scheduler()
    while running:
        for effect in coordinator.drain():
            match effect:
                case TriggerTasks(checkpoint_id=n):            # at the next epoch boundary:
                    snapshot(effect); coordinator.triggered(n)     # or trigger_failed(n, error=e)
                case FinalizeCheckpoint(checkpoint_id=n):      # manifest, then the log's entry:
                    write(effect); coordinator.finalized(n, effect.completed(time.time(), path))
                    # or finalize_failed(n, error)
                case DiscardCheckpoint(checkpoint_id=n):       # deleted or not, answer it
                    delete(effect); coordinator.discarded(n)
                case ScheduleAt(time=t): timer.set(t, coordinator.on_time)
                case FailJob(cause=e): stop(e)
                case other: tell(other)                        # notifications, DiscardState
        # from tasks: receive_acknowledge_message, receive_decline_message, task_failed

Four effects want an answer: `TriggerTasks`, `FinalizeCheckpoint`, `DiscardCheckpoint`, and
`ScheduleAt`, whose answer is `on_time`. An effect for a checkpoint that a later one aborts may be
left out; its answer is then ignored, but for `FinalizeCheckpoint`, which is never aborted and
must always be answered, also after `shutdown` and `suspend`.
"""

from moorage_state.coordinator.completed import CompletedCheckpointStore, StoreChange
from moorage_state.coordinator.config import CheckpointConfig, CheckpointingMode, ToleranceAction
from moorage_state.coordinator.decider import (
    CheckpointRequestDecider,
    Decision,
    Load,
    TriggerRequest,
)
from moorage_state.coordinator.effects import (
    DiscardCheckpoint,
    DiscardState,
    Effect,
    FailJob,
    FinalizeCheckpoint,
    NotifyCheckpointAborted,
    NotifyCheckpointComplete,
    NotifyCheckpointSubsumed,
    ScheduleAt,
    ToleranceExceeded,
    TriggerTasks,
)
from moorage_state.coordinator.failures import CheckpointFailureManager, Verdict
from moorage_state.coordinator.future import CheckpointFuture
from moorage_state.coordinator.identity import CheckpointIdCounter, CountingIdCounter
from moorage_state.coordinator.machine import CheckpointCoordinator
from moorage_state.coordinator.messages import (
    AcknowledgeCheckpoint,
    CheckpointMetrics,
    DeclineCheckpoint,
    MessageOutcome,
    SharedStateKey,
    TaskId,
)
from moorage_state.coordinator.pending import CompletedCheckpoint, PendingCheckpoint, Phase
from moorage_state.coordinator.properties import (
    CheckpointMetaData,
    CheckpointOptions,
    CheckpointProperties,
    CheckpointRetentionPolicy,
    CheckpointType,
    ClaimMode,
    JobStatus,
    SavepointFormat,
)
from moorage_state.coordinator.reasons import (
    CheckpointException,
    CheckpointFailureReason,
    reason_of,
)
from moorage_state.coordinator.registry import Registration, SharedStateRegistry
from moorage_state.coordinator.stats import (
    CheckpointCounts,
    CheckpointStats,
    CheckpointStatsTracker,
    CheckpointStatus,
    RestoredCheckpointStats,
)

__all__ = [
    "AcknowledgeCheckpoint",
    "CheckpointConfig",
    "CheckpointCoordinator",
    "CheckpointCounts",
    "CheckpointException",
    "CheckpointFailureManager",
    "CheckpointFailureReason",
    "CheckpointFuture",
    "CheckpointIdCounter",
    "CheckpointMetaData",
    "CheckpointMetrics",
    "CheckpointOptions",
    "CheckpointProperties",
    "CheckpointRequestDecider",
    "CheckpointRetentionPolicy",
    "CheckpointStats",
    "CheckpointStatsTracker",
    "CheckpointStatus",
    "CheckpointType",
    "CheckpointingMode",
    "ClaimMode",
    "CompletedCheckpoint",
    "CompletedCheckpointStore",
    "CountingIdCounter",
    "Decision",
    "DeclineCheckpoint",
    "DiscardCheckpoint",
    "DiscardState",
    "Effect",
    "FailJob",
    "FinalizeCheckpoint",
    "JobStatus",
    "Load",
    "MessageOutcome",
    "NotifyCheckpointAborted",
    "NotifyCheckpointComplete",
    "NotifyCheckpointSubsumed",
    "PendingCheckpoint",
    "Phase",
    "Registration",
    "RestoredCheckpointStats",
    "SavepointFormat",
    "ScheduleAt",
    "SharedStateKey",
    "SharedStateRegistry",
    "StoreChange",
    "TaskId",
    "ToleranceAction",
    "ToleranceExceeded",
    "TriggerRequest",
    "TriggerTasks",
    "Verdict",
    "reason_of",
]
