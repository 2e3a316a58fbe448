"""The savepoints that a lineage's log knows: what they cover, and which the job may delete.

Called by the run: sinks keep what a savepoint covers, and a claimed savepoint is deleted once the
job's own checkpoints have taken its place.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from msgspec.structs import replace

from moorage_state.errors import (
    CorruptState,
    Fenced,
    MoorageError,
    NewerFormat,
    StoreDenied,
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
from moorage_state.stores import NoSuchBucket, S3Store, delete_all, in_parallel, open_store
from moorage_state.stores.addresses import opened

_log = logging.getLogger(__name__)

_UNDER_WAY_SECONDS = 3600.0
"""How long an announced savepoint is looked for, from the first look: it may be on its way.

And a bucket that is not there: it may come back.
"""

_ASLEEP_SECONDS = 300.0

_LOOK_SECONDS = 300.0
"""So often it is looked which of the known ones were deleted."""

_A_LOOK = 8
"""Of so many at most: what a look costs does not grow with them."""

_THREADS = 4
"""Each may hold a whole manifest, with all that a source has read."""


class KnownSavepoints:
    """Manifests of the savepoints of a lineage that still lie where they were put.

    Without their state, sources and the like: they are kept for as long as the driver lives.
    """

    def __init__(self, writer: LogWriter, clock: Callable[[], float] = time.monotonic) -> None:
        self._writer = writer
        self._clock = clock
        # Of what follows; not held while a known one is looked for.
        self._lock = threading.Lock()
        self._read: dict[int, Manifest | None] = {}
        # Since when.
        self._missed: dict[int, float] = {}
        self._asleep = 0.0
        self._why = ""
        self._next_look = 0.0

    def __call__(self) -> Sequence[Manifest]:
        """The manifests.

        Raises:
            StoreUnavailable: one of their stores does not answer; it is not asked again for some
                minutes.
            StoreDenied: one of them refuses, or its bucket is missing, for less than an hour;
                likewise.
            NewerFormat: one was written by a later release; likewise.
        """
        with self._lock:
            return self._manifests()

    def _manifests(self) -> Sequence[Manifest]:
        if self._clock() < self._asleep:
            raise StoreUnavailable(self._why)
        entries = savepoints(self._writer.entries)
        unread = [entry for entry in entries if entry.checkpoint_id not in self._read]
        self._why = "the store of a savepoint did not answer a moment ago"
        self._asleep = self._clock() + _ASLEEP_SECONDS
        # Not only up to the first that is refused: each has its own hour.
        loads = (partial(self._load, entry) for entry in unread)
        found = in_parallel(loads, _THREADS, "savepoints")
        refused = [one for one in found if isinstance(one, UserError)]
        self._why = str(refused[0]) if refused else ""
        self._asleep = self._asleep if refused else 0.0
        for entry, one in zip(unread, found, strict=True):
            if not isinstance(one, UserError):
                self._note(entry, one)
        if refused:
            raise refused[0]
        return [manifest for manifest in self._read.values() if manifest is not None]

    def look_again(self) -> None:
        """Find out, now and then, which of the known ones were deleted; nobody need wait for it.

        What does not answer is asked again when it has its next turn.
        """
        with self._lock:
            if self._clock() < max(self._asleep, self._next_look):
                return
            of_id = {entry.checkpoint_id: entry for entry in savepoints(self._writer.entries)}
            known = [of_id[i] for i, one in self._read.items() if one is not None and i in of_id]
            self._next_look = self._clock() + _LOOK_SECONDS
        looked = known[:_A_LOOK]
        questions = (partial(self._is_gone, entry) for entry in looked)
        try:
            gone = in_parallel(questions, _THREADS, "savepoints")
        except StoreUnavailable:
            gone = [False] * len(looked)
        with self._lock:
            for entry, is_gone in zip(looked, gone, strict=True):
                # Each goes to the end, so that all have their turn.
                manifest = self._read.pop(entry.checkpoint_id)
                self._read[entry.checkpoint_id] = None if is_gone else manifest
                if is_gone:
                    self._forget(entry)

    def _note(self, entry: Savepoint, found: Manifest | None) -> None:
        if found is None and not self._is_missed(entry):
            return
        self._read[entry.checkpoint_id] = found
        if found is None and self._is_gone(entry):
            self._forget(entry)

    def _forget(self, entry: Savepoint) -> None:
        # So that no later process looks for it.
        self._writer.append(Forgotten(self._writer.fence, entry.checkpoint_id))

    def _load(self, entry: Savepoint) -> Manifest | UserError | None:
        """The manifest; why it may be there all the same; or None."""
        try:
            manifest = SavepointStore(entry.url).load(entry.manifest_digest)
        except NoSuchBucket as error:
            return None if self._is_missed(entry) else _refused(entry, error)
        except (StoreDenied, NewerFormat) as error:
            return _refused(entry, error)  # it may be there, and its time may come
        except (UserError, CorruptState) as error:
            # Moved, deleted, damaged, or on its way: in any case nothing to restore from here.
            _log.info("savepoint is not where it was put: path=%s: %s", entry.url, error)
            return None
        # Sinks ask what it covers, the log where it belongs: the rest may be a hundred times more.
        return replace(manifest, operators={}, source={}, extra={})

    def _is_gone(self, entry: Savepoint) -> bool:
        """Whether the store says so itself; one that cannot be asked may come back.

        Raises StoreUnavailable: it does not answer.
        """
        try:
            store = opened(open_store, entry.url)
            if store is None:
                return self._is_missed(entry)
            store = store.once if isinstance(store, S3Store) else store
            there = SavepointStore.over(store).exists()
        except NoSuchBucket:
            return self._is_missed(entry)
        except UserError:
            return False
        if there:
            self._missed.pop(entry.checkpoint_id, None)
        return not there

    def _is_missed(self, entry: Savepoint) -> bool:
        """Whether it has not been there for long; called when it is not."""
        now = self._clock()
        return now - self._missed.setdefault(entry.checkpoint_id, now) > _UNDER_WAY_SECONDS


def _refused(entry: Savepoint, error: UserError) -> UserError:
    what = "let the job read it; or delete it, and let the job see that it is gone"
    if isinstance(error, NoSuchBucket):
        what = "it counts as deleted once that has been so for an hour"
    kind = NewerFormat if isinstance(error, NewerFormat) else StoreDenied
    return kind(f"savepoint cannot be read: path={entry.url}: {error}; {what}")


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
            case Run(explicit=True, restored_from=str(url)) if url in claimed:
                del claimed[url]  # a person chose it anew, and lets it be
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
