"""Whether a snapshot is there and whole: its manifest, and every object that it names."""

from datetime import datetime
from typing import Any

from moorage_state.errors import UserError
from moorage_state.snapshots.checkpoints import CheckpointStore, verify_files
from moorage_state.snapshots.entries import Checkpoint
from moorage_state.snapshots.history import retained
from moorage_state.snapshots.layout import checkpoint_id_of, checkpoint_path
from moorage_state.snapshots.log import LineageLog
from moorage_state.snapshots.manifest import Manifest, decode_manifest, manifest_digest
from moorage_state.snapshots.savepoints import ATTEMPT_KEY, MANIFEST_KEY
from moorage_state.snapshots.store_tasks.places import Opener, bytes_of, opened
from moorage_state.stores import ObjectStore
from moorage_state.stores.addresses import child, parent_and_name

__all__ = ["verify"]


def verify(open_: Opener, path: str) -> dict[str, Any]:
    """Return what the snapshot at `path` is; `found` is false where there is none (yet).

    `attempt` is who began to write a savepoint there, also where it is not complete.

    Raises:
        CorruptState: it is not whole; names the first object that is not as it should be.
        UserError: a newer Moorage wrote it, or the store refuses.
        StoreUnavailable: the store does not answer.
    """
    directory, name = parent_and_name(path) or ("", "")
    checkpoint_id = checkpoint_id_of(name)
    if checkpoint_id is not None:
        found = _checkpoint(open_, directory, checkpoint_id)
        if found is not None:
            return found
    return _savepoint(open_, path)


def _savepoint(open_: Opener, path: str) -> dict[str, Any]:
    store = opened(open_, path)
    if store is None:
        return {"found": False, "attempt": ""}
    # In this order: a savepoint that is completed meanwhile is found, or has its attempt.
    attempt = (bytes_of(store, ATTEMPT_KEY) or b"").decode(errors="replace")[:200]
    data = bytes_of(store, MANIFEST_KEY)
    if data is None:
        return {"found": False, "attempt": attempt}
    manifest = decode_manifest(data, f"{store.url}/{MANIFEST_KEY}")
    if manifest.kind != "savepoint":
        raise UserError(
            f"not a savepoint but a checkpoint of a lineage: path={path}; name it as "
            "<checkpoint directory>/chk-<id>"
        )
    verify_files(store, manifest)
    return _described(store.url, manifest, manifest_digest(data), manifest.created_at, attempt)


def _checkpoint(open_: Opener, directory: str, checkpoint_id: int) -> dict[str, Any] | None:
    """The checkpoint of the lineage in `directory`; None if there is no lineage."""
    store = opened(open_, directory)
    entries = [entry for _, entry in LineageLog.open(store).read()] if store else []
    if store is None or not entries:
        return None
    entry = next((c for c in retained(entries) if c.checkpoint_id == checkpoint_id), None)
    return {"found": False, "attempt": ""} if entry is None else _loaded(store, entry)


def _loaded(store: ObjectStore, entry: Checkpoint) -> dict[str, Any]:
    manifest = CheckpointStore(store).load(entry)
    verify_files(store, manifest)
    path = child(store.url, checkpoint_path(entry.checkpoint_id))
    return _described(path, manifest, entry.manifest_digest, entry.completed_at, "")


def _described(
    path: str, manifest: Manifest, digest: str, at: datetime, attempt: str
) -> dict[str, Any]:
    return {
        "found": True,
        "kind": manifest.kind,
        "path": path,
        "name": manifest.name,
        "attempt": attempt,
        "digest": digest,
        "lineage": manifest.lineage,
        "job_name": manifest.job_name,
        "checkpoint_id": manifest.checkpoint_id,
        "epoch": manifest.epoch,
        "max_parallelism": manifest.max_parallelism,
        "key_hash": manifest.key_hash,
        "spark_version": str(manifest.extra.get("spark_version", "")),
        "size_bytes": sum(file.size for file in manifest.files),
        "completed_at": at.isoformat(),
    }
