"""Whether a call gets on, for whoever waits for it and must tell slow from stuck; and its retries.

Told by those who move bytes or apply writes (`advance`), and read off the disk where only that
knows (`watching`). A state server makes one `Progress` for each call (`carrying`) and asks it now
and then; pools hand it to their threads with `carried`. Without one all of it costs next to
nothing.
"""

import os
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Progress:
    """What one call has done; for any thread. `measures` are asked besides the steps."""

    __slots__ = ("_last", "_lock", "_steps", "measures", "retries")

    def __init__(self) -> None:
        self._steps = 0
        self._lock = threading.Lock()
        self.retries = 0
        self.measures: list[Callable[[], Hashable]] = []
        self._last: Hashable = self._state()

    def moved(self) -> bool:
        """Whether anything has happened since this was asked last."""
        state = self._state()
        moved, self._last = state != self._last, state
        return moved

    def _state(self) -> Hashable:
        return self._steps, *(measure() for measure in list(self.measures))

    def advance(self) -> None:
        """One step."""
        # Two threads may lose a step of one; what counts is that the number changes.
        self._steps += 1

    def retried(self) -> None:
        """Something is tried again."""
        with self._lock:
            self.retries += 1


_current: ContextVar[Progress | None] = ContextVar("progress", default=None)


def advance() -> None:
    """The call of this thread has got on by a step, which took a moment only."""
    progress = _current.get()
    if progress is not None:
        progress.advance()


def retried() -> None:
    """The call of this thread tries something again, such as a request to a store."""
    progress = _current.get()
    if progress is not None:
        progress.retried()


@contextmanager
def counting_retries() -> Iterator[Callable[[], int]]:
    """Yields what says within the block how often something was tried again, by any thread."""
    progress = _current.get() or Progress()
    before = progress.retries
    with carrying(progress):
        yield lambda: progress.retries - before


@contextmanager
def watching(measure: Callable[[], Hashable]) -> Iterator[None]:
    """Within the block the call gets on when `measure` changes; another thread asks for it."""
    progress = _current.get()
    if progress is None:
        yield
        return
    progress.measures.append(measure)
    try:
        yield
    finally:
        progress.measures.remove(measure)


@contextmanager
def carrying(progress: Progress | None) -> Iterator[None]:
    """Within the block steps count for `progress`."""
    token = _current.set(progress)
    try:
        yield
    finally:
        _current.reset(token)


def carried(action: Callable[P, T]) -> Callable[P, T]:
    """`action` for another thread, where its steps count for the call of this one."""
    progress = _current.get()

    def work(*args: P.args, **kwargs: P.kwargs) -> T:
        with carrying(progress):
            return action(*args, **kwargs)

    return work


def bytes_below(folder: Path) -> int:
    """Bytes of all files in a directory and those below it; 0 if it is not there."""
    total, folders = 0, [str(folder)]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue  # deleted meanwhile
    return total
