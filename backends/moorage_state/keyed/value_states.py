"""States with one value per key, fetched for a chunk of keys and written once when a key is done.

A value state has what it was given. Reducing, aggregating and folding states keep what becomes of
all that is added in the cell of a value state, so that a key whose rows add a thousand values is
read and written once; several values at once are combined among themselves before the cell is
asked. Called by user functions.
"""
# ruff: noqa: D102  `interfaces` documents the methods

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moorage_state.checks import StateTypeError, added, each_of
from moorage_state.descriptors import (
    AggregateFunction,
    FoldingStateDescriptor,
    ReducingStateDescriptor,
)
from moorage_state.keyed import interfaces
from moorage_state.keyed.expiry import NEVER, split_stamp, stamp_bytes

Reducer = Callable[[Any, Any], Any]
_LARGEST = (1 << 63) - 1


class OverCell:
    """What is common to states over the cell of another: the cell forgets, clears and writes."""

    __slots__ = ("cell",)

    def __init__(self, cell: Any) -> None:
        self.cell = cell

    def clear(self) -> None:
        self.cell.clear()

    def new_chunk(self) -> None:
        """Forget what was fetched for the chunk before."""
        self.cell.new_chunk()

    def flush(self) -> None:
        """Write what the current key changed."""
        self.cell.flush()


if TYPE_CHECKING:
    from moorage_state.codecs import Decode, Settle
    from moorage_state.keyed.expiry import Expiry
    from moorage_state.keyed.scanning import Values
    from moorage_state.keyed.schema import StateCodec
    from moorage_state.keyed.state_store import KeyedStateStore


class StoredValueState(interfaces.ValueState):
    """A value as one entry of the range."""

    __slots__ = (
        "_as_given",
        "_decode",
        "_dirty",
        "_encode",
        "_loaded",
        "_plain",
        "_raws",
        "_settle",
        "_sid",
        "_store",
        "_value",
    )

    def __init__(self, store: "KeyedStateStore", sid: bytes, codec: "StateCodec") -> None:
        self._store = store
        self._sid = sid
        self._encode, self._decode, self._plain, self._settle = codec
        self._raws: Values | None = None
        self._loaded = False
        self._dirty = False
        self._as_given = False
        self._value: Any = None

    def value(self) -> Any:
        if self._loaded:
            if self._as_given:
                self._value = self._settle(self._value)
                self._as_given = False
            return self._value
        store = self._store
        store.touched.append(self)
        raws = self._raws
        if raws is None:
            raws = self._raws = store.fetch(self._sid)
        raw = raws[store.index]
        self._value = value = None if raw is None else self._decode(raw)
        self._loaded = True
        return value

    # As further values are added to it: never one that has expired.
    live = value

    def take_over(self, other: "StoredValueState") -> None:
        """Make the value of `other` this one's, as old as it is."""
        self.update(other.live())

    def update(self, value: Any) -> None:
        if not self._loaded:
            self._store.touched.append(self)
            self._loaded = True
        self._value = value
        self._dirty = True
        # Encoded when the key is done, not now: most values are updated again by the next row.
        self._as_given = value is not None and type(value) is not self._plain

    def clear(self) -> None:
        self.update(None)

    def new_chunk(self) -> None:
        """Forget what was fetched for the chunk before."""
        self._raws = None

    def give(self, raw: bytes | None) -> None:
        """Take what is stored for the current key, which was fetched with others."""
        self._raws = {self._store.index: raw}

    def flush_with(self, handle: Any) -> None:
        """Have `handle` flushed when the current key is done; it may update this one then."""
        # Whoever is touched while the handles of a key are flushed is flushed after them.
        self._store.touched.append(handle)

    def flush(self) -> None:
        """Write the current key's value if it changed."""
        self._loaded = self._as_given = False
        if self._dirty:
            self._dirty = False
            value, store = self._value, self._store
            raw = None if value is None else self._encode(value)
            store.write_cell(store.prefix + self._sid, raw)


class ExpiringValueState(StoredValueState):
    """A value with a time to live, stamped with when it was last used."""

    __slots__ = ("_expired", "_expiry", "_payload", "_renewed", "_stamp", "_taken")

    def __init__(
        self, store: "KeyedStateStore", sid: bytes, codec: "StateCodec", expiry: "Expiry"
    ) -> None:
        super().__init__(store, sid, codec)
        self._expiry = expiry
        self._stamp: int | None = None
        self._expired: bytes | None = None
        self._payload = b""
        self._renewed = False
        # The stamp of a value that another state had, until it is written or renewed here.
        self._taken: int | None = None

    def value(self) -> Any:
        self._load()
        if self._expired is not None:
            raw, self._expired = self._expired, None
            return self._decode(raw)
        if not self._dirty and self._value is not None:
            self._renewed = self._expiry.renews(self._stamp)
        elif self._taken is not None and self._expiry.renews(self._taken):
            self._taken = None
        return super().value()

    def live(self) -> Any:
        """The value as further values are added to it: never one that has expired."""
        self._load()
        return super().value()

    def update(self, value: Any) -> None:
        super().update(value)
        self._expired = self._taken = None

    def take_over(self, other: Any) -> None:
        super().take_over(other)
        self._taken = other.stamp_ms

    @property
    def stamp_ms(self) -> int | None:
        """When the value was last used, as it stands after `live`; None for in this epoch."""
        if self._dirty or self._renewed:
            return self._taken
        return None if self._stamp == NEVER else self._stamp

    def flush(self) -> None:
        """Write the current key's value, its stamp, and where the sweep finds it."""
        self._loaded = self._as_given = False
        stamp, self._stamp, self._expired = self._stamp, None, None
        dirty, self._dirty = self._dirty, False
        renewed, self._renewed = self._renewed, False
        taken, self._taken = self._taken, None
        expiry, cell = self._expiry, self._store.prefix + self._sid
        if dirty and self._value is None:
            self._store.write_cell(cell, None)
            expiry.forget(cell, stamp)
        elif dirty or renewed:
            # What is only read is stored as it was, whatever became of the object.
            payload = self._encode(self._value) if dirty else self._payload
            bears = expiry.stamp if taken is None else stamp_bytes(taken)
            self._store.write_cell(cell, bears + payload)
            expiry.note(cell, stamp, taken)

    def _load(self) -> None:
        """What is stored, without the stamp."""
        if self._loaded:
            return
        store = self._store
        store.touched.append(self)
        self._loaded = True
        if self._raws is None:
            self._raws = store.fetch(self._sid)
        raw = self._raws[store.index]
        self._value = None
        if raw is None:
            return
        self._stamp, payload = split_stamp(raw)
        if not self._expiry.expired(self._stamp):
            self._value = self._decode(payload)
            self._payload = payload
            return
        self._dirty = True
        # Cleaned up by being read, also where it may still be seen once.
        if self._expiry.returns_expired:
            self._expired = payload


class DefaultedValueState(OverCell, interfaces.ValueState):
    """A value that reads as a default where nothing is stored; `cell` holds what is."""

    __slots__ = ("_decode", "default")

    def __init__(self, cell: Any, default: bytes, decode: "Decode") -> None:
        super().__init__(cell)
        self.default, self._decode = default, decode

    def value(self) -> Any:
        found = self.cell.value()
        # Decoded anew for everyone who asks, so that nobody changes another's.
        return self._decode(self.default) if found is None else found

    def update(self, value: Any) -> None:
        self.cell.update(value)


def _least(one: Any, other: Any) -> Any:
    """The least of two values."""
    # As Spark has it: NaN, which no comparison finds, is the greatest.
    return other if other < one or one != one else one  # noqa: PLR0124


def _greatest(one: Any, other: Any) -> Any:
    """The greatest; see `_least`."""
    return other if other > one or other != other else one  # noqa: PLR0124


_KNOWN: dict[str, Reducer] = {"sum": added, "min": _least, "max": _greatest}
_WHOLE: dict[Reducer, np.ufunc] = {
    added: np.add,
    _least: np.minimum,
    _greatest: np.maximum,
}


def reduced_by_key(
    values: Sequence[Any] | NDArray[Any], starts: Sequence[int], function: Reducer
) -> list[Any]:
    """What the values of each key reduce to: keys lie together, `starts` says where each begins.

    Every key has at least one value. Integers are reduced whole where `function` is one that
    `reducer` gives for a name; exactly, also where a sum leaves 64 bits.
    """
    whole = _WHOLE.get(function)
    if whole is None or not isinstance(values, np.ndarray) or values.dtype.kind not in "iu":
        plain = values.tolist() if isinstance(values, np.ndarray) else values
        ends = [*starts[1:], len(plain)]
        return [reduce(function, plain[a:b]) for a, b in zip(starts, ends, strict=True)]
    if whole is np.add:
        most = max(abs(int(values.min())), abs(int(values.max())))
        # Python's integers where a sum may leave 64 bits; NumPy's would wrap in silence.
        values = values.astype(object if most * len(values) > _LARGEST else np.int64)
    found: list[Any] = whole.reduceat(values, starts).tolist()
    return found


class _CombiningState(OverCell, interfaces.MergingState):
    """What is common to them; `cell` holds what came of the values."""

    __slots__ = ("_state",)

    def __init__(self, cell: "StoredValueState", state: str) -> None:
        super().__init__(cell)
        self._state = state

    def _nothing(self, function: str) -> StateTypeError:
        """The error for a function that gave None."""
        # It would clear the state: who means that calls `clear`.
        return StateTypeError(
            f"a function gave None, which is no value of a state: state={self._state} "
            f"function={function}; return what the state is to hold, also where an argument was "
            f"changed in place"
        )


class StoredReducingState(_CombiningState, interfaces.ReducingState):
    """One value per key, to which each value that is added is reduced."""

    __slots__ = ("_reduce",)

    def __init__(self, cell: "StoredValueState", function: Reducer, state: str) -> None:
        super().__init__(cell, state)
        self._reduce = function

    def get(self) -> Any:
        return self.cell.value()

    def add(self, value: Any) -> None:
        if value is None:
            return
        before = self.cell.live()
        if before is not None:
            value = self._reduce(before, value)
            if value is None:
                raise self._nothing("reduce")
        self.cell.update(value)

    def add_all(self, values: Iterable[Any]) -> None:
        if not isinstance(values, np.ndarray) or values.dtype == object or not values.ndim:
            values = [value for value in each_of(values) if value is not None]
        if len(values) > 0:
            function = self._reduce if self._reduce in _WHOLE else self._reduced
            self.add(reduced_by_key(values, [0], function)[0])

    def _reduced(self, one: Any, other: Any) -> Any:
        made = self._reduce(one, other)
        if made is None:
            raise self._nothing("reduce")
        return made

    def absorb(self, other: "StoredReducingState") -> None:
        """Take over what the same state has in another namespace, which is cleared."""
        theirs = other.cell.live()
        if theirs is not None:
            if self.cell.live() is None:
                self.cell.take_over(other.cell)
            else:
                self.add(theirs)
        other.clear()


class StoredAggregatingState(_CombiningState, interfaces.AggregatingState):
    """An accumulator per key, into which values are added and out of which a result is made."""

    __slots__ = ("_function",)

    _adding = "add"

    def __init__(self, cell: "StoredValueState", function: AggregateFunction, state: str) -> None:
        super().__init__(cell, state)
        self._function = function

    def get(self) -> Any:
        accumulator = self.cell.value()
        return None if accumulator is None else self._function.get_result(accumulator)

    def add(self, value: Any) -> None:
        if value is None:
            return
        cell, function = self.cell, self._function
        accumulator = cell.live()
        if accumulator is None:
            accumulator = function.create_accumulator()
        accumulator = function.add(value, accumulator)
        if accumulator is None:
            raise self._nothing(self._adding)
        cell.update(accumulator)

    def add_all(self, values: Iterable[Any]) -> None:
        if isinstance(values, np.ndarray):
            values = values.tolist()
        some = [value for value in each_of(values) if value is not None]
        if not some:
            return
        function = self._function
        accumulator = self.cell.live()
        if accumulator is None:
            accumulator = function.create_accumulator()
        for value in some:
            accumulator = function.add(value, accumulator)
            if accumulator is None:
                raise self._nothing(self._adding)
        self.cell.update(accumulator)

    def absorb(self, other: "StoredAggregatingState") -> None:
        """Take over what the same state has in another namespace, which is cleared."""
        theirs = other.cell.live()
        if theirs is not None:
            mine = self.cell.live()
            if mine is None:
                self.cell.take_over(other.cell)
            else:
                merged = self._function.merge(mine, theirs)
                if merged is None:
                    raise self._nothing("merge")
                self.cell.update(merged)
        other.clear()


class StoredFoldingState(StoredAggregatingState, interfaces.FoldingState):
    """Deprecated: an aggregating state that folds into an initial value."""

    __slots__ = ()

    _adding = "fold"


class _Folding(AggregateFunction):
    """A fold function as the aggregate function that it is."""

    def __init__(self, initial: Any, fold: Reducer, settle: "Settle") -> None:
        self._initial = initial
        self._fold = fold
        self._settle = settle

    def create_accumulator(self) -> Any:
        return self._settle(self._initial)

    def add(self, value: Any, accumulator: Any) -> Any:
        return self._fold(accumulator, value)

    def get_result(self, accumulator: Any) -> Any:
        return accumulator


def folding_function(descriptor: FoldingStateDescriptor, settle: "Settle") -> AggregateFunction:
    """The aggregate function of a folding state; its initial value is copied for every key."""
    return _Folding(descriptor.initial, descriptor.fold, settle)


def reducer(descriptor: ReducingStateDescriptor) -> Reducer:
    """The function of a reducing state, also where only its name is given."""
    given = descriptor.reduce
    return _KNOWN[given] if isinstance(given, str) else given
