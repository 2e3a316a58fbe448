"""The operator's loop and cache over an API server in memory, against the number of jobs.

Each job has ten executors and twenty completed snapshots. Time is injected, so that an hour takes
seconds; requests are counted as they reach the API server, and beyond watches there is no other.
"""

import asyncio
import gc
import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from moorage_testing.kube import ApiStore, MemoryCluster

from benchmarks import objects
from benchmarks.scale.curve import Curve
from moorage_operator.decide import decide_job
from moorage_operator.loop import Reconciler
from moorage_operator.objects import meta_of
from moorage_operator.ports import Ref
from moorage_operator.snapshots import decide_snapshot
from moorage_operator.watch_cache import WATCHED, WatchCache
from moorage_operator.world import Config

__all__ = ["Fleet", "measure"]

_EXECUTORS, _SNAPSHOTS = 10, 20
_TURN = 1.0
_MINUTE = 60.0
# Less than what a policy lets a job be without any progress.
_REST = 8 * _MINUTE


class _Counted(MemoryCluster):
    """Requests of the operator; who they are is forgotten at once."""

    requests = 0

    async def _read(self, *args: Any) -> Any:
        self.requests += 1
        self.journal.clear()
        return await super()._read(*args)

    async def _write(self, *args: Any) -> Any:
        self.requests += 1
        self.journal.clear()
        return await super()._write(*args)


class _ByJob(ApiStore):
    """Lists of one job's objects without a look at all others, as a server's index gives them."""

    def list(self, kind: str, namespace: str | None = None, labels: Any = None) -> Any:
        """See `ApiStore`."""
        job = (labels or {}).get("moorage.dev/job")
        if job is None:
            return super().list(kind, namespace, labels)
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
    drivers: objects.Drivers = field(default_factory=lambda: objects.Drivers(0.0))
    api: ApiStore = field(init=False)
    cluster: _Counted = field(init=False)
    reconciler: Reconciler = field(init=False)
    watched: WatchCache = field(init=False)
    _due: list[tuple[float, Ref]] = field(default_factory=list)
    _at: dict[Ref, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.api = _ByJob(now=self.now)
        for number in range(self.jobs):
            self._furnish(number)
        self.cluster = _Counted(self.api)
        self.api.watchers.append(self._changed)

    def now(self) -> datetime:
        """See `WallClock.now`."""
        return objects.START + timedelta(seconds=self.seconds)

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
            self.watched.listed(kind, None, bodies, self.watched.mark)
            if kind != "Pod":
                for body in bodies:
                    self._wake(_ref(body), self.seconds)
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
            moved = {"last_move_time": self.now(), "answered_at": self.now()}
            self.drivers.jobs[address] = state.model_copy(update=moved)

    def _furnish(self, number: int) -> None:
        ref = objects.furnish(self.api, self.drivers, number)
        self.refs.append(ref)
        meta = meta_of(self.api.get("StatefulSparkJob", ref.namespace, ref.name))
        for one in range(2, _EXECUTORS):
            objects.furnish_pod(self.api, meta, f"{ref.name}-1-exec-{one + 1}", "executor", "10.9")
        for one in range(_SNAPSHOTS):
            self._furnish_snapshot(ref, f"{ref.name}-s{one}")

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
    sizes = (10, 30) if quick else (100, 300, 1_000)
    rows = [asyncio.run(costs(size, minutes=5 if quick else 20)) for size in sizes]
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
    "processor, nothing changes": "ms/minute",
    "the operator's memory": "MB",
    "until all are seen after a restart": "s",
    "requests after a restart": "requests",
}


async def costs(jobs: int, minutes: int) -> dict[str, float]:
    """What a fleet of so many jobs costs."""
    fleet = Fleet(jobs)
    asyncio.get_running_loop().time = lambda: fleet.seconds  # type: ignore[method-assign]  # injected
    gc.collect()
    before = objects.rss()
    await fleet.begin()
    gc.collect()
    grown = objects.rss() - before
    await fleet.run(6 * _MINUTE, fleet.progress)
    fleet.cluster.requests, cpu = 0, time.process_time()
    await fleet.run(_REST)
    row = {
        "nothing changes": fleet.cluster.requests / _REST,
        "processor, nothing changes": 1000 * (time.process_time() - cpu) / (_REST / _MINUTE),
    }
    await fleet.run(6 * _MINUTE, fleet.checkpoint)
    fleet.cluster.requests = 0
    await fleet.run(minutes * _MINUTE, fleet.checkpoint)
    row["each job a checkpoint a minute"] = fleet.cluster.requests / minutes / _MINUTE
    fleet.cluster.requests, begun = 0, time.perf_counter()
    await fleet.begin()
    row["until all are seen after a restart"] = time.perf_counter() - begun
    row["requests after a restart"] = float(fleet.cluster.requests)
    row["the operator's memory"] = grown / 2**20
    return row
