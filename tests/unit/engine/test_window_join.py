"""Joins in windows, held against plain Python over rows that come late and after failures."""

import re
from collections import defaultdict
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from moorage_testing.two_inputs import through_failures, watermarks

from moorage import (
    CoGroupFunction,
    Count,
    EachCount,
    FileSink,
    JoinFunction,
    OutputTag,
    Session,
    Sliding,
    Tumbling,
)
from moorage.api import join_columns, window_join, window_times
from moorage.api.window_join import JoinedStreams
from moorage.engine import chunk_lists
from moorage.testing import KeyedHarness, SecondStream, run_job
from moorage.testing.environment import TestEnvironment
from moorage.testing.in_process import InProcessJob
from moorage_state.errors import UserError

LEFT = "user string, n long, at long"
RIGHT = "id string, m long, at long"
ODD = OutputTag("odd", "n long")
GROUPS = "user string, start long, lefts array<long>, rights array<long>"
DELAYS = {"left": 8, "right": 3}


class Groups(CoGroupFunction):
    def co_group(self, lefts, rights, ctx):
        start = ctx.window.start
        yield ctx.key, start, [row.n for row in lefts], [row.m for row in rights]


class Sums(JoinFunction):
    """Sums of pairs; odd ones go aside, too."""

    def join(self, left, right, ctx):
        if (left.n + right.m) % 2:
            ctx.output(ODD, (left.n + right.m,))
        return [(ctx.key, left.n + right.m)]


def streams(env):
    left = env.read_stream("left", "json", schema=LEFT).with_event_time("at", "8ms")
    right = env.read_stream("right", "json", schema=RIGHT).with_event_time("at", "3ms")
    return left.key_by("user"), right.key_by("id")


def build_of(window, lateness):
    def build(env):
        left, right = streams(env)
        joined = left.join(right).window(window, allowed_lateness=lateness)
        named = {"n": "left.n", "m": "right.m"}
        joined.select(uid="j", **named).sink_to(FileSink("pairs"), uid="pairs")
        grouped = left.co_group(right).window(window, allowed_lateness=lateness)
        grouped.apply(Groups(), uid="g", output=GROUPS).sink_to(FileSink("groups"), uid="groups")

    return build


def rows(chance, begin, first):
    return [
        (chance.choice("ab"), first + i, max(0, begin + chance.randint(-20, 15)))
        for i in range(chance.randint(0, 5))
    ]


def tumbling(at):
    return [at // 10 * 10]


def sliding(at):
    last = at // 5 * 5
    return [last - 15, last - 10, last - 5, last]


@pytest.mark.parametrize(
    ("window", "starts", "size"),
    [(Tumbling("10ms"), tumbling, 10), (Sliding("20ms", "5ms"), sliding, 20)],
)
def test_rows_meet_in_every_window_that_both_fall_into(window, starts, size):
    chance = Random(size)
    epochs: list[Any] = [
        {"left": rows(chance, 9 * i, 100 * i), "right": rows(chance, 8 * i, 100 * i + 50)}
        for i in range(14)
    ]
    met = defaultdict[tuple[str, int], tuple[list[int], list[int]]](lambda: ([], []))
    late = 0
    for given, mark in zip(epochs, watermarks(epochs, DELAYS), strict=True):
        for side, uid in enumerate(DELAYS):
            for key, n, at in given[uid]:
                for start in starts(at):
                    if start + size - 1 > mark:
                        met[key, start][side].append(n)
                    else:
                        late += 1
    found = through_failures(build_of(window, "0s"), epochs, chance)
    groups = [(k, s, sorted(lefts), sorted(rights)) for k, s, lefts, rights in found["groups"]]
    assert sorted(groups) == sorted(
        (k, s, sorted(lefts), sorted(rights)) for (k, s), (lefts, rights) in met.items()
    )
    assert sorted(found["pairs"]) == sorted(
        (n, m) for lefts, rights in met.values() for n in lefts for m in rights
    )
    assert late


@pytest.mark.parametrize("window", [Tumbling("10ms"), Sliding("20ms", "5ms", offset="3ms")])
def test_columns_and_rows_take_turns_over_one_state(monkeypatch, window):
    def joined(columns):
        lives: list[bool] = []

        def build(env):
            # With each life, so that the one goes on with what the other has kept.
            lives.append(columns and len(lives) % 2 == 0)
            monkeypatch.setattr(window_join, "joins_by_column", lambda _: lives[-1])
            left, right = streams(env)
            named = {"n": "left.n", "user": "left.user", "m": "right.m", "start": "window.start"}
            pairs = left.join(right).window(window).select(uid="j", **named, end="window.end")
            pairs.sink_to(FileSink("out"), uid="out")

        chance = Random(7)
        epochs: list[Any] = [
            {"left": rows(chance, 9 * i, 100 * i), "right": rows(chance, 8 * i, 100 * i + 50)}
            for i in range(12)
        ]
        return sorted(through_failures(build, epochs, chance)["out"]), set(lives)

    by_rows, _ = joined(False)
    by_both, ways = joined(True)
    assert ways == {True, False}
    assert by_both == by_rows
    assert len(by_rows) > 9


def test_windows_of_very_many_pairs_are_given_some_at_a_time(monkeypatch):
    monkeypatch.setattr(join_columns, "_MADE", 7)
    monkeypatch.setattr(join_columns, "MOST_ROWS", 5)
    monkeypatch.setattr(window_times, "_PAIRS", 3)
    monkeypatch.setattr(chunk_lists, "_SCAN_ENTRIES", 2)
    lefts = [(key, n, 10 * (n % 3)) for key in "ab" for n in range(9)]
    rights = [(key, 100 + n, 10 * (n % 2)) for key in "bac" for n in range(4)]
    found = run_job(build_of(Tumbling("10ms"), "0s"), [{"left": lefts}, {"right": rights}])
    assert sorted(found["pairs"]) == sorted(
        (n, m) for k, n, at in lefts for j, m, to in rights if (k, at) == (j, to)
    )


@pytest.mark.parametrize("rows", [(), [("a", 1, 3)]])
def test_windows_of_processing_time_end_by_it_also_by_columns(rows):
    def pairs(left, right):
        window = Tumbling("10ms", time="processing")
        return left.join(right).window(window).select(uid="j", n="left.n", m="right.m")

    second = SecondStream(RIGHT, "id")
    with KeyedHarness(pairs, LEFT, "user", second=second) as joined:
        joined.process(("a", 2, 0), *rows, second=[("a", 5, 0), ("b", 6, 0)])
        assert joined.set_processing_time(9) == []
        assert joined.process(second=[("b", 7, 0)]) == []
        found = joined.set_processing_time(10)
        assert found == [(n, 5) for n in (2, *(row[1] for row in rows))]
        assert (joined.keys(), joined.num_timers()) == ([], 0)


def test_late_rows_of_both_sides_are_counted_by_columns_as_by_rows():
    env = TestEnvironment()
    left, right = streams(env)
    windows = left.join(right).window(Tumbling("10ms"))
    windows.select(uid="c", n="left.n", m="right.m")
    windows.apply(Sums(), uid="r", output="user string, sum long", side_outputs=[ODD])
    with InProcessJob(env.graph, clock=lambda: 0) as job:
        job.epoch({"left": [("a", 1, 90)], "right": [("a", 2, 90)]})
        outcome = job.epoch({"left": [("a", 3, 5), ("a", 4, 88)], "right": [("b", 5, 69)]})
        dropped = dict.fromkeys("cr", 0)
        for (uid, _), ack in outcome.acks.items():
            dropped[uid] += ack.late_rows_dropped
    assert dropped == {"c": 2, "r": 2}


def test_sessions_of_both_sides_are_one_session():
    epochs: list[Any] = [
        {"left": [("a", 1, 10), ("a", 2, 40)], "right": [("a", 5, 18)]},
        {"right": [("a", 6, 47), ("a", 7, 300)], "left": [("a", 3, 26), ("a", 4, 310)]},
        {},
    ]
    found = run_job(build_of(Session("10ms"), "0s"), epochs)
    assert [(s, x, y) for _, s, x, y in found["groups"]] == [
        (10, [1, 3], [5]),
        (40, [2], [6]),
        (300, [4], [7]),
    ]


@pytest.mark.parametrize("way", ["columns", "rows"])
def test_rows_of_windows_that_are_open_meet_though_the_next_version_has_others(way):
    def by(size):
        def joined(left, right):
            windows = left.join(right).window(Tumbling(size))
            if way == "columns":
                return windows.select(uid="j", n="left.n", m="right.m")
            return windows.apply(Both(), uid="j", output="n long, m long")

        return joined

    second = SecondStream(RIGHT, "id", "at")
    with KeyedHarness(by("10ms"), LEFT, "user", event_time="at", second=second) as before:
        before.process(("a", 1, 5), second=[("a", 2, 7)])
        snapshot = before.snapshot()
    with KeyedHarness(
        by("4ms"), LEFT, "user", event_time="at", second=second, restore=snapshot
    ) as after:
        after.process(("a", 3, 21), second=[("a", 4, 22)])
        assert after.process_watermark(19) == [(1, 2)]
        assert after.process_watermark(99) == [(3, 4)]
        assert (after.keys(), after.num_timers()) == ([], 0)


class Both(JoinFunction):
    def join(self, left, right, ctx):  # noqa: ARG002
        yield left.n, right.m


def test_late_rows_of_either_side_give_the_window_again_while_it_is_kept():
    def grouped(left, right):
        windows = left.co_group(right).window(Tumbling("10ms"), allowed_lateness="20ms")
        return windows.apply(Groups(), uid="g", output=GROUPS)

    second = SecondStream(RIGHT, "id", "at")
    with KeyedHarness(grouped, LEFT, "user", event_time="at", second=second) as groups:
        groups.process(("a", 1, 5), second=[("a", 2, 7)])
        assert groups.process_watermark(9) == [("a", 0, [1], [2])]
        assert groups.process(second=[("a", 3, 6)]) == [("a", 0, [1], [2, 3])]
        assert groups.process_watermark(29) == []
        assert groups.process(("a", 4, 6)) == []
        assert (groups.keys(), groups.num_timers()) == ([], 0)


def test_a_function_gets_pairs_and_sends_rows_aside():
    def build(env):
        left, right = streams(env)
        windows = left.join(right).window(Count(3), trigger=EachCount(3))
        sums = windows.apply(Sums(), uid="s", output="user string, sum long", side_outputs=[ODD])
        sums.sink_to(FileSink("sums"), uid="sums")
        sums.get_side_output(ODD).sink_to(FileSink("odd"), uid="odd")

    found = run_job(build, {"left": [("a", 1, 0), ("a", 2, 1)], "right": [("a", 10, 2)]})
    assert found == {"sums": [("a", 11), ("a", 12)], "odd": [(11,)]}


def test_a_row_of_columns_has_the_times_of_its_window():
    def build(env):
        left, right = streams(env)
        pairs = left.join(right).window(Tumbling("10ms"))
        named = {"a": "window.start", "b": "window.end", "m": "right.m"}
        pairs.select(uid="j", **named).sink_to(FileSink("out"), uid="out")

    found = run_job(build, {"left": [("a", 1, 15)], "right": [("a", 10, 12)]})
    start, end = (datetime.fromtimestamp(ms / 1000, UTC) for ms in (10, 20))
    assert found["out"] == [(start, end, 10)]


def test_what_cannot_be_joined_in_windows_is_refused_with_what_to_do():
    day = Tumbling("1d")
    wrong: Any = 1

    def untimed(left, _, env):
        plain = env.read_stream("plain", "json", schema=RIGHT).key_by("id")
        return left.join(plain).window(day)

    cases: list[tuple[str, Any]] = [
        ("declare it: side=right window=.*time='processing'", untimed),
        (
            "join takes an instance of a JoinFunction: uid=u got=Groups",
            lambda a, b, _: a.join(b).window(day).apply(Groups(), uid="u", output=GROUPS),
        ),
        (
            "co_group takes an instance of a CoGroupFunction: uid=u got=Sums",
            lambda a, b, _: a.co_group(b).window(day).apply(Sums(), uid="u", output=GROUPS),
        ),
        ("window takes Tumbling", lambda a, b, _: a.join(b).window(wrong)),
        (
            "uid=u at='window.start'; these are there",
            lambda a, b, _: a.join(b).window(Count(2)).select(uid="u", at="window.start"),
        ),
    ]
    for words, make in cases:

        def build(env, make=make):
            make(*streams(env), env)

        with pytest.raises(UserError, match=words):
            run_job(build, {})


@pytest.mark.parametrize(
    ("call", "name", "first"),
    [
        ("join", "select", 'window(Tumbling("1h"))'),
        ("join", "apply", 'window(Tumbling("1h"))'),
        ("co_group", "apply", 'window(Tumbling("1h"))'),
        ("interval_join", "select", 'between("-5m", "1h")'),
        ("interval_join", "process", 'between("-5m", "1h")'),
    ],
)
def test_a_join_without_its_windows_says_what_to_call_first(call, name, first):
    def early(env):
        left = env.read_stream("left", "json", schema=LEFT, path="l").key_by("user")
        right = env.read_stream("right", "json", schema=RIGHT, path="r").key_by("id")
        getattr(getattr(left, call)(right), name)(uid="joined")

    with pytest.raises(UserError, match=re.escape(f"{name} comes too early on a ")) as e:
        run_job(early, {})
    assert f"call {first} first" in str(e.value)


def test_other_names_are_no_attributes_as_anywhere():
    streams: Any = JoinedStreams.__new__(JoinedStreams)
    with pytest.raises(AttributeError, match="'JoinedStreams' object has no attribute '_select'"):
        _ = streams._select


def test_windows_are_shown_as_one_writes_them():
    assert repr(Tumbling("1m")) == "Tumbling(size='1m', offset='0s', time='event')"
    assert repr(Sliding("2m", "1m")).startswith("Sliding(size='2m', slide='1m', ")
