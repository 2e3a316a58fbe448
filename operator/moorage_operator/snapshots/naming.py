"""What snapshots and their requests are called, and where their data lie. Pure.

Names are made from what asks (a trigger's value, a tick of the schedule, an object's uid), so that
an operator that died half way finds what it had begun.
"""

import hashlib
import re
from datetime import UTC, datetime

from moorage_api import JobSpec
from moorage_api.snapshot import SnapshotStatus
from moorage_operator.world import SnapshotView
from moorage_state.stores import store_url
from moorage_state.stores.addresses import child

JOB_LABEL = "moorage.dev/job"
TYPE_LABEL = "moorage.dev/type"
TRIGGER_LABEL = "moorage.dev/trigger"
STATE_LABEL = "moorage.dev/state"
TRIGGER_ANNOTATION = "moorage.dev/trigger-value"
COPY = "copy"
"""The store tasks that make a savepoint of what a job was stopped with."""

_DIRECTORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_OBJECT = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LONGEST_OBJECT = 63
_HASH = 8


def directory_name(value: str) -> str:
    """The name of a savepoint's directory for a trigger's value: itself, if it is a name.

    Else what of it may stand in a name, and a hash, so that other values have other names.
    """
    if is_directory_name(value):
        return value
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", value).strip("-._")
    return f"{plain[: 62 - _HASH] or 'savepoint'}-{_hash(value)}"


def is_directory_name(text: str) -> bool:
    """Whether a savepoint's directory may be called so."""
    return _DIRECTORY.fullmatch(text) is not None


def object_name(job: str, name: str) -> str:
    """The name of the object for the snapshot `name`: `<job>-<name>`, with a hash if it cannot be.

    Two names of one job never share an object; of two jobs they may: see `second_name`.
    """
    wanted = f"{job}-{name}"
    if _OBJECT.fullmatch(wanted) and len(wanted) <= _LONGEST_OBJECT:
        return wanted
    plain = re.sub(r"[^a-z0-9]+", "-", wanted.lower())[: _LONGEST_OBJECT - _HASH - 1].strip("-")
    return f"{plain}-{_hash(name)}"


def second_name(job: str, wanted: str) -> str:
    """The name that the job's object has when another job's has the name `wanted` already.

    A snapshot `final` of `clicks-eu` and a snapshot `eu-final` of `clicks` want the same.
    """
    return f"{wanted[: _LONGEST_OBJECT - _HASH - 1].strip('-')}-{_hash(f'{job}/{wanted}')}"


def object_names(job: str, name: str) -> tuple[str, str]:
    """The names that the object for the snapshot `name` can have."""
    wanted = object_name(job, name)
    return wanted, second_name(job, wanted)


def periodic_name(tick: datetime) -> str:
    """The name of the savepoint of this tick of the schedule."""
    return f"periodic-{tick.astimezone(UTC):%Y%m%d-%H%M}"


def trigger_id(uid: str, kind: str, previous: str, value: str) -> str:
    """Names one change of a trigger's value: going back to an earlier value is another trigger.

    Args:
        uid: the job's: a former one of its name may have left an object for the same value.
        previous: the id of the change before, so that two that alternate never share one.
    """
    return _hash(f"{uid}\0{kind}\0{previous}\0{value}")


def request_id(uid: str) -> str:
    """The id under which the driver is asked first, and the attempt id in the directory."""
    return f"ssnap-{uid}"


def attempt_of(request: str) -> str:
    """The attempt id that a request writes under: later tries are `<attempt>.<n>`."""
    return request.partition(".")[0]


def next_store_task(uid: str, kind: str, latest: str) -> str:
    """The id of the store task after the latest one: earlier ones' results count no more."""
    same = latest.startswith(f"{uid}-{kind}-")
    return f"{uid}-{kind}-{number_of(latest) + 1 if same else 1}"


def number_of(store_task: str) -> int:
    """How many store tasks of its kind there were, with it."""
    tail = store_task.rpartition("-")[2]
    return int(tail) if tail.isdigit() else 0


def reach(url: str, spec: JobSpec | None) -> str:
    """The whole address of a directory that somebody named, with how the job reaches S3."""
    if spec is None:
        return url
    s3 = spec.state.s3
    return store_url(url, s3.endpoint, s3.region, path_style=s3.path_style)


def savepoint_path(spec: JobSpec, name: str) -> str:
    """The address of a savepoint's directory; empty if the job has no place for savepoints."""
    directory = spec.state.savepoint_dir
    return child(reach(directory, spec), name) if directory else ""


def trigger_of(snapshot: SnapshotView) -> str:
    """Why it was made: Manual, Periodic, Upgrade or Final; Manual if nobody says."""
    return snapshot.meta.labels.get(TRIGGER_LABEL, "") or "Manual"


def is_follower(snapshot: SnapshotView) -> bool:
    """Whether it is taken by an operation of its job, which asks the driver itself."""
    return trigger_of(snapshot) in ("Upgrade", "Final") and not is_imported(snapshot)


def is_periodic(snapshot: SnapshotView) -> bool:
    """Whether the schedule asked for it."""
    return trigger_of(snapshot) == "Periodic" and not is_imported(snapshot)


def is_imported(snapshot: SnapshotView) -> bool:
    """Whether it was there before its object."""
    return bool(snapshot.spec.existing_path)


def data_go_too(snapshot: SnapshotView) -> bool:
    """Whether deleting the object is to delete data: only then does anything hold the object.

    What was there before it stays, what a checkpoint names is the lineage's, and the rest is for
    `deletionPolicy` to say.
    """
    own = snapshot.spec.type == "Savepoint" and not is_imported(snapshot)
    return own and snapshot.spec.deletion_policy == "Delete"


def is_copied(status: SnapshotStatus) -> bool:
    """Whether a copy of what its job was stopped with is under way."""
    return status.state == "Verifying" and f"-{COPY}-" in status.store_task


def order(snapshot: SnapshotView) -> tuple[datetime, str]:
    """Oldest first."""
    return snapshot.meta.created_at or datetime.min.replace(tzinfo=UTC), snapshot.meta.name


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:_HASH]
