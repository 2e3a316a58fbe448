"""One operator of a new savepoint: from tables, and a base's states, to canonical files on disk.

All of its rows are checked before anything is stored: two rows for one place are refused. Called by
the writer with a scratch directory.
"""

from collections.abc import Collection, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from moorage.state.reader import SCRATCH, range_rows
from moorage.state.snapshot_path import Snapshot
from moorage.state.table_shape import Shaper, batches_of, checked_types
from moorage_state.canonical import (
    SIDE_KINDS,
    TIMER_KINDS,
    TIMERS,
    CanonicalSpec,
    ExportedFile,
    FileMeta,
    RowReader,
    export_range,
    key_columns,
    stored_id,
)
from moorage_state.database import RangeDatabase
from moorage_state.deltas import Frame
from moorage_state.descriptors import MapStateDescriptor, StateDescriptor
from moorage_state.errors import UserError
from moorage_state.keyed.many_timers import pack_timers, unpack_timers
from moorage_state.keygroups import range_of
from moorage_state.keylayout import KEY_AT, prefix_of, state_id
from moorage_state.keys import KeyCodec
from moorage_state.snapshots import Manifest, OperatorState, OperatorStateMeta, StateMeta
from moorage_state.types import parse_type


class Loader:
    """Puts the rows of one state into a database; every batch has the columns of its file."""

    def __init__(self, database: RangeDatabase, meta: FileMeta) -> None:
        self._database = database
        self._meta = meta
        self._sid = stored_id(meta)
        self._reader = RowReader(meta)
        self._codec = KeyCodec(meta.key_types)

    def load(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Add all rows; refuses a value that is not of the state's type, or a taken place."""
        add = self._add_timers if self._meta.kind == "timers" else self._add
        for batch in batches:
            try:
                add(batch)
            except (ValueError, TypeError, ArithmeticError) as error:
                raise UserError(
                    f"a row cannot be state: {self._where()} problem={error}"
                ) from error

    def _add(self, batch: pa.RecordBatch) -> None:
        keys, values = self._reader.of_batch(batch)
        ordered = sorted(keys)
        for one, other in pairwise(ordered):
            if one == other:
                raise self._doubled(one)
        found = self._database.get_many(ordered)
        for key, value in zip(ordered, found, strict=True):
            if value is not None:
                raise self._doubled(key)
        self._database.apply([Frame([], keys, list(values))])

    def _add_timers(self, batch: pa.RecordBatch) -> None:
        """Only the packed timers."""
        added: dict[bytes, tuple[list[int], list[int]]] = {}
        kinds, times = batch.column("kind").to_pylist(), batch.column("time").to_pylist()
        if strange := set(kinds).difference(TIMER_KINDS):
            raise ValueError(f"kind of a timer is one of {TIMER_KINDS}: got={sorted(strange)}")
        for prefix, kind, time in zip(self._reader.prefixes(batch), kinds, times, strict=True):
            mine = added.setdefault(prefix + self._sid, ([], []))
            mine[TIMER_KINDS.index(kind)].append(time)
        keys = sorted(added)
        packed: list[bytes | None] = []
        for key, before in zip(keys, self._database.get_many(keys), strict=True):
            known = unpack_timers(before) if before is not None else ([], [])
            merged = [sorted(chain(*both)) for both in zip(added[key], known, strict=True)]
            if any(len(set(times)) != len(times) for times in merged):
                raise self._doubled(key)
            # The export does not read the index of timers.
            packed.append(pack_timers(*merged))
        self._database.apply([Frame([], keys, packed)])

    def _doubled(self, entry: bytes) -> UserError:
        if self._meta.kind in SIDE_KINDS:
            return UserError(f"two rows have one place: {self._where()}; leave one of them")
        key = self._codec.decode(prefix_of(entry)[KEY_AT:])
        what = {
            "value": "a key has two values",
            "reducing": "a key has two values",
            "aggregating": "a key has two accumulators",
            "map": "a key has two values under one map key",
            "list": "a key has two list elements at one position",
            "timers": "a key has two timers of one time",
        }[self._meta.kind]
        return UserError(f"{what}: {self._where()} key={key!r:.200}; leave one of them")

    def _where(self) -> str:
        return f"uid={self._meta.uid} state={self._meta.state}"


@dataclass(frozen=True, slots=True)
class OperatorTables:
    """The state of one operator, as tables.

    Attributes:
        states: each state's descriptor, and its rows: an Arrow table, a Spark DataFrame (which is
            collected) or record batches, with the columns that `read` gives. `key_group` may be
            missing and is always computed anew; so may the position columns of a list, whose
            elements are then in the order of the rows. With them it has to come before what the
            job appends: no `list_epoch` is greater than the epoch of the base, or 0 without one.
        key_types: the Spark DDL type of each key column; those of the base where it is empty.
        key: the names of the key columns in the tables; `key`, or `key_1`, `key_2`, ... if empty.
        timers: rows with the key columns and `time` (milliseconds since 1970 UTC), or None.
        drop: names of states of the base to leave out; `_timers` for its timers, `_operator.<name>`
            for an operator state.
    """

    states: Sequence[tuple[StateDescriptor, Any]] = ()
    key_types: Sequence[str] = ()
    key: Sequence[str] = ()
    timers: Any = None
    drop: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class BuiltOperator:
    """An operator whose files lie in the scratch directory, by range.

    `owners` are the key groups under which its operator state lies, if others than the ranges'.
    """

    parallelism: int
    key_types: tuple[str, ...]
    states: tuple[StateMeta, ...]
    operator_states: tuple[OperatorStateMeta, ...]
    owners: tuple[int, ...]
    ranges: list[tuple[CanonicalSpec, list[ExportedFile]]]


def build_operator(
    uid: str,
    tables: OperatorTables,
    blank: Manifest,
    base: Snapshot | None,
    parallelism: int | None,
    folder: Path,
) -> BuiltOperator:
    """Make the files of one operator in a new directory below `folder`.

    Args:
        blank: the new savepoint's manifest without its operators.
        base: what states are kept from.
        parallelism: the number of ranges; None for that of the base, or 1.
    """
    builder = _Builder(uid, tables, blank, base)
    return builder.build(folder, parallelism or (builder.old.parallelism if builder.old else 1))


class _Builder:
    def __init__(
        self, uid: str, tables: OperatorTables, blank: Manifest, base: Snapshot | None
    ) -> None:
        self._uid = uid
        self._tables = tables
        self._base = base
        self.old = base.manifest.operators.get(uid) if base is not None else None
        self._key_types = _key_types(uid, tables, self.old)
        self._key = list(tables.key) or key_columns(len(self._key_types))
        if len(self._key) != len(self._key_types):
            raise UserError(
                f"key columns and their types are not of one number: uid={uid} key={self._key} "
                f"key_types={list(self._key_types)}"
            )
        given = [_meta(descriptor) for descriptor, _ in tables.states]
        self._kept = _kept_states(uid, tables, self.old, [meta.name for meta in given])
        self._states = (*self._kept, *given)
        self._side_states = tuple(
            state for name, state in _sides(self.old).items() if name not in tables.drop
        )
        _check_names(uid, self._states)
        self._spec = CanonicalSpec(
            uid=uid,
            start=0,
            end=blank.max_parallelism - 1,
            epoch=blank.epoch,
            max_parallelism=blank.max_parallelism,
            key_types=self._key_types,
            # Nothing that has expired is written down anew.
            states=tuple(replace(s, cleanup_in_full_snapshot=True) for s in self._states),
            key_hash=blank.key_hash,
            operator_states=self._side_states,
            now_ms=_milliseconds(blank),
        )

    def build(self, folder: Path, parallelism: int) -> BuiltOperator:
        root = folder / self._uid
        root.mkdir()
        # It sorts the rows, batch by batch: what is written may be larger than memory.
        with closing(SCRATCH.open_database(root / "db", SCRATCH.process_memory())) as database:
            metas = {meta.state: meta for meta in self._spec.metas()}
            self._load_given(database, metas)
            self._load_kept(database, metas)
            ranges = [self._export(database, n, parallelism, root) for n in range(parallelism)]
        owners = self.old.operator_state_owners if self.old and self._side_states else []
        starts = [spec.start for spec, _ in ranges]
        return BuiltOperator(
            parallelism,
            self._key_types,
            self._states,
            self._side_states,
            tuple(owners) if owners != starts else (),
            ranges,
        )

    def _load_given(self, database: RangeDatabase, metas: dict[str, FileMeta]) -> None:
        rows = [(descriptor.name, table) for descriptor, table in self._tables.states]
        if self._tables.timers is not None:
            rows.append((TIMERS, self._tables.timers))
        for state, table in rows:
            shape = Shaper(metas[state], self._key).shape
            batches = batches_of(table, f"uid={self._uid} state={state}")
            Loader(database, metas[state]).load(map(shape, batches))

    def _load_kept(self, database: RangeDatabase, metas: dict[str, FileMeta]) -> None:
        if self._base is None or self.old is None:
            return
        keep = {state.name for state in self._kept}
        keep |= {meta.state for meta in metas.values() if meta.kind in SIDE_KINDS}
        if self._tables.timers is None and TIMERS not in self._tables.drop:
            keep.add(TIMERS)
        loaders = {state: Loader(database, metas[state]) for state in keep}
        for handle in self.old.subtasks:
            for meta, batch in range_rows(self._base, handle, keep):
                loaders[meta.state].load([batch])

    def _export(
        self, database: RangeDatabase, subtask: int, parallelism: int, root: Path
    ) -> tuple[CanonicalSpec, list[ExportedFile]]:
        groups = range_of(subtask, parallelism, self._spec.max_parallelism)
        spec = replace(self._spec, start=groups.start, end=groups.end)
        directory = root / f"{groups.start}-{groups.end}"
        directory.mkdir()
        return spec, export_range(database, spec, directory)


def _key_types(uid: str, tables: OperatorTables, old: OperatorState | None) -> tuple[str, ...]:
    if not tables.key_types and old is not None:
        return tuple(old.key_types)
    key_types = checked_types(uid, tables.key_types)
    if old is not None and list(key_types) != old.key_types:
        raise UserError(
            f"the key of an operator cannot change: uid={uid} base={old.key_types} "
            f"given={list(key_types)}; drop the operator, and write it under another uid"
        )
    return key_types


def _kept_states(
    uid: str, tables: OperatorTables, old: OperatorState | None, given: Collection[str]
) -> list[StateMeta]:
    there = {state.name: state for state in old.states} if old is not None else {}
    unknown = set(tables.drop) - set(there) - {TIMERS} - set(_sides(old))
    both = set(tables.drop) & set(given)
    if unknown or both:
        raise UserError(
            f"cannot drop these states: uid={uid} not in the base={sorted(unknown)} "
            f"also given={sorted(both)}; the base has {sorted(there)}"
        )
    kept = [s for name, s in there.items() if name not in given and name not in tables.drop]
    # Rows that were read have the last type, whatever wrote the values.
    return [replace(state, earlier=[]) for state in kept]


def _sides(old: OperatorState | None) -> dict[str, OperatorStateMeta]:
    """Operator states by the names that they have beside keyed ones."""
    return {state.label: state for state in (old.operator_states if old is not None else [])}


def _check_names(uid: str, states: Sequence[StateMeta]) -> None:
    ids: dict[bytes, str] = {}
    for state in states:
        other = ids.setdefault(state_id(state.name), state.name)
        if other != state.name:
            raise UserError(
                f"two states of one operator have the same stored id: uid={uid} "
                f"states={other},{state.name}; rename one of them"
            )
    if len(ids) != len(states):
        names = sorted(state.name for state in states)
        raise UserError(f"a state is given twice: uid={uid} states={names}")


def _milliseconds(blank: Manifest) -> int:
    """The time at which state expires: the base's, or now."""
    return blank.processing_time or int(blank.created_at.timestamp() * 1000)


def _meta(descriptor: StateDescriptor) -> StateMeta:
    key_type = None
    if isinstance(descriptor, MapStateDescriptor):
        key_type = parse_type(descriptor.key_type).ddl
    ttl = descriptor.ttl
    return StateMeta(
        name=descriptor.name,
        kind=descriptor.kind,
        type=parse_type(descriptor.type).ddl,
        key_type=key_type,
        ttl_ms=ttl.ttl_ms if ttl is not None else None,
        indexed_ms=ttl.ttl_ms if ttl is not None and ttl.cleanup_in_background else None,
        cleanup_in_full_snapshot=ttl is not None and ttl.cleanup_in_full_snapshot,
    )
