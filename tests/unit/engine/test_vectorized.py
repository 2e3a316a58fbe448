"""Vectorized functions: the same state and output as one row at a time, chunk for chunk."""

# ruff: noqa: ARG001, ARG002 - functions have the signature that the API gives them

import datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moorage.api.functions import KeyedProcessFunction
from moorage.api.vectorized import KeyedBatchFunction
from moorage.engine import chunk_maps
from moorage.engine.output_types import fitted, hash_column
from moorage.engine.subtask_plan import NEVER
from moorage.engine.task_failures import SubtaskFailure
from moorage_state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from moorage_state.errors import UserError
from moorage_state.keyed import TimeDomain, scanning
from moorage_state.timetolive import StateTtlConfig

SEEN = "total long, rows int"


class Rows(KeyedProcessFunction):
    """Sums per key, one row at a time; a negative number clears."""

    def open(self, ctx):
        self.seen = ctx.get_state(ValueStateDescriptor("seen", SEEN))

    def process(self, row, ctx):
        total, rows = self.seen.value() or (0, 0)
        self.seen.update(None if row.n < 0 else (total + row.n, rows + 1))


class Columns(KeyedBatchFunction):
    """The same, by column."""

    def open(self, ctx):
        self.seen = ctx.get_state(ValueStateDescriptor("seen", SEEN))

    def process_batch(self, keys, table, ctx):
        seen = ctx.get_values(self.seen)
        numbers = table.column("n").to_numpy()
        total, rows = (f.fill_null(0).to_numpy().astype(np.int64) for f in seen.flatten())
        total, rows = total.copy(), rows.copy()
        gone = seen.is_null().to_numpy(zero_copy_only=False).copy()
        for key, number in zip(ctx.key_index, numbers, strict=True):
            gone[key] = number < 0
            total[key] = 0 if gone[key] else total[key] + number
            rows[key] = 0 if gone[key] else rows[key] + 1
        made = pa.StructArray.from_arrays(
            [pa.array(total), pa.array(rows, pa.int32())], names=["total", "rows"]
        )
        ctx.put_values(self.seen, pc_if(gone, made))


def pc_if(gone, column):
    places = pa.array(np.arange(len(gone)), mask=gone)
    return column.take(places)


def stored():
    """What is in the state now, by key: read by a function that changes nothing."""
    found = {}

    class Look(KeyedBatchFunction):
        def open(self, ctx):
            self.seen = ctx.get_state(ValueStateDescriptor("seen", SEEN))

        def process_batch(self, keys, table, ctx):
            for key, value in zip(keys.to_pylist(), ctx.get_values(self.seen), strict=True):
                found[key] = value.as_py()

    return Look(), found


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(-1, 9)), max_size=12),
        min_size=1,
        max_size=3,
    ),
    st.integers(1, 5),
)
def test_columns_leave_the_state_that_rows_leave_wherever_batches_are_cut(
    new_operator, batch, epochs, cut
):
    by_rows, by_columns = new_operator(), new_operator()
    for epoch in epochs:
        rows = sorted(epoch, key=lambda row: sum(row[0].encode()) % 128)
        cuts = [batch(*rows[at : at + cut]) for at in range(0, len(rows), cut)]
        one = by_rows.epoch(Rows(), cuts)
        other = by_columns.epoch(Columns(), cuts)
        assert (one.ack.rows_in, one.ack.keys) == (other.ack.rows_in, other.ack.keys)
    everybody = [batch(*((key, 0) for key in "abcdef"))]
    seen = []
    for operator in (by_rows, by_columns):
        look, found = stored()
        operator.epoch(look, everybody)
        seen.append(found)
    assert seen[0] == seen[1]


def test_what_one_call_puts_the_next_one_gets_for_a_key_that_runs_on(operator, batch):
    calls = []

    class Watching(Columns):
        def process_batch(self, keys, table, ctx):
            calls.append((keys.to_pylist(), ctx.get_values(self.seen).to_pylist()))
            super().process_batch(keys, table, ctx)
            assert ctx.get_values(self.seen).null_count == 0

    batches = [batch(("a", 1), ("b", 2)), batch(("b", 3)), batch(("b", 4), ("c", 5))]
    done = operator.epoch(Watching(), batches)
    assert done.ack.keys == 3
    assert calls == [
        (["a", "b"], [None, None]),
        (["b"], [{"total": 2, "rows": 1}]),
        (["b", "c"], [{"total": 5, "rows": 2}, None]),
    ]
    look, found = stored()
    operator.epoch(look, [batch(("a", 0), ("b", 0), ("c", 0))])
    assert {key: value["total"] for key, value in found.items()} == {"a": 1, "b": 9, "c": 5}


@pytest.mark.parametrize("next_timers", [(), (NEVER,)])
def test_a_timer_in_the_past_of_a_key_that_runs_on_fires_in_its_epoch(operator, batch, next_timers):
    fired = []

    class Alarmed(KeyedBatchFunction):
        """Sets a timer for keys whose first number is a two."""

        def process_batch(self, keys, table, ctx):
            twos = np.flatnonzero(table.column("n").to_numpy()[ctx.starts] == 2)
            if len(twos):
                ctx.register_timers(twos, np.full(len(twos), 50), TimeDomain.PROCESSING_TIME)

        def on_timers(self, keys, timers, ctx):
            fired.append(keys.take(pa.array(timers.key_index)).to_pylist())

    rows = [batch(("a", 1), ("b", 2)), batch(("b", 3), ("c", 4))]
    operator.epoch(Alarmed(), rows, now_ms=100, next_timers=next_timers)
    assert fired == [["b"]]


class SetsAgain(KeyedProcessFunction):
    """A timer for now, of rows and of timers: what a timer sets waits for the next epoch."""

    def process(self, row, ctx):
        ctx.timer_service().register_processing_time_timer(row.n)

    def on_timer(self, timestamp, ctx):
        ctx.timer_service().register_processing_time_timer(100)


class SetsAgainByColumn(KeyedBatchFunction):
    """The same, by column."""

    def process_batch(self, keys, table, ctx):
        times = table.column("n").to_numpy()
        ctx.register_timers(ctx.key_index, times, TimeDomain.PROCESSING_TIME)

    def on_timers(self, keys, timers, ctx):
        again = np.full(len(timers.times), 100)
        ctx.register_timers(timers.key_index, again, TimeDomain.PROCESSING_TIME)


@pytest.mark.parametrize("function", [SetsAgain, SetsAgainByColumn])
def test_a_timer_that_waits_for_the_next_epoch_waits_where_rows_set_it_again(
    operator, batch, function
):
    def fired(now_ms, *batches):
        return operator.epoch(function(), batches, now_ms=now_ms).ack.timers_fired

    assert fired(0, batch(("a", 100), ("b", 100))) == 0
    # The rows of b run on into the second batch.
    assert fired(100, batch(("a", 100), ("b", 200)), batch(("b", 100))) == 2
    assert fired(100) == 2


def test_state_is_read_and_put_for_some_keys_wherever_rows_run_on(operator, batch):
    class Some(KeyedBatchFunction):
        """Keeps the last number of a key, if it is odd."""

        def open(self, ctx):
            self.last = ctx.get_state(ValueStateDescriptor("last", "long"))

        def process_batch(self, keys, table, ctx):
            numbers = table.column("n").to_numpy()[np.append(ctx.starts[1:], table.num_rows) - 1]
            odd = np.flatnonzero(numbers % 2)
            ctx.put_values(self.last, pa.array(numbers[odd]), odd)
            assert ctx.get_values(self.last, odd).to_pylist() == numbers[odd].tolist()
            return pa.table({"user": keys, "n": ctx.get_values(self.last)})

    epochs = [
        [batch(("a", 1), ("b", 2)), batch(("b", 3)), batch(("b", 4), ("c", 5))],
        [batch(("a", 2), ("b", 2)), batch(("b", 2)), batch(("b", 7), ("c", 2))],
        [batch(("a", 2), ("b", 2), ("c", 2))],
    ]
    assert [operator.epoch(Some(), batches).rows for batches in epochs] == [
        [("a", 1), ("b", None), ("b", 3), ("b", 3), ("c", 5)],
        [("a", 1), ("b", 3), ("b", 3), ("b", 7), ("c", 5)],
        [("a", 1), ("b", 7), ("c", 5)],
    ]


def test_rows_and_columns_of_one_state_can_take_turns(operator, batch):
    operator.epoch(Rows(), [batch(("a", 1), ("b", 2))])
    operator.epoch(Columns(), [batch(("a", 3))])
    operator.epoch(Rows(), [batch(("a", 5), ("b", 7))])
    look, found = stored()
    operator.epoch(look, [batch(("a", 0), ("b", 0))])
    assert found == {"a": {"total": 9, "rows": 3}, "b": {"total": 9, "rows": 2}}


def test_state_of_an_earlier_type_is_a_column_of_the_type_now(operator, batch):
    class Before(KeyedProcessFunction):
        def open(self, ctx):
            self.seen = ctx.get_state(ValueStateDescriptor("seen", "total int"))

        def process(self, row, ctx):
            self.seen.update((row.n,))

    operator.epoch(Before(), [batch(("a", 1), ("b", 2))])
    operator.epoch(Columns(), [batch(("a", 3))])
    (schema,) = operator.schemas
    assert schema.earlier == ("struct<total:int>",)
    look, found = stored()
    operator.epoch(look, [batch(("a", 0), ("b", 0))])
    assert found == {"a": {"total": 4, "rows": 1}, "b": {"total": 2, "rows": None}}


class Echo(KeyedBatchFunction):
    """Gives what it is told to give."""

    def __init__(self, make):
        self.make = make

    def process_batch(self, keys, table, ctx):
        return self.make(keys, table, ctx)


def sums(keys, table, ctx):
    totals = np.add.reduceat(table.column("n").to_numpy(), ctx.starts)
    return pa.table({"n": totals, "user": keys})


def test_output_goes_on_as_rows_of_the_declared_columns(operator, batch):
    batches = [batch(("a", 1), ("a", 2), ("b", 5)), batch(("c", 9))]
    done = operator.epoch(Echo(sums), batches)
    assert done.rows == [("a", 3), ("b", 5), ("c", 9)]
    assert done.ack.rows_out == 3
    again = operator.attempt(Echo(sums), batches, downstream=1)
    assert again.ack.output == done.ack.output
    other = operator.attempt(Echo(sums), [batch(("a", 4))], downstream=1)
    assert other.ack.output != done.ack.output


def test_several_tables_and_none_are_output_too(operator, batch):
    several = operator.epoch(
        Echo(lambda keys, table, ctx: (sums(keys, table, ctx) for _ in range(2))),
        [batch(("a", 1))],
    )
    assert several.ack.rows_out == 2
    assert operator.epoch(Echo(lambda *_: None), [batch(("a", 1))]).ack.rows_out == 0


def test_a_generator_reads_and_puts_state_between_its_tables(operator, batch):
    class Counts(KeyedBatchFunction):
        def open(self, ctx):
            self.n = ctx.get_state(ValueStateDescriptor("n", "long"))

        def process_batch(self, keys, table, ctx):
            counts = [n + 1 for n in ctx.get_values(self.n).fill_null(0).to_pylist()]
            yield pa.table({"user": keys, "n": counts})
            ctx.put_values(self.n, pa.array(counts))

    batches = [batch(("a", 0), ("b", 0)), batch(("b", 0))]
    assert operator.epoch(Counts(), batches).rows == [("a", 1), ("b", 1), ("b", 2)]
    assert operator.epoch(Counts(), batches).rows == [("a", 2), ("b", 3), ("b", 4)]


def test_a_default_stands_in_columns_where_nothing_is_stored(operator, batch):
    class Counts(KeyedBatchFunction):
        def open(self, ctx):
            self.n = ctx.get_state(ValueStateDescriptor("n", "long", default=10))

        def process_batch(self, keys, table, ctx):
            counts = [n + 1 for n in ctx.get_values(self.n).to_pylist()]
            ctx.put_values(self.n, pa.array([None if n > 11 else n for n in counts]))
            yield pa.table({"user": keys, "n": counts})

    assert operator.epoch(Counts(), [batch(("a", 0))]).rows == [("a", 11)]
    assert operator.epoch(Counts(), [batch(("a", 0), ("b", 0))]).rows == [("a", 12), ("b", 11)]
    assert operator.epoch(Counts(), [batch(("a", 0))]).rows == [("a", 11)]


def test_the_context_knows_keys_of_rows_times_and_the_watermark(operator, batch):
    seen: list[Any] = []

    def look(keys, table, ctx):
        seen.append((ctx.key_index.tolist(), ctx.starts.tolist(), ctx.timestamps.to_pylist()))
        seen.append((table.column_names, ctx.current_watermark()))

    operator.epoch(Echo(look), [batch(("a", 1, 10), ("a", 2, 11), ("b", 3, 12))], watermark=5)
    assert seen == [([0, 0, 1], [0, 2], [10, 11, 12]), (["user", "n"], 5)]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda *_: pa.table({"user": ["a"]}), r"columns=\['user'\] declared=\['user', 'n'\]"),
        (lambda *_: pa.table({"user": ["a"], "n": ["x"]}), "column=n declared=int64 got=string"),
        (lambda *_: [("a", 1)], "gives Arrow tables or batches: operator=.* got=tuple"),
    ],
)
def test_output_of_another_shape_is_refused_with_the_column(operator, batch, make, words):
    with pytest.raises(SubtaskFailure, match=words):
        operator.attempt(Echo(make), [batch(("a", 1))])


def test_other_kinds_of_state_are_refused(operator, batch):
    class Lists(KeyedBatchFunction):
        descriptor = ListStateDescriptor("all", "long")

        def open(self, ctx):
            self.state = ctx.get_list_state(self.descriptor)

        def process_batch(self, keys, table, ctx):
            ctx.get_values(self.state)

    class Expiring(Lists):
        def open(self, ctx):
            ttl = StateTtlConfig(datetime.timedelta(hours=1))
            self.state = ctx.get_state(ValueStateDescriptor("short", "long", ttl=ttl))

    for function in (Lists(), Expiring()):
        with pytest.raises(SubtaskFailure, match="value states without a time to live"):
            operator.attempt(function, [batch(("a", 1))])


class Seen(KeyedBatchFunction):
    """Keeps by key and number in which order it came, and tells all of them; 9 removes 1."""

    def open(self, ctx):
        self.seen = ctx.get_map_state(MapStateDescriptor("seen", "long", "array<int>"))

    def process_batch(self, keys, table, ctx):
        numbers = table.column("n").to_numpy()
        before = ctx.get_map_values(self.seen, ctx.key_index, numbers).to_pylist()
        made = pa.array(
            [[*(came or ()), at] for at, came in enumerate(before)], pa.list_(pa.int8())
        )
        ctx.put_map_values(self.seen, ctx.key_index, numbers, made)
        gone = ctx.key_index[numbers == 9]
        ctx.put_map_values(self.seen, gone, np.ones_like(gone), pa.nulls(len(gone)))
        entries = ctx.get_map_entries(self.seen, np.arange(len(keys)))
        assert entries.values.type == pa.list_(pa.field("element", pa.int32()))
        names = keys.take(pa.array(entries.key_index)).to_pylist()
        for name, n, came in zip(names, entries.map_keys, entries.values.to_pylist(), strict=True):
            yield pa.table({"user": [f"{name}{n}"], "n": [len(came)]})


def test_maps_go_on_over_calls_and_epochs_and_have_their_entries_in_order(
    monkeypatch, operator, batch
):
    def told(*batches):
        return operator.epoch(Seen(), batches).rows

    # The rows of "b" are spread over two calls.
    assert told(batch(("a", -7), ("a", 5), ("b", 1)), batch(("b", 1), ("b", -1))) == [
        ("a-7", 1),
        ("a5", 1),
        ("b1", 1),
        ("b-1", 1),
        ("b1", 2),
    ]
    assert told(batch(("b", 300), ("b", 9), ("c", 2))) == [
        ("b-1", 1),
        ("b9", 1),
        ("b300", 1),
        ("c2", 1),
    ]
    monkeypatch.setattr(chunk_maps, "_SCAN_ENTRIES", 1)
    monkeypatch.setattr(scanning, "_PAGE", 1)
    assert told(batch(("b", 9))) == [("b-1", 1), ("b9", 2), ("b300", 1)]
    found: dict[str, Any] = {}

    class Look(KeyedProcessFunction):
        def open(self, ctx):
            self.seen = ctx.get_map_state(MapStateDescriptor("seen", "long", "array<int>"))

        def process(self, row, ctx):
            found[ctx.key] = dict(self.seen.items())

    operator.epoch(Look(), [batch(("a", 0), ("b", 0))])
    assert found == {"a": {-7: [0], 5: [1]}, "b": {-1: [1], 9: [1, 0], 300: [0]}}


@pytest.mark.parametrize("key_type", ["int", "string"])
def test_what_is_no_map_of_long_keys_is_refused_with_what_to_do(operator, batch, key_type):
    class Wrong(Seen):
        def open(self, ctx):
            self.seen = ctx.get_map_state(MapStateDescriptor("seen", key_type, "long"))

    words = "get_map_values takes what get_map_state gave for a map whose keys are long numbers"
    with pytest.raises(SubtaskFailure, match=words):
        operator.attempt(Wrong(), [batch(("a", 1))])

    class Short(Seen):
        def process_batch(self, keys, table, ctx):
            ctx.put_map_values(self.seen, [0], [1], pa.array([], pa.list_(pa.int8())))

    with pytest.raises(SubtaskFailure, match="an entry is put for each value: values=0 entries=1"):
        operator.attempt(Short(), [batch(("a", 1))])


@pytest.mark.parametrize(
    "call",
    [
        lambda seen, _, ctx: ctx.get_map_values(seen, [0, 0], [1]),
        lambda seen, _, ctx: ctx.put_map_values(seen, [0, 0], [1], pa.array([1, 2])),
        lambda _, kept, ctx: ctx.get_namespaced_values(kept, [0, 0], [1]),
    ],
)
def test_fewer_numbers_than_keys_that_they_stand_beside_are_refused(operator, batch, call):
    class Fewer(KeyedBatchFunction):
        def open(self, ctx):
            self.seen = ctx.get_map_state(MapStateDescriptor("seen", "long", "long"))
            self.kept = ctx.get_namespaced_state(ValueStateDescriptor("kept", "long"), ["long"])

        def process_batch(self, keys, table, ctx):
            call(self.seen, self.kept, ctx)

    words = r"key_index=2 others=\[1\]; give as many of each"
    with pytest.raises(SubtaskFailure, match=words):
        operator.attempt(Fewer(), [batch(("a", 1))])


class Kept(KeyedBatchFunction):
    """Keeps each row in a list of its key and of the tens of its number; tells the lists."""

    def open(self, ctx):
        descriptor = ListStateDescriptor("kept", "n long, user string")
        self.kept = ctx.get_namespaced_state(descriptor, ["long"])

    def process_batch(self, keys, table, ctx):
        tens = table.column("n").to_numpy() // 10
        rows = pa.StructArray.from_arrays(table.columns, names=table.schema.names)
        ctx.append_namespaced_values(self.kept, ctx.key_index, tens, column=rows)
        told = sorted(set(zip(ctx.key_index.tolist(), tens.tolist(), strict=True)))
        lists = ctx.get_namespaced_lists(self.kept, *map(np.array, zip(*told, strict=True)))
        if (full := [at for at, one in zip(told, lists, strict=True) if len(one) > 3]) != []:
            ctx.clear_namespaced_lists(self.kept, *map(np.array, zip(*full, strict=True)))
        names = keys.to_pylist()
        for (key, _), rows in zip(told, lists.to_pylist(), strict=True):
            yield pa.table({"user": [names[key]], "n": [sum(row["n"] for row in rows)]})


def test_lists_in_namespaces_go_on_over_calls_and_epochs_until_they_are_cleared(operator, batch):
    def sums(*batches):
        return operator.epoch(Kept(), batches).rows

    # The rows of "b" are spread over two calls.
    assert sums(batch(("a", 1), ("b", 2), ("b", 13)), batch(("b", 4), ("b", 5))) == [
        ("a", 1),
        ("b", 2),
        ("b", 13),
        ("b", 11),
    ]
    assert sums(batch(("a", 5), ("b", 6))) == [("a", 6), ("b", 17)]
    # Four are cleared when they were told.
    assert sums(batch(("b", 7), ("b", 19))) == [("b", 7), ("b", 32)]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda kept, ctx: ctx.append_namespaced_values(kept, [0], [1], column=pa.array([])),
            "a list is named for each value that is added: values=0 namespaces=1",
        ),
        (
            lambda kept, ctx: ctx.append_namespaced_values(
                kept, [0], [1], column=pa.array([None], pa.struct([("n", pa.int64())]))
            ),
            "no element of a list is null: nulls=1 of=1; leave them out",
        ),
        (
            lambda kept, ctx: ctx.append_namespaced_values(kept, [0], [1], column=pa.array(["x"])),
            "a column is not of its state's type: state=kept",
        ),
        (
            lambda kept, ctx: ctx.get_namespaced_values(kept, [0], [1]),
            "get_namespaced_values takes what get_namespaced_state gave for one value",
        ),
        (
            lambda _, ctx: ctx.get_namespaced_lists("kept", [0], [1]),
            "get_namespaced_lists takes what get_namespaced_state gave for a list.*got=str",
        ),
    ],
)
def test_what_is_no_list_or_no_element_is_refused_with_what_to_do(operator, batch, call, words):
    class Wrong(Kept):
        def process_batch(self, keys, table, ctx):
            call(self.kept, ctx)
            return ()

    with pytest.raises(SubtaskFailure, match=words):
        operator.attempt(Wrong(), [batch(("a", 1))])


def test_a_column_of_another_length_is_refused(operator, batch):
    class Short(Columns):
        def process_batch(self, keys, table, ctx):
            ctx.put_values(self.seen, pa.array([{"total": 1}]))

    with pytest.raises(SubtaskFailure, match="values=1 keys=2; give one for each key"):
        operator.attempt(Short(), [batch(("a", 1), ("b", 1))])


def test_handles_cannot_be_used_by_row_in_a_vectorized_function(operator, batch):
    class Mixed(Columns):
        def process_batch(self, keys, table, ctx):
            self.seen.value()

    with pytest.raises(SubtaskFailure, match="state belongs to a key"):
        operator.attempt(Mixed(), [batch(("a", 1))])


def test_a_vectorized_function_has_no_timers_of_one_key(operator, batch):
    class Timed(Columns):
        def on_timer(self, timestamp, ctx):
            """Never."""

    with pytest.raises(SubtaskFailure, match=r"timers in on_timers.*: operator=.* function=Timed"):
        operator.attempt(Timed(), [batch(("a", 1))])


def test_a_digest_is_of_values_and_not_of_what_lies_under_nulls():
    def digest(column):
        found = xxhash.xxh3_64()
        hash_column(found, column)
        return found.hexdigest()

    columns = [
        pa.array([1, 2, None]),
        pa.array(["a", None, ""]),
        pa.array([b"\x00", None]),
        pa.array([True, None, False]),
        pa.array([1.5, None]),
        pa.array([None, 5], pa.timestamp("us", "UTC")),
        pa.array([5, None], pa.date32()),
        pa.array([[1], None]),
        pa.array([[1, 2], [], None]),
        pa.array([[1], [2], None]),
        pa.array([{"a": 1, "b": "x"}, None]),
        pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        pa.array([None, Decimal("1.5")]),
    ]
    for column in columns:
        assert digest(column) == digest(pa.concat_arrays([column, column]).slice(0, len(column)))
        assert digest(column) != digest(column.slice(1))
    assert len({digest(column) for column in columns}) == len(columns)
    hidden = pa.Array.from_buffers(
        pa.int64(), 2, [pa.py_buffer(b"\x01"), pa.py_buffer(np.array([1, 99]).tobytes())]
    )
    assert digest(hidden) == digest(pa.array([1, None]))


def test_a_table_is_fitted_by_name_and_widened():
    schema = pa.schema([("user", pa.string()), ("n", pa.int64())])
    made = pa.table({"n": pa.array([1], pa.int8()), "user": ["a"]})
    (found,) = fitted(made, schema, "op")
    assert found.to_pylist() == [{"user": "a", "n": 1}]
    assert list(fitted(made.slice(1), schema, "op")) == []
    with pytest.raises(UserError, match="column=n declared=int64 got=double"):
        list(fitted(pa.table({"n": [1.5], "user": ["a"]}), schema, "op"))


AT, NAIVE = pa.timestamp("us", "UTC"), pa.timestamp("us")


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array([1_700_000_000_000]), AT),
        (pa.array(["2026-01-01"]), AT),
        (pa.array([1], NAIVE), AT),
        (pa.array([1], AT), NAIVE),
        (pa.array([1], pa.date32()), AT),
        (pa.array(["1"]), pa.int64()),
        (pa.array([True]), pa.int64()),
        (pa.array([Decimal(1)]), pa.int64()),
        (pa.array([1.0]), pa.int64()),
        (pa.array([1]), pa.string()),
        (pa.array([b"x"]), pa.string()),
        (pa.array(["x"]), pa.binary()),
        (pa.array([1]), pa.bool_()),
        (pa.array([1], pa.int32()), pa.date32()),
        (pa.array([1], AT), pa.date32()),
        (pa.array(["1"]).dictionary_encode(), pa.int64()),
        (pa.array([["1"]]), pa.list_(pa.int64())),
        (pa.array([{"a": 1}]), pa.struct([("a", AT)])),
        (pa.array([{"a": 1, "b": 2}]), pa.struct([("a", pa.int64())])),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), pa.map_(pa.string(), AT)),
    ],
)
def test_what_arrow_would_make_another_value_of_is_refused(column, kind):
    with pytest.raises(UserError, match=r"does not fit: op column=x .*: it is no narrower type"):
        list(fitted(pa.table({"x": column}), pa.schema([("x", kind)]), "op"))


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array([1], pa.uint8()), pa.int64()),
        (pa.array([1]), pa.float64()),
        (pa.array([1.5]), pa.float32()),
        (pa.array([1], pa.int8()), pa.decimal128(10, 2)),
        (pa.array([Decimal("1.5")]), pa.decimal128(10, 2)),
        (pa.array(["x"], pa.large_string()), pa.string()),
        (pa.array(["x"]).dictionary_encode(), pa.string()),
        (pa.array([b"xy"], pa.binary(2)), pa.binary()),
        (pa.array([1], pa.timestamp("ms", "Europe/Berlin")), AT),
        (pa.array([86_400_000], pa.date64()), pa.date32()),
        (pa.array([None]), AT),
        (pa.array([[]]), pa.list_(AT)),
        (pa.array([[1, None]], pa.large_list(pa.int8())), pa.list_(pa.int64())),
        (pa.array([{"a": 1}]), pa.struct([("a", pa.float64()), ("b", pa.string())])),
        (
            pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8())),
            pa.map_(pa.string(), pa.int64()),
        ),
    ],
)
def test_narrower_columns_of_every_sort_are_widened(column, kind):
    (found,) = fitted(pa.table({"x": column}), pa.schema([("x", kind)]), "op")
    assert found.schema.field("x").type == kind
    assert len(found) == 1


@pytest.mark.parametrize("given", [pa.int64(), pa.int8(), pa.null()])
def test_a_null_in_a_column_that_is_declared_not_null_is_refused(given):
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    with pytest.raises(UserError, match=r"op column=n declared=int64 .* declared not null"):
        list(fitted(pa.table({"n": pa.array([None], given)}), schema, "op"))
    (found,) = fitted(pa.table({"n": [1]}), schema, "op")
    assert found.to_pylist() == [{"n": 1}]
