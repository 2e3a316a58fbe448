"""The settings of a coordinator."""

from dataclasses import dataclass
from enum import Enum

from moorage_state.coordinator.properties import CheckpointProperties, CheckpointRetentionPolicy
from moorage_state.errors import UserError

__all__ = ["CheckpointConfig", "CheckpointingMode", "ToleranceAction"]

# Flink's MINIMAL_CHECKPOINT_TIME: below it a job would do nothing else.
SHORTEST_SECONDS = 0.01
_LONGEST_PAUSE_SECONDS = 365 * 24 * 3600.0


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
        retention: what becomes of retained checkpoints when the job ends.
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
    retention: CheckpointRetentionPolicy = CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION
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
