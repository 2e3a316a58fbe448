"""Trying again and moving many things at once, without a store."""

import pickle
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest

from moorage_state.errors import StoreUnavailable, UserError
from moorage_state.progress import counting_retries
from moorage_state.stores import Retries, in_parallel
from moorage_state.stores.retries import Failure
from moorage_state.stores.transfers import run_windowed


class Clock:
    """Time that only sleeping and working move."""

    def __init__(self) -> None:
        self.now = 5_000.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def retries(clock: Clock) -> Retries:
    return Retries(clock=lambda: clock.now, sleep=clock.sleep, uniform=lambda: 1.0)


def passing(error: Exception) -> Failure:
    return Failure(StoreUnavailable(f"judged: {error}"), again=True)


def failing(times: int, seconds: float = 0.0, clock: Clock | None = None) -> Callable[[int], int]:
    def work(attempt: int) -> int:
        if clock is not None:
            clock.now += seconds
        if attempt <= times:
            raise OSError(f"attempt {attempt}")
        return attempt

    return work


def test_pauses_double_up_to_the_longest(retries: Retries, clock: Clock) -> None:
    assert retries.run(failing(9), passing) == 10
    assert clock.slept == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10])


def test_pauses_are_drawn_from_the_whole_range(retries: Retries) -> None:
    jittery = replace(retries, uniform=random.Random(1).random)
    pauses = [jittery.pause(5) for _ in range(1_000)]
    assert min(pauses) < 0.05
    assert 1.5 < max(pauses) < 1.6


def test_after_the_last_attempt_the_judged_error_comes_with_its_cause(retries: Retries) -> None:
    with pytest.raises(StoreUnavailable, match="judged: attempt 10") as caught:
        retries.run(failing(10), passing)
    assert isinstance(caught.value.__cause__, OSError)


def test_no_attempt_starts_after_the_deadline(retries: Retries, clock: Clock) -> None:
    with pytest.raises(StoreUnavailable, match="attempt 3"):
        retries.run(failing(9, 30, clock), passing)
    assert clock.now - 5_000 < 91


def test_what_does_not_pass_is_not_tried_again(retries: Retries, clock: Clock) -> None:
    with pytest.raises(UserError):
        retries.run(failing(1), lambda _: Failure(UserError("no"), again=False))
    assert clock.slept == []


def test_an_error_that_is_judged_as_itself_has_no_cause(retries: Retries) -> None:
    def work(_: int) -> None:
        raise UserError("no")

    with pytest.raises(UserError) as caught:
        retries.run(work, lambda error: Failure(error, again=False))  # type: ignore[arg-type]  # it never returns
    assert caught.value.__cause__ is None


def test_the_end_of_the_process_is_not_tried_again(retries: Retries) -> None:
    def work(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        retries.run(work, passing)


def test_what_is_tried_again_is_counted_for_who_asked_in_whichever_thread() -> None:
    retries = Retries(sleep=lambda _seconds: None)
    retries.run(failing(1), passing)
    with counting_retries() as outer:
        retries.run(failing(2), passing)
        with counting_retries() as inner:
            in_parallel([partial(retries.run, failing(times), passing) for times in (0, 3)], 2)
            assert inner() == 3
        retries.run(failing(1), passing)
        assert outer() == 6


def test_a_policy_pickles_without_the_state_of_the_generator() -> None:
    assert pickle.loads(pickle.dumps(Retries())) == Retries()
    assert len(pickle.dumps(Retries())) < 500


def test_results_come_in_the_order_of_the_tasks() -> None:
    first = threading.Event()

    def slow() -> str:
        assert first.wait(10)
        return "slow"

    def quick() -> str:
        first.set()
        return "quick"

    assert in_parallel([slow, quick], 2) == ["slow", "quick"]


def test_no_more_than_the_window_are_taken_from_the_source() -> None:
    taken: list[int] = []
    done: list[int] = []

    def source():
        for n in range(50):
            taken.append(n)
            assert len(taken) - len(done) <= 3
            yield lambda n=n: done.append(n)

    with ThreadPoolExecutor(8) as pool:
        run_windowed(source(), pool, 3)
    assert sorted(done) == list(range(50))


def test_the_first_error_stops_the_rest_and_nothing_runs_on_behind_it() -> None:
    stop, entered, ended = threading.Event(), threading.Event(), []

    def fail() -> None:
        assert entered.wait(10)
        raise UserError("no")

    def go_on() -> None:
        entered.set()
        assert stop.wait(10)
        ended.append("stopped")

    def never() -> None:
        pytest.fail("started after the error")

    with ThreadPoolExecutor(2) as pool:
        with pytest.raises(UserError):
            run_windowed([fail, go_on, *[never] * 9], pool, 2, stop)
        assert ended == ["stopped"]


def test_nothing_to_do_is_done() -> None:
    assert in_parallel([], 3) == []
