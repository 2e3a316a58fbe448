"""One open range: reads at a version, the two-phase epoch, and its snapshots.

Decides when a delta becomes the state. A commit is accepted at once, because its delta file is on
disk, and applied under the range's lock in the background or by the next read, whichever comes
first. Made by `RangeHost`, which checks the lease. Thread-safe.

Two locks, never taken the other way round: `_lock` for everything that touches the database, then
`_state` for the few fields that say what was accepted and whether the range still works. Look-ups
take neither while there is a view for them, whose own lock is taken last.
"""
# ruff: noqa: D102  `RangeApi` documents the methods

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from moorage_state.database import RangeDatabase, RangeView, Scan, StandingView, StoredDatabase
from moorage_state.deltas import DeltaHeader, DeltaReader, Frame
from moorage_state.errors import (
    Bug,
    CorruptState,
    LocalDiskError,
    MoorageError,
    StaleLease,
    StateTooLarge,
    VersionGone,
    VersionMismatch,
    disk_errors,
)
from moorage_state.keylayout import EVENT_TIMERS, EXPIRIES
from moorage_state.progress import advance, bytes_below, watching
from moorage_state.server import lookups, scans
from moorage_state.server.local_files import (
    FileHashes,
    Linked,
    RangeDirectory,
    Snapshots,
    Taken,
)
from moorage_state.server.operations import (
    COPY,
    Found,
    FoundUnder,
    Prepared,
    RangeSpec,
    RangeStats,
    SnapshotSync,
    SnapshotWay,
    Version,
)
from moorage_state.server.range_log import Listing
from moorage_state.server.restore import Restored, write_marker
from moorage_state.server.spool import DeltaSpool
from moorage_state.snapshots import RangeHandle

_log = logging.getLogger(__name__)

_REMEMBERED_EPOCHS = 1024
_HELD_BYTES = 8 << 20
"""A delta above this is read twice, and not held in memory while it is applied."""

_STATS_WAIT_SECONDS = 0.02
_SOON_BYTES = 64 << 10
_FRESH_SECONDS = 0.005
"""For which a look-up waits for commits to be applied, if they are no larger than that."""


@dataclass(frozen=True, slots=True)
class Surrendered:
    """What a run had open and has no more: the database, at `version`, and its files.

    Nobody else uses it; whoever has it closes it, or goes on with all of it.

    Attributes:
        deltas: what the run had committed, and their files.
    """

    directory: RangeDirectory
    database: RangeDatabase
    backend_uuid: str
    hashes: FileHashes
    label: str
    version: Version
    deltas: dict[Version, Path]

    def deltas_after(self, epoch: int) -> list[Path] | None:
        """Those that the database has since that epoch, in order; None where one is missing."""
        epochs = range(epoch + 1, self.version.epoch + 1)
        by_epoch = {version.epoch: path for version, path in self.deltas.items()}
        found = [by_epoch[one] for one in epochs if one in by_epoch]
        return found if len(found) == len(epochs) else None

    def find(self, names: Iterable[str]) -> list[Path] | None:
        """The files of these deltas, of this run or before it; None where one is not here."""
        own = {path.name: path for path in self.deltas.values()}
        found = [own.get(name, self.directory.log / name) for name in names]
        return found if all(path.exists() for path in found) else None

    def close(self) -> None:
        """Close the database and free the directory."""
        try:
            self.database.close()
        except MoorageError as error:
            # One that could not write says so again; its files are deleted next.
            _log.warning("database did not close: %s error=%s", self.directory.root, error)
        self.directory.remove_work(self.backend_uuid)
        self.directory.unlock()


class OpenRange:
    """A range held by `run`. Implements `RangeApi`; see there for what each method does and raises.

    Args:
        restored: the database, at the version that it begins with.
        apply_later: has `apply_pending` called in the background.
    """

    def __init__(
        self,
        directory: RangeDirectory,
        run: str,
        restored: Restored,
        spool: DeltaSpool,
        apply_later: Callable[["OpenRange"], None],
    ) -> None:
        self.spec: RangeSpec = directory.spec
        self.run = run
        self.snapshots = Snapshots(
            directory.spec, directory, restored.backend_uuid, restored.hashes, restored.label
        )
        if restored.handle is not None:
            self.snapshots.begin_log().restored(*restored.handle)
        self._directory = directory
        self._database = restored.database
        self._backend_uuid = restored.backend_uuid
        self._spool = spool
        self._apply_later = apply_later
        self._lock = threading.Lock()
        self._state = threading.Lock()
        self._applied = threading.Condition(self._state)
        self._version = restored.version
        self._tip = restored.version
        self._origin = restored.origin
        self._began = restored.version
        self._newest_complete = 0
        self._located = 0
        self._pending: deque[Version] = deque()
        self._pending_bytes = 0
        self._committed: dict[int, str] = {}
        self._failure: MoorageError | None = None
        self._kept: lookups.KeptView | None = None
        self._stats = RangeStats(
            self.spec.uid, self.spec.start, self.spec.end, run, restored.version, 0
        )

    @property
    def tip(self) -> Version:
        """The last version that was accepted, applied or not."""
        return self._tip

    def check_usable(self) -> None:
        """Raise what put the range out of work, if anything did."""
        if self._failure is not None:
            # A new one each time: raised again and again, one object would gather every caller's
            # traceback.
            raise type(self._failure)(*self._failure.args) from self._failure

    @contextmanager
    def at(self, version: Version) -> Iterator[RangeDatabase]:
        """The database at exactly `version`, for the with block; `VersionMismatch` at another."""
        with self._working() as database:
            if self._version != version:
                raise VersionMismatch(
                    f"range is at another version: {self._where()} asked={tuple(version)} "
                    f"found={tuple(self._version)}; start the epoch again on the version "
                    f"that is committed"
                )
            yield database

    @contextmanager
    def _committed_view(self) -> Iterator[tuple[Version, RangeView]]:
        """The last committed version and the state at it, for the with block."""
        with self._working() as database:
            yield self._version, database

    @contextmanager
    def _point_view(self) -> Iterator[tuple[Version, RangeView | StandingView]]:
        """The same for single keys; of the version before where a commit takes long to be applied.

        It does not wait for who works with the range, from the second time on.
        """
        if 0 < self._pending_bytes <= _SOON_BYTES:
            with self._applied:
                self._applied.wait_for(lambda: not self._pending, _FRESH_SECONDS)
        view = self._kept
        if view is None:
            with self._state:
                view = self._kept = self._kept or lookups.KeptView()
        with view.seen() as kept:
            if kept is not None:
                self.check_usable()
                with self._judging():
                    yield kept
                return
        with self._working() as database:
            view.renew(self._version, database)
            yield self._version, database

    def apply_pending(self) -> None:
        """Apply every accepted commit; returns when there is none left."""
        with self._working():
            pass

    def get_many(self, version: Version, keys: list[bytes], /) -> list[bytes | None]:
        with self.at(version) as database:
            return database.get_many(keys)

    def scan_many(
        self,
        version: Version,
        prefixes: list[bytes],
        limit_entries: int = 10_000,
        limit_bytes: int = 64 << 20,
        /,
    ) -> list[Scan]:
        with self.at(version) as database:
            return scans.scan_many(database, prefixes, limit_entries, limit_bytes)

    def scan_from(
        self, version: Version, prefix: bytes, after: bytes = b"", limit: int = 10_000, /
    ) -> Scan:
        with self.at(version) as database:
            return scans.scan_from(database, prefix, after, limit)

    def due_timers(
        self,
        version: Version,
        up_to_ms: int,
        limit: int,
        after: bytes = b"",
        kind: int = EVENT_TIMERS,
        /,
    ) -> list[bytes]:
        with self.at(version) as database:
            # Timers may be looked for in memory; the index of what expires never is there.
            index = database if kind == EXPIRIES else database.timers
            return scans.due_timers(index, self.spec, kind, up_to_ms, limit, after)

    def next_timer(self, version: Version, after_ms: int, kind: int, /) -> int | None:
        with self.at(version) as database:
            return scans.next_timer(database.timers, self.spec, kind, after_ms)

    def look_up(self, cells: list[bytes], limit_bytes: int, /) -> Found:
        return lookups.cells(self.spec, self._point_view, cells, limit_bytes)

    def look_under(
        self, prefix: bytes, after: bytes, limit_entries: int, limit_bytes: int, /
    ) -> FoundUnder:
        limits = limit_entries, limit_bytes
        return lookups.under(self.spec, self._committed_view, prefix, after, *limits)

    def stage(self, epoch: int, attempt: str, frame: bytes, seq: int, /) -> None:
        self.check_usable()
        tip = self._tip
        self._check_new(epoch, tip)
        self._spool.stage(attempt, self._header(epoch, tip.digest), frame, seq)

    def prepare(
        self, epoch: int, attempt: str, parent_digest: str, frame_count: int, /
    ) -> Prepared:
        self.check_usable()
        tip = self._tip
        self._check_new(epoch, tip)
        if parent_digest != tip.digest:
            raise VersionMismatch(
                f"range has moved on from the version an attempt was made for: {self._where()} "
                f"epoch={epoch} attempt={attempt} parent={parent_digest!r} found={tip.digest!r}"
            )
        prepared = self._spool.prepare(attempt, self._header(epoch, tip.digest), frame_count)
        if self._database.bounded:
            try:
                self._make_room(Version(epoch, prepared.digest), prepared.bytes)
            except StateTooLarge:
                self._spool.abort(epoch, attempt)
                raise
        return prepared

    def abort(self, epoch: int, attempt: str, /) -> None:
        self._spool.abort(epoch, attempt)

    def commit(
        self,
        epoch: int,
        digest: str,
        wait: bool = False,  # noqa: FBT001, FBT002  positional, as all are
        /,
    ) -> None:
        if not self._take_in(Version(epoch, digest)):
            return
        if wait:
            self.apply_pending()
        else:
            self._apply_later(self)

    def recover(self, committed: list[Version]) -> None:
        """Apply the deltas that this run had committed when the range was open before."""
        for version in committed:
            self._take_in(version)
        self.apply_pending()

    def snapshot(
        self,
        checkpoint_id: int,
        version: Version,
        way: SnapshotWay = COPY,
        base_id: int = 0,
        /,
    ) -> SnapshotSync:
        began = time.monotonic()
        linked = Linked(0, 0.0)
        with self.at(version) as database:
            by_log = way != COPY and self.snapshots.begin_log().begin(
                checkpoint_id, version, self._spool.kept, base_id
            )
            if not by_log or way == "log and copy":
                linked = self.snapshots.take(database, checkpoint_id, version)
            if by_log and way == "log and copy":
                self.snapshots.begin_log().copied(checkpoint_id)
        return SnapshotSync(linked.bytes, time.monotonic() - began, linked.flush_seconds)

    def notify_complete(self, checkpoint_id: int) -> None:
        """Drop what this checkpoint makes useless, if it was taken here."""
        self._newest_complete = max(self._newest_complete, checkpoint_id)
        log = self.snapshots.log
        base = log.complete(checkpoint_id) if log else None
        # What a log begins with is older than the checkpoint, and the deltas since are needed.
        if log is not None and base is not None:
            taken = self.snapshots.complete(base.checkpoint_id, checkpoint_id, log.copy)
        else:
            taken = self.snapshots.complete(checkpoint_id)
        epoch = base.epoch if base else taken.version.epoch if taken else None
        if epoch is not None:
            self._spool.drop_through(epoch)
            self._directory.drop_log_through(epoch)
        if taken is not None:
            self._locate(taken)

    def unlisted(self) -> Listing | None:
        """Committed deltas that are not in the store, where checkpoints list them."""
        log = self.snapshots.log
        return log.unlisted(self._spool.kept) if log else None

    def notify_aborted(self, checkpoint_id: int) -> None:
        """Stop the upload of this checkpoint, and drop its local copy."""
        if self.snapshots.log is not None:
            self.snapshots.log.aborted(checkpoint_id)
        self.snapshots.aborted(checkpoint_id)

    def _locate(self, taken: Taken) -> None:
        """Tell a database whose files may be in the store alone where they are from now on."""
        database = self._database
        if taken.stored is not None and isinstance(database, StoredDatabase):
            with self._working():
                # A later one may have come before: the store need not have these any more.
                if taken.checkpoint_id >= self._located:
                    self._located = taken.checkpoint_id
                    database.located(taken.stored)
                    self._directory.drop_replaced(taken.checkpoint_id)

    def stats(self) -> RangeStats:
        """A look that waits at most some milliseconds; an earlier one while the range works."""
        error = str(self._failure) if self._failure else ""
        if self._lock.acquire(timeout=_STATS_WAIT_SECONDS):
            try:
                # Under the lock: a database must not be closed, nor be another's, while it is
                # asked.
                error = str(self._failure) if self._failure else ""
                self._stats = self._look(error)
            except MoorageError as problem:
                error = error or str(problem)
            else:
                return self._stats
            finally:
                self._lock.release()
        last = self._stats
        return RangeStats(
            last.uid,
            last.start,
            last.end,
            last.run,
            self._version,
            last.size_bytes,
            last.properties,
            error,
            busy=True,
        )

    def holding(self, handle: RangeHandle, checkpoint_id: int) -> Version | None:
        """What the state of a checkpoint's `handle` is called here, if it was this range's."""
        # An older one than what was completed here is chosen for a reason that is not known here.
        if not handle.digest or checkpoint_id < self._newest_complete:
            return None
        wanted = Version(handle.epoch, handle.digest)
        if wanted == self._origin:
            return self._began
        # One that did not hear of that checkpoint reads files of an older one, which may be gone.
        copy_id = handle.logged.checkpoint_id if handle.logged else checkpoint_id
        log = self.snapshots.log
        heard = self._located == copy_id or (log is not None and log.begins_with(copy_id))
        if isinstance(self._database, StoredDatabase) and not heard:
            return None
        return wanted if self._committed.get(wanted.epoch) == wanted.digest else None

    def close(self, reason: MoorageError) -> None:
        """Shut out everybody with `reason`, then close the database and free the directory.

        Waits for the request that is at work. Accepted commits stay on disk as deltas.
        """
        self._shut_out(reason)
        with watching(self._measure), self._lock:
            self._surrendered({}).close()

    def surrender(self, reason: MoorageError, at: Version) -> Surrendered | None:
        """Shut out everybody with `reason`, and give away what is open, at `at` or later.

        Waits for the request that is at work. None where the range did not work any more.
        """
        works = self._shut_out(reason)
        with watching(self._measure), self._lock:
            try:
                # What was accepted later need not be undone.
                while works and self._pending and self._pending[0].epoch <= at.epoch:
                    self._apply(self._pending[0])
            except MoorageError as error:
                _log.warning("commit not applied: %s error=%s", self._where(), error)
                works = False
            return self._surrendered(self._spool.kept) if works else None

    def _shut_out(self, reason: MoorageError) -> bool:
        """From now on everybody gets `reason`; whether the range worked until now."""
        with self._state:
            works = self._failure is None
            # Whoever is shut out hears who took the range, not what was wrong with it before.
            if not isinstance(self._failure, StaleLease):
                self._failure = reason
        self.snapshots.close()
        return works

    def _surrendered(self, deltas: dict[Version, Path]) -> Surrendered:
        """Under the lock of a range that is shut out."""
        if self._kept is not None:
            self._kept.drop()
        self._spool.close()
        return Surrendered(
            self._directory,
            self._database,
            self._backend_uuid,
            self.snapshots.hashes,
            self.snapshots.label,
            self._version,
            deltas,
        )

    @contextmanager
    def _working(self) -> Iterator[RangeDatabase]:
        """The database with every accepted commit applied; its errors put the range out of work."""
        with watching(self._measure), self._lock:
            self.check_usable()
            with self._judging():
                while self._pending:
                    self._apply(self._pending[0])
                yield self._database

    @contextmanager
    def _judging(self) -> Iterator[None]:
        """Errors of the database within the block put the range out of work."""
        try:
            yield
        except CorruptState as error:
            # Another file than the working copy's, such as an object of the store: opening it
            # again would not help.
            if error.path != str(self._database.path):
                self._fail(error)
                raise
            again = StaleLease(
                f"the working copy of a range is damaged; opening the range again makes a new "
                f"one: {self._where()}: {error}"
            )
            self._fail(again)
            raise again from error
        except (LocalDiskError, VersionGone) as error:
            self._fail(error)
            raise

    def _apply(self, version: Version) -> None:
        try:
            path = self._spool.path(version)
            with disk_errors("look at a committed delta", path):
                large = path.stat().st_size > _HELD_BYTES
            if large:
                # Shown to be whole first, for then no more than a part is held in memory.
                deque(self._frames(version), maxlen=0)
            marker = write_marker(version, self.run)
            self._database.apply(self._frames(version), marker, proven=large)
        except CorruptState as error:
            if error.path == str(self._database.path):
                raise
            raise self._gone(version, error) from error
        if self._kept is not None:  # before who waits for the version is told
            self._kept.renew(version, self._database)
        with self._applied:
            self._version = version
            self._pending.popleft()
            if not self._pending:
                self._pending_bytes = 0
            self._applied.notify_all()
        advance()

    def _measure(self) -> tuple[Version, int]:
        """What changes while the range is at work, also with what others asked for."""
        return self._version, bytes_below(self._database.path)

    def _make_room(self, version: Version, size: int) -> None:
        """Refuse a delta that could not be applied, while its epoch can still fail."""
        refusal: StateTooLarge | None = None
        with self._working() as database:
            try:
                database.make_room(lambda: self._frames(version), size)
            except StateTooLarge as error:
                refusal = error  # the range itself works
        if refusal is not None:
            raise refusal

    def _frames(self, version: Version) -> Iterator[Frame]:
        with DeltaReader(self._spool.path(version)) as reader:
            yield from reader.frames()

    def _take_in(self, version: Version) -> bool:
        """Accept a prepared delta; whether any waits to be applied."""
        with self._state:
            self.check_usable()
            if not self._accept(version):
                return bool(self._pending)
            self._pending.append(version)
        self._spool.committed(version)
        return True

    def _accept(self, version: Version) -> bool:
        """Check that `version` continues the tip; False when it was accepted before."""
        known = self._committed.get(version.epoch)
        if version == self._tip or known == version.digest:
            return False
        if known is not None:
            raise Bug(
                f"two different deltas committed for one epoch: {self._where()} "
                f"epoch={version.epoch} first={known} second={version.digest}"
            )
        self._check_new(version.epoch, self._tip)
        self._pending_bytes += self._checked_size(version)
        # Accepted from here on: the delta is on disk, and a reader of this version waits until it
        # is applied.
        self._tip = version
        self._committed[version.epoch] = version.digest
        # A driver that repeats a commit repeats one of its last.
        if len(self._committed) > _REMEMBERED_EPOCHS:
            del self._committed[next(iter(self._committed))]
        return True

    def _checked_size(self, version: Version) -> int:
        """The bytes of a delta that continues the tip."""
        try:
            with DeltaReader(self._spool.path(version)) as reader:
                header, size = reader.header, reader.size
        except CorruptState as error:
            raise self._gone(version, error) from error
        if header != self._header(version.epoch, self._tip.digest):
            raise VersionMismatch(
                f"delta does not continue the version that the range is at: {self._where()} "
                f"delta={header} found={tuple(self._tip)}"
            )
        return size

    def _check_new(self, epoch: int, tip: Version) -> None:
        if epoch <= tip.epoch:
            raise VersionMismatch(
                f"epoch is not after the version that the range is at: {self._where()} "
                f"epoch={epoch} found={tuple(tip)}"
            )

    def _gone(self, version: Version, error: CorruptState) -> VersionGone:
        return VersionGone(
            f"a committed delta is damaged, so its version is gone from this volume: "
            f"{self._where()} epoch={version.epoch} cause={error}"
        )

    def _fail(self, error: MoorageError) -> None:
        with self._state:
            if self._failure is None:
                self._failure = error

    def _header(self, epoch: int, parent: str) -> DeltaHeader:
        spec = self.spec
        return DeltaHeader(spec.uid, spec.start, spec.end, self.run, epoch, parent)

    def _look(self, error: str) -> RangeStats:
        spec = self.spec
        if error:
            return RangeStats(
                spec.uid, spec.start, spec.end, self.run, self._version, 0, error=error
            )
        properties, size = self._database.properties(), self._database.size()
        return RangeStats(spec.uid, spec.start, spec.end, self.run, self._version, size, properties)

    def _where(self) -> str:
        spec = self.spec
        return f"uid={spec.uid} range={spec.start}-{spec.end} run={self.run}"
