"""How a run on this machine is, as `moorage status` asks for it: plain values. Pure."""

import os
from dataclasses import dataclass
from datetime import datetime

from moorage.driver.types import JobProgress
from moorage.driver.views import (
    CheckpointView,
    FailureView,
    SavepointView,
    SubtaskView,
    WatermarkView,
)


@dataclass(frozen=True, slots=True)
class RunStatus:
    """A run at one moment.

    Attributes:
        pid: of the process that runs it.
        epoch_began: when the epoch that is under way began; None between two.
        saving: of a savepoint that is under way, how many state servers have written their part,
            and how many are to.
        watermarks: of operators that have event time.
        subtasks: of operators, and of sinks without one; see `SubtaskView`.
    """

    job: str
    pid: int
    checkpoint_dir: str
    phase: str
    message: str
    epoch: int
    rows: int
    rows_per_second: float
    state_bytes: int
    parallelism: int
    max_parallelism: int
    late_rows: int
    null_keys: int
    rewinds: int
    restored_from: str | None
    completed_checkpoints: int
    failed_checkpoints: int
    last_checkpoint: CheckpointView | None
    last_savepoint: SavepointView | None
    last_failure: FailureView | None
    storage_error: str
    subtasks: tuple[SubtaskView, ...]
    at: datetime
    watermarks: tuple[WatermarkView, ...] = ()
    epoch_began: datetime | None = None
    saving: tuple[int, int] | None = None


def run_status(job: str, checkpoint_dir: str, now: JobProgress, at: datetime) -> RunStatus:
    """The status of the run of this process."""
    return RunStatus(
        job=job,
        pid=os.getpid(),
        checkpoint_dir=checkpoint_dir,
        phase=now.phase,
        message=now.message,
        epoch=now.epoch,
        rows=now.rows_total,
        rows_per_second=now.rows_per_second,
        state_bytes=now.state_bytes,
        parallelism=now.parallelism,
        max_parallelism=now.max_parallelism,
        late_rows=now.odd.late,
        null_keys=now.odd.null_keys,
        rewinds=now.rewinds,
        restored_from=now.restored_from,
        completed_checkpoints=now.completed_checkpoints,
        failed_checkpoints=now.failed_checkpoints,
        last_checkpoint=now.last_checkpoint,
        last_savepoint=now.last_savepoint,
        last_failure=now.last_failure,
        storage_error=now.storage_error,
        subtasks=now.subtasks,
        at=at,
        watermarks=now.watermarks,
        epoch_began=now.epoch_began,
        saving=_saving(now),
    )


def _saving(now: JobProgress) -> tuple[int, int] | None:
    under_way = (one.servers for one in now.checkpoints if one.state == "InProgress")
    return next(filter(None, under_way), None)
