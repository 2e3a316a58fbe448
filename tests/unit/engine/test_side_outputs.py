"""Side outputs in a subtask: rows under a tag, on their way to sinks and to other operators."""

# ruff: noqa: ARG002 - functions have the signature that the API gives them

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from moorage_testing.engine import Collect

from moorage import KeyedBatchFunction, KeyedProcessFunction, OutputTag
from moorage.api.functions import ProcessContext, TimerService
from moorage.engine.outputs import FLUSH_ROWS, OutputBuffer
from moorage.engine.subtask_plan import SideOutputPlan
from moorage.engine.task_failures import SubtaskFailure

BIG = OutputTag("big", "text string, n long")
ODD = OutputTag("odd", "n long")
TEXTS = pa.schema([("text", pa.string()), ("n", pa.int64())])
NUMBERS = pa.schema([("n", pa.int64())])
STREAM = pa.schema([("user", pa.string()), ("n", pa.int64())])


class Row(NamedTuple):
    text: str
    n: int


class Sends(KeyedProcessFunction):
    """Yields each row, and whatever else `make(row, ctx)` gives."""

    def __init__(self, make):
        self.make = make

    def process(self, row, ctx):
        yield row.user, row.n
        yield from self.make(row, ctx)


def declared(*, used=True, read=False):
    sinks = {
        name: (((f"{name}-out", Collect()),) if used and not read else ())
        for name in ("big", "odd")
    }
    return (
        SideOutputPlan("big", TEXTS, sinks["big"], read),
        SideOutputPlan("odd", NUMBERS, sinks["odd"], read),
    )


def staged(done, uid):
    """What the sink of this uid has of one attempt."""
    return [tuple(row) for item in done.ack.committables.get(uid, []) for row in item["rows"]]


def sent(done, column):
    """What other operators get of one output."""
    rows = [row for b in done.batches[:-1] for row in b.column(column).to_pylist()]
    return [row for row in rows if row is not None]


# -- rows -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "row",
    [("a5", 5), ["a5", 5], {"n": 5, "text": "a5"}, Row("a5", 5)],
    ids=["tuple", "list", "dict", "named"],
)
@pytest.mark.parametrize("way", ["pair", "list", "call"])
def test_a_row_goes_to_the_sinks_of_its_tag_and_to_no_other(operator, batch, row, way):
    def make(_, ctx):
        if way == "call":
            ctx.output(BIG, row)
            return []
        return [(BIG, row) if way == "pair" else [BIG, row]]

    done = operator.epoch(Sends(make), [batch(("a", 5))], side_outputs=declared())
    assert done.rows == [("a", 5)]
    assert done.ack.committables == {"big-out": [{"rows": [["a5", 5]]}]}
    assert done.ack.rows_out == 2


@pytest.mark.parametrize("pair", [[ODD, (5,)], (ODD, (5,))])
def test_a_pair_is_no_row_of_the_main_output_however_wide_that_is(operator, batch, pair):
    class Aside(KeyedProcessFunction):
        def process(self, row, ctx):
            return [[row.user], pair]

    output = pa.schema([("user", pa.string())])
    done = operator.epoch(Aside(), [batch(("a", 5))], side_outputs=declared(), output=output)
    assert (done.rows, staged(done, "odd-out")) == ([("a",)], [(5,)])


def test_calls_and_yields_keep_their_order(operator, batch):
    def make(row, ctx):
        ctx.output(ODD, (row.n,))
        yield ODD, (row.n + 1,)
        ctx.output(ODD, (row.n + 2,))

    done = operator.epoch(Sends(make), [batch(("a", 10), ("a", 20))], side_outputs=declared())
    assert staged(done, "odd-out") == [(10,), (11,), (12,), (20,), (21,), (22,)]


def test_a_dict_may_be_used_again_once_it_was_yielded(operator, batch):
    row = {"text": "x", "n": 0}

    def make(given, _):
        row["n"] = given.n
        yield BIG, row

    done = operator.epoch(Sends(make), [batch(("a", 1), ("a", 2))], side_outputs=declared())
    assert staged(done, "big-out") == [("x", 1), ("x", 2)]


def test_timers_send_to_side_outputs_too(operator, batch):
    class Alarm(KeyedProcessFunction):
        def process(self, row, ctx):
            for time_ms in range(row.n, 7):
                ctx.timer_service().register_event_time_timer(time_ms)

        def on_timer(self, timestamp, ctx):
            yield BIG, (ctx.key, timestamp)
            ctx.output(ODD, (timestamp,))

    sides = declared()
    operator.epoch(Alarm(), [batch(("a", 5, 3), ("b", 5, 3))], side_outputs=sides)
    done = operator.epoch(Alarm(), [batch(("a", 7, 9))], watermark=8, side_outputs=sides)
    assert sorted(staged(done, "big-out")) == [("a", 5), ("a", 6), ("b", 5), ("b", 6)]
    assert staged(done, "odd-out") == [(5,), (6,)] * 2


# -- to other operators -----------------------------------------------------------------------


def test_what_operators_read_travels_beside_the_main_output(operator, batch):
    done = operator.epoch(
        Sends(lambda row, _: [(BIG, ("x", row.n)), (ODD, (row.n,))]),
        [batch(("a", 1), ("b", 2))],
        side_outputs=declared(read=True),
        downstream=2,
    )
    assert [row for row in done.rows if row != (None, None)] == [("a", 1), ("b", 2)]
    assert sent(done, "_m_o0") == [{"text": "x", "n": 1}, {"text": "x", "n": 2}]
    assert sent(done, "_m_o1") == [{"n": 1}, {"n": 2}]
    *rows, acks = done.batches
    assert all(acks.schema.equals(b.schema) for b in rows)
    assert acks.column("_m_target").to_pylist() == [0]
    assert [(name, some.rows) for name, some in done.ack.sent.items()] == [
        ("", 2),
        ("big", 2),
        ("odd", 2),
    ]
    assert sorted(o for b in rows for o in b.column("_m_ord").to_pylist()) == [0, 0, 0, 1, 1, 1]


def test_a_main_output_that_nobody_reads_stays_at_home(operator, batch):
    done = operator.attempt(
        Sends(lambda row, _: [(ODD, (row.n,))]),
        [batch(("a", 1), ("b", 2))],
        side_outputs=declared(read=True),
        downstream=1,
        main_read=False,
        sinks=(("main", Collect()),),
    )
    assert "user" not in done.batches[0].schema.names
    assert sum(b.num_rows for b in done.batches) == 2 + 1
    assert sent(done, "_m_o1") == [{"n": 1}, {"n": 2}]
    assert staged(done, "main") == [("a", 1), ("b", 2)]


@pytest.mark.parametrize("vectorized", [False, True])
def test_the_digest_covers_what_operators_read_of_side_outputs(operator, batch, vectorized):
    def attempt(n, **kind):
        rows, tables = [(ODD, (n,))], [(ODD, pa.table({"n": [n]}))]
        function = Tables(lambda *_: tables) if vectorized else Sends(lambda *_: rows)
        changes = {"side_outputs": declared(**kind), "downstream": 1}
        return operator.attempt(function, [batch(("a", 1))], **changes).ack.output

    assert attempt(5, read=True) == attempt(5, read=True) != attempt(6, read=True)
    assert attempt(5) == attempt(6)


# -- nobody takes it --------------------------------------------------------------------------


def test_an_unused_side_output_is_dropped_at_once(operator, batch):
    done = operator.epoch(
        Sends(lambda *_: [(BIG, ("x", 1)), (ODD, "never looked at")]),
        [batch(("a", 1))],
        side_outputs=declared(used=False),
    )
    assert (done.rows, done.ack.rows_out) == ([("a", 1)], 1)
    assert [n for n in done.batches[0].schema.names if n.startswith("_m_o")] == ["_m_ord"]
    without = operator.attempt(Sends(lambda *_: []), [batch(("a", 1))], downstream=1)
    assert done.batches[0].schema.equals(without.batches[0].schema)


def test_an_operator_without_side_outputs_adds_rows_as_a_list_does():
    buffer = OutputBuffer("count", STREAM)
    assert buffer.append == buffer.rows.append


@pytest.mark.parametrize("delay", [None, 0], ids=["as they come", "with timers between"])
@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("aside", [False, True])
def test_what_a_key_with_many_rows_yields_leaves_in_batches(operator, batch, timed, delay, aside):
    class Much(KeyedProcessFunction):
        def process(self, row, ctx):
            if not aside:
                return ((ctx.key, i) for i in range(FLUSH_ROWS))
            for i in range(FLUSH_ROWS):
                ctx.output(ODD, (i,))
            return None

        def on_timer(self, timestamp, ctx):
            return None

    rows = [("a", n, n) if timed else ("a", n) for n in range(3)]
    changes = {"side_outputs": declared(read=True), "downstream": 1, "timer_delay_ms": delay}
    done = operator.attempt(Much(), [batch(*rows)], **changes)
    assert [b.num_rows for b in done.batches] == [FLUSH_ROWS, FLUSH_ROWS, FLUSH_ROWS, 1]


@pytest.mark.parametrize("timed", [False, True])
def test_rows_of_side_outputs_fill_the_buffer_as_others_do(operator, batch, timed):
    class Much(KeyedProcessFunction):
        def process(self, row, ctx):
            return ((ODD, (i,)) for i in range(FLUSH_ROWS))

    rows = [("a", 1, 5), ("b", 2, 6)] if timed else [("a", 1), ("b", 2)]
    changes = {"side_outputs": declared(read=True), "downstream": 1}
    done = operator.attempt(Much(), [batch(*rows)], **changes)
    assert [b.num_rows for b in done.batches] == [FLUSH_ROWS, FLUSH_ROWS, 1]


# -- what is refused --------------------------------------------------------------------------


OTHER = OutputTag("other", "n long")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda *_: [(OTHER, (1,))], "side_output=other declared=['big', 'odd']; give its tag to"),
        (lambda _, ctx: ctx.output(OTHER, (1,)), "side_output=other declared=['big', 'odd']"),
        (
            lambda _, ctx: ctx.output("big", ("x", 1)),
            "by its OutputTag: operator={} got='big'",
        ),
        (lambda *_: [(BIG, "x", 1)], "as one value after its tag, (tag, row): operator={} "),
        (lambda *_: [(BIG,)], "as one value after its tag"),
        (lambda *_: [(BIG, ("x",))], "a tuple of 2 values or a dict: operator={} side_output=big"),
        (lambda *_: [(ODD, 5)], "a tuple of 1 values or a dict: operator={} side_output=odd"),
        (
            lambda *_: [(BIG, {"text": "x", "m": 1})],
            "operator={} side_output=big columns=['m'] declared=['text', 'n']",
        ),
        (
            lambda *_: [(BIG, ("x", "5"))],
            "operator={} side_output=big column=n declared=int64: got '5' of Python type str",
        ),
        (lambda *_: (BIG, ("x", 1)), "a single row is yielded, or returned in a list"),
    ],
)
def test_a_row_that_no_side_output_takes_is_refused(operator, batch, make, words):
    class Gives(KeyedProcessFunction):
        def process(self, row, ctx):
            return make(row, ctx)

    with pytest.raises(SubtaskFailure) as caught:
        operator.attempt(Gives(), [batch(("a", 1))], side_outputs=declared())
    assert words.format(operator.uid) in str(caught.value)
    assert caught.value.code == "user_error"


@pytest.mark.parametrize(
    "make",
    [
        lambda *_: [(BIG, ("x", 1))],
        lambda *_: [(BIG, "x", 1)],
        lambda *_: [[BIG, ("x", 1), 3]],
        lambda _, ctx: ctx.output(BIG, ("x", 1)),
    ],
)
def test_an_operator_without_side_outputs_says_so(operator, batch, make):
    class Gives(KeyedProcessFunction):
        def process(self, row, ctx):
            return make(row, ctx)

    words = f"operator={operator.uid} side_output=big declared=[]; give its tag to process"
    with pytest.raises(SubtaskFailure) as caught:
        operator.attempt(Gives(), [batch(("a", 1))])
    assert words in str(caught.value)


def test_a_context_of_no_operator_sends_nothing():
    with pytest.raises(RuntimeError, match=r"no operator runs .*: side_output=odd"):
        ProcessContext(TimerService(None, 0, 0)).output(ODD, (1,))


# -- null keys --------------------------------------------------------------------------------


def test_rows_with_a_null_key_go_to_their_side_output_as_they_came(operator, batch):
    sides = (SideOutputPlan("odd", STREAM, (("odd-out", Collect()),)),)
    rows = [batch((None, 7), ("a", 1)), batch((None, None)), batch(("a", 2))]
    function = Sends(lambda row, _: [(ODD, ("mine", row.n))])
    done = operator.epoch(function, rows, side_outputs=sides, null_keys_to="odd")
    assert done.rows == [("a", 1), ("a", 2)]
    assert sorted(staged(done, "odd-out"), key=str) == [
        ("mine", 1),
        ("mine", 2),
        (None, 7),
        (None, None),
    ]
    assert (done.ack.rows_in, done.ack.null_keys, done.ack.keys) == (2, 2, 1)


def test_rows_with_a_null_key_are_dropped_where_nobody_takes_their_side_output(operator, batch):
    sides = (SideOutputPlan("odd", STREAM),)
    done = operator.epoch(
        Sends(lambda *_: []), [batch((None, 7), ("a", 1))], side_outputs=sides, null_keys_to="odd"
    )
    assert (done.rows, done.ack.null_keys, done.ack.rows_out) == ([("a", 1)], 1, 1)


def test_the_digest_covers_rows_with_a_null_key(operator, batch):
    changes: dict[str, Any] = {
        "side_outputs": (SideOutputPlan("odd", STREAM, (), True),),
        "null_keys_to": "odd",
        "downstream": 1,
    }
    one, two = (
        operator.attempt(Sends(lambda *_: []), [batch((None, n), ("a", 1))], **changes)
        for n in (7, 8)
    )
    assert sent(one, "_m_o0") == [{"user": None, "n": 7}]
    assert one.ack.output != two.ack.output


# -- vectorized functions ---------------------------------------------------------------------


class Tables(KeyedBatchFunction):
    """Gives what it is told to give."""

    def __init__(self, make):
        self.make = make

    def process_batch(self, keys, table, ctx):
        return self.make(keys, table, ctx)


def odd_rows(table):
    numbers = table.column("n").to_numpy()
    return pa.table({"n": numbers[numbers % 2 == 1].astype(np.int32)})


@pytest.mark.parametrize(
    "make",
    [
        lambda _, table, ctx: ctx.output(ODD, odd_rows(table)),
        lambda _, table, __: (ODD, odd_rows(table)),
        lambda _, table, __: [(ODD, odd_rows(table))],
    ],
    ids=["call", "pair", "list"],
)
def test_a_vectorized_function_sends_tables_to_side_outputs(operator, batch, make):
    batches = [batch(("a", 1), ("a", 2)), batch(("b", 3))]
    done = operator.epoch(Tables(make), batches, side_outputs=declared())
    assert (done.rows, staged(done, "odd-out")) == ([], [(1,), (3,)])
    assert done.ack.rows_out == 2


def test_a_vectorized_generator_sends_tables_to_all_outputs(operator, batch):
    def make(keys, table, ctx):
        yield table
        ctx.output(ODD, odd_rows(table))
        yield BIG, pa.table({"text": keys, "n": [0] * len(keys)})

    done = operator.epoch(Tables(make), [batch(("a", 1), ("b", 2))], side_outputs=declared())
    assert done.rows == [("a", 1), ("b", 2)]
    assert (staged(done, "odd-out"), staged(done, "big-out")) == ([(1,)], [("a", 0), ("b", 0)])


def test_tables_leave_with_the_chunk_that_they_are_of(operator, batch):
    def make(_, table, ctx):
        ctx.output(ODD, table.select(["n"]))
        return table

    changes = {"side_outputs": declared(read=True), "downstream": 1}
    done = operator.attempt(Tables(make), [batch(("a", 1)), batch(("b", 2))], **changes)
    assert [b.column("user").to_pylist() for b in done.batches[:-1]] == [
        ["a"],
        [None],
        ["b"],
        [None],
    ]
    assert sent(done, "_m_o1") == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda _, table, ctx: ctx.output(OTHER, table), "side_output=other declared=['big', "),
        (lambda _, table, __: [(OTHER, table)], "side_output=other declared=['big', 'odd']"),
        (lambda *_: (ODD, [1]), "Arrow tables or batches: operator={} side_output=odd got=list"),
        (
            lambda *_: (ODD, pa.table({"n": ["x"]})),
            "operator={} side_output=odd column=n declared=int64 got=string",
        ),
        (lambda *_: (ODD, pa.table({"m": [1]})), "side_output=odd columns=['m'] declared=['n']"),
    ],
)
def test_a_table_that_no_side_output_takes_is_refused(operator, batch, make, words):
    with pytest.raises(SubtaskFailure) as caught:
        operator.attempt(Tables(make), [batch(("a", 1))], side_outputs=declared())
    assert words.format(operator.uid) in str(caught.value)
