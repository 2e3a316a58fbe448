"""Event-time timers in a subtask: when they fire, in which order, and what moves the watermark."""

# ruff: noqa: ARG002 - functions have the signature that the API gives them

from collections import defaultdict
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moorage.api.functions import MAX_WATERMARK, NO_WATERMARK, KeyedProcessFunction
from moorage.engine import timers as engine_timers
from moorage.engine.acks import Ack, encode_ack
from moorage.engine.event_time import InputClock, Watermarks
from moorage.engine.subtask_plan import Upstream
from moorage.engine.task_failures import SubtaskFailure
from moorage_state.descriptors import ListStateDescriptor, ValueStateDescriptor

OUTPUT = pa.schema([("key", pa.string()), ("what", pa.string()), ("time", pa.int64())])


class Diary(KeyedProcessFunction):
    """Writes down rows and timers; row `n` sets a timer `n` milliseconds after its time."""

    def process(self, row, ctx):
        timers = ctx.timer_service()
        if ctx.timestamp() is not None and row.n is not None:
            timers.register_event_time_timer(ctx.timestamp() + row.n)
        yield ctx.key, "row", ctx.timestamp()

    def on_timer(self, timestamp, ctx):
        assert ctx.timestamp() == timestamp
        yield ctx.key, "timer", timestamp


def run(operator, batches=(), *, watermark=NO_WATERMARK, function=None, **changes):
    done = operator.epoch(
        function or Diary(), batches, watermark=watermark, output=OUTPUT, **changes
    )
    return [f"{what} {key}{time}" for key, what, time in done.rows]


def test_after_another_operator_due_timers_wait_for_the_rows_it_sent(operator, batch, head):
    run(operator, [batch(("a", 60, 0), ("b", 60, 0))])
    upstream = Ack(uid="up", subtask=0, run="f1r0", epoch=2)
    rows = [head([0], [encode_ack(upstream)]), batch(("a", 9, None), ("a", 9, 59), ("a", 9, 70))]
    changes = {"upstreams": (Upstream("up"),), "inputs": (), "start": False}
    assert run(operator, rows, watermark=MAX_WATERMARK, **changes) == [
        "row aNone",
        "row a59",
        "row a70",
        "timer a60",
        "timer a68",
        "timer a79",
        "timer b60",
    ]


def test_timers_fire_before_the_first_row_that_is_newer(operator, batch):
    rows = batch(("a", 5, 100), ("a", 5, 104), ("a", 5, 105), ("a", 5, 200))
    assert run(operator, [rows]) == [
        "row a100",
        "row a104",
        "row a105",
        "timer a105",
        "timer a109",
        "timer a110",
        "row a200",
    ]


def test_a_delay_keeps_timers_behind_the_rows(operator, batch):
    rows = batch(("a", 5, 100), ("a", 5, 105), ("a", None, 115), ("a", 5, 116))
    expected = ["row a100", "row a105", "row a115", "timer a105", "row a116"]
    assert run(operator, [rows], timer_delay_ms=10) == expected


def test_timers_wait_for_a_later_epoch(operator, batch):
    run(operator, [batch(("a", 5, 100))])
    assert run(operator, [batch(("a", None, 104))]) == ["row a104"]
    assert run(operator, [batch(("a", None, 105))]) == ["row a105"]
    assert run(operator, [batch(("a", None, 106))]) == ["timer a105", "row a106"]
    assert run(operator, [batch(("a", None, 107))], watermark=1000) == ["row a107"]


class Told(Diary):
    """Says what the watermark is."""

    def process(self, row, ctx):
        for key, what, at in super().process(row, ctx):
            yield key, f"{what} at {watermark_of(ctx)} of", at

    def on_timer(self, timestamp, ctx):
        yield ctx.key, f"timer at {watermark_of(ctx)} of", timestamp


def watermark_of(ctx):
    return ctx.timer_service().current_watermark()


def test_the_watermark_is_as_far_as_a_keys_rows_have_moved_it(operator, batch):
    rows = batch(("a", 5, 100), ("a", 5, 112), ("b", 5, 80), ("b", 5, 81))
    assert run(operator, [rows], function=Told(), watermark=90, timer_delay_ms=3) == [
        "row at 96 of a100",
        "timer at 108 of a105",
        "row at 108 of a112",
        "row at 90 of b80",
        "row at 90 of b81",
        "timer at 90 of b85",
        "timer at 90 of b86",
    ]
    assert run(operator, function=Told(), watermark=120) == ["timer at 120 of a117"]


def test_of_several_inputs_a_row_moves_nothing_within_its_key(operator, batch):
    rows = batch(("a", 5, 100), ("a", 5, 500))
    changes = {"inputs": ("clicks", "views"), "timer_delay_ms": None, "function": Told()}
    assert run(operator, [rows], watermark=103, **changes) == [
        "row at 103 of a100",
        "row at 103 of a500",
    ]
    assert run(operator, watermark=105, **changes) == ["timer at 105 of a105"]


def test_rows_of_another_operator_find_the_watermark_that_its_timers_found_too(
    operator, batch, head
):
    upstream = Ack(uid="up", subtask=0, run="f1r0", epoch=1)
    rows = [head([0], [encode_ack(upstream)]), batch(("a", 9, 59), ("b", 1, 3))]
    changes = {"upstreams": (Upstream("up"),), "inputs": (), "start": False, "function": Told()}
    assert run(operator, rows, watermark=MAX_WATERMARK, row_watermark=40, **changes) == [
        "row at 40 of a59",
        f"timer at {MAX_WATERMARK} of a68",
        "row at 40 of b3",
        f"timer at {MAX_WATERMARK} of b4",
    ]


def test_timers_that_are_due_fire_before_the_rows_of_their_key(operator, batch):
    run(operator, [batch(("a", 5, 100))])
    assert run(operator, [batch(("a", None, 50))], watermark=105) == ["timer a105", "row a50"]


@pytest.mark.parametrize(("watermark", "fires"), [(104, False), (105, True), (106, True)])
def test_a_timer_is_due_when_the_watermark_reaches_it(operator, batch, watermark, fires):
    run(operator, [batch(("a", 5, 100))])
    assert run(operator, watermark=watermark) == (["timer a105"] if fires else [])


def test_timers_of_keys_without_rows_fire_in_the_order_of_stored_keys(operator, batch):
    run(operator, [batch(("d", 1, 10), ("b", 3, 10), ("a", 9, 10), ("a", 8, 10), ("c", 99, 10))])
    assert run(operator, [batch(("b", None, 11))], watermark=30) == [
        "timer b13",
        "row b11",
        "timer a18",
        "timer a19",
        "timer d11",
    ]
    assert run(operator, watermark=200) == ["timer c109"]
    assert run(operator, watermark=200) == []


@pytest.mark.parametrize("page", [1, 2, 3, 100])
def test_many_due_timers_are_fetched_in_pages(operator, batch, monkeypatch, page):
    users = [f"u{i}" for i in range(7)]
    run(operator, [batch(*((user, n, 10) for user in users for n in (1, 2)))])
    monkeypatch.setattr(engine_timers, "_DUE_PAGE", page)
    fired = run(operator, watermark=50)
    assert sorted(fired) == sorted(f"timer {user}{time}" for user in users for time in (11, 12))
    assert run(operator, watermark=50) == []


def test_a_timer_is_set_once_for_a_key_and_time(operator, batch):
    run(operator, [batch(("a", 5, 100), ("a", 4, 101), ("a", 5, 100))])
    assert run(operator, watermark=200) == ["timer a105"]


def test_a_key_that_runs_over_batches_fires_its_timers_once(operator, batch):
    run(operator, [batch(("a", 5, 100))])
    parts = [batch(("a", 1, 110)), batch(("a", 1, 120)), batch(("a", None, 121), ("b", 0, 50))]
    assert run(operator, parts, watermark=105) == [
        "timer a105",
        "row a110",
        "timer a111",
        "row a120",
        "row a121",
        "row b50",
        "timer b50",
    ]


class Again(Diary):
    """A timer sets the next, ten milliseconds on, five times in all."""

    def open(self, ctx):
        self.left = ctx.get_state(ValueStateDescriptor("left", "long"))

    def on_timer(self, timestamp, ctx):
        left = 5 if self.left.value() is None else self.left.value()
        if left > 1:
            ctx.timer_service().register_event_time_timer(timestamp + 10)
        self.left.update(left - 1)
        yield ctx.key, "timer", timestamp


def test_a_timer_may_set_another_that_fires_when_its_time_has_come(operator, batch):
    run(operator, [batch(("a", 1, 9))], function=Again())
    assert run(operator, function=Again(), watermark=25) == ["timer a10", "timer a20"]
    rows = [batch(("a", None, 35))]
    assert run(operator, rows, function=Again(), watermark=25) == ["timer a30", "row a35"]
    drained = run(operator, function=Again(), watermark=MAX_WATERMARK)
    assert drained == ["timer a40", "timer a50"]


def test_a_timer_that_is_due_already_fires_when_its_keys_rows_are_done(operator, batch):
    rows = batch(("a", -50, 100), ("b", None, 1))
    assert run(operator, [rows], watermark=60) == ["row a100", "timer a50", "row b1"]


def test_when_inputs_have_ended_all_timers_fire(operator, batch):
    far = MAX_WATERMARK - 7
    run(operator, [batch(("a", far, 7), ("a", 5, 0), ("b", 1, -100))])
    assert run(operator, watermark=MAX_WATERMARK) == [
        "timer a5",
        f"timer a{MAX_WATERMARK}",
        "timer b-99",
    ]


def test_timers_before_1970_and_at_the_edges_are_timers(operator, batch):
    first = NO_WATERMARK + 1
    run(operator, [batch(("a", 0, first), ("b", 0, -1))])
    assert run(operator, watermark=first) == [f"timer a{first}"]
    assert run(operator, watermark=-1) == ["timer b-1"]


def test_a_deleted_timer_does_not_fire(operator, batch):
    class Delete(Diary):
        def process(self, row, ctx):
            ctx.timer_service().delete_event_time_timer(row.n)

    run(operator, [batch(("a", 5, 100), ("a", 6, 100), ("b", 5, 100))])
    run(operator, [batch(("a", 105, 0), ("b", 999, 0))], function=Delete())
    assert run(operator, watermark=500) == ["timer a106", "timer b105"]


def test_a_timer_has_its_keys_state(operator, batch):
    class Sum(Diary):
        def open(self, ctx):
            self.all = ctx.get_list_state(ListStateDescriptor("all", "long"))

        def process(self, row, ctx):
            self.all.add(row.n)
            yield from super().process(row, ctx)

        def on_timer(self, timestamp, ctx):
            yield ctx.key, f"sum {sum(self.all)} of", timestamp
            self.all.clear()

    run(operator, [batch(("a", 5, 100), ("a", 6, 100), ("b", 7, 100))], function=Sum())
    fired = run(operator, function=Sum(), watermark=200)
    assert fired == ["sum 11 of a105", "sum 0 of a106", "sum 7 of b107"]


def test_a_timer_of_a_composite_key_knows_its_key(operator, batch):
    changes = {"key_columns": ("user", "n"), "key_types": ("string", "long")}

    class Keys(Diary):
        def process(self, row, ctx):
            ctx.timer_service().register_event_time_timer(100 + row.n)

        def on_timer(self, timestamp, ctx):
            yield repr(ctx.key), "timer", timestamp

    run(operator, [batch(("", 5), ("a", -1))], function=Keys(), **changes)
    fired = run(operator, function=Keys(), watermark=500, **changes)
    assert fired == ["timer ('', 5)105", "timer ('a', -1)99"]


def test_an_attempt_that_is_not_committed_loses_no_timer(operator, batch):
    run(operator, [batch(("a", 5, 100))])
    operator.attempt(Diary(), [], watermark=200, output=OUTPUT)
    assert run(operator, watermark=200) == ["timer a105"]


def test_the_ack_counts_timers_and_their_keys(operator, batch):
    run(operator, [batch(("a", 5, 100), ("a", 6, 100), ("b", 5, 100))])
    ack = operator.attempt(Diary(), [batch(("b", None, 300))], watermark=200, output=OUTPUT).ack
    assert (ack.timers_fired, ack.keys, ack.rows_in) == (3, 2, 1)


def test_functions_can_read_the_watermark(operator, batch):
    class Read(KeyedProcessFunction):
        def process(self, row, ctx):
            yield ctx.key, "at", ctx.timer_service().current_watermark()

    rows = [batch(("a", 1))]
    assert run(operator, rows, function=Read()) == [f"at a{NO_WATERMARK}"]
    assert run(operator, rows, function=Read(), watermark=77) == ["at a77"]


def test_a_row_without_an_event_time_has_no_timestamp(operator, batch):
    run(operator, [batch(("a", 5, 100))])
    mixed = [
        batch(("a", None, None), ("a", None, 103)),
        batch(("a", None)),
        batch(("a", None, 106)),
    ]
    assert run(operator, mixed) == ["row aNone", "row a103", "row aNone", "timer a105", "row a106"]


# -- what a function may not do ---------------------------------------------------------------


def test_a_timer_without_on_timer_is_refused(operator, batch):
    class Forgot(KeyedProcessFunction):
        def process(self, row, ctx):
            ctx.timer_service().register_event_time_timer(5)

    with pytest.raises(
        SubtaskFailure, match=r"key='a'.*does not define on_timer\(timestamp, ctx\)"
    ):
        run(operator, [batch(("a", 1))], function=Forgot())


@pytest.mark.parametrize(
    ("time", "words"),
    [
        (1.5, r"an integer of milliseconds since 1970 UTC: got=1\.5 of type float"),
        (None, "got=None of type NoneType"),
        ("5", "got='5' of type str"),
        (1 << 63, "does not fit 64 bits: got=9223372036854775808"),
    ],
)
def test_a_timer_needs_a_time_in_milliseconds(operator, batch, time, words):
    class Wrong(Diary):
        def process(self, row, ctx):
            ctx.timer_service().register_event_time_timer(time)

    with pytest.raises(SubtaskFailure, match=words):
        run(operator, [batch(("a", 1, 5))], function=Wrong())


# -- what moves the watermark -----------------------------------------------------------------


def observed(operator, batches, **changes):
    return operator.attempt(Diary(), batches, output=OUTPUT, **changes).ack.max_event_time


def test_the_newest_event_time_of_each_input_is_observed(operator, batch):
    rows = [batch(("a", 1, 7), ("a", 1, 3)), batch(("b", 1, 5)), batch(("b", 1, -9), source=1)]
    assert observed(operator, rows, inputs=("clicks", "views")) == {"clicks": 7, "views": -9}


def test_rows_without_a_time_are_not_observed(operator, batch):
    assert observed(operator, [batch(("a", 1), ("a", 1, None))]) == {}
    assert observed(operator, [batch(("a", 1, None), ("a", 1, -4))]) == {"clicks": -4}
    mixed = pa.concat_batches([batch(("a", 1, 5)), batch(("a", 1), source=1)])
    assert observed(operator, [mixed], inputs=("clicks", "views")) == {"clicks": 5}


def test_rows_with_a_null_key_move_the_watermark_too(operator, batch):
    assert observed(operator, [batch((None, 1, 90), ("a", 1, 5))]) == {"clicks": 90}


def test_rows_of_an_upstream_operator_are_no_inputs(operator, batch):
    assert observed(operator, [batch(("a", 1, 5), source=-1)], inputs=()) == {}


# -- however epochs are cut -------------------------------------------------------------------


class Sequel(Diary):
    """A timer that is not on a ten sets another at the next ten."""

    def on_timer(self, timestamp, ctx):
        if timestamp % 10:
            ctx.timer_service().register_event_time_timer(timestamp + 10 - timestamp % 10)
        yield ctx.key, "timer", timestamp


def by_key(events):
    found = defaultdict(list)
    for event in events:
        found[event.split(" ")[1][0]].append(event)
    return dict(found)


def oracle(rows):
    """One key after the other: timers older than a row fire before it, the rest at the end."""
    events = []
    for key in sorted({key for key, _, _ in rows}):
        timers: set[int] = set()
        for _, n, time in [*(r for r in rows if r[0] == key), (key, None, None)]:
            while timers and (time is None or min(timers) < time):
                fired = min(timers)
                timers.remove(fired)
                events.append(f"timer {key}{fired}")
                if fired % 10:
                    timers.add(fired + 10 - fired % 10)
            if time is not None:
                events.append(f"row {key}{time}")
                timers.add(time + n)
    return by_key(events)


streams = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 30), st.integers(0, 60)), max_size=12
).map(lambda rows: sorted(rows, key=lambda row: row[2]))


@given(rows=streams, cuts=st.lists(st.integers(0, 12), max_size=3), size=st.integers(1, 5))
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_each_key_sees_the_same_order_however_epochs_and_batches_are_cut(
    new_operator, batch, rows, cuts, size
):
    operator = new_operator()
    marks = Watermarks({"clicks": InputClock()}, {"op": {"clicks"}})
    events = []
    borders = sorted({0, len(rows), *(c for c in cuts if c < len(rows))})
    for start, end in pairwise(borders):
        mine = sorted(rows[start:end], key=lambda row: (row[0], row[2]))
        parts = [batch(*mine[i : i + size]) for i in range(0, len(mine), size)]
        events += run(operator, parts, function=Sequel(), watermark=marks.of("op"))
        marks = marks.after_epoch({"clicks": rows[end - 1][2]})
    events += run(operator, function=Sequel(), watermark=marks.drain().of("op"))
    assert by_key(events) == oracle(rows)
