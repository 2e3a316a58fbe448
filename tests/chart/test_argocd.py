"""What Argo CD shows of a job, by the scripts of the examples."""

from typing import get_args

import pytest
from moorage_testing.chart import ROOT

from moorage_api.snapshot import SnapshotState
from moorage_api.status import Phase

FOLDER = ROOT / "examples" / "kubernetes" / "argocd"


@pytest.fixture(scope="module")
def health():
    """Run the script of a kind on an object; gives status and message."""
    lupa = pytest.importorskip("lupa", reason="lupa runs the scripts: pip install lupa")
    lua = lupa.LuaRuntime()

    def run(kind, body):
        lua.globals().obj = lua.table_from(body, recursive=True)
        found = lua.execute((FOLDER / f"{kind}.lua").read_text())
        return found["status"], found["message"]

    return run


def job(phase="Running", *, ready="True", observed=3, message="", **more):
    return {
        "metadata": {"name": "clicks", "generation": 3, **more},
        "status": {
            "phase": phase,
            "observedGeneration": observed,
            "message": message,
            "conditions": [
                {"type": "SpecValid", "status": "True", "message": ""},
                {"type": "Ready", "status": ready, "message": ""},
            ],
        },
    }


def of_job(health, *arguments, **named):
    return health("statefulsparkjob", job(*arguments, **named))[0]


def test_a_job_that_nobody_has_looked_at_is_progressing(health):
    bare = {"metadata": {"name": "clicks", "generation": 1}}
    assert health("statefulsparkjob", bare)[0] == "Progressing"
    assert health("statefulsparkjob", {**bare, "status": {}})[0] == "Progressing"


@pytest.mark.parametrize(
    ("phase", "status"),
    [
        ("Running", "Healthy"),
        ("Stable", "Healthy"),
        ("Finished", "Healthy"),
        ("Suspended", "Suspended"),
        ("Blocked", "Degraded"),
        ("Failed", "Degraded"),
        ("RollingBack", "Progressing"),
        ("BackOff", "Degraded"),
        ("Upgrading", "Progressing"),
        ("Rescaling", "Progressing"),
        ("Recovering", "Progressing"),
        ("SomethingNew", "Progressing"),
    ],
)
def test_a_phase_has_its_health(health, phase, status):
    assert of_job(health, phase) == status


def test_every_phase_has_a_health_that_argo_cd_knows(health):
    known = {"Healthy", "Progressing", "Degraded", "Suspended"}
    assert {of_job(health, phase) for phase in get_args(Phase)} == known


def test_a_job_that_runs_and_is_not_ready_is_progressing(health):
    assert of_job(health, "Running", ready="False") == "Progressing"


def test_an_edit_that_was_not_looked_at_yet_is_not_healthy(health):
    assert of_job(health, "Stable", observed=2) == "Progressing"


def test_a_job_that_is_deleted_is_progressing(health):
    assert of_job(health, "Stable", deletionTimestamp="2026-01-01T00:00:00Z") == "Progressing"


def test_a_refused_edit_is_degraded_though_the_old_version_runs(health):
    body = job("Stable")
    body["status"]["conditions"][0] |= {"status": "False", "message": "spec.image is missing"}
    assert health("statefulsparkjob", body) == ("Degraded", "spec.image is missing")


def test_a_version_that_was_given_up_is_degraded_though_the_old_version_runs(health):
    body = job("Stable")
    why = "it was rolled back: it did not become stable within 5m"
    given_up = {"type": "Reconciled", "status": "False", "reason": "Rejected", "message": why}
    body["status"]["conditions"].append(given_up)
    assert health("statefulsparkjob", body) == ("Degraded", why)
    given_up["reason"] = "OperationUnderWay"
    assert health("statefulsparkjob", body)[0] == "Healthy"


def test_the_message_is_what_the_operator_says(health):
    assert health("statefulsparkjob", job("Blocked", message="do this"))[1] == "Blocked: do this"


def test_a_snapshot_is_healthy_when_it_is_complete(health):
    states = {
        state: health("statefulsparksnapshot", {"status": {"state": state}})[0]
        for state in get_args(SnapshotState)
    }
    assert states.pop("Completed") == "Healthy"
    assert states.pop("Failed") == states.pop("Abandoned") == "Degraded"
    assert set(states.values()) == {"Progressing"}
    assert health("statefulsparksnapshot", {})[0] == "Progressing"
