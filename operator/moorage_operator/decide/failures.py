"""Why a driver ended, what kind of failure that is, and how long to wait after it. Pure.

The reason of an end is kept in the status, and its kind follows from the reason alone: a pod that
is gone later takes no knowledge with it. A pod's phase is believed before its containers, and what
the driver said before what the kubelet guesses.
"""

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Literal

from moorage_api.driver import DriverEnd
from moorage_api.lifecycle import Backoff
from moorage_operator.world import PodView

__all__ = ["End", "Kind", "backoff", "judge", "kind_of"]

Outcome = Literal["Finished", "Stopped", "Failed"]
_SHOWN = 600


class Kind(Enum):
    """What is done about a failure."""

    INFRASTRUCTURE = "started again at once; not the job's fault"
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
    "state_too_large": "LocalDiskFailed",
    "store_denied": "StoreDenied",
    "store_refused": "StoreRefused",
    "store_unavailable": "StoreUnavailable",
    "user_error": "InvalidJob",
    "user_function": "UserCodeFailed",
}

_KINDS = {
    "AdoptRequired": Kind.REFUSED,
    "CheckpointDirConflict": Kind.REFUSED,
    "Fenced": Kind.REFUSED,
    "InvalidJob": Kind.REFUSED,
    "OutputConflict": Kind.REFUSED,
    "SourceOffsetsLost": Kind.REFUSED,
    "StoreDenied": Kind.REFUSED,
    "StoreRefused": Kind.REFUSED,
    "StoreUnavailable": Kind.STORE,
    "DriverDeleted": Kind.INFRASTRUCTURE,
    "DriverEvicted": Kind.INFRASTRUCTURE,
    "DriverLost": Kind.INFRASTRUCTURE,
    "DriverPreempted": Kind.INFRASTRUCTURE,
    "DriverRejected": Kind.INFRASTRUCTURE,
    "DriverStopped": Kind.INFRASTRUCTURE,
    "NodeLost": Kind.INFRASTRUCTURE,
    "NodeShutdown": Kind.INFRASTRUCTURE,
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
    "preempt": "DriverPreempted",
    "taint": "NodeLost",
    "gc": "NodeLost",
    "kubelet": "NodeShutdown",
}


def kind_of(reason: str) -> Kind:
    """What is done about an end with this reason."""
    if reason.startswith("RestorePoint"):
        return Kind.REFUSED
    return _KINDS.get(reason, Kind.APPLICATION)


def judge(pod: PodView) -> End:
    """How the driver in a pod ended whose container will not run again."""
    end = pod.end
    if end is not None and end.outcome == "Finished":
        return End("Finished", "Finished", "the job's input ended")
    if end is not None and end.outcome == "Stopped":
        return End("Stopped", _disruption(pod) or "DriverStopped", _stopped(pod))
    if end is not None and kind_of(_said(end)) is Kind.REFUSED:
        return End("Failed", _said(end), _told(end))
    disruption = _disruption(pod)
    if disruption:
        return End("Failed", disruption, _short(pod.disrupted or pod.message or pod.reason))
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
    why = pod.disrupted or pod.message
    return _short(f"the driver was told to end: {why}" if why else "the driver was told to end")


def _disruption(pod: PodView) -> str:
    """The reason, if something other than the job ended the pod; else empty."""
    if pod.reason in _POD_REASONS:
        return _POD_REASONS[pod.reason]
    if pod.reason.startswith("OutOf"):
        return "DriverRejected"
    if pod.disrupted:
        said = pod.disrupted.lower()
        return next((why for word, why in _DISRUPTIONS.items() if word in said), "DriverEvicted")
    if pod.deleted_at is not None and not _ended_by_itself(pod):
        return "DriverDeleted"
    return ""


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
