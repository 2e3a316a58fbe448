"""A day of a fleet, on a made-up clock: what happens to its jobs, and what must never come of it.

Drivers are stand-ins that keep real lineages; operator, logs and snapshots are the real code. A
seed fixes what happens when. Fate hits jobs, nodes, clocks, the store, the API server and the
operator; people upgrade well and badly, rescale, suspend, and take savepoints. Of every third job
the load changes, and an autoscaler follows it.
"""

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from moorage_operator.ports import ApiUnavailable
from moorage_testing.kube import ApiRefusal
from moorage_testing.world import FakeDriver, World
from moorage_testing.world.scene import job

__all__ = ["FleetDay", "Record"]

HOUR = 3600.0
STEP = 5.0
_BAD, _UNFIT = "registry.example/bad:", "registry.example/unfit:"
"""Versions that fail as they run, and those that a preflight finds out."""
_CALM = 450.0
"""Seconds after which what nothing happened to must run: the longest backoff, 300 s, and more."""
_READY = 300.0
"""Seconds that a new version has to become stable."""
_HANGS = 300.0
"""Seconds after which a job that hangs is begun anew."""
_NAP = (60.0, 1200.0)


@dataclass(slots=True)
class Record:
    """One job of the fleet.

    Attributes:
        touched: when something last happened that may have it down.
        touches: how often.
        down: seconds that it did not run.
        hung: the driver that hung last, and when that was.
        hangs_on: how many of its next drivers hang as well.
        stepped: when its autoscaler decided last, as far as anybody looked.
    """

    name: str
    touched: float = 0.0
    touches: int = 0
    down: float = 0.0
    image: int = 1
    wanted: bool = True  # False while it is suspended, or a bad version of it is not taken back
    bad: bool = False
    savepoints: list[str] = field(default_factory=list)
    stepped: datetime | None = None
    hung: FakeDriver | None = None
    hung_at: float = 0.0
    hangs_on: int = 0


class FleetDay:
    """So many jobs; `run` lets hours pass and raises `AssertionError` at the first broken promise.

    Args:
        seed: of all that happens.
        jobs: how many.
        pace: how much more often things happen than about nine times a day to a job.
    """

    def __init__(self, seed: int, jobs: int, pace: float = 1.0) -> None:
        self.chance = random.Random(seed)
        self.world = World()
        habits = self.world.drivers.habits
        habits.preflight_fails, habits.preflight_fails_of = "it does not import", _UNFIT
        self.pace = pace
        self.records = {f"job-{n:03}": Record(f"job-{n:03}") for n in range(jobs)}
        self.happened: Counter[str] = Counter()
        self.told: set[str] = set()  # reasons of events
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._global_until = 0.0
        for name in self.records:
            self.world.apply(
                job(
                    name,
                    checkpoint={"interval": "60s"},
                    failurePolicy={"maxRestarts": -1, "health": _HEALTH},
                    upgrade={
                        "preflight": int(name[-1]) % 2 == 1,
                        "strategy": "WarmStandby" if int(name[-3:]) % 4 == 1 else "Restart",
                        "standby": {"observeFor": "30s", "catchUpTimeout": "5m"},
                        "rollback": {"enabled": True, "readinessTimeout": "5m"},
                    },
                    scaling=_scaling(name),
                    snapshots={"periodic": {"interval": "6h", "retain": 2}},
                )
            )

            if _is_scaled(name):
                self.world.drivers.habits.arrivals[name] = 1000.0

    async def run(self, hours: float) -> None:
        """Let time pass."""
        end = self.world.elapsed + hours * HOUR
        while self.world.elapsed < end:
            self._fate()
            await self.world.work()
            self.world.clock.advance(STEP)
            self.world.elapsed += STEP
            self.world.drivers.tick()
            self.world.kubelet.tick()
            self._judge()

    async def calm_down(self) -> None:
        """Nothing happens any more: what was begun ends, and every job runs as its spec says."""
        self.pace = 0.0
        for record in self.records.values():
            self._wake_up(record)
        await self.run(0.5)
        for record in self.records.values():
            self._ask_again(record)
        await self.run(0.5)
        for record in self.records.values():
            assert self.world.is_running(record.name), self._told(record, "does not run in the end")
            self._judge_version(record)
        for name, body in self.world.snapshots().items():
            state = body.get("status", {}).get("state")
            assert state in {"Completed", "Failed", "Abandoned"}, (name, body.get("status"))

    # -- what happens --------------------------------------------------------------------------

    def _fate(self) -> None:
        now = self.world.elapsed
        due = [one for one in self._later if one[0] <= now]
        self._later = [one for one in self._later if one[0] > now]
        for _, act in due:
            act()
        for driver in self.world.drivers.living:
            bad = driver.manifest["spec"]["image"].startswith((_BAD, _UNFIT))
            if bad and driver.phase != "starting":
                driver.fail("user_function", 3)
        for what, a_day in _TO_A_JOB.items():
            for record in self._chosen(a_day * len(self.records)):
                if self.world.object(record.name) is not None and record.wanted:
                    self.happened[what] += 1
                    getattr(self, f"_{what}")(record)
        for what, a_day in _TO_ALL.items():
            if self._chosen(a_day):
                self.happened[what] += 1
                getattr(self, f"_{what}")()

    def _chosen(self, a_day: float) -> list[Record]:
        """Whom it happens to in this step, if it happens so often to one of all in a day."""
        expected = a_day * self.pace * STEP / (24 * HOUR)
        count = int(expected) + (self.chance.random() < expected % 1)
        return self.chance.sample(list(self.records.values()), min(count, len(self.records)))

    def _after(self, low: float, high: float, act: Callable[[], None]) -> None:
        self._later.append((self.world.elapsed + self.chance.uniform(low, high), act))

    def _touch(self, record: Record) -> None:
        record.touched, record.touches = self.world.elapsed, record.touches + 1

    def _touch_all(self, seconds: float) -> None:
        self._global_until = max(self._global_until, self.world.elapsed + seconds)
        for record in self.records.values():
            self._touch(record)

    def _living(self, record: Record) -> FakeDriver | None:
        return next(
            (
                one
                for one in self.world.drivers.living
                if one.manifest["metadata"]["name"] == record.name
            ),
            None,
        )

    def _driver_killed(self, record: Record) -> None:
        if (driver := self._living(record)) is not None:
            self._touch(record)
            driver.kill()

    def _driver_failed(self, record: Record) -> None:
        if (driver := self._living(record)) is not None:
            self._touch(record)
            driver.fail("user_function", 3)

    def _driver_hung(self, record: Record) -> None:
        if self._hang(record) and self.happened["driver_hung"] % _HANGS_ON_EACH == 0:
            record.hangs_on = _HEALTH["budget"]["actions"]

    def _hang(self, record: Record) -> bool:
        if (driver := self._living(record)) is None or not driver.running_since:
            return False
        driver.hung = True
        record.hung, record.hung_at = driver, self.world.elapsed
        return True

    def _executor_lost(self, record: Record) -> None:
        if (driver := self._living(record)) is not None and driver.running_since:
            driver.lose_executor()

    def _pod_evicted(self, record: Record) -> None:
        if (driver := self._living(record)) is not None:
            self._touch(record)
            with suppress(ApiRefusal):
                self.world.kubelet.drain(driver.pod)

    def _pod_deleted(self, record: Record) -> None:
        if (driver := self._living(record)) is not None:
            self._touch(record)
            with suppress(ApiRefusal):
                self.world.api.delete("Pod", self.world.namespace, driver.pod)

    def _upgraded(self, record: Record) -> None:
        record.image += 1
        self._touch(record)
        self.world.edit(record.name, image=f"registry.example/clicks:{record.image}")

    def _upgraded_badly(self, record: Record) -> None:
        """Somebody sees it, and puts a better version in its place."""
        if not self.world.status(record.name).reconciliation.stable_revision:
            return  # there is nothing to go back to yet
        record.image, record.wanted, record.bad = record.image + 1, False, True
        self._touch(record)
        self.world.edit(record.name, image=f"{self.chance.choice((_BAD, _UNFIT))}{record.image}")
        self._after(*_NAP, lambda: self._wake_up(record))

    def _suspended(self, record: Record) -> None:
        record.wanted = False
        self._touch(record)
        self.world.edit(record.name, desiredState="Suspended")
        self._after(*_NAP, lambda: self._wake_up(record))

    def _wake_up(self, record: Record) -> None:
        body = self.world.object(record.name)
        assert body is not None
        if not record.wanted:
            record.wanted, record.bad = True, False
            self._touch(record)
            image = f"registry.example/clicks:{record.image}"
            self.world.edit(record.name, desiredState="Running", image=image)

    def _ask_again(self, record: Record) -> None:
        """A good version may have met with too much: it is tried again where people ask for it."""
        if self._condition(record, "Reconciled") == "Rejected":
            self.happened["good version given up"] += 1
            self._touch(record)
            self.world.annotate(record.name, restart="again")

    def _rescaled(self, record: Record) -> None:
        self._touch(record)
        self.world.edit(record.name, scaling__parallelism=self.chance.randrange(1, 9))

    def _load_changed(self, record: Record) -> None:
        """The autoscaler may begin a rescale, soon or after its delay."""
        if _is_scaled(record.name):
            self._touch(record)
            arrivals = self.world.drivers.habits.arrivals
            arrivals[record.name] = self.chance.uniform(100.0, 7000.0)

    def _saved(self, record: Record) -> None:
        record.savepoints.append(f"s{len(record.savepoints)}")
        self.world.annotate(record.name, savepoint=record.savepoints[-1])

    def _node_lost(self) -> None:
        if not all(self.world.kubelet.nodes.values()):
            return
        name = next(iter(self.world.kubelet.nodes))
        silent = self.chance.uniform(30.0, 900.0)
        self._touch_all(silent)
        self.world.kubelet.lose_node(name)
        self._after(silent, silent, lambda: self.world.kubelet.find_node(name))

    def _store_down(self) -> None:
        seconds = self.chance.uniform(20.0, 400.0)
        self._touch_all(seconds)
        self.world.buckets.down = True
        self._after(seconds, seconds, self._store_up)

    def _store_up(self) -> None:
        self.world.buckets.down = False
        self._touch_all(0.0)

    def _clock_set(self) -> None:
        """That of all drivers: nothing comes of it."""
        self.world.drivers.habits.clock_ahead = self.chance.uniform(-7200.0, 7200.0)

    def _operators_clock_put(self) -> None:
        """To an hour later or earlier: no time has passed for all that."""
        self.world.operators_clock.put(self.chance.uniform(-3600.0, 3600.0))

    def _operator_restarted(self) -> None:
        self.world.restart_operator()

    def _operator_killed(self) -> None:
        points = self.world.points
        points.crash_at = points.count + self.chance.randrange(1, 30)
        points.crash_when = self.chance.choice(("before", "after"))

    def _api_stumbled(self) -> None:
        """One kind of request fails for a while, before or after it was carried out."""
        verb = self.chance.choice(("list", "get", "apply", "replace_status", "delete", "create"))
        seconds, when = self.chance.uniform(5.0, 300.0), self.chance.choice(("before", "after"))
        self._touch_all(seconds)
        cluster = self.world.operator.cluster
        cluster.fail(ApiUnavailable("503"), verb=verb, when=when, times=1_000_000)
        self._after(seconds, seconds, cluster.heal)

    # -- what must hold ------------------------------------------------------------------------

    def _judge(self) -> None:
        world = self.world
        running = {
            one.manifest["metadata"]["name"]
            for one in world.drivers.living
            if one.running_since and not one.cut_off and not one.standby
        }
        self._judge_hung()
        calm = world.elapsed - self._global_until > _CALM
        for record in self.records.values():
            if record.name in running or not (record.wanted or record.bad):
                continue
            record.down += STEP
            if _is_scaled(record.name):
                self._note_step(record)
            # A bad version is rolled back, or a person is told why it is not.
            patience = _CALM + (_READY if record.bad else 0.0)
            long = calm and world.elapsed - record.touched > patience
            if long and record.bad:
                long = self._condition(record, "Stable") != "RollbackBlocked"
            assert not long, self._told(record, "is down")
        if world.elapsed % HOUR < STEP:
            self._judge_slowly()

    def _judge_hung(self) -> None:
        """One that hangs is begun anew, unless that was done too often lately."""
        world = self.world
        for record in self.records.values():
            if record.hung is None:
                record.hangs_on -= bool(record.hangs_on and self._hang(record))
                continue
            # One on a node that was lost lives on, and nobody waits for it.
            if not record.hung.alive or record.hung.cut_off:
                record.hung = None
                self._touch(record)
                continue
            health = world.status(record.name).health
            since = [(world.clock.now() - one.at).total_seconds() for one in health.actions[-1:]]
            # What is done about it takes its time, too, once the budget has room again.
            acted = max((world.elapsed - seconds for seconds in since), default=0.0)
            began = max(record.hung_at, record.touched, self._global_until, acted)
            if world.elapsed - began <= _HANGS + _CALM:
                continue
            then = {one.then for one in health.findings}
            assert then == {"Withheld"}, self._told(record, "hangs")
            assert len(health.actions) == _HEALTH["budget"]["actions"]

    def _judge_version(self, record: Record) -> None:
        """What runs in the end is what was asked for last."""
        driver, status = self.world.driver(record.name), self.world.status(record.name)
        assert driver is not None
        image = driver.manifest["spec"]["image"]
        assert image == f"registry.example/clicks:{record.image}", self._told(record, "is another")
        body, scaler = self.world.object(record.name), status.scaling.autoscaler
        assert body is not None
        wanted = body["spec"]["scaling"]["parallelism"]
        if scaler is not None and scaler.target:
            wanted = scaler.target
        assert driver.parallelism == wanted, self._told(record, f"has not {wanted} subtasks")

    def _condition(self, record: Record, kind: str) -> str:
        found = self.world.status(record.name).condition(kind)
        return found.reason if found is not None else ""

    def _note_step(self, record: Record) -> None:
        """What the autoscaler decides may have a job down, as an edit may."""
        known = self.world.status(record.name).scaling.autoscaler
        step = known.step if known is not None else None
        if step is not None and step.at != record.stepped:
            record.stepped = step.at
            self.happened["autoscaled by a restart"] += 1
            self._touch(record)

    def _judge_slowly(self) -> None:
        """Once an hour, since it looks at all that ever was."""
        world = self.world
        for restored in world.drivers.restored:
            # By a savepoint as well: nobody asked for an older one.
            assert restored.epoch >= restored.newest, restored
        world.drivers.restored.clear()
        for record in self.records.values():
            self.told.update(world.events(record.name))
        world.api.expire_events(world.clock.now() - timedelta(hours=1))
        pods = {one["metadata"]["uid"] for one in world.api.list("Pod")}
        attempts = Counter(
            (one.manifest["metadata"]["name"], one.order.attempt)
            for one in world.drivers.by_pod.values()
        )
        assert max(attempts.values(), default=1) == 1, "an attempt had two drivers"
        for uid, driver in list(world.drivers.by_pod.items()):
            if uid not in pods and not driver.alive:
                del world.drivers.by_pod[uid]
        for record in self.records.values():
            starts = world.status(record.name).attempt
            number = starts.number if starts is not None else 0
            assert number <= 2 * record.touches + 40, self._told(record, f"started {number} times")

    def _told(self, record: Record, what: str) -> str:
        status = self.world.status(record.name)
        pods = [
            (one["metadata"]["name"], one.get("status", {}).get("phase"))
            for one in self.world.pods()
            if one["metadata"]["labels"].get("moorage.dev/job") == record.name
        ]
        return (
            f"{record.name} {what}: at={self.world.elapsed:.0f} {record}\n{status}\n{pods}\n"
            f"{self.world.events(record.name)[-20:]}\n{self.happened}"
        )

    def report(self) -> dict[str, Any]:
        """Figures of the time that passed."""
        hours = self.world.elapsed / HOUR
        downs = sorted(record.down for record in self.records.values())
        return {
            "hours": hours,
            "jobs": len(self.records),
            "happened": dict(self.happened),
            "down, median": downs[len(downs) // 2],
            "down, most": downs[-1],
            "operators that died": self.world.deaths,
        }


_SCALER = {
    "enabled": True,
    "dryRun": False,
    "min": 1,
    "max": 8,
    "window": "2m",
    "stabilizationInterval": "2m",
    "scaleDownDelay": "10m",
}


def _is_scaled(name: str) -> bool:
    return int(name[-3:]) % 3 == 0


def _scaling(name: str) -> dict[str, Any]:
    """Half of those with an autoscaler are changed in place."""
    found: dict[str, Any] = {"parallelism": 2, "maxParallelism": 16}
    if _is_scaled(name):
        found |= {"autoscaler": _SCALER, "mode": _MODES[int(name[-3:]) % 2]}
    return found


_HEALTH: dict[str, Any] = {
    "noProgressFor": f"{_HANGS:.0f}s",
    "budget": {"actions": 2, "window": "1h"},
}
_HANGS_ON_EACH = 5
"""One hang of so many goes on in the next drivers, until nothing is done about it any more."""

_MODES = ("InPlaceParallelism", "Restart")
_TO_A_JOB = {
    "driver_killed": 1.5,
    "driver_failed": 0.5,
    "driver_hung": 0.5,
    "executor_lost": 4.0,
    "pod_evicted": 1.0,
    "pod_deleted": 0.5,
    "upgraded": 1.0,
    "upgraded_badly": 0.5,
    "suspended": 0.5,
    "rescaled": 2.0,
    "load_changed": 3.0,
    "saved": 1.5,
}
"""How often in a day."""
_TO_ALL: dict[str, float] = {
    "node_lost": 3.0,
    "store_down": 4.0,
    "operator_restarted": 6.0,
    "operator_killed": 12.0,
    "api_stumbled": 24.0,
    "clock_set": 6.0,
    "operators_clock_put": 2.0,
}
