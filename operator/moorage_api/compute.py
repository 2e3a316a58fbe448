"""Where a job runs and how wide it is: application, pods, parallelism, epochs."""

from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Annotated, ClassVar, Literal

from pydantic import Field, WithJsonSchema

from moorage_api.model import MAX_INT, Cel, Items, Model, OnChange, RawMapping, Violation
from moorage_api.names import CLUSTER_PY_FILE, MainFile
from moorage_api.quantities import Duration, Quantity, at_least

MAX_PARALLELISM_LIMIT = 32768

# Spark refuses to start with less than 450 MiB of heap.
_Memory = Annotated[Quantity, at_least(Quantity("450Mi"))]
_Cpu = Annotated[Quantity, at_least(Quantity("1m"))]
_Cores = Annotated[int, Field(ge=1, le=1024)]
_Width = Annotated[int, Field(ge=1, le=MAX_PARALLELISM_LIMIT)]
_Amount = Annotated[Quantity, at_least(Quantity("0"))]
_Share = Annotated[str, Field(pattern=r"^(0\.[0-9]{1,3}|1(\.0{1,3})?)$", max_length=5)]
# Not 0, by which nothing can be divided.
_PART = r"^(0\.(0[1-9][0-9]?|00[1-9]|[1-9][0-9]{0,2})|1(\.0{1,3})?)$"
_Argument = Annotated[str, Field(max_length=4096)]
_PyFile = Annotated[
    str,
    Field(max_length=1024),
    WithJsonSchema({"type": "string", "pattern": CLUSTER_PY_FILE, "maxLength": 1024}),
]


class EnvVar(Model):
    """An environment variable of driver and executors, as Kubernetes writes it."""

    cel: ClassVar[tuple[Cel, ...]] = (
        Cel(
            "!(has(self.value) && has(self.valueFrom))",
            "value is given beside valueFrom; keep one of them",
            "value",
            "'value of %s is given beside valueFrom; keep one of them'.format([self.name])",
        ),
    )

    name: Annotated[str, Field(pattern=r"^[-._a-zA-Z][-._a-zA-Z0-9]*$", max_length=256)]
    """The variable's name."""

    value: Annotated[str, Field(max_length=32768)] | None = None
    """Its value; empty if neither this nor valueFrom is given."""

    value_from: RawMapping | None = None
    """Where the cluster takes the value from: secretKeyRef, configMapKeyRef, fieldRef."""

    def _rules(self) -> Iterator[Violation]:
        if self.value is not None and self.value_from is not None:
            yield Violation(("value", "valueFrom"), "is given beside valueFrom", "keep one of them")


class Application(Model):
    """The user's program."""

    main_file: MainFile
    """The job file: local:///path/in/the/image/job.py, or a path relative to the manifest."""

    args: Annotated[Items[_Argument], Field(max_length=256)] = ()
    """What the job file finds in `env.args`."""

    py_files: Annotated[Items[_PyFile], Field(max_length=128)] = ()
    """More Python modules, folders, zips or wheels for driver and executors; paths like
    mainFile's."""

    env: Annotated[Items[EnvVar], Field(max_length=128)] = ()
    """Environment variables of driver and executors."""

    def _rules(self) -> Iterator[Violation]:
        names = [variable.name for variable in self.env]
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            yield Violation(("env",), f"names {', '.join(doubled)} twice", "keep one of each")

    def main_path(self, base: Path) -> Path:
        """Return the job file's path on this machine; `base` is the manifest's directory."""
        return base / self.main_file.removeprefix("local://")

    @property
    def import_paths(self) -> tuple[str, ...]:
        """Where Python looks for what `pyFiles` has: folders and archives, of a module its folder.

        They are relative to the manifest's directory, or absolute.
        """
        names = (name.removeprefix("local://") for name in self.py_files)
        paths = (str(PurePath(one).parent) if one.endswith(".py") else one for one in names)
        return tuple(dict.fromkeys(paths))


class Autoscaler(Model):
    """Parallelism that follows the load."""

    cel: ClassVar[tuple[Cel, ...]] = (
        Cel(
            "self.min <= self.max",
            "min is above max; lower min or raise max",
            "min",
            "'min %d is above max %d; lower min or raise max'.format([self.min, self.max])",
        ),
    )

    enabled: bool = False
    """Whether it decides at all."""

    dry_run: bool = True
    """Only say in the status and by events what it would do."""

    min: _Width = 2
    """The least parallelism it goes to."""

    max: _Width = 32
    """The greatest parallelism it goes to."""

    target_utilization: Annotated[str, Field(pattern=_PART, max_length=5)] = "0.7"
    """The share of its capacity that the job is to use, a decimal in quotes: "0.7"."""

    utilization_boundary: _Share = "0.2"
    """How far from that the job may be before anything is done."""

    scale_down_delay: Annotated[Duration, at_least(Duration("0s"))] = Duration("1h")
    """How long the load must be low before it goes down."""

    window: Annotated[Duration, at_least(Duration("1s"))] = Duration("15m")
    """The time it averages over; a driver knows it from its start on."""

    stabilization_interval: Annotated[Duration, at_least(Duration("0s"))] = Duration("5m")
    """How long after any change of parallelism it does nothing."""

    catch_up_duration: Annotated[Duration, at_least(Duration("1s"))] = Duration("30m")
    """The time in which a backlog is to be gone."""

    backlog_lag: Annotated[Duration, at_least(Duration("1s"))] = Duration("5m")
    """With more than what arrives in this time waiting in the sources, it never goes down."""

    scale_up_max_factor: Annotated[int, Field(ge=2, le=MAX_PARALLELISM_LIMIT)] = 4
    """Times as many subtasks that it goes to at once, at most."""

    scale_down_max_factor: _Share = "0.6"
    """The share of the subtasks that it takes away at once, at most."""

    def _rules(self) -> Iterator[Violation]:
        if self.min > self.max:
            yield Violation(
                ("min", "max"), f"{self.min} is above max {self.max}", "lower min or raise max"
            )


class Scaling(Model):
    """How many subtasks share the keys."""

    cel: ClassVar[tuple[Cel, ...]] = (
        Cel(
            "self.parallelism <= self.maxParallelism",
            "parallelism is above maxParallelism; lower it",
            "parallelism",
            "'parallelism %d is above maxParallelism %d; lower it'"
            ".format([self.parallelism, self.maxParallelism])",
        ),
        Cel(
            "!self.autoscaler.enabled || self.autoscaler.max <= self.maxParallelism",
            "autoscaler.max is above maxParallelism; lower it",
            "autoscaler.max",
            "'autoscaler.max %d is above maxParallelism %d; lower it'"
            ".format([self.autoscaler.max, self.maxParallelism])",
        ),
        Cel(
            "self.floor <= self.maxParallelism",
            "floor is above maxParallelism; lower it",
            "floor",
            "'floor %d is above maxParallelism %d; lower it'"
            ".format([self.floor, self.maxParallelism])",
        ),
    )

    parallelism: Annotated[_Width, OnChange("Rescale")]
    """Subtasks of every stateful operator; executors = ceil(parallelism / executor.cores)."""

    max_parallelism: _Width = 128
    """Key groups, the most subtasks there can ever be; fixed for a lineage."""

    key_hash: Literal["spark-xxhash64", "flink-murmur"] = "spark-xxhash64"
    """The hash that puts keys into key groups; fixed for a lineage."""

    mode: Annotated[Literal["InPlaceParallelism", "InPlace", "Restart"], OnChange("Live")] = (
        "InPlaceParallelism"
    )
    """What changes while the stream runs: with InPlaceParallelism parallelism (a driver knows it
    from its start on) and executor.instances, with InPlace executor.instances alone, with Restart
    nothing. What does not, or fails, goes by a checkpoint and a restart."""

    repartition: Annotated[Literal["Forbidden", "Offline"], OnChange("Live")] = "Forbidden"
    """Whether maxParallelism may change, by rewriting all state while the job is stopped. Offline
    is not in this release, which refuses it."""

    autoscaler: Annotated[Autoscaler, OnChange("Live")] = Autoscaler()
    """Parallelism that follows the load."""

    floor: Annotated[_Width, OnChange("Live")] = 1
    """A parallelism below it counts as it, whoever writes it: `kubectl scale`, an HPA, KEDA."""

    cooldown: Annotated[Duration, at_least(Duration("0s")), OnChange("Live")] = Duration("0s")
    """How long after a change of parallelism an edit of it waits, whoever makes it: the last one
    counts then."""

    def _rules(self) -> Iterator[Violation]:
        if self.parallelism > self.max_parallelism:
            yield Violation(
                ("parallelism", "maxParallelism"),
                f"{self.parallelism} is above maxParallelism {self.max_parallelism}",
                "lower parallelism; maxParallelism can only be raised before the first start",
            )
        if self.autoscaler.enabled and self.autoscaler.max > self.max_parallelism:
            yield Violation(
                (("autoscaler", "max"), "maxParallelism"),
                f"{self.autoscaler.max} is above maxParallelism {self.max_parallelism}",
                f"write {self.max_parallelism} or less",
            )
        if self.floor > self.max_parallelism:
            yield Violation(
                ("floor", "maxParallelism"),
                f"{self.floor} is above maxParallelism {self.max_parallelism}",
                f"write {self.max_parallelism} or less",
            )


class EpochSpec(Model):
    """How the stream is cut into epochs (micro-batches)."""

    interval: Annotated[Duration, at_least(Duration("0s"))] = Duration("1s")
    """The time from the start of one epoch to the next; 0s starts the next at once."""

    max_records_per_epoch: Annotated[int, Field(ge=1, le=MAX_INT)] = 200_000
    """The most records one input gives to one epoch, so that a backlog does not come at once."""


class Resources(Model):
    """CPU and memory of a container, as Kubernetes writes them."""

    cel: ClassVar[tuple[Cel, ...]] = tuple(
        Cel(
            f"!(has(self.requests) && has(self.requests.{name}) && has(self.limits)"
            f" && has(self.limits.{name})) || {Quantity.cel(f'self.requests.{name}')}"
            f".compareTo({Quantity.cel(f'self.limits.{name}')}) <= 0",
            f"requests.{name} is above limits.{name}; lower it or raise the limit",
            show=f"'requests.{name} %s is above limits.{name} %s; lower it or raise the limit'"
            f".format([self.requests.{name}, self.limits.{name}])",
        )
        for name in ("cpu", "memory")
    )

    requests: dict[Literal["cpu", "memory"], _Amount] = Field(default_factory=dict)
    """What the scheduler sets aside."""

    limits: dict[Literal["cpu", "memory"], _Amount] = Field(default_factory=dict)
    """What the container cannot exceed."""

    def _rules(self) -> Iterator[Violation]:
        for name, limit in self.limits.items():
            request = self.requests.get(name)
            if request is not None and request > limit:
                yield Violation(
                    (("requests", name), ("limits", name)),
                    f"{request} is above the limit {limit}",
                    "lower the request or raise the limit",
                )


class SidecarSpec(Model):
    """The state server's container, beside each executor."""

    resources: Resources = Resources()
    """Its CPU and memory; RocksDB's cache and write buffers are sized from the memory limit."""


class DriverSpec(Model):
    """The driver's pod."""

    cores: _Cores = 1
    """Cores that the driver uses."""

    cpu_request: _Cpu | None = None
    """CPU set aside for it, such as 500m; by default its cores."""

    memory: _Memory = Quantity("2Gi")
    """Memory of the pod; on one machine, of Spark."""

    pod_template: RawMapping = Field(default_factory=dict)
    """A pod that ours is merged into, containers by name."""


class ExecutorSpec(Model):
    """The executors' pods."""

    instances: Annotated[Annotated[int, Field(ge=1, le=10_000)] | None, OnChange("Rescale")] = None
    """How many; by default ceil(parallelism / cores)."""

    cores: _Cores = 2
    """Tasks that one executor runs at a time."""

    cpu_request: _Cpu | None = None
    """CPU set aside for one, such as 500m; by default its cores."""

    memory: _Memory = Quantity("4Gi")
    """Memory of one pod, without the sidecar's."""

    pod_template: RawMapping = Field(default_factory=dict)
    """A pod that ours is merged into, containers by name."""

    sidecar: SidecarSpec = SidecarSpec()
    """The state server's container."""
