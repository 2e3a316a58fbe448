"""The job of the flights example, epoch after epoch, beside the oracle of the example."""

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from moorage_testing.example_scripts import scripts_of

from moorage.engine.event_time import InputClock, Watermarks

FLIGHTS = Path(__file__).parents[3] / "examples" / "flights"
WHEN = pa.timestamp("us", tz="UTC")
ENTRY = pa.schema(
    [
        ("tailnum", pa.string()),
        ("entry", pa.int32()),
        ("event", pa.string()),
        ("at", WHEN),
        ("departures", pa.int32()),
        ("delay", pa.int32()),
        ("longest_late_run", pa.int32()),
        ("last_dest", pa.string()),
        ("visits", pa.int32()),
        ("absences", pa.int32()),
    ]
)


@pytest.fixture
def example():
    with scripts_of(FLIGHTS) as load:
        yield [load(name) for name in ("job", "oracle", "prepare")]


def departures(rng):
    """Four months of a few aircraft, most of which stay away for ten days now and then."""
    rows, begin = [], datetime(2013, 1, 1, tzinfo=UTC)
    for n in range(12):
        now = begin + timedelta(minutes=n)
        while now < begin + timedelta(days=120):
            to = rng.choice(["LAX", "SFO", "BOS"])
            rows.append((now, "UA", n, f"N{n}", "JFK", to, rng.randrange(-9, 10)))
            now += timedelta(minutes=rng.randrange(60, 60 * 24 * rng.choice([3, 9, 25])))
    return sorted(rows)


def test_the_job_of_the_example_writes_what_its_oracle_says(example, operator, batch):
    job, oracle, prepare = example
    stream = prepare.SCHEMA
    rows = departures(random.Random(11))
    declared = {
        "columns": tuple(stream.names),
        "key_columns": ("tailnum",),
        "output": ENTRY,
        "inputs": ("departures",),
    }
    time, entries = Watermarks({"departures": InputClock()}, {"logbook": {"departures"}}), []

    def epoch(rows=()):
        timed = [(*row, int(row[0].timestamp() * 1000)) for row in rows]
        timed.sort(key=lambda row: (sum(row[3].encode()) % 128, row[3], row[0]))
        given = [batch(*timed, stream=stream, key=3)] if timed else []
        done = operator.epoch(job.Logbook(), given, watermark=time.of("logbook"), **declared)
        entries.extend(done.rows)
        return time.after_epoch({"departures": max(t[-1] for t in timed)} if timed else {})

    for first in range(0, len(rows), 40):
        time = epoch(rows[first : first + 40])
    time = epoch().drain()
    epoch()
    published = pd.DataFrame(entries, columns=ENTRY.names)
    expected = oracle.logbooks(pd.DataFrame(rows, columns=stream.names))
    assert {"missing", "departed"} == set(expected.event)
    assert oracle.compare(published, expected).examples == ()
    assert len(published) == len(expected)
