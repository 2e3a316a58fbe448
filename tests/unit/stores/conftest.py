from collections.abc import Iterator
from pathlib import Path

import pytest

from moorage_state.stores import LocalStore, MemoryStore, ObjectStore


@pytest.fixture(params=["file", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    if request.param == "file":
        yield LocalStore(tmp_path)
        return
    if request.param == "s3":
        yield request.getfixturevalue("s3_store")
        return
    name = f"contract-{tmp_path.name}"
    yield MemoryStore.named(name)
    MemoryStore.forget(name)
