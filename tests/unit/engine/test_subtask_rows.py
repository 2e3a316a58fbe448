"""A subtask over its rows: state per key, order, borders of batches, acknowledgements."""

# ruff: noqa: ARG002 - functions have the signature that the API gives them

import datetime
import decimal
from datetime import UTC

import pyarrow as pa
import pytest

from moorage.api.functions import KeyedProcessFunction
from moorage.engine import outputs, range_access, subtask
from moorage.engine.acks import (
    Ack,
    ReadRows,
    Tally,
    decode_ack,
    encode_ack,
    mark_of,
    tally,
    tally_of,
)
from moorage.engine.columns import ACK_COLUMN
from moorage.engine.outputs import FLUSH_ROWS
from moorage.engine.subtask import run_subtask
from moorage.engine.subtask_plan import Upstream
from moorage.engine.task_failures import SubtaskFailure
from moorage_state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from moorage_state.keyed import TimeDomain
from moorage_state.keyed.schema import StateSchema


class Count(KeyedProcessFunction):
    """Counts and sums per user."""

    def open(self, ctx):
        self.n = ctx.get_state(ValueStateDescriptor("n", "long"))

    def process(self, row, ctx):
        self.n.update((self.n.value() or 0) + row.n)
        yield ctx.key, self.n.value()


class Everything(KeyedProcessFunction):
    """Uses every kind of state, and tells what it sees."""

    def open(self, ctx):
        self.total = ctx.get_state(ValueStateDescriptor("total", "n long, last string"))
        self.all = ctx.get_list_state(ListStateDescriptor("all", "long"))
        self.seen = ctx.get_map_state(MapStateDescriptor("seen", "long", "long"))

    def process(self, row, ctx):
        so_far = self.total.value()
        self.total.update({"n": (so_far.n if so_far else 0) + row.n, "last": row.user})
        self.all.add(row.n)
        self.seen[row.n] = self.seen.get(row.n, 0) + 1
        return [
            (ctx.key, self.total.value().n + 100 * len(self.all.get()) + 1000 * self.seen[row.n])
        ]


class Silent(KeyedProcessFunction):
    def process(self, row, ctx):
        pass


def test_rows_meet_the_state_of_their_key(operator, batch):
    rows = batch(("a", 1), ("a", 2), ("b", 10))
    assert operator.epoch(Count(), [rows]).rows == [("a", 1), ("a", 3), ("b", 10)]
    assert operator.epoch(Count(), [batch(("a", 4), ("c", 5))]).rows == [("a", 7), ("c", 5)]


def test_the_ack_says_what_happened(operator, batch):
    rows = [batch(("a", 1), ("a", 2)), batch(("b", 10))]
    ack = operator.attempt(Count(), rows).ack
    assert (ack.uid, ack.subtask, ack.run, ack.epoch) == (operator.uid, 0, "f1r0", 1)
    assert (ack.rows_in, ack.rows_out, ack.keys, ack.null_keys, ack.timers_fired) == (3, 3, 2, 0, 0)
    assert ack.schemas == [StateSchema("n", "value", "bigint")]
    assert len(ack.delta) == 32
    assert (ack.output, ack.sent, ack.read, ack.max_event_time) == ("", {}, (), {})


def test_a_key_that_runs_over_batches_is_one_key(operator, batch):
    rows = [batch(("a", 1)), batch(("a", 2)), batch(("a", 3), ("b", 1)), batch(("b", 2), ("c", 1))]
    done = operator.epoch(Everything(), rows)
    assert done.rows == [
        ("a", 1101),
        ("a", 1203),
        ("a", 1306),
        ("b", 1101),
        ("b", 1203),
        ("c", 1101),
    ]
    assert done.ack.keys == 3
    again = operator.epoch(Everything(), [batch(("a", 3)), batch(("b", 0))])
    assert again.rows == [("a", 2409), ("b", 1303)]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_where_batches_are_cut_changes_nothing(operator, batch, size):
    rows = [(user, i % 3) for user in "abc" for i in range(5)]
    whole = operator.attempt(Everything(), [batch(*rows)], downstream=1)
    parts = [batch(*rows[i : i + size]) for i in range(0, len(rows), size)]
    cut = operator.attempt(Everything(), parts, downstream=1)
    assert cut.rows == whole.rows
    assert cut.ack.delta == whole.ack.delta


def test_where_epochs_are_cut_changes_nothing(operator, batch):
    rows = [(user, i % 3) for user in "ab" for i in range(4)]
    one = operator.attempt(Everything(), [batch(*rows)], downstream=1).rows
    many = [operator.epoch(Everything(), [batch(row)]).rows[0] for row in rows]
    assert many == one


def test_an_attempt_changes_no_state_before_it_is_committed(operator, batch):
    first = operator.attempt(Count(), [batch(("a", 1))])
    second = operator.attempt(Count(), [batch(("a", 1))], downstream=1)
    assert second.rows == [("a", 1)]
    assert first.ack.delta == second.ack.delta


class Clock:
    """Goes on when it is told to; a look from where exchanges are timed takes a second."""

    def __init__(self, look=0.0):
        self.now = 0.0
        self.look = look

    def monotonic(self):
        CLOCK.now += self.look
        return CLOCK.now

    def time_ns(self):
        return int(1e9 * (100 + CLOCK.now))


CLOCK = Clock()


class Slow(Count):
    def process(self, row, ctx):
        CLOCK.now += 10
        return super().process(row, ctx)


class SlowSink:
    def open_writer(self, _stage, _schema):
        return self

    def write(self, _batch):
        CLOCK.now += 100

    def finish(self):
        CLOCK.now += 1000
        return []


def test_the_ack_says_what_time_went_into(operator, batch, head, monkeypatch):
    CLOCK.now = 0.0
    for module in (subtask, outputs):
        monkeypatch.setattr(module, "time", CLOCK)
    monkeypatch.setattr(range_access, "time", Clock(look=1.0))

    def late():
        yield head(start=[0])
        yield batch(("a", 1))
        CLOCK.now += 100_000
        yield batch(("b", 2))

    plan = operator.plan(Slow(), sinks=(("out", SlowSink()),))
    *_, last = run_subtask(plan, late())
    ack = decode_ack(last.column(ACK_COLUMN)[0].as_py())
    assert ack.began_ms == 100_000
    assert ack.sink_seconds == 1100
    assert 0 < ack.state_seconds < 100
    # Two looks at the clock for each exchange: one lies within what it took, and one before it.
    assert ack.wait_seconds == 100_000
    assert ack.seconds - ack.wait_seconds == 20 + 1100 + 2 * ack.state_seconds


def test_rows_for_another_operator_say_no_times(operator, batch):
    ack = operator.attempt(Count(), [batch(("a", 1))], downstream=1).ack
    assert (ack.began_ms, ack.seconds, ack.state_seconds, ack.sink_seconds) == (0, 0, 0, 0)


def test_a_subtask_without_rows_acknowledges_too(operator):
    done = operator.attempt(Count(), [])
    assert (done.ack.rows_in, done.ack.keys, done.ack.rows_out) == (0, 0, 0)
    assert len(done.batches) == 1


def test_batches_that_are_empty_are_passed_over(operator, batch):
    done = operator.epoch(Count(), [batch(), batch(("a", 1)), batch(), batch(("a", 1))])
    assert done.rows == [("a", 1), ("a", 2)]
    assert done.ack.keys == 1


def test_rows_with_a_null_key_are_counted_and_never_processed(operator, batch):
    rows = [batch((None, 7), ("a", 1)), batch((None, 7), (None, 7)), batch(("a", 2))]
    done = operator.epoch(Count(), rows)
    assert done.rows == [("a", 1), ("a", 3)]
    assert (done.ack.rows_in, done.ack.null_keys, done.ack.keys) == (2, 3, 1)


@pytest.mark.parametrize("missing", [(None, 1), ("a", None), (None, None)])
def test_a_key_is_null_when_one_of_its_columns_is(operator, batch, missing):
    changes = {"key_columns": ("user", "n"), "key_types": ("string", "long")}
    done = operator.attempt(Silent(), [batch(missing, ("a", 1))], **changes)
    assert (done.ack.rows_in, done.ack.null_keys) == (1, 1)


class Keys(KeyedProcessFunction):
    def process(self, row, ctx):
        assert ctx.get_current_key() == ctx.key
        yield repr(ctx.key), len(row)


@pytest.mark.parametrize(
    ("kind", "ddl", "value"),
    [
        (pa.int32(), "int", -5),
        (pa.bool_(), "boolean", True),
        (pa.date32(), "date", datetime.date(2013, 7, 1)),
        (pa.binary(), "binary", b"\xff\x00"),
        (pa.decimal128(5, 2), "decimal(5,2)", decimal.Decimal("-1.50")),
        (pa.string(), "string", ""),
    ],
)
def test_the_current_key_is_the_value_of_the_key_column(operator, batch, kind, ddl, value):
    stream = pa.schema([("user", kind), ("n", pa.int64())])
    done = operator.epoch(Keys(), [batch((value, 1), stream=stream)], key_types=(ddl,))
    assert done.rows == [(repr(value), 2)]


def test_a_timestamp_key_comes_with_its_time_zone(operator, batch):
    stream = pa.schema([("user", pa.timestamp("us", "UTC")), ("n", pa.int64())])
    noon = datetime.datetime(2013, 7, 1, 12, tzinfo=UTC)
    (row,) = operator.epoch(
        Keys(), [batch((noon, 1), stream=stream)], key_types=("timestamp",)
    ).rows
    assert row[0].startswith("datetime.datetime(2013, 7, 1, 12, 0, tzinfo=")


def test_a_key_of_several_columns_is_a_tuple(operator, batch):
    changes = {"key_columns": ("user", "n"), "key_types": ("string", "long")}
    done = operator.epoch(Keys(), [batch(("a", 1), ("a", 2), ("b", 2))], **changes)
    assert [row[0] for row in done.rows] == ["('a', 1)", "('a', 2)", "('b', 2)"]
    assert done.ack.keys == 3


def test_a_returned_list_a_generator_and_nothing_are_all_fine(operator, batch):
    class Mixed(KeyedProcessFunction):
        def process(self, row, ctx):
            return {1: None, 2: [], 3: [("l", 1)], 4: (r for r in [{"user": "g"}]), 5: ()}[row.n]

    done = operator.epoch(Mixed(), [batch(*(("a", i) for i in range(1, 6)))])
    assert done.rows == [("l", 1), ("g", None)]


def test_open_and_close_are_called_once_an_epoch(operator, batch):
    calls: list[object] = []

    class Loud(KeyedProcessFunction):
        def open(self, ctx):
            calls.append(("open", ctx.uid, ctx.subtask, ctx.parallelism))

        def process(self, row, ctx):
            calls.append(row.n)

        def close(self):
            calls.append("close")

    operator.epoch(Loud(), [batch(("a", 1)), batch(("b", 2))])
    operator.epoch(Loud(), [])
    opened = ("open", operator.uid, 0, 1)
    assert calls == [opened, 1, 2, "close", opened, "close"]


def test_a_connection_is_closed_when_the_subtask_is_done(operator, batch, connections):
    operator.epoch(Count(), [batch(("a", 1))])
    (client,) = connections
    assert client._broken == "the client was closed"


# -- what comes before the rows ---------------------------------------------------------------


@pytest.mark.parametrize("start", [[], [0, 0], [0, 1]])
def test_a_partition_belongs_to_exactly_one_subtask(operator, batch, head, start):
    with pytest.raises(SubtaskFailure, match=rf"epoch_incomplete\] .* of {len(start)} subtasks"):
        operator.attempt(Count(), [head(start), batch(("a", 1))], start=False)


def test_a_partition_without_any_rows_is_refused(operator):
    with pytest.raises(SubtaskFailure, match=r"the rows of 0 subtasks: subtasks=\[\]"):
        operator.attempt(Count(), [], start=False)


def test_start_rows_and_rows_may_share_a_batch(operator, batch, head):
    together = pa.concat_batches([head([0]), batch(("a", 1), ("b", 2))])
    done = operator.attempt(Count(), [together, batch(("b", 3))], start=False, downstream=1)
    assert done.rows == [("a", 1), ("b", 2), ("b", 5)]


def upstream_ack(subtask, uid="up"):
    return Ack(uid=uid, subtask=subtask, run="f1r0", epoch=1, delta="d")


def marked(batch, marks):
    at = batch.schema.get_field_index("_m_mark")
    return batch.set_column(at, "_m_mark", pa.array(marks, pa.int64()))


def acks_of(done):
    return [decode_ack(raw) for raw in done.batches[-1].column("_m_ack").to_pylist()]


def test_an_ack_adds_up_the_marks_of_all_rows_that_were_read(operator, batch, head):
    marks = [mark_of(5, 0), mark_of(7, 3), mark_of(7, 3)]
    rows = marked(batch(("a", 1), ("b", 2), (None, 3)), marks)
    given = [head([0]), rows.slice(0, 1), rows.slice(1)]
    done = operator.attempt(Count(), given, start=False, upstreams=(Upstream("up", "side"),))
    (read,) = done.ack.read
    assert read == ReadRows("up", "side", tally_of(marks[0], 1) + tally_of(marks[1], 2))
    assert read.tally == Tally(3, 5 + 7 + 7, 3 * (7 + 7))


def test_acks_pass_through_a_subtask_as_they_came(operator, batch, head):
    raws = [encode_ack(upstream_ack(0)), encode_ack(upstream_ack(4, uid="further"))]
    for given in ([head([0], raws)], [head(acks=raws), head([0])]):
        for changes in ({}, {"downstream": True}):
            done = operator.attempt(
                Count(),
                [*given, batch(("a", 1))],
                start=False,
                upstreams=(Upstream("up"),),
                **changes,
            )
            assert [ack.uid for ack in acks_of(done)] == [operator.uid, "up", "further"]
            assert done.batches[-1].column("_m_ack").to_pylist()[1:] == raws


# -- what goes downstream ---------------------------------------------------------------------


def test_a_downstream_operator_gets_rows_with_their_order_and_one_ack_from_each_subtask(
    operator, batch, head
):
    plan = {"ranges": operator.plan(Count()).ranges * 4, "parallelism": 4, "downstream": True}
    given = [head([3]), batch(("a", 1), ("b", 2))]
    done = operator.attempt(Count(), given, start=False, **plan)
    rows, acks = done.batches
    assert rows.column("_m_ord").to_pylist() == [(3 << 40), (3 << 40) + 1]
    assert acks.column("_m_target").to_pylist() == [3]
    assert acks.column("user").null_count == 1
    assert len(done.ack.output) == 32


def test_an_ack_adds_up_the_marks_of_all_rows_that_were_sent(operator, batch):
    class Twice(KeyedProcessFunction):
        def process(self, row, ctx):
            return [(row.user, row.n)] * 2

    rows = [(f"u{i // 10:04d}", i) for i in range(9000)]
    done = operator.attempt(Twice(), [batch(*rows)], downstream=True)
    marks = [b.column("_m_mark").to_numpy() for b in done.batches[:-1]]
    assert len({mark for some in marks for mark in some}) == len(marks) > 1
    assert done.ack.sent == {"": sum((tally(some) for some in marks), Tally())}
    assert done.ack.sent[""].rows == 18_000


def test_an_acknowledgement_does_not_grow_with_the_number_of_subtasks(operator, batch, head):
    def size(parallelism):
        ranges = operator.plan(Count()).ranges * parallelism
        given = [head([0], [encode_ack(upstream_ack(0))]), batch(("a", 1))]
        plan = {"ranges": ranges, "parallelism": parallelism, "max_parallelism": 1000}
        changes = {"start": False, "upstreams": (Upstream("up"),), "downstream": True}
        done = operator.attempt(Count(), given, **plan, **changes)
        return done.batches[-1].get_total_buffer_size()

    assert size(1000) == size(1) < 1024


def test_the_output_digest_tells_attempts_apart(operator, batch):
    one = operator.attempt(Count(), [batch(("a", 1))], downstream=1).ack
    same = operator.attempt(Count(), [batch(("a", 1))], downstream=1).ack
    other = operator.attempt(Keys(), [batch(("a", 1))], downstream=1).ack
    assert one.output == same.output != other.output
    assert one.digest == same.digest != other.digest


def test_integers_beyond_64_bits_leave_as_decimals(operator, batch):
    class Large(KeyedProcessFunction):
        def process(self, row, ctx):
            yield ctx.key, row.n << 70

    output = pa.schema([("user", pa.string()), ("n", pa.decimal128(38, 0))])
    one, two = (
        operator.attempt(Large(), [batch(("a", n))], output=output, downstream=1) for n in (1, 2)
    )
    assert one.rows == [("a", 1 << 70)]
    assert one.ack.output != two.ack.output


def test_many_rows_leave_in_several_batches_those_of_a_key_in_order(operator, batch):
    class Twice(KeyedProcessFunction):
        def process(self, row, ctx):
            return [(row.user, row.n)] * 2

    rows = [(f"u{i // 10:04d}", i) for i in range(9000)]
    parts = [batch(*rows[i : i + 1500]) for i in range(0, 9000, 1500)]
    done = operator.attempt(Twice(), parts, downstream=1)
    ordinals = [o for b in done.batches[:-1] for o in b.column("_m_ord").to_pylist()]
    assert ordinals == list(range(18000))
    of_keys: dict[str, list[int]] = {}
    for user, n in done.rows:
        of_keys.setdefault(user, []).append(n)
    assert of_keys == {f"u{k:04d}": [10 * k + i // 2 for i in range(20)] for k in range(900)}
    assert len(done.batches) > 2
    assert done.ack.rows_out == 18000


class Endless(KeyedProcessFunction):
    """Row 1, and each timer, gives more rows than the buffer takes; a row is kept at the end."""

    def open(self, ctx):
        self.told = ctx.get_state(ValueStateDescriptor("told", "string"))

    def process(self, row, ctx):
        if row.n == 1:
            yield from self._much(ctx)
        elif ctx.timestamp() is None:
            ctx.timer_service().register_processing_time_timer(row.n)
        else:
            ctx.timer_service().register_event_time_timer(row.n)

    def _much(self, ctx):
        kind, at = ctx.time_domain(), ctx.timestamp()
        for i in range(3 * FLUSH_ROWS):
            yield ctx.key, i
        assert (ctx.time_domain(), ctx.timestamp()) == (kind, at)
        self.told.update(f"{None if kind is None else kind.name} {at}")


class WithTimers(Endless):
    def on_timer(self, timestamp, ctx):
        # Due at once: of processing time it is for the next epoch, however long this one takes.
        yield from self._much(ctx)
        if ctx.time_domain() is TimeDomain.PROCESSING_TIME:
            ctx.timer_service().register_processing_time_timer(timestamp)


MUCH = [FLUSH_ROWS, FLUSH_ROWS, FLUSH_ROWS]


@pytest.mark.parametrize(
    ("function", "row", "changes"),
    [
        (Endless(), ("a", 1), {}),
        (Endless(), ("a", 1, 5), {}),
        (WithTimers(), ("a", 1, 5), {}),
        (WithTimers(), ("a", 1, 5), {"timer_delay_ms": None}),
    ],
    ids=["plain", "timed", "timers between", "timers"],
)
def test_what_one_row_gives_leaves_in_slices_while_it_is_made(
    operator, batch, function, row, changes
):
    done = operator.epoch(function, [batch(row)], **changes)
    assert [b.num_rows for b in done.batches] == [*MUCH, 1]
    assert [n for _, n in done.rows] == list(range(3 * FLUSH_ROWS))


@pytest.mark.parametrize("row_too", [False, True], ids=["no row", "with a row"])
@pytest.mark.parametrize("by_event", [True, False], ids=["event time", "processing time"])
def test_what_one_timer_gives_leaves_in_slices_while_it_is_made(operator, batch, by_event, row_too):
    rows = [batch(("a", 7, 5) if by_event else ("a", 7))]
    operator.epoch(WithTimers(), rows)
    later = [batch(("a", 99, 90) if by_event else ("a", 99))] if row_too else []
    done = operator.epoch(WithTimers(), later, watermark=50, now_ms=50)
    assert [b.num_rows for b in done.batches] == [*MUCH, 1]
    assert done.ack.timers_fired == 1
    again = operator.epoch(WithTimers(), watermark=50, now_ms=50)
    assert again.ack.timers_fired == (0 if by_event else 1)
    state = operator.attempt(Told(), [batch(("a", 0))], downstream=1).rows
    assert state == [("EVENT_TIME 7" if by_event else "PROCESSING_TIME 7", 0)]


class Told(Endless):
    """What was kept when all was said."""

    def process(self, row, ctx):
        yield self.told.value(), row.n
