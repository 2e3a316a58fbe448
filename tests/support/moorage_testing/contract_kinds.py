"""The contract of every kind of keyed state, as bodies that run over any backend's harness.

Each is a sentence about what users rely on; docs/state.md names them. `BODIES` are all of them:
those of here are about every kind and about values; `contract_collections` has those of lists and
maps, `contract_combining` those of what combines values. A body asks for its handle again after
every `with_key` and `new_epoch`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from moorage_state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from moorage_testing import contract_collections, contract_combining
from moorage_testing.contract_collections import ITEMS, SEEN
from moorage_testing.contract_combining import MEAN, SUM, TRAIL
from moorage_testing.state_contract import StateHarness

__all__ = ["BODIES"]


class Turned(NamedTuple):
    """A point whose coordinates are in the other order."""

    y: float
    x: float


COUNT = ValueStateDescriptor("count", "long")
POINT = ValueStateDescriptor("point", "x double, y double")
ALL = (COUNT, ITEMS, SEEN, SUM, MEAN, TRAIL)
TAGS = ValueStateDescriptor("tags", "array<long>")
TREE = ValueStateDescriptor("tree", "tags map<string,array<long>>, n long")
THING = ValueStateDescriptor("thing", "pickle")
ROWS = ListStateDescriptor("rows", "array<long>")
BY_NAME = MapStateDescriptor("by_name", "string", "array<long>")
CHAIN = ReducingStateDescriptor("chain", "array<long>", lambda one, other: one + other)

BODIES: list[Callable[[StateHarness], None]] = [
    *contract_collections.BODIES,
    *contract_combining.BODIES,
]


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
EMPTY: tuple[Any, ...] = (None, [], {}, None, None, None)


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
def a_value_reads_as_its_default_where_nothing_is_stored(h):
    count = ValueStateDescriptor("hits", "long", default=10)
    tags = ValueStateDescriptor("labels", "array<long>", default=[1])
    h.with_key("k")
    assert h.state(count).value() == 10
    h.state(tags).value().append(2)
    assert h.state(tags).value() == [1]
    h.state(count).update(h.state(count).value() + 1)
    h.new_epoch()
    assert h.stored_entries() in (1, None)
    h.with_key("k")
    assert (h.state(count).value(), h.state(tags).value()) == (11, [1])
    h.state(count).update(None)
    h.state(tags).clear()
    assert (h.state(count).value(), h.state(tags).value()) == (10, [1])
    h.new_epoch()
    h.with_key("k")
    assert h.state(count).value() == 10
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
