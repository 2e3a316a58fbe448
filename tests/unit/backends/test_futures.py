"""The asynchronous part of a snapshot: who wins, and that nothing is let go of twice."""

import threading
from functools import partial
from typing import Any

import pytest

from moorage_state.errors import StoreUnavailable
from moorage_state.state_backends.futures import FutureState, SnapshotCanceled, SnapshotFuture


def made_of(thing):
    return lambda _: thing


class Thing:
    def __init__(self):
        self.discarded = 0

    def discard(self):
        self.discarded += 1


def test_nothing_is_done_before_it_is_run_and_once_after():
    thing = Thing()
    done: list[Any] = []

    def work(_):
        done.append(1)
        return thing

    future = SnapshotFuture(work, release=lambda: done.append("released"))
    assert (future.state, done) == (FutureState.PENDING, [])
    future.run()
    future.run()
    assert done == [1, "released"]
    assert future.result(0) is thing


def test_one_that_is_all_synchronous_is_completed_already():
    thing = Thing()
    future = SnapshotFuture.completed(thing)
    assert future.done
    assert future.result(0) is thing


def test_a_future_that_nobody_runs_says_so_after_the_time_given():
    future = SnapshotFuture(lambda _: Thing())
    with pytest.raises(TimeoutError, match="state=pending"):
        future.result(0)


def test_an_error_is_kept_for_whoever_asks_and_what_was_held_is_let_go_of():
    released = []

    def work(_):
        raise StoreUnavailable("gone")

    future = SnapshotFuture(work, release=lambda: released.append(1))
    future.run()
    assert future.state is FutureState.FAILED
    assert released == [1]
    with pytest.raises(StoreUnavailable, match="gone"):
        future.result(0)
    assert not future.cancel()


def test_one_that_was_canceled_before_it_ran_lets_go_and_never_runs():
    done: list[str] = []

    def work(_):
        done.append("ran")
        return Thing()

    future = SnapshotFuture(work, release=lambda: done.append("released"))
    assert future.cancel()
    assert not future.cancel()
    future.run()
    assert done == ["released"]
    with pytest.raises(SnapshotCanceled):
        future.result(0)


def test_a_cancellation_amid_the_work_closes_what_is_open_and_the_runner_lets_go():
    begun, go_on, events = threading.Event(), threading.Event(), []

    def work(cancellation):
        cancellation.register(lambda: events.append("closed"))
        begun.set()
        go_on.wait(30)
        cancellation.check()
        return Thing()

    future = SnapshotFuture(work, release=lambda: events.append("released"))
    runner = threading.Thread(target=future.run)
    runner.start()
    assert begun.wait(30)
    assert future.cancel()
    assert events == ["closed"]
    go_on.set()
    runner.join(30)
    assert events == ["closed", "released"]
    assert future.canceled


def test_what_came_of_a_work_that_did_not_notice_is_discarded():
    begun, go_on, thing = threading.Event(), threading.Event(), Thing()

    def work(_):
        begun.set()
        go_on.wait(30)
        return thing

    future = SnapshotFuture(work)
    runner = threading.Thread(target=future.run)
    runner.start()
    assert begun.wait(30)
    future.cancel()
    go_on.set()
    runner.join(30)
    assert thing.discarded == 1


def test_a_stream_that_is_opened_after_the_cancellation_is_closed_at_once():
    begun, go_on, closed = threading.Event(), threading.Event(), []

    def work(cancellation):
        begun.set()
        go_on.wait(30)
        cancellation.register(lambda: closed.append(1))
        cancellation.check()
        return Thing()

    future = SnapshotFuture(work)
    runner = threading.Thread(target=future.run)
    runner.start()
    assert begun.wait(30)
    future.cancel()
    go_on.set()
    runner.join(30)
    assert closed == [1]


def test_of_a_run_and_a_cancellation_at_once_one_wins_and_all_is_let_go_of_once():
    for _ in range(300):
        thing, barrier = Thing(), threading.Barrier(3)
        released: list[int] = []
        future = SnapshotFuture(made_of(thing), release=partial(released.append, 1))
        won: list[bool] = []

        def run(future=future, barrier=barrier):
            barrier.wait()
            future.run()

        def cancel(future=future, barrier=barrier, won=won):
            barrier.wait()
            won.append(future.cancel())

        threads = [threading.Thread(target=run), threading.Thread(target=cancel)]
        for thread in threads:
            thread.start()
        barrier.wait()
        for thread in threads:
            thread.join(30)
        assert future.canceled == won[0]
        assert released == [1]
        # Either somebody may have the result, or it is gone, or it never was.
        assert thing.discarded <= (1 if won[0] else 0)
        if not won[0]:
            assert future.result(0) is thing
