"""Numbers and history of a job's checkpoints, for metrics, the status and people."""

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from moorage_state.coordinator.messages import CheckpointMetrics, TaskId
from moorage_state.coordinator.pending import CompletedCheckpoint, PendingCheckpoint
from moorage_state.coordinator.properties import CheckpointProperties
from moorage_state.coordinator.reasons import CheckpointException

__all__ = [
    "CheckpointCounts",
    "CheckpointStats",
    "CheckpointStatsTracker",
    "CheckpointStatus",
    "RestoredCheckpointStats",
]


class CheckpointStatus(Enum):
    """How far a checkpoint of the history is."""

    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CheckpointStats:
    """One checkpoint of the history. Times are seconds since 1970, durations seconds.

    Attributes:
        tasks: whose answer it needs.
        subtasks: what those that answered measured, whether it completed or not.
        ended_at: None while it is in progress.
        is_discarded: whether its files are gone.
    """

    checkpoint_id: int
    timestamp: float
    properties: CheckpointProperties
    tasks: frozenset[TaskId]
    status: CheckpointStatus = CheckpointStatus.IN_PROGRESS
    subtasks: Mapping[TaskId, CheckpointMetrics] = field(default_factory=dict)
    ended_at: float | None = None
    external_pointer: str = ""
    failure: CheckpointException | None = None
    is_discarded: bool = False

    @property
    def duration(self) -> float | None:
        """From the trigger to the end; None while it is in progress."""
        return None if self.ended_at is None else max(0.0, self.ended_at - self.timestamp)

    @property
    def size(self) -> int:
        """What it uploaded, in bytes."""
        return sum(one.size for one in self.subtasks.values())

    @property
    def full_size(self) -> int:
        """What a restore reads, in bytes."""
        return sum(one.full_size for one in self.subtasks.values())


@dataclass(frozen=True, slots=True)
class RestoredCheckpointStats:
    """What the job was restored from, and when (seconds since 1970)."""

    checkpoint_id: int
    restored_at: float
    external_pointer: str
    properties: CheckpointProperties
    size: int


@dataclass(frozen=True, slots=True)
class CheckpointCounts:
    """How many there were in this run of the coordinator."""

    in_progress: int = 0
    completed: int = 0
    failed: int = 0
    restored: int = 0

    @property
    def total(self) -> int:
        """All that were begun, and those that failed before they were."""
        return self.in_progress + self.completed + self.failed


class CheckpointStatsTracker:
    """Collects what happens to checkpoints.

    Args:
        history_size: how many of the newest are remembered.
    """

    def __init__(self, history_size: int = 10) -> None:
        self._history: deque[CheckpointStats] = deque(maxlen=max(history_size, 1))
        self._in_progress: dict[int, CheckpointStats] = {}
        self.counts = CheckpointCounts()
        self.last_completed: CheckpointStats | None = None
        self.last_savepoint: CheckpointStats | None = None
        self.last_failed: CheckpointStats | None = None
        self.last_restored: RestoredCheckpointStats | None = None

    @property
    def history(self) -> tuple[CheckpointStats, ...]:
        """The newest, those in progress included, by id and newest last."""
        known = [*self._history, *self._in_progress.values()]
        known.sort(key=lambda one: one.checkpoint_id)
        return tuple(known[-(self._history.maxlen or 1) :])

    def pending(self, checkpoint: PendingCheckpoint) -> None:
        """A checkpoint was begun."""
        self._in_progress[checkpoint.checkpoint_id] = CheckpointStats(
            checkpoint.checkpoint_id, checkpoint.timestamp, checkpoint.properties, checkpoint.tasks
        )
        self._count(in_progress=1)

    def subtask(self, checkpoint_id: int, task: TaskId, metrics: CheckpointMetrics) -> None:
        """A task measured something, perhaps for a checkpoint that has failed meanwhile."""
        current = self._in_progress.get(checkpoint_id)
        if current is not None:
            self._in_progress[checkpoint_id] = _with_subtask(current, task, metrics)
            return
        for index, one in enumerate(self._history):
            late = one.checkpoint_id == checkpoint_id and one.status is CheckpointStatus.FAILED
            if late and task in one.tasks:
                self._history[index] = _with_subtask(one, task, metrics)

    def completed(self, checkpoint: CompletedCheckpoint) -> None:
        """A checkpoint exists."""
        stats = replace(
            self._in_progress.pop(checkpoint.checkpoint_id),
            status=CheckpointStatus.COMPLETED,
            ended_at=checkpoint.completed_at,
            external_pointer=checkpoint.external_pointer,
            subtasks=checkpoint.metrics,
        )
        self._history.append(stats)
        self._count(in_progress=-1, completed=1)
        if stats.properties.is_savepoint:
            self.last_savepoint = stats
        else:
            self.last_completed = stats

    def failed(self, checkpoint_id: int | None, failure: CheckpointException, at: float) -> None:
        """A checkpoint failed; without an id, before it was begun."""
        if checkpoint_id is None:
            self._count(failed=1)
            return
        stats = replace(
            self._in_progress.pop(checkpoint_id),
            status=CheckpointStatus.FAILED,
            ended_at=at,
            failure=failure,
        )
        self._history.append(stats)
        self.last_failed = stats
        self._count(in_progress=-1, failed=1)

    def discarded(self, checkpoint_ids: Collection[int]) -> None:
        """These checkpoints' files are gone."""
        for index, one in enumerate(self._history):
            if one.checkpoint_id in checkpoint_ids:
                self._history[index] = replace(one, is_discarded=True)

    def restored(self, checkpoint: CompletedCheckpoint, at: float) -> None:
        """The job was restored."""
        self.last_restored = RestoredCheckpointStats(
            checkpoint.checkpoint_id,
            at,
            checkpoint.external_pointer,
            checkpoint.properties,
            checkpoint.full_size,
        )
        self._count(restored=1)

    def gauges(self) -> dict[str, float | str]:
        """The metrics under Flink's names, in seconds and bytes; -1 or "" for none so far."""
        last, restored = self.last_completed, self.last_restored
        return {
            "lastCheckpointDuration": -1.0 if last is None else last.duration or 0.0,
            "lastCheckpointSize": -1 if last is None else last.size,
            "lastCheckpointFullSize": -1 if last is None else last.full_size,
            "lastCompletedCheckpointId": -1 if last is None else last.checkpoint_id,
            "lastCheckpointCompletedTimestamp": -1.0 if last is None else last.ended_at or 0.0,
            "lastCheckpointExternalPath": "" if last is None else last.external_pointer,
            "lastCheckpointRestoreTimestamp": -1.0 if restored is None else restored.restored_at,
            "numberOfInProgressCheckpoints": self.counts.in_progress,
            "numberOfCompletedCheckpoints": self.counts.completed,
            "numberOfFailedCheckpoints": self.counts.failed,
            "totalNumberOfCheckpoints": self.counts.total,
        }

    def _count(
        self, in_progress: int = 0, completed: int = 0, failed: int = 0, restored: int = 0
    ) -> None:
        now = self.counts
        self.counts = CheckpointCounts(
            now.in_progress + in_progress,
            now.completed + completed,
            now.failed + failed,
            now.restored + restored,
        )


def _with_subtask(
    stats: CheckpointStats, task: TaskId, metrics: CheckpointMetrics
) -> CheckpointStats:
    return replace(stats, subtasks={**stats.subtasks, task: metrics})
