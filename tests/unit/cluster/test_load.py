"""What an epoch costs beside its rows, and what of an epoch lies in the window."""

import random

import pytest

from moorage.cluster.load import LoadWindow, fixed_seconds


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
