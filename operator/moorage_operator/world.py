"""What one pass of the reconcile loop has seen: plain values, no clients.

Filled by `observe`, judged by `decide`. A thing that could not be read is told apart from a thing
that is not there: nothing is ever decided on a failed read. Times are aware, in UTC.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from moorage_api import JobSpec, Problem
from moorage_api.driver import DriverEnd, DriverState
from moorage_api.snapshot import SnapshotSpec, SnapshotStatus
from moorage_api.state import DEFAULT_BACKEND
from moorage_api.status import JobStatus, ProfileStatus

CLOCKS_APART = timedelta(seconds=30)
"""By which clocks of two machines differ, or one is put right, without a word."""

_LONGEST_VALUE = 256
_MARK = 32


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Something could not be read: it may be there or not."""

    # A stable CamelCase word, such as StoreUnavailable, StoreDenied, EndpointUnreachable
    reason: str
    message: str  # for people
    since: datetime | None = None  # when reading it began to fail, as far as this process knows


@dataclass(frozen=True, slots=True)
class Meta:
    """Of the object itself."""

    name: str
    namespace: str
    uid: str
    generation: int
    resource_version: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    finalizers: tuple[str, ...] = ()
    created_at: datetime | None = None
    deleted_at: datetime | None = None

    def annotation(self, name: str) -> str:
        """The value of `moorage.dev/<name>`, empty if there is none.

        Of a value longer than 256 characters a beginning and a hash: statuses keep what was
        handled, and an annotation may have 256 KiB.
        """
        value = self.annotations.get(f"moorage.dev/{name}", "").strip()
        if len(value) <= _LONGEST_VALUE:
            return value
        mark = hashlib.sha256(value.encode()).hexdigest()[:_MARK]
        return f"{value[: _LONGEST_VALUE - _MARK - 1]}-{mark}"


@dataclass(frozen=True, slots=True)
class Revision:
    """A spec that was acted on, as its ControllerRevision keeps it."""

    name: str  # of the ControllerRevision; made from a hash of the spec
    number: int  # the generation of the object that it was made of, or came back with
    # Of the spec with defaults filled in, so that a new default is no edit; by the release that
    # made it
    spec_hash: str
    spec: JobSpec
    profile: str = ""  # the hash of the profile that is in the spec


@dataclass(frozen=True, slots=True)
class ContainerEnd:
    """How a container ended."""

    exit_code: int
    reason: str = ""  # the kubelet's, such as OOMKilled, Error, Completed, ContainerCannotRun
    message: str = ""  # the termination message
    finished_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod of the job."""

    name: str
    uid: str
    role: str  # driver, executor or store task, from its label
    attempt: int  # from its label; 0 if it has none
    phase: str  # Pending, Running, Succeeded, Failed or Unknown; it is believed before containers
    owned: bool = True  # its controller is this very object (by uid)
    reason: str = ""  # of the pod, such as Evicted, NodeLost, Preempting; empty if none
    message: str = ""
    node: str = ""
    ip: str = ""
    ready: bool = False
    # Why the main container does not start, such as ImagePullBackOff; empty if it does
    waiting: str = ""
    waiting_message: str = ""
    # How the main container ended; None while it has not, or when nobody knows
    ended: ContainerEnd | None = None
    # What the driver said when it ended; None without a readable DriverEnd
    end: DriverEnd | None = None
    disrupted: str = ""  # the message of a True DisruptionTarget condition, else empty
    disrupted_by: str = ""  # its reason, such as PreemptionByScheduler
    unschedulable: str = ""  # the message of a PodScheduled=False condition, else empty
    revision: str = ""  # the ControllerRevision that it was made from; empty if it does not say
    standby: bool = False  # whether it was made to run beside another driver, at first
    store_task: str = ""  # the id of the store task that it is for; empty for other pods
    # The Secret with the certificate that it shows; empty if it speaks in the clear
    tls_secret: str = ""
    claim: str = ""  # of its local volume, where that is one that Spark made or took
    node_ready: bool | None = None  # whether its node answers; None when not known or not scheduled
    created_at: datetime | None = None
    started_at: datetime | None = None
    deleted_at: datetime | None = None
    grace_seconds: int = 30

    @property
    def terminal(self) -> bool:
        """Whether its containers will not run again, whatever else is odd about it."""
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class LogPoint:
    """A restore point that the lineage's log names."""

    path: str
    checkpoint_id: int
    epoch: int
    completed_at: datetime
    manifest_digest: str = ""
    explicit: bool = False  # a run that a person chose began there, and no checkpoint followed


@dataclass(frozen=True, slots=True)
class StoreView:
    """What the checkpoint directory says. Read by the operator itself or by a store task."""

    exists: bool  # whether there is a lineage at all
    lineage: str = ""
    # (cluster, namespace, name, uid) of the lineage's owner; None without a lineage
    owner: tuple[str, str, str, str] | None = None
    released: bool = False  # the owner gave it up
    fence: int = 0
    # The restore point that a start from Latest would take; None if the lineage never completed a
    # checkpoint
    newest: LogPoint | None = None
    previous: LogPoint | None = None  # the restore point before that one, if there is one
    order_ids: frozenset[str] = frozenset()  # ids of restore orders that runs have followed
    # Completed savepoints that the log announced, by the address of the directory
    savepoints: Mapping[str, LogPoint] = field(default_factory=dict)
    read_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class StoreTaskView:
    """What came of a store task to the store."""

    state: str  # Pending, Completed or Failed
    # Of a completed one; what it is depends on the store task
    result: Mapping[str, Any] = field(default_factory=dict)
    code: str = ""  # of a failed one, a stable word
    message: str = ""
    retryable: bool = False  # whether a failed one may go well later

    @property
    def failed_for_good(self) -> bool:
        """Whether the same would fail again."""
        return self.state == "Failed" and not self.retryable


@dataclass(frozen=True, slots=True)
class SnapshotView:
    """A StatefulSparkSnapshot."""

    meta: Meta
    spec: SnapshotSpec
    status: SnapshotStatus

    @property
    def directory(self) -> str:
        """The name of the savepoint's directory."""
        return self.spec.name or self.meta.name


@dataclass(frozen=True, slots=True)
class Room:
    """What ResourceQuotas lack, in words; empty where there is room, or nobody looked."""

    start: str = ""  # for a driver and one executor
    whole: str = ""  # for all pods
    growth: str = ""  # for what an edit asks for beyond what runs
    beside: str = ""  # for all pods while those that run stay
    trial: str = ""  # for the pod of a preflight while those that run stay
    silent: str = ""  # what containers do not say that quotas ask of all; a webhook may add it
    left: bool = False  # whether an ended driver may have some of what is lacked


@dataclass(frozen=True, slots=True)
class Config:
    """How the operator was set up, as far as decisions depend on it."""

    cluster_id: str
    own_namespace: str = ""  # where the operator is, and no job may be; empty if it is in none
    state_backend: str = DEFAULT_BACKEND  # of jobs that have no state yet and whose spec names none
    finalizer: str = "moorage.dev/operator"
    resync: float = 30.0  # seconds after which an object is looked at again without an event
    busy_resync: float = 2.0
    # Seconds for which a driver that does not answer is still believed in while its pod runs
    endpoint_patience: float = 60.0
    # Seconds for which a driver pod that a list lacks is not yet given up
    missing_patience: float = 5.0
    start_timeout: float = 600.0
    """How long a driver may take until the stream runs, where no policy says otherwise."""
    stop_timeout: float = 180.0
    """How long a driver may take to end after it was told to, before its pod is deleted."""


def restart_asked(meta: Meta, status: JobStatus) -> bool:
    """Whether moorage.dev/restart has a value that was not followed yet."""
    return meta.annotation("restart") not in ("", status.snapshots.last_trigger.restart)


def newest_driver(own: Iterable[PodView]) -> PodView | None:
    """The driver of the newest attempt, of a job whose status names none.

    One that was made to stand by has the lineage only if no other one lives.
    """
    pods = list(own)
    leading = [pod for pod in pods if not (pod.standby or pod.terminal)]
    return max(leading or pods, key=lambda pod: pod.attempt, default=None)


@dataclass(frozen=True, slots=True)
class JobWorld:
    """Everything a decision about one StatefulSparkJob rests on."""

    now: datetime
    config: Config
    meta: Meta
    # The newest spec with defaults, or what goes on in its place; None if it cannot be read as one
    spec: JobSpec | None
    # Of `spec`, or of the revision that asks for the same job; empty if that is None
    spec_hash: str
    # What is wrong with the newest spec: of models, of the cluster, of facts (a missing Secret, a
    # checkpointDir that another object has)
    problems: tuple[Problem, ...]
    status: JobStatus
    # By name: those that the status names, current, stable and target
    revisions: Mapping[str, Revision] = field(default_factory=dict)
    # Driver pods of this object's uid (and foreign ones of its names, `owned` False)
    drivers: tuple[PodView, ...] | Unreadable = ()
    executors: tuple[PodView, ...] | Unreadable = ()  # executor pods of the current attempt
    # What the current attempt's driver says; None when it was not asked
    report: DriverState | Unreadable | None = None
    # Of the driver beside it, if the operation has one: what it says, and its executor pods
    standby_report: DriverState | Unreadable | None = None
    standby_executors: tuple[PodView, ...] = ()
    store_task_pods: tuple[PodView, ...] = ()  # of this object, whatever has become of their tasks
    # None when it was not read in this pass, because nothing depended on it
    store: StoreView | Unreadable | None = None
    snapshots: tuple[SnapshotView, ...] | Unreadable = ()  # StatefulSparkSnapshots of this job
    store_tasks: Mapping[str, StoreTaskView] = field(default_factory=dict)
    # `namespace/name` of an older object with the same checkpointDir, or empty
    directory_rival: str = ""
    # Why this operator must not act on this object (a newer status format, or a status that nobody
    # can read)
    operator_too_old: str = ""
    status_garbled: bool = False  # it is the latter
    trouble: str = ""  # what effects fail with, pass after pass; empty when they go through
    namespace_terminating: bool = False  # the namespace is being deleted
    # What the API server would say against the pods of a version that is tried, or whose executors
    # do not come; None: not asked
    refused_pods: tuple[str, ...] | Unreadable | None = None
    unplaced_pods: str = ""  # which of them no node could hold, even an empty one, and why
    # The newest spec, where that version was given up and `spec` goes on in its place
    given_up: JobSpec | None = None
    # What the object says, where `spec` has the parallelism that holds
    declared_parallelism: int = 0
    # What is asked for, by whomever, whether that holds or has to wait
    asked_parallelism: int = 0
    room: Room = Room()  # for the pods that are to come
    # What is wrong with the profile, or beyond limits: among `problems`, or borne, as it runs
    beyond: tuple[Problem, ...] = ()
    profile: ProfileStatus | None = None  # the defaults that `spec` has of many jobs
    # Fields that differ by what is to be taken with the next restart
    profile_waits: tuple[str, ...] = ()
    # While another one is declared and waits
    parallelism_held_until: datetime | None = None
    # Since when passes have seen to it: later than what happened while no operator ran, the job was
    # paused, or the API server did not answer; None for always
    attended_since: datetime | None = None

    @property
    def holds_parallelism(self) -> bool:
        """Whether another number of subtasks is asked for than `spec` has."""
        spec = self.spec
        return spec is not None and self.asked_parallelism not in (0, spec.scaling.parallelism)

    @property
    def current_driver(self) -> PodView | None:
        """The pod of the attempt that the status names; of a status that names none, the newest."""
        if isinstance(self.drivers, Unreadable):
            return None
        own = [pod for pod in self.drivers if pod.owned]
        number = self.status.attempt.number
        if number == 0 or self.is_foreign:
            return newest_driver(own)
        return next((pod for pod in own if pod.attempt == number), None)

    @property
    def standby_driver(self) -> PodView | None:
        """The pod of the driver beside it, if the operation has one."""
        operation = self.status.operation
        if isinstance(self.drivers, Unreadable) or operation is None or operation.standby is None:
            return None
        number = operation.standby.attempt
        return next((p for p in self.drivers if p.owned and p.attempt == number), None)

    @property
    def is_foreign(self) -> bool:
        """Whether the status was written for another object: a backup was restored."""
        return self.status.lineage_owner_uid not in ("", self.meta.uid)


@dataclass(frozen=True, slots=True)
class SnapshotWorld:
    """Everything a decision about one StatefulSparkSnapshot rests on.

    Attributes:
        job: the job's object and status; None if there is no such job.
        report: what the job's driver says; None when it was not asked.
        siblings: the other snapshots of the job; empty unless this one is still to be taken.
        store tasks: by id, those that this snapshot's status names.
    """

    now: datetime
    config: Config
    snapshot: SnapshotView
    problems: tuple[Problem, ...] = ()
    job: "JobFacts | None" = None
    report: DriverState | Unreadable | None = None
    siblings: tuple[SnapshotView, ...] | Unreadable = ()
    store_tasks: Mapping[str, StoreTaskView] = field(default_factory=dict)
    namespace_terminating: bool = False


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What a snapshot needs to know of its job."""

    meta: Meta
    spec: JobSpec | None
    """The spec that runs (of the current revision), else the newest."""
    status: JobStatus
    newest: JobSpec | None = None
    """The newest spec, where it is another one: what it restores from is in use too."""
