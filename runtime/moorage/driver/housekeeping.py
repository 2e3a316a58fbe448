"""What follows a completed checkpoint: old ones are let go, and what nobody needs is deleted.

Called by the checkpointer under the epoch lock. All that asks a store runs in threads beside the
epochs, one chore at a time; only what the chore may rely on is looked up under the lock.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from moorage.driver.background import Background
from moorage.driver.output import OutputKeeper
from moorage.driver.savepoints import ClaimedSavepoints
from moorage.driver.snapshot_writer import CheckpointReport
from moorage_state.errors import Fenced, MoorageError, Retryable, StoreDenied
from moorage_state.snapshots import CheckpointStore, Entry, LogWriter, Swept, UnderWay, sweep

__all__ = ["Housekeeper"]

_log = logging.getLogger(__name__)

_SWEEP_SECONDS = 3600.0
_AGAIN_SECONDS = 300.0
"""After a sweep that met a checkpoint under way and passed shared objects over."""


@dataclass(frozen=True, slots=True)
class _Moment:
    """What was so at one moment under the epoch lock: whatever begins later builds on that.

    Attributes:
        newest: the checkpoint that completed last.
        entries: the log, with an entry in doubt.
        pinned: the bases of what is under way, and of what begins next.
    """

    newest: CheckpointReport
    entries: Sequence[Entry]
    pinned: Collection[int]


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
        self._newest: CheckpointReport | None = None
        self._busy = False

    @property
    def busy(self) -> bool:
        """Whether old checkpoints are being let go; a sweep does not count."""
        return self._busy

    def after(self, newest: CheckpointReport) -> None:
        """Let go of old checkpoints; what cannot be deleted now is taken up the next time."""
        self._newest = newest
        if not self._busy:
            self._begin()

    def _begin(self) -> None:
        """Begin what the newest checkpoint asks for; one that came meanwhile takes its place."""
        newest, self._newest = self._newest, None
        if newest is None:
            if self._clock() >= self._next_sweep:
                self._sweep()
            return
        self._busy = True
        moment = _Moment(newest, self._writer.possible_entries, self._under_way().pinned)
        self._background.run("housekeeping", partial(self._tidy, moment), self._tidied)

    def _tidy(self, moment: _Moment) -> None:
        self._store.retire(self._writer, self._retain, pinned=moment.pinned, entries=moment.entries)
        self._claimed.release()
        self._output.retire(self._run, moment.newest.checkpoint_id, moment.newest.epoch)

    def _tidied(self, result: BaseException | None) -> None:
        self._busy = False
        if isinstance(result, (Retryable, StoreDenied)):
            _log.warning("old checkpoints could not be retired, will try again: %s", result)
        elif result is not None:
            raise result
        self._begin()

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
