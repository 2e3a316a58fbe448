"""The StatefulSparkJob resource: the one truth about what a job's manifest may say."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from moorage_api.compute import Application, Driver, Epoch, Executor, Scaling
from moorage_api.lifecycle import Deletion, FailurePolicy, Observability, Upgrade
from moorage_api.model import Items, Model, RawMapping, TextMapping, Violation, refuse
from moorage_api.names import JobName
from moorage_api.state import Checkpoint, Restore, Savepoint, State
from moorage_api.values import Duration, at_least

__all__ = [
    "API_VERSION",
    "DENIED_SPARK_CONF",
    "KIND",
    "JobSpec",
    "ObjectMeta",
    "StatefulSparkJob",
]

API_VERSION = "moorage.dev/v1alpha1"
KIND = "StatefulSparkJob"

# Each of these is decided by another field of the spec, or by the cluster.
DENIED_SPARK_CONF: dict[str, str] = {
    "spark.app.id": "leave it out: each run has its own",
    "spark.dynamicAllocation.enabled": "use scaling.autoscaler",
    "spark.executor.instances": "use executor.instances or scaling.parallelism",
    "spark.kubernetes.driver.pod.name": "leave it out: it follows from metadata.name",
    "spark.kubernetes.namespace": "use metadata.namespace",
    "spark.master": "leave it out: it follows from where the job runs",
    "spark.sql.shuffle.partitions": "use scaling.parallelism",
    "spark.submit.deployMode": "leave it out: it follows from where the job runs",
}


def _denied(conf: TextMapping) -> Iterator[Violation]:
    for key in sorted(conf):
        if key.strip() in DENIED_SPARK_CONF:
            yield Violation((key,), "is not the job's to set", DENIED_SPARK_CONF[key.strip()])
        elif not key.startswith("spark.") or key != key.strip():
            yield Violation((key,), "is not a Spark setting", "write a key spark.*")


def _spark_conf(conf: TextMapping) -> TextMapping:
    refuse(_denied(conf))
    return conf


SparkConf = Annotated[TextMapping, AfterValidator(_spark_conf)]


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

    image: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^\S+$")] | None = None
    """The container image; needed on a cluster, not used on one machine."""

    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """When the image is pulled."""

    application: Application
    """The user's program."""

    spark_conf: SparkConf = Field(default_factory=dict)
    """More Spark settings; values in quotes. Keys that other fields decide are refused."""

    desired_state: Literal["Running", "Suspended"] = "Running"
    """Whether the job is to run."""

    bounded: bool = False
    """Whether the inputs end: the job then finishes, with a last checkpoint."""

    scaling: Scaling
    """How many subtasks share the keys."""

    epoch: Epoch = Epoch()
    """How the stream is cut into epochs."""

    driver: Driver = Driver()
    """The driver's pod."""

    executor: Executor = Executor()
    """The executors' pods."""

    service_account_name: Annotated[str, Field(max_length=253)] = "spark"
    """The service account of driver and executors."""

    state: State
    """The state, and the directories that are the truth about it."""

    checkpoint: Checkpoint = Checkpoint()
    """When checkpoints are taken."""

    savepoint: Savepoint = Savepoint()
    """Periodic savepoints."""

    restore: Restore = Restore()
    """What the job begins from."""

    upgrade: Upgrade = Upgrade()
    """How a new version takes over."""

    failure_policy: FailurePolicy = FailurePolicy()
    """What is done when the job fails."""

    deletion: Deletion = Deletion()
    """What stays when the object is deleted."""

    ttl_after_finished: Annotated[Duration, at_least(Duration("0s"))] = Duration("24h")
    """How long a finished job's object stays."""

    observability: Observability = Observability()
    """How the job is watched."""


class StatefulSparkJob(Model):
    """One job: a streaming query with one or more stateful operators."""

    api_version: Literal["moorage.dev/v1alpha1"]
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
