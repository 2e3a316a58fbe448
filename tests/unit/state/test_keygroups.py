"""Key groups: Flink's vectors, and what must hold for every parallelism."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_state.keygroups import (
    MAX_PARALLELISM_LIMIT,
    KeyGroupRange,
    default_max_parallelism,
    owner,
    range_of,
)


@st.composite
def parallelisms(draw):
    highest = draw(st.integers(1, MAX_PARALLELISM_LIMIT))
    return draw(st.integers(1, min(highest, 200))), highest


@pytest.mark.parametrize(
    ("parallelism", "ranges"),
    [
        (1, [(0, 127)]),
        (3, [(0, 42), (43, 85), (86, 127)]),
        (5, [(0, 25), (26, 51), (52, 76), (77, 102), (103, 127)]),
        (7, [(0, 18), (19, 36), (37, 54), (55, 73), (74, 91), (92, 109), (110, 127)]),
        (128, [(i, i) for i in range(128)]),
    ],
)
def test_ranges_are_those_that_flink_computes(parallelism, ranges):
    found = [range_of(i, parallelism, 128) for i in range(parallelism)]
    assert [(r.start, r.end) for r in found] == ranges


@pytest.mark.parametrize(
    ("parallelism", "expected"),
    [
        (1, 128),
        (85, 128),
        (86, 256),
        (100, 256),
        (171, 256),
        (500, 1024),
        (1000, 2048),
        (30000, 32768),
        (32768, 32768),
    ],
)
def test_the_default_max_parallelism_is_the_one_that_flink_derives(parallelism, expected):
    assert default_max_parallelism(parallelism) == expected


@given(parallelisms())
def test_ranges_cover_every_key_group_once_and_in_order(numbers):
    parallelism, highest = numbers
    ranges = [range_of(i, parallelism, highest) for i in range(parallelism)]
    assert ranges[0].start == 0
    assert ranges[-1].end == highest - 1
    assert all(a.end + 1 == b.start for a, b in pairwise(ranges))
    sizes = {len(r) for r in ranges}
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1


@given(parallelisms(), st.data())
def test_the_owner_of_a_key_group_is_the_subtask_whose_range_holds_it(numbers, data):
    parallelism, highest = numbers
    group = data.draw(st.integers(0, highest - 1))
    assert group in range_of(owner(group, parallelism, highest), parallelism, highest)


@pytest.mark.parametrize(
    ("subtask", "parallelism", "highest", "words"),
    [
        (0, 0, 128, "parallelism=0 maxParallelism=128"),
        (0, 129, 128, "parallelism must be between 1 and maxParallelism"),
        (0, 1, 32769, "at most 32768"),
        (3, 3, 128, "no such subtask: subtask=3 parallelism=3"),
        (-1, 3, 128, "no such subtask"),
    ],
)
def test_numbers_that_do_not_fit_together_are_refused(subtask, parallelism, highest, words):
    with pytest.raises(ValueError, match=words):
        range_of(subtask, parallelism, highest)


@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_an_overlap_counts_the_key_groups_in_both_ranges(a, b, c, d):
    one, other = KeyGroupRange(min(a, b), max(a, b)), KeyGroupRange(min(c, d), max(c, d))
    shared = [g for g in range(51) if g in one and g in other]
    assert one.overlap(other) == other.overlap(one) == len(shared)


def test_a_range_knows_its_members_and_sorts_by_its_start():
    assert 42 in KeyGroupRange(0, 42)
    assert 43 not in KeyGroupRange(0, 42)
    assert "7" not in KeyGroupRange(0, 42)
    assert len(KeyGroupRange(5, 4)) == 0
    assert KeyGroupRange(0, 4) < KeyGroupRange(5, 9)
