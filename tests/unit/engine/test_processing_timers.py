"""Processing-time timers in a subtask: when they fire, and what the driver hears of them."""

# ruff: noqa: ARG002 - functions have the signature that the API gives them

from collections import defaultdict

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from moorage import TimeDomain
from moorage.api.functions import NO_WATERMARK, KeyedProcessFunction
from moorage.engine import timers as engine_timers
from moorage.engine.acks import Ack, encode_ack
from moorage.engine.outputs import FLUSH_ROWS
from moorage.engine.range_access import BoundRange
from moorage.engine.subtask_plan import NEVER, Upstream
from moorage_state.descriptors import ValueStateDescriptor

OUTPUT = pa.schema([("key", pa.string()), ("what", pa.string()), ("time", pa.int64())])


class Alarm(KeyedProcessFunction):
    """Row `n` sets an alarm `n` milliseconds from now."""

    def process(self, row, ctx):
        assert ctx.time_domain() is None
        service = ctx.timer_service()
        service.register_processing_time_timer(service.current_processing_time() + row.n)
        yield ctx.key, "row", service.current_processing_time()

    def on_timer(self, timestamp, ctx):
        assert ctx.timestamp() == timestamp
        what = "alarm" if ctx.time_domain() is TimeDomain.PROCESSING_TIME else "event"
        yield ctx.key, what, timestamp


def epoch(operator, batches=(), *, now=0, function=None, **changes):
    return operator.epoch(function or Alarm(), batches, now_ms=now, output=OUTPUT, **changes)


def spell(done):
    return [f"{what} {key}{time}" for key, what, time in done.rows]


def run(operator, batches=(), **changes):
    return spell(epoch(operator, batches, **changes))


@pytest.mark.parametrize(("now", "fires"), [(104, False), (105, True), (999, True)])
def test_an_alarm_fires_in_the_first_epoch_that_is_not_before_it(operator, batch, now, fires):
    run(operator, [batch(("a", 5))], now=100)
    assert run(operator, now=now) == (["alarm a105"] if fires else [])


def test_due_alarms_fire_before_the_rows_of_their_key(operator, batch):
    run(operator, [batch(("a", 5), ("b", 9))], now=100)
    assert run(operator, [batch(("a", 50))], now=110) == ["alarm a105", "row a110", "alarm b109"]


def test_after_another_operator_due_alarms_wait_for_the_rows_it_sent(operator, batch, head):
    run(operator, [batch(("a", 5), ("b", 5))], now=100)
    upstream = Ack(uid="up", subtask=0, run="f1r0", epoch=2)
    rows = [head([0], [encode_ack(upstream)]), batch(("a", 50))]
    changes = {"upstreams": (Upstream("up"),), "inputs": (), "start": False}
    assert run(operator, rows, now=110, **changes) == ["row a110", "alarm a105", "alarm b105"]


def test_a_due_alarm_that_rows_of_another_operator_delete_does_not_fire(operator, batch, head):
    class Delete(Alarm):
        def process(self, row, ctx):
            ctx.timer_service().delete_processing_time_timer(row.n)

    run(operator, [batch(("a", 5), ("b", 5))], now=100)
    upstream = Ack(uid="up", subtask=0, run="f1r0", epoch=2)
    rows = [head([0], [encode_ack(upstream)]), batch(("a", 105))]
    changes = {"upstreams": (Upstream("up"),), "inputs": (), "start": False, "function": Delete()}
    assert run(operator, rows, now=110, **changes) == ["alarm b105"]


def test_an_alarm_is_set_once_for_a_key_and_time_and_one_of_event_time_beside_it(operator, batch):
    class Both(Alarm):
        def process(self, row, ctx):
            ctx.timer_service().register_processing_time_timer(500)
            ctx.timer_service().register_event_time_timer(500)

    run(operator, [batch(("a", 1), ("a", 1))], function=Both())
    assert run(operator, now=600, watermark=600) == ["alarm a500", "event a500"]
    assert run(operator, now=600, watermark=600) == []


def test_a_deleted_alarm_does_not_fire_and_its_namesake_of_event_time_does(operator, batch):
    class Delete(Alarm):
        def process(self, row, ctx):
            ctx.timer_service().register_event_time_timer(row.n)
            ctx.timer_service().delete_processing_time_timer(row.n)

    run(operator, [batch(("a", 5), ("a", 6), ("b", 5))], now=100)
    run(operator, [batch(("a", 105), ("b", 999))], now=101, function=Delete())
    fired = run(operator, now=500, watermark=500)
    assert fired == ["alarm a106", "event a105", "alarm b105"]


def test_an_alarm_in_the_past_fires_when_its_keys_rows_are_done(operator, batch):
    fired = run(operator, [batch(("a", -50), ("b", 7))], now=100)
    assert fired == ["row a100", "alarm a50", "row b100"]


class Again(Alarm):
    """An alarm sets the next, `step` milliseconds on."""

    def __init__(self, step):
        self.step = step

    def on_timer(self, timestamp, ctx):
        ctx.timer_service().register_processing_time_timer(timestamp + self.step)
        yield from super().on_timer(timestamp, ctx)


def test_a_chain_of_alarms_catches_up_in_one_epoch(operator, batch):
    run(operator, [batch(("a", 10))], now=0, function=Again(10))
    done = epoch(operator, now=35, function=Again(10))
    assert spell(done) == ["alarm a10", "alarm a20", "alarm a30"]
    assert done.ack.next_timer == 40


@pytest.mark.parametrize("step", [0, -3])
def test_an_alarm_that_sets_itself_for_a_time_that_has_come_waits_for_the_next_epoch(
    operator, batch, step
):
    run(operator, [batch(("a", 10))], function=Again(step))
    done = epoch(operator, now=10, function=Again(step))
    assert spell(done) == ["alarm a10"]
    assert done.ack.next_timer == 10 + step
    assert run(operator, now=11, function=Again(step)) == [f"alarm a{10 + step}"]


@pytest.mark.parametrize("step", [0, -3])
def test_so_it_does_where_its_key_has_rows(operator, batch, step):
    run(operator, [batch(("a", 10))], function=Again(step))
    rows = [batch(("a", 1000))]
    assert run(operator, rows, now=10, function=Again(step)) == ["alarm a10", "row a10"]
    done = epoch(operator, [batch(("a", 1000))], now=11, function=Again(step))
    assert spell(done) == [f"alarm a{10 + step}", "row a11"]
    assert done.ack.next_timer == 10 + 2 * step


def test_a_chain_of_alarms_catches_up_before_the_rows_of_its_key(operator, batch):
    run(operator, [batch(("a", 10))], now=0, function=Again(10))
    fired = run(operator, [batch(("a", 1000))], now=35, function=Again(10))
    assert fired == ["alarm a10", "alarm a20", "alarm a30", "row a35"]


class Sets(Again):
    """A row sets an alarm for now; an alarm of any kind sets one of processing time."""

    def process(self, row, ctx):
        ctx.timer_service().register_processing_time_timer(row.n)
        yield ctx.key, "row", row.n


def test_what_a_row_sets_for_a_time_that_has_come_fires_although_an_alarm_waits(operator, batch):
    run(operator, [batch(("a", 10))], function=Again(0))
    # The alarm at 10 sets itself anew and waits; the row sets it once more, and another one.
    rows = [batch(("a", 10), ("a", 7))]
    fired = run(operator, rows, now=10, function=Sets(0))
    assert fired == ["alarm a10", "row a10", "row a7", "alarm a7"]
    assert run(operator, now=11, function=Alarm()) == ["alarm a7", "alarm a10"]


def test_an_alarm_that_waits_for_the_next_epoch_can_be_deleted(operator, batch):
    class Unsets(Again):
        def process(self, row, ctx):
            ctx.timer_service().delete_processing_time_timer(row.n)
            yield ctx.key, "row", row.n

    run(operator, [batch(("a", 10))], function=Again(0))
    done = epoch(operator, [batch(("a", 10))], now=10, function=Unsets(0))
    assert (spell(done), done.ack.next_timer) == (["alarm a10", "row a10"], NEVER)
    assert run(operator, now=11) == []


@pytest.mark.parametrize("rows", [(), (("a", 9_000),)])
def test_what_an_event_time_timer_sets_for_now_fires_in_the_next_epoch(operator, batch, rows):
    class Begin(Alarm):
        def process(self, row, ctx):
            ctx.timer_service().register_event_time_timer(500)

    run(operator, [batch(("a", 1))], now=100, function=Begin())
    given = [batch(*rows)] if rows else []
    done = epoch(operator, given, now=100, watermark=600, function=Again(-450))
    assert spell(done) == ["event a500", *("row a100" for _ in rows)]
    assert done.ack.next_timer == 50
    assert run(operator, now=101, function=Alarm()) == ["alarm a50"]


def test_alarms_outlive_the_state_of_their_key(operator, batch):
    class Clear(Alarm):
        def open(self, ctx):
            self.n = ctx.get_state(ValueStateDescriptor("n", "long"))

        def process(self, row, ctx):
            yield from super().process(row, ctx)
            self.n.update(row.n)
            self.n.clear()

        def on_timer(self, timestamp, ctx):
            yield ctx.key, f"{self.n.value()} at", timestamp

    run(operator, [batch(("a", 5))], function=Clear())
    assert run(operator, now=5, function=Clear()) == ["None at a5"]


def test_an_attempt_that_is_not_committed_loses_no_alarm_and_another_has_its_digest(
    operator, batch
):
    run(operator, [batch(("a", 5), ("b", 6))])
    one = operator.attempt(Again(5), [batch(("c", 1))], now_ms=7, output=OUTPUT, downstream=1)
    two = operator.attempt(Again(5), [batch(("c", 1))], now_ms=7, output=OUTPUT, downstream=1)
    assert replace(one.ack, seconds=0.0) == replace(two.ack, seconds=0.0)
    assert run(operator, now=7) == ["alarm a5", "alarm b6"]


def test_a_function_may_read_processing_time_without_having_timers(operator, batch):
    class Read(KeyedProcessFunction):
        def process(self, row, ctx):
            yield ctx.key, "at", ctx.timer_service().current_processing_time()

    assert run(operator, [batch(("a", 1))], function=Read(), now=77) == ["at a77"]


def test_every_row_of_an_epoch_sees_the_same_processing_time(operator, batch):
    class Read(KeyedProcessFunction):
        def process(self, row, ctx):
            yield ctx.key, str(row.n), ctx.timer_service().current_processing_time()

    rows = [batch(("a", 1), ("b", 2)), batch(("b", 3))]
    for now in (77, 78):
        assert run(operator, rows, function=Read(), now=now) == [
            f"1 a{now}",
            f"2 b{now}",
            f"3 b{now}",
        ]


# -- what the driver hears --------------------------------------------------------------------


def test_the_ack_says_when_the_next_alarm_is(operator, batch):
    assert epoch(operator).ack.next_timer == NEVER
    assert epoch(operator, [batch(("a", 50), ("b", 40))], now=100).ack.next_timer == 140
    # Nobody said what is known: the server is asked.
    assert epoch(operator, now=101).ack.next_timer == 140
    assert epoch(operator, now=140).ack.next_timer == 150
    assert epoch(operator, now=150).ack.next_timer == NEVER


def test_what_is_known_of_the_next_alarm_is_carried_on(operator, batch):
    known = epoch(operator, [batch(("a", 50))], now=100, next_timers=(NEVER,)).ack.next_timer
    assert known == 150
    known = epoch(operator, [batch(("b", 20))], now=101, next_timers=(known,)).ack.next_timer
    assert known == 121
    done = epoch(operator, now=130, next_timers=(known,))
    assert (spell(done), done.ack.next_timer) == (["alarm b121"], 150)


def test_an_epoch_before_the_next_alarm_looks_for_none(operator, batch, monkeypatch):
    epoch(operator, [batch(("a", 50))], now=100)

    def asked(*_args):
        raise AssertionError("the server was asked")

    monkeypatch.setattr(BoundRange, "due_timers", asked)
    monkeypatch.setattr(BoundRange, "next_timer", asked)
    done = epoch(operator, [batch(("b", 50))], now=149, next_timers=(150,))
    assert (spell(done), done.ack.next_timer) == (["row b149"], 150)


def test_a_function_without_timers_has_no_next_one(operator, batch):
    class Forgot(KeyedProcessFunction):
        def process(self, row, ctx):
            return None

    epoch(operator, [batch(("a", 50))], now=100)
    assert epoch(operator, [batch(("a", 1))], now=200, function=Forgot()).ack.next_timer == NEVER


# -- many at once -----------------------------------------------------------------------------


@pytest.mark.parametrize("page", [1, 2, 3, 100])
def test_many_due_alarms_are_fetched_in_pages_and_fire_once(operator, batch, monkeypatch, page):
    users = [f"u{i}" for i in range(7)]
    run(operator, [batch(*((user, n) for user in users for n in (1, 2, 9)))])
    monkeypatch.setattr(engine_timers, "_DUE_PAGE", page)
    fired = run(operator, [batch(("u3", 50))], now=5)
    wanted = [f"alarm {user}{time}" for user in users for time in (1, 2)]
    assert sorted(fired) == sorted([*wanted, "row u35"])
    assert sorted(run(operator, now=20)) == sorted(f"alarm {user}9" for user in users)


def test_what_a_key_with_very_many_due_alarms_yields_leaves_in_batches(operator, batch):
    class Many(Alarm):
        def process(self, row, ctx):
            for time in range(row.n):
                ctx.timer_service().register_processing_time_timer(time)

    count = 2 * FLUSH_ROWS + 5
    run(operator, [batch(("a", count))], now=-1, function=Many())
    done = epoch(operator, now=count)
    assert [row[2] for row in done.rows] == list(range(count))
    assert [b.num_rows for b in done.batches[:-1]] == [FLUSH_ROWS, FLUSH_ROWS, 5]
    assert done.ack.timers_fired == count
    assert run(operator, now=2 * count) == []


# -- late rows --------------------------------------------------------------------------------


def test_rows_whose_time_the_watermark_has_reached_are_processed_and_counted(operator, batch):
    rows = [batch(("a", 1, 10), ("a", 1, 11)), batch(("b", 1, 9), ("b", 1), (None, 1, 3))]
    done = epoch(operator, rows, watermark=10)
    assert (done.ack.late_rows, done.ack.rows_in) == (3, 4)
    assert epoch(operator, rows, watermark=NO_WATERMARK).ack.late_rows == 0


def test_rows_of_another_operator_are_not_late(operator, batch, head):
    upstream = Ack(uid="up", subtask=0, run="f1r0", epoch=1)
    rows = [head([0], [encode_ack(upstream)]), batch(("a", 5, 1))]
    changes = {"upstreams": (Upstream("up"),), "inputs": (), "start": False}
    assert epoch(operator, rows, watermark=10, **changes).ack.late_rows == 0


# -- however it comes -------------------------------------------------------------------------


class Script(KeyedProcessFunction):
    """Row `n`: sets the timer `n` of one domain or, if negative, deletes `-n`."""

    domain = TimeDomain.PROCESSING_TIME

    def process(self, row, ctx):
        service = ctx.timer_service()
        event = row.n % 2 == 0
        if row.n > 0 and event:
            service.register_event_time_timer(row.n)
        elif row.n > 0:
            service.register_processing_time_timer(row.n)
        elif event:
            service.delete_event_time_timer(-row.n)
        else:
            service.delete_processing_time_timer(-row.n)

    def on_timer(self, timestamp, ctx):
        yield ctx.key, ctx.time_domain().name, timestamp


epochs = st.lists(
    st.tuples(
        st.integers(0, 20),
        st.integers(0, 20),
        st.lists(st.tuples(st.sampled_from("abcd"), st.integers(-40, 40)), max_size=8),
    ),
    max_size=5,
)


def played(timers, now, watermark):
    """What fires of one key's timers: odd ones by the clock, even ones by the watermark."""
    fired = sorted(t for t in timers if t % 2 and t <= now)
    fired += sorted(t for t in timers if not t % 2 and t <= watermark)
    timers.difference_update(fired)
    return fired


@given(steps=epochs, page=st.integers(1, 4), known=st.booleans())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_timers_of_both_domains_are_as_if_they_were_a_set(new_operator, batch, steps, page, known):
    operator = new_operator()
    model: dict[str, set[int]] = defaultdict(set)
    now, watermark, next_timers = 0, 0, (NEVER,)
    for later, further, rows in steps:
        now, watermark = now + later, watermark + further
        wanted: dict[str, list[int]] = defaultdict(list)
        for key in "abcd":
            wanted[key] += played(model[key], now, watermark)
            mine = [n for user, n in rows if user == key]
            for n in mine:
                (model[key].add if n > 0 else model[key].discard)(abs(n))
            wanted[key] += played(model[key], now, watermark)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(engine_timers, "_DUE_PAGE", page)
            batches = [batch(*sorted(rows, key=lambda row: row[0]))] if rows else []
            changes = {"next_timers": next_timers} if known else {}
            done = epoch(
                operator, batches, now=now, watermark=watermark, function=Script(), **changes
            )
        fired: dict[str, list[int]] = defaultdict(list)
        for key, domain, time in done.rows:
            assert (domain == "PROCESSING_TIME") == bool(time % 2)
            fired[key].append(time)
        assert fired == {key: times for key, times in wanted.items() if times}
        odd = [t for timers in model.values() for t in timers if t % 2]
        assert done.ack.next_timer <= min(odd, default=NEVER)
        next_timers = (done.ack.next_timer,)
