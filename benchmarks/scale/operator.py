"""The operator's loop and cache over an API server of a large fleet, against the number of jobs.

Each job has ten executors and twenty completed snapshots. Time is injected, so that an hour takes
seconds. The API server is another process, so that time and memory are the operator's: its loop,
cache and decisions, JSON of requests and answers, and the stand-ins of drivers. What HTTP and Kopf
take comes on top. The way to a driver and back is measured by itself, over real HTTP.
"""

import asyncio
import gc
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from benchmarks import objects
from benchmarks.scale.apiserver import EXECUTORS, SNAPSHOTS, apart, uid_of
from benchmarks.scale.curve import Curve
from benchmarks.scale.process import Process
from moorage_api.driver import DriverState
from moorage_operator.app import spare_collector
from moorage_operator.objects import meta_of
from moorage_operator.ports import DriverTarget, Ref

__all__ = ["Fleet", "measure"]

_MINUTE = 60.0
# With the minutes before it less than what a policy lets a job be without any progress.
_REST = 3 * _MINUTE


class _Drivers(objects.Drivers):
    """Each answers now, by its own clock."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(0.0)
        self._now = now

    async def state(self, target: DriverTarget) -> DriverState:
        return self.jobs[target.ip].model_copy(update={"answered_at": self._now()})


@dataclass(slots=True, kw_only=True)
class Fleet(Process):
    """Jobs that run, and one operator."""

    jobs: int
    refs: list[Ref] = field(default_factory=list)
    drivers: Any = field(init=False)
    lineages: Any = field(default_factory=objects.Lineages)

    def __post_init__(self) -> None:
        Process.__post_init__(self)
        self.drivers = _Drivers(self.now)
        self._furnish(0)

    async def settle(self) -> None:
        """One job comes to rest; all others are as it is then, in a hundredth of the time."""
        await self.begin()
        await self.run(6 * _MINUTE, self.progress)
        first, address = self.refs[0], objects.address_of(0)
        clones = [(objects.name_of(one), objects.address_of(one)) for one in range(1, self.jobs)]
        self.cluster.api.clone(first.name, address, clones)
        for name, ip in clones:
            self._furnish_as(first, name, ip)

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
            touched = {"metadata": {"annotations": {"touched": str(self.seconds)}}}
            self.cluster.api.patch(*where, touched)

    def progress(self) -> None:
        """Each job gets on within its epoch, and completes nothing."""
        for address, state in self.drivers.jobs.items():
            moved = {"last_move_time": self.now()}
            self.drivers.jobs[address] = state.model_copy(update=moved)

    def _furnish(self, number: int) -> None:
        api = self.cluster.api
        ref = objects.furnish(api, self.drivers, number)
        self.refs.append(ref)
        meta = meta_of(api.get("StatefulSparkJob", ref.namespace, ref.name))
        for one in range(2, EXECUTORS):
            objects.furnish_pod(api, meta, f"{ref.name}-1-exec-{one + 1}", "executor", "10.9")
        for one in range(SNAPSHOTS):
            self._furnish_snapshot(ref, f"{ref.name}-s{one}")

    def _furnish_as(self, first: Ref, name: str, ip: str) -> None:
        """Another job like the first."""
        self.refs.append(Ref(first.kind, first.namespace, name))
        state = self.drivers.jobs[objects.address_of(0)]
        last = state.last_checkpoint
        assert last is not None
        path = last.path.replace(first.name, name)
        self.drivers.jobs[ip] = state.model_copy(
            update={
                "job_uid": uid_of(name, state.job_uid),
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
        api = self.cluster.api
        api.replace_status({**api.create(body), "status": status})


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
    "processor, until all are seen after a restart": "s",
    "requests after a restart": "requests",
}


async def costs(jobs: int, minutes: int) -> dict[str, float]:
    """What a fleet of so many jobs costs."""
    with ExitStack() as stack:
        return await _costs(Fleet(jobs=jobs, ask=stack.enter_context(apart())), minutes)


async def _costs(fleet: Fleet, minutes: int) -> dict[str, float]:
    asyncio.get_running_loop().time = lambda: fleet.seconds  # type: ignore[method-assign]  # injected
    spare_collector()
    await fleet.settle()
    gc.collect()
    before, fleet.cluster.requests, fleet.cpu = objects.rss(), 0, 0.0
    begun = time.perf_counter()
    await fleet.begin()
    seen, cpu, asked = time.perf_counter() - begun, fleet.cpu, fleet.cluster.requests
    # Until every figure of before is shown: what is due at all is so within five minutes.
    await fleet.run(5 * _MINUTE + 1.0, fleet.progress)
    rest = await _measured(fleet, _REST)
    await fleet.run(6 * _MINUTE, fleet.checkpoint)
    busy = await _measured(fleet, minutes * _MINUTE, fleet.checkpoint)
    return {
        "nothing changes": rest[0],
        "processor, nothing changes": rest[1],
        "each job a checkpoint a minute": busy[0],
        "processor, a checkpoint a minute": busy[1],
        "until all are seen after a restart": seen,
        "processor, until all are seen after a restart": cpu,
        "requests after a restart": float(asked),
        "the operator's memory": (objects.rss() - before) / 2**20,
    }


async def _measured(
    fleet: Fleet, seconds: float, each: Callable[[], None] = lambda: None
) -> tuple[float, float]:
    """Requests a second, and milliseconds of processor time for a job in a minute."""
    fleet.cluster.requests, fleet.cpu = 0, 0.0
    await fleet.run(seconds, each)
    cpu = 1000 * fleet.cpu / fleet.jobs / (seconds / _MINUTE)
    return fleet.cluster.requests / seconds, cpu
