# ruff: noqa: ARG002, DTZ002, DTZ003, DTZ005, DTZ011, NPY002  functions are written as people write them, and err
"""`crash_and_replay`: what it finds, and what it lets pass."""

import datetime as dates
import random
import time
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime
from time import strftime
from time import time as seconds
from typing import ClassVar

import numpy as np
import pandas
import pyarrow as pa
import pytest

from moorage import (
    KeyedBatchFunction,
    KeyedProcessFunction,
    OutputTag,
    ProcessWindowFunction,
    Session,
    Tumbling,
    ValueStateDescriptor,
    count,
)
from moorage.testing import KeyedHarness, NotDeterministic

STREAM = "user string, n long, at long"
ROWS = [("a", 1, 5), ("b", 2, 5), ("a", 3, 6)]


class Says(KeyedProcessFunction):
    """What a call gives, for each row."""

    def __init__(self, called):
        self.called = called

    def process(self, row, ctx):
        yield ctx.key, str(self.called())


def replayed(function, rows=ROWS, output="user string, said string", **options):
    with KeyedHarness(function, STREAM, "user", output, **options) as one:
        before = one.output
        try:
            return one.crash_and_replay(*rows)
        except NotDeterministic:
            # Nothing of it is there.
            assert (one.output, one.keys()) == (before, [])
            raise


def the_hour_of_time():
    return time.time() // 3_600


def the_hour_in_nanoseconds():
    return time.time_ns() // 3_600_000_000_000


def the_hour_of_a_clock_by_another_name():
    return int(seconds()) // 3_600


def the_hour_of_localtime():
    return time.localtime().tm_hour


def the_hour_of_gmtime():
    return time.gmtime().tm_hour


def the_day_of_ctime():
    return time.ctime()[:10]


def the_day_of_asctime():
    return time.asctime()[:10]


def the_hour_of_strftime():
    return time.strftime("%H")


def the_month_of_strftime_by_its_own_name():
    return strftime("%m")


def the_hour_of_now():
    return datetime.now().replace(minute=0, second=0, microsecond=0)


def the_year_of_now_in_utc():
    return dates.datetime.now(UTC).year


def the_hour_of_utcnow():
    return datetime.utcnow().hour


def the_month_of_today():
    return date.today().month


def the_weekday_of_today():
    return datetime.today().weekday()


def the_year_of_pandas():
    return pandas.Timestamp.now().year


CLOCKS = [
    the_hour_of_time,
    the_hour_in_nanoseconds,
    the_hour_of_a_clock_by_another_name,
    the_hour_of_localtime,
    the_hour_of_gmtime,
    the_day_of_ctime,
    the_day_of_asctime,
    the_hour_of_strftime,
    the_month_of_strftime_by_its_own_name,
    the_hour_of_now,
    the_year_of_now_in_utc,
    pytest.param(
        the_hour_of_utcnow, marks=pytest.mark.filterwarnings("ignore::DeprecationWarning")
    ),
    the_month_of_today,
    the_weekday_of_today,
    the_year_of_pandas,
]


@pytest.mark.parametrize("clock", CLOCKS)
def test_a_clock_is_found_however_coarse_it_is_and_by_whatever_name(clock):
    with pytest.raises(NotDeterministic, match=r"on another day .*timer_service"):
        replayed(Says(clock))


def test_a_clock_is_found_in_a_function_that_no_module_has():
    class Local(KeyedProcessFunction):
        def process(self, row, ctx):
            yield ctx.key, f"{seconds() // 86_400} {datetime.now(UTC):%Y}"

    with pytest.raises(NotDeterministic, match="on another day"):
        replayed(Local())


def test_clocks_and_random_numbers_are_as_they_were_afterwards():
    names = [
        (time, "time"),
        (time, "strftime"),
        (datetime, "now"),
        (random, "getstate"),
    ]
    before = [getattr(owner, name) for owner, name in names]
    state, of_numpy = random.getstate(), repr(np.random.get_state())
    with pytest.raises(NotDeterministic):
        replayed(Says(the_hour_of_now))
    assert [getattr(owner, name) for owner, name in names] == before
    assert abs(datetime.now(UTC).timestamp() - seconds()) < 60
    assert (random.getstate(), repr(np.random.get_state())) == (state, of_numpy)


def a_rare_event():
    return random.random() < 0.000_01


def a_coin():
    return random.choice(["heads", "tails"])


def a_rare_event_of_numpy():
    return np.random.random() > 0.999_9


@pytest.mark.parametrize("dice", [a_rare_event, a_coin, a_rare_event_of_numpy])
def test_random_numbers_are_found_even_where_they_seldom_matter(dice):
    with pytest.raises(NotDeterministic, match="with other random numbers"):
        replayed(Says(dice), ROWS[:1])


def new_generator():
    return np.random.default_rng().random()


@pytest.mark.parametrize("made", [uuid.uuid4, new_generator, time.perf_counter])
def test_what_is_other_in_each_attempt_by_itself_is_found(made):
    with pytest.raises(NotDeterministic, match="uuid4"):
        replayed(Says(made))


class Counts(KeyedProcessFunction):
    """A field, and one of the class, that rows change; state is not asked."""

    of_all: ClassVar[list[int]] = []

    def open(self, ctx):
        self.n = 0

    def process(self, row, ctx):
        self.n += 1
        yield ctx.key, str(self.n)


class CountsInItsClass(Counts):
    def process(self, row, ctx):
        self.of_all.append(1)
        yield ctx.key, str(len(self.of_all))


class CountsAsLongAsItsWorkerLives(Counts):
    long_lived = True


class KnowsTheGreatest(KeyedProcessFunction):
    """A field that only an earlier epoch changes."""

    long_lived = True

    def open(self, ctx):
        self.greatest = 0

    def process(self, row, ctx):
        self.greatest = max(self.greatest, row.n)
        yield ctx.key, str(self.greatest)


@pytest.mark.parametrize("function", [Counts, CountsInItsClass, CountsAsLongAsItsWorkerLives])
def test_fields_that_rows_change_are_found(function):
    with pytest.raises(NotDeterministic, match="keep in state what rows change"):
        replayed(function())


def test_what_a_long_lived_function_remembers_of_earlier_epochs_is_found():
    with KeyedHarness(KnowsTheGreatest(), STREAM, "user", "user string, n string") as one:
        one.process(("a", 9, 1))
        with pytest.raises(NotDeterministic, match="with a new instance"):
            one.crash_and_replay(("a", 3, 1))


class HandsOver(KeyedProcessFunction):
    """A field from a row to the timer that it sets."""

    def process(self, row, ctx):
        self.n = row.n
        ctx.timer_service().register_event_time_timer(row.at + 10)

    def on_timer(self, timestamp, ctx):
        yield ctx.key, str(getattr(self, "n", None))


def test_what_a_row_hands_over_to_a_timer_in_a_field_is_found():
    rows = [("a", 1, 5), ("a", 2, 100)]
    with pytest.raises(NotDeterministic, match=r"with a new instance .* first={'user'"):
        replayed(HandsOver(), rows, event_time="at", max_delay="1ms")


class Numbers(ProcessWindowFunction):
    """The number of windows, in a field."""

    def __init__(self):
        self.n = 0

    def process(self, key, ctx, rows):
        self.n += 1
        yield (str(self.n),)


def test_fields_of_what_is_called_for_windows_are_found():
    def numbered(stream):
        windows = stream.window(Tumbling("10ms"))
        return windows.process(Numbers(), uid="w", output="said string")

    rows = [("a", 1, 5), ("a", 2, 15), ("a", 2, 100)]
    with pytest.raises(NotDeterministic, match="with a new instance"):
        replayed(numbered, rows, output="", event_time="at", max_delay="1ms")


class Remembers(KeyedProcessFunction):
    """What it keeps in fields changes nothing: it is found again."""

    def open(self, ctx):
        self.total = ctx.get_state(ValueStateDescriptor("total", "long"))
        self.squares = {}

    def process(self, row, ctx):
        square = self.squares.setdefault(row.n, row.n**2)
        self.total.update((self.total.value() or 0) + square)
        ctx.timer_service().register_event_time_timer(row.at + 10)
        yield ctx.key, random.Random(f"{ctx.key} {row.n}").random() * square

    def on_timer(self, timestamp, ctx):
        yield ctx.key, float(self.total.value() + ctx.timer_service().current_processing_time())


class Sums(KeyedBatchFunction):
    """A row for each key and call, as docs/vectorized-functions.md has it."""

    def open(self, ctx):
        self.total = ctx.get_state(ValueStateDescriptor("total", "long"))

    def process_batch(self, keys, rows, ctx):
        sums = np.add.reduceat(rows.column("n").to_numpy(), ctx.starts)
        sums = sums + ctx.get_values(self.total).fill_null(0).to_numpy()
        ctx.put_values(self.total, pa.array(sums))
        return pa.table({"user": keys, "total": sums})


class CountsCalls(Sums):
    def open(self, ctx):
        self.calls = 0

    def process_batch(self, keys, rows, ctx):
        self.calls += 1
        return pa.table({"user": keys, "total": pa.array([self.calls] * len(keys))})


@pytest.mark.parametrize("parallelism", [1, 3])
def test_what_does_the_same_again_passes_and_is_committed_once(parallelism):
    options = {"event_time": "at", "parallelism": parallelism}
    with KeyedHarness(Remembers(), STREAM, "user", "user string, x double", **options) as one:
        first = one.crash_and_replay(*ROWS)
        assert sorted(row.user for row in first) == ["a", "a", "b"]
        assert [one.state("total", user) for user in "ab"] == [10, 4]
        (again,) = one.crash_and_replay(("a", 1, 8))
        assert again.x == random.Random("a 1").random()
        assert sorted(row.x for row in one.process_watermark(17)) == [4.0, 11.0, 11.0]


def test_many_keys_pass_in_whatever_order_a_batch_has_them():
    rows = [(f"k{n}", n, 1) for n in range(200)]
    assert len(replayed(Remembers(), rows, "user string, x double", max_parallelism=2)) == 200


def test_functions_over_batches_are_run_again_too():
    output = "user string, total long"
    assert replayed(Sums(), output=output) == [("a", 4), ("b", 2)]
    with pytest.raises(NotDeterministic, match="with a new instance"):
        replayed(CountsCalls(), output=output, batch_rows=1)


@pytest.mark.parametrize("window", [Tumbling("10ms"), Session("10ms")])
def test_windows_pass(window):
    def windows(stream):
        return stream.window(window).aggregate(uid="w", rows=count())

    with KeyedHarness(windows, STREAM, "user", event_time="at") as one:
        one.crash_and_replay(*ROWS, ("a", 1, 40))
        assert sorted((row.user, row.rows) for row in one.process_watermark(30)) == [
            ("a", 2),
            ("b", 1),
        ]


class Visits:
    """A value that is equal to no other."""

    n = 0


@dataclass(frozen=True)
class Frozen(KeyedProcessFunction):
    """Nothing can be set in it."""

    first: int

    def process(self, row, ctx):
        yield ctx.key, str(self.first)


class BeginsWithAnObject(KeyedProcessFunction):
    def open(self, ctx):
        self.visits = ctx.get_state(ValueStateDescriptor("visits", "pickle", default=Visits()))

    def process(self, row, ctx):
        visits = self.visits.value()
        visits.n += 1
        self.visits.update(visits)
        yield ctx.key, str(visits.n)


def test_functions_that_are_frozen_or_have_objects_as_defaults_pass():
    assert replayed(Frozen(3)) == [("a", "3"), ("a", "3"), ("b", "3")]
    assert replayed(BeginsWithAnObject()) == [("a", "1"), ("a", "2"), ("b", "1")]


ODD = OutputTag("odd", "n long")


class SendsBothWays(KeyedProcessFunction):
    """Rows of a side output in two ways, and fields that are gone once it is closed."""

    def open(self, ctx):
        self.n = 1

    def process(self, row, ctx):
        yield ODD, (self.n,)
        ctx.output(ODD, (self.n + 1,))
        yield ODD, (self.n + 2,)

    def close(self):
        del self.n


def test_rows_of_a_side_output_keep_their_order():
    with KeyedHarness(SendsBothWays(), STREAM, "user", "n long", side_outputs=[ODD]) as one:
        assert one.crash_and_replay(ROWS[0]) == []
        assert one.side_output(ODD) == [(1,), (2,), (3,)]


class Expires(KeyedProcessFunction):
    """Fails from the day on that it holds good for."""

    def __init__(self):
        self.until = time.time() + 86_400

    def process(self, row, ctx):
        if time.time() > self.until:
            raise ValueError("expired")


def test_an_attempt_that_fails_where_the_first_did_not_is_told_as_such():
    with pytest.raises(
        NotDeterministic, match=r"failed on another day .* before: ValueError: expired;"
    ) as caught:
        replayed(Expires())
    assert isinstance(caught.value.__cause__, ValueError)


class Dice(KeyedProcessFunction):
    def open(self, ctx):
        self.seen = ctx.get_state(ValueStateDescriptor("seen", "long"))

    def process(self, row, ctx):
        self.seen.update(random.randrange(1 << 40))


class Sometimes(Dice):
    def process(self, row, ctx):
        if random.random() < 0.5:
            ctx.timer_service().register_event_time_timer(row.at)

    def on_timer(self, timestamp, ctx):
        return None


def test_state_and_timers_that_differ_are_told_with_key_and_name():
    with KeyedHarness(Dice(), STREAM, "user", "user string") as one:
        one.process(("a", 1, 1))
        with pytest.raises(NotDeterministic, match=r"key='a' state=seen first=\d+ again=\d+;"):
            one.crash_and_replay(("a", 1, 1))
        # What the attempts staged is forgotten, and the harness goes on.
        seen = one.state("seen", "a")
        assert one.process(("b", 1, 1)) == []
        assert (one.state("seen", "a"), sorted(one.keys())) == (seen, ["a", "b"])
    with pytest.raises(NotDeterministic, match=r"key='a' of=timers first=.* again="):
        replayed(Sometimes(), ROWS[:1], "user string", event_time="at")


class Nothing(KeyedProcessFunction):
    def process(self, row, ctx):
        yield ctx.key, float("nan"), [float("nan")]


def test_rows_with_nan_are_alike():
    (row,) = replayed(Nothing(), ROWS[:1], "user string, x double, xs array<double>")
    assert row.x != row.x
