"""The StatefulSparkJob resource: the one truth about what a job's manifest may say."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from moorage_api.compute import Application, DriverSpec, EpochSpec, ExecutorSpec, Scaling
from moorage_api.lifecycle import (
    Deletion,
    FailurePolicy,
    Observability,
    OperatorSettings,
    Upgrade,
)
from moorage_api.model import (
    Cel,
    Items,
    Model,
    OnChange,
    RawMapping,
    TextMapping,
    Violation,
    refuse,
)
from moorage_api.names import OBJECT_NAME, JobName
from moorage_api.quantities import Duration, at_least
from moorage_api.reserved import (
    CLUSTER_SPARK_CONF,
    CLUSTER_SPARK_PREFIXES,
    DENIED_SPARK_CONF,
    SPARK_KEY_PATTERN,
)
from moorage_api.state import CheckpointSpec, Restore, SavepointSpec, SinksSpec, StateSpec


class Tls(Model):
    """Encryption between the pods of the job, the operator and Prometheus."""

    secret_name: Annotated[str, Field(pattern=OBJECT_NAME, max_length=253)]
    """A Secret of type kubernetes.io/tls with ca.crt beside tls.crt and tls.key. The certificate is
    for server and client, and has the DNS name <job>-driver.<namespace>.svc."""


class Security(Model):
    """Protection from others in the network of the pods."""

    tls: Tls | None = None
    """TLS for the driver's endpoint and for state servers; Spark then encrypts its local files,
    too. Without it, the endpoint and state servers are in the clear."""


API_VERSION = "moorage.dev/v1alpha1"
"""What objects are stored as, and what the operator asks for: definitions of an older release serve
it, too."""

ApiVersion = Literal["moorage.dev/v1beta1", "moorage.dev/v1alpha1"]
"""What people may write: the fields are the same."""

KIND = "StatefulSparkJob"


def _denied(conf: TextMapping) -> Iterator[Violation]:
    for key in sorted(conf):
        if key.strip() in DENIED_SPARK_CONF:
            yield Violation((key,), "is not the job's to set", DENIED_SPARK_CONF[key.strip()])
        elif not re.fullmatch(SPARK_KEY_PATTERN, key):
            yield Violation((key,), "is not a Spark setting", "write a key spark.*")


def _spark_conf(conf: TextMapping) -> TextMapping:
    refuse(_denied(conf))
    return conf


def _spark_conf_rule() -> dict[str, str]:
    """The rule that the API server applies; it sees a cluster's jobs only."""
    owned = [*DENIED_SPARK_CONF, *CLUSTER_SPARK_CONF]
    names = ", ".join(f"'{name}'" for name in sorted(owned))
    prefixes = " && ".join(f"!k.startsWith('{prefix}')" for prefix in CLUSTER_SPARK_PREFIXES)
    good = f"k.matches('{SPARK_KEY_PATTERN}') && !(k in [{names}]) && {prefixes}"
    wrong = (
        "no Spark setting, or one that other fields decide: images, ports, memory, cores, "
        "executors, authentication; use the fields of the spec"
    )
    return {
        "rule": f"self.all(k, {good})",
        "message": f"sparkConf has a key that is {wrong}",
        "messageExpression": f"'sparkConf has %s, which is {wrong}'"
        f".format([self.filter(k, !({good}))])",
    }


SparkConf = Annotated[
    Mapping[str, Annotated[str, Field(max_length=16_384)]],
    Field(max_length=256),
    AfterValidator(_spark_conf),
    Field(json_schema_extra={"x-kubernetes-validations": [_spark_conf_rule()]}),
]


_FIXED = (
    "is fixed for a lineage; set it back, or start anew with restore.mode Empty, "
    "acknowledgeStateLoss and a higher nonce"
)
_STRATEGY = ("upgrade", "strategy")
_BOUNDED = "the input ends (bounded), which the new version would come to by itself"
_SHARED = "state.local.type is HostPath, which two versions cannot share"
_IN_STORE = "state.backend is forst, whose files the old version deletes from the store"
_USE_RESTART = "use upgrade.strategy Restart"
_MOVE = (
    "set it back, or say with restore and a higher restore.nonce what to begin from in the new one"
)
_STARTS_EMPTY = (
    "(self.restore.mode == 'Empty' && self.restore.acknowledgeStateLoss"
    " && self.restore.nonce != oldSelf.restore.nonce)"
)


class ObjectMeta(Model):
    """What Kubernetes knows of every object; what the API server fills in is taken as it is."""

    name: JobName
    """At most 45 characters, for the names made from it: pods, services, volumes."""

    namespace: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")] | None = None
    """The namespace; on one machine "default"."""

    labels: TextMapping = Field(default_factory=dict)
    """Labels."""

    annotations: TextMapping = Field(default_factory=dict)
    """Annotations; moorage.dev/savepoint, /checkpoint and /restart ask for something once."""

    uid: str | None = None
    """Filled in by the API server."""

    generation: int | None = None
    """Filled in by the API server."""

    resource_version: str | None = None
    """Filled in by the API server."""

    creation_timestamp: Any = None
    """Filled in by the API server."""

    deletion_timestamp: Any = None
    """Filled in by the API server."""

    deletion_grace_period_seconds: int | None = None
    """Filled in by the API server."""

    finalizers: Items[str] = ()
    """Filled in by controllers."""

    owner_references: Items[RawMapping] = ()
    """Filled in by controllers."""

    managed_fields: Items[RawMapping] = ()
    """Filled in by the API server."""


class JobSpec(Model):
    """What the job is and how it is to run."""

    cel: ClassVar[tuple[Cel, ...]] = (
        Cel(
            "self.upgrade.mode != 'Savepoint' || has(self.state.savepointDir)",
            "state.savepointDir is missing, and upgrade.mode is Savepoint; add it, or choose "
            "upgrade.mode LastCheckpoint",
            "state.savepointDir",
        ),
        Cel(
            "self.upgrade.strategy != 'WarmStandby' || !self.bounded",
            f"upgrade.strategy is WarmStandby, and {_BOUNDED}; {_USE_RESTART}",
            "upgrade.strategy",
        ),
        Cel(
            "self.upgrade.strategy != 'WarmStandby' || self.state.local.type != 'HostPath'",
            f"upgrade.strategy is WarmStandby, and {_SHARED}; {_USE_RESTART}",
            "upgrade.strategy",
        ),
        Cel(
            "self.upgrade.strategy != 'WarmStandby' || !has(self.state.backend)"
            " || self.state.backend != 'forst'",
            f"upgrade.strategy is WarmStandby, and {_IN_STORE}; {_USE_RESTART}",
            "upgrade.strategy",
        ),
        Cel(
            "self.scaling.maxParallelism == oldSelf.scaling.maxParallelism"
            f" || self.scaling.repartition == 'Offline' || {_STARTS_EMPTY}",
            f"maxParallelism {_FIXED}",
            "scaling.maxParallelism",
            f"'maxParallelism is %d and was %d: it {_FIXED}'"
            ".format([self.scaling.maxParallelism, oldSelf.scaling.maxParallelism])",
        ),
        Cel(
            f"self.scaling.keyHash == oldSelf.scaling.keyHash || {_STARTS_EMPTY}",
            f"keyHash {_FIXED}",
            "scaling.keyHash",
            f"'keyHash is %s and was %s: it {_FIXED}'"
            ".format([self.scaling.keyHash, oldSelf.scaling.keyHash])",
        ),
        Cel(
            "self.state.checkpointDir == oldSelf.state.checkpointDir"
            " || self.restore.nonce != oldSelf.restore.nonce",
            f"checkpointDir is not where the job's state is; {_MOVE}",
            "state.checkpointDir",
            f"'checkpointDir is %s, and the state is in %s; {_MOVE}'"
            ".format([self.state.checkpointDir, oldSelf.state.checkpointDir])",
        ),
        Cel(
            "self.restore.nonce >= oldSelf.restore.nonce",
            "restore.nonce never goes down; keep it, or raise it to restore again",
            "restore.nonce",
            "'restore.nonce is %d and was %d, and never goes down; keep it, or raise it to restore "
            "again'.format([self.restore.nonce, oldSelf.restore.nonce])",
        ),
    )

    image: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^\S+$")] | None = None
    """The container image; needed on a cluster, not used on one machine."""

    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When the image is pulled."""

    application: Application
    """The user's program."""

    spark_conf: SparkConf = Field(default_factory=dict)
    """More Spark settings; values in quotes. Keys that other fields decide are refused."""

    profile: Annotated[
        Annotated[str, Field(pattern=OBJECT_NAME, max_length=63)] | None, OnChange("Live")
    ] = None
    """The profile of the operator's fleet file whose values stand where this spec has a default; by
    default the namespace's or everybody's, and none if it is called none."""

    desired_state: Annotated[Literal["Running", "Suspended"], OnChange("Live")] = "Running"
    """Whether the job is to run."""

    bounded: bool = False
    """Whether the inputs end: the job then finishes, with a last checkpoint."""

    scaling: Scaling
    """How many subtasks share the keys."""

    epoch: EpochSpec = EpochSpec()
    """How the stream is cut into epochs."""

    driver: DriverSpec = DriverSpec()
    """The driver's pod."""

    executor: ExecutorSpec = ExecutorSpec()
    """The executors' pods."""

    service_account_name: Annotated[str, Field(pattern=OBJECT_NAME, max_length=253)] = "spark"
    """The service account of driver and executors."""

    security: Security | None = None
    """Protection from others in the network of the pods."""

    state: StateSpec
    """The state, and the directories that are the truth about it."""

    checkpoint: CheckpointSpec = CheckpointSpec()
    """When checkpoints are taken."""

    sinks: SinksSpec = SinksSpec()
    """When output is published."""

    savepoint: Annotated[SavepointSpec, OnChange("Live")] = SavepointSpec()
    """Periodic savepoints."""

    restore: Annotated[Restore, OnChange("Ignore")] = Restore()
    """What the job begins from."""

    upgrade: Annotated[Upgrade, OnChange("Live")] = Upgrade()
    """How a new version takes over."""

    failure_policy: Annotated[FailurePolicy, OnChange("Live")] = FailurePolicy()
    """What is done when the job fails."""

    operator: Annotated[OperatorSettings, OnChange("Live")] = OperatorSettings()
    """How patient the operator is with this job."""

    deletion: Annotated[Deletion, OnChange("Live")] = Deletion()
    """What stays when the object is deleted."""

    ttl_after_finished: Annotated[Duration, at_least(Duration("0s")), OnChange("Live")] = Duration(
        "24h"
    )
    """How long the pods of a finished job stay, for their logs; its object stays."""

    observability: Annotated[Observability, OnChange("Live")] = Observability()
    """How the job is watched."""

    def _rules(self) -> Iterator[Violation]:
        if self.upgrade.strategy != "WarmStandby":
            return
        if self.bounded:
            yield Violation((_STRATEGY, "bounded"), f"is WarmStandby, and {_BOUNDED}", _USE_RESTART)
        if self.state.local.type == "HostPath":
            place: tuple[str, ...] = ("state", "local", "type")
            yield Violation((_STRATEGY, place), f"is WarmStandby, and {_SHARED}", _USE_RESTART)
        if self.state.backend == "forst":
            place = ("state", "backend")
            yield Violation((_STRATEGY, place), f"is WarmStandby, and {_IN_STORE}", _USE_RESTART)

    @property
    def tls_secret(self) -> str:
        """The Secret with the job's certificate; empty if its pods speak in the clear."""
        return self.security.tls.secret_name if self.security and self.security.tls else ""


class StatefulSparkJob(Model):
    """One job: a streaming query with one or more stateful operators."""

    api_version: ApiVersion
    """The version of this format."""

    kind: Literal["StatefulSparkJob"]
    """The kind of object."""

    metadata: ObjectMeta
    """Name, namespace, labels, annotations."""

    spec: JobSpec
    """What the job is and how it is to run."""

    status: RawMapping | None = None
    """What the operator reports; taken as it is, so that an exported object can be read."""

    @property
    def name(self) -> str:
        """The job's name."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """The namespace, "default" where none is given."""
        return self.metadata.namespace or "default"
