"""Chores that outlive the run that began them."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from moorage_testing.jobs import wait_until

from moorage.driver.environment import StoppedWaiting
from moorage.driver.housekeeping import Background
from moorage.driver.requests import Requests, StopRequest
from moorage.driver.restore_point import Choice
from moorage.driver.runner import _choose_again
from moorage.driver.settings import RestorePolicy
from moorage_state.errors import LocalDiskError, VersionGone
from moorage_state.snapshots import CheckpointStore, UnderWay

WAITS = 20.0
LOST = VersionGone("a delta")


def between_runs(job: Any) -> Any:
    return SimpleNamespace(
        standby=None,
        housekeeper=job.housekeeper,
        writer=job.writer,
        store=CheckpointStore(job.objects),
        settings=SimpleNamespace(restore=RestorePolicy(), bounded=False),
        reporter=SimpleNamespace(messages=lambda _texts: None),
        stop=threading.Event(),
        requests=Requests(),
    )


class HangingStore:
    """Deletions, or listings below `shared/`, that hang until the test lets them go on."""

    def __init__(self, job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hung, self.go_on = threading.Event(), threading.Event()
        self._job, self._patch = job, monkeypatch

    def hang(self, operation: str, when: str = "") -> None:
        real = getattr(self._job.objects, operation)

        def hangs(first: Any, *rest: Any) -> Any:
            if not when or str(first).startswith(when):
                self.hung.set()
                assert self.go_on.wait(WAITS)
            return real(first, *rest)

        self._patch.setattr(self._job.objects, operation, hangs)


@pytest.fixture
def job(make_job):
    return make_job(retain=1)


@pytest.fixture
def store(job, monkeypatch):
    store = HangingStore(job, monkeypatch)
    yield store
    store.go_on.set()


NONE = Choice(None, explicit=False)


def checkpoint(job):
    job.commit("a")
    job.due()
    return job.settle()


def test_the_next_restore_point_is_chosen_when_nothing_is_being_retired(job, store, monkeypatch):
    checkpoint(job)
    real = job.writer.append

    def slowly(entry: Any) -> int:
        # The entry by which checkpoint 1 does not exist any more.
        if type(entry).__name__ == "Retire":
            store.hung.set()
            assert store.go_on.wait(WAITS)
        return real(entry)

    monkeypatch.setattr(job.writer, "append", slowly)
    checkpoint(job)
    assert store.hung.wait(WAITS)
    context = between_runs(job)
    monkeypatch.setattr("moorage.driver.runner.replace", lambda one, **_changes: one)
    chosen: list[Any] = []
    thread = threading.Thread(target=lambda: chosen.append(_choose_again(context, NONE, {}, LOST)))
    thread.start()
    thread.join(0.2)
    assert not chosen
    store.go_on.set()
    thread.join(WAITS)
    assert chosen[0].path == "chk-2"


@pytest.mark.parametrize("at_once", [True, False])
def test_to_stop_ends_the_wait_for_a_retirement_that_hangs(job, store, at_once):
    checkpoint(job)
    store.hang("delete_many")
    checkpoint(job)
    assert store.hung.wait(WAITS)
    context = between_runs(job)
    if at_once:
        context.requests.ask(StopRequest(mode="None"))
    else:
        context.stop.set()
    with pytest.raises(StoppedWaiting if at_once else VersionGone):
        _choose_again(context, NONE, {}, LOST)


def test_a_sink_that_cannot_tidy_its_folder_is_asked_again_after_the_next_checkpoint(
    job, monkeypatch
):
    asked: list[int] = []

    def retire(_run: int, checkpoint_id: int, *_more: Any) -> None:
        asked.append(checkpoint_id)
        raise LocalDiskError("the disk is full")

    monkeypatch.setattr(job.housekeeper, "_output", SimpleNamespace(retire=retire))
    for _ in range(2):
        checkpoint(job)
        wait_until(lambda: (job.poll(), not job.housekeeper.busy)[1], WAITS, "the chore to end")
    assert asked == [1, 2]


def test_a_sweep_asks_what_is_under_way_of_the_run_that_is_on_by_then(job, store):
    store.hang("list", "shared/")
    checkpoint(job)
    wait_until(lambda: (job.poll(), store.hung.is_set())[1], WAITS, "the sweep to list")
    asked = threading.Event()

    def under_way() -> UnderWay:
        asked.set()
        return UnderWay()

    job.checkpointer.abandon()
    job.housekeeper.serve(1, Background(), under_way, tuple)
    store.go_on.set()
    assert asked.wait(WAITS)


def test_a_sweep_that_takes_longer_than_the_time_between_two_is_the_only_one(
    job, store, monkeypatch
):
    store.hang("list", "shared/")
    checkpoint(job)
    wait_until(lambda: (job.poll(), store.hung.is_set())[1], WAITS, "the sweep to list")
    due, sweeping = iter(range(10**6, 10**9, 10**5)), job.housekeeper._sweeping
    monkeypatch.setattr(job.housekeeper, "_clock", lambda: float(next(due)))
    begun: list[str] = []
    run = job.housekeeper._background.run

    def noted(name: str, *what: Any, **how: Any) -> None:
        begun.append(name)
        run(name, *what, **how)

    monkeypatch.setattr(job.housekeeper._background, "run", noted)
    for _ in range(3):
        checkpoint(job)
    assert "housekeeping" in begun
    assert "sweep" not in begun
    store.go_on.set()
    wait_until(lambda: (job.poll(), not sweeping.is_set())[1], WAITS, "the sweep to end")
    checkpoint(job)
    wait_until(lambda: (job.poll(), "sweep" in begun)[1], WAITS, "another sweep")
