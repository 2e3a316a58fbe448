"""Objects that an upload writes, remembered so that they can be deleted again."""

import threading
from collections.abc import Collection, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from moorage_state.errors import MoorageError
from moorage_state.stores import ObjectInfo, ObjectStore

__all__ = ["RecordingStore"]


class RecordingStore:
    """An `ObjectStore` that knows what was put into it; see there for the methods."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._put: list[str] = []

    @property
    def url(self) -> str:
        """See `ObjectStore`."""
        return self._store.url

    def get(self, key: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """See `ObjectStore`."""
        return self._store.get(key, offset=offset, length=length)

    def get_to_file(
        self, key: str, path: Path, *, offset: int = 0, length: int | None = None
    ) -> None:
        """See `ObjectStore`."""
        self._store.get_to_file(key, path, offset=offset, length=length)

    def put(self, key: str, data: bytes) -> None:
        """See `ObjectStore`."""
        self._remember(key)
        self._store.put(key, data)

    def put_file(self, key: str, path: Path) -> None:
        """See `ObjectStore`."""
        self._remember(key)
        self._store.put_file(key, path)

    def put_if_absent(self, key: str, data: bytes) -> None:
        """See `ObjectStore`."""
        self._store.put_if_absent(key, data)
        self._remember(key)

    def head(self, key: str) -> ObjectInfo | None:
        """See `ObjectStore`."""
        return self._store.head(key)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """See `ObjectStore`."""
        return self._store.list(prefix, start_after)

    def delete(self, key: str) -> None:
        """See `ObjectStore`."""
        self._store.delete(key)

    def delete_many(self, keys: Collection[str]) -> dict[str, MoorageError]:
        """See `ObjectStore`."""
        return self._store.delete_many(keys)

    def now(self) -> datetime:
        """See `ObjectStore`."""
        return self._store.now()

    def take_back(self) -> None:
        """Delete what was put; what cannot be deleted is left, under names nobody will use."""
        with self._lock:
            keys, self._put = self._put, []
        with suppress(MoorageError):
            self._store.delete_many(keys)

    def _remember(self, key: str) -> None:
        # Before the put: one whose reply is lost may have happened.
        with self._lock:
            self._put.append(key)
