from collections.abc import Iterator

import pytest
from moorage_testing.batches import add_batch
from moorage_testing.jobs import kill_group
from tests.spark.cluster.driver_home import DriverHome


@pytest.fixture
def home(tmp_path) -> Iterator[DriverHome]:
    made = DriverHome(tmp_path)
    add_batch(tmp_path / "in", 0)
    yield made
    for process in made.processes:
        kill_group(process)
