"""What a checkpoint is, when a job takes them, and when they go.

Types, retention and what tasks are told of a checkpoint; and the settings of a coordinator.
"""

from dataclasses import dataclass
from enum import Enum

from moorage_state.errors import Bug, UserError

# Flink's MINIMAL_CHECKPOINT_TIME: below it a job would do nothing else.
SHORTEST_SECONDS = 0.01
_LONGEST_PAUSE_SECONDS = 365 * 24 * 3600.0


class CheckpointType(Enum):
    """What is taken, and what the tasks do afterwards."""

    CHECKPOINT = "checkpoint"
    """May reference what older checkpoints uploaded."""

    FULL_CHECKPOINT = "full_checkpoint"
    """References nothing older: the first after a restore that claimed nothing."""

    SAVEPOINT = "savepoint"
    """Self-contained; the job goes on."""

    SAVEPOINT_SUSPEND = "savepoint_suspend"
    """Self-contained; the job stops after it and may be resumed from it."""

    SAVEPOINT_TERMINATE = "savepoint_terminate"
    """Self-contained; the job is drained first (timers fire, sinks publish) and then ends."""

    @property
    def is_savepoint(self) -> bool:
        """Whether a person owns the result."""
        return self not in (CheckpointType.CHECKPOINT, CheckpointType.FULL_CHECKPOINT)

    @property
    def is_synchronous(self) -> bool:
        """Whether no epoch may run after it: stop with savepoint."""
        return self in (CheckpointType.SAVEPOINT_SUSPEND, CheckpointType.SAVEPOINT_TERMINATE)

    @property
    def shares_files(self) -> bool:
        """Whether it may reference files of older checkpoints."""
        return self is CheckpointType.CHECKPOINT


class SavepointFormat(Enum):
    """How the files of a savepoint are written."""

    CANONICAL = "canonical"
    """One format for all backends, which anyone can read."""

    NATIVE = "native"
    """The backend's own files."""


class JobEnd(Enum):
    """How a job ended, as far as its checkpoints are concerned."""

    FINISHED = "finished"
    CANCELED = "canceled"
    FAILED = "failed"
    SUSPENDED = "suspended"

    @property
    def is_globally_terminal(self) -> bool:
        """Whether no other driver will go on with the job; only then is anything deleted."""
        return self is not JobEnd.SUSPENDED


class CheckpointRetentionPolicy(Enum):
    """What becomes of the retained checkpoints when the job ends."""

    NEVER_RETAIN_AFTER_TERMINATION = "never_retain_after_termination"
    RETAIN_ON_FAILURE = "retain_on_failure"
    RETAIN_ON_CANCELLATION = "retain_on_cancellation"

    def discards(self, status: JobEnd) -> bool:
        """Whether they are deleted when the job ends so."""
        # Suspended it has not ended: whoever goes on with it needs them.
        return status.is_globally_terminal and status in _DISCARDED_AT[self]


_DISCARDED_AT = {
    CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION: frozenset(JobEnd),
    CheckpointRetentionPolicy.RETAIN_ON_FAILURE: frozenset(JobEnd) - {JobEnd.FAILED},
    CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION: frozenset({JobEnd.FINISHED}),
}


@dataclass(frozen=True, slots=True)
class CheckpointProperties:
    """What is taken, and what becomes of it.

    Attributes:
        checkpoint_type: what is taken.
        forced: starts though the most allowed are pending, and is not subsumed while pending.
        retention: when the job deletes it at its end; None for never.
        unclaimed: a restored snapshot whose files are somebody else's: none is referenced.
        format: of a savepoint's files.
    """

    checkpoint_type: CheckpointType = CheckpointType.CHECKPOINT
    forced: bool = False
    retention: CheckpointRetentionPolicy | None = None
    unclaimed: bool = False
    format: SavepointFormat = SavepointFormat.NATIVE

    @classmethod
    def for_checkpoint(cls, policy: CheckpointRetentionPolicy | None) -> "CheckpointProperties":
        """A checkpoint that the job owns; without a policy it is kept at every end."""
        return cls(retention=policy)

    @classmethod
    def for_savepoint(
        cls, *, forced: bool = True, savepoint_format: SavepointFormat = SavepointFormat.CANONICAL
    ) -> "CheckpointProperties":
        """A savepoint; only a person deletes it."""
        return cls(CheckpointType.SAVEPOINT, forced, format=savepoint_format)

    @classmethod
    def for_sync_savepoint(
        cls,
        *,
        terminate: bool,
        forced: bool = True,
        savepoint_format: SavepointFormat = SavepointFormat.CANONICAL,
    ) -> "CheckpointProperties":
        """The savepoint of a job that stops: drained and ended, or suspended."""
        kind = CheckpointType.SAVEPOINT_TERMINATE if terminate else CheckpointType.SAVEPOINT_SUSPEND
        return cls(kind, forced, format=savepoint_format)

    @classmethod
    def for_unclaimed_snapshot(cls) -> "CheckpointProperties":
        """A snapshot that lies elsewhere and was restored; nothing is triggered with these."""
        return cls(CheckpointType.SAVEPOINT, unclaimed=True)

    @property
    def is_savepoint(self) -> bool:
        """Whether a person owns the result."""
        return self.checkpoint_type.is_savepoint

    @property
    def is_synchronous(self) -> bool:
        """Whether the job stops with it."""
        return self.checkpoint_type.is_synchronous

    @property
    def is_recovery_point(self) -> bool:
        """Whether the job itself may come back from it: not from a plain savepoint."""
        return not self.is_savepoint or self.is_synchronous


@dataclass(frozen=True, slots=True)
class CheckpointMetaData:
    """A checkpoint's name in time: its id, from 1, growing; its trigger, in seconds since 1970."""

    checkpoint_id: int
    timestamp: float


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """What a task is told beside id and time.

    Attributes:
        target_location: where a person wants it; None for the default place.
        exactly_once: whether inputs are aligned.
    """

    checkpoint_type: CheckpointType
    target_location: str | None = None
    format: SavepointFormat = SavepointFormat.NATIVE
    exactly_once: bool = True

    @classmethod
    def for_checkpoint_with_default_location(cls) -> "CheckpointOptions":
        """A checkpoint in the lineage's own directory."""
        return cls(CheckpointType.CHECKPOINT)

    @classmethod
    def for_savepoint(cls, location: str | None) -> "CheckpointOptions":
        """A canonical savepoint at a location."""
        return cls(CheckpointType.SAVEPOINT, location, SavepointFormat.CANONICAL)

    def __post_init__(self) -> None:
        if self.target_location is not None and not self.checkpoint_type.is_savepoint:
            raise Bug(f"only savepoints have a place of their own: got={self.target_location}")


class CheckpointingMode(Enum):
    """Whether inputs are aligned."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"


class ToleranceAction(Enum):
    """What follows when more checkpoints in a row failed than are tolerated."""

    DEGRADE = "degrade"
    """The job runs on and says so."""

    FAIL_JOB = "fail_job"
    """The job fails (Flink's rule)."""


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """When checkpoints are taken and what their failures lead to. Times are seconds.

    Attributes:
        interval: between the starts of two; None if there is no schedule, or cron decides.
        timeout: how long one may take from its trigger on, the wait for a boundary included.
        max_concurrent: how many may be pending; forced ones come on top.
        min_pause: the least time from a completion to the next periodic start.
        tolerable_failures: how many in a row are borne; None for any number.
        aligned_timeout: how long a trigger may wait for a boundary; None for up to `timeout`.
        retention: what becomes of retained checkpoints when the job ends; None: they stay.
        on_tolerance_exceeded: what follows one failure too many.
        coalesce_periodic: a periodic request that finds one of its kind waiting is left out, where
            Flink queues it.
    """

    interval: float | None = None
    timeout: float = 600.0
    max_concurrent: int = 1
    min_pause: float = 0.0
    tolerable_failures: int | None = 0
    mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE
    retention: CheckpointRetentionPolicy | None = (
        CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION
    )
    on_tolerance_exceeded: ToleranceAction = ToleranceAction.FAIL_JOB
    aligned_timeout: float | None = None
    coalesce_periodic: bool = False

    def __post_init__(self) -> None:
        for name in ("interval", "timeout"):
            seconds = getattr(self, name)
            if seconds is not None and not seconds >= SHORTEST_SECONDS:
                raise UserError(
                    f"a checkpoint's {name} is 10 ms at least: {name}={seconds}; give more seconds"
                )
        if self.max_concurrent < 1:
            raise UserError(f"one checkpoint at least: max_concurrent={self.max_concurrent}")
        if not self.min_pause >= 0:
            raise UserError(f"a pause cannot be below 0: min_pause={self.min_pause}")
        if self.aligned_timeout is not None and not self.aligned_timeout > 0:
            raise UserError(f"alignment needs time: aligned_timeout={self.aligned_timeout}")

    @property
    def pause(self) -> float:
        """`min_pause`, at most a year."""
        return min(self.min_pause, _LONGEST_PAUSE_SECONDS)

    @property
    def effective_interval(self) -> float | None:
        """`interval`, at least the pause: more often makes no sense."""
        return None if self.interval is None else max(self.interval, self.pause)

    @property
    def properties(self) -> CheckpointProperties:
        """Of the checkpoints that the job takes by itself."""
        return CheckpointProperties.for_checkpoint(self.retention)
