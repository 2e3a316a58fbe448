"""The plain computation that the flights example is held against, on tables made by hand."""

import pandas as pd
import pytest


@pytest.fixture
def oracle(example):
    return example("oracle")


@pytest.fixture
def entries(oracle, departures):
    def entries(*lines):
        return oracle.logbooks(departures(*lines))

    return entries


def column(table, name):
    return table[name].tolist()


def test_every_departure_is_an_entry_with_the_sums_so_far(entries):
    table = entries("N1 2013-01-01T08:00 LAX 15", "N1 2013-01-02T08:00 SFO -5")
    assert column(table, "entry") == [1, 2]
    assert column(table, "event") == ["departed", "departed"]
    assert column(table, "departures") == [1, 2]
    assert column(table, "delay") == [15, 10]
    assert column(table, "last_dest") == ["LAX", "SFO"]


def test_aircraft_are_told_apart(entries):
    table = entries(
        "N2 2013-01-01T08:00 LAX 15", "N1 2013-01-01T09:00 SFO 1", "N2 2013-01-01T10:00 BOS 2"
    )
    assert column(table, "tailnum") == ["N1", "N2", "N2"]
    assert column(table, "delay") == [1, 15, 17]


def test_a_punctual_departure_ends_a_late_run_and_the_longest_stays(entries):
    delays = [3, 1, 0, 9, -2, 1, 1, 1]
    lines = [f"N1 2013-01-0{day}T08:00 LAX {delay}" for day, delay in enumerate(delays, 1)]
    assert column(entries(*lines), "longest_late_run") == [1, 2, 2, 2, 2, 2, 2, 3]


def test_late_runs_do_not_go_on_in_another_aircraft(entries):
    table = entries("N1 2013-01-01T08:00 LAX 5", "N2 2013-01-01T09:00 LAX 5")
    assert column(table, "longest_late_run") == [1, 1]


def test_visits_are_counted_by_destination(entries):
    lines = [f"N1 2013-01-0{day}T08:00 {to} 0" for day, to in enumerate(["A", "B", "A", "A"], 1)]
    assert column(entries(*lines), "visits") == [1, 1, 2, 3]


def test_more_than_ten_days_are_an_absence_which_comes_before_the_departure(entries):
    table = entries("N1 2013-01-01T08:00 LAX 7", "N1 2013-01-11T08:01 SFO 0")
    assert column(table, "event") == ["departed", "missing", "departed"]
    assert column(table, "absences") == [0, 1, 1]
    assert column(table, "entry") == [1, 2, 3]
    assert table["at"][1] == pd.Timestamp("2013-01-11T08:00Z")
    assert table["at"][2] == pd.Timestamp("2013-01-11T08:01Z")
    assert column(table, "last_dest") == ["LAX", "LAX", "SFO"]


def test_ten_days_to_the_minute_are_none(entries):
    table = entries("N1 2013-01-01T08:00 LAX 0", "N1 2013-01-11T08:00 LAX 0")
    assert column(table, "event") == ["departed", "departed"]


def test_a_month_away_is_one_absence(entries):
    table = entries("N1 2013-01-01T08:00 LAX 0", "N1 2013-02-01T08:00 LAX 0")
    assert column(table, "absences") == [0, 1, 1]


@pytest.mark.parametrize(
    ("last_of_all", "events"),
    [
        ("2013-01-11T08:01", ["departed", "missing"]),
        ("2013-01-11T08:00", ["departed"]),
        ("2013-01-05T08:00", ["departed"]),
    ],
)
def test_an_aircraft_that_never_returns_is_missing_if_the_stream_goes_on_for_longer(
    entries, last_of_all, events
):
    table = entries("N1 2013-01-01T08:00 LAX 0", f"N2 {last_of_all} LAX 0")
    assert column(table[table.tailnum == "N1"], "event") == events


def test_the_latest_entry_of_each_aircraft_is_its_logbook(oracle, entries):
    table = entries(
        "N1 2013-01-01T08:00 LAX 1", "N1 2013-01-02T08:00 SFO 1", "N2 2013-01-20T09:00 BOS 1"
    )
    logbooks = oracle.latest(table.sample(frac=1, random_state=1))
    assert column(logbooks, "tailnum") == ["N1", "N2"]
    assert column(logbooks, "event") == ["missing", "departed"]
    assert column(logbooks, "entry") == [3, 1]


class TestCompare:
    @pytest.fixture
    def expected(self, entries):
        return entries(
            "N1 2013-01-01T08:00 LAX 1", "N1 2013-01-02T08:00 SFO 2", "N2 2013-01-20T09:00 BOS 3"
        )

    def test_the_same_in_another_order_and_in_other_widths_is_equal(self, oracle, expected):
        published = expected.sample(frac=1, random_state=1).astype({"entry": "int32"})
        comparison = oracle.compare(published, expected)
        assert comparison.equal
        assert (comparison.expected, comparison.published, comparison.aircraft) == (4, 4, 2)

    def test_a_lost_entry_is_found(self, oracle, expected):
        comparison = oracle.compare(expected.drop(index=1), expected)
        assert comparison.missing == 1
        assert comparison.wrong_aircraft == ("N1",)
        assert comparison.examples == ("aircraft N1, entry 2: was not published",)

    def test_an_entry_that_was_published_twice_is_found(self, oracle, expected):
        comparison = oracle.compare(pd.concat([expected, expected.tail(1)]), expected)
        assert (comparison.twice, comparison.different) == (1, 0)
        assert comparison.wrong_aircraft == ("N2",)

    def test_an_entry_too_many_is_found(self, oracle, expected):
        surplus = expected.tail(1).assign(tailnum="N3")
        comparison = oracle.compare(pd.concat([expected, surplus]), expected)
        assert comparison.surplus == 1
        assert comparison.wrong_aircraft == ("N3",)
        assert comparison.examples == ("aircraft N3, entry 1: should not be there",)

    def test_a_wrong_figure_is_found_and_named(self, oracle, expected):
        published = expected.copy()
        published.loc[1, "delay"] = 5
        comparison = oracle.compare(published, expected)
        assert comparison.different == 1
        assert comparison.examples == ("aircraft N1, entry 2: delay is 5, should be 3",)

    def test_nothing_published_is_not_equal(self, oracle, expected):
        comparison = oracle.compare(expected.head(0), expected)
        assert not comparison.equal
        assert comparison.missing == 4
