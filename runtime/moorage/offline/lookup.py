"""From what a person names to what lies there: a checkpoint directory, a checkpoint, a savepoint.

Decides what a path means. It may be the manifest of a job (its directories are meant), a directory
with a lineage, one checkpoint `<directory>/chk-<id>`, a savepoint's directory, or one that holds
savepoints. Called by every tool first. Reads logs and manifests, never files of state.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from moorage.state.snapshot_path import Snapshot
from moorage_api import load_manifest
from moorage_state.errors import CorruptState, UserError
from moorage_state.snapshots import (
    Checkpoint,
    CheckpointStore,
    Entry,
    LineageLog,
    SavepointStore,
    checkpoint_id_of,
    checkpoint_path,
    restore_point,
)
from moorage_state.snapshots.savepoints import ATTEMPT_KEY, MANIFEST_KEY
from moorage_state.stores import ObjectStore, open_store, store_url
from moorage_state.stores.addresses import address, child, parent_and_name

__all__ = ["Found", "SnapshotDirectories", "directories_of", "find", "has_log"]

_FORMS = (
    "name a checkpoint directory, one checkpoint in it (<directory>/chk-<id>), a savepoint's "
    "directory, or the job's manifest (job.yaml)"
)


@dataclass(frozen=True, slots=True)
class SnapshotDirectories:
    """Where a job keeps its snapshots.

    Attributes:
        checkpoints: the address of the checkpoint directory.
        savepoints: the address of the directory that holds savepoints, where it is known.
    """

    checkpoints: str
    savepoints: str | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """One checkpoint or savepoint.

    Attributes:
        snapshot: its manifest, its address and the address of its store.
        store: the objects that the manifest names.
        entries: the log of its lineage; empty for a savepoint.
        checkpoint: its entry in the log; None for a savepoint.
    """

    snapshot: Snapshot
    store: ObjectStore
    entries: Sequence[Entry] = ()
    checkpoint: Checkpoint | None = None


def directories_of(text: str) -> SnapshotDirectories:
    """The directories that `text` stands for; nothing is opened but a job's manifest.

    Raises:
        ManifestError: `text` names a manifest that is wrong.
    """
    if "://" in text or not text.endswith((".yaml", ".yml")):
        return SnapshotDirectories(address(text))
    path = Path(text)
    state = load_manifest(path).spec.state
    reach = (state.s3.endpoint, state.s3.region)

    def whole(url: str) -> str:
        if url.startswith("file://"):
            relative = url.removeprefix("file://")
            return address(os.path.normpath(path.absolute().parent / relative))
        return store_url(url, *reach, path_style=state.s3.path_style)

    savepoints = None if state.savepoint_dir is None else whole(state.savepoint_dir)
    return SnapshotDirectories(whole(state.checkpoint_dir), savepoints)


def find(text: str, name: str | None = None) -> Found:
    """The checkpoint or savepoint that is meant.

    Args:
        text: a path, an address or a job's manifest.
        name: `chk-<id>` or a savepoint in the directory `text`; without it `text` names the
            snapshot itself, or a checkpoint directory, which stands for its restore point.

    Raises:
        UserError: there is nothing of the kind, or a newer Moorage wrote it; says what there is.
        CorruptState: the log or the manifest is damaged.
        StoreUnavailable: the store does not answer.
    """
    directories = directories_of(text)
    if name is None:
        return _found_at(directories.checkpoints)
    checkpoint_id = checkpoint_id_of(name)
    if checkpoint_id is not None:
        return _required(directories.checkpoints, checkpoint_id)
    if not name or "/" in name or name.startswith("."):
        raise UserError(f"not a name of a snapshot: name={name!r}; write chk-<id>, or a savepoint")
    return _savepoint(child(directories.savepoints or directories.checkpoints, name))


def has_log(store: ObjectStore) -> bool:
    """Whether the store holds, or held, a lineage: then its log is what to read."""
    return any(next(iter(store.list(prefix)), None) for prefix in ("log/", "chk-", "shared/"))


def _found_at(url: str) -> Found:
    split = parent_and_name(url)
    checkpoint_id = checkpoint_id_of(split[1]) if split is not None else None
    if split is not None and checkpoint_id is not None:
        return _required(split[0], checkpoint_id)
    store = open_store(url)
    if any(store.head(key) is not None for key in (MANIFEST_KEY, ATTEMPT_KEY)):
        return _savepoint(url)
    if not has_log(store):
        there = next(iter(store.list("")), None)
        what = "nothing is stored there" if there is None else f"found={there.key}"
        raise UserError(f"no checkpoint and no savepoint here: path={url} {what}; {_FORMS}")
    return _required(url, None)


def _required(directory: str, checkpoint_id: int | None) -> Found:
    """A checkpoint of the lineage in `directory`, the restore point for None."""
    store = open_store(directory)
    entries = [entry for _, entry in LineageLog.open(store).read()]
    if not entries:
        raise UserError(f"not a checkpoint directory, it has no log: path={directory}; {_FORMS}")
    if checkpoint_id is None:
        checkpoint_id = _newest(directory, entries)
    manifest = CheckpointStore(store).load_id(entries, checkpoint_id)
    entry = next(
        e for e in entries if isinstance(e, Checkpoint) and e.checkpoint_id == checkpoint_id
    )
    path = child(directory, checkpoint_path(checkpoint_id))
    return Found(Snapshot(path, store.url, manifest), store, entries, entry)


def _newest(directory: str, entries: Sequence[Entry]) -> int:
    point = restore_point(entries)
    if point is None:
        raise UserError(f"the lineage has no checkpoint yet: path={directory}; wait for its first")
    if point.checkpoint is None:
        raise UserError(
            f"the lineage starts from a snapshot outside of it: path={directory} "
            f"restored_from={point.path}; name that one, or a checkpoint chk-<id>"
        )
    return point.checkpoint.checkpoint_id


def _savepoint(url: str) -> Found:
    savepoint = SavepointStore(url)
    try:
        manifest = savepoint.load()
    except CorruptState as error:
        raise CorruptState(error.message, error.path, "use another savepoint") from error
    return Found(Snapshot(url, savepoint.url, manifest), savepoint.store)
