"""Each setting arrives: RocksDB's own OPTIONS file says so."""

import re
from pathlib import Path

import pytest

from moorage_state.deltas import Frame
from moorage_state.rocks import Database, ProcessMemory, RocksOptions
from moorage_state.tuning import parse_options

P = "state.backend.rocksdb."
MIB = 1 << 20
SAME_AS_DEFAULT = {("compaction.style", "UNIVERSAL")}


@pytest.fixture
def written_options(tmp_path):
    """What RocksDB wrote of a database with these settings, by name."""

    def make(settings):
        options = parse_options(settings).rocks_options()
        folder = tmp_path / f"db-{len(list(tmp_path.iterdir()))}"
        Database(folder, options, ProcessMemory(options)).close()
        (file,) = folder.glob("OPTIONS-*")
        return dict(re.findall(r"^\s*([\w.]+)=(.*)$", file.read_text(), re.MULTILINE))

    return make


@pytest.mark.parametrize(
    ("key", "value", "name", "expected"),
    [
        ("writebuffer.size", "8mb", "write_buffer_size", str(8 * MIB)),
        ("writebuffer.count", "5", "max_write_buffer_number", "5"),
        ("block.blocksize", "16kb", "block_size", str(16 << 10)),
        ("block.metadata-blocksize", "8kb", "metadata_block_size", str(8 << 10)),
        ("compaction.style", "LEVEL", "compaction_style", "kCompactionStyleLevel"),
        ("compaction.style", "UNIVERSAL", "compaction_style", "kCompactionStyleUniversal"),
        ("compaction.style", "NONE", "disable_auto_compactions", "true"),
        ("compaction.level.target-file-size-base", "9mb", "target_file_size_base", str(9 * MIB)),
        ("compaction.level.max-size-level-base", "99mb", "max_bytes_for_level_base", str(99 * MIB)),
        ("compression.per.level", "ZSTD_COMPRESSION", "compression", "kZSTD"),
        (
            "compression.per.level",
            "NO_COMPRESSION;SNAPPY_COMPRESSION;ZSTD_COMPRESSION",
            "compression_per_level",
            "kNoCompression:kSnappyCompression:kZSTD",
        ),
        ("use-bloom-filter", "false", "filter_policy", "nullptr"),
        ("memory.partitioned-index-filters", "false", "partition_filters", "false"),
        ("memory.partitioned-index-filters", "false", "index_type", "kBinarySearch"),
        ("files.open", "500", "max_open_files", "500"),
        ("thread.num", "6", "max_background_jobs", "6"),
        ("log.max-file-size", "3mb", "max_log_file_size", str(3 * MIB)),
        ("log.file-num", "4", "keep_log_file_num", "4"),
        ("predefined-options", "FLASH_SSD_OPTIMIZED", "max_background_jobs", "4"),
        (
            "predefined-options",
            "SPINNING_DISK_OPTIMIZED",
            "compaction_style",
            "kCompactionStyleLevel",
        ),
        ("predefined-options", "SPINNING_DISK_OPTIMIZED_HIGH_MEM", "block_size", str(128 << 10)),
    ],
)
def test_rocksdb_says_that_it_was_told(written_options, key, value, name, expected):
    assert written_options({}).get(name) != expected or (key, value) in SAME_AS_DEFAULT
    assert written_options({P + key: value})[name].split(";")[0] == expected


@pytest.mark.parametrize("value", ["true", "false"])
def test_levels_follow_the_last_one_or_not(written_options, value):
    settings = {P + "compaction.style": "LEVEL", P + "compaction.level.use-dynamic-size": value}
    assert written_options(settings)["level_compaction_dynamic_level_bytes"] == value


def test_filters_have_the_size_that_was_named(tmp_path):
    def table_bytes(settings):
        options = parse_options(settings).rocks_options()
        database = Database(tmp_path / str(settings), options, ProcessMemory(options))
        keys = [n.to_bytes(8, "big") for n in range(40_000)]
        database.apply([Frame([], keys, [b""] * len(keys))])
        database.flush()
        database.close()
        (table,) = (tmp_path / str(settings)).glob("*.sst")
        return table.stat().st_size

    none, usual, large = (
        table_bytes(settings)
        for settings in (
            {P + "use-bloom-filter": "false"},
            {},
            {P + "bloom-filter.bits-per-key": "20"},
        )
    )
    assert 45_000 < usual - none < 60_000
    assert 45_000 < large - usual < 60_000


def test_the_log_goes_where_it_should(written_options, tmp_path):
    (tmp_path / "logs").mkdir()
    assert written_options({P + "log.dir": str(tmp_path / "logs")})["db_log_dir"] == str(
        tmp_path / "logs"
    )
    assert list((tmp_path / "logs").iterdir())


def capacity_used(settings, tmp_path, databases=2):
    """Bytes of the shared cache after reading all of some databases."""
    options = parse_options(settings).rocks_options()
    memory = ProcessMemory(options)
    opened = [Database(tmp_path / str(n), options, memory) for n in range(databases)]
    for database in opened:
        keys = [n.to_bytes(8, "big") for n in range(20_000)]
        database.apply([Frame([], keys, [bytes(500)] * len(keys))])
        database.flush()
        with database.cursor(b"", b"\xff") as cursor:
            cursor.seek(b"")
            cursor.take(b"\xff", 1 << 30, 1 << 40)
    used = memory.cache.get_usage()
    for database in opened:
        database.close()
    return used


def test_the_cache_of_a_process_has_the_size_that_was_named(tmp_path):
    small = capacity_used({P + "block.cache-size": "1mb"}, tmp_path / "small")
    large = capacity_used({P + "block.cache-size": "256mb"}, tmp_path / "large")
    assert small < 6 * MIB < large


def test_a_budget_for_a_slot_bounds_cache_and_write_buffers_together(tmp_path):
    assert capacity_used({P + "memory.fixed-per-slot": "16mb"}, tmp_path) < 20 * MIB


def test_unmanaged_databases_leave_the_shared_cache_alone(tmp_path):
    assert capacity_used({P + "memory.managed": "false"}, tmp_path) < 100_000


def test_the_defaults_are_what_the_docs_say():
    options = RocksOptions()
    assert (options.compaction, options.compression) == ("universal", "lz4")
    assert options.block_cache_bytes == options.write_buffers_bytes == 128 * MIB


def test_a_read_of_one_key_among_very_many_reads_little(tmp_path):
    """Whatever it needs of indexes and filters has to fit one of the parts of the cache."""
    options = RocksOptions(
        block_cache_bytes=16 * MIB, write_buffers_bytes=64 * MIB, write_buffer_bytes=64 * MIB
    )
    database = Database(tmp_path / "db", options, ProcessMemory(options))
    keys = [n.to_bytes(8, "big") for n in range(600_000)]
    database.apply([Frame([], keys, [b""] * len(keys))])
    database.flush()
    # What was just flushed is pinned in the cache.
    database._open().compact_range(None, None)
    some = keys[:: len(keys) // 200]
    before = bytes_read()
    assert [database.get(key) for key in some] == [b""] * len(some)
    assert bytes_read() - before < len(some) * 100_000
    database.close()


def bytes_read():
    """By this process, from files and their cache."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("rchar:"):
            return int(line.split()[1])
    raise AssertionError("rchar")
