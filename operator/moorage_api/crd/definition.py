"""The two CustomResourceDefinitions: names, columns, subresources, and the schemas of the models.

A cluster asks more of a manifest than one machine does; what of that a schema can say is added
here, the rest is `cluster_problems`.
"""

from typing import Any

from moorage_api.crd.schema import Schema, spec_schema, status_schema
from moorage_api.job import KIND, JobSpec
from moorage_api.names import JOB_NAME_LENGTH, JOB_NAME_PATTERN
from moorage_api.snapshot import SNAPSHOT_KIND, SnapshotSpec, SnapshotStatus
from moorage_api.status import JobStatus

__all__ = ["JOB_CRD_NAME", "SNAPSHOT_CRD_NAME", "job_crd", "snapshot_crd"]

GROUP = "moorage.dev"
VERSION = "v1alpha1"
JOB_CRD_NAME = f"statefulsparkjobs.{GROUP}"
SNAPSHOT_CRD_NAME = f"statefulsparksnapshots.{GROUP}"

_Column = dict[str, Any]


def job_crd() -> dict[str, Any]:
    """The CustomResourceDefinition of StatefulSparkJob."""
    spec = spec_schema(JobSpec)
    spec["required"] = ["image", *spec["required"]]
    name = {"type": "string", "maxLength": JOB_NAME_LENGTH, "pattern": JOB_NAME_PATTERN}
    return _definition(
        KIND,
        ("ssj",),
        "A streaming Spark job with state.",
        _schema(name, spec, status_schema(JobStatus)),
        _job_columns(),
        subresources={
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.scaling.parallelism",
                "statusReplicasPath": ".status.scaling.observedParallelism",
                "labelSelectorPath": ".status.scaling.selector",
            },
        },
        selectable=(".spec.desiredState", ".status.phase"),
    )


def snapshot_crd() -> dict[str, Any]:
    """The CustomResourceDefinition of StatefulSparkSnapshot."""
    # Its name may become a directory's and a label's.
    name = {"type": "string", "maxLength": 63}
    return _definition(
        SNAPSHOT_KIND,
        ("ssnap",),
        "A savepoint or kept checkpoint of a StatefulSparkJob.",
        _schema(name, spec_schema(SnapshotSpec), status_schema(SnapshotStatus)),
        _snapshot_columns(),
        subresources={"status": {}},
        selectable=(".spec.jobRef.name", ".status.state"),
    )


def _schema(name: Schema, spec: Schema, status: Schema) -> Schema:
    """The whole object.

    The name's form is part of the schema and no rule at the root: rules there are judged at every
    write, of finalizers too, and also for objects that are older than the rule.
    """
    return {
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object", "properties": {"name": name}},
            "spec": spec,
            "status": status,
        },
    }


def _definition(
    kind: str,
    short: tuple[str, ...],
    description: str,
    schema: Schema,
    columns: list[_Column],
    *,
    subresources: dict[str, Any],
    selectable: tuple[str, ...],
) -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{kind.lower()}s.{GROUP}",
            "labels": {"app.kubernetes.io/name": "moorage"},
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": _names(kind, short),
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": subresources,
                    "selectableFields": [{"jsonPath": path} for path in selectable],
                    "additionalPrinterColumns": columns,
                    "schema": {"openAPIV3Schema": {"description": description, **schema}},
                }
            ],
        },
    }


def _names(kind: str, short: tuple[str, ...]) -> dict[str, Any]:
    return {
        "kind": kind,
        "listKind": f"{kind}List",
        "plural": f"{kind.lower()}s",
        "singular": kind.lower(),
        "shortNames": list(short),
        # Not in `all`: `kubectl delete all --all` is for what can be made anew.
        "categories": ["moorage"],
    }


def _job_columns() -> list[_Column]:
    ready = '.status.conditions[?(@.type=="Ready")].status'
    return [
        _column("Phase", ".status.phase"),
        _column("Desired", ".spec.desiredState"),
        _column("Par", ".status.scaling.observedParallelism", "integer"),
        _column("Exec", ".status.executors.ready", "integer"),
        _column("LastCkpt", ".status.snapshots.lastCheckpoint.completedAt", "date"),
        _column("Restarts", ".status.restarts.total", "integer"),
        _column("Ready", ready),
        _column("Age", ".metadata.creationTimestamp", "date"),
        _column("Epoch", ".status.job.epoch", "integer", wide=True),
        _column("RestoredFrom", ".status.attempt.restoredFrom.path", wide=True),
        _column("Image", ".spec.image", wide=True),
        _column("Message", ".status.message", wide=True),
    ]


def _snapshot_columns() -> list[_Column]:
    return [
        _column("Job", ".spec.jobRef.name"),
        _column("Type", ".spec.type"),
        _column("Trigger", ".metadata.labels.moorage\\.dev/trigger"),
        _column("State", ".status.state"),
        _column("Ckpt", ".status.checkpointId", "integer"),
        _column("Size", ".status.sizeBytes", "integer"),
        _column("Completed", ".status.completedAt", "date"),
        _column("Age", ".metadata.creationTimestamp", "date"),
        _column("Path", ".status.path", wide=True),
        _column("Message", ".status.message", wide=True),
    ]


def _column(name: str, path: str, kind: str = "string", *, wide: bool = False) -> _Column:
    column: _Column = {"name": name, "type": kind, "jsonPath": path}
    return {**column, "priority": 1} if wide else column
