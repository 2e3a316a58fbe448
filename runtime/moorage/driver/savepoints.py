"""The savepoints that a lineage's log knows: what they cover, and which the job may delete.

Called by the run: sinks keep what a savepoint covers, and a claimed savepoint is deleted once the
job's own checkpoints have taken its place.
"""

import datetime
import logging
from collections.abc import Sequence

from moorage_state.errors import CorruptState, MoorageError, UserError
from moorage_state.snapshots import (
    Checkpoint,
    Entry,
    LogWriter,
    Manifest,
    Run,
    Savepoint,
    SavepointStore,
    object_keys,
)
from moorage_state.snapshots.savepoints import ATTEMPT_KEY, MANIFEST_KEY

__all__ = ["ClaimedSavepoints", "KnownSavepoints"]

_log = logging.getLogger(__name__)

_UNDER_WAY = datetime.timedelta(hours=1)
"""How long an announced savepoint may still be on its way."""


class KnownSavepoints:
    """Manifests of the savepoints of a lineage that still lie where they were put."""

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer
        self._read: dict[int, Manifest | None] = {}

    def __call__(self) -> Sequence[Manifest]:
        """The manifests. Raises StoreUnavailable when one of their stores does not answer."""
        for entry in self._writer.entries:
            if isinstance(entry, Savepoint) and entry.checkpoint_id not in self._read:
                self._look(entry)
        return [manifest for manifest in self._read.values() if manifest is not None]

    def _look(self, entry: Savepoint) -> None:
        try:
            found: Manifest | None = SavepointStore(entry.url).load(entry.manifest_digest)
        except (UserError, CorruptState) as error:
            # Moved, deleted, damaged, or on its way: in any case nothing to restore from here.
            _log.info("savepoint is not where it was put: path=%s: %s", entry.url, error)
            found = None
        age = datetime.datetime.now(datetime.UTC) - entry.completed_at
        if found is not None or age > _UNDER_WAY:
            self._read[entry.checkpoint_id] = found


class ClaimedSavepoints:
    """Deletes savepoints that runs were restored from with a claim."""

    def __init__(self, writer: LogWriter, retain: int) -> None:
        self._writer = writer
        self._retain = retain
        self._gone: set[str] = set()

    def release(self) -> None:
        """Delete those that as many checkpoints followed as are retained; what fails is left.

        Files go before the manifest, so that the next call finds what an interrupted one left.
        """
        for url in _superseded(self._writer.entries, self._retain):
            if url not in self._gone:
                try:
                    _delete(url, self._writer)
                except MoorageError as error:
                    _log.warning("claimed savepoint was not deleted: path=%s: %s", url, error)
                self._gone.add(url)


def _superseded(entries: Sequence[Entry], retain: int) -> list[str]:
    """Addresses of claimed savepoints with `retain` checkpoints behind them."""
    claimed: dict[str, int] = {}
    for entry in entries:
        match entry:
            case Run(claimed=True, restored_from=str(url)):
                claimed[url] = 0
            case Run(restored_from=str(url)) if url in claimed:
                claimed[url] = 0  # a run without a checkpoint began there again
            case Checkpoint():
                claimed = {url: count + 1 for url, count in claimed.items()}
    return [url for url, count in claimed.items() if count >= retain]


def _delete(url: str, writer: LogWriter) -> None:
    savepoint = SavepointStore(url)
    if not savepoint.exists():
        return
    manifest = savepoint.load()
    writer.refresh()  # only who holds the fence deletes
    for key in sorted(object_keys(manifest.handles)):
        savepoint.store.delete(key)
    for key in (ATTEMPT_KEY, MANIFEST_KEY):
        savepoint.store.delete(key)
    _log.info("deleted a claimed savepoint: path=%s", url)
