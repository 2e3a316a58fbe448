"""The database adapter, and one test for each trap of the binding that it keeps others out of."""

import ast
import itertools
import sys
import threading
import time
from pathlib import Path

import pytest
import rocksdict

import moorage_state.rocks
from moorage_state.deltas import Frame
from moorage_state.errors import Bug, CorruptState, LocalDiskError, UserError
from moorage_state.rocks import Database, ProcessMemory, RocksOptions

MIB = 1 << 20
OPTIONS = RocksOptions(
    block_cache_bytes=16 * MIB, write_buffers_bytes=16 * MIB, write_buffer_bytes=4 * MIB
)


@pytest.fixture(scope="module")
def memory():
    return ProcessMemory(OPTIONS)


@pytest.fixture
def opened(tmp_path, memory):
    """Opens databases under names and closes them in the end."""
    databases = []

    def open_(name="db", options=OPTIONS):
        databases.append(Database(tmp_path / name, options, memory))
        return databases[-1]

    yield open_
    for database in databases:
        database.close()


@pytest.fixture
def db(opened):
    return opened()


def number(n):
    return n.to_bytes(8, "big")


def fill(database, count, value=b"v" * 100):
    keys = [number(n) for n in range(count)]
    database.apply([Frame([], keys, [value] * count)])
    return keys


def scan(database, entries=1 << 30):
    with database.cursor(b"", b"\xff") as cursor:
        cursor.seek(b"")
        return cursor.take(b"\xff", entries, 1 << 40)


def flip_byte(path, at):
    data = bytearray(path.read_bytes())
    data[int(len(data) * at)] ^= 1
    path.write_bytes(data)


def test_a_clean_database_reports_its_size_in_microseconds(db):
    fill(db, 10_000)
    db.flush()
    began = time.thread_time()
    found = db.properties()
    assert time.thread_time() - began < 0.05
    assert found["live-sst-files-size"] > 10_000
    assert found["background-errors"] == 0


def test_its_size_does_not_jump_with_the_pieces_that_buffers_are_made_of(db):
    sizes = []
    for epoch in range(20):
        fill(db, 100)
        if epoch % 5 == 4:
            db.flush()
        sizes.append(db.size())
    assert 100 * 108 < sizes[0] < 20_000
    assert all(0 < size < 100_000 for size in sizes)
    assert len(set(sizes[5:9])) == 1


# The traps of the binding.


@pytest.mark.parametrize("at", [0.1, 0.5])
def test_trap_1_a_scan_over_a_damaged_file_raises_instead_of_ending(opened, tmp_path, at):
    db = opened(options=RocksOptions(compression="none"))
    fill(db, 20_000)
    db.flush()
    db.close()
    (table,) = (tmp_path / "db").glob("*.sst")
    flip_byte(table, at)
    damaged = Database(tmp_path / "db", OPTIONS, ProcessMemory(OPTIONS))
    try:
        with pytest.raises(CorruptState, match="damaged"):
            scan(damaged)
        with pytest.raises(CorruptState):
            damaged.get_many([number(n) for n in range(20_000)])
    finally:
        damaged.close()


def test_trap_1_a_missing_file_is_damage_and_not_an_empty_scan(opened, tmp_path):
    options = RocksOptions(max_open_files=16)
    db = opened(options=options)
    fill(db, 20_000)
    db.flush()
    db.close()
    (table,) = (tmp_path / "db").glob("*.sst")
    table.unlink()
    with pytest.raises(CorruptState):
        scan(opened(options=options))


def test_traps_1_and_2_the_silent_helpers_and_snapshots_are_not_used():
    banned = {"items", "keys", "values", "entities", "columns", "snapshot", "live_files"}
    (folder,) = moorage_state.rocks.__path__
    used = {
        f"{path.name}: {node.attr}"
        for path in Path(folder).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and node.attr in banned
        # a frame's own fields
        and not (isinstance(node.value, ast.Name) and node.value.id == "frame")
    }
    # They list files by their bounds, and a range has one column family; of a snapshot single keys
    # are read, which do not show later writes.
    assert used == {"adapter.py: live_files", "sliced.py: live_files", "adapter.py: snapshot"}


def test_trap_2_a_standing_view_does_not_show_later_writes(db):
    fill(db, 100)
    db.flush()
    standing = db.standing()
    db.apply(
        [
            Frame(
                [(number(50), number(60))],
                [number(1), number(2), number(200)],
                [b"other", None, b"new"],
            )
        ]
    )
    db.flush()
    keys = [number(n) for n in (0, 1, 2, 55, 200)]
    assert standing.get_many(keys) == [b"v" * 100] * 4 + [None]
    assert db.get_many(keys) == [b"v" * 100, b"other", None, None, b"new"]
    standing.drop()
    with pytest.raises(Bug, match="view of a database is dropped"):
        standing.get_many(keys)


def test_a_database_whose_standing_view_was_dropped_can_be_opened_again(opened):
    db = opened()
    fill(db, 10)
    standing = db.standing()
    standing.drop()
    db.close()
    assert opened().get_many([number(1)]) == [b"v" * 100]


def test_trap_2_a_cursor_does_not_see_later_writes(db):
    fill(db, 100)
    with db.cursor(b"", b"\xff") as cursor:
        fill(db, 200, b"later")
        cursor.seek(b"")
        keys, values, _ = cursor.take(b"\xff", 1000, 1 << 40)
    assert (len(keys), set(values)) == (100, {b"v" * 100})


@pytest.mark.parametrize(("size", "most"), [(8, 512), (10_000, 2 * 26)])
def test_one_write_is_of_so_many_entries_and_bytes_that_others_wait_a_millisecond(db, size, most):
    frames = [Frame([], [number(i) for i in range(n)], [bytes(size)] * n) for n in (3000, 700, 1)]
    batches = list(db._batches(frames, None))
    assert sum(batch.len() for batch in batches) == 3701
    assert most // 2 < max(batch.len() for batch in batches) <= most


@pytest.fixture
def unforced():
    """Nobody is made to let go of Python's lock: another thread runs where it is released."""
    kept = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(kept)


@pytest.mark.usefixtures("unforced")
def test_trap_3_other_threads_run_while_a_database_is_flushed(db):
    beats, stop = itertools.count(), threading.Event()
    last = [0]

    def beat():
        while not stop.wait(0.001):
            last[0] = next(beats)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        # A busy machine may wake nobody in the time of one flush.
        for n in range(50):
            keys = [bytes([n]) + number(i) for i in range(2000)]
            db.apply([Frame([], keys, [bytes(100)] * 2000)])
            before = last[0]
            db.flush()
            if last[0] != before:
                break
        else:
            pytest.fail("no other thread ran in any flush")
    finally:
        stop.set()
        thread.join()


def test_trap_5_closing_releases_the_lock_even_after_an_error_in_a_scan(opened, db):
    fill(db, 10)
    with pytest.raises(Bug) as kept, db.cursor(b"", b"\xff") as cursor:
        cursor.seek(1)
    db.close()
    assert opened().get(number(1)) is not None
    assert kept.value.__traceback__ is not None  # it holds the frames of the scan


def test_trap_5_a_second_opener_is_told_and_the_first_one_unharmed(opened, db):
    fill(db, 1)
    with pytest.raises(LocalDiskError, match="lock"):
        opened()
    assert db.get(number(0)) is not None


def test_trap_7_nothing_is_written_to_a_log(db, tmp_path):
    fill(db, 1000)
    assert [path.stat().st_size for path in (tmp_path / "db").glob("*.log")] == [0]


def test_trap_7_disable_wal_is_still_a_property():
    assert not callable(vars(rocksdict.WriteOptions)["disable_wal"])


def test_traps_6_and_10_a_checkpoint_holds_everything_and_shares_tables(opened, db, tmp_path):
    keys = fill(db, 1000)
    db.checkpoint(tmp_path / "copy")
    fill(db, 2000, b"later")
    (table,) = (tmp_path / "copy").glob("*.sst")
    assert table.stat().st_nlink == 2
    assert scan(opened("copy"))[0] == keys


def test_a_checkpoint_does_not_grow_with_the_age_of_its_database(opened, tmp_path, monkeypatch):
    monkeypatch.setattr(moorage_state.rocks.options, "MANIFEST_BYTES", 8192)
    db, sizes = opened(), []
    for n in range(120):
        keys = fill(db, 10)
        db.flush()
        db.checkpoint(tmp_path / f"copy{n}")
        sizes += [path.stat().st_size for path in (tmp_path / f"copy{n}").glob("MANIFEST-*")]
    assert (len(sizes), max(sizes) < 12_000, sizes[-1] < max(sizes)) == (120, True, True)
    assert scan(opened("copy119"))[0] == keys


def test_a_checkpoint_over_another_one_is_refused(db, tmp_path):
    db.checkpoint(tmp_path / "copy")
    with pytest.raises((Bug, LocalDiskError)):
        db.checkpoint(tmp_path / "copy")


@pytest.mark.parametrize("wrong", ["text", 1, bytearray(b"x")])
def test_only_bytes_are_taken(db, wrong):
    with pytest.raises(Bug, match="something else than bytes"):
        db.get_many([wrong])
    with pytest.raises(Bug, match="something else than bytes"):
        db.apply([Frame([], [b"k"], [wrong])])


def test_a_directory_that_cannot_be_made_is_a_disk_error(memory):
    with pytest.raises(LocalDiskError):
        Database(Path("/proc/no/such"), OPTIONS, memory)


@pytest.mark.parametrize(
    "options",
    [
        RocksOptions(compaction="level"),
        RocksOptions(compression="zstd", bloom_bits_per_key=0),
        RocksOptions(compression="snappy", max_open_files=64),
        RocksOptions(compression="none", background_jobs=1),
    ],
)
def test_every_choice_of_options_works(opened, options):
    db = opened(options=options)
    keys = fill(db, 1000)
    db.flush()
    assert scan(db)[0] == keys


@pytest.mark.parametrize(
    "wrong",
    [
        {"compaction": "fifo"},
        {"compression": "brotli"},
        {"max_open_files": -2},
        {"write_buffer_bytes": 10},
        {"write_buffers_bytes": 1 << 20},
        {"background_jobs": 0},
    ],
)
def test_options_that_cannot_work_are_refused_by_name(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        RocksOptions(**wrong)


def test_databases_share_one_cache(opened, memory):
    before = memory.cache.get_usage()
    for name in ("one", "two"):
        fill(opened(name), 5000)
    assert memory.cache.get_usage() > before


def test_a_database_opened_to_read_only_gives_everything_and_takes_nothing(
    opened, tmp_path, memory
):
    database = opened()
    fill(database, 100)
    database.flush()
    database.checkpoint(tmp_path / "copy")
    reader = Database(tmp_path / "copy", OPTIONS, memory, read_only=True)
    assert scan(reader) == scan(database)
    with pytest.raises(Bug, match="refused a call"):
        reader.apply([Frame([], [b"k"], [b"v"])])
    reader.close()
