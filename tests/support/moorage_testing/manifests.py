"""A job and a checkpoint that are right, and how a test changes them."""

import copy
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from moorage_state.snapshots import Manifest

__all__ = ["changed", "checkpoint_fields", "checkpoint_manifest", "job_object", "spec_data"]


def spec_data(name: str = "clicks", **parts: Any) -> dict[str, Any]:
    """A spec for a cluster; keyword arguments replace or add whole parts of it."""
    return {
        "image": "registry.example/clicks:1",
        "application": {"mainFile": "local:///app/job.py"},
        "scaling": {"parallelism": 2, "maxParallelism": 16},
        "state": {
            "checkpointDir": f"s3://state/{name}",
            "savepointDir": f"s3://savepoints/{name}",
        },
        **parts,
    }


def job_object(spec: Mapping[str, Any], name: str = "clicks", **meta: Any) -> dict[str, Any]:
    """The object with this spec."""
    return {
        "apiVersion": "moorage.dev/v1alpha1",
        "kind": "StatefulSparkJob",
        "metadata": {"name": name, **meta},
        "spec": dict(spec),
    }


def changed(
    data: Mapping[str, Any], changes: Mapping[str, Any] | None, *, nulls: bool = False
) -> dict[str, Any]:
    """A copy with `a.b=value` changes, in camelCase; None takes a field out, or is a null."""
    result = copy.deepcopy(dict(data))
    for path, value in (changes or {}).items():
        *parents, last = path.split(".")
        place = result
        for name in parents:
            place = place.setdefault(name, {})
        if value is None and not nulls:
            place.pop(last, None)
        else:
            place[last] = value
    return result


def checkpoint_manifest(
    lineage: str, checkpoint_id: int, *, fence: int = 1, **parts: Any
) -> Manifest:
    """That of a checkpoint without state; keyword arguments replace whole parts of it."""
    return Manifest(**checkpoint_fields(lineage, checkpoint_id, fence=fence, **parts))


def checkpoint_fields(
    lineage: str, checkpoint_id: int, *, fence: int = 1, **parts: Any
) -> dict[str, Any]:
    """What `checkpoint_manifest` is made of."""
    fields: dict[str, Any] = {
        "kind": "checkpoint",
        "name": "",
        "lineage": lineage,
        "checkpoint_id": checkpoint_id,
        "epoch": checkpoint_id,
        "fence": fence,
        "run": 0,
        "created_at": datetime(2026, 1, 2, tzinfo=UTC),
        "job_name": "clicks",
        "moorage_version": "0",
        "max_parallelism": 128,
        "key_hash": "spark-xxhash64",
        "operators": {},
        "source": {},
        "watermarks": {},
        "sinks": {},
        "extra": {},
    }
    return {**fields, **parts}
