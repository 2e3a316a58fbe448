"""The asynchronous part of a snapshot of RocksDB: from hard-linked files to a handle.

Decides what is uploaded in which format, that a checkpoint builds only on the last one that counted
and that a snapshot which fails or is canceled leaves nothing. Called in any thread, beside the
thread of the subtask.
"""

import secrets
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from moorage_state.backends.canonicals import inlined, write_canonical
from moorage_state.backends.futures import Cancellation
from moorage_state.backends.handles import (
    KeyedStateHandle,
    SnapshotResult,
    metas_of,
    shared_keys,
)
from moorage_state.backends.rocksdb.storing import RecordingStore
from moorage_state.backends.storage import CheckpointStreamFactory
from moorage_state.canonical import CanonicalSpec
from moorage_state.coordinator import CheckpointOptions
from moorage_state.coordinator.properties import SavepointFormat
from moorage_state.keyed.store import StateSchema
from moorage_state.keygroups import KeyGroupRange
from moorage_state.server.api import UploadLimits
from moorage_state.server.checkpointing import Snapshots
from moorage_state.server.databases import Databases
from moorage_state.server.directory import disk_errors, link_or_copy
from moorage_state.server.saving import copy_native
from moorage_state.server.uploading import CheckpointNames, UploadPart, upload
from moorage_state.snapshots import FileRef, RangeHandle
from moorage_state.stores import MemoryStore, open_store
from moorage_state.stores.addresses import child

__all__ = ["Saver", "Take"]

Work = Callable[[Cancellation], SnapshotResult]


class Take(NamedTuple):
    """A snapshot that was linked.

    Attributes:
        number: that of the local copy.
        sequence: the handle's.
        states: what was declared.
        now_ms: when, by the clock that state expires by.
    """

    number: int
    checkpoint_id: int
    sequence: int
    states: tuple[StateSchema, ...]
    now_ms: int


class _Owner(Protocol):
    """What a handle says of the backend that it comes from."""

    key_types: tuple[str, ...]
    number_of_key_groups: int
    key_group_range: KeyGroupRange

    @property
    def key_hash(self) -> str: ...


class Saver:
    """Makes the work of snapshots; thread-safe.

    Args:
        scratch: a directory on the volume of the database.
    """

    def __init__(
        self,
        job_id: str,
        operator: str,
        owner: _Owner,
        snapshots: Snapshots,
        databases: Databases,
        *,
        run: str,
        incremental: bool,
        scratch: Path,
    ) -> None:
        self._job_id = job_id
        self._operator = operator
        self._owner = owner
        self._snapshots = snapshots
        self._databases = databases
        self._run = run
        self._incremental = incremental
        self._scratch = scratch
        self._lock = threading.Lock()
        self._uploaded: dict[int, KeyedStateHandle] = {}
        self._base: KeyedStateHandle | None = None

    def completed(self, checkpoint_id: int) -> None:
        """Later checkpoints may build on this one."""
        with self._lock:
            handle = self._uploaded.get(checkpoint_id)
            if handle is not None:
                self._base = handle
            for other in [one for one in self._uploaded if one <= checkpoint_id]:
                del self._uploaded[other]

    def aborted(self, checkpoint_id: int) -> None:
        """Nothing will build on this one."""
        with self._lock:
            self._uploaded.pop(checkpoint_id, None)

    def work(
        self, take: Take, factory: CheckpointStreamFactory, options: CheckpointOptions
    ) -> Work:
        """What is left to do for a snapshot that was linked."""
        savepoint = options.checkpoint_type.is_savepoint
        save: _Save
        if savepoint and options.format is SavepointFormat.CANONICAL:
            save = self._canonical
        elif factory.inline_bytes is None:
            save = self._within_handle
        elif savepoint:
            save = self._self_contained
        else:
            save = self._shared if options.checkpoint_type.shares_files else self._full

        def run(cancellation: Cancellation) -> SnapshotResult:
            forget = cancellation.register(lambda: self._snapshots.aborted(take.number))
            try:
                cancellation.check()
                saved = save(take, factory, cancellation)
            finally:
                forget()
            return self._result(saved, take, savepoint=savepoint)

        return run

    def _result(self, saved: "_Saved", take: Take, *, savepoint: bool) -> SnapshotResult:
        own = self._owner.key_group_range
        handle = KeyedStateHandle(
            backend="canonical" if saved.handle.format == "canonical" else "rocksdb",
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
        if not savepoint:
            with self._lock:
                self._uploaded[take.checkpoint_id] = handle
        return SnapshotResult(handle, saved.bytes_written, tuple(sorted(saved.written)))

    def _shared(
        self, take: Take, factory: CheckpointStreamFactory, cancellation: Cancellation
    ) -> "_Saved":
        with self._lock:
            base = self._base
        usable = base is not None and self._incremental and base.store_url == factory.store_url
        files = base.range.files if usable and base is not None and base.range is not None else []
        return self._upload(take, factory, cancellation, files)

    def _full(
        self, take: Take, factory: CheckpointStreamFactory, cancellation: Cancellation
    ) -> "_Saved":
        return self._upload(take, factory, cancellation, [])

    def _upload(
        self,
        take: Take,
        factory: CheckpointStreamFactory,
        cancellation: Cancellation,
        base_files: list[FileRef],
    ) -> "_Saved":
        store = RecordingStore(factory.store)
        limits = UploadLimits(inline_range=factory.inline_bytes or 0)
        try:
            part = UploadPart(self._snapshots, base_files)
            names = CheckpointNames(self._run, take.checkpoint_id)
            uploaded = upload([part], self._run, take.number, store, limits, names=names)
            cancellation.check()
        except BaseException:
            store.take_back()
            raise
        (handle,) = uploaded.handles
        written = shared_keys(handle.files) - shared_keys(base_files)
        return _Saved(handle, factory.store_url, uploaded.bytes_written, written)

    def _self_contained(
        self, take: Take, factory: CheckpointStreamFactory, cancellation: Cancellation
    ) -> "_Saved":
        url = child(factory.store_url, factory.prefix.rstrip("/"))
        store = RecordingStore(open_store(url, create=True))
        try:
            uploaded = copy_native([self._snapshots], self._run, take.number, store)
            cancellation.check()
        except BaseException:
            store.take_back()
            raise
        return _Saved(uploaded.handles[0], url, uploaded.bytes_written, set())

    def _within_handle(
        self, take: Take, factory: CheckpointStreamFactory, cancellation: Cancellation
    ) -> "_Saved":
        with self._snapshots.uploading(take.number) as taken:
            with disk_errors("read a local checkpoint", taken.path):
                size = sum(path.stat().st_size for path in taken.path.iterdir())
            factory.account(size)
        store = MemoryStore(f"snapshot-{secrets.token_hex(4)}")
        part = UploadPart(self._snapshots, [])
        uploaded = upload([part], self._run, take.number, store, UploadLimits())
        cancellation.check()
        return _Saved(inlined(uploaded.handles[0], store), "", 0, set())

    def _canonical(
        self, take: Take, factory: CheckpointStreamFactory, cancellation: Cancellation
    ) -> "_Saved":
        own = self._owner.key_group_range
        spec = CanonicalSpec(
            uid=self._operator,
            start=own.start,
            end=own.end,
            epoch=take.checkpoint_id,
            max_parallelism=self._owner.number_of_key_groups,
            key_types=self._owner.key_types,
            states=metas_of(take.states),
            key_hash=self._owner.key_hash,
            now_ms=take.now_ms,
        )
        with self._snapshots.uploading(take.number) as taken:
            copy = self._scratch / f"export-{take.number}"
            with disk_errors("copy a local checkpoint", copy):
                copy.mkdir(parents=True)
                for path in taken.path.iterdir():
                    link_or_copy(path, copy / path.name)
            database = self._databases.open_copy(copy, read_only=True)
            try:
                handle = write_canonical(database, spec, factory, self._scratch, cancellation.check)
            finally:
                database.close()
                shutil.rmtree(copy, ignore_errors=True)
        url = factory.store_url if factory.inline_bytes is not None else ""
        return _Saved(handle, url, handle.bytes_total, set())


_Save = Callable[[Take, CheckpointStreamFactory, Cancellation], "_Saved"]


class _Saved:
    """What one way of saving gave."""

    __slots__ = ("bytes_written", "handle", "store_url", "written")

    def __init__(
        self, handle: RangeHandle, store_url: str, bytes_written: int, written: set[str]
    ) -> None:
        self.handle = handle
        self.store_url = store_url
        self.bytes_written = bytes_written
        self.written = written
