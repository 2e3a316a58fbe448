"""What is shown of a run beside its progress: its graph, its subtasks, and where epochs' time went.

Turns what the engine knows into plain values. Called by a run of the stream, between two epochs.
"""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from moorage.api.functions import NO_WATERMARK
from moorage.api.graph import Branch, InputNode, JobGraph
from moorage.api.streams import DataStream
from moorage.driver.settings import JobSettings
from moorage.driver.views import (
    CheckpointRecord,
    EpochPhases,
    GraphView,
    NodeView,
    QueryableView,
    SinkOutput,
    SubtaskView,
    WatermarkView,
)
from moorage.engine.acks import Ack, EpochOutcome
from moorage.engine.event_time import Watermarks
from moorage.engine.fleet import RangeFleet
from moorage.engine.kv_states import KvStateLocationRegistry
from moorage.redaction import redact
from moorage.texts import duration_text, moment_text, unit_of
from moorage_state.errors import UserError
from moorage_state.snapshots import Checkpoint, Entry, Run, Savepoint, retained
from moorage_state.snapshots.history import savepoints

_TOLD_SECONDS = 1.0
"""Between two looks at all subtasks: epochs may be many a second."""
_DIGEST = 12
_EARLIER = 20
"""So many checkpoints and so many savepoints of earlier drivers are told of."""


class _Drawing:
    """A graph in the making."""

    def __init__(self) -> None:
        self.nodes: dict[tuple[str, str, int], int] = {}
        self.views: list[NodeView] = []
        self.edges: dict[tuple[int, int, str], None] = {}

    def node(self, view: NodeView, number: int = 0) -> int:
        """The place of a node; `number` tells those of one source's transforms apart."""
        key = view.kind, view.uid, number
        if key not in self.nodes:
            self.nodes[key] = len(self.views)
            self.views.append(view)
        return self.nodes[key]

    def edge(self, source: int, target: int, label: str = "") -> None:
        self.edges[source, target, label] = None


def graph_view(graph: JobGraph) -> GraphView:
    """The graph of a job: what reads what."""
    drawing = _Drawing()
    for node in graph.inputs:
        drawing.node(_source(node))
    for operator in graph.operators:
        keys = ", ".join(operator.key_columns)
        about = f"{type(operator.function).__name__} by {keys}"
        place = drawing.node(NodeView("operator", operator.uid, about))
        for keyed in operator.keyed_inputs:
            _connect(drawing, keyed.stream, place)
        for branch in operator.broadcast_branches:
            drawing.edge(_branch(drawing, branch), place, "broadcast")
    for sink in graph.sinks:
        place = drawing.node(NodeView("sink", sink.uid, type(sink.sink).__name__))
        _connect(drawing, sink.upstream, place)
    return GraphView(tuple(drawing.views), tuple(drawing.edges))


def watermarks_of(now: Watermarks) -> tuple[WatermarkView, ...]:
    """Of each operator that has event time; of none once all input has ended."""
    if now.drained:
        return ()
    views = []
    for uid, clocks in now.readers.items():
        if clocks:
            time_ms = now.of(uid)
            known = time_ms if time_ms > NO_WATERMARK else None
            views.append(WatermarkView(uid, known, now.held_by(uid)))
    return tuple(views)


_YEAR_MS = 366 * 86_400_000
_YEAR_1_MS = -62_135_596_800_000
_AHEAD = (
    "a watermark that goes there does not come back, and rows with right times are late then: once "
    "corrected, begin from a checkpoint of before, or with another checkpointDir"
)
_AS_LONG = (
    "declare as long what is a number in JSON: as a timestamp Spark takes it for seconds, and a "
    "large one for any time"
)
_UNITS = {
    "seconds": (
        "then it goes a thousand times too slowly, and windows and timers hardly end: convert the "
        "column in transform before with_event_time: timestamp_seconds of pyspark.sql.functions"
    ),
    "microseconds": (
        f"{_AHEAD}; convert a long in transform before with_event_time: timestamp_micros of "
        f"pyspark.sql.functions; or {_AS_LONG}"
    ),
    "nanoseconds": (f"{_AHEAD}; divide a long by a million in transform before with_event_time"),
}


def strange_times_of(now: Watermarks, now_ms: int) -> dict[str, str]:
    """By clock whose newest event time can hardly be meant, what to tell of it.

    Args:
        now_ms: processing time.
    """
    found = {}
    for name, one in now.inputs.items():
        newest = one.newest
        if newest is None:
            continue
        shown = f"input={name} newest={moment_text(newest)}"
        if unit := unit_of(newest):
            found[name] = (
                f"event time may be in {unit}, taken for milliseconds: {shown}; {_UNITS[unit]}"
            )
        elif newest > now_ms + _YEAR_MS:
            found[name] = (
                f"event time is more than a year ahead of the clock: {shown}; {_AHEAD}; leave such "
                f"rows out in transform before with_event_time; or {_AS_LONG}"
            )
        elif newest < _YEAR_1_MS:
            found[name] = f"event time is before the year 1: {shown}; {_AS_LONG}"
    return found


def outputs_of(graph: JobGraph) -> tuple[SinkOutput, ...]:
    """The sinks, and from where each takes output back.

    Addresses may be long, or have credentials in them: only whether two are the same counts.
    """
    found = []
    for node in graph.sinks:
        call = getattr(node.sink, "takes_back", None)
        place = call() if callable(call) else ""
        if not isinstance(place, str):
            raise UserError(
                f"takes_back of a sink returned no text: sink={node.uid} "
                f"found={type(place).__name__}; return a word for the place, or an empty text"
            )
        digest = hashlib.sha256(place.encode()).hexdigest()[:_DIGEST] if place else ""
        found.append(SinkOutput(node.uid, digest))
    return tuple(found)


def configuration_of(settings: JobSettings) -> list[tuple[str, str]]:
    """How a job's checkpoints and epochs are configured, for people."""
    every = "none: one at the end"
    if settings.checkpoint_cron is not None:
        every = f"cron {settings.checkpoint_cron} UTC"
    elif settings.interval_seconds is not None:
        every = duration_text(settings.interval_seconds)
    kept = settings.retention.name.replace("_", " ").lower() if settings.retention else "retained"
    tolerance = "the job fails" if settings.fail_on_tolerance else "the job goes on"
    changelog = settings.changelog is not None
    return [
        ("Checkpoint directory", settings.checkpoint_dir),
        ("Savepoint directory", settings.savepoint_dir or "none: set state.savepointDir"),
        ("Checkpoints every", every),
        ("Timeout", duration_text(settings.timeout_seconds)),
        ("Pause between two", duration_text(settings.min_pause_seconds)),
        ("At once", "1" if changelog else str(settings.max_concurrent)),
        ("Kept", f"the newest {settings.retain}; at the end of the job: {kept}"),
        ("Failures in a row", f"{settings.tolerable_failures} are tolerated, then {tolerance}"),
        ("Incremental", "yes" if settings.incremental or changelog else "no"),
        ("Changelog", "yes" if changelog else "no"),
        ("Output", "exactly once, published with checkpoints"),
        ("State backend", settings.backend.identifier),
        ("Epochs every", duration_text(settings.epoch_seconds)),
        ("Records per epoch", f"at most {settings.max_records_per_epoch:,}"),
    ]


def earlier_of(entries: Sequence[Entry], claimed: str = "") -> tuple[CheckpointRecord, ...]:
    """What earlier drivers of a lineage left: checkpoints, then savepoints, the newest of each.

    Without sizes, which manifests alone have, and without savepoints that are the job's to delete.

    Args:
        claimed: the digest of the savepoint that this driver begins from with a claim; or empty.
    """
    ours = {one.claimed for one in entries if isinstance(one, Run)} | {claimed}
    kept = [one for one in savepoints(entries) if one.manifest_digest not in ours]
    found: list[Checkpoint | Savepoint] = [*retained(entries)[:_EARLIER]]
    found += reversed(kept[-_EARLIER:])
    return tuple(
        CheckpointRecord(
            one.checkpoint_id,
            "Savepoint" if isinstance(one, Savepoint) else "Checkpoint",
            "Completed",
            one.completed_at,
            one.completed_at,
            epoch=one.epoch,
            url=one.url if isinstance(one, Savepoint) else "",
        )
        for one in found
    )


def queryable_of(known: KvStateLocationRegistry) -> tuple[QueryableView, ...]:
    """The states that may be looked up, with what a person needs to know to ask."""
    views = []
    for one in known.locations():
        state = one.schema
        types = f"{state.key_type} to {state.type}" if state.key_type else state.type
        keys = ", ".join(one.key_types)
        views.append(
            QueryableView(one.name, f"{one.uid}/{state.name}, {state.kind} of {types}, by {keys}")
        )
    return tuple(views)


def _source(node: InputNode) -> NodeView:
    # It goes into manifests, where no credentials belong.
    about = redact(" ".join(filter(None, (node.source, node.files))), {})
    return NodeView("source", node.uid, about)


def _connect(drawing: _Drawing, stream: DataStream, target: int) -> None:
    if stream.operator is not None:
        source = drawing.nodes["operator", stream.operator.uid, 0]
        drawing.edge(source, target, stream.side_output or "")
        return
    for branch in stream.branches:
        drawing.edge(_branch(drawing, branch), target)


def _branch(drawing: _Drawing, branch: Branch) -> int:
    """The last node of an input's way to who reads it."""
    place = drawing.node(_source(branch.node))
    if not branch.transforms:
        return place
    names = [getattr(one, "__name__", type(one).__name__) for one in branch.transforms]
    about = ", ".join("function" if name == "<lambda>" else name for name in names)
    number = hash(tuple(map(id, branch.transforms)))
    last = drawing.node(NodeView("transform", branch.node.uid, about), number)
    drawing.edge(place, last)
    return last


@dataclass(slots=True)
class _Sums:
    rows_in: int = 0
    rows_out: int = 0
    timers_fired: int = 0
    late: int = 0
    null_keys: int = 0
    bad_times: int = 0
    busy_seconds: float = 0.0
    last_seconds: float = 0.0

    def add(self, ack: Ack) -> None:
        self.rows_in += ack.rows_in
        self.rows_out += ack.rows_out
        self.timers_fired += ack.timers_fired
        self.late += ack.late_rows
        self.null_keys += ack.null_keys
        self.bad_times += ack.bad_times + ack.bad_broadcasts
        self.busy_seconds += ack.seconds
        self.last_seconds = ack.seconds


class Figures:
    """What the subtasks of one run did, and where the time of its epochs went."""

    def __init__(self, fleet: RangeFleet, clock: Callable[[], float] = time.monotonic) -> None:
        self._fleet = fleet
        self._clock = clock
        self._sums: dict[tuple[str, int], _Sums] = {}
        self._sinks: dict[str, _Sums] = {}
        self._told = float("-inf")
        self._ended = clock()

    def take(self, outcome: EpochOutcome) -> tuple[SubtaskView, ...] | None:
        """Add an epoch; returns all subtasks, operator by operator, if it is time to tell."""
        for key, ack in outcome.acks.items():
            self._sums.setdefault(key, _Sums()).add(ack)
        for ack in outcome.stateless:
            self._sinks.setdefault(ack.uid, _Sums()).add(ack)
        now = self._clock()
        if now - self._told < _TOLD_SECONDS:
            return None
        self._told = now
        return self._views()

    def _views(self) -> tuple[SubtaskView, ...]:
        views: list[SubtaskView] = []
        for (uid, subtask), (spec, place, size) in self._fleet.look().items():
            if (sums := self._sums.get((uid, subtask))) is not None:
                views.append(_view(uid, subtask, (spec.start, spec.end), place, size, sums))
        views += [_view(uid, 0, None, "", 0, sums) for uid, sums in self._sinks.items()]
        return tuple(views)

    def phases(
        self, outcome: EpochOutcome, timed: Mapping[str, float], began: float, committed: float
    ) -> EpochPhases:
        """Where the time of an epoch went that ends now.

        Args:
            timed: see `EpochRunner.phases`.
            began, committed: on the clock.
        """
        slowest: dict[str, Ack] = {}
        for ack in (*outcome.acks.values(), *outcome.stateless):
            if _worked(ack) >= _worked(slowest.setdefault(ack.uid, ack)):
                slowest[ack.uid] = ack
        subtasks = sum(map(_worked, slowest.values()))
        # Of operators side by side the sum may be more than all.
        scale = min(timed["run"] / subtasks, 1.0) if subtasks else 0.0
        state = scale * sum(ack.state_seconds for ack in slowest.values())
        sink = scale * sum(ack.sink_seconds for ack in slowest.values())
        rest = timed["run"] - scale * subtasks
        # Sinks without an operator read the sources themselves, in their own tasks.
        source = min(timed["source"], rest) if outcome.acks else rest
        before, self._ended = self._ended, self._clock()
        known = timed["plan"] + timed["run"] + timed["commit"]
        return EpochPhases(
            wait=max(began - before, 0.0),
            plan=timed["plan"] + max(committed - began - known, 0.0),
            source=source,
            shuffle=rest - source,
            function=max(scale * subtasks - state - sink, 0.0),
            state=state,
            sink=sink,
            commit=timed["commit"],
            output=max(self._ended - committed, 0.0),
        )


def _worked(ack: Ack) -> float:
    return ack.seconds - ack.wait_seconds


def _view(
    uid: str,
    subtask: int,
    key_groups: tuple[int, int] | None,
    place: str,
    state_bytes: int,
    sums: _Sums,
) -> SubtaskView:
    return SubtaskView(
        uid=uid,
        subtask=subtask,
        key_groups=key_groups,
        place=place,
        rows_in=sums.rows_in,
        rows_out=sums.rows_out,
        timers_fired=sums.timers_fired,
        late=sums.late,
        null_keys=sums.null_keys,
        bad_times=sums.bad_times,
        busy_seconds=sums.busy_seconds,
        last_seconds=sums.last_seconds,
        state_bytes=state_bytes,
    )
