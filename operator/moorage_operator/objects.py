"""From bodies of our custom resources to the typed models, with everything that is wrong in words.

Pure. What a person can get wrong becomes `Problem`s; what a newer operator has written is left
alone.
"""

from typing import Any

from pydantic import ValidationError

from moorage_api import API_VERSION, KIND, JobSpec, Problem, cluster_problems
from moorage_api.explain import judge
from moorage_api.job import StatefulSparkJob
from moorage_api.problems import field_name
from moorage_api.snapshot import JobRef, SnapshotSpec, SnapshotStatus
from moorage_api.status import STATUS_FORMAT, JobStatus, read_status
from moorage_operator.podviews import moment
from moorage_operator.ports import Object
from moorage_operator.world import Meta, SnapshotView

__all__ = [
    "is_newer",
    "job_name_of",
    "meta_of",
    "read_job_spec",
    "read_job_status",
    "read_snapshot",
]


def meta_of(body: Object) -> Meta:
    """The metadata that decisions look at."""
    meta = body["metadata"]
    return Meta(
        name=meta["name"],
        namespace=meta.get("namespace", ""),
        uid=meta["uid"],
        generation=meta.get("generation", 0),
        resource_version=meta["resourceVersion"],
        labels=meta.get("labels") or {},
        annotations=meta.get("annotations") or {},
        finalizers=tuple(meta.get("finalizers") or ()),
        created_at=moment(meta.get("creationTimestamp")),
        deleted_at=moment(meta.get("deletionTimestamp")),
    )


def read_job_spec(body: Object) -> tuple[JobSpec | None, tuple[Problem, ...]]:
    """The spec with its defaults, and what is wrong with it; None if it cannot be read as one.

    Definitions may be newer than this operator, and fill in what it does not know: that is passed
    over. The API server has taken out whatever no definition knows.
    """
    meta = {key: body["metadata"].get(key) for key in ("name", "namespace")}
    document = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": meta,
        "spec": body.get("spec") or {},
    }
    verdict = judge(document, unknown="ignore")
    if isinstance(verdict, StatefulSparkJob):
        return verdict.spec, tuple(cluster_problems(verdict))
    return None, tuple(Problem(field_name(f.path), f.reason, f.fix) for f in verdict)


def read_job_status(body: Object) -> tuple[JobStatus, str]:
    """The status, and why this operator must leave the object alone; empty if it need not."""
    raw = body.get("status") or {}
    newer = _newer(raw)
    if newer:
        return JobStatus(), newer
    try:
        return read_status(raw), ""
    except ValidationError as error:
        return JobStatus(), _garbled(error)


def is_newer(body: Object) -> bool:
    """Whether a newer operator wrote the object's status."""
    return bool(_newer(body.get("status") or {}))


def read_snapshot(body: Object) -> tuple[SnapshotView | None, tuple[Problem, ...], str]:
    """The snapshot's view, what is wrong with its spec, and why it must be left alone.

    A spec that cannot be read still has a view, with the job that it names and defaults otherwise;
    there is none only if the status must be left alone.
    """
    raw = body.get("status") or {}
    trouble = _newer(raw)
    try:
        status = SnapshotStatus() if trouble else SnapshotStatus.model_validate(raw)
    except ValidationError as error:
        trouble = _garbled(error)
    if trouble:
        return None, (), trouble
    spec, problems = _snapshot_spec(body.get("spec") or {})
    return SnapshotView(meta_of(body), spec, status), problems, ""


def _snapshot_spec(raw: dict[str, Any]) -> tuple[SnapshotSpec, tuple[Problem, ...]]:
    try:
        return SnapshotSpec.model_validate(raw, extra="ignore"), ()
    except ValidationError as error:
        problems = tuple(
            Problem(
                field_name(("spec", *details["loc"])), details["msg"], "correct it in a new object"
            )
            for details in error.errors()
        )
    reference = JobRef.model_construct(name=job_name_of(raw))
    return SnapshotSpec.model_construct(job_ref=reference), problems


def is_controlled_by(found: Object, uid: str) -> bool:
    """Whether the object is one that the operator made for the object of this uid."""
    owners = found["metadata"].get("ownerReferences") or ()
    return any(owner.get("controller") and owner.get("uid") == uid for owner in owners)


def job_name_of(spec: dict[str, Any]) -> str:
    """The job that a snapshot's spec names, however wrong the rest of it is; empty if none."""
    reference = spec.get("jobRef")
    name = reference.get("name") if isinstance(reference, dict) else None
    return name if isinstance(name, str) else ""


def _newer(raw: dict[str, Any]) -> str:
    number = raw.get("format", STATUS_FORMAT)
    if isinstance(number, int) and number <= STATUS_FORMAT:
        return ""
    return (
        f"the status has format {number} and this operator knows up to {STATUS_FORMAT}; "
        "install the operator that wrote it, or a newer one"
    )


def _garbled(error: ValidationError) -> str:
    first = error.errors()[0]
    return (
        f"the status cannot be read: {field_name(('status', *first['loc']))}: {first['msg']}; "
        "no operator wrote that: remove the status, and it is made anew from pods and store"
    )
