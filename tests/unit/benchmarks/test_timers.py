"""The benchmark of timers, on a few."""

import pytest
from benchmarks.timers import WAYS, main, measured


@pytest.mark.parametrize("way", WAYS)
def test_all_timers_that_are_set_fire(way):
    found = measured(way, keys=300, steps=5)
    assert found.fired == 300
    assert found.setting > 0
    assert found.firing > 0


def test_firing_that_slows_down_is_a_failure(monkeypatch, capsys):
    monkeypatch.setattr("benchmarks.timers.WAYS", ("hashmap",))
    monkeypatch.setattr("benchmarks.timers.MOST_DRIFT", 0.0)
    assert main(["--keys", "100", "--steps", "4"]) == 1
    assert "hashmap" in capsys.readouterr().out
