"""The flights example, as a person runs it: `moorage run job.yaml` on sixteen days of 2013."""

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pandas as pd
import pytest

ROOT = Path(__file__).parents[3]
FLIGHTS = ROOT / "examples" / "flights"

pytestmark = pytest.mark.spark


class Example(NamedTuple):
    """The example's own modules."""

    oracle: ModuleType
    prepare: ModuleType
    process: ModuleType


@pytest.fixture(scope="module")
def example() -> Iterator[Example]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FLIGHTS)
        yield Example(*(importlib.import_module(name) for name in Example._fields))
    for name in Example._fields:
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def departures(example: Example) -> pd.DataFrame:
    return example.prepare.departures(example.prepare.load_flights())


def test_the_real_departures_are_all_there_at_the_time_their_clocks_showed(example, departures):
    assert len(departures) == 328_521
    assert departures.tailnum.nunique() == 4_037
    left = example.prepare.load_flights().dropna(subset=["dep_time", "tailnum"])
    local = departures.departed.dt.tz_convert("America/New_York")
    clock = 100 * local.dt.hour + local.dt.minute
    assert sorted(clock) == sorted(left.dep_time % 2400)


@pytest.mark.soak
def test_the_job_publishes_what_plain_pandas_computes(example, departures, tmp_path, monkeypatch):
    roots = [str(ROOT / name) for name in ("backends", "operator", "runtime")]
    monkeypatch.setenv("PYTHONPATH", ":".join(roots))
    for name in ("job.py", "job.yaml"):
        shutil.copy(FLIGHTS / name, tmp_path)
    (tmp_path / "scratch").mkdir()
    days = departures[departures.departed < "2013-01-17T00:00Z"]
    example.prepare.write_days(days, tmp_path / "departures")

    with example.process.JobProcess(tmp_path / "job.yaml", tmp_path / "scratch") as job:
        lines = list(job.lines())
        job.check()

    assert lines[-1].phase == "finished"
    assert lines[-1].rows == len(days)
    expected = example.oracle.logbooks(days)
    comparison = example.oracle.compare(pd.read_parquet(tmp_path / "entries"), expected)
    assert comparison.examples == ()
    assert comparison.equal
    # Both kinds of absence were under test: with and without a departure after it.
    last = example.oracle.latest(expected)
    assert 0 < (last.event == "missing").sum() < (expected.event == "missing").sum()
