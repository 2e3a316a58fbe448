"""From a path that a person writes to a manifest and the store of its files.

Decides what a path means: a savepoint's directory, one checkpoint (`<directory>/chk-<id>`), or a
checkpoint directory, which stands for its restore point. Called by everything in `moorage.state`,
by `moorage.offline` and by restores; reads manifests and logs only.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from moorage_state.errors import CorruptState, UserError
from moorage_state.snapshots import (
    Checkpoint,
    CheckpointStore,
    Entry,
    LineageLog,
    Manifest,
    OperatorState,
    SavepointStore,
    checkpoint_id_of,
    checkpoint_path,
    restore_point,
    retained,
)
from moorage_state.stores import ObjectStore, open_store
from moorage_state.stores.addresses import address, child, parent_and_name

FORMS = (
    "name a checkpoint directory, one checkpoint in it (<directory>/chk-<id>), a savepoint's "
    "directory, or the job's manifest (job.yaml)"
)


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


@dataclass(frozen=True, slots=True)
class Found:
    """A snapshot with what lies around it; `entries` and `checkpoint` are of its lineage's log.

    Attributes:
        store: the objects that the manifest names.
        entries: empty for a savepoint.
        checkpoint: None for a savepoint.
    """

    snapshot: Snapshot
    store: ObjectStore
    entries: Sequence[Entry] = ()
    checkpoint: Checkpoint | None = None


def locate(path: str | Path) -> Snapshot:
    """The checkpoint or savepoint at `path`.

    Raises:
        UserError: there is none, or a newer Moorage wrote it.
        CorruptState: its manifest or its lineage's log is damaged.
        StoreUnavailable: the store does not answer.
    """
    return find_snapshot(address(path)).snapshot


def find_snapshot(url: str) -> Found:
    """What `locate` finds, with what lies around it."""
    directory, name = parent_and_name(url) or ("", "")
    checkpoint_id = checkpoint_id_of(name)
    # A copy of a checkpoint may lie in a directory of that name, beside which there is no log.
    if checkpoint_id is not None and (found := find_checkpoint(directory, checkpoint_id)):
        return found
    savepoint = SavepointStore(url)
    if savepoint.exists() or savepoint.begun():
        return find_savepoint(url)
    if found := find_checkpoint(url, None):
        return found
    there = next(iter(savepoint.store.list("")), None)
    what = "nothing is stored there" if there is None else f"found={there.key}"
    raise UserError(f"no checkpoint and no savepoint here: path={url} {what}; {FORMS}")


def find_checkpoint(directory: str, checkpoint_id: int | None) -> Found | None:
    """A checkpoint of the lineage in a directory, or its restore point; None without a log."""
    store = open_store(directory)
    entries = [record.entry for record in LineageLog.open(store).view().records]
    if not entries:
        return None
    if checkpoint_id is None:
        checkpoint_id = _newest(directory, entries)
    checkpoints = CheckpointStore(store)
    entry = checkpoints.existing(entries, checkpoint_id)
    with unless_retired(store, entry):
        manifest = checkpoints.load(entry)
    path = child(directory, checkpoint_path(checkpoint_id))
    return Found(Snapshot(path, store.url, manifest), store, entries, entry)


@contextmanager
def unless_retired(store: ObjectStore, checkpoint: Checkpoint | None) -> Iterator[None]:
    """Read what a checkpoint holds; nothing is looked at again for None, a savepoint.

    Raises UserError in place of CorruptState where its job, which runs, has retired it meanwhile.
    """
    try:
        yield
    except CorruptState:
        if checkpoint is not None:
            check_retained(store, checkpoint)
        raise


def check_retained(store: ObjectStore, checkpoint: Checkpoint) -> None:
    """Raise UserError if the job has retired a checkpoint since its entry was read."""
    live = retained([record.entry for record in LineageLog.open(store).view().records])
    if all(one.checkpoint_id != checkpoint.checkpoint_id for one in live):
        raise UserError(
            f"the job has retired this checkpoint meanwhile: "
            f"path={store.url}/{checkpoint_path(checkpoint.checkpoint_id)}; choose one that "
            f"moorage snapshots ls shows, or take a savepoint, which stays"
        )


def _newest(directory: str, entries: Sequence[Entry]) -> int:
    """What a job would restore now: after a rewind, newer checkpoints no longer count."""
    point = restore_point(entries)
    if point is None:
        raise UserError(f"the lineage has no checkpoint yet: path={directory}; wait for its first")
    if point.checkpoint is None:
        raise UserError(
            f"the lineage starts from a snapshot outside of it: path={directory} "
            f"restored_from={point.path}; name that one, or a checkpoint chk-<id>"
        )
    return point.checkpoint.checkpoint_id


def find_savepoint(url: str) -> Found:
    """The savepoint whose directory is at `url`."""
    savepoint = SavepointStore(url)
    try:
        manifest = savepoint.load()
    except CorruptState as error:
        raise CorruptState(error.message, error.path, "use another savepoint") from error
    return Found(Snapshot(url, savepoint.url, manifest), savepoint.store)
