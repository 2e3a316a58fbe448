"""Every open of a database has the options that the server was given, as RocksDB's own log says."""

import dataclasses
import re

import pytest

from moorage_state.deltas import Frame
from moorage_state.rocks import Database, ProcessMemory, RocksOptions
from moorage_state.server import RangeHost, RestoreBase
from moorage_state.server.databases import Databases
from moorage_state.state_backends import EmbeddedRocksDBStateBackend

MIB = 1 << 20
TUNED = RocksOptions(
    block_cache_bytes=24 * MIB,
    write_buffers_bytes=24 * MIB,
    write_buffer_bytes=3 * MIB,
    max_write_buffers=5,
    compaction="level",
    level_base_bytes=77 * MIB,
    compression="zstd",
    block_bytes=16 * 1024,
    metadata_block_bytes=8 * 1024,
    bloom_bits_per_key=17,
    target_file_bytes=11 * MIB,
    max_open_files=321,
    background_jobs=5,
)
OWN = {"info_log", "flush_block_policy_factory", "env"}
"""Addresses of what each database makes for itself; those of the cache and the budget stay."""


def effective(log):
    """The options that a database was opened with, out of its log."""
    found = re.findall(r"Options\.([\w.\[\]]+)\s*: (.*)", log)
    (table,) = re.findall(r"table_factory options:(.*?)\n\d{4}/", log, re.DOTALL)
    found += [(f"table.{name}", value) for name, value in re.findall(r"(\w+)\s*: (\S.*)", table)]
    return {name: value for name, value in found if name.removeprefix("table.") not in OWN}


@pytest.fixture
def host(tmp_path):
    """Makes hosts, each with a volume and a folder of logs of its own; all are closed."""
    made = []

    def make(name, options=TUNED):
        (tmp_path / name / "logs").mkdir(parents=True)
        logged = dataclasses.replace(options, log_dir=str(tmp_path / name / "logs"), log_files=1000)
        backend = EmbeddedRocksDBStateBackend(tuned=logged)
        made.append(RangeHost(tmp_path / name / "volume", backend))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def opened(tmp_path):
    """The effective options of every open on a host, by the database's place."""

    def read(name):
        logs = sorted((tmp_path / name / "logs").iterdir())
        return {log.name: effective(log.read_text()) for log in logs}

    return read


def differing(found, expected):
    return {
        f"{place}: {name}": (options.get(name), value)
        for place, options in found.items()
        for name, value in expected.items()
        if options.get(name) != value and name != "db_log_dir"
    }


def fresh(host, opened, drive, name, options=TUNED):
    """What a database that is made with these options on a host of its own has."""
    drive(host(name, options)).open()
    (found,) = opened(name).values()
    return found


def filled(driven, key):
    driven.open()
    driven.epoch({key(group, 1): b"v" * 500 for group in range(driven.spec.start, 64)})
    return driven


def of_process(options):
    """Options without what is another object in another process."""
    shared = {"table.block_cache", "write_buffer_manager", "db_log_dir"}
    return {name: value for name, value in options.items() if name not in shared}


def test_a_fresh_database_has_what_it_was_given(host, opened, drive):
    found = fresh(host, opened, drive, "a")
    expected = {
        "write_buffer_size": str(3 * MIB),
        "max_write_buffer_number": "5",
        "compaction_style": "kCompactionStyleLevel",
        "compression": "ZSTD",
        "max_open_files": "321",
        "max_background_jobs": "5",
        "target_file_size_base": str(11 * MIB),
        "max_bytes_for_level_base": str(77 * MIB),
        "table.filter_policy": "bloomfilter",
        "table.block_size": str(16 << 10),
        "table.metadata_block_size": str(8 << 10),
        "table.capacity": str(24 * MIB),
        "atomic_flush": "1",
    }
    assert differing({"a": found}, expected) == {}
    assert len(found) > 150


def test_a_hard_linked_copy_that_is_opened_again_shares_options_and_cache(host, opened, drive, key):
    op = filled(drive(host("a")), key)
    op.checkpoint(1)
    assert op.open_anew(run="f1r1").source == "local"
    found = opened("a")
    first, _second = found.values()
    assert differing(found, first) == {}


def test_a_restore_from_the_store_has_the_options_of_now(host, opened, drive, key):
    """Whatever options the state was written with."""
    op = filled(drive(host("writer", RocksOptions())), key)
    op.checkpoint(1)
    moved = drive(host("reader"), run="f2r0")
    assert moved.open(op.base).source == "store"
    assert moved.read() == op.read()
    expected = of_process(fresh(host, opened, drive, "fresh"))
    assert differing(opened("reader"), expected) == {}


def test_restores_by_ranges_have_them_in_the_base(host, opened, drive, key):
    whole = filled(drive(host("writer", RocksOptions())), key)
    whole.checkpoint(1)
    reader = host("reader")
    parts = [drive(reader, start, start + 31, run="f2r0") for start in (0, 32)]
    for part in parts:
        part.open(whole.base)
        part.checkpoint(2)
    handles = [handle for part in parts for handle in part.base.handles]
    again = drive(host("joined"), run="f3r0")
    again.open(RestoreBase(2, whole.version.epoch, handles))
    assert again.read() == whole.read()
    expected = of_process(fresh(host, opened, drive, "fresh"))
    # What is copied in is opened to be read, of which RocksDB writes no log.
    assert (len(opened("reader")), len(opened("joined"))) == (2, 1)
    assert differing({**opened("reader"), **opened("joined")}, expected) == {}


def test_a_copy_of_another_servers_files_has_the_options_of_whoever_opens_it(tmp_path):
    Database(tmp_path / "db", RocksOptions(), ProcessMemory(RocksOptions())).close()
    databases = Databases(EmbeddedRocksDBStateBackend(tuned=TUNED))
    databases.open(tmp_path / "db").close()
    databases.open(tmp_path / "fresh").close()
    found, expected = (effective((tmp_path / name / "LOG").read_text()) for name in ("db", "fresh"))
    assert differing({"copy": found}, of_process(expected)) == {}


def test_a_copy_that_is_only_read_uses_the_shared_cache_and_its_filters(tmp_path, key):
    """RocksDB writes no log of such an open."""
    written = Database(tmp_path / "db", RocksOptions(), ProcessMemory(RocksOptions()))
    keys = [key(0, 2 * n) for n in range(20_000)]
    written.apply([Frame([], keys, [n.to_bytes(100, "big") for n in range(20_000)])])
    written.flush()
    written.close()
    backend = EmbeddedRocksDBStateBackend(tuned=TUNED)
    memory = backend.process_memory()
    copy = backend.open_database(tmp_path / "db", memory, read_only=True)
    assert isinstance(copy, Database)
    capacity = copy._open().property_int_value("rocksdb.block-cache-capacity")
    before = memory.cache.get_usage()
    copy.get_many([key(0, 2 * n + 1) for n in range(0, 20_000, 100)])
    of_absent = memory.cache.get_usage() - before
    copy.get_many([key(0, 2 * n) for n in range(0, 20_000, 100)])
    of_present = memory.cache.get_usage() - before - of_absent
    copy.close()
    assert capacity == 24 * MIB
    assert 0 < 10 * of_absent < of_present


def test_what_is_written_after_a_restore_has_filters(host, drive, key, tmp_path):
    """Keys that are not there are not looked for in the blocks of data."""
    op = filled(drive(host("writer")), key)
    op.checkpoint(1)
    moved = drive(host("reader"), run="f2r0")
    moved.open(op.base)
    moved.epoch({key(group, 2): b"w" for group in range(64)})
    moved.checkpoint(2)
    (log,) = (path for path in (tmp_path / "reader" / "logs").iterdir())
    written = re.findall(r'"event": "table_file_creation".*?"filter_size": (\d+)', log.read_text())
    assert written
    assert all(int(size) > 0 for size in written)
