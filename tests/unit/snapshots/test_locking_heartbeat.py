"""A lock in a store: alive while it beats, watched by clocks that are never compared."""

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from moorage_testing.faulty_store import Fault, FaultyStore

from moorage_state.errors import StoreUnavailable, UserError
from moorage_state.snapshots import LockHolder
from moorage_state.snapshots.run_lock import (
    LOCK_KEY,
    DirectoryLock,
    HeartbeatLock,
    Pace,
    acquire_lock,
)
from moorage_state.stores import LocalStore, MemoryStore, S3Store

QUICK = Pace(beat=0.01, patience=5.0, look=0.005)


class Watcher:
    """A clock that only waiting moves, and somebody who does something after so many seconds."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.at: list[tuple[float, Callable[[], object]]] = []

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        due = [act for at, act in self.at if at <= self.now]
        self.at = [(at, act) for at, act in self.at if at > self.now]
        for act in due:
            act()

    def after(self, seconds: float, act: Callable[[], object]) -> None:
        self.at.append((self.now + seconds, act))

    @property
    def pace(self) -> Pace:
        return Pace(clock=lambda: self.now, sleep=self.sleep)


@pytest.fixture
def me(start: datetime) -> LockHolder:
    return LockHolder.current("flights", start)


@pytest.fixture
def other(me: LockHolder) -> LockHolder:
    return replace(me, pid=77, host="elsewhere", job="trains")


@pytest.fixture
def watcher() -> Watcher:
    return Watcher()


def leave(store: MemoryStore, holder: LockHolder, beats: int = 0, mark: str = "dead") -> None:
    """Write what a holder wrote before it died."""
    store.put(
        LOCK_KEY,
        json.dumps(
            {
                "moorage-lock": 0, "pid": holder.pid, "host": holder.host, "job": holder.job,
                "since": holder.since, "token": mark, "beats": beats,
            }
        ).encode(),
    )  # fmt: skip


def wait_until(true: Callable[[], Any]) -> None:
    never = threading.Event()
    for _ in range(2_000):
        if true():
            return
        never.wait(0.005)
    pytest.fail("it did not happen")


@pytest.fixture
def held(store: MemoryStore, other: LockHolder) -> Iterator[HeartbeatLock]:
    with HeartbeatLock.acquire(store, other, pace=QUICK) as lock:
        yield lock


def test_a_free_lock_is_taken_at_once_and_names_its_holder(
    store: MemoryStore, me: LockHolder
) -> None:
    with HeartbeatLock.acquire(store, me):
        fields = json.loads(store.get(LOCK_KEY))
    assert (fields["pid"], fields["job"]) == (os.getpid(), "flights")
    assert store.head(LOCK_KEY) is None


def test_a_living_holder_is_named_and_left_alone(
    store: MemoryStore, me: LockHolder, held: HeartbeatLock
) -> None:
    with pytest.raises(UserError) as caught:
        HeartbeatLock.acquire(store, me, pace=QUICK)
    text = str(caught.value)
    assert "holder: pid=77 host=elsewhere job=trains" in text
    assert "--take-over" in text
    assert held._thread.is_alive()


def test_a_holder_that_never_beats_again_is_replaced_after_thirty_seconds_and_not_before(
    store: MemoryStore, me: LockHolder, other: LockHolder, watcher: Watcher
) -> None:
    leave(store, other)
    began = watcher.now
    said: list[str] = []
    lock = HeartbeatLock.acquire(store, me, pace=watcher.pace, watching=said.append)
    assert 30 <= watcher.now - began < 32
    assert "pid=77" in said[0]
    assert "30 seconds" in said[0]
    lock.release()


def test_a_beat_in_the_last_moment_is_a_living_holder(
    store: MemoryStore, me: LockHolder, other: LockHolder, watcher: Watcher
) -> None:
    leave(store, other)
    watcher.after(29, lambda: leave(store, other, beats=1))
    with pytest.raises(UserError, match="pid=77"):
        HeartbeatLock.acquire(store, me, pace=watcher.pace)
    assert json.loads(store.get(LOCK_KEY))["pid"] == 77


def test_a_lock_that_is_released_while_it_is_watched_is_taken_at_once(
    store: MemoryStore, me: LockHolder, other: LockHolder, watcher: Watcher
) -> None:
    leave(store, other)
    began = watcher.now
    watcher.after(3, lambda: store.delete(LOCK_KEY))
    HeartbeatLock.acquire(store, me, pace=watcher.pace).release()
    assert watcher.now - began < 5


def test_what_the_holders_clock_says_does_not_matter(
    store: MemoryStore, me: LockHolder, other: LockHolder, watcher: Watcher
) -> None:
    leave(store, replace(other, since="1970-01-01T00:00:00+00:00"))
    began = watcher.now
    HeartbeatLock.acquire(store, me, pace=watcher.pace).release()
    assert watcher.now - began >= 30


def test_of_two_that_waited_as_long_the_one_that_wrote_first_steps_back(
    store: MemoryStore, me: LockHolder, other: LockHolder, watcher: Watcher
) -> None:
    leave(store, other)

    class Racing(MemoryStore):
        def put(self, key: str, data: bytes) -> None:
            store.put(key, data)
            leave(store, other, mark="the other one")

        def get(self, key: str, *, offset: int = 0, length: int | None = None) -> bytes:
            return store.get(key, offset=offset, length=length)

        def put_if_absent(self, key: str, data: bytes) -> None:
            store.put_if_absent(key, data)

    with pytest.raises(UserError, match="pid=77"):
        HeartbeatLock.acquire(Racing("racing"), me, pace=watcher.pace)


def test_insisting_takes_the_lock_at_once_and_the_other_stops_beating(
    store: MemoryStore,
    me: LockHolder,
    held: HeartbeatLock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING), HeartbeatLock.acquire(store, me, take_over=True):
        wait_until(lambda: not held._thread.is_alive())
        held.release()
        assert json.loads(store.get(LOCK_KEY))["job"] == "flights"
    assert "lock_taken_over" in caplog.text


def test_a_last_beat_of_the_one_that_was_replaced_does_not_win_the_lock_back(
    store: MemoryStore, me: LockHolder, other: LockHolder
) -> None:
    leave(store, other)
    with HeartbeatLock.acquire(store, me, take_over=True, pace=QUICK) as lock:
        leave(store, other, beats=1)
        wait_until(lambda: json.loads(store.get(LOCK_KEY))["job"] == "flights")
        assert lock._thread.is_alive()


def test_a_store_that_fails_does_not_stop_the_heart(store: MemoryStore, me: LockHolder) -> None:
    faulty = FaultyStore(store)
    with HeartbeatLock.acquire(faulty, me, pace=QUICK) as lock:
        faulty.inject(Fault.BEFORE, "get", times=3)
        faulty.inject(Fault.AFTER, "put", times=3)
        before = json.loads(store.get(LOCK_KEY))["beats"]
        wait_until(lambda: json.loads(store.get(LOCK_KEY))["beats"] > before + 10)
        assert lock._thread.is_alive()


def test_a_store_that_fails_at_release_keeps_nobody_from_ending(
    store: MemoryStore, me: LockHolder, caplog: pytest.LogCaptureFixture
) -> None:
    faulty = FaultyStore(store)
    lock = HeartbeatLock.acquire(faulty, me)
    faulty.inject(Fault.BEFORE, "delete")
    lock.release()
    lock.release()
    assert "lock_not_released" in caplog.text


def test_a_store_that_does_not_answer_is_not_a_free_lock(
    store: MemoryStore, me: LockHolder, other: LockHolder, watcher: Watcher
) -> None:
    leave(store, other)
    faulty = FaultyStore(store)
    faulty.inject(Fault.BEFORE, "get")
    with pytest.raises(StoreUnavailable):
        HeartbeatLock.acquire(faulty, me, pace=watcher.pace)


@pytest.mark.parametrize("junk", [b"", b"not json", b"[1]", b'{"pid": 1}'])
def test_something_else_under_the_name_of_the_lock_is_an_unknown_holder(
    store: MemoryStore, me: LockHolder, watcher: Watcher, junk: bytes
) -> None:
    store.put(LOCK_KEY, junk)
    watcher.after(2, lambda: store.put(LOCK_KEY, junk + b" "))
    with pytest.raises(UserError, match="holder: unknown"):
        HeartbeatLock.acquire(store, me, pace=watcher.pace)


def test_each_store_gets_the_lock_that_it_can_keep(
    store: MemoryStore, me: LockHolder, tmp_path: Path, s3_store: S3Store
) -> None:
    for one, kind in ((LocalStore(tmp_path), DirectoryLock), (s3_store, HeartbeatLock)):
        with acquire_lock(one, me) as lock:
            assert isinstance(lock, kind)
        lock.release()
    with acquire_lock(store, me), acquire_lock(store, me) as lock:
        lock.release()
    assert list(s3_store.list("")) == []


def test_on_a_real_store_a_second_run_is_refused_until_the_first_one_ends(
    s3_store: S3Store, me: LockHolder, other: LockHolder
) -> None:
    with HeartbeatLock.acquire(s3_store, other, pace=QUICK), pytest.raises(UserError, match="77"):
        HeartbeatLock.acquire(s3_store, me, pace=QUICK)
    HeartbeatLock.acquire(s3_store, me, pace=QUICK).release()
