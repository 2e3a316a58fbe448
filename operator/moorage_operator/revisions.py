"""Old specs, each in a ControllerRevision: how they are written, and read again. Pure.

The data of a revision never change, byte for byte; the client writes JSON as the API server does.
"""

from collections.abc import Mapping

from pydantic import ValidationError

from moorage_api import JobSpec
from moorage_api.changes import is_same_job, spec_hash
from moorage_operator.children import names
from moorage_operator.ports import Object
from moorage_operator.world import Meta, Revision

__all__ = ["HASH_ANNOTATION", "read_revision", "revision_body", "same_hash"]

HASH_ANNOTATION = "moorage.dev/spec-hash"


def revision_body(meta: Meta, name: str, number: int, digest: str, spec: JobSpec) -> Object:
    """The ControllerRevision that keeps a spec."""
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": name,
            "namespace": meta.namespace,
            "labels": names.labels(meta),
            "annotations": {HASH_ANNOTATION: digest},
            "ownerReferences": [dict(names.owner_reference(meta))],
        },
        "revision": number,
        "data": {"spec": spec.model_dump(mode="json", by_alias=True, exclude_none=True)},
    }


def read_revision(body: Object) -> Revision | None:
    """The spec in a ControllerRevision; None if this operator cannot read it."""
    meta, data = body["metadata"], body.get("data") or {}
    try:
        # An operator of a later release may have written it.
        spec = JobSpec.model_validate(data.get("spec"), extra="ignore")
    except ValidationError:
        return None
    digest = (meta.get("annotations") or {}).get(HASH_ANNOTATION) or spec_hash(spec)
    return Revision(meta["name"], int(body.get("revision") or 0), digest, spec)


def same_hash(
    spec: JobSpec, digest: str, generation: int, revisions: Mapping[str, Revision]
) -> str:
    """The hash by which a spec is known: that of the revision that asks for the same job, if any.

    A hash is only a name. Another release may hash otherwise, know other fields, or have another
    default; where nobody has edited the object since its revision was made, or the edit asks for
    nothing else, the job is the one that runs, whatever its hash would be today.

    Args:
        spec: the newest one.
        digest: its hash, as this release makes it.
        generation: of the object.
        revisions: those that the status names, of this very object.
    """
    if any(one.spec_hash == digest for one in revisions.values()):
        return digest
    unedited = (one for one in revisions.values() if one.number == generation)
    equal = (one for one in revisions.values() if is_same_job(one.spec, spec))
    found = next(unedited, None) or next(equal, None)
    return found.spec_hash if found is not None else digest
