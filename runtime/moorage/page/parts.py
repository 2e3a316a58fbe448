"""What a page is made of: texts, tables, charts, a graph. Values only; `templates` draws them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

Clean = Callable[[str], str]
"""Takes secrets out of a text that the page did not write itself."""

MOST_ROWS = 200
"""Of a table; the newest."""
MOST_TEXT = 1000
"""Characters of a text that somebody else wrote."""

Pairs = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Bar:
    """One value of a chart, or a part of one, in its units of drawing; `kind` is its colour."""

    x: float
    y: float
    height: float
    title: str
    kind: str = "all"


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars, oldest first; `label` says what they show to who cannot see them.

    Attributes:
        legend: kinds of bars and what they stand for; empty where there is one.
    """

    title: str
    label: str
    width: float
    height: float
    bars: Sequence[Bar]
    legend: Pairs = ()


@dataclass(frozen=True, slots=True)
class Rows:
    """A table; `numbers` are the columns that are aligned right."""

    title: str
    header: Sequence[str]
    numbers: frozenset[int]
    rows: Sequence[Sequence[str]]
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Detail:
    """What is shown of one thing when somebody opens it; `anchor` is its own on the page."""

    anchor: str
    summary: str
    pairs: Pairs
    tables: Sequence[Rows] = ()


@dataclass(frozen=True, slots=True)
class Box:
    """A node of a drawn graph; the first of its lines is its name."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    lines: Sequence[str]
    title: str
    busy: float = 0.0


@dataclass(frozen=True, slots=True)
class Arrow:
    """An edge of a drawn graph: an SVG path, and what goes along it."""

    path: str
    label: str
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Drawing:
    """A graph as it is drawn; `label` says what it shows to who cannot see it."""

    width: float
    height: float
    boxes: Sequence[Box]
    arrows: Sequence[Arrow]
    label: str


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that went wrong, and what to do about it."""

    at: str
    text: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page that has a heading."""

    anchor: str
    title: str
    pairs: Pairs = ()
    drawing: Drawing | None = None
    charts: Sequence[Chart] = ()
    tables: Sequence[Rows] = ()
    details: Sequence[Detail] = ()
    empty: str = ""


@dataclass(frozen=True, slots=True)
class Lookups:
    """States whose values can be asked for on the page: names, and what each holds."""

    states: Pairs


@dataclass(frozen=True, slots=True)
class Page:
    """All that is shown."""

    title: str
    phase: str
    at: str
    problems: Sequence[Problem]
    sections: Sequence[Section]
    lookups: Lookups | None = None


def moment_text(moment: datetime | None) -> str:
    """To the second, in UTC; nothing for none."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC") if moment else ""


def count_text(number: int | None) -> str:
    """With its thousands apart; nothing for none."""
    return "" if number is None else f"{number:,}"
