"""What RocksDB is told: one frozen value that can travel between processes.

Made by `resolved` from what people say; turned into RocksDB's own options by `moorage_state.rocks`.
"""

from dataclasses import dataclass
from typing import Literal

from moorage_state.errors import UserError

_MIB = 1 << 20

COMPRESSIONS = ("lz4", "zstd", "snappy", "none", "lz4hc", "zlib", "bz2")


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

    shared_memory: bool = True
    """Whether cache and budget are the process's; else each database has a cache of its own, and
    write buffers are bounded by their size and number alone."""

    write_buffer_bytes: int = 32 * _MIB
    """A database flushes its write buffer at this size."""

    max_write_buffers: int = 3
    """Write buffers of one database, the one being written included."""

    compaction: Literal["universal", "level", "none"] = "universal"
    """Universal rewrites little per checkpoint; level keeps less garbage but re-uploads more; none
    leaves every flushed file as it is."""

    level_dynamic_size: bool = True
    """Level: whether the sizes of levels follow the last one."""

    level_base_bytes: int = 256 * _MIB
    """Level: size of the first level."""

    compression: Literal["lz4", "zstd", "snappy", "none", "lz4hc", "zlib", "bz2"] = "lz4"
    """Compression of blocks on disk."""

    compression_per_level: tuple[str, ...] = ()
    """By level, in place of `compression`; the last one holds for all below."""

    block_bytes: int = 8 * 1024
    """Size of a block before compression."""

    metadata_block_bytes: int = 4 * 1024
    """Size of a block of a partitioned index."""

    partitioned_index_filters: bool = True
    """Whether indexes and filters are cut into blocks, of which only the top stays in the cache.

    Whole, the filter of a file of two million small values does not fit the cache, which is 64
    parts: every read of a key would read and check all of it, 150 us in place of 6.
    """

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

    heap_timers: bool = False
    """Whether the index of timers is kept in memory besides, and looked for there."""

    slices: bool = False
    """Whether files may be away: three levels, the last of which is compacted only when asked."""

    log_bytes: int = _MIB
    """RocksDB's own log begins a new file at this size."""

    log_files: int = 2
    """Files of that log that are kept."""

    log_dir: str = ""
    """Where that log goes; beside the database if empty."""

    def __post_init__(self) -> None:
        if self.max_open_files < -1:
            raise UserError(f"max_open_files is -1 or more: max_open_files={self.max_open_files}")
        for name in ("block_cache_bytes", "bloom_bits_per_key"):
            self._at_least(name, 0)
        for name in ("write_buffer_bytes", "block_bytes", "target_file_bytes"):
            self._at_least(name, 1024)
        for name in ("metadata_block_bytes", "level_base_bytes", "log_bytes"):
            self._at_least(name, 1024)
        for name in ("max_write_buffers", "universal_max_merge_width"):
            self._at_least(name, 2)
        for name in ("background_jobs", "log_files"):
            self._at_least(name, 1)
        if self.shared_memory:
            self._at_least("write_buffers_bytes", self.write_buffer_bytes)
        self._one_of("compaction", self.compaction, ("universal", "level", "none"))
        for compression in (self.compression, *self.compression_per_level):
            self._one_of("compression", compression, COMPRESSIONS)

    def _at_least(self, name: str, minimum: int) -> None:
        value = getattr(self, name)
        if value < minimum:
            raise UserError(
                f"rocksdb option is too small: option={name} value={value} minimum={minimum}"
            )

    @staticmethod
    def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
        if value not in known:
            raise UserError(
                f"rocksdb option is not known: option={name} value={value}; "
                f"use one of {', '.join(known)}"
            )
