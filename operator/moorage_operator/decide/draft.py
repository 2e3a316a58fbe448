"""The decision in the making: a status that changes step by step, effects, events.

The only mutable thing of the package, and it lives for one decision. It offers what every step
needs and decides nothing itself.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from moorage_api import JobSpec, Problem
from moorage_api.driver import DriverState
from moorage_api.status import (
    AttemptStatus,
    JobStatus,
    OperationStatus,
    OperationStep,
    needed_format,
)
from moorage_operator.children.names import driver_pod_name
from moorage_operator.plan import ASIDE, FOREVER, Effect, Event, Plan
from moorage_operator.world import (
    Config,
    JobWorld,
    Meta,
    PodView,
    Unreadable,
    restart_asked,
)

# Never at once: what is waited for cannot have come in the moment of the decision.
_SOONEST = 0.2

_A_YEAR = 366 * 86_400.0

CLOCK_SLACK = timedelta(seconds=2)
"""How much a driver's times may move on this clock, by what its reports take to come."""


TRIAL = "preflight-"
"""What ids of store tasks begin with that try a version."""

QUOTA_EXCEEDED = "QuotaExceeded"
"""A ResourceQuota has no room for pods that are to come."""


@dataclass(slots=True)
class Draft:
    """What a decision about one job has come to so far."""

    world: JobWorld
    status: JobStatus
    problems: tuple[Problem, ...] = ()  # what keeps the newest spec from being acted on
    effects: list[Effect] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    again: float = 30.0  # seconds until the next look
    stands_until: datetime = FOREVER  # from then on time alone may lead to another decision

    # -- what there is -------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """The time of this decision."""
        return self.world.now

    @property
    def meta(self) -> Meta:
        """Of the object."""
        return self.world.meta

    @property
    def config(self) -> Config:
        """Of the operator."""
        return self.world.config

    @property
    def attempt(self) -> AttemptStatus:
        """The current one."""
        return self.status.attempt

    @property
    def operation(self) -> OperationStatus:
        """The one under way; only where there is one."""
        operation = self.status.operation
        if operation is None:
            raise LookupError(f"no operation is under way: job={self.meta.name}")
        return operation

    @property
    def drivers(self) -> tuple[PodView, ...]:
        """Driver pods; a decision that gets this far could read them."""
        drivers = self.world.drivers
        return () if isinstance(drivers, Unreadable) else drivers

    @property
    def pod(self) -> PodView | None:
        """The current attempt's driver."""
        number = self.attempt.number
        own = (p for p in self.drivers if p.owned and p.attempt == number and number > 0)
        return next(own, None)

    @property
    def report(self) -> DriverState | None:
        """What the current attempt's driver says, if it does."""
        report = self.world.report
        if not isinstance(report, DriverState) or report.attempt != self.attempt.number:
            return None
        if report.job_uid not in ("", self.meta.uid) or self.attempt.outcome:
            return None
        return report

    @property
    def is_active(self) -> bool:
        """Whether there is a current attempt that has not ended, as far as anybody knows."""
        return self.attempt.number > 0 and not self.attempt.outcome

    @property
    def is_unmade(self) -> bool:
        """Whether there is no driver to be stopped, and none that could be waited for."""
        if self.attempt.number == 0:
            return True
        return self.is_active and self.pod is None and not self.attempt.driver_uid

    @property
    def is_paused(self) -> bool:
        """Whether a person wants the operator to look on and do nothing."""
        return self.meta.annotation("paused") == "true"

    @property
    def restart_asked(self) -> bool:
        """Whether a person asks for a restart."""
        return restart_asked(self.meta, self.status)

    @property
    def newest(self) -> JobSpec | None:
        """What the object asks for, whether that is gone by or not."""
        return self.world.given_up or self.world.spec

    @property
    def on_trial(self) -> bool:
        """Whether a version runs, or is to, that is not stable after one that was."""
        return self.status.reconciliation.trial is not None

    @property
    def tag(self) -> str:
        """Tells this object's names from those of another object of its name."""
        return "".join(c for c in self.meta.uid if c.isalnum())[:8]

    @property
    def trial_id(self) -> str:
        """The id of the store task that tries the version of the operation under way."""
        return f"{TRIAL}{self.operation.id}-{self.tag}"

    def pod_name(self, number: int) -> str:
        """The name of an attempt's driver."""
        return driver_pod_name(self.meta.name, number)

    # -- what is to be -------------------------------------------------------------------------

    def put(self, **changes: Any) -> None:
        """Change the status."""
        self.status = self.status.model_copy(update=changes)

    def put_attempt(self, **changes: Any) -> None:
        """Change the attempt."""
        self.put(attempt=self.status.attempt.model_copy(update=changes))

    def put_operation(self, **changes: Any) -> None:
        """Change the operation under way."""
        self.put(operation=self.operation.model_copy(update=changes))

    def put_reconciliation(self, **changes: Any) -> None:
        """Change what was acted on."""
        self.put(reconciliation=self.status.reconciliation.model_copy(update=changes))

    def put_restarts(self, **changes: Any) -> None:
        """Change the account of restarts."""
        self.put(restarts=self.status.restarts.model_copy(update=changes))

    def forget_restarts(self) -> None:
        """A person did something: the job begins with a clean sheet, but for the total."""
        self.put_restarts(
            window=(), disruptions=(), backoff_level=0, restore_failures=0, next_retry_at=None
        )

    def put_snapshots(self, **changes: Any) -> None:
        """Change what is known of snapshots."""
        self.put(snapshots=self.status.snapshots.model_copy(update=changes))

    def put_triggers(self, **changes: Any) -> None:
        """Change which values of annotations were handled."""
        old = self.status.snapshots.last_trigger
        self.put_snapshots(last_trigger=old.model_copy(update=changes))

    def move(
        self, step: OperationStep, *, deadline: datetime | None = None, **changes: Any
    ) -> None:
        """The operation goes on to its next step."""
        self.put_operation(step=step, step_started_at=self.now, deadline=deadline, **changes)
        self.wake(self.config.busy_resync)

    def do(self, effect: Effect) -> None:
        """Ask for an effect, after those before it."""
        # Several steps of one decision may ask for the same.
        if effect not in self.effects:
            self.effects.append(effect)

    def tell(self, kind: Literal["Normal", "Warning"], reason: str, message: str, key: str) -> None:
        """Tell an event."""
        self.events.append(Event(kind, reason, message, f"{reason}-{key}"))

    def reached(self, moment: datetime, *, told: bool = False) -> bool:
        """Whether that time has come. No decision compares the time in another way.

        Args:
            told: the driver's reports move it: to later for as long as the stream gets on.
        """
        if self.now >= moment:
            if told:
                self.stands_until = self.now
            return True
        end = moment - CLOCK_SLACK if told else moment
        self.stands_until = min(self.stands_until, end)
        return False

    def attended(self, moment: datetime) -> datetime:
        """The moment, or since when somebody has seen to the job, if that is later.

        What has so much time to show itself has it while it is looked at, and helped along.
        """
        since = self.world.attended_since
        return moment if since is None else max(moment, since)

    @property
    def late_at(self) -> datetime | None:
        """When the step of the operation under way has had its time; None if it has no end."""
        operation = self.operation
        if operation.deadline is None:
            return None
        began = operation.step_started_at
        return operation.deadline + (self.attended(began) - began)

    def wake(self, seconds: float) -> None:
        """Look again after so many seconds at the latest."""
        seconds = max(seconds, _SOONEST)
        self.again = min(self.again, seconds)
        if seconds < _A_YEAR:
            self.stands_until = min(self.stands_until, self.now + timedelta(seconds=seconds))

    def wake_at(self, moment: datetime) -> None:
        """Look again at that time at the latest."""
        self.wake((moment - self.now).total_seconds())

    def plan(self) -> Plan:
        """The decision.

        What may fail without holding up anything else comes last.
        """
        effects = sorted(self.effects, key=lambda effect: isinstance(effect, ASIDE))
        if self.status.format != needed_format(self.status):
            self.put(format=needed_format(self.status))
        return Plan(
            self.status,
            tuple(effects),
            tuple(self.events),
            self.again,
            stands_until=self.stands_until,
        )


def later(one: datetime | None, other: datetime | None) -> datetime | None:
    """The later of two times, of which either may be unknown."""
    if one is None or other is None:
        return one or other
    return max(one, other)


def here(at: Draft | datetime, report: DriverState, moment: datetime) -> datetime:
    """A time of the driver's clock on this one; what the report took to come counts for nothing."""
    now = at if isinstance(at, datetime) else at.now
    return moment + (now - report.answered_at) if report.answered_at is not None else moment


def began_running(draft: Draft, report: DriverState) -> datetime | None:
    """When the stream began to run, on this clock; None while it does not.

    Never before the attempt began nor in the future, should the driver's clock have been put right
    in between. A driver that does not tell its time began when that was seen.
    """
    if report.running_since is None:
        return None
    if report.answered_at is None:
        return draft.now
    began = draft.attempt.started_at
    least = min(began, draft.now) if began is not None else report.running_since
    return min(max(here(draft, report, report.running_since), least), draft.now)
