"""Which claims of executors are kept, and of which attempts none are."""

from dataclasses import replace
from datetime import timedelta

import pytest
from moorage_testing.worlds import Stage, job_spec

from moorage_operator.plan import DeletePod, GiveUpClaim, KeepClaims
from moorage_operator.world import PodView

LOCAL = {"type": "ReusedPVC", "size": "1Gi", "storageClassName": "fast"}
DIRECTORIES = {"checkpointDir": "s3://state/a", "savepointDir": "s3://state/b"}


@pytest.fixture
def stage():
    found = Stage(spec=job_spec(state={**DIRECTORIES, "local": LOCAL}))
    found.run()
    return found


def executor(stage, number, claim=None, attempt=1, **changed):
    name = f"clicks-{attempt}-exec-{number}"
    pod = PodView(name, name, "executor", attempt, "Running", owned=True, created_at=stage.now)
    stage.executors[name] = replace(pod, claim=claim or f"{name}-pvc-0", **changed)
    return stage.executors[name]


def asked(stage, kind):
    return [one for one in stage.decide().effects if isinstance(one, kind)]


def test_what_is_free_is_needed_as_long_as_an_executor_is_missing(stage):
    stage.say(executors_desired=2)
    first = executor(stage, 1)
    executor(stage, 2, deleted_at=stage.now)
    executor(stage, 3, phase="Failed")
    assert asked(stage, KeepClaims) == [KeepClaims(1, frozenset({first.claim}), whole=False)]
    last = executor(stage, 4)
    claims = frozenset({first.claim, last.claim})
    assert asked(stage, KeepClaims) == [KeepClaims(1, claims, whole=True)]
    stage.report = None
    assert asked(stage, KeepClaims) == [KeepClaims(1, claims, whole=False)]


@pytest.mark.parametrize(
    ("lacks", "given_up"),
    [
        ("", True),
        ("0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had volume node affinity", True),
        ('persistentvolumeclaim "clicks-1-exec-1-pvc-0" not found', True),
        ("1 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)", True),
        ("0/2 nodes are available: 2 Insufficient memory", False),
        ("0/2 nodes are available: 2 node(s) had untolerated taint(s)", False),
    ],
)
def test_a_claim_is_given_up_where_it_may_be_what_keeps_its_executor_waiting(
    stage, lacks, given_up
):
    pod = executor(stage, 2, "clicks-1-exec-1-pvc-0", phase="Pending", unschedulable=lacks)
    stage.now += timedelta(minutes=2)
    assert asked(stage, GiveUpClaim) == []
    stage.now += timedelta(minutes=2)
    wanted = [GiveUpClaim(pod.claim, DeletePod(pod.name, pod.uid))]
    assert asked(stage, GiveUpClaim) == (wanted if given_up else [])
