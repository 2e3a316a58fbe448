"""`store check`: whether a store does what checkpoints rely on, tried with small objects.

The rules are those of `ObjectStore`. It works below `probe/<random id>/` of the directory that is
named, and takes away what it made: a job may run there meanwhile.
"""

import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from moorage_state.errors import AlreadyExists, MoorageError
from moorage_state.stores import ObjectStore

_RACERS = 8
# In more than one part on a store that has parts.
_LARGE_BYTES = 17 << 20


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was tried."""

    name: str
    problem: str
    seconds: float
    error: MoorageError | None = None


@dataclass(frozen=True, slots=True)
class StoreReport:
    """What a store does, and how far this machine's clock is before its own, if it says."""

    path: str
    checks: Sequence[Check]
    clock_ahead_seconds: float | None

    @property
    def failed(self) -> Sequence[Check]:
        """Those that found a problem."""
        return [check for check in self.checks if check.problem]


def check_store(
    store: ObjectStore, now: Callable[[], datetime], clock: Callable[[], float] = time.monotonic
) -> StoreReport:
    """Try everything, also after something was wrong; nothing of it stays behind.

    Args:
        now: this machine's time (aware).
        clock: seconds that only go forward.

    Raises:
        MoorageError: nothing can be written or read, so there is nothing to try.
    """
    root = f"probe/{uuid.uuid4().hex}"
    checks: list[Check] = []
    try:
        for name, one in _TRIES:
            checks.append(_tried(name, partial(one, store, root), clock))
            # If nothing can be written, all other answers would be the same error again.
            if checks[0].error is not None:
                raise checks[0].error
    finally:
        with suppress(MoorageError):
            store.delete_many([info.key for info in store.list(f"{root}/")])
    ahead = None
    with suppress(MoorageError):
        ahead = (now() - store.now()).total_seconds()
    return StoreReport(store.url, checks, ahead)


def _tried(name: str, one: Callable[[], str], clock: Callable[[], float]) -> Check:
    began = clock()
    try:
        problem, failure = one(), None
    except MoorageError as error:
        problem, failure = str(error), error
    return Check(name, problem, round(clock() - began, 3), failure)


def _writes(store: ObjectStore, root: str) -> str:
    """What was written is read at once, also where it replaced something."""
    key = f"{root}/written"
    for data in (b"one", b"another", b""):
        store.put(key, data)
        if store.get(key) != data:
            return "an object that was written reads back as it was before"
        info = store.head(key)
        if info is None or info.size != len(data):
            return "an object that was written is told with the wrong size, or not at all"
    return ""


def _creates_once(store: ObjectStore, root: str) -> str:
    """Of several that create one object exactly one succeeds, and its bytes are there."""
    key = f"{root}/created"

    def wins(racer: int) -> bool:
        try:
            store.put_if_absent(key, b"%d" % racer)
        except AlreadyExists:
            return False
        return True

    with ThreadPoolExecutor(_RACERS) as pool:
        won = list(pool.map(wins, range(_RACERS)))
    if sum(won) != 1:
        return f"{sum(won)} of {_RACERS} created one object, where one may: two runs could write"
    return "" if store.get(key) == b"%d" % won.index(True) else "the object is not its creator's"


def _large_objects(store: ObjectStore, root: str) -> str:
    """An object of several parts is whole, and any slice of it can be read."""
    key = f"{root}/large"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "large")
        path.write_bytes(b"".join(b"%015d\n" % n for n in range(_LARGE_BYTES // 16)))
        store.put_file(key, path)
    offset = _LARGE_BYTES // 2
    slice_ = store.get(key, offset=offset, length=16)
    return "" if slice_ == b"%015d\n" % (offset // 16) else "a slice of a large object is wrong"


def _lists(store: ObjectStore, root: str) -> str:
    """Keys are listed in the order of their bytes, from wherever one asks."""
    keys = [f"{root}/listed/{name}" for name in ("A", "Z", "a", "b-1", "b/1")]
    for key in keys:
        store.put(key, b"")
    found = [info.key for info in store.list(f"{root}/listed/")]
    if found != sorted(keys):
        return "a listing lacks objects, has others, or is in another order than that of the bytes"
    rest = [info.key for info in store.list(f"{root}/listed/", start_after=found[1])]
    return "" if rest == found[2:] else "a listing does not begin where it is asked to"


def _deletes(store: ObjectStore, root: str) -> str:
    """What is deleted is gone, also many at once, also what was not there."""
    keys = [f"{root}/deleted/{n}" for n in range(3)]
    for key in keys[:2]:
        store.put(key, b"")
    for error in store.delete_many(keys).values():
        raise error
    left = [key for key in keys if store.head(key) is not None]
    return f"objects that were deleted are still there: keys={left}" if left else ""


_TRIES: tuple[tuple[str, Callable[[ObjectStore, str], str]], ...] = (
    ("write and read", _writes),
    ("create once", _creates_once),
    ("large objects", _large_objects),
    ("list", _lists),
    ("delete", _deletes),
)
