"""What the board makes of the driver's progress, at any time."""

from datetime import timedelta

import pytest

from moorage.driver.types import JobProgress
from moorage.driver.views import CheckpointView, RestoredView

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


def test_busy_ratio_and_rates_are_of_the_last_minute_and_fade(board, clock, say):
    say(phase="running")
    for second in range(1, 21):
        clock[0] = 100.0 + second
        say(phase="running", epochs=second, epoch_seconds=0.5, epoch_rows=100)
    state = board.state()
    assert state.busy_ratio == pytest.approx(0.5, abs=0.05)
    assert state.rows_per_second == pytest.approx(100, rel=0.1)
    assert state.last_progress_time == AT
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
    assert state.epoch_since == AT
    assert board.epoch_age() == 30.0
    clock[0] = 160.0 + 20 * 60
    assert board.state().busy_ratio == 1.0
    say(phase="running", epochs=1, epoch_seconds=1200.0, moves=3)
    state = board.state()
    assert (state.epoch_since, board.epoch_age()) == (None, 0.0)
    assert state.epoch_seconds == 1200.0


def test_what_moves_within_an_epoch_is_told_and_what_does_not_is_not(board, say):
    times = [AT + timedelta(minutes=minute) for minute in range(3)]
    board._wall_clock = lambda: times[0]
    say(phase="running", in_epoch=True, moves=1)
    times.pop(0)
    say(phase="running", in_epoch=True, moves=1, tasks=4)
    state = board.state()
    assert state.last_move_time == AT
    assert (state.tasks_running, state.answered_at) == (4, AT + timedelta(minutes=1))
    times.pop(0)
    say(phase="running", in_epoch=True, moves=2, tasks=4)
    assert board.state().last_move_time == AT + timedelta(minutes=2)


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
