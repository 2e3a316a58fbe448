"""What the tests of sinks share: rows to stage and points to go to."""

import pytest

from moorage_state.stores import MemoryStore


@pytest.fixture
def store_url():
    """A store of its own, gone afterwards."""
    MemoryStore.forget("sinks")
    yield "memory://sinks"
    MemoryStore.forget("sinks")
