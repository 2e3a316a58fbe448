"""From facts to what the page shows: texts, bars, tables.

Pure. The facts are those that the command line prints: `JobProgress` of a run, `Listing` of a
store.
No state values are among them. `clean` takes secrets out of every text that the page did not write
itself.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from moorage.driver.types import JobProgress
from moorage.driver.views import CheckpointRecord
from moorage.offline.listing import CheckpointRow, Listing, SavepointRow
from moorage.page.history import EpochPoint, RunFacts
from moorage.texts import duration_text, size_text

Clean = Callable[[str], str]
MOST_ROWS = 200
"""Of a table; the newest."""
MOST_BARS = 120
_CHART_HEIGHT = 80.0
_BAR = 6.0
_MOST_TEXT = 1000
_CHECKPOINTS = (
    ("Id", "Kind", "State", "Triggered", "Duration", "Size", "Uploaded", "Objects"),
    frozenset({0, 4, 5, 6, 7}),
)
_STORED = (
    ("Id", "Standing", "Epoch", "Completed", "Size", "New", "Files", "Problem"),
    frozenset({0, 2, 4, 5, 6}),
)
_SAVEPOINTS = (
    ("Name", "Standing", "Format", "Checkpoint", "Epoch", "Size", "Restore with"),
    frozenset({3, 4, 5}),
)


@dataclass(frozen=True, slots=True)
class Bar:
    """One value of a chart, in its units of drawing."""

    x: float
    y: float
    height: float
    title: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars, oldest first; `label` says what they show to who cannot see them."""

    title: str
    label: str
    width: float
    height: float
    bars: Sequence[Bar]


@dataclass(frozen=True, slots=True)
class Rows:
    """A table; `numbers` are the columns that are aligned right."""

    title: str
    header: Sequence[str]
    numbers: frozenset[int]
    rows: Sequence[Sequence[str]]
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page that has a heading, and changes as a whole."""

    anchor: str
    title: str
    pairs: Sequence[tuple[str, str]] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Rows] = ()
    empty: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """All that is shown."""

    title: str
    phase: str
    at: str
    problems: Sequence[str]
    sections: Sequence[Section]


def page_of_run(facts: RunFacts, now: datetime, clean: Clean) -> Page:
    """The page of a job that runs, or has just ended."""
    progress = facts.progress
    problems = [f"{error.code}: {error.message}" for error in facts.failures]
    if progress.storage_error:
        problems.insert(0, progress.storage_error)
    return Page(
        clean(facts.job),
        progress.phase,
        _moment(now),
        [clean(text)[:_MOST_TEXT] for text in problems],
        [_overview(progress, clean), _epochs(facts.epochs), _checkpoints(progress)],
    )


def page_of_store(found: Listing, now: datetime, clean: Clean) -> Page:
    """The page of a checkpoint directory, without any job."""
    pairs = [("Checkpoint directory", clean(found.directory))]
    if found.savepoint_directory:
        pairs.append(("Savepoint directory", clean(found.savepoint_directory)))
    return Page(
        clean(found.directory),
        "stored",
        _moment(now),
        [clean(text)[:_MOST_TEXT] for text in found.warnings],
        [
            Section("overview", "Overview", pairs=pairs),
            _stored_checkpoints(found.checkpoints, clean),
            _stored_savepoints(found.savepoints, clean),
        ],
    )


def _overview(now: JobProgress, clean: Clean) -> Section:
    pairs = [
        ("Epoch", f"{now.epoch:,}"),
        ("Rows", f"{now.rows_total:,}"),
        ("Rows per second", f"{now.rows_per_second:,.0f}"),
        ("State", size_text(now.state_bytes)),
        ("Parallelism", f"{now.parallelism} of {now.max_parallelism} key groups"),
        ("Restored from", clean(now.restored_from or "nothing: an empty start")),
        ("Rewinds", str(now.rewinds)),
        ("Late rows", f"{now.odd.late:,}"),
        ("Null keys", f"{now.odd.null_keys:,}"),
    ]
    if now.odd.bad_times:
        pairs.append(("Without a time", f"{now.odd.bad_times:,}"))
    if now.message:
        pairs.append(("Last message", clean(now.message)[:_MOST_TEXT]))
    return Section("overview", "Overview", pairs=pairs)


def _epochs(points: Sequence[EpochPoint]) -> Section:
    if not points:
        return Section("epochs", "Epochs", empty="No epoch has been committed yet.")
    seconds = [point.seconds for point in points]
    titles = [f"epoch {p.epoch}: {duration_text(p.seconds)}, {p.rows:,} rows" for p in points]
    charts = [
        _chart("Duration", seconds, titles, duration_text),
        _chart("Rows", [point.rows for point in points], titles, lambda n: f"{n:,.0f}"),
    ]
    pairs = [(f"Duration, {name}", duration_text(at)) for name, at in _percentiles(seconds)]
    return Section("epochs", "Epochs", pairs=pairs, charts=charts)


def _checkpoints(now: JobProgress) -> Section:
    records = now.checkpoints
    if not records:
        return Section("checkpoints", "Checkpoints", empty="No checkpoint has been triggered yet.")
    done = [record for record in reversed(records) if record.state == "Completed"]
    seconds = [record.duration_seconds for record in done]
    pairs = [
        ("Completed", f"{now.completed_checkpoints:,}"),
        ("Failed", f"{now.failed_checkpoints:,}"),
        ("In progress", str(sum(record.state == "InProgress" for record in records))),
        *((f"Duration, {name}", duration_text(at)) for name, at in _percentiles(seconds)),
    ]
    names = [f"{record.kind} {record.checkpoint_id}" for record in done]
    charts = [
        _chart("Duration", seconds, names, duration_text),
        _chart("Size", [record.bytes_total for record in done], names, size_text),
    ]
    history = _rows("History", _CHECKPOINTS, [_record(record) for record in records[:MOST_ROWS]])
    return Section("checkpoints", "Checkpoints", pairs=pairs, charts=charts, tables=[history])


def _record(record: CheckpointRecord) -> Sequence[str]:
    state = {"InProgress": "in progress", "Completed": "completed", "Failed": "failed"}
    done = record.state == "Completed"
    return (
        str(record.checkpoint_id),
        record.kind.lower(),
        state[record.state],
        _moment(record.triggered_at),
        duration_text(record.duration_seconds) if record.state != "InProgress" else "",
        size_text(record.bytes_total) if done else "",
        size_text(record.bytes_uploaded) if done else "",
        str(record.objects_written) if done else "",
    )


def _stored_checkpoints(found: Sequence[CheckpointRow], clean: Clean) -> Section:
    if not found:
        return Section("checkpoints", "Checkpoints", empty="There are no checkpoints.")
    newest = sorted(found, key=lambda row: row.id, reverse=True)
    there = [row for row in reversed(newest) if row.bytes is not None]
    names = [f"chk-{row.id}" for row in there]
    rows = [
        (
            str(row.id),
            row.standing,
            _or(row.epoch),
            _moment(row.completed_at),
            _size(row.bytes),
            _size(row.new_bytes),
            _or(row.files),
            clean(row.problem)[:_MOST_TEXT],
        )
        for row in newest[:MOST_ROWS]
    ]
    chart = _chart("Size", [row.bytes or 0 for row in there], names, size_text)
    table = _rows("History", _STORED, rows, len(newest) - len(rows))
    return Section("checkpoints", "Checkpoints", charts=[chart], tables=[table])


def _stored_savepoints(found: Sequence[SavepointRow], clean: Clean) -> Section:
    if not found:
        return Section("savepoints", "Savepoints", empty="There are no savepoints here.")
    rows = [
        (
            clean(row.name),
            row.standing,
            row.format,
            _or(row.checkpoint_id),
            _or(row.epoch),
            _size(row.bytes),
            clean(row.problem)[:_MOST_TEXT] or f"--restore {clean(row.path)}",
        )
        for row in found[:MOST_ROWS]
    ]
    table = _rows("What can be restored", _SAVEPOINTS, rows, len(found) - len(rows))
    return Section("savepoints", "Savepoints", tables=[table])


def _rows(
    title: str,
    columns: tuple[Sequence[str], frozenset[int]],
    rows: Sequence[Sequence[str]],
    left_out: int = 0,
) -> Rows:
    header, numbers = columns
    return Rows(title, header, numbers, rows, left_out)


def _chart(
    title: str, values: Sequence[float], names: Sequence[str], text: Callable[[float], str]
) -> Chart:
    values, names = values[-MOST_BARS:], names[-MOST_BARS:]
    most = max(values, default=0.0)
    bars = []
    for place, (value, name) in enumerate(zip(values, names, strict=True)):
        height = max(round(_CHART_HEIGHT * value / most, 1), 1.0) if most > 0 else 1.0
        told = f"{name}, {title.lower()} {text(value)}"
        bars.append(Bar(place * _BAR, _CHART_HEIGHT - height, height, told))
    newest = f", newest {text(values[-1])}" if values else ""
    label = f"{title} of the last {len(values)}: at most {text(most)}{newest}"
    return Chart(title, label, max(len(values), 40) * _BAR, _CHART_HEIGHT, bars)


def _percentiles(values: Sequence[float]) -> list[tuple[str, float]]:
    """The nearest ranks; nothing of nothing."""
    ranked = sorted(values)
    shares = (("median", 0.5), ("p95", 0.95), ("p99", 0.99), ("most", 1.0))
    last = len(ranked)
    return [(name, ranked[math.ceil(share * last) - 1]) for name, share in shares if ranked]


def _size(size: int | None) -> str:
    return "" if size is None else size_text(size)


def _moment(moment: datetime | None) -> str:
    return moment.isoformat(sep=" ", timespec="seconds") if moment else ""


def _or(number: int | None) -> str:
    return "" if number is None else f"{number:,}"
