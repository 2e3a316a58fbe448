"""The settings of state backends: by which names people give them, and what they must be.

Called by the driver, by the operator's judges and by state servers. Knows neither RocksDB's binding
nor where anything runs; names are those of Flink, and the table in `names` is the only place where
they are read.
"""

from moorage_state.tuning.names import (
    CHECKPOINT_STORAGE_KEY,
    HEAP_LIMIT,
    KNOWN_KEYS,
    MAX_STATE_SIZE_KEY,
    Refusal,
    judge_options,
    parse_options,
)
from moorage_state.tuning.resolved import (
    DEFAULTS_VARIABLE,
    default_options,
)
from moorage_state.tuning.rocks import RocksOptions

__all__ = [
    "CHECKPOINT_STORAGE_KEY",
    "DEFAULTS_VARIABLE",
    "HEAP_LIMIT",
    "KNOWN_KEYS",
    "MAX_STATE_SIZE_KEY",
    "Refusal",
    "RocksOptions",
    "default_options",
    "judge_options",
    "parse_options",
]
