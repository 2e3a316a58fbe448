"""The store that lives in this process: the twin of the real ones for tests and examples."""
# ruff: noqa: D102  `ObjectStore` documents the methods

import threading
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

from moorage_state.errors import AlreadyExists, LocalDiskError, MoorageError, ObjectNotFound
from moorage_state.stores.base import (
    ObjectInfo,
    check_key,
    check_prefix,
    check_slice,
    delete_each,
    short_object,
)


def _utc_now() -> datetime:
    return datetime.now(UTC)


class MemoryStore:
    """Objects in a dictionary, shared by all users of the same name in this process."""

    _named: ClassVar[dict[str, "MemoryStore"]] = {}
    _named_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, name: str, clock: Callable[[], datetime] = _utc_now) -> None:
        self._name = name
        self._clock = clock
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[bytes, datetime]] = {}

    @classmethod
    def named(cls, name: str) -> "MemoryStore":
        """Return the one store of this name, an empty one when it is new."""
        with cls._named_lock:
            return cls._named.setdefault(name, cls(name))

    @classmethod
    def forget(cls, name: str) -> None:
        """Let go of the store of this name; the next user gets a new, empty one."""
        with cls._named_lock:
            cls._named.pop(name, None)

    @property
    def url(self) -> str:
        return f"memory://{self._name}"

    def get(self, key: str, *, offset: int = 0, length: int | None = None) -> bytes:
        check_slice(key, offset, length)
        with self._lock:
            found = self._objects.get(key)
        if found is None:
            raise ObjectNotFound(f"no such object: store={self.url} key={key}")
        end = len(found[0]) if length is None else offset + length
        if offset > len(found[0]) or end > len(found[0]):
            raise short_object(self.url, key, len(found[0]))
        return found[0][offset:end]

    def get_to_file(
        self, key: str, path: Path, *, offset: int = 0, length: int | None = None
    ) -> None:
        data = self.get(key, offset=offset, length=length)
        try:
            path.write_bytes(data)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise LocalDiskError(f"cannot write local file: path={path} error={error}") from error

    def put(self, key: str, data: bytes) -> None:
        with self._lock:
            self._objects[check_key(key)] = (bytes(data), self._clock())

    def put_file(self, key: str, path: Path) -> None:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise LocalDiskError(f"cannot read local file: path={path} error={error}") from error
        self.put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> None:
        with self._lock:
            if check_key(key) in self._objects:
                raise AlreadyExists(f"object exists: store={self.url} key={key}")
            self._objects[key] = (bytes(data), self._clock())

    def head(self, key: str) -> ObjectInfo | None:
        with self._lock:
            found = self._objects.get(check_key(key))
        return None if found is None else ObjectInfo(key, len(found[0]), found[1])

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        with self._lock:
            found = sorted(
                (key, len(data), modified)
                for key, (data, modified) in self._objects.items()
                if key.startswith(prefix) and key > start_after
            )
        return (ObjectInfo(*fields) for fields in found)

    def delete(self, key: str) -> None:
        with self._lock:
            self._objects.pop(check_key(key), None)

    def delete_many(self, keys: Collection[str]) -> dict[str, MoorageError]:
        return delete_each(self.delete, keys)

    def now(self) -> datetime:
        return self._clock()
