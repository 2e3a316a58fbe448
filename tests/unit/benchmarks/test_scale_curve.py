"""Exponents are those of the points, and a picture is the same for the same points."""

import pytest
from benchmarks.scale.curve import Curve, table, write


def _curve(points, most=None, name="calls") -> Curve:
    return Curve("epochs", name, "calls", "subtasks", tuple(points), most)


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_an_exponent_is_the_power_that_costs_grow_with(power) -> None:
    curve = _curve([(n, 3 * n**power) for n in (10, 100, 1000)])

    assert curve.exponent == pytest.approx(power)


def test_the_same_cost_at_every_size_is_flat_even_if_it_is_nothing() -> None:
    assert _curve([(1, 0), (10, 0)]).exponent == 0
    assert _curve([(1, 7), (10, 7)]).exponent == 0


@pytest.mark.parametrize("points", [[(1, 0), (10, 5)], [(1, 5)]])
def test_points_that_have_no_exponent_are_refused(points) -> None:
    with pytest.raises(ValueError, match="no exponent: curve='calls'"):
        _ = _curve(points).exponent


def test_a_table_says_which_curve_is_steeper_than_asked() -> None:
    steep = _curve([(10, 100), (100, 10_000)], most=1.1)
    flat = _curve([(10, 5), (100, 5)], most=1.1, name="flat")

    assert not steep.kept
    assert flat.kept
    assert table([steep, flat]).splitlines() == [
        "| epochs at subtasks: | 10 | 100 | exponent | asked |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| calls, calls | 100 | 1e+04 | 2.00 (missed) | <= 1.1 |",
        "| flat, calls | 5 | 5 | 0.00 | <= 1.1 |",
    ]


def test_the_same_curves_make_the_same_files(tmp_path) -> None:
    curves = [_curve([(10, 1), (100, 12)]), _curve([(10, 2), (100, 2)], name="flat")]
    for folder in ("one", "two"):
        write(curves, tmp_path / folder)

    for name in ("epochs.svg", "epochs.json", "epochs.md"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
