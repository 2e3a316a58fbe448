"""What a checkpoint writes of a file source, measured on the real capture."""

from benchmarks.scale.sources import measure


def test_a_checkpoint_of_a_source_costs_the_same_after_ten_times_as_many_files() -> None:
    written = next(curve for curve in measure(quick=True) if curve.unit == "KB written")
    assert written.kept
