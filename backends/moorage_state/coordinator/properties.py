"""What a checkpoint is: its type, who deletes it when, and what tasks are told of it."""

from dataclasses import dataclass
from enum import Enum

from moorage_state.errors import Bug

__all__ = [
    "CheckpointMetaData",
    "CheckpointOptions",
    "CheckpointProperties",
    "CheckpointRetentionPolicy",
    "CheckpointType",
    "ClaimMode",
    "JobStatus",
    "SavepointFormat",
]


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
    def should_drain(self) -> bool:
        """Whether event time is moved to its end before the snapshot."""
        return self is CheckpointType.SAVEPOINT_TERMINATE

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


class ClaimMode(Enum):
    """Who owns the snapshot that a job was restored from."""

    CLAIM = "claim"
    """The job: it is deleted once nothing needs it."""

    NO_CLAIM = "no_claim"
    """A person: it is never deleted, and the first checkpoint references none of its files."""

    LEGACY = "legacy"
    """A person: it is never deleted, but checkpoints may reference its files for ever."""


class JobStatus(Enum):
    """How a job ended, as far as its checkpoints are concerned."""

    FINISHED = "finished"
    CANCELED = "canceled"
    FAILED = "failed"
    SUSPENDED = "suspended"

    @property
    def is_globally_terminal(self) -> bool:
        """Whether no other driver will go on with the job; only then is anything deleted."""
        return self is not JobStatus.SUSPENDED


class CheckpointRetentionPolicy(Enum):
    """What becomes of the retained checkpoints when the job ends."""

    NEVER_RETAIN_AFTER_TERMINATION = "never_retain_after_termination"
    RETAIN_ON_FAILURE = "retain_on_failure"
    RETAIN_ON_CANCELLATION = "retain_on_cancellation"


_DISCARDED_AT = {
    CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION: frozenset(JobStatus),
    CheckpointRetentionPolicy.RETAIN_ON_FAILURE: frozenset(JobStatus) - {JobStatus.FAILED},
    CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION: frozenset({JobStatus.FINISHED}),
}


@dataclass(frozen=True, slots=True)
class CheckpointProperties:
    """What is taken and who deletes it when.

    Attributes:
        checkpoint_type: what is taken.
        forced: starts though the most allowed are pending, and is not subsumed while pending.
        discard_on_subsumed: deleted when newer ones took its place.
        discarded_at: the ends of the job at which it is deleted.
        unclaimed: a restored snapshot that belongs to somebody else.
        format: of a savepoint's files.
    """

    checkpoint_type: CheckpointType = CheckpointType.CHECKPOINT
    forced: bool = False
    discard_on_subsumed: bool = True
    discarded_at: frozenset[JobStatus] = frozenset()
    unclaimed: bool = False
    format: SavepointFormat = SavepointFormat.NATIVE

    @classmethod
    def for_checkpoint(cls, policy: CheckpointRetentionPolicy) -> "CheckpointProperties":
        """A checkpoint that the job owns."""
        return cls(discarded_at=_DISCARDED_AT[policy])

    @classmethod
    def for_savepoint(
        cls, *, forced: bool = True, savepoint_format: SavepointFormat = SavepointFormat.CANONICAL
    ) -> "CheckpointProperties":
        """A savepoint; only a person deletes it."""
        return cls(CheckpointType.SAVEPOINT, forced, False, format=savepoint_format)

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
        return cls(kind, forced, False, format=savepoint_format)

    @classmethod
    def for_unclaimed_snapshot(cls) -> "CheckpointProperties":
        """A snapshot restored without a claim; nothing is triggered with these."""
        return cls(CheckpointType.SAVEPOINT, False, False, unclaimed=True)

    @property
    def is_savepoint(self) -> bool:
        """Whether a person owns the result."""
        return self.checkpoint_type.is_savepoint

    @property
    def is_synchronous(self) -> bool:
        """Whether the job stops with it."""
        return self.checkpoint_type.is_synchronous

    @property
    def is_unclaimed(self) -> bool:
        """Whether it is a restored snapshot that belongs to somebody else."""
        return self.unclaimed

    @property
    def is_recovery_point(self) -> bool:
        """Whether the job itself may come back from it: not from a plain savepoint."""
        return not self.is_savepoint or self.is_synchronous

    def discard_on(self, status: JobStatus) -> bool:
        """Whether it is deleted when the job ends so."""
        return status in self.discarded_at


@dataclass(frozen=True, slots=True)
class CheckpointMetaData:
    """A checkpoint's name in time.

    Attributes:
        checkpoint_id: from 1, growing.
        timestamp: of the trigger, in seconds since 1970.
    """

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
