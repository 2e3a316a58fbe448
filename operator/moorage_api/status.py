"""What the operator keeps in a job's `.status`: its write-ahead log, and what people read.

Intent stands here before it is acted on, outcome after, so that an operator that dies at any point
is followed by one that goes on from there. Everything that can be observed again (pods, the store,
the driver's report) is here for people only. Read leniently: a newer operator's fields are kept out
of sight; `format` tells whether this one may act on them at all.
"""

from typing import Any, Literal

from pydantic import Field

from moorage_api.driver import (
    CheckpointSummary,
    Moment,
    Report,
    RestoredFrom,
    SavepointInfo,
    SinkView,
)
from moorage_api.model import Items, RawMapping

STATUS_FORMAT = 2
"""The newest that is read here; what is written is the least that says it all, see `needed_format`.
"""

Phase = Literal[
    "Created",
    "Deploying",
    "Restoring",
    "Running",
    "Stable",
    "Upgrading",
    "Rescaling",
    "RollingBack",
    "Suspending",
    "Suspended",
    "Recovering",
    "BackOff",
    "Failed",
    "Finished",
    "Blocked",
    "Deleting",
]

OperationType = Literal[
    "Deploy", "Upgrade", "Rescale", "Suspend", "Resume", "Rollback", "Recover", "Redeploy", "Delete"
]

OperationStep = Literal[
    "Preflight",
    "Standby",
    "Rescaling",
    "Snapshotting",
    "Stopping",
    "Fencing",
    "Starting",
    "Verifying",
]


class Condition(Report):
    """One condition, as Kubernetes writes them."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""
    observed_generation: int = 0
    last_transition_time: Moment


class ProfileStatus(Report):
    """The defaults that a job goes by, as they were when it took them."""

    name: str = ""
    """The profile; empty for none."""
    digest: str = ""
    """A hash of its values."""
    values: RawMapping = Field(default_factory=dict)
    """What it said, a part of a spec; `spec` itself wins where it says anything else."""
    waiting: str = ""
    """The hash of what is to be taken with the next restart; empty if that is the same."""


class OperatorView(Report):
    """Which operator looks after a job."""

    lease: str
    """`namespace/name` of its Lease."""
    taken_from: str = ""
    """The Lease of the one before, while nobody acts because that one may still be at it."""


class RestorePointStatus(Report):
    """What the next start begins from, once that is decided."""

    mode: Literal["Latest", "Path", "Empty"]
    path: str = ""
    """See `RestoreOrder.path`."""
    digest: str = ""
    order_id: str = ""
    """See `RestoreOrder.order_id`."""
    checkpoint_id: int = 0
    completed_at: Moment | None = None


class StandbyCounts(Report):
    """What two drivers had counted at one time: since then is what they are compared by."""

    rows: int = 0
    """Input rows of the one that stands by."""
    epoch: int = 0
    """Its last one."""
    old_rows: int = 0
    """Input rows of the one that has the lineage."""
    old_epoch: int = 0
    """Its last one."""
    rewinds: int = 0
    """Of both together: after one rows are read again."""


class StandbyStatus(Report):
    """A driver of the new version that runs beside the one of the old."""

    attempt: int
    """Its number; its pod is named by it. It becomes the job's attempt once it leads."""
    driver_uid: str = ""
    """Of its pod, once that was seen."""
    tries: int = 0
    """How many before it lost their pods to the cluster."""
    waits: int = 0
    """How many before it ended because the store was away."""
    not_before: Moment | None = None
    """When its pod is made, after such an end."""
    caught_up_since: Moment | None = None
    """Since when it has kept up."""
    counted: StandbyCounts | None = None
    """What both had counted then; none where the other one did not answer."""
    message: str = ""
    """How far it is."""


class OperationStatus(Report):
    """What is being done to the job, and how far it has come; written before each step is acted on.

    The order of steps is that of `OperationStep`; a type skips what it does not need.
    """

    id: str
    """`<generation>-<counter>`; effects are named by it and so happen once."""
    type: OperationType
    step: OperationStep
    target_revision: str = ""
    """The revision that runs when it ends; empty for Suspend and Delete."""
    snapshot_request_id: str = ""
    """The id under which the driver is asked for the last savepoint or checkpoint."""
    snapshot_name: str = ""
    """The savepoint's name."""
    stop_mode: Literal["", "Checkpoint", "Savepoint", "None"] = ""
    """What the driver is asked to take before it ends."""
    not_before: Moment | None = None
    """When it is asked again, after a snapshot that failed."""
    mode_used: Literal["", "Savepoint", "LastCheckpoint", "Stateless"] = ""
    """How state is really carried over, after fallbacks."""
    restore_point: RestorePointStatus | None = None
    """Decided before Starting."""
    standby: StandbyStatus | None = None
    """From the step Standby on, until it leads or is given up."""
    started_at: Moment
    step_started_at: Moment
    deadline: Moment | None = None
    """Of the step."""
    retries: int = 0
    reason: str = ""
    """Why, in one CamelCase word, such as SpecChanged, DriverLost, DriverOOMKilled."""
    message: str = ""
    """Why, for people."""


class AttemptStatus(Report):
    """One driver. The number is written before the pod is made."""

    number: int = 0
    """0 before the first."""
    revision: str = ""
    """The ControllerRevision that it runs."""
    restore_point: RestorePointStatus | None = None
    """What it was told to begin from."""
    adopt_lineage: str = ""
    """The lineage that it was allowed to take over."""
    driver_pod: str = ""
    driver_uid: str = ""
    stood_by: bool = False
    """Whether it ran beside another one before it became the attempt: it must be told to lead."""
    started_at: Moment | None = None
    running_since: Moment | None = None
    """On the operator's clock, whatever the driver's says."""
    checkpointed: bool = False
    """Whether it has completed a checkpoint itself, from which another start would go on."""
    fence: int = 0
    """As the driver reports it."""
    restored_from: RestoredFrom | None = None
    """As the driver reports it."""
    sinks: Items[SinkView] = ()
    """As the driver reports them."""
    sinks_known: bool = False
    """Whether it did: a job may have none."""
    outcome: Literal["", "Finished", "Stopped", "Failed"] = ""
    """Set when it has ended; never unset."""
    outcome_reason: str = ""
    outcome_message: str = ""
    taken_by: str = ""
    """The reason, once its pod was seen to be taken away: how it ended may go unseen."""
    missing_since: Moment | None = None
    """Since when its pod is not there."""
    node_lost_since: Moment | None = None
    """Since when nobody hears of its pod's node."""
    stable_since: Moment | None = None
    """When it met upgrade.rollback.stableAfter."""
    ended_at: Moment | None = None


class Trial(Report):
    """A version that has not been stable yet, after one that was."""

    revision: str
    since: Moment
    """When its first attempt began."""
    attempt: int = 0
    """The first one."""
    elsewhere: bool = False
    """Whether one of those on trial began from anything else than the one before had come to."""
    checkpoint_id: int = 0
    """The newest checkpoint of the version before."""
    restore_point: RestorePointStatus
    """What the version before had come to."""
    sinks_before: Items[SinkView] = ()
    """The sinks of the version before."""
    sinks: Items[SinkView] = ()
    """The sinks of all versions on trial, as far as their drivers said."""
    unsaid: Items[str] = ()
    """Versions on trial whose drivers have not said which sinks they have."""
    unread: int = 0
    """The newest attempt that ended without a word, while the store has not been read since; 0
    where it is known what was published."""


class RevisionRecord(Report):
    """A version that was to run, at one time."""

    name: str
    """Of its ControllerRevision; it ends with a hash of the spec."""
    generation: int = 0
    """The object's, at that time."""
    attempt: int = 0
    """Its first driver; 0 if none was started."""
    at: Moment
    """When it began, or was given up without."""
    changed: Items[str] = ()
    """What differed from the version before it, field by field; values only where they are short,
    and none of a program's arguments and variables."""
    outcome: Literal["", "Stable", "Superseded", "Rejected", "RolledBack"] = ""
    """What became of it; empty while that is open."""
    message: str = ""
    """Why, where there is more to say."""


class Reconciliation(Report):
    """Which specs were acted on."""

    current_revision: str = ""
    """The ControllerRevision that runs, or is being brought to run."""
    stable_revision: str = ""
    """The last one that became stable."""
    running_revision: str = ""
    """The last one whose stream ran."""
    trial: Trial | None = None
    """The one that runs, or is to, while it is not stable and another one was."""
    rejected_spec_hash: str = ""
    """A version that was given up and is not tried again: a hash of its spec, whatever its
    parallelism."""
    rejected_parallelism: int = 0
    """Its number of subtasks, if that alone was given up: with another one the version runs; 0 if
    it is given up with any."""
    rejected_message: str = ""
    """Why, where there is more to say than that."""
    standby_attempt: int = 0
    """The highest number that a driver beside the attempt had: none comes again."""
    rejected_generation: int = 0
    """The generation that had it last: hashes of another release are other ones."""
    restore_nonce: int = 0
    """The spec's restore.nonce that was last followed."""
    desired_state: Literal["", "Running", "Suspended"] = ""
    """The spec's desiredState that was last acted on."""
    state_backend: str = ""
    """The state backend of the last version whose stream ran: a spec that names none goes on with
    it."""
    disruption_budgets: bool = False
    """Whether PodDisruptionBudgets were ever asked for; removed as the PodMonitor below."""
    ingress: bool = False
    """Whether an Ingress was ever asked for; removed as the PodMonitor below."""
    pod_monitor: bool = False
    """Whether a PodMonitor was ever asked for: it is removed when it is not wanted any more."""

    def gave_up(self, version: str, parallelism: int, generation: int = -1) -> bool:
        """Whether a version was given up with so many subtasks.

        Args:
            version: its `version_hash`.
            generation: the object's, if that asks for it: by another release's hash it is known by
                that.
        """
        if not self.rejected_spec_hash:
            return False
        if self.rejected_spec_hash != version:
            return self.rejected_generation == generation
        return self.rejected_parallelism in (0, parallelism)


class JobView(Report):
    """What the driver says of the stream, for people."""

    state: str = ""
    message: str = ""
    epoch: int = 0
    last_progress_time: Moment | None = None
    """When anything last got on: an epoch, a checkpoint, a task within an epoch."""
    epoch_since: Moment | None = None
    """Since when an epoch was under way at that time."""
    input_rows_per_second: str = ""
    busy_ratio: str = ""
    state_bytes: int = 0
    watermark: Moment | None = None
    """Of the operator whose event time is furthest behind; none before that one has any, and 1970
    for what is before."""
    watermark_of: str = ""
    """Its uid."""
    watermark_held_by: str = ""
    """The input that it waits for."""


class ExecutorStatus(Report):
    """Executors."""

    desired: int = 0
    ready: int = 0
    failed_in_window: int = 0


class ScaleStep(Report):
    """A change of parallelism that the autoscaler decided."""

    before: int
    after: int
    at: Moment
    rate: float = 0.0
    """The true processing rate before, in rows per second."""


class AutoscalerStatus(Report):
    """What the autoscaler decided, and what its next decision rests on."""

    target: int = 0
    """How many subtasks there are to be; 0 before its first decision."""
    declared: int = 0
    """spec.scaling.parallelism at that time: who edits it decides anew."""
    dry_run: bool = False
    """Whether it was only advice."""
    reason: str = ""
    """Why, or why nothing was done."""
    message: str = ""
    """The last decision in words."""
    step: ScaleStep | None = None
    """The last decision."""
    low_since: Moment | None = None
    """Since when fewer subtasks would do."""
    low_most: int = 0
    """The most of them that were needed in that time."""
    no_room_until: Moment | None = None
    """Until when no executors are asked for, since there was no room."""
    needed: int = 0
    """Subtasks, as the load alone says, within the bounds."""
    utilization: str = ""
    """The share of the job's capacity that what arrives takes."""
    arrival_rate: str = ""
    """Rows per second."""
    true_rate: str = ""
    """Rows per second of work."""
    busiest: str = ""
    """The subtask that the others wait for, in words; empty where the work is shared."""
    lag_rows: int | None = None


class ScalingStatus(Report):
    """What runs."""

    observed_parallelism: int = 0
    max_parallelism: int = 0
    selector: str = ""
    """Of executor pods, for autoscalers."""
    changed_at: Moment | None = None
    """When observedParallelism changed last."""
    autoscaler: AutoscalerStatus | None = None


class Triggers(Report):
    """The annotations' values that were handled."""

    savepoint: str = ""
    checkpoint: str = ""
    restart: str = ""
    rollback: str = ""
    savepoint_mark: str = ""
    """Of the change to the value of `savepoint`; made of that of the change before it."""
    checkpoint_mark: str = ""


class SnapshotsStatus(Report):
    """Checkpoints and savepoints."""

    lineage_id: str = ""
    last_checkpoint: CheckpointSummary | None = None
    last_savepoint: SavepointInfo | None = None
    last_trigger: Triggers = Triggers()
    last_scheduled_time: Moment | None = None
    """The newest tick of savepoint.schedule that was acted on."""
    in_progress: str = ""
    """The StatefulSparkSnapshot that is being taken."""
    consecutive_failures: int = 0


class Restarts(Report):
    """How often the job was brought back."""

    total: int = 0
    window: Items[Moment] = ()
    """When, for those that count towards failurePolicy.maxRestarts; at most 64, newest last."""
    disruptions: Items[Moment] = ()
    """When it was for nothing that the job could help, within failurePolicy.backoff.resetAfter;
    from the third on that waits as well. At most 64, newest last."""
    backoff_level: int = 0
    """How often the wait was doubled."""
    last_reason: str = ""
    last_message: str = ""
    last_time: Moment | None = None
    next_retry_at: Moment | None = None
    restore_failures: int = 0
    """Starts in a row that ended in restore; reset when the stream runs."""


Check = Literal[
    "NoProgress", "NoCheckpoint", "DriverUnreachable", "ExecutorLoop", "RestoreLoop", "SkewedKeys"
]
"""What health looks for."""


class Finding(Report):
    """What is wrong with a job that runs."""

    check: str
    """See `Check`."""
    since: Moment
    """When it was found."""
    message: str = ""
    """What was seen, and what to do."""
    then: str = "Alert"
    """What the operator does: nothing (Alert), or Restart or Rollback as soon as it may help;
    Withheld: one of these, if the budget were not spent."""
    due: bool = True
    """Whether it is time for that: a job that may only be slow is given longer."""


class HealthAction(Report):
    """Something that the operator did by itself about a job that ran."""

    check: str
    action: str
    """Restart or Rollback."""
    at: Moment


class HealthStatus(Report):
    """What is wrong with the job, what was done about it, and what that is judged by."""

    findings: Items[Finding] = ()
    actions: Items[HealthAction] = ()
    """Those that count towards failurePolicy.health.budget, newest last."""
    attempt: int = 0
    """The driver of which the next two numbers are."""
    executors_lost: int = 0
    rewinds: int = 0
    losses: Items[Moment] = ()
    """When executors were lost, newest last; at most 64."""
    restores: int = 0
    """Since a checkpoint was completed last."""
    clock_ahead_seconds: int = 0
    """How far the driver's clock was ahead of the operator's when that changed last."""


class Leaving(Report):
    """A lineage that the job has moved away from, and that is to be released."""

    revision: str
    """The ControllerRevision that names its directory."""
    attempt: int = 0
    """The last one that ran there."""
    tries: int = 0
    retry_at: Moment | None = None


class JobStatus(Report):
    """`.status` of a StatefulSparkJob."""

    format: int = 1
    observed_generation: int = 0
    phase: Phase | str = "Created"
    message: str = ""
    """The one thing to know now; for a Blocked job, the one thing to do."""
    lineage_owner_uid: str = ""
    """The object that this status was written for: a restored backup has another uid."""
    operator: OperatorView | None = None
    """The operator that looks after the job: no other one acts on it."""
    profile: ProfileStatus | None = None
    """The defaults of many jobs that this one goes by."""
    reconciliation: Reconciliation = Reconciliation()
    revisions: Items[RevisionRecord] = ()
    """The latest versions, newest last; at most 10."""
    operation: OperationStatus | None = None
    operation_counter: int = 0
    attempt: AttemptStatus = AttemptStatus()
    job: JobView = JobView()
    executors: ExecutorStatus = ExecutorStatus()
    scaling: ScalingStatus = ScalingStatus()
    snapshots: SnapshotsStatus = SnapshotsStatus()
    restarts: Restarts = Restarts()
    health: HealthStatus = HealthStatus()
    next_restore: RestorePointStatus | None = None
    """What the next start begins from, where the end of the last driver decided that."""
    leaving: Items[Leaving] = ()
    """Lineages that the job has left; at most 4."""
    blocked_reason: str = ""
    """CamelCase; while set nothing is started or stopped until the spec, an annotation or the
    cause changes."""
    blocked_generation: int = 0
    """The generation that was current when the job became blocked."""
    blocked_adopt: str = ""
    """The value of the adopt-lineage annotation at that time."""
    finished_at: Moment | None = None
    conditions: Items[Condition] = ()

    @property
    def given_point(self) -> RestorePointStatus | None:
        """What a start was given to begin from, and none has yet; None for the newest there is."""
        if self.next_restore is not None:
            return self.next_restore
        return self.attempt.restore_point if self.attempt.running_since is None else None

    def condition(self, kind: str) -> Condition | None:
        """The condition of this type."""
        return next((c for c in self.conditions if c.type == kind), None)


def needed_format(status: JobStatus) -> int:
    """The least number whose readers know what to do about this status.

    2 while a driver stands by, or is the attempt and was not seen to lead yet: who does not know
    that takes a pod away, or waits for ever for a stream that nobody tells to run.
    """
    operation, attempt = status.operation, status.attempt
    beside = operation is not None and operation.step == "Standby"
    led = attempt.running_since is not None or bool(attempt.outcome)
    return 2 if beside or (attempt.stood_by and not led) else 1


def read_status(raw: dict[str, Any] | None) -> JobStatus:
    """The status in an object; an empty one where there is none.

    Raises:
        pydantic.ValidationError: it was not written by any operator.
    """
    return JobStatus.model_validate(raw or {})
