"""Carries out effects, each so that doing it again does no harm.

What an effect led to is seen by the next pass; here only failures count. Each says whether it
changed anything, so that a pass without a change is the last one.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Self

from moorage_api import API_VERSION, JobSpec
from moorage_operator import volumes
from moorage_operator.attempts import Attempts
from moorage_operator.children import names
from moorage_operator.memory import Setback
from moorage_operator.objects import is_controlled_by, job_name_of, meta_of, revision_body
from moorage_operator.observe import Observer
from moorage_operator.plan import (
    ASIDE,
    BESIDE,
    ActionFailed,
    AskDriver,
    DeleteObject,
    DeletePod,
    Effect,
    GiveUpClaim,
    KeepClaims,
    KeepSnapshot,
    Plan,
    RunStoreTask,
    SaveRevision,
    SetDisruptionBudget,
    SetFinalizer,
    SetIngress,
    SetPodMonitor,
    StartDriver,
    TidyAttempt,
    TidyRevisions,
)
from moorage_operator.ports import (
    ApiUnavailable,
    Cluster,
    ClusterError,
    Conflict,
    DriverClient,
    EndpointRefused,
    EndpointUnreachable,
    Forbidden,
    JobRefs,
    Kind,
    Lineages,
    NameTaken,
    NotFound,
    Object,
)
from moorage_operator.shards import Tenure, lead
from moorage_operator.snapshots.naming import (
    TRIGGER_ANNOTATION,
    TRIGGER_LABEL,
    TYPE_LABEL,
    second_name,
)
from moorage_operator.store_access import store_refs, store_task_refs
from moorage_operator.world import JobWorld, Meta, Revision, SnapshotWorld, Unreadable

_log = logging.getLogger("moorage.operator")

_MOST = 32
"""How many store tasks and requests of one object are remembered."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What effects act on: the object of a pass, as it was read and decided about."""

    kind: Kind
    body: Object  # as it is after the status was written
    meta: Meta
    # The job's metadata: of the object itself, or of the snapshot's job; None if that is gone
    job: Meta | None
    spec: JobSpec | None = None  # the job's newest spec, if it can be read
    refs: JobRefs | None = None  # what reaching the store takes; None where nothing is known of it
    revisions: Mapping[str, Revision] = field(default_factory=dict)
    # For how long the pass may act; None for as long as its process leads
    tenure: Tenure | None = None

    @classmethod
    def of_job(cls, body: Object, world: JobWorld, plan: Plan) -> Self:
        """Revisions that the plan saves first can be started from in the same pass."""
        meta = meta_of(body)
        revisions = dict(world.revisions)
        for effect in plan.effects:
            if isinstance(effect, SaveRevision) and world.spec is not None:
                named = (effect.name, effect.number, effect.spec_hash)
                saved = Revision(*named, world.spec, effect.profile)
                revisions.setdefault(effect.name, saved)
        return cls("StatefulSparkJob", body, meta, meta, world.spec, store_refs(world), revisions)

    @classmethod
    def of_snapshot(cls, body: Object, world: SnapshotWorld) -> Self:
        """The snapshot's, with what is known of its job."""
        job = world.job
        spec = job.spec if job is not None else None
        job_meta = job.meta if job is not None else None
        refs = store_task_refs(world)
        return cls("StatefulSparkSnapshot", body, meta_of(body), job_meta, spec, refs)


@dataclass(slots=True)
class Actor:
    """The acting half of a pass."""

    cluster: Cluster
    drivers: DriverClient
    lineages: Lineages
    observer: Observer
    attempts: Attempts
    finalizer: str
    # Asked before every effect; False once another process may be the leader
    may_act: Callable[[], bool] = lambda: True
    chance: random.Random = field(default_factory=random.Random)  # spreads waits
    _store_tasks: dict[str, dict[str, None]] = field(default_factory=dict)
    _asked: dict[str, dict[str, None]] = field(default_factory=dict)
    _beside: dict[str, dict[str, Effect]] = field(default_factory=dict)
    """By object and by what is beside it: what was seen to last."""

    def store_tasks_of(self, uid: str) -> frozenset[str]:
        """Ids of the newest store tasks that were begun for an object in this process's life."""
        return frozenset(self._store_tasks.get(uid, ()))

    def forget_store_tasks(self, uid: str) -> None:
        """Nothing waits for what came of them any more."""
        self._store_tasks.pop(uid, None)

    def forget(self, uid: str) -> None:
        """The object is gone."""
        self._store_tasks.pop(uid, None)
        self._asked.pop(uid, None)
        self._beside.pop(uid, None)
        self.attempts.forget(uid)

    def made_beside(self, meta: Meta) -> Iterator[tuple[Kind, str]]:
        """Kind and name of what this process has made beside the job's pods, and not deleted."""
        for effect in self._beside.get(meta.uid, {}).values():
            match effect:
                case SetDisruptionBudget() if effect.least > 0:
                    yield "PodDisruptionBudget", names.budget_name(meta.name, effect.role)
                case SetIngress() if effect.ui is not None:
                    yield "Ingress", names.service_name(meta.name)
                case SetPodMonitor() if effect.present:
                    yield "PodMonitor", names.service_name(meta.name)

    def is_done(self, effect: Effect, uid: str) -> bool:
        """Whether this process has done it for the object, and would not do it again."""
        return isinstance(effect, BESIDE) and self._beside.get(uid, {}).get(_of(effect)) == effect

    async def carry_out_all(
        self, effects: Iterable[Effect], subject: Subject, aside: Setback
    ) -> bool:
        """Carry them out in order; the first that fails ends the pass."""
        # But for those set aside, such as objects of snapshots: what keeps them from being made or
        # deleted, such as a quota, holds up nothing else of the job.
        changed = False
        kept = [effect for effect in effects if isinstance(effect, ASIDE)]
        for effect in effects:
            if not isinstance(effect, ASIDE):
                changed |= await self.carry_out(effect, subject)
        if not kept:
            aside.over()
        elif not aside.left(asyncio.get_running_loop().time()):
            changed |= await self._aside(kept, subject, aside)
        return changed

    async def _aside(self, effects: Iterable[Effect], subject: Subject, aside: Setback) -> bool:
        changed, failure = False, ""
        for effect in effects:
            try:
                changed |= await self.carry_out(effect, subject)
            except ActionFailed as error:
                if isinstance(error.__cause__, ApiUnavailable):
                    raise
                failure = failure or str(error)
        if failure:
            _log.warning("held up: object=%s error=%s", subject.meta.name, failure)
            aside.failed(
                failure, asyncio.get_running_loop().time(), self.chance.uniform(0.75, 1.25)
            )
        else:
            aside.over()
        return changed

    async def repair(self, world: JobWorld, tenure: Tenure | None) -> None:
        """See `Attempts.repair`; never holds up a pass."""
        if not self.may_act():
            return
        try:
            async with _within(tenure):
                looked = await self.attempts.repair(world)
            if looked:
                # What is beside them may have been deleted or edited as well: it is set anew.
                self._beside.pop(world.meta.uid, None)
        except (ActionFailed, ClusterError, TimeoutError) as error:
            _log.warning("not looked after: job=%s error=%s", world.meta.name, error)

    async def lead(self, world: JobWorld, tenure: Tenure | None) -> None:
        """Its snapshots follow the job; what keeps one from it holds up nothing else of the job."""
        if not self.may_act() or isinstance(world.snapshots, Unreadable):
            return
        for one in world.snapshots:
            try:
                async with _within(tenure):
                    await lead(self.cluster, world.meta, (one,))
            except (ActionFailed, ClusterError, TimeoutError) as error:
                # Whoever is shown it tries again, until it has the label.
                _log.warning(
                    "not given its job's shard: snapshot=%s error=%s", one.meta.name, error
                )

    async def carry_out(self, effect: Effect, subject: Subject) -> bool:
        """Do it; say whether that changed anything.

        Raises:
            ActionFailed: it could not be done now.
        """
        if not self.may_act():
            raise ActionFailed("this process does not lead any more")
        try:
            async with _within(subject.tenure):
                return await self._do(effect, subject)
        except TimeoutError as error:
            why = "it took longer than the job is certain to be this operator's; it is gone on with"
            raise ActionFailed(_failed(effect, why)) from error
        except ApiUnavailable as error:
            raise ActionFailed(_failed(effect, str(error)), error.retry_after) from error
        except (ClusterError, EndpointUnreachable) as error:
            raise ActionFailed(_failed(effect, str(error))) from error
        except EndpointRefused as error:
            why = f"the driver refused: code={error.code}: {error}"
            raise ActionFailed(_failed(effect, why)) from error

    async def _do(self, effect: Effect, subject: Subject) -> bool:  # noqa: C901, PLR0911
        match effect:
            case SaveRevision():
                return await self._save_revision(effect, subject)
            case TidyRevisions():
                return await self._tidy_revisions(effect, subject.meta)
            case StartDriver():
                return await self.attempts.start(
                    effect, subject.meta, subject.revisions.get(effect.revision), subject.spec
                )
            case DeletePod():
                return await self.attempts.delete_pod(effect, subject.meta)
            case TidyAttempt():
                return await self.attempts.tidy(effect, subject.meta)
            case AskDriver():
                return await self._ask(effect, subject)
            case RunStoreTask():
                return await self._run_store_task(effect, subject)
            case SetFinalizer():
                return await self._set_finalizer(effect, subject)
            case DeleteObject():
                return await self._delete_object(effect, subject.meta)
            case KeepSnapshot():
                return await self._keep_snapshot(effect, subject)
            case SetDisruptionBudget() | SetPodMonitor() | SetIngress() | KeepClaims():
                return await self._set_beside(effect, subject.meta)
            case GiveUpClaim():
                # The claim first: Spark would give it to the pod's successor.
                await volumes.give_up(self.cluster, subject.meta, effect.name)
                return await self.attempts.delete_pod(effect.pod, subject.meta)

    # -- revisions -----------------------------------------------------------------------------

    async def _save_revision(self, effect: SaveRevision, subject: Subject) -> bool:
        if subject.spec is None:
            raise ActionFailed("there is no valid spec to keep as a revision")
        meta = subject.meta
        named = (effect.name, effect.number, effect.spec_hash)
        body = revision_body(meta, *named, subject.spec, effect.profile)
        try:
            await self.cluster.create(body)
        except NameTaken:
            return await self._renumber(effect, meta)
        return True

    async def _renumber(self, effect: SaveRevision, meta: Meta) -> bool:
        """A spec that comes back gets a new number; one of a dead former object makes way."""
        kind = "ControllerRevision"
        found = await self.cluster.get("ControllerRevision", meta.namespace, effect.name)
        if found is None:
            raise ActionFailed(f"a revision was just deleted: name={effect.name}")
        uid = found["metadata"]["uid"]
        if not is_controlled_by(found, meta.uid):
            if found["metadata"].get("labels", {}).get(names.JOB_LABEL) != meta.name:
                raise ActionFailed(
                    f"a ControllerRevision that is not this job's has the name: {effect.name}; "
                    "delete or rename it"
                )
            await self.cluster.delete("ControllerRevision", meta.namespace, effect.name, uid=uid)
            raise ActionFailed(f"a revision of a deleted job had the name: {kind} {effect.name}")
        if int(found.get("revision") or 0) >= effect.number:
            return False
        # The uid is a condition: another object that got the name meanwhile is a conflict.
        patch = {"metadata": {"uid": uid}, "revision": effect.number}
        await self.cluster.patch("ControllerRevision", meta.namespace, effect.name, patch)
        return True

    async def _tidy_revisions(self, effect: TidyRevisions, meta: Meta) -> bool:
        labels = {names.JOB_UID_LABEL: meta.uid}
        found = await self.cluster.list("ControllerRevision", meta.namespace, labels)
        doomed = [body["metadata"] for body in found if body["metadata"]["name"] not in effect.keep]
        for one in doomed:
            await self.cluster.delete(
                "ControllerRevision", meta.namespace, one["name"], uid=one["uid"]
            )
        return bool(doomed)

    # -- driver and store ----------------------------------------------------------------------

    async def _ask(self, effect: AskDriver, subject: Subject) -> bool:
        """Only the first time counts as a change: its outcome may take long to be seen."""
        if subject.job is None:
            raise ActionFailed("there is no job whose driver could be asked")
        target = await self.observer.target(subject.job, effect.attempt)
        if target is None:
            raise ActionFailed(f"the driver does not run: attempt={effect.attempt}")
        async with self.observer.aside():
            await self.drivers.ask(target, effect.path, effect.body)
        return _is_new(self._asked, subject.meta.uid, f"{effect.attempt}/{effect.body.request_id}")

    async def _run_store_task(self, effect: RunStoreTask, subject: Subject) -> bool:
        refs = subject.refs
        if effect.revision:
            known = subject.revisions.get(effect.revision)
            refs = JobRefs(subject.meta, known.spec) if known is not None else None
        if refs is None:
            raise ActionFailed("nothing is known of the job's store: there is no valid spec")
        # Known first: should this process be cancelled in between, the store task is looked for.
        fresh = _is_new(self._store_tasks, subject.meta.uid, effect.store_task.id)
        await self.lineages.run(refs, effect.store_task)
        return fresh

    # -- our own objects -----------------------------------------------------------------------

    async def _set_finalizer(self, effect: SetFinalizer, subject: Subject) -> bool:
        meta = subject.meta
        wanted = [one for one in meta.finalizers if one != self.finalizer]
        if effect.present:
            wanted.append(self.finalizer)
        if tuple(wanted) == meta.finalizers or (effect.present and meta.deleted_at is not None):
            return False
        # A merge patch puts the whole list: without the version it would undo what another
        # controller wrote into it meanwhile.
        version = subject.body["metadata"]["resourceVersion"]
        patch = {"metadata": {"uid": meta.uid, "resourceVersion": version, "finalizers": wanted}}
        try:
            await self.cluster.patch(subject.kind, meta.namespace, meta.name, patch)
        except NotFound:
            return True
        return True

    async def _keep_claims(self, effect: KeepClaims, meta: Meta) -> bool:
        """Say whether it is done: not while one is still to be made."""
        try:
            return await volumes.keep(self.cluster, effect, meta)
        except Forbidden as error:
            # An older chart's role: they go with their driver, and nothing waits for that.
            _log.warning("volumes are not kept: job=%s error=%s", meta.name, error)
            return True

    async def _delete_object(self, effect: DeleteObject, meta: Meta) -> bool:
        found = await self.cluster.get(effect.kind, meta.namespace, effect.name)
        if found is None or found["metadata"].get("deletionTimestamp"):
            return False
        try:
            await self.cluster.delete(effect.kind, meta.namespace, effect.name, uid=effect.uid)
        except Conflict:
            return False
        return True

    async def _set_beside(
        self, effect: SetDisruptionBudget | SetPodMonitor | SetIngress | KeepClaims, meta: Meta
    ) -> bool:
        """Once for each change, and again when what the job has is looked after."""
        if self.is_done(effect, meta.uid):
            return False
        if isinstance(effect, KeepClaims):
            if not await self._keep_claims(effect, meta):
                return False
        else:
            await self.attempts.set_beside(effect, meta)
        self._beside.setdefault(meta.uid, {})[_of(effect)] = effect
        return True

    async def _keep_snapshot(self, effect: KeepSnapshot, subject: Subject) -> bool:
        """It has no owner: savepoints outlive their job."""
        if subject.job is None:
            raise ActionFailed("there is no job whose snapshot could be kept")
        job = subject.job
        second = second_name(job.name, effect.name)
        for name in (effect.name, second):
            try:
                await self.cluster.create(_snapshot_body(effect, name, job))
            except NameTaken:
                found = await self.cluster.get("StatefulSparkSnapshot", job.namespace, name)
                if found is None:
                    return False  # gone by now: the next pass looks again
                if job_name_of(found.get("spec") or {}) == job.name:
                    return await self._make_final(effect, found)
            else:
                return True
        raise ActionFailed(
            f"other jobs' snapshots have the names: {effect.name} and {second}; delete one of them"
        )

    async def _make_final(self, effect: KeepSnapshot, found: Object) -> bool:
        """What an upgrade began is to stay, where it became the last that there is of its job."""
        if effect.trigger != "Final" or found["spec"].get("deletionPolicy") != "Delete":
            return False
        meta = found["metadata"]
        # The uid is a condition: another object that got the name meanwhile is a conflict.
        patch = {
            "metadata": {"uid": meta["uid"], "labels": {TRIGGER_LABEL: effect.trigger}},
            "spec": {"deletionPolicy": "Retain"},
        }
        await self.cluster.patch("StatefulSparkSnapshot", meta["namespace"], meta["name"], patch)
        return True


@asynccontextmanager
async def _within(tenure: Tenure | None) -> AsyncIterator[None]:
    """For as long as the pass may act, after which TimeoutError is raised."""
    async with asyncio.timeout_at(await tenure.until() if tenure is not None else None):
        yield


def _snapshot_body(effect: KeepSnapshot, name: str, job: Meta) -> Object:
    kind = str(effect.spec.get("type", "Savepoint"))
    notes = {TRIGGER_ANNOTATION: effect.trigger_value} if effect.trigger_value else {}
    return {
        "apiVersion": API_VERSION,
        "kind": "StatefulSparkSnapshot",
        "metadata": {
            "name": name,
            "namespace": job.namespace,
            "labels": {
                names.JOB_LABEL: job.name,
                TRIGGER_LABEL: effect.trigger,
                TYPE_LABEL: kind,
                **{key: job.labels[key] for key in (names.SHARD_LABEL,) if key in job.labels},
            },
            "annotations": notes,
        },
        "spec": dict(effect.spec),
    }


def _is_new(known: dict[str, dict[str, None]], uid: str, one: str) -> bool:
    """Remember one more of an object, and forget the oldest; say whether it was new."""
    of_object = known.setdefault(uid, {})
    fresh = one not in of_object
    of_object[one] = None
    while len(of_object) > _MOST:
        del of_object[next(iter(of_object))]
    return fresh


def _failed(effect: Effect, why: str) -> str:
    return f"{type(effect).__name__} did not go through: {why}"


def _of(effect: Effect) -> str:
    """Which object beside the job it is about."""
    role = effect.role if isinstance(effect, SetDisruptionBudget) else ""
    return f"{type(effect).__name__}-{role}"
