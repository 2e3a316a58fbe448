"""The keyed state of one subtask in a RocksDB database of its own.

Decides where the database lies, what the synchronous part of a snapshot does (write what is
pending, flush, hard-link) and what its asynchronous part uploads: files that the last completed
checkpoint does not have, or all of them, or canonical ones. Called by the thread of the subtask,
but for what a snapshot does afterwards.
"""

import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

from moorage_state.backends.api import Environment, KeyedTimers
from moorage_state.backends.futures import SnapshotFuture, SnapshotsUnderway
from moorage_state.backends.handles import (
    KeyedStateHandle,
    SnapshotResult,
    select_handles,
)
from moorage_state.backends.hashmap.context import Context
from moorage_state.backends.hashmap.tables import StateTable, Versions
from moorage_state.backends.keying import (
    KeyLocator,
    Located,
    LocatingBackend,
    require_namespace,
    require_operator,
)
from moorage_state.backends.merging import KnownStates, known_states
from moorage_state.backends.rocksdb.recording import RecentWrites, RecordStore
from moorage_state.backends.rocksdb.saving import Saver, Take
from moorage_state.backends.rocksdb.timing import StoredTimers, TimerCells, write_heap_timers
from moorage_state.backends.storage import CheckpointStreamFactory
from moorage_state.backends.timers import HeapTimers
from moorage_state.coordinator import CheckpointOptions
from moorage_state.errors import LocalDiskError
from moorage_state.keyed.timers import TIMERS_STATE, TimeDomain
from moorage_state.keygroups import KeyGroupRange
from moorage_state.keylayout import KEYED_STATE, state_id
from moorage_state.server.api import RangeSpec, RestoreBase, Version
from moorage_state.server.checkpointing import Snapshots
from moorage_state.server.databases import Databases
from moorage_state.server.directory import RangeDirectory
from moorage_state.server.marker import write_marker
from moorage_state.server.restore import Restored, Restorer

__all__ = ["RocksKeyedStateBackend"]

_KEY_AT = 7
_ID_BYTES = 4
_RUN = "f0r1"
_PAGE_ENTRIES = 10_000
_PAGE_BYTES = 8 << 20


class RocksKeyedStateBackend(LocatingBackend):
    """See `KeyedStateBackend`.

    Args:
        databases: opens the database, with the memory that all subtasks of the process share.
        directory: where the working files go, within a directory that is this backend's own.
        timers: where timers are kept.
        incremental: whether a checkpoint leaves out what the last completed one has.
        restore: see `StateBackend.create_keyed_state_backend`.
    """

    def __init__(
        self,
        environment: Environment,
        job_id: str,
        operator: str,
        key_types: tuple[str, ...],
        number_of_key_groups: int,
        key_group_range: KeyGroupRange,
        *,
        databases: Databases,
        directory: Path,
        timers: Literal["HEAP", "ROCKSDB"],
        incremental: bool,
        restore: Iterable[KeyedStateHandle],
    ) -> None:
        require_operator(operator)
        self.key_types = key_types
        self.number_of_key_groups = number_of_key_groups
        self.key_group_range = key_group_range
        self._environment = environment
        self._locator = KeyLocator(
            key_types, number_of_key_groups, key_group_range, environment.key_hash
        )
        given = list(restore)
        handles = select_handles(
            given,
            operator=operator,
            key_types=key_types,
            key_hash=environment.key_hash,
            number_of_key_groups=number_of_key_groups,
            wanted=key_group_range,
            readable=frozenset({"rocksdb", "canonical"}),
        )
        name = f"{job_id}-{operator}-{environment.subtask}-{secrets.token_hex(8)}"
        self._home = directory / name
        spec = RangeSpec(operator, key_group_range.start, key_group_range.end)
        self._directory = RangeDirectory(self._home, spec)
        self._timers: dict[TimeDomain, KeyedTimers] = {}
        self._underway: SnapshotsUnderway[SnapshotResult] = SnapshotsUnderway()
        self._takes = 0
        known = known_states(given)
        restored = self._opened(databases, handles, known)
        self._database = restored.database
        self._snapshots = Snapshots(spec, self._directory, restored.backend_uuid, restored.hashes)
        try:
            self._store, self._writes = self._new_store(handles, known)
            self._cells = TimerCells(self._store, key_group_range)
            self._heap = _HeapQueues(self, self._cells) if timers == "HEAP" else None
            self._saver = Saver(
                job_id,
                operator,
                self,
                self._snapshots,
                databases,
                run=_RUN,
                incremental=incremental,
                scratch=self._home,
            )
        except BaseException:
            self._close()
            raise

    def _new_store(
        self, handles: list[KeyedStateHandle], known: KnownStates
    ) -> tuple[RecordStore, RecentWrites]:
        writes = RecentWrites(self._database, self.key_group_range)
        sequence = max((handle.sequence for handle in handles), default=0) + 1
        store = RecordStore(
            writes,
            sequence,
            list(known.schemas.values()),
            self.key_group_range,
            self._environment.clock_ms,
        )
        return store, writes

    def _opened(
        self, databases: Databases, handles: list[KeyedStateHandle], known: KnownStates
    ) -> Restored:
        generations = {handle.start: known.generations(handle) for handle in handles}
        self._directory.lock()
        try:
            self._directory.prepare(_RUN, None)
            restorer = Restorer(
                self._directory, _RUN, databases, lambda files: generations[files.start]
            )
            ranges = [handle.range for handle in handles if handle.range is not None]
            if not ranges:
                return restorer.empty(0)
            base = RestoreBase(handles[0].checkpoint_id, ranges[0].epoch, ranges)
            url = next((h.store_url for h in handles if h.store_url), "memory://inline")
            return restorer.restore(base, url)
        except BaseException:
            self._directory.unlock()
            shutil.rmtree(self._home, ignore_errors=True)
            raise

    # -- keys ------------------------------------------------------------------------------

    def get_keys(self, state_name: str, namespace: Any = None) -> Iterator[Any]:
        """See `KeyedStateBackend`."""
        self._check_usable()
        schema = next((s for s in self._store.schemas if s.name == state_name), None)
        if schema is None:
            return iter(())
        types = schema.namespace_types
        require_namespace(state_name, namespace, types[0] if types else None)
        self._settle()
        prefixes = self._store.keys_of(state_name, namespace)
        return iter([self._locator.decode(prefix[_KEY_AT:]) for prefix in prefixes])

    def enter(self, located: Located) -> None:
        """See `LocatingBackend`."""
        self._store.enter(located.prefix)
        self._located = located
        heap = self._heap
        if heap is not None:
            heap.context.group, heap.context.entry = located.group, located.raw

    def _current(self) -> Located | None:
        self._check_usable()
        return self._located

    def _settle(self) -> None:
        """Bring everything into the database."""
        self._check_usable()
        self._store.leave()
        self._writes.apply()
        self._reenter()

    def _reenter(self) -> None:
        if self._located is not None:
            self._store.enter(self._located.prefix)

    # -- states ----------------------------------------------------------------------------

    def get_or_create_keyed_state(self, descriptor: Any) -> Any:
        """See `KeyedStateBackend`."""
        self._check_usable()
        return self._store.state(descriptor)

    def get_partitioned_state(
        self, namespace: Any, namespace_type: str | None, descriptor: Any
    ) -> Any:
        """See `KeyedStateBackend`."""
        self._check_usable()
        require_namespace(descriptor.name, namespace, namespace_type)
        if namespace_type is None:
            return self._store.state(descriptor)
        return self._store.get_partitioned_state(namespace, (namespace_type,), descriptor)

    def merge_namespaces(
        self, target: Any, sources: Iterable[Any], namespace_type: str, descriptor: Any
    ) -> None:
        """See `KeyedStateBackend`."""
        self._check_usable()
        state = self._store.namespaced_state(descriptor, (namespace_type,))
        state.merge_namespaces(target, list(sources))

    def timers(self, domain: TimeDomain = TimeDomain.EVENT_TIME) -> KeyedTimers:
        """See `KeyedStateBackend`."""
        self._check_usable()
        found = self._timers.get(domain)
        if found is None:
            if self._heap is not None:
                found = self._heap.queue(domain)
            else:
                found = StoredTimers(
                    domain,
                    self._cells,
                    self._locator,
                    self.enter,
                    self._current,
                    self._settle,
                )
            self._timers[domain] = found
        return found

    def num_key_value_state_entries(self) -> int:
        """See `KeyedStateBackend`; of lists and maps their elements and entries count."""
        self._check_usable()
        self._store.leave()
        self._write_heap_timers()
        timers, count = state_id(TIMERS_STATE), 0
        own = self.key_group_range
        for group in range(own.start, own.end + 1):
            lower = group.to_bytes(2, "big") + bytes([KEYED_STATE])
            upper = group.to_bytes(2, "big") + bytes([KEYED_STATE + 1])
            with self._database.cursor(lower, upper) as cursor:
                complete = cursor.seek(lower) is None
                while not complete:
                    keys, _, complete = cursor.take(upper, _PAGE_ENTRIES, _PAGE_BYTES)
                    count += sum(not _is_of(key, timers) for key in keys)
        self._reenter()
        return count + sum(len(self.timers(domain)) for domain in TimeDomain)

    # -- snapshots -------------------------------------------------------------------------

    def snapshot(
        self,
        checkpoint_id: int,
        timestamp: float,  # noqa: ARG002  of the trigger; nothing here depends on it
        stream_factory: CheckpointStreamFactory,
        options: CheckpointOptions,
    ) -> SnapshotFuture[SnapshotResult]:
        """See `KeyedStateBackend`."""
        self._check_usable()
        self._store.leave()
        self._store.move_time()
        self._store.sweep_expired()
        self._write_heap_timers()
        version = Version(checkpoint_id, "")
        self._writes.apply(write_marker(version, _RUN))
        # Local copies have numbers of their own: a checkpoint may be taken again under its id.
        self._takes += 1
        self._snapshots.take(self._database, self._takes, version)
        sequence = self._store.epoch
        self._store.next_epoch()
        self._reenter()
        schemas, now_ms = tuple(self._store.schemas), self._store.now_ms
        take = Take(self._takes, checkpoint_id, sequence, schemas, now_ms)
        work = self._saver.work(take, stream_factory, options)
        return self._underway.begin(checkpoint_id, work, partial(self._ended, take.number))

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """See `KeyedStateBackend`: its files need not be uploaded again."""
        self._saver.completed(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """See `KeyedStateBackend`."""
        self._underway.cancel(checkpoint_id)
        self._saver.aborted(checkpoint_id)

    def dispose(self) -> None:
        """See `KeyedStateBackend`; the working files are deleted."""
        if self._disposed:
            return
        self._refuse_all()
        self._store.close(self._gone)
        if self._heap is not None:
            self._heap.context.close(self._gone)
        self._underway.cancel_all()
        self._close()

    def _close(self) -> None:
        self._snapshots.close()
        try:
            self._database.close()
        finally:
            self._directory.unlock()
            shutil.rmtree(self._home, ignore_errors=True)

    def _write_heap_timers(self) -> None:
        """Bring everything into the database; there is no current key until the next one."""
        if self._heap is not None:
            self._heap.write(lambda located: self._store.enter(located.prefix), self._locator)
            self._store.leave()
        self._writes.apply()

    def _ended(self, take: int) -> None:
        """The asynchronous part is over; its local copy is of no more use."""
        with suppress(LocalDiskError):
            self._snapshots.aborted(take)

    @property
    def key_hash(self) -> str:
        """Which function maps a key to its key group."""
        return self._environment.key_hash


class _HeapQueues:
    """Timers in memory beside a database, which knows them from snapshot to snapshot."""

    def __init__(self, backend: RocksKeyedStateBackend, cells: TimerCells) -> None:
        self.context = Context(lambda: 0)
        self._cells = cells
        self._dirty: set[tuple[int, bytes]] = set()
        own = backend.key_group_range
        self._tables = {domain: StateTable(len(own), Versions()) for domain in TimeDomain}
        for domain, table in self._tables.items():
            for group, time_ms, raw in cells.all(domain):
                table.own_map(group - own.start, raw)[time_ms] = True
        self._queues = {
            domain: HeapTimers(self.context, table, backend.enter_raw, self._changed, domain)
            for domain, table in self._tables.items()
        }

    def queue(self, domain: TimeDomain) -> HeapTimers:
        """The timers of one domain."""
        return self._queues[domain]

    def write(self, enter: Callable[[Located], None], locator: KeyLocator) -> None:
        """Bring what changed into the database."""
        write_heap_timers(self._cells, locator, enter, self._dirty, self._tables.values())

    def _changed(self, group: int, raw: bytes) -> None:
        self._dirty.add((group, raw))


def _is_of(key: bytes, sid: bytes) -> bool:
    at = _KEY_AT + int.from_bytes(key[3:_KEY_AT], "big")
    return key[at : at + _ID_BYTES] == sid
