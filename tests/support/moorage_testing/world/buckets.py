"""Object stores that can be switched off, deny access or lose something."""

import itertools
from datetime import datetime
from typing import ClassVar

from moorage_state.errors import StoreDenied, StoreUnavailable
from moorage_state.snapshots import Checkpoint, CheckpointStore, LineageLog, SavepointStore
from moorage_state.snapshots.entries import Entry
from moorage_state.snapshots.savepoints import MANIFEST_KEY
from moorage_state.stores import MemoryStore, open_store

__all__ = ["Buckets"]


class Buckets:
    """Every `s3://` address of a world is a store in memory of its own.

    Attributes:
        down: nothing answers.
        denied: everything is refused, as for a missing permission.
        preflights: versions that were tried by a pod, by job and task: the image.
    """

    _worlds: ClassVar["itertools.count[int]"] = itertools.count()

    def __init__(self) -> None:
        self._world = next(self._worlds)
        self._names: set[str] = set()
        self.down = False
        self.denied = False
        self.preflights: dict[tuple[str, str], str] = {}

    def check(self) -> None:
        """Raise what a call to the store would raise now."""
        if self.down:
            raise StoreUnavailable("the store does not answer: store=s3")
        if self.denied:
            raise StoreDenied("the store refuses access: store=s3 code=AccessDenied")

    def url(self, address: str) -> str:
        """The address of the store in memory that stands for this one."""
        name = f"world{self._world}-" + address.removeprefix("s3://").strip("/").replace("/", "_")
        self._names.add(name)
        return f"memory://{name}"

    def store(self, address: str) -> MemoryStore:
        """The store itself, whatever is wrong with it."""
        store = open_store(self.url(address))
        assert isinstance(store, MemoryStore)
        return store

    def named(self, url: str) -> MemoryStore:
        """The store at an address in memory, as logs and views have it."""
        store = open_store(url)
        assert isinstance(store, MemoryStore)
        return store

    def entries(self, address: str) -> list[Entry]:
        """The log of the lineage there."""
        return [entry for _, entry in LineageLog.open(self.store(address)).read()]

    def checkpoints(self, address: str) -> CheckpointStore:
        """The checkpoints of the lineage there."""
        return CheckpointStore(self.store(address))

    def savepoint(self, address: str) -> SavepointStore:
        """The savepoint's directory."""
        return SavepointStore(self.url(address), create=True)

    def has_savepoint(self, address: str) -> bool:
        """Whether a completed one lies there."""
        return self.store(address).head(MANIFEST_KEY) is not None

    def completed(self, address: str) -> list[tuple[datetime, int]]:
        """When which checkpoints of the lineage were completed."""
        return [
            (entry.completed_at, entry.checkpoint_id)
            for entry in self.entries(address)
            if isinstance(entry, Checkpoint)
        ]

    def forget(self) -> None:
        """Let go of everything."""
        for name in self._names:
            MemoryStore.forget(name)
