"""What a start asks of the store, counted on the real log."""

from benchmarks.scale.history import NEW, lineages


def test_a_start_with_a_long_past_asks_ten_times_more_than_a_new_one_at_most():
    starts = dict(lineages((NEW, 101, 1_003, 6_007)))

    assert all(one["requests"] <= starts[NEW]["requests"] + 10 for one in starts.values())
    assert starts[6_007]["objects"] < 4_200, "what says nothing any more is gone"
