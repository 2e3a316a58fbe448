"""Who gets what: Flink's rules, with the values that Flink's own class gave."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_state.operator_state.redistribution import broadcast, even_split, union

COUNTS = st.lists(st.integers(0, 20), min_size=1, max_size=8)


def dealt(shares):
    """Each share as "t<old>[positions]", which is how the vectors are written."""
    return [
        " ".join(f"t{r.source}{list(range(r.first, r.last))}" for r in share) for share in shares
    ]


@pytest.mark.parametrize(
    ("counts", "parallelism", "expected"),
    [
        ([3, 4], 3, ["t0[0, 1, 2]", "t1[0, 1]", "t1[2, 3]"]),
        ([3, 4], 1, ["t0[0, 1, 2] t1[0, 1, 2, 3]"]),
        ([5, 0, 1], 4, ["t0[0, 1]", "t0[2, 3]", "t0[4]", "t2[0]"]),
        ([1, 1, 1], 5, ["t0[0]", "t1[0]", "t2[0]", "", ""]),
        ([5, 0, 1], 3, ["t0[0, 1, 2, 3, 4]", "", "t2[0]"]),
        ([0, 0], 3, ["", "", ""]),
    ],
)
def test_lists_are_split_as_flink_splits_them(counts, parallelism, expected):
    assert dealt(even_split(counts, parallelism)) == expected


@pytest.mark.parametrize(
    ("counts", "parallelism"), [([3, 4], 2), ([3, 4], 1), ([3, 4], 5), ([0, 2], 3)]
)
def test_a_union_gives_every_subtask_all_also_where_nothing_changed(counts, parallelism):
    everything = [(i, n) for i, count in enumerate(counts) for n in range(count)]
    for share in union(counts, parallelism):
        assert [(r.source, n) for r in share for n in range(r.first, r.last)] == everything


@pytest.mark.parametrize(
    ("before", "parallelism", "expected"),
    [(2, 3, [0, 1, 0]), (2, 2, [0, 1]), (3, 1, [0]), (0, 2, [None, None])],
)
def test_broadcast_copies_come_from_the_old_subtask_modulo_their_number(
    before, parallelism, expected
):
    assert broadcast(before, parallelism) == expected


@given(COUNTS, st.integers(1, 9))
def test_a_split_is_the_concatenation_cut_in_order_into_nearly_equal_shares(counts, parallelism):
    shares = even_split(counts, parallelism)
    flat = [(r.source, n) for share in shares for r in share for n in range(r.first, r.last)]
    assert flat == [(i, n) for i, count in enumerate(counts) for n in range(count)]
    sizes = [sum(r.last - r.first for r in share) for share in shares]
    if parallelism == len(counts):
        assert sizes == counts
    else:
        assert max(sizes) - min(sizes) <= 1
        assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("rule", [even_split, union])
def test_there_is_no_redistribution_to_no_subtasks(rule):
    with pytest.raises(ValueError, match="at least 1"):
        rule([1], 0)
    with pytest.raises(ValueError, match="at least 1"):
        broadcast(1, 0)
