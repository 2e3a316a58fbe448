"""What every object store can do, and which keys it accepts.

The protocol is the part of S3 that Moorage needs, so that a directory, a dictionary and a bucket
can stand in for one another; all of them run the same contract tests. A store moves bytes under
keys, and knows nothing of what they are.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from moorage_state.errors import (
    AlreadyExists,
    Bug,
    CorruptState,
    MoorageError,
    Retryable,
    StoreDenied,
    StoreUnavailable,
    UserError,
)

MAX_KEY_BYTES = 1024
"""The longest key S3 takes, in bytes of UTF-8."""

_MAX_SEGMENT_BYTES = 255
"""The longest file name that common file systems take."""


class NoSuchBucket(StoreDenied):
    """The bucket does not exist, nor anything in it; other processes are told `StoreDenied`."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One stored object: its key, its size in bytes, and when it was last written (aware, UTC)."""

    key: str
    size: int
    modified: datetime


class ObjectStore(Protocol):
    """Bytes under keys; safe to use from several threads.

    Keys are relative paths with `/` between segments. A key is never at the same time the prefix
    of another one up to a `/` (a directory cannot hold both). No operation reports a store that
    cannot be read as an empty one.

    Every method may raise `StoreUnavailable` (the store does not answer; nothing is known about
    its content, and a write may or may not have happened) and `UserError` (the key is not allowed,
    or the store refuses for a reason that a person must remove, for example a missing permission).
    """

    @property
    def url(self) -> str:
        """The address that `open_store` turns into an equal store."""

    def get(self, key: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Return the object, or its `length` bytes from `offset`; without `length`, up to its end.

        Raises ObjectNotFound, and CorruptState when the object ends before the slice does.
        """

    def get_to_file(
        self, key: str, path: Path, *, offset: int = 0, length: int | None = None
    ) -> None:
        """Like `get`, to the local file `path`, replacing it, without holding it in memory.

        After an error `path` does not exist. Raises ObjectNotFound, CorruptState as `get` does,
        and LocalDiskError when the local side fails.
        """

    def put(self, key: str, data: bytes) -> None:
        """Write the object; readers see the old bytes or the new ones, never a mixture."""

    def put_file(self, key: str, path: Path) -> None:
        """Like `put`, from a local file, streamed. Raises LocalDiskError if it is unreadable."""

    def put_if_absent(self, key: str, data: bytes) -> None:
        """Create the object, or raise AlreadyExists; of two racing callers exactly one succeeds.

        The object is durable and whole when this returns. After StoreUnavailable it may exist.
        """

    def head(self, key: str) -> ObjectInfo | None:
        """Return what is known of the object, or None when the store answers that it has none."""

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects whose key starts with `prefix` and sorts after `start_after`.

        The prefix is a prefix of the text, not of path segments. Keys come in the order of their
        UTF-8 bytes. Objects written or deleted meanwhile may or may not be seen.
        """

    def delete(self, key: str) -> None:
        """Remove the object; succeeds when there is none."""

    def delete_many(self, keys: Collection[str]) -> dict[str, MoorageError]:
        """Remove objects in as few requests as the store allows, in no certain order.

        Returns, by key, the errors of those that may still be there; the others are gone, or never
        were. Raises only where nothing was removed for a key that is not allowed, or where the
        store does not answer at all: then any of them may be gone.
        """

    def now(self) -> datetime:
        """Return the present time (aware, UTC) by the clock that dates the store's objects.

        Ages of objects are differences to it, never to the clock of the machine that asks: it may
        be hours off. It is as fine as the dates of objects are.
        """


def check_key(key: str) -> str:
    """Return `key`, or raise UserError: a key is one or more segments, none hidden or special."""
    for segment in key.split("/"):
        if problem := _segment_problem(segment):
            raise UserError(f"object key is not allowed: key={key!r} reason={problem!r}")
    if len(key.encode()) > MAX_KEY_BYTES:
        raise UserError(f"object key is longer than {MAX_KEY_BYTES} bytes: key={key[:80]!r}...")
    return key


def check_prefix(prefix: str) -> str:
    """Return `prefix`, or raise UserError: every whole segment of it must be allowed in a key."""
    head, _, tail = prefix.rpartition("/")
    if head:
        check_key(head)
    if "/" in prefix and not head:
        raise UserError(f"object prefix is not allowed: prefix={prefix!r} reason='is absolute'")
    if tail:
        check_key(tail)
    return prefix


def check_slice(key: str, offset: int, length: int | None) -> None:
    """Raise Bug for a slice that no object has, UserError for a key that is not allowed."""
    check_key(key)
    if offset < 0 or (length is not None and length < 0):
        raise Bug(f"slice is not one: key={key} offset={offset} length={length}")


def short_object(url: str, key: str, size: int) -> CorruptState:
    """Return the error of an object in the store at `url` that ends before the slice asked for."""
    return CorruptState(
        f"object is shorter than what was asked of it: store={url} size={size}",
        path=key,
        advice="it was damaged or replaced: restore an older checkpoint",
    )


def put_once(store: "ObjectStore", key: str, data: bytes) -> None:
    """Create an object, or find it there as it was to be: the answer to an earlier put was lost.

    Raises `AlreadyExists` where another one is there, and as `ObjectStore.put_if_absent`.
    """
    try:
        store.put_if_absent(key, data)
    except AlreadyExists:
        if store.get(key) != data:
            raise


def delete_each(delete: Callable[[str], None], keys: Collection[str]) -> dict[str, MoorageError]:
    """Return what `ObjectStore.delete_many` does where `delete` removes one object at a time."""
    failed: dict[str, MoorageError] = {}
    for key in [check_key(key) for key in keys]:
        try:
            delete(key)
        except MoorageError as error:
            failed[key] = error
    return failed


def delete_all(store: ObjectStore, keys: Collection[str]) -> None:
    """Remove objects in as few requests as the store allows, as many of them as it can.

    Raises what `delete_many` does, and one error of all that may still be there.
    """
    if failed := store.delete_many(keys):
        raise not_deleted(store, failed)


def not_deleted(store: ObjectStore, failed: Mapping[str, MoorageError]) -> MoorageError:
    """The error for objects that may still be there: of the kind of the first one's."""
    key, error = min(failed.items())
    text = f"objects were not deleted: store={store.url} count={len(failed)} first={key}: {error}"
    return StoreUnavailable(text) if isinstance(error, Retryable) else StoreDenied(text)


def _segment_problem(segment: str) -> str:
    if not segment:
        return "is empty, absolute, or has an empty segment"
    # A directory keeps its lock and its unfinished files under such names.
    if segment.startswith("."):
        return "has a segment that starts with a dot"
    if not segment.isprintable() or "\\" in segment:
        return "has a backslash or a character that cannot be printed"
    if len(segment.encode()) > _MAX_SEGMENT_BYTES:
        return f"has a segment longer than {_MAX_SEGMENT_BYTES} bytes"
    return ""
