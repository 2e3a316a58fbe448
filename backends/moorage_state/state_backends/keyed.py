"""The keyed state of one subtask in a process of one's own, over the database that servers open.

Decides where the database lies, and what the synchronous part of a snapshot does: write what is
pending, and take a copy of the database as a range does. What becomes of the copy is `saving`'s.
One for every state backend; called by the thread of the subtask, but for what a snapshot does
afterwards.
"""

import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from moorage_state.coordinator import CheckpointOptions
from moorage_state.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
    require_descriptor,
)
from moorage_state.errors import Bug, LocalDiskError
from moorage_state.keyed.kv_states import TaskKvStateRegistry
from moorage_state.keyed.timers import KeyTimers, TimeDomain
from moorage_state.keygroups import KeyGroupRange
from moorage_state.keylayout import KEY_AT
from moorage_state.server.databases import Databases
from moorage_state.server.local_files import RangeDirectory, Snapshots
from moorage_state.server.operations import RangeSpec, RestoreBase, Version
from moorage_state.server.restore import Restored, Restorer, write_marker
from moorage_state.state_backends.api import Environment
from moorage_state.state_backends.futures import SnapshotFuture, SnapshotsUnderway
from moorage_state.state_backends.handles import (
    KeyedStateHandle,
    KnownStates,
    SnapshotResult,
    known_states,
    select_handles,
)
from moorage_state.state_backends.heap_stream import frames_of_stream
from moorage_state.state_backends.keying import (
    KeyLocator,
    Located,
    disposed,
    require_namespace,
    require_operator,
)
from moorage_state.state_backends.record_store import RecentWrites, RecordStore
from moorage_state.state_backends.saving import RUN, Saver, Take
from moorage_state.state_backends.storage import CheckpointStreamFactory
from moorage_state.state_backends.timers import KeyedTimers


class KeyedStateBackend:
    """The keyed state of one subtask: the key groups of one range. Belongs to one thread.

    Only what `snapshot` returns may be used from another one.

    Args:
        databases: opens the database, with the memory that all subtasks of the process share.
        directory: where the working files go, within a directory that is this backend's own.
        kv_state_registry: told of the states that may be looked up from outside, until the end.
        incremental: whether a checkpoint leaves out what the last completed one has.
        asynchronous: whether snapshots are written after `snapshot` returned, by whoever runs the
            future; else they are through when it returns.
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
        kv_state_registry: TaskKvStateRegistry | None = None,
        incremental: bool = False,
        asynchronous: bool = True,
        restore: Iterable[KeyedStateHandle] = (),
    ) -> None:
        require_operator(operator)
        self.key_types = key_types
        self.number_of_key_groups = number_of_key_groups
        self.key_group_range = key_group_range
        self._environment = environment
        self._operator = operator
        self._asynchronous = asynchronous
        self._disposed = False
        self._located: Located | None = None
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
            readable=frozenset({databases.owner, "canonical"}),
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
        self._snapshots = Snapshots(
            spec, self._directory, restored.backend_uuid, restored.hashes, restored.label
        )
        try:
            self._writes = RecentWrites(self._database, key_group_range)
            self._store = RecordStore(
                self._writes,
                max((handle.sequence for handle in handles), default=0) + 1,
                list(known.schemas.values()),
                key_group_range,
                environment.clock_ms,
                kv_state_registry,
            )
            self._of_key = KeyTimers(self._store)
            self._saver = Saver(
                job_id,
                operator,
                self,
                self._snapshots,
                databases,
                incremental=incremental,
            )
        except BaseException:
            self._close()
            raise

    def _opened(
        self, databases: Databases, handles: list[KeyedStateHandle], known: KnownStates
    ) -> Restored:
        generations = {handle.start: known.generations(handle) for handle in handles}
        # Nobody else comes here; the machinery of ranges asks for it before it deletes anything.
        self._directory.lock()
        try:
            self._directory.prepare(RUN, None)
            restorer = Restorer(
                self._directory, RUN, databases, lambda files: generations[files.start]
            )
            ranges = [handle.range for handle in handles if handle.range is not None]
            if not ranges:
                restored = restorer.empty(0)
                self._fill_from_streams(restored, handles, generations)
                return restored
            base = RestoreBase(handles[0].checkpoint_id, ranges[0].epoch, ranges)
            url = next((h.store_url for h in handles if h.store_url), "memory://inline")
            return restorer.restore(base, url)
        except BaseException:
            self._directory.unlock()
            shutil.rmtree(self._home, ignore_errors=True)
            raise

    def _fill_from_streams(
        self,
        restored: Restored,
        handles: list[KeyedStateHandle],
        generations: Mapping[int, Mapping[str, int]],
    ) -> None:
        """Write into an empty database what handles of earlier releases have."""
        wanted = self.key_group_range
        try:
            for handle in handles:
                first, last = max(handle.start, wanted.start), min(handle.end, wanted.end)
                for frame in frames_of_stream(handle, first, last, generations[handle.start]):
                    restored.database.apply([frame])
        except BaseException:
            restored.database.close()
            raise

    # -- keys ------------------------------------------------------------------------------

    def set_current_key(self, key: Any) -> None:
        """Make `key` the one that states and timers speak of: a value, or a tuple for several.

        Raises:
            StateTypeError: it is not of the declared types.
            UserError: its key group is not in this range.
        """
        self.enter(self._locator.find(key))

    @property
    def current_key(self) -> Any:
        """The key that was set last, None before the first."""
        return self._located.key if self._located is not None else None

    def get_keys(self, state_name: str, namespace: Any = None) -> Iterator[Any]:
        """All keys that have something in this state and namespace; in no promised order."""
        self._check_usable()
        schema = next((s for s in self._store.schemas if s.name == state_name), None)
        if schema is None:
            return iter(())
        types = schema.namespace_types
        require_namespace(state_name, namespace, types[0] if types else None)
        self._settle()
        prefixes = self._store.keys_of(state_name, namespace)
        return iter([self._locator.decode(prefix[KEY_AT:]) for prefix in prefixes])

    def enter(self, located: Located) -> None:
        """Make a key the current one, whose place is known."""
        self._store.enter(located.prefix)
        self._located = located

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
        """The handle of a state of any kind; the same one for every call.

        Raises:
            UserError: the name is taken by another kind or type, here or in what was restored.
        """
        self._check_usable()
        return self._store.state(descriptor)

    def get_partitioned_state(
        self, namespace: Any, namespace_type: str | None, descriptor: Any
    ) -> Any:
        """The handle of a state that a key has once for each namespace, for this one.

        Ask again when the key or the namespace changes. `namespace_type` is the DDL type of the
        namespaces; both are None for a state without.
        """
        self._check_usable()
        require_namespace(descriptor.name, namespace, namespace_type)
        if namespace_type is None:
            return self._store.state(descriptor)
        return self._store.get_partitioned_state(namespace, (namespace_type,), descriptor)

    def merge_namespaces(
        self, target: Any, sources: Iterable[Any], namespace_type: str, descriptor: Any
    ) -> None:
        """Make what the current key has in `sources` part of what it has in `target`.

        Raises:
            TypeError: states of this kind cannot be merged; only list, reducing, aggregating.
        """
        self._check_usable()
        state = self._store.namespaced_state(descriptor, (namespace_type,))
        state.merge_namespaces(target, list(sources))

    def timers(self, domain: TimeDomain = TimeDomain.EVENT_TIME) -> KeyedTimers:
        """The timers of one domain; the same object for every call."""
        self._check_usable()
        found = self._timers.get(domain)
        if found is None:
            found = self._timers[domain] = KeyedTimers(
                domain,
                self._of_key,
                self._store,
                self.key_group_range,
                self._locator,
                self.enter,
                self._current,
                self._settle,
            )
        return found

    # -- the names of a KeyedStateStore ----------------------------------------------------

    def get_state(self, descriptor: Any) -> Any:
        """One value per key."""
        require_descriptor(descriptor, ValueStateDescriptor)
        return self.get_or_create_keyed_state(descriptor)

    def get_list_state(self, descriptor: Any) -> Any:
        """A list per key."""
        require_descriptor(descriptor, ListStateDescriptor)
        return self.get_or_create_keyed_state(descriptor)

    def get_map_state(self, descriptor: Any) -> Any:
        """A map per key."""
        require_descriptor(descriptor, MapStateDescriptor)
        return self.get_or_create_keyed_state(descriptor)

    def get_reducing_state(self, descriptor: Any) -> Any:
        """One value per key, to which values are added by a reduce function."""
        require_descriptor(descriptor, ReducingStateDescriptor)
        return self.get_or_create_keyed_state(descriptor)

    def get_aggregating_state(self, descriptor: Any) -> Any:
        """One accumulator per key, to which values are added by an aggregate function."""
        require_descriptor(descriptor, AggregatingStateDescriptor)
        return self.get_or_create_keyed_state(descriptor)

    def get_folding_state(self, descriptor: Any) -> Any:
        """Deprecated; see `get_aggregating_state`."""
        require_descriptor(descriptor, FoldingStateDescriptor)
        return self.get_or_create_keyed_state(descriptor)

    # -- snapshots -------------------------------------------------------------------------

    def snapshot(
        self,
        checkpoint_id: int,
        timestamp: float,  # noqa: ARG002  of the trigger; nothing here depends on it
        stream_factory: CheckpointStreamFactory,
        options: CheckpointOptions,
    ) -> SnapshotFuture[SnapshotResult]:
        """Take the state as it is now.

        The synchronous part is over when this returns: whatever is written from then on is not in
        the snapshot. The future's `run` does the rest, in any thread.

        Raises:
            UserError: this backend takes no snapshots.
        """
        self._check_usable()
        self._store.leave()
        self._store.move_time()
        self._store.sweep_expired()
        version = Version(checkpoint_id, "")
        self._writes.apply(write_marker(version, RUN))
        # Local copies have numbers of their own: a checkpoint may be taken again under its id.
        self._takes += 1
        self._snapshots.take(self._database, self._takes, version)
        sequence = self._store.epoch
        self._store.next_epoch()
        self._reenter()
        schemas, now_ms = tuple(self._store.schemas), self._store.now_ms
        take = Take(self._takes, checkpoint_id, sequence, schemas, now_ms)
        work = self._saver.work(take, stream_factory, options)
        future = self._underway.begin(checkpoint_id, work, partial(self._ended, take.number))
        if not self._asynchronous:
            future.run()
        return future

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """A snapshot counts; later ones may build on it. Unknown ids are passed over."""
        self._saver.completed(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """A snapshot will never count: what is left of it here may go."""
        self._underway.cancel(checkpoint_id)
        self._saver.aborted(checkpoint_id)

    def dispose(self) -> None:
        """Let go of everything; snapshots that are not through are canceled. Idempotent."""
        if self._disposed:
            return
        self._disposed = True
        # Both raise from now on whatever they are asked, so that no record pays for a check.
        self._located, self._locator = None, disposed(self._gone)
        self._store.kv_states.unregister_all()
        self._store.close(self._gone)
        self._underway.cancel_all()
        self._close()

    def _check_usable(self) -> None:
        """Raise `Bug` if the backend was disposed of."""
        if self._disposed:
            raise self._gone()

    def _gone(self) -> Bug:
        groups = self.key_group_range
        return Bug(
            f"the state backend was disposed of: key_groups={groups.start}-{groups.end}; make "
            f"another one"
        )

    def _close(self) -> None:
        self._snapshots.close()
        try:
            self._database.close()
        finally:
            self._directory.unlock()
            shutil.rmtree(self._home, ignore_errors=True)

    def _ended(self, take: int) -> None:
        """The asynchronous part is over; its local copy is of no more use."""
        with suppress(LocalDiskError):
            self._snapshots.aborted(take)
            self._snapshots.forget()

    @property
    def key_hash(self) -> str:
        """Which function maps a key to its key group."""
        return self._environment.key_hash
