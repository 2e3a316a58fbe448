"""The lock on a checkpoint directory: one run at a time, said politely.

The fence already keeps a second writer from doing harm. The lock spares people the surprise: a
second run on a directory is refused at once, with the name of the first. The kernel frees it when
the process ends, however it ends.
"""

import fcntl
import json
import os
import socket
import stat
import uuid
import weakref
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from moorage_state.errors import UserError

__all__ = ["DirectoryLock", "LockHolder"]

_NAME = ".lock"


@dataclass(frozen=True, slots=True)
class LockHolder:
    """Who holds a lock, for people.

    Attributes:
        pid: the process.
        host: the machine it runs on.
        job: the name of the job.
        since: when it took the lock, as ISO 8601.
    """

    pid: int
    host: str
    job: str
    since: str

    @classmethod
    def current(cls, job: str, since: datetime) -> "LockHolder":
        """Return this process as a holder."""
        return cls(os.getpid(), socket.gethostname(), job, since.isoformat(timespec="seconds"))

    def __str__(self) -> str:
        return f"pid={self.pid} host={self.host} job={self.job} since={self.since}"


class DirectoryLock:
    """A held lock; a context manager that releases it.

    Children do not inherit it: not through exec (the descriptor closes), nor through fork (the
    child closes its copy).
    """

    def __init__(self, descriptor: int) -> None:
        """Private: use `acquire`."""
        self._descriptor: int | None = descriptor
        _held.add(self)

    @classmethod
    def acquire(
        cls, directory: Path, holder: LockHolder, *, take_over: bool = False
    ) -> "DirectoryLock":
        """Lock `directory` (which must exist) in the name of `holder`.

        With `take_over` a lock that another process holds is replaced by this one's; the other
        process is not told, and is kept from writing by the fence alone.

        Raises UserError when another process holds the lock, naming it, and when the directory
        cannot be locked.
        """
        path = directory / _NAME
        try:
            descriptor = _replace(path) if take_over else _lock(path)
            _describe(descriptor, holder)
        except BlockingIOError as error:
            raise UserError(
                f"checkpoint directory is in use by another run: directory={directory} "
                f"{_holder_text(path)}; wait until it ends or stop it, or pass --take-over to go "
                "on at once and fence it off"
            ) from error
        except OSError as error:
            raise UserError(
                f"cannot lock checkpoint directory: directory={directory} error={error.strerror}; "
                "it must exist and be writable"
            ) from error
        return cls(descriptor)

    def release(self) -> None:
        """Free the lock; a second call does nothing."""
        if self._descriptor is not None:
            with suppress(OSError):
                os.ftruncate(self._descriptor, 0)
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


_held: "weakref.WeakSet[DirectoryLock]" = weakref.WeakSet()


def _close_in_child() -> None:
    for lock in list(_held):
        lock._close()  # noqa: SLF001


os.register_at_fork(after_in_child=_close_in_child)


def _lock(path: Path) -> int:
    """Return a descriptor that holds the lock of the file that bears this name at the end.

    A take-over puts another file under the name, so a lock may turn out to be on a file without
    one; then it is tried again. Raises BlockingIOError when another process holds it.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_named(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _replace(path: Path) -> int:
    """Put a new locked file in the place of `path` and return its descriptor."""
    with suppress(BlockingIOError):
        return _lock(path)
    fresh = path.with_name(f"{_NAME}-{uuid.uuid4().hex}")
    descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fresh.replace(path)
    except BaseException:
        os.close(descriptor)
        fresh.unlink(missing_ok=True)
        raise
    return descriptor


def _is_named(descriptor: int, path: Path) -> bool:
    mine = os.fstat(descriptor)
    try:
        named = path.stat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(named.st_mode) and (mine.st_dev, mine.st_ino) == (
        named.st_dev,
        named.st_ino,
    )


def _describe(descriptor: int, holder: LockHolder) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(asdict(holder)).encode() + b"\n", 0)


def _holder_text(path: Path) -> str:
    """Return who holds the lock; it may be writing its name at this moment."""
    try:
        return f"holder: {LockHolder(**json.loads(path.read_text()))}"
    except (OSError, ValueError, TypeError):
        return "holder: unknown"
