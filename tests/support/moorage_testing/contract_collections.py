"""The contract of list and map state; see `moorage_testing.contract_kinds`."""

from collections.abc import Callable

import pytest

from moorage_state.checks import StateTypeError
from moorage_state.descriptors import ListStateDescriptor, MapStateDescriptor
from moorage_testing.state_contract import StateHarness

__all__ = ["BODIES", "ITEMS", "SEEN"]

ITEMS = ListStateDescriptor("items", "string")
SEEN = MapStateDescriptor("seen", "string", "long")

BODIES: list[Callable[[StateHarness], None]] = []


def body(function):
    BODIES.append(function)
    return function


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
def what_gives_no_elements_or_entries_changes_nothing(h):
    h.with_key("k")
    h.state(ITEMS).add("a")
    h.state(SEEN).put("a", 1)
    for add in (h.state(ITEMS).add_all, h.state(ITEMS).update):
        for given in (None, 5):
            with pytest.raises(StateTypeError, match=rf"got={given} .*give \[value\] for one"):
                add(given)
    with pytest.raises(StateTypeError, match=r"got=\[1\] of type list; give \{key: value\}"):
        h.state(SEEN).put_all([1])
    assert (h.state(ITEMS).get(), h.state(SEEN).items()) == (["a"], [("a", 1)])


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
