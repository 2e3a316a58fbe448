"""`World`: everything around the operator, and one operator or two in it."""

import asyncio
import functools
import random
from collections.abc import Callable
from typing import Any

from moorage_api.crds import job_crd
from moorage_api.driver import DriverState
from moorage_api.fleet import Fleet, read_fleet
from moorage_api.status import JobStatus, read_status
from moorage_operator.decide import decide_job
from moorage_operator.loop import Reconciler
from moorage_operator.ports import Ref
from moorage_operator.shards import Ownership, Selection
from moorage_operator.snapshots import decide_snapshot
from moorage_operator.watch_cache import WATCHED, WatchCache
from moorage_operator.world import Config
from moorage_testing.crd import Judge
from moorage_testing.kube import ApiRefusal, CrashPoints, OperatorKilled
from moorage_testing.manifests import job_object, spec_data
from moorage_testing.world.buckets import Buckets
from moorage_testing.world.clock import AnotherClock, FakeClock
from moorage_testing.world.doors import CountedDrivers, CountedLineages
from moorage_testing.world.drivers import Drivers, FakeDriver
from moorage_testing.world.kubelet import Kubelet
from moorage_testing.world.sites import MemorySite, Site

__all__ = ["CHECKPOINTS", "SAVEPOINTS", "Operator", "World", "job"]

CHECKPOINTS = "s3://state/clicks"
SAVEPOINTS = "s3://savepoints/clicks"
JOB = "StatefulSparkJob"
SNAPSHOT = "StatefulSparkSnapshot"
LEASE_SECONDS = 15.0
_MOST_PASSES = 30


def job(name: str = "clicks", **spec: Any) -> dict[str, Any]:
    """A job that is right; keyword arguments replace or add parts of its spec."""
    return job_object(spec_data(name, **{"checkpoint": {"interval": "10s"}, **spec}), name)


@functools.cache
def _judge() -> Judge:
    return Judge(job_crd())


class Operator:
    """One operator process: what it knows besides the cluster is gone when it dies.

    Attributes:
        selection: the jobs that it is for; None for all, with no other operator beside it.
    """

    def __init__(
        self, world: "World", points: CrashPoints, selection: Selection | None = None
    ) -> None:
        self.points = points
        self.selection = selection
        self.cluster = world.site.client(points)
        self.watched = WatchCache()
        self.reconciler = Reconciler(
            cluster=self.cluster,
            drivers=CountedDrivers(world.drivers, points),
            lineages=CountedLineages(
                world.buckets, world.clock, points, self.cluster, world.drivers.habits
            ),
            clock=world.operators_clock,
            config=Config("test", world.operators_namespace, state_backend=world.state_backend),
            decide_job=decide_job,
            decide_snapshot=decide_snapshot,
            wake=lambda ref: self.due.__setitem__(ref, 0.0),
            watched=self.watched,
            fleet=lambda: world.fleet,
            # Waits alike in each life: a sweep counts steps.
            chance=random.Random(0),
            ownership=self._ownership(world) if selection is not None else None,
        )
        self.due: dict[Ref, float] = {}
        self._world = world
        world.api.watchers.append(self._changed)

    def _ownership(self, world: "World") -> Ownership:
        assert self.selection is not None
        # Of the loop's time and the world's, as the one passes as well.
        tick = asyncio.get_running_loop().time
        lease = f"{world.operators_namespace}/{self.selection.shard}"
        return Ownership(
            self.cluster, self.selection, lease, LEASE_SECONDS, lambda: tick() + world.elapsed
        )

    def retire(self) -> None:
        """Stop listening."""
        self._world.api.watchers.remove(self._changed)

    async def work(self, elapsed: float) -> None:
        """All passes that are due."""
        for ref in [ref for ref, at in self.due.items() if at <= elapsed]:
            self.due.pop(ref, None)
            for _ in range(_MOST_PASSES):
                done = await self.reconciler.reconcile(ref)
                if not done.changed:
                    break
            else:
                raise AssertionError(f"no end of passes: {ref}\n{self._world.describe()}")
            if done.again_after is not None:
                after = elapsed + max(done.again_after, 0.1)
                self.due[ref] = min(after, self.due.get(ref, after))

    def look_at_everything(self) -> None:
        """What a new process begins with."""
        for kind in WATCHED:
            for found in self._world.api.list(kind):
                self._changed("", found)

    def _changed(self, event: str, found: dict[str, Any]) -> None:
        if found["kind"] in WATCHED:
            self.watched.seen(event, found["kind"], found)
        self._wake(found)

    def _wake(self, found: dict[str, Any]) -> None:
        meta, kind = found["metadata"], found["kind"]
        if kind in (JOB, SNAPSHOT):
            self.due[Ref(kind, meta["namespace"], meta["name"])] = 0.0
        owner = found["spec"].get("jobRef", {}).get("name") if kind == SNAPSHOT else None
        owner = owner or meta.get("labels", {}).get("moorage.dev/job")
        if owner:
            self.due[Ref(JOB, meta["namespace"], owner)] = 0.0  # type: ignore[arg-type]  # the label's text


class World:
    """A cluster with drivers, stores, a clock, and an operator. The cluster may be a real one.

    `run` lets time pass; everything else happens at once. The operator is woken by changes of what
    it watches, and by its own wish.
    """

    def __init__(self, site: Site | None = None) -> None:
        self.site = site or MemorySite()
        self.namespace = self.site.namespace
        self.operators_namespace = "moorage-system"
        self.state_backend = "rocksdb"
        self.fleet = Fleet()
        self.clock = FakeClock()
        self.operators_clock = AnotherClock(self.clock)
        self.buckets = Buckets()
        self.api = self.site.begin(self.clock.now)
        self.drivers = Drivers(self.buckets, self.clock.now)
        self.kubelet = Kubelet(
            self.api,
            self.drivers,
            self.clock.now,
            namespace=self.namespace,
            prefix=self.site.prefix,
        )
        self.points = CrashPoints()
        self.elapsed = 0.0
        self.deaths = 0
        self.operators = [Operator(self, self.points)]

    # -- the operator --------------------------------------------------------------------------

    @property
    def operator(self) -> Operator:
        """The first one."""
        return self.operators[0]

    def restart_operator(self, *, state_backend: str = "") -> None:
        """The process dies, and another one takes over, with another setting if one is given."""
        self.state_backend = state_backend or self.state_backend
        self.operators[0].retire()
        self.points.revive()
        self.operators[0] = Operator(self, self.points)
        self.operators[0].look_at_everything()

    async def without_operator(self, seconds: float) -> None:
        """The process dies, and another one begins so much later."""
        self.operators[0].retire()
        self.operators = []
        await self.run(seconds)
        self.points.revive()
        self.operators = [Operator(self, self.points)]
        self.operators[0].look_at_everything()

    def second_operator(self) -> Operator:
        """A zombie: another process that believes to be the leader."""
        other = Operator(self, CrashPoints())
        other.look_at_everything()
        self.operators.append(other)
        return other

    def share(self, *shards: str) -> None:
        """An operator for each shard, in place of the one of all; any of them may be killed."""
        self.operators[0].retire()
        self.operators = [
            Operator(self, self.points, Selection((), shard, shards)) for shard in shards
        ]
        for operator in self.operators:
            operator.look_at_everything()

    # -- time ----------------------------------------------------------------------------------

    async def run(self, seconds: float, step: float = 1.0) -> None:
        """Let time pass; a killed operator is replaced at once."""
        end = self.elapsed + seconds
        while self.elapsed < end - 1e-9:
            await self.work()
            self.clock.advance(step)
            self.elapsed += step
            self.drivers.tick()
            self.kubelet.tick()
            self.check()
        await self.work()

    async def work(self) -> None:
        """Let operators do what is due, without time passing."""
        self.api.tell_news()
        for index, operator in enumerate(list(self.operators)):
            try:
                await operator.work(self.elapsed)
            except OperatorKilled:
                self.deaths += 1
                operator.points.revive()
                operator.retire()
                self.operators[index] = Operator(self, operator.points, operator.selection)
                self.operators[index].look_at_everything()

    async def until(self, there: Callable[[], bool], seconds: float = 300.0) -> None:
        """Let time pass until something is the case."""
        end = self.elapsed + seconds
        while not there():
            assert self.elapsed < end, f"it never came true\n{self.describe()}"
            await self.run(1.0)

    # -- what must always hold -----------------------------------------------------------------

    def check(self) -> None:
        """Nothing that was completed is lost without a word."""
        for restored in self.drivers.restored:
            assert restored.explicit or restored.epoch >= restored.newest, (
                f"state was lost: {restored}\n{self.describe()}"
            )

    def set_fleet(self, text: str) -> None:
        """The fleet file says this from now on."""
        self.fleet = read_fleet(text.encode())

    def set_quota(self, used: str = "0", **most: str) -> None:
        """The namespace has a quota with these bounds, of each of which so much is used.

        Of names a `_` stands for a dot.
        """
        names = {name.replace("_", "."): amount for name, amount in most.items()}
        body = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "compute", "namespace": self.namespace},
            "spec": {"hard": names},
            "status": {"hard": names, "used": dict.fromkeys(names, used)},
        }
        self.api.apply(body, manager="quota")

    # -- what people do ------------------------------------------------------------------------

    def apply(self, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """`kubectl apply`."""
        body = body or job()
        body["metadata"]["namespace"] = self.namespace
        made: dict[str, Any] = self.api.apply(body, manager="kubectl")
        return made

    def refusal(self, body: dict[str, Any]) -> str:
        """Why the API server does not take this job, or this new version of it; empty if it does.

        In memory the definition is asked; a real server is really given it.
        """
        body["metadata"]["namespace"] = self.namespace
        if not self.site.real:
            return "; ".join(_judge().faults(body, self.object(body["metadata"]["name"])))
        try:
            self.apply(body)
        except ApiRefusal as refusal:
            return str(refusal)
        return ""

    def edit(self, name: str = "clicks", **spec: Any) -> None:
        """Change parts of the spec; a dotted path is written with double underscores."""
        patch: dict[str, Any] = {}
        for path, value in spec.items():
            inner = patch
            *parents, last = path.split("__")
            for part in parents:
                inner = inner.setdefault(part, {})
            inner[last] = value
        self.api.patch(JOB, self.namespace, name, {"spec": patch})

    def annotate(self, name: str = "clicks", **values: str | None) -> None:
        """Set `moorage.dev/<name>` annotations; underscores are dashes."""
        notes = {f"moorage.dev/{key.replace('_', '-')}": value for key, value in values.items()}
        self.api.patch(JOB, self.namespace, name, {"metadata": {"annotations": notes}})

    def delete(self, name: str = "clicks") -> None:
        """`kubectl delete`."""
        self.api.delete(JOB, self.namespace, name)

    def snapshot(self, object_name: str, /, **spec: Any) -> None:
        """Make a StatefulSparkSnapshot."""
        self.api.create(
            {
                "apiVersion": "moorage.dev/v1alpha1",
                "kind": "StatefulSparkSnapshot",
                "metadata": {"name": object_name, "namespace": self.namespace},
                "spec": {"jobRef": {"name": "clicks"}, **spec},
            }
        )

    def store_as(self, version: str) -> None:
        """Install definitions that store this version of the API."""
        for kind in (JOB, SNAPSHOT):
            self.api.store_as(kind, version)

    def rewrite(self, version: str, most: int | None = None) -> None:
        """Have all jobs and snapshots stored in this version, as docs/upgrade.md says.

        Args:
            most: after so many objects whoever does it is cut off.
        """
        note = {"metadata": {"annotations": {"moorage.dev/stored-as": version}}}
        places = [(k, one["metadata"]["name"]) for k in (JOB, SNAPSHOT) for one in self.api.list(k)]
        for kind, name in places[:most]:
            self.api.patch(kind, self.namespace, name, note)

    # -- what people see -----------------------------------------------------------------------

    def stored(self) -> list[str]:
        """The versions in which jobs and snapshots are stored, one an object."""
        return [one for kind in (JOB, SNAPSHOT) for one in self.api.stored(kind).values()]

    def object(self, name: str = "clicks") -> dict[str, Any] | None:
        """The job's object."""
        found: dict[str, Any] | None = self.api.get(JOB, self.namespace, name)
        return found

    def status(self, name: str = "clicks") -> JobStatus:
        """The job's status."""
        return read_status((self.object(name) or {}).get("status"))

    def phase(self, name: str = "clicks") -> str:
        """The job's phase."""
        return self.status(name).phase

    def condition(self, kind: str, name: str = "clicks") -> str:
        """A condition as `Status/Reason`, empty if there is none."""
        found = self.status(name).condition(kind)
        return f"{found.status}/{found.reason}" if found else ""

    def is_running(self, name: str = "clicks") -> bool:
        """Whether the stream of the job runs, and its status says so."""
        return self.phase(name) in ("Running", "Stable") and self.driver(name) is not None

    def driver(self, name: str = "clicks") -> FakeDriver | None:
        """The living driver whose stream runs."""
        return next(
            (
                d
                for d in self.drivers.living
                if d.manifest["metadata"]["name"] == name and d.running_since and not d.standby
            ),
            None,
        )

    def report(self, name: str = "clicks") -> DriverState:
        """What the running driver says."""
        driver = self.driver(name)
        assert driver is not None, self.describe()
        return driver.state()

    def events(self, name: str = "clicks") -> list[str]:
        """Reasons of the events about an object, in order of their making."""
        found = [
            event
            for event in self.api.list("Event")
            if (event.get("regarding") or event.get("involvedObject"))["name"] == name
        ]
        found.sort(key=lambda event: int(event["metadata"]["resourceVersion"]))
        return [str(event["reason"]) for event in found]

    def pods(self, role: str = "driver") -> list[dict[str, Any]]:
        """Pods by role."""
        return list(self.api.list("Pod", self.namespace, {"moorage.dev/role": role}))

    def snapshots(self) -> dict[str, dict[str, Any]]:
        """StatefulSparkSnapshots by name."""
        return {o["metadata"]["name"]: o for o in self.api.list(SNAPSHOT)}

    def describe(self) -> str:
        """Everything, for the message of a failed test."""
        lines = [f"at {self.elapsed:.0f} s"]
        lines += [f"job: {o['metadata']} {o.get('status')}" for o in self.api.list(JOB)]
        lines += [f"snapshot: {o['metadata']} {o.get('status')}" for o in self.api.list(SNAPSHOT)]
        lines += [f"pod: {o['metadata']['name']} {o.get('status')}" for o in self.api.list("Pod")]
        lines += [
            f"event: {o['reason']}: {o.get('note') or o.get('message')}"
            for o in self.api.list("Event")
        ]
        return "\n".join(lines)
