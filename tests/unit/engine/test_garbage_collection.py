"""Python's collector is set back to what it was, however a subtask ends."""

import gc
from collections.abc import Iterator

import pytest

from moorage.engine.subtask import seldom_collecting


@pytest.fixture(autouse=True)
def _thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_the_collector_looks_seldom_within_and_as_before_afterwards() -> None:
    gc.set_threshold(700, 10, 10)
    with seldom_collecting():
        assert gc.get_threshold() == (200_000, 10, 10)
    assert gc.get_threshold() == (700, 10, 10)


def test_it_is_set_back_after_an_error() -> None:
    gc.set_threshold(700, 10, 10)
    with pytest.raises(LookupError), seldom_collecting():
        raise LookupError
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("first", [0, 1_000_000])
def test_a_collector_that_looks_less_often_or_never_is_left_alone(first: int) -> None:
    gc.set_threshold(first, 10, 10)
    with seldom_collecting():
        assert gc.get_threshold() == (first, 10, 10)
