"""States in which what is added becomes one value: ReducingState, AggregatingState, FoldingState.

They keep it in the cell of a value state, so that a key whose rows add a thousand values is read
and written once. Several values at once are combined among themselves before the cell is asked.
Called by user functions.
"""

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moorage_state.codecs import StateTypeError
from moorage_state.descriptors import (
    AggregateFunction,
    FoldingStateDescriptor,
    ReducingStateDescriptor,
)
from moorage_state.keyed import api
from moorage_state.keyed.cells import OverCell

if TYPE_CHECKING:
    from moorage_state.codecs import Settle
    from moorage_state.keyed.values import ValueState

__all__ = [
    "AggregatingState",
    "FoldingState",
    "ReducingState",
    "folding_function",
    "reduced_by_key",
    "reducer",
]

Reducer = Callable[[Any, Any], Any]


def _least(one: Any, other: Any) -> Any:
    """The least of two values, as Spark has it: NaN, which no comparison finds, is the greatest."""
    return other if other < one or one != one else one  # noqa: PLR0124


def _greatest(one: Any, other: Any) -> Any:
    """The greatest; see `_least`."""
    return other if other > one or other != other else one  # noqa: PLR0124


_KNOWN: dict[str, Reducer] = {"sum": operator.add, "min": _least, "max": _greatest}
_WHOLE: dict[Reducer, np.ufunc] = {
    operator.add: np.add,
    _least: np.minimum,
    _greatest: np.maximum,
}
_LARGEST = (1 << 63) - 1


def reduced_by_key(
    values: Sequence[Any] | NDArray[Any], starts: Sequence[int], function: Reducer
) -> list[Any]:
    """What the values of each key reduce to: keys lie together, `starts` says where each begins.

    Columns of integers are reduced whole where `function` is one that `reducer` gives for a name;
    exactly, also where a sum leaves 64 bits. Every key has at least one value.
    """
    whole = _WHOLE.get(function)
    if whole is None or not isinstance(values, np.ndarray) or values.dtype.kind not in "iu":
        plain = values.tolist() if isinstance(values, np.ndarray) else values
        ends = [*starts[1:], len(plain)]
        return [reduce(function, plain[a:b]) for a, b in zip(starts, ends, strict=True)]
    if whole is np.add:
        most = max(abs(int(values.min())), abs(int(values.max())))
        values = values.astype(object if most * len(values) > _LARGEST else np.int64)
    found: list[Any] = whole.reduceat(values, starts).tolist()
    return found


class _CombiningState(OverCell, api.MergingState):
    """What is common to them; `cell` holds what came of the values.

    Args:
        state: its name, for errors.
    """

    __slots__ = ("_state",)

    def __init__(self, cell: "ValueState", state: str) -> None:
        super().__init__(cell)
        self._state = state

    def _nothing(self, function: str) -> StateTypeError:
        """None would clear the state: who means that calls `clear`."""
        return StateTypeError(
            f"a function gave None, which is no value of a state: state={self._state} "
            f"function={function}; return what the state is to hold, also where an argument was "
            f"changed in place"
        )


class ReducingState(_CombiningState, api.ReducingState):
    """One value per key, to which each value that is added is reduced."""

    __slots__ = ("_reduce",)

    def __init__(self, cell: "ValueState", function: Reducer, state: str) -> None:
        super().__init__(cell, state)
        self._reduce = function

    def get(self) -> Any:
        """The reduced value, or None where nothing was added."""
        return self.cell.value()

    def add(self, value: Any) -> None:
        """Reduce one value into the state; None leaves it as it is.

        Raises:
            StateTypeError: when what comes of it is not of the declared type (at the next `get`,
                or when the key is done; at once where nothing does).
        """
        if value is None:
            return
        before = self.cell.live()
        if before is not None:
            value = self._reduce(before, value)
            if value is None:
                raise self._nothing("reduce")
        self.cell.update(value)

    def add_all(self, values: Iterable[Any]) -> None:
        """Add several values, reduced among themselves first; none where there is none."""
        if not isinstance(values, np.ndarray) or values.dtype == object:
            values = [value for value in values if value is not None]
        if len(values) > 0:
            function = self._reduce if self._reduce in _WHOLE else self._reduced
            self.add(reduced_by_key(values, [0], function)[0])

    def _reduced(self, one: Any, other: Any) -> Any:
        made = self._reduce(one, other)
        if made is None:
            raise self._nothing("reduce")
        return made

    def absorb(self, other: "ReducingState") -> None:
        """Take over what the same state has in another namespace, which is cleared."""
        theirs = other.cell.live()
        if theirs is not None:
            if self.cell.live() is None:
                self.cell.take_over(other.cell)
            else:
                self.add(theirs)
        other.clear()


class AggregatingState(_CombiningState, api.AggregatingState):
    """An accumulator per key, into which values are added and out of which a result is made."""

    __slots__ = ("_function",)

    _adding = "add"

    def __init__(self, cell: "ValueState", function: AggregateFunction, state: str) -> None:
        super().__init__(cell, state)
        self._function = function

    def get(self) -> Any:
        """The result for the current key's accumulator, or None where nothing was added."""
        accumulator = self.cell.value()
        return None if accumulator is None else self._function.get_result(accumulator)

    def add(self, value: Any) -> None:
        """Add one value; None leaves the accumulator as it is.

        Raises:
            StateTypeError: when the accumulator that comes of it is not of the declared type (at
                the next use, or when the key is done; at once where nothing does).
        """
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
        """Add several values, one after the other."""
        if isinstance(values, np.ndarray):
            values = values.tolist()
        some = [value for value in values if value is not None]
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

    def absorb(self, other: "AggregatingState") -> None:
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


class FoldingState(AggregatingState, api.FoldingState):
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
