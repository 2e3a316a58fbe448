"""The contract of keyed state on what keeps it in a job: ranges of a host, over either backend."""

from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from moorage_testing import contract_kinds, contract_ttl
from moorage_testing.contract_machine import machine_over
from moorage_testing.served_harness import ServedHarness
from moorage_testing.state_contract import StateHarness

from moorage_state.server import RangeHost
from moorage_state.state_backends import HashMapStateBackend, StateBackend

# A busy machine is no failure.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

BODIES = [*contract_kinds.BODIES, *contract_ttl.BODIES]


@pytest.fixture(scope="module")
def shared(
    tmp_path_factory: pytest.TempPathFactory, small: StateBackend
) -> Iterator[tuple[RangeHost, str]]:
    """One host for all tests, each with an operator of its own."""
    directory = tmp_path_factory.mktemp("contract")
    (directory / "store").mkdir()
    with RangeHost(directory / "local", small) as host:
        yield host, f"file://{directory}/store"


@pytest.mark.parametrize("body", BODIES, ids=lambda one: one.__name__)
def test_ranges_of_a_job_keep_the_contract(
    shared: tuple[RangeHost, str], body: Callable[[StateHarness], None]
) -> None:
    harness = ServedHarness(*shared)
    harness.open()
    try:
        body(harness)
    finally:
        harness.close()


def run(shared: tuple[RangeHost, str], examples: int, steps: int) -> None:
    run_state_machine_as_test(
        machine_over(lambda: ServedHarness(*shared)),
        settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None),
    )


def test_every_kind_of_state_is_a_plain_object_per_key_in_ranges_of_a_job(
    shared: tuple[RangeHost, str], small: StateBackend
) -> None:
    run(shared, 3 if isinstance(small, HashMapStateBackend) else 1, 15)


@pytest.mark.soak
def test_every_kind_of_state_is_a_plain_object_per_key_in_ranges_of_a_job_for_long(
    shared: tuple[RangeHost, str],
) -> None:
    run(shared, 100, 50)
