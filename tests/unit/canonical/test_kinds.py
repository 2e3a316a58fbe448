"""Canonical files of every kind of state: with namespaces, with a time to live, and both."""

import datetime
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from moorage_testing.contract_combining import Mean
from moorage_testing.fake_range import FakeRange
from msgspec.structs import replace

from moorage import StateTtlConfig
from moorage.state import OperatorTables, read, write_savepoint
from moorage.state.snapshot_path import locate
from moorage_state.canonical import CanonicalSpec, export_range, frames_of
from moorage_state.deltas import Frame, decode_frame
from moorage_state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from moorage_state.keyed import KeyedStateStore
from moorage_state.keyed.expiry import split_stamp
from moorage_state.keylayout import EXPIRIES, key_prefix, state_id
from moorage_state.keys import KeyCodec
from moorage_state.rocks import Database
from moorage_state.snapshots import StateMeta, encode_manifest
from moorage_state.snapshots.savepoints import MANIFEST_KEY

Make = Callable[..., Database]
Stored = Callable[..., dict[bytes, bytes]]

NOW = 1_700_000_000_000
TTL = StateTtlConfig(timedelta(seconds=60))
DAY = datetime.date(2026, 1, 31)
METAS = (
    StateMeta(name="total", kind="reducing", type="bigint"),
    StateMeta(name="mean", kind="aggregating", type="struct<sum:bigint,n:bigint>"),
    StateMeta(name="value", kind="value", type="bigint", ttl_ms=60_000),
    StateMeta(name="items", kind="list", type="string", ttl_ms=60_000),
    StateMeta(name="seen", kind="map", type="bigint", key_type="string", ttl_ms=60_000),
    StateMeta(name="window", kind="reducing", type="bigint", namespace_types=["string"]),
    StateMeta(
        name="both", kind="list", type="bigint", ttl_ms=60_000, namespace_types=["bigint", "date"]
    ),
)


def filled(now_ms: int = NOW, users: int = 12) -> FakeRange:
    """What an epoch writes into each state for every user."""
    access = FakeRange()
    store = KeyedStateStore(access, 7, now_ms=now_ms)
    total = store.reducing_state(ReducingStateDescriptor("total", "long", "sum"))
    mean = store.aggregating_state(AggregatingStateDescriptor("mean", "sum long, n long", Mean()))
    value = store.value_state(ValueStateDescriptor("value", "long", TTL))
    items = store.list_state(ListStateDescriptor("items", "string", TTL))
    seen = store.map_state(MapStateDescriptor("seen", "string", "long", TTL))
    window = store.namespaced_state(ReducingStateDescriptor("window", "long", "sum"), ["string"])
    both = store.namespaced_state(ListStateDescriptor("both", "long", TTL), ["bigint", "date"])
    codec = KeyCodec(["string"])
    store.begin_chunk([key_prefix(n % 16, codec.encode((f"u{n}",))) for n in range(users)])
    for n in range(users):
        store.switch_to(n)
        total.add_all([n, 1])
        mean.add_all([n, 2])
        value.update(n)
        items.add_all(["a", "b"][: n % 3])
        seen.put_all({"x": n, "": -n})
        for name in ("", "ab"):
            window.set_current_namespace(name).add(n)
        both.set_current_namespace((n, DAY)).add_all([n, n])
    store.finish()
    access.commit()
    return access


def frame(access: FakeRange) -> Frame:
    return Frame([], list(access.entries), list(access.entries.values()))


@pytest.fixture
def kinds(spec: CanonicalSpec) -> CanonicalSpec:
    return replace(spec, states=METAS, now_ms=NOW + 1000)


def imported(new_database: Make, directory: Path, name: str = "copy") -> Database:
    copy = new_database(name)
    files = sorted(directory.glob("*.parquet"))
    for one in frames_of([(path, "") for path in files], 0, 15):
        copy.apply([one])
    return copy


def test_every_kind_comes_back_byte_for_byte_with_its_index(
    new_database: Make, kinds: CanonicalSpec, tmp_path: Path, stored: Stored
) -> None:
    access = filled()
    database = new_database("db", [frame(access)])
    assert any(entry[2] == EXPIRIES for entry in access.entries)
    (out := tmp_path / "out").mkdir()
    export_range(database, kinds, out, budget=300)
    assert stored(imported(new_database, out)) == access.entries


def test_the_columns_say_namespace_and_last_access(
    new_database: Make, kinds: CanonicalSpec, tmp_path: Path
) -> None:
    database = new_database("db", [frame(filled())])
    export_range(database, kinds, tmp_path)
    names = {m.name: pq.read_schema(tmp_path / f"{m.name}.parquet").names[2:] for m in METAS}
    assert names == {
        "total": ["value"],
        "mean": ["value"],
        "value": ["value", "last_access"],
        "items": ["list_epoch", "list_ordinal", "value", "last_access"],
        "seen": ["map_key", "value", "last_access"],
        "window": ["namespace", "value"],
        "both": [
            "namespace_1",
            "namespace_2",
            "list_epoch",
            "list_ordinal",
            "value",
            "last_access",
        ],
    }
    rows = pq.read_table(tmp_path / "both.parquet").to_pylist()
    assert {(r["namespace_1"], r["namespace_2"], r["last_access"]) for r in rows} == {
        (n, DAY, NOW) for n in range(12)
    }
    window = pq.read_table(tmp_path / "window.parquet").to_pylist()
    assert sorted((r["key"], r["namespace"], r["value"]) for r in window) == sorted(
        (f"u{n}", name, n) for n in range(12) for name in ("", "ab")
    )


def test_what_has_expired_does_not_come_into_a_file_where_that_is_declared(
    new_database: Make, kinds: CanonicalSpec, tmp_path: Path, stored: Stored
) -> None:
    database = new_database("db", [frame(filled())])
    states = tuple(replace(meta, cleanup_in_full_snapshot=True) for meta in METAS)
    over = replace(kinds, states=states, now_ms=NOW + 60_000)
    rows = {file.name: file.rows for file in export_range(database, over, tmp_path)}
    assert {name: count for name, count in rows.items() if count} == {
        "mean.parquet": 12,
        "total.parquet": 12,
        "window.parquet": 24,
    }
    ids = {entry[-4 - 8 :] for entry in stored(imported(new_database, tmp_path))}
    assert not any(state_id("value") in one for one in ids)


def test_what_has_expired_comes_into_a_file_as_it_is_stored(
    new_database: Make, kinds: CanonicalSpec, tmp_path: Path, stored: Stored
) -> None:
    access = filled()
    database = new_database("db", [frame(access)])
    export_range(database, replace(kinds, now_ms=NOW + 10 * 60_000), tmp_path)
    assert stored(imported(new_database, tmp_path)) == access.entries


def test_state_that_has_no_time_to_live_any_more_does_not_expire(
    new_database: Make, kinds: CanonicalSpec, tmp_path: Path, stored: Stored
) -> None:
    database = new_database("db", [frame(filled())])
    states = [replace(m, ttl_ms=None if m.ttl_ms is None else 0) for m in METAS]
    over = replace(kinds, states=tuple(states), now_ms=NOW + 10 * 60_000)
    rows = {file.name: file.rows for file in export_range(database, over, tmp_path)}
    assert rows["value.parquet"] == 12
    copy = stored(imported(new_database, tmp_path))
    assert not any(entry[2] == EXPIRIES for entry in copy)


def test_what_never_had_a_time_begins_it_with_the_snapshot(
    new_database: Make, kinds: CanonicalSpec, tmp_path: Path
) -> None:
    access = filled(users=1)
    cell = key_prefix(0, b"u0") + state_id("value")
    _, access.entries[cell] = split_stamp(access.entries[cell])
    export_range(new_database("db", [frame(access)]), kinds, tmp_path)
    (row,) = pq.read_table(tmp_path / "value.parquet").to_pylist()
    assert row["last_access"] == NOW + 1000


def test_state_can_be_written_with_a_time_to_live_and_lives_from_then_on(tmp_path: Path) -> None:
    import pyarrow as pa

    rows = pa.table({"key": ["a", "b"], "value": [1, 2]})
    seen = pa.table({"key": ["a"], "map_key": ["x"], "value": [1], "last_access": [5]})
    path = write_savepoint(
        tmp_path / "made",
        {
            "visits": OperatorTables(
                states=[
                    (ValueStateDescriptor("value", "long", TTL), rows),
                    (ReducingStateDescriptor("total", "long", "sum"), rows),
                    (AggregatingStateDescriptor("n", "long", Mean()), rows),
                    (MapStateDescriptor("old", "string", "long", TTL), seen),
                ],
                key_types=["string"],
            )
        },
    )
    table: Any = read(path, "visits", "value").to_pylist()
    assert [(r["key"], r["value"]) for r in table] in ([("a", 1), ("b", 2)], [("b", 2), ("a", 1)])
    assert all(r["last_access"] > NOW for r in table)
    assert read(path, "visits", "total").num_rows == 2
    assert read(path, "visits", "n").num_rows == 2
    assert read(path, "visits", "old").num_rows == 0


def test_a_reader_is_given_no_rows_that_had_expired_when_the_snapshot_was_taken(
    tmp_path: Path,
) -> None:
    import pyarrow as pa

    used = 10**14
    rows = pa.table({"key": ["a", "b"], "value": [1, 2], "last_access": [used, used + 1000]})
    path = write_savepoint(
        tmp_path / "made",
        {
            "visits": OperatorTables(
                states=[(ValueStateDescriptor("value", "long", TTL), rows)], key_types=["string"]
            )
        },
    )
    manifest = locate(path).manifest
    found = []
    for after in (59_999, 60_000, 61_000):
        later = replace(manifest, processing_time=used + after)
        (tmp_path / "made" / MANIFEST_KEY).write_bytes(encode_manifest(later))
        found.append(sorted(r["key"] for r in read(path, "visits", "value").to_pylist()))
    assert found == [["a", "b"], ["b"], []]


def test_an_epoch_after_a_restore_sweeps_what_was_imported(
    new_database: Make, kinds: CanonicalSpec, tmp_path: Path, stored: Stored
) -> None:
    database = new_database("db", [frame(filled())])
    export_range(database, kinds, tmp_path)
    access = FakeRange()
    access.entries = dict(stored(imported(new_database, tmp_path)))
    donor = KeyedStateStore(FakeRange(), 1)
    donor.value_state(ValueStateDescriptor("value", "long", TTL))
    donor.list_state(ListStateDescriptor("items", "string", TTL))
    donor.map_state(MapStateDescriptor("seen", "string", "long", TTL))
    donor.namespaced_state(ListStateDescriptor("both", "long", TTL), ["bigint", "date"])
    for n in range(2):
        store = KeyedStateStore(access, 8 + n, donor.schemas, now_ms=NOW + 70_000)
        store.sweep_expired()
        store.finish()
        assert all(decode_frame(one) for one in access.staged)
        access.commit()
    assert len(access.entries) == 12 + 12 + 24
