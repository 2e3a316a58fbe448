"""Which rows two versions must both have given, whatever epochs their input was cut into."""

import random
from collections import Counter

import pytest

from moorage_api.driver import OutputSample, SampleSegment
from moorage_api.lifecycle import CompareOutputs
from moorage_operator.decide.outputs import compared, is_sampled, not_comparable

TOP = "f" * 16


def name(row: int) -> str:
    return f"{row:016x}"


def sample(*segments, start=0, since=0, limit=TOP):
    """Of one input and one sink: segments are epochs, the position after them, and rows."""
    return OutputSample(
        percent=10,
        since_epoch=since,
        start={"in": {"/t/0": start}},
        limits={"out": limit},
        segments=tuple(
            SampleSegment(
                epochs=epochs,
                end={"in": {"/t/0": end}},
                rows={"out": dict(Counter(map(name, rows)))},
            )
            for epochs, end, rows in segments
        ),
    )


def judged(new, old):
    [found] = compared(new, old, ["out"])
    return found.rows, dict(found.extra), dict(found.lacking)


def test_rows_are_compared_where_both_have_read_on_for_two_epochs():
    new = sample((1, 10, [1, 2]), (1, 20, [3]), (2, 30, [4]))
    old = sample((5, 20, [1, 2, 3]), (1, 25, []), (1, 30, [4]))
    # Each is settled up to 20: the last two epochs of each may have more to come.
    assert judged(new, old) == (6, {}, {})


def test_what_one_alone_gave_is_found_either_way_and_however_often():
    new = sample((1, 10, [1, 1, 2, 7]), (2, 20, []))
    old = sample((1, 10, [1, 2, 2, 8]), (2, 20, []))
    assert judged(new, old) == (8, {name(1): 1, name(7): 1}, {name(2): 1, name(8): 1})


def test_a_row_that_the_other_one_gives_later_is_not_missed():
    new = sample((1, 10, [1]), (1, 20, [2]), (2, 30, []))
    late = sample((1, 10, []), (1, 20, [1]), (1, 30, [2]), (1, 30, []))
    assert judged(new, late) == (3, {}, {})
    never = sample((1, 10, []), (1, 20, [1]), (1, 30, []), (1, 30, []))
    assert judged(new, never) == (3, {name(2): 1}, {})


def test_nothing_is_said_while_the_other_one_has_not_come_so_far():
    new = sample((1, 10, [1]), (1, 20, [2]), (2, 30, [3]))
    behind = sample((1, 5, []), (2, 9, []))
    assert judged(new, behind) == (0, {}, {})
    just_there = sample((1, 5, []), (1, 20, []), (1, 20, []))
    assert judged(new, just_there) == (0, {}, {}), "an epoch may still bring something"
    there = sample((1, 5, []), (1, 20, []), (1, 20, []), (1, 20, []))
    assert judged(new, there) == (2, {name(1): 1, name(2): 1}, {})
    assert judged(sample(), sample()) == (0, {}, {})


def test_of_a_sample_that_begins_earlier_nothing_counts_before_the_other_one_begins():
    new = sample((1, 30, [3]), (1, 40, [4]), (1, 50, [5]), (2, 60, []), start=20, since=9)
    old = sample(
        *[(1, 10, [1]), (1, 20, [2]), (1, 25, [7]), (1, 30, [3]), (1, 40, [4]), (1, 50, [5])],
        (2, 60, []),
        since=4,
    )
    rows, extra, lacking = judged(new, old)
    assert (extra, lacking) == ({}, {}), "7 may be what was due before, and the new one began after"
    assert rows == 5, "3, 4 and 5 of the new one; 4 and 5 of the old one, two epochs after 20"


def test_partitions_are_compared_one_by_one():
    def two(first, second, rows, epochs=1):
        end = {"in": {"/t/0": first, "/t/1": second}}
        return SampleSegment(epochs=epochs, end=end, rows={"out": {name(r): 1 for r in rows}})

    start: dict[str, dict[str, int | float | str]] = {"in": {"/t/0": 0, "/t/1": 0}}
    limits = {"out": TOP}
    new = OutputSample(
        percent=1, start=start, limits=limits, segments=(two(5, 5, [1]), two(9, 9, [], 2))
    )
    ahead_in_one = (two(9, 4, []), two(9, 4, [], 2))
    old = OutputSample(percent=1, start=start, limits=limits, segments=ahead_in_one)
    assert judged(new, old)[1] == {}
    old = old.model_copy(update={"segments": (*ahead_in_one, two(9, 5, []), two(9, 5, [], 2))})
    assert judged(new, old)[1] == {name(1): 1}


@pytest.mark.parametrize(
    ("mine", "theirs", "counts"),
    [
        ({"in": {"": 5}}, {"in": {"": 5}}, True),
        ({"in": {"": "a"}}, {"in": {"": "a"}}, True),
        ({"in": {"": "a"}}, {"in": {"": "b"}}, False),
        ({"in": {}}, {"in": {"": 5}}, False),
        ({"in": {"": 5}}, {"in": {}}, True),
        # Inputs of one version alone say nothing of the other
        ({"in": {"": 5}, "more": {"": 1}}, {"in": {"": 5}}, True),
        ({"in": {"": 5}}, {"in": {"": 5}, "more": {"": 1}}, True),
    ],
)
def test_offsets_that_are_no_numbers_are_passed_where_they_are_the_same(mine, theirs, counts):
    def ends_at(position, rows):
        segments = (
            SampleSegment(epochs=1, end=position, rows={"out": rows}),
            SampleSegment(epochs=2, end=position),
        )
        return OutputSample(percent=1, limits={"out": TOP}, segments=segments)

    old, new = ends_at(mine, {}), ends_at(theirs, {name(1): 1})
    assert judged(new, old)[1] == ({name(1): 1} if counts else {})


def test_only_rows_below_the_limits_of_both_are_compared():
    new = sample((1, 10, [1, 5, 9]), (2, 10, []), limit=name(6))
    old = sample((1, 10, [1, 4, 5, 9]), (2, 10, []))
    assert judged(new, old) == (5, {}, {name(4): 1})
    old = sample((1, 10, [1, 4]), (2, 10, []), limit=name(4))
    assert judged(new, old) == (3, {}, {name(4): 1})


def test_a_sink_that_one_version_never_wrote_to_differs_in_all():
    new = OutputSample(percent=1, start={"in": {"/t/0": 0}}, segments=sample((3, 10, [])).segments)
    old = sample((1, 10, [1, 2]), (2, 10, []))
    new = new.model_copy(update={"segments": sample((1, 10, []), (2, 10, [])).segments})
    [found] = compared(new, old, ["out"])
    assert (found.rows, found.differing) == (2, 2)
    assert found.exceeds(99)
    assert compared(new, old, []) == []


def test_shares_are_of_the_rows_that_were_compared():
    new, old = sample((1, 10, range(100)), (2, 10, [])), sample((1, 10, range(98)), (2, 10, []))
    [found] = compared(new, old, ["out"])
    assert (found.rows, found.differing) == (198, 2)
    assert found.exceeds(0)
    assert found.exceeds(1)
    assert not found.exceeds(2)
    assert found.told == (
        f"of 198 sampled rows of the sink out were given 2 by the new version alone "
        f"(hashes {name(98)}, {name(99)})"
    )


def test_a_sample_of_other_rules_is_not_the_one_that_is_wanted():
    rules = CompareOutputs(sample_percent=10, except_columns=("at",))
    told = OutputSample(percent=10, except_columns=("at",))
    assert is_sampled(told, rules)
    assert not is_sampled(None, rules)
    assert not is_sampled(told.model_copy(update={"percent": 11}), rules)
    assert not is_sampled(told.model_copy(update={"except_columns": ()}), rules)


def test_versions_without_a_common_input_or_with_a_trouble_are_not_compared():
    one = sample((1, 10, [1]), (2, 20, []))
    other = one.model_copy(update={"start": {"renamed": {"/t/0": 0}}})
    both = one.model_copy(update={"start": {**one.start, **other.start}})
    assert not_comparable(one, other) == "no input has one uid in both versions"
    assert not_comparable(both, one) == not_comparable(both, other) == ""
    assert not_comparable(one, OutputSample(percent=1, trouble="too long")) == "too long"
    assert not_comparable(OutputSample(percent=1, trouble="too long"), one) == "too long"


def version(rng, end, given, begins=0):
    """A version that reads from `begins` on, cut at random; a row comes an epoch late at most."""
    cuts = [*sorted(rng.sample(range(begins + 1, end), rng.randint(1, 12))), end, end, end, end]
    segments: list[tuple[int, int, list[int]]] = []
    waits: list[int] = []
    position = begins
    for cut in cuts:
        rows, held = list(waits), list[int]()
        for n in range(position, cut):
            (held if rng.random() < 0.3 else rows).extend(given(n))
        segments.append((1, cut, rows))
        waits, position = held, cut
    most = rng.randint(3, 8)
    while len(segments) > most:
        index = rng.randrange(len(segments) - 1)
        (one, _, first), (other, place, second) = segments[index : index + 2]
        segments[index : index + 2] = [(one + other, place, first + second)]
    return sample(*segments, start=begins, since=begins)


def some(n):
    """Rows that come of what lies at a position, some of them several times."""
    return [n % 50] * (n % 3)


def test_however_two_are_cut_the_same_output_never_differs_and_another_one_is_found():
    found = 0
    for seed in range(300):
        rng = random.Random(seed)
        end, begins = rng.randint(60, 200), rng.choice([0, 10])
        old = version(rng, end, some)
        _, extra, lacking = judged(version(rng, end, some, begins), old)
        assert (extra, lacking) == ({}, {}), seed
        odd = version(rng, end, lambda n: [n + 1000] if n == 31 else some(n), begins)
        _, extra, lacking = judged(odd, old)
        assert extra in ({}, {name(1031): 1}), seed
        assert lacking in ({}, {name(31): 1}), seed
        found += bool(extra)
    assert found > 200
