"""The operator is killed before and after every side effect of every operation.

The points are not picked: a first run without a death counts everything that leaves the process
(writes to the API server, requests to drivers, errands to the store), and each of them is then
fatal once before it takes effect and once after. However it dies, the job must end as it would have
ended without.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest
from moorage_testing.world import World
from moorage_testing.world.scene import CHECKPOINTS, SAVEPOINTS, job

pytestmark = [pytest.mark.scenarios, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Operation:
    """Something that is done to a job.

    Attributes:
        begin: brings the job to where it starts; not counted.
        act: what a person or fate does.
        done: what the world looks like in the end.
        drivers: how many drivers there were in all, then.
        savepoints: names of savepoints that exist, then; None for one of the operation's own.
    """

    begin: Callable[[World], Awaitable[None]]
    act: Callable[[World], object]
    done: Callable[[World], bool]
    drivers: int
    savepoints: int = 0


async def nothing(_world):
    pass


async def running(world):
    world.apply()
    await world.until(lambda: world.is_running() and world.report().last_checkpoint is not None)
    await world.run(3)


async def suspended(world):
    await running(world)
    world.edit(desiredState="Suspended")
    await world.until(lambda: world.phase() == "Suspended")


async def saved(world):
    await running(world)
    world.annotate(savepoint="past")
    await world.until(lambda: world.buckets.has_savepoint(f"{SAVEPOINTS}/past"))
    await world.run(15)


def runs_as(attempt):
    return lambda world: world.is_running() and len(world.drivers.by_pod) == attempt


def upgraded(world):
    driver = world.driver()
    return (
        world.is_running()
        and driver is not None
        and driver.manifest["spec"]["image"].endswith(":2")
        and world.status().operation is None
    )


def has_saved(world):
    found = world.snapshots().get("clicks-once")
    return bool(found) and (found.get("status") or {}).get("state") == "Completed"


def gone(world):
    return world.object() is None and not world.pods()


def kill(world):
    world.drivers.newest.fail("internal", 1)


OPERATIONS = {
    "deploy": Operation(nothing, lambda w: w.apply(), runs_as(1), 1),
    "recover": Operation(running, kill, runs_as(2), 2),
    "upgrade": Operation(
        running, lambda w: w.edit(image="registry.example/clicks:2"), upgraded, 2, 1
    ),
    "rescale": Operation(
        running,
        lambda w: w.edit(scaling__parallelism=4),
        lambda w: w.is_running() and w.status().scaling.observed_parallelism == 4,
        2,
    ),
    "suspend": Operation(
        running,
        lambda w: w.edit(desiredState="Suspended"),
        lambda w: w.phase() == "Suspended" and not w.pods("executor"),
        1,
        1,
    ),
    "resume": Operation(suspended, lambda w: w.edit(desiredState="Running"), runs_as(2), 2, 1),
    "redeploy": Operation(
        saved,
        lambda w: w.edit(restore={"mode": "Path", "path": f"{SAVEPOINTS}/past", "nonce": 1}),
        runs_as(2),
        2,
        1,
    ),
    "savepoint": Operation(running, lambda w: w.annotate(savepoint="once"), has_saved, 1, 1),
    "delete": Operation(running, lambda w: w.delete(), gone, 1, 1),
    "copy": Operation(
        suspended,
        lambda w: w.annotate(savepoint="once"),
        lambda w: has_saved(w) and w.phase() == "Suspended",
        1,
        2,
    ),
}
_LONG = {"copy": pytest.mark.soak}


async def live(operation, crash_at=None, crash_when="before"):
    """One life; the steps of the operation, and the world as it ended."""
    world = World()
    await operation.begin(world)
    world.points.count, world.points.steps = 0, []
    world.points.crash_at, world.points.crash_when = crash_at, crash_when
    operation.act(world)
    await world.until(lambda: operation.done(world), seconds=1200)
    await world.run(30)
    return list(world.points.steps), world


def judge(operation, world):
    assert operation.done(world), world.describe()
    attempts = Counter(driver.order.attempt for driver in world.drivers.by_pod.values())
    assert max(attempts.values()) == 1, f"an attempt had two drivers\n{world.describe()}"
    assert len(world.drivers.by_pod) == operation.drivers, world.describe()
    for restored in world.drivers.restored:
        explicit = restored.explicit and restored.path.endswith("/past") if restored.path else False
        assert explicit or restored.epoch == restored.newest, world.describe()
    directories = {name for name in world.buckets._names if "savepoints_clicks_" in name}
    assert len(directories) == operation.savepoints, (directories, world.describe())
    if world.object() is not None:
        assert world.buckets.completed(CHECKPOINTS) or operation.drivers == 1
        assert not world.status().blocked_reason


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.soak), "after"])
@pytest.mark.parametrize("name", [pytest.param(n, marks=_LONG.get(n, ())) for n in OPERATIONS])
async def test_a_death_at_any_step_changes_nothing_in_the_end(name, when):
    operation = OPERATIONS[name]
    steps, world = await live(operation)
    judge(operation, world)
    world.buckets.forget()
    assert len(steps) >= 3
    for number, step in enumerate(steps, 1):
        _, world = await live(operation, number, when)
        try:
            judge(operation, world)
            assert world.deaths == 1, f"nobody died at step {number}"
        except AssertionError as error:
            error.add_note(f"died {when} step {number} of {len(steps)}: {step}")
            raise
        world.buckets.forget()


async def test_the_points_of_a_deploy_are_what_one_would_expect():
    steps, world = await live(OPERATIONS["deploy"])
    told = "\n".join(steps)
    world.buckets.forget()
    for part in ("replace_status StatefulSparkJob", "Pod default/clicks-1-driver", "Secret"):
        assert part in told
    assert job()["metadata"]["name"] in told
