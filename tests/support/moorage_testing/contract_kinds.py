"""The contract of every kind of keyed state, as bodies that run over any backend's harness.

Each is a sentence about what users rely on; docs/state.md names them. `BODIES` are all of them.
A body asks for its handle again after every `with_key` and `new_epoch`.
"""

import math
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from moorage_state.codecs import StateTypeError
from moorage_state.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from moorage_testing.state_contract import StateHarness

__all__ = ["BODIES", "Mean"]


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


class Turned(NamedTuple):
    """A point whose coordinates are in the other order."""

    y: float
    x: float


COUNT = ValueStateDescriptor("count", "long")
POINT = ValueStateDescriptor("point", "x double, y double")
ITEMS = ListStateDescriptor("items", "string")
SEEN = MapStateDescriptor("seen", "string", "long")
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
ALL = (COUNT, ITEMS, SEEN, SUM, MEAN, TRAIL)
TAGS = ValueStateDescriptor("tags", "array<long>")
TREE = ValueStateDescriptor("tree", "tags map<string,array<long>>, n long")
THING = ValueStateDescriptor("thing", "pickle")
ROWS = ListStateDescriptor("rows", "array<long>")
BY_NAME = MapStateDescriptor("by_name", "string", "array<long>")
CHAIN = ReducingStateDescriptor("chain", "array<long>", lambda one, other: one + other)

BODIES: list[Callable[[StateHarness], None]] = []


def body(function):
    BODIES.append(function)
    return function


def write_all(h):
    """Something in every kind of state of the current key."""
    h.state(COUNT).update(7)
    h.state(ITEMS).add_all(["a", "b"])
    h.state(SEEN).put_all({"x": 1, "y": 2})
    h.state(SUM).add(5)
    h.state(MEAN).add_all([1, 2])
    h.state(TRAIL).add(4)


def read_all(h):
    """What every kind of state of the current key holds."""
    return (
        h.state(COUNT).value(),
        h.state(ITEMS).get(),
        dict(h.state(SEEN).items()),
        h.state(SUM).get(),
        h.state(MEAN).get(),
        h.state(TRAIL).get(),
    )


WRITTEN = (7, ["a", "b"], {"x": 1, "y": 2}, 5, 1.5, ">4")
EMPTY = (None, [], {}, None, None, None)  # type: ignore[var-annotated]


# -- every kind --------------------------------------------------------------------------------


@body
def state_that_was_never_written_is_empty(h):
    h.with_key("k")
    assert read_all(h) == EMPTY
    assert h.state(SEEN).is_empty()
    assert list(h.state(ITEMS)) == []


@body
def what_is_written_reads_back_at_once_and_in_later_epochs(h):
    h.with_key("k")
    write_all(h)
    assert read_all(h) == WRITTEN
    h.new_epoch()
    h.with_key("k")
    assert read_all(h) == WRITTEN


@body
def keys_do_not_see_each_others_state(h):
    h.with_key("a")
    write_all(h)
    h.with_key("b")
    assert read_all(h) == EMPTY
    h.state(COUNT).update(1)
    h.new_epoch()
    h.with_key("a")
    assert read_all(h) == WRITTEN
    h.with_key("b")
    assert h.state(COUNT).value() == 1


@body
def clearing_empties_every_kind_at_once_and_for_good(h):
    h.with_key("k")
    write_all(h)
    h.new_epoch()
    h.with_key("k")
    for descriptor in ALL:
        h.state(descriptor).clear()
    assert read_all(h) == EMPTY
    h.new_epoch()
    h.with_key("k")
    assert read_all(h) == EMPTY
    assert h.stored_entries() in (0, None)


@body
def clearing_what_is_empty_is_harmless(h):
    h.with_key("k")
    for descriptor in ALL:
        h.state(descriptor).clear()
        h.state(descriptor).clear()
    h.new_epoch()
    h.with_key("k")
    assert read_all(h) == EMPTY


@body
def what_is_written_after_a_clear_is_all_there_is(h):
    h.with_key("k")
    write_all(h)
    write_all(h)
    h.new_epoch()
    h.with_key("k")
    for descriptor in ALL:
        h.state(descriptor).clear()
    write_all(h)
    assert read_all(h) == WRITTEN
    h.new_epoch()
    h.with_key("k")
    assert read_all(h) == WRITTEN


@body
def a_snapshot_holds_what_was_there_and_nothing_later(h):
    h.with_key("a")
    write_all(h)
    taken = h.snapshot()
    h.with_key("a")
    h.state(COUNT).update(8)
    h.state(ITEMS).add("later")
    h.state(SEEN).put("later", 3)
    h.with_key("b")
    write_all(h)
    h.new_epoch()
    h.restore(taken)
    h.with_key("a")
    assert read_all(h) == WRITTEN
    h.with_key("b")
    assert read_all(h) == EMPTY


@body
def a_snapshot_can_be_restored_more_than_once(h):
    h.with_key("k")
    write_all(h)
    taken = h.snapshot()
    for _ in range(2):
        h.restore(taken)
        h.with_key("k")
        assert read_all(h) == WRITTEN
        h.state(ITEMS).clear()
        h.state(COUNT).update(0)
        h.new_epoch()


@body
def every_key_keeps_its_state_when_the_number_of_subtasks_changes(h):
    keys = [f"key-{n}" for n in range(24)]
    for key in keys:
        h.with_key(key)
        write_all(h)
    for parallelism in (3, 8, 1):
        h.rescale(parallelism)
        for key in keys:
            h.with_key(key)
            assert read_all(h) == WRITTEN
            h.state(COUNT).update(7)


@body
def asking_for_a_state_again_gives_the_same_content(h):
    h.with_key("k")
    h.state(COUNT).update(3)
    assert h.state(COUNT).value() == 3
    h.state(ITEMS).add("x")
    assert h.state(ITEMS).get() == ["x"]


# -- value -------------------------------------------------------------------------------------


@body
def updating_a_value_with_none_clears_it(h):
    h.with_key("k")
    h.state(COUNT).update(1)
    h.new_epoch()
    h.with_key("k")
    h.state(COUNT).update(None)
    assert h.state(COUNT).value() is None
    h.new_epoch()
    h.with_key("k")
    assert h.state(COUNT).value() is None
    assert h.stored_entries() in (0, None)


@body
def a_value_of_zero_or_an_empty_string_is_a_value(h):
    text = ValueStateDescriptor("text", "string")
    h.with_key("k")
    h.state(COUNT).update(0)
    h.state(text).update("")
    h.new_epoch()
    h.with_key("k")
    assert (h.state(COUNT).value(), h.state(text).value()) == (0, "")


@body
def a_value_reads_back_as_declared_not_as_given(h):
    h.with_key("k")
    h.state(POINT).update({"x": 1})
    assert h.state(POINT).value() == (1.0, None)
    h.new_epoch()
    h.with_key("k")
    found = h.state(POINT).value()
    assert (found.x, found.y) == (1.0, None)
    assert isinstance(found.x, float)


@body
def a_named_tuple_is_stored_by_the_names_of_its_fields(h):
    h.with_key("k")
    for given in (Turned(y=2.0, x=1.0), Turned(y=2.0, x=1.0), {"y": 2.0, "x": 1.0}, (1.0, 2.0)):
        h.state(POINT).update(given)
        assert h.state(POINT).value() == (1.0, 2.0)
    h.new_epoch()
    h.with_key("k")
    assert h.state(POINT).value() == (1.0, 2.0)


def _change(found):
    """Change what was read of a state in place, as deep as it goes."""
    if isinstance(found, dict):
        for value in found.values():
            _change(value)
    elif found and not isinstance(found[0], int):
        _change(found[0])
    elif isinstance(found, list):
        found.append(99)


@body
def what_is_changed_in_place_after_it_was_given_or_read_changes_nothing(h):
    ways = [
        (TAGS, "update", lambda s: s.value(), [1]),
        (TREE, "update", lambda s: s.value(), ({"a": [1]}, 2)),
        (THING, "update", lambda s: s.value(), [1]),
        (ROWS, "add", lambda s: s.get(), [1]),
        (BY_NAME, "put", lambda s: dict(s.items()), [1]),
        (CHAIN, "add", lambda s: s.get(), [1]),
    ]

    def look(change):
        h.with_key("k")
        for descriptor, method, read, given in ways:
            expected = {"add": [[1]], "put": {"a": [1]}}.get(method, given)
            expected = [1] if descriptor is CHAIN else expected
            for _ in range(2):
                found = read(h.state(descriptor))
                assert found == expected, (descriptor, found)
                if change:
                    _change(found)

    h.with_key("k")
    for descriptor, method, _, _ in ways:
        mine = [{"a": [1]}, 2] if descriptor is TREE else [1]
        place = ["a"] if method == "put" else []
        getattr(h.state(descriptor), method)(*place, mine)
        _change(mine)
    look(change=True)
    h.with_key("other")
    look(change=True)
    h.new_epoch()
    look(change=True)
    h.new_epoch()
    look(change=False)


# -- list --------------------------------------------------------------------------------------


@body
def elements_of_a_list_stay_in_the_order_they_were_added_over_epochs(h):
    for epoch in range(3):
        h.with_key("k")
        h.state(ITEMS).add(f"{epoch}a")
        h.state(ITEMS).add_all([f"{epoch}b", f"{epoch}c"])
        h.new_epoch()
    h.with_key("k")
    assert h.state(ITEMS).get() == [f"{n}{c}" for n in range(3) for c in "abc"]


@body
def a_list_keeps_equal_elements(h):
    h.with_key("k")
    h.state(ITEMS).add_all(["x", "x"])
    h.new_epoch()
    h.with_key("k")
    h.state(ITEMS).add("x")
    assert h.state(ITEMS).get() == ["x", "x", "x"]


@body
def updating_a_list_replaces_it_and_an_empty_list_clears_it(h):
    h.with_key("k")
    h.state(ITEMS).add_all(["a", "b", "c"])
    h.new_epoch()
    h.with_key("k")
    h.state(ITEMS).update(["d"])
    assert h.state(ITEMS).get() == ["d"]
    h.new_epoch()
    h.with_key("k")
    assert h.state(ITEMS).get() == ["d"]
    h.state(ITEMS).update([])
    assert h.state(ITEMS).get() == []
    h.new_epoch()
    h.with_key("k")
    assert h.state(ITEMS).get() == []
    assert h.stored_entries() in (0, None)


@body
def adding_no_elements_adds_nothing(h):
    h.with_key("k")
    h.state(ITEMS).add_all([])
    h.new_epoch()
    h.with_key("k")
    assert h.state(ITEMS).get() == []
    assert h.stored_entries() in (0, None)


@body
def none_is_no_element_of_a_list_and_changes_nothing(h):
    h.with_key("k")
    h.state(ITEMS).add("a")
    with pytest.raises(StateTypeError):
        h.state(ITEMS).add(None)
    with pytest.raises(StateTypeError):
        h.state(ITEMS).add_all(["b", None])
    with pytest.raises(StateTypeError):
        h.state(ITEMS).update(["b", None])
    assert h.state(ITEMS).get() == ["a"]


@body
def changing_the_list_that_get_gives_does_not_change_the_state(h):
    h.with_key("k")
    h.state(ITEMS).add("a")
    h.state(ITEMS).get().append("not added")
    assert h.state(ITEMS).get() == ["a"]
    h.new_epoch()
    h.with_key("k")
    h.state(ITEMS).get().clear()
    assert h.state(ITEMS).get() == ["a"]


@body
def adding_to_a_list_while_iterating_ends_and_is_not_seen(h):
    h.with_key("k")
    h.state(ITEMS).add_all(["a", "b"])
    h.new_epoch()
    h.with_key("k")
    items = h.state(ITEMS)
    items.add("c")
    for item in items:
        items.add(item * 2)
    assert items.get() == ["a", "b", "c", "aa", "bb", "cc"]


@body
def clearing_a_list_while_iterating_does_not_stop_the_iteration(h):
    h.with_key("k")
    h.state(ITEMS).add_all(["a", "b"])
    h.new_epoch()
    h.with_key("k")
    items, seen = h.state(ITEMS), []
    for item in items:
        seen.append(item)
        items.clear()
    assert seen == ["a", "b"]
    assert items.get() == []


@body
def a_long_list_comes_back_whole(h):
    many = [str(n) for n in range(10_000)]
    h.with_key("k")
    h.state(ITEMS).add_all(many)
    h.new_epoch()
    h.with_key("k")
    assert list(h.state(ITEMS)) == many
    assert h.state(ITEMS).get() == many


# -- map ---------------------------------------------------------------------------------------


@body
def a_map_gives_what_was_put_and_none_or_the_default_otherwise(h):
    h.with_key("k")
    seen = h.state(SEEN)
    seen.put("a", 1)
    assert (seen.get("a"), seen.get("b"), seen.get("b", 5)) == (1, None, 5)
    assert (seen.contains("a"), seen.contains("b"), "a" in seen) == (True, False, True)
    assert (seen["a"], seen["b"]) == (1, None)
    h.new_epoch()
    h.with_key("k")
    assert h.state(SEEN).get("a") == 1
    assert h.state(SEEN).get("b", 5) == 5


@body
def putting_under_a_key_again_replaces_and_removing_removes(h):
    h.with_key("k")
    h.state(SEEN).put_all({"a": 1, "b": 2})
    h.new_epoch()
    h.with_key("k")
    h.state(SEEN)["a"] = 3
    del h.state(SEEN)["b"]
    h.state(SEEN).remove("never there")
    assert dict(h.state(SEEN).items()) == {"a": 3}
    h.new_epoch()
    h.with_key("k")
    assert dict(h.state(SEEN).items()) == {"a": 3}


@body
def a_map_without_its_last_entry_is_empty(h):
    h.with_key("k")
    h.state(SEEN).put("a", 1)
    h.new_epoch()
    h.with_key("k")
    assert not h.state(SEEN).is_empty()
    h.state(SEEN).remove("a")
    assert h.state(SEEN).is_empty()
    h.new_epoch()
    h.with_key("k")
    assert h.state(SEEN).is_empty()
    assert h.stored_entries() in (0, None)


@body
def none_is_no_value_and_no_key_of_a_map(h):
    h.with_key("k")
    with pytest.raises(StateTypeError):
        h.state(SEEN).put("a", None)
    with pytest.raises(StateTypeError):
        h.state(SEEN).put(None, 1)
    with pytest.raises(StateTypeError):
        h.state(SEEN).get(None)
    assert h.state(SEEN).is_empty()


@body
def keys_values_and_items_of_a_map_belong_together_in_no_promised_order(h):
    h.with_key("k")
    h.state(SEEN).put_all({"b": 2, "a": 1, "": 0})
    h.new_epoch()
    h.with_key("k")
    seen = h.state(SEEN)
    seen.put("c", 3)
    assert sorted(seen.items()) == [("", 0), ("a", 1), ("b", 2), ("c", 3)]
    assert list(zip(seen.keys(), seen.values(), strict=True)) == list(seen.items())
    assert sorted(seen) == ["", "a", "b", "c"]


@body
def the_entries_of_a_map_are_those_that_are_there_when_it_is_asked(h):
    h.with_key("k")
    h.state(SEEN).put_all({"a": 1, "b": 2})
    h.new_epoch()
    h.with_key("k")
    entries = h.state(SEEN).entries()
    assert iter(entries) is entries
    h.state(SEEN).put("b", 3)
    h.state(SEEN).put("c", 4)
    assert dict(entries) == {"a": 1, "b": 2}
    assert dict(h.state(SEEN).entries()) == {"a": 1, "b": 3, "c": 4}
    h.state(SEEN).clear()
    assert list(h.state(SEEN).entries()) == []


@body
def a_map_may_be_changed_while_iterating(h):
    h.with_key("k")
    h.state(SEEN).put_all({"a": 1, "b": 2, "c": 3})
    h.new_epoch()
    h.with_key("k")
    seen, found = h.state(SEEN), []
    for key in seen:
        found.append(key)
        seen.remove(key)
        seen.put(key + "!", 0)
    assert sorted(found) == ["a", "b", "c"]
    assert sorted(seen.keys()) == ["a!", "b!", "c!"]


@body
def a_large_map_is_iterated_whole_with_what_changed(h):
    h.with_key("k")
    h.state(SEEN).put_all({str(n): n for n in range(5000)})
    h.new_epoch()
    h.with_key("k")
    seen = h.state(SEEN)
    seen.remove("17")
    seen.put("18", -18)
    seen.put("new", 1)
    assert (seen.get("4321"), seen.get("17"), seen.get("18")) == (4321, None, -18)
    expected = {str(n): n for n in range(5000)} | {"18": -18, "new": 1}
    del expected["17"]
    assert set(seen) == expected.keys()
    assert not seen.is_empty()
    assert dict(seen.items()) == expected


# -- reducing, aggregating, folding -------------------------------------------------------------


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
