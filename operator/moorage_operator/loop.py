"""One pass for one object: observe, decide, persist, act, tell. The whole control plane is this.

The status is the write-ahead log: what is going to be done stands there before it is done, and the
next pass sees what came of it. So a pass may end anywhere, and the next one, of this process or of
another, goes on from there. Passes of one object never overlap; the queue sees to that. What is
remembered between passes are conveniences, never truth.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from moorage_api.snapshot import FINAL_STATES
from moorage_operator.act import Actor, Subject
from moorage_operator.attempts import Attempts
from moorage_operator.children import names
from moorage_operator.decide.view import only_figures
from moorage_operator.directories import CheckpointDirectories
from moorage_operator.metrics import OperatorMetrics
from moorage_operator.objects import JudgedSpecs, meta_of, read_snapshot
from moorage_operator.observe import MoreNeeded, Observer
from moorage_operator.plan import (
    ASIDE,
    ActionFailed,
    Effect,
    Event,
    Plan,
    SetFinalizer,
    SnapshotPlan,
)
from moorage_operator.ports import (
    ApiUnavailable,
    Cluster,
    ClusterError,
    DriverClient,
    Forbidden,
    Lineages,
    Object,
    Ref,
    WallClock,
)
from moorage_operator.recorder import Written, tell, write_status
from moorage_operator.tokens import Authorities, Tokens
from moorage_operator.watch_cache import CachedReads, WatchCache, is_older
from moorage_operator.world import Config, JobWorld, PodView, SnapshotWorld, Unreadable

_MOST_EVENTS = 64
_FIRST_SETBACK = 2.0
_LONGEST_SETBACK = 60.0


@dataclass(slots=True)
class Setback:
    """What nothing else waits for, and what does not go through; times on the loop's clock."""

    failures: int = 0  # in a row
    until: float = 0.0  # when it is tried again
    _why: str = ""

    @property
    def message(self) -> str:
        """What a person should hear of: from its second time on."""
        return self._why if self.failures > 1 else ""

    def left(self, now: float) -> float:
        """Seconds until it is to be tried again; 0 if that is now, or nothing has failed."""
        return max(self.until - now, 0.0) if self.failures else 0.0

    def failed(self, why: str, now: float, chance: float = 1.0) -> None:
        """Try it again later and later."""
        self.failures, self._why = self.failures + 1, why
        self.until = now + chance * min(
            _FIRST_SETBACK * 2.0 ** (self.failures - 1), _LONGEST_SETBACK
        )

    def over(self) -> None:
        """It went through, or is not wanted any more."""
        self.failures, self._why = 0, ""


@dataclass(slots=True)
class Memory:
    """Of one object."""

    uid: str = ""  # of the object that the rest is about
    failures: int = 0  # passes in a row that ended early
    trouble: str = ""  # what effects fail with, for the status to show; empty when they go through
    rival: str = ""  # the job that was told of a directory that both have; empty if none
    # The object's resourceVersion at the last pass that had nothing to do; empty if none
    seen: str = ""
    live: float = float("-inf")  # when everything was last read live, on the loop's clock
    aside: Setback = field(default_factory=Setback)  # of effects whose failure does not end a pass
    _told: dict[tuple[str, str], None] = field(default_factory=dict)
    _waiting: list[Event] = field(default_factory=list)

    def begin(self, uid: str) -> None:
        """A pass is about this object; of another one nothing is remembered."""
        if uid != self.uid:
            self.uid, self.failures, self.trouble, self.rival = uid, 0, "", ""
            self._told, self._waiting, self.aside = {}, [], Setback()
            self.seen = ""

    def may_look(self, body: Object) -> bool:
        """Whether a version that watches have shown may be all there is to know of the object.

        Not while something is being done about it; and not before the watch has shown what the
        last pass saw or wrote itself.
        """
        meta = body["metadata"]
        if meta.get("deletionTimestamp"):
            return False
        if self.uid == "":
            return True
        return self.uid == meta["uid"] and self.seen != "" and not is_older(meta, self.seen)

    def has_told(self, events: Iterable[Event]) -> bool:
        """Whether these were told, and nothing else waits for it."""
        return not self._waiting and all((one.reason, one.key) in self._told for one in events)

    def untold(self, events: Iterable[Event]) -> list[Event]:
        """What is still to be told, the oldest first; kept until it is `told`."""
        known = {(event.reason, event.key) for event in self._waiting} | self._told.keys()
        self._waiting += [event for event in events if (event.reason, event.key) not in known]
        self._waiting = self._waiting[-_MOST_EVENTS:]
        return list(self._waiting)

    def told(self, event: Event) -> None:
        """It has been told, or never will be."""
        self._waiting = [one for one in self._waiting if one is not event]
        self._told[event.reason, event.key] = None
        while len(self._told) > _MOST_EVENTS:
            del self._told[next(iter(self._told))]


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
    ) -> None:
        self._cluster, self._clock = cluster, clock
        self._decide_job, self._decide_snapshot = decide_job, decide_snapshot
        self._may_act, self._wake = may_act, wake
        self._metrics = metrics or OperatorMetrics()
        self._chance = chance or random.Random()  # noqa: S311  spreads waits, guards nothing
        self._memory: dict[Ref, Memory] = {}
        self.specs = JudgedSpecs()
        self.directories = CheckpointDirectories(self.specs)
        self._tokens = Tokens(cluster)
        self._attempts = Attempts(cluster, self._tokens, clock)
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
        )
        self._watched, self._shows = watched, shows
        self._looker = self._observer
        if watched is not None:
            self._looker = self._observer.on(CachedReads(watched, cluster))
        self._actor = Actor(
            cluster,
            drivers,
            lineages,
            self._observer,
            self._attempts,
            config.finalizer,
            may_act,
        )

    async def reconcile(self, ref: Ref) -> Pass:
        """One pass. Failures of the API server end it; only bugs in decisions are raised."""
        if not self._may_act():
            return Pass(changed=False, again_after=_WHILE_FOLLOWING, problem="not the leader")
        begun = asyncio.get_running_loop().time()
        memory = self._memory.setdefault(ref, Memory())
        try:
            done = await self._pass(ref, memory)
        except (ActionFailed, ClusterError) as error:
            done = self._failed(ref, memory, error)
        else:
            memory.failures, memory.trouble = 0, memory.aside.message
        if done.changed or done.problem:
            memory.seen = ""
        seconds = asyncio.get_running_loop().time() - begun
        self._metrics.pass_ended(ref, seconds, _outcome(done))
        return done

    def has_seen(self, body: Object) -> bool:
        """Whether a pass has seen the object in this very version, and had nothing to do."""
        meta = body["metadata"]
        memory = self._memory.get(Ref(body["kind"], meta["namespace"], meta["name"]))
        return memory is not None and (memory.uid, memory.seen) == (
            meta["uid"],
            meta["resourceVersion"],
        )

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
        memory.live = _seconds()
        for _ in range(_WHOLE_PASSES):
            body = await self._cluster.get(ref.kind, ref.namespace, ref.name)
            if body is None:
                return await self._gone(ref)
            memory.begin(body["metadata"]["uid"])
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
        if self._watched is None or memory.failures or memory.aside.failures:
            return None
        if not self._shows(ref.namespace):
            return None
        body = self._watched.get(ref.kind, ref.namespace, ref.name)
        if body is None or not memory.may_look(body):
            return None
        memory.begin(body["metadata"]["uid"])
        if memory.live + _LIVE_AT_LEAST * self._chance.uniform(0.75, 1.0) < _seconds():
            # The first look of a process is as good as one later.
            if memory.live > float("-inf"):
                return None
            memory.live = _seconds()
        one_look = self._look_at_job if ref.kind == "StatefulSparkJob" else self._look_at_snapshot
        try:
            return await one_look(body, memory)
        except (MoreNeeded, ClusterError):
            return None

    async def _look_at_job(self, body: Object, memory: Memory) -> Pass | None:
        world = await self._looker.job(body, self._actor.store_tasks_of(memory.uid))
        if world.operator_too_old or world.status.operation is not None:
            return None
        if not _is_settled(world.drivers, world.executors):
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
            self._shown(body)
        self._metrics.job_seen(body, plan.status)
        memory.seen = body["metadata"]["resourceVersion"]
        return Pass(changed=False, again_after=plan.again_after)

    async def _look_at_snapshot(self, body: Object, memory: Memory) -> Pass | None:
        world = await self._looker.snapshot(body, self._actor.store_tasks_of(memory.uid))
        if world is None or world.snapshot.status.state not in FINAL_STATES:
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
        self._metrics.snapshot_seen(body, plan.status.state)
        memory.seen = body["metadata"]["resourceVersion"]
        return Pass(changed=False, again_after=plan.again_after)

    def _is_done(self, plan: Plan | SnapshotPlan, memory: Memory) -> bool:
        """Whether everything was done and told already, as far as this process knows."""
        done = all(self._actor.is_done(effect, memory.uid) for effect in plan.effects)
        return done and memory.has_told(plan.events)

    def _shown(self, body: Object) -> None:
        if self._watched is not None:
            self._watched.seen("", body["kind"], body)

    # -- a live pass ---------------------------------------------------------------------------

    async def _job(self, ref: Ref, body: Object, memory: Memory) -> Pass | None:
        world = await self._observer.job(body, self._actor.store_tasks_of(memory.uid))
        world = replace(world, trouble=memory.trouble)
        plan = self._decide_job(world)
        if world.operator_too_old:
            return await self._hands_off(body, memory, world, plan)
        status = plan.status
        # Before anything is done: who goes on from here, should we die, knows only what is written.
        written, body = await write_status(self._cluster, body, world.status, status)
        if written not in _GOES_ON:
            return await self._overtaken(ref, written, body)
        if written is Written.PRUNED:
            plan = replace(plan, events=(*plan.events, _pruned(self._clock.now())))
        self._note_phase(ref, world.status.phase, status.phase)
        self._metrics.job_seen(body, status)
        self._metrics.store_tasks_seen(world.store_tasks)
        if written is not Written.UNCHANGED and status.restarts.total > world.status.restarts.total:
            self._metrics.restarted(status.restarts.last_reason)
        for name in plan.stale:
            self._wake(Ref("StatefulSparkSnapshot", ref.namespace, name))
        await self._tell_rival(world, memory)
        if self._may_act():
            await self._attempts.repair(world)
        return await self._finish(body, memory, Subject.of_job(body, world, plan), plan, written)

    async def _hands_off(self, body: Object, memory: Memory, world: JobWorld, plan: Plan) -> Pass:
        """Write nothing: a status that this operator cannot read whole would lose parts."""
        # The one thing to do is to let the object go.
        effects = tuple(e for e in plan.effects if e == SetFinalizer(present=False))
        only, subject = replace(plan, effects=effects), Subject.of_job(body, world, plan)
        return await self._finish(body, memory, subject, only, Written.UNCHANGED)

    async def _snapshot(self, ref: Ref, body: Object, memory: Memory) -> Pass | None:
        _, _, left_alone = read_snapshot(body)
        world = await self._observer.snapshot(body, self._actor.store_tasks_of(memory.uid))
        if world is None:
            if await self._observer.is_let_go(body):
                return await self._let_go(ref, body)
            return Pass(changed=False, again_after=_LONGEST_WAIT, problem=left_alone)
        plan = self._decide_snapshot(world)
        old = world.snapshot.status
        status = plan.status
        if memory.trouble and not status.message:
            status = status.model_copy(update={"message": memory.trouble})
        written, body = await write_status(self._cluster, body, old, status)
        if written not in _GOES_ON:
            return await self._overtaken(ref, written, body)
        if written is Written.PRUNED:
            plan = replace(plan, events=(*plan.events, _pruned(self._clock.now())))
        self._note_phase(ref, old.state, status.state)
        self._metrics.store_tasks_seen(world.store_tasks)
        self._metrics.snapshot_seen(body, status.state)
        labelled, body = await self._label(body, plan.labels or {})
        subject = Subject.of_snapshot(body, world)
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
            changed = await self._act(plan.effects, subject, memory.aside)
        except ActionFailed:
            await self._tell(body, memory, plan.events)
            raise
        await self._tell(body, memory, plan.events)
        memory.seen = body["metadata"]["resourceVersion"]
        held = memory.aside.left(_seconds())
        waits = [one for one in (plan.again_after, held or None) if one is not None]
        return Pass(changed or written is Written.WRITTEN, min(waits, default=None))

    async def _act(self, effects: Iterable[Effect], subject: Subject, aside: Setback) -> bool:
        """Carry them out in order; the first that fails ends the pass."""
        # But for those set aside, such as objects of snapshots: what keeps them from being made,
        # such as a quota, holds up nothing else of the job.
        changed = False
        kept = [effect for effect in effects if isinstance(effect, ASIDE)]
        for effect in effects:
            if not isinstance(effect, ASIDE):
                changed |= await self._actor.carry_out(effect, subject)
        if not kept:
            aside.over()
        elif not aside.left(_seconds()):
            changed |= await self._act_aside(kept, subject, aside)
        return changed

    async def _act_aside(self, effects: Iterable[Effect], subject: Subject, aside: Setback) -> bool:
        changed, failure = False, ""
        for effect in effects:
            try:
                changed |= await self._actor.carry_out(effect, subject)
            except ActionFailed as error:
                if isinstance(error.__cause__, ApiUnavailable):
                    raise
                failure = failure or str(error)
        if failure:
            _log.warning("held up: object=%s error=%s", subject.meta.name, failure)
            aside.failed(failure, _seconds(), self._chance.uniform(0.75, 1.25))
        else:
            aside.over()
        return changed

    async def _label(self, body: Object, labels: Mapping[str, str]) -> tuple[bool, Object]:
        meta = body["metadata"]
        if all((meta.get("labels") or {}).get(key) == value for key, value in labels.items()):
            return False, body
        patch = {"metadata": {"uid": meta["uid"], "labels": dict(labels)}}
        where = (body["kind"], meta["namespace"], meta["name"])
        return True, await self._cluster.patch(*where, patch)

    # -- when it goes another way --------------------------------------------------------------

    async def _overtaken(self, ref: Ref, written: Written, body: Object) -> Pass | None:
        """The object changed between reading and writing; None to decide anew at once."""
        if written is Written.MOVED:
            return None
        if written is Written.GONE:
            return Pass(changed=True, again_after=0.0)
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
        await self._tell(body, Memory(), [conflict])
        return Pass(changed=False, again_after=_AFTER_CONFLICT, problem="status conflict")

    def _failed(self, ref: Ref, memory: Memory, error: ActionFailed | ClusterError) -> Pass:
        memory.failures += 1
        if isinstance(error, ActionFailed) and memory.failures > 1:
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
        memory = self._memory.pop(ref, None)
        if memory is not None and memory.uid:
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

    async def _tell(self, body: Object, memory: Memory, events: Iterable[Event]) -> None:
        """Events are told once; one that cannot be told now is told with a later pass."""
        waiting = memory.untold(events)
        while waiting and self._may_act():
            try:
                await tell(self._cluster, body, waiting[:1], self._clock.now())
            except ClusterError as error:
                _log.warning("an event was not told: reason=%s error=%s", waiting[0].reason, error)
                if isinstance(error, ApiUnavailable):
                    return
            memory.told(waiting.pop(0))

    async def _tell_rival(self, world: JobWorld, memory: Memory) -> None:
        """The other job with this one's directory is told as well, once; its status is its own."""
        rival, meta = world.directory_rival, world.meta
        if rival == memory.rival:
            return
        namespace, _, name = rival.partition("/")
        text = (
            f"{meta.namespace}/{meta.name} names this job's checkpoint directory and is refused; "
            "give it one of its own, or delete one of the two"
        )
        event = Event("Warning", "CheckpointDirConflict", text, key=meta.uid)
        try:
            body = await self._cluster.get("StatefulSparkJob", namespace, name) if rival else None
            if body is not None:
                await tell(self._cluster, body, [event], self._clock.now())
        except ClusterError as error:
            _log.warning("a rival was not told: object=%s error=%s", rival, error)
            return
        memory.rival = rival

    def _note_phase(self, ref: Ref, before: str, after: str) -> None:
        if before != after:
            self._metrics.moved(ref, after)
            _log.info("phase: object=%s from=%s to=%s", ref, before, after)


def _is_settled(*pods: tuple[PodView, ...] | Unreadable) -> bool:
    """Whether the pods all do what they are for, or have done it."""
    # What keeps another one from it, such as a Secret that is gone, is looked for live.
    return all(
        not isinstance(some, Unreadable)
        and all(
            one.terminal or (one.phase == "Running" and one.ready and one.deleted_at is None)
            for one in some
        )
        for some in pods
    )


def _pruned(now: datetime) -> Event:
    """Told once an hour, for as long as it is so."""
    text = (
        "the API server drops a part of the status, which an older definition does not know: apply "
        "the CustomResourceDefinitions of this release"
    )
    return Event("Warning", "StatusPruned", text, key=f"{now:%Y-%m-%dT%H}")


def _seconds() -> float:
    return asyncio.get_running_loop().time()


def _outcome(done: Pass) -> str:
    if done.gone:
        return "gone"
    if done.problem:
        return "conflict" if done.problem == "status conflict" else "failed"
    return "changed" if done.changed else "unchanged"
