"""From what a person types to what lies there: a path, or the manifest of a job.

Called by every tool first. Reads logs and manifests, never files of state.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from moorage.state.snapshot_path import FORMS, Found, find_checkpoint, find_savepoint, find_snapshot
from moorage_api import load_manifest
from moorage_state.errors import UserError
from moorage_state.snapshots import checkpoint_id_of
from moorage_state.stores import ObjectStore, store_url
from moorage_state.stores.addresses import address, child


@dataclass(frozen=True, slots=True)
class SnapshotDirectories:
    """Where a job keeps its snapshots.

    Attributes:
        checkpoints: the address of the checkpoint directory.
        savepoints: the address of the directory that holds savepoints, where it is known.
    """

    checkpoints: str
    savepoints: str | None = None


def names_manifest(text: str) -> bool:
    """Whether it is a manifest's path and no directory's; a job file in its place is told so."""
    named = text.endswith((".yaml", ".yml", ".py"))
    return "://" not in text and (named or os.path.isfile(text))  # noqa: PTH113  never raises


def directories_of(text: str) -> SnapshotDirectories:
    """The directories that `text` stands for; nothing is opened but a job's manifest.

    Raises:
        ManifestError: `text` names a manifest that is wrong.
    """
    if not names_manifest(text):
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
    if name is None and names_manifest(text):
        with of_a_job(text):
            return _found(directories_of(text), name)
    with _named(text, name):
        return _found(directories_of(text), name)


@contextmanager
def of_a_job(text: str) -> Iterator[None]:
    """Say of a manifest whose directory is not there that the job has no checkpoint yet."""
    try:
        yield
    except UserError as error:
        if not names_manifest(text) or (folder := _missing(error)) is None:
            raise
        raise UserError(
            f"no checkpoint yet: job={text} path={folder}; moorage run starts it; if its "
            f"directory lies on a volume, mount that"
        ) from error


@contextmanager
def _named(text: str, name: str | None) -> Iterator[None]:
    """Say of a directory that is not there, beside others that are, that the name is wrong."""
    try:
        yield
    except UserError as error:
        folder = _missing(error)
        if folder is None or (name is None and not folder.parent.is_dir()):
            raise  # perhaps no volume is mounted
        where = f"path={text}" + (f" name={name}" if name else "")
        raise UserError(
            f"no checkpoint and no savepoint of this name: {where}; moorage snapshots ls JOB.yaml "
            f"lists those that there are; if it lies on a volume, mount that"
        ) from error


def _missing(error: UserError) -> Path | None:
    """The directory that is not there, if that is what is wrong."""
    missing = error.__cause__
    if not isinstance(missing, FileNotFoundError) or missing.filename is None:
        return None
    return Path(missing.filename)


def _found(directories: SnapshotDirectories, name: str | None) -> Found:
    if name is None:
        return find_snapshot(directories.checkpoints)
    checkpoint_id = checkpoint_id_of(name)
    if checkpoint_id is not None:
        found = find_checkpoint(directories.checkpoints, checkpoint_id)
        if found is None:
            url = directories.checkpoints
            raise UserError(f"not a checkpoint directory, it has no log: path={url}; {FORMS}")
        return found
    if not name or "/" in name or name.startswith("."):
        raise UserError(f"not a name of a snapshot: name={name!r}; write chk-<id>, or a savepoint")
    return find_savepoint(child(directories.savepoints or directories.checkpoints, name))


def has_log(store: ObjectStore) -> bool:
    """Whether the store holds, or held, a lineage: then its log is what to read."""
    # Of a lineage whose log was lost its objects are left, and that is damage to be told of.
    return any(next(iter(store.list(prefix)), None) for prefix in ("log/", "chk-", "shared/"))
