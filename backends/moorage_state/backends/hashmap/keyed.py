"""The keyed state of one subtask as objects in memory.

Decides what a snapshot captures and in which format it is written, and how state comes back from
the handles of any parallelism. Called by the thread of the subtask, but for what a snapshot does
afterwards.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from moorage_state.backends.api import Environment, TimeDomain
from moorage_state.backends.canonicals import frames_in, write_canonical
from moorage_state.backends.futures import Cancellation, SnapshotFuture, SnapshotsUnderway
from moorage_state.backends.handles import (
    KeyedStateHandle,
    SnapshotResult,
    metas_of,
    select_handles,
)
from moorage_state.backends.hashmap.context import Context
from moorage_state.backends.hashmap.filling import fill_from_frames, fill_from_stream
from moorage_state.backends.hashmap.format import TIMER_TABLES, Captured, write_heap_snapshot
from moorage_state.backends.hashmap.registered import HeapStates, KeptState
from moorage_state.backends.hashmap.sweeping import Sweeper
from moorage_state.backends.hashmap.view import HeapRangeView
from moorage_state.backends.keying import KeyLocator, Located, LocatingBackend, require_operator
from moorage_state.backends.merging import known_states
from moorage_state.backends.storage import CheckpointStreamFactory
from moorage_state.backends.timers import HeapTimers
from moorage_state.canonical import CanonicalSpec
from moorage_state.coordinator import CheckpointOptions
from moorage_state.coordinator.properties import SavepointFormat
from moorage_state.errors import UserError
from moorage_state.keyed.store import StateSchema
from moorage_state.keygroups import KeyGroupRange

__all__ = ["HeapKeyedStateBackend", "merge_states"]


class HeapKeyedStateBackend(LocatingBackend):
    """See `KeyedStateBackend`.

    Attributes:
        backend: its name in handles.
        timers_class: what timers are kept in.

    Args:
        asynchronous: whether snapshots are written after `snapshot` returned, by whoever runs the
            future; else they are through when it returns.
    """

    backend = "hashmap"
    timers_class: type[HeapTimers] = HeapTimers

    def __init__(
        self,
        environment: Environment,
        job_id: str,
        operator: str,
        key_types: tuple[str, ...],
        number_of_key_groups: int,
        key_group_range: KeyGroupRange,
        *,
        asynchronous: bool = True,
    ) -> None:
        require_operator(operator)
        self.key_types = key_types
        self.number_of_key_groups = number_of_key_groups
        self.key_group_range = key_group_range
        self._environment = environment
        self._job_id = job_id
        self._operator = operator
        self._asynchronous = asynchronous
        self._locator = KeyLocator(
            key_types, number_of_key_groups, key_group_range, environment.key_hash
        )
        self._context = Context(environment.clock_ms)
        self._states = HeapStates(self._context, len(key_group_range))
        for meta in TIMER_TABLES.values():
            self._states.table(meta)
        self._sweeper: Sweeper | None = None
        self._timers: dict[TimeDomain, HeapTimers] = {}
        self._underway: SnapshotsUnderway[SnapshotResult] = SnapshotsUnderway()
        self._sequence = 1

    def restore(self, handles: Iterable[KeyedStateHandle]) -> None:
        """Fill the empty backend; see `StateBackend.create_keyed_state_backend`."""
        wanted, given = self.key_group_range, list(handles)
        found = select_handles(
            given,
            operator=self._operator,
            key_types=self.key_types,
            key_hash=self._environment.key_hash,
            number_of_key_groups=self.number_of_key_groups,
            wanted=wanted,
            readable=frozenset({"hashmap", "canonical"}),
        )
        known = known_states(given)
        for schema in known.schemas.values():
            self._states.restored(schema)
        for handle in found:
            self._sequence = max(self._sequence, handle.sequence + 1)
            first, last = max(handle.start, wanted.start), min(handle.end, wanted.end)
            if handle.stream is not None:
                fill_from_stream(self._states, known, handle, first, last, wanted.start)
            else:
                frames = frames_in(handle, first, last, self._environment.local_dir)
                fill_from_frames(self._states, known, handle, frames, wanted.start)

    # -- keys ------------------------------------------------------------------------------

    def set_current_key(self, key: Any) -> None:
        """See `KeyedStateBackend`."""
        super().set_current_key(key)
        if self._sweeper is not None:
            self._sweeper.step()

    def enter(self, located: Located) -> None:
        """See `LocatingBackend`."""
        self._located = located
        self._context.group, self._context.entry = located.group, located.raw

    def get_keys(self, state_name: str, namespace: Any = None) -> Iterator[Any]:
        """See `KeyedStateBackend`; as it is now, whatever is written meanwhile."""
        self._check_usable()
        kept = self._states.get(state_name)
        if kept is None:
            return iter(())
        wanted = kept.namespace_bytes(namespace)
        entries = [entry if isinstance(entry, tuple) else (entry, None) for _, entry in kept.table]
        return map(self._locator.decode, [raw for raw, found in entries if found == wanted])

    def get_keys_and_namespaces(self, state_name: str) -> Iterator[tuple[Any, Any]]:
        """All pairs of a key and a namespace that have something in this state, as it is now."""
        self._check_usable()
        kept = self._states.get(state_name)
        if kept is None:
            return iter(())
        codec = kept.namespace_codec
        if codec is None:
            raise UserError(f"state was declared without namespaces: state={state_name}")
        decode = self._locator.decode
        return ((decode(raw), codec.decode(found)) for raw, found in [e for _, e in kept.table])

    # -- states ----------------------------------------------------------------------------

    def get_or_create_keyed_state(self, descriptor: Any) -> Any:
        """See `KeyedStateBackend`."""
        return self.get_partitioned_state(None, None, descriptor)

    def get_partitioned_state(
        self, namespace: Any, namespace_type: str | None, descriptor: Any
    ) -> Any:
        """See `KeyedStateBackend`."""
        kept = self._declared(descriptor, namespace_type)
        return self._states.handle_in(kept, descriptor, namespace).state

    def merge_namespaces(
        self, target: Any, sources: Iterable[Any], namespace_type: str, descriptor: Any
    ) -> None:
        """Make what the current key has in `sources` part of what it has in `target`."""
        kept = self._declared(descriptor, namespace_type)
        into = self._states.handle_in(kept, descriptor, target)
        for source in sources:
            part = self._states.handle_in(kept, descriptor, source)
            if part.state is not into.state:
                merge_states(into.state, part.state)

    def _declared(self, descriptor: Any, namespace_type: str | None) -> KeptState:
        self._check_usable()
        kept = self._states.declare(descriptor, namespace_type)
        if kept.meta.sweeps and self._sweeper is None:
            self._sweeper = Sweeper(self._states, self._context.clock_ms)
        return kept

    def timers(self, domain: TimeDomain = TimeDomain.EVENT_TIME) -> HeapTimers:
        """See `KeyedStateBackend`."""
        self._check_usable()
        found = self._timers.get(domain)
        if found is None:
            table = self._states.table(TIMER_TABLES[domain])
            found = self.timers_class(self._context, table, self.enter_raw, domain=domain)
            self._timers[domain] = found
        return found

    def num_key_value_state_entries(self) -> int:
        """See `KeyedStateBackend`; of lists and maps their elements and entries count."""
        self._check_usable()
        return sum(_count(kept) for kept in self._states)

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
        canonical = (
            options.checkpoint_type.is_savepoint and options.format is SavepointFormat.CANONICAL
        )
        states = list(self._states)
        moment = self._states.versions.take()
        captured = [Captured(k.meta, k.table.captured(), k.ttl_ms, k.packed) for k in states]
        schemas = tuple(kept.schema for kept in states if kept.meta.kind != "timers")
        handle = self._handle(checkpoint_id, schemas)
        write = self._write_canonical if canonical else self._write_native
        work = partial(write, captured, handle, self._context.clock_ms(), stream_factory)
        self._sequence += 1
        release = partial(self._states.versions.release, moment)
        future = self._underway.begin(checkpoint_id, work, release)
        if not self._asynchronous:
            future.run()
        return future

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """See `KeyedStateBackend`; nothing is kept for it here."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """See `KeyedStateBackend`."""
        self._underway.cancel(checkpoint_id)

    def dispose(self) -> None:
        """See `KeyedStateBackend`."""
        self._refuse_all()
        self._context.close(self._gone)
        self._underway.cancel_all()
        for kept in self._states:
            kept.table.clear()

    def _write_native(
        self,
        captured: list[Captured],
        handle: KeyedStateHandle,
        now_ms: int,
        factory: CheckpointStreamFactory,
        cancellation: Cancellation,
    ) -> SnapshotResult:
        stream = factory.create_checkpoint_state_output_stream()
        forget = cancellation.register(stream.close)
        try:
            first = self.key_group_range.start
            offsets = write_heap_snapshot(stream, captured, first, now_ms, cancellation.check)
            written = stream.close_and_get_handle()
        finally:
            forget()
            stream.close()
        handle = msgspec.structs.replace(handle, stream=written, offsets=offsets)
        return SnapshotResult(handle, handle.state_size)

    def _write_canonical(
        self,
        captured: list[Captured],
        handle: KeyedStateHandle,
        now_ms: int,
        factory: CheckpointStreamFactory,
        cancellation: Cancellation,
    ) -> SnapshotResult:
        states = [one for one in captured if one.meta.kind != "timers"]
        timers = [
            one.groups
            for meta in TIMER_TABLES.values()
            for one in captured
            if one.meta.name == meta.name
        ]
        view = HeapRangeView(states, timers, handle.start, handle.sequence, now_ms)
        spec = CanonicalSpec(
            uid=self._operator,
            start=handle.start,
            end=handle.end,
            epoch=handle.checkpoint_id,
            max_parallelism=self.number_of_key_groups,
            key_types=self.key_types,
            # Every value that is captured is of the last type.
            states=metas_of(msgspec.structs.replace(s, earlier=()) for s in handle.states),
            key_hash=self._environment.key_hash,
        )
        local_dir: Path | None = self._environment.local_dir
        files = write_canonical(view, spec, factory, local_dir, cancellation.check)
        url = factory.store_url if factory.inline_bytes is not None else ""
        handle = msgspec.structs.replace(handle, backend="canonical", range=files, store_url=url)
        return SnapshotResult(handle, handle.state_size)

    def _handle(self, checkpoint_id: int, schemas: tuple[StateSchema, ...]) -> KeyedStateHandle:
        """What is known of a snapshot before it is written."""
        return KeyedStateHandle(
            backend="hashmap",
            job_id=self._job_id,
            operator=self._operator,
            key_types=self.key_types,
            key_hash=self._environment.key_hash,
            number_of_key_groups=self.number_of_key_groups,
            start=self.key_group_range.start,
            end=self.key_group_range.end,
            checkpoint_id=checkpoint_id,
            states=schemas,
            sequence=self._sequence,
        )


def merge_states(into: Any, part: Any) -> None:
    """Take over what `part` has for the current key, which it loses.

    Raises:
        TypeError: states of this kind cannot be merged.
    """
    if hasattr(into, "absorb"):
        into.absorb(part)
    else:
        raise TypeError(
            f"a {type(into).__name__} has no way to become one of several; only list, reducing "
            f"and aggregating states are merged"
        )


def _count(kept: KeptState) -> int:
    entries = [found for group in kept.table.groups for found in group.values()]
    if kept.meta.kind in ("list", "map", "timers"):
        return sum(map(len, entries))
    return len(entries)
