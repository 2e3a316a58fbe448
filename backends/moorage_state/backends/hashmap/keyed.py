"""The keyed state of one subtask as objects in memory.

Decides what a snapshot captures and in which format it is written, and how state comes back from
the handles of any parallelism. Called by the thread of the subtask, but for what a snapshot does
afterwards.
"""

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from moorage_state.backends.api import Environment, KeyedStateBackend, TimeDomain
from moorage_state.backends.canonicals import frames_in, write_canonical
from moorage_state.backends.futures import Cancellation, SnapshotFuture
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
from moorage_state.backends.keying import KeyLocator, Located
from moorage_state.backends.storage import CheckpointStreamFactory
from moorage_state.backends.timers import HeapTimers
from moorage_state.canonical import CanonicalSpec
from moorage_state.coordinator import CheckpointOptions
from moorage_state.coordinator.properties import SavepointFormat
from moorage_state.errors import Bug, UserError
from moorage_state.keyed.api import ListState
from moorage_state.keyed.store import StateSchema
from moorage_state.keygroups import KeyGroupRange

__all__ = ["HeapKeyedStateBackend", "merge_states"]


class HeapKeyedStateBackend(KeyedStateBackend):
    """See `KeyedStateBackend`.

    Args:
        asynchronous: whether snapshots are written after `snapshot` returned, by whoever runs the
            future; else they are through when it returns.
    """

    backend = "hashmap"

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
        self._located: Located | None = None
        self._states = HeapStates(self._context, len(key_group_range))
        for meta in TIMER_TABLES.values():
            self._states.table(meta)
        self._sweeper: Sweeper | None = None
        self._timers: dict[TimeDomain, HeapTimers] = {}
        self._futures: dict[int, SnapshotFuture[SnapshotResult]] = {}
        self._sequence = 1
        self._disposed = False

    def restore(self, handles: Iterable[KeyedStateHandle]) -> None:
        """Fill the empty backend; see `StateBackend.create_keyed_state_backend`."""
        wanted = self.key_group_range
        found = select_handles(
            handles,
            operator=self._operator,
            key_types=self.key_types,
            key_hash=self._environment.key_hash,
            number_of_key_groups=self.number_of_key_groups,
            wanted=wanted,
            readable=frozenset({"hashmap", "canonical"}),
        )
        for handle in found:
            self._sequence = max(self._sequence, handle.sequence + 1)
            first, last = max(handle.start, wanted.start), min(handle.end, wanted.end)
            if handle.stream is not None:
                fill_from_stream(self._states, handle, first, last, wanted.start)
            else:
                frames = frames_in(handle, first, last, self._environment.local_dir)
                fill_from_frames(self._states, handle, frames, wanted.start)

    # -- keys ------------------------------------------------------------------------------

    def set_current_key(self, key: Any) -> None:
        """See `KeyedStateBackend`."""
        found = self._located = self._locator.find(key)
        context = self._context
        context.group, context.entry = found.group, found.raw
        if self._sweeper is not None:
            self._sweeper.step()

    @property
    def current_key(self) -> Any:
        """See `KeyedStateBackend`."""
        return self._located.key if self._located is not None else None

    @property
    def has_current_key(self) -> bool:
        """See `KeyedStateBackend`."""
        return self._located is not None

    def get_keys(self, state_name: str, namespace: Any = None) -> Iterator[Any]:
        """See `KeyedStateBackend`."""
        kept = self._states[state_name]
        wanted = kept.namespace_bytes(namespace)
        for _, entry in kept.table:
            raw, found = entry if isinstance(entry, tuple) else (entry, None)
            if found == wanted:
                yield self._locator.decode(raw)

    def get_keys_and_namespaces(self, state_name: str) -> Iterator[tuple[Any, Any]]:
        """All pairs of a key and a namespace that have something in this state."""
        kept = self._states[state_name]
        codec = kept.namespace_codec
        if codec is None:
            raise UserError(f"state was declared without namespaces: state={state_name}")
        for _, (raw, namespace) in kept.table:
            yield self._locator.decode(raw), codec.decode(namespace)[0]

    def _enter(self, group: int, raw: bytes) -> Any:
        located = self._located = self._locator.at(group, raw)
        self._context.group, self._context.entry = group, raw
        return located.key

    # -- states ----------------------------------------------------------------------------

    def get_or_create_keyed_state(self, descriptor: Any) -> Any:
        """See `KeyedStateBackend`."""
        return self._declared(descriptor, None)[0]

    def get_partitioned_state(
        self, namespace: Any, namespace_type: str | None, descriptor: Any
    ) -> Any:
        """See `KeyedStateBackend`."""
        state, cell, kept = self._declared(descriptor, namespace_type)
        cell.use_namespace(kept.namespace_bytes(namespace))
        return state

    def merge_namespaces(
        self, target: Any, sources: Iterable[Any], namespace_type: str, descriptor: Any
    ) -> None:
        """Make what the current key has in `sources` part of what it has in `target`."""
        _, _, kept = self._declared(descriptor, namespace_type)
        into = self._states.new_handle(kept, descriptor)
        into.cell.use_namespace(kept.namespace_bytes(target))
        for source in sources:
            if source == target:
                continue
            part = self._states.new_handle(kept, descriptor)
            part.cell.use_namespace(kept.namespace_bytes(source))
            merge_states(into.state, part.state)

    def _declared(self, descriptor: Any, namespace_type: str | None) -> tuple[Any, Any, KeptState]:
        self._check_usable()
        kept = self._states.declare(descriptor, namespace_type)
        if kept.meta.sweeps and self._sweeper is None:
            self._sweeper = Sweeper(self._states, self._context.clock_ms)
        if kept.handle is None:
            raise Bug(f"a declared state has no handle: state={descriptor.name}")
        return kept.handle.state, kept.handle.cell, kept

    def timers(self, domain: TimeDomain = TimeDomain.EVENT_TIME) -> HeapTimers:
        """See `KeyedStateBackend`."""
        found = self._timers.get(domain)
        if found is None:
            table = self._states.table(TIMER_TABLES[domain])
            found = self._timers[domain] = HeapTimers(self._context, table, self._enter)
        return found

    def num_key_value_state_entries(self) -> int:
        """See `KeyedStateBackend`; of lists and maps their elements and entries count."""
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
        captured = [Captured(k.meta, k.table.captured(), k.ttl_ms) for k in states]
        write = self._write_canonical if canonical else self._write_native
        work = partial(
            write, captured, checkpoint_id, self._sequence, self._context.clock_ms(), stream_factory
        )
        self._sequence += 1
        future: SnapshotFuture[SnapshotResult] = SnapshotFuture(
            work, release=partial(self._ended, checkpoint_id, moment)
        )
        self._futures[checkpoint_id] = future
        if not self._asynchronous:
            future.run()
        return future

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """See `KeyedStateBackend`; nothing is kept for it here."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """See `KeyedStateBackend`."""
        future = self._futures.get(checkpoint_id)
        if future is not None:
            future.cancel()

    def dispose(self) -> None:
        """See `KeyedStateBackend`."""
        self._disposed = True
        for future in list(self._futures.values()):
            future.cancel()
        for kept in self._states:
            kept.table.clear()

    def _check_usable(self) -> None:
        if self._disposed:
            raise Bug(f"the state backend was disposed of: operator={self._operator}")

    def _ended(self, checkpoint_id: int, moment: int) -> None:
        self._states.versions.release(moment)
        self._futures.pop(checkpoint_id, None)

    def _write_native(
        self,
        captured: list[Captured],
        checkpoint_id: int,
        sequence: int,
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
        handle = self._handle(
            "hashmap", captured, checkpoint_id, sequence, stream=written, offsets=offsets
        )
        return SnapshotResult(handle, handle.state_size)

    def _write_canonical(
        self,
        captured: list[Captured],
        checkpoint_id: int,
        sequence: int,
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
        own = self.key_group_range
        view = HeapRangeView(states, timers, own.start, sequence, now_ms)
        spec = CanonicalSpec(
            uid=self._operator,
            start=own.start,
            end=own.end,
            epoch=checkpoint_id,
            max_parallelism=self.number_of_key_groups,
            key_types=self.key_types,
            states=metas_of(_schemas(captured)),
            key_hash=self._environment.key_hash,
        )
        local_dir: Path | None = self._environment.local_dir
        files = write_canonical(view, spec, factory, local_dir, cancellation.check)
        handle = self._handle(
            "canonical",
            captured,
            checkpoint_id,
            sequence,
            range=files,
            store_url=factory.store_url if factory.inline_bytes is not None else "",
        )
        return SnapshotResult(handle, handle.state_size)

    def _handle(
        self,
        backend: Any,
        captured: list[Captured],
        checkpoint_id: int,
        sequence: int,
        **place: Any,
    ) -> KeyedStateHandle:
        return KeyedStateHandle(
            backend=backend,
            job_id=self._job_id,
            operator=self._operator,
            key_types=self.key_types,
            key_hash=self._environment.key_hash,
            number_of_key_groups=self.number_of_key_groups,
            start=self.key_group_range.start,
            end=self.key_group_range.end,
            checkpoint_id=checkpoint_id,
            states=_schemas(captured),
            sequence=sequence,
            **place,
        )


def merge_states(into: Any, part: Any) -> None:
    """Take over what `part` has for the current key, which it loses.

    Raises:
        TypeError: states of this kind cannot be merged.
    """
    if hasattr(into, "absorb"):
        into.absorb(part)
    elif isinstance(into, ListState):
        into.add_all(part.get())
        part.clear()
    else:
        raise TypeError(
            f"a {type(into).__name__} has no way to become one of several; only list, reducing "
            f"and aggregating states are merged"
        )


def _schemas(captured: list[Captured]) -> tuple[StateSchema, ...]:
    return tuple(
        StateSchema(
            one.meta.name,
            one.meta.kind,
            one.meta.type,
            one.meta.key_type or "",
            ttl_ms=one.ttl_ms if one.meta.stamped else None,
            namespace_types=(one.meta.namespace_type,) if one.meta.namespace_type else (),
        )
        for one in captured
        if one.meta.kind != "timers"
    )


def _count(kept: KeptState) -> int:
    entries = [found for group in kept.table.groups for found in group.values()]
    if kept.meta.kind in ("list", "map", "timers"):
        return sum(map(len, entries))
    return len(entries)
