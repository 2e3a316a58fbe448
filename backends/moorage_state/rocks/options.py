"""The single place that turns settings into RocksDB's own options, and what databases share.

Called by the adapter when it opens a database. Options are always given explicitly, and
for the column family too: else the binding takes what is missing from the OPTIONS file it finds,
with no filters and an 8 MB cache of its own.
"""

import rocksdict

from moorage_state.tuning.rocks import RocksOptions

MANIFEST_BYTES = 64 << 10
"""Of RocksDB's list of its files and of how it came to be, about: beyond it is written anew."""


class ProcessMemory:
    """The block cache and write-buffer budget that all databases of a process share."""

    def __init__(self, options: RocksOptions) -> None:
        self.cache = rocksdict.Cache(options.block_cache_bytes)
        self.write_buffers = rocksdict.WriteBufferManager.new_write_buffer_manager_with_cache(
            options.write_buffers_bytes, False, self.cache
        )


def to_options(given: RocksOptions, memory: ProcessMemory) -> rocksdict.Options:
    """RocksDB's options for one database that shares `memory` with its neighbours."""
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    # Without a WAL the parts of a database must reach the disk together.
    options.set_atomic_flush(True)
    options.set_write_buffer_size(given.write_buffer_bytes)
    options.set_max_write_buffer_number(given.max_write_buffers)
    if given.shared_memory:
        options.set_write_buffer_manager(memory.write_buffers)
    options.set_target_file_size_base(given.target_file_bytes)
    options.set_max_open_files(given.max_open_files)
    # 4 MB of disk for the manifest of every database is too much for many small ones, and each
    # checkpoint brings it to the store: with all flushes and compactions since the database was
    # opened it would be longer every day. Where the list of files alone is longer, it is written
    # anew at each of them, which takes a millisecond for a thousand files.
    options.set_manifest_preallocation_size(MANIFEST_BYTES)
    options.set_max_manifest_file_size(MANIFEST_BYTES)
    options.set_max_background_jobs(given.background_jobs)
    options.set_block_based_table_factory(_tables(given, memory))
    _set_compression(options, given)
    _set_compaction(options, given)
    if given.slices:
        _set_slices(options)
    _keep_quiet(options, given)
    return options


def _tables(given: RocksOptions, memory: ProcessMemory) -> rocksdict.BlockBasedOptions:
    tables = rocksdict.BlockBasedOptions()
    shared = given.shared_memory
    tables.set_block_cache(memory.cache if shared else rocksdict.Cache(given.block_cache_bytes))
    tables.set_block_size(given.block_bytes)
    tables.set_metadata_block_size(given.metadata_block_bytes)
    tables.set_format_version(5)
    tables.set_cache_index_and_filter_blocks(True)
    tables.set_pin_l0_filter_and_index_blocks_in_cache(True)
    if given.bloom_bits_per_key:
        tables.set_bloom_filter(given.bloom_bits_per_key, False)
    if given.partitioned_index_filters:
        tables.set_index_type(rocksdict.BlockBasedIndexType.two_level_index_search())
        tables.set_partition_filters(True)
        tables.set_pin_top_level_index_and_filter(True)
    return tables


def _set_compression(options: rocksdict.Options, given: RocksOptions) -> None:
    options.set_compression_type(_COMPRESSION[given.compression]())
    if len(given.compression_per_level) == 1:
        options.set_compression_type(_COMPRESSION[given.compression_per_level[0]]())
    elif given.compression_per_level:
        options.set_compression_per_level(
            [_COMPRESSION[name]() for name in given.compression_per_level]
        )


def _set_compaction(options: rocksdict.Options, given: RocksOptions) -> None:
    options.set_level_compaction_dynamic_level_bytes(given.level_dynamic_size)
    options.set_max_bytes_for_level_base(given.level_base_bytes)
    if given.compaction == "level":
        options.set_compaction_style(rocksdict.DBCompactionStyle.level())
        return
    options.set_disable_auto_compactions(given.compaction == "none")
    options.set_compaction_style(rocksdict.DBCompactionStyle.universal())
    universal = rocksdict.UniversalCompactOptions()
    universal.max_size_amplification_percent = given.universal_max_size_amplification_percent
    universal.max_merge_width = given.universal_max_merge_width
    options.set_universal_compaction_options(universal)


def _set_slices(options: rocksdict.Options) -> None:
    """Three levels; compactions begin by themselves, once they may, from first to second only."""
    # Else a file that is away, and that a compaction or an opening asks for, ends all writing.
    options.set_paranoid_checks(False)
    options.set_skip_stats_update_on_db_open(True)
    options.set_compaction_style(rocksdict.DBCompactionStyle.level())
    options.set_num_levels(3)
    options.set_level_compaction_dynamic_level_bytes(False)
    # So that the second level is never too large.
    options.set_max_bytes_for_level_base(1 << 40)
    options.set_disable_auto_compactions(True)


_COMPRESSION = {
    "lz4": rocksdict.DBCompressionType.lz4,
    "lz4hc": rocksdict.DBCompressionType.lz4hc,
    "zstd": rocksdict.DBCompressionType.zstd,
    "zlib": rocksdict.DBCompressionType.zlib,
    "bz2": rocksdict.DBCompressionType.bz2,
    "snappy": rocksdict.DBCompressionType.snappy,
    "none": rocksdict.DBCompressionType.none,
}


def _keep_quiet(options: rocksdict.Options, given: RocksOptions) -> None:
    """RocksDB's own log files stay small and it dumps no statistics into them."""
    options.set_max_log_file_size(given.log_bytes)
    options.set_keep_log_file_num(given.log_files)
    if given.log_dir:
        options.set_db_log_dir(given.log_dir)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
