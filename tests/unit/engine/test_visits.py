"""Broadcast rows that visit the keyed state of all keys, in a subtask."""

# ruff: noqa: ARG001, ARG002, ARG005 - functions have the signature that the API gives them

from dataclasses import replace
from datetime import timedelta
from tempfile import mkstemp
from typing import Any

import pytest
from moorage_testing.pages import run_python

from moorage import (
    CheckpointedFunction,
    KeyedBroadcastProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from moorage.engine.outputs import FLUSH_ROWS
from moorage.engine.subtask_plan import OperatorStatePlan
from moorage.engine.task_failures import SubtaskFailure
from moorage_state.keyed import visits

RULES = MapStateDescriptor("rules", "string", "long")
COUNT = ValueStateDescriptor("count", "long")
ITEMS = ListStateDescriptor("items", "long")
ENTRIES = MapStateDescriptor("entries", "long", "long")
TOTAL = ReducingStateDescriptor("total", "long", lambda a, b: a + b)


class Counts(KeyedBroadcastProcessFunction):
    """Adds up rows in states of four kinds; a broadcast row says what is done to all keys."""

    def open(self, ctx):
        self.count = ctx.get_state(COUNT)
        self.items = ctx.get_list_state(ITEMS)
        self.entries = ctx.get_map_state(ENTRIES)
        self.total = ctx.get_reducing_state(TOTAL)

    def process_element(self, row, ctx):
        self.count.update((self.count.value() or 0) + row.n)
        self.items.add(row.n)
        self.entries.put(row.n, row.n)
        self.total.add(row.n)
        yield f"{ctx.key} {self.spell()}", self.total.get()

    def spell(self):
        return f"{self.count.value()} {list(self.items)} {sorted(self.entries.keys())}"

    def process_broadcast_element(self, row, ctx):
        seen: list[Any] = []
        descriptor, change = getattr(self, row.rule)(seen, row.factor)
        ctx.apply_to_keyed_state(descriptor, change)
        yield from seen

    def look(self, seen, _):
        return COUNT, lambda key, state: seen.append((key, state.value()))

    def add(self, seen, n):
        def change(key, state):
            state.update(state.value() + n)
            self.items.add(n)
            self.entries.put(n, n)
            self.total.add(n)

        return COUNT, change

    def drop(self, seen, n):
        def change(key, state):
            if state.value() == n:
                self.count.clear()
                self.items.clear()
                self.entries.clear()
                self.total.clear()

        return COUNT, change

    def restart(self, seen, n):
        """Clear and begin anew in one visit."""

        def change(key, state):
            state.update([n])
            self.entries.clear()
            self.entries.put(n, n)
            self.count.update(n)

        return ITEMS, change

    def fail(self, seen, n):
        return COUNT, lambda key, state: state.value() / n


class Nests(Counts):
    def process_broadcast_element(self, row, ctx):
        def change(key, state):
            ctx.apply_to_keyed_state(COUNT, change)

        ctx.apply_to_keyed_state(COUNT, change)


def connected(done=None):
    schemas = tuple(done.ack.operator_states) if done else ()
    return OperatorStatePlan(
        restored=done is not None,
        restored_checkpoint_id=None,
        checkpoint_id=1,
        schemas=schemas,
        columns=("rule", "factor"),
        descriptors=(RULES,),
    )


@pytest.fixture
def epoch(operator, mixed):
    """An epoch of broadcast rows and keyed ones; what was sent, in order."""

    def epoch(broadcast, *rows, function=None, **changes):
        given = [mixed(broadcast, *rows)] if broadcast or rows else []
        return operator.epoch(
            function or Counts(), given, operator_state=connected(), **changes
        ).rows

    return epoch


def test_every_key_that_has_something_in_the_state_is_visited(epoch):
    epoch([], ("a", 1), ("b", 2), ("c", 3))
    assert sorted(epoch([("look", 0)])) == [("a", 1), ("b", 2), ("c", 3)]


def test_what_visits_change_lasts(epoch):
    epoch([], ("a", 1), ("b", 2))
    assert epoch([("add", 10)]) == []
    assert sorted(epoch([("look", 0)])) == [("a", 11), ("b", 12)]
    assert epoch([], ("a", 100)) == [("a 111 [1, 10, 100] [1, 10, 100]", 111)]


def test_rows_of_the_same_epoch_find_what_visits_changed(epoch):
    epoch([], ("a", 1), ("b", 2))
    sent = epoch([("add", 10)], ("a", 100), ("c", 5))
    assert sent == [("a 111 [1, 10, 100] [1, 10, 100]", 111), ("c 5 [5] [5]", 5)]
    assert epoch([], ("a", 0)) == [("a 111 [1, 10, 100, 0] [0, 1, 10, 100]", 111)]


def test_visits_of_the_same_epoch_find_what_those_before_changed(epoch):
    epoch([], ("a", 1), ("b", 2))
    sent = epoch([("add", 10), ("look", 0), ("drop", 11), ("look", 0), ("add", 1), ("look", 0)])
    assert sorted(sent[:2]) == [("a", 11), ("b", 12)]
    assert sent[2:] == [("b", 12), ("b", 13)]
    assert epoch([("look", 0)], ("a", 7)) == [("b", 13), ("a 7 [7] [7]", 7)]


def test_lists_and_maps_that_visits_clear_begin_anew(epoch):
    epoch([], *[("a", n) for n in range(600)], ("b", 1))
    assert epoch([("restart", 9)], ("a", 3)) == [("a 12 [9, 3] [3, 9]", 179_703)]
    assert epoch([("restart", 9), ("add", 1)], ("b", 3)) == [("b 13 [9, 1, 3] [1, 3, 9]", 5)]
    assert epoch([], ("a", 4)) == [("a 14 [9, 1, 4] [1, 4, 9]", 179_708)]


@pytest.mark.parametrize("swept", [True, False])
def test_keys_that_expire_are_visited_until_they_are_cleaned_up(epoch, swept):
    ttl = StateTtlConfig(timedelta(milliseconds=100), cleanup_in_background=swept)
    living = ValueStateDescriptor("living", "long", ttl=ttl)

    class Expires(Counts):
        def open(self, ctx):
            self.living = ctx.get_state(living)

        def process_element(self, row, ctx):
            self.living.update(row.n)

        def look(self, seen, _):
            return living, lambda key, state: seen.append((key, state.value() or -1))

    epoch([], ("a", 1), function=Expires(), now_ms=1000)
    epoch([], ("b", 2), function=Expires(), now_ms=1090)
    sent = epoch([("look", 0)], function=Expires(), now_ms=1150)
    assert sorted(sent) == ([] if swept else [("a", -1)]) + [("b", 2)]
    assert epoch([("look", 0)], function=Expires(), now_ms=1150) == [("b", 2)]


def test_an_attempt_that_is_not_committed_changes_nothing_and_another_is_the_same(operator, mixed):
    operator.epoch(Counts(), [mixed([], ("a", 1), ("b", 2))], operator_state=connected())
    rows = [mixed([("add", 10), ("drop", 11)], ("a", 5))]
    attempts = [operator.attempt(Counts(), rows, operator_state=connected()) for _ in range(2)]
    assert attempts[0].ack.digest == attempts[1].ack.digest
    look = [mixed([("look", 0)])]
    before = operator.attempt(Counts(), look, operator_state=connected(), downstream=1)
    assert sorted(before.rows) == [("a", 1), ("b", 2)]
    operator.commit(attempts[1])
    after = operator.attempt(Counts(), look, operator_state=connected(), downstream=1)
    assert sorted(after.rows) == [("a", 5), ("b", 12)]


def test_more_keys_than_a_page_are_visited_once_each_and_output_leaves_in_batches(
    epoch, operator, mixed, monkeypatch
):
    monkeypatch.setattr(visits, "_KEYS", 100)
    many = FLUSH_ROWS + 500
    epoch([], *[(f"k{n}", 1) for n in range(many)])
    rows = [mixed([("add", 1), ("look", 0), ("look", 0)], ("k7", 5))]
    done = operator.attempt(Counts(), rows, operator_state=connected(), downstream=1)
    assert len(done.rows) == 2 * many + 1
    assert {n for _, n in done.rows[:-1]} == {2}
    assert done.rows[-1] == ("k7 7 [1, 1, 5] [1, 5]", 7)
    # Broadcast rows were not held until the last of them.
    assert len(done.batches) >= 3


def test_composite_keys_are_handed_over_as_tuples(epoch):
    changes = {"key_columns": ("user", "n"), "key_types": ("string", "long")}

    class Keys(Counts):
        def look(self, seen, _):
            return COUNT, lambda key, state: seen.append((repr(key), state.value()))

    epoch([], ("a", 1), function=Keys(), **changes)
    assert epoch([("look", 0)], function=Keys(), **changes) == [("('a', 1)", 1)]


def test_a_state_that_the_function_did_not_ask_for_otherwise_can_be_visited(epoch):
    class Forgot(Counts):
        def open(self, ctx):
            """Nothing."""

    epoch([], ("a", 1))
    assert epoch([("look", 0)], function=Forgot()) == [("a", 1)]


@pytest.mark.parametrize(
    ("rule", "function", "message"),
    [
        ("fail", Counts(), r"ZeroDivisionError(.|\n)*applied to the state of key='a'"),
        ("nest", Nests(), "cannot apply another one to all keys"),
    ],
)
def test_what_goes_wrong_in_a_visit_is_said(epoch, rule, function, message):
    epoch([], ("a", 1))
    with pytest.raises(SubtaskFailure, match=message):
        epoch([(rule, 0)], function=function)


class Catches(Counts):
    """Divides what all keys have, and goes on where that fails."""

    after = "look"

    def process_broadcast_element(self, row, ctx):
        def change(key, state):
            state.update(100 // (state.value() - row.factor))

        try:
            ctx.apply_to_keyed_state(COUNT, change)
        except ZeroDivisionError:
            yield "caught", 0
        if self.after == "touch":
            self.count.update(-1)
        seen = []
        ctx.apply_to_keyed_state(COUNT, lambda key, state: seen.append((key, state.value())))
        yield from seen


def test_after_an_error_that_is_caught_the_keys_before_are_changed_and_others_not(epoch):
    epoch([], ("a", 1), ("b", 2), ("c", 3))
    assert epoch([("", 2)], function=Catches()) == [("caught", 0), ("a", -100), ("b", 2), ("c", 3)]
    assert sorted(epoch([("look", 0)])) == [("a", -100), ("b", 2), ("c", 3)]


def test_after_an_error_that_is_caught_no_key_is_current(epoch):
    class Touches(Catches):
        after = "touch"

    epoch([], ("a", 1))
    with pytest.raises(SubtaskFailure, match="there is none at this point"):
        epoch([("", 1)], function=Touches())


def test_a_value_of_another_type_is_said_with_the_key_that_was_given_it(epoch):
    class Mistypes(Counts):
        def add(self, seen, n):
            def change(key, state):
                if key == "a":
                    state.update("many")

            return COUNT, change

    epoch([], ("a", 1), ("b", 2))
    with pytest.raises(SubtaskFailure, match=r"count(.|\n)*applied to the state of key='a'"):
        epoch([("add", 1)], function=Mistypes())


@pytest.mark.parametrize("point", ["process_element", "snapshot_state"])
def test_beside_keyed_rows_and_after_them_nothing_is_applied_to_all_keys(epoch, point):
    class Keeps(Counts, CheckpointedFunction):
        def initialize_state(self, ctx):
            self.kept = None

        def snapshot_state(self, ctx):
            self.use("snapshot_state")

        def process_broadcast_element(self, row, ctx):
            self.kept = ctx

        def process_element(self, row, ctx):
            self.use("process_element")

        def use(self, at):
            if self.kept is not None and at == point:
                self.kept.apply_to_keyed_state(COUNT, lambda key, state: None)

    with pytest.raises(SubtaskFailure, match="only while broadcast rows are processed"):
        epoch([("look", 0)], ("a", 1), function=Keeps())


def test_who_names_no_descriptor_is_told(epoch):
    class Names(Counts):
        def look(self, seen, _):
            return "count", lambda key, state: None

    with pytest.raises(SubtaskFailure, match=r"named by its descriptor(.)*got='count'"):
        epoch([("look", 0)], function=Names())


def test_before_any_keyed_row_and_in_a_batch_nothing_is_visited(epoch):
    assert epoch([("look", 0), ("add", 1)]) == []
    assert epoch([("look", 0), ("add", 1)], ("a", 2), batch=True) == [("a 2 [2] [2]", 2)]


def test_alarms_of_keys_without_rows_find_what_visits_changed(epoch):
    class Alarms(Counts):
        def process_element(self, row, ctx):
            self.count.update(row.n)
            ctx.timer_service().register_processing_time_timer(100)

        def on_timer(self, timestamp, ctx):
            yield ctx.key, self.count.value()

    epoch([], ("a", 1), ("b", 2), function=Alarms(), now_ms=1)
    sent = epoch([("add", 10), ("drop", 12)], ("a", 5), function=Alarms(), now_ms=100)
    # A key with rows has an alarm before them, and here after them once more.
    assert sent == [("a", 11), ("a", 5), ("b", None)]


def test_the_temporary_database_lies_where_spark_has_its_temporary_files(
    epoch, tmp_path, monkeypatch
):
    opened = []

    def opening(**options):
        opened.append(options["dir"])
        return mkstemp(**options)

    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"/nowhere,{tmp_path}")
    monkeypatch.setattr(visits, "mkstemp", opening)
    epoch([], ("a", 1))
    epoch([("add", 1)])
    assert opened == ["/nowhere", str(tmp_path)]
    assert list(tmp_path.iterdir()) == []


def test_the_temporary_database_is_closed_when_the_subtask_ends(epoch, monkeypatch):
    closed = []
    close = visits.Overlay.close

    def closing(self):
        if self._database is not None:
            closed.append(self)
        close(self)

    monkeypatch.setattr(visits.Overlay, "close", closing)
    epoch([], ("a", 1))
    epoch([("look", 0)])
    assert closed == [], "who only looks needs none"
    epoch([("add", 1)])
    assert len(closed) == 1


def test_without_room_for_what_visits_change_the_epoch_fails_as_a_full_disk(epoch, monkeypatch):
    monkeypatch.setattr(visits, "_SETUP", visits._SETUP + "PRAGMA max_page_count = 8;")
    epoch([], *[(f"k{n}", 1) for n in range(2000)])
    with pytest.raises(SubtaskFailure, match=r"local_disk_error.*no room .*full.*give it more"):
        epoch([("add", 1)])


# --- the page that explains it --------------------------------------------------------------------


def test_the_third_example_of_the_page_works(operator, mixed):
    limited: Any = run_python("docs/operator-state.md").Limited

    class Spends(limited):  # type: ignore[misc]  # made by the page
        def process_element(self, row, ctx):
            self.spent.update(row.n)

    side = replace(connected(), columns=("rule", "limit"))
    operator.epoch(Spends(), [mixed([], ("a", 5), ("b", 50))], operator_state=side)
    rules = [mixed([("a rule", 40), ("a rule", 1)])]
    assert operator.epoch(Spends(), rules, operator_state=side).rows == [("b", 50), ("a", 5)]
