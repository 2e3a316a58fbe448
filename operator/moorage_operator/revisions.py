"""Old specs, each in a ControllerRevision: how they are written, and read again. Pure.

The data of a revision never change, byte for byte; the client writes JSON as the API server does.
"""

from pydantic import ValidationError

from moorage_api import JobSpec
from moorage_operator.children import names
from moorage_operator.ports import Object
from moorage_operator.world import Meta, Revision

__all__ = ["HASH_ANNOTATION", "read_revision", "revision_body"]

HASH_ANNOTATION = "moorage.dev/spec-hash"


def revision_body(meta: Meta, name: str, number: int, spec_hash: str, spec: JobSpec) -> Object:
    """The ControllerRevision that keeps a spec."""
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": name,
            "namespace": meta.namespace,
            "labels": names.labels(meta),
            "annotations": {HASH_ANNOTATION: spec_hash},
            "ownerReferences": [dict(names.owner_reference(meta))],
        },
        "revision": number,
        "data": {"spec": spec.model_dump(mode="json", by_alias=True, exclude_none=True)},
    }


def read_revision(body: Object) -> Revision | None:
    """The spec in a ControllerRevision; None if this operator cannot read it."""
    meta, data = body["metadata"], body.get("data") or {}
    try:
        spec = JobSpec.model_validate(data.get("spec"))
    except ValidationError:
        return None
    spec_hash = (meta.get("annotations") or {}).get(HASH_ANNOTATION, "")
    return Revision(meta["name"], int(body.get("revision") or 0), spec_hash, spec)
