"""Where snapshots go: with the driver, or into a directory or bucket. Apart from any backend.

Decides the layout of a job's checkpoints, what travels within handles, and how large a subtask's
state may be. The values are configuration only: they are pickled into every process. Called by
whoever coordinates snapshots (locations) and by subtasks (stream factories).

    <directory>/<job id>/chk-<id>/_metadata     one checkpoint, and what belongs to it alone
    <directory>/<job id>/chk-<id>/<name>
    <directory>/<job id>/shared/<name>          what later checkpoints may reference too
    <savepoint directory>/savepoint-<job id>-<name>/...   self-contained
"""

import re
import secrets
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from moorage_state.errors import (
    AlreadyExists,
    IllegalConfigurationError,
    StateSizeExceeded,
    UserError,
)
from moorage_state.state_backends.streams import CheckpointOutputStream
from moorage_state.stores import MemoryStore, ObjectStore, check_key, open_store, put_once
from moorage_state.stores.addresses import address, child, parent_and_name
from moorage_state.tuning import MAX_STATE_SIZE_KEY

DEFAULT_MAX_STATE_BYTES = 5 << 20
DEFAULT_INLINE_BYTES = 20 << 10

_METADATA: Final = "_metadata"
_MANIFEST: Final = "MANIFEST"
_JOB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")


class CheckpointStreamFactory:
    """Makes the streams of one subtask's part of one snapshot; thread-safe.

    Attributes:
        prefix: what the keys of this snapshot's own objects begin with.
        inline_bytes: streams up to this size stay in their handle; None for all of them.
        max_state_bytes: the most that all streams of the subtask may have; None for no limit.
    """

    def __init__(
        self,
        store_url: str,
        prefix: str,
        *,
        inline_bytes: int | None,
        max_state_bytes: int | None = None,
    ) -> None:
        self.store_url = store_url
        self.prefix = prefix
        self.inline_bytes = inline_bytes
        self.max_state_bytes = max_state_bytes
        self._lock = threading.Lock()
        self._bytes = 0

    @property
    def store(self) -> ObjectStore:
        """Where objects go."""
        return open_store(self.store_url, create=True)

    def create_checkpoint_state_output_stream(self) -> CheckpointOutputStream:
        """A new stream; close it, or ask it for its handle."""
        if self.inline_bytes is None:
            return CheckpointOutputStream(account=self.account)
        key = check_key(f"{self.prefix}{secrets.token_hex(16)}")
        return CheckpointOutputStream(self.store, key, self.inline_bytes)

    def account(self, size: int) -> None:
        """Count bytes of the subtask's state.

        Raises:
            StateSizeExceeded: they are more than the storage keeps; naming size and setting.
        """
        with self._lock:
            self._bytes += size
            total, limit = self._bytes, self.max_state_bytes
        if limit is not None and total > limit:
            raise StateSizeExceeded(
                f"state of a subtask is larger than the driver keeps: size={total} "
                f"maximum={limit} setting={MAX_STATE_SIZE_KEY}; use the checkpoint storage "
                f"'filesystem' (state.checkpoints.dir), which is meant for state of this size"
            )


@dataclass(frozen=True, slots=True)
class CheckpointStorageLocation:
    """The place of one snapshot, existing or to come; configuration only.

    Attributes:
        store_url: the store.
        prefix: what the keys of its objects begin with, ending in `/`.
        metadata: the name of the document with which the snapshot exists: `_metadata`, or the
            `MANIFEST` of a lineage's checkpoint or savepoint.
    """

    store_url: str
    prefix: str
    metadata: Literal["_metadata", "MANIFEST"] = _METADATA
    inline_bytes: int | None = DEFAULT_INLINE_BYTES
    max_state_bytes: int | None = None

    @property
    def pointer(self) -> str:
        """The address that `resolve_checkpoint` takes."""
        return child(self.store_url, self.prefix.rstrip("/")) if self.prefix else self.store_url

    def stream_factory(self) -> CheckpointStreamFactory:
        """For one subtask."""
        return CheckpointStreamFactory(
            self.store_url,
            self.prefix,
            inline_bytes=self.inline_bytes,
            max_state_bytes=self.max_state_bytes,
        )

    def write_metadata(self, document: bytes) -> None:
        """Make the snapshot exist. Repeating it with the same document is harmless.

        Raises:
            UserError: there is another one already.
            StoreUnavailable: the snapshot may exist then; call again.
        """
        key = self.prefix + self.metadata
        store = open_store(self.store_url, create=True)
        try:
            put_once(store, key, document)
        except AlreadyExists as error:
            raise UserError(
                f"a snapshot is there already: pointer={self.pointer}; nothing was written over"
            ) from error

    def read_metadata(self) -> bytes:
        """The document.

        Raises:
            ObjectNotFound: there is no snapshot.
            StoreUnavailable: the store does not answer.
        """
        return open_store(self.store_url).get(self.prefix + self.metadata)

    def dispose(self) -> None:
        """Delete the snapshot's own objects, the document first; idempotent.

        Raises:
            UserError: it belongs to a lineage, whose log must say so first.
        """
        if self.metadata != _METADATA:
            raise UserError(
                f"a snapshot of a lineage is not deleted by hand: pointer={self.pointer}; a job "
                f"deletes its checkpoints by spec.checkpoint.retain"
            )
        store = open_store(self.store_url)
        store.delete(self.prefix + self.metadata)
        for found in list(store.list(self.prefix)):
            store.delete(found.key)


@dataclass(frozen=True, slots=True)
class CheckpointStorageAccess:
    """The storage of one job, as the coordinator uses it.

    Attributes:
        store_url: holds the job's checkpoints.
        savepoint_directory: where savepoints go that name no place; None where there is none.
    """

    job_id: str
    store_url: str
    savepoint_directory: str | None
    inline_bytes: int | None
    max_state_bytes: int | None

    def location_for_checkpoint(self, checkpoint_id: int) -> CheckpointStorageLocation:
        """The place of a checkpoint; `checkpoint_id` is from 1."""
        return CheckpointStorageLocation(
            self.store_url,
            f"chk-{checkpoint_id}/",
            inline_bytes=self.inline_bytes,
            max_state_bytes=self.max_state_bytes,
        )

    def location_for_savepoint(self, target: str | None = None) -> CheckpointStorageLocation:
        """A new place in the directory `target`, or in the default one.

        Raises:
            UserError: no directory is named and there is no default.
        """
        directory = target or self.savepoint_directory
        if directory is None:
            raise UserError(
                "a savepoint needs a directory: setting=state.savepoints.dir value=(none); name "
                "one, or configure the default"
            )
        name = f"savepoint-{self.job_id[:24]}-{secrets.token_hex(6)}"
        return CheckpointStorageLocation(
            address(directory), f"{name}/", inline_bytes=DEFAULT_INLINE_BYTES
        )


class CheckpointStorage(ABC):
    """How a job's snapshots are kept; holds configuration only, so that it can be pickled."""

    identifier: ClassVar[str]

    @abstractmethod
    def create_access(self, job_id: str) -> CheckpointStorageAccess:
        """The storage of one job.

        Raises:
            UserError: `job_id` cannot be part of an address.
        """

    def resolve_checkpoint(self, pointer: str) -> CheckpointStorageLocation:
        """See `resolve_checkpoint`."""
        return resolve_checkpoint(pointer)


@dataclass(frozen=True, slots=True)
class DriverCheckpointStorage(CheckpointStorage):
    """Kept in the memory of the driver's process and lost with it: for tests and small state.

    Attributes:
        max_state_bytes: the most that one subtask's part of a checkpoint may have.
        savepoint_directory: savepoints go there all the same.
    """

    identifier: ClassVar[str] = "driver"

    max_state_bytes: int = DEFAULT_MAX_STATE_BYTES
    savepoint_directory: str | None = None

    def __post_init__(self) -> None:
        if self.max_state_bytes < 1:
            raise IllegalConfigurationError(
                f"setting is out of range: key={MAX_STATE_SIZE_KEY} value={self.max_state_bytes}; "
                f"give 1 byte or more"
            )

    def create_access(self, job_id: str) -> CheckpointStorageAccess:
        """See `CheckpointStorage`."""
        url = f"memory://driver-{_checked(job_id)}"
        return CheckpointStorageAccess(
            job_id, url, self.savepoint_directory, None, self.max_state_bytes
        )

    @staticmethod
    def forget(job_id: str) -> None:
        """Let go of all checkpoints of a job that ended."""
        MemoryStore.forget(f"driver-{job_id}")


_SCHEMES = {"file", "s3", "memory"}


@dataclass(frozen=True, slots=True)
class FilesystemCheckpointStorage(CheckpointStorage):
    """Kept in a directory or bucket, whose address any store takes.

    Attributes:
        directory: where all jobs' checkpoints go, each in a folder of its own.
        savepoint_directory: where savepoints go that name no place.
        inline_bytes: streams up to this size stay in the metadata.
    """

    identifier: ClassVar[str] = "filesystem"

    directory: str
    savepoint_directory: str | None = None
    inline_bytes: int = DEFAULT_INLINE_BYTES

    def __post_init__(self) -> None:
        given = self.directory
        scheme, separator, _ = given.partition("://")
        if not given.startswith("/") and not (separator and scheme in _SCHEMES):
            raise IllegalConfigurationError(
                f"checkpoint directory is not an address: key=state.checkpoints.dir "
                f"value={given!r}; use file:///path, s3://bucket/prefix, or an absolute path"
            )
        if not 0 <= self.inline_bytes <= 1 << 20:
            raise IllegalConfigurationError(
                f"setting is out of range: key=execution.checkpointing.data-inline-threshold "
                f"value={self.inline_bytes}; give 0 to 1048576 bytes"
            )

    def create_access(self, job_id: str) -> CheckpointStorageAccess:
        """See `CheckpointStorage`."""
        url = child(address(self.directory), _checked(job_id))
        if url.startswith("memory://"):
            # A store in memory has no folders.
            url = address(self.directory)
        return CheckpointStorageAccess(
            job_id, url, self.savepoint_directory, self.inline_bytes, None
        )


def resolve_checkpoint(pointer: str) -> CheckpointStorageLocation:
    """The place of the snapshot that a pointer names: its directory, or the document in it.

    Checkpoints and savepoints of a lineage (`MANIFEST`) are found as well as those of a backend
    (`_metadata`).

    Raises:
        UserError: nothing is there, or the address is not supported.
        StoreUnavailable: the store does not answer.
    """
    place = address(pointer)
    for name in (_METADATA, _MANIFEST):
        if place.endswith(f"/{name}"):
            place = place.removesuffix(f"/{name}")
    split = parent_and_name(place)
    url, prefix = (place, "") if split is None else (split[0], f"{split[1]}/")
    try:
        store = open_store(url)
    except UserError as error:
        raise UserError(
            f"the place of a snapshot cannot be opened: pointer={pointer}: {error}"
        ) from error
    for metadata in (_METADATA, _MANIFEST):
        if store.head(prefix + metadata) is not None:
            return CheckpointStorageLocation(url, prefix, metadata)
    raise UserError(
        f"no snapshot is there: pointer={pointer} looked_for={_METADATA},{_MANIFEST}; give the "
        f"directory of a completed checkpoint or savepoint"
    )


def _checked(job_id: str) -> str:
    if not _JOB_ID.match(job_id):
        raise UserError(
            f"job id cannot be part of an address: job_id={job_id!r}; use up to 128 letters, "
            f"digits, dots, dashes or underscores"
        )
    return job_id
