"""Definitions store another version of the API, and what is there is rewritten: no job notices.

People do it with `kubectl annotate`, as docs/upgrade.md says, and the operator is not told.
"""

from contextlib import contextmanager

import pytest
from moorage_testing.world import World
from moorage_testing.world.scene import job

pytestmark = [
    pytest.mark.scenarios,
    pytest.mark.in_memory("definitions are the whole cluster's; tests/e2e has it on one"),
]

NOW, NEXT = "v1alpha1", "v1beta1"
TWO = "registry.example/clicks:2"
JOBS = ("clicks", "idle", "held", "wrong", "refused", "new")


def shown(world, name):
    """What people see of a job, but for figures that change all the time."""
    status = world.status(name)
    said = [(one.type, one.status, one.reason, one.message) for one in status.conditions]
    told = world.events(name)
    return status.attempt.number, status.phase, status.operation, said, status.revisions, told


@pytest.fixture
async def fleet(world):
    """A job that runs, with a savepoint, and others in states that an edit would end."""
    for name in JOBS[:-1]:
        world.apply(job(name))
    await world.until(lambda: all(world.phase(name) == "Stable" for name in JOBS[:-1]))
    world.annotate(savepoint="once")
    world.edit("idle", desiredState="Suspended")
    world.annotate("held", paused="true")
    world.edit("held", image=TWO)
    world.edit("wrong", scaling__parallelism=0)
    world.drivers.habits.preflight_fails = "no"
    world.edit("refused", image=TWO, upgrade={"preflight": True})
    await world.until(lambda: world.phase("idle") == "Suspended")
    await world.until(lambda: world.condition("Reconciled", "refused") == "False/Rejected")
    world.set_quota(requests_memory="1Gi")
    world.apply(job("new"))
    await world.run(120)
    return world


@pytest.mark.scenario(87)
async def test_jobs_in_any_state_do_not_notice_that_their_objects_are_rewritten(fleet):
    before = {name: shown(fleet, name) for name in JOBS}
    drivers, saved = len(fleet.drivers.by_pod), fleet.snapshots().keys()
    fleet.store_as(NEXT)
    assert set(fleet.stored()) == {NOW}
    fleet.rewrite(NEXT)
    assert set(fleet.stored()) == {NEXT}
    await fleet.run(60)
    fleet.restart_operator()
    await fleet.run(60)
    assert {name: shown(fleet, name) for name in JOBS} == before
    assert (len(fleet.drivers.by_pod), fleet.snapshots().keys()) == (drivers, saved)
    assert set(fleet.stored()) == {NEXT}


@pytest.mark.scenario(87)
async def test_rewriting_that_was_cut_off_is_begun_again_and_leaves_nothing_out(fleet):
    fleet.store_as(NEXT)
    fleet.rewrite(NEXT, most=3)
    await fleet.run(60)
    fleet.restart_operator()
    await fleet.run(60)
    assert NOW in fleet.stored()
    fleet.rewrite(NEXT)
    assert set(fleet.stored()) == {NEXT}
    at = fleet.api.version
    fleet.rewrite(NEXT)
    assert fleet.api.version == at, "what was written is not written again"


async def upgraded(monkeypatch, number):
    """An upgrade whose object is rewritten just before its step of this number; its steps."""
    world = World()
    world.apply()
    await world.until(lambda: world.is_running() and world.report().last_checkpoint is not None)
    points, effect = world.points, world.points.effect
    points.count, points.steps = 0, []

    @contextmanager
    def rewriting(what):
        if points.count + 1 == number:
            world.store_as(NEXT)
            world.rewrite(NEXT)
        with effect(what):
            yield

    monkeypatch.setattr(points, "effect", rewriting)
    world.edit(image=TWO)
    await world.until(lambda: world.status().attempt.number == 2 and world.is_running())
    await world.run(30)
    assert world.status().operation is None
    assert len(world.drivers.by_pod) == 2, world.describe()
    assert [one.outcome for one in world.status().revisions].count("Rejected") == 0
    assert world.drivers.restored[-1].epoch == world.drivers.restored[-1].newest
    told = [(one["reason"], one["message"]) for one in world.api.list("Event")]
    assert len(set(told)) == len(told), f"something was told twice\n{world.describe()}"
    steps = list(points.steps)
    world.buckets.forget()
    return steps


@pytest.mark.scenario(87)
async def test_an_upgrade_goes_on_before_whatever_step_its_object_is_rewritten(monkeypatch):
    steps = await upgraded(monkeypatch, 0)
    assert len(steps) > 9
    for number in range(1, len(steps) + 1, 3):
        await upgraded(monkeypatch, number)
