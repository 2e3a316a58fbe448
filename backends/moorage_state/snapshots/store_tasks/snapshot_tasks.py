"""What is done to one snapshot: it is verified, copied or deleted.

Verifying asks whether it is there and whole: its manifest, and every object that it names. Copying
makes a savepoint of what a lineage has already, without a driver, for a job that sleeps. Deleting
takes what the manifest of a savepoint names, and what its own attempt left beside that.
"""

import re
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from moorage_state.errors import CorruptState, StoreDenied, UserError
from moorage_state.snapshots.checkpoints import CheckpointStore, verify_files
from moorage_state.snapshots.entries import Checkpoint, Owner
from moorage_state.snapshots.history import current_owner, restore_point, retained
from moorage_state.snapshots.lineage_log import LineageLog
from moorage_state.snapshots.manifest import (
    Manifest,
    decode_manifest,
    encode_manifest,
    manifest_digest,
)
from moorage_state.snapshots.object_keys import checkpoint_id_of, checkpoint_path
from moorage_state.snapshots.savepoints import (
    ATTEMPT_KEY,
    MANIFEST_KEY,
    SavepointConflict,
    SavepointStore,
    as_savepoint,
    bring,
)
from moorage_state.stores import ObjectStore, delete_all
from moorage_state.stores.addresses import Opener, bytes_of, child, opened, parent_and_name
from moorage_state.stores.local import store_error

_MARK = 16
_FILE = re.compile(r"(f[0-9]+r[0-9]+-[^/]+/)?(state|packs)/.+")
"""Where only a savepoint's writers put objects; the first folder is that of a later driver."""

_DELETES_PER_LOOK = 1000
"""What goes in one request."""


def verify(open_: Opener, path: str) -> dict[str, Any]:
    """Return what the snapshot at `path` is; `found` is false where there is none (yet).

    `attempt` is who began to write a savepoint there, also where it is not complete. Raises
    CorruptState where it is not whole, naming the first object that is not as it should be;
    UserError and StoreUnavailable.
    """
    directory, name = parent_and_name(path) or ("", "")
    checkpoint_id = checkpoint_id_of(name)
    if checkpoint_id is not None:
        found = _checkpoint_verified(open_, directory, checkpoint_id)
        if found is not None:
            return found
    return _savepoint_verified(open_, path)


def _savepoint_verified(open_: Opener, path: str) -> dict[str, Any]:
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


def _checkpoint_verified(
    open_: Opener, directory: str, checkpoint_id: int
) -> dict[str, Any] | None:
    """The checkpoint of the lineage in `directory`; None if there is no lineage."""
    store = opened(open_, directory)
    entries = [one.entry for one in LineageLog.open(store).view().records] if store else []
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


def copy(
    open_: Opener, source: str, path: str, attempt: str, owner: Owner | None = None
) -> dict[str, Any]:
    """Make a savepoint at `path` of the snapshot at `source`, and return what `verify` says of it.

    Args:
        source: a savepoint's address; or a checkpoint directory, of which what a start would begin
            from is meant. `found` is false where there is nothing.
        attempt: who begins the savepoint.
        owner: the job; of a lineage that is another's by now nothing is copied.

    Raises `SavepointConflict` where another attempt's savepoint has the directory, CorruptState
    naming the object where the source is damaged, UserError, and StoreUnavailable: call again.
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
    # A folder named after the source: what a driver that was asked first had begun is neither
    # touched nor taken for a part of it, and the same copy made twice at once writes the same.
    mark = manifest_digest(encode_manifest(manifest.in_one)).rpartition(":")[2][:_MARK]
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
    entries = [record.entry for record in LineageLog.open(store).view().records]
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


def delete(open_: Opener, path: str, digest: str, attempt: str) -> dict[str, Any]:
    """Delete the savepoint at `path`, if it is the one that is meant.

    It is, if its manifest has `digest`; or, where no digest is given or the manifest is gone, if
    `attempt` began it. Anything else is left as it is.

    Returns `deleted`, the number of objects; and `left`, why nothing was: missing, other (another
    savepoint took its place), foreign (somebody else's), checkpoint; empty if it was deleted.
    Raises UserError, and StoreUnavailable: some of it may be deleted then; call again.
    """
    store = opened(open_, path)
    if store is None:
        return _left("missing")
    claim, data = bytes_of(store, ATTEMPT_KEY), bytes_of(store, MANIFEST_KEY)
    mine = bool(attempt) and claim == attempt.encode()
    if data is None:
        if not mine:
            return _left("missing" if claim is None else "foreign")
        named: frozenset[str] = frozenset()
    elif digest and manifest_digest(data) != digest:
        return _left("other")
    elif not digest and not mine:
        return _left("foreign")
    else:
        named, kind = _named(data, store.url)
        if kind == "checkpoint":
            return _left("checkpoint")
    keys = sorted(named.union(_leftovers(store) if mine else ()))
    return _delete_files(store, keys, claim)


def _left(why: str) -> dict[str, Any]:
    return {"deleted": 0, "left": why}


def _named(data: bytes, url: str) -> tuple[frozenset[str], str]:
    """The objects that the manifest names; none if it is damaged, and ours by its attempt."""
    try:
        manifest = decode_manifest(data, f"{url}/{MANIFEST_KEY}")
    except CorruptState:
        return frozenset(), ""
    return manifest.keys, manifest.kind


def _leftovers(store: ObjectStore) -> Iterable[str]:
    return [info.key for info in store.list("") if _FILE.fullmatch(info.key)]


def _delete_files(store: ObjectStore, files: list[str], claim: bytes | None) -> dict[str, Any]:
    # The order makes every crash on the way harmless and visible. Files go first: the manifest
    # still names what is missing, so no restore takes it for whole, and the deletion can be taken
    # up again. Then the manifest, with which the savepoint exists. ATTEMPT goes last: as long as
    # it is there nobody else can begin a savepoint whose objects a late deletion could hit.
    for start in range(0, len(files) + 1, _DELETES_PER_LOOK):
        if bytes_of(store, ATTEMPT_KEY) != claim:
            # Another deletion was faster, and somebody may have begun anew.
            return {"deleted": start, "left": ""}
        delete_all(store, files[start : start + _DELETES_PER_LOOK])
    for key in (MANIFEST_KEY, ATTEMPT_KEY):
        store.delete(key)
    return {"deleted": len(files) + 2, "left": ""}
