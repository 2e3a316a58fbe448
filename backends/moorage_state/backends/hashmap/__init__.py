"""State in memory: quick, as large as memory, checkpointed whole.

Decides nothing of checkpoint storage, which is chosen apart. Called through the registry or made in
code. See docs/state-backends.md.
"""

from moorage_state.backends.hashmap.backend import HashMapStateBackend

__all__ = ["HashMapStateBackend"]
