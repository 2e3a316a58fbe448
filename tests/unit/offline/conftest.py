"""Real checkpoint directories of a small job, built once and copied for each test."""

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from moorage_testing.lineages import APART, INLINE, PACKED, build

LIMITS = {"apart": APART, "packed": PACKED, "inline": INLINE}


@pytest.fixture(scope="session")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lineages")
    for name, limits in LIMITS.items():
        build(root / name, root / f"scratch-{name}", limits)
    return root


@pytest.fixture
def new_directory(originals: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A checkpoint directory whose files are `apart`, `packed` or `inline`."""

    def make(kind: str = "apart") -> Path:
        return Path(shutil.copytree(originals / kind, tmp_path / kind))

    return make


@pytest.fixture
def directory(new_directory: Callable[[str], Path]) -> Path:
    return new_directory("apart")


@pytest.fixture
def now() -> datetime:
    return datetime(2026, 1, 3, tzinfo=UTC)
