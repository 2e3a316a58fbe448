"""Restores from canonical handles: any parallelism, the same bytes as the native state."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from moorage_testing.parts import handles_of
from msgspec.structs import replace

from moorage_state.canonical import CanonicalSpec, export_range, handle_of, upload_files
from moorage_state.errors import CorruptState
from moorage_state.keygroups import range_of
from moorage_state.rocks import Database, RocksOptions
from moorage_state.server import (
    Lease,
    RangeHost,
    RangeSpec,
    RestoreBase,
    UploadLimits,
    UploadRequest,
    Version,
)
from moorage_state.snapshots import RangeHandle
from moorage_state.state_backends import EmbeddedRocksDBStateBackend
from moorage_state.stores import LocalStore

Make = Callable[..., Database]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store", create=True)


@pytest.fixture
def host(tmp_path: Path, small: RocksOptions) -> Iterator[RangeHost]:
    with RangeHost(tmp_path / "local", EmbeddedRocksDBStateBackend(tuned=small)) as host:
        yield host


@pytest.fixture
def database(new_database: Make, written: Any) -> Database:
    return new_database("db", written(200))


def handles(
    database: Database, spec: CanonicalSpec, store: LocalStore, parallelism: int, folder: Path
) -> list[RangeHandle]:
    """The canonical handles of all of its ranges."""
    found = []
    for subtask in range(parallelism):
        groups = range_of(subtask, parallelism, spec.max_parallelism)
        part = replace(spec, start=groups.start, end=groups.end)
        out = folder / f"{groups.start}-{groups.end}"
        out.mkdir(parents=True)
        files = upload_files(export_range(database, part, out), part, store)
        found.append(handle_of(part, files))
    return found


def opened(
    host: RangeHost, store: LocalStore, base: list[RangeHandle], subtask: int, parallelism: int
) -> dict[bytes, bytes]:
    """Everything in one range after it was restored."""
    groups = range_of(subtask, parallelism, 16)
    spec = RangeSpec("visits", groups.start, groups.end)
    result = host.open_range(spec, "f2r0", RestoreBase(3, 7, base), [], store.url)
    assert result.version == Version(7, "")
    # Whoever comes first on a server fetches what the others are made of as well.
    assert result.source == "store" or (result.source == "local" and subtask > 0)
    prefixes = [group.to_bytes(2, "big") for group in range(groups.start, groups.end + 1)]
    opened = host.range(spec.lease("f2r0"))
    scans = opened.scan_many(result.version, prefixes, 1 << 30, 1 << 40)
    return {k: v for scan in scans for k, v in zip(scan.keys, scan.values, strict=True)}


def snapshot(host: RangeHost, run: str, store: LocalStore) -> RangeHandle:
    """A native checkpoint of the range that begins with key group 0."""
    host.range(Lease("visits", 0, run)).snapshot(4, Version(7, ""))
    request = UploadRequest("visits", 0, [])
    written = host.upload_many(run, 4, store.url, [request], UploadLimits())
    return handles_of(store.url, written)[0]


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 3), (3, 2), (1, 16), (16, 1)])
def test_any_parallelism_gets_the_same_bytes(
    database: Database,
    spec: CanonicalSpec,
    store: LocalStore,
    host: RangeHost,
    tmp_path: Path,
    stored: Any,
    before: int,
    after: int,
) -> None:
    base = handles(database, spec, store, before, tmp_path / "out")
    found: dict[bytes, bytes] = {}
    for subtask in range(after):
        found |= opened(host, store, base, subtask, after)
    assert found == stored(database)


def test_native_and_canonical_ranges_of_one_operator_make_one_range(
    database: Database,
    spec: CanonicalSpec,
    store: LocalStore,
    host: RangeHost,
    tmp_path: Path,
    stored: Any,
) -> None:
    canonical = handles(database, spec, store, 2, tmp_path / "out")
    # A range that was restored, and then snapshot by a state server, is native.
    host.open_range(RangeSpec("visits", 0, 7), "f1r0", RestoreBase(3, 7, canonical), [], store.url)
    native = snapshot(host, "f1r0", store)
    assert opened(host, store, [native, canonical[1]], 0, 1) == stored(database)


def test_a_restored_range_goes_on_and_is_snapshot_as_any_other(
    database: Database,
    spec: CanonicalSpec,
    store: LocalStore,
    host: RangeHost,
    tmp_path: Path,
    stored: Any,
) -> None:
    base = handles(database, spec, store, 1, tmp_path / "out")
    opened(host, store, base, 0, 1)
    handle = snapshot(host, "f2r0", store)
    host.close()
    with RangeHost(tmp_path / "elsewhere") as other:
        again = RestoreBase(4, 7, [handle])
        result = other.open_range(RangeSpec("visits", 0, 15), "f3r0", again, [], store.url)
        scans = other.range(Lease("visits", 0, "f3r0")).scan_many(
            result.version,
            [n.to_bytes(2, "big") for n in range(16)],
            1 << 30,
            1 << 40,
        )
    found = {k: v for s in scans for k, v in zip(s.keys, s.values, strict=True)}
    assert found == stored(database)


@pytest.mark.parametrize("damage", ["changed", "missing", "another state's"])
def test_what_is_not_the_file_of_the_manifest_is_refused_and_leaves_nothing_open(
    database: Database,
    spec: CanonicalSpec,
    store: LocalStore,
    host: RangeHost,
    tmp_path: Path,
    stored: Any,
    damage: str,
) -> None:
    (base,) = handles(database, spec, store, 1, tmp_path / "out")
    visit = next(ref for ref in base.files if ref.name == "visit.parquet")
    good, broken = store.get(visit.key), base
    if damage == "changed":
        store.put(visit.key, good[:100] + bytes([good[100] ^ 255]) + good[101:])
    elif damage == "missing":
        store.delete(visit.key)
    else:
        names = {"visit.parquet": "pages.parquet", "pages.parquet": "visit.parquet"}
        files = [replace(ref, name=names.get(ref.name, ref.name)) for ref in base.files]
        broken = replace(base, files=files)
    with pytest.raises(CorruptState, match=r"visit.parquet|pages.parquet"):
        opened(host, store, [broken], 0, 1)
    store.put(visit.key, good)
    assert opened(host, store, [base], 0, 1) == stored(database)


def test_an_operator_that_got_another_uid_is_restored_from_its_old_files(
    database: Database,
    spec: CanonicalSpec,
    store: LocalStore,
    host: RangeHost,
    tmp_path: Path,
    stored: Any,
) -> None:
    older = replace(spec, uid="before")
    base = [
        replace(handle, uid="visits")
        for handle in handles(database, older, store, 2, tmp_path / "out")
    ]
    assert opened(host, store, base, 0, 1) == stored(database)
