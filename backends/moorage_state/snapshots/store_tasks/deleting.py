"""Deleting one savepoint: what its manifest names, and what its own attempt left beside that.

The order makes every crash on the way harmless and visible. Files go first: the manifest still
names what is missing, so no restore takes it for whole, and the deletion can be taken up again.
Then the manifest: from there on the savepoint does not exist. `ATTEMPT` goes last: as long as it is
there nobody else can begin a savepoint in the directory, whose objects a late deletion could hit.
"""

import re
from collections.abc import Iterable
from typing import Any

from moorage_state.errors import CorruptState
from moorage_state.snapshots.manifest import decode_manifest, manifest_digest
from moorage_state.snapshots.savepoints import ATTEMPT_KEY, MANIFEST_KEY
from moorage_state.snapshots.store_tasks.places import Opener, bytes_of, opened
from moorage_state.stores import ObjectStore, delete_all

__all__ = ["delete"]

_FILE = re.compile(r"(f[0-9]+r[0-9]+-[^/]+/)?(state|packs)/.+")
"""Where only a savepoint's writers put objects; the first folder is that of a later driver."""

_DELETES_PER_LOOK = 1000
"""What goes in one request."""


def delete(open_: Opener, path: str, digest: str, attempt: str) -> dict[str, Any]:
    """Delete the savepoint at `path`, if it is the one that is meant.

    It is, if its manifest has `digest`; or, where no digest is given or the manifest is gone, if
    `attempt` began it. Anything else is left as it is.

    Returns:
        `deleted`, the number of objects; and `left`, why nothing was: missing, other (another
        savepoint took its place), foreign (somebody else's), checkpoint; empty if it was deleted.

    Raises:
        UserError: the store refuses, or a newer Moorage wrote it.
        StoreUnavailable: some of it may be deleted; call again.
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
    return _delete(store, keys, claim)


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


def _delete(store: ObjectStore, files: list[str], claim: bytes | None) -> dict[str, Any]:
    for start in range(0, len(files) + 1, _DELETES_PER_LOOK):
        if bytes_of(store, ATTEMPT_KEY) != claim:
            # Another deletion was faster, and somebody may have begun anew.
            return {"deleted": start, "left": ""}
        delete_all(store, files[start : start + _DELETES_PER_LOOK])
    for key in (MANIFEST_KEY, ATTEMPT_KEY):
        store.delete(key)
    return {"deleted": len(files) + 2, "left": ""}
