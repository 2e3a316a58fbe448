"""How long a decision to do nothing stands: until something that it rests on changes. Pure.

A job at rest is looked at twice a minute and says the same each time but for a driver's figures.
Which of them can change the decision, and by when time alone can, is known here and in `Draft`, so
that the loop need not decide anew to learn that there is nothing to do.
"""

from dataclasses import dataclass
from datetime import datetime

from moorage_api.driver import CheckpointSummary, DriverState
from moorage_api.lifecycle import Health
from moorage_api.status import Finding
from moorage_operator.decide.draft import CLOCK_SLACK, Draft, here, later
from moorage_operator.decide.findings import NAMED_FOR, is_step, skewed
from moorage_operator.decide.specs import policy, running_spec
from moorage_operator.decide.view import is_another, is_long
from moorage_operator.plan import Plan
from moorage_operator.world import JobWorld, Meta, PodView, Unreadable

# Of these it counts only that signs of life do not go back, and that none is news for the status.
# By the load decides the autoscaler alone, which has each look decide anew.
# What is not named here, such as what later releases say, leads to another decision.
_FIGURES = frozenset(
    {
        "answered_at",
        "epoch",
        "epoch_since",
        "epoch_seconds",
        "last_checkpoint_time",
        "last_move_time",
        "last_progress_time",
        "rows_total",
        "rows_per_second",
        "busy_ratio",
        "load",
        "state_bytes",
        "tasks_running",
        "watermark",
        "watermark_of",
        "watermark_held_by",
    }
)
_OF_CHECKPOINTS = frozenset({"last_checkpoint", "completed_checkpoints"})
_SAID = tuple(name for name in DriverState.model_fields if name not in _FIGURES | _OF_CHECKPOINTS)


@dataclass(frozen=True, slots=True)
class Rest:
    """A decision about a job that came to nothing."""

    meta: Meta
    pod: PodView | None  # of the driver that is to be asked; None if there is none
    report: DriverState | None  # what it said
    rival: str
    moved: datetime | None  # when the stream last got on, as the status shows it
    checkpoint: CheckpointSummary | None  # the newest one that the status shows
    # How many milliseconds another one may take; None if with any other it does not stand
    slowest: float | None
    rules: Health | None  # by which keys are skewed; None without a spec
    skewed: Finding | None  # where they were found to be
    since: datetime
    until: datetime  # from then on time alone may lead to another decision

    def stands(self, now: datetime, report: DriverState | Unreadable | None) -> bool:
        """Whether the same would be decided now, where only time and the report are others."""
        if not self.since <= now < self.until:
            return False
        if self.report is None or not isinstance(report, DriverState):
            return self.report is report
        if any(getattr(report, name) != getattr(self.report, name) for name in _SAID):
            return False
        if is_long(self.moved, _moved(report, now)) or self._shows_other_health(report, now):
            return False
        if not self._covers_checkpoints(self.report, report):
            return False
        before, after = _signs(self.report, self.since), _signs(report, now)
        return all(_is_later(one, other) for one, other in zip(before, after, strict=True))

    def _shows_other_health(self, report: DriverState, now: datetime) -> bool:
        """Whether keys began or ceased to be skewed, or others are, or a clock was set."""
        shown = self.skewed
        keys = skewed(self.rules, report, known=shown is not None) if self.rules else None
        if self.rules and (keys is None) != (shown is None):
            return True
        if keys and shown and keys.is_of_another(shown) and now >= shown.since + NAMED_FOR:
            return True
        old = self.report
        if old is None or old.answered_at is None or report.answered_at is None:
            return False
        return is_step(old.answered_at - self.since, report.answered_at - now)

    def _covers_checkpoints(self, old: DriverState, new: DriverState) -> bool:
        """Whether those that were completed since are neither news nor late."""
        if all(getattr(old, name) == getattr(new, name) for name in _OF_CHECKPOINTS):
            return True
        last = new.last_checkpoint
        if last is None or self.slowest is None or last.duration_ms > self.slowest:
            return False
        return not is_another(self.checkpoint, last)


def rest_of(world: JobWorld, plan: Plan) -> Rest | None:
    """What a decision rests on that changes nothing; None if nobody knows until when it stands."""
    pod, report = world.current_driver, world.report
    rules = policy(Draft(world, world.status))
    if plan.status != world.status or plan.stands_until <= world.now or world.store_tasks:
        return None
    if isinstance(report, Unreadable) or (report is None and pod is not None and not pod.terminal):
        return None
    return Rest(
        world.meta,
        pod if report is not None else None,
        report,
        world.directory_rival,
        world.status.job.last_progress_time,
        world.status.snapshots.last_checkpoint,
        _slowest(world),
        rules.failure_policy.health if rules is not None else None,
        next((one for one in world.status.health.findings if one.check == "SkewedKeys"), None),
        world.now,
        plan.stands_until,
    )


def _slowest(world: JobWorld) -> float | None:
    """Checkpoints count for nothing else once the job is stable, and while none lags."""
    if world.status.health.restores:
        return None  # the next one ends their count
    attempt, last = world.status.attempt, world.status.snapshots.last_checkpoint
    spec = running_spec(Draft(world, world.status))
    if spec is None or last is None or not attempt.checkpointed or attempt.stable_since is None:
        return None
    interval = spec.checkpoint.effective_interval
    most = interval.seconds * 1000.0 if interval is not None else float("inf")
    report = world.report
    said = report.last_checkpoint if isinstance(report, DriverState) else None
    return most if max(last, said or last, key=_duration).duration_ms <= most else None


def _duration(checkpoint: CheckpointSummary) -> int:
    return checkpoint.duration_ms


def _moved(report: DriverState, now: datetime) -> datetime | None:
    moved = later(report.last_progress_time, report.last_move_time)
    return here(now, report, moved) if moved is not None else None


def _signs(report: DriverState, now: datetime) -> tuple[datetime | None, ...]:
    """Of life, on this clock: deadlines are counted from these."""
    last = report.last_checkpoint
    seen = (
        report.running_since,
        report.last_move_time,
        report.last_progress_time,
        report.last_checkpoint_time or (last.completed_at if last else None),
    )
    return (
        *(here(now, report, one) if one is not None else None for one in seen),
        None if report.answered_at is None else now,
    )


def _is_later(before: datetime | None, after: datetime | None) -> bool:
    """Or as good as the same."""
    if before is None or after is None:
        return before is after
    return after >= before - CLOCK_SLACK
