"""The savepoints that a lineage's log knows: what they cover, and which the job may delete.

Called by the run: sinks keep what a savepoint covers, and a claimed savepoint is deleted once the
job's own checkpoints have taken its place.
"""

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

from moorage_state.errors import (
    CorruptState,
    Fenced,
    MoorageError,
    StoreUnavailable,
    UserError,
)
from moorage_state.snapshots import (
    Checkpoint,
    Entry,
    Forgotten,
    LogWriter,
    Manifest,
    Run,
    Savepoint,
    SavepointStore,
    object_keys,
)
from moorage_state.snapshots.history import savepoints
from moorage_state.snapshots.savepoints import ATTEMPT_KEY, MANIFEST_KEY
from moorage_state.stores import delete_all, in_parallel

_log = logging.getLogger(__name__)

_UNDER_WAY_SECONDS = 3600.0
"""How long an announced savepoint is looked for, from the first look: it may be on its way."""

_ASLEEP_SECONDS = 300.0

_THREADS = 8


class KnownSavepoints:
    """Manifests of the savepoints of a lineage that still lie where they were put."""

    def __init__(self, writer: LogWriter, clock: Callable[[], float] = time.monotonic) -> None:
        self._writer = writer
        self._clock = clock
        self._read: dict[int, Manifest | None] = {}
        self._first_look: dict[int, float] = {}
        self._asleep = 0.0

    def __call__(self) -> Sequence[Manifest]:
        """The manifests.

        Raises:
            StoreUnavailable: one of their stores does not answer; it is not asked again for some
                minutes.
        """
        if self._clock() < self._asleep:
            raise StoreUnavailable("the store of a savepoint did not answer a moment ago")
        unread = [e for e in savepoints(self._writer.entries) if e.checkpoint_id not in self._read]
        self._asleep = self._clock() + _ASLEEP_SECONDS
        found = in_parallel((partial(_load, entry) for entry in unread), _THREADS, "savepoints")
        self._asleep = 0.0
        for entry, manifest in zip(unread, found, strict=True):
            self._note(entry, manifest)
        return [manifest for manifest in self._read.values() if manifest is not None]

    def _note(self, entry: Savepoint, found: Manifest | None) -> None:
        looked_for = self._clock() - self._first_look.setdefault(entry.checkpoint_id, self._clock())
        if found is None and looked_for <= _UNDER_WAY_SECONDS:
            return
        self._read[entry.checkpoint_id] = found
        if found is None and _is_gone(entry):
            # So that no later process looks for it.
            self._writer.append(Forgotten(self._writer.fence, entry.checkpoint_id))


def _load(entry: Savepoint) -> Manifest | None:
    try:
        return SavepointStore(entry.url).load(entry.manifest_digest)
    except (UserError, CorruptState) as error:
        # Moved, deleted, damaged, or on its way: in any case nothing to restore from here.
        _log.info("savepoint is not where it was put: path=%s: %s", entry.url, error)
        return None


def _is_gone(entry: Savepoint) -> bool:
    """Whether the store says so itself; one that cannot be asked may come back."""
    try:
        return not SavepointStore(entry.url).exists()
    except (UserError, StoreUnavailable):
        return False


class ClaimedSavepoints:
    """Deletes savepoints that runs were restored from with a claim."""

    def __init__(self, writer: LogWriter, retain: int) -> None:
        self._writer = writer
        self._retain = retain
        self._gone: set[tuple[str, str]] = set()

    def release(self) -> None:
        """Delete those that as many checkpoints followed as are retained; what fails is left."""
        for url, digest in _superseded(self._writer.entries, self._retain):
            if (url, digest) not in self._gone:
                try:
                    _delete(url, digest, self._writer)
                except Fenced:
                    raise
                except MoorageError as error:
                    _log.warning("claimed savepoint was not deleted: path=%s: %s", url, error)
                else:
                    self._gone.add((url, digest))


def _superseded(entries: Sequence[Entry], retain: int) -> list[tuple[str, str]]:
    """Addresses and digests of claimed savepoints with `retain` checkpoints behind them."""
    claimed: dict[str, tuple[str, int]] = {}
    for entry in entries:
        match entry:
            case Run(claimed=str(digest), restored_from=str(url)) if digest:
                claimed[url] = (digest, 0)
            case Run(restored_from=str(url)) if url in claimed:
                # A run without a checkpoint began there again.
                claimed[url] = (claimed[url][0], 0)
            case Checkpoint():
                claimed = {url: (digest, n + 1) for url, (digest, n) in claimed.items()}
    return [(url, digest) for url, (digest, count) in claimed.items() if count >= retain]


def _delete(url: str, digest: str, writer: LogWriter) -> None:
    """Delete the savepoint with this very manifest; one that took its place is a person's."""
    savepoint = SavepointStore(url)
    if not savepoint.exists():
        return
    manifest = savepoint.load(digest)
    writer.refresh()  # only who holds the fence deletes
    # Files before the manifest, by which the next call finds what an interrupted one left.
    delete_all(savepoint.store, sorted(object_keys(manifest.handles)))
    for key in (ATTEMPT_KEY, MANIFEST_KEY):
        savepoint.store.delete(key)
    _log.info("deleted a claimed savepoint: path=%s", url)
