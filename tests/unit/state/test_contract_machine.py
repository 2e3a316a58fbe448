"""Every kind of keyed state on the store, against plain dicts; see the machine's own words."""

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from moorage_testing.contract_machine import machine_over
from moorage_testing.keyed_harness import KeyedStoreHarness

from moorage_state.keyed import scanning
from moorage_state.keyed import store as store_module


@pytest.fixture(autouse=True)
def tight_limits(monkeypatch):
    """Scans and frames of a few entries, so that all of them are cut off."""
    monkeypatch.setattr(scanning, "_SCAN_ENTRIES", 2)
    monkeypatch.setattr(scanning, "_PAGE", 2)
    monkeypatch.setattr(store_module, "_FRAME_ENTRIES", 3)


def test_every_kind_of_state_is_a_plain_object_per_key_whatever_happens():
    run_state_machine_as_test(
        machine_over(KeyedStoreHarness),
        settings=settings(max_examples=60, stateful_step_count=25, deadline=None),
    )


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_every_kind_of_state_is_a_plain_object_per_key_over_thousands_of_steps():
    run_state_machine_as_test(
        machine_over(KeyedStoreHarness),
        settings=settings(max_examples=40, stateful_step_count=1000, deadline=None),
    )
