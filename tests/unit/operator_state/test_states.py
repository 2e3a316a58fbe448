"""Lists and broadcast maps of subtasks, epoch after epoch."""

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_state.checks import StateTypeError
from moorage_state.deltas import decode_frame
from moorage_state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from moorage_state.errors import UserError
from moorage_state.evolution.generations import StateMigrationError
from moorage_state.operator_state import ReadOnlyBroadcastState
from moorage_state.operator_state.schemas import list_schema, map_schema
from moorage_state.timetolive import StateTtlConfig

BUFFER = ListStateDescriptor("buffer", "string")
OFFSETS = ListStateDescriptor("offsets", "struct<topic:string,at:long>")
RULES = MapStateDescriptor("rules", "string", "struct<limit:int,note:string>")


def add(*values):
    return lambda subtask, _: subtask.states.get_list_state(BUFFER).add_all(values)


def read(subtask, _):
    return subtask.states.get_list_state(BUFFER).get()


def test_what_a_subtask_adds_is_its_own_and_read_in_order_in_the_next_epoch(world):
    world.run(lambda subtask, n: subtask.states.get_list_state(BUFFER).add_all([f"{n}a", f"{n}b"]))
    world.run(lambda subtask, n: subtask.states.get_list_state(BUFFER).add(f"{n}c"))
    assert world.run(read) == [["0a", "0b", "0c"], ["1a", "1b", "1c"]]


def test_a_time_to_live_which_operator_state_does_not_have_is_refused(world):
    ttl = StateTtlConfig(timedelta(days=1))
    for ask in (
        lambda states: states.get_list_state(ListStateDescriptor("buffer", "string", ttl)),
        lambda states: states.get_union_list_state(ListStateDescriptor("buffer", "string", ttl)),
        lambda states: states.get_broadcast_state(MapStateDescriptor("buffer", "int", "int", ttl)),
    ):
        with pytest.raises(UserError, match=r"no time to live: state=buffer ttl=1 day.*without"):
            world.run(lambda subtask, _, ask=ask: ask(subtask.states))


def test_what_gives_no_elements_or_entries_changes_nothing(world):
    def work(subtask, _):
        buffer = subtask.states.get_list_state(BUFFER)
        rules = subtask.states.get_broadcast_state(RULES)
        buffer.add("x")
        for add in (buffer.add_all, buffer.update):
            with pytest.raises(StateTypeError, match=r"got=5 of type int; give \[value\] for one"):
                add(5)
        with pytest.raises(StateTypeError, match=r"got=\[1\] of type list; give \{key: value\}"):
            rules.put_all([1])
        return buffer.get(), rules.items()

    assert world.run(work)[0] == (["x"], [])


def test_additions_are_seen_at_once_and_get_gives_a_new_list(world):
    def work(subtask, _):
        state = subtask.states.get_list_state(BUFFER)
        state.add("x")
        state.get().append("y")
        return list(state)

    assert world.run(work) == [["x"], ["x"]]


def test_clear_and_update_replace_what_was_there(world):
    world.run(add("a", "b"))
    world.run(lambda subtask, _: subtask.states.get_list_state(BUFFER).update(["c"]))
    assert world.run(read) == [["c"], ["c"]]
    world.run(lambda subtask, _: subtask.states.get_list_state(BUFFER).update([]))
    assert world.run(read) == [[], []]
    assert not world.entries


def test_a_list_that_is_written_anew_writes_only_what_it_did_not_have(world):
    def again(*more):
        def work(subtask, _):
            state = subtask.states.get_list_state(BUFFER)
            state.update([*state.get(), *more])

        return work

    world.run(add("a", "b", "c", "d"))
    world.run(again())
    assert world.frames == []
    world.run(again("e"))
    assert sum(decode_frame(frame).operations for frame in world.frames) == 2
    assert world.run(read) == [["a", "b", "c", "d", "e"]] * 2


def test_an_element_that_is_not_of_the_type_is_refused_and_nothing_of_it_is_kept(world):
    def work(subtask, _):
        state = subtask.states.get_list_state(BUFFER)
        with pytest.raises(StateTypeError, match="buffer"):
            state.add_all(["a", 1])
        with pytest.raises(StateTypeError):
            state.add(None)
        return state.get()

    assert world.run(work) == [[], []]


def test_a_union_list_reads_as_that_of_all_subtasks(world):
    def note(subtask, n):
        subtask.states.get_union_list_state(OFFSETS).add(("t", n))

    def look(subtask, _):
        return sorted(subtask.states.get_union_list_state(OFFSETS).get())

    world.run(note)
    assert world.run(look) == [[("t", 0), ("t", 1)]] * 2


def test_a_union_list_that_is_never_cleared_does_not_grow_by_being_read(world):
    for _ in range(4):
        world.run(lambda subtask, n: subtask.states.get_union_list_state(OFFSETS).add(("t", n)))
        seen = world.run(lambda s, _: s.states.get_union_list_state(OFFSETS).get())
    assert [len(elements) for elements in seen] == [8, 8]


def test_clearing_a_union_list_clears_the_own_part_only(world):
    world.run(lambda subtask, n: subtask.states.get_union_list_state(OFFSETS).add(("t", n)))

    def work(subtask, n):
        state = subtask.states.get_union_list_state(OFFSETS)
        if n == 0:
            state.clear()
            return state.get()
        return None

    assert world.run(work)[0] == []
    seen = world.run(lambda s, _: s.states.get_union_list_state(OFFSETS).get())
    assert seen == [[("t", 1)]] * 2


def test_flinks_pattern_of_filtering_and_rewriting_offsets_keeps_each_subtasks_own(world):
    def work(subtask, n):
        state = subtask.states.get_union_list_state(OFFSETS)
        mine = {topic: at for topic, at in state.get() if topic == f"p{n}"}
        mine[f"p{n}"] = mine.get(f"p{n}", 0) + 10
        state.update(list(mine.items()))

    for _ in range(3):
        world.run(work)
    seen = world.run(lambda s, _: sorted(s.states.get_union_list_state(OFFSETS).get()))
    assert seen == [[("p0", 30), ("p1", 30)]] * 2


def test_broadcast_state_is_a_map_that_lasts(world):
    def write(subtask, _):
        state = subtask.states.get_broadcast_state(RULES)
        state.put("a", (1, "one"))
        state["b"] = {"limit": 2, "note": None}
        state.put_all({"c": (3, "")})
        assert state.get("a").limit == 1
        assert "b" in state
        assert sorted(state.keys()) == ["a", "b", "c"]

    world.run(write)

    def change(subtask, _):
        state = subtask.states.get_broadcast_state(RULES)
        state.remove("b")
        state.remove("nothing")
        state.put("a", (9, "nine"))
        return sorted((k, v.limit) for k, v in state.items())

    assert world.run(change) == [[("a", 9), ("c", 3)]] * 2
    seen = world.run(lambda s, _: sorted(s.states.get_broadcast_state(RULES).entries()))
    assert seen == [[("a", (9, "nine")), ("c", (3, ""))]] * 2


def test_a_cleared_broadcast_state_has_only_what_was_put_after(world):
    world.run(
        lambda s, _: s.states.get_broadcast_state(RULES).put_all({"a": (1, ""), "b": (2, "")})
    )

    def work(subtask, _):
        state = subtask.states.get_broadcast_state(RULES)
        state.clear()
        assert state.is_empty()
        state.put("c", (3, ""))

    world.run(work)
    assert world.run(lambda s, _: s.states.get_broadcast_state(RULES).keys()) == [["c"]] * 2


def test_broadcast_keys_and_values_are_checked(world):
    def work(subtask, _):
        state = subtask.states.get_broadcast_state(RULES)
        with pytest.raises(StateTypeError):
            state.get(1)
        with pytest.raises(StateTypeError):
            state.put("a", None)
        with pytest.raises(StateTypeError):
            state.put(None, (1, ""))
        return state.get("a", "none")

    assert world.run(work) == ["none", "none"]


def test_a_broadcast_state_that_is_put_as_it_was_writes_nothing(world):
    world.run(lambda s, _: s.states.get_broadcast_state(RULES).put("a", (1, "")))
    world.run(lambda s, _: s.states.get_broadcast_state(RULES).put("a", (1, "")))
    assert world.frames == []


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.put("a", 1),
        lambda s: s.put_all({}),
        lambda s: s.remove("a"),
        lambda s: s.clear(),
        lambda s: s.__setitem__("a", 1),
        lambda s: s.__delitem__("a"),
    ],
)
def test_beside_keyed_rows_broadcast_state_is_read_only(world, change):
    def work(subtask, _):
        state = subtask.states.get_broadcast_state(RULES)
        state.put("a", (1, "one"))
        view = ReadOnlyBroadcastState(state)
        with pytest.raises(RuntimeError, match=r"'rules' is read-only .*process_broadcast_element"):
            change(view)
        assert view.get("a") == view["a"] == (1, "one")
        assert "a" in view
        assert list(view) == view.keys() == ["a"]
        assert view.items() == view.immutable_entries() == [("a", (1, "one"))]
        assert [v.limit for v in view.values()] == [1]
        return view.is_empty()

    assert world.run(work) == [False, False]


def test_one_name_means_one_thing(world):
    def work(subtask, _):
        states = subtask.states
        assert states.get_list_state(BUFFER) is states.get_list_state(BUFFER)
        with pytest.raises(
            UserError, match=r"'buffer' was registered as list state<string>.*union"
        ):
            states.get_union_list_state(BUFFER)
        with pytest.raises(UserError, match="is now declared as list state<bigint>"):
            states.get_list_state(ListStateDescriptor("buffer", "long"))
        with pytest.raises(UserError, match="broadcast state<string, bigint>"):
            states.get_broadcast_state(MapStateDescriptor("buffer", "string", "long"))

    world.run(work)


def test_a_type_or_kind_that_cannot_be_read_from_the_stored_one_is_refused(world):
    world.run(add("a"))
    arrays = ListStateDescriptor("buffer", "array<int>")
    with pytest.raises(StateMigrationError, match="state=buffer"):
        world.run(lambda s, _: s.states.get_list_state(arrays))
    with pytest.raises(UserError, match="'buffer' was written as list state<string>"):
        world.run(lambda s, _: s.states.get_union_list_state(BUFFER))


LATER = ListStateDescriptor("offsets", "struct<at:long,lag:long DEFAULT 7>")


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("get_list_state", [[(0, 7), (9, 0)], [(1, 7), (9, 1)]]),
        ("get_union_list_state", [[(0, 7), (1, 7), (9, 0), (9, 1)]] * 2),
    ],
)
def test_a_list_whose_type_changes_is_converted_in_the_first_epoch(world, method, expected):
    def of(subtask, descriptor):
        return getattr(subtask.states, method)(descriptor)

    world.run(lambda subtask, n: of(subtask, OFFSETS).add(("t", n)))

    def change(subtask, n):
        assert of(subtask, LATER) is of(subtask, LATER)
        of(subtask, LATER).add((9, n))

    world.run(change)
    assert len(world.entries) == 4
    assert world.run(lambda subtask, _: sorted(of(subtask, LATER).get())) == expected


def test_a_converted_list_can_be_cleared_at_once(world):
    world.run(lambda s, n: s.states.get_list_state(OFFSETS).add(("t", n)))
    world.run(lambda s, n: s.states.get_list_state(LATER).update([(5, n)]))
    seen = world.run(lambda s, _: s.states.get_list_state(LATER).get())
    assert seen == [[(5, 0)], [(5, 1)]]


def test_a_broadcast_state_whose_type_changes_is_converted(world):
    later = MapStateDescriptor("rules", "string", "struct<limit:double,note:string>")
    both = {"a": (1, "x"), "b": (2, "")}
    world.run(lambda s, _: s.states.get_broadcast_state(RULES).put_all(both))
    world.run(lambda s, _: s.states.get_broadcast_state(later).remove("b"))
    seen = world.run(lambda s, _: s.states.get_broadcast_state(later).items())
    assert seen == [[("a", (1.0, "x"))]] * 2


@pytest.mark.parametrize("method", ["get_list_state", "get_union_list_state"])
def test_a_subtask_that_does_not_ask_for_a_list_converts_it_when_others_do(world, method):
    def of(subtask, descriptor):
        return getattr(subtask.states, method)(descriptor)

    world.run(lambda subtask, n: of(subtask, OFFSETS).add(("t", n)))
    mode: Any = "split" if method == "get_list_state" else "union"
    world.changed = [list_schema(LATER, mode)]
    world.run(lambda subtask, n: of(subtask, LATER).add((9, 9)) if n == 0 else None)
    world.changed = []
    world.rescale(1)
    assert world.run(lambda s, _: sorted(of(s, LATER).get())) == [[(0, 7), (1, 7), (9, 9)]]


def test_a_subtask_that_does_not_ask_for_a_broadcast_state_converts_it_when_others_do(world):
    later = MapStateDescriptor("rules", "string", "struct<limit:double,note:string>")
    world.run(lambda s, _: s.states.get_broadcast_state(RULES).put("a", (1, "x")))
    world.changed = [map_schema(later)]
    world.run(lambda s, n: s.states.get_broadcast_state(later).get("a") if n == 0 else None)
    world.changed = []
    seen = world.run(lambda s, _: s.states.get_broadcast_state(later).items())
    assert seen == [[("a", (1.0, "x"))]] * 2


def test_what_is_written_has_the_default_that_is_declared_now(world):
    first, second = "struct<n:int,by:string DEFAULT 'a'>", "struct<n:int,by:string DEFAULT 'b'>"

    def write(ddl, n):
        def work(subtask, _):
            states = subtask.states
            states.get_list_state(ListStateDescriptor("items", ddl)).add({"n": n})
            states.get_broadcast_state(MapStateDescriptor("map", "int", ddl)).put(n, {"n": n})
            return states.get_list_state(ListStateDescriptor("items", ddl)).get()

        return work

    world.rescale(1)
    world.run(write(first, 1))
    assert world.run(write(second, 2)) == [[(1, "a"), (2, "b")]]
    # What is recorded keeps the default of the time when the field came, as for keyed state.
    assert {one.type for one in world.schemas} == {
        list_schema(ListStateDescriptor("x", first), "split").type
    }
    later = MapStateDescriptor("map", "int", second)
    seen = world.run(lambda s, _: s.states.get_broadcast_state(later).items())
    assert seen == [[(1, (1, "a")), (2, (2, "b"))]]


NESTED = "struct<names:array<string>,limit:int>"


@pytest.mark.parametrize(
    ("kind", "value", "change"),
    [
        ("array<long>", [1], lambda v: v.append(2)),
        ("map<string,long>", {"a": 1}, lambda v: v.update(b=2)),
        (NESTED, (["a"], 1), lambda v: v.names.append("b")),
        ("pickle", {"a": 1}, lambda v: v.update(b=2)),
    ],
)
def test_what_is_read_can_be_changed_without_changing_the_state(world, kind, value, change):
    rules, lists = MapStateDescriptor("m", "string", kind), ListStateDescriptor("l", kind)

    def work(subtask, _):
        state, union = subtask.states.get_broadcast_state(rules), subtask.states
        added = union.get_list_state(lists)
        state.put("a", value)
        added.add(value)
        for read in (
            lambda: state.get("a"),
            lambda: state.values()[0],
            lambda: ReadOnlyBroadcastState(state).items()[0][1],
            lambda: added.get()[0],
            lambda: next(iter(added)),
        ):
            change(read())
            assert read() == value

    world.run(work)


def test_values_that_cannot_be_changed_are_decoded_once(world):
    def work(subtask, _):
        state = subtask.states.get_broadcast_state(RULES)
        state.put("a", (1, "one"))
        assert state.get("a") is state.get("a")
        state.put("a", (2, "two"))
        assert state.get("a").limit == 2

    world.run(work)


def test_descriptors_must_be_of_the_right_kind(world):
    def work(subtask, _):
        with pytest.raises(UserError, match="ListStateDescriptor"):
            subtask.states.get_list_state(RULES)
        with pytest.raises(UserError, match="MapStateDescriptor"):
            subtask.states.get_broadcast_state(ValueStateDescriptor("v", "long"))

    world.run(work)


def test_names_are_told_also_of_states_that_nobody_asked_for_again(world):
    def work(subtask, _):
        subtask.states.get_list_state(BUFFER).add("a")
        subtask.states.get_union_list_state(OFFSETS)
        subtask.states.get_broadcast_state(RULES)

    world.run(work)

    def names(subtask, _):
        states = subtask.states
        return states.get_registered_state_names(), states.get_registered_broadcast_state_names()

    assert world.run(names)[0] == ({"buffer", "offsets"}, {"rules"})


NUMBERS = ListStateDescriptor("n", "long")
UNION = ListStateDescriptor("u", "long")
MOVES = st.lists(
    st.tuples(st.integers(1, 6), st.lists(st.integers(0, 999), max_size=6)), max_size=6
)


def deal(added, width):
    """Work that gives each added number to one subtask's lists and to all copies of the rules."""

    def work(subtask, number):
        mine = [v for n, v in enumerate(added) if n % width == number]
        subtask.states.get_list_state(NUMBERS).add_all(mine)
        subtask.states.get_union_list_state(UNION).add_all(mine)
        for value in added:
            subtask.states.get_broadcast_state(RULES).put(str(value), (value, ""))

    return work


@given(MOVES)
def test_rescaling_loses_and_doubles_nothing_and_splits_evenly(new_world, moves):
    world = new_world(2)
    model: list[list[Any]] = [[], []]
    rules: dict[str, Any] = {}
    for parallelism, added in moves:
        world.run(deal(added, len(model)))
        for n, value in enumerate(added):
            model[n % len(model)].append(value)
            rules[str(value)] = (value, "")
        flat = [v for part in model for v in part]
        if parallelism != len(model):
            size, longer = divmod(len(flat), parallelism)
            cuts = [i * size + min(i, longer) for i in range(parallelism + 1)]
            model = [flat[a:b] for a, b in pairwise(cuts)]
        world.rescale(parallelism)
        assert world.run(lambda s, _: s.states.get_list_state(NUMBERS).get()) == model
        unions = world.run(lambda s, _: sorted(s.states.get_union_list_state(UNION).get()))
        assert unions == [sorted(flat)] * parallelism
        copies = world.run(lambda s, _: dict(s.states.get_broadcast_state(RULES).items()))
        assert copies == [rules] * parallelism
