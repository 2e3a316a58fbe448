"""What the driver is asked to do, what it reports on the way, and what it hands back.

Plain values, so that the command line, tests and the status endpoint can speak of a run without
importing Spark.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from moorage.driver.requests import Requests, SampleRequest
from moorage.driver.views import (
    ChangelogView,
    CheckpointRecord,
    CheckpointView,
    EpochPhases,
    ExecutorsView,
    FailureView,
    GraphView,
    OddRows,
    QueryableView,
    RestoredView,
    SampleView,
    SavepointView,
    SinkOutput,
    SubtaskView,
    WatermarkView,
)

if TYPE_CHECKING:
    from moorage.driver.environment import JobEnvironment
    from moorage.driver.lookups import StateLookups


@dataclass(frozen=True, slots=True)
class Orders:
    """What an operator ordered for this start, in place of what the manifest says.

    Attributes:
        holder: who holds the fence, for people.
        adopt_lineage: the lineage that may be taken over from an owner of another uid.
        mode: what to begin from: the newest checkpoint, `path`, or nothing.
        digest: the digest that the manifest at `path` must have; empty for any.
        order_id: names the choice of `path` or of nothing, which is followed once in a lineage.
        standby: run beside the driver that has the lineage, with nothing coming out, until a
            `PromoteRequest` says that it is over; see `moorage.driver.standby`.
        sample: what to tell of its output meanwhile; None for nothing.
    """

    cluster: str
    uid: str
    holder: str
    adopt_lineage: str = ""
    mode: Literal["Latest", "Path", "Empty"] = "Latest"
    path: str = ""
    digest: str = ""
    order_id: str = ""
    standby: bool = False
    sample: SampleRequest | None = None


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How one run on this machine differs from what the manifest says.

    Attributes:
        take_over: go on although another run holds the checkpoint directory; it is fenced off.
        restore: `chk-<id>` of the lineage or a snapshot's URL, in place of the manifest's restore.
        local_dir: where working databases and Spark's scratch go; a temporary directory if None.
        cores: how many cores Spark may use; as many as subtasks and the machine allow if None.
        stop: set from outside, at any time and from any thread: take a last checkpoint and return
            with `RunOutcome.STOPPED`. `run_job` is called outside the main thread, so it can
            install no signal handler and needs none: this event is how Ctrl-C and SIGTERM arrive.
        control: let `moorage savepoint` reach the job through a socket of this user.
        requests: where savepoints and more are asked for, from any thread.
        lookups: where state is asked for, from any thread; the run's own if None.
        orders: an operator's; None on a person's machine. With orders the run takes the
            checkpoint directory from whoever holds it: the fence ends the other one.
        fenced: called once, with the reason, by the thread that finds the fence lost, before
            anything else happens.
        storage: told every few seconds why the store cannot be used, or that it can (empty).
        ended: called with how the job ended, before Spark and the servers are ended: what goes
            wrong with those changes nothing of it. Not called if the job did not begin.
    """

    take_over: bool = False
    restore: str | None = None
    local_dir: Path | None = None
    cores: int | None = None
    control: bool = False
    stop: threading.Event = field(default_factory=threading.Event, compare=False, repr=False)
    requests: Requests = field(default_factory=Requests, compare=False, repr=False)
    lookups: "StateLookups | None" = field(default=None, compare=False, repr=False)
    orders: Orders | None = None
    environment: "JobEnvironment | None" = field(default=None, compare=False, repr=False)
    fenced: Callable[[str], object] | None = field(default=None, compare=False, repr=False)
    storage: Callable[[str], object] = field(
        default=lambda _problem: None, compare=False, repr=False
    )
    ended: Callable[["RunResult | BaseException"], object] = field(
        default=lambda _result: None, compare=False, repr=False
    )


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Where a run is. The driver reports one after every epoch and whenever something changes.

    Attributes:
        rows_total: input rows in committed epochs of this run.
        phase: one word for what is going on: starting, restoring, running, checkpointing,
            rewinding, stopping, finished.
        bound: (done, total) where the input is bounded; any unit, the same for both.
        restored_from: what the run began from, such as `chk-7`; None for an empty start.
        restoring_from: what is being restored; None before and after.
        epoch_began: when the epoch that is under way began; None between two.
        message: something a person should read once; repeated reports of it are shown once.
        clock_behind_seconds: how far the machine's clock is behind processing time, which stands
            still until then.
        restored: what the stream began from, with more than its name; None for an empty start.
        restore_seconds: how long that took; None before the stream ran.
        completed_checkpoints: by this driver; savepoints are not counted.
        failed_checkpoints: by this driver; savepoints are not counted.
        failed_in_a_row: checkpoints that failed since one was completed, where the failure counts.
        checkpoints: the latest checkpoints and savepoints of this driver, newest first.
        earlier: what drivers before this one left in the lineage, as it was at the start: the
            newest checkpoints, then the newest savepoints; their sizes are not known.
        retain: how many checkpoints stay when another one is completed.
        storage_error: why the store cannot be used at the moment; empty while it can.
        tasks: how many of Spark's tasks run in it, when it was last looked.
        lag_rows: rows that sources had and no epoch had taken, when it was last looked; None where
            they do not say.
        lag_looks: how often it was looked.
        changelog: None where the job has none.
        opened: ranges that this driver's runs began with, by where their state came from: how many,
            and the bytes that were fetched or copied. `live` ones were open and stayed so (bytes:
            what was undone), `local` came from files of the volume, `store` at least in part from
            the store, `empty` had no state yet.
        moves: grows with every sign that something gets on, also within an epoch.
        graph: None before the job's code has described it.
        sinks: likewise; which of them take output back.
        subtasks: operator by operator, as of about a second ago.
        watermarks: of operators that have event time, as of the last epoch.
        epoch_phases: of the last epoch.
        queryable: states whose values can be asked for, as of some seconds ago.
        configuration: how checkpoints and epochs are configured: names and values, for people.
        standby: it stands by: the phases are those of a run of which nothing comes out.
        sample: of its output; None while nobody asked for one.
    """

    epoch: int = 0
    rows_total: int = 0
    rows_per_second: float = 0.0
    state_bytes: int = 0
    last_checkpoint: CheckpointView | None = None
    phase: str = "starting"
    bound: tuple[int, int] | None = None
    restored_from: str | None = None
    restoring_from: str | None = None
    epoch_began: datetime | None = None
    message: str = ""
    lineage: str = ""
    fence: int = 0
    parallelism: int = 0
    max_parallelism: int = 0
    executors: ExecutorsView = field(default_factory=ExecutorsView)
    epochs: int = 0
    epoch_seconds: float = 0.0
    epoch_rows: int = 0
    odd: OddRows = field(default_factory=OddRows)
    clock_behind_seconds: int = 0
    rewinds: int = 0
    restored: RestoredView | None = None
    restore_seconds: float | None = None
    completed_checkpoints: int = 0
    failed_checkpoints: int = 0
    failed_in_a_row: int = 0
    last_failure: FailureView | None = None
    last_savepoint: SavepointView | None = None
    checkpoints: tuple[CheckpointRecord, ...] = ()
    earlier: tuple[CheckpointRecord, ...] = ()
    retain: int = 1
    storage_error: str = ""
    released: bool = False
    in_epoch: bool = False
    tasks: int = 0
    lag_rows: int | None = None
    lag_looks: int = 0
    moves: int = 0
    changelog: ChangelogView | None = None
    opened: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    graph: GraphView | None = None
    sinks: tuple[SinkOutput, ...] | None = None
    subtasks: tuple[SubtaskView, ...] = ()
    watermarks: tuple[WatermarkView, ...] = ()
    epoch_phases: EpochPhases = field(default_factory=EpochPhases)
    queryable: tuple[QueryableView, ...] = ()
    configuration: tuple[tuple[str, str], ...] = ()
    standby: bool = False
    sample: SampleView | None = None


class RunOutcome(Enum):
    """Why a run ended well."""

    FINISHED = "finished"
    """The bounded input is used up; a last checkpoint is complete and output is published."""

    STOPPED = "stopped"
    """Asked to stop; a last checkpoint is complete, the next run goes on from it."""

    PROMOTED = "promoted"
    """It stood by, and was told to go on in the job's lineage: what it did so far is dropped."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended.

    Attributes:
        rows_total: input rows in committed epochs of this run.
        restored_from: what the run began from; None for an empty start.
        already: the job had finished before, and nothing was run.
    """

    outcome: RunOutcome
    epoch: int
    rows_total: int
    seconds: float
    last_checkpoint: CheckpointView | None = None
    restored_from: str | None = None
    odd: OddRows = field(default_factory=OddRows)
    already: bool = False
