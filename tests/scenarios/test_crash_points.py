"""The operator is killed before and after every side effect of every operation.

The points are not picked: a first run without a death counts everything that leaves the process
(writes to the API server, requests to drivers, store tasks to the store), and each of them is then
fatal once before it takes effect and once after. However it dies, the job must end as it would have
ended without.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest
from moorage_testing.world import World
from moorage_testing.world.scene import CHECKPOINTS, SAVEPOINTS, job

from moorage_api.status import OperatorView

pytestmark = [pytest.mark.scenarios, pytest.mark.timeout(900)]

ELSEWHERE = "s3://state/elsewhere"
TWO = "registry.example/clicks:2"
SHARD = "moorage.dev/shard"
STANDARD = "profile: standard\nprofiles:\n  standard: {driver: {memory: 3Gi}}\n"
WIDER = STANDARD.replace("3Gi", "4Gi")


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
    """

    begin: Callable[[World], Awaitable[None]]
    act: Callable[[World], object]
    done: Callable[[World], bool]
    drivers: int
    savepoints: int = 0
    goes_back: bool = False
    meanwhile: Callable[[World], object] = lambda _world: None
    tells: tuple[str, ...] = ()


async def nothing(_world):
    pass


async def running(world, **spec):
    world.apply(job(**spec))
    await world.until(lambda: world.is_running() and world.report().last_checkpoint is not None)
    await world.run(3)


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


async def stable(world):
    """A version that another one may be rolled back to."""
    rollback = {"enabled": True, "retractOutput": True, "stableAfter": {"duration": "5s"}}
    world.apply(job(upgrade={"rollback": rollback}, failurePolicy={"maxRestarts": 0}))
    await world.until(lambda: world.condition("Stable") == "True/Stable")
    await world.run(3)


async def published(world, **health):
    """A version on trial whose output somebody may have read."""
    await stable(world)
    if health:
        world.edit(failurePolicy={"health": health})
    slow = {"duration": "10m"}
    world.edit(image=TWO, upgrade__rollback__stableAfter=slow)
    await world.until(lambda: upgraded(world) and world.report().completed_checkpoints > 1)


async def watched(world):
    """The same, and what hangs is to be rolled back."""
    await published(world, noProgressFor="30s", actions={"noProgress": "Rollback"})


def order_back(world):
    world.annotate(rollback=world.status().reconciliation.stable_revision)


async def waiting(world):
    """An edit for which a quota has no room."""
    await running(world)
    enlarge(world)
    await world.until(lambda: held(world))


def enlarge(world):
    world.set_quota(requests_memory="1Gi")
    world.edit(driver={"memory": "12Gi"})


def take_room_back(world):
    """Others take what the quota had as soon as the old version is told to end for it.

    There is room once more when it is gone and the job waits for that. Whoever goes on from a death
    in between would hold the edit back, if what was begun for it were not written down: the old
    version would have ended for no reason.
    """
    before = next(iter(world.drivers.by_pod.values()))
    reasons = {one.reason for one in world.status().conditions}
    if before.alive and before.asked:
        world.set_quota(requests_memory="1Gi")
    elif not before.alive and "QuotaExceeded" in reasons:
        world.set_quota(requests_memory="64Gi")


def held(world):
    full = world.condition("Reconciled") == "False/QuotaExceeded"
    return world.is_running() and full and "QuotaExceeded" in world.events()


async def profiled(world):
    world.set_fleet(STANDARD)
    await running(world)


def take_profile(world):
    world.set_fleet(WIDER)
    world.annotate(restart="1")


def offered(world):
    """There is a profile that the job gets with its next restart, and people can read so."""
    shown, reconciled = world.status().profile, world.status().condition("Reconciled")
    told = reconciled is not None and "spec.driver.memory" in reconciled.message
    return world.is_running() and told and shown is not None and shown.waiting != ""


def enlarged_by_profile(world):
    driver, shown = world.driver(), world.status().profile
    taken = driver is not None and driver.manifest["spec"]["driver"]["memory"] == "4Gi"
    return upgraded(world, "") and taken and shown is not None and not shown.waiting


async def shared(world):
    """The job of one of two operators."""
    world.share("a", "b")
    world.apply(of_shard("a"))
    await world.until(lambda: world.is_running() and world.report().last_checkpoint is not None)


async def upgrading(world):
    """The old version is told to take its last savepoint, and its operator waits for that."""
    await shared(world)
    world.edit(image=TWO)
    await world.run(1)
    await world.until(lambda: world.status().operation.step == "Snapshotting")


def of_shard(name):
    body = job()
    body["metadata"]["labels"] = {SHARD: name}
    return body


def hand_over(world):
    change = {"metadata": {"labels": {SHARD: "b"}}}
    world.api.patch("StatefulSparkJob", world.namespace, "clicks", change)


def handed_over(world):
    said = world.status().operator
    mine = OperatorView(lease=f"{world.operators_namespace}/b")
    return said == mine and world.is_running() and world.status().operation is None


def unrestorable(world):
    world.drivers.habits.fail_restore = "restore_point_incompatible"
    world.drivers.habits.fail_restore_of = TWO
    world.edit(image=TWO)


def unfit(world):
    world.drivers.habits.preflight_fails = "no"
    world.edit(image=TWO, upgrade={"preflight": True})


def unfit_beside(world):
    world.drivers.habits.standby_fails = "no"
    beside(world)


def beside(world):
    world.edit(image=TWO, upgrade={"strategy": "WarmStandby", "standby": {"observeFor": "5s"}})


def unwanted(world):
    world.api.admission = lambda body: "no" if body["kind"] == "Pod" else ""
    world.edit(image=TWO, upgrade={"preflight": True})


def given_up(outcome):
    """The version is not what runs, and is not tried again; what runs is the one before."""

    def look(world):
        status, driver = world.status(), world.driver()
        rejected = world.condition("Reconciled") == "False/Rejected"
        told = [
            one.outcome for one in status.revisions if one.outcome in ("Rejected", "RolledBack")
        ]
        old = driver is not None and driver.manifest["spec"]["image"] != TWO
        return world.is_running() and rejected and old and told == [outcome]

    return look


def runs_as(attempt):
    return lambda world: world.is_running() and len(world.drivers.by_pod) == attempt


def upgraded(world, image=TWO):
    driver = world.driver()
    return (
        world.is_running()
        and driver is not None
        and driver.manifest["spec"]["image"].endswith(image)
        and world.status().operation is None
    )


async def autoscaled(world, mode="InPlaceParallelism"):
    world.drivers.habits.arrivals["clicks"] = 1000.0
    scaler = {"enabled": True, "dryRun": False, "min": 1, "max": 8, "window": "60s"}
    width = {"parallelism": 2, "maxParallelism": 16, "mode": mode}
    world.apply(job(scaling={**width, "autoscaler": scaler}))
    await world.until(lambda: world.phase() == "Stable")
    await world.run(100)


async def bounded(world):
    """Subtasks more would need an executor for which a quota has no room."""
    await autoscaled(world)
    world.set_quota(pods="2", used="2")


async def crowded(world):
    """Such an executor would find no node."""
    await autoscaled(world, "Restart")
    world.kubelet.room_for = 2


def as_narrow_as_before(world):
    status = world.status()
    known, done = status.scaling.autoscaler, status.operation is None
    given_back = known is not None and known.target == 2 and known.no_room_until is not None
    narrow = world.is_running() and status.scaling.observed_parallelism == 2
    return narrow and done and given_back


def overload(world):
    world.drivers.habits.arrivals["clicks"] = 2500.0


def wider_by_itself(world):
    status = world.status()
    done = world.is_running() and status.operation is None
    return done and status.scaling.observed_parallelism == 4


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


def kill(world):
    world.drivers.newest.fail("internal", 1)


async def hanging(world):
    """What hangs is begun anew once, and no second time."""
    world.apply(job(failurePolicy={"health": {"noProgressFor": "30s", "budget": {"actions": 1}}}))
    await world.until(lambda: world.is_running() and world.report().last_checkpoint is not None)


def hang(world):
    world.drivers.newest.hung = True


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


def has_four(world):
    """Subtasks, of a job that runs."""
    return world.is_running() and world.status().scaling.observed_parallelism == 4


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
    "standby that fails": Operation(running, unfit_beside, given_up("Rejected"), 2),
    "preflight that fails": Operation(running, unfit, given_up("Rejected"), 1),
    "pods that are refused": Operation(running, unwanted, given_up("Rejected"), 1),
    "rollback": Operation(stable, unrestorable, given_up("RolledBack"), 3, 1),
    "retract": Operation(published, kill, given_up("RolledBack"), 3, 1, goes_back=True),
    "rollback by order": Operation(
        published, order_back, given_up("RolledBack"), 3, 1, goes_back=True
    ),
    "rollback of what hangs": Operation(
        watched, hang, given_up("RolledBack"), 3, 1, goes_back=True
    ),
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
    "autoscale": Operation(autoscaled, overload, wider_by_itself, 1),
    "a step that a quota refuses": Operation(
        bounded, overload, as_narrow_as_before, 1, tells=("AutoscalerHindered",)
    ),
    "a step back": Operation(crowded, overload, as_narrow_as_before, 3),
    "quota without room": Operation(running, enlarge, held, 1),
    "quota that grows": Operation(
        waiting,
        lambda w: w.set_quota(requests_memory="64Gi"),
        lambda w: runs_as(2)(w) and w.status().operation is None and not w.status().restarts.total,
        2,
        1,
        meanwhile=take_room_back,
    ),
    "profile": Operation(
        running, lambda w: w.set_fleet(STANDARD), offered, 1, tells=("ProfileWaits",)
    ),
    "profile that is taken": Operation(profiled, take_profile, enlarged_by_profile, 2, 1),
    "hand over": Operation(shared, hand_over, handed_over, 1),
    "hand over an upgrade": Operation(
        upgrading, hand_over, lambda w: handed_over(w) and upgraded(w), 2, 1
    ),
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
    "hang": Operation(hanging, hang, runs_as(2), 2),
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
    "retract",
    "rollback of what hangs",
    "a step back",
    "quota that grows",
    "pods that are refused",
    "checkpoint",
    "restart",
    "lose the node",
    "move",
    "copy",
)
_FEW = 6
"""Steps, each of which may be fatal in any sweep."""
_LONG = dict.fromkeys(_SOAKED, pytest.mark.soak)


async def live(operation, crash_at=None, crash_when="before"):
    """One life; the steps of the operation, and the world as it ended."""
    world = World()
    await operation.begin(world)
    world.points.count, world.points.steps = 0, []
    world.points.crash_at, world.points.crash_when = crash_at, crash_when
    operation.act(world)

    def over():
        operation.meanwhile(world)
        return operation.done(world)

    await world.until(over, seconds=1200)
    await world.run(30)
    return list(world.points.steps), world


def judge(operation, world):
    assert operation.done(world), world.describe()
    attempts = Counter(driver.order.attempt for driver in world.drivers.by_pod.values())
    assert max(attempts.values()) == 1, f"an attempt had two drivers\n{world.describe()}"
    assert len(world.drivers.by_pod) == operation.drivers, world.describe()
    told = Counter((event["reason"], event["message"]) for event in world.api.list("Event"))
    assert max(told.values()) == 1, f"something was told twice\n{world.describe()}"
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


async def sweep(name, when, every=1):
    """Lives of the operation, each with a death at another of its steps."""
    operation = OPERATIONS[name]
    steps, world = await live(operation)
    judge(operation, world)
    world.buckets.forget()
    assert len(steps) >= 2
    every = 1 if len(steps) <= _FEW else every
    # Those of several operations that are alike are not left out in all of them.
    index = list(OPERATIONS).index(name)
    for number in range(1 + index % min(every, len(steps)), len(steps) + 1, every):
        _, world = await live(operation, number, when)
        try:
            judge(operation, world)
            assert world.deaths == 1, f"nobody died at step {number}"
        except AssertionError as error:
            error.add_note(f"died {when} step {number} of {len(steps)}: {steps[number - 1]}")
            raise
        world.buckets.forget()


@pytest.mark.scenario(75)
@pytest.mark.parametrize("name", [pytest.param(n, marks=_LONG.get(n, ())) for n in OPERATIONS])
async def test_a_death_at_every_third_step_changes_nothing_in_the_end(name):
    await sweep(name, "after", every=3)


@pytest.mark.scenario(75)
@pytest.mark.soak
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", OPERATIONS)
async def test_a_death_at_any_step_changes_nothing_in_the_end(name, when):
    await sweep(name, when)


async def test_the_points_of_a_deploy_are_what_one_would_expect():
    steps, world = await live(OPERATIONS["deploy"])
    told = "\n".join(steps)
    world.buckets.forget()
    for part in ("replace_status StatefulSparkJob", "Pod default/clicks-1-driver", "Secret"):
        assert part in told
    assert job()["metadata"]["name"] in told
