"""Reading: the state of an operator as tables, out of a checkpoint or savepoint of either format.

Fetches the files that are needed into a scratch directory that is removed afterwards. Called by
people, by the Spark data source (for one range in one task) and by the writer.
"""

import tempfile
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from moorage.state.snapshot_path import Snapshot, locate
from moorage_state.canonical import (
    LAST_ACCESS,
    SIDE_KINDS,
    CanonicalFile,
    FileMeta,
    RowReader,
    file_name,
    key_groups,
    scan_rows,
    schema_of,
    spec_of,
)
from moorage_state.checks import StateTypeError
from moorage_state.codecs import checker
from moorage_state.database import RangeDatabase
from moorage_state.errors import CorruptState, UserError
from moorage_state.keyed.expiry import NEVER
from moorage_state.keylayout import key_prefix
from moorage_state.keys import KeyCodec
from moorage_state.server.databases import Databases, owner_of
from moorage_state.server.restore import fetch_all, replay, verified
from moorage_state.snapshots import RangeHandle
from moorage_state.state_backends import EmbeddedRocksDBStateBackend, registered_backend
from moorage_state.stores import open_store
from moorage_state.tuning import RocksOptions

_MIB = 1 << 20
SCRATCH = EmbeddedRocksDBStateBackend(
    tuned=RocksOptions(
        block_cache_bytes=32 * _MIB, write_buffers_bytes=32 * _MIB, write_buffer_bytes=16 * _MIB
    )
)
"""How databases of readers and writers are tuned: for one pass, in little memory."""

_ADVICE = "restore this object from a backup, or use another checkpoint or savepoint"


class StateInfo(NamedTuple):
    """One state that can be read; `state` is `_timers` for an operator's timers."""

    uid: str
    state: str
    kind: str
    type: str
    key_type: str | None
    key_types: tuple[str, ...]
    format: str


@dataclass(frozen=True, slots=True)
class Selection:
    """What is asked of a snapshot: one state, of some key groups, of some keys.

    Attributes:
        meta: the state, over all key groups.
        ranges: the key groups, as (first, last), in order.
        keys: what the stored keys of the wanted keys begin with; None for all.
    """

    snapshot: Snapshot
    meta: FileMeta
    ranges: tuple[tuple[int, int], ...]
    keys: frozenset[bytes] | None

    @property
    def handles(self) -> list[RangeHandle]:
        """The handles that have some of the key groups."""
        operator = self.snapshot.manifest.operators[self.meta.uid]
        return [handle for handle in operator.subtasks if self.within(handle)]

    def within(self, handle: RangeHandle) -> list[tuple[int, int]]:
        """The wanted key groups of a handle, as (first, last)."""
        cut = [(max(a, handle.start), min(b, handle.end)) for a, b in self.ranges]
        return [(first, last) for first, last in cut if first <= last]


def list_states(path: str | Path) -> list[StateInfo]:
    """What a checkpoint or savepoint has state of; for `path` and errors see `read`."""
    found = []
    manifest = locate(path).manifest
    for uid, operator in manifest.operators.items():
        for meta in spec_of(manifest, uid, 0, manifest.max_parallelism - 1).metas():
            known = StateInfo(
                uid,
                meta.state,
                meta.kind,
                meta.type,
                meta.key_type,
                meta.key_types,
                operator.subtasks[0].format,
            )
            found.append(known)
    return found


def read(
    path: str | Path,
    uid: str,
    state: str,
    *,
    keys: Iterable[Any] | None = None,
    spark: Any = None,
) -> Any:
    """One state of one operator as a table.

    Columns: `key_group`; the key as `key`, or `key_1`, `key_2`, ... where it has several columns;
    `namespace` (or `namespace_1`, ...) where the state has namespaces; then `value` (with `map_key`
    before it for a map, `list_epoch` and `list_ordinal`, which order the elements, for a list), and
    `last_access` (milliseconds since 1970 UTC) for a state with a time to live; or `kind` and
    `time` (milliseconds since 1970 UTC) for timers. Rows are in the order of the stored keys.

    Args:
        path: a savepoint's directory; `<checkpoint directory>/chk-<id>`; or a checkpoint
            directory, for its newest checkpoint. An address or a path of the file system.
        uid: the operator.
        state: the name of the state; `_timers` for the operator's timers.
        keys: only these keys, and only their key groups are read; a tuple each where the key has
            several columns.
        spark: give a Spark DataFrame, read by executors; without, an Arrow table, held in memory.

    Raises:
        UserError: there is no such path, operator or state (the error says what there is), a key
            is not of the operator's key types, or a newer Moorage wrote it.
        CorruptState: something is missing or damaged.
        StoreUnavailable: the store does not answer.
    """
    if spark is not None and keys is None:
        from moorage.state.spark_source import frame

        return frame(spark, path, uid, state)
    selection = select(locate(path), uid, state, keys)
    batches = [batch for handle in selection.handles for batch in selected_rows(selection, handle)]
    table = pa.Table.from_batches(batches, schema_of(selection.meta))
    return table if spark is None else spark.createDataFrame(table)


def select(
    snapshot: Snapshot, uid: str, state: str, keys: Iterable[Any] | None = None
) -> Selection:
    """What `read` is asked for; its errors about operators, states and keys."""
    snapshot.operator(uid)
    last = snapshot.manifest.max_parallelism - 1
    metas = {meta.state: meta for meta in spec_of(snapshot.manifest, uid, 0, last).metas()}
    if state not in metas:
        raise UserError(
            f"no such state: path={snapshot.path} uid={uid} state={state}; there are: "
            f"{', '.join(metas)}"
        )
    meta = metas[state]
    if keys is None:
        return Selection(snapshot, meta, ((0, last),), None)
    if meta.kind in SIDE_KINDS:
        raise UserError(
            f"operator state belongs to subtasks and to no key: uid={uid} state={state}; read it "
            f"without keys, or moorage state export {uid}/{state}"
        )
    wanted = [_key(meta, key) for key in keys]
    groups = key_groups(meta.key_types, last + 1, meta.key_hash)(wanted)
    encode = KeyCodec(meta.key_types).encode
    prefixes = {key_prefix(group, encode(key)) for group, key in zip(groups, wanted, strict=True)}
    ranges = tuple((group, group) for group in sorted(set(groups)))
    return Selection(snapshot, meta, ranges, frozenset(prefixes))


def selected_rows(selection: Selection, handle: RangeHandle) -> Iterator[pa.RecordBatch]:
    """The selected rows of one range."""
    reader = RowReader(selection.meta)
    ranges = selection.within(handle)
    rows = range_rows(selection.snapshot, handle, {selection.meta.state}, ranges)
    for _, batch in rows:
        if selection.keys is None:
            yield batch
            continue
        mask = [prefix in selection.keys for prefix in reader.prefixes(batch)]
        if any(mask):
            yield batch.filter(pa.array(mask))


def range_rows(
    snapshot: Snapshot,
    handle: RangeHandle,
    states: Collection[str],
    ranges: Collection[tuple[int, int]] | None = None,
) -> Iterator[tuple[FileMeta, pa.RecordBatch]]:
    """Rows of some states of one range, by state or by key group; all key groups for None."""
    wanted = list(ranges) if ranges is not None else [(handle.start, handle.end)]
    spec = spec_of(snapshot.manifest, handle.uid, handle.start, handle.end)
    metas = {meta.state: meta for meta in spec.metas()}
    with tempfile.TemporaryDirectory(prefix="moorage-state-") as scratch:
        if handle.format == "canonical":
            for state in states:
                for batch in _canonical(snapshot, handle, metas[state], wanted, Path(scratch)):
                    yield metas[state], _alive(metas[state], batch)
            return
        database = _native(snapshot, handle, Path(scratch))
        try:
            for meta, batch in scan_rows(database, list(metas.values()), wanted, states=states):
                yield meta, _alive(meta, batch)
        finally:
            database.close()


def _alive(meta: FileMeta, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows that had not expired when the snapshot was taken."""
    if not meta.ttl_ms or not meta.now_ms:
        return batch
    used = batch.column(LAST_ACCESS)
    over = pc.and_(pc.greater(used, NEVER), pc.less_equal(used, meta.now_ms - meta.ttl_ms))
    return batch.filter(pc.invert(over))


def _canonical(
    snapshot: Snapshot,
    handle: RangeHandle,
    meta: FileMeta,
    ranges: Collection[tuple[int, int]],
    scratch: Path,
) -> Iterator[pa.RecordBatch]:
    refs = [ref for ref in handle.files if ref.name == file_name(meta.state)]
    fetch_all(open_store(snapshot.store_url), refs, scratch)
    for ref in refs:
        where = f"{snapshot.store_url}/{ref.key}"
        with CanonicalFile(scratch / ref.name, where) as file:
            if _content(file.meta) != _content(meta):
                raise CorruptState(
                    f"file is of another state than its manifest says: state={meta.state} "
                    f"found={file.meta.state}",
                    where,
                    _ADVICE,
                )
            for first, last in ranges:
                yield from file.batches(first, last)
        # Scratch space for one file, not for all of a range.
        (scratch / ref.name).unlink()


def _content(meta: FileMeta) -> tuple[Any, ...]:
    """What must agree."""
    # Without the uid, which may have been mapped to another since.
    stamped = meta.ttl_ms is not None
    return meta.state, meta.kind, meta.type, meta.key_type, meta.key_types, stamped


def _databases_of(owner: str, snapshot: Snapshot) -> Databases:
    """What opens files that the backend `owner` wrote: one of ours, or one that was registered."""
    backend = SCRATCH if owner == SCRATCH.identifier else registered_backend(owner)
    if backend is None:
        raise UserError(
            f"these files are of a state backend whose code is not here: written_by={owner} "
            f"path={snapshot.path}; name its class and the folder that holds it (moorage state "
            f"--backend module:Class --code FOLDER ..., or register_backend of "
            f"moorage_state.state_backends in a program), or read a canonical savepoint of the job"
        )
    return Databases(backend)


def _native(snapshot: Snapshot, handle: RangeHandle, scratch: Path) -> RangeDatabase:
    """The database of a range, out of its own copy of all files."""
    databases = _databases_of(owner_of(handle), snapshot)
    store = open_store(snapshot.store_url)
    fetch_all(store, handle.database_files, scratch)
    if not handle.deltas:
        return verified(databases.open_copy(scratch), handle)[0]
    folder = scratch / "deltas"
    folder.mkdir()
    fetch_all(store, handle.deltas, folder)
    database, marker = verified(databases.open(scratch), handle)
    try:
        replay(database, handle, marker, folder)
    except BaseException:
        database.close()
        raise
    return database


def _key(meta: FileMeta, key: Any) -> tuple[Any, ...]:
    """A key as a tuple of checked values."""
    values = key if isinstance(key, (tuple, list)) else (key,)
    if len(values) != len(meta.key_types):
        raise UserError(
            f"a key has another number of columns: uid={meta.uid} key={key!r:.100} "
            f"key_types={list(meta.key_types)}"
        )
    try:
        return tuple(checker(ddl)(value) for ddl, value in zip(meta.key_types, values, strict=True))
    except StateTypeError as error:
        raise UserError(
            f"a key is not of the operator's key types: uid={meta.uid} key={key!r:.100} "
            f"key_types={list(meta.key_types)} problem={error}"
        ) from error
