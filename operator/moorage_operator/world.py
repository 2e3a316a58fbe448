"""What one pass of the reconcile loop has seen: plain values, no clients.

Filled by `observe`, judged by `decide`. A thing that could not be read is told apart from a thing
that is not there: nothing is ever decided on a failed read. Times are aware, in UTC.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from moorage_api import JobSpec, Problem
from moorage_api.driver import DriverEnd, DriverState
from moorage_api.snapshot import SnapshotSpec, SnapshotStatus
from moorage_api.state import DEFAULT_BACKEND
from moorage_api.status import JobStatus

_LONGEST_VALUE = 256
_MARK = 32


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Something could not be read: it may be there or not.

    Attributes:
        reason: a stable CamelCase word, such as StoreUnavailable, StoreDenied, EndpointUnreachable.
        message: for people.
        since: when reading it began to fail, as far as this process knows.
    """

    reason: str
    message: str
    since: datetime | None = None


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
    """A spec that was acted on, as its ControllerRevision keeps it.

    Attributes:
        name: of the ControllerRevision; made from a hash of the spec.
        number: the generation of the object that it was made of, or came back with.
        spec_hash: of the spec with defaults filled in, so that a new default is no edit; by the
            release that made it.
    """

    name: str
    number: int
    spec_hash: str
    spec: JobSpec


@dataclass(frozen=True, slots=True)
class ContainerEnd:
    """How a container ended.

    Attributes:
        reason: the kubelet's, such as OOMKilled, Error, Completed, ContainerCannotRun.
        message: the termination message.
    """

    exit_code: int
    reason: str = ""
    message: str = ""
    finished_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod of the job.

    Attributes:
        phase: Pending, Running, Succeeded, Failed or Unknown; it is believed before containers.
        reason: of the pod, such as Evicted, NodeLost, Preempting; empty if none.
        role: driver, executor or store task, from its label.
        attempt: from its label; 0 if it has none.
        owned: its controller is this very object (by uid).
        waiting: why the main container does not start, such as ImagePullBackOff; empty if it does.
        ended: how the main container ended; None while it has not, or when nobody knows.
        end: what the driver said when it ended; None without a readable DriverEnd.
        disrupted: the message of a True DisruptionTarget condition, else empty.
        unschedulable: the message of a PodScheduled=False condition, else empty.
        node_ready: whether its node answers; None when not known or not scheduled.
        revision: the ControllerRevision that it was made from; empty if it does not say.
        tls_secret: the Secret with the certificate that it shows; empty if it speaks in the clear.
    """

    name: str
    uid: str
    role: str
    attempt: int
    phase: str
    owned: bool = True
    reason: str = ""
    message: str = ""
    node: str = ""
    ip: str = ""
    ready: bool = False
    waiting: str = ""
    waiting_message: str = ""
    ended: ContainerEnd | None = None
    end: DriverEnd | None = None
    disrupted: str = ""
    unschedulable: str = ""
    revision: str = ""
    tls_secret: str = ""
    node_ready: bool | None = None
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
    """A restore point that the lineage's log names.

    Attributes:
        explicit: a run that a person chose began there, and no checkpoint followed.
    """

    path: str
    checkpoint_id: int
    epoch: int
    completed_at: datetime
    manifest_digest: str = ""
    explicit: bool = False


@dataclass(frozen=True, slots=True)
class StoreView:
    """What the checkpoint directory says. Read by the operator itself or by a store task.

    Attributes:
        exists: whether there is a lineage at all.
        owner: (cluster, namespace, name, uid) of the lineage's owner; None without a lineage.
        released: the owner gave it up.
        newest: the restore point that a start from Latest would take; None if the lineage never
            completed a checkpoint.
        previous: the restore point before that one, if there is one.
        order_ids: ids of restore orders that runs have followed.
        savepoints: completed savepoints that the log announced, by the address of the directory.
    """

    exists: bool
    lineage: str = ""
    owner: tuple[str, str, str, str] | None = None
    released: bool = False
    fence: int = 0
    newest: LogPoint | None = None
    previous: LogPoint | None = None
    order_ids: frozenset[str] = frozenset()
    savepoints: Mapping[str, LogPoint] = field(default_factory=dict)
    read_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class StoreTaskView:
    """What came of a store task to the store.

    Attributes:
        state: Pending, Completed or Failed.
        result: of a completed one; what it is depends on the store task.
        code: of a failed one, a stable word.
        retryable: whether a failed one may go well later.
    """

    state: str
    result: Mapping[str, Any] = field(default_factory=dict)
    code: str = ""
    message: str = ""
    retryable: bool = False


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
class Config:
    """How the operator was set up, as far as decisions depend on it.

    Attributes:
        resync: seconds after which an object is looked at again without an event.
        endpoint_patience: seconds for which a driver that does not answer is still believed in
            while its pod runs.
        missing_patience: seconds for which a driver pod that a list lacks is not yet given up.
        own_namespace: where the operator is, and no job may be; empty if it is in none.
        state_backend: of jobs that have no state yet and whose spec names none.
    """

    cluster_id: str
    own_namespace: str = ""
    state_backend: str = DEFAULT_BACKEND
    finalizer: str = "moorage.dev/operator"
    resync: float = 30.0
    busy_resync: float = 2.0
    endpoint_patience: float = 60.0
    missing_patience: float = 5.0
    start_timeout: float = 600.0
    """How long a driver may take until the stream runs, where no policy says otherwise."""
    stop_timeout: float = 180.0
    """How long a driver may take to end after it was told to, before its pod is deleted."""


@dataclass(frozen=True, slots=True)
class JobWorld:
    """Everything a decision about one StatefulSparkJob rests on.

    Attributes:
        spec: the newest spec with defaults; None if it cannot be read as one.
        spec_hash: of `spec`, or of the revision that asks for the same job; empty if that is None.
        problems: what is wrong with the newest spec: of models, of the cluster, of facts (a
            missing Secret, a checkpointDir that another object has).
        revisions: by name: those that the status names, current, stable and target.
        drivers: driver pods of this object's uid (and foreign ones of its names, `owned` False).
        executors: executor pods of the current attempt.
        report: what the current attempt's driver says; None when it was not asked.
        store: None when it was not read in this pass, because nothing depended on it.
        snapshots: StatefulSparkSnapshots of this job.
        directory_rival: `namespace/name` of an older object with the same checkpointDir, or empty.
        operator_too_old: why this operator must not act on this object (a newer status format, or
            a status that nobody can read).
        status_garbled: it is the latter.
        trouble: what effects fail with, pass after pass; empty when they go through.
        namespace_terminating: the namespace is being deleted.
    """

    now: datetime
    config: Config
    meta: Meta
    spec: JobSpec | None
    spec_hash: str
    problems: tuple[Problem, ...]
    status: JobStatus
    revisions: Mapping[str, Revision] = field(default_factory=dict)
    drivers: tuple[PodView, ...] | Unreadable = ()
    executors: tuple[PodView, ...] | Unreadable = ()
    report: DriverState | Unreadable | None = None
    store: StoreView | Unreadable | None = None
    snapshots: tuple[SnapshotView, ...] | Unreadable = ()
    store_tasks: Mapping[str, StoreTaskView] = field(default_factory=dict)
    directory_rival: str = ""
    operator_too_old: str = ""
    status_garbled: bool = False
    trouble: str = ""
    namespace_terminating: bool = False

    @property
    def current_driver(self) -> PodView | None:
        """The pod of the attempt that the status names; of a status that names none, the newest."""
        if isinstance(self.drivers, Unreadable):
            return None
        own = [pod for pod in self.drivers if pod.owned]
        number = self.status.attempt.number
        if number == 0 or self.is_foreign:
            return max(own, key=lambda pod: pod.attempt, default=None)
        return next((pod for pod in own if pod.attempt == number), None)

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
