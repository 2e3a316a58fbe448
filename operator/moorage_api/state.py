"""Where state lives and how it is kept: backend, directories, checkpoints, savepoints, restore."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from moorage_api.model import MAX_INT, Cel, HashedAsAbsent, Model, OnChange, Violation
from moorage_api.names import (
    OBJECT_NAME,
    OPERATOR_UID_PATTERN,
    CronExpression,
    OperatorUid,
    StorageUrl,
    ZoneName,
)
from moorage_api.quantities import Duration, Quantity, at_least

DEFAULT_CHECKPOINT_INTERVAL = Duration("60s")

# The last three are Flink's old names and choose what they chose there.
BACKENDS = ("rocksdb", "hashmap", "forst", "batch", "jobmanager", "filesystem")
DEFAULT_BACKEND = "rocksdb"

_Positive = Annotated[Duration, at_least(Duration("1ms"))]
_Count = Annotated[int, Field(ge=1, le=10_000)]
_NameOrNone = Annotated[str, Field(pattern=rf"^({OBJECT_NAME[1:-1]})?$", max_length=253)]
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_BACKEND = rf"^({'|'.join(BACKENDS)}|{_NAME}([.]{_NAME})*[.:]{_NAME})$"
_ENDPOINT = r"^https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[A-Za-z0-9._/-]*)?$"


def _backend(text: str) -> str:
    if not re.fullmatch(_BACKEND, text):
        raise PydanticCustomError(
            "moorage_value",
            "{reason}",
            {
                "reason": f"is not a state backend: {text[:80]!r}",
                "fix": f"use one of {', '.join(BACKENDS)}, or module:Class of one of your own",
                "choices": BACKENDS,
                "given": text,
            },
        )
    return text


def for_every_job(backend: str) -> str:
    """A backend that jobs may have which name none. Raises ValueError: it cannot serve them all."""
    if backend.lower() in ("forst", "batch"):
        raise ValueError("is no backend for every job; use rocksdb, hashmap or module:Class")
    return backend


def _endpoint(text: str) -> str:
    if not re.fullmatch(_ENDPOINT, text):
        # Not repeated: people paste user:password@ into URLs.
        raise PydanticCustomError(
            "moorage_value",
            "{reason}",
            {
                "reason": "is not an endpoint",
                "fix": "write https://host:port without user, password or query",
            },
        )
    return text


Backend = Annotated[
    str,
    Field(max_length=256),
    AfterValidator(_backend),
    WithJsonSchema({"type": "string", "pattern": _BACKEND, "maxLength": 256}),
]
Endpoint = Annotated[
    str,
    Field(max_length=512),
    AfterValidator(_endpoint),
    WithJsonSchema({"type": "string", "pattern": _ENDPOINT, "maxLength": 512}),
]
_Options = Annotated[Mapping[str, Annotated[str, Field(max_length=1024)]], Field(max_length=64)]


class S3(Model):
    """How S3 is reached; credentials come from credentialsSecretRef or boto3's usual chain."""

    endpoint: Endpoint | None = None
    """The server's URL; AWS by default."""

    region: Annotated[str, Field(pattern=r"^[a-z0-9-]{1,63}$", max_length=63)] | None = None
    """The region; by default what boto3 finds."""

    path_style: bool = False
    """Whether the bucket stands in the path and not in the host name, as most servers other than
    AWS want it."""


class SecretRef(Model):
    """A Secret in the job's namespace."""

    name: Annotated[str, Field(pattern=OBJECT_NAME, max_length=253)]
    """The Secret's name."""


class LocalVolume(Model):
    """The volume with the working databases of an executor: always only a cache."""

    cel: ClassVar[tuple[Cel, ...]] = (
        Cel(
            "!(self.type in ['EphemeralPVC', 'ReusedPVC']) || has(self.size)",
            "size is missing, and type is a PVC; add a size",
            "size",
            "'size is missing, and type is %s; add a size'.format([self.type])",
        ),
        Cel(
            "self.type != 'HostPath' || has(self.path)",
            "path is missing, and type is HostPath; add a path",
            "path",
        ),
        Cel(
            "self.type != 'ReusedPVC' || (has(self.storageClassName)"
            " && self.storageClassName != '')",
            "storageClassName is missing, and type is ReusedPVC; name a storage class",
            "storageClassName",
        ),
    )

    type: Literal["EmptyDir", "EphemeralPVC", "ReusedPVC", "HostPath"] = "EmptyDir"
    """What kind of volume. An EmptyDir or EphemeralPVC goes with its executor, a ReusedPVC with the
    job."""

    size: Annotated[Quantity, at_least(Quantity("1Mi"))] | None = None
    """Its size; needed for a PVC. An EmptyDir of no size has 10Gi; its size is asked of the node as
    ephemeral storage, and the executor is evicted if it grows larger."""

    storage_class_name: Annotated[str, Field(max_length=253)] | None = None
    """The PVC's storage class; the cluster's default if not given."""

    path: Annotated[str, Field(pattern=r"^/[^\s:]+$", max_length=1024)] | None = None
    """The directory on the node, for HostPath: there, and writable for user 185, on every node."""

    def _rules(self) -> Iterator[Violation]:
        if self.type in ("EphemeralPVC", "ReusedPVC") and self.size is None:
            yield Violation(("size", "type"), f"is missing, and type is {self.type}", "add a size")
        if self.type == "HostPath" and self.path is None:
            yield Violation(("path", "type"), "is missing, and type is HostPath", "add a path")


class StateSpec(Model):
    """The state of the job, and the directories that are the truth about it."""

    cel: ClassVar[tuple[Cel, ...]] = (
        Cel(
            "!self.checkpointDir.matches('/[.]{1,2}(/|$)')",
            "checkpointDir has a step '.' or '..'; write the directory itself",
            "checkpointDir",
            "'checkpointDir is %s, with a step . or ..; write the directory itself'"
            ".format([self.checkpointDir])",
        ),
        Cel(
            "!has(self.savepointDir) || !self.savepointDir.matches('/[.]{1,2}(/|$)')",
            "savepointDir has a step '.' or '..'; write the directory itself",
            "savepointDir",
            "'savepointDir is %s, with a step . or ..; write the directory itself'"
            ".format([self.savepointDir])",
        ),
        Cel(
            "!has(self.savepointDir)"
            " || !((self.savepointDir + '/').startsWith(self.checkpointDir + '/')"
            " || (self.checkpointDir + '/').startsWith(self.savepointDir + '/'))",
            "savepointDir is the same as checkpointDir, or one lies in the other; use two "
            "directories side by side",
            "savepointDir",
            "'savepointDir is %s and checkpointDir is %s: the same, or one in the other; use two "
            "directories side by side'.format([self.savepointDir, self.checkpointDir])",
        ),
    )

    # No default: an API server would write it into every object, where nobody could tell it from a
    # choice, and a default of the cluster would never hold.
    backend: Annotated[Backend | None, HashedAsAbsent(DEFAULT_BACKEND)] = None
    """The state backend: a known name, or module:Class of a StateBackend or a factory of them. Not
    given, it is the one that the job's state is of; before there is any, the default of the cluster
    or the machine, else rocksdb."""

    options: _Options = Field(default_factory=dict)
    """Settings of the backend, by their names in its documentation; values in quotes."""

    changelog: bool = False
    """Whether a checkpoint lists what epochs changed, and copies of all state are made beside them,
    so that checkpoints may come every second; settings by Flink's names in options."""

    checkpoint_dir: StorageUrl
    """Where the lineage's log and checkpoints live; belongs to this job alone."""

    savepoint_dir: StorageUrl | None = None
    """Where savepoints go; neither in checkpointDir nor around it."""

    s3: S3 = S3()
    """How S3 is reached."""

    credentials_secret_ref: SecretRef | None = None
    """A Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."""

    local: LocalVolume = LocalVolume()
    """The volume with the working databases."""

    @property
    def effective_backend(self) -> str:
        """The backend that holds where nobody set a default."""
        return self.backend or DEFAULT_BACKEND

    @property
    def has_changelog(self) -> bool:
        """Whether the manifest asks for a changelog, by its field or as Flink does."""
        asked = self.options.get("state.changelog.enabled", "").strip().lower() == "true"
        return self.changelog or asked

    @property
    def keeps_checkpoints_with_driver(self) -> bool:
        """Whether checkpoints are no files, as far as the manifest says it."""
        chosen = "jobmanager" if self.backend == "jobmanager" else "filesystem"
        storage = self.options.get("state.checkpoint-storage", chosen)
        return storage.strip().lower() in {"jobmanager", "driver"}

    @property
    def names_own_backend(self) -> bool:
        """Whether the backend is a class that the job or its image brings."""
        return self.effective_backend not in BACKENDS

    def _rules(self) -> Iterator[Violation]:
        if self.savepoint_dir is not None and _overlap(self.checkpoint_dir, self.savepoint_dir):
            yield Violation(
                ("savepointDir", "checkpointDir"),
                "is the same as checkpointDir, or one lies in the other",
                "use two directories side by side: the job cleans up its checkpointDir",
            )


def _overlap(one: str, other: str) -> bool:
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


class CheckpointRetention(Model):
    """Which checkpoints are kept."""

    count: _Count = 3
    """How many of the newest."""


class CheckpointSpec(Model):
    """When checkpoints are taken, and what is done when they fail."""

    # Neither has a default: a stored one would make the other one impossible to add.
    cel: ClassVar[tuple[Cel, ...]] = (
        Cel(
            "!(has(self.interval) && has(self.cron))",
            "cron is given beside interval; keep one of them",
            "cron",
            "'cron %s is given beside interval %s; keep one of them'"
            ".format([self.cron, self.interval])",
        ),
    )

    interval: Annotated[Duration, at_least(Duration("1s"))] | None = None
    """The time between the starts of two; 60s if there is no cron either."""

    cron: CronExpression | None = None
    """When to take them, in place of interval; in UTC."""

    mode: Literal["ExactlyOnce", "AtLeastOnce"] = "ExactlyOnce"
    """Whether inputs are aligned; epochs always are, so both give the first."""

    max_concurrent: Annotated[int, Field(ge=1, le=16)] = 1
    """How many may be on their way at once."""

    timeout: _Positive = Duration("10m")
    """How long one may take."""

    min_pause: Annotated[Duration, at_least(Duration("0s"))] = Duration("5s")
    """The least time between the end of one and the start of the next."""

    tolerable_failures: Annotated[int, Field(ge=0, le=MAX_INT)] = 3
    """How many in a row may fail before onToleranceExceeded."""

    on_tolerance_exceeded: Literal["Degrade", "FailJob"] = "Degrade"
    """Run on and say so, or fail the job (Flink's rule)."""

    incremental: bool = True
    """Upload only what no retained checkpoint has."""

    retain: CheckpointRetention = CheckpointRetention()
    """Which are kept."""

    externalized_checkpoint_retention: (
        Literal["RetainOnCancellation", "DeleteOnCancellation", "NoExternalizedCheckpoints"] | None
    ) = None
    """What becomes of them when the job ends for good; not given, they stay at every end."""

    def _rules(self) -> Iterator[Violation]:
        if self.interval is not None and self.cron is not None:
            yield Violation(("cron", "interval"), "is given beside interval", "keep one of them")

    @property
    def effective_interval(self) -> Duration | None:
        """The interval that holds: the given one, the default, or None where cron decides."""
        if self.interval is None and self.cron is None:
            return DEFAULT_CHECKPOINT_INTERVAL
        return self.interval


class SinksSpec(Model):
    """When output is published."""

    publish_with: Literal["checkpoint", "commit"] = "checkpoint"
    """With each checkpoint, by its interval; or with one of its own after each epoch, or several
    where the store is slower than they are, which needs state.changelog."""


class Schedule(Model):
    """When something happens by the calendar."""

    cron: CronExpression
    """Five fields: minute, hour, day of month, month, day of week."""

    time_zone: ZoneName = "UTC"
    """The time zone of cron."""

    starting_deadline: _Positive = Duration("1h")
    """How late a missed time is still made up for."""


class SavepointRetention(Model):
    """Which savepoints of the schedule, and of upgrades, are kept; a person's are never deleted."""

    count: _Count = 10
    """How many of the newest."""

    max_age: _Positive = Duration("168h")
    """How long."""


class SavepointSpec(Model):
    """Periodic savepoints."""

    schedule: Schedule | None = None
    """When they are taken; never, if not given."""

    retain: SavepointRetention = SavepointRetention()
    """Which are kept."""

    timeout: _Positive = Duration("30m")
    """How long one may take."""


class Restore(Model):
    """What the job begins from: at its first start, and whenever nonce grows."""

    cel: ClassVar[tuple[Cel, ...]] = (
        Cel(
            "self.mode != 'Snapshot' || (has(self.snapshotName) && self.snapshotName != '')",
            "snapshotName is missing for mode Snapshot; name one",
            "snapshotName",
        ),
        Cel(
            "self.mode != 'Path' || (has(self.path) && self.path != '')",
            "path is missing for mode Path; write a snapshot's URL",
            "path",
        ),
        Cel(
            f"!has(self.uidMapping) || self.uidMapping.all(k, k.matches('{OPERATOR_UID_PATTERN}'))",
            "uidMapping has a key that is no operator uid; use letters, digits and ._-",
            "uidMapping",
            "'uidMapping has %s, which is no operator uid; use letters, digits and ._-'"
            f".format([self.uidMapping.filter(k, !k.matches('{OPERATOR_UID_PATTERN}'))])",
        ),
    )

    mode: Literal["Latest", "Snapshot", "Path", "Empty"] = "Latest"
    """The newest checkpoint or start, a snapshot object, a path in a store, or nothing at all."""

    snapshot_name: _NameOrNone = ""
    """The StatefulSparkSnapshot, for mode Snapshot."""

    path: Annotated[str, Field(max_length=1024)] = ""
    """A checkpoint's or savepoint's URL, for mode Path."""

    nonce: Annotated[int, Field(ge=0, le=MAX_INT), OnChange("Redeploy")] = 0
    """Raise it to restore again; it never goes down."""

    max_fallback_age: Annotated[Duration, at_least(Duration("0s"))] = Duration("30m")
    """How far back a corrupt newest checkpoint may be replaced by an older one; 0s is never."""

    acknowledge_state_loss: bool = False
    """Must be true for mode Empty where the lineage has state."""

    claim_mode: Literal["NoClaim", "Claim"] = "NoClaim"
    """Whether what was restored from stays the user's, or the job's to delete."""

    allow_non_restored_state: bool = False
    """Whether state of operators and offsets of inputs that the job has no longer may be left."""

    on_missing_offsets: Literal["Fail", "Skip"] = "Fail"
    """What a start does where Kafka no longer has the next offsets; Skip goes on behind the gap."""

    uid_mapping: dict[OperatorUid, OperatorUid] = Field(default_factory=dict, max_length=64)
    """Operator uids of the snapshot, and what they are called in the job."""

    def _rules(self) -> Iterator[Violation]:
        if self.mode == "Snapshot" and not self.snapshot_name:
            yield Violation(("snapshotName", "mode"), "is missing for mode Snapshot", "name one")
        if self.mode == "Path" and not self.path:
            yield Violation(("path", "mode"), "is missing for mode Path", "write a snapshot's URL")
        if len(set(self.uid_mapping.values())) < len(self.uid_mapping):
            yield Violation(("uidMapping",), "gives two uids the same name", "make them different")
