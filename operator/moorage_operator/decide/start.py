"""From a cleared place to a running stream: Fencing, Starting, Verifying. Pure.

The number of an attempt is written before its pod is made, so that an operator that dies in between
makes the same pod again. What a start begins from is decided once, with the number.
"""

from datetime import timedelta

from moorage_api.driver import PROMOTE_PATH, PromoteBody, RestoreOrder, StartOrder
from moorage_api.status import AttemptStatus, JobView, RestorePointStatus
from moorage_operator.decide.draft import Draft
from moorage_operator.decide.fencing import cleared
from moorage_operator.decide.findings import cure, findings
from moorage_operator.decide.health import is_ready
from moorage_operator.decide.leaving import being_released, note_left
from moorage_operator.decide.observed import note_unread
from moorage_operator.decide.operations import begin, block, end
from moorage_operator.decide.recover import after_end, finish
from moorage_operator.decide.rescale import tell_waits
from moorage_operator.decide.restore_point import (
    Obstacle,
    next_restore,
    obstacle,
    with_newest_known,
)
from moorage_operator.decide.rollback import note_start, roll_back_if_late
from moorage_operator.decide.room import hinders_start, lacks_start, tell_fewer
from moorage_operator.decide.specs import (
    REVISION_REFUSED,
    desired,
    give_up,
    is_given_up,
    is_new_nonce,
    is_valid,
    keep_revision,
    newest_name,
    note_begun,
    note_restart,
    pass_over_restart,
    policy,
    target,
    tidy_revisions,
)
from moorage_operator.decide.stop import keep_snapshot
from moorage_operator.plan import AskDriver, StartDriver, TidyAttempt
from moorage_operator.world import StoreView

_WHILE_NO_ROOM = 10.0


def fencing(draft: Draft) -> None:
    """Wait until nothing of earlier attempts is left, then start, or rest."""
    keep_snapshot(draft)
    if draft.operation.standby is not None and _hand_over(draft):
        return
    if not cleared(draft):
        return
    _close_attempt(draft)
    if _finished_instead(draft):
        finish(draft)
    elif desired(draft) == "Suspended":
        _rest(draft)
    elif not (draft.on_trial and roll_back_if_late(draft)) and not _waits(draft):
        _launch(draft)


def starting(draft: Draft) -> None:
    """Make the pod, again and again until it is seen."""
    attempt = draft.attempt
    if attempt.outcome:
        after_end(draft)
    elif attempt.driver_uid:
        draft.move("Verifying", deadline=draft.operation.deadline)
    elif _is_outdated(draft) or draft.world.namespace_terminating:
        draft.move("Fencing")
    elif cleared(draft):
        draft.do(StartDriver(attempt.revision, _order(draft)))
        draft.wake(draft.config.busy_resync)


def verifying(draft: Draft) -> None:
    """Wait until the stream runs."""
    attempt = draft.attempt
    draft.wake(draft.config.busy_resync)
    tell_fewer(draft)
    if draft.world.holds_parallelism:
        tell_waits(draft)
    if draft.report is not None and draft.report.standby:
        _promote(draft)
    if attempt.outcome:
        after_end(draft)
    elif attempt.running_since is not None:
        _done(draft)
    elif desired(draft) == "Suspended":
        begin(draft, "Suspend", "Fencing", "SpecChanged", "desiredState is Suspended")
    elif target(draft) not in ("", attempt.revision) or is_new_nonce(draft):
        _supersede(draft)
    elif draft.restart_asked and policy(draft) is not None:
        note_restart(draft)
        _supersede(draft)
    elif (draft.on_trial and roll_back_if_late(draft)) or cure(draft, findings(draft)):
        return
    elif _hangs(draft):
        text = f"the stream did not run within {draft.config.start_timeout:.0f} s"
        after_end(draft, reason="StartTimedOut", message=f"{text}, and the driver does not answer")


# -- Fencing -----------------------------------------------------------------------------------


def _close_attempt(draft: Draft) -> None:
    """An attempt whose pod is gone, or was never made, is over."""
    if draft.is_active:
        draft.put_attempt(
            outcome="Stopped",
            outcome_reason="Superseded",
            ended_at=draft.now,
            missing_since=None,
        )
        note_unread(draft)


def _finished_instead(draft: Draft) -> bool:
    """The job came to its end while it was to be stopped, and nothing new is asked of it."""
    attempt = draft.attempt
    if attempt.outcome != "Finished":
        return False
    return target(draft) in ("", attempt.revision) and not is_new_nonce(draft)


def _rest(draft: Draft) -> None:
    """Nothing is to run."""
    operation = draft.operation
    draft.put_reconciliation(desired_state="Suspended")
    draft.put_restarts(next_retry_at=None, backoff_level=0, disruptions=())
    pass_over_restart(draft, "spec.desiredState is Suspended")
    end(draft)
    point, last = draft.status.given_point, draft.status.snapshots.last_checkpoint
    given = point is not None and point.mode != "Latest"
    kept = point if given else last
    where = (kept.path if kept is not None else "") or "its beginning"
    draft.tell("Normal", "Suspended", f"The job is stopped; it goes on from {where}", operation.id)


def _waits(draft: Draft) -> bool:
    """Whether a wait after a failure is not over. What a person does ends it."""
    retry_at = draft.status.restarts.next_retry_at
    if retry_at is None or draft.reached(retry_at):
        return False
    edited = is_valid(draft) and draft.meta.generation > _generation(draft)
    if edited or draft.restart_asked:
        return False
    draft.wake_at(retry_at)
    return True


def _generation(draft: Draft) -> int:
    """The object's generation when the operation began."""
    return int(draft.operation.id.partition("-")[0])


def _launch(draft: Draft) -> None:
    _reject_if_asked(draft)
    note_restart(draft)
    name = target(draft)
    if not name:
        block(draft, "InvalidSpec", "there is no valid spec to start; correct the spec")
        return
    is_new = name != draft.operation.target_revision
    if is_new:
        draft.put_operation(target_revision=name)
    if draft.operation.type == "Rollback" and name != draft.status.reconciliation.stable_revision:
        draft.put_operation(type="Upgrade")  # somebody edited meanwhile: it is no way back
    hindrance = obstacle(draft) or being_released(draft, name) or hinders_start(draft)
    point = hindrance if hindrance is not None else next_restore(draft)
    if isinstance(point, Obstacle):
        _stay(draft, point)
    elif keep_revision(draft, name):
        _count_up(draft, name, with_newest_known(draft, point))
    elif not is_new and draft.world.trouble and draft.operation.reason != REVISION_REFUSED:
        _bring_back(draft, name)
    else:
        draft.wake(draft.config.busy_resync)


def _bring_back(draft: Draft, name: str) -> None:
    """What ran goes on, if it can, where the version after it was refused, as a quota does.

    The next one is tried again as soon as the job runs.
    """
    old, ran = draft.attempt.revision, draft.status.reconciliation.running_revision
    follows = draft.operation.type in ("Upgrade", "Rescale", "Recover") and not is_new_nonce(draft)
    if follows and old == ran and old in draft.world.revisions:
        text = f"{old} goes on, as {name} cannot be kept: {draft.world.trouble}"
        begin(draft, "Recover", "Fencing", REVISION_REFUSED, text)
        told = f"The job is started again as it was: {text}"
        draft.tell("Normal", "RestartScheduled", told, draft.operation.id)
    draft.wake(draft.config.busy_resync)


def _hand_over(draft: Draft) -> bool:
    """Let the driver that runs beside the old one lead, if it still can; say whether it does."""
    operation, pod = draft.operation, draft.world.standby_driver
    known, spec = operation.standby, policy(draft)
    wanted = desired(draft) == "Running" and not is_new_nonce(draft)
    same = target(draft) == operation.target_revision
    lives = pod is not None and pod.phase == "Running" and not (pod.ended or pod.deleted_at)
    if known is None or pod is None or spec is None or not (wanted and same and lives):
        # It goes like all that no status names, and a start follows like any other.
        draft.put_operation(standby=None)
        return False
    revision, point = operation.target_revision, RestorePointStatus(mode="Latest")
    _become(draft, known.attempt, revision, point)
    draft.put_attempt(driver_uid=pod.uid, stood_by=True)
    deadline = draft.now + timedelta(seconds=draft.config.start_timeout)
    draft.move("Verifying", deadline=deadline, restore_point=point, standby=None)
    text = f"Driver {draft.attempt.driver_pod} of revision {revision}, which ran beside, leads now"
    draft.tell("Normal", "StandbyPromoted", text, operation.id)
    _promote(draft)
    return True


def _promote(draft: Draft) -> None:
    """Tell a driver that stands by, and is the job's, to lead; the same request counts once."""
    number = draft.attempt.number
    wanted = f"promote-{number}"
    report = draft.report
    if report is None or all(one.request_id != wanted for one in report.requests):
        draft.do(AskDriver(number, PROMOTE_PATH, PromoteBody(request_id=wanted)))


def _reject_if_asked(draft: Draft) -> None:
    """No savepoint can be taken of a failed job: with fallback Fail the edit is refused."""
    operation, spec = draft.operation, policy(draft)
    if operation.type != "Recover" or spec is None or not is_valid(draft):
        return
    held = target(draft) != newest_name(draft)
    if held and not is_given_up(draft) and spec.upgrade.fallback == "Fail":
        give_up(draft, newest_name(draft))
        text = (
            "the job is failing, so no savepoint can be taken, and upgrade.fallback is Fail; the "
            "old version is brought back. Change the spec or set moorage.dev/restart to try again"
        )
        draft.tell("Warning", "UpgradeFailed", text, operation.id)


def _stay(draft: Draft, hindrance: Obstacle) -> None:
    if hindrance.passes:
        draft.put_operation(message=hindrance.message)
        # Of a quota no watch tells, and others may wait for the same.
        held = bool(lacks_start(draft))
        draft.wake(_WHILE_NO_ROOM if held else draft.config.busy_resync)
    else:
        block(draft, hindrance.reason, hindrance.message)


def _count_up(draft: Draft, revision: str, point: RestorePointStatus) -> None:
    """Write the next attempt, and have it made."""
    number = _next_number(draft)
    _become(draft, number, revision, point)
    deadline = draft.now + timedelta(seconds=draft.config.start_timeout)
    draft.move("Starting", deadline=deadline, restore_point=point, not_before=None)
    draft.do(StartDriver(revision, _order(draft)))
    text = f"Driver {draft.attempt.driver_pod} of revision {revision} begins from {_from(point)}"
    draft.tell("Normal", "Submitted", text, f"{number}")


def _become(draft: Draft, number: int, revision: str, point: RestorePointStatus) -> None:
    """The job's attempt is this one from now on."""
    note_left(draft, revision)
    spec = draft.world.revisions[revision].spec
    old = draft.status.reconciliation
    if old.stable_revision:
        note_start(draft, revision, number, point)
    note_begun(draft, revision, number)
    draft.put(
        next_restore=None,
        job=JobView(),
        attempt=AttemptStatus(
            number=number,
            revision=revision,
            restore_point=point,
            adopt_lineage=draft.meta.annotation("adopt-lineage"),
            driver_pod=draft.pod_name(number),
            started_at=draft.now,
        ),
    )
    followed = max(old.restore_nonce, spec.restore.nonce)
    draft.put_reconciliation(
        current_revision=revision, restore_nonce=followed, desired_state="Running"
    )
    draft.put_restarts(next_retry_at=None)
    note_restart(draft)


def _next_number(draft: Draft) -> int:
    """One more than any attempt that left a trace."""
    known = [draft.attempt.number, draft.status.reconciliation.standby_attempt]
    return max([*known, *(pod.attempt for pod in draft.drivers)]) + 1


def _from(point: RestorePointStatus) -> str:
    if point.mode == "Path":
        return point.path
    return "the newest checkpoint" if point.mode == "Latest" else "nothing"


# -- Starting and Verifying --------------------------------------------------------------------


def _is_outdated(draft: Draft) -> bool:
    """Whether the attempt is no longer the one to make."""
    attempt = draft.attempt
    if desired(draft) == "Suspended" or attempt.revision not in draft.world.revisions:
        return True
    return target(draft) not in ("", attempt.revision) or is_new_nonce(draft)


def _order(draft: Draft) -> StartOrder:
    attempt = draft.attempt
    point = attempt.restore_point or RestorePointStatus(mode="Latest")
    restore = RestoreOrder(
        mode=point.mode, path=point.path, digest=point.digest, order_id=point.order_id
    )
    return StartOrder(
        attempt=attempt.number,
        cluster_id=draft.config.cluster_id,
        job_uid=draft.meta.uid,
        restore=restore,
        adopt_lineage=attempt.adopt_lineage,
    )


def _supersede(draft: Draft) -> None:
    """The spec is another one by now, and the stream has not run: begin again with that."""
    operation = draft.operation
    kind = operation.type if operation.type != "Recover" else "Upgrade"
    text = "the spec changed before the stream ran"
    begin(draft, kind, "Fencing", "SpecChanged", text, mode_used=operation.mode_used)
    draft.tell("Normal", "SpecChanged", text, draft.operation.id)


def _hangs(draft: Draft) -> bool:
    """Whether a driver whose container runs says nothing for too long."""
    # One that answers takes the time it needs; one that waits for an image or a node has its reason
    # in the conditions, and starting it anew would not help. One whose pod is ready, or that
    # completes checkpoints, only cannot be reached from here.
    deadline, pod = draft.operation.deadline, draft.pod
    if deadline is None or not draft.reached(deadline) or pod is None or draft.report is not None:
        return False
    if pod.phase != "Running" or draft.world.report is None or is_ready(pod):
        return False
    patience = timedelta(seconds=draft.config.start_timeout)
    if isinstance(draft.world.store, StoreView):
        moved = draft.status.job.last_progress_time
        return moved is None or draft.reached(moved + patience)
    return draft.reached(deadline + patience)


def _done(draft: Draft) -> None:
    operation, attempt = draft.operation, draft.attempt
    end(draft)
    draft.tell("Normal", "DriverReady", f"The stream runs in {attempt.driver_pod}", operation.id)
    restored = attempt.restored_from
    if restored is not None:
        age = ""
        if restored.completed_at is not None:
            seconds = (draft.now - restored.completed_at).total_seconds()
            age = f", {max(0.0, seconds):.0f} s old"
        draft.tell("Normal", "Restored", f"Restored from {restored.path}{age}", operation.id)
    if operation.type == "Rollback":
        draft.tell("Normal", "RolledBack", f"{attempt.revision} runs again", operation.id)
    if operation.type == "Resume":
        draft.tell("Normal", "Resumed", "The job runs again", operation.id)
    draft.do(TidyAttempt(below=attempt.number))
    tidy_revisions(draft)
