"""What an epoch costs beside its rows, and what of an epoch lies in the window."""

import random

import pytest

from moorage.cluster.load import LoadWindow, fixed_seconds
from moorage.driver.views import SubtaskView


def test_the_cost_of_an_epoch_is_told_apart_from_that_of_its_rows():
    chance = random.Random(1)
    rows = [chance.randrange(500, 1500) for _ in range(200)]
    noisy = [(0.3 + 0.001 * n + chance.gauss(0, 0.01), n) for n in rows]
    assert fixed_seconds(noisy) == pytest.approx(0.3, abs=0.02)


@pytest.mark.parametrize(
    "epochs",
    [
        [],
        [(1.0, 100)] * 7,
        [(1.0, 100)] * 50,
        [(1.0, 0)] * 50,
        [(0.001 * n, n) for n in (0, 200, 400, 900, 10, 30, 50, 70)],
    ],
)
def test_where_it_cannot_be_told_all_of_it_is_that_of_the_rows(epochs):
    assert fixed_seconds(epochs) == pytest.approx(0.0, abs=1e-9)


def test_it_is_never_more_than_the_shortest_epoch():
    assert fixed_seconds([(0.5, n) for n in range(20)] + [(0.1, 5)]) <= 0.1


def test_of_an_epoch_that_began_before_the_window_counts_what_lies_in_it():
    window = LoadWindow(10.0)
    window.begin(0.0)
    window.epoch(22.0, 8.0, 5)
    load = window.report(30.0, 1.5)
    assert load is not None
    assert (load.seconds, load.busy_seconds, load.rows) == (10.0, 3.5, 5)
    window.epoch(30.0, 3.0, 5)
    load = window.report(33.0, 0.0)
    assert load is not None
    assert (load.epochs, load.busy_seconds, load.lag_rows) == (1, 3.0, None)


def subtask(number, rows, busy, state=10, uid="counts", groups=4):
    first = number * groups
    place = (first, first + groups - 1)
    views = {"rows_in": rows, "rows_out": 2 * rows, "busy_seconds": busy, "state_bytes": state}
    return SubtaskView(uid, number, place, "a:1", **views)


def test_the_busiest_subtask_of_each_operator_is_told_beside_the_median():
    window = LoadWindow(60.0)
    window.begin(0.0)
    window.subtasks(0.0, [subtask(n, 1000, 5.0) for n in range(3)])
    done = [(1100, 6.0, 10), (1900, 50.0, 90), (1200, 8.0, 20)]
    alone = SubtaskView("out", 0, None, "", rows_in=5)
    first = subtask(0, 7, 0.0, uid="before")
    window.subtasks(50.0, [*(subtask(n, *one) for n, one in enumerate(done)), first, alone])
    load = window.report(50.0, 0.0)
    assert load is not None
    before, counts = load.operators
    assert (counts.uid, counts.subtasks, counts.busiest) == ("counts", 3, 1)
    assert counts.key_groups == "4-7"
    assert (counts.rows_in, counts.rows_out) == (1200, 2400)
    assert counts.most.model_dump() == {"rows": 900, "busy_seconds": 45.0, "state_bytes": 90}
    assert counts.median.model_dump() == {"rows": 200, "busy_seconds": 3.0, "state_bytes": 20}
    # One whose rows another operator reads says nothing of its time.
    assert (before.uid, before.most.rows, before.most.busy_seconds) == ("before", 7, 0.0)


def test_of_many_operators_a_bounded_number_is_told():
    window = LoadWindow(60.0)
    window.begin(0.0)
    for rows in (0, 5):
        window.subtasks(rows / 5, [subtask(0, rows, 1.0, uid=f"op-{n}") for n in range(100)])
    load = window.report(2.0, 0.0)
    assert load is not None
    assert len(load.operators) == 32


def test_of_two_subtasks_the_median_is_the_other_one():
    window = LoadWindow(60.0)
    window.begin(0.0)
    for done in (0.0, 1.0):
        seen = [subtask(0, round(90 * done), 9.0 * done), subtask(1, round(10 * done), done)]
        window.subtasks(done, seen)
    load = window.report(10.0, 0.0)
    assert load is not None
    [counts] = load.operators
    assert (counts.most.busy_seconds, counts.median.busy_seconds) == (9.0, 1.0)


def stream(seconds, until, every):
    """The window of one that takes ten rows a second, in epochs of so many seconds."""
    window = LoadWindow(seconds)
    window.begin(0.0)
    for at in range(0, until + 1, every):
        window.epoch(at, 1.0, 10 * every)
        window.subtasks(float(at), [subtask(0, 10 * at, at / 10)])
    return window


@pytest.mark.parametrize(
    ("seconds", "every", "now", "counted"),
    [
        (20.0, 10, 105.0, 45.0),  # from the look at 60 on; there is one each 30 s
        (20.0, 10, 125.0, 35.0),
        (1.0, 10, 100.0, 10.0),
        (60.0, 10, 200.0, 80.0),
        (30.0, 40, 115.0, 75.0),  # an epoch takes longer than the window
        (30.0, 40, 119.0, 79.0),
    ],
)
def test_where_no_look_lies_in_the_window_the_last_one_before_counts(seconds, every, now, counted):
    window = stream(seconds, int(now) // every * every, every)
    load = window.report(now, 0.5)
    assert load is not None
    last = int(now) // every * every
    assert (load.operator_seconds, load.whole) == (counted, True)
    assert [one.rows_in for one in load.operators] == [round(10 * (last - (now - counted)))]


def test_what_was_done_before_a_window_in_which_nothing_was_is_not_counted():
    window = stream(20.0, 100, 10)
    idle, busy = window.report(150.0, 0.0), window.report(150.0, 45.0)
    assert idle is not None
    assert busy is not None
    assert (idle.operators, idle.skew) == ((), None)
    # Of all of it nothing is known to be: no older time is asked for.
    assert (idle.operator_seconds, idle.whole) == (20.0, True)
    assert [one.rows_in for one in busy.operators] == [100]


@pytest.mark.parametrize(("now", "whole"), [(50.0, False), (61.0, True)])
def test_less_than_a_window_is_not_the_whole_of_it(now, whole):
    load = stream(60.0, 40, 10).report(now, 0.0)
    assert load is not None
    assert (load.whole, load.operator_seconds) == (whole, now)


def test_a_window_is_whole_whatever_its_times_are_rounded_to():
    chance = random.Random(1)
    for _ in range(200):
        window, began = LoadWindow(chance.choice([0.1, 33.3, 900.0])), chance.uniform(0, 1e6)
        window.begin(began)
        window.subtasks(began, [subtask(0, 10, 1.0)])
        load = window.report(began + chance.uniform(900.1, 1e4), 0.0)
        assert load is not None
        assert load.whole, load


def test_nor_is_one_whose_first_epoch_took_most_of_it():
    window = LoadWindow(60.0)
    window.begin(0.0)
    window.subtasks(50.0, [subtask(0, 500, 1.0)])
    window.subtasks(90.0, [subtask(0, 900, 2.0)])
    load = window.report(100.0, 0.0)
    assert load is not None
    assert (load.whole, load.operator_seconds) == (False, 50.0)
