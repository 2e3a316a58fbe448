"""`python -m moorage.cluster` as its pod runs it, but with Spark in its own process."""

import pytest
from moorage_testing.batches import add_batch
from moorage_testing.jobs import wait_until

from moorage_state.snapshots import Released, Run, SavepointStore

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


def test_a_driver_is_asked_ended_and_followed_by_another(home):
    first = home.start(1)
    state = first.wait_for_rows(10)
    assert (state.attempt, state.job_uid, state.fence, state.parallelism) == (1, "uid-1", 1, 2)
    first.ask("/checkpoints", requestId="c-1")
    checkpoint = first.done("c-1").checkpoint
    assert checkpoint is not None
    assert checkpoint.path == f"{home.checkpoint_dir}/chk-{checkpoint.id}"
    assert first.ask("/savepoints", requestId="s-1", name="before").state != "Failed"
    savepoint = first.done("s-1").savepoint
    assert first.ask("/savepoints", requestId="s-1", name="before").savepoint == savepoint
    assert savepoint is not None
    assert SavepointStore(savepoint.path).digest() == savepoint.manifest_digest
    assert first.ask("/rescale", requestId="r-1", parallelism=4).state == "Pending"
    refused = first.done("r-1").error
    assert refused is not None
    assert refused.code == "restart_needed"
    assert 'moorage_fence{job="clicks",namespace="team"} 1.0' in first.call("GET", "/metrics")[1]
    add_batch(home.path / "in", 1)
    first.wait_for_rows(20)
    first.terminate()
    end = first.end(0)
    assert (end.outcome, end.attempt, end.fence, end.released) == ("Stopped", 1, 1, False)
    assert end.last_checkpoint is not None

    second = home.start(2)
    state = wait_until(
        lambda: s if (s := second.state()).running_since else None, 120, f"a run\n{second.log}"
    )
    assert state.fence == 2
    assert state.restored_from is not None
    assert state.restored_from.checkpoint_id == end.last_checkpoint.id
    assert state.last_checkpoint is not None
    assert state.last_checkpoint.id == end.last_checkpoint.id
    again = second.ask("/savepoints", requestId="s-1", name="before")
    again = second.done("s-1") if again.savepoint is None else again
    assert again.savepoint is not None
    assert again.savepoint.manifest_digest == savepoint.manifest_digest
    second.ask("/savepoints", requestId="s-2", name="before")
    conflict = second.done("s-2").error
    assert conflict is not None
    assert conflict.code == "savepoint_name_conflict"
    second.ask("/stop", requestId="t", mode="Savepoint", name="last", release=True)
    end = second.end(0)
    assert (end.outcome, end.released) == ("Stopped", True)
    assert end.savepoint is not None
    assert SavepointStore(end.savepoint.path).load().checkpoint_id == end.savepoint.checkpoint_id
    assert isinstance(home.entries()[-1], Released)

    other = {"mode": "Path", "path": savepoint.path, "digest": "sha256:other", "orderId": "o-1"}
    third = home.start(3, uid="uid-2", restore=other)
    end = third.end(4)
    assert (end.outcome, end.code) == ("Failed", "restore_point_changed")


def test_a_savepoint_in_flight_does_not_hold_up_the_end_and_is_carried_on(home):
    (home.path / "hold").touch()
    first = home.start(1, graceSeconds=60)
    first.wait_for_rows(10)
    first.ask("/savepoints", requestId="s-1", name="held")
    begun = home.path / "savepoints" / "held" / "ATTEMPT"
    wait_until(begun.exists, 60, f"the savepoint's beginning\n{first.log}")
    first.terminate()
    end = first.end(0, timeout=30)
    assert (end.outcome, end.savepoint) == ("Stopped", None)
    assert end.last_checkpoint is not None

    (home.path / "hold").unlink()
    order = {"mode": "Path", "path": f"chk-{end.last_checkpoint.id}", "orderId": "o-1"}
    second = home.start(2, restore=order)
    second.ask("/savepoints", requestId="s-1", name="held")
    savepoint = second.done("s-1").savepoint
    assert savepoint is not None
    SavepointStore(savepoint.path).verify(full=True)
    assert [e.order_id for e in home.entries() if isinstance(e, Run)] == ["", "o-1"]

    # Another driver takes the lineage: this one must end at once, and say why.
    third = home.start(3, restore=order)
    end = second.end(6)
    assert (end.outcome, end.code, end.fence) == ("Failed", "fenced", 2)
    state = wait_until(
        lambda: s if (s := third.state()).running_since else None, 120, f"a run\n{third.log}"
    )
    assert state.fence == 3
    assert [e.order_id for e in home.entries() if isinstance(e, Run)][-1] == ""
    third.ask("/stop", requestId="now", mode="None")
    assert third.end(0).outcome == "Stopped"
