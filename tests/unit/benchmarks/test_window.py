import pytest
from benchmarks.params import Parameters
from benchmarks.window import Batch, Window, rate

PARAMS = Parameters(warmup_files=2, warmup_seconds=8.0, steady_seconds=20.0, steady_batches=2)


def window_after(*seconds, least=None):
    window = Window(PARAMS, least)
    for one in seconds:
        window.add(Batch(100, one))
    return window


def test_the_first_small_batches_do_not_count_however_long_they_take():
    assert window_after(30.0, 30.0).steady == []


def test_batches_that_begin_within_the_warm_up_do_not_count():
    window = window_after(1.0, 1.0, 5.9, 3.0, 4.0)
    assert window.steady == [Batch(100, 4.0)]


def test_a_batch_that_begins_when_the_warm_up_ends_counts():
    assert window_after(4.0, 4.0, 7.0).steady == [Batch(100, 7.0)]


@pytest.mark.parametrize(
    ("seconds", "least", "full"),
    [
        ((5.0, 5.0, 19.0), None, False),
        ((5.0, 5.0, 21.0), None, False),
        ((5.0, 5.0, 21.0), 1, True),
        ((5.0, 5.0, 9.0, 9.0), None, False),
        ((5.0, 5.0, 10.0, 10.0), None, True),
    ],
)
def test_it_is_full_after_enough_time_and_enough_batches(seconds, least, full):
    assert window_after(*seconds, least=least).full is full


def test_the_rate_of_several_batches_is_their_rows_by_their_time():
    """A slow batch weighs as much as it took: the mean of the two rates would be 505."""
    assert rate([Batch(1000, 1.0), Batch(100, 10.0)]) == pytest.approx(100.0)
