"""From what a run reports to what its page shows. Pure.

The facts are those that the command line prints, and no state values are among them. `clean` takes
secrets out of every text that the page did not write itself.
"""

from collections.abc import Callable, Sequence
from datetime import datetime

from moorage.driver.types import JobProgress
from moorage.driver.views import CheckpointRecord, EpochPhases, ServerPart
from moorage.page.advice import STORAGE, advice_for
from moorage.page.charts import bars, stacked, summary
from moorage.page.graph import drawing_of, table_of
from moorage.page.history import EpochPoint, ProblemPoint, RunFacts
from moorage.page.parts import (
    MOST_ROWS,
    MOST_TEXT,
    Clean,
    Detail,
    Lookups,
    Page,
    Pairs,
    Problem,
    Rows,
    Section,
    count_text,
    moment_text,
)
from moorage.texts import (
    age_text,
    awaited_text,
    duration_text,
    event_time_text,
    since_text,
    size_text,
)

_PHASES = {
    "plan": "plan",
    "source": "source",
    "shuffle": "shuffle",
    "function": "function",
    "state": "state",
    "sink": "sink",
    "commit": "commit",
    "output": "output",
}
"""Of the strip chart, from the bottom up; the wait before an epoch has a row of the table alone."""

_STATES = {"InProgress": "in progress", "Completed": "completed", "Failed": "failed"}
_CHECKPOINTS = (
    ("Id", "Kind", "State", "Epoch", "Triggered", "Duration", "Size", "New", "Objects"),
    frozenset({0, 3, 5, 6, 7, 8}),
)
_SUBTASKS = (
    (
        "Operator",
        "Subtask",
        "Key groups",
        "Served by",
        "Rows in",
        "Rows out",
        "Busy",
        "Last epoch",
        "State",
        "Late",
        "Null key",
        "No time",
        "Timers",
    ),
    frozenset({1, 4, 5, 6, 7, 8, 9, 10, 11, 12}),
)
_WATERMARKS = ("Operator", "Waits for", "Watermark")
_SERVERS = (
    ("Served by", "Duration", "Written", "Objects", "Ranges", "Size"),
    frozenset({1, 2, 3, 4, 5}),
)
_RANGES = (("Operator", "First key group", "Size"), frozenset({1, 2}))
_RESTORE = (
    ("What", "Kind", "Epoch", "Completed", "Size", "Restore with"),
    frozenset({2, 4}),
)


def page_of_run(facts: RunFacts, now: datetime, clean: Clean) -> Page:
    """The page of a job that runs, or has just ended."""
    progress = facts.progress
    problems = [
        Problem(
            f"{moment_text(one.at)}, {since_text(one.at, now)} ago{_again(one)}",
            _told(f"{one.code}: {one.message}", clean),
            advice_for(one.code),
        )
        for one in facts.problems
    ]
    if progress.storage_error:
        text = _told(progress.storage_error, clean)
        problems.insert(0, Problem(moment_text(now), text, advice_for(STORAGE)))
    states = tuple((clean(one.name), clean(one.about)) for one in progress.queryable)
    return Page(
        clean(facts.job),
        progress.phase,
        moment_text(now),
        problems,
        [
            _overview(progress, now, clean),
            _graph(facts, now, clean),
            _subtasks(facts, clean),
            _epochs(facts.epochs),
            _checkpoints(progress, clean),
            _savepoints(progress, clean),
        ],
        Lookups(states) if states else None,
    )


def _told(text: str, clean: Clean) -> str:
    return clean(text)[:MOST_TEXT]


def _again(one: ProblemPoint) -> str:
    return f", {one.times:,} times since {moment_text(one.first)}" if one.times > 1 else ""


def _overview(now: JobProgress, at: datetime, clean: Clean) -> Section:
    begun = bool(now.parallelism)
    restored = clean(now.restored_from or "nothing: an empty start")
    spread = f"{now.parallelism:,} of {now.max_parallelism:,} key groups"
    last = now.last_checkpoint
    newest = (
        f"{last.checkpoint_id}, {since_text(last.completed_at, at)} ago" if last else "none yet"
    )
    pairs = [
        ("Epoch", f"{now.epoch:,}"),
        ("Newest checkpoint", newest),
        ("Rows", f"{now.rows_total:,}"),
        ("Rows per second", f"{now.rows_per_second:,.0f}"),
        ("State", size_text(now.state_bytes)),
        ("Parallelism", spread if begun else "not known yet"),
        ("Restored from", restored if begun or now.restored_from else "not known yet"),
        ("Rewinds", str(now.rewinds)),
        ("Late rows", f"{now.odd.late:,}"),
        ("Dropped as too late", f"{now.odd.late_dropped:,}"),
        ("Null keys", f"{now.odd.null_keys:,}"),
    ]
    if now.epoch_began is not None:
        under_way = f"epoch {now.epoch + 1:,}, for {since_text(now.epoch_began, at)}"
        pairs.insert(1, ("Under way", under_way))
    if now.lag_rows is not None:
        pairs.append(("Waiting in sources", f"{now.lag_rows:,} rows"))
    if now.executors.desired:
        ready = f"{now.executors.ready} of {now.executors.desired} ready"
        pairs.append(("Executors", ready))
    if now.odd.bad_times:
        pairs.append(("Without a time", f"{now.odd.bad_times:,}"))
    if now.message:
        pairs.append(("Last message", _told(now.message, clean)))
    return Section("overview", "Overview", pairs=pairs)


def _graph(facts: RunFacts, now: datetime, clean: Clean) -> Section:
    graph = facts.progress.graph
    if graph is None:
        return Section("graph", "Graph", empty="The job's code has not been read yet.")
    drawing = drawing_of(graph, facts.figures, clean, size_text)
    tables = [table_of(graph, facts.figures, clean, size_text)]
    marks = facts.progress.watermarks
    if marks:
        rows = [
            (
                clean(one.uid),
                awaited_text(one.time_ms, clean(one.held_by)),
                event_time_text(one.time_ms, now),
            )
            for one in marks[:MOST_ROWS]
        ]
        left = len(marks) - len(rows)
        tables.append(Rows("Event time", _WATERMARKS, frozenset(), rows, left))
    return Section("graph", "Graph", drawing=drawing, tables=tables)


def _subtasks(facts: RunFacts, clean: Clean) -> Section:
    found = facts.progress.subtasks
    if not found:
        return Section("subtasks", "Subtasks", empty="No subtask has done anything yet.")
    header, numbers = _SUBTASKS
    title = "Since the run began"
    if len(found) > MOST_ROWS:
        title = f"The {MOST_ROWS} busiest, since the run began"
        found = tuple(sorted(found, key=lambda one: -facts.busy.get((one.uid, one.subtask), 0.0)))
    rows = [
        (
            clean(one.uid),
            str(one.subtask),
            "{} to {}".format(*one.key_groups) if one.key_groups else "",
            clean(one.place),
            f"{one.rows_in:,}",
            f"{one.rows_out:,}",
            f"{busy:.0%}" if (busy := facts.busy.get((one.uid, one.subtask), 0.0)) else "",
            duration_text(one.last_seconds) if one.last_seconds else "",
            size_text(one.state_bytes) if one.key_groups else "",
            f"{one.late:,}",
            f"{one.null_keys:,}",
            f"{one.bad_times:,}",
            f"{one.timers_fired:,}",
        )
        for one in found[:MOST_ROWS]
    ]
    table = Rows(title, header, numbers, rows, len(found) - len(rows))
    return Section("subtasks", "Subtasks", tables=[table])


def _parts_of(phases: EpochPhases, seconds: float) -> dict[str, float]:
    """The phases of an epoch; of one that nobody measured, all of it."""
    found = {name: getattr(phases, name) for name in _PHASES}
    return found if any(found.values()) else {"function": seconds}


def _epochs(points: Sequence[EpochPoint]) -> Section:
    if not points:
        return Section("epochs", "Epochs", empty="No epoch has been committed yet.")
    names = [f"epoch {p.epoch}: {p.rows:,} rows" for p in points]
    parts = [_parts_of(p.phases, p.seconds) for p in points]
    charts = [
        stacked("Duration", parts, names, duration_text, _PHASES),
        bars("Rows", [p.rows for p in points], names, lambda n: f"{n:,.0f}"),
    ]
    lags = _lags(points)
    for title, known, text in lags:
        named = [f"epoch {epoch}" for epoch, _ in known]
        charts.append(bars(title, [value for _, value in known], named, text))
    series = [
        ("Duration", [p.seconds for p in points], duration_text),
        *(
            (f"of it {told}", [one.get(name, 0.0) for one in parts], duration_text)
            for name, told in _PHASES.items()
        ),
        ("Wait before it", [p.phases.wait for p in points], duration_text),
        ("Rows", [float(p.rows) for p in points], lambda n: f"{n:,.0f}"),
        *((title, [value for _, value in known], text) for title, known, text in lags),
    ]
    table = summary(f"The last {len(points)}", "Of an epoch", series)
    return Section("epochs", "Epochs", charts=charts, tables=[table])


_Lag = tuple[str, Sequence[tuple[int, float]], Callable[[float], str]]


def _lags(points: Sequence[EpochPoint]) -> list[_Lag]:
    """How far the job was behind: titles, values by epoch and their texts; only what is known."""
    waiting = [(p.epoch, float(p.lag_rows)) for p in points if p.lag_rows is not None]
    behind = [(p.epoch, p.behind_seconds) for p in points if p.behind_seconds is not None]
    found: list[_Lag] = [
        ("Lag: rows waiting in sources", waiting, lambda n: f"{n:,.0f}"),
        ("Lag: event time behind the clock", behind, lambda n: age_text(int(n)) or ""),
    ]
    return [lag for lag in found if lag[1]]


def _checkpoints(now: JobProgress, clean: Clean) -> Section:
    records = now.checkpoints
    pairs: Pairs = [(name, clean(value)) for name, value in now.configuration]
    configured = Detail("configuration", "Configuration", pairs)
    if not records:
        empty = "No checkpoint has been triggered yet."
        return Section("checkpoints", "Checkpoints", details=[configured], empty=empty)
    done = [record for record in reversed(records) if record.state == "Completed"]
    names = [f"{record.kind.lower()} {record.checkpoint_id}" for record in done]
    charts = [
        bars("Duration", [record.duration_seconds for record in done], names, duration_text),
        bars("Size", [record.bytes_total for record in done], names, size_text),
        bars("New", [record.bytes_uploaded for record in done], names, size_text),
    ]
    header, numbers = _CHECKPOINTS
    history = Rows("History", header, numbers, [_record(one) for one in records[:MOST_ROWS]])
    series = [
        ("Duration", [one.duration_seconds for one in done], duration_text),
        ("of it pause of the job", [one.pause_seconds for one in done], duration_text),
        ("of it upload", [one.upload_seconds for one in done], duration_text),
        ("Size", [float(one.bytes_total) for one in done], size_text),
        ("New", [float(one.bytes_uploaded) for one in done], size_text),
        ("Objects", [float(one.objects_written) for one in done], lambda n: f"{n:,.0f}"),
    ]
    figures = summary("Summary of those completed", "Of a checkpoint", series)
    details = [_detail(one, clean) for one in records if one.parts or one.failure]
    return Section(
        "checkpoints",
        "Checkpoints",
        pairs=_counts(now),
        charts=charts if done else (),
        tables=[figures, history] if done else [history],
        details=[*details, configured],
    )


def _counts(now: JobProgress) -> Pairs:
    records, newest = now.checkpoints, now.last_checkpoint
    failed = next((one for one in records if one.state == "Failed"), None)
    pairs = [
        ("Completed", f"{now.completed_checkpoints:,}"),
        ("Failed", f"{now.failed_checkpoints:,}"),
        ("In progress", str(sum(one.state == "InProgress" for one in records))),
    ]
    if newest is not None:
        told = f"{newest.checkpoint_id} at epoch {newest.epoch}, {moment_text(newest.completed_at)}"
        pairs.append(("Newest", told))
    if failed is not None:
        pairs.append(("Failed last", f"{failed.checkpoint_id}, {moment_text(failed.triggered_at)}"))
    return pairs


def _record(record: CheckpointRecord) -> Sequence[str]:
    done = record.state == "Completed"
    return (
        str(record.checkpoint_id),
        record.kind.lower(),
        _state(record),
        count_text(record.epoch) if done else "",
        moment_text(record.triggered_at),
        duration_text(record.duration_seconds) if record.state != "InProgress" else "",
        size_text(record.bytes_total) if done else "",
        size_text(record.bytes_uploaded) if done else "",
        str(record.objects_written) if done else "",
    )


def _state(record: CheckpointRecord) -> str:
    if record.state == "InProgress" and record.servers is not None:
        return "in progress, {} of {} servers".format(*record.servers)
    return _STATES[record.state]


def _detail(record: CheckpointRecord, clean: Clean) -> Detail:
    """Who wrote a checkpoint and how long each step took, or why it failed."""
    told = f"{record.kind} {record.checkpoint_id}, {_STATES[record.state]}"
    anchor = f"checkpoint-{record.checkpoint_id}"
    if record.failure is not None:
        why = _told(f"{record.failure.code}: {record.failure.message}", clean)
        pairs = [("Why", why), ("What to do", advice_for(record.failure.code))]
        return Detail(anchor, told, [pair for pair in pairs if pair[1]])
    rest = record.duration_seconds - record.pause_seconds - record.upload_seconds
    pairs = [
        ("Triggered", moment_text(record.triggered_at)),
        ("Completed", moment_text(record.completed_at)),
        ("Pause of the job", duration_text(record.pause_seconds)),
        ("Upload", duration_text(record.upload_seconds)),
        ("Manifest, log, publishing", duration_text(max(rest, 0.0))),
    ]
    return Detail(
        anchor, told, pairs, [_servers(record.parts, clean), _ranges(record.parts, clean)]
    )


def _servers(parts: Sequence[ServerPart], clean: Clean) -> Rows:
    rows = [
        (
            clean(one.place),
            duration_text(one.seconds),
            size_text(one.bytes_written),
            f"{one.objects:,}",
            f"{len(one.ranges):,}",
            size_text(sum(size for *_, size in one.ranges)),
        )
        for one in sorted(parts, key=lambda one: -one.seconds)[:MOST_ROWS]
    ]
    header, numbers = _SERVERS
    return Rows("By server, slowest first", header, numbers, rows, len(parts) - len(rows))


def _ranges(parts: Sequence[ServerPart], clean: Clean) -> Rows:
    found = sorted((one for part in parts for one in part.ranges), key=lambda one: -one[2])
    rows = [(clean(uid), str(start), size_text(size)) for uid, start, size in found[:MOST_ROWS]]
    header, numbers = _RANGES
    return Rows("By subtask, largest first", header, numbers, rows, len(found) - len(rows))


def _savepoints(now: JobProgress, clean: Clean) -> Section:
    """What can be restored: what this driver completed, and what it found of earlier ones."""
    if now.standby:
        empty = "This driver stands by. The page of the one that has the job says it."
        return Section("savepoints", "Savepoints", empty=empty)
    own = [one for one in now.checkpoints if one.state == "Completed"]
    done = [*own, *now.earlier]
    savepoints = [one for one in done if one.kind == "Savepoint"]
    newest = [one for one in done if one.kind == "Checkpoint"]
    stay = {one.checkpoint_id for one in newest[: now.retain]}
    if now.restored is not None and now.restored.own:
        # A person may have chosen an older one: it stays until as many have followed.
        followed = sum(one.kind == "Checkpoint" for one in own)
        stay |= {now.restored.checkpoint_id} if followed < now.retain else set()
    checkpoints = [one for one in newest if one.checkpoint_id in stay]
    if not savepoints and not checkpoints:
        return Section("savepoints", "Savepoints", empty="Nothing was completed yet.")
    rows = [_restorable(one, clean) for one in (*checkpoints, *savepoints)]
    header, numbers = _RESTORE
    table = Rows("What can be restored", header, numbers, rows)
    return Section("savepoints", "Savepoints", tables=[table])


def _restorable(record: CheckpointRecord, clean: Clean) -> Sequence[str]:
    name = f"chk-{record.checkpoint_id}"
    savepoint = record.kind == "Savepoint"
    return (
        f"savepoint {record.checkpoint_id}" if savepoint else name,
        record.kind.lower(),
        f"{record.epoch:,}",
        moment_text(record.completed_at),
        size_text(record.bytes_total) if record.bytes_total else "",
        f"--restore {clean(record.url) if savepoint else name}",
    )
