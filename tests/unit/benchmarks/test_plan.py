import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from benchmarks.params import BASE, ENGINES, SHAPES, EngineName, Parameters, ShapeName
from benchmarks.request import Request
from benchmarks.schedule import plan

PARAMS = Parameters(repeats=2)


def test_engines_take_turns_within_a_shape_and_shapes_within_a_round():
    planned = plan(PARAMS, list(SHAPES), [BASE, EngineName("jvm-agg")])
    assert [(p.repeat, p.shape, p.engine) for p in planned] == [
        (repeat, shape, engine)
        for repeat in (0, 1)
        for shape in ("one", "eight")
        for engine in ("moorage", "jvm-agg")
    ]


def test_the_slowest_engine_takes_part_in_one_round_only():
    planned = plan(PARAMS, [ShapeName("one")], list(ENGINES))
    assert [p.repeat for p in planned if p.engine == "tws-pandas"] == [0]


@pytest.mark.parametrize(("shape", "rows_per_key"), [("one", 1.05), ("eight", 8.0)])
def test_the_shapes_are_what_they_say(shape, rows_per_key):
    """Expected rows for each key that a batch has, with keys drawn uniformly."""
    rows = 200_000
    keys = SHAPES[ShapeName(shape)].keys(rows)
    present = keys * (1 - (1 - 1 / keys) ** rows)
    assert rows / present == pytest.approx(rows_per_key, rel=0.01)


def test_a_request_survives_its_way_through_a_file(tmp_path):
    given = Request(BASE, ShapeName("one"), 1, Path("/in"), Path("/work"), replace(PARAMS, rows=7))
    given.write(tmp_path / "request.json")
    assert Request.read(tmp_path / "request.json") == given


def test_parameters_that_are_not_known_are_refused():
    with pytest.raises(ValueError, match="colour"):
        Parameters.from_json(json.loads(json.dumps(asdict(PARAMS) | {"colour": "red"})))
