"""Jobs of which there is only the checkpointer."""

from types import SimpleNamespace
from typing import Any

import pytest
from moorage_testing.checkpointed_job import Job

from moorage.api.graph import JobGraph
from moorage.driver.manifests import Boundary, ManifestMaker
from moorage.engine.fleet import FleetUpload
from moorage_state.stores import MemoryStore


@pytest.fixture
def make_job():
    jobs: list[Job] = []

    def make(**changes: Any) -> Job:
        jobs.append(Job(**changes))
        return jobs[-1]

    yield make
    for job in jobs:
        for gate in job.fleet.gates.values():
            gate.set()
        job.checkpointer.abandon()
    for name in ("before", "twice"):
        MemoryStore.forget(name)


@pytest.fixture
def made_at():
    """The manifest of a job without operators that has come to these watermarks."""

    def make(watermarks, drawn=None):
        settings: Any = SimpleNamespace(
            name="clicks",
            max_parallelism=128,
            key_hash="spark-xxhash64",
            parallelism=1,
            in_one_epoch=False,
            restore=SimpleNamespace(uid_mapping={}),
        )
        writer: Any = SimpleNamespace(lineage="lineage-1", fence=1)
        nothing = FleetUpload({}, objects=0, bytes_written=0, bytes_inline=0)
        boundary = Boundary(epoch=1, source={}, watermarks=watermarks, schemas={})
        maker = ManifestMaker(settings, JobGraph(), writer, 0, drawn)
        return maker.make(1, boundary, nothing, {})

    return make
