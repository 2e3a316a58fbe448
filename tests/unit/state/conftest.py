"""Keyed state on a range without a server, and the ways into it that tests share."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings
from moorage_testing.fake_range import FakeRange

from moorage_state.keyed import KeyedStateStore
from moorage_state.keylayout import key_prefix

# A busy machine is no failure.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


@pytest.fixture
def fake_range() -> FakeRange:
    return FakeRange()


@pytest.fixture
def new_range() -> Callable[[], FakeRange]:
    return FakeRange


@pytest.fixture
def at_key() -> Callable[..., bytes]:
    """Make one key the whole chunk and the current key."""

    def enter(store: KeyedStateStore, key: bytes = b"k", group: int = 7) -> bytes:
        store.flush_key()
        prefix = key_prefix(group, key)
        store.begin_chunk([prefix])
        store.switch_to(0)
        return prefix

    return enter
