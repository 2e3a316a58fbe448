"""Whole lives of a lineage against a dictionary: drivers crash, stall and race, on a bad store.

Each seed is one life; its last word is that the store holds exactly what live checkpoints name.
"""

import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from moorage_testing.lives import BadStore, Crash, Driver, Expected

from moorage_state import failpoints
from moorage_state.errors import Fenced, Retryable
from moorage_state.snapshots import (
    MAX_INLINE_BYTES,
    Checkpoint,
    CheckpointStore,
    LineageLog,
    retained,
    verify_files,
)
from moorage_state.stores import MemoryStore

STEPS = 40


class Life:
    """A lineage, the driver that has it, one that lost it, and what must be true of them."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng = random.Random(seed)
        self.folder = folder
        self.inner = MemoryStore(f"life-{seed}")
        self.store = BadStore(self.inner, random.Random(seed + 1))
        self.expected = Expected()
        self.born = 0
        self.stalled: Driver | None = None
        self.driver = self.begin()

    def begin(self) -> Driver:
        """A new driver takes over; it must find the state of the last completed checkpoint."""
        rate, self.store.rate = self.store.rate, 0.0
        self.born += 1
        folder = self.folder / f"driver{self.born}"
        driver = Driver(self.store, folder, self.rng, self.expected)
        found = driver.base
        name = (found.fence, found.checkpoint_id) if found else None
        assert name in {self.expected.acknowledged, *self.expected.attempted}
        assert driver.state() == (self.expected.taken[name] if name else {})
        self.expected.acknowledged = name
        self.expected.attempted = set()
        self.store.rate = rate
        return driver

    def step(self) -> None:
        driver = self.driver
        steps: list[tuple[Callable[[], object], int]] = [
            (driver.write, 8),
            (driver.upload, 6),
            (driver.complete, 6),
            (driver.abandon, 1),
            (driver.retire, 3),
            (driver.sweep, 2),
        ]
        (chosen,) = self.rng.choices([s for s, _ in steps], [weight for _, weight in steps])
        try:
            with self.crashing():
                chosen()
        except Crash:
            self.driver = self.begin()
        except Retryable:
            self.failed(driver, chosen)
        if self.rng.random() < 0.05:
            self.stalled, self.driver = self.driver, self.begin()
        if self.stalled is not None and self.rng.random() < 0.3:
            self.stalled_step(self.stalled)
        self.check()

    def failed(self, driver: Driver, chosen: Callable[[], object]) -> None:
        """The store failed; a driver tries again later, or is restarted."""
        if chosen == driver.upload:
            for _, snapshots in driver.ranges:
                snapshots.aborted(driver.last_id)
        if self.rng.random() < 0.2:
            self.driver = self.begin()

    def stalled_step(self, driver: Driver) -> None:
        """One that was overtaken wakes up: it may upload, and must not get any further."""
        expected = self.expected
        acknowledged, attempted = expected.acknowledged, set(expected.attempted)
        entries = len(list(self.inner.list("log/")))
        before = {info.key for info in self.inner.list("")}
        actions: list[Callable[[], object]] = [
            driver.upload,
            driver.complete,
            driver.retire,
            driver.sweep,
        ]
        action = self.rng.choice(actions)
        action_deletes = action in (driver.retire, driver.sweep)
        with suppress(Fenced, Retryable):
            action()
        expected.acknowledged, expected.attempted = acknowledged, attempted
        assert len(list(self.inner.list("log/"))) == entries
        if action_deletes:
            assert before <= {info.key for info in self.inner.list("")}

    @contextmanager
    def crashing(self) -> Iterator[None]:
        """Now and then the process ends at some place that it passes."""
        left = self.rng.randrange(12) if self.rng.random() < 0.25 else -1
        lock = threading.Lock()

        def pass_by(_place: str) -> None:
            nonlocal left
            with lock:
                left -= 1
                if left == -1:
                    raise Crash

        if left < 0:
            yield
            return
        with failpoints.watched(pass_by):
            yield

    def live(self) -> list[Checkpoint]:
        return list(retained(entry for _, entry in LineageLog.open(self.inner).read()))

    def check(self) -> None:
        """Every checkpoint that exists is whole, whatever was deleted."""
        checkpoints = CheckpointStore(self.inner)
        for entry in self.live():
            verify_files(self.inner, checkpoints.load(entry), full=False)

    def end(self) -> None:
        """On a good store: a last checkpoint, retirement, sweep; then nothing is left over."""
        self.store.rate = 0.0
        self.driver = driver = self.begin()
        driver.write()
        driver.upload()
        driver.complete()
        driver.retire(1)
        driver.sweep()
        checkpoints = CheckpointStore(self.inner)
        named = set()
        for entry in self.live():
            manifest = checkpoints.load(entry)
            verify_files(self.inner, manifest, full=True)
            assert sum(f.size for f in manifest.files if f.inline) <= MAX_INLINE_BYTES
            named |= {entry.manifest_key, *manifest.keys}
        stored = {info.key for info in self.inner.list("")}
        assert {key for key in stored if not key.startswith("log/")} == named
        self.begin()


def live_once(seed: int, folder: Path) -> None:
    life = Life(seed, folder)
    life.store.rate = life.rng.choice([0.0, 0.01, 0.05])
    for _ in range(STEPS):
        life.step()
    life.end()
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def one_transfer_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a seed means the same faults at the same places whenever it is run."""
    monkeypatch.setattr("moorage_state.server.uploading._UPLOAD_THREADS", 1)
    monkeypatch.setattr("moorage_state.server.fetching._TRANSFERS", 1)


@pytest.mark.parametrize("seed", range(50))
def test_no_state_is_lost_and_nothing_is_left_over(seed: int, tmp_path: Path) -> None:
    live_once(seed, tmp_path / "life")


@pytest.mark.soak
def test_a_thousand_lives_end_well(soak_seconds: float, tmp_path: Path) -> None:
    end = time.monotonic() + soak_seconds
    for seed in range(50, 1000):
        if time.monotonic() > end:
            break
        live_once(seed, tmp_path / str(seed))
