"""The contract of reducing, aggregating and folding state; see `moorage_testing.contract_kinds`."""

import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest

from moorage_state.checks import StateTypeError
from moorage_state.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ReducingStateDescriptor,
)
from moorage_testing.state_contract import StateHarness

__all__ = ["BODIES", "MEAN", "SUM", "TRAIL", "Mean"]


class Mean(AggregateFunction):
    """Values are integers, the accumulator a struct, the result a float."""

    def create_accumulator(self):
        return (0, 0)

    def add(self, value, accumulator):
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]

    def merge(self, one, other):
        return one[0] + other[0], one[1] + other[1]


class Forgetful(AggregateFunction):
    """Changes its accumulator and forgets to return it."""

    def create_accumulator(self):
        return [0]

    def add(self, value, accumulator):
        accumulator[0] += value

    def get_result(self, accumulator):
        return accumulator[0]


SUM = ReducingStateDescriptor("sum", "long", lambda one, other: one + other)
LONGEST = ReducingStateDescriptor("longest", "string", lambda a, b: max(a, b, key=len))
LEAST = ReducingStateDescriptor("least", "long", "min")
LEAST_DOUBLE = ReducingStateDescriptor("least_double", "double", "min")
GREATEST_DOUBLE = ReducingStateDescriptor("greatest_double", "double", "max")
MEAN = AggregatingStateDescriptor("mean", "sum long, n long", Mean())
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    TRAIL = FoldingStateDescriptor("trail", "string", ">", lambda trail, n: f"{trail}{n}")
    BAG = FoldingStateDescriptor("bag", "array<long>", [], lambda bag, n: bag.append(n) or bag)
    LOST = FoldingStateDescriptor("lost", "array<long>", [], lambda bag, n: bag.append(n))

BODIES: list[Callable[[StateHarness], None]] = []


def body(function):
    BODIES.append(function)
    return function


@body
def a_reducing_state_holds_what_all_added_values_reduce_to(h):
    for value in (5, 7):
        h.with_key("k")
        h.state(SUM).add(value)
        h.state(SUM).add(100)
        h.new_epoch()
    h.with_key("k")
    assert h.state(SUM).get() == 212


@body
def the_first_value_of_a_reducing_state_is_not_reduced(h):
    h.with_key("k")
    h.state(LONGEST).add("a")
    assert h.state(LONGEST).get() == "a"
    h.state(LONGEST).add("abc")
    h.state(LONGEST).add("xy")
    h.new_epoch()
    h.with_key("k")
    assert h.state(LONGEST).get() == "abc"


@body
def a_reduce_function_may_be_named(h):
    h.with_key("k")
    h.state(LEAST).add_all([4, 2, 9])
    h.state(LEAST).add(3)
    assert h.state(LEAST).get() == 2


@body
def a_named_reduce_function_gives_the_same_in_any_order_also_for_nan(h):
    nan = float("nan")
    for n, values in enumerate([[nan, 1.0, 2.0], [1.0, nan, 2.0], [2.0, 1.0, nan]]):
        h.with_key(f"k{n}")
        h.state(LEAST_DOUBLE).add_all(values[:2])
        h.state(LEAST_DOUBLE).add(values[2])
        h.state(GREATEST_DOUBLE).add_all(np.array([*values, None], dtype=object))
        assert h.state(LEAST_DOUBLE).get() == 1.0
        assert math.isnan(h.state(GREATEST_DOUBLE).get())


@body
def adding_none_leaves_combining_states_as_they_are(h):
    h.with_key("k")
    for descriptor in (SUM, MEAN, TRAIL):
        h.state(descriptor).add(None)
        assert h.state(descriptor).get() is None
    h.state(SUM).add(1)
    h.state(SUM).add(None)
    h.state(SUM).add_all([None, 2, None])
    assert h.state(SUM).get() == 3


@body
def what_gives_no_values_leaves_combining_states_as_they_are(h):
    h.with_key("k")
    h.state(SUM).add(1)
    h.state(MEAN).add(1)
    for given in (None, 5, np.array(5)):
        for descriptor in (SUM, MEAN):
            with pytest.raises(StateTypeError, match=r"a list, or .*give \[value\] for one"):
                h.state(descriptor).add_all(given)
    assert (h.state(SUM).get(), h.state(MEAN).get()) == (1, 1.0)


@body
def what_a_reduce_gives_must_be_of_the_declared_type(h):
    wrong = ReducingStateDescriptor("wrong", "long", lambda one, other: f"{one}{other}")
    h.with_key("k")
    h.state(wrong).add(1)
    with pytest.raises(StateTypeError, match="state=wrong"):  # noqa: PT012  at either of them
        h.state(wrong).add(2)
        h.state(wrong).get()
    h.state(wrong).clear()


@body
def a_function_that_gives_nothing_is_an_error_and_changes_nothing(h):
    extends = ReducingStateDescriptor("extended", "array<long>", lambda a, b: a.extend(b))
    h.with_key("k")
    h.state(extends).add([1])
    for descriptor, value, method in (
        (AggregatingStateDescriptor("forgot", "array<long>", Forgetful()), 1, "add"),
        (LOST, 1, "fold"),
        (extends, [2], "reduce"),
    ):
        words = f"state={descriptor.name} function={method}; return"
        for _ in range(2):
            with pytest.raises(StateTypeError, match=words):
                h.state(descriptor).add(value)
            with pytest.raises(StateTypeError, match=words):
                h.state(descriptor).add_all([value, value])
    assert h.state(extends).get() == [1]
    h.new_epoch()
    h.with_key("k")
    assert h.state(extends).get() == [1]


@body
def an_aggregating_state_stores_its_accumulator_and_gives_its_result(h):
    h.with_key("k")
    h.state(MEAN).add(1)
    h.state(MEAN).add_all([2, 6])
    assert h.state(MEAN).get() == 3.0
    h.new_epoch()
    h.with_key("k")
    assert h.state(MEAN).get() == 3.0
    h.state(MEAN).add(7)
    assert h.state(MEAN).get() == 4.0


@body
def a_folding_state_begins_with_a_copy_of_its_initial_value(h):
    for key in ("a", "b"):
        h.with_key(key)
        h.state(BAG).add(1)
        h.state(BAG).add(2)
        assert h.state(BAG).get() == [1, 2]
    assert BAG.initial == []
    h.new_epoch()
    h.with_key("a")
    h.state(BAG).add(3)
    assert h.state(BAG).get() == [1, 2, 3]
    h.state(TRAIL).add(1)
    h.state(TRAIL).add(2)
    assert h.state(TRAIL).get() == ">12"


@body
def an_aggregating_state_takes_over_what_a_folding_state_stored(h):
    class Append(AggregateFunction):
        def create_accumulator(self):
            return []

        def add(self, value, accumulator):
            return [*accumulator, value]

        def get_result(self, accumulator):
            return sum(accumulator)

    h.with_key("k")
    h.state(BAG).add(4)
    h.new_epoch()
    h.with_key("k")
    taken_over = AggregatingStateDescriptor("bag", "array<long>", Append())
    h.state(taken_over).add(5)
    assert h.state(taken_over).get() == 9
