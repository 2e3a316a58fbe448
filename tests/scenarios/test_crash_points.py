"""The operator is killed before and after every side effect of every operation.

Those of versions that are tried, given up or taken back, of fleets and of what else is done without
a person are in `test_crash_points_of_day_two.py`.
"""

import pytest
from moorage_testing.crash_sweep import (
    TWO,
    Operation,
    beside,
    has_four,
    kill,
    live,
    running,
    runs_as,
    sweep,
    upgraded,
)
from moorage_testing.world.scene import CHECKPOINTS, SAVEPOINTS, job

pytestmark = [pytest.mark.scenarios, pytest.mark.timeout(900)]

ELSEWHERE = "s3://state/elsewhere"


async def nothing(_world):
    pass


async def on_claims(world, **local):
    """On volumes that the next executors may have: they are no new ones."""
    named = {"type": "ReusedPVC", "size": "1Gi", "storageClassName": "fast"} | local
    directories = {"checkpointDir": CHECKPOINTS, "savepointDir": SAVEPOINTS}
    await running(world, state={**directories, "local": named})
    await world.run(70)


def has_claims(number, *made_by):
    """So many drivers there were, and these executors' claims are the job's, for the last one."""

    def look(world):
        found = {
            one["metadata"]["name"].partition("-pvc-")[0]: (
                one["metadata"]["ownerReferences"][0]["kind"],
                one["metadata"]["labels"].get("spark-app-selector", "").rpartition("-")[2],
            )
            for one in world.api.list("PersistentVolumeClaim")
        }
        wanted = dict.fromkeys(made_by, ("StatefulSparkJob", str(number)))
        quiet = runs_as(number)(world) and world.status().operation is None
        return quiet and found == wanted

    return look


async def rescaled_by_restarts(world):
    await running(world, scaling={"parallelism": 2, "maxParallelism": 16, "mode": "Restart"})


async def suspended(world):
    await running(world)
    world.edit(desiredState="Suspended")
    await world.until(lambda: world.phase() == "Suspended")


async def saved(world):
    await running(world)
    world.annotate(savepoint="past")
    await world.until(lambda: world.buckets.has_savepoint(f"{SAVEPOINTS}/past"))
    await world.run(15)


async def disposable(world):
    """Saved, and the person who asked for it wants it gone with its data."""
    await saved(world)
    change = {"spec": {"deletionPolicy": "Delete"}}
    world.api.patch("StatefulSparkSnapshot", world.namespace, "clicks-past", change)
    await world.run(15)


def has_saved(world):
    found = world.snapshots().get("clicks-once")
    return bool(found) and (found.get("status") or {}).get("state") == "Completed"


def gone(world):
    return world.object() is None and not world.pods()


def is_left(world):
    """The savepoint with which it was stopped stays, whoever deletes its object."""
    return [one["spec"]["deletionPolicy"] for one in world.snapshots().values()] == ["Retain"]


def store_as_beta(world):
    """Definitions store another version from now on, and an upgrade begins."""
    world.store_as("v1beta1")
    world.edit(image=TWO)


def rewrite(world):
    """While the old version takes its last savepoint, and once more when the new one runs."""
    operation = world.status().operation
    if (operation is not None and operation.step == "Snapshotting") or upgraded(world):
        world.rewrite("v1beta1")


def rewritten(world):
    return upgraded(world) and set(world.stored()) == {"v1beta1"}


def finish(world):
    world.drivers.habits.finish_at = world.drivers.newest.epoch + 3


def move(world):
    world.edit(
        state__checkpointDir=ELSEWHERE,
        restore={"mode": "Path", "path": f"{SAVEPOINTS}/past", "nonce": 1},
    )


def moved(world):
    status = world.status()
    there = world.is_running() and world.buckets.completed(ELSEWHERE)
    return bool(there) and not status.leaving and status.operation is None


def wider(world):
    status = world.status()
    return world.is_running() and status.executors.ready == 3 and status.operation is None


def checked(world):
    found = world.snapshots().get("clicks-checkpoint-once", {})
    return (found.get("status") or {}).get("state") == "Completed"


def discarded(world):
    return not world.snapshots() and not world.buckets.has_savepoint(f"{SAVEPOINTS}/past")


OPERATIONS = {
    "deploy": Operation(nothing, lambda w: w.apply(), runs_as(1), 1),
    "recover": Operation(running, kill, runs_as(2), 2),
    "upgrade": Operation(
        running,
        lambda w: w.edit(image=TWO, upgrade={"preflight": True}),
        upgraded,
        2,
        1,
    ),
    "take over": Operation(running, beside, upgraded, 2),
    "upgrade of what is rewritten": Operation(
        running, store_as_beta, rewritten, 2, 1, meanwhile=rewrite
    ),
    "recover on claims": Operation(on_claims, kill, has_claims(2, "clicks-1-exec-1"), 2),
    "upgrade to larger claims": Operation(
        on_claims,
        lambda w: w.edit(state__local__size="2Gi"),
        has_claims(2, "clicks-2-exec-1"),
        2,
        1,
    ),
    "take over with claims": Operation(on_claims, beside, has_claims(2, "clicks-2-exec-1"), 2),
    "rescale": Operation(
        rescaled_by_restarts, lambda w: w.edit(scaling__parallelism=4), has_four, 2
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
    "delete what is suspended": Operation(
        suspended, lambda w: w.delete(), lambda w: gone(w) and is_left(w), 1, 1
    ),
    "rescale in place": Operation(running, lambda w: w.edit(executor__instances=3), wider, 1),
    "subtasks in place": Operation(running, lambda w: w.edit(scaling__parallelism=4), has_four, 1),
    "discard": Operation(
        disposable,
        lambda w: w.api.delete("StatefulSparkSnapshot", w.namespace, "clicks-past"),
        discarded,
        1,
        1,
    ),
    "checkpoint": Operation(running, lambda w: w.annotate(checkpoint="once"), checked, 1),
    "restart": Operation(
        running,
        lambda w: w.annotate(restart="1"),
        lambda w: runs_as(2)(w) and w.status().operation is None,
        2,
        1,
    ),
    "finish": Operation(running, finish, lambda w: w.phase() == "Finished", 1),
    "lose the node": Operation(running, lambda w: w.kubelet.lose_node(), runs_as(2), 2),
    "move": Operation(saved, move, moved, 2, 1),
    "copy": Operation(
        suspended,
        lambda w: w.annotate(savepoint="once"),
        lambda w: has_saved(w) and w.phase() == "Suspended",
        1,
        2,
    ),
}
_SOAKED = (
    "upgrade to larger claims",
    "take over with claims",
    "checkpoint",
    "restart",
    "lose the node",
    "move",
    "copy",
)
_LONG = dict.fromkeys(_SOAKED, pytest.mark.soak)


@pytest.mark.scenario(75)
@pytest.mark.parametrize("name", [pytest.param(n, marks=_LONG.get(n, ())) for n in OPERATIONS])
async def test_a_death_at_every_third_step_changes_nothing_in_the_end(name):
    await sweep(OPERATIONS[name], "after", every=3, first=list(OPERATIONS).index(name))


@pytest.mark.scenario(75)
@pytest.mark.soak
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", OPERATIONS)
async def test_a_death_at_any_step_changes_nothing_in_the_end(name, when):
    await sweep(OPERATIONS[name], when)


async def test_the_points_of_a_deploy_are_what_one_would_expect():
    steps, world = await live(OPERATIONS["deploy"])
    told = "\n".join(steps)
    world.buckets.forget()
    for part in ("replace_status StatefulSparkJob", "Pod default/clicks-1-driver", "Secret"):
        assert part in told
    assert job()["metadata"]["name"] in told
