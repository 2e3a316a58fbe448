"""A store that goes wrong by plan, without a server: for runs by the thousand.

Faults are of the kinds that a caller of a real store meets: an error before the work or after it
(the reply was lost), a listing that breaks off, and the death of the process before or after the
work (`Crash`, which no `except Exception` stops). Lies (`Fault.TRUNCATED`) are not what stores do
on purpose; they show whether callers compare digests.
"""

import enum
import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from moorage_state.errors import MoorageError, StoreUnavailable, UserError
from moorage_state.stores import ObjectInfo, ObjectStore
from moorage_state.stores.base import delete_each

__all__ = ["LOST_OR_FAILED", "Crash", "Fault", "FaultyStore", "Plan"]

T = TypeVar("T")


class Crash(BaseException):
    """The process dies here."""


class Fault(enum.Enum):
    """What happens to an operation."""

    BEFORE = enum.auto()
    """StoreUnavailable, and nothing was done."""
    AFTER = enum.auto()
    """StoreUnavailable, and it was done."""
    REFUSED = enum.auto()
    """UserError, as for a missing permission; nothing was done."""
    CRASH_BEFORE = enum.auto()
    """The process dies before it is done."""
    CRASH_AFTER = enum.auto()
    """The process dies when it is done."""
    TRUNCATED = enum.auto()
    """A read gives half of the bytes and says nothing; other operations are not affected."""


_RANDOM_ID = re.compile("[0-9a-f]{16,}")

LOST_OR_FAILED = (Fault.BEFORE, Fault.AFTER)


@dataclass(slots=True)
class Plan:
    """Which operations go wrong.

    Each operation draws from the seed, its name, its key (without random ids) and how often that
    came before: the same seed goes wrong in the same places, hardly depending on how threads take
    turns.

    Attributes:
        seed: the seed.
        rate: the share of operations that go wrong.
        faults: which ways.
        operations: only these; all by default.
    """

    seed: int = 0
    rate: float = 0.0
    faults: tuple[Fault, ...] = LOST_OR_FAILED
    operations: frozenset[str] | None = None
    _counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def choose(self, operation: str, key: str) -> Fault | None:
        """Return the fault of this operation, if any."""
        if self.operations is not None and operation not in self.operations:
            return None
        which = (operation, _RANDOM_ID.sub("*", key))
        with self._lock:
            self._counts[which] += 1
            chance = random.Random(f"{self.seed} {which} {self._counts[which]}")
        return chance.choice(self.faults) if chance.random() < self.rate else None


class FaultyStore:
    """`inner`, going wrong by `plan`.

    Attributes:
        inner: the store that does the work; look into it for what is really there.
        plan: decides on operations for which nothing was injected. None is never.
        seen: what was asked, with what happened to it: (operation, key, fault).
    """

    def __init__(self, inner: ObjectStore, plan: Plan | None = None) -> None:
        self.inner = inner
        self.plan = plan
        self.seen: list[tuple[str, str, Fault | None]] = []
        self._injected: list[tuple[Fault, str, str]] = []
        self._lock = threading.Lock()

    def inject(self, fault: Fault, operation: str, contains: str = "", times: int = 1) -> None:
        """Let the next `times` such operations on a key that contains a text go wrong."""
        self._injected += [(fault, operation, contains)] * times

    @property
    def url(self) -> str:
        return self.inner.url

    def get(self, key: str, *, offset: int = 0, length: int | None = None) -> bytes:
        fault = self._choose("get", key)
        data = _do(fault, key, lambda: self.inner.get(key, offset=offset, length=length))
        return data[: len(data) // 2] if fault is Fault.TRUNCATED else data

    def get_to_file(
        self, key: str, path: Path, *, offset: int = 0, length: int | None = None
    ) -> None:
        fault = self._choose("get_to_file", key)
        try:
            _do(
                fault,
                key,
                lambda: self.inner.get_to_file(key, path, offset=offset, length=length),
            )
        except Exception:
            path.unlink(missing_ok=True)
            raise
        if fault is Fault.TRUNCATED:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    def put(self, key: str, data: bytes) -> None:
        _do(self._choose("put", key), key, lambda: self.inner.put(key, data))

    def put_file(self, key: str, path: Path) -> None:
        _do(self._choose("put_file", key), key, lambda: self.inner.put_file(key, path))

    def put_if_absent(self, key: str, data: bytes) -> None:
        fault = self._choose("put_if_absent", key)
        _do(fault, key, lambda: self.inner.put_if_absent(key, data))

    def head(self, key: str) -> ObjectInfo | None:
        return _do(self._choose("head", key), key, lambda: self.inner.head(key))

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """A fault after the work breaks the listing off in its middle."""
        fault = self._choose("list", prefix)
        found = list(_do(_early(fault), prefix, lambda: self.inner.list(prefix, start_after)))
        return _broken_off(found, fault, prefix)

    def delete(self, key: str) -> None:
        _do(self._choose("delete", key), key, lambda: self.inner.delete(key))

    def delete_many(self, keys: Collection[str]) -> dict[str, MoorageError]:
        """Each key has the faults of a deletion of its own; a crash comes between two of them."""
        return delete_each(self.delete, keys)

    def now(self) -> datetime:
        return _do(self._choose("now", ""), "", self.inner.now)

    def _choose(self, operation: str, key: str) -> Fault | None:
        with self._lock:
            fault = self._take(operation, key)
            if fault is None and self.plan is not None:
                fault = self.plan.choose(operation, key)
            self.seen.append((operation, key, fault))
        return fault

    def _take(self, operation: str, key: str) -> Fault | None:
        for index, (fault, wanted, contains) in enumerate(self._injected):
            if wanted == operation and contains in key:
                del self._injected[index]
                return fault
        return None


def _do(fault: Fault | None, key: str, work: Callable[[], T]) -> T:
    if fault is Fault.BEFORE:
        raise StoreUnavailable(f"injected before the work: key={key}")
    if fault is Fault.REFUSED:
        raise UserError(f"injected: s3 store refuses: key={key}")
    if fault is Fault.CRASH_BEFORE:
        raise Crash(f"before: key={key}")
    result = work()
    _fail_after(fault, key)
    return result


def _fail_after(fault: Fault | None, key: str) -> None:
    if fault is Fault.AFTER:
        raise StoreUnavailable(f"injected after the work: key={key}")
    if fault is Fault.CRASH_AFTER:
        raise Crash(f"after: key={key}")


def _early(fault: Fault | None) -> Fault | None:
    return None if fault in {Fault.AFTER, Fault.CRASH_AFTER} else fault


def _broken_off(found: list[ObjectInfo], fault: Fault | None, prefix: str) -> Iterator[ObjectInfo]:
    whole = fault not in {Fault.AFTER, Fault.CRASH_AFTER}
    yield from found if whole else found[: len(found) // 2]
    _fail_after(fault, prefix)
