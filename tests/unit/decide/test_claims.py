"""Which claims of executors are kept, and of which attempts none are."""

from dataclasses import replace

import pytest
from moorage_testing.worlds import Stage, job_spec

from moorage_operator.plan import KeepClaims
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
