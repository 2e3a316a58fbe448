"""What follows a completed checkpoint: old ones are let go, and what nobody needs is deleted.

Called by the checkpointer under the epoch lock. All that asks a store runs in threads beside the
epochs, one chore at a time; only what the chore may rely on is looked up under the lock. The
threads hand their results over and touch nothing else: `Background`, in which uploads run as well.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from moorage.driver.manifests import CheckpointReport
from moorage.driver.output import OutputKeeper, PendingSavepoint
from moorage.driver.savepoints import ClaimedSavepoints
from moorage_state.coordinator import CompletedCheckpointStore
from moorage_state.errors import Fenced, LocalDiskError, MoorageError, Retryable, StoreDenied
from moorage_state.snapshots import Entry, LogWriter, SweepProgress, Swept, UnderWay, sweep
from moorage_state.stores import ObjectStore

_log = logging.getLogger(__name__)

_SWEEP_SECONDS = 3600.0

_AGAIN_SECONDS = 300.0
"""After a sweep that found what waits for the end of checkpoints that were under way."""


class Background:
    """Threads and the results that wait to be taken."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._answers: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._threads: list[tuple[threading.Thread, bool]] = []

    def run(
        self,
        name: str,
        action: Callable[[], Any],
        then: Callable[[Any], None],
        *,
        awaited: bool = True,
        writes: bool = False,
    ) -> None:
        """Run `action` in a thread; `take` gives its result, or the error it raised, to `then`.

        Args:
            awaited: `join` waits for it.
            writes: it makes things exist, so that `join` waits for its end, which the store's own
                time limits bring.
        """

        def work() -> None:
            try:
                result: Any = action()
            except BaseException as error:  # noqa: BLE001 - carried to the thread that takes it
                result = error
            self._answers.put(partial(then, result))

        self._threads = [known for known in self._threads if known[0].is_alive()]
        # A store that hangs must not keep the process from its end.
        thread = threading.Thread(target=work, name=name, daemon=True)
        if awaited:
            self._threads.append((thread, writes))
        thread.start()

    def take(self, timeout: float = 0.0) -> None:
        """Hand over all results there are, after waiting up to `timeout` seconds for the first."""
        while True:
            try:
                answer = (
                    self._answers.get(timeout=timeout) if timeout else self._answers.get_nowait()
                )
            except queue.Empty:
                return
            timeout = 0.0
            answer()

    def join(self, seconds: float) -> None:
        """Wait for the threads that make things exist, and for the others at most so long.

        What is left goes on to its end, and nobody takes its result any more. `take` has the last
        results of the others.
        """
        deadline = self._clock() + seconds
        for thread, writes in self._threads:
            thread.join(None if writes else max(0.0, deadline - self._clock()))


@dataclass(frozen=True, slots=True)
class _Moment:
    """What was so at one moment under the epoch lock: whatever begins later builds on that.

    Attributes:
        entries: the log, with an entry in doubt.
        under_way: what is being taken then, and what is read.
        pending: the savepoints that are under way.
    """

    run: int
    newest: CheckpointReport
    entries: Sequence[Entry]
    under_way: UnderWay
    pending: Sequence[PendingSavepoint]


class Housekeeper:
    """Keeps a lineage's directory in order for as long as the driver lives, run after run.

    A chore may outlive the run that began it: a store that hangs is not waited for.

    Args:
        retain: how many checkpoints a claimed savepoint is kept beside.
    """

    def __init__(
        self,
        objects: ObjectStore,
        writer: LogWriter,
        completed: CompletedCheckpointStore,
        output: OutputKeeper,
        retain: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._objects = objects
        self._writer = writer
        self._completed = completed
        self._output = output
        self._clock = clock
        self._claimed = ClaimedSavepoints(writer, retain)
        self._next_sweep = clock()
        self._sweeps = SweepProgress()
        self._sweeping = threading.Event()
        self._run = 0
        self._background = Background()
        self._under_way: Callable[[], UnderWay] = UnderWay
        self._pending: Callable[[], Sequence[PendingSavepoint]] = tuple
        self._newest: CheckpointReport | None = None
        self._busy = False
        self._at_rest = threading.Event()
        self._at_rest.set()

    def serve(
        self,
        run: int,
        background: Background,
        under_way: Callable[[], UnderWay],
        pending: Callable[[], Sequence[PendingSavepoint]],
    ) -> None:
        """Another run begins.

        Args:
            background: takes the results of chores under its epoch lock.
            under_way: tells which checkpoints are being taken, from any thread.
            pending: tells of the savepoints among them, under the epoch lock.
        """
        self._run, self._background, self._under_way = run, background, under_way
        self._pending = pending
        # Of a chore that the run before began nobody takes the result.
        self._newest, self._busy = None, False

    @property
    def busy(self) -> bool:
        """Whether old checkpoints are being let go; a sweep does not count."""
        return self._busy

    @property
    def retires(self) -> bool:
        """Whether a retirement is at work, of whichever run; its store's time limits end it."""
        return not self._at_rest.is_set()

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
        # Here and not in the thread: a run that ends now is followed by one that waits.
        self._at_rest.clear()
        under_way, entries = self._under_way(), self._writer.possible_entries
        moment = _Moment(self._run, newest, entries, under_way, self._pending())
        try:
            self._background.run("housekeeping", partial(self._tidy, moment), self._tidied)
        except BaseException:
            # Nobody would set it, and the next run waits for it.
            self._at_rest.set()
            raise

    def _tidy(self, moment: _Moment) -> None:
        try:
            self._completed.subsume(moment.under_way.pinned, moment.entries)
            if not moment.under_way.reads_elsewhere:
                self._claimed.release()
        finally:
            self._at_rest.set()
        # The next run waits for this one by itself, where it takes sinks back.
        newest = moment.newest
        self._output.retire(moment.run, newest.checkpoint_id, newest.epoch, moment.pending)
        self._writer.compact()

    def _tidied(self, result: BaseException | None) -> None:
        self._busy = False
        if isinstance(result, (Retryable, StoreDenied, LocalDiskError)):
            _log.warning("old checkpoints could not be retired, will try again: %s", result)
        elif result is not None:
            raise result
        self._begin()

    def _sweep(self) -> None:
        """Delete, beside the epochs, what crashes and aborted uploads have left for a day."""
        if self._sweeping.is_set():
            # In a large directory one may take longer than the time between two, and outlive its
            # run. Both would go on from, and write down, how far one had come.
            return
        self._next_sweep = self._clock() + _SWEEP_SECONDS
        # Asked when the sweep gets to it, of the run that is on by then.
        action = partial(
            sweep,
            self._objects,
            self._writer,
            under_way=self._unfinished,
            progress=self._sweeps,
        )
        self._sweeping.set()
        try:
            self._background.run("sweep", partial(self._one, action), self._swept, awaited=False)
        except BaseException:
            self._sweeping.clear()
            raise

    def _one(self, action: Callable[[], Swept]) -> Swept:
        try:
            return action()
        finally:
            self._sweeping.clear()

    def _unfinished(self) -> UnderWay:
        return self._under_way()

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
