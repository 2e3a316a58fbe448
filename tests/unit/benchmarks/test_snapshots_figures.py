import json
from dataclasses import replace

import pytest
from benchmarks.snapshots.figures import Measured, Transfer, goals, pauses
from benchmarks.snapshots.job import Taken
from benchmarks.snapshots.params import Size, parse_size
from benchmarks.snapshots.report import goal_line, to_json

from moorage_state.server.operations import SnapshotSync


def taken(number=1, *, pause=0.010, flush=0.100, uploaded=20, total=1000):
    sync = SnapshotSync(total // 2, flush + pause, flush)
    quick = SnapshotSync(total // 2, flush + 0.001, flush)
    return Taken(number, (sync, quick), 0.0, 0.2, total, uploaded, 4, 0.1)


def transfer(share=0.8, cache="cold", first="copy"):
    return Transfer(cache, first, 1000, 1.0, 1000, share)


def measured(*, full=None, incremental=None, transfers=None):
    return Measured(
        keys=10,
        fill_seconds=1.0,
        settle_seconds=0.1,
        full=full or taken(uploaded=1000),
        incremental=tuple(incremental or [taken(2), taken(3)]),
        transfers=tuple(transfers or [transfer()]),
        checked_keys=10,
    )


def goal(name, of):
    (found,) = [goal for goal in goals(of) if name in goal.name]
    return found


def test_the_pause_is_that_of_each_subtask_without_its_flush():
    assert pauses(taken(pause=0.010, flush=0.300)) == pytest.approx([0.010, 0.001])


def test_one_long_pause_of_one_subtask_misses_the_goal():
    slow = measured(incremental=[taken(2), taken(3, pause=0.051), taken(4)])
    assert goal("pause", measured()).reached
    assert not goal("pause", slow).reached
    assert goal("pause", slow).found == pytest.approx(0.051)


def test_the_pause_of_the_full_checkpoint_counts():
    assert not goal("pause", measured(full=taken(pause=0.2, uploaded=1000))).reached


def test_the_full_checkpoint_is_no_incremental_upload():
    assert goal("upload by full size, worst", measured()).found == pytest.approx(0.02)


def test_uploads_are_judged_by_their_median_and_by_the_worst():
    uploads = [taken(i, uploaded=u) for i, u in enumerate([20, 30, 260, 99, 101])]
    found = measured(incremental=uploads)
    assert goal("upload by full size, median", found).reached
    assert goal("upload by full size, median", found).found == pytest.approx(0.099)
    assert not goal("upload by full size, worst", found).reached


def test_a_figure_at_an_upper_limit_misses_it_and_at_a_lower_one_reaches_it():
    uploads = [taken(i, uploaded=100) for i in range(3)]
    assert not goal("upload by full size, median", measured(incremental=uploads)).reached
    assert goal("restore", measured(transfers=[transfer(0.5)])).reached


def test_the_rate_of_a_restore_is_shown_as_a_share_of_the_copy_of_its_own_pair():
    pair = Transfer("cold", "copy", 1000, 2.0, 500, 0.5)
    assert (pair.restore_rate, pair.copy_rate, pair.share) == (500.0, 1000.0, 0.5)


def test_restores_are_judged_by_the_median_of_cold_and_of_warm_pairs_apart():
    pairs = [transfer(share) for share in (0.6, 0.4, 0.7)]
    pairs += [transfer(share, "warm") for share in (0.3, 0.9, 0.45)]
    cold, warm = goal("cold", measured(transfers=pairs)), goal("warm", measured(transfers=pairs))
    assert (cold.found, cold.reached) == (pytest.approx(0.6), True)
    assert (warm.found, warm.reached) == (pytest.approx(0.45), False)


def test_a_goal_says_in_words_whether_it_was_reached():
    assert "goal reached: pause" in goal_line(goal("pause", measured()))
    missed = measured(transfers=[transfer(0.3)])
    assert goal_line(goal("restore", missed)).startswith("goal missed: restore")
    assert "0.30 times; the goal is at least 0.50 times" in goal_line(goal("restore", missed))


def test_the_file_has_every_figure_and_what_it_was_made_with():
    data = json.loads(json.dumps(to_json(Size(1000), {"rocksdict": "1"}, measured())))
    assert data["machine"] == {"rocksdict": "1"}
    assert data["parameters"]["state_bytes"] == 1000
    assert len(data["measured"]["incremental"]) == 2
    assert data["measured"]["full"]["syncs"][0]["flush_seconds"] == pytest.approx(0.1)
    assert [goal["reached"] for goal in data["goals"]] == [True] * 4


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GB", 4 * 10**9), ("256 MB", 256 * 10**6), ("1GiB", 1 << 30), ("0.5GB", 5 * 10**8)],
)
def test_sizes_are_read(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "4", "GB", "-1GB", "0GB", "4TB", "4GBs", "nanGB"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="size is a number above 0"):
        parse_size(text)


def test_a_size_never_has_no_keys():
    assert Size(1).keys == 1
    assert replace(Size(1), state_bytes=119 * 7).keys == 7
