"""What happens to a job over its life: upgrades, failures, deletion, how it is watched."""

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from moorage_api.model import (
    MAX_INT,
    Cel,
    Items,
    Model,
    OnChange,
    Violation,
)
from moorage_api.quantities import Duration, at_least

_Positive = Annotated[Duration, at_least(Duration("1ms"))]
_Natural = Annotated[int, Field(ge=0, le=MAX_INT)]
_Note = Annotated[str, Field(max_length=16_384)]
_Label = Annotated[str, Field(max_length=63)]
_Few = Annotated[int, Field(ge=0, le=16)]


class StableAfter(Model):
    """When a new version counts as good; all of it must hold."""

    duration: _Positive = Duration("2m")
    """How long it has run without a restart."""

    completed_checkpoints: _Natural = 1
    """How many checkpoints it has completed."""

    lag_may_grow: bool = False
    """Whether it counts although more rows come than it takes, by what sources say of their lag."""


class Rollback(Model):
    """Going back to the last stable version when a new one does not become stable."""

    enabled: bool = False
    """Whether to, by itself: while the new version has published nothing, or by retractOutput."""

    retract_output: bool = False
    """Whether what it has published may be taken back from readers for that, where every sink can;
    files can, rows of a topic or a database cannot."""

    readiness_timeout: _Positive = Duration("10m")
    """How long a new version has to become stable, from its first start."""

    stable_after: StableAfter = StableAfter()
    """When it is stable."""


class CompareOutputs(Model):
    """By which rows of both versions a new one is judged."""

    sample_percent: Annotated[int, Field(ge=1, le=100)] = 10
    """How many of all different rows are compared, by their hashes; less where there are many."""

    max_differing_percent: Annotated[int, Field(ge=0, le=99)] = 0
    """How many of these one version alone may give, of each sink."""

    min_rows: Annotated[int, Field(ge=1, le=500)] = 100  # of many rows a sample has as many
    """How many must have been compared, of both versions together; until then it stands by."""

    except_columns: Annotated[
        Items[Annotated[str, Field(min_length=1, max_length=255)]], Field(max_length=64)
    ] = ()
    """Columns that do not count, such as times at which rows were processed."""


class Standby(Model):
    """How a new version is judged that runs beside the old one before it takes over."""

    cel: ClassVar[tuple[Cel, ...]] = (
        Cel(
            "duration(self.observeFor) < duration(self.catchUpTimeout)",
            "observeFor is not below catchUpTimeout, so that none ever keeps up in time; lower "
            "observeFor or raise catchUpTimeout",
            "observeFor",
        ),
    )

    catch_up_timeout: _Positive = Duration("30m")
    """How long it has to start, to catch up and to stay so; then it is given up."""

    observe_for: _Positive = Duration("1m")
    """How long it must keep up."""

    max_state_percent: Annotated[int, Field(ge=100, le=MAX_INT)] = 200
    """How large its state may be in the end, in percent of the old version's."""

    min_rate_percent: Annotated[int, Field(ge=0, le=100)] = 50
    """How many input rows it must take in the end, in percent of what the old version takes."""

    max_output_difference_percent: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    """By how many percent the rows that an operator gives for each that it takes may differ from
    what the operator of the same uid gives in the old version; without it nothing is compared."""

    compare_outputs: CompareOutputs | None = None
    """That rows are compared, for versions that are to give the same; without it none are."""

    def _rules(self) -> Iterator[Violation]:
        if self.observe_for >= self.catch_up_timeout:
            yield Violation(
                ("observeFor", "catchUpTimeout"),
                f"is not below catchUpTimeout {self.catch_up_timeout}, so that none ever keeps up "
                f"in time",
                "lower observeFor or raise catchUpTimeout",
            )


class Upgrade(Model):
    """How a new version takes over the old one's state."""

    mode: Literal["Savepoint", "LastCheckpoint", "Stateless"] = "Savepoint"
    """What it starts from."""

    fallback: Literal["LastCheckpoint", "Wait", "Fail"] = "LastCheckpoint"
    """What to do where no savepoint can be taken; never to start empty."""

    max_checkpoint_age: _Positive = Duration("5m")
    """An older last checkpoint is renewed first if the job is healthy."""

    strategy: Literal["Restart", "WarmStandby"] = "Restart"
    """Whether the old version is stopped before the new one starts, or only once that has run
    beside it, with nothing coming out, and has kept up. Both need room then."""

    standby: Standby = Standby()
    """For WarmStandby."""

    preflight: bool = False
    """Whether a pod of the new version tries itself before the old one is stopped: image,
    manifest, job file and graph, restore point. What fails is given up, and the old one runs on."""

    rollback: Rollback = Rollback()
    """Going back."""


class Backoff(Model):
    """The wait between restarts, doubling."""

    cel: ClassVar[tuple[Cel, ...]] = (
        Cel(
            "duration(self.initial) <= duration(self.max)",
            "initial is above max; lower initial or raise max",
            "initial",
            "'initial %s is above max %s; lower initial or raise max'"
            ".format([self.initial, self.max])",
        ),
    )

    initial: _Positive = Duration("10s")
    """The first wait."""

    max: _Positive = Duration("5m")
    """The longest wait."""

    reset_after: _Positive = Duration("30m")
    """How long the job must run for the wait to begin anew. A disruption that is
    not the job's fault counts for as long: the third waits."""

    def _rules(self) -> Iterator[Violation]:
        if self.initial > self.max:
            yield Violation(
                ("initial", "max"),
                f"{self.initial} is above max {self.max}",
                "lower initial or raise max",
            )


class Infrastructure(Model):
    """Failures that are not the job's: lost nodes, evictions."""

    count_as_restart: bool = False
    """Whether they count towards maxRestarts."""

    node_lost_timeout: _Positive = Duration("2m")
    """How long a node may be silent before its driver is replaced (after the fence)."""


class ExecutorFailures(Model):
    """Lost executors that are tolerated."""

    max: _Natural = 20
    """How many."""

    window: _Positive = Duration("10m")
    """In how long."""


Cure = Literal["Alert", "Restart", "Rollback"]
"""Tell people; begin anew from the newest checkpoint; go back to the last stable version, where
that may be without a person, and else begin anew."""


class HealthActions(Model):
    """What is done beside telling people, check by check."""

    no_progress: Cure = "Restart"
    """After noProgressFor, once another driver may do better."""

    no_checkpoint: Cure = "Restart"
    """After noCheckpointFor, likewise."""

    executor_loop: Literal["Alert", "Rollback"] = "Alert"
    """When half of executorFailures are used up."""

    restore_loop: Literal["Alert", "Rollback"] = "Alert"
    """After maxRestores."""


class HealthBudget(Model):
    """Automatic actions that are left before a person must look."""

    actions: _Few = 3
    """How many; 0 is none at all."""

    window: _Positive = Duration("6h")
    """In how long."""


class Health(Model):
    """A job that runs but gets nowhere, or not well."""

    no_progress_for: _Positive = Duration("15m")
    """Nothing moved for this long: no epoch, no task within one."""

    no_checkpoint_for: _Positive = Duration("15m")
    """No checkpoint for this long."""

    max_restores: Annotated[int, Field(ge=2, le=1000)] = 5
    """Restores in a row without a completed checkpoint."""

    skew_above: Annotated[int, Field(ge=2, le=1000)] = 4
    """How many times the mean of its operator's rows one subtask may have, while the stream has
    hardly a pause."""

    action: Literal["Restart", "Alert"] | None = None
    """Of an earlier release, and passed over: write actions.noProgress and actions.noCheckpoint."""

    actions: HealthActions = HealthActions()
    """What is done about it; skewed keys and clocks are only told."""

    budget: HealthBudget = HealthBudget()
    """How often."""


class DisruptionBudget(Model):
    """What a drain of nodes may take at a time, by PodDisruptionBudgets of the job."""

    driver: bool = False
    """Whether evictions of the driver are refused: a drain waits until a person moves the job."""

    executors_at_once: Annotated[int, Field(ge=1, le=MAX_INT)] | None = None
    """How many executors may be evicted at a time; as many as are there without it."""


class FailurePolicy(Model):
    """What is done when the job fails."""

    max_restarts: Annotated[int, Field(ge=-1, le=64)] = -1
    """How many restarts within the window; -1 is without end."""

    window: _Positive = Duration("1h")
    """The time in which restarts are counted."""

    backoff: Backoff = Backoff()
    """The wait between restarts."""

    infrastructure: Infrastructure = Infrastructure()
    """Failures that are not the job's."""

    executor_failures: Annotated[ExecutorFailures, OnChange("Upgrade")] = ExecutorFailures()
    """Lost executors that are tolerated."""

    disruption_budget: DisruptionBudget = DisruptionBudget()
    """What a drain of nodes may take at a time."""

    health: Health = Health()
    """A job that runs but gets nowhere, or not well."""


class OperatorSettings(Model):
    """How patient the operator is with this job; what is left out is as the operator is set up."""

    start_timeout: Annotated[Duration, at_least(Duration("10s"))] | None = None
    """How long a driver may take until the stream runs."""

    stop_timeout: Annotated[Duration, at_least(Duration("10s"))] | None = None
    """How long a driver may take to end after it was told to, before its pod is deleted."""

    endpoint_patience: Annotated[Duration, at_least(Duration("10s"))] | None = None
    """How long a driver that does not answer is still believed in while its pod runs."""


class Deletion(Model):
    """What stays when the object is deleted."""

    policy: Literal["Retain", "Delete"] = "Retain"
    """Whether checkpoints are kept."""

    final_snapshot: Literal["Savepoint", "Checkpoint", "None"] = "Savepoint"
    """What is taken before the end."""

    timeout: _Positive = Duration("10m")
    """How long that may take."""

    on_timeout: Literal["Proceed", "Block"] = "Proceed"
    """Whether the job is deleted without it then, or waits for a person."""


class IngressTls(Model):
    """A certificate of an Ingress."""

    hosts: Annotated[Items[Annotated[str, Field(max_length=253)]], Field(max_length=16)] = ()
    """The hosts that it is for; all of the Ingress if empty."""

    secret_name: Annotated[str, Field(max_length=253)] = ""
    """The Secret with it, in the job's namespace; the controller's own certificate if empty."""


class Ui(Model):
    """The driver's status page, and the Ingress in front of it."""

    ingress_template: Annotated[str, Field(max_length=512)] = ""
    """Host and path of the Ingress. The words namespace and name in it, in double braces, are those
    of the job. Empty: there is none."""

    class_name: Annotated[str, Field(max_length=253)] = ""
    """The Ingress class; the cluster's default if empty."""

    annotations: Annotated[Mapping[str, _Note], Field(max_length=64)] = Field(default_factory=dict)
    """Of the Ingress, for its controller."""

    labels: Annotated[Mapping[str, _Label], Field(max_length=64)] = Field(default_factory=dict)
    """Of the Ingress, beside the operator's own."""

    tls: Annotated[Items[IngressTls], Field(max_length=16)] = ()
    """Its certificates."""


class Metrics(Model):
    """The driver's metrics."""

    pod_monitor: bool = False
    """Whether a PodMonitor is made, by which the Prometheus operator finds the driver."""


class Observability(Model):
    """How the job is watched."""

    ui: Ui = Ui()
    """The status page."""

    metrics: Metrics = Metrics()
    """The metrics."""
