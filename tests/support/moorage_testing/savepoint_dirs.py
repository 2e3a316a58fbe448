"""Savepoints and lineages of a few small files, made without state servers."""

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

from moorage_state.snapshots import (
    CheckpointStore,
    FileRef,
    LogWriter,
    Manifest,
    OperatorState,
    Owner,
    RangeHandle,
    Savepoint,
    encode_manifest,
    manifest_digest,
    private_key,
    savepoint_key,
)
from moorage_state.snapshots.savepoints import ATTEMPT_KEY, MANIFEST_KEY
from moorage_state.stores import ObjectStore
from moorage_testing.manifests import checkpoint_manifest

__all__ = [
    "OWNER",
    "START",
    "announce",
    "checkpoint",
    "lineage",
    "make_savepoint",
    "savepoint_manifest",
]

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
OWNER = Owner("test", "default", "clicks", "job-uid")


def savepoint_manifest(store: ObjectStore, name: str, checkpoint_id: int = 7) -> Manifest:
    """A manifest of three files, which are put into the store."""
    files = [
        _file(store, f"{n}.parquet", savepoint_key("counts", 0, 15, f"{n}.parquet"))
        for n in range(3)
    ]
    return _manifest(files, checkpoint_id, kind="savepoint", name=name)


def make_savepoint(store: ObjectStore, name: str = "a", attempt: str = "ssnap-1") -> str:
    """A whole savepoint in an empty store; returns its digest."""
    store.put_if_absent(ATTEMPT_KEY, attempt.encode())
    data = encode_manifest(savepoint_manifest(store, name))
    store.put_if_absent(MANIFEST_KEY, data)
    return manifest_digest(data)


def lineage(store: ObjectStore, owner: Owner = OWNER) -> LogWriter:
    """A new lineage, claimed."""
    return LogWriter.claim(store, owner, "test", clock=lambda: START)


def checkpoint(
    store: ObjectStore, writer: LogWriter, checkpoint_id: int, **changes: object
) -> None:
    """A complete checkpoint of one file."""
    key = private_key(checkpoint_id, f"f{writer.fence}r0", "counts", 0, 15, "CURRENT", "ab")
    manifest = _manifest(
        [_file(store, "CURRENT", key)],
        checkpoint_id,
        lineage=writer.lineage,
        fence=writer.fence,
        **changes,
    )
    at = START + timedelta(minutes=checkpoint_id)
    CheckpointStore(store).complete(writer, manifest, at)


def announce(writer: LogWriter, url: str, digest: str, checkpoint_id: int) -> None:
    """What a driver writes before a savepoint's manifest."""
    writer.append(Savepoint(writer.fence, 0, checkpoint_id, url, digest, 70, START))


def _file(store: ObjectStore, name: str, key: str) -> FileRef:
    data = f"bytes of {key}".encode()
    store.put(key, data)
    digest = hashlib.sha256(data).hexdigest()
    return FileRef(name=name, key=key, size=len(data), sha256=digest, shared=False)


def _manifest(files: list[FileRef], checkpoint_id: int, **changes: object) -> Manifest:
    handle = RangeHandle(
        uid="counts",
        start=0,
        end=15,
        epoch=70,
        digest="d1",
        backend_uuid="b1",
        files=files,
        bytes_total=sum(file.size for file in files),
    )
    operator = OperatorState(parallelism=1, key_types=["string"], states=[], subtasks=[handle])
    fields: dict[str, Any] = {
        "lineage": "lineage-1",
        "checkpoint_id": checkpoint_id,
        "epoch": 70,
        "created_at": START,
        "max_parallelism": 16,
        "operators": {"counts": operator},
        **changes,
    }
    return checkpoint_manifest(**fields)
