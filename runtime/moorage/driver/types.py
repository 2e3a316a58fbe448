"""What the driver is asked to do, what it reports on the way, and what it hands back.

Plain values, so that the command line, tests and the status endpoint can speak of a run without
importing Spark.
"""

import threading
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from pathlib import Path

from moorage.driver.requests import Requests
from moorage_state.errors import UserError

__all__ = ["CheckpointView", "Outcome", "Progress", "RunOptions", "RunResult", "StoreRefused"]


class StoreRefused(UserError):
    """The checkpoint directory cannot be used by this run.

    It is missing, unreadable, held by another run or owned by another job; the message says which.
    """

    code = "store_refused"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How one run on this machine differs from what the manifest says.

    Attributes:
        take_over: go on although another run holds the checkpoint directory; it is fenced off.
        restore: `chk-<id>` of the lineage or a snapshot's URL, in place of the manifest's restore.
        local_dir: where working databases and Spark's scratch go; a temporary directory if None.
        cores: how many cores Spark may use; as many as subtasks and the machine allow if None.
        stop: set from outside, at any time and from any thread: take a last checkpoint and return
            with `Outcome.STOPPED`. `run_job` is called outside the main thread, so it can install
            no signal handler and needs none: this event is how Ctrl-C and SIGTERM arrive.
        control: let `moorage savepoint` reach the job through a socket of this user.
        requests: where savepoints are asked for, from any thread.
    """

    take_over: bool = False
    restore: str | None = None
    local_dir: Path | None = None
    cores: int | None = None
    control: bool = False
    stop: threading.Event = field(default_factory=threading.Event, compare=False, repr=False)
    requests: Requests = field(default_factory=Requests, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """A completed checkpoint, for people.

    Attributes:
        checkpoint_id: its number in the lineage.
        epoch: the last epoch it contains.
        completed_at: when its log entry was written; with a time zone.
        bytes_total: the size of the state it holds.
        bytes_uploaded: how much of that was not in the store before.
        duration_seconds: from trigger to completion.
        objects_written: how many objects the upload made, beside the manifest.
    """

    checkpoint_id: int
    epoch: int
    completed_at: datetime
    bytes_total: int
    bytes_uploaded: int
    duration_seconds: float
    objects_written: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run is. The driver reports one after every epoch and whenever something changes.

    Attributes:
        epoch: the last committed epoch of the lineage; 0 before the first.
        rows_total: input rows in committed epochs of this run.
        rows_per_second: recent input rate.
        state_bytes: approximate size of all keyed state.
        last_checkpoint: the newest completed one of the lineage.
        phase: one word for what is going on: starting, restoring, running, checkpointing,
            rewinding, stopping, finished.
        bound: (done, total) where the input is bounded; any unit, the same for both.
        restored_from: what the run began from, such as `chk-7`; None for an empty start.
        message: something a person should read once; repeated reports of it are shown once.
    """

    epoch: int = 0
    rows_total: int = 0
    rows_per_second: float = 0.0
    state_bytes: int = 0
    last_checkpoint: CheckpointView | None = None
    phase: str = "starting"
    bound: tuple[int, int] | None = None
    restored_from: str | None = None
    message: str = ""


class Outcome(Enum):
    """Why a run ended well."""

    FINISHED = "finished"
    """The bounded input is used up; a last checkpoint is complete and output is published."""

    STOPPED = "stopped"
    """Asked to stop; a last checkpoint is complete, the next run goes on from it."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended.

    Attributes:
        outcome: why.
        epoch: the last committed epoch of the lineage.
        rows_total: input rows in committed epochs of this run.
        seconds: wall-clock time of the run.
        last_checkpoint: the newest completed one.
        restored_from: what the run began from; None for an empty start.
    """

    outcome: Outcome
    epoch: int
    rows_total: int
    seconds: float
    last_checkpoint: CheckpointView | None = None
    restored_from: str | None = None
