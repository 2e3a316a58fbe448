"""`snapshots ls`: every checkpoint and savepoint of a job, how each stands, and what each costs.

A damaged manifest is a row with its problem, not the end of the list: judging is what `verify` is
for. Reads logs, listings and manifests.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Literal

import msgspec

from moorage.driver.views import CheckpointTimes
from moorage.offline.lookup import SnapshotDirectories, has_log
from moorage_state.errors import CorruptState, UserError
from moorage_state.snapshots import (
    Checkpoint,
    CheckpointStore,
    Compacted,
    Entry,
    LineageLog,
    Manifest,
    Record,
    Retire,
    SavepointStore,
    Unknown,
    checkpoint_id_of,
    checkpoint_path,
    restore_point,
    retained,
)
from moorage_state.snapshots.savepoints import ATTEMPT_KEY, MANIFEST_KEY
from moorage_state.stores import ObjectStore, in_parallel, open_store
from moorage_state.stores.addresses import child, opened

Standing = Literal["restore point", "retained", "retired", "unfinished", "gone"]
"""`retired`: its objects are still there. `unfinished`: objects without an entry in the log, of a
checkpoint that is under way or was given up. `gone`: retired, and nothing is left of it."""

WarningCode = Literal["nothing_stored", "restore_point_retired", "savepoints_not_listed"]
"""What a warning is about. `restore_point_retired`: there were checkpoints, and none is left to
begin from."""

_THREADS = 8


@dataclass(frozen=True, slots=True)
class Lineage:
    """What a checkpoint directory says of itself.

    Attributes:
        standings: by checkpoint id, how each stands.
        leftover_bytes: by checkpoint id, the bytes under `chk-<id>/`.
        warning: why there is no restore point although there were checkpoints; or empty.
    """

    store: ObjectStore
    records: Sequence[Record]
    standings: Mapping[int, Standing]
    leftover_bytes: Mapping[int, int]
    warning: str = ""

    @property
    def entries(self) -> list[Entry]:
        """The log's entries, in order."""
        return [record.entry for record in self.records]


def read_lineage(store: ObjectStore) -> Lineage:
    """Read the log and list what lies beside it."""
    present: dict[int, int] = {}
    for info in store.list("chk-"):
        found = checkpoint_id_of(info.key.partition("/")[0])
        if found is not None:
            # Under an id there may be objects of several attempts: what they cost counts together.
            present[found] = present.get(found, 0) + info.size
    # Read after the listing: what completed in between is known, and not called unfinished.
    records = LineageLog.open(store).read_records()
    entries = [record.entry for record in records]
    restore_id, warning = _restore_id(entries)
    return Lineage(store, records, standings(entries, restore_id, present), present, warning)


def standings(
    entries: Sequence[Entry], restore_id: int | None, present: Iterable[int]
) -> dict[int, Standing]:
    """How each checkpoint stands, by id in order.

    Args:
        restore_id: the restore point, where it is a checkpoint of the lineage.
        present: the ids under which there are objects.
    """
    live = {checkpoint.checkpoint_id for checkpoint in retained(entries)}
    present = set(present)
    known = {e.checkpoint_id for e in entries if isinstance(e, Checkpoint | Retire)}

    def standing(checkpoint_id: int) -> Standing:
        if checkpoint_id in live:
            return "restore point" if checkpoint_id == restore_id else "retained"
        if checkpoint_id not in known:
            return "unfinished"
        return "retired" if checkpoint_id in present else "gone"

    return {one: standing(one) for one in sorted(known | present)}


def _restore_id(entries: Sequence[Entry]) -> tuple[int | None, str]:
    try:
        point = restore_point(entries)
    except UserError as error:
        return None, str(error)
    if point is None or point.checkpoint is None:
        return None, ""
    return point.checkpoint.checkpoint_id, ""


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """One checkpoint; sizes in bytes, and None where its manifest is not there or not readable.

    Attributes:
        completed_at: None while it is not in the log.
        bytes: of the state of all its subtasks, as a run tells it.
        new_bytes: what its upload brought to the store; where the manifest does not say, what the
            checkpoint before it in the list does not have, None if there is none to compare with.
        own_bytes: of the objects under `chk-<id>/`.
        problem: why the manifest cannot be read; or empty.
        times: how long its steps took; None where the driver did not write it, or in another way.
    """

    id: int
    path: str
    standing: Standing
    epoch: int | None
    completed_at: datetime | None
    age_seconds: int | None
    bytes: int | None
    new_bytes: int | None
    own_bytes: int
    files: int | None
    fence: int | None
    run: int | None
    problem: str = ""
    times: CheckpointTimes | None = None


@dataclass(frozen=True, slots=True)
class SavepointRow:
    """One savepoint; `format` is `native`, `canonical`, `mixed`, or empty where it has no state.

    Attributes:
        standing: `completed`, `unfinished` (never completed), or `damaged`.
    """

    name: str
    path: str
    standing: str
    format: str = ""
    job: str = ""
    checkpoint_id: int | None = None
    epoch: int | None = None
    created_at: datetime | None = None
    age_seconds: int | None = None
    bytes: int | None = None
    files: int | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """One entry of the log: its number, when it was written, its kind and its fields."""

    seq: int
    at: datetime
    kind: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Listing:
    """Everything that `ls` shows; `history` only where it was asked for.

    Attributes:
        directory: the address of the checkpoint directory.
        savepoint_directory: where savepoints were looked for; None where no place is known.
        notes: what is no problem, and worth a word.
        codes: of the warnings, in their order.
    """

    directory: str
    savepoint_directory: str | None
    checkpoints: Sequence[CheckpointRow]
    savepoints: Sequence[SavepointRow]
    history: Sequence[HistoryRow] | None
    warnings: Sequence[str]
    notes: Sequence[str] = ()
    codes: Sequence[WarningCode] = ()


def list_snapshots(
    directories: SnapshotDirectories, now: datetime, *, history: bool = False
) -> Listing:
    """List a checkpoint directory, a directory of savepoints, or both.

    Args:
        now: the time, from which ages are counted.
        history: list the log too, and checkpoints of which nothing is left.

    Raises:
        UserError: a directory does not exist, holds nothing of Moorage, or is of a newer one.
        CorruptState: the log is damaged.
        StoreUnavailable: a store does not answer.
    """
    store = open_store(directories.checkpoints)
    warnings: list[tuple[WarningCode, str]] = []
    notes: list[str] = []
    lineage, rows = _checkpoints(store, now, gone=history) if has_log(store) else (None, [])
    where = directories.savepoints
    if where is None and lineage is None:
        where = directories.checkpoints
    savepoints = _savepoint_rows(where, now, warnings, notes, known=lineage is not None)
    if lineage is None and not savepoints:
        warnings.append(("nothing_stored", _nothing(store)))
    elif lineage is not None and lineage.warning:
        warnings.append(("restore_point_retired", lineage.warning))
    entries = _history(lineage) if history and lineage is not None else None
    codes, texts = [code for code, _ in warnings], [text for _, text in warnings]
    place = directories.checkpoints
    return Listing(place, where, rows, savepoints, entries, texts, notes, codes)


def slices_of(manifest: Manifest) -> dict[tuple[str, int, str], int]:
    """The sizes of the distinct pieces that a manifest references: by object and place in it."""
    return {
        # Inline files have no key: their digests tell them apart.
        (file.key, file.offset, "" if file.key else file.sha256): file.size
        for file in manifest.files
    }


def _nothing(store: ObjectStore) -> str:
    """What to say of a place without snapshots. Raises `UserError` if it holds other things."""
    found = next(iter(store.list("")), None)
    if found is None:
        return f"nothing is stored here yet: path={store.url}"
    if store.head(MANIFEST_KEY) is not None:
        raise UserError(
            f"this is one snapshot and not a directory of them: path={store.url}; list the "
            f"directory above it, or use `moorage snapshots show`"
        )
    raise UserError(
        f"neither a checkpoint directory nor a directory of savepoints: path={store.url} "
        f"found={found.key}; name the checkpointDir or savepointDir of a job, or its job.yaml"
    )


def _checkpoints(
    store: ObjectStore, now: datetime, *, gone: bool
) -> tuple[Lineage, list[CheckpointRow]]:
    lineage = read_lineage(store)
    rows = _checkpoint_rows(lineage, now, gone=gone)
    damaged = {row.id for row in rows if row.problem}
    # A running job may have retired a checkpoint meanwhile: that is no damage.
    if damaged and damaged - {one.checkpoint_id for one in retained(read_lineage(store).entries)}:
        return _checkpoints(store, now, gone=gone)
    return lineage, rows


def _checkpoint_rows(lineage: Lineage, now: datetime, *, gone: bool) -> list[CheckpointRow]:
    entries = {e.checkpoint_id: e for e in lineage.entries if isinstance(e, Checkpoint)}
    ids = [one for one, standing in lineage.standings.items() if gone or standing != "gone"]
    loader = CheckpointStore(lineage.store)
    loaded = in_parallel(
        (partial(_load, loader, lineage, entries.get(one), one) for one in ids), _THREADS
    )
    rows: list[CheckpointRow] = []
    before: Manifest | None = None
    first = min(entries, default=0)
    for one, (manifest, problem) in zip(ids, loaded, strict=True):
        new = None if manifest is None else _new_bytes(manifest, before, is_first=one == first)
        rows.append(_row(lineage, entries.get(one), one, manifest, new, problem, now))
        before = manifest or before
    return rows


def _new_bytes(manifest: Manifest, before: Manifest | None, *, is_first: bool) -> int | None:
    if (times := _times(manifest)) is not None:
        return sum(server.bytes_written for server in times.servers)
    if before is None and not is_first:
        return None
    old = slices_of(before) if before is not None else {}
    return sum(size for at, size in slices_of(manifest).items() if at not in old)


def _times(manifest: Manifest) -> CheckpointTimes | None:
    try:
        return msgspec.convert(manifest.extra.get("times"), CheckpointTimes)
    except msgspec.ValidationError:
        return None  # an earlier release wrote it, or a later one


def _load(
    loader: CheckpointStore, lineage: Lineage, entry: Checkpoint | None, checkpoint_id: int
) -> tuple[Manifest | None, str]:
    standing = lineage.standings[checkpoint_id]
    if entry is None or standing == "gone":
        return None, ""
    try:
        return loader.load(entry), ""
    except (CorruptState, UserError) as error:
        # Of a retired checkpoint the manifest may be deleted already.
        return None, "" if standing == "retired" else str(error)


def _row(
    lineage: Lineage,
    entry: Checkpoint | None,
    checkpoint_id: int,
    manifest: Manifest | None,
    new_bytes: int | None,
    problem: str,
    now: datetime,
) -> CheckpointRow:
    return CheckpointRow(
        id=checkpoint_id,
        path=checkpoint_path(checkpoint_id),
        standing=lineage.standings[checkpoint_id],
        epoch=entry.epoch if entry else None,
        completed_at=entry.completed_at if entry else None,
        age_seconds=_age(entry.completed_at, now) if entry else None,
        bytes=manifest.bytes_total if manifest else None,
        new_bytes=new_bytes,
        own_bytes=lineage.leftover_bytes.get(checkpoint_id, 0),
        files=len(manifest.files) if manifest else None,
        fence=entry.fence if entry else None,
        run=entry.run if entry else None,
        problem=problem,
        times=_times(manifest) if manifest else None,
    )


def _savepoint_rows(
    url: str | None,
    now: datetime,
    warnings: list[tuple[WarningCode, str]],
    notes: list[str],
    *,
    known: bool,
) -> list[SavepointRow]:
    """The savepoints below `url`; a missing directory is an error only without a lineage."""
    if url is None:
        return []
    try:
        store = opened(open_store, url) if known else open_store(url)
    except UserError as error:
        if not known:
            raise
        warnings.append(("savepoints_not_listed", f"no savepoints listed: {error}"))
        return []
    if store is None:
        notes.append(f"no savepoints yet: savepointDir={url}")
        return []
    rows = in_parallel(
        (partial(_savepoint_row, child(url, name), name, now) for name in _folders(store)),
        _THREADS,
    )
    return [row for row in rows if row is not None]


def _folders(store: ObjectStore) -> Iterator[str]:
    """The directories at the top of a store, by a listing of one object each."""
    after = ""
    while (found := next(iter(store.list("", after)), None)) is not None:
        name, slash, _ = found.key.partition("/")
        if slash:
            yield name
        # Nothing but what is in the directory sorts between "name/" and "name0".
        after = f"{name}0" if slash else found.key


def _savepoint_row(url: str, name: str, now: datetime) -> SavepointRow | None:
    """None for a directory that is no savepoint."""
    savepoint = SavepointStore(url)
    if not savepoint.exists():
        begun = savepoint.store.head(ATTEMPT_KEY)
        return SavepointRow(name, url, "unfinished") if begun is not None else None
    try:
        manifest = savepoint.load()
    except (CorruptState, UserError) as error:
        return SavepointRow(name, url, "damaged", problem=str(error))
    return SavepointRow(
        name=name,
        path=url,
        standing="completed",
        format=format_of(manifest),
        job=manifest.job_name,
        checkpoint_id=manifest.checkpoint_id,
        epoch=manifest.epoch,
        created_at=manifest.created_at,
        age_seconds=_age(manifest.created_at, now),
        bytes=manifest.bytes_total,
        files=len(manifest.files),
    )


def format_of(manifest: Manifest) -> str:
    """The format of the files of state: `native`, `canonical`, `mixed`, or empty without state."""
    formats = {handle.format for handle in manifest.handles}
    return "mixed" if len(formats) > 1 else "".join(formats)


def _history(lineage: Lineage) -> list[HistoryRow]:
    return [
        HistoryRow(record.seq, record.at, *_kind_and_fields(record.entry))
        for record in lineage.records
    ]


def _kind_and_fields(entry: Entry) -> tuple[str, dict[str, Any]]:
    if isinstance(entry, Unknown):
        return entry.kind, entry.fields
    if isinstance(entry, Compacted):
        # The entries that it still has are rows of their own.
        return "compacted", {"fence": entry.fence, "base": entry.base, "cleared": entry.cleared}
    fields = msgspec.to_builtins(entry)
    return fields.pop("kind"), fields


def _age(moment: datetime, now: datetime) -> int:
    """Whole seconds; a clock that was set back must not show one from the future."""
    return max(0, int((now - moment).total_seconds()))
