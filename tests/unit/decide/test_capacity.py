"""How many subtasks a load needs, and when it is gone there: numbers and times."""

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_operator.decide.capacity import Busiest, Load, Memory, Rules, Step, judge

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RULES = Rules(
    least=1,
    most=64,
    key_groups=128,
    target=0.7,
    boundary=0.2,
    window=900.0,
    cooldown=300.0,
    down_delay=3600.0,
    catch_up=1800.0,
    backlog=300.0,
    up_factor=4,
    down_factor=0.6,
    pause=10.0,
    epoch_rows=200_000,
)


def load(arrival, width=4, each=1000.0, *, seconds=900.0, lag=None, fixed=0.0, growth=0.0):
    """Of a stream whose subtasks do `each` rows per second; what it does not do, waits."""
    done = min(arrival, width * each)
    epochs = int(seconds)
    busy = done * seconds / (width * each) + epochs * fixed
    return Load(width, seconds, int(done * seconds), epochs, busy, fixed, lag, growth)


def later(seconds):
    return NOW + timedelta(seconds=seconds)


def test_the_true_rate_is_rows_by_seconds_of_work_without_what_epochs_cost_anyway():
    assert load(2000).rate == pytest.approx(4000, rel=0.01)
    assert load(2000, fixed=0.3).rate == pytest.approx(4000, rel=0.01)
    assert load(0).rate == math.inf


def test_a_growing_lag_counts_as_arriving():
    assert load(4000, growth=500.0).arrival == pytest.approx(4500)
    assert load(4000, growth=-500.0).arrival == pytest.approx(3500)


@pytest.mark.parametrize(
    ("arrival", "width", "reason"),
    [
        (2000, 4, "Balanced"),
        (3500, 4, "Balanced"),
        (3700, 6, "ScaleUp"),
        (8000, 12, "ScaleUp"),
    ],
)
def test_it_goes_up_beyond_the_boundary_to_the_target(arrival, width, reason):
    found = judge(RULES, load(arrival, growth=max(arrival - 4000, 0)), Memory(), NOW)
    assert (found.width, found.reason) == (width, reason)


def test_it_goes_up_at_most_so_many_times_at_once():
    found = judge(RULES, load(4000, lag=10**9, growth=10**6), Memory(), NOW)
    assert found.width == 16
    assert found.needed == 64


def test_a_backlog_counts_by_the_time_in_which_it_is_to_be_gone():
    found = judge(RULES, load(2000, lag=9_000_000), Memory(), NOW)
    # 2000 / 0.7 for what arrives, 20 000 for what it is while others change, and 5000 of backlog
    assert found.reason == "ScaleUp"
    assert found.needed == 8


def test_divisors_of_the_key_groups_are_preferred_where_one_is_near():
    assert judge(RULES, load(4900, width=4, growth=0), Memory(), NOW).needed == 6
    assert judge(RULES, load(4100, growth=900), Memory(), NOW).needed == 8


@pytest.mark.parametrize(("arrival", "width"), [(46_000, 128), (30_500, 64), (21_000, 32)])
def test_among_many_subtasks_a_number_whose_largest_share_is_no_smaller_is_not_taken(
    arrival, width
):
    rules = replace(RULES, most=128)
    measured = load(arrival, width=30, growth=max(arrival - 30_000, 0))
    assert judge(rules, measured, Memory(), NOW).needed == width


def test_it_goes_down_after_the_delay_to_the_most_that_was_needed_meanwhile():
    first = judge(RULES, load(1000, width=16), Memory(), NOW)
    assert (first.width, first.reason) == (16, "ScaleDownDelayed")
    second = judge(RULES, load(4000, width=16), first.memory, later(1800))
    assert second.memory.low_most == 6
    third = judge(RULES, load(1000, width=16), second.memory, later(3601))
    # 60 % may go at once
    assert (third.width, third.reason) == (7, "ScaleDown")
    assert third.memory.low_since is None


def test_a_load_that_is_high_in_between_begins_the_delay_anew():
    low = judge(RULES, load(1000, width=16), Memory(), NOW)
    high = judge(RULES, load(12_000, width=16), low.memory, later(1800))
    assert high.reason == "Balanced"
    assert judge(RULES, load(1000, width=16), high.memory, later(3601)).width == 16


def test_nothing_goes_down_while_there_is_a_backlog():
    found = judge(RULES, load(100, width=16, lag=100 * 301), Memory(), NOW)
    assert (found.reason, found.memory.low_since) == ("InBacklog", None)


def test_it_waits_after_each_change_and_until_enough_was_measured():
    memory = Memory(changed_at=later(-299))
    assert judge(RULES, load(8000, growth=9000), memory, NOW).reason == "CoolingDown"
    assert judge(RULES, load(8000, growth=9000), memory, later(1)).reason == "ScaleUp"
    assert judge(RULES, load(8000, seconds=59), Memory(), NOW).reason == "Measuring"
    assert judge(RULES, load(100, width=16, seconds=600), Memory(), NOW).reason == "Measuring"


def test_a_step_up_that_brought_nothing_is_not_followed_by_another_for_a_while():
    memory = Memory(step=Step(2, 4, later(-600), 4000.0))
    assert judge(RULES, load(4000, growth=900), memory, NOW).reason == "Ineffective"
    helped = Memory(step=Step(2, 4, later(-600), 2000.0))
    assert judge(RULES, load(4000, growth=900), helped, NOW).reason == "ScaleUp"
    assert judge(RULES, load(4000, growth=900), memory, later(3600)).reason == "ScaleUp"


def test_what_found_no_room_is_taken_back_and_not_tried_for_a_while():
    memory = Memory(step=Step(4, 8, later(-600), 4000.0))
    crowded = load(9000, width=8, growth=900)
    back = judge(RULES, crowded, memory, NOW, room=6)
    assert (back.width, back.reason) == (6, "NoRoom")
    again = judge(RULES, load(9000, width=6, growth=900), back.memory, later(600))
    assert (again.width, again.reason) == (6, "NoRoom")
    assert judge(RULES, load(9000, width=6, growth=900), back.memory, later(3600)).width > 6


def test_it_never_goes_below_what_it_came_from_for_missing_room():
    memory = Memory(step=Step(4, 8, later(-600), 4000.0))
    assert judge(RULES, load(9000, width=8, growth=900), memory, NOW, room=2).width == 4


def test_epochs_that_cost_more_than_their_rows_are_told_and_not_scaled():
    rules = replace(RULES, epoch_rows=1000)
    found = judge(rules, load(3000, fixed=0.5, growth=2000), Memory(), NOW)
    assert (found.width, found.reason) == (4, "EpochsTooSmall")


def test_what_does_nothing_though_rows_wait_is_left_to_who_looks_after_health():
    assert judge(RULES, load(0, lag=500), Memory(), NOW).reason == "NothingDone"
    assert judge(RULES, load(0), Memory(), NOW).reason == "ScaleDownDelayed"


def test_a_width_out_of_bounds_is_put_right_at_once():
    found = judge(replace(RULES, least=8), load(100, seconds=0), Memory(changed_at=NOW), NOW)
    assert (found.width, found.reason) == (8, "OutOfBounds")


LOADS = st.builds(
    load,
    st.floats(0, 1e6),
    st.integers(1, 128),
    st.floats(1, 1e5),
    seconds=st.floats(0, 900),
    lag=st.none() | st.integers(0, 10**10),
    fixed=st.floats(0, 0.5),
    growth=st.floats(-1e6, 1e6),
)
STEPS = st.builds(
    Step, st.integers(1, 128), st.integers(1, 128), st.just(later(-5000)), st.floats(0, 1e6)
)
MEMORIES = st.builds(
    Memory,
    changed_at=st.none() | st.floats(-1000, 0).map(later),
    step=st.none() | STEPS,
    low_since=st.none() | st.floats(-9000, 0).map(later),
    low_most=st.integers(0, 128),
    no_room_until=st.none() | st.floats(-1000, 1000).map(later),
)
BOUNDS = st.tuples(st.integers(1, 128), st.integers(1, 128)).map(sorted)


@given(LOADS, MEMORIES, BOUNDS, st.sampled_from([1, 7, 64, 128, 1000]), st.integers(0, 64))
def test_it_stays_within_its_bounds_and_changes_nothing_in_the_cooldown(
    measured, memory, bounds, key_groups, room
):
    least, most = bounds
    rules = replace(RULES, least=least, most=most, key_groups=key_groups)
    found = judge(rules, measured, memory, NOW, room)
    assert min(least, key_groups) <= found.width <= min(most, key_groups)
    inside = min(least, key_groups) <= measured.width <= min(most, key_groups)
    hot = memory.changed_at is not None and memory.changed_at > later(-300)
    if inside and hot:
        assert found.width == measured.width
    backlog = (measured.lag or 0) > 300 * max(measured.arrival, 1e-9)
    if inside and backlog and not room:
        assert found.width >= measured.width
    if inside and found.width != measured.width:
        assert found.width <= measured.width * 4
        assert found.width >= math.floor(measured.width * 0.4) or room


def test_what_was_needed_of_more_subtasks_than_there_are_now_is_no_reason_for_more():
    """Somebody made them fewer by hand, in the time after which fewer were to be taken."""
    memory = Memory(low_since=later(-3600), low_most=3)
    found = judge(replace(RULES, least=1, most=2), load(0.0, 2, 1.0), memory, NOW)
    assert (found.width, found.reason) == (2, "ScaleDownDelayed")
    assert (found.memory.low_since, found.memory.low_most) == (NOW, found.needed)


@given(st.floats(1, 60_000), st.integers(1, 64), st.floats(300, 3000))
def test_on_a_constant_load_it_comes_to_rest_and_within_the_boundary(arrival, width, each):
    """Each decision is followed at once, and the window is whole before the next."""
    memory, now, changes = Memory(), NOW, []
    for _ in range(60):
        now += timedelta(seconds=1000)
        behind = max(arrival - width * each, 0.0)
        found = judge(RULES, load(arrival, width, each, growth=behind), memory, now)
        memory = found.memory
        if found.width != width:
            changes.append(found.width)
            width = found.width
            quiet = now
    assert len(changes) <= 7, changes
    assert not changes or now - quiet > timedelta(hours=2), changes
    ups = [b > a for a, b in pairwise(changes)]
    assert len(set(ups)) <= 1, f"it turned round: {changes}"
    used = arrival / (width * each)
    assert used <= 0.9 + 1e-6 or width == RULES.most


@pytest.mark.parametrize(
    ("busiest", "reason"),
    [
        (None, "ScaleUp"),
        # It has half of the work and twice the median, and its key group is one.
        (Busiest(850.0, 100.0, splits=False), "HotSubtask"),
        (Busiest(850.0, 100.0, splits=True), "ScaleUp"),
        (Busiest(850.0, 600.0, splits=False), "ScaleUp"),
        (Busiest(300.0, 100.0, splits=False), "ScaleUp"),
    ],
)
def test_nothing_goes_up_for_one_subtask_that_cannot_be_split(busiest, reason):
    hot = replace(load(8000, growth=4000), busiest=busiest)
    found = judge(RULES, hot, Memory(), NOW)
    assert found.reason == reason
    assert (found.width == 4) == (reason == "HotSubtask")


def test_one_that_cannot_be_split_keeps_nothing_from_going_down():
    hot = replace(load(400, width=16), busiest=Busiest(80.0, 1.0, splits=False))
    found = judge(replace(RULES, down_delay=0.0), hot, Memory(), NOW)
    assert found.reason == "ScaleDown"
