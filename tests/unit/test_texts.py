"""Sizes and times as people read them."""

from datetime import UTC, datetime

import pytest

from moorage.texts import event_time_text, moment_text, unit_of, watermark_text

NOW = datetime(2026, 11, 20, 10, 0, 0, tzinfo=UTC)
NOW_S = int(NOW.timestamp())


@pytest.mark.parametrize(
    ("time_ms", "unit"),
    [
        (NOW_S, "seconds"),
        (NOW_S * 1_000, ""),
        (NOW_S * 1_000_000, "microseconds"),
        (NOW_S * 1_000_000_000, "nanoseconds"),
        (0, ""),
        (-NOW_S, ""),
        (90 * 60_000, ""),
        (1 << 62, ""),
    ],
)
def test_a_time_in_another_unit_is_known_by_its_year(time_ms, unit):
    assert unit_of(time_ms) == unit
    assert event_time_text(time_ms, NOW).endswith(f"(a time in {unit}?)") == bool(unit)


def test_an_event_time_has_its_date_where_a_calendar_has_it():
    assert event_time_text(1_000 * NOW_S, NOW) == "2026-11-20 10:00:00Z, 0s behind the clock"
    assert moment_text(10**6 * NOW_S) == f"{NOW_S}000000 ms"
    assert event_time_text(None, NOW) == "none yet"


def test_a_watermark_that_no_input_holds_is_said_to_stay_where_the_newest_row_left_it():
    told = "2026-11-20 10:00:00Z, 0s behind the clock, waits for "
    assert watermark_text(1_000 * NOW_S, "orders", NOW) == f"{told}orders"
    idle = "a newer row: all inputs are idle, it stays at the newest less max_delay"
    assert watermark_text(1_000 * NOW_S, "", NOW) == f"{told}{idle}"
    first = "none yet, waits for a first row: all inputs are idle"
    assert watermark_text(None, "", NOW) == first
