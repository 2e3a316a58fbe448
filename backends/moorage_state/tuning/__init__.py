"""The settings of state backends: by which names people give them, and what they must be.

Called by the driver, by the operator's judges and by state servers. Knows neither RocksDB's binding
nor where anything runs; names are those of Flink, and the table in `names` is the only place where
they are read.
"""

from moorage_state.tuning.names import CHANGELOG_KEY as CHANGELOG_KEY
from moorage_state.tuning.names import CHECKPOINT_STORAGE_KEY as CHECKPOINT_STORAGE_KEY
from moorage_state.tuning.names import FORST as FORST
from moorage_state.tuning.names import HEAP_LIMIT as HEAP_LIMIT
from moorage_state.tuning.names import MAX_STATE_SIZE_KEY as MAX_STATE_SIZE_KEY
from moorage_state.tuning.names import ROCKSDB as ROCKSDB
from moorage_state.tuning.names import Refusal as Refusal
from moorage_state.tuning.names import changelog_options as changelog_options
from moorage_state.tuning.names import judge_options as judge_options
from moorage_state.tuning.names import parse_options as parse_options
from moorage_state.tuning.resolved import ChangelogOptions as ChangelogOptions
from moorage_state.tuning.resolved import default_options as default_options
from moorage_state.tuning.rocks import RocksOptions as RocksOptions
