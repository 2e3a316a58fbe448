"""The lock on a checkpoint directory in a store that no kernel watches: an object that beats.

Like the lock of a directory it is politeness only: the fence keeps a second writer from doing harm.
The holder writes `lock.json` anew every few seconds. Whoever wants it watches the object on a
clock of its own: no two machines' clocks are ever compared. An object that changes has a living
holder; one that stays the same for long enough has none, and is taken.
"""

import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Self

from moorage_state.errors import AlreadyExists, MoorageError, ObjectNotFound, UserError
from moorage_state.snapshots.locking import LockHolder
from moorage_state.stores import ObjectStore

__all__ = ["LOCK_KEY", "HeartbeatLock", "Pace"]

LOCK_KEY = "lock.json"

_FORMAT = "moorage-lock"
_VERSION = 1
_JOIN_SECONDS = 10.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast a lock beats, and how patient those are who want it.

    Attributes:
        beat: seconds between two writes of the holder.
        patience: seconds without a change after which a holder counts as gone. Several beats, so
            that a slow store does not look like a dead holder.
        look: seconds between two looks of somebody who wants the lock.
        clock: monotonic seconds, of somebody who wants the lock.
        sleep: waits for seconds, between two looks.
    """

    beat: float = 5.0
    patience: float = 30.0
    look: float = 1.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class HeartbeatLock:
    """A held lock, beating on a thread of its own; a context manager that releases it.

    A holder that finds another's lock in the place of its own stops beating and says so in the
    log: it is the fence that ends it. A forked child neither beats nor releases.
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
        """Lock the checkpoint directory in `store` in the name of `holder`.

        When another's lock is there, it is watched: up to `pace.patience` seconds if it does not
        change. With `take_over` it is replaced at once; its holder is not told, and is kept from
        writing by the fence alone.

        Args:
            store: the checkpoint directory.
            holder: who asks.
            take_over: whether to insist.
            watching: told once, in a sentence, before another's lock is watched.
            pace: how fast all this goes.

        Raises UserError when the lock is alive, naming its holder, and what the store raises.
        """
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

    @property
    def is_lost(self) -> bool:
        """Whether the heart has stopped, by release or because another took the lock over."""
        return not self._thread.is_alive()

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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def _beat(self) -> None:
        beats = 0
        while not self._released.wait(self._pace.beat):
            beats += 1
            try:
                found = _look(self._store)
                # The holder that was replaced may have been about to beat: that is written over.
                if found is not None and _token(found) not in {self._token, self._replaced}:
                    _log.warning(
                        "lock_taken_over: store=%s holder=%s", self._store.url, _holder_text(found)
                    )
                    return
                if not self._released.is_set():
                    self._store.put(LOCK_KEY, _encode(self._holder, self._token, beats))
            except MoorageError as error:
                # The next beat tries again; a store that stays away ends the job by other ways.
                _log.warning("lock_not_beaten: store=%s error=%s", self._store.url, error)


def _watch(store: ObjectStore, pace: Pace, watching: Callable[[str], None] | None) -> bytes | None:
    """Return the lock that did not change for long enough, or None when it is gone.

    Raises UserError when it changes.
    """
    first = _look(store)
    if first is None:
        return None
    if watching is not None:
        watching(
            f"checkpoint directory may be in use by another run: store={store.url} "
            f"{_holder_text(first)}; watching for {pace.patience:g} seconds whether it is alive"
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
        f"checkpoint directory is in use by another run: store={store.url} {_holder_text(found)}; "
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
        fields = json.loads(data)
    except ValueError:
        return None
    return str(fields.get("token")) if isinstance(fields, dict) else None


def _holder_text(data: bytes) -> str:
    try:
        fields = json.loads(data)
        names = ("pid", "host", "job", "since")
        return f"holder: {LockHolder(**{name: fields[name] for name in names})}"
    except (ValueError, TypeError, KeyError):
        return "holder: unknown"
