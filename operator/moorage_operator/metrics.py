"""What the operator measures: of itself, and of the objects that it looks after.

Gauges of an object are made at the scrape from the newest status that a pass has seen, and go with
the object; so none is ever stale or wrong after a restart. Labels other than an object's name have
few values.
"""

import resource
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from moorage_api.status import Check, JobStatus, Phase
from moorage_operator.decide.conditions import ROLLBACK_BLOCKED, ROLLBACK_WAITS
from moorage_operator.ports import Object, Ref
from moorage_operator.world import StoreTaskView

_PHASES = get_args(Phase)
_CHECKS = get_args(Check)
_MOST_TASKS = 4096
_MOST_VALUES = 100
_LONGEST_VALUE = 64
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_KINDS = {"StatefulSparkJob": "job", "StatefulSparkSnapshot": "snapshot"}


@dataclass(frozen=True, slots=True)
class _Job:
    phase: str
    ready: bool
    degraded: bool
    blocked: bool
    restarts: int
    checkpoint_at: datetime | None
    checkpoint_bytes: int
    checkpoint_seconds: float
    failed_checkpoints: int
    findings: tuple[tuple[str, str], ...]
    health_actions: int
    clock_ahead: int
    parallelism: int
    rejected: bool
    reconciled: bool
    on_trial: bool
    rollback_blocked: bool
    rollback_waits: bool
    # of jobs with an autoscaler; what it has not said yet is left out
    target: float | None
    needed: float | None
    utilization: float | None


class _FewValues:
    """Values of a label that jobs' own programs can choose, such as the code of their end.

    A series is kept for as long as the process lives: after the first so many values, all others
    are one.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()

    def __call__(self, value: str) -> str:
        value = value[:_LONGEST_VALUE]
        if value not in self._known and len(self._known) >= _MOST_VALUES:
            return "Other"
        self._known.add(value)
        return value


class ApiMetrics:
    """What the API server answers to requests of passes, lists and the Lease; not to watches."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            "moorage_operator_api_request_seconds",
            "How long requests to the API server take; code 429 is too many, 0 no answer.",
            ["method", "code"],
            buckets=_BUCKETS,
            registry=registry,
        )

    def answered(self, method: str, code: int, seconds: float) -> None:
        """A request was answered after so long; code 0 if it was not."""
        self._seconds.labels(method=method, code=str(code)).observe(seconds)


class OperatorMetrics:
    """The operator's metrics, in a registry of their own.

    Args:
        namespaces: for each namespace whether it is looked after.
        held_elsewhere: how many jobs are selected, and another operator's.
        shards: all that there are, this process's own first.
        registry: where they are read; one of their own by default.
    """

    def __init__(
        self,
        *,
        waiting: Callable[[], int] = lambda: 0,
        leads: Callable[[], bool] = lambda: True,
        namespaces: Callable[[], Mapping[str, bool]] = dict,
        held_elsewhere: Callable[[], int] = lambda: 0,
        shards: Sequence[str] = ("",),
        version: str = "",
        registry: CollectorRegistry | None = None,
    ) -> None:
        self.registry = registry = registry or CollectorRegistry()
        self._jobs: dict[Ref, _Job] = {}
        self._snapshots: dict[Ref, str] = {}
        prefix = "moorage_operator"
        self._seconds = Histogram(
            f"{prefix}_reconcile_seconds",
            "How long passes take; outcome is changed, unchanged, failed, conflict or gone.",
            ["kind", "outcome"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self._moves = Counter(
            f"{prefix}_transitions",
            "Phases of jobs and states of snapshots that were entered.",
            ["kind", "to"],
            registry=registry,
        )
        self._conflicts = Counter(
            f"{prefix}_status_conflicts",
            "Times that somebody else had written a status: another operator may be alive.",
            registry=registry,
        )
        self._waits = Histogram(
            f"{prefix}_queue_wait_seconds",
            "How long objects that are due wait for a pass.",
            buckets=_BUCKETS,
            registry=registry,
        )
        self._restarts = Counter(
            f"{prefix}_restarts",
            "Times that jobs were brought back, by reason.",
            ["reason"],
            registry=registry,
        )
        self._store_tasks = Counter(
            f"{prefix}_store_task_failures",
            "Store tasks of jobs and snapshots that failed, by code.",
            ["code"],
            registry=registry,
        )
        self._failed_tasks: dict[str, None] = {}
        self._events = Counter(
            f"{prefix}_events",
            "Events that were told of jobs and snapshots, by reason, such as PreflightFailed.",
            ["kind", "reason"],
            registry=registry,
        )
        self._reasons, self._codes, self._told = _FewValues(), _FewValues(), _FewValues()
        depth = Gauge(f"{prefix}_queue_depth", "Objects that are due.", registry=registry)
        depth.set_function(waiting)
        text = "1 if this process leads; 0 of all other shards, whose own processes say more."
        leading = Gauge(f"{prefix}_leading", text, ["shard"], registry=registry)
        for one in shards:
            leading.labels(shard=one).set(0)
        leading.labels(shard=shards[0]).set_function(lambda: float(leads()))
        text = "What the process has in memory."
        memory = Gauge(f"{prefix}_memory_bytes", text, ["shard"], registry=registry)
        memory.labels(shard=shards[0]).set_function(_resident_bytes)
        text = "Jobs that this operator is set up for, and that another one looks after."
        held = Gauge(f"{prefix}_jobs_held_elsewhere", text, registry=registry)
        held.set_function(held_elsewhere)
        build = Gauge(f"{prefix}_build_info", "Always 1.", ["version"], registry=registry)
        build.labels(version=version).set(1)
        registry.register(_Objects(self._jobs, self._snapshots))
        registry.register(_Namespaces(lambda: namespaces() if leads() else {}))

    def pass_ended(self, ref: Ref, seconds: float, outcome: str) -> None:
        """A pass took so long; outcome is changed, unchanged, failed, conflict or gone."""
        self._seconds.labels(kind=_KINDS[ref.kind], outcome=outcome).observe(seconds)

    def waited(self, seconds: float) -> None:
        """An object that was due has its pass after so long."""
        self._waits.observe(seconds)

    def restarted(self, reason: str) -> None:
        """A job is brought back."""
        self._restarts.labels(reason=self._reasons(reason or "Unknown")).inc()

    def store_tasks_seen(self, tasks: Mapping[str, StoreTaskView]) -> None:
        """How store tasks stand, by id; each failure counts once."""
        for one, view in tasks.items():
            if view.state != "Failed" or one in self._failed_tasks:
                continue
            self._failed_tasks[one] = None
            self._store_tasks.labels(code=self._codes(view.code or "unknown")).inc()
            while len(self._failed_tasks) > _MOST_TASKS:
                del self._failed_tasks[next(iter(self._failed_tasks))]

    def told(self, kind: str, reason: str) -> None:
        """An event was told of an object of this kind."""
        self._events.labels(kind=_KINDS[kind], reason=self._told(reason)).inc()

    def job_seen(self, body: Object, status: JobStatus) -> None:
        """This is how a job is now."""
        self._jobs[_ref(body)] = _job(status)

    def snapshot_seen(self, ref: Ref, state: str) -> None:
        """This is how a snapshot is now."""
        self._snapshots[ref] = state

    def gone(self, ref: Ref) -> None:
        """There is no such object any more."""
        self._jobs.pop(ref, None)
        self._snapshots.pop(ref, None)

    def moved(self, ref: Ref, after: str) -> None:
        """A phase or state was written that is another than before."""
        self._moves.labels(kind=_KINDS[ref.kind], to=after).inc()

    def conflicted(self) -> None:
        """Somebody else wrote a status."""
        self._conflicts.inc()


class _Namespaces(Collector):
    """One gauge for each namespace; only of the process that leads."""

    def __init__(self, shown: Callable[[], Mapping[str, bool]]) -> None:
        self._shown = shown

    def collect(self) -> Iterator[Metric]:
        name = "moorage_operator_namespace_watched"
        text = "1 if a namespace is looked after, 0 if it cannot be; an empty name is all of them."
        family = GaugeMetricFamily(name, text, labels=["namespace"])
        for namespace, watched in self._shown().items():
            family.add_metric([namespace], float(watched))
        yield family


class _Objects(Collector):
    """Gauges of jobs and snapshots, made at each scrape."""

    def __init__(self, jobs: dict[Ref, _Job], snapshots: dict[Ref, str]) -> None:
        self._jobs, self._snapshots = jobs, snapshots

    def collect(self) -> Iterator[Metric]:
        yield self._phases()
        yield self._states()
        yield self._findings()
        for name, text, value in _GAUGES:
            family = GaugeMetricFamily(f"moorage_job_{name}", text, labels=["namespace", "job"])
            for ref, job in list(self._jobs.items()):
                number = value(job)
                if number is not None:
                    family.add_metric([ref.namespace, ref.name], number)
            yield family

    def _phases(self) -> Metric:
        """One series a job: the phase that it is in."""
        text = "1 for the phase that a job is in."
        family = GaugeMetricFamily("moorage_job_phase", text, labels=["namespace", "job", "phase"])
        for ref, job in list(self._jobs.items()):
            phase = job.phase if job.phase in _PHASES else "Other"
            family.add_metric([ref.namespace, ref.name, phase], 1)
        return family

    def _findings(self) -> Metric:
        text = "1 for each thing that is wrong with a job, and what the operator does about it."
        labels = ["namespace", "job", "check", "action"]
        family = GaugeMetricFamily("moorage_job_unhealthy", text, labels=labels)
        for ref, job in list(self._jobs.items()):
            for found, action in job.findings:
                check = found if found in _CHECKS else "Other"
                family.add_metric([ref.namespace, ref.name, check, action], 1)
        return family

    def _states(self) -> Metric:
        text = "How many snapshots are in a state."
        family = GaugeMetricFamily("moorage_snapshots", text, labels=["namespace", "state"])
        counts: dict[tuple[str, str], int] = {}
        for ref, state in list(self._snapshots.items()):
            key = (ref.namespace, state)
            counts[key] = counts.get(key, 0) + 1
        for (namespace, state), count in sorted(counts.items()):
            family.add_metric([namespace, state], count)
        return family


_GAUGES: tuple[tuple[str, str, Callable[[_Job], float | None]], ...] = (
    ("ready", "1 if a job is Ready.", lambda job: float(job.ready)),
    ("degraded", "1 if a job is Degraded.", lambda job: float(job.degraded)),
    ("blocked", "1 if a job waits for a person.", lambda job: float(job.blocked)),
    ("restarts", "How often a job was brought back.", lambda job: float(job.restarts)),
    (
        "last_checkpoint_timestamp_seconds",
        "When a job's newest checkpoint was completed.",
        lambda job: job.checkpoint_at.timestamp() if job.checkpoint_at else None,
    ),
    (
        "last_checkpoint_bytes",
        "How large a job's newest checkpoint is.",
        lambda job: float(job.checkpoint_bytes) if job.checkpoint_at else None,
    ),
    (
        "last_checkpoint_duration_seconds",
        "How long a job's newest checkpoint took.",
        lambda job: job.checkpoint_seconds if job.checkpoint_at else None,
    ),
    (
        "failed_checkpoints_in_a_row",
        "How many checkpoints have failed since the last one that did not.",
        lambda job: float(job.failed_checkpoints),
    ),
    (
        "health_actions",
        "How often the operator did something by itself about a job that ran, of its budget.",
        lambda job: float(job.health_actions),
    ),
    (
        "clock_ahead_seconds",
        "How far the clock of a job's driver is ahead of the operator's, in steps of 30 s.",
        lambda job: float(job.clock_ahead),
    ),
    (
        "parallelism",
        "How many subtasks run.",
        lambda job: float(job.parallelism) if job.parallelism else None,
    ),
    (
        "rejected",
        "1 if the newest version was given up: its preflight failed, or it was rolled back.",
        lambda job: float(job.rejected),
    ),
    (
        "reconciled",
        "1 if the newest spec is followed; 0 while it waits, is being followed or was given up.",
        lambda job: float(job.reconciled),
    ),
    (
        "on_trial",
        "1 while the version that runs, or is to, is not stable, and another one was.",
        lambda job: float(job.on_trial),
    ),
    (
        "rollback_blocked",
        "1 while a version does not become stable and a person decides whether to go back.",
        lambda job: float(job.rollback_blocked),
    ),
    (
        "rollback_waits",
        "1 while a version has had its time, and whether it published cannot be read in its store.",
        lambda job: float(job.rollback_waits),
    ),
    (
        "autoscaler_target",
        "How many subtasks the autoscaler decided on; only of jobs that have one.",
        lambda job: job.target,
    ),
    (
        "autoscaler_needed",
        "How many subtasks the load alone needs, within the bounds.",
        lambda job: job.needed,
    ),
    (
        "autoscaler_utilization",
        "The share of the job's capacity that what arrives takes.",
        lambda job: job.utilization,
    ),
)


def _job(status: JobStatus) -> _Job:
    conditions = {one.type: one.status == "True" for one in status.conditions}
    last, scaler = status.snapshots.last_checkpoint, status.scaling.autoscaler
    running = status.scaling.observed_parallelism
    return _Job(
        phase=str(status.phase),
        ready=conditions.get("Ready", False),
        degraded=conditions.get("Degraded", False),
        blocked=bool(status.blocked_reason),
        restarts=status.restarts.total,
        checkpoint_at=last.completed_at if last else None,
        checkpoint_bytes=last.size_bytes if last else 0,
        checkpoint_seconds=last.duration_ms / 1000 if last else 0.0,
        failed_checkpoints=status.snapshots.consecutive_failures,
        findings=tuple((one.check, one.then) for one in status.health.findings),
        health_actions=len(status.health.actions),
        clock_ahead=status.health.clock_ahead_seconds,
        parallelism=running,
        rejected=_says(status, "Reconciled", "Rejected"),
        reconciled=conditions.get("Reconciled", False),
        on_trial=status.reconciliation.trial is not None,
        rollback_blocked=_says(status, "Stable", ROLLBACK_BLOCKED),
        rollback_waits=_says(status, "Stable", ROLLBACK_WAITS),
        target=float(scaler.target or running) if scaler else None,
        needed=float(scaler.needed) if scaler and scaler.needed else None,
        utilization=_number(scaler.utilization) if scaler else None,
    )


def _says(status: JobStatus, kind: str, reason: str) -> bool:
    said = status.condition(kind)
    return said is not None and said.reason == reason


def _number(text: str) -> float | None:
    """None for what is no number: whoever may write statuses may have written anything."""
    try:
        return float(text)
    except ValueError:
        return None


def _resident_bytes() -> float:
    """Now; where the system does not say, the most there has been."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return float(most if sys.platform == "darwin" else most * 1024)
    return float(pages * resource.getpagesize())


def _ref(body: Object) -> Ref:
    meta = body["metadata"]
    return Ref(body["kind"], meta["namespace"], meta["name"])
