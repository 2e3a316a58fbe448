"""What the driver needs of a job's manifest, resolved for the machine it runs on.

Decides defaults and paths once, so that nothing below reads the resource's models; and which state
backend a job gets: a manifest goes before the machine's defaults. Frozen.
"""

import datetime
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from moorage.driver.types import Orders
from moorage_api import StatefulSparkJob
from moorage_api.driver import ORDER_BY_SPEC
from moorage_api.state import DEFAULT_BACKEND, S3, for_every_job
from moorage_state.coordinator import CheckpointRetentionPolicy
from moorage_state.errors import IllegalConfigurationError, UserError
from moorage_state.import_path import after_standard_library
from moorage_state.state_backends import StateBackend, job_max_state_size, judge_job_backend
from moorage_state.stores import store_url
from moorage_state.stores.addresses import child
from moorage_state.tuning import (
    CHECKPOINT_STORAGE_KEY,
    ChangelogOptions,
    Refusal,
    changelog_options,
    default_options,
)

_LOCAL_CLUSTER = "local"

_RETENTION = {
    "NoExternalizedCheckpoints": CheckpointRetentionPolicy.NEVER_RETAIN_AFTER_TERMINATION,
    "DeleteOnCancellation": CheckpointRetentionPolicy.RETAIN_ON_FAILURE,
    "RetainOnCancellation": CheckpointRetentionPolicy.RETAIN_ON_CANCELLATION,
}

DEFAULT_VARIABLE = "MOORAGE_STATE_BACKEND"
"""The state backend of jobs that have no state yet and whose manifest names none."""


@dataclass(frozen=True, slots=True)
class RestorePolicy:
    """What a start begins from.

    Attributes:
        path: for "Path": `chk-<id>`, or its path or URL in the checkpoint directory; for "Latest":
            the newest checkpoint that an operator has heard of, or empty.
        nonce: the manifest's restore nonce; a choice counts once per nonce.
        explicit: asked for on the command line: it counts now, whatever the nonce.
        max_fallback_age: how much older a checkpoint may be that takes a damaged one's place.
        claim: a restored savepoint is the job's to delete.
        allow_non_restored: state of operators and inputs that are gone may be left behind.
        order_id: the operator's name for the choice, which then counts once per id; else empty.
        digest: that the manifest at `path` must have; empty for any.
    """

    mode: str = "Latest"
    path: str = ""
    nonce: int = 0
    explicit: bool = False
    max_fallback_age: datetime.timedelta | None = None
    allow_non_restored: bool = False
    skip_missing_offsets: bool = False
    claim: bool = False
    acknowledge_state_loss: bool = False
    uid_mapping: dict[str, str] = field(default_factory=dict)
    order_id: str = ""
    digest: str = ""


@dataclass(frozen=True, slots=True)
class JobSettings:
    """One job, on the machine that its driver runs on."""

    name: str
    namespace: str
    uid: str
    cluster: str
    main_file: Path
    args: tuple[str, ...]
    py_files: tuple[Path, ...]
    env: dict[str, str]
    parallelism: int
    max_parallelism: int
    key_hash: str
    checkpoint_dir: str
    savepoint_dir: str
    s3: S3
    interval_seconds: float | None
    checkpoint_cron: str | None
    min_pause_seconds: float
    timeout_seconds: float
    retain: int
    retention: CheckpointRetentionPolicy | None
    incremental: bool
    max_concurrent: int
    tolerable_failures: int
    fail_on_tolerance: bool
    bounded: bool
    epoch_seconds: float
    max_records_per_epoch: int
    driver_memory_mb: int
    spark_conf: dict[str, str]
    backend: StateBackend
    restore: RestorePolicy
    max_state_size: int | None = None
    """What a subtask may have in a checkpoint's manifest; None where its state goes into files."""
    derives_max_parallelism: bool = False
    """The manifest leaves it open: it is that of the restored snapshot, if there is one."""
    declared_parallelism: int = 0
    """What the manifest says; `parallelism` may be another since, see `moorage.driver.rescale`."""
    rescales_live: bool = False
    """Whether the number of subtasks may change while the job runs."""
    open_backend_options: dict[str, str] | None = None
    """The manifest names no backend, but these settings of one: see `adopting`."""
    changelog: ChangelogOptions | None = None
    """How checkpoints list deltas; None where each is a copy."""
    publishes_commits: bool = False
    """A checkpoint follows each epoch, and one the other, whatever the interval says."""

    @classmethod
    def of(
        cls,
        job: StatefulSparkJob,
        job_dir: Path,
        restore: str | None = None,
        orders: Orders | None = None,
    ) -> "JobSettings":
        """Settings of `job` whose manifest lies in `job_dir`.

        Args:
            restore: a restore point named on the command line; it wins over the manifest's.
            orders: what an operator ordered; it wins over the manifest, too.

        Raises:
            UserError: the job file is not there.
        """
        spec = job.spec
        main_file = spec.application.main_path(job_dir).resolve()
        if not main_file.is_file():
            raise UserError(
                f"no such job file: application.mainFile={spec.application.main_file} "
                f"path={main_file}; relative paths start at the manifest's directory"
            )
        # An operator tells the sidecars as well; an older one leaves rocksdb out.
        named = spec.state.effective_backend if orders else spec.state.backend
        interval = spec.checkpoint.effective_interval
        py_files = tuple((job_dir / name).resolve() for name in spec.application.import_paths)
        changelog = changelog_options(
            spec.state.options, default_options(os.environ), asked=spec.state.changelog
        )
        max_state_size = job_max_state_size(
            or_default(named), spec.state.options, default_options(os.environ)
        )
        if changelog is not None and max_state_size is not None:
            raise IllegalConfigurationError(
                f"a changelog needs checkpoints that are files: key=spec.state.changelog "
                f"value=true backend={or_default(named)} setting={CHECKPOINT_STORAGE_KEY}; leave "
                f"the changelog out, or set {CHECKPOINT_STORAGE_KEY} to filesystem"
            )
        return cls(
            name=job.metadata.name,
            namespace=job.metadata.namespace or "default",
            uid=orders.uid if orders else job.metadata.uid or _LOCAL_CLUSTER,
            cluster=orders.cluster if orders else _LOCAL_CLUSTER,
            main_file=main_file,
            args=tuple(spec.application.args),
            py_files=py_files,
            env={v.name: v.value or "" for v in spec.application.env if v.value_from is None},
            parallelism=spec.scaling.parallelism,
            max_parallelism=spec.scaling.max_parallelism,
            key_hash=spec.scaling.key_hash,
            checkpoint_dir=_address(spec.state.checkpoint_dir, spec.state.s3, job_dir),
            s3=spec.state.s3,
            savepoint_dir=_address(spec.state.savepoint_dir or "", spec.state.s3, job_dir),
            interval_seconds=interval.seconds if interval is not None else None,
            checkpoint_cron=spec.checkpoint.cron,
            min_pause_seconds=spec.checkpoint.min_pause.seconds,
            timeout_seconds=spec.checkpoint.timeout.seconds,
            retain=spec.checkpoint.retain.count,
            retention=_retention(spec.checkpoint.externalized_checkpoint_retention),
            incremental=spec.checkpoint.incremental,
            max_concurrent=spec.checkpoint.max_concurrent,
            tolerable_failures=spec.checkpoint.tolerable_failures,
            fail_on_tolerance=spec.checkpoint.on_tolerance_exceeded == "FailJob",
            bounded=spec.bounded,
            epoch_seconds=spec.epoch.interval.seconds,
            max_records_per_epoch=spec.epoch.max_records_per_epoch,
            driver_memory_mb=int(spec.driver.memory.value) >> 20,
            spark_conf=dict(spec.spark_conf),
            backend=_backend(job, named, (main_file.parent, *py_files)),
            restore=_restore_policy(job, restore, orders),
            max_state_size=max_state_size,
            derives_max_parallelism="max_parallelism" not in spec.scaling.model_fields_set,
            declared_parallelism=spec.scaling.parallelism,
            rescales_live=spec.scaling.mode == "InPlaceParallelism",
            open_backend_options=dict(spec.state.options) if named is None else None,
            changelog=changelog,
            publishes_commits=spec.sinks.publish_with == "commit",
        )

    @property
    def code(self) -> tuple[Path, ...]:
        """Where the job's own modules lie: folders and archives."""
        return (self.main_file.parent, *self.py_files)

    @property
    def in_one_epoch(self) -> bool:
        """Whether the job takes all its input at once, and keeps no state (the backend batch)."""
        return self.backend.identifier == "batch"

    def reach(self, url: str) -> str:
        """The whole address of a directory that somebody named, with how this job reaches S3."""
        s3 = self.s3
        return store_url(url, s3.endpoint, s3.region, path_style=s3.path_style)

    def savepoint_url(self, name: str) -> str:
        """The directory of the savepoint with this name.

        Raises UserError: the job has no place for savepoints.
        """
        if not self.savepoint_dir:
            raise UserError(
                f"the job has no place for savepoints: job={self.name}; give it a "
                f"state.savepointDir beside its checkpointDir"
            )
        return child(self.savepoint_dir, name)


def _backend(job: StatefulSparkJob, named: str | None, code: Sequence[Path]) -> StateBackend:
    found = chosen_backend(named, job.spec.state.options, code)
    if found.identifier == "batch" and not job.spec.bounded:
        raise IllegalConfigurationError(
            f"the backend batch needs input that ends: key=spec.state.backend "
            f"value={named!r} spec.bounded=false; set spec.bounded to true, or use rocksdb "
            f"or hashmap"
        )
    return found


def _retention(named: str | None) -> CheckpointRetentionPolicy | None:
    """Flink's policy under the name that people give it; none keeps checkpoints at every end."""
    return _RETENTION[named] if named is not None else None


def _address(url: str, s3: S3, job_dir: Path) -> str:
    """The whole address of a directory; a relative path of a `file://` URL starts at `job_dir`."""
    # With how S3 is reached, for processes that know nothing of the manifest.
    if not url.startswith("file://"):
        return store_url(url, s3.endpoint, s3.region, path_style=s3.path_style)
    path = url.removeprefix("file://")
    # Quoted as far as it would be read as another path: a manifest has no % itself.
    return f"file://{os.path.normpath(job_dir.resolve() / path)}".replace("%", "%25")


def _restore_policy(
    job: StatefulSparkJob, asked: str | None, orders: Orders | None
) -> RestorePolicy:
    spec = job.spec.restore
    age = spec.max_fallback_age.timedelta
    policy = RestorePolicy(
        mode=spec.mode,
        path=spec.path if spec.mode == "Path" else "",
        nonce=spec.nonce,
        max_fallback_age=age if age.total_seconds() > 0 else None,
        allow_non_restored=spec.allow_non_restored_state,
        skip_missing_offsets=spec.on_missing_offsets == "Skip",
        claim=spec.claim_mode == "Claim",
        acknowledge_state_loss=spec.acknowledge_state_loss,
        uid_mapping=dict(spec.uid_mapping),
    )
    if asked is not None:
        claim = policy.claim and asked == policy.path
        return replace(policy, mode="Path", path=asked, explicit=True, claim=claim)
    if orders is None:
        return policy
    # A stateless upgrade says in the manifest that state may go.
    loss = policy.acknowledge_state_loss or job.spec.upgrade.mode == "Stateless"
    return replace(
        policy,
        # What the operator stopped the job with, or goes back to, is not what spec.restore claims.
        claim=policy.claim and orders.order_id.startswith(ORDER_BY_SPEC),
        mode=orders.mode,
        path=orders.path,
        digest=orders.digest,
        order_id=orders.order_id,
        acknowledge_state_loss=loss,
    )


def or_default(backend: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """The name of a backend; None stands for the machine's default.

    Raises IllegalConfigurationError: that default is no backend for every job.
    """
    if backend is not None:
        return backend
    return _for_every_job(environ.get(DEFAULT_VARIABLE, "").strip() or DEFAULT_BACKEND)


def _for_every_job(name: str) -> str:
    try:
        return for_every_job(name)
    except ValueError as error:
        raise IllegalConfigurationError(f"{name} {error}") from error


def chosen_backend(
    backend: str | None,
    options: Mapping[str, str],
    code: Sequence[Path] = (),
    environ: Mapping[str, str] = os.environ,
) -> StateBackend:
    """The backend that `spec.state.backend` and `spec.state.options` name here.

    Args:
        backend: its name; None for the machine's default.
        code: where the job's own modules lie: folders and archives.

    Raises:
        IllegalConfigurationError: naming the key, its value and what is allowed.
    """
    judged = judge_backend(backend, options, code, environ)
    if isinstance(judged, StateBackend):
        return judged
    raise judged[0].error()


def judge_backend(
    backend: str | None,
    options: Mapping[str, str],
    code: Sequence[Path] = (),
    environ: Mapping[str, str] = os.environ,
) -> StateBackend | list[Refusal]:
    """What `chosen_backend` gives, or everything that is wrong with the options.

    Raises IllegalConfigurationError: there is no such backend, or the machine's defaults are wrong.
    """
    defaults = default_options(environ)
    try:
        with _importing_from(code):
            judged = judge_job_backend(or_default(backend, environ), options, defaults)
        if backend is None and isinstance(judged, StateBackend):
            # A name says it before anything is imported; of module:Class only what it makes does.
            _for_every_job(judged.identifier)
    except IllegalConfigurationError as error:
        if backend is not None:
            raise
        raise IllegalConfigurationError(
            f"this machine's default cannot be used: variable={DEFAULT_VARIABLE}: {error}"
        ) from error
    return judged


@contextmanager
def _importing_from(code: Sequence[Path]) -> Iterator[None]:
    before = list(sys.path)
    after_standard_library(str(path) for path in code)
    try:
        yield
    finally:
        sys.path[:] = before
