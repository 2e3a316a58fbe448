"""The operator is killed in operations of versions that are tried, of fleets, and in its own.

Versions beside others and their ends, rollbacks, quotas, profiles, shards, the autoscaler, health.
"""

import pytest
from moorage_testing.crash_sweep import (
    TWO,
    Operation,
    beside,
    given_up,
    has_four,
    kill,
    published,
    running,
    runs_as,
    stable,
    sweep,
    upgraded,
)
from moorage_testing.world.scene import job

from moorage_api.status import OperatorView

pytestmark = [pytest.mark.scenarios, pytest.mark.timeout(900)]

ONE = job()["spec"]["image"]
SHARD = "moorage.dev/shard"
STANDARD = "profile: standard\nprofiles:\n  standard: {driver: {memory: 3Gi}}\n"
WIDER = STANDARD.replace("3Gi", "4Gi")
PATIENT = "profile: patient\nprofiles:\n  patient: {ttlAfterFinished: 3h}\n"


def unfit(world):
    world.drivers.habits.preflight_fails = "no"
    world.edit(image=TWO, upgrade={"preflight": True})


def unwanted(world):
    world.api.admission = lambda body: "no" if body["kind"] == "Pod" else ""
    world.edit(image=TWO, upgrade={"preflight": True})


def unfit_beside(world):
    world.drivers.habits.standby_fails = "no"
    beside(world)


def worse_beside(world):
    """It runs on, and is worse than the old one."""
    world.drivers.habits.standby_bytes = 3 << 30
    beside(world)


def without_room(world):
    """A quota has none for a version beside the one that runs."""
    world.set_quota(pods="3", used="2")
    beside(world)


def get_room(world):
    if world.condition("Reconciled") == "False/QuotaExceeded":
        world.set_quota(pods="8", used="2")


def taken_back(world):
    """The edit is, once the new version runs beside the old one."""
    if is_beside(world):
        world.edit(image=ONE)


def ask_meanwhile(world):
    """For another parallelism, while the new version runs beside the old one."""
    if is_beside(world):
        world.edit(scaling__parallelism=4)


def is_beside(world):
    trying = world.condition("Reconciled") == "False/Standby"
    return trying and any(one.standby for one in world.drivers.living)


def as_before(world):
    """The old version runs, alone, and is what the job is to be."""
    quiet = upgraded(world, ONE) and world.condition("Reconciled") == "True/UpToDate"
    return quiet and len(world.drivers.by_pod) == 2 and len(world.drivers.living) == 1


async def refused(world):
    await running(world)
    unfit(world)
    await world.until(lambda: given_up("Rejected")(world))


def unrestorable(world):
    world.drivers.habits.fail_restore = "restore_point_incompatible"
    world.drivers.habits.fail_restore_of = TWO
    world.edit(image=TWO)


async def watched(world):
    """The same, and what hangs is to be rolled back."""
    await published(world, noProgressFor="30s", actions={"noProgress": "Rollback"})


def order_back(world):
    world.annotate(rollback=world.status().reconciliation.stable_revision)


async def outrun(world):
    """The same, its output stays, which is its readers', and more rows come than it takes."""
    await published(world)
    world.edit(upgrade__rollback__retractOutput=False)
    world.drivers.habits.arrivals["clicks"], world.drivers.habits.each = 1000.0, 100.0
    await world.run(100)


def end_its_time(world):
    soon = {"stableAfter": {"duration": "30s"}, "readinessTimeout": "30s"}
    world.edit(upgrade__rollback=soon)


def asks_a_person(world):
    return upgraded(world) and world.condition("Stable") == "False/RollbackBlocked"


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


def keeps_longer(world):
    shown = world.status().profile
    taken = shown is not None and not shown.waiting and shown.values == {"ttlAfterFinished": "3h"}
    return world.is_running() and taken and world.condition("Reconciled") == "True/UpToDate"


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


async def trying(world):
    """The new version runs beside the old one, of an operator that waits for it."""
    await shared(world)
    beside(world)
    await world.until(lambda: is_beside(world))


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


async def hanging(world):
    """What hangs is begun anew once, and no second time."""
    world.apply(job(failurePolicy={"health": {"noProgressFor": "30s", "budget": {"actions": 1}}}))
    await world.until(lambda: world.is_running() and world.report().last_checkpoint is not None)


async def hung_once(world):
    """It was begun anew, and its budget is spent."""
    await hanging(world)
    hang(world)
    await world.until(lambda: runs_as(2)(world) and world.report().last_checkpoint is not None)


def hang(world):
    world.drivers.newest.hung = True


def let_be(world):
    return world.condition("Degraded") == "True/NoProgress" and len(world.drivers.living) == 1


def hold_evictions_up(world):
    world.edit(failurePolicy={"disruptionBudget": {"driver": True, "executorsAtOnce": 1}})


def has_budget(world):
    return world.is_running() and bool(world.api.list("PodDisruptionBudget"))


OPERATIONS = {
    "preflight that fails": Operation(running, unfit, given_up("Rejected"), 1),
    "pods that are refused": Operation(running, unwanted, given_up("Rejected"), 1),
    "standby that fails": Operation(running, unfit_beside, given_up("Rejected"), 2),
    "standby that is worse": Operation(running, worse_beside, given_up("Rejected"), 2),
    "standby without room": Operation(
        running, without_room, upgraded, 2, meanwhile=get_room, tells=("QuotaExceeded",)
    ),
    "standby that is taken back": Operation(running, beside, as_before, 2, meanwhile=taken_back),
    "parallelism meanwhile": Operation(
        running,
        beside,
        lambda w: upgraded(w) and has_four(w),
        2,
        meanwhile=ask_meanwhile,
        tells=("RescaleHeld",),
        again=("SpecChanged",),
    ),
    "parallelism of what was given up": Operation(
        refused,
        lambda w: w.edit(scaling__parallelism=4),
        lambda w: given_up("Rejected")(w) and has_four(w) and w.status().operation is None,
        1,
    ),
    "rollback": Operation(stable, unrestorable, given_up("RolledBack"), 3, 1),
    "retract": Operation(published, kill, given_up("RolledBack"), 3, 1, goes_back=True),
    "rollback by order": Operation(
        published, order_back, given_up("RolledBack"), 3, 1, goes_back=True
    ),
    "rollback of what hangs": Operation(
        watched, hang, given_up("RolledBack"), 3, 1, goes_back=True
    ),
    "rollback that a person decides on": Operation(
        outrun, end_its_time, asks_a_person, 2, 1, tells=("RollbackBlocked",)
    ),
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
    "profile that needs no restart": Operation(
        running, lambda w: w.set_fleet(PATIENT), keeps_longer, 1
    ),
    "hand over": Operation(shared, hand_over, handed_over, 1),
    "hand over an upgrade": Operation(
        upgrading, hand_over, lambda w: handed_over(w) and upgraded(w), 2, 1
    ),
    "hand over a standby": Operation(
        trying, hand_over, lambda w: handed_over(w) and upgraded(w), 2
    ),
    "autoscale": Operation(autoscaled, overload, wider_by_itself, 1),
    "a step that a quota refuses": Operation(
        bounded, overload, as_narrow_as_before, 1, tells=("AutoscalerHindered",)
    ),
    "a step back": Operation(crowded, overload, as_narrow_as_before, 3),
    "hang": Operation(hanging, hang, runs_as(2), 2),
    "hang beyond the budget": Operation(
        hung_once,
        hang,
        let_be,
        2,
        tells=("NoProgress", "HealthActionWithheld"),
        again=("NoProgress",),
    ),
    "budget of disruptions": Operation(running, hold_evictions_up, has_budget, 1),
}
_RARELY = ("rollback of what hangs", "a step back")
"""They have many steps."""
_SOAKED = ("retract", "quota that grows", "pods that are refused")
_LONG = dict.fromkeys(_SOAKED, pytest.mark.soak)


@pytest.mark.scenario(75)
@pytest.mark.parametrize("name", [pytest.param(n, marks=_LONG.get(n, ())) for n in OPERATIONS])
async def test_a_death_at_every_few_steps_changes_nothing_in_the_end(name):
    every = 9 if name in _RARELY else 3
    await sweep(OPERATIONS[name], "after", every, first=list(OPERATIONS).index(name))


@pytest.mark.scenario(75)
@pytest.mark.soak
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", OPERATIONS)
async def test_a_death_at_any_step_changes_nothing_in_the_end(name, when):
    await sweep(OPERATIONS[name], when)
