"""Whole lives of a lineage against a dictionary: drivers crash, stall and race, on a bad store.

    world = BadWorld(MemoryStore("life"), seed)
    life = Life(seed, folder, world)
    life.live(40)

A world is where the lineage lies: what drivers see of it, which goes wrong, and what is really
there. Each seed is one life; its last word is that the store holds exactly what live checkpoints
name, and that what is restored from it is what the dictionary says.
"""

import random
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from moorage_state import failpoints
from moorage_state.errors import CorruptState, Fenced, MoorageError, Retryable
from moorage_state.snapshots import (
    MAX_INLINE_BYTES,
    Checkpoint,
    CheckpointStore,
    Entry,
    Fence,
    LineageLog,
    retained,
    verify_files,
)
from moorage_state.snapshots.object_keys import VIEW_KEY
from moorage_state.stores import ObjectStore
from moorage_testing.lives import BadStore, Crash, Driver, Expected

__all__ = ["BadWorld", "Life", "World", "check_nothing_left_over", "existing", "takeovers"]


class World(Protocol):
    """Where a lineage lies.

    Attributes:
        store: what drivers see.
        truth: the same without faults.
        fatal: what ends a driver, because a person must act or because the network lied.
        births: how often a driver tries to begin among faults, before they end for it.
    """

    store: Any
    truth: ObjectStore
    fatal: tuple[type[MoorageError], ...]
    births: int

    def calm(self) -> AbstractContextManager[None]:
        """No faults meanwhile."""

    def outage(self, rng: random.Random) -> AbstractContextManager[None]:
        """Perhaps everything of some kind fails meanwhile."""

    def look(self) -> ObjectStore:
        """What is really there at this moment, for reading."""


class BadWorld:
    """A store whose calls fail, before or after they took effect."""

    fatal: tuple[type[MoorageError], ...] = ()
    births = 0

    def __init__(self, truth: ObjectStore, rng: random.Random) -> None:
        self.truth = truth
        self.store = BadStore(truth, rng)

    @contextmanager
    def calm(self) -> Iterator[None]:
        rate, self.store.rate = self.store.rate, 0.0
        yield
        self.store.rate = rate

    def outage(self, rng: random.Random) -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()

    def look(self) -> ObjectStore:
        return self.truth


class Life:
    """A lineage, the driver that has it, one that lost it, and what must be true of them.

    Attributes:
        tally: what happened: births, crashes, and errors that drivers met, by their codes.
    """

    def __init__(self, seed: int, folder: Path, world: World) -> None:
        self.rng = random.Random(seed)
        self.folder = folder
        self.world = world
        self.expected = Expected()
        self.tally: Counter[str] = Counter()
        self.stalled: Driver | None = None
        self.driver = self.begin()

    def live(self, steps: int) -> None:
        """Live through so many steps, and end well."""
        for _ in range(steps):
            self.step()
        self.end()
        shutil.rmtree(self.folder)

    def begin(self) -> Driver:
        """A new driver takes over, at the latest when there are no faults any more."""
        passing: tuple[type[MoorageError], ...] = (Retryable, *self.world.fatal)
        for _ in range(self.world.births):
            try:
                return self._begin()
            except passing as error:
                self.tally[f"birth: {error.code}"] += 1
        with self.world.calm():
            return self._begin()

    def _begin(self) -> Driver:
        """A new driver takes over; it must find the state of the last completed checkpoint."""
        self.tally["born"] += 1
        folder = self.folder / f"driver{self.tally['born']}"
        driver = Driver(self.world.store, folder, self.rng, self.expected)
        found = driver.base
        name = (found.fence, found.checkpoint_id) if found else None
        assert name in {self.expected.acknowledged, *self.expected.attempted}
        assert driver.state() == (self.expected.taken[name] if name else {})
        self.expected.acknowledged = name
        self.expected.attempted = set()
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
        with self.world.outage(self.rng):
            try:
                with self.crashing():
                    chosen()
            except Crash:
                self.tally["crash"] += 1
                self.driver = self.begin()
            except Retryable as error:
                self.tally[error.code] += 1
                self.failed(driver, chosen)
            except self.world.fatal as error:
                self.tally[error.code] += 1
                self.driver = self.begin()
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
        before = {info.key for info in self.world.truth.list("")}
        actions: list[Callable[[], object]] = [
            driver.upload,
            driver.complete,
            driver.retire,
            driver.sweep,
        ]
        action = self.rng.choice(actions)
        # What it would build on, its successor may have let go.
        with suppress(Fenced, Retryable, CorruptState, *self.world.fatal):
            action()
        expected.acknowledged, expected.attempted = acknowledged, attempted
        after = {info.key for info in self.world.truth.list("")}
        assert _of_the_log(after) == _of_the_log(before)
        if action in (driver.retire, driver.sweep):
            assert before <= after

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

    def check(self) -> None:
        """Every checkpoint that exists is whole, whatever was deleted."""
        store = self.world.look()
        checkpoints = CheckpointStore(store)
        for entry in existing(store):
            verify_files(store, checkpoints.load(entry), full=False)

    def end(self) -> None:
        """On a good store: a last checkpoint, retirement, sweep; then nothing is left over."""
        with self.world.calm():
            self.driver = driver = self.begin()
            driver.write()
            driver.upload()
            driver.complete()
            driver.retire(1)
            driver.sweep_all()
            check_nothing_left_over(self.world.truth)
            self.begin()


def existing(store: ObjectStore) -> list[Checkpoint]:
    """The checkpoints that exist by the log in this store."""
    return list(retained(entry for _, entry in LineageLog.open(store).read()))


def takeovers(entries: Iterable[Entry]) -> int:
    """How often another driver took the lineage; drivers are told apart by their folders' names."""
    holders = [entry.holder.partition("-")[0] for entry in entries if isinstance(entry, Fence)]
    return sum(one != next_one for one, next_one in pairwise(holders))


def check_nothing_left_over(store: ObjectStore) -> None:
    """Every byte of every checkpoint is right, and beside them and the log there is nothing."""
    checkpoints = CheckpointStore(store)
    named = set()
    for entry in existing(store):
        manifest = checkpoints.load(entry)
        verify_files(store, manifest, full=True)
        assert sum(f.size for f in manifest.files if f.inline) <= MAX_INLINE_BYTES
        named |= {entry.manifest_key, *manifest.keys}
    stored = {info.key for info in store.list("")}
    left = stored - _of_the_log(stored) - named
    assert not left, f"{sorted(left)} of {len(stored)} objects, at {store.now()}"
    assert named <= stored


def _of_the_log(keys: set[str]) -> set[str]:
    return {key for key in keys if key.startswith("log/") or key == VIEW_KEY}
