"""`timer-service.factory: HEAP`: the index of timers in memory says what the database says."""

import random
from dataclasses import replace

import pytest

from moorage_state.deltas import Frame
from moorage_state.keylayout import EVENT_TIMERS, PROCESSING_TIMERS, timer_entry
from moorage_state.memory.heap_timers import HeapTimers
from moorage_state.rocks import Database
from moorage_state.server import RangeHost
from moorage_state.server.databases import Databases
from moorage_state.state_backends import EmbeddedRocksDBStateBackend
from moorage_state.tuning import parse_options

MIB = 1 << 20
LATEST = (1 << 63) - 1
SETTINGS = {"state.backend.rocksdb.timer-service.factory": "HEAP"}


@pytest.fixture(scope="session")
def small():
    options = parse_options(SETTINGS).rocks_options()
    tuned = replace(
        options,
        block_cache_bytes=16 * MIB,
        write_buffers_bytes=16 * MIB,
        write_buffer_bytes=4 * MIB,
    )
    return EmbeddedRocksDBStateBackend(tuned=tuned)


def timers(op, kind):
    return op.range.due_timers(op.version, LATEST, 1 << 20, b"", kind)


def random_timers(rng, groups, count):
    kinds = (EVENT_TIMERS, PROCESSING_TIMERS)
    return [
        timer_entry(rng.choice(groups), rng.randrange(1000), rng.randbytes(3), rng.choice(kinds))
        for _ in range(count)
    ]


def of_kind(entries, kind):
    return sorted({entry for entry in entries if entry[2] == kind})


def test_timers_survive_writes_deletes_restores_and_rescales(host, drive, key, tmp_path, small):
    rng, alive = random.Random(3), set[bytes]()
    op = drive(host)
    op.open()
    for epoch in range(6):
        added = random_timers(rng, range(64), 200)
        gone = rng.sample(sorted(alive), len(alive) // 3)
        low, high = sorted(random_timers(rng, range(64), 2))
        writes = {key(group, epoch): b"state" for group in range(0, 64, 7)}
        writes |= dict.fromkeys(gone) | dict.fromkeys(added, b"")
        op.epoch(writes, [(low, high)])
        alive = {t for t in alive - set(gone) if not low <= t < high} | set(added)
        for kind in (EVENT_TIMERS, PROCESSING_TIMERS):
            assert timers(op, kind) == of_kind(alive, kind)
    op.checkpoint(1)
    with RangeHost(tmp_path / "elsewhere", small) as other:
        for start, end in ((0, 20), (21, 63)):
            part = drive(other, start, end, "f2r0")
            part.open(op.base)
            mine = [t for t in alive if start <= int.from_bytes(t[:2], "big") <= end]
            assert timers(part, EVENT_TIMERS) == of_kind(mine, EVENT_TIMERS)
            (stats,) = (s for s in other.stats() if s.start == start)
            assert stats.properties["heap-timers"] == len(mine)
    op.api.release_range(op.lease)
    op.open()
    assert timers(op, PROCESSING_TIMERS) == of_kind(alive, PROCESSING_TIMERS)


def test_looking_for_timers_does_not_touch_the_database(tmp_path, small, monkeypatch):
    database = Databases(small).open(tmp_path / "db")
    entries = random_timers(random.Random(1), range(9), 50)
    database.apply([Frame([], entries, [b""] * len(entries))])
    monkeypatch.setattr(Database, "cursor", None)
    with database.timers.cursor(b"", b"\xff") as cursor:
        cursor.seek(b"")
        assert cursor.take_keys(b"\xff", 1000) == sorted(set(entries))
    database.close()


def test_timers_are_in_the_database_too(tmp_path, small):
    entries = random_timers(random.Random(1), range(9), 50)
    database = HeapTimers(Database(tmp_path / "db", small.tuned, small.process_memory()))
    database.apply([Frame([], entries, [b""] * len(entries))], (b"\xff\xffversion", b"1"))
    assert database.get_many(entries) == [b""] * len(entries)
    assert database.checkpoint(tmp_path / "copy") is None
    database.delete_range(b"", b"\xff")
    assert database.properties()["heap-timers"] == 0
    database.close()
    again = HeapTimers(Database(tmp_path / "copy", small.tuned, small.process_memory()))
    assert again.properties()["heap-timers"] == len(set(entries))
    again.close()
