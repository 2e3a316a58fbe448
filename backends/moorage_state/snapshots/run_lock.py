"""The lock of one run on a checkpoint directory, of the kind that its store can keep.

Politeness only: the fence already keeps a second writer from doing harm. The lock spares people the
surprise: a second run on a directory is refused at once, with the name of the first.
"""

import fcntl
import json
import logging
import os
import socket
import stat
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Self

from moorage_state.errors import AlreadyExists, MoorageError, ObjectNotFound, UserError
from moorage_state.formats import read_json
from moorage_state.stores import LocalStore, MemoryStore, ObjectStore

_FILE_NAME = ".lock"

_held: "weakref.WeakSet[DirectoryLock]" = weakref.WeakSet()
LOCK_KEY = "lock.json"
_FORMAT = "moorage-lock"
_VERSION = 1
_JOIN_SECONDS = 10.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LockHolder:
    """Who holds a lock, for people; `since` is ISO 8601."""

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


class RunLock:
    """A lock that may be held; a context manager that releases it. This one holds nothing."""

    def release(self) -> None:
        """Free the lock; a second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class DirectoryLock(RunLock):
    """A held lock of a local directory, which the kernel frees when the process ends.

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
        """See `acquire_lock`; UserError also when `directory` is missing or cannot be locked."""
        path = directory / _FILE_NAME
        try:
            descriptor = _replace(path) if take_over else _lock(path)
            _describe(descriptor, holder)
        except BlockingIOError as error:
            raise UserError(
                f"checkpoint directory is in use by another run: directory={directory} "
                f"{_who_holds(path)}; wait until it ends or stop it, or pass --take-over to go "
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

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _close_in_child() -> None:
    for lock in list(_held):
        lock._close()  # noqa: SLF001


os.register_at_fork(after_in_child=_close_in_child)


def _lock(path: Path) -> int:
    """Return a descriptor that holds the lock; BlockingIOError when another process holds it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A take-over puts another file under the name: the lock may be on a file without one.
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
    fresh = path.with_name(f"{_FILE_NAME}-{uuid.uuid4().hex}")
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


def _who_holds(path: Path) -> str:
    """Return who holds the lock; it may be writing its name at this moment."""
    try:
        return f"holder: {LockHolder(**read_json(path.read_text()))}"
    except (OSError, ValueError, TypeError):
        return "holder: unknown"


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a lock beats, and how patient those are who want it; all in seconds.

    Attributes:
        beat: between two writes of the holder.
        patience: without a change, after which a holder counts as gone. Several beats, so that a
            slow store does not look like a dead holder.
        look: between two looks of somebody who wants the lock.
    """

    beat: float = 5.0
    patience: float = 30.0
    look: float = 1.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class HeartbeatLock(RunLock):
    """A held lock, an object that beats on a thread of its own.

    A holder that finds another's lock in the place of its own stops beating and says so in the log:
    it is the fence that ends it. A forked child neither beats nor releases.
    """

    def __init__(
        self,
        store: ObjectStore,
        holder: LockHolder,
        token: str,
        pace: Pace,
        replaced: bytes | None = None,
    ) -> None:
        """Private: use `acquire`."""
        self._replaced = None if replaced is None else _token(replaced)
        self._store = store
        self._holder = holder
        self._token = token
        self._pace = pace
        self._pid = os.getpid()
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lock-heartbeat", daemon=True)
        self._thread.start()

    @classmethod
    def acquire(
        cls,
        store: ObjectStore,
        holder: LockHolder,
        *,
        take_over: bool = False,
        watching: Callable[[str], None] | None = None,
        pace: Pace | None = None,
    ) -> Self:
        """See `acquire_lock`; another's lock is watched for `pace.patience` seconds at most."""
        pace = pace or Pace()
        token = uuid.uuid4().hex
        mine = _encode(holder, token, 0)
        if take_over:
            replaced = _look(store)
            store.put(LOCK_KEY, mine)
            return cls(store, holder, token, pace, replaced)
        replaced = None
        try:
            store.put_if_absent(LOCK_KEY, mine)
        except AlreadyExists:
            replaced = _watch(store, pace, watching)
            store.put(LOCK_KEY, mine)
            # Somebody else may have watched as long, and have taken it a moment later.
            found = _look(store)
            if found is not None and found != mine:
                raise _refusal(store, found) from None
        return cls(store, holder, token, pace, replaced)

    def release(self) -> None:
        """Free the lock; a second call does nothing. A store that fails is left to patience."""
        if self._released.is_set() or os.getpid() != self._pid:
            return
        self._released.set()
        self._thread.join(_JOIN_SECONDS)
        try:
            found = _look(self._store)
            if found is not None and _token(found) == self._token:
                self._store.delete(LOCK_KEY)
        except MoorageError as error:
            _log.warning("lock_not_released: store=%s error=%s", self._store.url, error)

    def _beat(self) -> None:
        beats = 0
        while not self._released.wait(self._pace.beat):
            beats += 1
            try:
                found = _look(self._store)
                # The holder that was replaced may have been about to beat: that is written over.
                if found is not None and _token(found) not in {self._token, self._replaced}:
                    _log.warning(
                        "lock_taken_over: store=%s holder=%s", self._store.url, _holder_of(found)
                    )
                    return
                if not self._released.is_set():
                    self._store.put(LOCK_KEY, _encode(self._holder, self._token, beats))
            except MoorageError as error:
                # The next beat tries again; a store that stays away ends the job by other ways.
                _log.warning("lock_not_beaten: store=%s error=%s", self._store.url, error)


def _watch(store: ObjectStore, pace: Pace, watching: Callable[[str], None] | None) -> bytes | None:
    """Return the lock that did not change for long enough, None when it is gone; or UserError."""
    first = _look(store)
    if first is None:
        return None
    if watching is not None:
        watching(
            f"checkpoint directory may be in use by another run: store={store.url} "
            f"{_holder_of(first)}; watching for {pace.patience:g} seconds whether it is alive"
        )
    since = pace.clock()
    while pace.clock() - since < pace.patience:
        pace.sleep(pace.look)
        found = _look(store)
        if found is None:
            return None
        if found != first:
            raise _refusal(store, found)
    return first


def _refusal(store: ObjectStore, found: bytes) -> UserError:
    return UserError(
        f"checkpoint directory is in use by another run: store={store.url} {_holder_of(found)}; "
        "wait until it ends or stop it, or pass --take-over to go on at once and fence it off"
    )


def _look(store: ObjectStore) -> bytes | None:
    with suppress(ObjectNotFound):
        return store.get(LOCK_KEY)
    return None


def _encode(holder: LockHolder, token: str, beats: int) -> bytes:
    fields = {_FORMAT: _VERSION, **asdict(holder), "token": token, "beats": beats}
    return json.dumps(fields).encode() + b"\n"


def _token(data: bytes) -> str | None:
    """Return whose lock it is; None for something that is no lock."""
    try:
        fields = read_json(data)
    except ValueError:
        return None
    return str(fields.get("token")) if isinstance(fields, dict) else None


def _holder_of(data: bytes) -> str:
    try:
        fields = read_json(data)
        names = ("pid", "host", "job", "since")
        return f"holder: {LockHolder(**{name: fields[name] for name in names})}"
    except (ValueError, TypeError, KeyError):
        return "holder: unknown"


def acquire_lock(
    store: ObjectStore,
    holder: LockHolder,
    *,
    take_over: bool = False,
    watching: Callable[[str], None] | None = None,
) -> RunLock:
    """Lock the checkpoint directory in `store` in the name of `holder`.

    On a local directory the kernel frees the lock with the process. On any other store it is an
    object that beats: after a crash it takes `Pace.patience` seconds of watching until it counts as
    free. Memory needs none.

    With `take_over` a lock that is held is taken; the fence ends the other run. `watching` is told
    once, in a sentence, before another's lock is watched. Raises UserError when another run holds
    it, naming it, and what the store raises.
    """
    if isinstance(store, LocalStore):
        return DirectoryLock.acquire(store.root, holder, take_over=take_over)
    if isinstance(store, MemoryStore):
        return RunLock()  # it dies with its process
    return HeartbeatLock.acquire(store, holder, take_over=take_over, watching=watching)
