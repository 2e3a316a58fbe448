import pytest
from benchmarks.params import BASE, EngineName, ShapeName
from benchmarks.request import EngineRun
from benchmarks.window import Batch


@pytest.fixture
def run():
    """A run whose every batch has `rows` rows and takes so long that it makes `rate` rows/s."""

    def make(engine=BASE, shape="one", *, rate=100_000.0, batches=3, repeat=0, **changes):
        values = {
            "engine": EngineName(engine),
            "shape": ShapeName(shape),
            "repeat": repeat,
            "steady": tuple(Batch(200_000, 200_000 / rate) for _ in range(batches)),
            "cpu_seconds": 4.0,
            "batches": batches + 2,
            "checked_rows": 1_000_000,
            "checked_keys": 900_000,
            "seconds": 30.0,
        }
        return EngineRun(**(values | changes))

    return make
