"""Making a savepoint of what a lineage has already: without a driver, for a job that sleeps.

The files go to a folder of their own, named after the source: what a driver that was asked first
had begun in the directory is neither touched nor taken for a part of the copy. So the same copy may
be begun again, and twice at the same time: both write the same.
"""

from pathlib import Path
from typing import Any
from urllib.parse import unquote

from moorage_state.errors import UserError
from moorage_state.snapshots.checkpoints import CheckpointStore
from moorage_state.snapshots.copying import as_savepoint, bring
from moorage_state.snapshots.errands.places import Opener, opened
from moorage_state.snapshots.errands.verifying import verify
from moorage_state.snapshots.history import restore_point
from moorage_state.snapshots.log import LineageLog
from moorage_state.snapshots.manifest import Manifest, encode_manifest, manifest_digest
from moorage_state.snapshots.savepoints import SavepointStore
from moorage_state.stores import ObjectStore
from moorage_state.stores.addresses import parent_and_name

__all__ = ["copy"]

_MARK = 16


def copy(open_: Opener, source: str, path: str, attempt: str) -> dict[str, Any]:
    """Make a savepoint at `path` of the snapshot at `source`, and return what `verify` says of it.

    Args:
        source: a savepoint's address; or a checkpoint directory, of which what a start would begin
            from is meant.
        attempt: who begins the savepoint.

    Returns:
        As `verify`; `found` is false where there is nothing at `source`.

    Raises:
        SavepointConflict: another attempt's savepoint has the directory.
        CorruptState: the source is damaged; names the object.
        UserError: a newer Moorage wrote it, or the store refuses.
        StoreUnavailable: call again.
    """
    found = _found(open_, source)
    if found is None:
        return {"found": False, "attempt": ""}
    savepoint = SavepointStore.over(_made(open_, path))
    if savepoint.completed_by(attempt) is None:
        _bring(savepoint, *found, path, attempt)
    return verify(open_, path)


def _bring(
    savepoint: SavepointStore, store: ObjectStore, manifest: Manifest, path: str, attempt: str
) -> None:
    _, name = parent_and_name(path) or ("", path.rpartition("/")[2])
    mark = manifest_digest(encode_manifest(manifest)).rpartition(":")[2][:_MARK]
    copied, pieces = as_savepoint(manifest, name, f"f0r0-{mark}/")
    savepoint.begin(attempt)
    bring(store, savepoint.store, pieces)
    savepoint.create(copied)


def _found(open_: Opener, source: str) -> tuple[ObjectStore, Manifest] | None:
    store = opened(open_, source)
    if store is None:
        return None
    entries = [entry for _, entry in LineageLog.open(store).read()]
    if not entries:
        return store, SavepointStore.over(store).load()
    point = restore_point(entries)
    if point is None:
        return None
    if point.checkpoint is not None:
        return store, CheckpointStore(store).load(point.checkpoint)
    chosen = opened(open_, point.path)
    return (chosen, SavepointStore.over(chosen).load()) if chosen is not None else None


def _made(open_: Opener, path: str) -> ObjectStore:
    """The directory, made where directories have to be."""
    store = opened(open_, path)
    if store is None:
        Path(unquote(path.removeprefix("file://"))).mkdir(exist_ok=True)
        store = opened(open_, path)
    if store is None:
        raise UserError(f"directory cannot be made: path={path}; see who may write there")
    return store
