"""Other executors, or another parallelism, for a stream that runs on: the step Rescaling. Pure.

The driver is asked once, under the operation's name, and says itself how many executors it wants
and has, and how many subtasks. What it refuses, or does not get done in time though a restart
could, is done by a checkpoint and a restart. Until it is done, the attempt counts as one of the
old revision.
"""

from datetime import datetime, timedelta

from moorage_api.changes import SpecChange, declared
from moorage_api.driver import RESCALE_PATH, RescaleBody
from moorage_api.job import JobSpec
from moorage_api.sizing import executor_count
from moorage_operator.decide.draft import Draft
from moorage_operator.decide.health import trouble
from moorage_operator.decide.operations import begin, end
from moorage_operator.decide.recover import after_end, finish
from moorage_operator.decide.specs import (
    desired,
    is_new_nonce,
    keep_revision,
    note_begun,
    note_stable,
    policy,
    target,
    tidy_revisions,
)
from moorage_operator.decide.stop import begin_stop, has_other_subtasks, request_view
from moorage_operator.plan import AskDriver
from moorage_operator.world import Unreadable

_LIVE = {
    "InPlace": frozenset({"spec.executor.instances"}),
    "InPlaceParallelism": frozenset({"spec.executor.instances", "spec.scaling.parallelism"}),
}
"""By the job's mode, what a driver changes without a restart."""
_WEAK = ("Ignore", "Live")


def begin_rescale(draft: Draft, change: SpecChange) -> None:
    """Begin to go to another width: in place where that can be, else by a restart."""
    text = f"changed: {', '.join(change.fields)}"
    spec = policy(draft)
    if spec is not None and _is_live(change, spec.scaling.mode):
        _begin_in_place(draft, text)
    else:
        begin_stop(draft, "Rescale", "Checkpoint", "SpecChanged", text)


def tell_held(draft: Draft, until: datetime) -> None:
    """Tell of an edit of the parallelism that waits, and look again when it need not any more."""
    draft.wake_at(until)
    text = (
        f"{draft.world.declared_parallelism} subtasks are asked for, and the number changed less "
        f"than spec.scaling.cooldown ago; what is asked for at {until:%H:%M:%S} UTC is done then"
    )
    draft.tell("Normal", "RescaleHeld", text, f"{draft.meta.uid}-{until}")


def tell_waits(draft: Draft) -> None:
    """Tell of another parallelism that is asked for while a version is tried, or restores."""
    if waits := waits_for_trial(draft):
        key = f"{draft.operation.id}-{draft.world.asked_parallelism}"
        draft.tell("Normal", "RescaleHeld", waits, key)


def waits_for_trial(draft: Draft) -> str:
    """That another parallelism is asked for than that of the version under way; else empty."""
    spec, asked = draft.world.spec, draft.world.asked_parallelism
    if spec is None or not draft.world.holds_parallelism:
        return ""
    does = "restores" if draft.operation.step == "Verifying" else "is tried"
    return (
        f"{asked} subtasks are asked for while a version with {spec.scaling.parallelism} {does}; "
        "what is asked for once that is over is done then"
    )


def rescaling(draft: Draft) -> None:
    """Ask the driver for the executors, and see what comes of it."""
    draft.wake(draft.config.busy_resync)
    attempt = draft.attempt
    spec, view = policy(draft), request_view(draft)
    if draft.is_unmade:
        draft.move("Fencing")
    elif attempt.outcome == "Finished":
        finish(draft)
    elif attempt.outcome:
        after_end(draft)
    elif spec is not None and (spec.scaling.mode == "Restart" or _is_left_as_wide(draft)):
        _fall_back(draft, f"spec.scaling.mode is {spec.scaling.mode}")
    elif view is not None and view.state == "Failed":
        why = f"{view.error.message} (code {view.error.code})" if view.error else "nobody said why"
        _fall_back(draft, why)
    elif view is not None and view.state == "Completed":
        _see(draft)
    elif _is_late(draft):
        _fall_back(draft, "the driver did not take it up in time")
    else:
        _ask(draft)


def is_interrupted(draft: Draft) -> bool:
    """Whether something else is asked for by now."""
    if not draft.is_active or draft.is_unmade:
        return False
    if desired(draft) == "Suspended" or is_new_nonce(draft):
        return True
    restarts = draft.restart_asked and policy(draft) is not None
    return restarts or target(draft) != draft.operation.target_revision


def take_back(draft: Draft) -> None:
    """The edit is taken back, and the driver may have heard of it: ask for as many as before."""
    _begin_in_place(draft, "the edit was set back")


def _is_live(change: SpecChange, mode: str) -> bool:
    kinds = dict(declared())
    fields = {field for field in change.fields if kinds.get(field) not in _WEAK}
    return bool(fields) and fields <= _LIVE.get(mode, frozenset())


def _begin_in_place(draft: Draft, text: str) -> None:
    begin(draft, "Rescale", "Rescaling", "SpecChanged", text)
    message = f"{text}; {_what(draft)} are asked for, the stream runs on"
    draft.put_operation(
        message=message,
        snapshot_request_id=_request(draft),
        deadline=draft.now + _patience(draft),
    )
    rescaling(draft)


def _request(draft: Draft) -> str:
    return f"{draft.operation.id}-rescale"


def _meant(draft: Draft) -> JobSpec | None:
    known = draft.world.revisions.get(draft.operation.target_revision)
    return known.spec if known is not None else draft.world.spec


def _wanted(draft: Draft) -> int:
    """How many executors there are to be."""
    meant = _meant(draft)
    return executor_count(meant.executor, meant.scaling.parallelism) if meant is not None else 1


def _subtasks(draft: Draft) -> int | None:
    """How many subtasks there are to be; None where that takes a restart, and is as it was."""
    spec, meant = policy(draft), _meant(draft)
    if spec is None or meant is None or spec.scaling.mode != "InPlaceParallelism":
        return None
    return meant.scaling.parallelism


def _is_left_as_wide(draft: Draft) -> bool:
    """Whether the driver has another number of subtasks than is meant, and would be left with it.

    The mode was another one when this began.
    """
    meant, report = _meant(draft), draft.report
    if _subtasks(draft) is not None or meant is None or report is None:
        return False
    return has_other_subtasks(report, meant)


def _what(draft: Draft) -> str:
    subtasks, executors = _subtasks(draft), f"{_wanted(draft)} executors"
    return executors if subtasks is None else f"{subtasks} subtasks on {executors}"


def _patience(draft: Draft) -> timedelta:
    """Executors come, subtasks move with the next checkpoint, and executors go."""
    spec = policy(draft)
    least = timedelta(seconds=draft.config.start_timeout)
    if spec is None:
        return least
    interval = spec.checkpoint.effective_interval
    between = interval.timedelta if interval is not None else timedelta(0)
    return least + between + spec.checkpoint.timeout.timedelta


def _is_late(draft: Draft) -> bool:
    """Whether it has had its time, or its driver hangs, with which it would use up all of it."""
    found, deadline = trouble(draft), draft.operation.deadline
    if found is not None and found.curable and found.reason == "NoProgress":
        return True
    return deadline is not None and draft.reached(deadline)


def _ask(draft: Draft) -> None:
    keep_revision(draft, draft.operation.target_revision)
    if isinstance(draft.world.report, Unreadable) or request_view(draft) is not None:
        return
    if not draft.operation.snapshot_request_id:
        # Nothing of ours writes that; a status that a person made or mended may say it.
        draft.put_operation(snapshot_request_id=_request(draft))
    subtasks = _subtasks(draft)
    body = RescaleBody(
        request_id=draft.operation.snapshot_request_id,
        parallelism=subtasks,
        executors=_wanted(draft),
        declared=subtasks,
    )
    draft.do(AskDriver(draft.attempt.number, RESCALE_PATH, body))


def _see(draft: Draft) -> None:
    """The driver wants as many; it is done when it has them, and those that go are gone."""
    report, wanted = draft.report, _wanted(draft)
    if report is None or not keep_revision(draft, draft.operation.target_revision):
        return
    subtasks = _subtasks(draft)
    if subtasks not in {None, report.parallelism}:
        if _is_late(draft):
            _fall_back(draft, f"{report.parallelism} subtasks run and {subtasks} are wanted")
    elif report.executors_desired == wanted == report.executors_ready:
        _done(draft, f"{_what(draft)}, without a restart")
    elif not _is_late(draft):
        return
    elif report.executors_desired == wanted and _wait_for_room(draft):
        ready = report.executors_ready
        _done(draft, f"{ready} of {wanted} executors are ready, the others wait for room")
    else:
        text = f"{report.executors_ready} executors are ready and {wanted} are wanted"
        _fall_back(draft, f"not done in time: {text}")


def _wait_for_room(draft: Draft) -> bool:
    """Whether executors are missing that a restart would not bring either."""
    pods = draft.world.executors
    return not isinstance(pods, Unreadable) and any(pod.phase == "Pending" for pod in pods)


def _done(draft: Draft, text: str) -> None:
    """The attempt is one of the new revision from now on."""
    name, operation, old = draft.operation.target_revision, draft.operation, draft.attempt
    draft.put_attempt(revision=name)
    draft.put_reconciliation(current_revision=name, running_revision=name)
    trial = draft.status.reconciliation.trial
    note_begun(draft, name, old.number)
    if old.stable_since is not None:
        draft.put_reconciliation(stable_revision=name, trial=None)
        note_stable(draft, name)
    elif trial is not None and trial.revision == old.revision:
        # The same driver with the same program: its time goes on.
        renamed = tuple(name if one == old.revision else one for one in trial.unsaid)
        trial = trial.model_copy(update={"revision": name, "unsaid": renamed})
        draft.put_reconciliation(trial=trial)
    end(draft)
    draft.tell("Normal", "RescaledInPlace", text, operation.id)
    tidy_revisions(draft)


def _fall_back(draft: Draft, why: str) -> None:
    text = f"it is not changed in place: {why}; by a checkpoint and a restart instead"
    draft.tell("Warning", "RescaleFallback", text, draft.operation.id)
    begin_stop(draft, "Rescale", "Checkpoint", "SpecChanged", text)
