"""The state server without sockets: ranges on one local directory, all operations as methods.

Decides the order of opening a range (lease, directory lock, restore, deltas) and applies commits
in the background. Called by the socket service, one thread a connection. Thread-safe. Must not
know the wire.
"""
# ruff: noqa: D102  `StateApi` documents the methods

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from moorage_state.canonicalspec import CanonicalSpec
from moorage_state.database import CROWDED
from moorage_state.errors import MoorageError, StaleLease
from moorage_state.server.databases import Databases
from moorage_state.server.local_files import (
    RangeDirectory,
    adopt,
    drop_left_over,
    local_copies,
    run_order,
)
from moorage_state.server.open_range import OpenRange
from moorage_state.server.operations import (
    Lease,
    OpenResult,
    RangeSpec,
    RangeStats,
    RestoreBase,
    ServerLoad,
    Uploaded,
    UploadLimits,
    UploadRequest,
    Version,
    WrittenPart,
)
from moorage_state.server.restore import Restored, Restorer, with_handles
from moorage_state.server.spool import DeltaSpool
from moorage_state.server.takeover import take_over
from moorage_state.server.uploads import PartWriter, copy_native, export, materialize, persist
from moorage_state.snapshots import PartRef
from moorage_state.snapshots.parts import PartCache
from moorage_state.state_backends.rocksdb import EmbeddedRocksDBStateBackend
from moorage_state.state_backends.state_backend import StateBackend
from moorage_state.stores import open_store

_log = logging.getLogger(__name__)

_BRING_SECONDS = 5.0


@dataclass(slots=True, eq=False)
class Claim:
    """The right of `run` to the range; `opened` is the range once it is restored."""

    spec: RangeSpec
    run: str
    opened: OpenRange | None = None


class LeaseTable:
    """The claims of one state server. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._claims: dict[tuple[str, int], Claim] = {}

    def claim(self, spec: RangeSpec, run: str) -> tuple[Claim, list[Claim]]:
        """A new claim, and the claims it ends, whose ranges the caller closes.

        Raises `StaleLease` where a newer run holds or held some of these key groups.
        """
        with self._lock:
            overlapping = [c for c in self._claims.values() if _overlap(c.spec, spec)]
            for other in overlapping:
                if _is_newer(other.run, run):
                    raise StaleLease(
                        f"a newer run holds the range: uid={spec.uid} "
                        f"range={spec.start}-{spec.end} run={run} holder={other.run}"
                    )
            for other in overlapping:
                del self._claims[other.spec.uid, other.spec.start]
            claim = Claim(spec, run)
            self._claims[spec.uid, spec.start] = claim
            return claim, overlapping

    def install(self, claim: Claim, opened: OpenRange) -> None:
        """Make the restored range reachable; `StaleLease` if another claim was made meanwhile."""
        with self._lock:
            if self._claims.get((claim.spec.uid, claim.spec.start)) is not claim:
                raise StaleLease(
                    f"the range was taken while it was opened: uid={claim.spec.uid} "
                    f"start={claim.spec.start} run={claim.run}"
                )
            claim.opened = opened

    def get(self, lease: Lease) -> OpenRange:
        """The open range that the run of `lease` holds. Raises `StaleLease` if it does not."""
        uid, start, run = lease
        # Without the lock, since every call asks: one look into a dict is whole by itself.
        claim = self._claims.get((uid, start))
        if claim is not None and claim.run == run and claim.opened is not None:
            return claim.opened
        holder = claim.run if claim is not None else "nobody"
        raise StaleLease(
            f"the range is not open for this run: uid={uid} start={start} run={run} "
            f"holder={holder}; open it, unless a newer run took over"
        )

    def held(self, spec: RangeSpec, run: str) -> OpenRange | None:
        """The open range if exactly this one is open for `run`."""
        claim = self._claims.get((spec.uid, spec.start))
        same = claim is not None and claim.spec == spec and claim.run == run
        return claim.opened if claim is not None and same else None

    def release(self, lease: Lease) -> OpenRange | None:
        """Give up the lease; the range to close, None when its run does not hold it."""
        uid, start, run = lease
        with self._lock:
            claim = self._claims.get((uid, start))
            if claim is None or claim.run != run:
                return None
            # A claim without a range stays behind: it shuts out older runs.
            self._claims[uid, start] = Claim(claim.spec, run)
            return claim.opened

    def ranges(self, choose: Callable[[OpenRange], bool] = lambda _: True) -> list[OpenRange]:
        """The open ranges that are chosen, ordered by uid and start."""
        with self._lock:
            found = [c.opened for _, c in sorted(self._claims.items()) if c.opened is not None]
        return [opened for opened in found if choose(opened)]


class UnionLists:
    """Union lists as tasks of this server read them: one brings each, all have it. Thread-safe.

    Args:
        seconds: how long whoever was told to bring a list may take; then another one is told.
    """

    def __init__(
        self, seconds: float = _BRING_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._changed = threading.Condition()
        self._held: dict[tuple[str, str], tuple[str, bytes]] = {}
        self._until: dict[tuple[str, str, str], float] = {}

    def get(self, uid: str, name: str, version: str) -> bytes | None:
        """See `StateApi.union_list`."""
        with self._changed:
            while True:
                held = self._held.get((uid, name))
                if held is not None and held[0] == version:
                    return held[1]
                now = self._clock()
                until = self._until.get((uid, name, version), now)
                if until <= now:
                    self._until[uid, name, version] = now + self._seconds
                    return None
                self._changed.wait(until - now)

    def keep(self, uid: str, name: str, version: str, content: bytes) -> None:
        """See `StateApi.keep_union_list`."""
        with self._changed:
            self._held[uid, name] = version, content
            now = self._clock()
            self._until = {
                key: until
                for key, until in self._until.items()
                if until > now and key != (uid, name, version)
            }
            self._changed.notify_all()

    def forget(self, uid: str) -> None:
        """Let go of those of an operator: ranges have come or gone."""
        with self._changed:
            self._held = {key: held for key, held in self._held.items() if key[0] != uid}


def _overlap(one: RangeSpec, other: RangeSpec) -> bool:
    return one.uid == other.uid and one.start <= other.end and other.start <= one.end


def _is_newer(run: str, than: str) -> bool:
    left, right = run_order(run), run_order(than)
    return left is not None and right is not None and left > right


class RangeHost:
    """Implements `StateApi`; see there for what each method does and raises.

    Args:
        local_dir: made if missing; belongs to one lineage. Several hosts may share it.
        backend: opens the databases; what its `process_memory` makes is shared by all ranges here.
            RocksDB if none is given.
        sync_deltas: fsync every delta before `prepare` answers. Without it the deltas survive the
            end of the process, not a loss of power (which then rewinds to the last checkpoint).
    """

    def __init__(
        self,
        local_dir: Path,
        backend: StateBackend | None = None,
        *,
        sync_deltas: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._local_dir = local_dir
        self._databases = Databases(backend or EmbeddedRocksDBStateBackend())
        self._sync_deltas = sync_deltas
        self._clock = clock
        self._leases = LeaseTable()
        self._parts = PartCache()
        self._unions = UnionLists()
        self._opening: dict[str, threading.Lock] = {}
        self._to_apply: queue.SimpleQueue[OpenRange | None] = queue.SimpleQueue()
        # A daemon: an accepted commit is on disk, so ending in the middle of one loses nothing.
        self._applier = threading.Thread(target=self._apply_commits, name="apply", daemon=True)
        self._applier.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def ping(self) -> int:
        return os.getpid()

    def adopt(self, lineage: str) -> bool:
        return adopt(self._local_dir, lineage)

    def local_copies(self, checkpoint_id: int) -> list[tuple[RangeSpec, int]]:
        return local_copies(self._local_dir, checkpoint_id)

    def open_range(
        self,
        spec: RangeSpec,
        run: str,
        base: RestoreBase | None,
        committed: list[Version],
        store_url: str,
        initial_epoch: int = 0,
    ) -> OpenResult:
        began = self._clock()
        base = with_handles(base, spec, store_url, self._parts) if base else None
        versions = [Version(*version) for version in committed]
        live = self._live(spec, run, versions[-1:] or _beginnings(spec, base, initial_epoch))
        if live is not None:
            return OpenResult(live, "live", 0, self._clock() - began)
        self._unions.forget(spec.uid)
        claim, ended = self._leases.claim(spec, run)
        why, heir = f"run {run} took over the range", None
        for other in ended:
            if base is not None and not versions and other.spec == spec:
                heir = other.opened
            else:
                _close(other.opened, why)
        # The loser of two openings must be done with the directory before the winner starts.
        with self._opening.setdefault(spec.uid, threading.Lock()):
            taken = None
            if heir is not None and base is not None:
                taken = take_over(heir, base, run, self._databases, _stale(heir, why))
            version, restored = self._open(claim, base, versions, store_url, initial_epoch, taken)
        return OpenResult(version, restored.source, restored.bytes_restored, self._clock() - began)

    def range(self, lease: Lease, /) -> OpenRange:
        return self._leases.get(lease)

    def upload_many(
        self,
        run: str,
        checkpoint_id: int,
        store_url: str,
        requests: list[UploadRequest],
        limits: UploadLimits,
        base: list[PartRef] | None = None,
    ) -> WrittenPart:
        snapshots = [self._leases.get(Lease(r.uid, r.start, run)).snapshots for r in requests]
        writer = PartWriter(
            open_store(store_url), run, checkpoint_id, self._databases.owner, self._parts
        )
        return writer.write(snapshots, requests, limits, base or [])

    def persist_many(
        self,
        run: str,
        store_url: str,
        ranges: list[RangeSpec],
        limits: UploadLimits,
        least_bytes: int,
    ) -> Uploaded:
        found = [self._leases.get(spec.lease(run)) for spec in ranges]
        pairs = [(one.snapshots, new) for one in found if (new := one.unlisted()) is not None]
        size = sum(path.stat().st_size for _, new in pairs for path in new.local if path.exists())
        if not pairs or size < least_bytes:
            return Uploaded([], 0, 0, 0)
        snapshots, listings = zip(*pairs, strict=True)
        return persist(snapshots, listings, run, open_store(store_url), limits)

    def materialize_many(
        self,
        run: str,
        checkpoint_id: int,
        store_url: str,
        ranges: list[RangeSpec],
        limits: UploadLimits,
    ) -> Uploaded:
        snapshots = [self._leases.get(spec.lease(run)).snapshots for spec in ranges]
        return materialize(snapshots, run, checkpoint_id, open_store(store_url), limits)

    def save_many(
        self,
        run: str,
        checkpoint_id: int,
        store_url: str,
        specs: list[CanonicalSpec],
        canonical: bool,  # noqa: FBT001  arguments cross the wire by position
    ) -> Uploaded:
        parts = [self._leases.get(Lease(s.uid, s.start, run)).snapshots for s in specs]
        store = open_store(store_url)
        if canonical:
            return export(parts, specs, checkpoint_id, store, self._databases)
        return copy_native(parts, run, checkpoint_id, store)

    def union_list(self, uid: str, name: str, version: str) -> bytes | None:
        return self._unions.get(uid, name, version)

    def keep_union_list(self, uid: str, name: str, version: str, content: bytes) -> None:
        self._unions.keep(uid, name, version, content)

    def notify_complete(self, checkpoint_id: int, run: str = "") -> None:
        for opened in self._ranges_of(run):
            opened.notify_complete(checkpoint_id)
        if dropped := drop_left_over(self._local_dir, run):
            _log.info("local.left-over-dropped run=%s ranges=%d", run, dropped)

    def notify_aborted(self, checkpoint_id: int, run: str = "") -> None:
        for opened in self._ranges_of(run):
            opened.notify_aborted(checkpoint_id)

    def release_range(self, lease: Lease, /) -> None:
        self._unions.forget(lease.uid)
        _close(self._leases.release(lease), "the range was released")

    def stats(self) -> list[RangeStats]:
        return [opened.stats() for opened in self._ranges_of("")]

    def load(self) -> ServerLoad:
        looks = self.stats()
        crowded = any(look.properties.get(CROWDED) for look in looks)
        sizes = [(look.uid, look.start, look.size_bytes) for look in looks]
        return ServerLoad(sum(look.size_bytes for look in looks), crowded, sizes)

    def busy(self) -> bool:
        """Whether a snapshot is being uploaded."""
        return any(opened.snapshots.busy() for opened in self._ranges_of(""))

    def close(self) -> None:
        """Close all ranges; the host must not be used any more. Idempotent."""
        for opened in self._ranges_of(""):
            self._leases.release(opened.spec.lease(opened.run))
            _close(opened, "the state server is closing")
        self._to_apply.put(None)
        self._applier.join()

    def _ranges_of(self, run: str) -> list[OpenRange]:
        return self._leases.ranges(lambda opened: run in ("", opened.run))

    def _live(self, spec: RangeSpec, run: str, goals: list[Version]) -> Version | None:
        """The version of the range if it works and is at one of `goals`."""
        opened = self._leases.held(spec, run)
        # A run and a version name one state, so nothing needs to be restored where they are the
        # same.
        if opened is None or opened.tip not in goals:
            return None
        try:
            opened.apply_pending()
        except MoorageError:
            return None
        return opened.tip

    def _open(
        self,
        claim: Claim,
        base: RestoreBase | None,
        committed: list[Version],
        store_url: str,
        initial_epoch: int,
        taken: tuple[RangeDirectory, Restored] | None,
    ) -> tuple[Version, Restored]:
        """Restore and install; the version reached and where it came from.

        Args:
            taken: what was open already and is at the state of `base`.
        """
        directory, live = taken or (RangeDirectory(self._local_dir, claim.spec), None)
        if live is None:
            directory.lock()
        try:
            keep = live.backend_uuid if live else ""
            directory.prepare(claim.run, *_needed(claim.spec, base), keep)
            restored = live or self._restored(directory, claim.run, base, store_url, initial_epoch)
        except BaseException:
            if live is not None:
                live.database.close()
            directory.unlock()
            raise
        spool = DeltaSpool(
            directory.deltas(claim.run), claim.spec, claim.run, sync=self._sync_deltas
        )
        opened = OpenRange(directory, claim.run, restored, spool, self._to_apply.put)
        try:
            spool.recover(committed)
            opened.recover(committed)
            self._leases.install(claim, opened)
        except BaseException:
            _close(opened, "the range could not be opened")
            raise
        return opened.tip, restored

    def _restored(
        self,
        directory: RangeDirectory,
        run: str,
        base: RestoreBase | None,
        store_url: str,
        initial_epoch: int,
    ) -> Restored:
        restorer = Restorer(directory, run, self._databases)
        return restorer.restore(base, store_url) if base else restorer.empty(initial_epoch)

    def _apply_commits(self) -> None:
        while (opened := self._to_apply.get()) is not None:
            try:
                opened.apply_pending()
            except StaleLease:
                continue  # closed meanwhile; the delta file stays
            except (MoorageError, OSError) as error:
                # Kept by the range, or met again and raised by the next call on it.
                _log.warning("commit not applied: error=%s", error)


def _beginnings(spec: RangeSpec, base: RestoreBase | None, initial_epoch: int) -> list[Version]:
    """The versions that a range may be at when no delta follows its base."""
    if base is None:
        return [Version(initial_epoch, "")]
    own = [h for h in base.handles if (h.start, h.end) == (spec.start, spec.end)]
    return [Version(base.epoch, ""), *(Version(h.epoch, h.digest) for h in own)]


def _needed(spec: RangeSpec, base: RestoreBase | None) -> tuple[int | None, Collection[str]]:
    """The local copy that a restore may begin with, and the names of the deltas on top of it."""
    own = [h for h in base.handles if (h.start, h.end) == (spec.start, spec.end)] if base else []
    if base is None or not own or own[0].logged is None:
        return base.checkpoint_id if base else None, ()
    return own[0].logged.checkpoint_id, frozenset(file.name for file in own[0].deltas)


def _close(opened: OpenRange | None, why: str) -> None:
    if opened is not None:
        opened.close(_stale(opened, why))


def _stale(opened: OpenRange, why: str) -> StaleLease:
    spec = opened.spec
    return StaleLease(f"{why}: uid={spec.uid} range={spec.start}-{spec.end} run={opened.run}")
