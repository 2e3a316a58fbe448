"""Making a savepoint of what a lineage has already: without a driver, for a job that sleeps.

The files go to a folder of their own, named after the source: what a driver that was asked first
had begun in the directory is neither touched nor taken for a part of the copy. So the same copy may
be begun again, and twice at the same time: both write the same.
"""

from pathlib import Path
from typing import Any
from urllib.parse import unquote

from moorage_state.errors import StoreDenied, UserError
from moorage_state.snapshots.checkpoints import CheckpointStore
from moorage_state.snapshots.copying import as_savepoint, bring
from moorage_state.snapshots.entries import Owner
from moorage_state.snapshots.history import current_owner, restore_point
from moorage_state.snapshots.log import LineageLog
from moorage_state.snapshots.manifest import Manifest, encode_manifest, manifest_digest
from moorage_state.snapshots.savepoints import SavepointConflict, SavepointStore
from moorage_state.snapshots.store_tasks.places import Opener, opened
from moorage_state.snapshots.store_tasks.verifying import verify
from moorage_state.stores import ObjectStore
from moorage_state.stores.addresses import parent_and_name
from moorage_state.stores.oserrors import store_error

__all__ = ["copy"]

_MARK = 16


def copy(
    open_: Opener, source: str, path: str, attempt: str, owner: Owner | None = None
) -> dict[str, Any]:
    """Make a savepoint at `path` of the snapshot at `source`, and return what `verify` says of it.

    Args:
        source: a savepoint's address; or a checkpoint directory, of which what a start would begin
            from is meant.
        attempt: who begins the savepoint.
        owner: the job; of a lineage that is another's by now nothing is copied.

    Returns:
        As `verify`; `found` is false where there is nothing at `source`.

    Raises:
        SavepointConflict: another attempt's savepoint has the directory.
        CorruptState: the source is damaged; names the object.
        UserError: a newer Moorage wrote it, it is another job's, or the store refuses.
        StoreUnavailable: call again.
    """
    found = _found(open_, source, owner)
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
    # A deletion may have taken the claim away meanwhile: what it left is no savepoint.
    savepoint.begin(attempt)
    try:
        savepoint.create(copied)
    except SavepointConflict:
        # The same attempt's, of a driver or of a copy that found something newer, counts as well.
        if savepoint.completed_by(attempt) is None:
            raise


def _found(open_: Opener, source: str, owner: Owner | None) -> tuple[ObjectStore, Manifest] | None:
    store = opened(open_, source)
    if store is None:
        return None
    entries = [entry for _, entry in LineageLog.open(store).read()]
    if not entries:
        return store, SavepointStore.over(store).load()
    if owner is not None:
        _check_owner(current_owner(entries), owner, source)
    point = restore_point(entries)
    if point is None:
        return None
    if point.checkpoint is not None:
        return store, CheckpointStore(store).load(point.checkpoint)
    chosen = opened(open_, point.path)
    return (chosen, SavepointStore.over(chosen).load()) if chosen is not None else None


def _check_owner(present: Owner | None, owner: Owner, source: str) -> None:
    """A job whose object is gone has no uid; its name is its own all the same."""
    same = present is None or present.same_job(owner)
    if not same or (present is not None and owner.uid not in ("", present.uid)):
        raise UserError(
            f"checkpoint directory is another job's by now: path={source} owner={present}; "
            "name a savepoint of this job with spec.existingPath"
        )


def _made(open_: Opener, path: str) -> ObjectStore:
    """The directory, made where directories have to be, with those above it as a driver does."""
    if path.startswith("file://"):
        _make(Path(unquote(path.removeprefix("file://"))))
    return open_(path)


def _make(folder: Path) -> None:
    """Make it; but not at the top of the file system, where a volume would be if it were there."""
    try:
        above = next(one for one in folder.parents if one.is_dir())
        if above == Path(folder.anchor):
            raise StoreDenied(
                f"no directory above the savepoint is there: path={folder}; mount its volume"
            )
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise store_error("make directory", folder, error) from error
