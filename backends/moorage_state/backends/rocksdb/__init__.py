"""State in RocksDB within the process: larger than memory, checkpointed by what changed.

Decides nothing of checkpoint storage, which is chosen apart. Called through the registry or made in
code. See docs/state-backends.md.
"""

from moorage_state.backends.rocksdb.backend import EmbeddedRocksDBStateBackend

__all__ = ["EmbeddedRocksDBStateBackend"]
