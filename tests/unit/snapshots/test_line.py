"""A line of checkpoints is the tuple of its ids, whatever gaps it has."""

import hypothesis.strategies as st
from hypothesis import given

from moorage_state.snapshots import Line

ids = st.lists(st.integers(1, 60), unique=True, max_size=40).map(sorted)


@given(ids, st.integers(-2, 62))
def test_a_line_is_the_tuple_of_its_ids(found, other):
    line = Line((one, one) for one in found)
    assert line == tuple(found)
    assert tuple(line) == tuple(found)
    assert tuple(reversed(line)) == tuple(reversed(found))
    assert len(line) == len(found)
    assert [line[at] for at in range(-len(found), len(found))] == found + found
    assert line[-3:] == tuple(found[-3:])
    assert (other in line) is (other in found)
    assert bool(line) is bool(found)
    assert line.then(61) == (*found, 61)


def test_a_line_of_five_years_is_kept_as_few_ranges():
    line = Line([(1, 1000), (1001, 1001), (1003, 2_628_000)])
    assert repr(line) == "Line([(1, 1001), (1003, 2628000)])"
    assert (len(line), line[-1], line[1001]) == (2_627_999, 2_628_000, 1003)
    assert 1002 not in line
