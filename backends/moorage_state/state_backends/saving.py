"""The asynchronous part of a snapshot: from a copy of the database to a handle.

Decides what is uploaded in which format, that a checkpoint builds only on the last one that counted
and that a snapshot which fails or is canceled leaves nothing. Files are written and brought away as
state servers do it. Called in any thread, beside the thread of the subtask.
"""

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec

from moorage_state.canonicalspec import CanonicalSpec
from moorage_state.coordinator import CheckpointOptions
from moorage_state.coordinator.properties import SavepointFormat
from moorage_state.errors import MoorageError, disk_errors
from moorage_state.keyed.schema import StateSchema
from moorage_state.server.databases import Databases
from moorage_state.server.local_files import Snapshots
from moorage_state.server.operations import Uploaded, UploadLimits
from moorage_state.server.uploads import CheckpointNames, UploadPart, copy_native, export, upload
from moorage_state.snapshots import FileRef, RangeHandle, metas_of
from moorage_state.state_backends.futures import Cancellation
from moorage_state.state_backends.handles import (
    KeyedStateHandle,
    SnapshotResult,
    shared_keys,
)
from moorage_state.state_backends.storage import CheckpointStreamFactory
from moorage_state.stores import MemoryStore, ObjectStore, open_store
from moorage_state.stores.addresses import child

if TYPE_CHECKING:
    from moorage_state.state_backends.keyed import KeyedStateBackend

RUN = "f0r1"
"""Under which files are named and versions are written; there is one run, and no other comes."""

Work = Callable[[Cancellation], SnapshotResult]


class Take(NamedTuple):
    """A snapshot that was taken.

    `number` is that of the local copy, `now_ms` of the clock that state expires by.
    """

    number: int
    checkpoint_id: int
    sequence: int
    states: tuple[StateSchema, ...]
    now_ms: int


class _Saved(NamedTuple):
    """What was brought to a store: the files, its address, and what later ones may reference."""

    handle: RangeHandle
    store_url: str
    bytes_written: int
    shared: frozenset[str] = frozenset()


class Saver:
    """Makes the work of snapshots; thread-safe."""

    def __init__(
        self,
        job_id: str,
        operator: str,
        owner: "KeyedStateBackend",
        snapshots: Snapshots,
        databases: Databases,
        *,
        incremental: bool,
    ) -> None:
        self._job_id = job_id
        self._operator = operator
        self._owner = owner
        self._snapshots = snapshots
        self._databases = databases
        self._incremental = incremental
        self._lock = threading.Lock()
        self._uploaded: dict[int, KeyedStateHandle] = {}
        self._base: KeyedStateHandle | None = None

    def completed(self, checkpoint_id: int) -> None:
        """Later checkpoints may build on this one."""
        with self._lock:
            handle = self._uploaded.get(checkpoint_id)
            if handle is not None:
                self._base = handle
            # The base only moves forward: nothing builds on an older one.
            for other in [one for one in self._uploaded if one <= checkpoint_id]:
                del self._uploaded[other]

    def aborted(self, checkpoint_id: int) -> None:
        """Nothing will build on this one."""
        with self._lock:
            self._uploaded.pop(checkpoint_id, None)

    def work(
        self, take: Take, factory: CheckpointStreamFactory, options: CheckpointOptions
    ) -> Work:
        """What is left to do for a snapshot that was taken."""
        savepoint = options.checkpoint_type.is_savepoint

        def run(cancellation: Cancellation) -> SnapshotResult:
            forget = cancellation.register(lambda: self._snapshots.aborted(take.number))
            try:
                cancellation.check()
                saved = self._saved(take, factory, options, cancellation)
            finally:
                forget()
            handle = self._handle(saved, take)
            if not savepoint:
                with self._lock:
                    self._uploaded[take.checkpoint_id] = handle
            return SnapshotResult(handle, saved.bytes_written, tuple(sorted(saved.shared)))

        return run

    def _saved(
        self,
        take: Take,
        factory: CheckpointStreamFactory,
        options: CheckpointOptions,
        cancellation: Cancellation,
    ) -> _Saved:
        if options.checkpoint_type.is_savepoint:
            if options.format is SavepointFormat.CANONICAL:
                return self._whole(self._exported, take, factory, cancellation)
            return self._whole(self._copied, take, factory, cancellation)
        if factory.inline_bytes is None:
            return self._whole(self._copied, take, factory, cancellation)
        base = self._base_at(factory) if options.checkpoint_type.shares_files else []
        return self._built_on(base, take, factory, cancellation)

    def _built_on(
        self,
        base: list[FileRef],
        take: Take,
        factory: CheckpointStreamFactory,
        cancellation: Cancellation,
    ) -> _Saved:
        """A checkpoint among others, without the files that `base` has."""
        names = CheckpointNames(RUN, take.checkpoint_id)
        limits = UploadLimits(inline_range=factory.inline_bytes or 0)
        with _taken_back(factory.store, cancellation) as store:
            part = UploadPart(self._snapshots, base)
            uploaded = upload([part], RUN, take.number, store, limits, names=names)
        (handle,) = uploaded.handles
        written = shared_keys(handle.files) - shared_keys(base)
        return _Saved(handle, factory.store_url, uploaded.bytes_written, frozenset(written))

    def _base_at(self, factory: CheckpointStreamFactory) -> list[FileRef]:
        """The files of the last checkpoint that counted, if they can be referenced."""
        with self._lock:
            base = self._base
        usable = base is not None and self._incremental and base.store_url == factory.store_url
        return base.range.files if usable and base is not None and base.range is not None else []

    def _whole(
        self,
        save: Callable[[Take, ObjectStore], Uploaded],
        take: Take,
        factory: CheckpointStreamFactory,
        cancellation: Cancellation,
    ) -> _Saved:
        """A snapshot that references nothing else: in a directory of its own, or in the handle."""
        if factory.inline_bytes is not None:
            url = child(factory.store_url, factory.prefix.rstrip("/"))
            with _taken_back(open_store(url, create=True), cancellation) as store:
                uploaded = save(take, store)
            return _Saved(uploaded.handles[0], url, uploaded.bytes_written)
        memory = MemoryStore(f"snapshot-{secrets.token_hex(4)}")
        with _taken_back(memory, cancellation, factory.account) as store:
            uploaded = save(take, store)
            # Small files do not come to a store.
            factory.account(uploaded.bytes_inline)
        return _Saved(_inlined(uploaded.handles[0], memory), "", 0)

    def _copied(self, take: Take, store: ObjectStore) -> Uploaded:
        return copy_native([self._snapshots], RUN, take.number, store)

    def _exported(self, take: Take, store: ObjectStore) -> Uploaded:
        own = self._owner.key_group_range
        spec = CanonicalSpec(
            uid=self._operator,
            start=own.start,
            end=own.end,
            epoch=take.checkpoint_id,
            max_parallelism=self._owner.number_of_key_groups,
            key_types=self._owner.key_types,
            states=tuple(metas_of(take.states)),
            key_hash=self._owner.key_hash,
            now_ms=take.now_ms,
        )
        return export([self._snapshots], [spec], take.number, store, self._databases)

    def _handle(self, saved: _Saved, take: Take) -> KeyedStateHandle:
        own, canonical = self._owner.key_group_range, saved.handle.format == "canonical"
        return KeyedStateHandle(
            backend="canonical" if canonical else self._databases.owner,
            job_id=self._job_id,
            operator=self._operator,
            key_types=self._owner.key_types,
            key_hash=self._owner.key_hash,
            number_of_key_groups=self._owner.number_of_key_groups,
            start=own.start,
            end=own.end,
            checkpoint_id=take.checkpoint_id,
            states=take.states,
            sequence=take.sequence,
            store_url=saved.store_url,
            range=saved.handle,
        )


def _inlined(handle: RangeHandle, store: MemoryStore) -> RangeHandle:
    """The handle with all bytes in it that are objects of `store`."""
    files = [
        ref
        if ref.inline is not None
        else msgspec.structs.replace(
            ref,
            key="",
            offset=0,
            shared=False,
            inline=store.get(ref.key, offset=ref.offset, length=ref.size),
        )
        for ref in handle.files
    ]
    return msgspec.structs.replace(handle, files=files)


@contextmanager
def _taken_back(
    store: ObjectStore,
    cancellation: Cancellation,
    account: Callable[[int], None] = lambda _size: None,
) -> Iterator[ObjectStore]:
    """The store; what the with block puts into it is deleted if it fails or was canceled."""
    recording = _RecordingStore(store, account)
    try:
        yield cast(ObjectStore, recording)
        cancellation.check()
    except BaseException:
        recording.take_back()
        raise


class _RecordingStore:
    """An `ObjectStore` that knows what was put into it; all else is the store's own.

    Uploads write by `put` and `put_file` alone. `account` is told each size before, and may refuse.
    """

    def __init__(self, store: ObjectStore, account: Callable[[int], None]) -> None:
        self._store = store
        self._account = account
        self._lock = threading.Lock()
        self._put: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put(self, key: str, data: bytes) -> None:
        """See `ObjectStore`."""
        self._account(len(data))
        self._remember(key)
        self._store.put(key, data)

    def put_file(self, key: str, path: Path) -> None:
        """See `ObjectStore`."""
        with disk_errors("read a local checkpoint", path):
            self._account(path.stat().st_size)
        self._remember(key)
        self._store.put_file(key, path)

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
