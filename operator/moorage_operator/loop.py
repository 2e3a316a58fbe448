"""One pass for one object: observe, decide, persist, act, tell. The whole control plane is this.

The status is the write-ahead log: what is going to be done stands there before it is done, and the
next pass sees what came of it. So a pass may end anywhere, and the next one, of this process or of
another, goes on from there. Passes of one object never overlap; the queue sees to that. What is
remembered between passes are conveniences, never truth.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace

from moorage_api.fleet import Fleet
from moorage_api.snapshot import FINAL_STATES
from moorage_api.status import OperatorView
from moorage_operator.act import Actor, Subject
from moorage_operator.admission import Admission
from moorage_operator.attempts import Attempts
from moorage_operator.children import names
from moorage_operator.decide.rest import Rest, rest_of
from moorage_operator.decide.view import only_figures
from moorage_operator.directories import CheckpointDirectories
from moorage_operator.memory import Memory
from moorage_operator.metrics import OperatorMetrics
from moorage_operator.objects import (
    JudgedSpecs,
    is_newer,
    is_under_way,
    meta_of,
    read_snapshot,
)
from moorage_operator.observe import Heard, MoreNeeded, Observer
from moorage_operator.plan import (
    ActionFailed,
    Event,
    Plan,
    SetFinalizer,
    SnapshotPlan,
)
from moorage_operator.podviews import are_settled
from moorage_operator.ports import (
    ApiUnavailable,
    Cluster,
    ClusterError,
    DriverClient,
    Forbidden,
    Kind,
    Lineages,
    Object,
    Ref,
    WallClock,
)
from moorage_operator.profiles import values_of
from moorage_operator.recorder import (
    Teller,
    Written,
    label,
    pruned,
    write_condition,
    write_status,
)
from moorage_operator.shards import Ownership, Tenure, is_known, lead, operator_of
from moorage_operator.snapshots import is_final, is_in_order
from moorage_operator.tokens import Authorities, Tokens
from moorage_operator.watch_cache import CachedReads, WatchCache
from moorage_operator.world import Config, JobWorld, Meta, SnapshotWorld, Unreadable

_log = logging.getLogger("moorage.operator")

# An object that changes under so many passes in a row has its turn again after the others.
_WHOLE_PASSES = 4
_FIRST_WAIT = 0.5
_LONGEST_WAIT = 60.0
_AFTER_CONFLICT = 1.0
_WHILE_FOLLOWING = 5.0
_LONGEST_ASKED = 300.0
"""However long the API server, or what stands before it, wants to be left alone."""
# What no watch shows, such as a Secret that somebody deleted, is looked after in live passes.
_LIVE_AT_LEAST = 6 * 3600.0
# Of a snapshot: its driver was asked and has not answered, or nothing is to come of it any more.
_WAITS_OR_OVER = ("InProgress", *FINAL_STATES)
_GOES_ON = (Written.UNCHANGED, Written.WRITTEN, Written.PRUNED)


@dataclass(frozen=True, slots=True)
class Pass:
    """What came of a pass."""

    changed: bool  # something was written or done: the next pass should follow at once
    # Seconds until the next look without an event; None if only an event can bring anything new
    again_after: float | None
    problem: str = ""  # why it ended early; empty if it did not
    gone: bool = False  # there is no such object any more


class Reconciler:
    """Passes, and what one process remembers between them; losing that loses nothing.

    Args:
        may_act: False while another process may be the leader.
        watched: what watches have shown; None if nothing is watched, and every pass reads live.
        shows: whether watches show what happens in a namespace.
        ownership: whose jobs are; None if all are this operator's.
        aside: around what waits for a driver, so that nothing else waits with it.
        fleet: what holds for many jobs, as it is now.
    """

    def __init__(
        self,
        cluster: Cluster,
        drivers: DriverClient,
        lineages: Lineages,
        clock: WallClock,
        config: Config,
        decide_job: Callable[[JobWorld], Plan],
        decide_snapshot: Callable[[SnapshotWorld], SnapshotPlan],
        *,
        may_act: Callable[[], bool] = lambda: True,
        wake: Callable[[Ref], None] = lambda _: None,
        metrics: OperatorMetrics | None = None,
        chance: random.Random | None = None,
        watched: WatchCache | None = None,
        shows: Callable[[str], bool] = lambda _: True,
        ownership: Ownership | None = None,
        aside: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
        fleet: Callable[[], Fleet] = Fleet,
    ) -> None:
        self._cluster, self._clock, self._config = cluster, clock, config
        self._decide_job, self._decide_snapshot = decide_job, decide_snapshot
        self._may_act, self._wake = may_act, wake
        self._metrics = metrics or OperatorMetrics()
        self._chance = chance or random.Random()  # noqa: S311  spreads waits, guards nothing
        self._memory: dict[Ref, Memory] = {}
        self.specs = JudgedSpecs()
        self.directories = CheckpointDirectories(self.specs, lambda body: values_of(body, fleet()))
        self._tokens = Tokens(cluster)
        self._observer = Observer(
            cluster,
            drivers,
            lineages,
            clock,
            config,
            self._tokens,
            Authorities(cluster),
            self.specs,
            self.directories,
            Admission(cluster),
            fleet,
            aside=aside,
        )
        self._watched, self._shows, self._ownership = watched, shows, ownership
        self._fleet = fleet
        self._looker = self._observer
        if watched is not None:
            self._looker = self._observer.on(CachedReads(watched, cluster))
        self._actor = Actor(
            cluster,
            drivers,
            lineages,
            self._observer,
            Attempts(cluster, self._tokens, clock),
            config.finalizer,
            may_act,
            self._chance,
        )
        self._teller = Teller(cluster, clock, may_act, self._metrics.told)

    async def reconcile(self, ref: Ref) -> Pass:
        """One pass. Failures of the API server end it; only bugs in decisions are raised."""
        if not self._may_act():
            return Pass(changed=False, again_after=_WHILE_FOLLOWING, problem="not the leader")
        begun = _seconds()
        memory = self._memory.setdefault(ref, Memory())
        try:
            done = await self._pass(ref, memory)
        except (ActionFailed, ClusterError) as error:
            done = self._failed(ref, memory, error)
        else:
            memory.failures, memory.trouble = 0, memory.aside.message
        if done.changed or done.problem:
            memory.seen, memory.rest = "", None
        self._metrics.pass_ended(ref, _seconds() - begun, _outcome(done))
        return done

    def has_seen(self, body: Object) -> bool:
        """Whether a pass has seen the object in this very version, and had nothing to do."""
        meta = body["metadata"]
        return self._saw(_ref(body), meta["uid"], meta["resourceVersion"])

    def _saw(self, ref: Ref, uid: str, version: str) -> bool:
        memory = self._memory.get(ref)
        return memory is not None and (memory.uid, memory.seen) == (uid, version)

    def is_no_news(self, body: Object) -> bool:
        """Whether a pass of the object's own would come to nothing, as far as is known.

        One has seen it so; or it is a snapshot that has come to its end, and its job is there:
        passes of that one see to it, and of most there is nothing to do.
        """
        return self.has_seen(body) or (
            body["kind"] == "StatefulSparkSnapshot"
            and not is_under_way(body)
            and not is_newer(body)
            and self._watched is not None
            and self._watched.knows_job_of(body)
        )

    def learn(self, revision: Object) -> None:
        """A list showed a revision, after one of jobs: passes need not ask for it one by one."""
        meta = revision["metadata"]
        job = (meta.get("labels") or {}).get(names.JOB_LABEL, "")
        found = (
            self._watched.get("StatefulSparkJob", meta["namespace"], job) if self._watched else None
        )
        if found is not None:
            self._observer.learn(revision, found)

    async def look_for_lost(self, namespace: str | None, selector: str) -> list[Ref]:
        """Jobs of which something is gone that no watch shows, such as the Service.

        Their next pass is a live one, and makes it anew. Secrets are not listed.
        """
        lost = dict[Ref, None]()
        for kind, wanted in self._made(namespace).items():
            there = set[tuple[str, str]]()
            try:
                async for page in self._cluster.pages(kind, namespace, selector):
                    if page.first:
                        there.clear()
                    metas = (body["metadata"] for body in page.items)
                    there.update((meta["namespace"], meta["name"]) for meta in metas)
            except ClusterError as error:
                # Each live pass of a job looks for its own.
                _log.info("not looked for: kind=%s error=%s", kind, error)
                continue
            for place in wanted.keys() - there:
                ref, uid = wanted[place]
                memory = self._memory.get(ref)
                if memory is None or memory.uid != uid:
                    continue  # the job went meanwhile, with all that it had
                _log.warning("an object of a job is gone: kind=%s name=%s/%s", kind, *place)
                memory.live = _seconds() - _LIVE_AT_LEAST
                self._actor.attempts.look_at_once(uid)
                lost[ref] = None
        return list(lost)

    def _made(self, namespace: str | None) -> dict[Kind, dict[tuple[str, str], tuple[Ref, str]]]:
        """What jobs that run undisturbed have beside their pods, by namespace and name.

        With each the job, and its uid.
        """
        found: dict[Kind, dict[tuple[str, str], tuple[Ref, str]]] = {}
        for ref, memory in self._memory.items():
            if ref.kind != "StatefulSparkJob" or namespace not in (None, ref.namespace):
                continue
            body = self._watched.get(ref.kind, ref.namespace, ref.name) if self._watched else None
            # Of one that has something to do, passes see it themselves.
            if body is None or not memory.seen or memory.uid != body["metadata"]["uid"]:
                continue
            # Not as a whole: there may be thousands of them, at once.
            meta, status = meta_of(body), body.get("status")
            attempt = status.get("attempt") if isinstance(status, dict) else None
            if not isinstance(attempt, dict) or not attempt.get("number"):
                continue
            if attempt.get("outcome") or meta.annotation("paused") == "true":
                continue
            service: tuple[Kind, str] = ("Service", names.service_name(meta.name))
            for kind, name in (service, *self._actor.made_beside(meta)):
                found.setdefault(kind, {})[ref.namespace, name] = ref, meta.uid
        return found

    async def settle(self, ref: Ref, limit: int = 50) -> Pass:
        """Passes until one changes nothing.

        Raises:
            RuntimeError: after `limit` passes something still changes.
        """
        for _ in range(limit):
            done = await self.reconcile(ref)
            if not done.changed:
                return done
        raise RuntimeError(f"no end of passes: object={ref} passes={limit}")

    # -- one pass ------------------------------------------------------------------------------

    async def _pass(self, ref: Ref, memory: Memory) -> Pass:
        """A look at what watches have shown; whole passes on what is there, if that wants any."""
        calm = await self._look(ref, memory)
        if calm is not None:
            return calm
        memory.rest = None
        for _ in range(_WHOLE_PASSES):
            memory.live = _seconds()
            body = await self._cluster.get(ref.kind, ref.namespace, ref.name)
            if body is None:
                return await self._gone(ref)
            memory.begin(body["metadata"]["uid"])
            if ref.kind == "StatefulSparkJob":
                elsewhere = await self._elsewhere(ref, body, memory)
                if elsewhere is not None:
                    return elsewhere
            one_pass = self._job if ref.kind == "StatefulSparkJob" else self._snapshot
            try:
                done = await one_pass(ref, body, memory)
            except Forbidden:
                # Roles of a namespace that is deleted go in any order with what they are for.
                if not await self._observer.is_let_go(body):
                    raise
                return await self._let_go(ref, body)
            if done is not None:
                return done
        return Pass(changed=True, again_after=0.0)

    # -- a look --------------------------------------------------------------------------------

    async def _look(self, ref: Ref, memory: Memory) -> Pass | None:
        """A pass that asks the API server for nothing; None if anything may have to be done.

        Caches may be old: so nothing comes of it but a look later, or a status under the version
        that it rests on. What they have missed is seen later, and never done wrongly.
        """
        watched = self._watched
        if watched is None or not self._may_look(ref, memory):
            return None
        heard, mark = None, watched.mark_of(ref.namespace, ref.name)
        if memory.rest is not None and memory.mark == mark:
            heard = await self._hear(memory.rest)
            if self._stands(ref, memory, heard):
                return self._still(memory.rest)
        body = watched.get(ref.kind, ref.namespace, ref.name)
        if body is None or not memory.may_look(body):
            return None
        memory.begin(body["metadata"]["uid"])
        memory.rest, memory.mark, memory.fleet = None, mark, self._fleet().digest
        try:
            if ref.kind == "StatefulSparkJob":
                return await self._look_at_job(body, memory, heard)
            return await self._look_at_snapshot(body, memory)
        except (MoreNeeded, ClusterError):
            return None

    def _may_look(self, ref: Ref, memory: Memory) -> bool:
        if memory.failures or memory.aside.failures or not self._shows(ref.namespace):
            return False
        # The first look of a process is as good as one later.
        if memory.live == float("-inf"):
            memory.live = _seconds()
        return memory.live + _LIVE_AT_LEAST * self._chance.uniform(0.75, 1.0) >= _seconds()

    async def _hear(self, rest: Rest) -> Heard | None:
        if rest.pod is None:
            return None
        return Heard(rest.pod, await self._looker.report(rest.meta, rest.pod))

    def _stands(self, ref: Ref, memory: Memory, heard: Heard | None) -> bool:
        """Whether nothing has changed that the last decision, to do nothing, rests on."""
        rest, watched = memory.rest, self._watched
        if rest is None or watched is None or self._actor.store_tasks_of(memory.uid):
            return False
        if watched.mark_of(ref.namespace, ref.name) != memory.mark:
            return False
        if self.directories.rival(f"{ref.namespace}/{ref.name}") != rest.rival:
            return False
        if self._fleet().digest != memory.fleet:
            return False
        return rest.stands(self._clock.now(), heard.report if heard is not None else None)

    def _still(self, rest: Rest) -> Pass:
        """As the last look, and another one later: spread, but not beyond a deadline."""
        left = (rest.until - self._clock.now()).total_seconds()
        wait = self._config.resync * self._chance.uniform(0.8, 1.0)
        return Pass(changed=False, again_after=min(wait, left))

    async def _look_at_job(
        self, body: Object, memory: Memory, heard: Heard | None = None
    ) -> Pass | None:
        tick = self._clock.tick()
        world = await self._looker.job(body, self._actor.store_tasks_of(memory.uid), heard)
        world = _attended(world, memory, tick)
        if world.operator_too_old or world.status.operation is not None:
            return None
        claimed = self._keeps(world.meta, world.status.operator, unclaimed=False)
        if not claimed or not are_settled(world.drivers, world.executors):
            return None
        plan = self._decide_job(world)
        rests = (
            not plan.stale
            and world.directory_rival == memory.rival
            and only_figures(world.status, plan.status)
            and self._is_done(plan, memory)
        )
        if not rests:
            return None
        if plan.status != world.status:
            if not self._may_act():
                return None
            written, body = await write_status(self._cluster, body, world.status, plan.status)
            if written not in (Written.WRITTEN, Written.UNCHANGED):
                return None
            self._show_own(body, memory)
            # Figures are in it before anything is decided: with them written, the same follows.
            world = replace(world, status=plan.status)
        world, plan = self._without_store_tasks(world, plan, memory)
        self._metrics.job_seen(body, plan.status)
        self._see_to_ended(world)
        memory.seen = body["metadata"]["resourceVersion"]
        memory.rest = rest_of(world, plan)
        return Pass(changed=False, again_after=plan.again_after)

    def _without_store_tasks(
        self, world: JobWorld, plan: Plan, memory: Memory
    ) -> tuple[JobWorld, Plan]:
        """Ask no more for store tasks that a decision to do nothing does not depend on."""
        if not world.store_tasks or world.status.leaving:
            return world, plan
        bare = replace(world, store_tasks={})
        same = self._decide_job(bare)
        if same.status != world.status or not self._is_done(same, memory):
            return world, plan
        self._actor.forget_store_tasks(memory.uid)
        return bare, same

    async def _look_at_snapshot(self, body: Object, memory: Memory) -> Pass | None:
        world = await self._looker.snapshot(body, self._actor.store_tasks_of(memory.uid))
        if world is None or world.snapshot.status.state not in _WAITS_OR_OVER:
            return None
        # Caches of a shard have no jobs of another, whose snapshot this may be.
        if world.job is None and self._ownership and self._ownership.selection.selector:
            return None
        if world.job and not self._keeps(world.job.meta, world.job.status.operator):
            return None
        plan = self._decide_snapshot(world)
        labels = body["metadata"].get("labels") or {}
        rests = (
            plan.status == world.snapshot.status
            and all(labels.get(key) == value for key, value in (plan.labels or {}).items())
            and self._is_done(plan, memory)
        )
        if not rests:
            return None
        self._metrics.snapshot_seen(_ref(body), plan.status.state)
        memory.seen = body["metadata"]["resourceVersion"]
        return Pass(changed=False, again_after=plan.again_after)

    def _see_to_ended(self, world: JobWorld) -> None:
        """The job's snapshots that have come to their end have no passes unless they need one."""
        for one in world.snapshots if not isinstance(world.snapshots, Unreadable) else ():
            ref = Ref("StatefulSparkSnapshot", one.meta.namespace, one.meta.name)
            if is_in_order(one, self._config.finalizer):
                self._metrics.snapshot_seen(ref, one.status.state)
            elif is_final(one) and not self._saw(ref, one.meta.uid, one.meta.resource_version):
                self._wake(ref)

    def _is_done(self, plan: Plan | SnapshotPlan, memory: Memory) -> bool:
        """Whether everything was done and told already, as far as this process knows."""
        done = all(self._actor.is_done(effect, memory.uid) for effect in plan.effects)
        return done and memory.has_told(plan.events)

    def _show_own(self, job: Object, memory: Memory) -> None:
        """What a look has written of its job is known, and is no news to it; all else is."""
        watched, meta = self._watched, job["metadata"]
        if watched is None:
            return
        same = watched.mark_of(meta["namespace"], meta["name"]) == memory.mark
        watched.seen("", job["kind"], job)
        if same:
            memory.mark = watched.mark_of(meta["namespace"], meta["name"])

    # -- a live pass ---------------------------------------------------------------------------

    async def _job(self, ref: Ref, body: Object, memory: Memory) -> Pass | None:
        tick = self._clock.tick()
        world = await self._observer.job(body, self._actor.store_tasks_of(memory.uid))
        world = replace(_attended(world, memory, tick), trouble=memory.trouble)
        plan = self._decide_job(world)
        if world.operator_too_old:
            return await self._hands_off(body, memory, world, plan)
        status, tenure = plan.status, self._tenure(world.meta, memory)
        if self._ownership is not None:
            status = status.model_copy(update={"operator": self._ownership.mine})
            await self._actor.lead(world, tenure)
        # Before anything is done: who goes on from here, should we die, knows only what is written.
        written, body = await write_status(self._cluster, body, world.status, status)
        if written not in _GOES_ON:
            return await self._overtaken(ref, written, body)
        if written is Written.PRUNED:
            plan = replace(plan, events=(*plan.events, pruned(self._clock.now())))
        self._note_phase(ref, world.status.phase, status.phase)
        self._metrics.job_seen(body, status)
        self._metrics.store_tasks_seen(world.store_tasks)
        if written is not Written.UNCHANGED and status.restarts.total > world.status.restarts.total:
            self._metrics.restarted(status.restarts.last_reason)
        for name in plan.stale:
            self._wake(Ref("StatefulSparkSnapshot", ref.namespace, name))
        self._see_to_ended(world)
        await self._teller.tell_rival(world, memory)
        await self._actor.repair(world, tenure)
        subject = replace(Subject.of_job(body, world, plan), tenure=tenure)
        return await self._finish(body, memory, subject, plan, written)

    async def _hands_off(self, body: Object, memory: Memory, world: JobWorld, plan: Plan) -> Pass:
        """Write that it is so: of a status that this operator cannot read parts would go."""
        written = Written.UNCHANGED
        if plan.held is not None:
            done, body = await write_condition(self._cluster, body, plan.held)
            written = Written.WRITTEN if done else written
        # The one thing to do is to let the object go.
        effects = tuple(e for e in plan.effects if e == SetFinalizer(present=False))
        only, subject = replace(plan, effects=effects), Subject.of_job(body, world, plan)
        return await self._finish(body, memory, subject, only, written)

    async def _snapshot(self, ref: Ref, body: Object, memory: Memory) -> Pass | None:
        _, _, left_alone = read_snapshot(body)
        world = await self._observer.snapshot(body, self._actor.store_tasks_of(memory.uid))
        if world is None:
            if await self._observer.is_let_go(body):
                return await self._let_go(ref, body)
            return Pass(changed=False, again_after=_LONGEST_WAIT, problem=left_alone)
        elsewhere = await self._snapshot_elsewhere(ref, world)
        if elsewhere is not None:
            return elsewhere
        plan = self._decide_snapshot(world)
        old = world.snapshot.status
        status = plan.status
        if memory.trouble and not status.message:
            status = status.model_copy(update={"message": memory.trouble})
        written, body = await write_status(self._cluster, body, old, status)
        if written not in _GOES_ON:
            return await self._overtaken(ref, written, body)
        if written is Written.PRUNED:
            plan = replace(plan, events=(*plan.events, pruned(self._clock.now())))
        self._note_phase(ref, old.state, status.state)
        self._metrics.store_tasks_seen(world.store_tasks)
        self._metrics.snapshot_seen(ref, status.state)
        labelled, body = await label(self._cluster, body, plan.labels or {})
        subject = Subject.of_snapshot(body, world)
        if subject.job is not None:
            subject = replace(subject, tenure=self._tenure(subject.job, memory))
        written = Written.WRITTEN if labelled else written
        return await self._finish(body, memory, subject, plan, written)

    async def _let_go(self, ref: Ref, body: Object) -> Pass:
        subject = Subject(ref.kind, body, meta_of(body), job=None)
        changed = await self._actor.carry_out(SetFinalizer(present=False), subject)
        return Pass(changed, _LONGEST_WAIT)

    async def _finish(
        self,
        body: Object,
        memory: Memory,
        subject: Subject,
        plan: Plan | SnapshotPlan,
        written: Written,
    ) -> Pass:
        """Carry out the effects, and tell the events whatever came of those."""
        try:
            changed = await self._actor.carry_out_all(plan.effects, subject, memory.aside)
        except ActionFailed:
            await self._teller.tell(body, memory, plan.events)
            raise
        await self._teller.tell(body, memory, plan.events)
        memory.seen = body["metadata"]["resourceVersion"]
        held = memory.aside.left(_seconds())
        waits = [one for one in (plan.again_after, held or None) if one is not None]
        return Pass(changed or written is Written.WRITTEN, min(waits, default=None))

    # -- whose it is ---------------------------------------------------------------------------

    def _keeps(self, job: Meta, said: OperatorView | None, *, unclaimed: bool = True) -> bool:
        """Whether a job is this operator's, as it is known; `unclaimed`: or nobody's yet."""
        own = self._ownership
        if own is None:
            return True
        return own.keeps(job, said) and (unclaimed or said is not None)

    def _tenure(self, job: Meta, memory: Memory) -> Tenure | None:
        own = self._ownership
        return Tenure(own, job, memory.live) if own is not None else None

    async def _elsewhere(self, ref: Ref, body: Object, memory: Memory) -> Pass | None:
        """The pass, if another operator looks after the job; taken over from it if that may be."""
        if self._ownership is None:
            return None
        meta, said = meta_of(body), operator_of(body)
        standing = await self._ownership.judge(meta, said, known=is_known(body))
        if standing.ours:
            return None
        if standing.wait is None:
            return self._let_drop(ref)
        self._metrics.gone(ref)
        if standing.told:
            key = f"{self._clock.now():%Y-%m-%dT%H}"
            event = Event("Warning", "HeldByAnotherOperator", standing.told, key=key)
            await self._teller.tell(body, memory, [event])
        if standing.claim is not None and self._may_act():
            claimed = await self._ownership.take(body, standing.claim)
            return Pass(changed=True, again_after=0.0 if claimed else _AFTER_CONFLICT)
        return Pass(changed=False, again_after=standing.wait)

    async def _snapshot_elsewhere(self, ref: Ref, world: SnapshotWorld) -> Pass | None:
        """The pass, if another operator looks after the snapshot's job."""
        own, job = self._ownership, world.job
        if own is None:
            return None
        if job is None:
            here = own.selection.has(ref.namespace, world.snapshot.meta.labels)
            return None if here else self._let_drop(ref)
        # Its operator finds it by the label: whether that is this one or not.
        led = self._may_act() and await lead(self._cluster, job.meta, (world.snapshot,))
        if not own.selection.has(job.meta.namespace, job.meta.labels):
            return self._let_drop(ref)
        if not own.keeps(job.meta, job.status.operator):
            # Only a pass for the job takes it over: it writes that down before anything is done.
            self._metrics.gone(ref)
            return Pass(changed=False, again_after=own.lasts)
        return Pass(changed=True, again_after=0.0) if led else None

    # -- when it goes another way --------------------------------------------------------------

    async def _overtaken(self, ref: Ref, written: Written, body: Object) -> Pass | None:
        """The object changed between reading and writing; None to decide anew at once."""
        if written is Written.MOVED:
            return None
        if written is Written.GONE:
            return Pass(changed=True, again_after=0.0)
        if ref.kind == "StatefulSparkJob" and not self._keeps(meta_of(body), operator_of(body)):
            return None
        self._metrics.conflicted()
        _log.warning("somebody else wrote the status: object=%s", ref)
        conflict = Event(
            "Warning",
            "StatusConflict",
            "somebody else wrote the status: another operator is alive, or it was edited by hand; "
            "see that one operator is responsible for this namespace",
            # Once an hour: two operators that disagree do so at every pass.
            key=f"{self._clock.now():%Y-%m-%dT%H}",
        )
        await self._teller.tell(body, Memory(), [conflict])
        return Pass(changed=False, again_after=_AFTER_CONFLICT, problem="status conflict")

    def _failed(self, ref: Ref, memory: Memory, error: ActionFailed | ClusterError) -> Pass:
        memory.failures += 1
        if isinstance(error, ClusterError):
            memory.neglect()
        elif memory.failures > 1:
            memory.trouble = str(error)
        wait = min(_FIRST_WAIT * 2.0 ** (memory.failures - 1), _LONGEST_WAIT)
        wait *= self._chance.uniform(0.75, 1.25)
        if isinstance(error, ActionFailed | ApiUnavailable):
            wait = max(wait, min(error.retry_after or 0.0, _LONGEST_ASKED))
        _log.warning(
            "a pass ended early: object=%s failures=%d again_after=%.1fs error=%s",
            ref,
            memory.failures,
            wait,
            error,
        )
        return Pass(changed=False, again_after=wait, problem=str(error))

    async def _gone(self, ref: Ref) -> Pass:
        if ref.kind == "StatefulSparkJob":
            await self._wake_left(ref)
        return self._let_drop(ref)

    def let_go(self, namespace: str) -> int:
        """Forget what is known of a namespace that is looked after no more; say of how many jobs.

        Passes that are under way see by themselves that the job is not selected.
        """
        refs = [ref for ref in self._memory if ref.namespace == namespace]
        for ref in refs:
            self._let_drop(ref)
        return sum(ref.kind == "StatefulSparkJob" for ref in refs)

    def _let_drop(self, ref: Ref) -> Pass:
        """Nothing is remembered of what is gone, or another operator's."""
        memory = self._memory.pop(ref, None)
        if memory is not None and memory.uid:
            if self._ownership is not None:
                self._ownership.forget(memory.uid)
            self._actor.forget(memory.uid)
            self._tokens.drop(memory.uid)
        if ref.kind == "StatefulSparkJob":
            self._observer.forget(f"{ref.namespace}/{ref.name}")
        self._metrics.gone(ref)
        return Pass(changed=False, again_after=None, gone=True)

    async def _wake_left(self, job: Ref) -> None:
        """What a job leaves is needed for nothing any more, and nobody else says so."""
        labels = {names.JOB_LABEL: job.name}
        for one in await self._cluster.list("StatefulSparkSnapshot", job.namespace, labels):
            self._wake(Ref("StatefulSparkSnapshot", job.namespace, one["metadata"]["name"]))

    def _note_phase(self, ref: Ref, before: str, after: str) -> None:
        if before != after:
            self._metrics.moved(ref, after)
            _log.info("phase: object=%s from=%s to=%s", ref, before, after)


def _ref(body: Object) -> Ref:
    return Ref(body["kind"], body["metadata"]["namespace"], body["metadata"]["name"])


def _attended(world: JobWorld, memory: Memory, tick: float) -> JobWorld:
    """With since when passes have seen to the job: none does while it is paused, or all is hidden.

    Args:
        tick: of the clock, before anything of it was read.
    """
    blind = isinstance(world.drivers, Unreadable)
    sees_to_it = not blind and world.meta.annotation("paused") != "true"
    since = memory.attend(world.now, tick, sees_to_it=sees_to_it)
    return replace(world, attended_since=since)


def _seconds() -> float:
    return asyncio.get_running_loop().time()


def _outcome(done: Pass) -> str:
    if done.gone:
        return "gone"
    if done.problem:
        return "conflict" if done.problem == "status conflict" else "failed"
    return "changed" if done.changed else "unchanged"
