"""What a decision asks for: a status to keep, effects to carry out, events to tell.

The order is always the same: status first (the intent), then effects in their order, then the next
pass sees what came of them. Every effect is harmless when it is repeated. Pure values.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from moorage_api.driver import (
    CheckpointBody,
    PromoteBody,
    RescaleBody,
    SavepointBody,
    StartOrder,
    StopBody,
)
from moorage_api.lifecycle import Ui
from moorage_api.snapshot import SnapshotStatus
from moorage_api.status import Condition, JobStatus


@dataclass(frozen=True, slots=True)
class SaveRevision:
    """Keep the newest spec as the ControllerRevision of this name."""

    name: str
    number: int
    spec_hash: str
    profile: str = ""  # the hash of the profile that is in the spec


@dataclass(frozen=True, slots=True)
class TidyRevisions:
    """Delete all ControllerRevisions of the job but these."""

    keep: frozenset[str]


@dataclass(frozen=True, slots=True)
class StartDriver:
    """Make everything that an attempt needs, its pod last: Service, Secret, ConfigMap, pod."""

    revision: str
    order: StartOrder


@dataclass(frozen=True, slots=True)
class AskDriver:
    """Send a request to the current attempt's driver; a lost answer is asked for again."""

    attempt: int
    path: str
    body: CheckpointBody | SavepointBody | StopBody | RescaleBody | PromoteBody


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete a pod of this uid; never another one of its name."""

    name: str
    uid: str
    grace_seconds: int | None = None  # None for the pod's own; 0 only when its node is gone


@dataclass(frozen=True, slots=True)
class TidyAttempt:
    """Delete ended pods and ConfigMaps of attempts below this number."""

    below: int
    keep: int = 1  # of so many of them the pods stay, for their logs


@dataclass(frozen=True, slots=True)
class StoreTask:
    """Something to do in the store, by the operator itself or by a pod of the job's."""

    id: str  # deterministic; the same id is the same store task
    # Inspect the lineage, Verify a snapshot, Copy one (what takes long, and a pod always does),
    # Delete a snapshot's data, Release the lineage, DeleteLineage (all of the checkpoint
    # directory's objects, by what the log names); Preflight of a version, always by a pod of it
    kind: Literal["Inspect", "Verify", "Copy", "Delete", "Release", "DeleteLineage", "Preflight"]
    # The snapshot's address, for Verify, Copy and Delete; for Preflight what is to be restored
    path: str = ""
    # The manifest's, for Delete: another snapshot at the same address is left alone
    digest: str = ""
    # Who begins the snapshot, for Copy; who began it, for Delete: what that left without a manifest
    # goes too
    attempt: str = ""
    # Of what Copy makes the snapshot; for Preflight `Empty`, or the newest checkpoint that the
    # lineage is known to have
    source: str = ""


@dataclass(frozen=True, slots=True)
class RunStoreTask:
    """See to it that a store task is under way or done; its view comes with the next pass."""

    store_task: StoreTask
    # The ControllerRevision that says which store is meant; empty for the present one
    revision: str = ""


@dataclass(frozen=True, slots=True)
class SetFinalizer:
    """Add or remove the operator's finalizer."""

    present: bool


@dataclass(frozen=True, slots=True)
class DeleteObject:
    """Delete a custom resource: a snapshot that retention lets go."""

    kind: Literal["StatefulSparkJob", "StatefulSparkSnapshot"]
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class KeepSnapshot:
    """Make a StatefulSparkSnapshot, or leave the one of this name as it is.

    One that is Final now, and was begun by an upgrade, is made to stay.
    """

    name: str
    spec: Mapping[str, Any]
    # Manual, Periodic, Upgrade or Final; kept as a label
    trigger: Literal["Manual", "Periodic", "Upgrade", "Final"]
    trigger_value: str = ""


@dataclass(frozen=True, slots=True)
class SetPodMonitor:
    """Make or remove the PodMonitor by which Prometheus finds the job's driver."""

    present: bool
    tls_secret: str = ""  # the Secret with the authority of its certificate; empty if there is none


@dataclass(frozen=True, slots=True)
class SetDisruptionBudget:
    """Make or remove the PodDisruptionBudget of the job's pods in one role."""

    role: Literal["driver", "executor"]
    least: int  # pods that evictions leave; 0: there is no budget
    attempt: int  # whose pods count: those that another driver has beside it do not


@dataclass(frozen=True, slots=True)
class SetIngress:
    """Make, change or remove the Ingress in front of the job's page."""

    ui: Ui | None  # as the spec says it; None: there is none


@dataclass(frozen=True, slots=True)
class KeepClaims:
    """Make the claims that an attempt's executors have taken the job's own, for the next one.

    What is of no attempt that lives is deleted.
    """

    attempt: int
    claims: frozenset[str]  # their names
    standby: int = 0  # the attempt that stands by, if one does: it has claims of its own
    # Whether there are as many executors as there are to be: none takes what is free now
    whole: bool = False


@dataclass(frozen=True, slots=True)
class GiveUpClaim:
    """Delete a claim, and the pod that does not get on by it; the next one gets another."""

    name: str
    pod: DeletePod


Effect = (
    SaveRevision
    | TidyRevisions
    | StartDriver
    | AskDriver
    | DeletePod
    | TidyAttempt
    | RunStoreTask
    | SetFinalizer
    | DeleteObject
    | KeepSnapshot
    | SetPodMonitor
    | SetDisruptionBudget
    | SetIngress
    | KeepClaims
    | GiveUpClaim
)

BESIDE = (SetPodMonitor, SetDisruptionBudget, SetIngress, KeepClaims)
"""Effects that keep what is beside the job's pods as it should be; once for each change."""

ASIDE = (KeepSnapshot, DeleteObject, *BESIDE, GiveUpClaim)
"""Effects that come last, and whose failure holds up nothing else."""


class ActionFailed(Exception):
    """An effect could not be carried out now. The pass ends; the next one decides anew.

    Attributes:
        retry_after: seconds, where somebody said so.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Event:
    """Something to tell, once per transition: the same `key` is one Kubernetes Event."""

    kind: Literal["Normal", "Warning"]
    reason: str  # CamelCase, stable
    message: str
    key: str  # makes it one of its kind, such as the operation's id


FOREVER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Plan:
    """A decision about a job."""

    status: JobStatus  # what to keep; written only if it differs
    # Carried out in order after the status was written; the first failure ends the pass, but for
    # those of `ASIDE`
    effects: tuple[Effect, ...] = ()
    events: tuple[Event, ...] = ()
    again_after: float = 30.0  # seconds until the next look without an event
    # Snapshots of the job, by name, that show other uses than the job has for them now
    stale: tuple[str, ...] = ()
    # Until then, time alone leads to no other decision
    stands_until: datetime = FOREVER
    # The one thing to write where the rest of the status cannot be read: it stays as it is
    held: Condition | None = None


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """A decision about a snapshot; see `Plan`."""

    status: SnapshotStatus
    effects: tuple[Effect, ...] = ()
    events: tuple[Event, ...] = ()
    labels: Mapping[str, str] | None = None  # to set on the object, such as moorage.dev/state
    # None if time changes nothing any more, so that only an event leads to a look
    again_after: float | None = 30.0
