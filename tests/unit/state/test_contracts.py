"""The contract of keyed state on the store itself; every other backend runs the same bodies."""

from collections.abc import Callable, Iterator

import pytest
from moorage_testing import contract_kinds, contract_ttl
from moorage_testing.keyed_harness import KeyedStoreHarness
from moorage_testing.state_contract import StateHarness

from moorage_state.keyed import scanning
from moorage_state.keyed import state_store as store_module

BODIES = [*contract_kinds.BODIES, *contract_ttl.BODIES]


@pytest.fixture(params=["generous", "tight"])
def harness(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StateHarness]:
    """With limits as they are, and with scans and frames of a few entries."""
    if request.param == "tight":
        monkeypatch.setattr(scanning, "_SCAN_ENTRIES", 2)
        monkeypatch.setattr(scanning, "_PAGE", 900)
        monkeypatch.setattr(store_module, "_FRAME_ENTRIES", 2)
    made = KeyedStoreHarness(parallelism=2)
    made.open()
    yield made
    made.close()


@pytest.mark.parametrize("body", BODIES, ids=lambda one: one.__name__)
def test_the_keyed_store_keeps_the_contract(
    harness: StateHarness, body: Callable[[StateHarness], None]
) -> None:
    body(harness)
