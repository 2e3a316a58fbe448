import json

import pytest
from benchmarks.request import EngineRun
from benchmarks.results import Spread, costs, failures, figures, goals


def figure_of(runs, engine, shape="one"):
    return next(f for f in figures(runs) if (f.engine, f.shape) == (engine, shape))


def test_a_figure_is_the_median_of_its_runs_with_the_lowest_and_the_highest(run):
    runs = [run(rate=r, repeat=i) for i, r in enumerate([90_000.0, 120_000.0, 100_000.0])]
    made = figure_of(runs, "moorage")
    assert made.rate.median == pytest.approx(100_000.0)
    assert (made.rate.low, made.rate.high) == pytest.approx((90_000.0, 120_000.0))
    assert (made.runs, made.batches) == (3, 9)


def test_ratios_are_taken_within_a_round(run):
    """A slow minute that hits both engines of a round leaves the ratio alone."""
    runs = [
        run(rate=100_000.0),
        run("tws-rows", rate=5_000.0),
        run(rate=50_000.0, repeat=1),
        run("tws-rows", rate=2_500.0, repeat=1),
    ]
    made = figure_of(runs, "tws-rows").ratio
    assert (made.low, made.median, made.high) == pytest.approx((20.0, 20.0, 20.0))


def test_a_round_without_the_base_engine_gives_no_ratio(run):
    runs = [run(rate=100_000.0), run("jvm-agg", rate=50_000.0, repeat=1)]
    assert figure_of(runs, "jvm-agg").ratio is None
    assert figure_of(runs, "moorage").ratio is None


def test_shapes_are_never_mixed(run):
    runs = [run(rate=100_000.0), run("tws-rows", "eight", rate=10_000.0)]
    assert figure_of(runs, "tws-rows", "eight").ratio is None


def test_processor_time_is_given_for_a_million_rows_and_as_a_ratio(run):
    runs = [run(cpu_seconds=6.0), run("tws-rows", cpu_seconds=60.0)]
    assert figure_of(runs, "moorage").cpu_per_million.median == pytest.approx(10.0)
    assert figure_of(runs, "tws-rows").cpu_ratio.median == pytest.approx(10.0)


def test_processor_time_that_is_not_known_is_left_out(run):
    made = figure_of([run(), run("tws-rows", cpu_seconds=None)], "tws-rows")
    assert made.cpu_per_million is None
    assert made.cpu_ratio is None
    assert made.ratio is not None


def test_a_run_that_failed_has_no_figure(run):
    runs = [run(), run("tws-rows", error="wrong answer", steady=())]
    assert [f.engine for f in figures(runs)] == ["moorage"]
    assert failures(runs) == [runs[1]]


def test_the_answer_of_a_figure_is_right_on_the_rows_of_its_shortest_run(run):
    runs = [run(checked_rows=900), run(checked_rows=400, repeat=1)]
    assert figure_of(runs, "moorage").checked_rows == 400


def test_checkpoints_are_counted_where_there_are_any(run):
    runs = [run(checkpoints=3), run(checkpoints=4, repeat=1), run("tws-rows")]
    assert figure_of(runs, "moorage").checkpoints == 7
    assert figure_of(runs, "tws-rows").checkpoints is None


@pytest.mark.parametrize(
    ("shape", "peer", "reached"),
    [("one", 5_000.0, True), ("one", 5_100.0, False), ("eight", 20_000.0, True)],
)
def test_goals_are_judged_by_the_median_ratio(run, shape, peer, reached):
    runs = [run(shape=shape), run("tws-rows", shape, rate=peer)]
    (goal,) = goals(figures(runs))
    assert goal.reached is reached


def test_there_are_no_goals_for_other_engines(run):
    assert goals(figures([run(), run("jvm-agg")])) == []


def test_no_numbers_have_no_spread():
    assert Spread.of([]) is None


def test_a_run_survives_its_way_through_a_file(run):
    given = run(checkpoints=2, versions={"java": "17"})
    assert EngineRun.from_json(json.loads(json.dumps(given.to_json()))) == given


@pytest.mark.parametrize(("seconds", "kept"), [(4.6, True), (4.7, False)])
def test_what_a_changelog_costs_is_held_against_its_limit(run, seconds, kept):
    runs = [run(cpu_seconds=4.0), run("moorage-changelog", cpu_seconds=seconds)]
    (cost,) = costs(figures(runs))
    assert cost.ratio == pytest.approx(seconds / 4.0)
    assert cost.kept is kept


def test_a_cost_without_the_base_engine_is_none(run):
    assert costs(figures([run("moorage-changelog"), run("tws-rows")])) == []
