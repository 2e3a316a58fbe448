"""When a schedule is due: the instants at which a cron expression matches in its time zone.

Pure. The meaning is that of cron on a machine in that zone. Wall-clock times that a change to
summer time skips are due right after it; of those that happen twice the first counts, unless the
hour is `*`: then the schedule goes by elapsed time and is due in both hours. A day is due when it
matches both day fields, or, if neither of them is `*`, either.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
FIELDS: tuple[tuple[str, int, int, tuple[str, ...]], ...] = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of month", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("day of week", 0, 7, _DAYS),
)
"""The fields of an expression: name, least and greatest number, and the words for the least and
those after it."""
_FAR = 9 * 366
"""Days to look: February 29 may be eight years away."""


@dataclass(frozen=True, slots=True)
class Cron:
    """A parsed expression; the sets are of the numbers that match."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    every_hour: bool  # the hour field begins with `*`
    either_day: bool  # both day fields are restricted, so that one of them suffices

    @classmethod
    def parse(cls, text: str) -> "Cron":
        """Return the expression in `text`, which the API's models have accepted."""
        fields = MACROS.get(text, text).lower().split()
        minutes, hours, days, months, weekdays = (
            _numbers(field, low, high, words)
            for field, (_, low, high, words) in zip(fields, FIELDS, strict=True)
        )
        _, hour, day, _, weekday = fields
        return cls(
            minutes,
            hours,
            days,
            months,
            frozenset(day % 7 for day in weekdays),
            hour.startswith("*"),
            not day.startswith("*") and not weekday.startswith("*"),
        )

    def matches(self, day: date) -> bool:
        """Whether anything is due on this day."""
        by_month, by_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        chosen = by_month or by_week if self.either_day else by_month and by_week
        return chosen and day.month in self.months


def previous_tick(expression: str, zone: str, at: datetime) -> datetime | None:
    """Return the newest instant not after `at` at which the schedule was due, in UTC.

    Raises:
        KeyError: there is no such time zone (`zoneinfo.ZoneInfoNotFoundError`).
    """
    local = at.astimezone(ZoneInfo(zone)).date() + timedelta(days=1)
    for back in range(_FAR):
        ticks = _ticks(expression, zone, local - timedelta(days=back))
        if found := bisect_right(ticks, at):
            return ticks[found - 1]
    return None


def next_tick(expression: str, zone: str, after: datetime) -> datetime | None:
    """Return the oldest instant after `after` at which the schedule is due, in UTC.

    Raises: as `previous_tick`.
    """
    local = after.astimezone(ZoneInfo(zone)).date() - timedelta(days=1)
    for ahead in range(_FAR):
        ticks = _ticks(expression, zone, local + timedelta(days=ahead))
        found = bisect_right(ticks, after)
        if found < len(ticks):
            return ticks[found]
    return None


@lru_cache(maxsize=64)
def _parsed(expression: str) -> Cron:
    return Cron.parse(expression)


def _ticks(expression: str, zone: str, day: date) -> tuple[datetime, ...]:
    return _ticks_on(expression, zone, day) if _parsed(expression).matches(day) else ()


@lru_cache(maxsize=256)
def _ticks_on(expression: str, zone: str, day: date) -> tuple[datetime, ...]:
    """All instants of a local day, in order, in UTC."""
    cron, place = _parsed(expression), ZoneInfo(zone)
    found: set[datetime] = set()
    for hour in cron.hours:
        for minute in cron.minutes:
            wall = datetime.combine(day, time(hour, minute), place)
            found.add(wall.astimezone(UTC))
            if cron.every_hour:
                found.update(_second(wall))
    return tuple(sorted(found))


def _second(wall: datetime) -> list[datetime]:
    """The second time that the clocks show this, on the day on which they are put back."""
    first, again = wall.astimezone(UTC), wall.replace(fold=1).astimezone(UTC)
    return [again] if again > first else []


def number(text: str, low: int, words: Sequence[str]) -> int:
    """The number that `text`, in small letters, is in a field that begins at `low`; -1 if none."""
    if text in words:
        return low + words.index(text)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 2 else -1


def _numbers(field: str, low: int, high: int, words: Sequence[str]) -> frozenset[int]:
    found: set[int] = set()
    for part in field.split(","):
        span, slash, step = part.partition("/")
        start, end = low, high
        if span != "*":
            ends = [number(text, low, words) for text in span.split("-")]
            start = ends[0]
            # `5/10` is from 5 on, every tenth.
            end = ends[-1] if len(ends) == 2 or not slash else high
        found.update(range(start, end + 1, int(step or 1)))
    return frozenset(found)
