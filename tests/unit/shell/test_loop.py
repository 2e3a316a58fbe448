"""One pass: what is persisted, acted on and told, in which order, and when it goes wrong."""

from datetime import UTC, datetime

import pytest
from moorage_testing.kube import MemoryCluster, OperatorKilled

from moorage_api.driver import StartOrder
from moorage_api.status import Condition, JobStatus, read_status
from moorage_operator import memory
from moorage_operator.decide import decide_job
from moorage_operator.plan import (
    DeleteObject,
    DeletePod,
    Event,
    KeepSnapshot,
    Plan,
    SaveRevision,
    SetFinalizer,
    SnapshotPlan,
    StartDriver,
)
from moorage_operator.ports import ApiUnavailable, Conflict, Forbidden, Invalid, Ref

CLICKS = Ref("StatefulSparkJob", "here", "clicks")


def phase(world, value, **plan):
    return Plan(world.status.model_copy(update={"phase": value}), **plan)


def started(world):
    """A decision that takes a job from nothing to a driver, in the order of real ones."""
    status, attempt = world.status, world.status.attempt
    if "moorage.dev/operator" not in world.meta.finalizers:
        return Plan(status, (SetFinalizer(present=True),))
    if attempt.number == 0:
        new = attempt.model_copy(update={"number": 1, "revision": "clicks-1"})
        status = status.model_copy(update={"attempt": new, "phase": "Deploying"})
    order = StartOrder(attempt=1, cluster_id="test", job_uid=world.meta.uid)
    there = any(pod.attempt == 1 for pod in world.drivers)
    effects = (SaveRevision("clicks-1", 1, world.spec_hash), StartDriver("clicks-1", order))
    told = Event("Normal", "Submitted", "driver 1", key="1")
    return Plan(status, () if there else effects, () if there else (told,))


# -- the order of things ---------------------------------------------------------------------------


async def test_intent_is_written_before_the_effect(shell):
    shell.make_job()
    shell.decide = started
    await shell.settle()
    verbs = [(call.verb, call.kind) for call in shell.cluster.effects]
    assert verbs.index(("replace_status", "StatefulSparkJob")) < verbs.index(("create", "Pod"))
    assert shell.api.get("Pod", "here", "clicks-1-driver") is not None
    assert shell.events() == ["Submitted"]


async def test_a_pass_that_changes_nothing_writes_nothing(shell):
    shell.make_job()
    shell.decide = started
    await shell.settle()
    before = len(shell.cluster.effects)
    done = await shell.reconcile()
    assert not done.changed
    assert len(shell.cluster.effects) == before


async def test_an_object_that_is_gone_is_forgotten(shell):
    done = await shell.reconcile()
    assert (done.changed, done.again_after) == (False, None)


async def test_passes_that_never_end_are_told_as_such(shell):
    shell.make_job()
    shell.decide = lambda world: phase(world, "A" if world.status.phase != "A" else "B")
    with pytest.raises(RuntimeError, match="no end of passes"):
        await shell.settle()


async def test_a_follower_reads_and_writes_nothing(shell):
    shell.make_job()
    shell.leads = False
    await shell.reconcile()
    assert not shell.cluster.journal


async def test_leadership_lost_between_effects_ends_the_pass(shell):
    shell.make_job()
    pods = [shell.make_pod(n) for n in (1, 2)]

    def decide(world):
        found = [DeletePod(pod["metadata"]["name"], pod["metadata"]["uid"]) for pod in pods]
        return Plan(world.status, tuple(found))

    def lose(_event, found):
        if found["kind"] == "Pod":
            shell.leads = False

    shell.decide = decide
    shell.cluster.watch(lose)
    done = await shell.reconcile()
    assert "does not lead" in done.problem
    assert [pod["metadata"].get("deletionTimestamp") is None for pod in shell.api.list("Pod")] == [
        False,
        True,
    ]


# -- two writers -----------------------------------------------------------------------------------


async def test_an_edit_in_mid_pass_makes_the_pass_begin_anew(shell):
    shell.make_job()
    edits = iter([{"spec": {"bounded": True}}])

    def decide(world):
        for edit in edits:
            shell.api.patch("StatefulSparkJob", "here", "clicks", edit)
        return phase(world, "Running")

    shell.decide = decide
    done = await shell.reconcile()
    assert done.changed
    assert [world.spec.bounded for world in shell.worlds] == [False, True]
    assert shell.status()["phase"] == "Running"


async def test_edits_that_never_stop_do_not_hold_the_pass_for_ever(shell):
    shell.make_job()
    count = iter(range(1000))

    def decide(world):
        note = {"metadata": {"annotations": {"n": str(next(count))}}}
        shell.api.patch("StatefulSparkJob", "here", "clicks", note)
        return phase(world, "Running")

    shell.decide = decide
    done = await shell.reconcile()
    assert done.changed
    assert len(shell.worlds) < 10


async def test_a_foreign_status_ends_the_pass_without_effects_and_is_told(shell):
    shell.make_job()
    pod = shell.make_pod(1)["metadata"]

    def decide(world):
        shell.api.set_status("StatefulSparkJob", "here", "clicks", phase="Foreign")
        return phase(world, "Running", effects=(DeletePod(pod["name"], pod["uid"]),))

    shell.decide = decide
    done = await shell.reconcile()
    assert not done.changed
    assert shell.status()["phase"] == "Foreign"
    assert shell.events() == ["StatusConflict"]
    assert "deletionTimestamp" not in shell.api.get("Pod", "here", "clicks-1-driver")["metadata"]


async def test_a_deposed_operator_writes_nothing_over_the_new_ones_status(shell):
    shell.make_job()
    shell.decide = lambda world: phase(world, "Running")
    other = shell.another(MemoryCluster(shell.api))
    steps = iter(["Deploying"])

    def decide(world):
        for step in steps:
            shell.api.set_status("StatefulSparkJob", "here", "clicks", phase=step)
        return phase(world, "Running")

    shell.decide = decide
    await shell.reconcile()
    assert shell.status()["phase"] == "Deploying"
    await other.settle(CLICKS)
    assert shell.status()["phase"] == "Running"


async def test_an_object_made_anew_under_the_name_is_not_written(shell):
    shell.make_job()
    steps = iter([1])

    def decide(world):
        for _ in steps:
            shell.api.delete("StatefulSparkJob", "here", "clicks")
            shell.make_job()
        return phase(world, f"Of{world.meta.uid}")

    shell.decide = decide
    done = await shell.reconcile()
    assert done.changed
    assert shell.status() == {}


# -- lost replies, outages -------------------------------------------------------------------------


async def test_a_lost_reply_to_a_status_write_is_seen_by_the_next_pass(shell):
    shell.make_job()
    shell.decide = lambda world: phase(world, "Running")
    shell.cluster.fail(ApiUnavailable("lost"), verb="replace_status", when="after")
    failed = await shell.reconcile()
    assert failed.problem == "lost"
    assert not (await shell.reconcile()).changed
    assert shell.status()["phase"] == "Running"


async def test_a_conflict_with_ones_own_lost_write_is_none(shell):
    shell.make_job()
    shell.decide = lambda world: phase(world, "Running")
    shell.cluster.fail(Conflict("stale"), verb="replace_status", when="after")
    done = await shell.reconcile()
    assert done.changed
    assert shell.events() == []


async def test_waits_grow_while_the_api_server_is_away_and_nothing_is_touched(shell):
    shell.make_job()
    shell.cluster.fail(ApiUnavailable("away"), verb="get", times=-1)
    waits = [(await shell.reconcile()).again_after for _ in range(12)]
    assert waits[0] < 1.0 < waits[4] < waits[11] <= 75.0
    assert not shell.cluster.effects


async def test_the_servers_own_wish_for_a_wait_is_heeded(shell):
    shell.make_job()
    shell.cluster.fail(ApiUnavailable("busy", "TooManyRequests", 42.0), verb="get")
    assert (await shell.reconcile()).again_after == 42.0
    shell.cluster.fail(ApiUnavailable("busy", "TooManyRequests", 86_400.0), verb="get")
    assert (await shell.reconcile()).again_after == 300.0


async def test_a_status_of_which_an_older_definition_drops_the_news_is_no_endless_change(shell):
    shell.make_job()
    await shell.settle()

    async def keeps_nothing(body):
        return await shell.cluster.get(body["kind"], "here", "clicks")

    shell.cluster.replace_status = keeps_nothing
    shell.decide = lambda world: phase(world, "Running")
    for _ in range(3):
        assert not (await shell.reconcile()).changed
    assert shell.events().count("StatusPruned") == 1


async def test_the_first_failed_effect_ends_the_pass_and_events_are_told(shell):
    shell.make_job()
    pods = [shell.make_pod(n)["metadata"] for n in (1, 2)]
    told = Event("Normal", "DriverLost", "gone", key="1")
    effects = tuple(DeletePod(pod["name"], pod["uid"]) for pod in pods)
    shell.decide = lambda world: Plan(world.status, effects, (told,))
    shell.cluster.fail(ApiUnavailable("no"), verb="delete", name="clicks-1-driver")
    done = await shell.reconcile()
    assert "DeletePod did not go through" in done.problem
    assert "deletionTimestamp" not in shell.api.get("Pod", "here", "clicks-2-driver")["metadata"]
    assert shell.events() == ["DriverLost"]


async def test_an_effect_that_keeps_failing_is_shown_in_the_message_and_then_not(shell):
    shell.make_job()
    pod = shell.make_pod(1)["metadata"]
    effect = DeletePod(pod["name"], pod["uid"])
    shell.decide = lambda world: Plan(
        world.status.model_copy(update={"message": world.trouble or "stopping"}),
        (effect,) if world.drivers[0].deleted_at is None else (),
    )
    shell.cluster.fail(Invalid("not like this"), verb="delete", times=3)
    for _ in range(3):
        await shell.reconcile()
    assert "not like this" in shell.status()["message"]
    await shell.settle()
    assert shell.status()["message"] == "stopping"


async def test_an_event_that_cannot_be_told_now_is_told_later_and_once(shell):
    shell.make_job()
    told = Event("Normal", "Submitted", "driver 1", key="1")
    shell.decide = lambda world: phase(
        world, "Running", events=(told,) if world.status.phase == "Created" else ()
    )
    shell.cluster.fail(ApiUnavailable("away"), verb="create", kind="Event")
    await shell.reconcile()
    assert shell.events() == []
    await shell.settle()
    await shell.settle()
    assert shell.events() == ["Submitted"]


async def test_two_processes_tell_an_event_once(shell):
    shell.make_job()
    told = Event("Normal", "Submitted", "driver 1", key="1")
    shell.decide = lambda world: Plan(world.status, events=(told,))
    await shell.reconcile()
    await shell.another().reconcile(CLICKS)
    assert shell.events() == ["Submitted"]


async def test_a_bug_in_a_decision_is_raised(shell):
    shell.make_job()
    shell.decide = lambda _: 1 // 0
    with pytest.raises(ZeroDivisionError):
        await shell.reconcile()


# -- death at every step ---------------------------------------------------------------------------


def steps_of_a_start():
    return [(k, when) for k in range(1, 11) for when in ("before", "after")]


@pytest.mark.parametrize(("step", "when"), steps_of_a_start())
async def test_death_at_any_step_of_a_start_leads_to_the_same_driver(shell, step, when):
    shell.make_job()
    shell.decide = started
    points = shell.cluster.points
    points.crash_at, points.crash_when = step, when
    try:
        await shell.settle()
    except OperatorKilled:
        points.revive()
        shell.reconciler = shell.another()
        await shell.settle()
    assert [pod["metadata"]["name"] for pod in shell.api.list("Pod")] == ["clicks-1-driver"]
    assert read_status(shell.status()).attempt.number == 1
    shell.api.collect()
    secrets = [secret["metadata"]["name"] for secret in shell.api.list("Secret")]
    assert sorted(secrets) == ["clicks-1-tokens", "clicks-scrape"]
    assert shell.job()["metadata"]["finalizers"] == ["moorage.dev/operator"]


async def test_the_sweep_above_goes_past_the_last_step(shell):
    shell.make_job()
    shell.decide = started
    await shell.settle()
    assert shell.cluster.points.count <= max(step for step, _ in steps_of_a_start())


# -- snapshots -------------------------------------------------------------------------------------


def make_snapshot(shell, name="clicks-a", **spec):
    return shell.api.create(
        {
            "apiVersion": "moorage.dev/v1alpha1",
            "kind": "StatefulSparkSnapshot",
            "metadata": {"name": name, "namespace": "here"},
            "spec": {"jobRef": {"name": "clicks"}, **spec},
        }
    )


SNAPSHOT = Ref("StatefulSparkSnapshot", "here", "clicks-a")


async def test_a_snapshots_status_and_labels_are_written(shell):
    shell.make_job()
    make_snapshot(shell)
    shell.decide_snapshot = lambda world: SnapshotPlan(
        world.snapshot.status.model_copy(update={"state": "InProgress"}),
        labels={"moorage.dev/job": "clicks", "moorage.dev/state": "InProgress"},
    )
    await shell.reconciler.settle(SNAPSHOT)
    found = shell.api.get("StatefulSparkSnapshot", "here", "clicks-a")
    assert found["status"]["state"] == "InProgress"
    assert found["metadata"]["labels"]["moorage.dev/state"] == "InProgress"


async def test_a_snapshot_sees_its_job_and_its_siblings(shell):
    shell.make_job()
    make_snapshot(shell)
    make_snapshot(shell, "clicks-b")
    label = {"metadata": {"labels": {"moorage.dev/job": "clicks"}}}
    shell.api.patch("StatefulSparkSnapshot", "here", "clicks-b", label)
    await shell.reconciler.settle(SNAPSHOT)
    assert shell.world.job.meta.name == "clicks"
    assert [one.meta.name for one in shell.world.siblings] == ["clicks-b"]


async def test_siblings_are_listed_only_while_a_snapshot_is_still_to_be_taken(shell):
    shell.make_job()
    make_snapshot(shell)
    lists = []
    found = shell.cluster.list

    async def counted(kind, *args):
        lists.append(kind)
        return await found(kind, *args)

    shell.cluster.list = counted
    await shell.reconciler.reconcile(SNAPSHOT)
    assert lists == ["StatefulSparkSnapshot"]
    for state in ("InProgress", "Verifying", "Completed", "Failed", "Abandoned"):
        shell.api.set_status("StatefulSparkSnapshot", "here", "clicks-a", state=state)
        await shell.reconciler.reconcile(SNAPSHOT)
        assert shell.world.snapshot.status.state == state
    assert lists == ["StatefulSparkSnapshot"]


async def test_a_job_wakes_its_snapshots_whose_uses_have_changed(shell):
    shell.make_job()
    shell.decide = lambda world: Plan(world.status, stale=("clicks-a",))
    await shell.reconcile()
    assert shell.woken == [SNAPSHOT]


async def test_a_job_that_is_gone_wakes_the_snapshots_that_it_leaves(shell):
    shell.make_job()
    make_snapshot(shell)
    label = {"metadata": {"labels": {"moorage.dev/job": "clicks"}}}
    shell.api.patch("StatefulSparkSnapshot", "here", "clicks-a", label)
    await shell.settle()
    shell.api.delete("StatefulSparkJob", "here", "clicks")
    done = await shell.reconcile()
    assert (done.gone, done.again_after) == (True, None)
    assert shell.woken == [SNAPSHOT]


async def test_a_version_has_been_seen_once_a_pass_had_nothing_to_do_about_it(shell):
    shell.make_job()
    shell.decide = lambda world: phase(world, "Deploying")
    assert not shell.reconciler.has_seen(shell.job())
    assert (await shell.reconcile()).changed
    assert not shell.reconciler.has_seen(shell.job())
    await shell.settle()
    assert shell.reconciler.has_seen(shell.job())
    shell.api.patch("StatefulSparkJob", "here", "clicks", {"metadata": {"labels": {"a": "b"}}})
    assert not shell.reconciler.has_seen(shell.job())


async def test_a_snapshot_with_a_wrong_spec_is_shown_with_its_problems(shell):
    make_snapshot(shell, backoffLimit="three")
    await shell.reconciler.settle(SNAPSHOT)
    assert shell.world.snapshot.spec.job_ref.name == "clicks"
    assert [problem.field for problem in shell.world.problems] == ["spec.backoffLimit"]


async def test_a_snapshot_of_a_newer_operator_is_left_alone(shell):
    made = make_snapshot(shell)
    shell.api.replace_status({**made, "status": {"format": 99}})
    done = await shell.reconciler.reconcile(SNAPSHOT)
    assert "format 99" in done.problem
    assert not shell.worlds


async def test_a_job_of_a_newer_operator_is_shown_and_not_written(shell):
    made = shell.make_job()
    shell.api.replace_status({**made, "status": {"format": 99, "other": 1}})
    shell.decide = lambda world: phase(world, "Blocked", effects=(SetFinalizer(present=True),))
    await shell.reconcile()
    assert "format 99" in shell.world.operator_too_old
    assert shell.status() == {"format": 99, "other": 1}
    assert "finalizers" not in shell.job()["metadata"]


HELD = Condition(
    type="Blocked",
    status="True",
    reason="OperatorTooOld",
    message="so",
    last_transition_time=datetime(2026, 3, 1, tzinfo=UTC),
)


async def test_what_holds_a_job_is_written_once_into_a_status_that_cannot_be_read(shell):
    ready = {"type": "Ready", "status": "True", "new": ["field"]}
    old = {"type": "Blocked", "status": "True", "reason": "Other", "lastTransitionTime": "before"}
    made = shell.make_job()
    status = {"format": 99, "other": {"deep": 1}, "conditions": [old, ready]}
    shell.api.replace_status({**made, "status": status})
    shell.decide = lambda world: Plan(world.status, held=HELD)
    await shell.settle()
    said = {**HELD.to_json(), "lastTransitionTime": "before"}
    assert shell.status() == {**status, "conditions": [ready, said]}
    before = len(shell.cluster.effects)
    await shell.settle()
    assert len(shell.cluster.effects) == before


@pytest.mark.parametrize("conditions", ["none", [1], {"a": "b"}])
async def test_a_status_without_conditions_as_they_are_is_left_alone(shell, conditions):
    made = shell.make_job()
    shell.api.replace_status({**made, "status": {"format": 99, "conditions": conditions}})
    shell.decide = lambda world: Plan(world.status, held=HELD)
    await shell.settle()
    assert shell.status() == {"format": 99, "conditions": conditions}


async def test_a_definition_that_takes_no_such_status_ends_no_pass(shell):
    made = shell.make_job()
    shell.api.replace_status({**made, "status": {"format": 99}})
    shell.decide = lambda world: Plan(world.status, held=HELD)
    shell.cluster.fail(Invalid("step: unsupported value"), verb="replace_status", times=-1)
    done = await shell.reconcile()
    assert (done.changed, done.problem) == (False, "")


async def test_the_status_model_round_trips_so_that_equal_is_equal(shell):
    shell.make_job()
    shell.decide = lambda _: Plan(
        JobStatus.model_validate(
            {"phase": "Running", "finishedAt": "2026-03-01T12:00:00.123456Z", "message": "é"}
        )
    )
    await shell.settle()
    before = len(shell.cluster.effects)
    await shell.settle()
    assert len(shell.cluster.effects) == before


async def test_an_object_with_a_garbled_status_is_let_go_and_nothing_else_is_done(shell):
    shell.make_job(meta={"finalizers": ["moorage.dev/operator"]})
    shell.api.set_status("StatefulSparkJob", "here", "clicks", operation={"id": "x"})
    shell.api.delete("StatefulSparkJob", "here", "clicks")
    effects = (SetFinalizer(present=False), DeletePod("other", "uid"))
    shell.decide = lambda world: phase(world, "Blocked", effects=effects)
    await shell.reconcile()
    assert shell.world.status_garbled
    assert shell.job() is None
    assert "Pod" not in [call.kind for call in shell.cluster.effects]


# -- what holds up nothing else --------------------------------------------------------------------


def _keep(name):
    spec = {"jobRef": {"name": "clicks"}, "type": "Savepoint", "name": name}
    return KeepSnapshot(f"clicks-{name}", spec, "Manual", name)


async def test_a_snapshot_that_cannot_be_made_holds_up_nothing_else_of_the_job(shell, monkeypatch):
    shell.make_job()
    monkeypatch.setattr(memory, "_FIRST_SETBACK", 1000.0)
    monkeypatch.setattr(memory, "_LONGEST_SETBACK", 1000.0)
    refusal = Forbidden("exceeded quota: snapshots")
    shell.cluster.fail(refusal, verb="create", name="clicks-a", times=-1)
    shell.decide = lambda world: Plan(
        world.status,
        (_keep("a"), _keep("b"), SetFinalizer(present=True)),
        again_after=2.0,
    )
    done = await shell.reconcile()
    assert (done.problem, done.again_after) == ("", 2.0)
    done = await shell.settle()
    assert (done.problem, done.again_after) == ("", 2.0)
    assert shell.job()["metadata"]["finalizers"] == ["moorage.dev/operator"]
    assert [s["metadata"]["name"] for s in shell.api.list("StatefulSparkSnapshot")] == ["clicks-b"]
    tried = [call.name for call in shell.cluster.journal if call.verb == "create"]
    assert tried == ["clicks-a", "clicks-b"]


async def test_a_snapshot_that_cannot_be_deleted_keeps_no_other_from_being_made(shell, monkeypatch):
    shell.make_job()
    monkeypatch.setattr(memory, "_FIRST_SETBACK", 1000.0)
    shell.decide = lambda world: Plan(world.status, (_keep("a"),))
    await shell.settle()
    uid = shell.api.get("StatefulSparkSnapshot", "here", "clicks-a")["metadata"]["uid"]
    refusal = Forbidden("denied by policy: savepoints stay")
    shell.cluster.fail(refusal, verb="delete", name="clicks-a", times=-1)
    surplus = DeleteObject("StatefulSparkSnapshot", "clicks-a", uid)
    effects = (surplus, _keep("b"), SetFinalizer(present=True))
    shell.decide = lambda world: Plan(world.status, effects, again_after=2.0)
    done = await shell.settle()
    assert (done.problem, done.again_after) == ("", 2.0)
    found = sorted(s["metadata"]["name"] for s in shell.api.list("StatefulSparkSnapshot"))
    assert found == ["clicks-a", "clicks-b"]


async def test_a_snapshot_that_cannot_be_made_is_told_from_the_second_time_on(shell, monkeypatch):
    shell.make_job()
    monkeypatch.setattr(memory, "_FIRST_SETBACK", 0.0)
    shell.cluster.fail(Forbidden("exceeded quota"), verb="create", times=-1)
    shell.decide = lambda world: Plan(world.status, (_keep("a"),))
    for _ in range(3):
        await shell.reconcile()
    assert "exceeded quota" in shell.world.trouble
    shell.cluster.heal()
    await shell.settle()
    await shell.reconcile()
    assert shell.world.trouble == ""


# -- a status that nobody can read -----------------------------------------------------------------


@pytest.mark.parametrize("terminating", [True, False])
async def test_a_snapshot_with_a_status_that_nobody_can_read_goes_with_its_namespace(
    shell, terminating
):
    ref = Ref("StatefulSparkSnapshot", "here", "clicks-a")
    spec = {"jobRef": {"name": "clicks"}, "type": "Savepoint", "name": "a"}
    meta = {"name": "clicks-a", "namespace": "here", "finalizers": ["moorage.dev/operator"]}
    shell.api.create(
        {
            "apiVersion": "moorage.dev/v1alpha1",
            "kind": "StatefulSparkSnapshot",
            "metadata": meta,
            "spec": spec,
        }
    )
    shell.api.set_status("StatefulSparkSnapshot", "here", "clicks-a", sizeBytes="many")
    shell.api.delete("StatefulSparkSnapshot", "here", "clicks-a")
    if terminating:
        shell.api.delete("Namespace", "", "here")
    await shell.reconciler.reconcile(ref)
    gone = shell.api.get("StatefulSparkSnapshot", "here", "clicks-a") is None
    assert gone == terminating


@pytest.mark.parametrize("terminating", [True, False])
@pytest.mark.parametrize("kind", ["Pod", "ControllerRevision"])
async def test_a_job_goes_with_its_namespace_though_rights_in_it_went_first(
    shell, kind, terminating
):
    """A Role is deleted with its namespace, in any order with what it is for."""
    shell.decide = decide_job
    shell.make_job(meta={"finalizers": ["moorage.dev/operator"]})
    shell.api.set_status("StatefulSparkJob", "here", "clicks", attempt={"revision": "clicks-1"})
    shell.api.delete("StatefulSparkJob", "here", "clicks")
    if terminating:
        shell.api.delete("Namespace", "", "here")
    for verb in ("get", "list"):
        shell.cluster.fail(Forbidden("no such right"), verb=verb, kind=kind, times=-1)
    shell.cluster.fail(Forbidden("no such right"), verb="replace_status", times=-1)
    await shell.reconcile()
    assert (shell.job() is None) == terminating


async def test_what_goes_with_its_namespace_and_others_hold_is_not_looked_at_all_the_time(shell):
    meta = {"finalizers": ["moorage.dev/operator", "theirs.example/x"]}
    shell.make_job(meta=meta)
    shell.api.delete("StatefulSparkJob", "here", "clicks")
    shell.api.delete("Namespace", "", "here")
    shell.cluster.fail(Forbidden("no"), verb="get", kind="ControllerRevision", times=-1)
    shell.api.set_status("StatefulSparkJob", "here", "clicks", attempt={"revision": "clicks-1"})
    assert (await shell.reconcile()).changed
    done = await shell.reconcile()
    assert not done.changed
    assert done.again_after == 60.0
