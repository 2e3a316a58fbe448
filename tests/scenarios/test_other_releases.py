"""An operator of another release, definitions of another release: nothing restarts for that."""

import copy

import pytest

import moorage_operator.objects
from moorage_api.changes import spec_hash

pytestmark = pytest.mark.scenarios
REVISION = "ControllerRevision"


async def later(world, seconds=90.0):
    """Another process takes over, and time passes."""
    world.restart_operator()
    await world.run(seconds)


def kept(world):
    """The one revision."""
    [found] = world.api.list(REVISION, world.namespace)
    return found


def rewrite(world, change):
    """The revision as another release would have written it."""
    old = kept(world)
    new = copy.deepcopy(old)
    change(new)
    meta = {k: new["metadata"][k] for k in ("name", "namespace", "labels", "annotations")}
    meta["ownerReferences"] = new["metadata"]["ownerReferences"]
    world.api.delete(REVISION, world.namespace, old["metadata"]["name"])
    world.api.create({**new, "metadata": meta})


def lacks_fields(revision):
    del revision["data"]["spec"]["ttlAfterFinished"]
    del revision["data"]["spec"]["failurePolicy"]


def has_another_default(revision):
    """As if a checkpoint had taken at most nine minutes where nobody said otherwise."""
    revision["data"]["spec"]["checkpoint"]["timeout"] = "9m"


def has_another_hash(revision):
    revision["metadata"]["annotations"]["moorage.dev/spec-hash"] = "0123456789" * 6


def has_no_hash(revision):
    revision["metadata"]["annotations"] = {}


def has_newer_fields(revision):
    revision["data"]["spec"]["fromTheFuture"] = {"enabled": True}
    revision["data"]["spec"]["state"]["fromTheFuture"] = 1


def nothing_else(_):
    pass


CHANGES = [
    nothing_else,
    lacks_fields,
    has_another_default,
    has_another_hash,
    has_no_hash,
    has_newer_fields,
]


@pytest.mark.scenario(76)
@pytest.mark.in_memory("it rewrites what only the API server writes")
@pytest.mark.parametrize("other_hash", [False, True], ids=["same", "other"])
@pytest.mark.parametrize("change", CHANGES)
async def test_a_revision_of_another_release_restarts_nothing(
    running, monkeypatch, change, other_hash
):
    rewrite(running, change)
    if other_hash:
        monkeypatch.setattr(moorage_operator.objects, "spec_hash", lambda s: spec_hash(s)[::-1])
    before, told = running.status(), running.events()
    await later(running)
    assert running.status().attempt.number == before.attempt.number == 1
    assert running.status().attempt.revision == before.attempt.revision
    assert running.condition("Reconciled") == "True/UpToDate"
    assert running.events() == told, "and nobody is told of anything"
    running.edit(image="registry.example/clicks:2")
    await running.until(lambda: running.status().attempt.number == 2)
    await running.until(running.is_running)
    assert running.pods()[-1]["spec"]["containers"][0]["image"].endswith(":2")


@pytest.mark.in_memory("it makes the operator hash otherwise")
async def test_an_edit_that_needs_no_restart_needs_none_under_another_hash(running, monkeypatch):
    running.edit(ttlAfterFinished="2h")
    await running.run(5)
    monkeypatch.setattr(moorage_operator.objects, "spec_hash", lambda s: spec_hash(s)[::-1])
    await later(running)
    running.edit(ttlAfterFinished="3h")
    await running.run(60)
    assert running.status().attempt.number == 1
    assert running.condition("Reconciled") == "True/UpToDate"


@pytest.mark.scenario(76)
@pytest.mark.in_memory("no definition of today would keep the field")
async def test_fields_that_only_newer_definitions_know_are_passed_over(running):
    """A default that they fill in is in every object from that moment on."""
    running.edit(fromTheFuture={"enabled": False}, state__fromTheFuture=1)
    await later(running, 60)
    assert running.condition("SpecValid").startswith("True/")
    assert running.status().attempt.number == 1
    running.snapshot("one", fromTheFuture=True)
    await running.until(
        lambda: (running.snapshots()["one"].get("status") or {}).get("state") == "Completed"
    )
    running.edit(desiredState="Suspended")
    await running.until(lambda: running.phase() == "Suspended")
