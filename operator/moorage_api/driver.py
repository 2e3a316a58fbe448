"""What the operator and a job's driver say to each other: orders, reports, and the driver's end.

Decides the shapes of three documents: `start.json`, which the operator mounts into the driver's
pod; the bodies of the driver's HTTP endpoint; and the message a driver leaves when it ends. The
runtime writes and the operator reads them, or the other way round; both import this module alone.
Orders are strict. Reports are read leniently, since a newer driver may say more.
"""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from moorage_api.model import Items, Model

DRIVER_FORMAT = 1
"""The version of all documents here."""

ENDPOINT_PORT = 7780
PAGE_PATH = "/"
CONFIG_DIR = "/etc/moorage/config"
TOKEN_FILE = "/etc/moorage/token/token"  # noqa: S105  where it lies, not what it is
SPARK_SECRET_FILE = "/etc/moorage/token/spark-file"  # noqa: S105  as above
SCRAPE_FILE = "/etc/moorage/scrape/token"


def certificate_name(job: str, namespace: str) -> str:
    """The DNS name that the certificate of a job's pods has: that of its Service.

    Pods are reached by addresses that no certificate can know; this name is asked for instead,
    in executors' pods too.
    """
    return f"{job}-driver.{namespace}.svc"


STATE_PATH = "/state"
STATUS_PATH = "/status"
CHECKPOINTS_PATH = "/checkpoints"
SAVEPOINTS_PATH = "/savepoints"
STOP_PATH = "/stop"
RESCALE_PATH = "/rescale"
PROMOTE_PATH = "/promote"
REQUESTS_PATH = "/requests"
METRICS_PATH = "/metrics"
HEALTH_PATH = "/healthz"

RequestId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = datetime(3000, 1, 1, tzinfo=UTC)


def _moment(at: datetime) -> datetime:
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    if not _EARLIEST <= at <= _LATEST:
        raise ValueError("time is before 1970 or after 3000")
    return at


Moment = Annotated[datetime, AfterValidator(_moment)]
"""A time with a zone; one without is taken as UTC, so that times can always be compared. Clocks are
wrong by less than centuries, and sums of such times are times."""
_MOST = 10**18
_Count = Annotated[int, Field(ge=-_MOST, le=_MOST)]
_Number = Annotated[float, Field(ge=-_MOST, le=_MOST)]
"""What a driver says of its load is reckoned with: a number that is none is refused."""
SnapshotName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


class Report(BaseModel):
    """What one side reads of the other: unknown fields are passed over, missing ones are empty."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        allow_inf_nan=False,
        extra="ignore",
        frozen=True,
        use_attribute_docstrings=True,
        validate_by_alias=True,
        validate_by_name=True,
    )

    def to_json(self) -> dict[str, Any]:
        """As plain JSON data in camelCase, without fields that are None."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


ORDER_BY_SPEC = "nonce-"
"""What the `order_id` of a choice of spec.restore begins with; all others are the operator's."""


# -- the order to start ------------------------------------------------------------------------


class RestoreOrder(Model):
    """What this start begins from; how (uid mapping, claim, ages) stands in the job's manifest."""

    mode: Literal["Latest", "Path", "Empty"] = "Latest"
    """The newest checkpoint, a snapshot's address, or nothing."""

    path: str = ""
    """For Path: the address of the snapshot's directory. For Latest: of the newest checkpoint that
    the operator has heard of, empty for none; a log that has not is another lineage's, and nothing
    is begun with it."""

    digest: str = ""
    """For Path: the digest that its manifest must have; empty for any."""

    order_id: str = ""
    """An explicit choice is followed once: a start whose order id the lineage's log has seen goes
    on from the newest checkpoint instead."""


class SampleOrder(Model):
    """A sample of the rows that go to sinks, told in `GET /state`: their hashes, and no values."""

    percent: Annotated[int, Field(ge=1, le=100)]
    """Of all different rows; less where that would be too many."""

    except_columns: Items[str] = ()
    """Columns that do not count where rows are told apart."""


class StartOrder(Model):
    """`start.json`: one attempt's orders, beside `job.yaml` and `spark.json`."""

    format: Literal[1] = 1
    """The version of this document."""

    attempt: Annotated[int, Field(ge=1)]
    """The attempt's number; repeated in the driver's reports."""

    cluster_id: str
    """The configured name of the cluster, for the lineage's owner."""

    job_uid: str
    """The uid of the job's object, for the lineage's owner."""

    restore: RestoreOrder = RestoreOrder()
    """What to begin from."""

    adopt_lineage: str = ""
    """The lineage that this object may take over from an owner of another uid."""

    # A namespace that is deleted deletes nothing but its pods while there are any. It begins after
    # 5 s, looks again after 5 s, then after half of their longest grace and a second, and after 5 s
    # once more for what had finalizers: with this it is gone within a minute.
    grace_seconds: Annotated[float, Field(gt=0)] = 60.0
    """How long a last checkpoint may take after SIGTERM."""

    standby: bool = False
    """Run beside the driver that has the lineage, and let nothing out until `POST /promote`."""

    sample: SampleOrder | None = None
    """With standby: what to tell of what its sinks would get."""


# -- the endpoint ------------------------------------------------------------------------------


class SampleBody(SampleOrder):
    """The same of a driver that leads, for some time."""

    seconds: Annotated[float, Field(gt=0, le=_MOST)]
    """For so long, however whoever wants it ends."""


class CheckpointBody(Model):
    """`POST /checkpoints`."""

    request_id: RequestId
    """Names the request; the same id again is the same request."""

    sample: SampleBody | None = None
    """What to tell of the output from here on; without it nothing is changed."""


class SavepointBody(Model):
    """`POST /savepoints`."""

    request_id: RequestId
    """As above. It is also the attempt id in the savepoint's directory: another driver that is
    asked with the same id carries on with what an ended one began."""

    attempt: RequestId | None = None
    """The attempt id in the directory where that is not the request's: a request that failed is
    followed by another one, which carries on with what it began."""

    name: SnapshotName
    """The directory's name below the job's savepointDir."""

    format: Literal["canonical", "native"] = "canonical"
    """Readable by anyone, or the backend's own files."""


class StopBody(Model):
    """`POST /stop`."""

    request_id: RequestId
    """As above."""

    mode: Literal["Checkpoint", "Savepoint", "None"] = "Checkpoint"
    """What is taken before the end; None ends at once."""

    name: SnapshotName | None = None
    """The savepoint's name, for mode Savepoint."""

    format: Literal["canonical", "native"] = "canonical"
    """The savepoint's format."""

    release: bool = False
    """Write in the lineage's log that its owner gives it up, as the last thing."""


class RescaleBody(Model):
    """`POST /rescale`."""

    request_id: RequestId
    """As above."""

    parallelism: Annotated[int, Field(ge=1)] | None = None
    """The wanted number of subtasks; refused with code `restart_needed` where it is not live."""

    executors: Annotated[int, Field(ge=1)] | None = None
    """The wanted number of executors, under the same parallelism."""

    declared: Annotated[int, Field(ge=1)] | None = None
    """What the job's manifest says the number of subtasks is, if that has changed."""


class PromoteBody(Model):
    """`POST /promote`: a driver that stands by claims the lineage, and leads from then on."""

    request_id: RequestId
    """As above."""


class CheckpointSummary(Report):
    """A completed checkpoint."""

    id: int
    path: str = ""
    """Its address: the checkpoint directory and `chk-<id>`."""
    epoch: int = 0
    completed_at: Moment
    size_bytes: int = 0
    uploaded_bytes: int = 0
    duration_ms: int = 0


class SavepointInfo(Report):
    """A completed savepoint."""

    name: str
    path: str
    """The address of its directory, without secrets."""
    checkpoint_id: int
    epoch: int
    size_bytes: int = 0
    duration_ms: int = 0
    manifest_digest: str = ""
    max_parallelism: int = 0
    spark_version: str = ""
    completed_at: Moment | None = None


class RequestError(Report):
    """Why a request failed."""

    code: str
    """A stable word: an error's code, or a CheckpointFailureReason."""
    message: str


class RequestView(Report):
    """How far a request is; the answer to every POST and to `GET /requests/<id>`."""

    request_id: str
    kind: Literal["Checkpoint", "Savepoint", "Stop", "Rescale", "Promote"]
    state: Literal["Pending", "Running", "Completed", "Failed"]
    checkpoint: CheckpointSummary | None = None
    savepoint: SavepointInfo | None = None
    error: RequestError | None = None


class RestoredFrom(Report):
    """What a start began from."""

    path: str
    checkpoint_id: int = 0
    completed_at: Moment | None = None


class SkewReport(Report):
    """The subtask that has most rows by the mean of its operator."""

    uid: str
    """The operator's."""
    subtask: int
    key_groups: str = ""
    """The first and the last of its key groups, as 12-15."""
    rows: _Count = 0
    """Its own, in the window."""
    mean_rows: _Number = 0.0
    """Of all subtasks of the operator."""


class SubtaskLoad(Report):
    """What a subtask did in the window, or the median of all of an operator."""

    rows: _Number = 0.0
    busy_seconds: _Number = 0.0
    """At work on epochs; 0 where that is not known: acknowledgements of an operator whose rows
    another one reads travel with them, and are the same in each attempt."""
    state_bytes: _Number = 0.0


class OperatorLoad(Report):
    """How the subtasks of an operator bear it: the one that bears most, beside the median."""

    uid: str
    subtasks: _Count = 0
    rows_in: _Count = 0
    """Of all subtasks, in the window."""
    rows_out: _Count = 0
    """That they gave."""
    busiest: int = 0
    """By time at work; by rows where that is not known."""
    key_groups: str = ""
    """The first and the last of the busiest one's, as 12-15."""
    most: SubtaskLoad = SubtaskLoad()
    """The busiest one's."""
    median: SubtaskLoad = SubtaskLoad()


class SinkView(Report):
    """A sink of the job."""

    uid: str
    takes_back: str = ""
    """A word for the place from which a restore takes back what later checkpoints published; empty
    where output stays with its readers."""


class LoadReport(Report):
    """What the stream bore, over the last `scaling.autoscaler.window`.

    It begins anew with other subtasks and after a rewind. What an epoch costs is its time by the
    clock, from its first row to its commit.
    """

    seconds: _Number = 0.0
    """The length of the window, shorter at first."""
    epochs: _Count = 0
    rows: _Count = 0
    busy_seconds: _Number = 0.0
    """In epochs, with the one under way."""
    fixed_seconds: _Number = 0.0
    """What an epoch takes however few its rows; 0 while that cannot be told."""
    lag_rows: _Count | None = None
    """Rows that sources had and no epoch had taken, when it was last looked; none where sources do
    not say."""
    lag_rows_before: _Count | None = None
    """When it was first looked in the window."""
    lag_seconds: _Number = 0.0
    """The time between these two looks."""
    skew: SkewReport | None = None
    """None where no operator has several subtasks and rows."""
    operators: Items[OperatorLoad] = ()
    """Those with rows in the window, by uid; no more than 32."""
    operator_seconds: _Number = 0.0
    """The time up to now over which `skew` and `operators` are counted, which is looked at less
    often: more than the window by up to a look and an epoch, or less at first."""
    whole: bool = False
    """Whether that is all of a window that is no shorter than the job asks for."""

    @property
    def of_window(self) -> float:
        """What of the time that operators were at work lies in the window, if they work evenly."""
        longer = self.operator_seconds > self.seconds > 0
        return self.seconds / self.operator_seconds if longer else 1.0


class SampleSegment(Report):
    """Some epochs in a row, and what they gave."""

    epochs: _Count
    end: dict[str, dict[str, int | float | str]] = {}
    """Where the sources stood after them: by input uid, the numbers of its offset, each by the path
    to it, and hashes of what are none; of a directory, how many of its files were taken."""
    rows: dict[str, dict[str, _Count]] = {}
    """By sink uid, how often each row came: rows by their hash, 16 hexadecimal digits."""


class OutputSample(Report):
    """A sample of the rows that went to sinks: those whose hash is no higher than a limit."""

    percent: _Count
    """As it was ordered."""
    except_columns: Items[str] = ()
    """Likewise."""
    since_epoch: _Count = 0
    """It is of what came after this one."""
    start: dict[str, dict[str, int | float | str]] = {}
    """Where the sources stood then."""
    limits: dict[str, str] = {}
    """By sink uid, the limit; written as hashes are. Lower than was ordered where there were too
    many different rows."""
    segments: Items[SampleSegment] = ()
    """In their order."""
    trouble: str = ""
    """Why there is nothing in it; empty if there may be."""


class DriverState(Report):
    """`GET /state`."""

    format: _Count = DRIVER_FORMAT
    attempt: int
    job_uid: str
    phase: str
    """starting, restoring, running, checkpointing, rewinding, stopping, finished."""
    standby: bool = False
    """Whether it stands by: nothing of what it runs comes out."""
    message: str = ""
    lineage: str = ""
    fence: _Count = 0
    epoch: _Count = 0
    watermark: Moment | None = None
    """Of the operator whose event time is furthest behind; none before that one has any, and 1970
    for what is before."""
    watermark_of: str = ""
    """Its uid."""
    watermark_held_by: str = ""
    """The input that it waits for."""
    rows_total: _Count = 0
    rows_per_second: _Number = 0.0
    busy_ratio: _Number = 0.0
    """Time in epochs by time, lately, with the one under way: 0 to 1."""
    load: LoadReport | None = None
    """Over a longer time; none while the stream does not run."""
    state_bytes: _Count = 0
    parallelism: _Count = 0
    max_parallelism: _Count = 0
    executors_desired: _Count = 0
    executors_ready: _Count = 0
    executors_lost: _Count = 0
    """Since the attempt began."""
    rewinds: _Count = 0
    """Since the attempt began."""
    last_progress_time: Moment | None = None
    """When the last epoch was committed."""
    last_move_time: Moment | None = None
    """When anything got on last: an epoch, a checkpoint, a task within an epoch, or that the
    stream found nothing to do."""
    epoch_since: Moment | None = None
    """Since when an epoch is under way; none between two."""
    epoch_seconds: _Number = 0.0
    """How long the last committed one took."""
    answered_at: Moment | None = None
    """The time of this report on the driver's clock, by which its other times are understood: they
    are that much before it, whatever the clock was set to meanwhile."""
    tasks_running: _Count = 0
    """Of Spark, in the epoch under way."""
    running_since: Moment | None = None
    """When the stream first ran in this attempt; none while it starts, restores or stands by."""
    restored_from: RestoredFrom | None = None
    last_checkpoint: CheckpointSummary | None = None
    """The newest completed one of the lineage."""
    last_savepoint: SavepointInfo | None = None
    completed_checkpoints: _Count = 0
    """In this attempt."""
    last_checkpoint_time: Moment | None = None
    """When it was completed, if in this attempt. Other than with completedAt, which was written
    down then, a clock that was set since changes nothing of how long ago that is."""
    consecutive_failed_checkpoints: _Count = 0
    last_checkpoint_failure: RequestError | None = None
    storage_error: str = ""
    """Why the store cannot be reached at the moment; empty while it can."""
    sinks: Items[SinkView] | None = None
    """None before the job's code has described its graph."""
    sample: OutputSample | None = None
    """None while nobody ordered one."""
    requests: Items[RequestView] = ()
    """The latest requests, newest last."""


# -- the end -----------------------------------------------------------------------------------


class DriverEnd(Report):
    """The termination message of a driver's container: one line of JSON, below 4,096 bytes."""

    format: int = DRIVER_FORMAT
    attempt: int = 0
    outcome: Literal["Finished", "Stopped", "Failed"]
    code: str = ""
    """For Failed: the error's stable code, such as user_function, fenced, corrupt_state."""
    message: str = ""
    """What a person should read; no secrets. Of a job that finished: about its checkpoints."""
    lineage: str = ""
    fence: int = 0
    epoch: int = 0
    restored_from: RestoredFrom | None = None
    last_checkpoint: CheckpointSummary | None = None
    savepoint: SavepointInfo | None = None
    """The one that it was stopped with."""
    released: bool = False
