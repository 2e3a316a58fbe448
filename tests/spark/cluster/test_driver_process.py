"""`python -m moorage.cluster` as its pod runs it, but with Spark in its own process."""

import pytest
from moorage_testing.jobs import wait_until

from moorage_state.snapshots import Run, SavepointStore

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(300)]


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
