"""Homes of jobs over two million events, which are made once."""

from pathlib import Path

import pytest
from moorage_testing.jobs import JobHome, write_events

COUNTING_JOB = Path(__file__).parent / "counting_job.py"


@pytest.fixture(scope="session")
def event_files(tmp_path_factory) -> Path:
    """Two million events, made once."""
    home = tmp_path_factory.mktemp("events")
    write_events(home)
    return home / "in"


@pytest.fixture(scope="session")
def small_event_files(tmp_path_factory) -> Path:
    """Enough events for a dozen epochs of a second or less."""
    home = tmp_path_factory.mktemp("small-events")
    write_events(home, files=12, rows=15_000, keys=4_000)
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
