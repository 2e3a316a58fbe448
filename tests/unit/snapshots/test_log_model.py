"""The log's protocol in every state that a small world can be in, and with each rule left out."""

import threading
from collections.abc import Callable

import pytest
from moorage_testing.log_model import AS_THEY_ARE, Rules, World, explore, start
from moorage_testing.log_replay import Replay, sample

from moorage_state.snapshots import LineageLog, log
from moorage_state.snapshots.log import LogWriter


def world(
    drivers: int,
    complete: int,
    *,
    faults: int = 0,
    crashes: int = 0,
    compactions: int = 0,
    rescales: int = 0,
) -> World:
    return start(
        drivers,
        complete,
        faults=faults,
        crashes=crashes,
        compactions=compactions,
        rescales=rescales,
    )


@pytest.mark.parametrize(
    ("small", "states"),
    [
        (world(2, 1, faults=1), 10_000),
        (world(2, 1, crashes=1), 20_000),
        (world(2, 1, compactions=2), 9_000),
        (world(3, 0, compactions=1), 80_000),
        (world(2, 1, rescales=2), 3_000),
        (world(2, 1, crashes=1, rescales=1), 80_000),
        (world(2, 1, compactions=1, rescales=1), 15_000),
        (world(2, 1, faults=1, rescales=1), 30_000),
        pytest.param(world(3, 0, compactions=2), 300_000, marks=pytest.mark.soak),
        (world(2, 1, faults=1, compactions=1), 100_000),
        pytest.param(world(2, 2, compactions=2), 200_000, marks=pytest.mark.soak),
        pytest.param(world(2, 2, faults=1), 100_000, marks=pytest.mark.soak),
        pytest.param(world(2, 1, crashes=1, compactions=1), 150_000, marks=pytest.mark.soak),
        pytest.param(world(2, 1, faults=1, crashes=1), 200_000, marks=pytest.mark.soak),
        pytest.param(world(3, 1), 200_000, marks=pytest.mark.soak),
        pytest.param(world(2, 2, rescales=2), 50_000, marks=pytest.mark.soak),
    ],
)
def test_one_writer_nothing_twice_and_nothing_needed_deleted(small: World, states: int) -> None:
    seen, problem = explore(small)
    assert problem == ""
    assert seen > states, "the world is as large as it was"


@pytest.mark.parametrize("rule", Rules._fields)
def test_without_any_one_rule_something_goes_wrong(rule: str) -> None:
    rules = AS_THEY_ARE._replace(**{rule: False})
    worlds = (
        world(2, 1, rescales=1),
        world(2, 1, compactions=1),
        world(3, 0, compactions=2),
        world(2, 2, faults=1),
        world(2, 2, compactions=2),
    )
    assert any(problem for _, problem in (explore(one, rules) for one in worlds))


def first_difference(seeds: range) -> str:
    """Walk traces of a world with everything in it; returns the first that went another way."""
    small = world(2, 2, faults=2, crashes=1, compactions=2, rescales=2)
    return next((bad for seed in seeds for bad in Replay(small).walk(sample(small, seed))), "")


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log begins anew whenever it is put together."""
    monkeypatch.setattr(log, "COMPACT_EVERY", 0)


@pytest.mark.usefixtures("anew")
@pytest.mark.parametrize("count", [150, pytest.param(20_000, marks=pytest.mark.soak)])
def test_the_real_log_goes_where_the_model_goes(count: int) -> None:
    before = threading.active_count()
    assert first_difference(range(count)) == ""
    assert threading.active_count() == before


def _confirms_nothing(_writer: LogWriter) -> None:
    """Every put counts."""


def _begins_where_it_did(_log: LineageLog, _base: int = 0) -> None:
    """No mark is ever seen."""


@pytest.mark.usefixtures("anew")
@pytest.mark.parametrize(
    ("where", "name", "without"),
    [
        (LogWriter, "_confirm", _confirms_nothing),
        (LogWriter, "_clear", _confirms_nothing),
        (LineageLog, "moved", _begins_where_it_did),
    ],
)
def test_a_real_log_that_leaves_out_a_rule_is_told_from_the_model(
    monkeypatch: pytest.MonkeyPatch, where: type, name: str, without: Callable[..., None]
) -> None:
    monkeypatch.setattr(where, name, without)
    assert first_difference(range(500))
