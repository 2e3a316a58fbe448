"""Where an epoch begins and ends."""

from hypothesis import given
from hypothesis import strategies as st

from moorage.kafka.offsets import Slice, as_json, dealt, from_json, planned

PARTITIONS = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 3))
OFFSETS = st.dictionaries(PARTITIONS, st.integers(0, 1000))


def test_offsets_are_kept_as_sparks_connector_keeps_them_in_one_order():
    offsets = {("b", 0): 1, ("a", 10): 2, ("a", 9): 3}
    assert as_json(offsets) == {"a": {"9": 3, "10": 2}, "b": {"0": 1}}
    assert list(as_json(offsets)["a"]) == ["9", "10"]
    assert from_json(as_json(offsets)) == offsets


@given(OFFSETS, OFFSETS, st.integers(1, 500))
def test_a_limit_is_dealt_out_so_that_nobody_starves_and_nothing_is_passed_over(
    start, latest, limit
):
    ends = dealt(start, latest, limit)
    assert ends.keys() == latest.keys()
    taken = {at: ends[at] - start.get(at, 0) for at in ends if ends[at] > start.get(at, 0)}
    assert sum(taken.values()) <= limit + len(latest)
    for at, newest in latest.items():
        assert ends[at] <= newest
        if newest > start.get(at, 0):
            assert ends[at] > start.get(at, 0) or limit < len(latest)


def test_each_partition_gets_its_share_of_the_limit():
    assert dealt({("a", 0): 0, ("a", 1): 5}, {("a", 0): 90, ("a", 1): 15}, 10) == {
        ("a", 0): 9,
        ("a", 1): 6,
    }


def test_a_partition_without_a_start_is_read_from_offset_0():
    slices, lost = planned({("a", 0): 5}, {("a", 0): 7, ("a", 1): 3})
    assert slices == [Slice("a", 0, 5, 7), Slice("a", 1, 0, 3)]
    assert lost == []


def test_partitions_that_went_back_or_away_are_told():
    slices, lost = planned({("a", 0): 5, ("a", 1): 8}, {("a", 0): 2})
    assert slices == []
    assert lost[0].startswith("partition a-0 went back: its next offset was 5 and is 2")
    assert lost[1] == "partition a-1 is gone: its next offset was 8"
