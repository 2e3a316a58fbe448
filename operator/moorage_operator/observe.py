"""Reads everything that a decision rests on, and writes nothing.

Each pass begins with the object itself, live from the API server. What else could not be read
becomes `Unreadable`, never absence. What costs a request to a store, a node or a namespace is read
only where a decision depends on it: `needs`.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

import msgspec

from moorage_api import JobSpec
from moorage_api.changes import refreshed
from moorage_api.driver import ENDPOINT_PORT, DriverState, certificate_name
from moorage_api.fleet import Fleet
from moorage_api.lifecycle import OperatorSettings
from moorage_api.status import JobStatus
from moorage_operator.admission import Admission
from moorage_operator.children import names
from moorage_operator.decide.health import UNTRUSTED
from moorage_operator.decide.leaving import left_store_task
from moorage_operator.directories import CheckpointDirectories
from moorage_operator.objects import (
    JudgedSpecs,
    asked_parallelism,
    held_until,
    is_controlled_by,
    is_newer,
    meta_of,
    read_job_status,
    read_revision,
    read_snapshot,
)
from moorage_operator.podviews import pod_view
from moorage_operator.ports import (
    ClusterError,
    DriverClient,
    DriverTarget,
    EndpointRefused,
    EndpointUnreachable,
    EndpointUntrusted,
    Forbidden,
    JobRefs,
    Kind,
    Lineages,
    Object,
    Reads,
    WallClock,
)
from moorage_operator.profiles import effective, values_of
from moorage_operator.quota import room
from moorage_operator.references import fact_problems
from moorage_operator.store_access import last_end, store_refs, store_task_refs
from moorage_operator.tokens import Authorities, Tokens
from moorage_operator.volumes import claims_of, goes
from moorage_operator.world import (
    Config,
    JobFacts,
    JobWorld,
    Meta,
    PodView,
    Revision,
    Room,
    SnapshotView,
    SnapshotWorld,
    StoreTaskView,
    StoreView,
    Unreadable,
)

_STOPPING = ("Snapshotting", "Stopping")
_DRIVERS_DECIDE = ("Standby", "Rescaling", "Verifying")
_BEFORE_A_START = ("Fencing", "Starting")
_ASKED = timedelta(seconds=30)
"""In which Spark has begun, and asked for its executors."""
_LIFTED_BY_STORE = ("AdoptRequired", "CheckpointDirConflict")


class Need(Enum):
    """Something to read beyond the object, its pods and its driver's report."""

    STORE = "store"
    FACTS = "facts"
    NAMESPACE = "namespace"
    QUOTA = "quota"
    ADMISSION = "admission"


def needs(world: JobWorld) -> frozenset[Need]:
    """What to read for this world, of which everything else is read already."""
    if world.operator_too_old:
        return frozenset()
    wanted = set()
    operation = world.status.operation
    starts = operation is not None and operation.step in _BEFORE_A_START
    if world.meta.deleted_at is not None or starts:
        wanted.add(Need.NAMESPACE)
    if world.meta.annotation("paused") == "true":
        return frozenset(wanted)
    if world.spec is not None and _needs_facts(world):
        wanted.add(Need.FACTS)
        if operation is None or _makes_pods(world):
            wanted.add(Need.QUOTA)
    if _needs_store(world):
        wanted.add(Need.STORE)
    tried = operation is not None and operation.step == "Preflight"
    if world.meta.deleted_at is None and (tried or _lacks_executors(world)):
        wanted.add(Need.ADMISSION)
    return frozenset(wanted)


def _makes_pods(world: JobWorld) -> bool:
    """Whether the operation under way is about to make pods, or sees them come."""
    operation = world.status.operation
    if operation is None:
        return False
    beside = operation.step == "Standby" and world.standby_driver is None
    return beside or operation.step in ("Preflight", "Fencing", "Verifying", "Rescaling")


def _lacks_executors(world: JobWorld) -> bool:
    """Whether a driver that starts, or stands by, waits for executors of which none was made.

    Spark asks for them, and only its log has what the API server says.
    """
    operation = world.status.operation
    if operation is None or operation.step not in ("Standby", "Verifying"):
        return False
    late = world.now - operation.step_started_at > _ASKED
    if operation.step == "Standby":
        return late and world.standby_report is not None and not world.standby_executors
    runs = world.status.attempt.running_since is not None
    return late and not runs and world.report is not None and world.executors == ()


def _needs_facts(world: JobWorld) -> bool:
    """Secrets and accounts matter to a spec that is not running yet, and to a start."""
    status = world.status
    current = world.revisions.get(status.reconciliation.current_revision)
    return (
        current is None
        or current.spec_hash != world.spec_hash
        or status.operation is not None
        or bool(status.blocked_reason)
    )


def _needs_store(world: JobWorld) -> bool:
    """While a start, an end or a claim is being decided; not while the pods cannot be read."""
    status = world.status
    if isinstance(world.drivers, Unreadable):
        return False
    trial = status.reconciliation.trial
    if world.is_foreign or (trial is not None and trial.unread):
        return True
    lives = _lives(world.current_driver)
    if status.operation is not None:
        driver_decides = status.operation.step in (*_STOPPING, *_DRIVERS_DECIDE)
        return not (driver_decides and lives) or _is_overdue(world)
    if world.meta.deleted_at is not None:
        return not lives
    if status.blocked_reason:
        return status.blocked_reason in _LIFTED_BY_STORE
    return _is_overdue(world) if lives else _to_be_started(world)


def _is_overdue(world: JobWorld) -> bool:
    """Whether a driver lives, and nobody has heard of it for so long that the store must tell."""
    status, pod = world.status, world.current_driver
    if isinstance(world.report, DriverState) or pod is None or pod.ready:
        return False
    trial, asked = status.reconciliation.trial, world.spec
    if trial is not None and asked is not None and pod.phase != "Pending":
        limit = asked.upgrade.rollback.readiness_timeout.timedelta
        if _is_past(world, trial.since + limit):
            return True  # it is rolled back, unless it published
    if status.attempt.running_since is None:
        operation = status.operation
        late = operation.deadline if operation is not None else None
        return operation is not None and operation.step == "Verifying" and _is_past(world, late)
    current = world.revisions.get(status.reconciliation.current_revision)
    spec = world.spec if world.spec is not None and not world.problems else None
    spec = spec or (current.spec if current is not None else None)
    if spec is None or status.operation is not None:
        return False
    seen = (status.attempt.running_since, status.job.last_progress_time)
    newest = max(at for at in seen if at is not None)
    return _is_past(world, newest + spec.failure_policy.health.no_progress_for.timedelta)


def _is_past(world: JobWorld, moment: datetime | None) -> bool:
    return moment is not None and world.now >= moment


def _to_be_started(world: JobWorld) -> bool:
    """Nothing runs, and nothing says that this is how it ended."""
    wanted = world.spec is not None and world.spec.desired_state == "Running"
    return not world.status.attempt.outcome and (wanted or world.status.attempt.number > 0)


def _lives(pod: PodView | None) -> bool:
    return pod is not None and not pod.terminal


_ACTIVE = ("Pending", "InProgress", "Verifying")


class MoreNeeded(Exception):
    """A decision needs more than what watches show: everything is to be read live."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What the driver in a pod said a moment ago."""

    pod: PodView
    report: DriverState | Unreadable | None


@dataclass(slots=True)
class Observer:
    """The reading half of a pass."""

    cluster: Reads
    drivers: DriverClient
    lineages: Lineages
    clock: WallClock
    config: Config
    tokens: Tokens
    authorities: Authorities
    specs: JudgedSpecs  # what the newest specs say
    # Which job has which checkpoint directory, as far as this process has seen
    directories: CheckpointDirectories
    admission: Admission
    fleet: Callable[[], Fleet] = Fleet  # what holds for many jobs, as it is now
    report_timeout: float = 3.0  # seconds that a driver has to say how it is
    # Around what waits for a driver: the pass needs no worker meanwhile
    aside: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
    watched_only: bool = False  # raise `MoreNeeded` instead of reading stores, facts or namespaces
    # By job as `namespace/name`: what cannot be read, since when; revisions by uid and name, and
    # those that a list showed and nobody has read yet
    _failing: dict[str, dict[str, datetime]] = field(default_factory=dict)
    _revisions: dict[str, dict[str, Revision]] = field(default_factory=dict)
    _unread: dict[str, dict[str, bytes]] = field(default_factory=dict)

    async def job(
        self, body: Object, task_ids: Iterable[str] = (), heard: Heard | None = None
    ) -> JobWorld:
        """The world of a StatefulSparkJob, whose object was just read.

        Args:
            task_ids: store tasks that this process knows to be under way for it.
            heard: is not asked for again, where it is of the driver that is to be asked.
        """
        meta = meta_of(body)
        self.directories.note(body)
        status, too_old = read_job_status(body)
        judged = self.specs.of(body)
        world = JobWorld(
            now=self.clock.now(),
            config=self.config,
            meta=meta,
            spec=judged.spec,
            spec_hash=judged.digest,
            problems=judged.problems,
            status=status,
            directory_rival=self.directories.rival(f"{meta.namespace}/{meta.name}"),
            operator_too_old=too_old,
            status_garbled=bool(too_old) and not is_newer(body),
        )
        if too_old:
            going = meta.deleted_at is not None and await self._terminating(meta.namespace)
            return replace(world, namespace_terminating=going)
        world = await self._with_pods(world)
        revisions = await self._revisions_of(meta, status)
        fleet, backend = self.fleet(), self.config.state_backend
        found = effective(body, meta, self.specs, status, revisions, fleet, backend, world.now)
        declared, good = found.judged.spec, found.spec
        if found.problems and status.attempt.revision in revisions:
            good = revisions[status.attempt.revision].spec
        held = held_until(declared, status, revisions, world.now) if declared else None
        if found.given_up is not None and status.reconciliation.rejected_parallelism:
            held = None  # it is not done later either
        world = replace(
            world,
            config=_patient(self.config, good),
            declared_parallelism=declared.scaling.parallelism if declared else 0,
            asked_parallelism=asked_parallelism(declared.scaling, status) if declared else 0,
            parallelism_held_until=held,
            spec=found.spec,
            spec_hash=found.digest,
            given_up=found.given_up,
            problems=found.problems,
            beyond=found.beyond,
            profile=found.profile,
            profile_waits=found.waits,
            revisions=revisions,
            snapshots=await self._snapshots(meta.namespace, meta.name),
        )
        driver = world.current_driver
        fresh = heard is not None and heard.pod == driver
        report = heard.report if heard and fresh else await self.report(meta, driver)
        other = await self.report(meta, world.standby_driver, "standby")
        return await self._dear(replace(world, report=report, standby_report=other), task_ids)

    async def snapshot(self, body: Object, task_ids: Iterable[str] = ()) -> SnapshotWorld | None:
        """The world of a StatefulSparkSnapshot; None if its status must be left alone."""
        view, problems, _ = read_snapshot(body)
        if view is None:
            return None
        meta, name = view.meta, view.spec.job_ref.name
        found = await self.cluster.get("StatefulSparkJob", meta.namespace, name) if name else None
        job = await self._job_facts(found) if found is not None else None
        report: DriverState | Unreadable | None = None
        if job is not None and view.status.state in _ACTIVE:
            report = await self._report_of(job)
        world = SnapshotWorld(
            now=self.clock.now(),
            config=self.config,
            snapshot=view,
            problems=problems,
            job=job,
            report=report,
            siblings=await self._siblings(view),
            namespace_terminating=meta.deleted_at is not None
            and await self._terminating(meta.namespace),
        )
        ids = {*task_ids, view.status.store_task} - {""}
        return replace(world, store_tasks=await self._store_tasks(store_task_refs(world), ids))

    async def _siblings(self, view: SnapshotView) -> tuple[SnapshotView, ...] | Unreadable:
        """Only one that is still to be taken depends on the others."""
        if view.status.state != "Pending" or view.meta.deleted_at is not None:
            return ()
        found = await self._snapshots(view.meta.namespace, view.spec.job_ref.name)
        if isinstance(found, Unreadable):
            return found
        return tuple(one for one in found if one.meta.uid != view.meta.uid)

    async def target(self, meta: Meta, attempt: int) -> DriverTarget | None:
        """Where the driver of an attempt listens; None if it does not run."""
        return await self._target(meta, await self._driver(meta, attempt))

    def forget(self, meta_key: str) -> None:
        """An object, as `namespace/name`, is gone."""
        self.directories.forget(meta_key)
        self.specs.forget(meta_key)
        self.admission.forget(meta_key)
        for known in (self._failing, self._revisions, self._unread):
            known.pop(meta_key, None)

    def learn(self, revision: Object, job: Object) -> None:
        """A list showed a revision of this job, which need not be asked for one by one."""
        meta = revision["metadata"]
        if meta["name"] in _named(job.get("status") or {}):
            kept = self._unread.setdefault(f"{meta['namespace']}/{job['metadata']['name']}", {})
            kept[meta["name"]] = msgspec.json.encode(revision)

    # -- pods and their drivers ----------------------------------------------------------------

    async def _with_pods(self, world: JobWorld) -> JobWorld:
        """With drivers, executors of the attempt and of the driver beside it, and store tasks'."""
        meta, status = world.meta, world.status
        try:
            found = await self._listed(meta, status)
        except ClusterError as error:
            failed = self._unreadable(meta, "pods", _reason(error), str(error))
            return replace(world, drivers=failed, executors=failed)
        if not self.watched_only:
            self._readable(meta, "pods")
        drivers = tuple([await self._with_node(pod) for pod in found if pod.role == "driver"])
        number, operation = status.attempt.number, status.operation
        other = operation.standby.attempt if operation and operation.standby else -1
        executors = [pod for pod in found if pod.role == "executor" and pod.owned]
        return replace(
            world,
            drivers=drivers,
            executors=tuple(pod for pod in executors if pod.attempt == number),
            standby_executors=tuple(pod for pod in executors if pod.attempt == other),
            store_task_pods=tuple(
                pod for pod in found if pod.role == names.STORE_TASK_ROLE and pod.owned
            ),
        )

    async def _listed(self, meta: Meta, status: JobStatus) -> list[PodView]:
        """All pods that claim to be the job's, of a former object of this name as well."""
        bodies = await self.cluster.list("Pod", meta.namespace, {names.JOB_LABEL: meta.name})
        number = status.attempt.number
        name = names.driver_pod_name(meta.name, number)
        there = any(body["metadata"]["name"] == name for body in bodies)
        if number > 0 and not status.attempt.outcome and not there:
            # A list may be old, and labels may be taken off: missing is what a get says.
            body = await self.cluster.get("Pod", meta.namespace, name)
            bodies = [*bodies, body] if body is not None else bodies
        standby = status.operation.standby if status.operation is not None else None
        attempts = {name: number} if number > 0 else {}
        if standby is not None:
            attempts[names.driver_pod_name(meta.name, standby.attempt)] = standby.attempt
        return [pod_view(_labelled(body, attempts), meta.uid) for body in bodies]

    async def _with_node(self, pod: PodView) -> PodView:
        """With the health of its node, where the pod itself gives no sign of life."""
        silent = pod.deleted_at is not None or pod.phase == "Unknown" or pod.reason == "NodeLost"
        unready = pod.phase == "Running" and not pod.ready
        if pod.terminal or not pod.node or not (silent or unready):
            return pod
        try:
            node = await self.cluster.get("Node", "", pod.node)
        except ClusterError:
            return pod
        return replace(pod, node_ready=node is not None and _node_ready(node))

    async def report(
        self, meta: Meta, pod: PodView | None, what: str = "driver"
    ) -> DriverState | Unreadable | None:
        """What the driver in the pod says; None if there is none to ask.

        Args:
            what: which of the job's drivers it is, to know since when it is silent.
        """
        if pod is None or pod.phase != "Running" or not pod.ip:
            self._readable(meta, what)
            return None
        try:
            state = await self._ask(meta, pod)
        except (EndpointUnreachable, TimeoutError) as error:
            why, reason = str(error) or "no answer in time", "EndpointUnreachable"
            if isinstance(error, EndpointUntrusted):
                self.authorities.drop(meta.namespace, pod.tls_secret)
                reason = UNTRUSTED
            return self._unreadable(meta, what, reason, why)
        except EndpointRefused as error:
            self.tokens.drop(meta.uid)
            return self._unreadable(meta, what, "EndpointRefused", f"{error.code}: {error}")
        except ClusterError as error:
            return self._unreadable(meta, what, _reason(error), str(error))
        if state.job_uid != meta.uid or state.attempt != pod.attempt:
            why = f"another driver answers there: attempt={state.attempt}"
            return self._unreadable(meta, what, "EndpointForeign", why)
        self._readable(meta, what)
        return state

    async def _ask(self, meta: Meta, pod: PodView) -> DriverState:
        target = await self._target(meta, pod)
        if target is None:
            raise EndpointRefused("no_token", "there is no token to speak to the driver with")
        async with self.aside(), asyncio.timeout(self.report_timeout):
            return await self.drivers.state(target)

    async def _report_of(self, job: JobFacts) -> DriverState | Unreadable | None:
        number = job.status.attempt.number
        if number == 0:
            return None
        try:
            pod = await self._driver(job.meta, number)
        except ClusterError as error:
            return self._unreadable(job.meta, "driver", _reason(error), str(error))
        return await self.report(job.meta, pod if pod is not None and pod.owned else None)

    async def _driver(self, meta: Meta, attempt: int) -> PodView | None:
        """The pod of an attempt, by its name; None if it is not there."""
        name = names.driver_pod_name(meta.name, attempt)
        body = await self.cluster.get("Pod", meta.namespace, name)
        return pod_view(_labelled(body, {name: attempt}), meta.uid) if body is not None else None

    async def _target(self, meta: Meta, pod: PodView | None) -> DriverTarget | None:
        if pod is None or not pod.owned or not pod.ip or pod.phase != "Running":
            return None
        tokens = await self.tokens.of(meta, pod.attempt)
        if tokens is None:
            return None
        target = DriverTarget(pod.ip, ENDPOINT_PORT, tokens.control, tokens.older)
        if not pod.tls_secret:
            return target
        authority = await self.authorities.of(meta.namespace, pod.tls_secret)
        if not authority:
            raise EndpointUntrusted(
                f"the authority of the driver's certificate is not there: Secret={pod.tls_secret} "
                f"key=ca.crt; put back the Secret of spec.security.tls"
            )
        name = certificate_name(meta.name, meta.namespace)
        return replace(target, authority=authority, name=name)

    # -- everything else -----------------------------------------------------------------------

    async def _revisions_of(self, meta: Meta, status: JobStatus) -> Mapping[str, Revision]:
        """Those that the status names, as far as they are there and can be read."""
        operation = status.operation
        wanted = {
            status.reconciliation.current_revision,
            status.reconciliation.stable_revision,
            status.attempt.revision,
            operation.target_revision if operation else "",
            *(one.revision for one in status.leaving),
        } - {""}
        known = self._revisions.get(f"{meta.namespace}/{meta.name}", {})
        for key in known.keys() - {f"{meta.uid}/{name}" for name in wanted}:
            del known[key]
        found = {name: await self._revision(meta, name) for name in sorted(wanted)}
        return {name: revision for name, revision in found.items() if revision is not None}

    async def _revision(self, meta: Meta, name: str) -> Revision | None:
        who, key = f"{meta.namespace}/{meta.name}", f"{meta.uid}/{name}"
        known = self._revisions.setdefault(who, {})
        if key not in known:
            listed = self._unread.get(who, {}).pop(name, b"")
            body = msgspec.json.decode(listed) if listed else None
            if body is None:
                body = await self.cluster.get("ControllerRevision", meta.namespace, name)
            revision = read_revision(body) if body is not None else None
            if body is None or revision is None:
                return None
            # Generations of another object of this name say nothing about this one.
            mine = is_controlled_by(body, meta.uid)
            known[key] = revision if mine else replace(revision, number=0)
        return known[key]

    async def _snapshots(self, namespace: str, job: str) -> tuple[SnapshotView, ...] | Unreadable:
        labels = {names.JOB_LABEL: job}
        try:
            bodies = await self.cluster.list("StatefulSparkSnapshot", namespace, labels)
        except ClusterError as error:
            return Unreadable(_reason(error), str(error))
        views = [read_snapshot(body)[0] for body in bodies]
        return tuple(view for view in views if view is not None and view.spec.job_ref.name == job)

    async def _dear(self, world: JobWorld, task_ids: Iterable[str]) -> JobWorld:
        wanted, meta = needs(world), world.meta
        if wanted and self.watched_only:
            raise MoreNeeded
        if Need.FACTS in wanted and world.spec is not None:
            own = self.config.own_namespace
            found = await fact_problems(self.cluster, meta, world.spec, own)
            world = replace(world, problems=(*world.problems, *found))
        quotas = await self._listed_of("ResourceQuota", meta) if Need.QUOTA in wanted else []
        # They say what quotas count of containers that do not.
        ranges = await self._listed_of("LimitRange", meta) if quotas else []
        claims = await self._claims(world) if quotas and _reuses_claims(world) else 0
        world = replace(world, room=_room(world, quotas, ranges, claims))
        refs, ids = store_refs(world), set(task_ids)
        if Need.ADMISSION in wanted:
            world = await self._with_refusals(world, quotas, ranges, claims)
        return replace(
            world,
            store=await self._store(refs, world) if Need.STORE in wanted and refs else None,
            store_tasks={
                **await self._store_tasks(refs, ids),
                **await self._store_tasks_elsewhere(world),
            },
            namespace_terminating=Need.NAMESPACE in wanted
            and await self._terminating(meta.namespace),
        )

    async def _listed_of(self, kind: Kind, meta: Meta) -> list[Object]:
        """The namespace's rules; what cannot be read says nothing."""
        try:
            return await self.cluster.list(kind, meta.namespace)
        except ClusterError:
            return []

    async def _claims(self, world: JobWorld) -> int:
        """How many claims the job has that its next executors find again."""
        try:
            found = await claims_of(self.cluster, world.meta)
        except ClusterError:
            return 0
        return sum(not goes(one) for one in found)

    async def _with_refusals(
        self, world: JobWorld, quotas: list[Object], ranges: list[Object], claims: int
    ) -> JobWorld:
        """With what would be said against the pods of the version that is tried."""
        operation, meta = world.status.operation, world.meta
        if operation is None:
            return world
        name = operation.target_revision
        known = world.revisions.get(name)
        spec = known.spec if known is not None else world.spec
        if spec is None:
            return world
        try:
            found = await self.admission.refusals(
                meta,
                operation.id,
                name,
                spec if world.spec is None else refreshed(spec, world.spec),
                world.status.attempt.number + 1,
                self.config.cluster_id,
            )
        except ClusterError as error:
            failed = self._unreadable(meta, "admission", _reason(error), str(error))
            return replace(world, refused_pods=failed)
        # A quota that was read says what it holds for, which a refusal does not.
        read = {one["metadata"]["name"]: one for one in quotas}
        full = [read.get(one["metadata"]["name"], one) for one in found.quotas]
        lacks = _room(world, full, ranges, claims).growth
        texts = (*found.texts, lacks) if lacks else found.texts
        return replace(world, refused_pods=texts, unplaced_pods=found.unplaced)

    async def _store(self, refs: JobRefs, world: JobWorld) -> StoreView | Unreadable | None:
        found = await self.lineages.inspect(refs, last_end(world))
        if isinstance(found, Unreadable):
            return self._unreadable(refs.meta, "store", found.reason, found.message)
        self._readable(refs.meta, "store")
        return found

    async def _store_tasks(
        self, refs: JobRefs | None, ids: set[str]
    ) -> Mapping[str, StoreTaskView]:
        if refs is None:
            return {}
        found = {one: await self.lineages.look(refs, one) for one in sorted(ids)}
        return {one: view for one, view in found.items() if view is not None}

    async def _store_tasks_elsewhere(self, world: JobWorld) -> Mapping[str, StoreTaskView]:
        """Of a lineage that the job has left: its store may be reached in another way."""
        if not world.status.leaving:
            return {}
        one = world.status.leaving[0]
        known = world.revisions.get(one.revision)
        refs = JobRefs(world.meta, known.spec) if known is not None else None
        return await self._store_tasks(refs, {left_store_task(world.meta.uid, one).id})

    async def is_let_go(self, body: Object) -> bool:
        """Whether the object goes with its namespace, so that nobody can want more of it."""
        meta = meta_of(body)
        return meta.deleted_at is not None and await self._terminating(meta.namespace)

    def on(self, cluster: Reads) -> "Observer":
        """One that reads what is watched there, and else remembers what this one does."""
        return replace(self, cluster=cluster, watched_only=True)

    async def _terminating(self, namespace: str) -> bool:
        if self.watched_only:
            raise MoreNeeded
        try:
            found = await self.cluster.get("Namespace", "", namespace)
        except Forbidden:
            return False
        return found is None or bool(found["metadata"].get("deletionTimestamp"))

    async def _job_facts(self, body: Object) -> JobFacts:
        meta = meta_of(body)
        status, _ = read_job_status(body)
        spec = self.specs.with_defaults(body, values_of(body, self.fleet())).spec
        current = status.reconciliation.current_revision
        revision = await self._revision(meta, current) if current else None
        return JobFacts(meta, revision.spec if revision else spec, status, newest=spec)

    # -- since when ----------------------------------------------------------------------------

    def _unreadable(self, meta: Meta, what: str, reason: str, message: str) -> Unreadable:
        failing = self._failing.setdefault(f"{meta.namespace}/{meta.name}", {})
        since = failing.setdefault(what, self.clock.now())
        return Unreadable(reason, message, since)

    def _readable(self, meta: Meta, what: str) -> None:
        self._failing.get(f"{meta.namespace}/{meta.name}", {}).pop(what, None)


def _room(world: JobWorld, quotas: list[Object], ranges: list[Object], claims: int) -> Room:
    """What the quotas lack for what is to start, or is starting."""
    status, operation = world.status, world.status.operation
    target = world.revisions.get(operation.target_revision if operation else "")
    newest = world.spec if not world.problems else None
    spec = target.spec if target is not None else newest
    drivers, executors = world.drivers, world.executors
    if not quotas or spec is None:
        return Room()
    if isinstance(drivers, Unreadable) or isinstance(executors, Unreadable):
        return Room()
    standby = operation.standby.attempt if operation and operation.standby else -1
    living = (
        sum(one.owned and not one.terminal and one.attempt != standby for one in drivers),
        sum(not one.terminal for one in executors),
    )
    running = world.revisions.get(status.attempt.revision)
    before = running.spec if running else None
    return room(quotas, world.meta, spec, before, *living, ranges, claims)


def _reuses_claims(world: JobWorld) -> bool:
    """Also where the next version is not to: a start deletes what it does not ask for."""
    running = world.revisions.get(world.status.attempt.revision)
    specs = (world.spec, running.spec if running else None)
    return any(spec is not None and spec.state.local.type == "ReusedPVC" for spec in specs)


def _labelled(pod: Object, drivers: Mapping[str, int]) -> Object:
    """A driver's pod with the labels that it was made with, whatever became of them.

    Args:
        drivers: the attempts of the job's drivers, by the names of their pods.
    """
    meta = pod["metadata"]
    attempt = drivers.get(meta["name"])
    if attempt is None:
        return pod
    marks = {names.ROLE_LABEL: "driver", names.ATTEMPT_LABEL: str(attempt)}
    return {**pod, "metadata": {**meta, "labels": {**(meta.get("labels") or {}), **marks}}}


def _patient(config: Config, spec: JobSpec | None) -> Config:
    """As the operator is set up, but for what the job says."""
    own = spec.operator if spec is not None else OperatorSettings()
    given = {
        name: getattr(own, name).seconds
        for name in OperatorSettings.model_fields
        if getattr(own, name) is not None
    }
    return replace(config, **given) if given else config


def _named(status: Mapping[str, Any]) -> set[str]:
    """The revisions that a job's status names, as far as it is one."""
    parts = (("reconciliation", "currentRevision"), ("reconciliation", "stableRevision"))
    holders = ((status.get(part), key) for part, key in (*parts, ("attempt", "revision")))
    return {str(holder.get(key)) for holder, key in holders if isinstance(holder, dict)}


def _reason(error: ClusterError) -> str:
    return error.reason or type(error).__name__


def _node_ready(node: Object) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)
