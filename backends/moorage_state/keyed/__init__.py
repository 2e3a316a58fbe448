"""Keyed state as a user function sees it: read in batches, written once per key and epoch.

A subtask works through its records in chunks, all records of a key together. The first read of a
state in a chunk fetches that state for every key of the chunk in one request; what the function
changes is kept as Python objects until the key is done, then encoded once and staged. So a record
never costs a call into the state server, and a key costs a fraction of one.

Called by the runtime's subtask; talks to a range only through `RangeAccess`. Knows no Spark.
"""

from moorage_state.keyed.interfaces import AggregatingState as AggregatingState
from moorage_state.keyed.interfaces import FoldingState as FoldingState
from moorage_state.keyed.interfaces import ListState as ListState
from moorage_state.keyed.interfaces import MapState as MapState
from moorage_state.keyed.interfaces import ReducingState as ReducingState
from moorage_state.keyed.interfaces import ValueState as ValueState
from moorage_state.keyed.state_store import KeyedStateStore as KeyedStateStore
from moorage_state.keyed.timers import KeyTimers as KeyTimers
from moorage_state.keyed.timers import TimeDomain as TimeDomain
