"""Databases filled as jobs fill them, and what they hold."""

import decimal
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from moorage_state.canonical import CanonicalSpec, key_groups
from moorage_state.deltas import Frame, decode_frame
from moorage_state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from moorage_state.keyed import KeyedStateStore, KeyTimers
from moorage_state.keylayout import key_prefix
from moorage_state.keys import KeyCodec
from moorage_state.rocks import Database, ProcessMemory, RocksOptions
from moorage_state.snapshots import StateMeta

settings.register_profile("unhurried", deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile("unhurried")

MIB = 1 << 20
SMALL = RocksOptions(
    block_cache_bytes=16 * MIB, write_buffers_bytes=16 * MIB, write_buffer_bytes=4 * MIB
)
GROUPS = 16
STATES = (
    StateMeta(name="visit", kind="value", type="struct<n:bigint,at:timestamp,price:decimal(9,2)>"),
    StateMeta(name="pages", kind="list", type="string"),
    StateMeta(name="by_day", kind="map", type="array<double>", key_type="date"),
)


class StagedFrames:
    """A range that is only written to."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def stage(self, frame: bytes) -> None:
        self.frames.append(frame)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        return [None for _ in keys]


def written(keys: int = 40, epoch: int = 7) -> list[Frame]:
    """The writes of one epoch: value, list, map and timers of users `user-<n>`."""
    access: Any = StagedFrames()
    store = KeyedStateStore(access, epoch)
    visit = store.value_state(ValueStateDescriptor("visit", STATES[0].type))
    pages = store.list_state(ListStateDescriptor("pages", "string"))
    by_day = store.map_state(MapStateDescriptor("by_day", "date", "array<double>"))
    timers = KeyTimers(store)
    users = [(f"user-{n}",) for n in range(keys)]
    codec, groups = KeyCodec(["string"]), key_groups(["string"], GROUPS)(users)
    store.begin_chunk([key_prefix(g, codec.encode(k)) for g, k in zip(groups, users, strict=True)])
    for n in range(keys):
        store.switch_to(n)
        at = datetime(2026, 1, 1, tzinfo=UTC)
        visit.update({"n": n - 3, "at": at, "price": decimal.Decimal(f"-{n}.50")})
        pages.add_all([f"page-{i}" for i in range(n % 4)])
        if n % 3 == 0:
            by_day.put(date(2026, 1, 1 + n % 20), [1.5, None, float("nan")])
            by_day.put(date(1969, 12, 31), [])
        for time in range(n % 3):
            timers.register(time * 1000 - 500)
    store.finish()
    return [decode_frame(frame) for frame in access.frames]


@pytest.fixture(name="written")
def written_() -> Callable[..., list[Frame]]:
    return written


@pytest.fixture(scope="session")
def memory() -> ProcessMemory:
    return ProcessMemory(SMALL)


@pytest.fixture
def small() -> RocksOptions:
    return SMALL


@pytest.fixture
def open_copy(memory: ProcessMemory) -> Callable[[Path], Database]:
    """Opens the files of a copy to be read."""
    return lambda path: Database(path, SMALL, memory, read_only=True)


@pytest.fixture
def new_database(tmp_path: Path, memory: ProcessMemory) -> Iterator[Callable[..., Database]]:
    """Opens databases under names, with these writes, and closes them in the end."""
    databases = []

    def make(name: str = "db", frames: list[Frame] | None = None) -> Database:
        databases.append(Database(tmp_path / name, SMALL, memory))
        databases[-1].apply(frames or [])
        return databases[-1]

    yield make
    for database in databases:
        database.close()


@pytest.fixture
def spec() -> CanonicalSpec:
    return CanonicalSpec(
        uid="visits",
        start=0,
        end=GROUPS - 1,
        epoch=7,
        max_parallelism=GROUPS,
        key_types=("string",),
        states=STATES,
    )


def entries(database: Database, first: int = 0, last: int = GROUPS - 1) -> dict[bytes, bytes]:
    """Everything stored under some key groups."""
    lower, upper = first.to_bytes(2, "big"), (last + 1).to_bytes(2, "big")
    with database.cursor(lower, upper) as cursor:
        cursor.seek(lower)
        keys, values, complete = cursor.take(upper, 1 << 30, 1 << 40)
    assert complete
    return dict(zip(keys, values, strict=True))


@pytest.fixture
def stored() -> Callable[..., dict[bytes, bytes]]:
    return entries
