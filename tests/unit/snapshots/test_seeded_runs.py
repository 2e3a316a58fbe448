"""Whole lives of a lineage against a dictionary: drivers crash, stall and race, on a bad store.

Each seed is one life; its last word is that the store holds exactly what live checkpoints name.
"""

import random
import time
from pathlib import Path

import pytest
from moorage_testing.whole_lives import BadWorld, Life

from moorage_state.stores import LocalStore, MemoryStore, ObjectStore

STEPS = 40


def live_once(seed: int, folder: Path, store: ObjectStore | None = None) -> None:
    world = BadWorld(store or MemoryStore(f"life-{seed}"), random.Random(seed + 1))
    life = Life(seed, folder, world)
    world.store.rate = life.rng.choice([0.0, 0.01, 0.05])
    life.live(STEPS)


@pytest.fixture(autouse=True)
def one_transfer_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a seed means the same faults at the same places whenever it is run."""
    monkeypatch.setattr("moorage_state.server.uploads._UPLOAD_THREADS", 1)
    monkeypatch.setattr("moorage_state.server.restore._TRANSFERS", 1)


@pytest.mark.parametrize("seed", range(50))
def test_no_state_is_lost_and_nothing_is_left_over(seed: int, tmp_path: Path) -> None:
    live_once(seed, tmp_path / "life")


@pytest.mark.parametrize("seed", range(10))
def test_no_state_is_lost_in_a_directory(seed: int, tmp_path: Path) -> None:
    live_once(seed, tmp_path / "life", LocalStore(tmp_path / "store", create=True))


@pytest.mark.soak
def test_a_thousand_lives_end_well(soak_seconds: float, tmp_path: Path) -> None:
    end = time.monotonic() + soak_seconds
    for seed in range(50, 1000):
        if time.monotonic() > end:
            break
        live_once(seed, tmp_path / str(seed))
