"""The log's protocol in every state that a small world can be in, and with each rule left out."""

import pytest
from moorage_testing.log_model import AS_THEY_ARE, Rules, explore, start


@pytest.mark.parametrize(
    ("drivers", "complete", "faults", "crashes", "compactions", "states"),
    [
        (2, 1, 1, 0, 0, 10_000),
        (2, 1, 0, 1, 0, 20_000),
        (2, 1, 0, 0, 2, 9_000),
        (2, 1, 1, 0, 1, 100_000),
        pytest.param(2, 2, 0, 0, 2, 200_000, marks=pytest.mark.soak),
        pytest.param(2, 2, 1, 0, 0, 100_000, marks=pytest.mark.soak),
        pytest.param(2, 1, 0, 1, 1, 150_000, marks=pytest.mark.soak),
        pytest.param(2, 1, 1, 1, 0, 200_000, marks=pytest.mark.soak),
        pytest.param(2, 2, 1, 0, 1, 1_000_000, marks=pytest.mark.soak),
        pytest.param(3, 1, 0, 0, 1, 5_000_000, marks=pytest.mark.soak),
    ],
)
def test_one_writer_nothing_twice_and_nothing_needed_deleted(
    drivers: int, complete: int, faults: int, crashes: int, compactions: int, states: int
) -> None:
    world = start(drivers, complete, faults=faults, crashes=crashes, compactions=compactions)
    seen, problem = explore(world)
    assert problem == ""
    assert seen > states, "the world is as large as it was"


@pytest.mark.parametrize("rule", Rules._fields)
def test_without_any_one_rule_something_goes_wrong(rule: str) -> None:
    rules = AS_THEY_ARE._replace(**{rule: False})
    worlds = (
        start(2, 1, faults=0, crashes=0, compactions=1),
        start(2, 2, faults=1, crashes=0),
        start(2, 2, faults=0, crashes=0, compactions=2),
    )
    assert any(problem for _, problem in (explore(world, rules) for world in worlds))
