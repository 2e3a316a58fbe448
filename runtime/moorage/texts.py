"""Sizes, durations and times as people read them, in terminals and on the page. Pure."""

from datetime import UTC, datetime

_YEAR_1990, _YEAR_2100 = 631_152_000, 4_102_444_800


def size_text(number: float) -> str:
    """Return a number of bytes in the unit that suits it."""
    amount, unit = float(number), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def snapshot_size_text(total: int, uploaded: int) -> str:
    """What the state in a snapshot is, and how much of that its upload brought to the store."""
    # What a run began from another one uploaded.
    return f"{size_text(total)}, {size_text(uploaded)} new" if uploaded else size_text(total)


def duration_text(seconds: float) -> str:
    """Such as "840 ms", "12.3 s" or "4 min 10 s"."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def time_text(moment: datetime | None) -> str | None:
    """`2026-01-31 12:00:00Z`."""
    if moment is None:
        return None
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def event_time_text(time_ms: int | None, now: datetime) -> str:
    """Event time in milliseconds, and how far it is behind the clock, or before it."""
    if time_ms is None:
        return "none yet"
    unit = unit_of(time_ms)
    looks = f" (a time in {unit}?)" if unit else ""
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{moment_text(time_ms)}{looks}"
    seconds = int((now - moment).total_seconds())
    where = "behind" if seconds >= 0 else "before"
    return f"{time_text(moment)}, {age_text(abs(seconds))} {where} the clock{looks}"


def awaited_text(time_ms: int | None, held_by: str) -> str:
    """What a watermark waits for: the input that holds it, or where none does, any of them."""
    if held_by:
        return held_by
    if time_ms is None:
        return "a first row: all inputs are idle"
    # Who reads that nothing is waited for expects windows to end by themselves.
    return "a newer row: all inputs are idle, it stays at the newest less max_delay"


def watermark_text(time_ms: int | None, held_by: str, now: datetime) -> str:
    """How far event time has come for an operator, and what it waits for."""
    return f"{event_time_text(time_ms, now)}, waits for {awaited_text(time_ms, held_by)}"


def moment_text(time_ms: int) -> str:
    """Milliseconds since 1970 UTC as a date, or as they are where no calendar has them."""
    try:
        return str(time_text(datetime.fromtimestamp(time_ms / 1000, UTC)))
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"


def unit_of(time_ms: int) -> str:
    """The unit that a time seems to be in, taken for milliseconds; empty if it seems to be right.

    In that unit it would be of the years 1990 to 2100: nobody means a time that far away.
    """
    for unit, per_second in (("seconds", 1), ("microseconds", 10**6), ("nanoseconds", 10**9)):
        if _YEAR_1990 <= time_ms // per_second < _YEAR_2100:
            return unit
    return ""


def since_text(moment: datetime, now: datetime) -> str:
    """How long ago a moment was, as `age_text` has it; one that is to come is now."""
    return age_text(max(0, int((now - moment).total_seconds()))) or ""


def age_text(seconds: int | None) -> str | None:
    """The two largest units: `45s`, `12m05s`, `3h07m`, `9d04h`."""
    if seconds is None:
        return None
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02}s"
    hours = seconds // 3600
    return f"{hours}h{seconds // 60 % 60:02}m" if hours < 48 else f"{hours // 24}d{hours % 24:02}h"
