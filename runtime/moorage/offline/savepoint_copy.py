"""`snapshots copy`: a checkpoint or savepoint as a savepoint's directory of its own, anywhere.

It exists only when all of it is there: the directory is claimed first, the manifest comes last.
"""

from collections.abc import Callable
from dataclasses import dataclass

from moorage.state.snapshot_path import Found, unless_retired
from moorage_state.errors import UserError
from moorage_state.snapshots import SavepointStore, encode_manifest, manifest_digest
from moorage_state.snapshots.savepoints import as_savepoint, bring
from moorage_state.stores.addresses import (
    address,
    parent_and_name,
    same_or_below,
    without_links,
)


@dataclass(frozen=True, slots=True)
class Copied:
    """What was done; `resumed_files` were there already, from a copy that did not end."""

    source: str
    path: str
    name: str
    files: int
    bytes: int
    resumed_files: int


def copy(
    found: Found, target: str, *, full: bool = False, progress: Callable[[int, int], None]
) -> Copied:
    """Copy a snapshot to the new directory `target`, whose last segment is the savepoint's name.

    Args:
        full: read the whole copy back and check every byte of it before it is completed.
        progress: called from several threads with bytes that arrived and how many there are.

    Raises:
        UserError: the target exists, is not empty, or lies where it must not; or the checkpoint was
            retired meanwhile.
        CorruptState: the source is damaged; names the object.
        StoreUnavailable: a store does not answer; the same command goes on where it stopped.
        LocalDiskError: the temporary directory is full.
    """
    url = address(target)
    name = _check_target(found, url)
    manifest, pieces = as_savepoint(found.snapshot.manifest, name)
    savepoint = SavepointStore(url, create=True)
    if savepoint.exists():
        savepoint.check_empty()
    # The claim says of which bytes it is: the same copy begun again goes on where it stopped.
    savepoint.begin(f"copy of {manifest_digest(encode_manifest(manifest.in_one))}")
    with unless_retired(found.store, found.checkpoint):
        resumed = bring(found.store, savepoint.store, pieces, progress)
    total = sum(piece.source.size for piece in pieces)
    if full:
        savepoint.verify(manifest, full=True)
    savepoint.create(manifest)
    return Copied(found.snapshot.path, url, name, len(pieces), total, resumed)


def _check_target(found: Found, url: str) -> str:
    """The name of the copy. Raises `UserError` for a place that is not free for it."""
    split = parent_and_name(url)
    if split is None:
        raise UserError(f"not a directory for a copy: target={url}; name a new directory in it")
    for taken in (found.store.url, found.snapshot.path):
        one, other = without_links(url), without_links(taken)
        if same_or_below(one, other) or same_or_below(other, one):
            raise UserError(
                f"a copy needs a directory outside of what it copies: target={url} "
                f"source={found.snapshot.path}; choose one beside {found.store.url}"
            )
    return split[1]
