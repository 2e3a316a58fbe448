"""The StatefulSparkSnapshot resource: one savepoint or kept checkpoint, as an object of its own."""

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from moorage_api.driver import Report, SnapshotName
from moorage_api.job import ApiVersion, ObjectMeta
from moorage_api.model import Cel, Items, Model, RawMapping, Violation
from moorage_api.names import JobName
from moorage_api.quantities import Duration, at_least
from moorage_api.status import Condition

SNAPSHOT_KIND = "StatefulSparkSnapshot"

SnapshotState = Literal[
    "Pending", "InProgress", "Verifying", "Completed", "Failed", "Abandoned", "Deleting"
]

FINAL_STATES = ("Completed", "Failed", "Abandoned")
"""What becomes of a snapshot at last; only its deletion follows."""


class JobRef(Model):
    """The job, in the same namespace."""

    name: JobName
    """Its name."""


def _tell_changed(fields: tuple[str, ...], optional: tuple[str, ...]) -> str:
    """A CEL expression that names the fields that an edit changes."""
    always = [f"self.{one} != oldSelf.{one}" for one in fields]
    maybe = [
        f"has(self.{one}) != has(oldSelf.{one}) || (has(self.{one}) && self.{one} != oldSelf.{one})"
        for one in optional
    ]
    pairs = zip((*fields, *optional), (*always, *maybe), strict=True)
    told = " + ".join(f"({rule} ? ' {one}' : '')" for one, rule in pairs)
    return (
        f"'an edit changes' + {told} + ', and the spec of a snapshot is fixed, but for pinned and "
        "deletionPolicy; make another snapshot'"
    )


class SnapshotSpec(Model):
    """What is asked for; fixed once made, but for pinned and deletionPolicy."""

    cel: ClassVar[tuple[Cel, ...]] = (
        Cel(
            "!has(self.existingPath) || self.existingPath == '' || self.type == 'Savepoint'",
            "existingPath is given, and type is Checkpoint; use type Savepoint",
            "existingPath",
        ),
        Cel(
            "!self.pinned || self.type == 'Savepoint'",
            "pinned is true, and type is Checkpoint: a checkpoint is the lineage's and goes by the"
            " job's checkpoint.retain; use type Savepoint",
            "pinned",
        ),
        Cel(
            "self.jobRef == oldSelf.jobRef && self.type == oldSelf.type"
            " && self.format == oldSelf.format && self.backoffLimit == oldSelf.backoffLimit"
            " && self.startDeadline == oldSelf.startDeadline"
            " && has(self.name) == has(oldSelf.name)"
            " && (!has(self.name) || self.name == oldSelf.name)"
            " && has(self.existingPath) == has(oldSelf.existingPath)"
            " && (!has(self.existingPath) || self.existingPath == oldSelf.existingPath)",
            "a snapshot's spec is fixed, but for pinned and deletionPolicy; make another snapshot",
            show=_tell_changed(
                ("jobRef", "type", "format", "backoffLimit", "startDeadline"),
                ("name", "existingPath"),
            ),
        ),
    )

    job_ref: JobRef
    """Of which job."""

    type: Literal["Savepoint", "Checkpoint"] = "Savepoint"
    """A savepoint of its own, or the job's next checkpoint."""

    name: Annotated[SnapshotName, Field(max_length=63)] | None = None
    """The savepoint's directory below the job's savepointDir; the object's name if not given."""

    format: Literal["canonical", "native"] = "canonical"
    """Readable by anyone, or the backend's own files."""

    existing_path: Annotated[str, Field(max_length=1024)] = ""
    """The address of a snapshot that exists already: it is verified and registered, not taken."""

    pinned: bool = False
    """Never deleted by retention."""

    deletion_policy: Literal["Delete", "Retain"] = "Retain"
    """Whether its data go with the object; an imported snapshot's data always stay. What a job's
    schedule, upgrades and suspensions take is made with Delete."""

    backoff_limit: Annotated[int, Field(ge=0, le=100)] = 3
    """How often taking it is tried again."""

    start_deadline: Annotated[Duration, at_least(Duration("1s"))] = Duration("10m")
    """How long it may wait for the job to be ready for it."""

    def _rules(self) -> Iterator[Violation]:
        if self.existing_path and self.type != "Savepoint":
            yield Violation(
                ("existingPath", "type"), "is given, and type is Checkpoint", "use type Savepoint"
            )
        if self.pinned and self.type != "Savepoint":
            yield Violation(
                ("pinned", "type"),
                "is true, and type is Checkpoint: a checkpoint is the lineage's and goes by the "
                "job's checkpoint.retain",
                "use type Savepoint",
            )


class StoreAccess(Report):
    """How the snapshot's data are reached: what a store task needs when the job is gone."""

    image: str = ""
    """The job's image."""
    service_account_name: str = ""
    """The job's service account."""
    credentials_secret: str = ""
    """The Secret with credentials; empty if none was named."""
    endpoint: str = ""
    """The S3 server's URL; empty for AWS."""
    region: str = ""
    """The S3 region, if one was named."""
    path_style: bool = False
    """Whether the bucket stands in the path."""


class SnapshotStatus(Report):
    """How far it is."""

    state: SnapshotState | str = "Pending"
    request_id: str = ""
    """The id under which the driver was asked; written before it is asked."""
    attempt: int = 0
    """The job's attempt that was asked last."""
    path: str = ""
    manifest_digest: str = ""
    epoch: int = 0
    checkpoint_id: int = 0
    max_parallelism: int = 0
    spark_version: str = ""
    size_bytes: int = 0
    started_at: datetime | None = None
    completed_at: datetime | None = None
    failures: int = 0
    next_retry_at: datetime | None = None
    waiting_since: datetime | None = None
    """From when startDeadline counts, while it waits for what may never come."""
    message: str = ""
    in_use_by: Items[str] = ()
    """Why its deletion waits, such as `restore of clicks`."""
    # Objects hold it as `errand`, what a store task was called once.
    store_task: str = Field(default="", alias="errand")
    """The store task that copies, verifies or deletes its data."""
    source: str = ""
    """What it was copied from, where the job was suspended; else empty."""
    access: StoreAccess | None = None
    """Of the job, as it was when its data were last dealt with."""
    conditions: Items[Condition] = ()

    def condition(self, kind: str) -> Condition | None:
        """The condition of this type."""
        return next((c for c in self.conditions if c.type == kind), None)


class StatefulSparkSnapshot(Model):
    """One savepoint or kept checkpoint."""

    api_version: ApiVersion
    """The version of this format."""

    kind: Literal["StatefulSparkSnapshot"]
    """The kind of object."""

    metadata: ObjectMeta
    """Name, namespace, labels, annotations."""

    spec: SnapshotSpec
    """What is asked for."""

    status: RawMapping | None = None
    """What the operator reports."""
