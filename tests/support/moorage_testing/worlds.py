"""Worlds for decisions about jobs: a stage that shows one, and on which plans are carried out."""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from moorage_api import JobSpec, Problem
from moorage_api.changes import spec_hash
from moorage_api.driver import (
    DriverEnd,
    DriverState,
    RequestError,
    RequestView,
    SavepointInfo,
    StartOrder,
    StopBody,
)
from moorage_api.snapshot import SnapshotSpec, SnapshotStatus
from moorage_api.status import JobStatus
from moorage_operator.decide import decide_job
from moorage_operator.decide.specs import revision_name
from moorage_operator.objects import (
    asked_parallelism,
    held_until,
    in_place_of,
    with_parallelism,
)
from moorage_operator.plan import (
    AskDriver,
    DeletePod,
    Effect,
    Event,
    KeepSnapshot,
    Plan,
    RunStoreTask,
    SaveRevision,
    SetFinalizer,
    StartDriver,
    StoreTask,
    TidyAttempt,
    TidyRevisions,
)
from moorage_operator.world import (
    Config,
    ContainerEnd,
    JobWorld,
    Meta,
    PodView,
    Revision,
    Room,
    SnapshotView,
    StoreTaskView,
    StoreView,
    Unreadable,
)
from moorage_testing.world_parts import (
    CLUSTER,
    SAVEPOINTS,
    START,
    UID,
    checkpoint,
    job_spec,
    restore_point,
    store_of,
)

__all__ = ["CLUSTER", "START", "Stage", "checkpoint", "job_spec", "restore_point", "store_of"]


@dataclass
class Stage:
    """A job in a small cluster: what plans ask for happens here, as far as tests want it to.

    Everything is a plain attribute that a test may change between passes. `pass_` decides once and
    carries the plan out, up to what is refused; `settle` goes on until a pass changes nothing.
    """

    spec: JobSpec | None = field(default_factory=job_spec)
    now: datetime = START
    uid: str = UID
    generation: int = 1
    status: JobStatus = field(default_factory=JobStatus)
    annotations: dict[str, str] = field(default_factory=dict)
    finalizers: tuple[str, ...] = ()
    deleted_at: datetime | None = None
    problems: tuple[Problem, ...] = ()
    revisions: dict[str, Revision] = field(default_factory=dict)
    drivers: dict[str, PodView] = field(default_factory=dict)
    executors: dict[str, PodView] = field(default_factory=dict)
    drivers_unreadable: Unreadable | None = None
    executors_unreadable: Unreadable | None = None
    report: DriverState | Unreadable | None = None
    store: StoreView | Unreadable | None = field(default_factory=lambda: StoreView(exists=False))
    snapshots: dict[str, SnapshotView] = field(default_factory=dict)
    store_tasks: dict[str, StoreTaskView] = field(default_factory=dict)
    rival: str = ""
    too_old: str = ""
    namespace_terminating: bool = False
    room: Room = field(default_factory=Room)
    config: Config = field(default_factory=lambda: Config(cluster_id=CLUSTER))
    gone: bool = False
    attended_since: datetime | None = None
    events: list[Event] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    orders: list[StartOrder] = field(default_factory=list)
    asked: dict[str, StopBody] = field(default_factory=dict)
    deaf: bool = False
    refuses_revisions: bool = False
    refusals: int = 0

    # -- deciding ------------------------------------------------------------------------------

    def world(self) -> JobWorld:
        """What a pass sees now."""
        notes = {f"moorage.dev/{key}": value for key, value in self.annotations.items()}
        meta = Meta(
            name="clicks",
            namespace="default",
            uid=self.uid,
            generation=self.generation,
            resource_version="1",
            annotations=notes,
            finalizers=self.finalizers,
            created_at=START,
            deleted_at=self.deleted_at,
        )
        number, found = self.status.attempt.number, self._in_place()
        executors = tuple(p for p in self.executors.values() if p.attempt == number)
        declared, held = self.spec, None
        if declared is not None:
            held = held_until(declared, self.status, self.revisions, self.now)
        return JobWorld(
            now=self.now,
            config=self.config,
            meta=meta,
            spec=self.effective,
            spec_hash=spec_hash(self.effective) if self.effective is not None else "",
            declared_parallelism=declared.scaling.parallelism if declared is not None else 0,
            asked_parallelism=(
                asked_parallelism(declared.scaling, self.status) if declared is not None else 0
            ),
            parallelism_held_until=held,
            given_up=found[1] if found is not None else None,
            problems=self.problems,
            status=self.status,
            revisions=dict(self.revisions),
            drivers=self.drivers_unreadable or tuple(self.drivers.values()),
            executors=self.executors_unreadable or executors,
            report=self.report,
            store=self.store,
            snapshots=tuple(self.snapshots.values()),
            store_tasks=dict(self.store_tasks),
            directory_rival=self.rival,
            operator_too_old=self.too_old,
            namespace_terminating=self.namespace_terminating,
            room=self.room,
            trouble="exceeded quota: revisions" if self.refusals > 1 else "",
            attended_since=self.attended_since,
        )

    @property
    def effective(self) -> JobSpec | None:
        """The newest spec as passes read it."""
        if self.spec is None:
            return None
        found = self._in_place()
        if found is not None:
            return found[0]
        return with_parallelism(self.spec, self.status, self.revisions, self.now)

    def _in_place(self) -> tuple[JobSpec, JobSpec] | None:
        """What goes on in place of a version that was given up, and that."""
        status, asked = self.status, self.annotations.get("restart", "")
        if self.spec is None or asked not in ("", status.snapshots.last_trigger.restart):
            return None
        return in_place_of(self.spec, status, self.revisions, self.generation, self.now)

    def decide(self) -> Plan:
        """The decision, without carrying it out."""
        return decide_job(self.world())

    def pass_(self, *, crash: str = "") -> bool:
        """One pass; say whether it changed anything.

        Args:
            crash: `status`: the operator dies after writing the status; `first`: after the first
                effect.
        """
        before = self._seen()
        plan = self.decide()
        self.status = plan.status
        if crash == "status":
            return True
        self.events += plan.events
        for effect in plan.effects:
            self.effects.append(effect)
            if self.refuses_revisions and isinstance(effect, SaveRevision):
                self.refusals += 1
                return self.refusals <= 2 or self._seen() != before
            self._carry_out(effect)
            if crash == "first":
                return True
        self.refusals = 0
        return self._seen() != before

    def settle(self, most: int = 25) -> None:
        """Passes until one changes nothing."""
        for _ in range(most):
            if not self.pass_():
                return
        raise AssertionError(f"no end of passes: {self.status}")

    def wait(self, seconds: float) -> None:
        """Let time pass, then settle."""
        self.now += timedelta(seconds=seconds)
        self.settle()

    def be_away(self, length: timedelta) -> None:
        """No operator sees to the job for so long; then one that begins has its first pass."""
        self.now += length
        self.attended_since = self.now

    def _seen(self) -> Any:
        return (
            self.status,
            self.finalizers,
            dict(self.revisions),
            dict(self.drivers),
            dict(self.executors),
            dict(self.snapshots),
            dict(self.store_tasks),
            dict(self.asked),
            self.gone,
        )

    # -- what people do ------------------------------------------------------------------------

    def edit(self, **spec: Any) -> None:
        """A new generation."""
        assert self.spec is not None
        plain = self.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
        self.spec = JobSpec.model_validate({**plain, **spec})
        self.problems = ()
        self.generation += 1

    def edit_badly(self, *problems: Problem) -> None:
        """A new generation that is wrong."""
        self.problems = problems or (Problem("spec.image", "is missing", "name an image"),)
        self.generation += 1

    def delete(self) -> None:
        """`kubectl delete`."""
        self.deleted_at = self.now
        self.generation += 1

    def annotate(self, **values: str) -> None:
        """Set annotations; underscores are dashes."""
        self.annotations |= {key.replace("_", "-"): value for key, value in values.items()}

    # -- what the cluster does -----------------------------------------------------------------

    @property
    def driver(self) -> PodView:
        """The current attempt's pod."""
        return self.drivers[f"clicks-{self.status.attempt.number}-driver"]

    def change_driver(self, **changes: Any) -> None:
        """The kubelet reports something about the current driver's pod."""
        self.drivers[self.driver.name] = replace(self.driver, **changes)

    def run(self, *, checkpoints: int = 1) -> None:
        """Bring the job from nothing, or from a start, to a running stream."""
        self.settle()
        self.say_running(checkpoints=checkpoints)
        self.settle()
        assert self.status.phase in ("Running", "Stable"), self.status

    def say_running(self, *, checkpoints: int = 1, **changes: Any) -> None:
        """The current driver runs its stream and answers."""
        self.change_driver(phase="Running", ready=True, node="node-1", ip="10.0.0.1")
        number = self.status.attempt.number
        self.asked = {}
        last = checkpoint(number * 100 + checkpoints, self.now) if checkpoints else None
        self.report = DriverState(
            attempt=number,
            job_uid=self.uid,
            phase="running",
            lineage="lineage-1",
            fence=number,
            parallelism=2,
            max_parallelism=16,
            executors_desired=1,
            executors_ready=1,
            running_since=self.now,
            last_progress_time=self.now,
            last_checkpoint=last,
            completed_checkpoints=checkpoints,
        ).model_copy(update=changes)
        store = self.store if isinstance(self.store, StoreView) else store_of(self.uid)
        newest = store_of(self.uid, last.id).newest if last else store.newest
        self.store = store_of(self.uid, newest=0, savepoints=store.savepoints)
        self.store = replace(self.store, newest=newest)

    def say(self, **changes: Any) -> None:
        """The driver reports something else."""
        assert isinstance(self.report, DriverState)
        self.report = self.report.model_copy(update=changes)

    def go_on(self, seconds: float) -> None:
        """Time passes, the stream makes progress and checkpoints."""
        self.now += timedelta(seconds=seconds)
        assert isinstance(self.report, DriverState)
        last = self.report.last_checkpoint
        number = last.id + 1 if last is not None else 1
        done = self.report.completed_checkpoints + 1
        newest = checkpoint(number, self.now)
        self.say(last_progress_time=self.now, last_checkpoint=newest, completed_checkpoints=done)
        self.settle()

    def answer(self, state: Any, **changes: Any) -> None:
        """The driver answers the request that it was asked last."""
        request_id = list(self.asked)[-1]
        view = RequestView(request_id=request_id, kind="Stop", state=state)
        if not isinstance(self.report, DriverState):
            return
        others = [one for one in self.report.requests if one.request_id != request_id]
        self.say(requests=(*others, view.model_copy(update=changes)))

    def fail_request(self, why: str = "the store is full") -> None:
        """The driver could not do what it was asked."""
        self.answer("Failed", error=RequestError(code="io_exception", message=why))

    def savepoint(self) -> SavepointInfo:
        """What was asked for last, completed."""
        body = list(self.asked.values())[-1]
        assert body.name is not None
        return SavepointInfo(
            name=body.name,
            path=f"{SAVEPOINTS}/{body.name}",
            checkpoint_id=999,
            epoch=500,
            manifest_digest="sha256:ab",
            completed_at=self.now,
        )

    def stop_as_asked(self) -> None:
        """The driver does what it was asked, and ends."""
        body = list(self.asked.values())[-1]
        saved = self.savepoint() if body.mode == "Savepoint" else None
        last = self.report.last_checkpoint if isinstance(self.report, DriverState) else None
        self.end("Stopped", savepoint=saved, last_checkpoint=last, released=body.release)

    def end(self, outcome: Any = "Failed", code: str = "", exit_code: int = 1, **said: Any) -> None:
        """The driver ends with its last words."""
        words = DriverEnd(attempt=self.status.attempt.number, outcome=outcome, code=code, **said)
        done = outcome != "Failed"
        self.end_pod(0 if done else exit_code, end=words, phase="Succeeded" if done else "Failed")

    def end_pod(self, exit_code: int, reason: str = "Error", **changes: Any) -> None:
        """The driver's container ends."""
        ended = ContainerEnd(exit_code, reason, finished_at=self.now)
        self.change_driver(**{"phase": "Failed", "ended": ended, **changes})
        self.report = None

    def told(self, reason: str) -> list[Event]:
        """Events of this reason."""
        return [event for event in self.events if event.reason == reason]

    def started(self) -> list[int]:
        """Attempts for which a driver was asked, each once."""
        return sorted({order.attempt for order in self.orders})

    def condition(self, kind: str) -> str:
        """A condition as `Status/Reason`."""
        found = self.status.condition(kind)
        return f"{found.status}/{found.reason}" if found else ""

    def add_snapshot(self, name: str, state: str = "Completed", **status: Any) -> None:
        """A StatefulSparkSnapshot of the job."""
        meta = Meta(name, "default", f"uid-{name}", 1, "1", created_at=self.now)
        spec = SnapshotSpec.model_validate({"jobRef": {"name": "clicks"}})
        known = {"path": f"{SAVEPOINTS}/{name}", "manifest_digest": "sha256:cd", **status}
        view = SnapshotStatus(state=state).model_copy(update=known if state == "Completed" else {})
        self.snapshots[name] = SnapshotView(meta, spec, view)

    # -- carrying out --------------------------------------------------------------------------

    def _carry_out(self, effect: Effect) -> None:  # noqa: C901, PLR0912  one case a kind
        match effect:
            case SetFinalizer(present):
                self.finalizers = (self.config.finalizer,) if present else ()
                self.gone = self.deleted_at is not None and not present
            case SaveRevision(name, number, digest):
                assert self.effective is not None
                assert name == revision_name("clicks", digest)
                self.revisions.setdefault(name, Revision(name, number, digest, self.effective))
            case TidyRevisions(keep):
                self.revisions = {n: one for n, one in self.revisions.items() if n in keep}
            case StartDriver():
                self._start(effect)
            case AskDriver(body=StopBody() as body) if not self.deaf:
                if body.request_id not in self.asked:
                    self.asked[body.request_id] = body
                    self.answer("Pending")
            case DeletePod():
                self._delete_pod(effect)
            case KeepSnapshot(name=name):
                self.add_snapshot(name, state="Pending")
            case RunStoreTask(StoreTask(id=key, kind="Verify")):
                self.store_tasks.setdefault(key, StoreTaskView("Completed", {"found": True}))
            case RunStoreTask(store_task):
                self.store_tasks.setdefault(store_task.id, StoreTaskView("Pending"))
            case TidyAttempt(below):
                ended = [p for p in self.drivers.values() if p.terminal and p.attempt < below]
                for pod in sorted(ended, key=lambda one: one.attempt)[:-1]:
                    del self.drivers[pod.name]
            case _:
                pass

    def _start(self, effect: StartDriver) -> None:
        number = effect.order.attempt
        name = f"clicks-{number}-driver"
        others = [p for p in self.drivers.values() if p.owned and not p.terminal and p.name != name]
        assert not others, f"two drivers at once: {others}"
        assert effect.revision in self.revisions
        if name not in self.drivers:
            self.orders.append(effect.order)
            self.drivers[name] = PodView(
                name=name,
                uid=f"pod-{number}-{len(self.orders)}",
                role="driver",
                attempt=number,
                phase="Pending",
                revision=effect.revision,
                created_at=self.now,
            )

    def _delete_pod(self, effect: DeletePod) -> None:
        for place in (self.drivers, self.executors):
            pod = place.get(effect.name)
            if pod is None or pod.uid != effect.uid:
                continue
            if effect.grace_seconds == 0 or pod.terminal or pod.phase == "Pending":
                del place[effect.name]
                continue
            asked = effect.grace_seconds
            place[effect.name] = replace(
                pod,
                deleted_at=pod.deleted_at or self.now,
                grace_seconds=pod.grace_seconds if asked is None else min(asked, pod.grace_seconds),
            )
