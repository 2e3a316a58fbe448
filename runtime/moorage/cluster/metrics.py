"""The driver's metrics, in Prometheus' text format.

Decides their names, labels and meanings; `docs/driver-endpoint.md` lists them from here. What is
known at the moment is read from the board at each scrape; only what must not be missed between two
scrapes (durations, sizes) is counted as it happens.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from moorage import __version__
from moorage.cluster.board import Board, CommittedEpoch
from moorage.driver.views import CheckpointRecord

CONTENT_TYPE = CONTENT_TYPE_LATEST

_LABELS = ("job", "namespace")
_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
_EPOCH_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_BYTES = tuple(float(4**n) for n in range(6, 22, 2))
_Samples = list[tuple[tuple[str, ...], float]]


@dataclass(frozen=True, slots=True)
class Measure:
    """One metric.

    Attributes:
        kind: gauge, counter or histogram.
        labels: beside job and namespace.
        read: its samples, by label values; none while it is not known. None for a histogram.
    """

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    read: Callable[[Board], _Samples] | None = None


def _one(value: Callable[[Board], float | None]) -> Callable[[Board], _Samples]:
    def read(board: Board) -> _Samples:
        found = value(board)
        return [] if found is None else [((), found)]

    return read


def _last(field: Callable[[Board], float]) -> Callable[[Board], _Samples]:
    """Of the newest checkpoint; nothing before there is one."""
    return _one(lambda board: field(board) if board.last_checkpoint() else None)


def _results(board: Board) -> _Samples:
    now = board.progress
    return [
        (("completed",), now.completed_checkpoints),
        (("failed",), now.failed_checkpoints),
    ]


def _phases(board: Board) -> _Samples:
    phase = board.progress.phase
    return [((name,), 1.0 if name == phase else 0.0) for name in PHASES]


def _stored(board: Board) -> float:
    return 0.0 if board.storage_error else 1.0


def _timestamp(board: Board) -> float:
    found = board.last_checkpoint()
    return found.completed_at.timestamp() if found else 0.0


def _of_last(name: str) -> Callable[[Board], float]:
    return lambda board: float(getattr(board.last_checkpoint(), name))


PHASES = (
    "starting",
    "restoring",
    "running",
    "checkpointing",
    "rewinding",
    "stopping",
    "finished",
)

METRICS: tuple[Measure, ...] = (
    Measure(
        "moorage_build_info",
        "gauge",
        "Always 1; the version is a label.",
        ("version",),
        lambda _board: [((__version__,), 1.0)],
    ),
    Measure(
        "moorage_attempt",
        "gauge",
        "The number of this driver among those of the job.",
        read=_one(lambda b: b.attempt.number),
    ),
    Measure(
        "moorage_phase",
        "gauge",
        "1 for what the driver is doing at the moment, 0 for all else.",
        ("phase",),
        _phases,
    ),
    Measure(
        "moorage_fence",
        "gauge",
        "The fence that this driver claimed; 0 before.",
        read=_one(lambda b: b.progress.fence),
    ),
    Measure(
        "moorage_epoch",
        "gauge",
        "The last committed epoch of the lineage.",
        read=_one(lambda b: b.progress.epoch),
    ),
    Measure(
        "moorage_epochs_total",
        "counter",
        "Epochs that this driver committed.",
        read=_one(lambda b: b.progress.epochs),
    ),
    Measure("moorage_epoch_duration_seconds", "histogram", "How long epochs took."),
    Measure(
        "moorage_epoch_age_seconds",
        "gauge",
        "How long the epoch under way has taken; 0 between two.",
        read=_one(lambda b: b.epoch_age()),
    ),
    Measure(
        "moorage_rows_total",
        "counter",
        "Input rows in epochs that this driver committed.",
        read=_one(lambda b: b.progress.rows_total),
    ),
    Measure(
        "moorage_late_rows_total",
        "counter",
        "Of these, rows whose event time the watermark had reached.",
        read=_one(lambda b: b.progress.odd.late),
    ),
    Measure(
        "moorage_null_key_rows_total",
        "counter",
        "Rows that operators dropped or sent to a side output because their key was null.",
        read=_one(lambda b: b.progress.odd.null_keys),
    ),
    Measure(
        "moorage_null_rows_total",
        "counter",
        "Of these, rows of nulls alone, which Spark makes of input that it cannot read.",
        read=_one(lambda b: b.progress.odd.null_rows),
    ),
    Measure(
        "moorage_bad_time_rows_total",
        "counter",
        "Rows that operators dropped or sent to a side output because they had no event time.",
        read=_one(lambda b: b.progress.odd.bad_times),
    ),
    Measure(
        "moorage_clock_behind_seconds",
        "gauge",
        "How far the driver's clock is behind processing time, which stands still until then.",
        read=_one(lambda b: b.progress.clock_behind_seconds),
    ),
    Measure(
        "moorage_rows_per_second",
        "gauge",
        "Input rows per second in the last minute.",
        read=_one(lambda b: b.rates()[1]),
    ),
    Measure(
        "moorage_busy_ratio",
        "gauge",
        "The share of the last minute that was spent in epochs, with the one under way, 0 to 1.",
        read=_one(lambda b: b.rates()[0]),
    ),
    Measure(
        "moorage_state_bytes",
        "gauge",
        "The size of all keyed state, about.",
        read=_one(lambda b: b.progress.state_bytes),
    ),
    Measure(
        "moorage_parallelism",
        "gauge",
        "The number of subtasks.",
        read=_one(lambda b: b.progress.parallelism),
    ),
    Measure(
        "moorage_max_parallelism",
        "gauge",
        "The number of key groups.",
        read=_one(lambda b: b.progress.max_parallelism),
    ),
    Measure(
        "moorage_executors",
        "gauge",
        "Executors: wanted, and able to take tasks.",
        ("state",),
        lambda b: [
            (("desired",), b.progress.executors.desired),
            (("ready",), b.progress.executors.ready),
        ],
    ),
    Measure(
        "moorage_executors_lost_total",
        "counter",
        "Executors that went since the driver began.",
        read=_one(lambda b: b.progress.executors.lost),
    ),
    Measure(
        "moorage_rewinds_total",
        "counter",
        "How often this driver went back to the last checkpoint.",
        read=_one(lambda b: b.progress.rewinds),
    ),
    Measure(
        "moorage_restore_seconds",
        "gauge",
        "How long the last restore took, until the stream ran.",
        read=_one(lambda b: b.progress.restore_seconds),
    ),
    Measure(
        "moorage_checkpoints_total",
        "counter",
        "Checkpoints of this driver that ended, by result; savepoints are not counted.",
        ("result",),
        _results,
    ),
    Measure(
        "moorage_checkpoint_failures_in_a_row",
        "gauge",
        "Checkpoints that failed since one was completed.",
        read=_one(lambda b: b.progress.failed_in_a_row),
    ),
    Measure(
        "moorage_checkpoint_duration_seconds",
        "histogram",
        "From trigger to completion, of completed ones.",
        ("kind",),
    ),
    Measure(
        "moorage_checkpoint_bytes",
        "histogram",
        "Of completed checkpoints: what was uploaded (incremental), what they hold (full).",
        ("kind",),
    ),
    Measure(
        "moorage_last_checkpoint_id",
        "gauge",
        "The id of the newest checkpoint.",
        read=_last(_of_last("id")),
    ),
    Measure(
        "moorage_last_checkpoint_timestamp_seconds",
        "gauge",
        "When the newest checkpoint was completed, in seconds since 1970.",
        read=_last(_timestamp),
    ),
    Measure(
        "moorage_last_checkpoint_size_bytes",
        "gauge",
        "What the newest checkpoint uploaded.",
        read=_last(_of_last("uploaded_bytes")),
    ),
    Measure(
        "moorage_last_checkpoint_full_size_bytes",
        "gauge",
        "What the newest checkpoint holds.",
        read=_last(_of_last("size_bytes")),
    ),
    Measure(
        "moorage_last_checkpoint_duration_seconds",
        "gauge",
        "How long the newest checkpoint took.",
        read=_last(lambda b: _of_last("duration_ms")(b) / 1000),
    ),
    Measure(
        "moorage_storage_reachable",
        "gauge",
        "0 while the store of the checkpoints cannot be used, else 1.",
        read=_one(_stored),
    ),
)


class DriverMetrics(Collector):
    """All metrics of one driver. Call it with what the board observes."""

    def __init__(self, job: str, namespace: str) -> None:
        self._values = (job, namespace)
        self._board: Board | None = None
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._epochs = self._histogram("moorage_epoch_duration_seconds", _EPOCH_SECONDS)
        self._durations = self._histogram("moorage_checkpoint_duration_seconds", _SECONDS)
        self._bytes = self._histogram("moorage_checkpoint_bytes", _BYTES)

    def show(self, board: Board) -> None:
        """From now on scrapes read this board."""
        self._board = board

    def __call__(self, event: CommittedEpoch | CheckpointRecord) -> None:
        """An epoch was committed, or a checkpoint ended."""
        if isinstance(event, CommittedEpoch):
            self._epochs.labels(*self._values).observe(event.seconds)
        elif event.state == "Completed":
            kind = event.kind.lower()
            self._durations.labels(*self._values, kind).observe(event.duration_seconds)
            if event.kind == "Checkpoint":
                self._bytes.labels(*self._values, "incremental").observe(event.bytes_uploaded)
                self._bytes.labels(*self._values, "full").observe(event.bytes_total)

    def text(self) -> bytes:
        """`GET /metrics`."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client.registry.Collector`."""
        board = self._board
        if board is None:
            return
        for measure in METRICS:
            if measure.read is None:
                continue
            labels = [*_LABELS, *measure.labels]
            family = (
                CounterMetricFamily(measure.name, measure.help, labels=labels)
                if measure.kind == "counter"
                else GaugeMetricFamily(measure.name, measure.help, labels=labels)
            )
            for values, value in measure.read(board):
                family.add_metric([*self._values, *values], value)
            yield family

    def _histogram(self, name: str, buckets: tuple[float, ...]) -> Histogram:
        measure = next(m for m in METRICS if m.name == name)
        labels = [*_LABELS, *measure.labels]
        return Histogram(name, measure.help, labels, registry=self._registry, buckets=buckets)


def metrics_table() -> str:
    """The table of the documentation."""
    lines = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for measure in METRICS:
        labels = ", ".join(f"`{name}`" for name in measure.labels)
        lines.append(f"| `{measure.name}` | {measure.kind} | {labels} | {measure.help} |")
    return "\n".join(lines) + "\n"
