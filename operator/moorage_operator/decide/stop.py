"""Stopping a living driver with a last savepoint or checkpoint: Snapshotting, Stopping. Pure.

One request does both: the driver takes the snapshot, and then it ends. The driver's last words, or
else the lineage's log, say what came of it. A request that was sent cannot be taken back, so an
edit that is reverted meanwhile ends the operation only if the driver never heard of it.
"""

from datetime import datetime, timedelta
from typing import Literal

from moorage_api import JobSpec
from moorage_api.changes import classify
from moorage_api.driver import STOP_PATH, DriverState, RequestView, SavepointInfo, StopBody
from moorage_api.sizing import executor_count
from moorage_api.status import OperationType
from moorage_operator.decide.draft import Draft
from moorage_operator.decide.fencing import remove
from moorage_operator.decide.health import trouble
from moorage_operator.decide.observed import note_savepoint
from moorage_operator.decide.operations import begin, end
from moorage_operator.decide.recover import after_end, finish
from moorage_operator.decide.specs import (
    desired,
    give_up,
    is_new_nonce,
    keep_revision,
    policy,
    running_spec,
    target,
)
from moorage_operator.plan import AskDriver, KeepSnapshot
from moorage_operator.snapshots.naming import object_names, savepoint_path
from moorage_operator.world import LogPoint, StoreView, Unreadable
from moorage_state.stores.addresses import same_place

StopMode = Literal["Checkpoint", "Savepoint", "None"]
"""What `POST /stop` is told to take before the end."""

RESTART = "RestartRequested"
_TRIES = 3
_FIRST_RETRY = 10.0
_WAIT = timedelta(minutes=1)
_WAITS_FOR_STORE: tuple[OperationType, ...] = ("Upgrade", "Rescale", "Redeploy")
# Between savepoints while the driver says that the store is away: should it be wrong, not never.
_AWAY_PACE = timedelta(hours=1)
# For a store that cannot be read: after that the savepoint counts as not taken.
_STORE_PATIENCE = timedelta(minutes=1)
_LONGEST_NAME = 63


def begin_stop(
    draft: Draft, kind: OperationType, mode: StopMode, reason: str, message: str, used: str = ""
) -> None:
    """Begin an operation that stops the driver, and ask for that.

    Args:
        mode: what is taken before the end.
        used: how state is carried over, if that does not depend on what can be taken.
    """
    begin(draft, kind, "Snapshotting", reason, message, mode_used=used)
    aim(draft, mode)
    snapshotting(draft)


def snapshotting(draft: Draft) -> None:
    """Ask for the end with its snapshot, and see what comes of it."""
    _note_suspension(draft)
    operation = draft.operation
    draft.wake(draft.config.busy_resync)
    if draft.is_unmade:
        draft.move("Fencing")
        return
    if draft.attempt.outcome:
        _over(draft)
        return
    view = request_view(draft)
    why = view.error if view is not None else None
    if _is_reverted(draft) and _is_unheard(draft):
        _cancel(draft)
    elif operation.not_before is not None and _waits(draft, operation.not_before):
        return
    elif view is not None and view.state == "Completed":
        completed(draft, view)
    elif view is not None and view.state == "Failed":
        _failed(draft, f"{why.message} (code {why.code})" if why else "")
    elif hangs := _hangs(draft):
        _late(draft, hangs)
    elif view is None and not _is_kept(draft):
        ask(draft)  # after the revision was made, or not at all: effects go in order
        draft.put_operation(deadline=None)  # once the driver is asked it has all of its time
    elif operation.deadline is not None and draft.reached(operation.deadline):
        _late(draft, f"no {operation.stop_mode.lower()} within the time for {operation.type}")
    else:
        ask(draft)


def _note_suspension(draft: Draft) -> None:
    """What ends in a suspension by now is one, and waits for no longer than that does.

    Another version, or a store that is away, may be waited for without end.
    """
    if draft.operation.type in _WAITS_FOR_STORE and desired(draft) == "Suspended":
        draft.put_operation(type="Suspend")
        draft.put_reconciliation(desired_state="Suspended")


def _waits(draft: Draft, again: datetime) -> bool:
    """Whether the next try has to wait: until `again`, and longer where the store is away.

    Each savepoint that is asked for makes an object, which looks for it until the store is back.
    Checkpoints show the driver that it is back, or else its looks at the log.
    """
    if not draft.reached(again):
        draft.wake_at(again)
        return True
    operation, report = draft.operation, draft.report
    if operation.retries < _TRIES or operation.stop_mode != "Savepoint":
        return False
    if operation.type not in _WAITS_FOR_STORE or report is None or not report.storage_error:
        return False
    if draft.reached(again + _AWAY_PACE):
        return False
    text = f"{operation.type} waits for the store: {report.storage_error}"
    draft.put_operation(deadline=None, message=text)  # the next try has all of its time
    return True


def _is_kept(draft: Draft) -> bool:
    """Whether what is to run next is kept as a revision; else it is made first.

    Without it nothing could be started: whoever refuses it, such as a quota, must end no job.
    """
    name = target(draft)
    return draft.operation.type == "Suspend" or not name or keep_revision(draft, name)


def _hangs(draft: Draft) -> str:
    """Why a driver will take nothing, where it would be begun anew for that; else empty.

    It has a minute to answer. The last that there will be of a job is waited for, and what somebody
    wants to wait for.
    """
    operation, spec = draft.operation, policy(draft)
    if spec is None or operation.type == "Delete" or _fallback(draft) != "LastCheckpoint":
        return ""
    if spec.failure_policy.health.actions.no_progress == "Alert":
        return ""
    # What ran is brought back where the next revision is refused, but not by the order of a nonce.
    if operation.type == "Redeploy" and not _is_kept(draft):
        return ""
    if not draft.reached(operation.step_started_at + _WAIT):
        return ""
    found = trouble(draft)
    hangs = found is not None and found.reason == "NoProgress" and found.curable
    return f"the driver hangs: {found.message}" if found is not None and hangs else ""


def stopping(draft: Draft) -> None:
    """Wait for the end of a driver that was told to end; delete its pod if it does not."""
    draft.wake(draft.config.busy_resync)
    keep_snapshot(draft)
    deadline, pod = draft.operation.deadline, draft.pod
    if draft.is_unmade:
        draft.move("Fencing")
    elif draft.attempt.outcome:
        _over(draft)
    elif pod is not None and (deadline is None or draft.reached(deadline)):
        remove(draft, pod)


def keep_snapshot(draft: Draft) -> bool:
    """The savepoint of an operation is an object as well, until that is there again and again.

    Returns:
        False while its object still goes with its data, and is to stay: as the last that there is
        of a deleted job.
    """
    operation, known = draft.operation, draft.world.snapshots
    name = operation.snapshot_name
    if not name or isinstance(known, Unreadable) or draft.world.namespace_terminating:
        return True
    can_be = object_names(draft.meta.name, name)
    is_last = operation.type == "Delete"
    policies = {one.meta.name: one.spec.deletion_policy for one in known if one.meta.name in can_be}
    # One that an upgrade began, and that became the last, is to stay as well.
    goes = [one for one, policy in policies.items() if is_last and policy == "Delete"]
    if policies and not goes:
        return True
    spec = {
        "jobRef": {"name": draft.meta.name},
        "type": "Savepoint",
        "name": name,
        # What a deleted job leaves is all that there is of it; the others are tidied by retention.
        "deletionPolicy": "Retain" if is_last else "Delete",
    }
    trigger: Literal["Final", "Upgrade"] = "Final" if is_last else "Upgrade"
    draft.do(KeepSnapshot((*goes, *can_be)[0], spec, trigger, operation.id))
    return not goes


def age_of_checkpoint(draft: Draft) -> str:
    """How old the newest completed checkpoint is, for people."""
    last = draft.status.snapshots.last_checkpoint
    if last is None:
        return "there is no checkpoint yet"
    seconds = max(0.0, (draft.now - last.completed_at).total_seconds())
    return f"checkpoint {last.id} is {seconds:.0f} s old"


# -- asking ------------------------------------------------------------------------------------


def aim(draft: Draft, mode: StopMode) -> None:
    """Write what the driver is asked for next, under a new id."""
    operation = draft.operation
    again = f"-{operation.retries}" if operation.retries else ""
    name = ""
    if mode == "Savepoint":
        name = f"{operation.type.lower()}-{operation.id}{again}-{draft.tag}"[:_LONGEST_NAME]
    draft.put_operation(
        stop_mode=mode,
        snapshot_request_id=f"{operation.id}-stop{again}",
        snapshot_name=name,
        not_before=None,
        deadline=operation.deadline or _deadline(draft, mode),
    )


def _deadline(draft: Draft, mode: StopMode) -> datetime:
    spec = policy(draft)
    if spec is not None and mode == "Savepoint":
        return draft.now + spec.savepoint.timeout.timedelta
    if spec is not None and mode == "Checkpoint":
        return draft.now + spec.checkpoint.timeout.timedelta
    return draft.now + timedelta(seconds=draft.config.stop_timeout)


def ask(draft: Draft) -> None:
    """Send the request, unless the driver has it already or cannot be asked now."""
    if not draft.operation.snapshot_request_id or draft.operation.deadline is None:
        aim(draft, draft.operation.stop_mode or "Checkpoint")
    keep_snapshot(draft)
    if isinstance(draft.world.report, Unreadable) or request_view(draft) is not None:
        return
    operation, attempt = draft.operation, draft.attempt
    body = StopBody(
        request_id=operation.snapshot_request_id,
        mode=operation.stop_mode or "Checkpoint",
        name=operation.snapshot_name or None,
        release=operation.type == "Delete" and operation.reason == "Retain",
    )
    draft.do(AskDriver(attempt.number, STOP_PATH, body))


def request_view(draft: Draft) -> RequestView | None:
    """How far the driver is with what it was asked; None if it knows of nothing, or is silent."""
    report, wanted = draft.report, draft.operation.snapshot_request_id
    if report is None or not wanted:
        return None
    return next((one for one in report.requests if one.request_id == wanted), None)


def _is_reverted(draft: Draft) -> bool:
    """Whether what it was begun for is not wanted any more."""
    operation = draft.operation
    if operation.type not in ("Upgrade", "Rescale", "Suspend") or operation.reason == RESTART:
        return False
    if operation.type == "Suspend" and desired(draft) == "Running":
        return True  # what was edited besides begins by its own rules, such as to wait
    same = target(draft) in ("", draft.attempt.revision)
    asked = desired(draft) == "Running" and same and not is_new_nonce(draft)
    return asked and not _is_half_way(draft)


def _is_half_way(draft: Draft) -> bool:
    """Whether the driver was rescaled in place, and runs as wide as no version says."""
    report, spec = draft.report, running_spec(draft)
    if draft.operation.type != "Rescale" or report is None or spec is None:
        return False
    executors = executor_count(spec.executor, spec.scaling.parallelism)
    # Here as there, of what it does not say, which is 0, nothing is known.
    return has_other_subtasks(report, spec) or report.executors_desired not in (0, executors)


def is_left_half_way(draft: Draft) -> bool:
    """Whether that is so, and what came in place of the rescale has come to nothing."""
    report, spec = draft.report, running_spec(draft)
    if target(draft) not in ("", draft.attempt.revision):
        return False  # it waits for room, and what is asked of the driver would count as all of it
    if report is None or spec is None or all(one.kind != "Rescale" for one in report.requests):
        return False  # nobody has asked it, and another start would change nothing
    return has_other_subtasks(report, spec)


def has_other_subtasks(report: DriverState, spec: JobSpec) -> bool:
    """Whether a driver runs with others than these; of one that does not say, nothing is known."""
    return report.parallelism not in (0, spec.scaling.parallelism)


def _is_unheard(draft: Draft) -> bool:
    """Whether it is sure that the driver will not end: it says that it has no such request."""
    report = draft.report
    if report is None:
        return False
    # Under any id: one that it was late with may still be carried out after another try began.
    asked = f"{draft.operation.id}-stop"
    ours = (one for one in report.requests if one.request_id.startswith(asked))
    return all(one.state == "Failed" for one in ours)


def _cancel(draft: Draft) -> None:
    operation = draft.operation
    draft.put_reconciliation(desired_state="Running")
    end(draft)
    text = f"{operation.type} was taken back before anything was stopped"
    draft.tell("Normal", "OperationCancelled", text, operation.id)


# -- what came of it ---------------------------------------------------------------------------


def completed(draft: Draft, view: RequestView) -> None:
    """The snapshot is there; what is left is the driver's end."""
    if view.savepoint is not None:
        note_savepoint(draft, view.savepoint, draft.operation.id)
    if view.checkpoint is not None:
        draft.put_snapshots(last_checkpoint=view.checkpoint)
    if draft.operation.standby is not None:
        # Who waits beside it need not wait for its end: it writes nothing more, by the fence.
        draft.move("Fencing")
    else:
        deadline = draft.now + timedelta(seconds=draft.config.stop_timeout)
        draft.move("Stopping", deadline=deadline)


def _failed(draft: Draft, why: str) -> None:
    """Try again a few times; longer, if the store is away."""
    operation = draft.operation
    kind = "Savepoint" if operation.stop_mode == "Savepoint" else "Checkpoint"
    text = f"{kind} before {operation.type} failed: {why or 'nobody said why'}"
    draft.tell("Warning", f"{kind}Failed", text, operation.snapshot_request_id)
    away = draft.report is not None and bool(draft.report.storage_error)
    late = operation.deadline is not None and draft.reached(operation.deadline)
    if not late and (away or operation.retries + 1 < _TRIES):
        retry(draft, text, timedelta(seconds=_FIRST_RETRY * 2 ** min(operation.retries, 3)))
    else:
        _fall_back(draft, text)


def retry(draft: Draft, text: str, wait: timedelta) -> None:
    """Ask anew after a while, under another id."""
    draft.put_operation(
        retries=draft.operation.retries + 1,
        snapshot_request_id="",
        not_before=draft.now + wait,
        message=text,
    )
    draft.wake_at(draft.now + wait)


def _late(draft: Draft, text: str) -> None:
    """The driver has not done it in time. What it was asked cannot be taken back."""
    fallback, unheard = _fallback(draft), request_view(draft) is None
    if unheard and (draft.report is not None or fallback == "Fail"):
        _fall_back(draft, text)
    elif fallback == "Wait":
        _hold(draft, f"upgrade.fallback is Wait: {text}")
    else:
        _kill(draft, text)


def _fallback(draft: Draft) -> str:
    """What the policy wants where no savepoint can be taken; LastCheckpoint for all else."""
    operation, spec = draft.operation, policy(draft)
    if operation.type != "Upgrade" or operation.stop_mode != "Savepoint" or spec is None:
        return "LastCheckpoint"
    # It may have been edited since: without a mode or a version that wants one, none is waited for.
    running = running_spec(draft)
    only_scales = running is not None and classify(running, spec).kind == "Rescale"
    waits = spec.upgrade.mode == "Savepoint" and not only_scales
    return spec.upgrade.fallback if waits else "LastCheckpoint"


def _fall_back(draft: Draft, why: str) -> None:
    operation, fallback = draft.operation, _fallback(draft)
    away = draft.report is not None and bool(draft.report.storage_error)
    if operation.type in _WAITS_FOR_STORE and away:
        # Another driver could not restore: the job had better run on without checkpoints.
        _hold(draft, f"{operation.type} waits for the store: {why}")
    elif fallback == "Wait":
        _hold(draft, f"upgrade.fallback is Wait: {why}")
    elif fallback == "Fail":
        reject(draft, why)
    elif operation.stop_mode == "Savepoint":
        text = f"{operation.type} goes on from a checkpoint; {age_of_checkpoint(draft)}; {why}"
        draft.tell("Warning", "UpgradeModeFallback", text, operation.id)
        draft.put_operation(retries=operation.retries + 1, deadline=None, message=text)
        aim(draft, "Checkpoint")
    else:
        _kill(draft, why)


def _hold(draft: Draft, text: str) -> None:
    """Try once more after a while, for as long as it takes."""
    retry(draft, text, _WAIT)
    spec = policy(draft)
    timeout = spec.savepoint.timeout.timedelta if spec is not None else _WAIT
    draft.put_operation(deadline=draft.now + _WAIT + timeout)


def reject(draft: Draft, why: str) -> None:
    """Give the edit up; what runs, or ran, stays what it is."""
    operation = draft.operation
    give_up(draft, operation.target_revision)
    end(draft)
    text = (
        f"the new version is not started, as upgrade.fallback is Fail: {why}; change the spec or "
        "set the annotation moorage.dev/restart to try again"
    )
    draft.tell("Warning", "UpgradeFailed", text, operation.id)


def _kill(draft: Draft, why: str) -> None:
    """End the driver by its pod; SIGTERM lets it try a fast checkpoint."""
    draft.move("Stopping", deadline=draft.now, message=why)
    stopping(draft)


# -- the driver has ended ----------------------------------------------------------------------


def _over(draft: Draft) -> None:
    """Settle how state is carried over, now that the driver has ended."""
    operation, attempt = draft.operation, draft.attempt
    nothing_new = target(draft) in ("", attempt.revision) and not is_new_nonce(draft)
    if attempt.outcome == "Finished" and nothing_new:
        finish(draft)
        return
    if operation.mode_used or _settled(draft):
        draft.move("Fencing")
    elif operation.stop_mode != "Savepoint":
        draft.move("Fencing", mode_used="LastCheckpoint")
    else:
        _without_savepoint(draft)


def _settled(draft: Draft) -> bool:
    """Whether the savepoint is there."""
    point, operation = draft.status.next_restore, draft.operation
    if point is None or point.order_id != f"{operation.id}-{draft.tag}":
        return False
    draft.put_operation(mode_used="Savepoint", restore_point=point)
    return True


def _without_savepoint(draft: Draft) -> None:
    """The driver ended and did not say that the savepoint is there: the lineage's log knows."""
    operation, store = draft.operation, draft.world.store
    if isinstance(store, StoreView):
        found = _announced(draft, store)
        if found is not None:
            _take(draft, found)
            return
    elif not draft.reached(_ended_at(draft) + _STORE_PATIENCE):
        return
    fallback = _fallback(draft)
    why = draft.attempt.outcome_message or "the driver ended"
    if fallback == "LastCheckpoint":
        text = f"{operation.type} goes on from a checkpoint; {age_of_checkpoint(draft)}; {why}"
        draft.tell("Warning", "UpgradeModeFallback", text, operation.id)
        draft.move("Fencing", mode_used="LastCheckpoint", message=text)
        return
    if fallback == "Fail":
        reject(draft, why)
    after_end(draft)


def _ended_at(draft: Draft) -> datetime:
    return max(draft.attempt.ended_at or draft.now, draft.operation.step_started_at)


def _announced(draft: Draft, store: StoreView) -> LogPoint | None:
    spec = running_spec(draft)
    if spec is None:
        return None
    wanted = savepoint_path(spec, draft.operation.snapshot_name)
    known = store.savepoints.items()
    return next((point for address, point in known if same_place(address, wanted)), None)


def _take(draft: Draft, found: LogPoint) -> None:
    savepoint = SavepointInfo(
        name=draft.operation.snapshot_name,
        path=found.path,
        checkpoint_id=found.checkpoint_id,
        epoch=found.epoch,
        manifest_digest=found.manifest_digest,
        completed_at=found.completed_at,
    )
    note_savepoint(draft, savepoint, draft.operation.id)
    draft.move("Fencing", mode_used="Savepoint", restore_point=draft.status.next_restore)
