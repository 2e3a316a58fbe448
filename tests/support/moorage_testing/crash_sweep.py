"""The operator dies at each step of something that is done to a job, and nothing is different.

The points are not picked: a first life without a death counts everything that leaves the process
(writes to the API server, requests to drivers, store tasks to the store), and each of them is then
fatal, once before it takes effect or once after. However it dies, the job must end as it would have
ended without.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from moorage_testing.world import World
from moorage_testing.world.scene import CHECKPOINTS, job

__all__ = [
    "TWO",
    "Operation",
    "beside",
    "given_up",
    "has_four",
    "kill",
    "live",
    "published",
    "running",
    "runs_as",
    "stable",
    "sweep",
    "upgraded",
]

TWO = "registry.example/clicks:2"
_FEW = 6
"""Steps, each of which may be fatal in any sweep."""


@dataclass(frozen=True)
class Operation:
    """Something that is done to a job.

    Attributes:
        begin: brings the job to where it starts; not counted.
        act: what a person or fate does.
        done: what the world looks like in the end.
        drivers: how many drivers there were in all, then.
        savepoints: how many directories of savepoints were ever written to, then.
        goes_back: whether a start may begin before the newest checkpoint.
        meanwhile: what else happens until then; looked at again and again.
        tells: reasons of events that nobody must miss.
        again: of those that are told more than once, in the same words: it happens more than once.
    """

    begin: Callable[[World], Awaitable[None]]
    act: Callable[[World], object]
    done: Callable[[World], bool]
    drivers: int
    savepoints: int = 0
    goes_back: bool = False
    meanwhile: Callable[[World], object] = lambda _world: None
    tells: tuple[str, ...] = ()
    again: tuple[str, ...] = ()


async def live(
    operation: Operation, crash_at: int | None = None, crash_when: str = "before"
) -> tuple[list[str], World]:
    """One life; the steps of the operation, and the world as it ended."""
    world = World()
    await operation.begin(world)
    world.points.count, world.points.steps = 0, []
    world.points.crash_at, world.points.crash_when = crash_at, crash_when
    operation.act(world)

    def over() -> bool:
        operation.meanwhile(world)
        return operation.done(world)

    await world.until(over, seconds=1200)
    await world.run(30)
    return list(world.points.steps), world


def _judge(operation: Operation, world: World) -> None:
    assert operation.done(world), world.describe()
    attempts = Counter(driver.order.attempt for driver in world.drivers.by_pod.values())
    assert max(attempts.values()) == 1, f"an attempt had two drivers\n{world.describe()}"
    assert len(world.drivers.by_pod) == operation.drivers, world.describe()
    told = Counter((event["reason"], event["message"]) for event in world.api.list("Event"))
    twice = {reason for (reason, _), often in told.items() if often > 1} - set(operation.again)
    assert not twice, f"{twice} was told twice\n{world.describe()}"
    missed = set(operation.tells) - {reason for reason, _ in told}
    assert not missed, f"nobody was told of {missed}\n{world.describe()}"
    for restored in world.drivers.restored:
        path = restored.path or ""
        explicit = restored.explicit and (path.endswith("/past") or operation.goes_back)
        assert explicit or restored.epoch == restored.newest, world.describe()
    directories = {name for name in world.buckets._names if "savepoints_clicks_" in name}
    assert len(directories) == operation.savepoints, (directories, world.describe())
    if world.object() is not None:
        assert world.buckets.completed(CHECKPOINTS) or operation.drivers == 1
        assert not world.status().blocked_reason


async def sweep(operation: Operation, when: str, every: int = 1, first: int = 0) -> None:
    """Lives of the operation, each with a death at another of its steps.

    Args:
        when: whether the step still takes effect: "before" or "after".
        every: one of so many steps is fatal; of few steps each.
        first: which of these; operations that are alike should not leave out the same.
    """
    steps, world = await live(operation)
    _judge(operation, world)
    world.buckets.forget()
    assert len(steps) >= 2
    every = 1 if len(steps) <= _FEW else every
    for number in range(1 + first % min(every, len(steps)), len(steps) + 1, every):
        _, world = await live(operation, number, when)
        try:
            _judge(operation, world)
            assert world.deaths == 1, f"nobody died at step {number}"
        except AssertionError as error:
            error.add_note(f"died {when} step {number} of {len(steps)}: {steps[number - 1]}")
            raise
        world.buckets.forget()


# -- what several operations begin with, do, and end with


async def running(world: World, **spec: Any) -> None:
    """A job that runs and has completed a checkpoint."""
    world.apply(job(**spec))
    await world.until(lambda: world.is_running() and world.report().last_checkpoint is not None)
    await world.run(3)


async def stable(world: World) -> None:
    """A version that another one may be rolled back to."""
    rollback = {"enabled": True, "retractOutput": True, "stableAfter": {"duration": "5s"}}
    world.apply(job(upgrade={"rollback": rollback}, failurePolicy={"maxRestarts": 0}))
    await world.until(lambda: world.condition("Stable") == "True/Stable")
    await world.run(3)


async def published(world: World, **health: Any) -> None:
    """A version on trial whose output somebody may have read."""
    await stable(world)
    if health:
        world.edit(failurePolicy={"health": health})
    slow = {"duration": "10m"}
    world.edit(image=TWO, upgrade__rollback__stableAfter=slow)
    await world.until(lambda: upgraded(world) and world.report().completed_checkpoints > 1)


def beside(world: World) -> None:
    """Another version is to run beside the one that runs, and to take over."""
    world.edit(image=TWO, upgrade={"strategy": "WarmStandby", "standby": {"observeFor": "5s"}})


def given_up(outcome: str) -> Callable[[World], bool]:
    """The version is not what runs, and is not tried again; what runs is the one before."""

    def look(world: World) -> bool:
        status, driver = world.status(), world.driver()
        rejected = world.condition("Reconciled") == "False/Rejected"
        told = [
            one.outcome for one in status.revisions if one.outcome in ("Rejected", "RolledBack")
        ]
        old = driver is not None and driver.manifest["spec"]["image"] != TWO
        return world.is_running() and rejected and old and told == [outcome]

    return look


def kill(world: World) -> None:
    """The driver fails."""
    world.drivers.newest.fail("internal", 1)


def has_four(world: World) -> bool:
    """Subtasks, of a job that runs."""
    return world.is_running() and world.status().scaling.observed_parallelism == 4


def runs_as(attempt: int) -> Callable[[World], bool]:
    """It runs, and so many drivers there were."""
    return lambda world: world.is_running() and len(world.drivers.by_pod) == attempt


def upgraded(world: World, image: str = TWO) -> bool:
    """The version with this image runs, and nothing is under way."""
    driver = world.driver()
    return (
        world.is_running()
        and driver is not None
        and driver.manifest["spec"]["image"].endswith(image)
        and world.status().operation is None
    )
