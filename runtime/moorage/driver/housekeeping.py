"""What follows a completed checkpoint: old ones are let go, and what nobody needs is deleted.

Called by the checkpointer under the epoch lock; sweeping runs in a thread beside the epochs.
"""

import logging
from collections.abc import Callable
from functools import partial

from moorage.driver.background import Background
from moorage.driver.output import OutputKeeper
from moorage.driver.savepoints import ClaimedSavepoints
from moorage.driver.snapshot_writer import CheckpointReport
from moorage_state.errors import Fenced, MoorageError, Retryable
from moorage_state.snapshots import CheckpointStore, LogWriter, Swept, UnderWay, sweep

__all__ = ["Housekeeper"]

_log = logging.getLogger(__name__)

_SWEEP_SECONDS = 3600.0
_AGAIN_SECONDS = 300.0
"""After a sweep that met a checkpoint under way and passed shared objects over."""


class Housekeeper:
    """Keeps a lineage's directory in order, for one run.

    Args:
        run: the number of the run under the writer's fence.
        retain: how many checkpoints are kept.
        clock: seconds on a clock that only goes forward.
        under_way: tells which checkpoints are being taken, from any thread.
    """

    def __init__(
        self,
        store: CheckpointStore,
        writer: LogWriter,
        output: OutputKeeper,
        background: Background,
        run: int,
        retain: int,
        clock: Callable[[], float],
        under_way: Callable[[], UnderWay],
    ) -> None:
        self._store = store
        self._writer = writer
        self._output = output
        self._background = background
        self._run = run
        self._retain = retain
        self._clock = clock
        self._under_way = under_way
        self._claimed = ClaimedSavepoints(writer, retain)
        self._next_sweep = clock()

    def after(self, newest: CheckpointReport) -> None:
        """Let go of old checkpoints; what cannot be deleted now is taken up the next time."""
        try:
            self._store.retire(self._writer, self._retain, pinned=self._under_way().pinned)
            self._claimed.release()
            self._output.retire(self._run, newest.checkpoint_id, newest.epoch)
        except Retryable as error:
            _log.warning("old checkpoints could not be retired, will try again: %s", error)
        if self._clock() >= self._next_sweep:
            self._sweep()

    def _sweep(self) -> None:
        """Delete, beside the epochs, what crashes and aborted uploads have left for a day."""
        self._next_sweep = self._clock() + _SWEEP_SECONDS
        action = partial(sweep, self._store.objects, self._writer, under_way=self._under_way)
        self._background.run("sweep", action, self._swept, awaited=False)

    def _swept(self, result: Swept | BaseException) -> None:
        if isinstance(result, Fenced) or not isinstance(result, (Swept, MoorageError)):
            raise result
        if isinstance(result, MoorageError):
            _log.warning("the checkpoint directory was not swept, will try again: %s", result)
            return
        if result.put_off:
            self._next_sweep = min(self._next_sweep, self._clock() + _AGAIN_SECONDS)
        if result.objects:
            count, size = len(result.objects), result.bytes
            _log.info("swept the checkpoint directory: objects=%d bytes=%d", count, size)
