"""Homes of jobs over events that are made once; processes and places of lineages."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from moorage_testing.jobs import JobHome, write_events
from moorage_testing.processes import Processes, started_processes

COUNTING_JOB = Path(__file__).parent / "counting_job.py"


@pytest.fixture(scope="session")
def small_event_files(tmp_path_factory) -> Path:
    """Enough events for a dozen epochs."""
    home = tmp_path_factory.mktemp("small-events")
    write_events(home, files=12, rows=3_000, keys=1_000)
    return home / "in"


@pytest.fixture
def make_home(tmp_path):
    """Makes homes of counting jobs; nothing of them is left when the test ends."""
    made: list[JobHome] = []

    def make(name: str, events: Path, job: Path = COUNTING_JOB, **changes: object) -> JobHome:
        home = JobHome.make(tmp_path / name, job, events, **changes)
        made.append(home)
        return home

    yield make
    for home in made:
        home.end()


@pytest.fixture
def processes() -> Iterator[Processes]:
    """Starts processes; none of them outlives the test."""
    with started_processes() as processes:
        yield processes


@pytest.fixture
def new_place(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """Makes an empty place for a lineage, `file` or `s3`, and returns its address."""

    def make(kind: str) -> str:
        if kind == "s3":
            return request.getfixturevalue("s3_server").url(f"lineage-{uuid.uuid4().hex}")
        folder = tmp_path / f"lineage-{uuid.uuid4().hex}"
        folder.mkdir()
        return f"file://{folder}"

    return make
