"""What the state server asks of a range's database, whichever backend keeps it.

Called by everything that reads or writes a range; implemented by `moorage_state.rocks` and
`moorage_state.memory`. Keys and values are bytes, keys are in the order of their bytes. Holds no
behaviour.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from moorage_state.deltas import Frame

if TYPE_CHECKING:  # offline tools and tests need neither
    from moorage_state.snapshots import FileRef
    from moorage_state.stores import ObjectStore


class StoredFile(NamedTuple):
    """A file of a database that a store has, as a checkpoint lists it."""

    store: "ObjectStore"
    ref: "FileRef"


StoredFiles = Mapping[str, StoredFile]
"""Such files by their names."""

CROWDED = "crowded"
"""A figure of a `StoredDatabase`: 1 if what no checkpoint has takes most of the volume's room."""


class Scan(NamedTuple):
    """Entries under a prefix in key order; not `complete` where a limit cut them off.

    The rest begins after the last key.
    """

    keys: list[bytes]
    values: list[bytes]
    complete: bool


class FileBytes(NamedTuple):
    """A file of a copy that lies elsewhere, to be read in pieces from any thread.

    `read(offset, length)` gives as many bytes, fewer at the end; `place` names the file in errors.
    """

    read: Callable[[int, int], bytes]
    size: int
    place: str


class RangeCursor(Protocol):
    """A forward iterator over a view that is fixed when the cursor is made.

    Raises (every method): `CorruptState` or `LocalDiskError`; an iteration over what cannot be read
    never ends as if there were no more keys.
    """

    def seek(self, key: bytes) -> bytes | None:
        """Go to the first entry at or after `key` and return its key, None at the end."""

    def key(self) -> bytes | None:
        """The key at the cursor, None at the end."""

    def take(self, end: bytes, entries: int, size: int) -> tuple[list[bytes], list[bytes], bool]:
        """Entries from the cursor on, up to the key `end` (excluded), and whether all are there.

        Stops after `entries` entries, or when keys and values reach `size` bytes; at least one
        entry is returned if there is one.
        """

    def take_keys(self, end: bytes, entries: int) -> list[bytes]:
        """At most `entries` keys from the cursor on, up to `end` (excluded)."""


class RangeView(Protocol):
    """The state of a range, to be read.

    Attributes:
        path: names the database in errors.
    """

    path: Path

    def get(self, key: bytes) -> bytes | None:
        """The value of one key, None when absent."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of `keys` in their order, None where absent; keys in order cost least."""

    def cursor(self, lower: bytes, upper: bytes) -> AbstractContextManager[RangeCursor]:
        """A cursor within [lower, upper), which ends with the with block."""


class PendingCopy(Protocol):
    """A copy of a database whose files are still to be written, by any one thread.

    What is written to the database meanwhile is not in it, and does not wait for it.
    """

    @property
    def bytes(self) -> int:
        """About how large the files will be."""

    def view(self) -> RangeView:
        """The state that the copy holds; not after `drop`."""

    def write(self, path: Path, stopped: Callable[[], bool]) -> None:
        """Make the directory `path` of the copy; what an error leaves is deleted.

        Raises:
            LocalDiskError: the volume refuses.
            Retryable: `stopped` says so.
        """

    def drop(self) -> None:
        """Let go of the state; idempotent."""


class RangeDatabase(RangeView, Protocol):
    """An open database. Not thread-safe: the caller holds the lock of the range.

    Every method may raise `CorruptState` (damaged or missing files) or `LocalDiskError` (the volume
    refuses, or memory is used up); after either the database must be closed and rebuilt.

    Attributes:
        bounded: whether `make_room` may refuse anything.
    """

    bounded: bool

    @property
    def timers(self) -> RangeView:
        """Where timers are looked for: the same entries, however they are kept."""

    def apply(
        self,
        frames: Iterable[Frame],
        marker: tuple[bytes, bytes] | None = None,
        *,
        proven: bool = False,
    ) -> None:
        """Write all frames, and the `marker` entry after them, all or none of them.

        An error raised by `frames` passes through and nothing is written.

        Args:
            proven: all frames were read before without an error, and are too many to be held. They
                are written as they come: after an error a part may be written, and the database
                must be closed and rebuilt.
        """

    def make_room(self, frames: Callable[[], Iterable[Frame]], size: int) -> None:
        """Refuse writes that could not be applied, before anybody counts on them.

        Args:
            frames: reads the writes; called only where `size` does not settle it.
            size: their bytes, at least.

        Raises:
            StateTooLarge: they do not fit; nothing has changed.
        """

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Delete every key in [start, end)."""

    def flush(self) -> None:
        """Bring everything written so far to files, if it is kept in files."""

    def checkpoint(self, path: Path) -> PendingCopy | None:
        """Begin a copy of the state as it is now, which comes to the directory `path`.

        `path` must not exist. None when all of it is there already; else `PendingCopy.write` makes
        it, and this call costs about as much as noting what there is.
        """

    def properties(self) -> dict[str, int]:
        """Figures about the database; costs microseconds."""

    def size(self) -> int:
        """Bytes of state, as the database keeps them."""

    def close(self) -> None:
        """Let go of everything; idempotent."""


class StandingView(Protocol):
    """The state as it was at one moment, whatever is written since.

    One thread at a time reads it, beside any that uses the database. Dropped before that is closed.
    """

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of `keys` in their order, None where absent."""

    def drop(self) -> None:
        """Let go of the state; idempotent."""


@runtime_checkable
class StandingDatabase(Protocol):
    """A `RangeDatabase` besides: what it has now can be read while more is written."""

    def standing(self) -> StandingView:
        """The state as it is now; costs microseconds, and what replaces it room until `drop`."""


@runtime_checkable
class StoredDatabase(Protocol):
    """A `RangeDatabase` besides: files of it may be in the store alone.

    Made by a backend that says so (`StateBackend.stored`). In its directory, and in copies of it,
    such a file has no bytes. A read of what cannot be fetched raises `StoreUnavailable`, and the
    database goes on; a `CorruptState` that names the object says that it will not come.
    """

    def located(self, stored: StoredFiles) -> None:
        """A checkpoint of the database is complete and lists these of its files.

        The store has them until the next such call, by which time a newer one does.
        """

    def whole(self, path: Path) -> AbstractContextManager[None]:
        """Have the bytes of `path`, a file of a copy of the database, there for the with block.

        Any thread may ask, without the lock of the range.
        """

    def frozen(self) -> AbstractContextManager[StoredFiles]:
        """Where files of a copy are; what it has besides stays for the length of the with block.

        Any thread may ask, without the lock of the range.
        """
