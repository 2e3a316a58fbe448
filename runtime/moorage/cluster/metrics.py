"""The driver's metrics, in Prometheus' text format.

Decides their names, labels and meanings; `docs/reference-metrics.md` is made of them. What is
known at the moment is read from the board at each scrape; only what must not be missed between two
scrapes (durations, sizes) is counted as it happens.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from moorage import __version__
from moorage.cluster.board import Board, CommittedEpoch
from moorage.driver.lookups import LookupDone
from moorage.driver.views import CheckpointRecord
from moorage_api.driver import CheckpointSummary, LoadReport, SubtaskLoad
from moorage_state.mounted_secrets import mounted_secrets

CONTENT_TYPE = CONTENT_TYPE_LATEST

_LABELS = ("job", "namespace")
_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
_EPOCH_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_LOOKUP_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1, 5)
_BYTES = tuple(float(4**n) for n in range(6, 22, 2))
PHASES = (
    "starting",
    "restoring",
    "running",
    "checkpointing",
    "rewinding",
    "stopping",
    "finished",
)
_Samples = list[tuple[tuple[str, ...], float]]


@dataclass(frozen=True, slots=True)
class Measure:
    """One metric.

    Attributes:
        kind: gauge, counter or histogram.
        labels: beside job and namespace.
        read: its samples, by label values; none while it is not known. None for what is counted as
            it happens.
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


def _shown(name: str, path: str, meaning: str) -> Measure:
    """A figure of the board, at this path of attributes."""
    read = attrgetter(path)
    return Measure(
        name, "counter" if name.endswith("_total") else "gauge", meaning, read=_one(read)
    )


def _newest(name: str, meaning: str, field: Callable[[CheckpointSummary], float]) -> Measure:
    """A figure of the newest checkpoint; nothing before there is one."""

    def read(board: Board) -> float | None:
        found = board.last_checkpoint()
        return field(found) if found else None

    return Measure(name, "gauge", meaning, read=_one(read))


def _results(board: Board) -> _Samples:
    now = board.progress
    return [
        (("completed",), now.completed_checkpoints),
        (("failed",), now.failed_checkpoints),
    ]


def _materializations(board: Board) -> _Samples:
    view = board.progress.changelog
    if view is None:
        return []
    return [
        (("started",), view.started),
        (("completed",), view.completed),
        (("failed",), view.failed),
    ]


def _uploads(board: Board) -> _Samples:
    view = board.progress.changelog
    if view is None:
        return []
    return [(("completed",), view.uploads), (("failed",), view.failed_uploads)]


def _of_changelog(name: str, field: str, meaning: str) -> Measure:
    """A figure of the changelog; nothing where the job has none."""

    def read(board: Board) -> float | None:
        view = board.progress.changelog
        return getattr(view, field) if view else None

    kind = "counter" if name.endswith("_total") else "gauge"
    meaning = f"{meaning}; only where the job has a changelog."
    return Measure(name, kind, meaning, read=_one(read))


def _opened(board: Board) -> _Samples:
    return [((source,), n) for source, (n, _) in sorted(board.progress.opened.items())]


def _restored(board: Board) -> _Samples:
    return [((source,), n) for source, (_, n) in sorted(board.progress.opened.items())]


def _phases(board: Board) -> _Samples:
    phase = board.progress.phase
    return [((name,), 1.0 if name == phase else 0.0) for name in PHASES]


def _stored(board: Board) -> float:
    return 0.0 if board.storage_error else 1.0


def _refused(_board: Board) -> _Samples:
    found = sorted(mounted_secrets().items())
    return [((kind,), float(secret.refused)) for kind, secret in found]


def _certificate_ends(_board: Board) -> _Samples:
    found = mounted_secrets().get("certificate")
    return [] if found is None or found.ends is None else [((), found.ends)]


def _of_subtasks(
    read: Callable[[SubtaskLoad, LoadReport], float | None],
) -> Callable[[Board], _Samples]:
    """A figure of each operator's busiest subtask and of the median; none that is unknown."""

    def samples(board: Board) -> _Samples:
        load = board.load()
        return [
            ((one.uid, which), value)
            for one in (load.operators if load is not None else ())
            for which, done in (("busiest", one.most), ("median", one.median))
            if load is not None and (value := read(done, load)) is not None
        ]

    return samples


def _subtask_busy(done: SubtaskLoad, load: LoadReport) -> float | None:
    known, share = done.busy_seconds > 0, load.of_window / max(load.seconds, 1e-3)
    return min(done.busy_seconds * share, 1.0) if known else None


def _subtask_rate(done: SubtaskLoad, load: LoadReport) -> float | None:
    del load
    return done.rows / done.busy_seconds if done.busy_seconds > 0 else None


METRICS: tuple[Measure, ...] = (
    Measure(
        "moorage_build_info",
        "gauge",
        "Always 1; the version is a label.",
        ("version",),
        lambda _board: [((__version__,), 1.0)],
    ),
    _shown(
        "moorage_attempt", "attempt.number", "The number of this driver among those of the job."
    ),
    Measure(
        "moorage_phase",
        "gauge",
        "1 for what the driver is doing at the moment, 0 for all else.",
        ("phase",),
        _phases,
    ),
    _shown("moorage_fence", "progress.fence", "The fence that this driver claimed; 0 before."),
    _shown("moorage_epoch", "progress.epoch", "The last committed epoch of the lineage."),
    _shown("moorage_epochs_total", "progress.epochs", "Epochs that this driver committed."),
    Measure("moorage_epoch_duration_seconds", "histogram", "How long epochs took."),
    Measure(
        "moorage_epoch_age_seconds",
        "gauge",
        "How long the epoch under way has taken; 0 between two.",
        read=_one(lambda b: b.epoch_age()),
    ),
    _shown(
        "moorage_rows_total",
        "progress.rows_total",
        "Input rows in epochs that this driver committed.",
    ),
    _shown(
        "moorage_late_rows_total",
        "progress.odd.late",
        "Of these, rows whose event time the watermark had reached.",
    ),
    _shown(
        "moorage_late_rows_dropped_total",
        "progress.odd.late_dropped",
        "Rows that windows and joins dropped because they came too late.",
    ),
    _shown(
        "moorage_null_key_rows_total",
        "progress.odd.null_keys",
        "Rows that operators dropped or sent to a side output because their key was null.",
    ),
    _shown(
        "moorage_null_rows_total",
        "progress.odd.null_rows",
        "Of these, rows of nulls alone, which Spark makes of input that it cannot read.",
    ),
    _shown(
        "moorage_bad_time_rows_total",
        "progress.odd.bad_times",
        "Rows that operators dropped or sent to a side output because they had no event time.",
    ),
    _shown(
        "moorage_clock_behind_seconds",
        "progress.clock_behind_seconds",
        "How far the driver's clock is behind processing time, which stands still until then.",
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
        "moorage_source_lag_rows",
        "gauge",
        "Rows that sources have and no epoch has taken; only of sources that say it, as Kafka's.",
        read=_one(lambda b: b.progress.lag_rows),
    ),
    Measure(
        "moorage_watermark_timestamp_seconds",
        "gauge",
        "The watermark of an operator, in seconds since 1970; not there before its first, and at "
        "the end of the input.",
        ("operator",),
        lambda b: [
            ((one.uid,), one.time_ms / 1000)
            for one in b.progress.watermarks
            if one.time_ms is not None
        ],
    ),
    _shown("moorage_state_bytes", "progress.state_bytes", "The size of all keyed state, about."),
    Measure(
        "moorage_subtask_busy_ratio",
        "gauge",
        "The share of autoscaler.window in which a subtask was at work, 0 to 1: the operator's "
        "busiest one, and the median of all. Not of an operator whose rows another one reads.",
        ("operator", "subtask"),
        _of_subtasks(_subtask_busy),
    ),
    Measure(
        "moorage_subtask_true_rate",
        "gauge",
        "Rows by second at work of a subtask: the operator's busiest one, and the median of all.",
        ("operator", "subtask"),
        _of_subtasks(_subtask_rate),
    ),
    Measure(
        "moorage_subtask_state_bytes",
        "gauge",
        "The size of a subtask's keyed state, about: the operator's busiest one, and the median.",
        ("operator", "subtask"),
        _of_subtasks(lambda done, _load: done.state_bytes),
    ),
    _shown("moorage_parallelism", "progress.parallelism", "The number of subtasks."),
    _shown("moorage_max_parallelism", "progress.max_parallelism", "The number of key groups."),
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
    _shown(
        "moorage_executors_lost_total",
        "progress.executors.lost",
        "Executors that went since the driver began.",
    ),
    _shown(
        "moorage_rewinds_total",
        "progress.rewinds",
        "How often this driver went back to the last checkpoint.",
    ),
    _shown(
        "moorage_restore_seconds",
        "progress.restore_seconds",
        "How long the last restore took, until the stream ran.",
    ),
    Measure(
        "moorage_ranges_opened_total",
        "counter",
        "Ranges that runs of this driver began with, by source: live, local, store, empty.",
        ("source",),
        _opened,
    ),
    Measure(
        "moorage_ranges_opened_bytes_total",
        "counter",
        "What was fetched or copied for them; of those that were live, what was undone.",
        ("source",),
        _restored,
    ),
    Measure(
        "moorage_checkpoints_total",
        "counter",
        "Checkpoints of this driver that ended, by result; savepoints are not counted.",
        ("result",),
        _results,
    ),
    _shown(
        "moorage_checkpoint_failures_in_a_row",
        "progress.failed_in_a_row",
        "Checkpoints that failed since one was completed.",
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
    _newest("moorage_last_checkpoint_id", "The id of the newest checkpoint.", lambda c: c.id),
    _newest(
        "moorage_last_checkpoint_timestamp_seconds",
        "When the newest checkpoint was completed, in seconds since 1970.",
        lambda c: c.completed_at.timestamp(),
    ),
    _newest(
        "moorage_last_checkpoint_size_bytes",
        "What the newest checkpoint uploaded.",
        lambda c: c.uploaded_bytes,
    ),
    _newest(
        "moorage_last_checkpoint_full_size_bytes",
        "What the newest checkpoint holds.",
        lambda c: c.size_bytes,
    ),
    _newest(
        "moorage_last_checkpoint_duration_seconds",
        "How long the newest checkpoint took.",
        lambda c: c.duration_ms / 1000,
    ),
    Measure(
        "moorage_changelog_materializations_total",
        "counter",
        "Materializations of the changelog by this driver; only where the job has one.",
        ("result",),
        _materializations,
    ),
    _of_changelog(
        "moorage_changelog_last_materialization_seconds",
        "last_seconds",
        "How long the newest completed materialization took",
    ),
    _of_changelog(
        "moorage_changelog_last_materialization_bytes",
        "last_bytes",
        "What the newest completed materialization uploaded",
    ),
    Measure(
        "moorage_changelog_uploads_total",
        "counter",
        "Uploads of deltas, with checkpoints and ahead; only where the job has a changelog.",
        ("result",),
        _uploads,
    ),
    _of_changelog(
        "moorage_changelog_upload_seconds_total",
        "upload_seconds",
        "How long completed uploads of deltas took, all together",
    ),
    _of_changelog(
        "moorage_changelog_upload_bytes_total",
        "upload_bytes",
        "What they brought to the store",
    ),
    _of_changelog(
        "moorage_changelog_upload_objects_total",
        "upload_objects",
        "In how many objects",
    ),
    _of_changelog(
        "moorage_changelog_upload_attempts_total",
        "upload_attempts",
        "Attempts at writing these: one for each, and one for each request that the store had to "
        "be asked again",
    ),
    Measure(
        "moorage_storage_reachable",
        "gauge",
        "0 while the store of the checkpoints cannot be used, else 1.",
        read=_one(_stored),
    ),
    Measure(
        "moorage_certificate_expiry_timestamp_seconds",
        "gauge",
        "When the certificate that the driver uses ends, in seconds since 1970; only with TLS.",
        read=_certificate_ends,
    ),
    Measure(
        "moorage_secret_refused",
        "gauge",
        "1 while the files of a Secret will not do and what was there before is used: "
        "certificate, store_keys. Only of those that the driver has.",
        ("secret",),
        _refused,
    ),
    Measure(
        "moorage_state_lookups_total",
        "counter",
        "Look-ups in queryable state, by how they ended: answered, refused, unavailable.",
        ("result",),
    ),
    Measure("moorage_state_lookup_keys_total", "counter", "Keys of those that were answered."),
    Measure(
        "moorage_state_lookup_duration_seconds", "histogram", "How long look-ups took, all of them."
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
        self._lookups = self._counter("moorage_state_lookups_total")
        self._keys = self._counter("moorage_state_lookup_keys_total").labels(*self._values)
        self._lookup_seconds = self._histogram(
            "moorage_state_lookup_duration_seconds", _LOOKUP_SECONDS
        ).labels(*self._values)

    def show(self, board: Board) -> None:
        """From now on scrapes read this board."""
        self._board = board

    def __call__(self, event: CommittedEpoch | CheckpointRecord | LookupDone) -> None:
        """An epoch was committed, or a checkpoint or a look-up ended."""
        if self._board is not None and self._board.progress.standby:
            return
        if isinstance(event, LookupDone):
            self._lookups.labels(*self._values, event.result).inc()
            self._keys.inc(event.keys)
            self._lookup_seconds.observe(event.seconds)
        elif isinstance(event, CommittedEpoch):
            self._epochs.labels(*self._values).observe(event.seconds)
        elif event.state == "Completed":
            kind = event.kind.lower()
            self._durations.labels(*self._values, kind).observe(event.duration_seconds)
            if event.kind == "Checkpoint":
                self._bytes.labels(*self._values, "incremental").observe(event.bytes_uploaded)
                self._bytes.labels(*self._values, "full").observe(event.bytes_total)

    def text(self) -> bytes:
        """`GET /metrics`; nothing of a driver that stands by: the job's are another one's."""
        if self._board is not None and self._board.progress.standby:
            return b""
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

    def _counter(self, name: str) -> Counter:
        measure = next(m for m in METRICS if m.name == name)
        labels = [*_LABELS, *measure.labels]
        return Counter(name, measure.help, labels, registry=self._registry)

    def _histogram(self, name: str, buckets: tuple[float, ...]) -> Histogram:
        measure = next(m for m in METRICS if m.name == name)
        labels = [*_LABELS, *measure.labels]
        return Histogram(name, measure.help, labels, registry=self._registry, buckets=buckets)
