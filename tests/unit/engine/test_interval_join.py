"""Interval joins, held against plain Python over rows that come late, early and after failures."""

from itertools import cycle
from random import Random
from typing import Any

import pytest
from moorage_testing.two_inputs import through_failures, watermarks

from moorage import FileSink, OutputTag, ProcessJoinFunction, Tumbling, count
from moorage.testing import KeyedHarness, SecondStream, run_job
from moorage_state.errors import UserError

LEFT = "user string, n long, at long"
RIGHT = "id string, m long, at long"
LATE_LEFT, LATE_RIGHT, FAR = (
    OutputTag("late-left"),
    OutputTag("late-right"),
    OutputTag("far", "n long"),
)
DELAYS = {"left": 10, "right": 5}


def streams(env):
    left = env.read_stream("left", "json", schema=LEFT).with_event_time("at", "10ms")
    right = env.read_stream("right", "json", schema=RIGHT).with_event_time("at", "5ms")
    return left.key_by("user"), right.key_by("id")


class Both(ProcessJoinFunction):
    def process_element(self, left, right, ctx):
        yield ctx.key, left.n, right.m


def joining(ways, **bounds):
    """What describes the join: with each life in the next one of these ways."""
    lives = cycle(ways)

    def build(env):
        left, right = streams(env)
        named = {"user": "right.id", "n": "left.n", "m": "right.m"}
        made = left.interval_join(right).between(
            late_left=LATE_LEFT, late_right=LATE_RIGHT, **bounds
        )
        if next(lives) == "columns":
            found = made.select(uid="join", **named)
        else:
            found = made.process(Both(), uid="join", output="user string, n long, m long")
        for uid, stream in {
            "out": found,
            "late-left": found.get_side_output(LATE_LEFT),
            "late-right": found.get_side_output(LATE_RIGHT),
        }.items():
            stream.sink_to(FileSink(uid), uid=uid)

    return build


def rows(chance, pace, first):
    """Rows of one input: it goes on by `pace` each epoch, back and forth within it."""
    return [
        (chance.choice("abc"), first + i, max(0, pace + chance.randint(-60, 25)))
        for i in range(chance.randint(0, 9))
    ]


BOUNDS: list[tuple[dict[str, Any], int, int]] = [
    ({"lower": "-10ms", "upper": "30ms"}, -10, 30),
    ({"lower": "-10ms", "upper": "30ms", "lower_exclusive": True, "upper_exclusive": True}, -9, 29),
    ({"lower": "0s", "upper": "0s"}, 0, 0),
    ({"lower": "5ms", "upper": "20ms"}, 5, 20),
    ({"lower": "-30ms", "upper": "-4ms", "upper_exclusive": True}, -30, -5),
]


@pytest.mark.parametrize("ways", [["columns"], ["rows"], ["columns", "rows"]])
@pytest.mark.parametrize(("bounds", "lower", "upper"), BOUNDS)
def test_all_pairs_of_rows_that_are_not_late_are_found_whatever_happens(ways, bounds, lower, upper):
    chance = Random(f"{bounds}")
    epochs = [
        {"left": rows(chance, 22 * i, 100 * i), "right": rows(chance, 20 * i, 100 * i)}
        for i in range(14)
    ]
    marks = watermarks(epochs, DELAYS)
    on_time: dict[str, list[Any]] = {"left": [], "right": []}
    late: dict[str, list[Any]] = {"left": [], "right": []}
    for given, mark in zip(epochs, marks, strict=True):
        for uid, some in given.items():
            for row in some:
                (on_time if row[2] > mark else late)[uid].append(row)
    expected = [
        (user, n, m)
        for user, n, at in on_time["left"]
        for other, m, then in on_time["right"]
        if user == other and lower <= then - at <= upper
    ]
    found = through_failures(joining(ways, **bounds), epochs, chance)
    assert sorted(found["out"]) == sorted(expected)
    assert sorted(found["late-left"]) == sorted(late["left"])
    assert sorted(found["late-right"]) == sorted(late["right"])
    assert expected
    assert late["left"]
    assert late["right"]


class Far(ProcessJoinFunction):
    """Tells how far apart a pair is; those that are far go aside, too."""

    def process_element(self, left, right, ctx):
        assert (left.user, left.at, right.at) == (
            ctx.key,
            ctx.left_timestamp,
            ctx.right_timestamp,
        )
        if right.at - left.at > 5:
            ctx.output(FAR, (left.n,))
        yield ctx.key, ctx.timestamp, right.at - left.at


def test_a_function_gets_pairs_with_their_times_in_their_order():
    def build(env):
        left, right = streams(env)
        made = left.interval_join(right).between("-1s", "1s")
        far = made.process(Far(), uid="j", output="k string, at long, by long", side_outputs=[FAR])
        far.sink_to(FileSink("out"), uid="out")
        far.get_side_output(FAR).sink_to(FileSink("far"), uid="far")

    given = {"left": [("a", 1, 10), ("a", 2, 30)], "right": [("a", 0, 20), ("a", 0, 25)]}
    found = run_job(build, given)
    assert found["out"] == [("a", 20, 10), ("a", 25, 15), ("a", 30, -10), ("a", 30, -5)]
    assert found["far"] == [(1,), (1,)]


class Moved(ProcessJoinFunction):
    def process_element(self, left, right, ctx):
        yield ctx.key, right.point.x - left.point.x, left.point


def test_structs_in_rows_are_named_tuples_whichever_row_of_a_pair_came_first():
    def joined(left, right):
        output = "id string, by int, point struct<x:int>"
        return (
            left.interval_join(right)
            .between("-9ms", "9ms")
            .process(Moved(), uid="j", output=output)
        )

    schema = "id string, point struct<x:int>, at long"
    second = SecondStream(schema, "id", "at")
    with KeyedHarness(joined, schema, "id", event_time="at", second=second) as join:
        one, other = ("a", {"x": 1}, 1), ("a", {"x": 5}, 2)
        assert join.process(one, second=[other]) == [("a", 4, {"x": 1})]
        assert join.process(("a", {"x": 2}, 3)) == [("a", 3, {"x": 2})]
        assert join.process(second=[("a", {"x": 9}, 4)]) == [
            ("a", 8, {"x": 1}),
            ("a", 7, {"x": 2}),
        ]


def test_very_many_rows_of_one_time_are_written_once_each():
    def joined(left, right):
        return left.interval_join(right).between("0s", "30ms").select(uid="j", n="left.n")

    second = SecondStream(RIGHT, "id", "at")
    with KeyedHarness(joined, LEFT, "user", event_time="at", second=second) as join:
        # Were each written with all before it, this would take minutes.
        join.process(*[("a", n, 100) for n in range(8_000)])
        join.process(("a", -1, 100))
        found = join.process(second=[("a", 0, 110)])
    assert [row.n for row in found] == [*range(8_000), -1]


@pytest.mark.parametrize("at", [(1 << 63) - 1, -(1 << 63) + 1])
def test_rows_of_the_first_and_last_time_there_is_are_joined_as_others(at):
    def joined(left, right):
        return left.interval_join(right).between("-1h", "1h").select(uid="j", m="right.m")

    second = SecondStream(RIGHT, "id", "at")
    with KeyedHarness(joined, LEFT, "user", event_time="at", second=second) as join:
        join.process(("a", 1, at))
        assert join.process(second=[("a", 7, at)]) == [(7,)]


@pytest.mark.parametrize("way", ["columns", "rows"])
def test_rows_of_the_end_of_time_are_forgotten_with_the_jobs_input(way):
    at = (1 << 63) - 5
    build = joining([way], lower="-1h", upper="1h")
    # It ends: a timer that always sets itself anew would fire for ever.
    assert run_job(build, {"left": [("a", 1, at)], "right": [("a", 7, at)]})["out"] == [("a", 1, 7)]


@pytest.mark.parametrize("way", ["columns", "rows"])
def test_a_key_has_one_timer_whatever_comes_in_which_epoch_and_instance(way):
    def joined(left, right):
        join = left.interval_join(right).between("-30ms", "10ms")
        if way == "columns":
            return join.select(uid="j", user="left.user", n="left.n", m="right.m")
        return join.process(Both(), uid="j", output="user string, n long, m long")

    second = SecondStream(RIGHT, "id", "at")
    with KeyedHarness(joined, LEFT, "user", event_time="at", second=second) as join:
        for n in range(4):
            rows = [("a", n, 100 + 10 * n + i) for i in range(3)]
            assert join.crash_and_replay(*rows, second=[("a", n, 101)])
            assert join.timers("a") == [110]
        join.process_watermark(112)
        assert join.timers("a") == [120]
        # It is not removed where another one comes that is earlier, and finds nothing then.
        join.process(second=[("b", 8, 120)])
        join.process(("b", 9, 121))
        assert join.timers("b") == [131, 150]
        join.process_watermark(1_000)
        assert (join.keys(), join.num_timers()) == ([], 0)


def test_rows_are_forgotten_when_nothing_can_belong_to_them_any_more():
    def joined(left, right):
        return left.interval_join(right).between("-10ms", "30ms").select(uid="j", n="left.n")

    second = SecondStream(RIGHT, "id", "at")
    with KeyedHarness(joined, LEFT, "user", event_time="at", second=second) as join:
        join.process(("a", 1, 100), ("a", 2, 100), ("a", 3, 105))
        assert join.timers("a") == [130]
        join.process_watermark(129)
        assert sorted(join.state("left-rows", "a")) == [100, 105]
        join.process_watermark(130)
        assert join.state("left-rows", "a") == {105: [("a", 3, 105)]}
        join.process_watermark(135)
        rows = [("b", n, 140 + n % 3) for n in range(6)]
        assert len(join.crash_and_replay(*rows, second=[("b", 0, at) for at in (136, 150)])) == 12
        join.process_watermark(190)
        assert join.keys() == []
        join.process(second=[("a", 1, 200)])
        assert join.timers("a") == [210]
        join.process_watermark(210)
        assert (join.keys(), join.num_timers()) == ([], 0)


def test_what_cannot_be_joined_is_refused_with_what_to_do():
    def untimed(env):
        left, _ = streams(env)
        env.read_stream("plain", "json", schema=RIGHT).key_by("id").interval_join(left).between(
            "0s", "1s"
        )

    def build(**changes):
        def made(env):
            left, right = streams(env)
            bounds = {"lower": "0s", "upper": "1s"} | changes.get("bounds", {})
            join = left.interval_join(right).between(**bounds)
            if "function" in changes:
                join.process(changes["function"], uid="j", output="n long")
            join.select(uid="j", **changes.get("named", {}))

        return made

    cases = [
        ("event time on both sides: side=left; call with_event_time", untimed),
        ("no time lies in this interval: lower='0s' upper='-1s'", build(bounds={"upper": "-1s"})),
        ("not a duration; write 500ms", build(bounds={"lower": "1"})),
        ("late_left is 'drop', or the OutputTag", build(bounds={"late_left": FAR})),
        ("an instance of a ProcessJoinFunction: uid=j got=int", build(function=1)),
        ("select names the columns of the result: uid=j", build()),
        (
            r"uid=j n='n'; did you mean left.n\?; these are there: \['left.user'",
            build(named={"n": "n"}),
        ),
        (r"uid=j n='left.m'; did you mean right.m\?; these", build(named={"n": "left.m"})),
    ]
    for words, made in cases:
        with pytest.raises(UserError, match=words):
            run_job(made, {})


def test_late_rows_of_both_sides_go_to_one_side_output_if_they_have_the_same_columns():
    def build(right):
        def made(env):
            one = env.read_stream("left", "json", schema=LEFT).with_event_time("at")
            two = env.read_stream("right", "json", schema=right).with_event_time("at")
            join = one.key_by("user").interval_join(two.key_by("user"))
            found = join.between("0s", "1s", late_left=LATE_LEFT, late_right=LATE_LEFT)
            pairs = found.select(uid="join", user="left.user")
            pairs.get_side_output(LATE_LEFT).sink_to(FileSink("late"), uid="late")

        return made

    late = {"left": [("a", 1, 0)], "right": [("a", 2, 0)]}
    on_time = {"left": [("a", 3, 10_000)], "right": [("a", 4, 10_000)]}
    found = run_job(build(LEFT), [on_time, late])["late"]
    assert sorted(found) == [("a", 1, 0), ("a", 2, 0)]
    words = r"side_output=late-left left=.*; give each side a tag of its own"
    with pytest.raises(UserError, match=words):
        run_job(build("user string, m long, at long"), {})


def test_pairs_by_their_later_time_are_on_time_for_an_operator_after_the_join():
    def build(env):
        left, right = streams(env)
        pairs = left.interval_join(right).between("-1s", "1s")
        timed = pairs.select(uid="j", user="left.user", at="pair.time").with_event_time("at")
        counts = timed.key_by("user").window(Tumbling("10ms"))
        counts.aggregate(uid="c", n=count()).sink_to(FileSink("out"), uid="out")

    epochs: list[Any] = [
        {"left": [("a", 1, 10)], "right": [("b", 0, 100)]},
        {"left": [("b", 2, 200), ("a", 3, 11)]},
        {"right": [("a", 0, 180), ("a", 0, 185)]},
        {"left": [("a", 4, 199)]},
    ]
    found = run_job(build, epochs)
    rows = sorted(
        (row.user, int(row.window_start.timestamp() * 1000), row.n) for row in found["out"]
    )
    assert rows == [("a", 180, 4), ("a", 190, 2), ("b", 200, 1)]
