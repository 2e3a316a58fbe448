"""Places of every kind of store."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from moorage_state.stores import MemoryStore, ObjectStore, open_store
from moorage_state.stores.addresses import child


class Places:
    """Addresses below one place, and the stores there."""

    def __init__(self, base: Callable[[str], str]) -> None:
        self._base = base

    def url(self, name: str) -> str:
        return self._base(name)

    def store(self, name: str) -> ObjectStore:
        return open_store(self.url(name), create=True)

    def keys(self, name: str) -> list[str]:
        return [info.key for info in self.store(name).list("")]


@pytest.fixture(params=["memory", "file", "s3"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Places]:
    here, made = uuid.uuid4().hex[:8], []

    def in_memory(name: str) -> str:
        made.append(f"{here}-{name}")
        return f"memory://{here}-{name}"

    if request.param == "memory":
        yield Places(in_memory)
    elif request.param == "file":
        yield Places(lambda name: child(f"file://{tmp_path}", name))
    else:
        server = request.getfixturevalue("s3_server")
        yield Places(lambda name: server.url(f"{here}/{name}"))
    for name in made:
        MemoryStore.forget(name)
