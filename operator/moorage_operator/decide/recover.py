"""Why a driver ended, what kind of failure that is, and what follows. Pure.

The reason of an end is kept in the status, and its kind follows from the reason alone: a pod that
is gone later takes no knowledge with it. A pod's phase is believed before its containers, and what
the driver said before what the kubelet guesses. A failure is counted once: in the write that takes
note of it, the operation that answers it begins.
"""

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Literal

from moorage_api.driver import DriverEnd
from moorage_api.lifecycle import Backoff, FailurePolicy
from moorage_api.status import OperationType
from moorage_operator.decide.draft import Draft
from moorage_operator.decide.fencing import remove
from moorage_operator.decide.operations import FAILED, begin, block
from moorage_operator.decide.rollback import give_time, is_late, roll_back, waits_for_store
from moorage_operator.decide.specs import (
    desired,
    is_given_up,
    is_new_nonce,
    newest_name,
    note_restart,
    pass_over_restart,
    policy,
)
from moorage_operator.world import PodView, StoreView

Outcome = Literal["Finished", "Stopped", "Failed"]
_SHOWN = 600


class FailureKind(Enum):
    """What is done about a failure."""

    INFRASTRUCTURE = "started again at once, unless it comes again and again; not the job's fault"
    APPLICATION = "started again after a wait that doubles"
    STORE = "started again after a wait; it counts towards nothing"
    REFUSED = "blocked: another start would end the same way"


@dataclass(frozen=True, slots=True)
class End:
    """How a driver ended."""

    outcome: Outcome
    reason: str
    message: str


_CODES = {
    "adopt_required": "AdoptRequired",
    "checkpoint_dir_conflict": "CheckpointDirConflict",
    "corrupt_state": "StateCorrupt",
    "fenced": "Fenced",
    "illegal_configuration": "InvalidJob",
    "local_disk_error": "LocalDiskFailed",
    "manifest_error": "InvalidJob",
    "output_conflict": "OutputConflict",
    "source_offsets_lost": "SourceOffsetsLost",
    "state_size_exceeded": "InvalidJob",
    "state_too_large": "LocalDiskFailed",
    "store_denied": "StoreDenied",
    "store_refused": "StoreRefused",
    "store_unavailable": "StoreUnavailable",
    "user_error": "InvalidJob",
    "user_function": "UserCodeFailed",
}

_KINDS = {
    "AdoptRequired": FailureKind.REFUSED,
    "CheckpointDirConflict": FailureKind.REFUSED,
    "Fenced": FailureKind.REFUSED,
    "InvalidJob": FailureKind.REFUSED,
    "OutputConflict": FailureKind.REFUSED,
    "SourceOffsetsLost": FailureKind.REFUSED,
    "StoreDenied": FailureKind.REFUSED,
    "StoreRefused": FailureKind.REFUSED,
    "StoreUnavailable": FailureKind.STORE,
    "DriverDeleted": FailureKind.INFRASTRUCTURE,
    "DriverEvicted": FailureKind.INFRASTRUCTURE,
    "DriverLost": FailureKind.INFRASTRUCTURE,
    "DriverPreempted": FailureKind.INFRASTRUCTURE,
    "DriverRejected": FailureKind.INFRASTRUCTURE,
    "DriverStopped": FailureKind.INFRASTRUCTURE,
    "NodeLost": FailureKind.INFRASTRUCTURE,
    "NodeShutdown": FailureKind.INFRASTRUCTURE,
}

_RESTORE_POINT = "restore_point_"
_FENCED_EXIT = 6
_SIGKILL = 137

_POD_REASONS = {
    "Evicted": "DriverEvicted",
    "Preempting": "DriverPreempted",
    "Preempted": "DriverPreempted",
    "NodeLost": "NodeLost",
    "NodeShutdown": "NodeShutdown",
    "Shutdown": "NodeShutdown",
    "Terminated": "NodeShutdown",
    "NodeAffinity": "DriverRejected",
    "UnexpectedAdmissionError": "DriverRejected",
}
_DISRUPTIONS = {
    "PreemptionByScheduler": "DriverPreempted",
    "DeletionByTaintManager": "NodeLost",
    "DeletionByPodGC": "NodeLost",
}
"""By the reason of the condition; whatever else is said there, the driver was evicted."""
_OWN_LIMITS = (
    "ephemeral local storage usage exceeds",
    "exceeded its local ephemeral storage limit",
    "usage of emptydir volume",
)
"""Words of the kubelet's where it evicts a pod for what that wrote, whatever room the node has."""
_DISK_FIX = (
    "Let the driver write less, or raise in spec.driver.podTemplate what that message names: "
    "limits.ephemeral-storage or the emptyDir's sizeLimit"
)
_BY_KUBELET = {"shutdown": "NodeShutdown", "preempted": "DriverPreempted"}
"""By a word of the message, as the kubelet has one reason for all that it ends."""


def kind_of(reason: str) -> FailureKind:
    """What is done about an end with this reason."""
    if reason.startswith("RestorePoint"):
        return FailureKind.REFUSED
    return _KINDS.get(reason, FailureKind.APPLICATION)


def judge(pod: PodView) -> End:
    """How the driver in a pod ended whose container will not run again."""
    end = pod.end
    if end is not None and end.outcome == "Finished":
        more = f"; {end.message}" if end.message else ""
        return End("Finished", "Finished", _short(f"the job's input ended{more}"))
    if end is not None and end.outcome == "Stopped":
        return End("Stopped", _disruption(pod) or "DriverStopped", _stopped(pod))
    if end is not None and kind_of(_said(end)) is FailureKind.REFUSED:
        return End("Failed", _said(end), _told(end))
    disruption = _disruption(pod)
    if disruption:
        return End("Failed", disruption, _short(_by_whom(pod) or pod.reason))
    if end is not None:
        return End("Failed", _said(end), _told(end))
    return _without_a_word(pod)


def backoff(policy: Backoff, level: int, seed: str) -> timedelta:
    """The wait before restart number `level` in a row: doubled each time, up to a fifth shorter.

    The shortening spreads jobs that failed together; it follows from `seed` alone.
    """
    longest = policy.max.seconds
    doubled = min(policy.initial.seconds * 2.0 ** min(level, 60), longest)
    share = int.from_bytes(hashlib.sha256(seed.encode()).digest()[:4], "big") / 2**32
    return timedelta(seconds=round(doubled * (1.0 - 0.2 * share), 3))


def ran_for(since: datetime | None, until: datetime) -> timedelta:
    """How long a stream ran that began at `since`, if ever."""
    return until - since if since is not None else timedelta(0)


def _said(end: DriverEnd) -> str:
    """The reason for an error's code."""
    if end.code.startswith(_RESTORE_POINT):
        return "".join(word.capitalize() for word in end.code.split("_"))
    return _CODES.get(end.code, "DriverFailed")


def _told(end: DriverEnd) -> str:
    return _short(f"{end.message} (code {end.code})" if end.code else end.message)


def _stopped(pod: PodView) -> str:
    why = _by_whom(pod)
    return _short(f"the driver was told to end: {why}" if why else "the driver was told to end")


def _by_whom(pod: PodView) -> str:
    """What is said about who took a pod away, if anything is."""
    said = pod.disrupted or pod.message
    return f"{said.rstrip()} {_DISK_FIX}" if _is_over_limit(pod) else said


def taken_by(pod: PodView) -> str:
    """The reason why a pod that still runs is being taken away; empty if it is not."""
    return _disruption(pod) if pod.deleted_at is not None or pod.disrupted else ""


def _disruption(pod: PodView) -> str:
    """The reason, if something other than the job's program ended the pod; else empty."""
    if _is_over_limit(pod):
        return "DriverStorageExceeded"
    if pod.reason in _POD_REASONS:
        return _POD_REASONS[pod.reason]
    if pod.reason.startswith("OutOf"):
        return "DriverRejected"
    if pod.disrupted:
        said = pod.disrupted.lower() if pod.disrupted_by == "TerminationByKubelet" else ""
        by_kubelet = next((why for word, why in _BY_KUBELET.items() if word in said), "")
        return by_kubelet or _DISRUPTIONS.get(pod.disrupted_by, "DriverEvicted")
    if pod.deleted_at is not None and not _ended_by_itself(pod):
        return "DriverDeleted"
    return ""


def _is_over_limit(pod: PodView) -> bool:
    """Whether it was evicted for its own limits: wherever it is started it fills them again."""
    return pod.reason == "Evicted" and any(words in pod.message.lower() for words in _OWN_LIMITS)


def _ended_by_itself(pod: PodView) -> bool:
    """Whether the container had ended before anybody deleted its pod, or ran out of memory."""
    ended = pod.ended
    if ended is None:
        return False
    if ended.reason == "OOMKilled":
        return True
    if ended.finished_at is None or pod.deleted_at is None:
        return False
    return ended.finished_at < pod.deleted_at


def _without_a_word(pod: PodView) -> End:  # noqa: PLR0911  one line a case
    """The driver left no message that can be read: the kubelet's word counts."""
    ended = pod.ended
    if ended is None and pod.phase == "Succeeded":
        return _no_record("its pod succeeded")
    if ended is None:
        text = pod.message or pod.reason or "its pod failed, and nobody said why"
        return End("Failed", "DriverFailed", _short(text))
    if ended.reason == "OOMKilled":
        text = "the driver ran out of memory; raise spec.driver.memory"
        return End("Failed", "DriverOOMKilled", text)
    if ended.exit_code == _FENCED_EXIT:
        return End("Failed", "Fenced", "another driver took the lineage over")
    if ended.exit_code == 0:
        return _no_record("it ended with status 0")
    if ended.reason in ("ContainerCannotRun", "StartError"):
        return End("Failed", "ContainerCannotRun", _short(ended.message or ended.reason))
    reason = "DriverKilled" if ended.exit_code == _SIGKILL else "DriverFailed"
    return End("Failed", reason, f"the driver ended with status {ended.exit_code}")


def _no_record(how: str) -> End:
    text = f"{how} without a record of its end, so the stream is not known to be finished"
    return End("Failed", "NoResultRecord", text)


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _SHOWN else f"{flat[: _SHOWN - 1]}…"


_MOST_COUNTED = 64
_SPARED = 2
"""Ends in backoff.resetAfter that the job cannot help, and that are mended at once."""
_NOT_THE_VERSIONS = (
    "AdoptRequired",
    "CheckpointDirConflict",
    "Fenced",
    "StoreDenied",
    "StoreRefused",
)
"""Reasons of refusals that another version would meet as well."""
_RESTORE_TRIES = 3

_FIXES = {
    "AdoptRequired": "make sure that the other object is gone, then annotate this one with "
    "moorage.dev/adopt-lineage=LINEAGE",
    "CheckpointDirConflict": "give this job its own spec.state.checkpointDir",
    "Fenced": "make sure that nothing else runs on spec.state.checkpointDir, then set the "
    "annotation moorage.dev/restart to a new value",
    "InvalidJob": "correct the spec or the job's code",
    "OutputConflict": "move the output folder away or name another, or begin with the newest point "
    "of the lineage that wrote it: correct spec.restore and raise its nonce",
    "RestorePointChanged": "name a restore point that exists: raise spec.restore.nonce",
    "RestorePointNotFound": "name a restore point that exists: correct spec.restore and raise its "
    "nonce",
    "SourceOffsetsLost": "the source no longer has what the job must read next; restore from a "
    "newer point by spec.restore with a higher nonce; or accept the loss with "
    "spec.restore.onMissingOffsets: Skip, then set the annotation moorage.dev/restart anew",
    "StoreDenied": "give the job read, write, list and delete rights on its directories, then set "
    "the annotation moorage.dev/restart to a new value",
}
_FIX = "correct what it says, then change the spec or set the annotation moorage.dev/restart"


def after_end(draft: Draft, reason: str = "", message: str = "") -> None:
    """Answer the end of the current attempt.

    Args:
        reason: why, if the operator itself found it wanting; else as the attempt says.
    """
    attempt = draft.attempt
    if attempt.outcome == "Finished" and not reason:
        finish(draft)
        return
    reason = reason or attempt.outcome_reason or "DriverLost"
    message = message or attempt.outcome_message
    kind = kind_of(reason)
    if reason == "Fenced" and _may_be_our_own(draft):
        kind = FailureKind.STORE
    if draft.world.store is None and waits_for_store(draft) and _is_last(draft):
        draft.wake(draft.config.busy_resync)  # it is being read
        return
    draft.put_restarts(last_reason=reason, last_message=message, last_time=draft.now)
    draft.tell("Warning", reason, message or reason, f"{attempt.number}")
    if kind is FailureKind.STORE:
        give_time(draft)
    if _ended_in_restore(draft, reason):
        draft.put_restarts(restore_failures=draft.status.restarts.restore_failures + 1)
    hopeless = kind is FailureKind.REFUSED or _restore_fails(draft) or is_late(draft)
    if hopeless and reason not in _NOT_THE_VERSIONS and roll_back(draft, f"{reason}: {message}"):
        return
    if kind is FailureKind.REFUSED:
        _refuse(draft, reason, f"{message}; {_FIXES.get(reason, _FIX)}", reason)
    elif _restore_fails(draft) and not waits_for_store(draft):
        _refuse(draft, "RestoreFailing", _restore_failing(draft, message), reason)
    else:
        restart(draft, kind, reason, message)


def _is_last(draft: Draft) -> bool:
    """Whether the version on trial may be rolled back, or the job given up, for this end."""
    spec, failures = policy(draft), draft.status.restarts.restore_failures
    rules = spec.failure_policy if spec is not None else FailurePolicy()
    used_up = 0 <= rules.max_restarts <= len(_window(draft, rules))
    return used_up or failures + 1 >= _RESTORE_TRIES or is_late(draft)


def _restore_fails(draft: Draft) -> bool:
    return draft.status.restarts.restore_failures >= _RESTORE_TRIES


def finish(draft: Draft) -> None:
    """The job's input has ended, and with it the job."""
    attempt = draft.attempt
    ended = attempt.ended_at or draft.now
    draft.put(operation=None, finished_at=ended)
    draft.put_restarts(next_retry_at=None)
    pass_over_restart(draft, "the job has just finished; a new value starts it again from its end")
    draft.tell("Normal", "Finished", "The job has read all its input", f"{attempt.number}")
    draft.wake(draft.config.busy_resync)


def restart(draft: Draft, kind: FailureKind, reason: str, message: str) -> None:
    """Bring the job back, at once or after a wait; or give up, if the policy says so."""
    spec = policy(draft)
    rules = spec.failure_policy if spec is not None else FailurePolicy()
    _reset_if_it_ran_well(draft, rules)
    counts = kind is FailureKind.APPLICATION or (
        kind is FailureKind.INFRASTRUCTURE and rules.infrastructure.count_as_restart
    )
    if kind is FailureKind.INFRASTRUCTURE:
        _note_disruption(draft, rules)
    window = _window(draft, rules)
    if counts and 0 <= rules.max_restarts <= len(window):
        if roll_back(draft, f"{reason}: {message}"):
            return
        if not waits_for_store(draft):
            _give_up(draft, rules, reason, message)
            return
        counts = False  # it is tried again until that can be decided
    restarts, again = draft.status.restarts, len(draft.status.restarts.disruptions) - _SPARED - 1
    level, often = restarts.backoff_level, ""
    # What the job could not help raises no later wait of its own failures, unless it never ran.
    raised = kind is not FailureKind.INFRASTRUCTURE or not _has_run(draft, rules)
    if kind is FailureKind.INFRASTRUCTURE:
        level = max(level, again) if raised else again
        often = f" ({_SPARED + again + 1} such ends in {rules.backoff.reset_after})"
    wait = timedelta(0)
    if level >= 0:
        wait = backoff(rules.backoff, level, f"{draft.meta.uid}-{draft.attempt.number}")
    draft.put_restarts(
        total=restarts.total + 1,
        window=(*window, draft.now)[-_MOST_COUNTED:] if counts else window,
        backoff_level=min(restarts.backoff_level + 1, 64) if raised else restarts.backoff_level,
        next_retry_at=draft.now + wait if wait else None,
    )
    begin(draft, "Recover", "Fencing", reason, message)
    when = f"in {wait.total_seconds():.0f} s{often}" if wait else "at once"
    text = f"The job is started again {when}: {message or reason}"
    draft.tell("Normal", "RestartScheduled", text, draft.operation.id)


def _has_run(draft: Draft, rules: FailurePolicy) -> bool:
    """Whether the stream ran for longer than the first wait."""
    lived = ran_for(draft.attempt.running_since, draft.now)
    return lived >= rules.backoff.initial.timedelta


def _note_disruption(draft: Draft, rules: FailurePolicy) -> None:
    """Something else than the job ended its driver, once more."""
    since = draft.now - rules.backoff.reset_after.timedelta
    lately = (*(at for at in draft.status.restarts.disruptions if at > since), draft.now)
    draft.put_restarts(disruptions=lately[-_MOST_COUNTED:])


def _reset_if_it_ran_well(draft: Draft, rules: FailurePolicy) -> None:
    """As the operator saw it itself; mostly it did so while the stream still ran."""
    attempt = draft.attempt
    until = attempt.ended_at or draft.now
    if ran_for(attempt.running_since, until) >= rules.backoff.reset_after.timedelta:
        draft.put_restarts(backoff_level=0)


def _window(draft: Draft, rules: FailurePolicy) -> tuple[datetime, ...]:
    since = draft.now - rules.window.timedelta
    return tuple(at for at in draft.status.restarts.window if at > since)


def _give_up(draft: Draft, rules: FailurePolicy, reason: str, message: str) -> None:
    text = (
        f"the job was started again {rules.max_restarts} times within {rules.window}, as often as "
        f"failurePolicy.maxRestarts allows; the last time: {message}; correct it, then change the "
        "spec or set the annotation moorage.dev/restart"
    )
    _refuse(draft, FAILED, text, reason)


def _refuse(draft: Draft, reason: str, message: str, cause: str) -> None:
    """Block the job, unless a person has asked for something else already."""
    _close(draft, cause)
    if not _follow_person(draft, cause):
        block(draft, reason, message, told=reason == cause)


def _close(draft: Draft, reason: str) -> None:
    """A driver that is given up while it lives has ended as far as the job is concerned."""
    if not draft.is_active:
        return
    pod = draft.pod
    draft.put_attempt(
        outcome="Failed",
        outcome_reason=reason,
        outcome_message=draft.status.restarts.last_message,
        ended_at=draft.now,
        missing_since=None,
    )
    if pod is not None:
        remove(draft, pod)


def _follow_person(draft: Draft, cause: str) -> bool:
    """Begin what was asked for before the end was seen, as it would end a block that came first."""
    if desired(draft) == "Suspended":
        begin(draft, "Suspend", "Fencing", "SpecChanged", "desiredState is Suspended")
        return True
    attempt, newest, restarted = draft.attempt, newest_name(draft), draft.restart_asked
    refused_before = is_given_up(draft) and not restarted
    edited = newest not in ("", attempt.revision) and not refused_before
    adopt = draft.meta.annotation("adopt-lineage")
    adopted = cause == "AdoptRequired" and adopt not in ("", attempt.adopt_lineage)
    if not (edited or is_new_nonce(draft) or restarted or adopted):
        return False
    note_restart(draft)
    draft.forget_restarts()
    spec = policy(draft)
    kind: OperationType = "Redeploy" if is_new_nonce(draft) else "Upgrade"
    stateless = kind == "Upgrade" and spec is not None and spec.upgrade.mode == "Stateless"
    text = "the driver ended, and another start was asked for before that was seen"
    why = "SpecChanged" if edited or is_new_nonce(draft) else "RestartRequested"
    begin(draft, kind, "Fencing", why, text, mode_used="Stateless" if stateless else "")
    draft.tell(
        "Normal", "RestartScheduled", f"The job is started again: {text}", draft.operation.id
    )
    return True


def _may_be_our_own(draft: Draft) -> bool:
    """Whether a late driver of this very object took the lineage, which is removed by now."""
    # That happens once; where it happens again, or the store names another owner, somebody else
    # runs.
    restarts, spec, store = draft.status.restarts, policy(draft), draft.world.store
    rules = spec.failure_policy if spec is not None else FailurePolicy()
    last = restarts.last_time if restarts.last_reason == "Fenced" else None
    if last is not None and not draft.reached(last + rules.backoff.reset_after.timedelta):
        return False
    owner = store.owner if isinstance(store, StoreView) else None
    return owner is None or owner[3] == draft.meta.uid


def _ended_in_restore(draft: Draft, reason: str) -> bool:
    attempt = draft.attempt
    if attempt.running_since is not None:
        return False
    held_the_lineage = attempt.fence > 0 and reason == "DriverFailed"
    return held_the_lineage or draft.status.job.state == "restoring" or reason == "StateCorrupt"


def _restore_failing(draft: Draft, message: str) -> str:
    """What a person can do: go back by hand, to a point that is named."""
    began, chosen = draft.attempt.restored_from, draft.attempt.restore_point
    named = chosen.path if chosen is not None and chosen.mode == "Path" else ""
    tried = (began.path if began is not None else named) or "the newest checkpoint"
    text = f"restoring from {tried} failed {_RESTORE_TRIES} times: {message}; "
    older = _older_point(draft, tried)
    if not older:
        return f"{text}correct the job, then change the spec or set moorage.dev/restart"
    return (
        f"{text}correct the job, or go back to {older} by spec.restore.mode Path and a higher nonce"
    )


def _older_point(draft: Draft, tried: str) -> str:
    store = draft.world.store
    if isinstance(store, StoreView) and store.previous is not None:
        return store.previous.path
    last = draft.status.snapshots.last_savepoint
    return last.path if last is not None and last.path != tried else ""
