"""A snapshot in two phases: what is left to do after the synchronous part, as a cancelable future.

Decides which of a run, a cancellation and a failure wins, and that what the snapshot holds is let
go of exactly once. Made by backends, run by whoever has a thread for it. Knows no state.
"""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Generic, Protocol, TypeVar

from moorage_state.errors import Bug, MoorageError, Retryable

_log = logging.getLogger(__name__)


class Discardable(Protocol):
    """What a snapshot gives: it can be deleted again."""

    def discard(self) -> None:
        """Delete what belongs to it alone; idempotent."""
        ...


T = TypeVar("T", bound=Discardable)


class SnapshotCanceled(Retryable):
    """The snapshot was canceled; nothing of it is left."""

    code = "snapshot_canceled"


class FutureState(Enum):
    """Where a snapshot stands; the last three are final."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"


class Cancellation:
    """Tells a running asynchronous part to stop, and closes what it has registered.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._canceled = threading.Event()
        self._open: dict[int, Callable[[], None]] = {}

    @property
    def canceled(self) -> bool:
        """Whether to stop."""
        return self._canceled.is_set()

    def check(self) -> None:
        """Stop here, if told so.

        Raises:
            SnapshotCanceled: it was canceled.
        """
        if self._canceled.is_set():
            raise SnapshotCanceled("the snapshot was canceled; take another one")

    def register(self, close: Callable[[], None]) -> Callable[[], None]:
        """Have `close` called on cancellation, at once if it was; returns what undoes this."""
        with self._lock:
            late = self._canceled.is_set()
            if not late:
                self._open[id(close)] = close
        if late:
            close()
        return lambda: self._forget(close)

    def cancel(self) -> None:
        """Tell it; idempotent."""
        with self._lock:
            self._canceled.set()
            closing, self._open = list(self._open.values()), {}
        for close in closing:
            # A stream that cannot be closed now is closed by its writer, who sees the flag.
            with suppress(Exception):
                close()

    def _forget(self, close: Callable[[], None]) -> None:
        with self._lock:
            self._open.pop(id(close), None)


class SnapshotFuture(Generic[T]):
    """The asynchronous part of a snapshot; the synchronous part was over when it was made.

    `run` does the work in the calling thread, once; others wait in `result`. `cancel` may come at
    any time and from any thread: if it wins, what was written is deleted, and what the snapshot
    held is let go of, whichever of the two threads is the last to use it.

    Args:
        work: does it; asks the cancellation between pieces.
        release: lets go of what the snapshot holds; called once, at the end of any kind.
    """

    def __init__(
        self, work: Callable[[Cancellation], T], release: Callable[[], None] = lambda: None
    ) -> None:
        self._work: Callable[[Cancellation], T] | None = work
        self._release = release
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._state = FutureState.PENDING
        self._result: T | None = None
        self._error: BaseException | None = None
        self._cancellation = Cancellation()

    @classmethod
    def completed(cls, result: T) -> "SnapshotFuture[T]":
        """That of a snapshot whose work is all synchronous."""
        future = cls(lambda _: result)
        future.run()
        return future

    @property
    def state(self) -> FutureState:
        """Where it stands."""
        return self._state

    @property
    def done(self) -> bool:
        """Whether it came to any end."""
        return self._done.is_set()

    @property
    def canceled(self) -> bool:
        """Whether it was canceled."""
        return self._state is FutureState.CANCELED

    def run(self) -> None:
        """Do the work, unless it was begun or canceled. Errors are kept for `result`."""
        with self._lock:
            if self._state is not FutureState.PENDING or self._work is None:
                return
            self._state = FutureState.RUNNING
            work, self._work = self._work, None
        try:
            try:
                result = work(self._cancellation)
            finally:
                self._release()
        except Exception as error:  # noqa: BLE001 - it is kept, and raised by `result`
            self._finish(FutureState.FAILED, error=error)
        except BaseException as error:
            self._finish(FutureState.FAILED, error=error)
            raise
        else:
            if not self._finish(FutureState.COMPLETED, result=result):
                _discard(result)

    def cancel(self) -> bool:
        """Stop it; False if it came to its end before. What it held is let go of, nothing is left.

        A work that is under way ends at its next look; `result` raises from now on.
        """
        with self._lock:
            if self._state not in (FutureState.PENDING, FutureState.RUNNING):
                return False
            was_pending = self._state is FutureState.PENDING
            self._state, self._work = FutureState.CANCELED, None
        self._cancellation.cancel()
        try:
            if was_pending:
                self._release()
        finally:
            self._done.set()
        return True

    def result(self, timeout: float | None = None) -> T:
        """What the snapshot gave, once `run` is through; waits `timeout` seconds, None for ever.

        Raises:
            SnapshotCanceled: it was canceled.
            TimeoutError: nobody has run it to its end in this time.
            Exception: what its work raised.
        """
        if not self._done.wait(timeout):
            raise TimeoutError(f"the snapshot is not done: state={self._state.value}")
        if self._state is FutureState.CANCELED:
            raise SnapshotCanceled("the snapshot was canceled; take another one")
        if self._error is not None:
            raise self._error
        if self._result is None:
            raise Bug("a snapshot ended without a result")
        return self._result

    def _finish(
        self,
        state: FutureState,
        *,
        result: T | None = None,
        error: BaseException | None = None,
    ) -> bool:
        """Come to this end; False if it was canceled before."""
        with self._lock:
            if self._state is not FutureState.RUNNING:
                return False
            self._state, self._result, self._error = state, result, error
        self._done.set()
        return True


class SnapshotsUnderway(Generic[T]):
    """The snapshots of one backend that have not come to an end.

    One may be taken again under the same id before the one before it is through. `begin` belongs to
    the thread of the backend; futures end in any.
    """

    def __init__(self) -> None:
        self._futures: dict[int, tuple[int, SnapshotFuture[T]]] = {}
        self._begun = 0

    def begin(
        self, checkpoint_id: int, work: Callable[[Cancellation], T], release: Callable[[], None]
    ) -> SnapshotFuture[T]:
        """The future of another one; see `SnapshotFuture`."""
        self._begun += 1
        number = self._begun

        def end() -> None:
            self._futures.pop(number, None)
            release()

        future = SnapshotFuture(work, end)
        self._futures[number] = checkpoint_id, future
        return future

    def cancel(self, checkpoint_id: int) -> None:
        """Cancel those with this id."""
        for given, future in list(self._futures.values()):
            if given == checkpoint_id:
                future.cancel()

    def cancel_all(self) -> None:
        """Cancel every one."""
        for _, future in list(self._futures.values()):
            future.cancel()


def _discard(result: Discardable) -> None:
    try:
        result.discard()
    except MoorageError as error:
        _log.warning("what a canceled snapshot wrote was not deleted: error=%s", error)
