"""From the handles of a checkpoint to an open database that holds exactly one range.

Decides where files come from (the local copy if every byte is right, else the store, neighbouring
slices of an object together) and when they are trusted: only with the size and digest that the
manifest says. The handle with the most key groups is the base of another parallelism's range: what
is outside is deleted, the rest copied in. Canonical files go into an empty database. Called by
`RangeHost` when a range is opened, under its directory's lock. Knows nothing of leases and deltas.
"""

import hashlib
import shutil
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import msgspec

from moorage_state.database import FileBytes, RangeDatabase, RangeView, StoredFile, StoredFiles
from moorage_state.deltas import DeltaReader, Frame, parse_delta_name
from moorage_state.errors import Bug, CorruptState, ObjectNotFound, disk_errors
from moorage_state.formats import UNREADABLE
from moorage_state.keygroups import KeyGroupRange
from moorage_state.keylayout import METADATA
from moorage_state.progress import advance, carried
from moorage_state.server.databases import Databases, owner_of
from moorage_state.server.local_files import FileHashes, RangeDirectory, is_right, link_or_copy
from moorage_state.server.operations import RangeSpec, RestoreBase, Version
from moorage_state.snapshots import FileRef, RangeHandle
from moorage_state.snapshots.parts import PartCache
from moorage_state.stores import ObjectStore, open_store

_T = TypeVar("_T")

Source = Literal["empty", "local", "store", "live"]

_COPY_ENTRIES = 20_000
_COPY_BYTES = 8 << 20
_ADVICE = "restore an older checkpoint, or this object from a backup of the store"
_MARKER_KEY = METADATA + b"version"
_TRANSFERS = 4

_JOINED_BYTES = 8 << 20
"""Slices of one object are fetched together up to this size; it is held in memory."""

_GAP_BYTES = 64 << 10
"""Unwanted bytes between two slices that are worth less than another request."""


class Marker(NamedTuple):
    """The version that a database holds, and the run in which it got there.

    It is written in the batch that brings the database there. It names the run too, because a
    digest means something only within the run that made it: a range that its own run opens again
    continues the chain of deltas, another run begins a new one.
    """

    epoch: int
    digest: str
    run: str

    @property
    def version(self) -> Version:
        """The version alone."""
        return Version(self.epoch, self.digest)


_decode = msgspec.msgpack.Decoder(Marker).decode


def write_marker(version: Version, run: str) -> tuple[bytes, bytes]:
    """The entry that records `version` of `run`."""
    return _MARKER_KEY, msgspec.msgpack.encode(Marker(*version, run))


def read_marker(database: RangeView) -> Marker | None:
    """The marker in `database`, None when it never had one. Raises `CorruptState`."""
    raw = database.get(_MARKER_KEY)
    try:
        return None if raw is None else _decode(raw)
    except UNREADABLE as error:
        raise CorruptState(
            f"the version marker cannot be read ({error})",
            str(database.path),
            "open the range again: it is rebuilt from its last checkpoint",
        ) from error


@dataclass(frozen=True, slots=True)
class Restored:
    """An open database, its version, the uuid of its files' names, and their known digests."""

    database: RangeDatabase
    version: Version
    backend_uuid: str
    hashes: FileHashes
    source: Source
    bytes_restored: int
    # What handles say of the backend whose files they are.
    label: str = ""
    # The handle of exactly this range, and its checkpoint, if checkpoints may go on from it.
    handle: tuple[RangeHandle, int] | None = None
    # What a checkpoint calls this state, where it has exactly this range.
    origin: Version | None = None


def with_handles(
    base: RestoreBase, spec: RangeSpec, store_url: str, parts: PartCache
) -> RestoreBase:
    """The base with the handles that its parts have for this range, under its operator's uid.

    Raises CorruptState: a part is missing or damaged.
    """
    if not base.parts:
        return base
    uid, store = base.stored_uid or spec.uid, open_store(store_url)
    found = [
        msgspec.structs.replace(handle, uid=spec.uid)
        for ref in base.parts
        for handle in parts.get(store, ref).handles
        if handle.uid == uid and handle.start <= spec.end and handle.end >= spec.start
    ]
    return replace(base, handles=[*base.handles, *found], parts=[])


class Restorer:
    """Opens the database of one range, whose directory is locked and cleaned.

    Args:
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
        self._brought = 0

    def empty(self, epoch: int) -> Restored:
        """An empty database, at version `(epoch, "")`."""
        backend = uuid.uuid4().hex
        database = self._databases.open(self._directory.work(backend))
        version = self._begin(database, epoch)
        label = self._databases.label
        hashes = FileHashes(complete=self._databases.stored)
        return Restored(database, version, backend, hashes, "empty", 0, label)

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
        # Its files are taken as they are, entries of the others are copied one by one.
        largest = max(handles, key=lambda handle: _groups(handle).overlap(self._wanted))
        backend = uuid.uuid4().hex
        work = self._directory.work(backend)
        source = self._bring(largest, base.checkpoint_id, store_url, work)
        groups = (self._wanted.start, self._wanted.end)
        stored = self._stored(largest, store_url)
        database, marker = verified(self._databases.open(work, groups, stored), largest)
        exact = _groups(largest) == self._wanted
        try:
            sources = [source]
            if not exact:
                self._clip(database, largest)
            marker, replayed = self._replay(database, largest, marker, store_url)
            sources += replayed
            version = marker.version
            if not exact or marker.run != self._run:
                others = [handle for handle in handles if handle is not largest]
                sources += self._add(database, others, base, store_url)
                version = self._begin(database, base.epoch)
        except BaseException:
            database.close()
            raise
        return Restored(
            database,
            version,
            backend,
            FileHashes(largest.files, complete=self._stays(largest)),
            _source(sources),
            self._brought,
            self._databases.label,
            (largest, base.checkpoint_id) if exact and base.builds else None,
            Version(largest.epoch, largest.digest) if exact else None,
        )

    def _import_all(
        self, handles: list[RangeHandle], base: RestoreBase, store_url: str
    ) -> Restored:
        """Build the database anew, from files of another format than its own."""
        restored = self.empty(base.epoch)
        try:
            sources = self._add(restored.database, handles, base, store_url)
        except BaseException:
            restored.database.close()
            raise
        return replace(restored, source=_source(sources), bytes_restored=self._brought)

    def _add(
        self,
        database: RangeDatabase,
        handles: list[RangeHandle],
        base: RestoreBase,
        store_url: str,
    ) -> list[Source]:
        """Copy in what `handles` have of this range, one after the other: each takes disk space."""
        sources: list[Source] = []
        for number, handle in enumerate(handles):
            target = self._directory.root / f"import-{number}"
            sources.append(self._bring(handle, base.checkpoint_id, store_url, target))
            marker = self._copy_in(database, handle, store_url, target)
            shutil.rmtree(target, ignore_errors=True)
            if marker is not None:
                sources += self._replay(database, handle, marker, store_url)[1]
        return sources

    def _replay(
        self, database: RangeDatabase, handle: RangeHandle, marker: Marker, store_url: str
    ) -> tuple[Marker, list[Source]]:
        """Apply the deltas of `handle`, as far as they are of this range.

        Args:
            marker: of the files that they follow.

        Returns:
            The marker after them, and where they came from.
        """
        if not handle.deltas:
            return marker, []
        own = _groups(handle) == self._wanted
        folder = self._directory.log if own else self._directory.root / "import-deltas"
        source = self._bring_deltas(handle, store_url, folder)
        marker = replay(database, handle, marker, folder, None if own else self._within)
        if not own:
            shutil.rmtree(folder, ignore_errors=True)
        return marker, [source]

    def _bring_deltas(self, handle: RangeHandle, store_url: str, folder: Path) -> Source:
        with disk_errors("make a directory for deltas", folder):
            if folder != self._directory.log:
                shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(exist_ok=True)
        owner = self._directory.of(RangeSpec(handle.uid, handle.start, handle.end))
        missing = [ref for ref in handle.deltas if not _is_right_file(folder / ref.name, ref)]
        if folder != self._directory.log:
            places = [owner.log, *(owner.root / "deltas").glob("*")]
            missing = link_right(missing, places, folder, frozenset({".delta"}))
        for ref in missing:
            # What is wrong may have another link, and is not written to.
            (folder / ref.name).unlink(missing_ok=True)
        if missing:
            fetch_all(self._open(store_url), missing, folder)
        self._brought += sum(ref.size for ref in handle.deltas)
        return "store" if missing else "local"

    def _within(self, frame: Frame) -> Frame:
        """What a frame says of this range."""
        low, high = _lower(self._wanted.start), _lower(self._wanted.end + 1)
        ranges = [(max(a, low), min(b, high)) for a, b in frame.ranges if a < high and b > low]
        pairs = zip(frame.keys, frame.values, strict=True)
        kept = [(key, value) for key, value in pairs if low <= key < high]
        return Frame(ranges, [key for key, _ in kept], [value for _, value in kept])

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
            # A manifest is input: a name with a slash could write anywhere.
            if Path(ref.name).name != ref.name:
                raise CorruptState("handle names a file outside its directory", ref.key, _ADVICE)
        owner = self._directory.of(RangeSpec(handle.uid, handle.start, handle.end))
        logged = handle.logged
        local = owner.checkpoint(logged.checkpoint_id if logged else checkpoint_id)
        groups = _groups(handle)
        if groups.start < self._wanted.start or groups.end > self._wanted.end:
            return self._bring_part(handle, owner, local, store_url, target)
        if self._stays(handle):
            return self._place(handle, local, store_url, target)
        self._brought += sum(ref.size for ref in handle.database_files)
        if is_whole(local, handle.database_files):
            try:
                link_all(local, handle.database_files, target, self._unchanging(handle))
            except OSError:
                # Its owner may be another process that has just dropped it.
                shutil.rmtree(target, ignore_errors=True)
            else:
                return "local"
        if groups == self._wanted and handle.format == "native":
            self._keep(handle, local, store_url, target)
        else:
            # It is read once and thrown away.
            with disk_errors("make a directory for a restore", target):
                target.mkdir(parents=True)
            fetch_all(self._open(store_url), handle.database_files, target)
        return "store"

    def _bring_part(
        self,
        handle: RangeHandle,
        owner: RangeDirectory,
        local: Path,
        store_url: str,
        target: Path,
    ) -> Source:
        """Put what this range needs of a larger one's files into `target`.

        What is fetched stays with the larger one: other ranges are made of it, too, and are likely
        to be opened here.
        """
        with disk_errors("make a directory for a restore", target):
            target.mkdir(parents=True)
        later, shared = self._unchanging(handle), owner.parts(local)
        self._take_on_parts(handle, owner, shared, later)

        def gather(files: list[FileRef]) -> Source:
            missing = link_right(files, [local, shared], target, later)
            self._brought += sum(ref.size for ref in files if ref not in missing)
            if not missing:
                return "local"
            store = self._open(store_url)
            if self._is_own(handle):
                missing = [ref for ref in missing if not self._cut(store, ref, target)]
            self._brought += sum(ref.size for ref in missing)
            if not owner.lock_if_free():
                fetch_all(store, missing, target)
                return "store"
            try:
                _fetch_shared(store, missing, shared)
                missing = link_right(missing, [shared], target, later)
            finally:
                owner.unlock()
            # Nothing, unless the volume does not keep what is written to it.
            fetch_all(store, missing, target)
            return "store"

        source = gather(
            [ref for ref in handle.database_files if Path(ref.name).suffix not in later]
        )
        rest = [ref for ref in handle.database_files if Path(ref.name).suffix in later]
        if self._is_own(handle):
            kept = self._databases.leave_out(target, (self._wanted.start, self._wanted.end))
            rest = [ref for ref in rest if kept is None or ref.name in kept]
        if self._stays(handle):
            return _source([source, self._leave(rest, local, target, move=True)])
        return _source([source, gather(rest)])

    @staticmethod
    def _take_on_parts(
        handle: RangeHandle, owner: RangeDirectory, shared: Path, unchanging: Collection[str]
    ) -> None:
        """Count what was fetched of other checkpoints as fetched of this one, where it is the same.

        Each of them may be gone before all of it is here; and who led beside this has a newer one.
        """
        older = owner.parts_but(shared)
        if not older or not owner.lock_if_free():
            return
        try:
            with disk_errors("make a directory for a restore", shared):
                shared.mkdir(exist_ok=True)
            tables = [ref for ref in handle.database_files if Path(ref.name).suffix in unchanging]
            wanted = [ref for ref in tables if not (shared / ref.name).exists()]
            link_right(wanted, older, shared, unchanging)
            for one in older:
                shutil.rmtree(one, ignore_errors=True)
        finally:
            owner.unlock()

    def _cut(self, store: ObjectStore, ref: FileRef, target: Path) -> bool:
        """Fetch only what this range needs of a file; False: it is not of a kind that can be cut.

        What is read is checked by the file's own sums.
        """
        if ref.inline is not None:
            return False

        def read(offset: int, length: int) -> bytes:
            data = store.get(ref.key, offset=ref.offset + offset, length=length)
            sizes.append(len(data))
            return data

        sizes: list[int] = []
        source = FileBytes(read, ref.size, _where(store, ref))
        groups = (self._wanted.start, self._wanted.end)
        try:
            cut = _twice(lambda: self._databases.write_part(target / ref.name, source, groups))
        except ObjectNotFound as error:
            raise _missing(store, ref) from error
        self._brought += sum(sizes)
        return cut

    def _place(self, handle: RangeHandle, local: Path, store_url: str, target: Path) -> Source:
        """Put into `target` what a database opens with, and of its tables those that are here."""
        later = self._unchanging(handle)
        first = [ref for ref in handle.database_files if Path(ref.name).suffix not in later]
        with disk_errors("make a directory for a restore", target):
            target.mkdir(parents=True)
        missing = link_right(first, [local], target, later)
        self._brought += sum(ref.size for ref in missing)
        fetch_all(self._open(store_url), missing, target)
        rest = [ref for ref in handle.database_files if Path(ref.name).suffix in later]
        left = self._leave(rest, local, target, move=_groups(handle) != self._wanted)
        return _source(["store" if missing else "local", left])

    def _leave(self, files: list[FileRef], local: Path, target: Path, *, move: bool) -> Source:
        """Leave files in the store, but those that are here.

        Of another range's copy they are moved here: what may be truncated belongs to one database.
        """
        missing = link_right(files, [local], target, self._databases.unchanging, move=move)
        for ref in missing:
            with disk_errors("leave a file in the store", target / ref.name):
                (target / ref.name).touch()
        return "store" if missing else "local"

    def _stays(self, handle: RangeHandle) -> bool:
        """Whether tables may stay in the store."""
        return self._databases.stored and self._is_own(handle)

    def _stored(self, handle: RangeHandle, store_url: str) -> StoredFiles | None:
        """Where the files are that stay there."""
        if not self._stays(handle):
            return None
        store = self._open(store_url)
        return {ref.name: StoredFile(store, ref) for ref in handle.database_files}

    def _keep(self, handle: RangeHandle, local: Path, store_url: str, target: Path) -> None:
        """Fetch into the directory `local`, and make `target` of the same files.

        What an earlier fetch had brought when it failed is not fetched again: the checkpoint that
        it was of may be gone, and the next one may be, too, before all of it is here.
        """
        arrival = self._directory.arrival(local)
        # Of an older checkpoint: most of its tables are the same.
        older, begun = self._directory.copies_but(local), self._directory.arrivals()
        with disk_errors("make a directory for a restore", arrival):
            arrival.mkdir(parents=True)
        unchanging = self._unchanging(handle)
        same = [ref for ref in handle.database_files if Path(ref.name).suffix in unchanging]
        places = [*older, *begun]
        missing = link_right(same, places, arrival, unchanging) if places else same
        for copy in begun:
            shutil.rmtree(copy, ignore_errors=True)
        here = {ref.name for ref in same} - {ref.name for ref in missing}
        self._brought -= sum(ref.size for ref in same if ref.name in here)
        wanted = [ref for ref in handle.database_files if ref.name not in here]
        fetch_all(self._open(store_url), wanted, arrival)
        for copy in older:
            shutil.rmtree(copy, ignore_errors=True)
        with disk_errors("keep a local checkpoint", local):
            shutil.rmtree(local, ignore_errors=True)
            arrival.replace(local)
            link_all(local, handle.database_files, target, unchanging)

    def _open(self, store_url: str) -> ObjectStore:
        if self._store is None:
            self._store = open_store(store_url)
        return self._store

    def _unchanging(self, handle: RangeHandle) -> frozenset[str]:
        """Which of its files need no copy: only their own backend knows."""
        return self._databases.unchanging if self._is_own(handle) else frozenset()

    def _is_own(self, handle: RangeHandle) -> bool:
        """Whether a working database can begin with the files of `handle`."""
        return handle.format == "native" and owner_of(handle) == self._databases.owner

    def _clip(self, database: RangeDatabase, handle: RangeHandle) -> None:
        if handle.start >= self._wanted.start and handle.end <= self._wanted.end:
            return
        # Deleted as ranges, which costs nothing until RocksDB compacts. On both sides: among files
        # that were left out may be one that says of an earlier range's groups that they are gone.
        database.delete_range(b"", _lower(self._wanted.start))
        database.delete_range(_lower(self._wanted.end + 1), METADATA)

    def _copy_in(
        self, database: RangeDatabase, handle: RangeHandle, store_url: str, path: Path
    ) -> Marker | None:
        """Copy the key groups of `handle` that belong to this range; what deltas follow, if any."""
        first = max(handle.start, self._wanted.start)
        last = min(handle.end, self._wanted.end)
        if handle.format == "canonical":
            # Imports Arrow, without which a server starts in a third of the time.
            from moorage_state.canonical import frames_of

            files = [(path / ref.name, f"{ref.key}, fetched to {path}") for ref in handle.files]
            for frame in frames_of(files, first, last, self._generations(handle)):
                _add(database, frame)
            return None
        stored = self._stored(handle, store_url)
        other, marker = verified(
            self._databases.open_copy(path, owner_of(handle), (first, last), stored), handle
        )
        try:
            for frame in entries(other, _lower(first), _lower(last + 1)):
                _add(database, frame)
        finally:
            other.close()
        return marker

    def _begin(self, database: RangeDatabase, epoch: int) -> Version:
        """Begin a chain of deltas of this run."""
        version = Version(epoch, "")
        database.apply([], write_marker(version, self._run))
        return version


def replay(
    database: RangeDatabase,
    handle: RangeHandle,
    marker: Marker,
    folder: Path,
    within: Callable[[Frame], Frame] | None = None,
) -> Marker:
    """Apply the deltas of `handle`, which lie in `folder` with the right bytes.

    Args:
        marker: of the files that they follow, which `database` has.
        within: what is wanted of a frame; all of it if not given.

    Returns:
        The marker after them; the database has it where it took all.

    Raises:
        CorruptState: they do not follow one another, or do not lead to what the handle says.
    """
    for ref in handle.deltas:
        with DeltaReader(folder / ref.name) as reader:
            marker = _following(marker, reader, handle)
            for frame in reader.frames():
                _add(database, within(frame) if within else frame)
    if handle.digest not in ("", marker.digest):
        raise _broken(handle, f"the last one leads to {marker.version}")
    if within is None:
        database.apply([], write_marker(marker.version, marker.run))
    return marker


def _following(marker: Marker, reader: DeltaReader, handle: RangeHandle) -> Marker:
    """What a database holds after this delta, which must follow what it holds now."""
    header, named = reader.header, parse_delta_name(reader.path.name)
    # A run that restores begins a chain of its own.
    parent = marker.digest if header.run == marker.run else ""
    ours = (header.start, header.end) == (handle.start, handle.end)
    if named is None or not ours or (header.epoch, header.parent) != (marker.epoch + 1, parent):
        raise _broken(handle, f"after {marker} comes {header}")
    return Marker(header.epoch, named[1], header.run)


def _broken(handle: RangeHandle, what: str) -> CorruptState:
    return CorruptState(
        f"deltas of a checkpoint do not follow one another: uid={handle.uid} "
        f"range={handle.start}-{handle.end} {what}",
        handle.deltas[-1].key,
        _ADVICE,
    )


def _is_right_file(path: Path, ref: FileRef) -> bool:
    try:
        return is_right(path, ref)
    except OSError:
        return False


def _add(database: RangeDatabase, frame: Frame) -> None:
    size = sum(map(len, frame.keys)) + sum(len(value) for value in frame.values if value)
    database.make_room(lambda: [frame], size)
    database.apply([frame])
    advance()


def verified(database: RangeDatabase, handle: RangeHandle) -> tuple[RangeDatabase, Marker]:
    """Check that files that are byte for byte those of `handle` are its state; closed if not."""
    try:
        return database, _checked_marker(database, handle)
    except BaseException:
        database.close()
        raise


def _checked_marker(database: RangeDatabase, handle: RangeHandle) -> Marker:
    # A directory without its CURRENT file opens as a new, empty database.
    found = read_marker(database)
    expected = handle.logged or handle
    if found is None or found.version != (expected.epoch, expected.digest):
        raise CorruptState(
            f"files of a checkpoint hold another version than its manifest says: "
            f"uid={handle.uid} range={handle.start}-{handle.end} "
            f"expected={expected.epoch},{expected.digest!r} found={found}",
            str(database.path),
            _ADVICE,
        )
    return found


def entries(database: RangeDatabase, lower: bytes, upper: bytes) -> Iterator[Frame]:
    """All entries from `lower` up to `upper` (excluded), in frames of a bounded size."""
    with database.cursor(lower, upper) as cursor:
        complete = cursor.seek(lower) is None
        while not complete:
            keys, values, complete = cursor.take(upper, _COPY_ENTRIES, _COPY_BYTES)
            yield Frame([], keys, list(values))


def _source(sources: list[Source]) -> Source:
    return "store" if "store" in sources else "local"


def _lower(key_group: int) -> bytes:
    """The least key of a key group."""
    return key_group.to_bytes(2, "big")


def _groups(handle: RangeHandle) -> KeyGroupRange:
    return KeyGroupRange(handle.start, handle.end)


def fetch_all(store: ObjectStore, files: list[FileRef], target: Path) -> None:
    """Write every file into the directory `target`, which exists, and check its bytes.

    Raises:
        CorruptState: an object is missing or damaged; names it.
        StoreUnavailable: the store does not answer.
        LocalDiskError: the volume is full.
    """
    with ThreadPoolExecutor(_TRANSFERS, "download") as pool:
        groups = _joined(files)
        pending = [pool.submit(carried(_fetch_twice), store, group, target) for group in groups]
        try:
            for future in pending:
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def is_whole(directory: Path, files: list[FileRef]) -> bool:
    """Whether every file is there with the right bytes."""

    def is_there(ref: FileRef) -> bool:
        try:
            return is_right(directory / ref.name, ref)
        except OSError:
            return False

    if not directory.is_dir():
        return False
    with ThreadPoolExecutor(_TRANSFERS, "verify") as pool:
        return all(pool.map(carried(is_there), files))


def link_all(source: Path, files: list[FileRef], target: Path, unchanging: Collection[str]) -> None:
    """Make the directory `target` of the same files as `source`. Raises OSError.

    Args:
        unchanging: see `StateBackend.unchanging`.
    """
    target.mkdir(parents=True)
    for ref in files:
        link_or_copy(source / ref.name, target / ref.name, unchanging)


def link_right(
    files: list[FileRef],
    places: Sequence[Path],
    target: Path,
    unchanging: Collection[str],
    *,
    move: bool = False,
) -> list[FileRef]:
    """Link those files that one of the directories `places` has, byte for byte; the others.

    Args:
        target: a directory that exists, and has none of them.
        unchanging: see `StateBackend.unchanging`.
        move: take them away from where they are instead.
    """

    def is_linked(ref: FileRef) -> bool:
        for place in places:
            # Its owner may be another process that has just dropped it.
            with suppress(OSError):
                if is_right(place / ref.name, ref):
                    if move:
                        (place / ref.name).replace(target / ref.name)
                    else:
                        link_or_copy(place / ref.name, target / ref.name, unchanging)
                    return True
        return False

    with ThreadPoolExecutor(_TRANSFERS, "verify") as pool:
        found = pool.map(carried(is_linked), files)
        return [ref for ref, linked in zip(files, found, strict=True) if not linked]


def _fetch_shared(store: ObjectStore, files: list[FileRef], shared: Path) -> None:
    with disk_errors("make a directory for a restore", shared):
        shared.mkdir(exist_ok=True)
        for ref in files:
            # What is wrong may have another link, and is not written to.
            (shared / ref.name).unlink(missing_ok=True)
    fetch_all(store, files, shared)


def _joined(files: Iterable[FileRef]) -> list[list[FileRef]]:
    """Group files that one request brings: neighbouring slices of an object, inline ones alone."""
    groups: list[list[FileRef]] = []
    for ref in sorted(files, key=lambda ref: (ref.key, ref.offset)):
        first, last = (groups[-1][0], groups[-1][-1]) if groups else (None, None)
        if (
            first is not None
            and last is not None
            and ref.inline is None
            and ref.key == first.key
            and ref.offset - (last.offset + last.size) <= _GAP_BYTES
            and ref.offset + ref.size - first.offset <= _JOINED_BYTES
        ):
            groups[-1].append(ref)
        else:
            groups.append([ref])
    return groups


def _fetch_twice(store: ObjectStore, group: list[FileRef], target: Path) -> None:
    _twice(lambda: _fetch(store, group, target))


def _twice(fetch: Callable[[], _T]) -> _T:
    try:
        return fetch()
    except CorruptState:
        # A checkpoint is condemned by what is in the store, and not by one bad read on the way.
        return fetch()


def _fetch(store: ObjectStore, group: list[FileRef], target: Path) -> None:
    first = group[0]
    if first.inline is not None:
        _write(store, first, first.inline, target)
    elif len(group) == 1:
        _fetch_one(store, first, target / first.name)
    else:
        length = max(ref.offset + ref.size for ref in group) - first.offset
        try:
            data = store.get(first.key, offset=first.offset, length=length)
        except ObjectNotFound as error:
            raise _missing(store, first) from error
        for ref in group:
            begin = ref.offset - first.offset
            _write(store, ref, data[begin : begin + ref.size], target)


def _fetch_one(store: ObjectStore, ref: FileRef, path: Path) -> None:
    try:
        store.get_to_file(ref.key, path, offset=ref.offset, length=ref.size)
    except ObjectNotFound as error:
        raise _missing(store, ref) from error
    with disk_errors("read a downloaded file", path):
        size, right = path.stat().st_size, is_right(path, ref)
    if not right:
        raise _damaged(store, ref, size)


def _write(store: ObjectStore, ref: FileRef, data: bytes, target: Path) -> None:
    if len(data) != ref.size or hashlib.sha256(data).hexdigest() != ref.sha256:
        raise _damaged(store, ref, len(data))
    with disk_errors("write a file of a checkpoint", target / ref.name):
        (target / ref.name).write_bytes(data)


def _damaged(store: ObjectStore, ref: FileRef, size: int) -> CorruptState:
    what = "holds other bytes" if size == ref.size else f"has {size} bytes, not {ref.size}"
    return CorruptState(
        f"object of a checkpoint is damaged: file={ref.name} {what}", _where(store, ref), _ADVICE
    )


def _missing(store: ObjectStore, ref: FileRef) -> CorruptState:
    return CorruptState("object of a checkpoint is missing", _where(store, ref), _ADVICE)


def _where(store: ObjectStore, ref: FileRef) -> str:
    return f"{store.url}/{ref.key}" if ref.key else f"{ref.name}, inline in the manifest"
