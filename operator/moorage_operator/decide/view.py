"""What people and tools read in the status: the stream, executors, scaling, checkpoints. Pure.

A driver's figures change all the time, and each status that is written is an event that leads to
another pass: etcd is not a dashboard. So they are written along with whatever else changes, and by
themselves when they say something new, or every five minutes. Decisions go by the newest ones in
any case.
"""

from datetime import datetime, timedelta
from typing import Any

from moorage_api.driver import CheckpointSummary, DriverState
from moorage_api.status import ExecutorStatus, JobStatus, JobView, ScalingStatus
from moorage_operator.children.names import selector
from moorage_operator.decide.draft import Draft, began_running, here, later
from moorage_operator.decide.health import has_run_in, lag_grows
from moorage_operator.decide.specs import note_stable, policy, running_spec
from moorage_operator.world import Unreadable

_SHOWN_EVERY = timedelta(minutes=5)
_FEW = 8
AUTOSCALER_FIGURES = (
    "needed",
    "utilization",
    "arrival_rate",
    "true_rate",
    "busiest",
    "lag_rows",
)
"""What changes at every look."""


def hold_back(draft: Draft) -> None:
    """Leave the status as it is, if nothing but figures has changed since, and not for long."""
    old, new = draft.world.status, draft.status
    if only_figures(old, new) and not _is_news(old, new):
        draft.status = old


def only_figures(old: JobStatus, new: JobStatus) -> bool:
    """Whether two statuses say the same but for a driver's figures."""
    return _without_figures(old) == _without_figures(new)


def is_worse(before: int, now: int) -> bool:
    """Whether failures in a row are worth a word: the first few, then whenever they doubled."""
    return now > before and (now <= _FEW or now >= 2 * before)


def _without_figures(status: JobStatus) -> JobStatus:
    plain = status.snapshots.model_copy(update={"last_checkpoint": None, "consecutive_failures": 0})
    job = status.job.model_copy(
        update={
            "epoch": 0,
            "last_progress_time": None,
            "epoch_since": None,
            "input_rows_per_second": "",
            "busy_ratio": "",
            "state_bytes": 0,
            "watermark": None,
            "watermark_of": "",
            "watermark_held_by": "",
        }
    )
    update: dict[str, Any] = {"snapshots": plain, "job": job}
    scaler = status.scaling.autoscaler
    if scaler is not None:
        shown = scaler.model_copy(update=dict.fromkeys(AUTOSCALER_FIGURES))
        update["scaling"] = status.scaling.model_copy(update={"autoscaler": shown})
    return status.model_copy(update=update)


def _is_news(old: JobStatus, new: JobStatus) -> bool:
    before, now = old.snapshots, new.snapshots
    return (
        is_another(before.last_checkpoint, now.last_checkpoint)
        or is_worse(before.consecutive_failures, now.consecutive_failures)
        or now.consecutive_failures < before.consecutive_failures
        or is_long(old.job.last_progress_time, new.job.last_progress_time)
    )


def is_another(old: CheckpointSummary | None, new: CheckpointSummary | None) -> bool:
    """Whether it is news: the first, one that a restore went back to, elsewhere, or much later."""
    if old is None or new is None:
        return old is not new
    if new.id < old.id or _folder(new) != _folder(old):
        return True
    return is_long(old.completed_at, new.completed_at)


def _folder(checkpoint: CheckpointSummary) -> str:
    return checkpoint.path.partition("?")[0].rpartition("/")[0]


def is_long(old: datetime | None, new: datetime | None) -> bool:
    """Whether it is news, of two times of one clock; where there was none, any time is."""
    if old is None or new is None:
        return old is not new
    return abs(new - old) >= _SHOWN_EVERY


def show_report(draft: Draft, report: DriverState) -> None:
    """Take the driver's report into the status."""
    if report.standby:
        # It leads from now on and has not begun: what else it tells is of the shadow that it was.
        draft.put(job=_job(draft, report))
        return
    attempt, began = draft.attempt, draft.attempt.running_since is None
    draft.put_attempt(
        running_since=attempt.running_since or began_running(draft, report),
        checkpointed=attempt.checkpointed or report.completed_checkpoints > 0,
        fence=report.fence or attempt.fence,
        restored_from=report.restored_from or attempt.restored_from,
    )
    if began and report.running_since is not None:
        draft.put_restarts(restore_failures=0)
        draft.put_reconciliation(running_revision=attempt.revision)
    known = draft.world.revisions.get(attempt.revision)
    if draft.attempt.running_since is not None and known is not None:
        draft.put_reconciliation(state_backend=known.spec.state.effective_backend)
    if report.sinks is not None:
        draft.put_attempt(sinks=report.sinks, sinks_known=True)
    _show_checkpoints(draft, report)
    draft.put(job=_job(draft, report))
    draft.put(scaling=_scaling(draft, report))
    _note_stable(draft, report)


def show_pods(draft: Draft) -> None:
    """Show executors; where there is no driver, that nothing runs."""
    report = draft.report
    if not draft.is_active and draft.status.job.state:
        draft.put(job=draft.status.job.model_copy(update={"state": ""}))
    ready, failed = 0, 0
    if isinstance(draft.world.executors, Unreadable):
        return
    window = _failure_window(draft)
    for pod in draft.world.executors:
        ready += pod.phase == "Running" and pod.ready
        ended = pod.ended.finished_at if pod.ended is not None else None
        failed += pod.phase == "Failed" and (ended is None or not draft.reached(ended + window))
    desired = report.executors_desired if report is not None else 0
    if report is None and draft.is_active:
        desired = draft.status.executors.desired
    shown = report.executors_ready if report is not None else ready
    draft.put(
        executors=ExecutorStatus(desired=desired, ready=shown, failed_in_window=failed),
        scaling=draft.status.scaling.model_copy(update={"selector": _selector(draft)}),
    )


def _show_checkpoints(draft: Draft, report: DriverState) -> None:
    """Take over checkpoints and savepoints."""
    snapshots = draft.status.snapshots
    # The driver's word is newer, even where a restore went back to a lower id.
    newest = report.last_checkpoint or snapshots.last_checkpoint
    draft.put_snapshots(
        lineage_id=report.lineage or snapshots.lineage_id,
        last_checkpoint=newest,
        last_savepoint=report.last_savepoint or snapshots.last_savepoint,
        consecutive_failures=report.consecutive_failed_checkpoints,
    )
    failures = report.consecutive_failed_checkpoints
    if is_worse(snapshots.consecutive_failures, failures):
        why = report.last_checkpoint_failure
        text = f"{why.message} (code {why.code})" if why else "nobody said why"
        key = f"{draft.attempt.number}-{newest.id if newest else 0}-{failures}"
        draft.tell("Warning", "CheckpointFailed", f"{failures} in a row: {text}", key)


def _job(draft: Draft, report: DriverState) -> JobView:
    return JobView(
        state=report.phase,
        message=report.message,
        epoch=report.epoch,
        last_progress_time=_moved(draft, report),
        epoch_since=report.epoch_since,
        input_rows_per_second=f"{report.rows_per_second:.1f}",
        busy_ratio=f"{report.busy_ratio:.2f}",
        state_bytes=report.state_bytes,
        watermark=report.watermark,
        watermark_of=report.watermark_of,
        watermark_held_by=report.watermark_held_by,
    )


def _moved(draft: Draft, report: DriverState) -> datetime | None:
    """When the stream last got on, be it within an epoch; on this clock."""
    moved = later(report.last_progress_time, report.last_move_time)
    return here(draft, report, moved) if moved is not None else None


def _scaling(draft: Draft, report: DriverState) -> ScalingStatus:
    old = draft.status.scaling
    known, found = old.observed_parallelism, report.parallelism
    changed = old.changed_at if found in (0, known) or known == 0 else draft.now
    return ScalingStatus(
        observed_parallelism=found or known,
        max_parallelism=report.max_parallelism or old.max_parallelism,
        selector=_selector(draft),
        changed_at=changed,
        autoscaler=old.autoscaler,
    )


def _selector(draft: Draft) -> str:
    found = selector(draft.meta.uid, "executor", draft.attempt.number)
    return ",".join(f"{label}={value}" for label, value in found.items())


def _failure_window(draft: Draft) -> timedelta:
    spec = running_spec(draft)
    window = spec.failure_policy.executor_failures.window if spec is not None else None
    return window.timedelta if window is not None else timedelta(minutes=10)


def _note_stable(draft: Draft, report: DriverState) -> None:
    """A version is good once it has run and completed checkpoints as the policy wants."""
    attempt, spec = draft.attempt, policy(draft)
    if attempt.stable_since is not None or not has_run_in(draft) or spec is None:
        return
    if not spec.upgrade.rollback.stable_after.lag_may_grow and lag_grows(report):
        return
    draft.put_attempt(stable_since=draft.now)
    draft.put_reconciliation(stable_revision=attempt.revision, trial=None)
    note_stable(draft, attempt.revision)
