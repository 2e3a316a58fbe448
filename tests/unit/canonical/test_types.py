"""Every type that state may have: the bytes of a value survive the way through Parquet."""

import datetime
import decimal
import struct
import tempfile
from datetime import UTC
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moorage_state.canonical import CanonicalSpec, RowReader, export_range, frames_of, stored_id
from moorage_state.canonical.rows import RowBuffer
from moorage_state.codecs import encoder
from moorage_state.deltas import Frame
from moorage_state.keyed import many_timers
from moorage_state.keyed.many_timers import stored_timers
from moorage_state.keyed.timers import TIMERS_STATE
from moorage_state.keylayout import (
    EVENT_TIMERS,
    PROCESSING_TIMERS,
    encode_time,
    key_prefix,
    state_id,
    timer_entry,
)
from moorage_state.keys import KeyCodec
from moorage_state.rocks import Database, ProcessMemory, RocksOptions
from moorage_state.snapshots import StateMeta

D = decimal.Decimal


def whole(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def decimals(precision: int, scale: int) -> st.SearchStrategy[D]:
    limit = 10**precision - 1
    return st.integers(-limit, limit).map(lambda n: D(f"{n}E-{scale}"))


any_double = st.binary(min_size=8, max_size=8).map(lambda raw: struct.unpack("<d", raw)[0])
KEYS: dict[str, st.SearchStrategy[Any]] = {
    "tinyint": whole(8),
    "smallint": whole(16),
    "int": whole(32),
    "bigint": whole(64),
    "string": st.text(st.characters(exclude_categories=["Cs"])),
    "binary": st.binary(),
    "boolean": st.booleans(),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "decimal(38,10)": decimals(38, 10),
    "decimal(18,0)": decimals(18, 0),
    "decimal(5,5)": decimals(5, 5),
}
SCALARS = KEYS | {"double": st.floats() | any_double, "float": st.floats() | any_double}


def structs(fields: list[tuple[str, Any]]) -> tuple[str, Any]:
    ddl = ",".join(f"f{i}:{ddl}" for i, (ddl, _) in enumerate(fields))
    return f"struct<{ddl}>", st.tuples(*(st.none() | values for _, values in fields))


kinds = st.recursive(
    st.sampled_from(sorted(SCALARS)).map(lambda ddl: (ddl, SCALARS[ddl])),
    lambda inner: (
        inner.map(lambda t: (f"array<{t[0]}>", st.lists(st.none() | t[1], max_size=4)))
        | st.lists(inner, min_size=1, max_size=3).map(structs)
        | st.tuples(st.sampled_from(sorted(KEYS)), inner).map(
            lambda t: (
                f"map<{t[0]},{t[1][0]}>",
                st.dictionaries(KEYS[t[0]], st.none() | t[1][1], max_size=3),
            )
        )
    ),
    max_leaves=5,
)


def through_parquet(spec: CanonicalSpec, entries: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """The entries as they come back from a file; all are of key group 5 and one state."""
    meta = spec.metas()[0]
    buffer = RowBuffer(meta)
    for entry, value in entries.items():
        at = 7 + int.from_bytes(entry[3:7], "big")
        buffer.add(entry[7:at], entry[at + 4 :], value)
    if not entries:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file.parquet")
        pq.write_table(pa.Table.from_batches([buffer.take(5)]), path, compression="zstd")
        with pq.ParquetFile(path) as file:
            found = list(RowReader(meta).entries(file.iter_batches(2)))
    return {k: v for keys, values in found for k, v in zip(keys, values, strict=True)}


def spec_of(key_types: tuple[str, ...], state: StateMeta) -> CanonicalSpec:
    return CanonicalSpec(
        uid="op", start=0, end=15, epoch=3, max_parallelism=16, key_types=key_types, states=(state,)
    )


@settings(max_examples=150)
@given(st.data())
def test_a_value_of_any_type_keeps_its_bytes(data: st.DataObject) -> None:
    ddl, values = data.draw(kinds)
    spec = spec_of(("int",), StateMeta(name="s", kind="value", type=ddl))
    sid, encode = stored_id(spec.metas()[0]), encoder(ddl)
    drawn = data.draw(st.lists(values, min_size=1, max_size=4))
    keys = [key_prefix(5, KeyCodec(["int"]).encode((n,))) for n in range(len(drawn))]
    entries = {k + sid: encode(v) for k, v in zip(keys, drawn, strict=True)}
    assert through_parquet(spec, entries) == entries


@given(st.data())
def test_a_key_of_any_type_keeps_its_bytes(data: st.DataObject) -> None:
    types = tuple(data.draw(st.lists(st.sampled_from(sorted(KEYS)), min_size=1, max_size=3)))
    spec = spec_of(types, StateMeta(name="s", kind="value", type="boolean"))
    sid, codec = stored_id(spec.metas()[0]), KeyCodec(types)
    keys = data.draw(st.lists(st.tuples(*(KEYS[t] for t in types)), min_size=1, max_size=4))
    entries = {key_prefix(5, codec.encode(key)) + sid: b"\xc3" for key in keys}
    assert through_parquet(spec, entries) == entries


@given(st.data())
def test_a_map_with_keys_of_any_type_keeps_its_bytes(data: st.DataObject) -> None:
    ddl = data.draw(st.sampled_from(sorted(KEYS)))
    spec = spec_of(("string",), StateMeta(name="s", kind="map", type="bigint", key_type=ddl))
    sid, codec, encode = stored_id(spec.metas()[0]), KeyCodec([ddl]), encoder("bigint")
    found = data.draw(st.dictionaries(KEYS[ddl], KEYS["bigint"], max_size=4))
    prefix = key_prefix(5, b"user") + sid
    entries = {prefix + codec.encode((k,)): encode(v) for k, v in found.items()}
    assert through_parquet(spec, entries) == entries


@given(st.dictionaries(st.tuples(whole(64), st.integers(0, (1 << 32) - 1)), whole(32)))
def test_the_elements_of_a_list_keep_their_places(found: dict[tuple[int, int], int]) -> None:
    spec = spec_of(("string",), StateMeta(name="s", kind="list", type="int"))
    sid, encode = stored_id(spec.metas()[0]), encoder("int")
    prefix = key_prefix(5, b"user") + sid
    entries = {
        prefix + encode_time(epoch) + ordinal.to_bytes(4, "big"): encode(value)
        for (epoch, ordinal), value in found.items()
    }
    assert through_parquet(spec, entries) == entries


SCALAR_STATES = (
    StateMeta(name="v", kind="value", type="string"),
    StateMeta(name="l", kind="list", type="bigint"),
    StateMeta(name="m", kind="map", type="binary", key_type="decimal(5,5)"),
)
stored_keys = st.tuples(st.integers(0, 15), st.binary(max_size=6))
lists = st.dictionaries(st.tuples(whole(64), st.integers(0, 9)), whole(64), max_size=3)
timers_of_kind = st.lists(whole(64), max_size=4, unique=True).map(sorted)
timers = st.tuples(timers_of_kind, timers_of_kind).filter(any)


@settings(max_examples=40)
@given(
    st.dictionaries(stored_keys, KEYS["string"], max_size=9),
    st.dictionaries(stored_keys, lists, max_size=9),
    st.dictionaries(stored_keys, st.dictionaries(decimals(5, 5), st.binary()), max_size=9),
    st.dictionaries(stored_keys, timers, max_size=9),
    st.integers(1, 1000),
    st.integers(0, 15),
    st.sampled_from([1, 512]),
)
def test_any_database_comes_back_whole_or_in_two_parts(
    values: Any, lists: Any, maps: Any, times: Any, budget: int, cut: int, many: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(many_timers, "_MANY", many)
        check_that_a_database_comes_back(values, lists, maps, times, budget, cut)


def check_that_a_database_comes_back(
    values: Any, lists: Any, maps: Any, times: Any, budget: int, cut: int
) -> None:
    codec, pack = KeyCodec(["decimal(5,5)"]), msgspec.msgpack.encode
    entries: dict[bytes, bytes] = {}
    for (group, key), value in values.items():
        entries[key_prefix(group, key) + state_id("v")] = encoder("string")(value)
    for (group, key), found in lists.items():
        for (epoch, place), value in found.items():
            rest = encode_time(epoch) + place.to_bytes(4, "big")
            entries[key_prefix(group, key) + state_id("l") + rest] = pack(value)
    for (group, key), found in maps.items():
        for inner, value in found.items():
            rest = codec.encode((inner,))
            entries[key_prefix(group, key) + state_id("m") + rest] = pack(value)
    for (group, key), found in times.items():
        cell = key_prefix(group, key) + state_id(TIMERS_STATE)
        entries.update((cell + rest, value) for rest, value in stored_timers(*found))
        for kind, times_of_kind in zip((EVENT_TIMERS, PROCESSING_TIMERS), found, strict=True):
            entries |= {timer_entry(group, time, key, kind): b"" for time in times_of_kind}
    spec = CanonicalSpec(
        uid="op",
        start=0,
        end=15,
        epoch=3,
        max_parallelism=16,
        key_types=("binary",),
        states=SCALAR_STATES,
    )
    assert exported_and_imported(spec, entries, budget, cut) == entries


def exported_and_imported(
    spec: CanonicalSpec, entries: dict[bytes, bytes], budget: int, cut: int
) -> dict[bytes, bytes]:
    """Through a database and files; the key groups up to `cut` are imported first."""
    with tempfile.TemporaryDirectory() as folder:
        options = RocksOptions()
        database = Database(Path(folder, "db"), options, ProcessMemory(options))
        database.apply([Frame([], list(entries), list(entries.values()))])
        out = Path(folder, "out")
        out.mkdir()
        files = [(f.path, "") for f in export_range(database, spec, out, budget=budget)]
        database.close()
        found: dict[bytes, Any] = {}
        for first, last in ((0, cut), (cut + 1, 15)):
            for frame in frames_of(files, first, last):
                found.update(zip(frame.keys, frame.values, strict=True))
    return found


def test_a_time_zone_does_not_change_a_value() -> None:
    spec = spec_of(("int",), StateMeta(name="s", kind="value", type="timestamp"))
    at = datetime.datetime(1, 1, 1, tzinfo=UTC)
    entry = key_prefix(5, KeyCodec(["int"]).encode((-1,))) + stored_id(spec.metas()[0])
    entries = {entry: encoder("timestamp")(at)}
    assert through_parquet(spec, entries) == entries
