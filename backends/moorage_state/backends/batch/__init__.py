"""State of a bounded job: the input comes sorted by key, and one key's state is in memory.

The same user code runs as on any other backend. Called through the registry or made in code. See
docs/state-backends.md.
"""

from moorage_state.backends.batch.backend import (
    BatchExecutionStateBackend,
    BatchKeyedStateBackend,
    sort_key,
)

__all__ = ["BatchExecutionStateBackend", "BatchKeyedStateBackend", "sort_key"]
