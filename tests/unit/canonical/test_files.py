"""Canonical files: what is exported comes back byte for byte, and damage is never passed over."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from moorage_state.canonical import (
    TIMERS,
    CanonicalFile,
    CanonicalSpec,
    export_range,
    export_snapshot,
    frames_of,
    key_groups,
)
from moorage_state.deltas import Frame
from moorage_state.errors import CorruptState, LocalDiskError, Retryable, UserError
from moorage_state.keylayout import key_prefix, state_id
from moorage_state.keys import KeyCodec
from moorage_state.rocks import Database
from moorage_state.snapshots import StateMeta
from moorage_state.stores import LocalStore

Make = Callable[..., Database]
Stored = Callable[..., dict[bytes, bytes]]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    directory = tmp_path / "out"
    directory.mkdir()
    return directory


@pytest.fixture
def exported(new_database: Make, written: Any, spec: CanonicalSpec, out: Path) -> list[Path]:
    return [file.path for file in export_range(new_database("db", written()), spec, out)]


def imported(make: Make, files: list[Path], first: int, last: int) -> Database:
    database = make(f"copy-{first}-{last}")
    for frame in frames_of([(path, "") for path in files], first, last):
        database.apply([frame])
    return database


def test_a_range_that_is_exported_and_imported_has_the_same_bytes(
    new_database: Make, written: Any, spec: CanonicalSpec, out: Path, stored: Stored
) -> None:
    database = new_database("db", written(400))
    files = [file.path for file in export_range(database, spec, out)]
    assert stored(imported(new_database, files, 0, 15)) == stored(database)
    assert len(stored(database)) > 1000


@pytest.mark.parametrize(("first", "last"), [(0, 0), (3, 9), (15, 15)])
def test_part_of_a_range_is_imported_by_its_row_groups_alone(
    new_database: Make,
    written: Any,
    spec: CanonicalSpec,
    out: Path,
    stored: Stored,
    first: int,
    last: int,
) -> None:
    database = new_database("db", written(400))
    files = [file.path for file in export_range(database, spec, out)]
    copy = imported(new_database, files, first, last)
    assert stored(copy) == stored(database, first, last)
    with CanonicalFile(out / "visit.parquet") as file:
        assert len(file.row_groups(first, last)) == last - first + 1


@pytest.mark.usefixtures("exported")
def test_each_key_group_with_data_is_one_row_group(out: Path) -> None:
    parquet = pq.ParquetFile(out / "visit.parquet")
    groups = [
        set(parquet.read_row_group(n)["key_group"].to_pylist())
        for n in range(parquet.num_row_groups)
    ]
    assert all(len(group) == 1 for group in groups)
    flat = [group.pop() for group in groups]
    assert flat == sorted(set(flat))
    assert len(flat) > 8


def test_a_key_group_too_large_to_hold_is_split_and_still_comes_back(
    new_database: Make, written: Any, spec: CanonicalSpec, out: Path, stored: Stored
) -> None:
    database = new_database("db", written(400))
    files = [file.path for file in export_range(database, spec, out, budget=1)]
    assert stored(imported(new_database, files, 0, 15)) == stored(database)


@pytest.mark.usefixtures("exported")
def test_a_plain_reader_sees_typed_columns_in_the_order_of_keys(out: Path) -> None:
    table = pq.read_table(out / "visit.parquet")
    assert table.schema.names == ["key_group", "key", "value"]
    assert pa.types.is_struct(table.schema.field("value").type)
    rows = table.to_pylist()
    assert {row["key"]: row["value"]["n"] for row in rows}["user-9"] == 6
    places = [(row["key_group"], len(row["key"]), row["key"]) for row in rows]
    assert places == sorted(places)
    assert len(places) == 40


@pytest.mark.usefixtures("exported")
def test_lists_maps_and_timers_have_a_row_for_each_element(out: Path) -> None:
    pages = pq.read_table(out / "pages.parquet").to_pylist()
    mine = [row["value"] for row in pages if row["key"] == "user-3"]
    assert mine == ["page-0", "page-1", "page-2"]
    days = pq.read_table(out / "by_day.parquet").to_pylist()
    assert [str(r["map_key"]) for r in days if r["key"] == "user-3"] == ["1969-12-31", "2026-01-04"]
    timers = pq.read_table(out / f"{TIMERS}.parquet").to_pylist()
    found = [(row["kind"], row["time"]) for row in timers if row["key"] == "user-5"]
    assert found == [("event_time", -500), ("event_time", 500)]


@pytest.mark.usefixtures("exported")
def test_a_file_says_what_it_is_without_its_manifest(out: Path) -> None:
    with CanonicalFile(out / "by_day.parquet") as file:
        meta = file.meta
    assert (meta.uid, meta.state, meta.kind, meta.key_type) == ("visits", "by_day", "map", "date")
    assert (meta.key_types, meta.start, meta.end, meta.epoch) == (("string",), 0, 15, 7)
    assert (meta.type, meta.max_parallelism) == ("array<double>", 16)


def test_every_declared_state_has_a_file_and_timers_only_if_there_are_any(
    new_database: Make, spec: CanonicalSpec, out: Path
) -> None:
    files = export_range(new_database(), spec, out)
    assert [(file.name, file.rows) for file in files] == [
        ("by_day.parquet", 0),
        ("pages.parquet", 0),
        ("visit.parquet", 0),
    ]
    assert pq.read_table(files[0].path).schema.names[-1] == "value"


def test_sizes_and_digests_are_those_of_the_files(
    new_database: Make, written: Any, spec: CanonicalSpec, out: Path
) -> None:
    for file in export_range(new_database("db", written()), spec, out):
        data = file.path.read_bytes()
        assert (file.size, file.sha256) == (len(data), hashlib.sha256(data).hexdigest())


def test_an_entry_of_a_state_that_nobody_declared_is_damage(
    new_database: Make, spec: CanonicalSpec, out: Path
) -> None:
    stray = key_prefix(3, b"user") + state_id("other")
    database = new_database("db", [Frame([], [stray], [b"\x01"])])
    with pytest.raises(CorruptState, match="not declared: key_group=3"):
        export_range(database, spec, out)
    assert list(out.iterdir()) == []


@pytest.mark.parametrize(
    ("rest", "value"),
    [(b"", b"\xc1"), (b"", b"\x93\x01\x02"), (b"", b"\xa1x"), (b"x", b"\x93\x01\xc0\xc0")],
)
def test_a_value_that_is_not_of_its_type_is_damage(
    new_database: Make, spec: CanonicalSpec, out: Path, rest: bytes, value: bytes
) -> None:
    entry = key_prefix(3, b"user") + state_id("visit") + rest
    with pytest.raises(CorruptState, match="not of its state's type"):
        export_range(new_database("db", [Frame([], [entry], [value])]), spec, out)


def test_an_entry_of_a_kind_from_the_future_is_not_passed_over(
    new_database: Make, written: Any, spec: CanonicalSpec, out: Path
) -> None:
    database = new_database("db", [*written(), Frame([], [b"\x00\x05\x0flater"], [b""])])
    with pytest.raises(CorruptState, match="unknown kind 0f: key_group=5"):
        export_range(database, spec, out)


def test_a_damaged_database_file_is_an_error_and_not_an_early_end(
    new_database: Make,
    written: Any,
    spec: CanonicalSpec,
    tmp_path: Path,
    open_copy: Callable[[Path], Database],
) -> None:
    snapshot = taken(new_database("db", written(4000)), tmp_path)
    table = next(snapshot.glob("*.sst"))
    data = bytearray(table.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 64] = bytes(64)
    table.unlink()
    table.write_bytes(data)
    store = LocalStore(tmp_path / "store", create=True)
    with pytest.raises(CorruptState):
        export_snapshot(snapshot, spec, tmp_path / "scratch", store, open_copy=open_copy)
    assert list(store.list("")) == []
    assert not (tmp_path / "scratch").exists()


def taken(database: Database, tmp_path: Path) -> Path:
    database.flush()
    database.checkpoint(tmp_path / "snapshot")
    return tmp_path / "snapshot"


def test_a_snapshot_is_exported_beside_writes_and_left_as_it_was(
    new_database: Make,
    written: Any,
    spec: CanonicalSpec,
    tmp_path: Path,
    open_copy: Callable[[Path], Database],
    stored: Stored,
) -> None:
    database = new_database("db", written(100))
    before = stored(database)
    snapshot = taken(database, tmp_path)
    files = {path.name: path.read_bytes() for path in snapshot.iterdir()}
    database.apply(written(200, epoch=8))
    store = LocalStore(tmp_path / "store", create=True)
    handle = export_snapshot(
        snapshot,
        spec,
        tmp_path / "scratch",
        store,
        open_copy=open_copy,
        prefix="sp/",
        digest="d",
        backend_uuid="b",
    )
    assert {path.name: path.read_bytes() for path in snapshot.iterdir()} == files
    assert (handle.format, handle.epoch, handle.digest) == ("canonical", 7, "d")
    assert [ref.key for ref in handle.files][-1] == "sp/state/visits/0-15/visit.parquet"
    for ref in handle.files:
        assert hashlib.sha256(store.get(ref.key)).hexdigest() == ref.sha256
    paths = [tmp_path / "store" / ref.key for ref in handle.files]
    assert stored(imported(new_database, paths, 0, 15)) == before
    assert not (tmp_path / "scratch").exists()


def test_an_export_that_is_stopped_ends_and_cleans_up(
    new_database: Make,
    written: Any,
    spec: CanonicalSpec,
    tmp_path: Path,
    open_copy: Callable[[Path], Database],
) -> None:
    snapshot = taken(new_database("db", written()), tmp_path)
    store = LocalStore(tmp_path / "store", create=True)
    with pytest.raises(Retryable, match="stopped"):
        export_snapshot(
            snapshot,
            spec,
            tmp_path / "scratch",
            store,
            open_copy=open_copy,
            stopped=lambda: True,
        )
    assert not (tmp_path / "scratch").exists()


def test_a_directory_that_cannot_be_written_is_a_disk_error(
    new_database: Make, written: Any, spec: CanonicalSpec, tmp_path: Path
) -> None:
    with pytest.raises(LocalDiskError, match="canonical file"):
        export_range(new_database("db", written()), spec, tmp_path / "missing")


def test_a_full_volume_is_a_disk_error_and_leaves_no_files(
    new_database: Make, written: Any, spec: CanonicalSpec, out: Path
) -> None:
    (out / "visit.parquet").symlink_to("/dev/full")
    with pytest.raises(LocalDiskError, match="No space left"):
        export_range(new_database("db", written(400)), spec, out)
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("place", [0, 0.3, 0.6, 0.999])
@pytest.mark.usefixtures("exported")
def test_a_damaged_file_is_refused(out: Path, place: float) -> None:
    path = out / "visit.parquet"
    data = bytearray(path.read_bytes())
    at = int(place * len(data))
    data[at : at + 16] = bytes(16)
    path.write_bytes(data[: len(data)])
    with pytest.raises(CorruptState):
        list(frames_of([(path, "")], 0, 15))


@pytest.mark.usefixtures("exported")
def test_a_file_of_a_newer_format_asks_for_an_upgrade(out: Path) -> None:
    table = pq.read_table(out / "visit.parquet")
    document = msgspec.json.decode(table.schema.metadata[b"moorage"])
    newer = msgspec.json.encode(document | {"format": 2, "more": True})
    pq.write_table(table.replace_schema_metadata({b"moorage": newer}), out / "newer.parquet")
    with pytest.raises(UserError, match=r"newer moorage.*upgrade"):
        CanonicalFile(out / "newer.parquet")


def test_some_other_parquet_file_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"key": [1]}), tmp_path / "other.parquet")
    with pytest.raises(CorruptState, match="not a file of a canonical savepoint"):
        CanonicalFile(tmp_path / "other.parquet")


def test_a_type_that_is_not_known_is_refused_when_the_export_begins(
    new_database: Make, spec: CanonicalSpec, out: Path
) -> None:
    odd = msgspec.structs.replace(
        spec, states=(StateMeta(name="odd", kind="value", type="interval"),)
    )
    with pytest.raises(UserError, match=r"state=odd.*unknown type"):
        export_range(new_database(), odd, out)


def test_keys_of_several_columns_have_a_column_each(
    new_database: Make, spec: CanonicalSpec, out: Path
) -> None:
    codec = KeyCodec(["bigint", "binary"])
    keys = [(-1, b"\x00\xff"), (2**63 - 1, b"")]
    groups = key_groups(["bigint", "binary"], 16)(keys)
    stored_keys = [
        key_prefix(group, codec.encode(key)) + state_id("visit")
        for group, key in zip(groups, keys, strict=True)
    ]
    wide = msgspec.structs.replace(
        spec,
        key_types=("bigint", "binary"),
        states=(StateMeta(name="visit", kind="value", type="boolean"),),
    )
    export_range(new_database("db", [Frame([], stored_keys, [b"\xc3", b"\xc2"])]), wide, out)
    rows = pq.read_table(out / "visit.parquet").to_pylist()
    assert {(r["key_1"], r["key_2"]): r["value"] for r in rows} == {keys[0]: True, keys[1]: False}
