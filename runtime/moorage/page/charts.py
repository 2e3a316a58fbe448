"""From series of numbers to bars, and to the figures that sum them up. Pure."""

import math
from collections.abc import Callable, Mapping, Sequence

from moorage.page.parts import Bar, Chart, Rows

MOST_BARS = 120
_HEIGHT = 80.0
_BAR = 6.0
_FEWEST = 40
_SHARES = (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99))


def bars(
    title: str, values: Sequence[float], names: Sequence[str], text: Callable[[float], str]
) -> Chart:
    """One bar for each of the newest values; each has its name and text to be pointed at."""
    return stacked(title, [{"all": value} for value in values], names, text, {})


def stacked(
    title: str,
    values: Sequence[Mapping[str, float]],
    names: Sequence[str],
    text: Callable[[float], str],
    kinds: Mapping[str, str],
) -> Chart:
    """One bar for each of the newest values, of parts that lie on each other.

    Args:
        kinds: what the parts of a value stand for, from the lowest up.
    """
    values, names = values[-MOST_BARS:], names[-MOST_BARS:]
    sums = [sum(parts.values()) for parts in values]
    most = max(sums, default=0.0)
    drawn: list[Bar] = []
    for place, (parts, total, name) in enumerate(zip(values, sums, names, strict=True)):
        told = f"{name}, {title.lower()} {text(total)}"
        if kinds:
            told += ": " + ", ".join(f"{kinds[kind]} {text(n)}" for kind, n in parts.items() if n)
        drawn += _column(place * _BAR, parts, most, told)
    newest = f", newest {text(sums[-1])}" if sums else ""
    label = f"{title}, the last {len(sums)}: at most {text(most)}{newest}"
    width = max(len(sums), _FEWEST) * _BAR
    return Chart(title, label, width, _HEIGHT, drawn, tuple(kinds.items()))


def _column(x: float, parts: Mapping[str, float], most: float, told: str) -> list[Bar]:
    """From the bottom up; what is there at all is at least a line."""
    if most <= 0 or not any(parts.values()):
        return [Bar(x, _HEIGHT - 1, 1.0, told, next(iter(parts)))]
    found, top = [], _HEIGHT
    for kind, value in parts.items():
        height = round(_HEIGHT * value / most, 1)
        if len(parts) == 1:
            height = max(height, 1.0)
        if height > 0:
            top = round(top - height, 1)
            found.append(Bar(x, top, height, told, kind))
    return found or [Bar(x, _HEIGHT - 1, 1.0, told, next(iter(parts)))]


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest rank."""
    ranked = sorted(values)
    return ranked[max(math.ceil(share * len(ranked)), 1) - 1]


def summary(
    title: str, what: str, series: Sequence[tuple[str, Sequence[float], Callable[[float], str]]]
) -> Rows:
    """A table of the least, the mean, percentiles and the most of each series with values.

    Args:
        what: the heading of the column that names the series.
    """
    header = (what, "least", "mean", *(name for name, _ in _SHARES), "most")
    rows = [
        (
            name,
            text(min(values)),
            text(sum(values) / len(values)),
            *(text(percentile(values, share)) for _, share in _SHARES),
            text(max(values)),
        )
        for name, values, text in series
        if values
    ]
    return Rows(title, header, frozenset(range(1, len(header))), rows)
