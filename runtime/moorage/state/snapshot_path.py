"""From a path that a person writes to a manifest and the store of its files.

Decides what a path means: a savepoint's directory, one checkpoint (`<directory>/chk-<id>`), or a
checkpoint directory, which stands for its newest checkpoint. Called by everything in
`moorage.state`; reads manifests and logs only.
"""

from dataclasses import dataclass
from pathlib import Path

from moorage_state.errors import UserError
from moorage_state.snapshots import (
    CheckpointStore,
    Entry,
    LineageLog,
    Manifest,
    OperatorState,
    SavepointStore,
    checkpoint_id_of,
    checkpoint_path,
    restore_points,
)
from moorage_state.stores import open_store
from moorage_state.stores.addresses import address, parent_and_name

__all__ = ["Snapshot", "locate"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A checkpoint or savepoint.

    Attributes:
        path: its address, for people.
        store_url: the store that the keys of its manifest are keys of.
        manifest: what it holds.
    """

    path: str
    store_url: str
    manifest: Manifest

    def operator(self, uid: str) -> OperatorState:
        """The state of one operator. Raises `UserError` naming those that there are."""
        found = self.manifest.operators.get(uid)
        if found is None:
            there = ", ".join(sorted(self.manifest.operators)) or "none"
            raise UserError(f"no such operator: path={self.path} uid={uid}; there are: {there}")
        return found


def locate(path: str | Path) -> Snapshot:
    """The checkpoint or savepoint at `path`.

    Raises:
        UserError: there is none, or a newer Moorage wrote it.
        CorruptState: its manifest or its lineage's log is damaged.
        StoreUnavailable: the store does not answer.
    """
    url = address(path)
    directory, name = parent_and_name(url) or ("", "")
    checkpoint_id = checkpoint_id_of(name)
    if checkpoint_id is not None:
        found = _checkpoint(directory, checkpoint_id)
        if found is not None:
            return found
    savepoint = SavepointStore(url)
    if savepoint.exists() or savepoint.begun():
        return Snapshot(url, savepoint.url, savepoint.load())
    newest = _checkpoint(url, None)
    if newest is None:
        raise UserError(
            f"no savepoint and no checkpoint here: path={url}; name a savepoint's directory, or "
            f"<checkpoint directory>/chk-<id>"
        )
    return newest


def _checkpoint(directory: str, checkpoint_id: int | None) -> Snapshot | None:
    """A checkpoint of the lineage in `directory`, the newest for None; None if it has no log."""
    store = open_store(directory)
    entries = [entry for _, entry in LineageLog.open(store).read()]
    if not entries:
        return None
    if checkpoint_id is None:
        checkpoint_id = _newest(entries, directory)
    manifest = CheckpointStore(store).load_id(entries, checkpoint_id)
    return Snapshot(f"{store.url}/{checkpoint_path(checkpoint_id)}", store.url, manifest)


def _newest(entries: list[Entry], directory: str) -> int:
    """What a job would restore now: after a rewind, newer checkpoints no longer count."""
    points = restore_points(entries)
    if not points:
        raise UserError(f"the lineage has no checkpoint yet: path={directory}")
    if points[0].checkpoint is None:
        raise UserError(
            f"the lineage went on from a savepoint and has no checkpoint since: path={directory} "
            f"savepoint={points[0].path}; name the savepoint, or <checkpoint directory>/chk-<id>"
        )
    return points[0].checkpoint.checkpoint_id
