"""Jobs of which there is only the checkpointer."""

from typing import Any

import pytest
from moorage_testing.checkpointed_job import Job

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
