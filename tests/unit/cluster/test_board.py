"""What the board makes of the driver's progress, at any time."""

from datetime import UTC, datetime, timedelta

import pytest

from moorage.cluster.board import Board, DriverAttempt
from moorage.driver.requests import Requests
from moorage.driver.types import JobProgress
from moorage.driver.views import (
    CheckpointRecord,
    CheckpointView,
    RestoredView,
    SubtaskView,
    WatermarkView,
)

from .conftest import AT, board_of

VIEW = CheckpointView(7, 41, AT, 1234, 200, 0.5, 3)


@pytest.fixture
def clock():
    return [100.0]


@pytest.fixture
def board(clock):
    return board_of(clock)


@pytest.fixture
def say(board):
    return lambda **fields: board(JobProgress(**fields))


def test_a_restored_savepoint_is_not_the_lineages_last_checkpoint(board, say):
    restored = RestoredView("s3://other/before", 6, AT, own=False)
    say(restored_from=restored.path, restored=restored, last_checkpoint=VIEW)
    state = board.state()
    assert state.last_checkpoint is None
    assert state.restored_from is not None
    assert state.restored_from.path == "s3://other/before"


def test_the_watermark_that_is_furthest_behind_is_told_if_a_report_can_have_it(board, say):
    say(watermarks=(WatermarkView("late", 5_000, "in"), WatermarkView("join", 9_000, "clicks")))
    state = board.state()
    assert state.watermark == datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)
    assert (state.watermark_of, state.watermark_held_by) == ("late", "in")
    say(watermarks=())
    assert (board.state().watermark, board.state().watermark_of) == (None, "")
    say(watermarks=(WatermarkView("a", 1 << 50),))
    assert board.state().watermark is None, "no report has a time after the year 3000"


def test_an_operator_without_a_watermark_is_furthest_behind(board, say):
    stuck = WatermarkView("join", None, "payments")
    say(watermarks=(WatermarkView("late", 5_000, "in"), stuck, WatermarkView("old", -5, "in")))
    state = board.state()
    assert (state.watermark, state.watermark_of) == (None, "join")
    assert state.watermark_held_by == "payments"


def test_a_watermark_before_1970_is_told_as_1970(board, say):
    say(watermarks=(WatermarkView("late", 5_000, "in"), WatermarkView("old", -5_000, "clicks")))
    state = board.state()
    assert state.watermark == datetime(1970, 1, 1, tzinfo=UTC)
    assert (state.watermark_of, state.watermark_held_by) == ("old", "clicks")


def test_busy_ratio_and_rates_are_of_the_last_minute_and_fade(board, clock, say):
    say(phase="running")
    for second in range(1, 21):
        clock[0] = 100.0 + second
        say(phase="running", epochs=second, epoch_seconds=0.5, epoch_rows=100)
    state = board.state()
    assert state.busy_ratio == pytest.approx(0.5, abs=0.05)
    assert state.rows_per_second == pytest.approx(100, rel=0.1)
    assert state.last_progress_time == AT + timedelta(seconds=20)
    clock[0] = 300.0
    state = board.state()
    assert (state.busy_ratio, state.rows_per_second) == (0.0, 0.0)


def test_an_epoch_under_way_is_busy_time_and_is_told_with_its_age(board, clock, say):
    say(phase="running", moves=1)
    clock[0] = 160.0
    assert board.state().busy_ratio == 0.0
    say(phase="running", in_epoch=True, moves=2)
    clock[0] = 190.0
    state = board.state()
    assert state.busy_ratio == pytest.approx(0.5)
    assert state.epoch_since == AT + timedelta(seconds=60)
    assert board.epoch_age() == 30.0
    clock[0] = 160.0 + 20 * 60
    assert board.state().busy_ratio == 1.0
    say(phase="running", epochs=1, epoch_seconds=1200.0, moves=3)
    state = board.state()
    assert (state.epoch_since, board.epoch_age()) == (None, 0.0)
    assert state.epoch_seconds == 1200.0


def test_what_moves_within_an_epoch_is_told_and_what_does_not_is_not(board, clock, say):
    say(phase="running", in_epoch=True, moves=1)
    clock[0] += 60
    say(phase="running", in_epoch=True, moves=1, tasks=4)
    state = board.state()
    assert state.last_move_time == AT
    assert (state.tasks_running, state.answered_at) == (4, AT + timedelta(minutes=1))
    clock[0] += 60
    say(phase="running", in_epoch=True, moves=2, tasks=4)
    assert board.state().last_move_time == AT + timedelta(minutes=2)


@pytest.mark.parametrize("step", [timedelta(hours=-1), timedelta(hours=1)])
def test_a_clock_that_is_set_makes_nothing_older_than_it_is(clock, step):
    off = [timedelta()]
    board = Board(
        DriverAttempt(3, "clicks", "team", "uid-1", "s3://state/clicks"),
        Requests(),
        str,
        clock=lambda: clock[0],
        wall_clock=lambda: AT + timedelta(seconds=clock[0]) + off[0],
    )
    board(JobProgress(phase="running", in_epoch=True, moves=1))
    clock[0] += 30
    board(JobProgress(phase="running", epochs=1, moves=2, completed_checkpoints=1))
    before = board.state()
    off[0] = step
    clock[0] += 10
    state = board.state()
    for name in ("running_since", "last_progress_time", "last_move_time", "last_checkpoint_time"):
        assert getattr(state, name) == getattr(before, name) + step, name
    assert state.last_move_time is not None
    assert state.answered_at == state.last_move_time + timedelta(seconds=10)
    clock[0] += 0.001
    off[0] += timedelta(milliseconds=300)
    assert board.state().running_since == state.running_since, "what is no step changes no report"


def test_the_subtask_with_most_rows_is_told_by_the_mean_of_its_operator(board, clock, say):
    def seen(*rows):
        even = [SubtaskView("b", n, (n, n), "", rows_in=500) for n in range(2)]
        return tuple(
            [
                SubtaskView("a", n, (4 * n, 4 * n + 3), "", rows_in=count)
                for n, count in enumerate(rows)
            ]
            + even
            + [SubtaskView("sink", 0, None, "", rows_in=10_000)]
        )

    say(phase="running", parallelism=3)
    say(phase="running", parallelism=3, subtasks=seen(100, 100, 100))
    assert board.state().load.skew is None
    clock[0] += 60
    say(phase="running", parallelism=3, subtasks=seen(200, 900, 200))
    skew = board.state().load.skew
    assert (skew.uid, skew.subtask, skew.key_groups) == ("a", 1, "4-7")
    assert (skew.rows, skew.mean_rows) == (800, pytest.approx(1000 / 3))
    say(phase="running", parallelism=4, subtasks=())
    assert board.state().load.skew is None


def test_the_load_begins_anew_with_other_subtasks_and_after_a_rewind(board, clock, say):
    assert board.state().load is None
    say(phase="running", parallelism=2)
    clock[0] += 10
    say(phase="running", parallelism=2, epochs=1, epoch_seconds=1.0, epoch_rows=100)
    load = board.state().load
    assert (load.seconds, load.epochs, load.rows, load.busy_seconds) == (10.0, 1, 100, 1.0)
    say(phase="running", parallelism=4, epochs=1)
    clock[0] += 5
    assert board.state().load.model_dump()["seconds"] == 5.0
    assert board.state().load.rows == 0
    say(phase="rewinding", parallelism=4, epochs=1)
    say(phase="restoring", parallelism=4, epochs=1)
    say(phase="running", parallelism=4, epochs=1)
    assert board.state().load.seconds == 0.0


def test_the_load_has_the_lag_at_both_ends_of_its_window(board, clock, say):
    say(phase="running")
    say(phase="running", lag_rows=500, lag_looks=1)
    clock[0] += 60
    say(phase="running", lag_rows=200, lag_looks=2)
    load = board.state().load
    assert (load.lag_rows_before, load.lag_rows, load.lag_seconds) == (500, 200, 60.0)
    clock[0] += 870
    load = board.state().load
    assert (load.lag_rows_before, load.lag_rows, load.seconds) == (200, 200, 900.0)


def test_what_a_checkpoint_met_of_the_store_is_outdated_once_it_answers_and_none_is_tried(
    board, clock, say
):
    away = {"phase": "running", "storage_error": "it does not answer"}
    say(**away)
    board.storage("")
    assert board.state().storage_error == "it does not answer", "it does since a moment ago only"
    clock[0] += 299
    say(**away, checkpoints=(CheckpointRecord(8, "Checkpoint", "InProgress", AT),))
    clock[0] += 299
    board.storage("")
    assert board.state().storage_error == "it does not answer", "another checkpoint has met it"
    clock[0] += 2
    assert board.state().storage_error == "it does not answer", "nobody has looked since"
    board.storage("")
    assert board.state().storage_error == ""
    clock[0] += 1000
    board.storage("not even a look")
    assert board.state().storage_error == "it does not answer"
    say(phase="running")
    assert board.state().storage_error == "not even a look"
