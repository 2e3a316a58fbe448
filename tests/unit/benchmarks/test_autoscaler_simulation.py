"""The simulator's job and its peer; and what the autoscaler makes of short days."""

import pytest
from benchmarks.autoscaler import TRACES, Flink, Moorage, Scaler, simulate


class Still(Scaler):
    """Never changes anything."""

    def look(self, now, width, report):  # noqa: ARG002  of the interface
        assert report.seconds <= 900.0
        return width


def test_a_job_with_room_keeps_up_and_one_without_falls_behind(monkeypatch):
    day = simulate("constant", Still(), pause=10.0, hours=0.25)
    assert max(day.lags) < 2.0
    assert day.core_hours == pytest.approx(8 * 0.25)
    monkeypatch.setitem(TRACES, "constant", lambda _at, _chance: 16_000.0)
    behind = simulate("constant", Still(), pause=10.0, hours=0.25)
    # Half of what arrives is done, but for what epochs cost beside their rows
    assert behind.lags[-1] == pytest.approx(450, rel=0.2)


@pytest.mark.parametrize("scaler", [Moorage, Flink])
def test_a_constant_load_is_left_alone(scaler):
    assert simulate("constant", scaler(), pause=10.0, hours=1.0).changes == []


def test_a_rising_load_is_followed_before_it_is_too_much():
    day = simulate("ramp", Moorage(), pause=10.0, hours=3.0)
    assert day.widths[-1] > min(day.widths)
    assert max(day.lags) < 60.0


def test_noise_is_no_reason_for_a_change():
    assert simulate("noisy", Moorage(), pause=10.0, hours=2.0).changes == []


_AN_HOUR_AWAY = 3_600.0


@pytest.mark.parametrize("trace", TRACES)
def test_a_whole_day_of_any_load_has_no_flapping_and_a_lag_that_is_bounded(trace):
    day = simulate(trace, Moorage(), pause=10.0, hours=24.0)
    assert day.turns <= 1
    assert len(day.changes) <= 12
    # What waited when the job was back, and what came while a spike was noticed.
    waited = {"outage": _AN_HOUR_AWAY, "spike": 240.0}
    assert max(day.lags) < waited.get(trace, 60.0)
    assert day.late(60.0) < 0.02
