import itertools

import pytest
from benchmarks.inputs import first_files, generate
from benchmarks.params import SHAPES, Parameters, ShapeName

PARAMS = Parameters(rows=800, files=3, warmup_rows=50, warmup_files=2)


@pytest.fixture
def source(tmp_path):
    generate(tmp_path / "in", PARAMS, SHAPES[ShapeName("eight")])
    return tmp_path / "in"


def test_files_come_in_the_order_of_their_times(source):
    """Spark's file source goes by modification time, to the second."""
    files = sorted(source.iterdir())
    times = [path.stat().st_mtime for path in files]
    assert len(files) == 5
    assert all(later - earlier >= 1 for earlier, later in itertools.pairwise(times))


def test_warm_up_files_are_small_and_come_first(source):
    assert [first_files(source, n).num_rows for n in (1, 2, 3, 5)] == [50, 100, 900, 2500]


def test_rows_spread_over_the_keys_of_the_shape(source):
    assert len(set(first_files(source, 5)["key"].to_pylist())) == 100


def test_the_same_seed_gives_the_same_input(source, tmp_path):
    generate(tmp_path / "again", PARAMS, SHAPES[ShapeName("eight")])
    assert first_files(tmp_path / "again", 5).equals(first_files(source, 5))


def test_more_batches_than_files_are_refused(source):
    with pytest.raises(ValueError, match="batches=6 files=5"):
        first_files(source, 6)
