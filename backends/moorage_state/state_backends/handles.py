"""What a snapshot of keyed state is afterwards: a handle that travels, and restores.

Decides what has to be known of a subtask's state to restore any part of it, by any parallelism and,
where the format is canonical, any backend. Made by snapshots, kept by whoever coordinates them.

The subtasks of one snapshot need not have declared the same: a state may be declared at its first
use, so when its type changes one subtask may have declared the new one and another not yet.
`known_states` decides which type holds for all, and of which type the values of each handle are.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from moorage_state.canonical.file_schema import file_name
from moorage_state.errors import CorruptState, UserError
from moorage_state.keyed.schema import StateSchema, merged_schema
from moorage_state.keygroups import KeyGroupRange
from moorage_state.snapshots import FileRef, RangeHandle
from moorage_state.state_backends.streams import StreamStateHandle
from moorage_state.stores import open_store


class KeyedStateHandle(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one range of key groups in one snapshot.

    Attributes:
        backend: the identifier of the state backend that reads it; `canonical` is everybody's.
        operator: the operator's uid.
        key_types: the DDL types of its key columns.
        number_of_key_groups: the operator's maximum parallelism.
        end: the last key group, included.
        states: what was declared. Where the format keeps values of the last type only, `earlier`
            says no more than which types came before it.
        sequence: goes on growing after a restore; part of the place of list elements.
        store_url: where the files of `range` are.
        range: the files; None where there is a stream.
        stream: the bytes, of `hashmap` as earlier releases wrote it.
        offsets: where in `stream` the key groups begin, and where the last one ends.
    """

    backend: str
    job_id: str
    operator: str
    key_types: tuple[str, ...]
    key_hash: str
    number_of_key_groups: int
    start: int
    end: int
    checkpoint_id: int
    states: tuple[StateSchema, ...]
    sequence: int = 0
    store_url: str = ""
    range: RangeHandle | None = None
    stream: StreamStateHandle | None = None
    offsets: tuple[int, ...] = ()

    @property
    def key_group_range(self) -> KeyGroupRange:
        """The key groups."""
        return KeyGroupRange(self.start, self.end)

    @property
    def is_native(self) -> bool:
        """Whether the files are those of a database, whose values say what type wrote them."""
        return self.range is not None and self.range.format == "native"

    @property
    def state_size(self) -> int:
        """Bytes that a restore reads."""
        if self.range is not None:
            return self.range.bytes_total
        return self.stream.size if self.stream is not None else 0

    def discard(self) -> None:
        """Delete what belongs to this snapshot alone; idempotent."""
        if self.stream is not None:
            self.stream.discard()
        if self.range is not None:
            own = {ref.key for ref in self.range.files if ref.key and not ref.shared}
            for key in sorted(own):
                open_store(self.store_url).delete(key)


class SnapshotResult(msgspec.Struct, frozen=True):
    """What the asynchronous part of a snapshot gave; no handle where there was no state."""

    handle: KeyedStateHandle | None = None
    bytes_written: int = 0
    written: tuple[str, ...] = ()
    """Keys of shared objects that this snapshot is the first to reference."""

    @property
    def state_size(self) -> int:
        """Bytes that a restore reads."""
        return 0 if self.handle is None else self.handle.state_size

    def discard(self) -> None:
        """Delete all that this snapshot wrote; idempotent. Only for one that never counted."""
        if self.handle is None:
            return
        self.handle.discard()
        for key in self.written:
            open_store(self.handle.store_url).delete(key)


def shared_keys(files: Iterable[FileRef]) -> set[str]:
    """Keys of the objects that later snapshots may reference."""
    return {ref.key for ref in files if ref.key and ref.shared}


def select_handles(
    handles: Iterable[KeyedStateHandle],
    *,
    operator: str,
    key_types: Sequence[str],
    key_hash: str,
    number_of_key_groups: int,
    wanted: KeyGroupRange,
    readable: frozenset[str],
) -> list[KeyedStateHandle]:
    """The handles that `wanted` needs, in the order of key groups, checked to fit.

    Args:
        readable: the formats that the restoring backend reads.

    Raises:
        UserError: they are of another format, of other keys or another number of key groups.
        CorruptState: together they do not have every wanted key group exactly once, or one lacks
            a file.
    """
    given = list(handles)
    for handle in given:
        _require_fit(handle, operator, tuple(key_types), key_hash, number_of_key_groups, readable)
    found = sorted(
        (h for h in given if h.key_group_range.overlap(wanted)), key=lambda handle: handle.start
    )
    for handle in found:
        _require_files(handle)
    expected = wanted.start
    for handle in found:
        if max(handle.start, wanted.start) != expected:
            break
        expected = handle.end + 1
    else:
        if not given or expected > wanted.end:
            return found
    raise CorruptState(
        f"handles of a snapshot do not have every key group once: operator={operator} "
        f"wanted={wanted.start}-{wanted.end} "
        f"found={','.join(f'{h.start}-{h.end}' for h in found) or '(none)'}",
        advice="give the handles of all subtasks of one snapshot",
    )


def _require_files(handle: KeyedStateHandle) -> None:
    """Every state has a file in a canonical snapshot, also one without entries."""
    if handle.backend != "canonical" or handle.range is None:
        return
    there = {ref.name for ref in handle.range.files}
    missing = [s.name for s in handle.states if file_name(s.name) not in there]
    if missing:
        raise CorruptState(
            f"handle of a snapshot lacks files of states: operator={handle.operator} "
            f"checkpoint={handle.checkpoint_id} states={','.join(missing)}",
            handle.store_url,
            "give the handle as the snapshot gave it, or restore another snapshot",
        )


def _require_fit(
    handle: KeyedStateHandle,
    operator: str,
    key_types: tuple[str, ...],
    key_hash: str,
    number_of_key_groups: int,
    readable: frozenset[str],
) -> None:
    where = f"operator={operator} checkpoint={handle.checkpoint_id}"
    if handle.backend not in readable:
        raise UserError(
            f"a snapshot in the own format of one backend cannot be restored by another: {where} "
            f"written_by={handle.backend} readable={','.join(sorted(readable))}; restore it with "
            f"{handle.backend} and take a canonical savepoint"
        )
    for what, stored, own in (
        ("key_types", handle.key_types, key_types),
        ("key_hash", handle.key_hash, key_hash),
        ("number_of_key_groups", handle.number_of_key_groups, number_of_key_groups),
    ):
        if stored != own:
            raise UserError(
                f"snapshot does not fit the operator: {where} {what} stored={stored} "
                f"declared={own}; keys and key groups of stored state cannot change"
            )


@dataclass(frozen=True, slots=True)
class KnownStates:
    """What holds for all subtasks.

    Attributes:
        schemas: by name; `earlier` are the types that restored values may still have.
    """

    schemas: Mapping[str, StateSchema]
    _forgotten: Mapping[str, int]

    def generations(self, handle: KeyedStateHandle) -> dict[str, int]:
        """For each state of a handle, the type of its values, where they are all of the last one.

        Given as which of the types in `schemas` it is, counted from the oldest.
        """
        return {s.name: len(s.earlier) - self._forgotten[s.name] for s in handle.states}


def known_states(handles: Iterable[KeyedStateHandle]) -> KnownStates:
    """What the subtasks of one snapshot had declared, together.

    Args:
        handles: all that there are of the snapshot, so that every subtask comes to the same.

    Raises:
        UserError: they declared what excludes each other.
    """
    schemas: dict[str, StateSchema] = {}
    forgotten: dict[str, int] = {}
    for handle in handles:
        for schema in handle.states:
            name, other = schema.name, schemas.get(schema.name)
            if handle.stream is not None and schema.indexed_ms is not None:
                # A stream has no index of what expires: a sweep makes it.
                schema = msgspec.structs.replace(schema, indexed_ms=0)  # noqa: PLW2901
            schemas[name] = schema if other is None else merged_schema(other, schema)
            oldest = 0 if handle.is_native else len(schema.earlier)
            forgotten[name] = min(oldest, forgotten.get(name, oldest))
    kept = {name: _later_than(schema, forgotten[name]) for name, schema in schemas.items()}
    return KnownStates(kept, forgotten)


def _later_than(schema: StateSchema, forgotten: int) -> StateSchema:
    if not forgotten:
        return schema
    return msgspec.structs.replace(schema, earlier=schema.earlier[forgotten:])
