"""Values that are combined before a state is asked: whole columns, exactly as one by one."""

from decimal import Decimal
from functools import reduce

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from moorage_testing.contract_combining import Mean

from moorage_state.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ReducingStateDescriptor,
)
from moorage_state.keyed import KeyedStateStore
from moorage_state.keyed.value_states import reduced_by_key, reducer

NAMES = ("sum", "min", "max")
numbers = st.lists(
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=5), min_size=1, max_size=5
)


@pytest.mark.parametrize("name", NAMES)
@given(by_key=numbers)
def test_a_column_of_integers_reduces_exactly_by_key(name, by_key):
    function = reducer(ReducingStateDescriptor("s", "long", name))
    values = np.array([n for mine in by_key for n in mine], np.int64)
    starts = np.cumsum([0, *map(len, by_key[:-1])])
    found = reduced_by_key(values, starts, function)  # type: ignore[arg-type]  # not NumPy's own
    assert found == [reduce(function, mine) for mine in by_key]
    assert all(type(n) is int for n in found)


@pytest.mark.parametrize("values", [np.array([0.1, 0.2, 0.3, 1e100, -1e100]), [0.1, 0.2, 0.3]])
def test_floats_are_reduced_one_after_the_other(values):
    function = reducer(ReducingStateDescriptor("s", "double", "sum"))
    expected = reduce(lambda a, b: a + b, list(values))
    assert reduced_by_key(values, [0], function) == [expected]


def test_decimals_are_summed_with_all_their_digits():
    values = [Decimal("12345678901.123456789012345678")] * 2
    function = reducer(ReducingStateDescriptor("s", "decimal(38,18)", "sum"))
    assert reduced_by_key(values, [0], function) == [Decimal("24691357802.246913578024691356")]


def test_a_function_without_a_name_is_called_for_columns_too():
    assert reduced_by_key(np.array([5, 3, 9, 1]), [0, 2], lambda a, b: a - b) == [2, 8]


def test_adding_many_values_asks_the_range_once_and_writes_once(fake_range, at_key):
    store = KeyedStateStore(fake_range, 1)
    total = store.reducing_state(ReducingStateDescriptor("total", "long", "sum"))
    mean = store.aggregating_state(AggregatingStateDescriptor("mean", "sum long, n long", Mean()))
    at_key(store)
    total.add_all(np.arange(1000))
    mean.add_all(np.arange(1000))
    for n in range(100):
        total.add(n)
    assert (total.get(), mean.get()) == (499_500 + 4950, 499.5)
    assert fake_range.requests == 2
    store.finish()
    fake_range.commit()
    assert len(fake_range.entries) == 2


def test_an_empty_column_adds_nothing(fake_range, at_key):
    store = KeyedStateStore(fake_range, 1)
    total = store.reducing_state(ReducingStateDescriptor("total", "long", "sum"))
    at_key(store)
    total.add_all(np.array([], np.int64))
    assert total.get() is None


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: ReducingStateDescriptor("s", "long", "avg"), ValueError, "reduce='avg'; give a"),  # type: ignore[arg-type]  # refused
        (lambda: ReducingStateDescriptor("s", "long", 5), TypeError, "name=s got=int"),  # type: ignore[arg-type]  # refused
        (lambda: AggregatingStateDescriptor("s", "long", max), TypeError, "an AggregateFunction"),  # type: ignore[arg-type]  # refused
        (lambda: FoldingStateDescriptor("s", "long", 0, None), TypeError, "name=s got=NoneType"),  # type: ignore[arg-type]  # refused
        (lambda: ReducingStateDescriptor("s", "nothing", "sum"), ValueError, "unknown type"),
    ],
)
def test_a_descriptor_says_what_its_function_must_be(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_a_folding_state_says_what_takes_its_place():
    with pytest.warns(DeprecationWarning, match="use AggregatingStateDescriptor: name=s"):
        FoldingStateDescriptor("s", "long", 0, lambda a, b: a + b)


def test_a_kind_of_state_needs_its_own_descriptor(fake_range):
    store = KeyedStateStore(fake_range, 1)
    with pytest.raises(TypeError, match=r"expected=ValueStateDescriptor got=Reducing.*'s'"):
        store.value_state(ReducingStateDescriptor("s", "long", "sum"))  # type: ignore[arg-type]  # it is what is refused
