"""From the handles of a checkpoint to an open database that holds exactly one range.

Decides where files come from (the local copy if every byte is right, else the store) and how the
ranges of another parallelism become this one: the handle with the most key groups is the base,
what is outside is deleted, the rest is copied in. Canonical files are written into an empty
database. Called by `RangeHost` when a range is opened,
under its directory's lock. Knows nothing of leases and deltas.
"""

import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from moorage_state.database import RangeDatabase
from moorage_state.deltas import Frame
from moorage_state.errors import Bug, CorruptState
from moorage_state.keygroups import KeyGroupRange
from moorage_state.progress import advance
from moorage_state.server.api import RangeSpec, RestoreBase, Version
from moorage_state.server.databases import Databases, owner_of
from moorage_state.server.directory import RangeDirectory, disk_errors
from moorage_state.server.fetching import fetch_all, is_whole, link_all
from moorage_state.server.local_snapshots import FileHashes
from moorage_state.server.marker import METADATA, Marker, read_marker, write_marker
from moorage_state.snapshots import RangeHandle
from moorage_state.stores import ObjectStore, open_store

__all__ = ["Restored", "Restorer", "Source"]

_COPY_ENTRIES = 20_000
_COPY_BYTES = 8 << 20
_ADVICE = "restore an older checkpoint, or this object from a backup of the store"

Source = Literal["empty", "local", "store"]


@dataclass(frozen=True, slots=True)
class Restored:
    """An open database, its version, the uuid of its files' names, and their known digests.

    `label` is what handles say of the backend whose files they are.
    """

    database: RangeDatabase
    version: Version
    backend_uuid: str
    hashes: FileHashes
    source: Source
    bytes_restored: int
    label: str = ""


class Restorer:
    """Opens the database of one range.

    Args:
        directory: the range's own directory, locked and cleaned.
        run: the run that opens it.
        databases: opens them.
        generations: for a handle of canonical files, by state, what `frames_of` is told.
    """

    def __init__(
        self,
        directory: RangeDirectory,
        run: str,
        databases: Databases,
        generations: Callable[[RangeHandle], Mapping[str, int]] = lambda _: {},
    ) -> None:
        self._directory = directory
        self._run = run
        self._databases = databases
        self._generations = generations
        self._wanted = KeyGroupRange(directory.spec.start, directory.spec.end)
        self._store: ObjectStore | None = None

    def empty(self, epoch: int) -> Restored:
        """An empty database, at version `(epoch, "")`."""
        backend = uuid.uuid4().hex
        database = self._databases.open(self._directory.work(backend))
        version = self._begin(database, epoch)
        label = self._databases.label
        return Restored(database, version, backend, FileHashes(), "empty", 0, label)

    def restore(self, base: RestoreBase, store_url: str) -> Restored:
        """The range as `base` has it.

        Its version is that of the checkpoint if this run took it, else `(base.epoch, "")`.

        Raises:
            CorruptState: an object of the store is missing or damaged, or does not hold what the
                handle says.
            Bug: the handles do not cover the range exactly once, or are of several epochs.
        """
        handles = self._overlapping(base)
        if not handles:
            return self.empty(base.epoch)
        if not all(self._is_own(handle) for handle in handles):
            return self._import_all(handles, base, store_url)
        largest = max(handles, key=lambda handle: _groups(handle).overlap(self._wanted))
        backend = uuid.uuid4().hex
        work = self._directory.work(backend)
        source = self._bring(largest, base.checkpoint_id, store_url, work)
        database, marker = self._working(work, largest)
        try:
            sources, version = [source], marker.version
            if _groups(largest) != self._wanted or marker.run != self._run:
                sources += self._add_neighbours(database, largest, handles, base, store_url)
                version = self._begin(database, base.epoch)
        except BaseException:
            database.close()
            raise
        return Restored(
            database,
            version,
            backend,
            FileHashes(largest.files),
            "store" if "store" in sources else "local",
            sum(ref.size for handle in handles for ref in handle.files),
            self._databases.label,
        )

    def _import_all(
        self, handles: list[RangeHandle], base: RestoreBase, store_url: str
    ) -> Restored:
        """Build the database anew, from files of another format than its own."""
        restored = self.empty(base.epoch)
        sources: list[Source] = []
        try:
            for number, handle in enumerate(handles):
                target = self._directory.root / f"import-{number}"
                sources.append(self._bring(handle, base.checkpoint_id, store_url, target))
                self._copy_in(restored.database, handle, target)
                shutil.rmtree(target, ignore_errors=True)
        except BaseException:
            restored.database.close()
            raise
        return replace(
            restored,
            source="store" if "store" in sources else "local",
            bytes_restored=sum(ref.size for handle in handles for ref in handle.files),
        )

    def _add_neighbours(
        self,
        database: RangeDatabase,
        largest: RangeHandle,
        handles: list[RangeHandle],
        base: RestoreBase,
        store_url: str,
    ) -> list[Source]:
        """Make `database`, which is that of `largest`, hold the wanted key groups and no others."""
        self._clip(database, largest)
        sources: list[Source] = []
        for number, handle in enumerate(handles):
            if handle is largest:
                continue
            target = self._directory.root / f"import-{number}"
            sources.append(self._bring(handle, base.checkpoint_id, store_url, target))
            self._copy_in(database, handle, target)
            shutil.rmtree(target, ignore_errors=True)
        return sources

    def _overlapping(self, base: RestoreBase) -> list[RangeHandle]:
        """The handles with key groups of this range; together they must have each one once."""
        handles = base.handles
        if any(handle.epoch != base.epoch for handle in handles):
            raise Bug(
                f"handles of a checkpoint are not of its epoch: uid={self._directory.spec.uid} "
                f"epoch={base.epoch} handles={sorted({handle.epoch for handle in handles})}"
            )
        found = sorted(
            (h for h in handles if _groups(h).overlap(self._wanted)), key=lambda h: h.start
        )
        expected = self._wanted.start
        for handle in found:
            if max(handle.start, self._wanted.start) != expected:
                raise self._not_covered(handles)
            expected = handle.end + 1
        if handles and expected <= self._wanted.end:
            raise self._not_covered(handles)
        return found

    def _not_covered(self, handles: list[RangeHandle]) -> Bug:
        ranges = ",".join(f"{handle.start}-{handle.end}" for handle in handles)
        return Bug(
            f"handles of a checkpoint do not cover a range exactly once: "
            f"uid={self._directory.spec.uid} range={self._wanted.start}-{self._wanted.end} "
            f"handles={ranges}"
        )

    def _bring(
        self, handle: RangeHandle, checkpoint_id: int, store_url: str, target: Path
    ) -> Source:
        """Put the files of `handle` into the new directory `target`."""
        for ref in handle.files:
            if Path(ref.name).name != ref.name:
                raise CorruptState("handle names a file outside its directory", ref.key, _ADVICE)
        owner = RangeSpec(handle.uid, handle.start, handle.end)
        local = self._directory.of(owner).checkpoint(checkpoint_id)
        if is_whole(local, handle.files):
            try:
                link_all(local, handle.files, target)
            except OSError:
                # Its owner may be another process that has just dropped it.
                shutil.rmtree(target, ignore_errors=True)
            else:
                return "local"
        self._download(handle, checkpoint_id, store_url, target)
        return "store"

    def _download(
        self, handle: RangeHandle, checkpoint_id: int, store_url: str, target: Path
    ) -> None:
        """Fetch into `target`; a database of exactly this range is kept as its local copy too."""
        if self._store is None:
            self._store = open_store(store_url)
        keep = handle.format == "native" and _groups(handle) == self._wanted
        local = self._directory.checkpoint(checkpoint_id)
        arrival = local.with_suffix(".tmp") if keep else target
        with disk_errors("make a directory for a restore", arrival):
            shutil.rmtree(arrival, ignore_errors=True)
            arrival.mkdir(parents=True)
        fetch_all(self._store, handle.files, arrival)
        if keep:
            with disk_errors("keep a local checkpoint", local):
                shutil.rmtree(local, ignore_errors=True)
                arrival.replace(local)
                link_all(local, handle.files, target)

    def _is_own(self, handle: RangeHandle) -> bool:
        """Whether a working database can begin with the files of `handle`."""
        return handle.format == "native" and owner_of(handle) == self._databases.owner

    def _working(self, path: Path, handle: RangeHandle) -> tuple[RangeDatabase, Marker]:
        """Open the database that this range begins with, whose files are those of `handle`."""
        wanted = self._wanted
        return _verified(self._databases.open(path, (wanted.start, wanted.end)), handle)

    def _clip(self, database: RangeDatabase, handle: RangeHandle) -> None:
        if handle.start < self._wanted.start:
            database.delete_range(b"", _lower(self._wanted.start))
        if handle.end > self._wanted.end:
            database.delete_range(_lower(self._wanted.end + 1), METADATA)

    def _copy_in(self, database: RangeDatabase, handle: RangeHandle, path: Path) -> None:
        """Copy the key groups of `handle` that belong to this range."""
        first = max(handle.start, self._wanted.start)
        last = min(handle.end, self._wanted.end)
        if handle.format == "canonical":
            # Imports Arrow, without which a server starts in a third of the time.
            from moorage_state.canonical import frames_of

            files = [(path / ref.name, f"{ref.key}, fetched to {path}") for ref in handle.files]
            for frame in frames_of(files, first, last, self._generations(handle)):
                _add(database, frame)
            return
        other, _ = _verified(
            self._databases.open_copy(path, owner_of(handle), (first, last)), handle
        )
        try:
            for frame in _entries(other, _lower(first), _lower(last + 1)):
                _add(database, frame)
        finally:
            other.close()

    def _begin(self, database: RangeDatabase, epoch: int) -> Version:
        """Begin a chain of deltas of this run."""
        version = Version(epoch, "")
        database.apply([], write_marker(version, self._run))
        return version


def _add(database: RangeDatabase, frame: Frame) -> None:
    size = sum(map(len, frame.keys)) + sum(len(value) for value in frame.values if value)
    database.make_room(lambda: [frame], size)
    database.apply([frame])
    advance()


def _verified(database: RangeDatabase, handle: RangeHandle) -> tuple[RangeDatabase, Marker]:
    """Check that files that are byte for byte those of `handle` are its state; closed if not."""
    try:
        return database, _checked_marker(database, handle)
    except BaseException:
        database.close()
        raise


def _checked_marker(database: RangeDatabase, handle: RangeHandle) -> Marker:
    # A directory without its CURRENT file opens as a new, empty database.
    found = read_marker(database)
    if found is None or found.version != (handle.epoch, handle.digest):
        raise CorruptState(
            f"files of a checkpoint hold another version than its manifest says: "
            f"uid={handle.uid} range={handle.start}-{handle.end} "
            f"expected={handle.epoch},{handle.digest!r} found={found}",
            str(database.path),
            _ADVICE,
        )
    return found


def _entries(database: RangeDatabase, lower: bytes, upper: bytes) -> Iterator[Frame]:
    with database.cursor(lower, upper) as cursor:
        complete = cursor.seek(lower) is None
        while not complete:
            keys, values, complete = cursor.take(upper, _COPY_ENTRIES, _COPY_BYTES)
            yield Frame([], keys, list(values))


def _lower(key_group: int) -> bytes:
    """The least key of a key group."""
    return key_group.to_bytes(2, "big")


def _groups(handle: RangeHandle) -> KeyGroupRange:
    return KeyGroupRange(handle.start, handle.end)
