"""Settings by the names that people know: what they must be, and what is said of wrong ones."""

import pickle

import pytest

from moorage_state.errors import IllegalConfigurationError, UserError
from moorage_state.state_backends import HashMapStateBackend
from moorage_state.tuning import RocksOptions, parse_options
from moorage_state.tuning.names import ABSENT_KEYS, KNOWN_KEYS

MIB = 1 << 20
P = "state.backend.rocksdb."


def rocks(servers=1, memory=None, **options):
    """Of settings spelt as Python allows it: `_` stands for a dot, `__` for a hyphen."""
    named = {P + key.replace("__", "-").replace("_", "."): value for key, value in options.items()}
    return parse_options(named).rocks_options(servers, memory)


def test_without_settings_there_are_the_defaults():
    assert rocks() == RocksOptions()


@pytest.mark.parametrize(
    ("key", "value", "field", "expected"),
    [
        ("block.cache-size", "48mb", "block_cache_bytes", 48 * MIB),
        ("block.cache-size", "0", "block_cache_bytes", 0),
        ("block.blocksize", "16 KB", "block_bytes", 16 << 10),
        ("block.metadata-blocksize", "8192", "metadata_block_bytes", 8192),
        ("writebuffer.size", "8m", "write_buffer_bytes", 8 * MIB),
        ("writebuffer.count", "5", "max_write_buffers", 5),
        ("compaction.style", "level", "compaction", "level"),
        ("compaction.style", "NONE", "compaction", "none"),
        ("compaction.level.use-dynamic-size", "False", "level_dynamic_size", False),
        ("compaction.level.target-file-size-base", "1gb", "target_file_bytes", 1024 * MIB),
        ("compaction.level.max-size-level-base", "1 g", "level_base_bytes", 1024 * MIB),
        (
            "compression.per.level",
            "NO_COMPRESSION;ZSTD_COMPRESSION",
            "compression_per_level",
            ("none", "zstd"),
        ),
        ("use-bloom-filter", "false", "bloom_bits_per_key", 0),
        ("use-bloom-filter", "true", "bloom_bits_per_key", 10),
        ("bloom-filter.bits-per-key", "14", "bloom_bits_per_key", 14),
        ("files.open", "-1", "max_open_files", -1),
        ("thread.num", "4", "background_jobs", 4),
        ("memory.managed", "false", "shared_memory", False),
        ("memory.partitioned-index-filters", "false", "partitioned_index_filters", False),
        ("timer-service.factory", "heap", "heap_timers", True),
        ("timer-service.factory", "ROCKSDB", "heap_timers", False),
        ("log.max-file-size", "2mb", "log_bytes", 2 * MIB),
        ("log.file-num", "7", "log_files", 7),
        ("log.dir", "/var/log/state", "log_dir", "/var/log/state"),
    ],
)
def test_a_setting_reaches_its_field(key, value, field, expected):
    options = parse_options({P + key: value}).rocks_options()
    assert getattr(options, field) == expected


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("writebuffer.size", "lots", "a size like 64mb"),
        ("writebuffer.size", "-1mb", "a size like 64mb"),
        ("writebuffer.size", "1", "at least 1024 bytes"),
        ("writebuffer.size", "64 parsecs", "a size like 64mb"),
        ("writebuffer.count", "1", "from 2 to 64"),
        ("writebuffer.count", "2.5", "from 2 to 64"),
        ("thread.num", "", "from 1 to 64"),
        ("use-bloom-filter", "yes", "true or false"),
        ("compaction.style", "FIFO", "one of LEVEL, UNIVERSAL, NONE"),
        ("compression.per.level", "BROTLI", "SNAPPY_COMPRESSION"),
        ("compression.per.level", "", "SNAPPY_COMPRESSION"),
        ("predefined-options", "FAST", "SPINNING_DISK_OPTIMIZED_HIGH_MEM, FLASH_SSD_OPTIMIZED"),
        ("timer-service.factory", "DISK", "one of ROCKSDB, HEAP"),
        ("localdir", "state", "one absolute path"),
        ("localdir", "/a,/b", "one absolute path"),
        ("memory.write-buffer-ratio", "1.5", "below 1"),
        ("memory.fixed-per-slot", "1kb", "at least 8388608 bytes"),
    ],
)
def test_a_wrong_value_is_refused_with_its_key_and_what_is_allowed(key, value, allowed):
    with pytest.raises(IllegalConfigurationError) as caught:
        parse_options({P + key: value})
    for part in (f"key={P}{key}", f"value={value!r}", allowed):
        assert part in str(caught.value)


def test_an_unknown_key_is_refused_with_those_that_are_near():
    with pytest.raises(IllegalConfigurationError) as caught:
        parse_options({P + "writebuffer.sise": "64mb"})
    assert f"did you mean {P}writebuffer.size" in str(caught.value)
    with pytest.raises(IllegalConfigurationError, match=r"known are state\.backend\.rocksdb"):
        parse_options({"colour": "blue"})


@pytest.mark.parametrize("key", sorted(ABSENT_KEYS))
def test_a_key_of_flink_that_has_no_place_here_is_refused_with_the_reason(key):
    assert key not in KNOWN_KEYS
    with pytest.raises(IllegalConfigurationError) as caught:
        parse_options({key: "1"})
    assert f"key={key} value='1': {ABSENT_KEYS[key]}" in str(caught.value)


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        ("DEFAULT", RocksOptions()),
        ("FLASH_SSD_OPTIMIZED", RocksOptions(background_jobs=4)),
        ("spinning_disk_optimized", RocksOptions(background_jobs=4, compaction="level")),
    ],
)
def test_a_profile_stands_for_its_settings(profile, expected):
    assert rocks(predefined__options=profile) == expected


def test_what_is_named_wins_over_the_profile():
    name = "SPINNING_DISK_OPTIMIZED_HIGH_MEM"
    options = rocks(predefined__options=name, block_blocksize="64kb", compaction_style="UNIVERSAL")
    assert (options.block_bytes, options.compaction) == (64 << 10, "universal")
    assert (options.target_file_bytes, options.max_write_buffers) == (256 * MIB, 4)


def test_the_job_wins_over_the_cluster():
    cluster = {P + "thread.num": "3", P + "files.open": "100"}
    options = parse_options({P + "thread.num": "5"}, cluster).rocks_options()
    assert (options.background_jobs, options.max_open_files) == (5, 100)
    with pytest.raises(IllegalConfigurationError, match=r"key=state\.backend\.rocksdb\.thread"):
        parse_options({}, {P + "thread.num": "x"})


def test_memory_is_divided_among_the_servers_of_a_machine():
    whole = rocks(memory_fixed__per__slot="300mb")
    assert whole == rocks(servers=4, memory_fixed__per__tm="1200mb")
    assert whole == rocks(servers=4, memory=1200 * MIB)
    assert whole.block_cache_bytes == 250 * MIB
    assert whole.write_buffers_bytes == 100 * MIB
    assert whole.write_buffer_bytes == 25 * MIB
    other = rocks(memory_fixed__per__slot="300mb", memory_write__buffer__ratio="0.1")
    assert other.write_buffers_bytes == 20 * MIB


def test_one_full_write_buffer_always_fits_in():
    options = rocks(memory=8 * MIB, writebuffer_size="64mb")
    assert options.write_buffers_bytes == options.write_buffer_bytes == 64 * MIB


def test_unmanaged_databases_have_small_caches_of_their_own():
    assert rocks(memory_managed="false", memory=1200 * MIB).block_cache_bytes == 8 * MIB
    own = rocks(memory_managed="false", block_cache__size="32mb")
    assert own.block_cache_bytes == 32 * MIB


def test_state_in_memory_has_the_servers_share_or_its_own_limit():
    assert HashMapStateBackend().for_servers(4, 400 * MIB).memory_limit == 100 * MIB
    limited = HashMapStateBackend().configure({"state.backend.hashmap.memory-limit": "1gb"})
    assert limited.for_servers(4, 400 * MIB).memory_limit == 1024 * MIB


def test_settings_of_another_backend_are_judged_and_change_nothing():
    assert HashMapStateBackend().configure({P + "thread.num": "4"}).memory_limit is None
    with pytest.raises(UserError):
        parse_options({P + "thread.num": "x"})


def test_what_was_resolved_travels():
    made = parse_options({P + "thread.num": "4"})
    assert pickle.loads(pickle.dumps(made)) == made
