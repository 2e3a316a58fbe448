"""How flights become a stream of departures, on a table made by hand."""

import pandas as pd
import pyarrow.parquet as pq
import pytest


@pytest.fixture
def prepare(example):
    return example("prepare")


def flight(**changes):
    plain = {
        "time_hour": "2013-01-01T10:00:00Z",
        "minute": 15,
        "dep_time": 517.0,
        "dep_delay": 2.0,
        "carrier": "UA",
        "flight": 1545,
        "tailnum": "N14228",
        "origin": "EWR",
        "dest": "IAH",
    }
    return plain | changes


def test_a_flight_departs_its_delay_after_the_scheduled_time(prepare):
    table = prepare.departures(pd.DataFrame([flight(minute=50, dep_delay=25.0)]))
    assert table.departed[0] == pd.Timestamp("2013-01-01T11:15Z")
    assert table.delay[0] == 25


def test_flights_that_did_not_leave_and_unknown_aircraft_are_left_out(prepare):
    flights = [
        flight(flight=1),
        flight(flight=2, dep_time=None, dep_delay=None),
        flight(flight=3, tailnum=None),
    ]
    assert prepare.departures(pd.DataFrame(flights)).flight.tolist() == [1]


def test_departures_are_in_order_of_time_then_carrier_then_flight(prepare):
    flights = [
        flight(carrier="UA", flight=10),
        flight(carrier="UA", flight=9),
        flight(carrier="AA", flight=11),
        flight(carrier="UA", flight=12, dep_delay=-3.0),
    ]
    assert prepare.departures(pd.DataFrame(flights)).flight.tolist() == [12, 11, 9, 10]


@pytest.fixture
def days(prepare, tmp_path):
    flights = [
        flight(flight=1),
        flight(flight=2, time_hour="2013-01-02T04:00:00Z"),
        flight(flight=3, time_hour="2013-01-01T23:00:00Z", minute=50, dep_delay=30.0),
    ]
    table = prepare.departures(pd.DataFrame(flights))
    rows = prepare.write_days(table, tmp_path / "stream")
    return table, rows, sorted((tmp_path / "stream").iterdir())


def test_each_day_on_which_aircraft_departed_is_a_file(days):
    _, rows, files = days
    assert [file.name for file in files] == ["2013-01-01.parquet", "2013-01-02.parquet"]
    assert rows == [1, 2]


def test_files_hold_the_departures_in_their_order(days, prepare):
    table, _, files = days
    written = pd.concat([pd.read_parquet(file) for file in files], ignore_index=True)
    assert written.flight.tolist() == table.flight.tolist() == [1, 3, 2]
    assert pq.read_schema(files[0]).equals(prepare.SCHEMA)


def test_files_are_told_apart_by_time_and_no_file_is_a_week_older_than_another(days):
    _, _, files = days
    times = [file.stat().st_mtime for file in files]
    assert times == sorted(set(times))
    assert 366 * (times[1] - times[0]) < 7 * 24 * 3600


def test_writing_again_changes_nothing(days, prepare):
    table, rows, files = days
    before = [(file.read_bytes(), file.stat().st_mtime) for file in files]
    assert prepare.write_days(table, files[0].parent) == rows
    assert [(file.read_bytes(), file.stat().st_mtime) for file in files] == before
