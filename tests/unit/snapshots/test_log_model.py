"""The log's protocol in every state that a small world can be in, and with each rule left out."""

import pytest
from moorage_testing.log_model import AS_THEY_ARE, Rules, explore, start


@pytest.mark.parametrize(
    ("drivers", "complete", "faults", "crashes", "states"),
    [
        (2, 1, 1, 0, 5_000),
        (2, 1, 0, 1, 5_000),
        (2, 2, 0, 0, 1_000),
        pytest.param(2, 2, 1, 0, 50_000, marks=pytest.mark.soak),
        pytest.param(2, 1, 1, 1, 200_000, marks=pytest.mark.soak),
        pytest.param(3, 1, 1, 0, 2_000_000, marks=pytest.mark.soak),
    ],
)
def test_one_writer_nothing_twice_and_nothing_needed_deleted(
    drivers: int, complete: int, faults: int, crashes: int, states: int
) -> None:
    seen, problem = explore(start(drivers, complete, faults=faults, crashes=crashes))
    assert problem == ""
    assert seen > states, "the world is as large as it was"


@pytest.mark.parametrize("rule", Rules._fields)
def test_without_any_one_rule_something_goes_wrong(rule: str) -> None:
    _, problem = explore(start(2, 2, faults=1, crashes=0), AS_THEY_ARE._replace(**{rule: False}))
    assert problem
