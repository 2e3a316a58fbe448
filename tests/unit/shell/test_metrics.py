"""What Prometheus sees, and that it goes with the object."""

import pytest
from prometheus_client.exposition import generate_latest

from moorage_api.status import read_status
from moorage_operator.metrics import ApiMetrics, OperatorMetrics
from moorage_operator.ports import Ref
from moorage_operator.world import StoreTaskView

CLICKS = Ref("StatefulSparkJob", "n", "clicks")
BODY = {"kind": "StatefulSparkJob", "metadata": {"name": "clicks", "namespace": "n"}}
CHECKPOINT = {
    "id": 1,
    "completedAt": "2026-03-01T12:00:00Z",
    "sizeBytes": 7,
    "durationMs": 1500,
}


@pytest.fixture
def metrics():
    return OperatorMetrics(version="1.2.3")


def text(metrics):
    return generate_latest(metrics.registry).decode()


def see(metrics, **status):
    metrics.job_seen(BODY, read_status(status))


def test_a_job_is_in_one_phase_at_a_time(metrics):
    see(metrics, phase="Running")
    see(metrics, phase="Failed")
    assert [
        line for line in text(metrics).splitlines() if line.startswith("moorage_job_phase{")
    ] == ['moorage_job_phase{job="clicks",namespace="n",phase="Failed"} 1.0']


def test_a_newer_operators_phase_does_not_make_a_new_label(metrics):
    see(metrics, phase="Levitating")
    assert 'phase="Other"' in text(metrics)


def test_what_is_wrong_is_shown_with_what_is_done_and_not_any_more_when_it_is_over(metrics):
    since = {"since": "2026-03-01T12:00:00Z"}
    wrong = [
        {"check": "NoProgress", "then": "Withheld", **since},
        {"check": "Gremlins", "then": "Alert", **since},
    ]
    done = {"check": "NoProgress", "action": "Restart", "at": "2026-03-01T11:00:00Z"}
    see(metrics, health={"findings": wrong, "actions": [done], "clockAheadSeconds": -45})
    shown = text(metrics)
    for line in (
        'unhealthy{action="Withheld",check="NoProgress",job="clicks",namespace="n"} 1.0',
        'unhealthy{action="Alert",check="Other",job="clicks",namespace="n"} 1.0',
        'health_actions{job="clicks",namespace="n"} 1.0',
        'clock_ahead_seconds{job="clicks",namespace="n"} -45.0',
    ):
        assert f"moorage_job_{line}" in shown
    see(metrics)
    assert "moorage_job_unhealthy{" not in text(metrics)


def test_a_checkpoint_is_shown_once_there_is_one(metrics):
    see(metrics)
    assert "moorage_job_last_checkpoint_bytes{" not in text(metrics)
    see(metrics, snapshots={"lastCheckpoint": CHECKPOINT})
    assert 'moorage_job_last_checkpoint_duration_seconds{job="clicks",namespace="n"} 1.5' in text(
        metrics
    )


def test_a_gone_object_has_no_series(metrics):
    see(metrics, phase="Running", snapshots={"lastCheckpoint": CHECKPOINT})
    metrics.gone(CLICKS)
    assert 'job="clicks"' not in text(metrics)


def test_passes_and_transitions_are_counted(metrics):
    metrics.pass_ended(CLICKS, 0.02, "changed")
    metrics.moved(CLICKS, "Deploying")
    metrics.conflicted()
    shown = text(metrics)
    assert 'moorage_operator_reconcile_seconds_count{kind="job",outcome="changed"} 1.0' in shown
    assert 'moorage_operator_transitions_total{kind="job",to="Deploying"} 1.0' in shown
    assert "moorage_operator_status_conflicts_total 1.0" in shown


def test_the_memory_of_each_shards_process_is_shown():
    shown = text(OperatorMetrics(shards=("a", "b")))
    (line,) = [one for one in shown.splitlines() if one.startswith("moorage_operator_memory_bytes")]
    assert line.startswith('moorage_operator_memory_bytes{shard="a"} ')
    assert float(line.split()[-1]) > 1e6


def test_snapshots_are_counted_by_state(metrics):
    for name, state in (("a", "Completed"), ("b", "Completed"), ("c", "Failed")):
        meta = {"name": name, "namespace": "n"}
        metrics.snapshot_seen(Ref("StatefulSparkSnapshot", meta["namespace"], meta["name"]), state)
    assert 'moorage_snapshots{namespace="n",state="Completed"} 2.0' in text(metrics)


def test_a_failed_store_task_counts_once_however_often_it_is_seen(metrics):
    tasks = {"a": StoreTaskView("Failed", code="denied"), "b": StoreTaskView("Pending")}
    metrics.store_tasks_seen(tasks)
    metrics.store_tasks_seen(tasks)
    assert 'moorage_operator_store_task_failures_total{code="denied"} 1.0' in text(metrics)


def test_requests_are_told_by_method_and_code(metrics):
    api = ApiMetrics(metrics.registry)
    api.answered("GET", 429, 0.2)
    api.answered("GET", 0, 20.0)
    for code in ("429", "0"):
        line = f'moorage_operator_api_request_seconds_count{{code="{code}",method="GET"}} 1.0'
        assert line in text(metrics)


def test_what_a_jobs_program_can_choose_makes_no_series_without_end(metrics):
    for number in range(500):
        metrics.restarted(f"RestorePoint{number}")
        metrics.store_tasks_seen({f"t-{number}": StoreTaskView("Failed", code=f"{number}" * 50)})
    shown = text(metrics).splitlines()
    for name in ("moorage_operator_restarts_total{", "moorage_operator_store_task_failures_total{"):
        series = [line for line in shown if line.startswith(name)]
        assert len(series) == 101
        assert sum(float(line.split()[-1]) for line in series) == 500
        assert max(map(len, series)) < 150


def test_events_are_counted_by_reason(metrics):
    metrics.told("StatefulSparkJob", "PreflightFailed")
    metrics.told("StatefulSparkJob", "PreflightFailed")
    line = 'moorage_operator_events_total{kind="job",reason="PreflightFailed"} 2.0'
    assert line in text(metrics)


@pytest.mark.parametrize(
    ("metric", "kind", "reason", "then"),
    [
        ("rejected", "Reconciled", "Rejected", "OperationUnderWay"),
        ("rollback_blocked", "Stable", "RollbackBlocked", "NotYet"),
        ("rollback_waits", "Stable", "RollbackWaits", "RollbackBlocked"),
    ],
)
def test_what_becomes_of_a_version_is_shown_for_as_long_as_a_condition_says_so(
    metrics, metric, kind, reason, then
):
    said = {"type": kind, "status": "False", "lastTransitionTime": "2026-03-01T12:00:00Z"}
    for now, value in ((reason, "1.0"), (then, "0.0")):
        see(metrics, conditions=[{**said, "reason": now}])
        assert f'moorage_job_{metric}{{job="clicks",namespace="n"}} {value}' in text(metrics)


def test_a_spec_that_is_not_followed_is_shown(metrics):
    said = {"type": "Reconciled", "lastTransitionTime": "2026-03-01T12:00:00Z"}
    see(metrics, conditions=[{**said, "status": "False", "reason": "QuotaExceeded"}])
    assert 'moorage_job_reconciled{job="clicks",namespace="n"} 0.0' in text(metrics)
    see(metrics, conditions=[{**said, "status": "True", "reason": "UpToDate"}])
    assert 'moorage_job_reconciled{job="clicks",namespace="n"} 1.0' in text(metrics)


def test_a_version_on_trial_is_shown(metrics):
    trial = {"revision": "b", "since": "2026-03-01T12:00:00Z", "restorePoint": {"mode": "Latest"}}
    see(metrics, reconciliation={"trial": trial})
    assert 'moorage_job_on_trial{job="clicks",namespace="n"} 1.0' in text(metrics)


def test_what_an_autoscaler_wants_is_shown_of_jobs_that_have_one(metrics):
    see(metrics, scaling={"observedParallelism": 4})
    shown = text(metrics)
    assert 'moorage_job_parallelism{job="clicks",namespace="n"} 4.0' in shown
    assert "moorage_job_autoscaler_target{" not in shown
    scaler = {"target": 8, "needed": 12, "utilization": "1.50"}
    see(metrics, scaling={"observedParallelism": 4, "autoscaler": scaler})
    shown = text(metrics)
    for name, number in (("target", "8.0"), ("needed", "12.0"), ("utilization", "1.5")):
        assert f'moorage_job_autoscaler_{name}{{job="clicks",namespace="n"}} {number}' in shown


def test_what_an_autoscaler_has_not_said_is_left_out(metrics):
    see(metrics, scaling={"observedParallelism": 4, "autoscaler": {"utilization": "a lot"}})
    shown = text(metrics)
    assert 'moorage_job_autoscaler_target{job="clicks",namespace="n"} 4.0' in shown
    assert "moorage_job_autoscaler_needed{" not in shown
    assert "moorage_job_autoscaler_utilization{" not in shown
