"""The lock of one run on a checkpoint directory, of the kind that its store can keep."""

from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from moorage_state.snapshots.heartbeat import HeartbeatLock
from moorage_state.snapshots.locking import DirectoryLock, LockHolder
from moorage_state.stores import LocalStore, MemoryStore, ObjectStore

__all__ = ["RunLock", "acquire_lock"]


class RunLock(Protocol):
    """A held lock; a context manager that releases it."""

    def release(self) -> None:
        """Free the lock; a second call does nothing."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class _NoLock:
    """For a store that dies with its process: nothing is held."""

    def release(self) -> None:
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return


def acquire_lock(
    store: ObjectStore,
    holder: LockHolder,
    *,
    take_over: bool = False,
    watching: Callable[[str], None] | None = None,
) -> RunLock:
    """Lock the checkpoint directory in `store` in the name of `holder`.

    On a local directory the kernel frees the lock when the process ends, however it ends. On any
    other store the lock is an object that beats: after a crash it takes `Pace.patience` seconds of
    watching until it counts as free. Memory needs no lock.

    Args:
        store: the checkpoint directory.
        holder: who asks.
        take_over: whether to take a lock that is held; the fence ends the other run.
        watching: told once, in a sentence, before another's lock is watched for a while.

    Raises UserError when another run holds the lock, naming it, and what the store raises.
    """
    if isinstance(store, LocalStore):
        return DirectoryLock.acquire(store.root, holder, take_over=take_over)
    if isinstance(store, MemoryStore):
        return _NoLock()
    return HeartbeatLock.acquire(store, holder, take_over=take_over, watching=watching)
