"""A day of a large fleet and its one operator, against the number of jobs.

Every job has ten executors, completes a checkpoint each ten minutes and takes a savepoint each four
hours, of which the newest twenty are kept: so one comes and one goes. Half as many drivers are
killed in the day as there are jobs, and one hour in the operator is another process. Its loop,
cache, decisions and JSON are the real ones; time is injected, and the API server is a process of
its own, so that the processor time of each is known. HTTP and Kopf come on top, as do real drivers
and stores.

Whatever nobody asked for fails the benchmark: a restart, a warning, a pass that ends early.
"""

import asyncio
import gc
import heapq
import itertools
import logging
import random
import resource
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal

from pydantic import BaseModel

from benchmarks import objects
from benchmarks.scale.apiserver import EXECUTORS, SNAPSHOTS, apart, uid_of
from benchmarks.scale.curve import Curve
from benchmarks.scale.process import CLUSTER, Process
from moorage_api.driver import (
    CheckpointSummary,
    DriverState,
    RequestView,
    SavepointBody,
    SavepointInfo,
)
from moorage_operator.app import spare_collector
from moorage_operator.plan import StoreTask
from moorage_operator.ports import DriverTarget, EndpointUnreachable, JobRefs
from moorage_operator.world import LogPoint, StoreTaskView, StoreView

__all__ = ["Day", "measure"]

HOUR = 3600.0
_CHECKPOINTS = 600.0
_SAVEPOINTS = 4 * HOUR
_FULL = SNAPSHOTS * 4
"""Hours after which a job has as many savepoints as are kept."""
_FIRSTS = 2
"""Jobs that are begun, and live until they have as many savepoints as are kept; clones follow."""
_TAKES = 20.0
_SCHEDULED, _BOOTED = 2.0, 15.0
"""Seconds until a pod has its node, and until its driver runs the stream."""


@dataclass(slots=True)
class _Lineage:
    """What lies in a job's checkpoint directory."""

    fence: int = 0
    last: int = 0  # the newest id
    newest: LogPoint | None = None


@dataclass(slots=True)
class _Driver:
    """One attempt's; what it does follows from the time at which it is asked."""

    lineage: _Lineage
    said: DriverState
    due: float  # when its next checkpoint is complete
    asked: list[tuple[float, SavepointBody]] = field(default_factory=list)


class Drivers:
    """All drivers, and what they have in their stores.

    Attributes:
        cpu: seconds of processor time that their answers took.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self.at: dict[str, _Driver] = {}
        self.lineages: dict[str, _Lineage] = {}
        self.cpu = 0.0

    async def state(self, target: DriverTarget) -> DriverState:
        """See `DriverClient.state`."""
        begun = time.process_time()
        try:
            return self._state(self._reached(target))
        finally:
            self.cpu += time.process_time() - begun

    async def ask(self, target: DriverTarget, _path: str, body: BaseModel) -> RequestView:
        """See `DriverClient.ask`: nobody asks for anything but savepoints."""
        assert isinstance(body, SavepointBody), body
        driver, view = self._reached(target), _view_of(body, "Running")
        if all(one.request_id != body.request_id for one in driver.said.requests):
            driver.asked.append((self._seconds() + _TAKES, body))
            requests = (*driver.said.requests[-7:], view)
            driver.said = driver.said.model_copy(update={"requests": requests})
        return view

    def _reached(self, target: DriverTarget) -> _Driver:
        try:
            return self.at[target.ip]
        except KeyError:
            raise EndpointUnreachable(f"nobody listens: ip={target.ip}") from None

    def _seconds(self) -> float:
        return (self._now() - objects.START).total_seconds()

    def _state(self, driver: _Driver) -> DriverState:
        now, seconds = self._now(), self._seconds()
        while driver.due <= seconds:
            self._complete(driver, driver.due)
            driver.due += _CHECKPOINTS
        for one in [one for one in driver.asked if one[0] <= seconds]:
            driver.asked.remove(one)
            self._save(driver, one[1])
        driver.said = driver.said.model_copy(
            update={
                "epoch": int(seconds),
                "last_progress_time": now,
                "last_move_time": now,
                "answered_at": now,
            }
        )
        return driver.said

    def _complete(self, driver: _Driver, at: float) -> None:
        lineage, said = driver.lineage, driver.said
        lineage.last += 1
        path = f"s3://state/{said.lineage}/chk-{lineage.last}"
        done = objects.START + timedelta(seconds=at)
        lineage.newest = LogPoint(path, lineage.last, int(at), done)
        driver.said = said.model_copy(
            update={
                "last_checkpoint": CheckpointSummary(
                    id=lineage.last,
                    path=path,
                    epoch=int(at),
                    completed_at=done,
                    size_bytes=10**9,
                    duration_ms=5000,
                ),
                "completed_checkpoints": said.completed_checkpoints + 1,
            }
        )

    def _save(self, driver: _Driver, body: SavepointBody) -> None:
        lineage, said = driver.lineage, driver.said
        lineage.last += 1
        name = str(body.name)
        made = SavepointInfo(
            name=name,
            path=f"s3://savepoints/{said.lineage}/{name}",
            checkpoint_id=lineage.last,
            epoch=said.epoch,
            size_bytes=10**9,
            manifest_digest="5" * 64,
            max_parallelism=said.max_parallelism,
            completed_at=self._now(),
        )
        done = _view_of(body, "Completed").model_copy(update={"savepoint": made})
        requests = tuple(
            done if one.request_id == body.request_id else one for one in said.requests
        )
        driver.said = said.model_copy(update={"last_savepoint": made, "requests": requests})


def _view_of(body: SavepointBody, state: Literal["Running", "Completed"]) -> RequestView:
    return RequestView(request_id=body.request_id, kind="Savepoint", state=state)


class Lineages:
    """The stores: at once, and only of jobs whose driver is not there.

    Attributes:
        read: whose were looked into.
        deleted: how many savepoints.
    """

    def __init__(self, drivers: Drivers, now: Callable[[], datetime]) -> None:
        self._drivers, self._now = drivers, now
        self.read: Counter[str] = Counter()
        self.deleted = 0
        self._done: dict[str, None] = {}

    async def inspect(self, job: JobRefs, _since: datetime | None = None) -> StoreView:
        """See `Lineages.inspect`."""
        meta = job.meta
        self.read[meta.name] += 1
        found = self._drivers.lineages.get(meta.name)
        if found is None:
            return StoreView(exists=False, read_at=self._now())
        return StoreView(
            exists=True,
            lineage=meta.name,
            owner=(CLUSTER, meta.namespace, meta.name, meta.uid),
            fence=found.fence,
            newest=found.newest,
            read_at=self._now(),
        )

    async def run(self, _job: JobRefs, store_task: StoreTask) -> StoreTaskView:
        """See `Lineages.run`: savepoints are deleted, and nothing else is asked for."""
        assert store_task.kind == "Delete", store_task
        if store_task.id not in self._done:
            self.deleted += 1
            self._done[store_task.id] = None
        if len(self._done) > 1000:
            del self._done[next(iter(self._done))]
        return _DELETED

    async def look(self, _job: JobRefs, task_id: str) -> StoreTaskView | None:
        """See `Lineages.look`."""
        return _DELETED if task_id in self._done else None


_DELETED = StoreTaskView("Completed", {"deleted": 3})


@dataclass(slots=True, kw_only=True)
class Day(Process):
    """So many jobs, their nodes and their drivers; `live` lets hours pass.

    Attributes:
        killed: drivers, by job.
        chance: who is killed when.
    """

    jobs: int
    drivers: Drivers = field(init=False)
    lineages: Lineages = field(init=False)
    killed: Counter[str] = field(default_factory=Counter)
    chance: random.Random = field(default_factory=lambda: random.Random(7))  # noqa: S311
    _later: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _numbers: Any = field(default_factory=itertools.count)
    _pods: dict[str, str] = field(default_factory=dict)
    """By job, the address of its driver's pod."""

    def __post_init__(self) -> None:
        Process.__post_init__(self)
        self.drivers = Drivers(self.now)
        self.lineages = Lineages(self.drivers, self.now)
        seen = self.cluster.changed

        def changed(event: str, body: dict[str, Any]) -> None:
            seen(event, body)
            if event == "ADDED" and body["kind"] == "Pod" and _role(body) == "driver":
                self.after(_SCHEDULED, lambda: self._start(body))

        self.cluster.changed = changed

    # -- before the day ------------------------------------------------------------------------

    async def settle(self, hours: float) -> None:
        """Some jobs live for so many whole hours; all others are as one of them is then."""
        firsts = [objects.name_of(one) for one in range(min(_FIRSTS, self.jobs))]
        for number, name in enumerate(firsts):
            self.cluster.api.create(_job(name, number * 60 // len(firsts)))
        await self.begin()
        await self.live(hours)
        # Shortly before an hour: at a moment at which no savepoint is under way.
        await self.live(0.97)
        for number, first in enumerate(firsts):
            clones = range(number + len(firsts), self.jobs, len(firsts))
            addresses = {objects.name_of(one): self._address() for one in clones}
            self.cluster.api.clone(first, self._pods[first], list(addresses.items()))
            for name, address in addresses.items():
                self._clone(first, name, address)
        self.lineages.read.clear()

    def _clone(self, first: str, name: str, address: str) -> None:
        driver = self.drivers.at[self._pods[first]]
        lineage, said = replace(driver.lineage), driver.said
        if lineage.newest is not None:
            lineage.newest = replace(lineage.newest, path=lineage.newest.path.replace(first, name))
        told = DriverState.model_validate_json(said.model_dump_json().replace(first, name))
        told = told.model_copy(update={"job_uid": uid_of(name, said.job_uid)})
        due = self.seconds + self.chance.uniform(0.0, _CHECKPOINTS)
        self._pods[name], self.drivers.lineages[name] = address, lineage
        self.drivers.at[address] = _Driver(lineage, told, due)

    # -- nodes and misfortune ------------------------------------------------------------------

    async def live(self, hours: float) -> None:
        """Let time pass, with all that happens in it."""
        await self.run(hours * HOUR, self._others, every=1.0)

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Let something happen later."""
        heapq.heappush(self._later, (self.seconds + seconds, next(self._numbers), act))

    def kill(self, name: str) -> None:
        """The driver of a job is killed, if it runs; its executors go with it."""
        driver = self.drivers.at.get(self._pods[name])
        if driver is None or driver.said.phase != "running":
            return
        self.killed[name] += 1
        del self.drivers.at[self._pods[name]]
        api = self.cluster.api
        end = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": self.now().isoformat()}
        ended = [{"name": "driver", "state": {"terminated": end}}]
        pod = f"{name}-{driver.said.attempt}-driver"
        api.set_status("Pod", objects.NAMESPACE, pod, phase="Failed", containerStatuses=ended)
        labels = {"moorage.dev/job": name, "moorage.dev/role": "executor"}
        for one in api.list("Pod", objects.NAMESPACE, labels):
            api.delete("Pod", objects.NAMESPACE, one["metadata"]["name"], grace=0)

    def _others(self) -> None:
        while self._later and self._later[0][0] <= self.seconds:
            heapq.heappop(self._later)[2]()

    def _start(self, pod: dict[str, Any]) -> None:
        """A pod begins, and some seconds later its driver runs the stream."""
        meta = pod["metadata"]
        name = meta["labels"]["moorage.dev/job"]
        self._pods[name] = address = self._address()
        self._runs(meta["name"], address)
        lineage = self.drivers.lineages.setdefault(name, _Lineage())
        lineage.fence += 1
        said = DriverState(
            attempt=int(meta["labels"]["moorage.dev/attempt"]),
            job_uid=meta["labels"]["moorage.dev/job-uid"],
            phase="restoring",
            lineage=name,
            fence=lineage.fence,
            parallelism=4,
            max_parallelism=64,
            executors_desired=EXECUTORS,
        )
        self.drivers.at[address] = driver = _Driver(lineage, said, float("inf"))
        self.after(_BOOTED, lambda: self._stream(driver, meta))

    def _stream(self, driver: _Driver, meta: Any) -> None:
        for number in range(EXECUTORS):
            self._executor(f"{meta['name'].removesuffix('-driver')}-exec-{number + 1}", meta)
        running = {"phase": "running", "running_since": self.now(), "executors_ready": EXECUTORS}
        driver.said = driver.said.model_copy(update=running)
        driver.due = self.seconds + _CHECKPOINTS

    def _executor(self, name: str, driver: Any) -> None:
        owner = {"apiVersion": "v1", "kind": "Pod", "controller": True}
        meta = {
            "name": name,
            "namespace": driver["namespace"],
            "labels": {**driver["labels"], "moorage.dev/role": "executor"},
            "ownerReferences": [{**owner, "name": driver["name"], "uid": driver["uid"]}],
        }
        spec = {"containers": [{"name": "executor", "image": "i"}], "nodeName": "node"}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
        self.cluster.api.create(body)
        self._runs(name, self._address())

    def _runs(self, pod: str, address: str) -> None:
        ready = [{"type": "Ready", "status": "True"}]
        self.cluster.api.set_status(
            "Pod", objects.NAMESPACE, pod, phase="Running", podIP=address, conditions=ready
        )

    def _address(self) -> str:
        number = next(self._numbers)
        return f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"

    # -- the day -------------------------------------------------------------------------------

    async def pass_by(self, hours: float) -> dict[str, float]:
        """So many hours of a day; what they cost. Drivers are killed as often as in a whole one.

        Raises:
            AssertionError: something happened that nobody asked for.
        """
        told = Counter(self.cluster.api.all_told())
        for _ in range(max(1, round(self.jobs / 2 * hours / 24))):
            name = objects.name_of(self.chance.randrange(self.jobs))
            # With a quarter of an hour to come back in.
            self.after(self.chance.uniform(0.0, (hours - 0.25) * HOUR), partial(self.kill, name))
        self.cluster.requests, self.cpu, self.drivers.cpu = 0, 0.0, 0.0
        await self.live(hours / 24)
        await self.begin()
        await self.live(hours / 24)
        begun = _memory()
        await self.live(hours * 22 / 24)
        ended = _memory()
        self._judge(Counter(self.cluster.api.all_told()) - told)
        jobs = self.jobs * hours / 24
        return {
            "requests": self.cluster.requests / hours / HOUR,
            "processor of the operator": (self.cpu - self.drivers.cpu) / jobs,
            "memory of its process, two hours in": begun[0],
            "the same, at the end": ended[0],
            "objects of Python, two hours in": begun[1],
            "the same number, at the end": ended[1],
        }

    def _judge(self, told: Counter[str]) -> None:
        """Only what was asked for has happened."""
        api = self.cluster.api
        for body in api.list("StatefulSparkJob"):
            name, status = body["metadata"]["name"], body["status"]
            assert status["phase"] in ("Running", "Stable"), (name, status)
            restarts = (status.get("restarts") or {}).get("total", 0)
            assert restarts == self.killed[name], (name, self.killed[name], status)
            found = api.list("StatefulSparkSnapshot", None, {"moorage.dev/job": name})
            states = Counter((one.get("status") or {}).get("state") for one in found)
            assert set(states) <= {"Completed"}, (name, states)
            assert states["Completed"] <= SNAPSHOTS, (name, states)
        assert set(self.lineages.read) <= set(self.killed), self.lineages.read - self.killed
        warned = {what: n for what, n in told.items() if what.startswith("Warning")}
        assert set(warned) <= _OF_KILLS, warned


_OF_KILLS = {"Warning DriverOOMKilled"}


def _job(name: str, minute: int) -> dict[str, Any]:
    body = objects.job(name)
    body["metadata"].pop("finalizers")
    cron = {"cron": f"{minute} */{int(_SAVEPOINTS / HOUR)} * * *"}
    body["spec"] |= {
        "checkpoint": {"interval": f"{int(_CHECKPOINTS)}s"},
        "savepoint": {"schedule": cron, "retain": {"count": SNAPSHOTS}},
        "failurePolicy": {"maxRestarts": -1},
    }
    return body


def _role(pod: dict[str, Any]) -> str:
    return str((pod["metadata"].get("labels") or {}).get("moorage.dev/role", ""))


def _memory() -> tuple[float, float]:
    """MB, and how many objects the collector knows."""
    gc.collect()
    return objects.rss() / 2**20, float(len(gc.get_objects()))


class _Warnings(logging.Handler):
    """What the operator's log warns of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self.said.append(record.getMessage())


async def costs(jobs: int, hours: float, before: int = _FULL) -> dict[str, float]:
    """What a day of so many jobs costs that have lived for so many hours before it."""
    warnings, log = _Warnings(), logging.getLogger("moorage.operator")
    log.addHandler(warnings)
    others = _children()
    try:
        with ExitStack() as stack:
            day = Day(jobs=jobs, ask=stack.enter_context(apart()))
            asyncio.get_running_loop().time = lambda: day.seconds  # type: ignore[method-assign]  # injected
            spare_collector()
            await day.settle(before)
            await day.begin()
            warnings.said.clear()
            found = await day.pass_by(hours)
    finally:
        log.removeHandler(warnings)
    assert not warnings.said, warnings.said[:5]
    found["processor of the API server's stand-in"] = (_children() - others) / jobs
    return found


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


_UNITS = {
    "requests": "requests/s",
    "processor of the operator": "s/job/day",
    "processor of the API server's stand-in": "s/job",
    "memory of its process, two hours in": "MB",
    "the same, at the end": "MB",
    "objects of Python, two hours in": "objects",
    "the same number, at the end": "objects",
}


def measure(*, quick: bool) -> list[Curve]:
    """Curves of requests, processor time and memory."""
    sizes, hours, before = ((2, 4), 6.0, 4) if quick else ((30, 100, 300), 24.0, _FULL)
    rows = [asyncio.run(costs(size, hours, before)) for size in sizes]
    return [
        Curve(
            "day",
            name,
            unit,
            "jobs",
            tuple((size, row[name]) for size, row in zip(sizes, rows, strict=True)),
            1.1,
        )
        for name, unit in _UNITS.items()
    ]
