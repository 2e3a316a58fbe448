"""From what lies in a store to what its page shows, without any job.

Pure; `clean` as in `views`.
"""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from moorage.driver.views import CheckpointTimes, GraphView
from moorage.offline.description import Description, clocks_of
from moorage.offline.listing import CheckpointRow, Listing, SavepointRow
from moorage.page.advice import UNREADABLE, advice_for
from moorage.page.charts import bars, summary
from moorage.page.graph import drawing_of
from moorage.page.parts import (
    MOST_ROWS,
    MOST_TEXT,
    Clean,
    Detail,
    Page,
    Problem,
    Rows,
    Section,
    count_text,
    moment_text,
)
from moorage.texts import duration_text, size_text

_STORED = (
    ("Id", "Standing", "Epoch", "Completed", "Size", "New", "Files", "Restore with"),
    frozenset({0, 2, 4, 5, 6}),
)
_RESTORABLE = ("restore point", "retained")
_MOST_DETAILS = 10
_MOST_DAMAGED = 10
_SAVEPOINTS = (
    ("Name", "Standing", "Format", "Checkpoint", "Epoch", "Size", "Restore with"),
    frozenset({3, 4, 5}),
)
_SERVERS = (("Served by", "Duration", "Written", "Objects"), frozenset({1, 2, 3}))
_NODES = (("Node", "Kind", "What"), frozenset[int]())
_STATES = (("Operator", "State", "Kind", "Type", "Keys"), frozenset[int]())
_RANGES = (
    ("Operator", "Subtask", "Key groups", "Size", "Files", "Format"),
    frozenset({1, 3, 4}),
)


def page_of_store(found: Listing, newest: Description | None, now: datetime, clean: Clean) -> Page:
    """The page of a checkpoint directory.

    Args:
        newest: what its restore point holds; None where there is none that can be read.
    """
    return Page(
        clean(newest.job if newest else found.directory),
        "stored",
        moment_text(now),
        _problems(found, clean),
        [
            _overview(found, newest, clean),
            *_graph(newest, clean),
            _state(newest, clean),
            _checkpoints(found.checkpoints, clean),
            _savepoints(found.savepoints, clean),
        ],
    )


def _problems(found: Listing, clean: Clean) -> list[Problem]:
    """What is wrong with all of it, then what cannot be read, the newest first."""
    told: list[tuple[str, str]] = list(zip(found.warnings, found.codes, strict=True))
    newest = sorted(found.checkpoints, key=lambda row: row.id, reverse=True)
    damaged = [(f"chk-{row.id}", row.problem) for row in newest if row.problem]
    damaged += [(row.name, row.problem) for row in found.savepoints if row.problem]
    told += [(f"{name} cannot be read: {why}", UNREADABLE) for name, why in damaged[:_MOST_DAMAGED]]
    return [Problem("", clean(text)[:MOST_TEXT], advice_for(code)) for text, code in told]


def _overview(found: Listing, newest: Description | None, clean: Clean) -> Section:
    pairs = [("Checkpoint directory", clean(found.directory))]
    if found.savepoint_directory:
        pairs.append(("Savepoint directory", clean(found.savepoint_directory)))
    if newest is not None:
        pairs += [
            ("Restore point", f"chk-{newest.checkpoint_id} at epoch {newest.epoch:,}"),
            ("Taken", moment_text(newest.created_at)),
            ("State", f"{size_text(newest.bytes)} in {newest.files:,} files"),
            ("Key groups", f"{newest.max_parallelism:,}"),
            ("Written by", f"Moorage {newest.moorage_version}"),
        ]
        pairs += [
            (clean(f"{name[0].upper()}{name[1:]}"), _clock_text(at))
            for name, at in clocks_of(newest)
            if at is not None
        ]
    return Section("overview", "Overview", pairs=pairs)


def _clock_text(at: datetime | int) -> str:
    return moment_text(at) if isinstance(at, datetime) else str(at)


def _graph(newest: Description | None, clean: Clean) -> list[Section]:
    """What the job is made of, where its checkpoint says so."""
    try:
        graph = msgspec.convert(newest.extra["graph"] if newest else None, GraphView)
    except (KeyError, msgspec.ValidationError):
        return []
    drawing = drawing_of(graph, {}, clean, size_text)
    rows = [(clean(node.uid), node.kind, clean(node.about)) for node in graph.nodes]
    return [Section("graph", "Graph", drawing=drawing, tables=[Rows("Nodes", *_NODES, rows)])]


def _state(newest: Description | None, clean: Clean) -> Section:
    if newest is None or not newest.operators:
        return Section("state", "State", empty="There is no state.")
    states = [
        (
            clean(operator.uid),
            clean(state.name),
            state.kind,
            f"{state.key_type} to {state.type}" if state.key_type else str(state.type),
            ", ".join(operator.key_types),
        )
        for operator in newest.operators
        for state in operator.states
    ]
    ranges = [
        (
            clean(operator.uid),
            str(place),
            f"{one.start} to {one.end}",
            size_text(one.bytes),
            f"{one.files:,}",
            one.format,
        )
        for operator in newest.operators
        for place, one in enumerate(operator.ranges)
    ]
    return Section(
        "state",
        "State",
        pairs=[
            (clean(o.uid), f"{size_text(o.bytes)}, {o.parallelism} subtasks")
            for o in newest.operators
        ],
        tables=[
            Rows("States", *_STATES, states[:MOST_ROWS], len(states) - len(states[:MOST_ROWS])),
            Rows("Subtasks", *_RANGES, ranges[:MOST_ROWS], len(ranges) - len(ranges[:MOST_ROWS])),
        ],
    )


def _checkpoints(found: Sequence[CheckpointRow], clean: Clean) -> Section:
    if not found:
        return Section("checkpoints", "Checkpoints", empty="There are no checkpoints.")
    newest = sorted(found, key=lambda row: row.id, reverse=True)
    there = [row for row in reversed(newest) if row.bytes is not None]
    known = [row for row in there if row.new_bytes is not None]
    names = [f"chk-{row.id}" for row in there]
    rows = [
        (
            str(row.id),
            row.standing,
            count_text(row.epoch),
            moment_text(row.completed_at),
            _size(row.bytes),
            _size(row.new_bytes),
            count_text(row.files),
            clean(row.problem)[:MOST_TEXT]
            or (f"--restore {row.path}" if row.standing in _RESTORABLE else ""),
        )
        for row in newest[:MOST_ROWS]
    ]
    charts = [
        bars("Size", [row.bytes or 0 for row in there], names, size_text),
        bars(
            "New",
            [row.new_bytes or 0 for row in known],
            [f"chk-{row.id}" for row in known],
            size_text,
        ),
    ]
    series = [
        ("Size", [float(row.bytes or 0) for row in there], size_text),
        ("New", [float(row.new_bytes or 0) for row in known], size_text),
    ]
    history = Rows("History", *_STORED, rows, len(newest) - len(rows))
    figures = summary("Summary", "Of a checkpoint", series)
    tables = [figures, history] if there else [history]
    details = [_detail(row, row.times, clean) for row in newest if row.times is not None]
    return Section(
        "checkpoints",
        "Checkpoints",
        charts=charts if there else (),
        tables=tables,
        details=details[:_MOST_DETAILS],
    )


def _detail(row: CheckpointRow, times: CheckpointTimes, clean: Clean) -> Detail:
    pairs = [
        ("Pause of the job", duration_text(times.pause_seconds)),
        ("Upload", duration_text(times.upload_seconds)),
    ]
    slowest = sorted(times.servers, key=lambda one: -one.seconds)[:MOST_ROWS]
    rows = [
        (
            clean(one.place),
            duration_text(one.seconds),
            size_text(one.bytes_written),
            f"{one.objects:,}",
        )
        for one in slowest
    ]
    left = len(times.servers) - len(rows)
    servers = Rows("By server, slowest first", *_SERVERS, rows, left)
    return Detail(f"checkpoint-{row.id}", f"Checkpoint {row.id}", pairs, [servers])


def _savepoints(found: Sequence[SavepointRow], clean: Clean) -> Section:
    if not found:
        return Section("savepoints", "Savepoints", empty="There are no savepoints here.")
    rows = [
        (
            clean(row.name),
            row.standing,
            row.format,
            count_text(row.checkpoint_id),
            count_text(row.epoch),
            _size(row.bytes),
            clean(row.problem)[:MOST_TEXT] or f"--restore {clean(row.path)}",
        )
        for row in found[:MOST_ROWS]
    ]
    table = Rows("What can be restored", *_SAVEPOINTS, rows, len(found) - len(rows))
    return Section("savepoints", "Savepoints", tables=[table])


def _size(size: int | None) -> str:
    return "" if size is None else size_text(size)
