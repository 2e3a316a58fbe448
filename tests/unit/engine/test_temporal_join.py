"""Temporal joins, held against plain Python over rows that come late and after failures."""

from itertools import cycle
from random import Random
from typing import Any

import pytest
from moorage_testing.two_inputs import through_failures, watermarks

from moorage import FileSink, JoinFunction, OutputTag
from moorage.testing import KeyedHarness, SecondStream, run_job
from moorage_state.errors import UserError

ORDERS = "currency string, n long, at long"
RATES = "name string, rate long, at long"
LATE = OutputTag("late")
DELAYS = {"orders": 8, "rates": 3}
NAMED = {"n": "left.n", "rate": "right.rate"}


def streams(env):
    orders = env.read_stream("orders", "json", schema=ORDERS).with_event_time("at", "8ms")
    rates = env.read_stream("rates", "json", schema=RATES).with_event_time("at", "3ms")
    return orders.key_by("currency"), rates.key_by("name")


def rows(chance, begin, first):
    return [
        (chance.choice("ab"), first + i, max(0, begin + chance.randint(-20, 15)))
        for i in range(chance.randint(0, 5))
    ]


class Both(JoinFunction):
    def join(self, left, right, ctx):  # noqa: ARG002
        yield left.n, right.rate if right else None


@pytest.mark.parametrize("ways", [["columns"], ["rows"], ["columns", "rows"]])
@pytest.mark.parametrize("outer", [False, True])
def test_each_row_has_the_version_of_its_time_whatever_happens(ways, outer):
    lives = cycle(ways)

    def build(env):
        orders, rates = streams(env)
        join = orders.temporal_join(rates, outer=outer, late=LATE)
        if next(lives) == "columns":
            made = join.select(uid="t", **NAMED)
        else:
            made = join.apply(Both(), uid="t", output="n long, rate long")
        made.sink_to(FileSink("out"), uid="out")
        made.get_side_output(LATE).sink_to(FileSink("late"), uid="late")

    chance = Random(1)
    epochs: list[Any] = [
        {"orders": rows(chance, 9 * i, 100 * i), "rates": rows(chance, 8 * i + 10, 100 * i)}
        for i in range(20)
    ]
    seen: dict[tuple[str, int], int] = {}
    expected: list[tuple[int, int | None]] = []
    late: list[Any] = []
    marks = [*watermarks(epochs, DELAYS), 1 << 62]
    waiting: list[Any] = []
    for given, mark, then in zip(epochs, marks, marks[1:], strict=False):
        late += [row for row in given["orders"] if row[2] <= mark]
        waiting += [row for row in given["orders"] if row[2] > mark]
        for name, rate, at in sorted(given["rates"], key=lambda row: row[2]):
            seen[name, at] = rate
        for key, n, at in [row for row in waiting if row[2] <= then]:
            known = [(t, rate) for (name, t), rate in seen.items() if name == key and t <= at]
            if known or outer:
                expected.append((n, max(known)[1] if known else None))
        waiting = [row for row in waiting if row[2] > then]
    found = through_failures(build, epochs, chance)
    assert sorted(found["out"]) == sorted(expected)
    assert sorted(found["late"]) == sorted(late)
    assert late
    assert len({rate for _, rate in expected}) > 10


def test_only_the_versions_that_rows_may_need_are_kept():
    def joined(orders, rates):
        return orders.temporal_join(rates).select(uid="t", **NAMED)

    second = SecondStream(RATES, "name", "at")
    with KeyedHarness(joined, ORDERS, "currency", event_time="at", second=second) as join:
        join.process(("a", 1, 25), second=[("a", at, at) for at in (10, 20, 30)])
        assert join.process_watermark(24) == []
        assert sorted(join.state("versions", "a")) == [20, 30]
        assert join.process_watermark(25) == [(1, 20)]
        assert join.state("rows", "a") == {}
        join.process_watermark(100)
        assert sorted(join.state("versions", "a")) == [30]
        join.process(("a", 2, 101), ("a", 3, 100), second=[("a", 5, 5), ("a", 70, 70)])
        assert join.process_watermark(200) == [(2, 70)]
        assert sorted(join.state("versions", "a")) == [70]
        assert join.num_timers() == 0


@pytest.mark.parametrize("way", ["columns", "rows"])
def test_a_key_has_one_timer_whatever_comes_in_which_epoch_and_instance(way):
    def joined(orders, rates):
        join = orders.temporal_join(rates)
        if way == "columns":
            return join.select(uid="t", **NAMED)
        return join.apply(Both(), uid="t", output="n long, rate long")

    second = SecondStream(RATES, "name", "at")
    with KeyedHarness(joined, ORDERS, "currency", event_time="at", second=second) as join:
        for n in range(3):
            rows = [("a", n, 20 + 10 * n + i) for i in range(3)]
            assert join.crash_and_replay(*rows, second=[("a", n, 15 + 10 * n)]) == []
            assert join.timers("a") == [15]
        assert join.process_watermark(31) == [(0, 0), (0, 0), (0, 0), (1, 1), (1, 1)]
        assert join.timers("a") == [32]
        assert join.process_watermark(99) == [(1, 1), (2, 2), (2, 2), (2, 2)]
        assert sorted(join.state("versions", "a")) == [35]
        assert join.num_timers() == 0


class Timed(JoinFunction):
    def join(self, left, right, ctx):
        yield left.n, ctx.timestamp(), right.rate


def test_a_function_is_told_the_time_of_each_row():
    def joined(orders, rates):
        made = orders.temporal_join(rates)
        return made.apply(Timed(), uid="t", output="n long, at long, rate long")

    second = SecondStream(RATES, "name", "at")
    with KeyedHarness(joined, ORDERS, "currency", event_time="at", second=second) as join:
        join.process(("a", 1, 25), ("a", 2, 31), ("a", 3, 38), second=[("a", 7, 20), ("a", 8, 30)])
        # One timer is called for all of them.
        assert join.process_watermark(40) == [(1, 25, 7), (2, 31, 8), (3, 38, 8)]


class Priced(JoinFunction):
    def join(self, left, right, ctx):
        return [(ctx.key, left.n, right.rate if right else None)]


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("ways", [["columns"], ["rows"], ["columns", "rows"]])
def test_by_processing_time_each_row_has_what_came_last(ways, timed):
    lives = cycle(ways)

    def build(env, *, outer=True):
        orders = env.read_stream("orders", "json", schema=ORDERS)
        rates = env.read_stream("rates", "json", schema=RATES)
        if timed:
            orders, rates = (one.with_event_time("at") for one in (orders, rates))
        orders, rates = orders.key_by("currency"), rates.key_by("name")
        join = orders.temporal_join(rates, time="processing", outer=outer)
        if next(lives) == "columns":
            named = {"currency": "left.currency", "n": "left.n", "rate": "right.rate"}
            made = join.select(uid="t", **named)
        else:
            made = join.apply(Priced(), uid="t", output="currency string, n long, rate long")
        made.sink_to(FileSink("out"), uid="out")

    epochs: list[Any] = [
        {"orders": [("a", 1, 0)], "rates": [("b", 5, 0)]},
        {"orders": [("b", 2, 0), ("a", 3, 2)], "rates": [("a", 6, 1), ("a", 7, 3)]},
        {"orders": [("a", 4, 5), ("b", 5, 6), ("c", 6, 7)], "rates": [("b", 8, 8)]},
        {"orders": [("b", 7, 9)]},
    ]
    # With event time the second rate of the second epoch comes after the order.
    rows = [("a", 1, None), ("a", 3, 6 if timed else 7), ("a", 4, 7), ("b", 2, 5)]
    rows += [("b", 5, 5 if timed else 8), ("b", 7, 8), ("c", 6, None)]
    assert sorted(map(tuple, run_job(build, epochs)["out"]), key=repr) == rows
    inner = [row for row in rows if row[2] is not None]
    for seed in range(4):
        found = through_failures(build, epochs, Random(seed))["out"]
        assert sorted(found, key=repr) == rows
        few = through_failures(lambda env: build(env, outer=False), epochs, Random(seed))["out"]
        assert sorted(few) == inner


def test_what_cannot_be_joined_is_refused_with_what_to_do():
    tag = OutputTag("t", "n long")
    wrong: Any = 1

    def untimed(_, rates, env):
        orders = env.read_stream("plain", "json", schema=ORDERS).key_by("currency")
        return orders.temporal_join(rates)

    cases: list[tuple[str, Any]] = [
        ("needs it on both sides: side=left; .*time='processing'", untimed),
        (
            "'event' or 'processing' time: time='row'",
            lambda a, b, _: a.temporal_join(b, time="row"),
        ),
        ("late is 'drop', or", lambda a, b, _: a.temporal_join(b, late=tag)),
        (
            "late is 'drop', or",
            lambda a, b, _: a.temporal_join(b, late=LATE, time="processing"),
        ),
        (
            "an instance of a JoinFunction: uid=u got=int",
            lambda a, b, _: a.temporal_join(b).apply(wrong, uid="u", output="n long"),
        ),
    ]
    for words, make in cases:

        def build(env, make=make):
            make(*streams(env), env)

        with pytest.raises(UserError, match=words):
            run_job(build, {})
