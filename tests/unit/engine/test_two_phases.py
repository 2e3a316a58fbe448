"""When rows are added up before they travel: what the epochs before had decides."""

from typing import Any

import numpy as np
import pytest

from moorage.api.aggregate_columns import whole_of
from moorage.api.window_times import WindowTimes
from moorage.api.windows import Sliding, Tumbling, windowing
from moorage.engine.acks import Ack, EpochOutcome
from moorage.engine.local_aggregation import EPOCHS_WITHOUT, ROWS_TO_SAVE, TwoPhases


def outcome(rows, read=None, keys=10):
    """An epoch of one operator in two subtasks."""
    half: dict[str, Any] = {
        "run": "r",
        "epoch": 1,
        "uid": "w",
        "delta": "",
        "output": "",
        "rows_out": 0,
    }
    acks = {
        ("w", subtask): Ack(
            **half,
            subtask=subtask,
            keys=keys // 2,
            rows_in=rows // 2,
            rows_read=(rows if read is None else read) // 2,
        )
        for subtask in range(2)
    }
    return EpochOutcome(acks)


def test_many_rows_of_few_keys_are_added_up_in_the_next_epoch_and_few_are_not():
    phases = TwoPhases()
    assert phases.uids == set()
    phases.take_in(outcome(ROWS_TO_SAVE + 8), 1)
    assert phases.uids == set()
    phases.take_in(outcome(ROWS_TO_SAVE + 10), 2)
    assert phases.uids == {"w"}
    phases.take_in(outcome(ROWS_TO_SAVE + 10, 10), 3)
    assert phases.uids == {"w"}
    phases.take_in(outcome(100, 10), 4)
    assert phases.uids == set()
    phases.take_in(outcome(ROWS_TO_SAVE + 10), 5)
    assert phases.uids == {"w"}


def test_a_tick_changes_nothing():
    phases = TwoPhases()
    phases.take_in(outcome(ROWS_TO_SAVE * 2), 1)
    phases.take_in(outcome(0, keys=90), 2)
    assert phases.uids == {"w"}


def test_where_it_saved_nothing_it_is_not_tried_for_a_while():
    phases = TwoPhases()
    phases.take_in(outcome(ROWS_TO_SAVE * 2), 1)
    phases.take_in(outcome(ROWS_TO_SAVE * 2, ROWS_TO_SAVE * 2), 2)
    for epoch in range(3, 2 + EPOCHS_WITHOUT):
        assert phases.uids == set()
        phases.take_in(outcome(ROWS_TO_SAVE * 2), epoch)
    phases.take_in(outcome(ROWS_TO_SAVE * 2), 2 + EPOCHS_WITHOUT)
    assert phases.uids == {"w"}


@pytest.mark.parametrize(
    ("assigner", "pane"),
    [
        (Tumbling("10s"), (10_000, 0)),
        (Tumbling("10s", offset="3s"), (10_000, 3_000)),
        (Sliding("10s", "4s", offset="3s"), (2_000, 1_000)),
        (Sliding("4s", "10s"), None),
        (Tumbling("10s", time="processing"), (0, 0)),
    ],
)
def test_times_of_a_pane_have_the_same_windows(assigner, pane):
    times = WindowTimes(windowing(assigner, None, "0s", "drop"))
    assert times.pane == pane
    for at in range(-20_000, 20_000, 500) if pane and pane[0] else ():
        first = (at - pane[1]) // pane[0] * pane[0] + pane[1]
        assert assigner.assign(at) == assigner.assign(first)


@pytest.mark.parametrize("numbers", [[5, -7], [(1 << 63) - 1] * 3, [-(1 << 63)] * 2, [-1, 1 << 40]])
def test_the_halves_of_a_sum_make_the_whole(numbers):
    high, low = (
        np.array([sum(half)])
        for half in ([n >> 32 for n in numbers], [n & 0xFFFFFFFF for n in numbers])
    )
    assert whole_of(high, low).tolist() == [sum(numbers)]
