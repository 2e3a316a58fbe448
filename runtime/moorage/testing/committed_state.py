"""What one operator has between two epochs: state, timers and keys, read as they are committed.

Decides which key a test means by what it gives, and how state is shown. Called by `KeyedHarness`;
changes nothing.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from moorage.api.functions import MAX_WATERMARK
from moorage.api.graph import OperatorNode
from moorage.engine.range_access import BoundRange
from moorage.testing.in_process import InProcessJob
from moorage_state.canonical.hashing import key_groups
from moorage_state.checks import StateTypeError
from moorage_state.codecs import checker
from moorage_state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from moorage_state.errors import UserError
from moorage_state.keyed import KeyedStateStore, TimeDomain
from moorage_state.keyed.schema import StateSchema
from moorage_state.keygroups import KeyGroupRange, owner, range_of
from moorage_state.keylayout import (
    EVENT_TIMERS,
    KEY_AT,
    KEYED_STATE,
    PROCESSING_TIMERS,
    key_prefix,
    prefix_of,
    timer_parts,
)
from moorage_state.keys import KeyCodec
from moorage_state.operator_state import RangeOperatorStates
from moorage_state.timetolive import StateTtlConfig

_ALL = 1 << 31
_KINDS = {TimeDomain.EVENT_TIME: EVENT_TIMERS, TimeDomain.PROCESSING_TIME: PROCESSING_TIMERS}


class CommittedState:
    """Of one operator of a job; what a method tells is as of its call.

    For what the methods raise see those of `KeyedHarness` that have their names.
    """

    def __init__(self, job: InProcessJob, operator: OperatorNode) -> None:
        self._job = job
        self._uid = operator.uid
        descriptors = operator.broadcast.descriptors if operator.broadcast is not None else ()
        self._broadcast = {descriptor.name: descriptor for descriptor in descriptors}
        self._columns = operator.key_columns
        self._types = operator.key_types
        self._codec = KeyCodec(operator.key_types)
        self._checks = [checker(ddl) for ddl in operator.key_types]
        self._count = job.planner.parallelism
        self._most = job.planner.max_parallelism

    def keys(self) -> list[Any]:
        """The keys that have state or timers, in the order of their key groups."""
        found: dict[Any, None] = {}
        for bound, groups in self._subtasks():
            for raw in _stored_keys(bound, groups):
                key = self._codec.decode(raw)
                found[key[0] if len(key) == 1 else key] = None
        return list(found)

    def state(self, name: str, key: Any, namespace: Any) -> Any:
        """What a key has in a state."""
        schema = self._schema(name)
        if bool(schema.namespace_types) != (namespace is not None):
            has = ", ".join(schema.namespace_types) or "none"
            raise UserError(
                f"a namespace is given for a state that has them, and for no other: state={name} "
                f"namespaces={has} given={namespace!r:.80}"
            )
        group, raw = self._place(key)
        store, handle = self._handle(schema, owner(group, self._count, self._most))
        store.begin_chunk([key_prefix(group, raw)])
        store.switch_to(0)
        if namespace is not None:
            try:
                handle = handle.set_current_namespace(namespace)
            except StateTypeError as error:
                raise UserError(str(error)) from None
        if schema.kind == "list":
            return list(handle.get())
        if schema.kind == "map":
            return dict(handle.items())
        return handle.value()

    def broadcast_state(self, name: str) -> dict[Any, Any]:
        """The entries of a broadcast state, of which every subtask has the same."""
        if not isinstance(name, str) or name not in self._broadcast:
            raise UserError(
                f"no such broadcast state: state={name!r:.80} known={sorted(self._broadcast)}; "
                f"give the name of a descriptor that is in broadcast_states"
            )
        first, *others = [self._copy(name, bound, groups) for bound, groups in self._subtasks()]
        for subtask, other in enumerate(others, 1):
            # Two NaN are alike, though not equal.
            if other != first and repr(other) != repr(first):
                raise UserError(
                    f"subtasks have different copies of a broadcast state: state={name} "
                    f"subtask=0 {first!r:.200} subtask={subtask} {other!r:.200}; "
                    f"process_broadcast_element may depend on nothing but its rows"
                )
        return first

    def timers(self, key: Any, domain: TimeDomain) -> list[int]:
        """The times for which a key has timers, in order."""
        wanted = self._place(key)
        return [time for group, time, raw in self._timers(domain) if (group, raw) == wanted]

    def num_timers(self, domain: TimeDomain) -> int:
        """How many timers there are of all keys."""
        return sum(1 for _ in self._timers(domain))

    def _schema(self, name: str) -> StateSchema:
        for states in (self._job.runner.schemas, self._job.declared()):
            known = {schema.name: schema for schema in states.get(self._uid, ())}
            if isinstance(name, str) and name in known:
                return known[name]
        raise UserError(
            f"no such state: state={name!r} known={sorted(known)}; of one that is asked for in "
            f"process, and not in open, nobody knows before the first row"
        )

    def _handle(self, schema: StateSchema, subtask: int) -> tuple[KeyedStateStore, Any]:
        runner, read_as = self._job.runner, _descriptor(schema)
        store = KeyedStateStore(
            self._job.ranges(self._uid)[subtask],
            runner.epoch + 1,
            [msgspec.structs.replace(schema, kind=read_as.kind)],
            now_ms=runner.processing_time(),
            groups=range_of(subtask, self._count, self._most),
        )
        if schema.namespace_types:
            return store, store.namespaced_state(read_as, schema.namespace_types)
        return store, store.state(read_as)

    def _copy(self, name: str, bound: BoundRange, groups: KeyGroupRange) -> dict[Any, Any]:
        """What one subtask has of a broadcast state."""
        runner = self._job.runner
        known = runner.operator_states.schemas.get(self._uid, ())
        # Nothing is written with it.
        writer = KeyedStateStore(bound, runner.epoch + 1)
        states = RangeOperatorStates(bound, writer, groups.start, runner.epoch + 1, known)
        return dict(states.get_broadcast_state(self._broadcast[name]).items())

    def _place(self, key: Any) -> tuple[int, bytes]:
        """Key group and bytes of a key."""
        columns = self._checked(key if isinstance(key, tuple) else (key,))
        (group,) = key_groups(self._types, self._most, self._job.planner.key_hash)([columns])
        return group, self._codec.encode(columns)

    def _checked(self, columns: Sequence[Any]) -> tuple[Any, ...]:
        try:
            found = zip(self._checks, columns, strict=True)
            return tuple(check(value) for check, value in found)
        except (StateTypeError, ValueError) as error:
            names = zip(self._columns, self._types, strict=True)
            wanted = ", ".join(f"{name} {ddl}" for name, ddl in names)
            why = f": {error}" if isinstance(error, StateTypeError) else ""
            shape = "a tuple of values" if len(self._types) > 1 else "one value"
            raise UserError(
                f"no key of this stream: key={columns!r:.100} key_by={wanted}{why}; give {shape} "
                f"of these types"
            ) from None

    def _subtasks(self) -> Iterator[tuple[BoundRange, KeyGroupRange]]:
        """By subtask, its range to be read, and its key groups."""
        for subtask, bound in enumerate(self._job.ranges(self._uid)):
            yield bound, range_of(subtask, self._count, self._most)

    def _timers(self, domain: TimeDomain) -> Iterator[tuple[int, int, bytes]]:
        """All of a kind: key group, time, key; those of a subtask by time."""
        if not isinstance(domain, TimeDomain):
            raise UserError(
                f"timers are of TimeDomain.EVENT_TIME or TimeDomain.PROCESSING_TIME: "
                f"given={domain!r:.80}"
            )
        for bound, _ in self._subtasks():
            for entry in bound.due_timers(MAX_WATERMARK, _ALL, b"", _KINDS[domain]):
                yield timer_parts(entry)


def _stored_keys(bound: BoundRange, groups: KeyGroupRange) -> Iterable[bytes]:
    """The keys of all state and timers of a range."""
    kinds = (KEYED_STATE, EVENT_TIMERS, PROCESSING_TIMERS)
    of_groups = range(groups.start, groups.end + 1)
    prefixes = [group.to_bytes(2, "big") + bytes([kind]) for group in of_groups for kind in kinds]
    for scan in bound.scan_many(prefixes, _ALL, _ALL):
        for entry in scan.keys:
            state = entry[2] == KEYED_STATE
            yield prefix_of(entry)[KEY_AT:] if state else timer_parts(entry)[2]


def _descriptor(schema: StateSchema) -> StateDescriptor:
    """What reads a state as it is stored: of what combines values, what they came to."""
    ttl = None
    if schema.ttl_ms is not None:
        ttl = StateTtlConfig(
            timedelta(milliseconds=schema.ttl_ms),
            cleanup_in_background=schema.indexed_ms is not None,
            cleanup_in_full_snapshot=schema.cleanup_in_full_snapshot,
        )
    if schema.kind == "list":
        return ListStateDescriptor(schema.name, schema.type, ttl=ttl)
    if schema.kind == "map":
        return MapStateDescriptor(schema.name, schema.key_type, schema.type, ttl=ttl)
    return ValueStateDescriptor(schema.name, schema.type, ttl=ttl)
