"""A copy without the files that some key groups have nothing in is right for those groups."""

import random
import shutil
from dataclasses import replace

import pytest

from moorage_state.deltas import Frame
from moorage_state.errors import CorruptState
from moorage_state.keylayout import METADATA
from moorage_state.rocks import Database, ProcessMemory, RocksOptions
from moorage_state.rocks.partial_copy import _append, leave_out

GROUPS = 16
OPTIONS = RocksOptions(
    block_cache_bytes=1 << 20,
    write_buffers_bytes=1 << 20,
    write_buffer_bytes=64 << 10,
    target_file_bytes=64 << 10,
    level_base_bytes=64 << 10,
)
LEVELS = replace(OPTIONS, compaction="level")
MEMORY = ProcessMemory(OPTIONS)
_SAME_COMPARATOR = b"\x01\x1aleveldb.BytewiseComparator"
"""A record that changes nothing."""


def key(group, number):
    return group.to_bytes(2, "big") + number.to_bytes(4, "big")


def written(path, seed, options=OPTIONS):
    """A database of many files on several levels, with deletions; what it holds."""
    rng = random.Random(seed)
    model: dict[bytes, bytes | None] = {}
    database = Database(path / "db", options, MEMORY)
    for _ in range(20):
        low = rng.randrange(GROUPS)
        high = rng.randrange(low, GROUPS) + 1
        change = {}
        for _ in range(2000):
            at = key(rng.randrange(low, high), rng.randrange(1000))
            change[at] = rng.randbytes(80) if rng.random() < 0.8 else None
        # Deletions must come with the files: without them older values would be there again.
        put(database, sorted(change.items()))
        model |= change
        if rng.random() < 0.4:
            group = rng.randrange(GROUPS - 2)
            ends = key(group, 100), key(group + rng.randrange(3), 500)
            database.delete_range(*ends)
            model |= {at: None for at in model if ends[0] <= at < ends[1]}
        put(database, [(METADATA + b"version", b"%d" % rng.randrange(100))])
        database.flush()
    put(database, [(METADATA + b"version", b"last")])
    database.flush()
    database.checkpoint(path / "copy")
    database.close()
    return {at: value for at, value in model.items() if value is not None}


def put(database, entries):
    database.apply([Frame([], [k for k, _ in entries], [v for _, v in entries])])


def part_of(copy, target, first, last):
    """The part of a copy, of which no file is there that is not needed."""
    target.mkdir()
    for file in copy.iterdir():
        if file.suffix != ".sst":
            shutil.copyfile(file, target / file.name)
    kept = leave_out(target, first, last)
    for name in kept:
        shutil.copyfile(copy / name, target / name)
    return kept


def read(database, lower, upper):
    with database.cursor(lower, upper) as cursor:
        cursor.seek(lower)
        keys, values, complete = cursor.take(upper, 1 << 30, 1 << 40)
    assert complete
    return dict(zip(keys, values, strict=True))


@pytest.mark.parametrize("options", [OPTIONS, LEVELS], ids=["universal", "level"])
@pytest.mark.parametrize("seed", range(3))
def test_a_part_has_every_entry_of_its_groups_and_goes_on(tmp_path, seed, options):
    model = written(tmp_path, seed, options)
    copy = tmp_path / "copy"
    every = {file.name for file in copy.glob("*.sst")}
    rng = random.Random(seed)
    left_out = 0
    for number in range(4):
        first = rng.randrange(GROUPS)
        last = min(GROUPS - 1, first + rng.randrange(3))
        target = tmp_path / f"part{number}"
        kept = part_of(copy, target, first, last)
        left_out += len(every - kept)
        expected = {at: v for at, v in model.items() if first <= at[1] <= last}
        lower, upper = key(first, 0)[:2], key(last + 1, 0)[:2]
        database = Database(target, options, MEMORY)
        try:
            database.delete_range(b"", lower)
            database.delete_range(upper, METADATA)
            assert read(database, b"", METADATA) == expected
            assert database.get(METADATA + b"version") == b"last"
            # Compactions find all of their files, and so do the copies that are taken of it.
            for round_ in range(6):
                change = [(key(rng.randint(first, last), n), rng.randbytes(80)) for n in range(200)]
                put(database, sorted(dict(change).items()))
                expected |= dict(change)
                database.flush()
                database.checkpoint(tmp_path / f"copy{number}-{round_}")
            assert read(database, b"", METADATA) == expected
            assert database.properties()["background-errors"] == 0
        finally:
            database.close()
        again = Database(tmp_path / f"copy{number}-5", OPTIONS, MEMORY, read_only=True)
        assert read(again, b"", METADATA) == expected
        again.close()
    assert left_out


def test_records_are_written_across_the_blocks_of_a_log(tmp_path):
    model = written(tmp_path, 1)
    (manifest,) = (tmp_path / "copy").glob("MANIFEST-*")
    sizes = [1, 40, 1, 1200, 7, *([1] * 1500), 3000, 2]
    for size in sizes:
        _append(manifest, size * _SAME_COMPARATOR)
    assert manifest.stat().st_size > 4 * (32 << 10)
    kept = part_of(tmp_path / "copy", tmp_path / "part", 3, 3)
    assert kept < {file.name for file in (tmp_path / "copy").glob("*.sst")}
    database = Database(tmp_path / "part", OPTIONS, MEMORY, read_only=True)
    found = read(database, key(3, 0)[:2], key(4, 0)[:2])
    database.close()
    assert found == {at: value for at, value in model.items() if at[1] == 3}


def test_a_record_follows_where_little_of_a_block_is_left(tmp_path):
    written(tmp_path, 1)
    (manifest,) = (tmp_path / "copy").glob("MANIFEST-*")
    before = manifest.read_bytes()
    for left in range(9):
        manifest.write_bytes(before)
        # One record fills the block up, the last part of it under a tag that may be passed over.
        room = (32 << 10) - len(before) % (32 << 10) - left - 7
        count, rest = divmod(room, len(_SAME_COMPARATOR))
        count, rest = count - 1, rest + len(_SAME_COMPARATOR)
        _append(
            manifest, count * _SAME_COMPARATOR + b"\xe4\x40" + bytes([rest - 3]) + bytes(rest - 3)
        )
        assert -manifest.stat().st_size % (32 << 10) == left
        target = tmp_path / f"part{left}"
        kept = part_of(tmp_path / "copy", target, 3, 3)
        database = Database(target, OPTIONS, MEMORY, read_only=True)
        assert database.get(METADATA + b"version") == b"last"
        database.close()
        assert kept < {file.name for file in (tmp_path / "copy").glob("*.sst")}


def test_what_is_no_copy_is_refused(tmp_path):
    with pytest.raises(CorruptState, match="CURRENT"):
        leave_out(tmp_path, 0, 1)
