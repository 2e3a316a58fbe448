"""What the driver reports of checkpoints and savepoints: plain values, for people and for programs.

Called by everything that shows a run: the command line, the cluster's endpoint, tests.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """A completed checkpoint.

    Attributes:
        completed_at: when its log entry was written; with a time zone.
        bytes_uploaded: how much of that was not in the store before.
        duration_seconds: from trigger to completion.
        objects_written: how many objects the upload made, beside the manifest.
    """

    checkpoint_id: int
    epoch: int
    completed_at: datetime
    bytes_total: int
    bytes_uploaded: int
    duration_seconds: float
    objects_written: int = 0


@dataclass(frozen=True, slots=True)
class ChangelogView:
    """What a changelog costs this driver: materializations, and uploads of deltas.

    Attributes:
        failed: those that failed where a server that was lost is not why.
        last_seconds: how long the last one took that was completed.
        last_bytes: what it uploaded.
        uploads: of deltas, with checkpoints and ahead of them, that brought something to the store.
        failed_uploads: those that did not; the next one takes what they had.
        upload_seconds: how long uploads took, all together.
        upload_bytes: what they brought to the store.
        upload_objects: in how many objects.
        upload_attempts: at writing these: one for each, and one for each request that was repeated.
    """

    started: int = 0
    completed: int = 0
    failed: int = 0
    last_seconds: float = 0.0
    last_bytes: int = 0
    uploads: int = 0
    failed_uploads: int = 0
    upload_seconds: float = 0.0
    upload_bytes: int = 0
    upload_objects: int = 0
    upload_attempts: int = 0


@dataclass(frozen=True, slots=True)
class OddRows:
    """Rows that somebody should know of; operators that read the same row count it each.

    Attributes:
        late: input rows whose event time the watermark had reached.
        late_dropped: rows that windows and joins dropped because they came too late; like `late`
            they were processed, and are counted as rows.
        null_keys: rows that operators did not process because their key was null.
        null_rows: how many of these had nulls alone: input that Spark could not read.
        bad_times: rows that they did not process as they lacked the time that is declared.
    """

    late: int = 0
    null_keys: int = 0
    null_rows: int = 0
    bad_times: int = 0
    late_dropped: int = 0

    def __add__(self, other: "OddRows") -> "OddRows":
        return OddRows(
            self.late + other.late,
            self.null_keys + other.null_keys,
            self.null_rows + other.null_rows,
            self.bad_times + other.bad_times,
            self.late_dropped + other.late_dropped,
        )

    def beside(self, rows: int) -> str:
        """Such as "9 rows (3 late) and 2 not processed (2 with a null key)", of 9 that were."""
        late = ((self.late, "late"), (self.late_dropped, "dropped as too late"))
        odd = (
            (self.null_keys, "with a null key"),
            (self.null_rows, "of these all null"),
            (self.bad_times, "without a time"),
        )
        unprocessed = self.null_keys + self.bad_times
        told = f"{rows:,} rows{_kinds(late)}"
        return f"{told} and {unprocessed:,} not processed{_kinds(odd)}" if unprocessed else told


def _kinds(counts: Iterable[tuple[int, str]]) -> str:
    told = ", ".join(f"{count:,} {kind}" for count, kind in counts if count)
    return f" ({told})" if told else ""


@dataclass(frozen=True, slots=True)
class WatermarkView:
    """How far event time has come for an operator.

    Attributes:
        time_ms: in milliseconds since 1970 UTC; None before each of its inputs has shown a time.
        held_by: the input that it waits for; empty where all are idle.
    """

    uid: str
    time_ms: int | None
    held_by: str = ""


def furthest_behind(watermarks: Iterable[WatermarkView]) -> WatermarkView | None:
    """The one that is, which is one without a time where any has none; None of none."""
    return min(
        watermarks,
        key=lambda one: (one.time_ms is not None, one.time_ms or 0, one.uid),
        default=None,
    )


@dataclass(frozen=True, slots=True)
class SavepointView:
    """A completed savepoint: what to name to restore it, and what it cost.

    Attributes:
        manifest_digest: of its manifest; who restores it may insist on it.
        completed_at: with a time zone; None where the asked program did not say.
    """

    name: str
    url: str
    checkpoint_id: int
    epoch: int
    bytes_total: int
    duration_seconds: float
    manifest_digest: str = ""
    max_parallelism: int = 0
    completed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node of the job's graph.

    Attributes:
        uid: of a transform that of its source; with `kind` it names the node.
        about: what a person knows it by: its class, its key columns, its path.
    """

    kind: Literal["source", "transform", "operator", "sink"]
    uid: str
    about: str = ""


@dataclass(frozen=True, slots=True)
class GraphView:
    """What a job is made of.

    Attributes:
        edges: positions of two nodes, and what goes between them ("" for the main output).
    """

    nodes: tuple[NodeView, ...] = ()
    edges: tuple[tuple[int, int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class SinkOutput:
    """Whether a sink takes output back, and from where; empty where output stays."""

    uid: str
    takes_back: str = ""


@dataclass(frozen=True, slots=True)
class SubtaskView:
    """What a subtask of an operator, or a sink without one, did since the run began.

    Attributes:
        key_groups: the first and the last; None for a sink.
        place: the address of the server that holds its state; empty for a sink.
        busy_seconds: from the first row of an epoch to its acknowledgement, over all epochs.
        last_seconds: the same of the last epoch.
        null_keys, bad_times: rows that were not processed, for these reasons.
    """

    uid: str
    subtask: int
    key_groups: tuple[int, int] | None
    place: str
    rows_in: int = 0
    rows_out: int = 0
    timers_fired: int = 0
    late: int = 0
    null_keys: int = 0
    bad_times: int = 0
    busy_seconds: float = 0.0
    last_seconds: float = 0.0
    state_bytes: int = 0


@dataclass(frozen=True, slots=True)
class QueryableView:
    """A state whose values can be asked for; `about` says where it is and of what types."""

    name: str
    about: str


@dataclass(frozen=True, slots=True)
class SampleSegment:
    """Some epochs in a row, for who compares what two versions give.

    Attributes:
        end: where sources stood after them: by input uid, see `driver/samples.py`.
        rows: by sink uid, how often each hash came.
    """

    epochs: int
    end: Mapping[str, Mapping[str, int | float | str]]
    rows: Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True)
class SampleView:
    """The sample of a driver's output.

    Attributes:
        percent: of all different rows, at first.
        except_columns: these did not count.
        since_epoch: it is of what came after this one.
        start: where sources stood then.
        limits: by sink uid, the highest hash that is in it.
        trouble: why there is nothing in it; empty if there may be.
    """

    percent: int
    except_columns: tuple[str, ...] = ()
    since_epoch: int = 0
    start: Mapping[str, Mapping[str, int | float | str]] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    segments: tuple[SampleSegment, ...] = ()
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class EpochPhases:
    """Where the time of an epoch went, in seconds; all but `wait` together are the epoch.

    Attributes:
        wait: since the epoch before: for rows, for the interval, for checkpoints to be begun.
        plan: until Spark was asked.
        source: until the first subtask began: sources were read, transformed and written for the
            shuffle; operators whose rows another one reads have their time in it, and in shuffle.
        shuffle: what Spark took beyond: rows on their way to subtasks, tasks that start or wait for
            a core, attempts that failed.
        function, state, sink: of the slowest subtask of each operator, together: in exchanges with
            its state server, in sinks that stage, and the rest, which is the job's own code and
            what the engine does around it.
        commit: state servers made what was prepared the state.
        output: sinks took what was staged, and what else was to do.
    """

    wait: float = 0.0
    plan: float = 0.0
    source: float = 0.0
    shuffle: float = 0.0
    function: float = 0.0
    state: float = 0.0
    sink: float = 0.0
    commit: float = 0.0
    output: float = 0.0


@dataclass(frozen=True, slots=True)
class FailureView:
    """Why something failed.

    Attributes:
        code: a stable word: the code of an error, or the name of a checkpoint failure reason.
        message: for people.
    """

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class RestoredView:
    """What a run began from.

    Attributes:
        path: `chk-<id>`, or the address of a savepoint or of another lineage's checkpoint.
        own: it is a checkpoint of the job's own lineage.
    """

    path: str
    checkpoint_id: int
    completed_at: datetime
    own: bool


@dataclass(frozen=True, slots=True)
class ExecutorsView:
    """The processes that do the work."""

    desired: int = 0
    ready: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class ServerPart:
    """What one state server wrote of a checkpoint.

    Attributes:
        ranges: of each its operator's uid, its first key group and its size in bytes.
    """

    place: str
    seconds: float
    objects: int
    bytes_written: int
    ranges: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class CheckpointTimes:
    """How long the steps of a checkpoint took, as its manifest keeps it for people.

    Attributes:
        pause_seconds: for which the job stood still, while its state was linked.
        upload_seconds: for which it was brought to the store, beside the epochs.
        servers: by whom; without their ranges, which the manifest lists.
    """

    pause_seconds: float
    upload_seconds: float
    servers: tuple[ServerPart, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """A checkpoint or savepoint of this driver, completed or not.

    Attributes:
        url: of a savepoint, what a person names to restore it; empty unless it completed.
        pause_seconds: for which the job stood still, while its state was linked.
        upload_seconds: for which it was brought to the store, beside the epochs.
        parts: by whom; of the latest ones alone.
        servers: of a savepoint that is under way, how many servers have written their part, and
            how many are to; None before they begin.
        triggered_at: with a time zone, as is `completed_at`, which is None unless it completed.
        duration_seconds: from trigger to end, whichever end it was; 0 while it is under way.
    """

    checkpoint_id: int
    kind: Literal["Checkpoint", "Savepoint"]
    state: Literal["InProgress", "Completed", "Failed"]
    triggered_at: datetime
    completed_at: datetime | None = None
    duration_seconds: float = 0.0
    bytes_total: int = 0
    bytes_uploaded: int = 0
    objects_written: int = 0
    failure: FailureView | None = None
    epoch: int = 0
    url: str = ""
    pause_seconds: float = 0.0
    upload_seconds: float = 0.0
    parts: tuple[ServerPart, ...] = ()
    servers: tuple[int, int] | None = None
