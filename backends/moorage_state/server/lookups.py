"""Look-ups of who does not follow the epochs: what the last committed one left, in short turns.

Decides how long a range is held for them: at most `HOLD_SECONDS` at a time, after which it is let
go of for as long as it was held, so that a job that waits for it always gets it. What one look-up
gives is of one version: where an epoch is committed between two turns, it ends with what it has.
One read of the database is never cut: a single value, or the way to the first entry, takes as long
as it takes. While somebody asks, `KeptView` has a view of databases that can be read while they are
written to, so that look-ups and epochs do not wait for each other. Called by `OpenRange`.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from moorage_state.database import (
    RangeDatabase,
    RangeView,
    Scan,
    StandingDatabase,
    StandingView,
)
from moorage_state.errors import StaleLease
from moorage_state.keylayout import METADATA, prefix_end
from moorage_state.server.operations import Found, FoundUnder, RangeSpec, Version

HOLD_SECONDS = 0.002
"""For which a range is held at most, from the moment that it is ours."""

_STEP_SECONDS = HOLD_SECONDS / 8
"""What one read of the database is to take: after each it is seen how long the hold has lasted."""

_FIRST_STEP = 1
_LONGEST_STEP = 1024
_STEP_BYTES = 128 << 10

View = Callable[[], AbstractContextManager[tuple[Version, RangeView]]]
"""Holds a range: gives its version and the state at it, for a with block."""

PointView = Callable[[], AbstractContextManager[tuple[Version, RangeView | StandingView]]]
"""The same for who reads keys that it knows."""

KEPT_SECONDS = 10.0
"""After the last look-up; a view keeps what it shows from being compacted."""


class KeptView:
    """What the newest epoch that was applied left, while there are look-ups; for any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._asked: float | None = None
        self._kept: tuple[Version, StandingView] | None = None

    @contextmanager
    def seen(self) -> Iterator[tuple[Version, StandingView] | None]:
        """What is kept, for the with block; None where nothing is."""
        self._asked = self._clock()
        with self._lock:
            yield self._kept

    def renew(self, version: Version, database: RangeDatabase) -> None:
        """The database is at this version now; under the lock of its range."""
        asked = self._asked
        wanted = asked is not None and self._clock() - asked < KEPT_SECONDS
        if not isinstance(database, StandingDatabase) or (not wanted and self._kept is None):
            return
        with self._lock:
            self._let_go()
            if wanted:
                self._kept = version, database.standing()

    def drop(self) -> None:
        """The database is closed next, or another's."""
        with self._lock:
            self._let_go()

    def _let_go(self) -> None:
        if self._kept is not None:
            self._kept[1].drop()
            self._kept = None


class _Turns:
    """Holds the range for one look-up, again and again; tells how much to read at a time."""

    def __init__(self, clock: Callable[[], float], rest: Callable[[float], object]) -> None:
        self._clock = clock
        self._rest = rest
        self._began = self._read = 0.0
        self.step = _FIRST_STEP

    def begin(self) -> None:
        """The range is held from now on."""
        self._began = self._read = self._clock()

    def goes_on(self) -> bool:
        """After a read: whether there is time for another one like it in this turn."""
        now = self._clock()
        took, self._read = now - self._read, now
        if took > _STEP_SECONDS:
            self.step = max(1, int(self.step * _STEP_SECONDS / took))
        elif took < _STEP_SECONDS / 2:
            self.step = min(_LONGEST_STEP, self.step * 2)
        return now - self._began + max(took, _STEP_SECONDS) <= HOLD_SECONDS

    def end(self) -> None:
        """The range was let go of, and more is to be read: leave it to others for as long."""
        # A lock is not fair: who asks for it anew at once gets it before those who wait.
        self._rest(min(HOLD_SECONDS, max(0.0, self._read - self._began)))


def cells(
    spec: RangeSpec,
    view: PointView,
    keys: list[bytes],
    limit_bytes: int,
    clock: Callable[[], float] = time.monotonic,
    rest: Callable[[float], object] = time.sleep,
) -> Found:
    """The values of stored keys; see `RangeApi.look_up`."""
    for key in (min(keys), max(keys)) if keys else ():
        _require_here(spec, key)
    turns = _Turns(clock, rest)
    found: list[bytes | None] = []
    first: Version | None = None
    size = 0
    while True:
        with view() as (version, database):
            first = first or version
            if version != first:
                break
            turns.begin()
            while len(found) < len(keys) and size < limit_bytes:
                some = database.get_many(keys[len(found) : len(found) + turns.step])
                found += some
                size += sum(map(len, filter(None, some)))
                if not turns.goes_on():
                    break
        if len(found) == len(keys) or size >= limit_bytes:
            break
        turns.end()
    return Found(first.epoch, found)


def under(
    spec: RangeSpec,
    view: View,
    prefix: bytes,
    after: bytes,
    limit_entries: int,
    limit_bytes: int,
    clock: Callable[[], float] = time.monotonic,
    rest: Callable[[float], object] = time.sleep,
) -> FoundUnder:
    """The entries under a prefix; see `RangeApi.look_under`."""
    _require_here(spec, prefix)
    turns, end = _Turns(clock, rest), prefix_end(prefix)
    keys: list[bytes] = []
    values: list[bytes] = []
    first: Version | None = None
    whole, size, last = False, 0, after
    while True:
        with view() as (version, database):
            first = first or version
            if version != first:
                break
            turns.begin()
            with database.cursor(b"", METADATA) as cursor:
                cursor.seek(max(prefix, last + b"\0") if last else prefix)
                while not whole and len(keys) < limit_entries and size < limit_bytes:
                    step = min(turns.step, limit_entries - len(keys))
                    *some, whole = cursor.take(end, step, min(_STEP_BYTES, limit_bytes - size))
                    keys += some[0]
                    values += some[1]
                    size += sum(map(len, some[0])) + sum(map(len, some[1]))
                    if not turns.goes_on():
                        break
        if whole or len(keys) >= limit_entries or size >= limit_bytes:
            break
        last = keys[-1]
        turns.end()
    return FoundUnder(first.epoch, Scan(keys, values, whole))


def _require_here(spec: RangeSpec, key: bytes) -> None:
    """Refuse a key that another range holds: it would look as if it had nothing."""
    group = int.from_bytes(key[:2], "big")
    if not spec.start <= group <= spec.end:
        raise StaleLease(
            f"key group is in another range: uid={spec.uid} key_group={group} "
            f"range={spec.start}-{spec.end}; ask where ranges are now"
        )
