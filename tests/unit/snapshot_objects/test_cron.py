"""When a schedule is due, also where clocks are changed."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_api.cron import next_tick, previous_tick


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("cron", "now", "before", "after"),
    [
        ("0 3 * * *", "2026-05-04 12:00", "2026-05-04 03:00", "2026-05-05 03:00"),
        ("0 3 * * *", "2026-05-04 03:00", "2026-05-04 03:00", "2026-05-05 03:00"),
        ("*/20 * * * *", "2026-05-04 00:10", "2026-05-04 00:00", "2026-05-04 00:20"),
        ("5/20 * * * *", "2026-05-04 00:30", "2026-05-04 00:25", "2026-05-04 00:45"),
        ("0 0 * * mon-fri", "2026-05-03 12:00", "2026-05-01 00:00", "2026-05-04 00:00"),
        ("0 0 * * 7", "2026-05-04 12:00", "2026-05-03 00:00", "2026-05-10 00:00"),
        ("0 0 29 2 *", "2026-05-04 12:00", "2024-02-29 00:00", "2028-02-29 00:00"),
        ("0 0 13 * 5", "2026-05-14 12:00", "2026-05-13 00:00", "2026-05-15 00:00"),
        ("0 0 */2 * 5", "2026-05-14 12:00", "2026-05-01 00:00", "2026-05-15 00:00"),
        ("0 12 1 jan,jul *", "2026-05-04 12:00", "2026-01-01 12:00", "2026-07-01 12:00"),
        ("@weekly", "2026-05-04 12:00", "2026-05-03 00:00", "2026-05-10 00:00"),
        ("@hourly", "2026-05-04 12:30", "2026-05-04 12:00", "2026-05-04 13:00"),
    ],
)
def test_a_schedule_is_due_when_cron_would_run_it(cron, now, before, after):
    assert previous_tick(cron, "UTC", at(now)) == at(before)
    assert next_tick(cron, "UTC", at(now)) == at(after)


def test_a_day_that_never_comes_is_never_due():
    assert previous_tick("0 0 30 2 *", "UTC", at("2026-05-04 12:00")) is None
    assert next_tick("0 0 30 2 *", "UTC", at("2026-05-04 12:00")) is None


def test_an_hour_that_is_skipped_is_made_up_for_right_after():
    # On March 29 the clocks of Paris go from 02:00 to 03:00, which is 01:00 UTC.
    assert next_tick("30 2 * * *", "Europe/Paris", at("2026-03-28 12:00")) == at("2026-03-29 01:30")
    assert next_tick("30 2 * * *", "Europe/Paris", at("2026-03-29 02:00")) == at("2026-03-30 00:30")


def test_an_hour_that_comes_twice_is_due_once():
    # On October 25 they go from 03:00 back to 02:00, which is 01:00 UTC.
    first = next_tick("30 2 * * *", "Europe/Paris", at("2026-10-24 12:00"))
    assert first == at("2026-10-25 00:30")
    assert next_tick("30 2 * * *", "Europe/Paris", first) == at("2026-10-26 01:30")


def test_every_hour_means_every_hour_also_when_one_comes_twice():
    tick, seen = at("2026-10-24 23:30"), []
    for _ in range(4):
        tick = next_tick("0 * * * *", "Europe/Paris", tick)
        seen.append(tick)
    assert seen == [at(f"2026-10-25 0{hour}:00") for hour in range(4)]


def test_no_tick_comes_twice_when_an_hour_is_skipped():
    ticks, tick = [], at("2026-03-29 00:00")
    for _ in range(4):
        tick = next_tick("30 * * * *", "Europe/Paris", tick)
        ticks.append(tick)
    assert ticks == [at(f"2026-03-29 0{hour}:30") for hour in range(4)]


def test_a_zone_that_nobody_knows_is_an_error():
    with pytest.raises(ZoneInfoNotFoundError):
        previous_tick("0 3 * * *", "Europe/Atlantis", at("2026-05-04 12:00"))


CRONS = st.sampled_from(
    ["0 3 * * *", "30 2 * * *", "*/7 1-3 * * *", "0 */2 * * *", "15 0 1 * *", "45 23 * * sun"]
)
ZONES = st.sampled_from(["UTC", "Europe/Paris", "America/New_York", "Australia/Lord_Howe"])
START, END = datetime(2025, 1, 1), datetime(2027, 12, 31)  # noqa: DTZ001 - hypothesis adds it
TIMES = st.datetimes(START, END, timezones=st.just(UTC))


@given(CRONS, ZONES, TIMES)
def test_the_next_tick_of_the_one_before_is_the_first_after_now(cron, zone, now):
    before, after = previous_tick(cron, zone, now), next_tick(cron, zone, now)
    assert before is not None
    assert after is not None
    assert before <= now < after
    assert next_tick(cron, zone, before) == after
    assert previous_tick(cron, zone, after) == after
    assert previous_tick(cron, zone, after - timedelta(microseconds=1)) == before


@given(ZONES, st.dates(date(2025, 1, 2), date(2027, 12, 30)))
def test_a_daily_schedule_is_due_once_on_every_day(zone, day):
    noon = datetime(day.year, day.month, day.day, 23, 59, tzinfo=ZoneInfo(zone))
    start = noon.replace(hour=0, minute=0) - timedelta(seconds=1)
    first = next_tick("30 2 * * *", zone, start)
    assert first is not None
    second = next_tick("30 2 * * *", zone, first)
    assert second is not None
    assert first.astimezone(ZoneInfo(zone)).date() == day
    assert second.astimezone(ZoneInfo(zone)).date() == day + timedelta(days=1)
