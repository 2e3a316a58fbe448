"""Which objects a change wakes."""

import pytest

from moorage_operator.ports import Ref
from moorage_operator.watches import Wakeups

CLICKS = Ref("StatefulSparkJob", "n", "clicks")
SNAP = Ref("StatefulSparkSnapshot", "n", "snap")


@pytest.fixture
def woken():
    return []


@pytest.fixture
def wakeups(woken):
    return Wakeups(woken.append)


def body(name, labels=None, job="clicks", state=None, **meta):
    return {
        "metadata": {"name": name, "namespace": "n", "labels": labels, **meta},
        "spec": {"jobRef": {"name": job}},
        "status": {"state": state} if state else {},
    }


def test_a_pod_wakes_its_job(wakeups, woken):
    wakeups.seen("MODIFIED", "Pod", body("p", {"moorage.dev/job": "clicks"}))
    wakeups.seen("MODIFIED", "Pod", body("q"))
    assert woken == [CLICKS]


def test_a_snapshot_wakes_itself_and_its_job(wakeups, woken):
    wakeups.seen("ADDED", "StatefulSparkSnapshot", body("snap"))
    assert woken == [SNAP, CLICKS]


def test_what_a_pass_has_seen_is_no_news(woken):
    wakeups = Wakeups(woken.append, lambda body: body["metadata"]["resourceVersion"] == "7")
    wakeups.seen("MODIFIED", "StatefulSparkJob", body("clicks", resourceVersion="7"))
    assert not woken
    wakeups.seen("MODIFIED", "StatefulSparkSnapshot", body("snap", resourceVersion="7"))
    assert woken == [CLICKS], "its job is told all the same"
    wakeups.seen("MODIFIED", "StatefulSparkJob", body("clicks", resourceVersion="8"))
    assert woken == [CLICKS, CLICKS, SNAP]
    woken.clear()
    wakeups.seen("DELETED", "StatefulSparkJob", body("clicks", resourceVersion="7"))
    assert woken == [CLICKS, SNAP]


@pytest.mark.parametrize("job", [None, 7, ""])
def test_a_snapshot_that_names_no_job_wakes_itself(wakeups, woken, job):
    wakeups.seen("ADDED", "StatefulSparkSnapshot", body("snap", job=job))
    assert woken == [SNAP]


@pytest.mark.parametrize(
    ("event", "state", "meta", "wakes"),
    [
        ("MODIFIED", "InProgress", {}, True),
        ("MODIFIED", "Completed", {}, False),
        ("MODIFIED", "Completed", {"deletionTimestamp": "2026-03-01T12:00:00Z"}, True),
        ("DELETED", "InProgress", {}, False),
    ],
)
def test_a_job_wakes_its_snapshots_that_are_under_way(wakeups, woken, event, state, meta, wakes):
    wakeups.seen("ADDED", "StatefulSparkSnapshot", body("snap"))
    wakeups.seen(event, "StatefulSparkSnapshot", body("snap", state=state, **meta))
    woken.clear()
    wakeups.seen("MODIFIED", "StatefulSparkJob", body("clicks"))
    assert woken == ([CLICKS, SNAP] if wakes else [CLICKS])
