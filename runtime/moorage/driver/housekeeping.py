"""What follows a completed checkpoint: old ones are let go, and what nobody needs is deleted.

Called by the checkpointer under the epoch lock; sweeping runs in a thread beside the epochs.
"""

import datetime
import logging
from collections.abc import Callable, Collection
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


class Housekeeper:
    """Keeps a lineage's directory in order, for one run.

    Args:
        run: the number of the run under the writer's fence.
        retain: how many checkpoints are kept.
        clock: seconds on a clock that only goes forward.
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
    ) -> None:
        self._store = store
        self._writer = writer
        self._output = output
        self._background = background
        self._run = run
        self._retain = retain
        self._clock = clock
        self._claimed = ClaimedSavepoints(writer, retain)
        self._next_sweep = clock()

    def after(
        self, newest: CheckpointReport, *, pinned: Collection[int], under_way: tuple[int, ...]
    ) -> None:
        """Let go of old checkpoints; what cannot be deleted now is taken up the next time.

        Args:
            pinned: the checkpoints whose files the next ones may reference.
            under_way: the ids of those that are being taken.
        """
        try:
            self._store.retire(self._writer, self._retain, pinned=pinned)
            self._claimed.release()
            self._output.retire(self._run, newest.checkpoint_id, newest.epoch)
        except Retryable as error:
            _log.warning("old checkpoints could not be retired, will try again: %s", error)
        if self._clock() >= self._next_sweep:
            self._sweep(pinned, under_way)

    def _sweep(self, pinned: Collection[int], under_way: tuple[int, ...]) -> None:
        """Delete, beside the epochs, what crashes and aborted uploads have left for a day."""
        self._next_sweep = self._clock() + _SWEEP_SECONDS
        now = datetime.datetime.now(datetime.UTC)
        known = UnderWay(checkpoint_ids=under_way, pinned=tuple(pinned), since=now)
        action = partial(sweep, self._store.objects, self._writer, now=now, under_way=known)
        self._background.run("sweep", action, _swept, awaited=False)


def _swept(result: Swept | BaseException) -> None:
    if isinstance(result, Fenced) or not isinstance(result, (Swept, MoorageError)):
        raise result
    if isinstance(result, MoorageError):
        _log.warning("the checkpoint directory was not swept, will try again: %s", result)
    elif result.objects:
        count, size = len(result.objects), result.bytes
        _log.info("swept the checkpoint directory: objects=%d bytes=%d", count, size)
