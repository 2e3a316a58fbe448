"""A decision to do nothing stands until what it rests on changes; else it is not made anew."""

import ast
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from moorage_testing.worlds import Stage, checkpoint, job_spec

import moorage_operator.decide
from moorage_api.driver import DriverState, LoadReport, SkewReport
from moorage_operator.decide import decide_job
from moorage_operator.decide.rest import rest_of
from moorage_operator.decide.view import only_figures
from moorage_operator.snapshots.naming import TRIGGER_LABEL
from moorage_operator.world import ContainerEnd, PodView, Unreadable

SPECS = [
    job_spec(),
    job_spec(savepoint={"schedule": {"cron": "*/20 * * * *"}}),
    job_spec(savepoint={"retain": {"maxAge": "30m"}}),
    job_spec(failurePolicy={"health": {"noProgressFor": "3m"}}),
    job_spec(
        failurePolicy={"health": {"noCheckpointFor": "15m", "actions": {"noCheckpoint": "Alert"}}}
    ),
    job_spec(failurePolicy={"executorFailures": {"window": "7m"}}),
    job_spec(upgrade={"rollback": {"stableAfter": {"duration": "12m"}}}),
]


def running(spec=None, **said):
    stage = Stage(spec=spec or job_spec())
    stage.run()
    stage.say(answered_at=stage.now, last_move_time=stage.now, **said)
    stage.settle()
    return stage


def rest(stage):
    world = stage.world()
    return rest_of(world, stage.decide())


def at_rest(stage):
    found = rest(stage)
    assert found is not None
    return found


def idle(stage, seconds, **said):
    """Time passes, and the stream finds nothing to do."""
    stage.now += timedelta(seconds=seconds)
    stage.say(answered_at=stage.now, last_move_time=stage.now, **said)


def complete(stage, seconds, **said):
    """Time passes, and another checkpoint is completed."""
    last = stage.report.last_checkpoint
    newest = checkpoint(last.id + 1, stage.now + timedelta(seconds=seconds))
    done = stage.report.completed_checkpoints + 1
    newest = newest.model_copy(update=said)
    idle(stage, seconds, last_checkpoint=newest, completed_checkpoints=done)


def stable(spec=None):
    stage = running(spec)
    for _ in range(3):
        complete(stage, 600)
        stage.settle()
    return stage


def test_a_job_with_a_checkpoint_a_minute_is_decided_upon_once_in_five():
    stage, decided, found = stable(), 0, None
    for _ in range(120):
        complete(stage, 30)
        if found is None or not found.stands(stage.now, stage.report):
            stage.settle()
            decided, found = decided + 1, rest(stage)
    assert 0 < decided <= 120 * 30 / 300 + 3


@pytest.mark.parametrize(
    "said",
    [
        {"phase": "checkpointing"},
        {"storage_error": "the store is away"},
        {"executors_ready": 0},
        {"consecutive_failed_checkpoints": 1},
        {"message": "another one"},
        {"last_checkpoint": None},
        {"answered_at": None},
        {"last_move_time": None},
        {"attempt": 9},
    ],
)
def test_another_report_is_another_decision(said):
    stage = running()
    found = at_rest(stage)
    assert found.stands(stage.now, stage.report)
    assert not found.stands(stage.now, stage.report.model_copy(update=said))


def test_a_checkpoint_that_takes_longer_than_the_interval_is_another_decision():
    stage = stable(job_spec(checkpoint={"interval": "60s"}))
    found = at_rest(stage)
    complete(stage, 10, duration_ms=59_000)
    assert found.stands(stage.now, stage.report)
    complete(stage, 10, duration_ms=61_000)
    assert not found.stands(stage.now, stage.report)
    stage.settle()
    found = at_rest(stage)
    complete(stage, 10, duration_ms=1_000)
    assert not found.stands(stage.now, stage.report)


def test_checkpoints_count_until_the_version_is_stable():
    stage = running()
    found = at_rest(stage)
    complete(stage, 1)
    assert not found.stands(stage.now, stage.report)


def test_a_checkpoint_ends_the_count_of_restores_at_once():
    stage = stable()
    idle(stage, 10, rewinds=3)
    stage.settle()
    assert stage.status.health.restores == 3
    found = at_rest(stage)
    complete(stage, 10)
    assert not found.stands(stage.now, stage.report)
    stage.settle()
    assert stage.status.health.restores == 0


def test_a_driver_that_does_not_answer_is_another_decision():
    stage = running()
    found = at_rest(stage)
    assert not found.stands(stage.now, Unreadable("EndpointUnreachable", "no answer"))
    assert not found.stands(stage.now, None)
    stage.report = Unreadable("EndpointUnreachable", "no answer", stage.now)
    assert rest(stage) is None


def test_a_clock_that_is_put_back_is_another_decision():
    stage = running()
    found = at_rest(stage)
    assert not found.stands(stage.now - timedelta(seconds=1), stage.report)


def test_times_of_a_driver_that_went_back_are_another_decision():
    stage = running()
    found = at_rest(stage)
    earlier = stage.now - timedelta(minutes=2)
    assert not found.stands(stage.now, stage.report.model_copy(update={"last_move_time": earlier}))


def test_it_does_not_stand_beyond_the_time_that_a_hung_job_is_to_be_restarted():
    stage = stable(job_spec(failurePolicy={"health": {"noProgressFor": "3m"}}))
    found = at_rest(stage)
    for seconds in (60, 170):
        later = stage.now + timedelta(seconds=seconds)
        assert found.stands(later, stage.report.model_copy(update={"answered_at": later}))
    later = stage.now + timedelta(minutes=3)
    assert not found.stands(later, stage.report.model_copy(update={"answered_at": later}))


def test_it_does_not_stand_beyond_a_tick_of_the_schedule():
    stage = running(job_spec(savepoint={"schedule": {"cron": "*/20 * * * *"}}))
    found = at_rest(stage)
    assert found.until <= stage.now + timedelta(minutes=20)


def test_it_does_not_stand_beyond_the_age_at_which_a_snapshot_goes():
    stage = running(job_spec(savepoint={"retain": {"maxAge": "90m"}}))
    for number in (1, 2):
        _periodic(stage, f"s{number}", stage.now - timedelta(minutes=61 - number))
    stage.settle()
    found = at_rest(stage)
    assert found.until <= stage.now + timedelta(minutes=30)


def _periodic(stage, name, at):
    stage.add_snapshot(name, completed_at=at)
    known = stage.snapshots[name]
    labels = {**known.meta.labels, TRIGGER_LABEL: "Periodic"}
    meta = replace(known.meta, labels=labels, created_at=at)
    stage.snapshots[name] = replace(known, meta=meta)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "idle",
                "stall",
                "commit",
                "checkpoint",
                "checkpoint",
                "late",
                "slow",
                "silent",
                "skewed",
                "lost",
                "rewound",
                "clock",
            ]
        ),
        st.integers(1, 400),
    ),
    min_size=5,
    max_size=16,
)


def step(stage, kind, seconds):
    """What a driver's next report may be like."""
    stage.now += timedelta(seconds=seconds)
    now = stage.now
    if kind == "silent":
        stage.report = Unreadable("EndpointUnreachable", "no answer", now)
        return
    if isinstance(stage.report, Unreadable):
        stage.report = stage.last
    said = {"answered_at": now, "rows_per_second": float(seconds), "tasks_running": seconds % 2}
    if kind in ("idle", "commit", "checkpoint"):
        said["last_move_time"] = now
    if kind in ("commit", "checkpoint"):
        said |= {"last_progress_time": now, "epoch": stage.report.epoch + 1}
    if kind == "checkpoint":
        last = stage.report.last_checkpoint
        took = {"duration_ms": 250 * seconds}
        said["last_checkpoint"] = checkpoint(last.id + 1, now).model_copy(update=took)
        said["completed_checkpoints"] = stage.report.completed_checkpoints + 1
    if kind == "late":
        said["answered_at"] = now - timedelta(seconds=seconds % 7)
    if kind == "slow":
        said |= {"epoch_since": now, "epoch_seconds": float(seconds)}
    if kind in ("checkpoint", "late"):
        said["last_checkpoint_time"] = now
    stage.say(**said)
    stage.say(**unwell(stage, kind, seconds))
    stage.last = stage.report


def unwell(stage, kind, seconds):
    """What of a report has to do with health."""
    said = {}
    if kind == "skewed":
        skew = SkewReport(uid="a", subtask=seconds % 2, rows=100 * seconds, mean_rows=8_000.0)
        said["load"] = LoadReport(seconds=900.0, busy_seconds=3.0 * seconds, skew=skew)
    if kind == "lost":
        said["executors_lost"] = stage.report.executors_lost + seconds % 12
    if kind == "rewound":
        said["rewinds"] = stage.report.rewinds + seconds % 4
    if kind == "clock":
        stage.say(answered_at=stage.now + timedelta(minutes=seconds - 200))
    return said


@st.composite
def jobs(draw):
    stage = draw(st.sampled_from([running, stable]))(draw(st.sampled_from(SPECS)))
    stage.last = stage.report
    for number in range(draw(st.integers(0, 3))):
        _periodic(stage, f"s{number}", stage.now - timedelta(minutes=draw(st.integers(0, 40))))
    if draw(st.booleans()):
        ended = stage.now - timedelta(seconds=draw(st.integers(0, 500)))
        stage.executors["e"] = PodView(
            name="e",
            uid="e",
            role="executor",
            attempt=stage.status.attempt.number,
            phase="Failed",
            ended=ContainerEnd(137, finished_at=ended),
        )
    return stage


@settings(
    max_examples=40,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
@given(jobs(), STEPS)
def test_what_is_not_decided_anew_would_be_decided_the_same(stage, steps):
    found, before = None, stage.decide()
    for kind, seconds in steps:
        step(stage, kind, seconds)
        plan = stage.decide()
        if found is not None and found.stands(stage.now, stage.report):
            assert plan.status == stage.status
            assert plan.effects == before.effects
            assert plan.stale == before.stale
            assert {one.key for one in plan.events} <= {one.key for one in before.events}
            continue
        stage.settle()
        before = stage.decide()
        if not isinstance(stage.report, DriverState):
            assert rest(stage) is None
        found = rest(stage)


def test_no_decision_compares_the_time_but_by_what_says_until_when_it_stands():
    """`Draft.reached`: a comparison elsewhere is a deadline that nobody knows of."""
    for path in sorted(Path(moorage_operator.decide.__file__).parent.glob("*.py")):
        if path.name in ("draft.py", "rest.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare):
                assert "draft.now" not in ast.unparse(node), f"{path.name}:{node.lineno}"


@settings(
    max_examples=60,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
@given(jobs(), STEPS)
def test_once_figures_are_written_the_same_is_decided(stage, steps):
    for kind, seconds in steps:
        step(stage, kind, seconds)
        world, plan = stage.world(), stage.decide()
        if plan.status != world.status and only_figures(world.status, plan.status):
            written = replace(world, status=plan.status)
            again = decide_job(written)
            assert (again.status, again.effects) == (plan.status, plan.effects)
            assert rest_of(written, again) == rest_of(written, plan)
        stage.settle()


def test_a_checkpoint_that_is_news_changes_figures_alone():
    stage = stable()
    complete(stage, 600)
    world, plan = stage.world(), stage.decide()
    assert plan.status != world.status
    assert only_figures(world.status, plan.status)
