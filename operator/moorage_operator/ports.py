"""The four doors of the control plane: cluster, drivers, store, clock. Everything else is pure.

Tests put stand-ins behind them; the real ones are in `kube`, `endpoint` and `lineages`. All of them
tell "it is not there" apart from "it could not be read".
"""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol

from pydantic import BaseModel

from moorage_api import JobSpec
from moorage_api.driver import DriverState, RequestView
from moorage_operator.plan import StoreTask
from moorage_operator.world import Meta, StoreTaskView, StoreView, Unreadable

Object = dict[str, Any]
"""A Kubernetes object as plain JSON data."""

Kind = Literal[
    "StatefulSparkJob",
    "StatefulSparkSnapshot",
    "Pod",
    "Service",
    "ServiceAccount",
    "Secret",
    "ConfigMap",
    "PersistentVolumeClaim",
    "ControllerRevision",
    "Event",
    "Lease",
    "Namespace",
    "Node",
    "PodDisruptionBudget",
    "PodMonitor",
    "Ingress",
    "ResourceQuota",
    "LimitRange",
    "PriorityClass",
]


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """An object that passes are for: a StatefulSparkJob or a StatefulSparkSnapshot."""

    kind: Kind
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


class ClusterError(Exception):
    """The API server refused or did not answer. `reason` is its own word where it gave one."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class NotFound(ClusterError):
    """There is no such object (of this uid)."""


class Conflict(ClusterError):
    """The object has changed, or another uid has its name, or another manager owns a field."""


class NameTaken(ClusterError):
    """An object of this name exists, or is still being deleted."""


class Invalid(ClusterError):
    """The object breaks its schema or a rule."""


class Forbidden(ClusterError):
    """Not allowed; `reason` is NamespaceTerminating where that is why."""


class ApiUnavailable(ClusterError):
    """No answer, or 429 or 5xx. What was asked may have happened.

    Attributes:
        retry_after: seconds, where the server said so.
    """

    def __init__(self, message: str, reason: str = "", retry_after: float | None = None) -> None:
        super().__init__(message, reason)
        self.retry_after = retry_after


class Page(NamedTuple):
    """A part of a list."""

    items: list[Object]
    # Whether the list begins here, or begins anew: what came before it does not count
    first: bool


class Reads(Protocol):
    """What is there. Every method may raise any `ClusterError`."""

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """The object; None only if the server says that it is not there."""

    async def list(
        self, kind: Kind, namespace: str | None, labels: Mapping[str, str] | None = None
    ) -> list[Object]:
        """All objects with these labels; all namespaces if None."""


class Cluster(Reads, Protocol):
    """The API server, asked and told directly. Every method may raise any `ClusterError`."""

    def pages(self, kind: Kind, namespace: str | None, selector: str) -> AsyncGenerator[Page]:
        """All objects that a label selector finds, such as `a,b=c,d notin (e,f)`; `""`: all.

        Page by page, so that nobody need hold the whole list. At least one, which may be empty.
        """

    async def apply(self, body: Object) -> Object:
        """Server-side apply, forced, under the operator's own field manager."""

    async def create(self, body: Object) -> Object:
        """Create it. Raises NameTaken."""

    async def try_create(self, body: Object) -> None:
        """Create it in a dry run: all that would be said against it is said, and nothing is made.

        Raises as `create`.
        """

    async def replace_status(self, body: Object) -> Object:
        """PUT /status; the body carries the resourceVersion it rests on. Raises Conflict."""

    async def patch(self, kind: Kind, namespace: str, name: str, patch: Object) -> Object:
        """JSON merge patch of the main resource; a resourceVersion in it is a condition."""

    async def delete(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        grace_seconds: int | None = None,
        foreground: bool = False,
    ) -> None:
        """Delete it if it has this uid; one that is gone already is fine. Raises Conflict."""


@dataclass(frozen=True, slots=True)
class DriverTarget:
    """Where a driver listens, and the token it wants (never shown)."""

    ip: str
    port: int
    token: str
    # What one with an older runtime wants instead; empty if there is no such thing
    older_token: str = ""
    authority: str = ""  # of its certificate, as PEM; empty if it speaks in the clear
    name: str = ""  # the DNS name that its certificate must have

    def __repr__(self) -> str:
        return f"DriverTarget({self.ip}:{self.port})"


class EndpointUnreachable(Exception):
    """The driver gave no readable answer; a request may have reached it all the same."""


class EndpointUntrusted(EndpointUnreachable):
    """Who answers does not show a certificate that is believed; nothing was said to it."""


class EndpointRefused(Exception):
    """The driver answered that it will not, with a stable code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class DriverClient(Protocol):
    """The drivers' endpoints."""

    async def state(self, target: DriverTarget) -> DriverState:
        """`GET /state`. Raises EndpointUnreachable, EndpointRefused."""

    async def ask(self, target: DriverTarget, path: str, body: BaseModel) -> RequestView:
        """POST a request; by its id it is idempotent. Raises as `state`."""


@dataclass(frozen=True, slots=True)
class JobRefs:
    """What reaching a job's store takes."""

    meta: Meta
    spec: JobSpec


class Lineages(Protocol):
    """Checkpoint directories and savepoints in object stores."""

    async def inspect(
        self, job: JobRefs, since: datetime | None = None
    ) -> StoreView | Unreadable | None:
        """What the checkpoint directory says now; None while a store task for it is under way.

        Args:
            since: what was read before that does not count, such as the end of a driver.
        """

    async def run(self, job: JobRefs, store_task: StoreTask) -> StoreTaskView:
        """Begin a store task, or say how it stands; by its id it is idempotent."""

    async def look(self, job: JobRefs, task_id: str) -> StoreTaskView | None:
        """How a store task stands that was begun; None if nobody knows of it any more."""


class WallClock(Protocol):
    """Time."""

    def now(self) -> datetime:
        """The time, aware, in UTC."""

    def tick(self) -> float:
        """Seconds that only ever grow, whatever the clock is set to."""
