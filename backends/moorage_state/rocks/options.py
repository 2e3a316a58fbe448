"""RocksDB's tunables: one frozen value, and the single place that turns it into RocksDB options.

Called by the state server when it opens a database. Options are always given explicitly: without
them the binding loads the OPTIONS file it finds and an 8 MB cache of its own.
"""

from dataclasses import dataclass
from typing import Literal

import rocksdict

from moorage_state.errors import UserError

__all__ = ["ProcessMemory", "RocksOptions"]

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class RocksOptions:
    """How the databases of one process are tuned. Sizes are in bytes.

    Raises:
        UserError: for a value that RocksDB could not work with.
    """

    block_cache_bytes: int = 128 * _MIB
    """Cache of uncompressed blocks, one for all databases of the process."""

    write_buffers_bytes: int = 128 * _MIB
    """Budget of all write buffers of the process, charged to the block cache."""

    write_buffer_bytes: int = 32 * _MIB
    """A database flushes its write buffer at this size."""

    max_write_buffers: int = 3
    """Write buffers of one database, the one being written included."""

    compaction: Literal["universal", "level"] = "universal"
    """Universal rewrites little per checkpoint; level keeps less garbage but re-uploads more."""

    compression: Literal["lz4", "zstd", "snappy", "none"] = "lz4"
    """Compression of blocks on disk."""

    block_bytes: int = 8 * 1024
    """Size of a block before compression."""

    bloom_bits_per_key: int = 10
    """Size of the filter that spares reads of absent keys; 0 turns it off."""

    target_file_bytes: int = 64 * _MIB
    """Size at which compaction begins a new file."""

    max_open_files: int = -1
    """Files kept open by each database; -1 for all of them."""

    background_jobs: int = 2
    """Threads for flushes and compactions of each database."""

    universal_max_size_amplification_percent: int = 200
    """Garbage, as a share of live data, at which universal compaction rewrites everything."""

    universal_max_merge_width: int = 16
    """Most files that universal compaction merges at once."""

    def __post_init__(self) -> None:
        if self.max_open_files < -1:
            raise UserError(f"max_open_files is -1 or more: max_open_files={self.max_open_files}")
        for name in ("block_cache_bytes", "bloom_bits_per_key"):
            self._at_least(name, 0)
        for name in ("write_buffer_bytes", "block_bytes", "target_file_bytes"):
            self._at_least(name, 1024)
        for name in ("max_write_buffers", "background_jobs", "universal_max_merge_width"):
            self._at_least(name, 2 if name != "background_jobs" else 1)
        self._at_least("write_buffers_bytes", self.write_buffer_bytes)
        self._one_of("compaction", ("universal", "level"))
        self._one_of("compression", ("lz4", "zstd", "snappy", "none"))

    def _at_least(self, name: str, minimum: int) -> None:
        value = getattr(self, name)
        if value < minimum:
            raise UserError(
                f"rocksdb option is too small: option={name} value={value} minimum={minimum}"
            )

    def _one_of(self, name: str, known: tuple[str, ...]) -> None:
        if getattr(self, name) not in known:
            raise UserError(
                f"rocksdb option is not known: option={name} value={getattr(self, name)}; "
                f"use one of {', '.join(known)}"
            )

    def to_options(self, memory: "ProcessMemory") -> rocksdict.Options:
        """RocksDB's options for one database that shares `memory` with its neighbours."""
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        # Without a WAL the parts of a database must reach the disk together.
        options.set_atomic_flush(True)
        options.set_write_buffer_size(self.write_buffer_bytes)
        options.set_max_write_buffer_number(self.max_write_buffers)
        options.set_write_buffer_manager(memory.write_buffers)
        options.set_compression_type(_COMPRESSION[self.compression]())
        options.set_target_file_size_base(self.target_file_bytes)
        options.set_max_open_files(self.max_open_files)
        # 4 MB of disk for the manifest of every database is too much for many small ones.
        options.set_manifest_preallocation_size(64 * 1024)
        options.set_max_background_jobs(self.background_jobs)
        options.set_block_based_table_factory(self._tables(memory))
        self._set_compaction(options)
        _keep_quiet(options)
        return options

    def _tables(self, memory: "ProcessMemory") -> rocksdict.BlockBasedOptions:
        tables = rocksdict.BlockBasedOptions()
        tables.set_block_cache(memory.cache)
        tables.set_block_size(self.block_bytes)
        tables.set_format_version(5)
        tables.set_cache_index_and_filter_blocks(True)
        tables.set_pin_l0_filter_and_index_blocks_in_cache(True)
        if self.bloom_bits_per_key:
            tables.set_bloom_filter(self.bloom_bits_per_key, False)
        return tables

    def _set_compaction(self, options: rocksdict.Options) -> None:
        if self.compaction == "level":
            options.set_compaction_style(rocksdict.DBCompactionStyle.level())
            return
        options.set_compaction_style(rocksdict.DBCompactionStyle.universal())
        universal = rocksdict.UniversalCompactOptions()
        universal.max_size_amplification_percent = self.universal_max_size_amplification_percent
        universal.max_merge_width = self.universal_max_merge_width
        options.set_universal_compaction_options(universal)


_COMPRESSION = {
    "lz4": rocksdict.DBCompressionType.lz4,
    "zstd": rocksdict.DBCompressionType.zstd,
    "snappy": rocksdict.DBCompressionType.snappy,
    "none": rocksdict.DBCompressionType.none,
}


def _keep_quiet(options: rocksdict.Options) -> None:
    """RocksDB's own log files stay small and it dumps no statistics into them."""
    options.set_max_log_file_size(_MIB)
    options.set_keep_log_file_num(2)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)


class ProcessMemory:
    """The block cache and write-buffer budget that all databases of a process share."""

    def __init__(self, options: RocksOptions) -> None:
        self.cache = rocksdict.Cache(options.block_cache_bytes)
        self.write_buffers = rocksdict.WriteBufferManager.new_write_buffer_manager_with_cache(
            options.write_buffers_bytes, False, self.cache
        )

    @property
    def cache_bytes(self) -> int:
        """Bytes of the cache in use, write buffers included."""
        return self.cache.get_usage()
