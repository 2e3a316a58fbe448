"""The hashmap backend: a range's state in memory, with copies that cost nothing to take.

Called by the state server, beside `moorage_state.rocks`. Must not know what keys mean, beyond that
their first two bytes are a key group.
"""

from moorage_state.memory.database import MemoryDatabase as MemoryDatabase
from moorage_state.memory.files import SNAPSHOT_FILE as SNAPSHOT_FILE
from moorage_state.memory.files import write_part as write_part
from moorage_state.memory.heap_timers import HeapTimers as HeapTimers
from moorage_state.memory.limits import HeapBudget as HeapBudget
