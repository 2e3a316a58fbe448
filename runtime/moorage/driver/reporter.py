"""Progress of a run, gathered for whoever watches it.

Turns epochs, checkpoints and phases into `Progress` values and hands each to the listener. Called
by the driver from the thread that runs epochs and from the one that waits for them.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from moorage.driver.checkpointer import CheckpointReport
from moorage.driver.types import CheckpointView, Progress
from moorage_state.snapshots import Manifest

__all__ = ["Reporter", "view_of"]

_WINDOW_SECONDS = 10.0


def view_of(report: CheckpointReport) -> CheckpointView:
    """A completed checkpoint as people see it."""
    return CheckpointView(
        checkpoint_id=report.checkpoint_id,
        epoch=report.epoch,
        completed_at=report.completed_at,
        bytes_total=report.bytes_total,
        bytes_uploaded=report.bytes_uploaded,
        duration_seconds=report.seconds,
        objects_written=report.objects_written,
    )


class Reporter:
    """The latest `Progress`, and the way to a new one."""

    def __init__(
        self, listener: Callable[[Progress], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._listener = listener
        self._clock = clock
        self._lock = threading.Lock()
        self._recent: deque[tuple[float, int]] = deque([(clock(), 0)])
        self.progress = Progress()

    def phase(self, phase: str, message: str = "") -> None:
        """Something else is going on now; the rate is counted from when the stream begins."""
        if phase == "running":
            self._recent = deque([(self._clock(), self.progress.rows_total)])
        self._publish(phase=phase, message=message)

    def message(self, text: str) -> None:
        """Something a person should read."""
        self._publish(message=text)

    def restored(self, path: str | None, manifest: Manifest | None) -> None:
        """What the run began from."""
        if manifest is None:
            self._publish(restored_from=None, epoch=0)
            return
        view = CheckpointView(
            checkpoint_id=manifest.checkpoint_id,
            epoch=manifest.epoch,
            completed_at=manifest.created_at,
            bytes_total=sum(f.size for f in manifest.files),
            bytes_uploaded=0,
            duration_seconds=0.0,
        )
        self._publish(restored_from=path, epoch=manifest.epoch, last_checkpoint=view)

    def epoch(self, epoch: int, rows: int, state_bytes: int, bound: tuple[int, int] | None) -> None:
        """An epoch was committed."""
        now = self._clock()
        total = self.progress.rows_total + rows
        self._recent.append((now, total))
        while len(self._recent) > 2 and now - self._recent[0][0] > _WINDOW_SECONDS:
            self._recent.popleft()
        since, before = self._recent[0]
        rate = (total - before) / max(now - since, 1e-9)
        self._publish(
            epoch=epoch,
            rows_total=total,
            rows_per_second=rate,
            state_bytes=state_bytes,
            bound=bound,
            message="",
        )

    def checkpoint(self, report: CheckpointReport) -> None:
        """A checkpoint was completed."""
        self._publish(last_checkpoint=view_of(report))

    def _publish(self, **changes: object) -> None:
        with self._lock:
            self.progress = replace(self.progress, **changes)  # type: ignore[arg-type]
            self._listener(self.progress)
