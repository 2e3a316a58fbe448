"""The databases of one process: opened by its backend, copies by the backend that wrote them.

Decides which backend opens a handle's files: the one that the handle names, never another. Called
by restore and exports of a state server, and by offline readers.
"""

import threading
from pathlib import Path
from typing import Any

from moorage_state.database import RangeDatabase, StoredFiles
from moorage_state.errors import UserError
from moorage_state.memory import SNAPSHOT_FILE
from moorage_state.snapshots import RangeHandle
from moorage_state.state_backends.state_backend import BUILT_IN, StateBackend, received_backend

_NAMELESS = frozenset({"rocksdb", "hashmap"})
"""Whose handles bear no name: they are as old as the format, and told apart by their files. Nothing
is added: what is written from here on names its backend, a built-in one too."""


def owner_of(handle: RangeHandle) -> str:
    """The identifier of the backend that wrote the files of a native handle."""
    if isinstance(handle.backend, str):
        return handle.backend
    return "hashmap" if any(ref.name == SNAPSHOT_FILE for ref in handle.files) else "rocksdb"


def check_owner(owner: str, reader: str, where: str) -> None:
    """Refuse files that no code at hand has written; of the built-in backends it always is.

    Args:
        owner: the identifier of the backend whose files they are.
        reader: that of the backend which is to go on with them.
        where: names them in the error.

    Raises:
        UserError: saying how to go on.
    """
    if owner != reader and owner not in BUILT_IN:
        raise UserError(
            f"files of another state backend cannot be opened: written_by={owner} "
            f"opened_by={reader} {where}; start the job with {owner} once more, take a canonical "
            f"savepoint, and restore from that"
        )


class Databases:
    """The databases of one process, and what they share.

    Args:
        backend: opens the working databases.
    """

    def __init__(self, backend: StateBackend) -> None:
        self.backend = backend
        keeper = _keeper(backend)
        self.owner = keeper.identifier
        self.unchanging = keeper.unchanging
        self.leave_out = keeper.leave_out
        self.write_part = keeper.write_part
        self.stored = keeper.stored
        self.reads_in_place = keeper.reads_in_place
        self._lock = threading.Lock()
        self._memory: dict[str, Any] = {}

    @property
    def label(self) -> str:
        """What handles of these databases' files say of their owner."""
        return "" if self.owner in _NAMELESS else self.owner

    def open(
        self,
        path: Path,
        groups: tuple[int, int] | None = None,
        stored: StoredFiles | None = None,
    ) -> RangeDatabase:
        """The working database at `path`, empty if nothing lies there.

        Args:
            groups: key groups, (first, last), that are needed; others may be left out.
            stored: where those of its files are that have no bytes, see `StateBackend.stored`.
        """
        memory = self._shared(self.backend)
        return self.backend.open_database(path, memory, groups, **_where(stored))

    def open_copy(
        self,
        path: Path,
        owner: str = "",
        groups: tuple[int, int] | None = None,
        stored: StoredFiles | None = None,
    ) -> RangeDatabase:
        """A copy to be read and closed soon, of which no file changes.

        Args:
            owner: the identifier of the backend that wrote it; this one's if empty.
            stored: see `open`.

        Raises:
            UserError: its code is not at hand here.
        """
        backend = self._owner(owner or self.owner, path)
        memory = self._shared(backend)
        return backend.open_database(path, memory, groups, read_only=True, **_where(stored))

    def _owner(self, owner: str, path: Path) -> StateBackend:
        check_owner(owner, self.owner, f"path={path}")
        return self.backend if owner == self.owner else received_backend(owner, "{}")

    def _shared(self, backend: StateBackend) -> Any:
        """Made when it is needed: memory has no use for a block cache."""
        with self._lock:
            if backend.identifier not in self._memory:
                self._memory[backend.identifier] = backend.process_memory()
            return self._memory[backend.identifier]


def _where(stored: StoredFiles | None) -> dict[str, Any]:
    """Told only to those who asked for it: the others' `open_database` takes no such thing."""
    return {} if stored is None else {"stored": stored}


def _keeper(backend: StateBackend) -> StateBackend:
    """The backend that files are of, below those which add something to it."""
    while (below := getattr(backend, "delegated_state_backend", None)) is not None:
        backend = below
    return backend
