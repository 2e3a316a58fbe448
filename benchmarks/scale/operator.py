"""The operator's loop and cache over an API server in memory, against the number of jobs.

Each job has ten executors and twenty completed snapshots. Time is injected, so that an hour takes
seconds; requests are counted as they reach the API server, and beyond watches there is no other.
Processor time is that of passes, without what the stand-ins of the API server and the drivers take.
The way to a driver and back is measured by itself, over real HTTP.
"""

import asyncio
import gc
import heapq
import json
import marshal
import time
import uuid
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from moorage_testing.kube import ApiStore, MemoryCluster

from benchmarks import objects
from benchmarks.scale.curve import Curve
from moorage_api.driver import DriverState
from moorage_operator.decide import decide_job
from moorage_operator.loop import Reconciler
from moorage_operator.objects import meta_of
from moorage_operator.ports import DriverTarget, Ref
from moorage_operator.snapshots import decide_snapshot
from moorage_operator.watch_cache import WATCHED, WatchCache
from moorage_operator.world import Config

__all__ = ["Fleet", "measure"]

_EXECUTORS, _SNAPSHOTS = 10, 20
_TURN = 1.0
_MINUTE = 60.0
# With the minutes before it less than what a policy lets a job be without any progress.
_REST = 3 * _MINUTE


class _Meter:
    """Processor time of passes; what stand-ins take is left out."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def running(self, sign: int = 1) -> Iterator[None]:
        """Count the time within; with -1 it is taken off again."""
        begun = time.thread_time()
        try:
            yield
        finally:
            self.seconds += sign * (time.thread_time() - begun)


class _Counted(MemoryCluster):
    """Requests of the operator; who they are is forgotten at once."""

    requests = 0

    def __init__(self, api: ApiStore, meter: _Meter) -> None:
        super().__init__(api)
        self._meter = meter

    async def _read(self, *args: Any) -> Any:
        self.requests += 1
        self.journal.clear()
        with self._meter.running(-1):
            return await super()._read(*args)

    async def _write(self, *args: Any) -> Any:
        self.requests += 1
        self.journal.clear()
        with self._meter.running(-1):
            return await super()._write(*args)


class _Drivers(objects.Drivers):
    """Each answers now, by its own clock."""

    def __init__(self, now: Callable[[], datetime], meter: _Meter) -> None:
        super().__init__(0.0)
        self._now, self._meter = now, meter

    async def state(self, target: DriverTarget) -> DriverState:
        with self._meter.running(-1):
            return self.jobs[target.ip].model_copy(update={"answered_at": self._now()})


class _Packed(MutableMapping[Any, Any]):
    """Objects as bytes: a third of a million of them as objects of Python take gigabytes."""

    def __init__(self) -> None:
        self.bytes: dict[Any, bytes] = {}

    def __getitem__(self, key: Any) -> Any:
        return marshal.loads(self.bytes[key])  # noqa: S302  our own

    def __setitem__(self, key: Any, found: Any) -> None:
        self.bytes[key] = marshal.dumps(found)

    def __delitem__(self, key: Any) -> None:
        del self.bytes[key]

    def __contains__(self, key: object) -> bool:
        return key in self.bytes

    def __iter__(self) -> Iterator[Any]:
        return iter(self.bytes)

    def __len__(self) -> int:
        return len(self.bytes)


class _ByJob(ApiStore):
    """Lists of one job's objects without a look at all others, as a server's index gives them."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(now=now)
        self._objects: Any = _Packed()

    def clone(self, texts: dict[Any, str], old: str, new: str) -> None:
        """Another job's objects, as of one that is there: names, uids and addresses differ."""
        for key, text in texts.items():
            self.version += 1
            found = json.loads(text.replace("%uid%", str(uuid.uuid5(uuid.NAMESPACE_OID, new))))
            found["metadata"]["resourceVersion"] = str(self.version)
            self._objects[key[0], key[1], key[2].replace(old, new)] = found

    def texts(self, name: str) -> dict[Any, str]:
        """All objects of a job, as JSON."""
        return {key: json.dumps(self._objects[key]) for key in self._objects if name in key[2]}

    def list(self, kind: str, namespace: str | None = None, labels: Any = None) -> Any:
        """See `ApiStore`."""
        job = (labels or {}).get("moorage.dev/job")
        if job is None:
            return [self._objects[key] for key in self._objects if key[0] == kind]
        names = [f"{job}-1-driver", *(f"{job}-1-exec-{n + 1}" for n in range(_EXECUTORS))]
        if kind == "StatefulSparkSnapshot":
            names = [f"{job}-s{n}" for n in range(_SNAPSHOTS)]
        found = (self.get(kind, namespace, name) for name in names)
        return [one for one in found if one is not None]


@dataclass(slots=True)
class Fleet:
    """Jobs that run, and one operator; `seconds` is the time of both clocks."""

    jobs: int
    seconds: float = 0.0
    refs: list[Ref] = field(default_factory=list)
    meter: _Meter = field(default_factory=_Meter)
    drivers: _Drivers = field(init=False)
    api: _ByJob = field(init=False)
    cluster: _Counted = field(init=False)
    reconciler: Reconciler = field(init=False)
    watched: WatchCache = field(init=False)
    _due: list[tuple[float, Ref]] = field(default_factory=list)
    _at: dict[Ref, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.api, self.drivers = _ByJob(self.now), _Drivers(self.now, self.meter)
        self._furnish(0)
        self.cluster = _Counted(self.api, self.meter)
        self.api.watchers.append(self._changed)

    def now(self) -> datetime:
        """See `WallClock.now`."""
        return objects.START + timedelta(seconds=self.seconds)

    async def settle(self) -> None:
        """One job comes to rest; all others are as it is then, in a hundredth of the time."""
        await self.begin()
        await self.run(6 * _MINUTE, self.progress)
        first = self.refs[0]
        uid = self.api.need("StatefulSparkJob", first.namespace, first.name)["metadata"]["uid"]
        texts = self.api.texts(first.name)
        for number in range(1, self.jobs):
            self._furnish_as(first, uid, texts, number)

    async def begin(self) -> None:
        """A process begins: it lists, and has a pass for each object."""
        self.watched = WatchCache()
        self.reconciler = Reconciler(
            self.cluster,
            self.drivers,
            objects.Lineages(),
            self,
            Config(cluster_id="bench"),
            decide_job,
            decide_snapshot,
            wake=lambda ref: self._wake(ref, self.seconds),
            watched=self.watched,
        )
        self._due, self._at = [], {}
        for kind in WATCHED:
            bodies = self.api.list(kind)
            if kind == "StatefulSparkJob":
                await self.reconciler.specs.learn(bodies)
            with self.meter.running():
                self.watched.listed(kind, None, bodies, self.watched.mark)
            for body in bodies if kind != "Pod" else ():
                self._wake(_ref(body), self.seconds)
        del bodies
        await self._work()

    async def run(self, seconds: float, each: Callable[[], None] = lambda: None) -> None:
        """Let time pass; `each` is called once a minute."""
        end, minute = self.seconds + seconds, self.seconds
        while self.seconds < end:
            if self.seconds >= minute:
                each()
                minute += _MINUTE
            await self._work()
            self.seconds += _TURN

    def checkpoint(self) -> None:
        """Each job completes one."""
        for address, state in self.drivers.jobs.items():
            last = state.last_checkpoint
            assert last is not None
            number = last.id + 1
            path = f"{last.path.rpartition('/')[0]}/chk-{number}"
            newest = {"id": number, "path": path, "completed_at": self.now()}
            self.drivers.jobs[address] = state.model_copy(
                update={
                    "last_checkpoint": last.model_copy(update=newest),
                    "last_progress_time": self.now(),
                    "last_move_time": self.now(),
                    "completed_checkpoints": state.completed_checkpoints + 1,
                }
            )

    def touch(self) -> None:
        """Something about a pod of each job is another than before."""
        for ref in self.refs:
            where = ("Pod", ref.namespace, f"{ref.name}-1-exec-1")
            self.api.patch(*where, {"metadata": {"annotations": {"touched": str(self.seconds)}}})
            self._wake(ref, self.seconds)

    def progress(self) -> None:
        """Each job gets on within its epoch, and completes nothing."""
        for address, state in self.drivers.jobs.items():
            moved = {"last_move_time": self.now()}
            self.drivers.jobs[address] = state.model_copy(update=moved)

    def _furnish(self, number: int) -> None:
        ref = objects.furnish(self.api, self.drivers, number)
        self.refs.append(ref)
        meta = meta_of(self.api.get("StatefulSparkJob", ref.namespace, ref.name))
        for one in range(2, _EXECUTORS):
            objects.furnish_pod(self.api, meta, f"{ref.name}-1-exec-{one + 1}", "executor", "10.9")
        for one in range(_SNAPSHOTS):
            self._furnish_snapshot(ref, f"{ref.name}-s{one}")

    def _furnish_as(self, first: Ref, uid: str, texts: dict[Any, str], number: int) -> None:
        """Another job like the first."""
        name, ip = objects.name_of(number), objects.address_of(number)
        own = {
            key: text.replace(first.name, name)
            .replace(uid, "%uid%")
            .replace(f'"{objects.address_of(0)}"', f'"{ip}"')
            for key, text in texts.items()
        }
        self.api.clone(own, first.name, name)
        self.refs.append(Ref(first.kind, first.namespace, name))
        found = self.api.need("StatefulSparkJob", first.namespace, name)
        state = self.drivers.jobs[objects.address_of(0)]
        last = state.last_checkpoint
        assert last is not None
        path = last.path.replace(first.name, name)
        self.drivers.jobs[ip] = state.model_copy(
            update={
                "job_uid": found["metadata"]["uid"],
                "last_checkpoint": last.model_copy(update={"path": path}),
            }
        )

    def _furnish_snapshot(self, job: Ref, name: str) -> None:
        body = {
            "apiVersion": "moorage.dev/v1alpha1",
            "kind": "StatefulSparkSnapshot",
            "metadata": {
                "name": name,
                "namespace": job.namespace,
                "finalizers": ["moorage.dev/operator"],
                "labels": {"moorage.dev/job": job.name},
            },
            "spec": {"jobRef": {"name": job.name}},
        }
        status = {
            "state": "Completed",
            "attempt": 1,
            "path": f"s3://savepoints/{job.name}/{name}",
            "requestId": name,
            "startedAt": objects.START.isoformat(),
            "completedAt": objects.START.isoformat(),
        }
        self.api.replace_status({**self.api.create(body), "status": status})

    def _changed(self, event: str, body: dict[str, Any]) -> None:
        kind = body["kind"]
        if kind in WATCHED:
            self.watched.seen(event, kind, body)
            if kind != "Pod" and not self.reconciler.has_seen(body):
                # The answer to a write of a pass comes before its event.
                self._wake(_ref(body), self.seconds + _TURN)

    def _wake(self, ref: Ref, at: float) -> None:
        if at < self._at.get(ref, float("inf")):
            self._at[ref] = at
            heapq.heappush(self._due, (at, ref))

    async def _work(self) -> None:
        while self._due and self._due[0][0] <= self.seconds:
            at, ref = heapq.heappop(self._due)
            if self._at.get(ref) != at:
                continue
            del self._at[ref]
            with self.meter.running():
                done = await self.reconciler.reconcile(ref)
            assert not done.problem, (ref, done.problem)
            if done.changed:
                self._wake(ref, self.seconds)
            elif done.again_after is not None:
                self._wake(ref, self.seconds + done.again_after)


def _ref(body: dict[str, Any]) -> Ref:
    return Ref(body["kind"], body["metadata"]["namespace"], body["metadata"]["name"])


def measure(*, quick: bool) -> list[Curve]:
    """Curves of requests, processor time, memory and the time until all are seen."""
    sizes = (10, 30) if quick else (100, 1_000, 3_000, 10_000)
    rows = [asyncio.run(costs(size, minutes=5 if quick else 10)) for size in sizes]
    return [
        Curve(
            "operator",
            name,
            unit,
            "jobs",
            tuple((size, row[name]) for size, row in zip(sizes, rows, strict=True)),
            1.1,
        )
        for name, unit in _UNITS.items()
    ]


_UNITS = {
    "nothing changes": "requests/s",
    "each job a checkpoint a minute": "requests/s",
    "processor, nothing changes": "ms/job/minute",
    "processor, a checkpoint a minute": "ms/job/minute",
    "the operator's memory": "MB",
    "until all are seen after a restart": "s",
    "requests after a restart": "requests",
}


async def costs(jobs: int, minutes: int) -> dict[str, float]:
    """What a fleet of so many jobs costs."""
    fleet = Fleet(jobs)
    asyncio.get_running_loop().time = lambda: fleet.seconds  # type: ignore[method-assign]  # injected
    await fleet.settle()
    gc.collect()
    before, fleet.cluster.requests = objects.rss(), 0
    begun = time.perf_counter()
    await fleet.begin()
    seen, asked = time.perf_counter() - begun, fleet.cluster.requests
    grown = objects.rss() - before
    # Until every figure of before is shown: what is due at all is so within five minutes.
    await fleet.run(5 * _MINUTE + _TURN, fleet.progress)
    rest = await _measured(fleet, _REST)
    await fleet.run(6 * _MINUTE, fleet.checkpoint)
    busy = await _measured(fleet, minutes * _MINUTE, fleet.checkpoint)
    return {
        "nothing changes": rest[0],
        "processor, nothing changes": rest[1],
        "each job a checkpoint a minute": busy[0],
        "processor, a checkpoint a minute": busy[1],
        "until all are seen after a restart": seen,
        "requests after a restart": float(asked),
        "the operator's memory": grown / 2**20,
    }


async def _measured(
    fleet: Fleet, seconds: float, each: Callable[[], None] = lambda: None
) -> tuple[float, float]:
    """Requests a second, and milliseconds of processor time for a job in a minute."""
    fleet.cluster.requests, fleet.meter.seconds = 0, 0.0
    await fleet.run(seconds, each)
    cpu = 1000 * fleet.meter.seconds / fleet.jobs / (seconds / _MINUTE)
    return fleet.cluster.requests / seconds, cpu
