"""The local files of one range: what lies where, and what may be deleted when.

    <local_dir>/LINEAGE         which lineage the directory belongs to, where several may come to it
    <local_dir>/ranges/<uid>/<start>-<end>/
        LOCK                    held (flock) by the process that has the range open
        work-<uuid>/            the open database; never trusted, always deleted when opening
        ckpt/<checkpoint id>/   copies of snapshots; `.tmp` while they are being made;
                                `.arriving` while one is fetched, and when that failed;
                                `.parts` what ranges of another parallelism fetched of one
        deltas/<run>/           delta files: `<epoch>-<digest>.delta`, attempts end in `.tmp`
        log/                    delta files of the checkpoint that the range was opened from
        import-<n>/             other ranges' files while a rescale reads them

`RangeDirectory` has the paths, `Snapshots` decides which local copies stay: the newest completed
one, later ones, and those that are being uploaded. Called by `RangeHost`, restore and `OpenRange`,
and by `uploads` beside running epochs. The files inside are the database's and `deltas`' business.
"""

import fcntl
import hashlib
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import xxhash

from moorage_state.database import PendingCopy, RangeDatabase, StoredDatabase, StoredFiles
from moorage_state.deltas import parse_delta_name
from moorage_state.errors import LocalDiskError, Retryable, disk_errors
from moorage_state.progress import advance, bytes_below, watching
from moorage_state.server.operations import RangeSpec, Version
from moorage_state.server.range_log import Listing, RangeLog
from moorage_state.snapshots import FileRef

_RANGE = re.compile(r"(\d+)-(\d+)\Z")
_RUN = re.compile(r"f(\d+)r(\d+)\Z")
_PIECE_BYTES = 1 << 20
_ARRIVING = ".arriving"
_PARTS = ".parts"


def run_order(run: str) -> tuple[int, int] | None:
    """What orders run tokens (`f<fence>r<run>`), None for text that is none."""
    match = _RUN.match(run)
    return (int(match[1]), int(match[2])) if match else None


def link_or_copy(source: Path, target: Path, unchanging: Collection[str]) -> None:
    """Hard-link what never changes, by the ends of names; copy all others."""
    if source.suffix in unchanging:
        with suppress(OSError):
            os.link(source, target)
            return
    # RocksDB may append to these (MANIFEST, OPTIONS), which would change the snapshot's as well.
    shutil.copyfile(source, target)


def adopt(local_dir: Path, lineage: str) -> bool:
    """See `StateApi.adopt`."""
    marker = local_dir / "LINEAGE"
    with disk_errors("adopt a local directory", local_dir), (local_dir / "ADOPTING").open("w") as f:
        # The servers of one directory may do this at the same time.
        fcntl.flock(f, fcntl.LOCK_EX)
        if marker.exists() and marker.read_text() == lineage:
            return False
        found = _directories(local_dir)
        for other in found:
            # Refuses while a server still has a range of the other lineage open.
            other.lock()
            try:
                _remove(other.root)
            finally:
                other.unlock()
        fresh = marker.with_suffix(".tmp")
        fresh.write_text(lineage)
        fresh.replace(marker)
        return bool(found)


def local_copies(local_dir: Path, checkpoint_id: int) -> list[tuple[RangeSpec, int]]:
    """See `StateApi.local_copies`."""
    found = []
    for one in _directories(local_dir):
        before = [copy for copy in one.local_checkpoints() if copy <= checkpoint_id]
        if before:
            found.append((one.spec, before[-1]))
    return found


def drop_left_over(local_dir: Path, run: str) -> int:
    """Delete the ranges that no run will ask for here, now that `run` has completed a checkpoint.

    They were of another parallelism, have moved elsewhere, or are of an operator that is no more.
    Returns how many. What this run or a newer one has opened stays, though its server be dead.
    """
    order, dropped = run_order(run), 0
    if order is None:
        return 0
    for other in _directories(local_dir):
        if other.was_opened_since(order):
            continue
        # One that a process has open is left alone.
        with suppress(Retryable, LocalDiskError):
            other.lock()
            # It may have been opened and let go of since the look.
            if not other.was_opened_since(order):
                _remove(other.root)
                dropped += 1
        other.unlock()
    return dropped


def _directories(local_dir: Path) -> "list[RangeDirectory]":
    found = []
    for path in local_dir.glob("ranges/*/*"):
        if match := _RANGE.match(path.name):
            spec = RangeSpec(path.parent.name, int(match[1]), int(match[2]))
            found.append(RangeDirectory(local_dir, spec))
    return found


class RangeDirectory:
    """Paths and clean-up of one range. The lock must be held for everything that deletes."""

    def __init__(self, local_dir: Path, spec: RangeSpec) -> None:
        self.spec = spec
        self._local_dir = local_dir
        self.root = local_dir / "ranges" / spec.uid / f"{spec.start}-{spec.end}"
        self.checkpoints = self.root / "ckpt"
        self._lock: int | None = None

    def lock(self) -> None:
        """Make the directory and take its lock.

        Raises `Retryable` where another process has the range open.
        """
        with disk_errors("make a range directory", self.root):
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            # flock, not a file's existence: the kernel frees it however the process ends.
            descriptor = os.open(self.root / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise Retryable(
                f"another state server has the range open: path={self.root}; "
                f"release it there, or end that process"
            ) from error
        self._lock = descriptor

    def unlock(self) -> None:
        """Free the lock; idempotent."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def lock_if_free(self) -> bool:
        """Take the lock unless another process has the range open; whether it was taken."""
        try:
            self.lock()
        except Retryable:
            return False
        return True

    def of(self, spec: RangeSpec) -> "RangeDirectory":
        """The directory of another range on this volume."""
        return RangeDirectory(self._local_dir, spec)

    def work(self, backend_uuid: str) -> Path:
        """Where the open database lies."""
        return self.root / f"work-{backend_uuid}"

    def checkpoint(self, checkpoint_id: int) -> Path:
        """Where the local copy of a checkpoint lies."""
        return self.checkpoints / str(checkpoint_id)

    def copies_but(self, local: Path) -> list[Path]:
        """The whole local copies of other checkpoints."""
        found = map(self.checkpoint, self.local_checkpoints())
        return [path for path in found if path != local]

    def arrival(self, local: Path) -> Path:
        """A new place for what is being fetched to be the copy `local`."""
        return local.with_name(f"{local.name}-{uuid.uuid4().hex[:8]}{_ARRIVING}")

    def arrivals(self) -> list[Path]:
        """What was being fetched when that failed: of each file either all bytes or some."""
        return list(self.checkpoints.glob(f"*{_ARRIVING}"))

    def parts(self, local: Path) -> Path:
        """What others fetched of the checkpoint whose copy `local` would be, for others of them."""
        return local.with_suffix(_PARTS)

    def parts_but(self, shared: Path) -> list[Path]:
        """What others fetched of other checkpoints: of each file either all bytes or some."""
        return [path for path in self.checkpoints.glob(f"*{_PARTS}") if path != shared]

    def deltas(self, run: str) -> Path:
        """Where the deltas of a run lie."""
        return self.root / "deltas" / run

    @property
    def log(self) -> Path:
        """Where the deltas lie that the checkpoint lists which the range was opened from."""
        return self.root / "log"

    def prepare(
        self,
        run: str,
        keep_checkpoint: int | None,
        keep_deltas: Collection[str] = (),
        keep_work: str = "",
    ) -> None:
        """Delete what no longer counts when `run` opens the range, and make its directories.

        Args:
            keep_checkpoint: the local copy that it is about to be restored from; where that is not
                here, the newest before it stays, for the files that both have.
            keep_deltas: names of delta files that the range is about to be restored from.
            keep_work: the uuid of a database that is open, and stays so.
        """
        working = self.work(keep_work).name if keep_work else ""
        with disk_errors("clean a range directory", self.root):
            self._keep_deltas(run, keep_deltas)
            for path in self.root.iterdir():
                # A working database has no log of its own: after a crash nobody knows what is in
                # it.
                if path.name.startswith(("work-", "import-")) and path.name != working:
                    _remove(path)
            kept = self._copies_for(keep_checkpoint)
            if keep_checkpoint is not None and str(keep_checkpoint) not in kept:
                kept |= {path.name for path in self.arrivals()}
            for path in self.checkpoints.iterdir():
                if path.name not in kept:
                    _remove(path)
            self._drop_older_runs(run)
            self.deltas(run).mkdir(parents=True, exist_ok=True)

    def _copies_for(self, checkpoint_id: int | None) -> set[str]:
        """The copy of a checkpoint, else the newest before: it has most files of that as well."""
        if checkpoint_id is None:
            return set()
        before = [one for one in self.local_checkpoints() if one <= checkpoint_id]
        return {str(before[-1])} if before else set()

    def _keep_deltas(self, run: str, names: Collection[str]) -> None:
        """Bring together those that this run and older ones have, and drop others of before."""
        if not names and not self.log.exists():
            return
        self.log.mkdir(exist_ok=True)
        for path in self.log.iterdir():
            if path.name not in names:
                path.unlink()
        own = run_order(run)
        for folder in (self.root / "deltas").glob("*"):
            order = run_order(folder.name)
            # Those of a newer run stay where they are: this one may be a stalled driver.
            if folder.name == run or (own is not None and order is not None and order < own):
                for path in folder.iterdir():
                    if path.name in names:
                        path.replace(self.log / path.name)

    def drop_log_through(self, epoch: int) -> None:
        """Delete deltas of before up to `epoch`: materialized files contain them."""
        with disk_errors("drop deltas of before", self.log):
            if not self.log.exists():
                return
            for path in self.log.iterdir():
                named = parse_delta_name(path.name)
                if named is None or named[0] <= epoch:
                    path.unlink(missing_ok=True)

    def _drop_older_runs(self, run: str) -> None:
        deltas, order = self.root / "deltas", run_order(run)
        if order is None or not deltas.is_dir():
            return
        for path in deltas.iterdir():
            other = run_order(path.name)
            # The deltas of a newer run stay: this one may be a stalled driver.
            if other is not None and other < order:
                _remove(path)

    def local_checkpoints(self) -> list[int]:
        """The ids of the whole local copies."""
        names = (path.name for path in self.checkpoints.glob("*"))
        return sorted(int(name) for name in names if name.isdecimal())

    def was_opened_since(self, order: tuple[int, int]) -> bool:
        """Whether a run of this order, or a newer one, has opened it."""
        runs = (run_order(path.name) for path in (self.root / "deltas").glob("*"))
        return any(run is None or run >= order for run in runs)

    def drop_checkpoints(self, choose: Callable[[int], bool]) -> None:
        """Delete the local copies whose id is chosen."""
        for checkpoint_id in self.local_checkpoints():
            if choose(checkpoint_id):
                _remove(self.checkpoint(checkpoint_id))

    def drop_replaced(self, checkpoint_id: int) -> None:
        """Delete those tables of a local copy that its database has no more: the store has them."""
        for path in self.checkpoint(checkpoint_id).glob("*.sst"):
            with disk_errors("drop a replaced file", path), suppress(FileNotFoundError):
                if path.stat().st_nlink == 1:
                    path.unlink()

    def remove_work(self, backend_uuid: str) -> None:
        """Delete a closed database."""
        _remove(self.work(backend_uuid))


def _remove(path: Path) -> None:
    # What a crash leaves half deleted is deleted at the next opening.
    shutil.rmtree(path, ignore_errors=True)


class Digests(NamedTuple):
    """What is recorded of a file's bytes; digests are hex."""

    size: int
    sha256: str
    xxh3: str


def digests_of(path: Path) -> Digests:
    """Size and both digests of a file, read once."""
    sha256, xxh3, size = hashlib.sha256(), xxhash.xxh3_128(), 0
    for piece in _pieces(path):
        sha256.update(piece)
        xxh3.update(piece)
        size += len(piece)
    return Digests(size, sha256.hexdigest(), xxh3.hexdigest())


def is_right(path: Path, ref: FileRef) -> bool:
    """Whether a file holds the bytes that a manifest says. Raises OSError."""
    if path.stat().st_size != ref.size:
        return False
    # Twenty times as fast, but manifests of older releases do not have it.
    digest = xxhash.xxh3_128() if ref.xxh3 else hashlib.sha256()
    for piece in _pieces(path):
        digest.update(piece)
    return digest.hexdigest() == (ref.xxh3 or ref.sha256)


def _pieces(path: Path) -> Iterator[memoryview]:
    # One buffer for all pieces, so that large files cost no allocations.
    buffer = bytearray(_PIECE_BYTES)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            advance()
            yield view[:count]


class FileHashes:
    """Digests of a database's SST files, which never change, by name. Thread-safe.

    Args:
        complete: a file may have no bytes; then it is one that is known by its name.
    """

    def __init__(self, known: Iterable[FileRef] = (), *, complete: bool = False) -> None:
        self._complete = complete
        self._known = {
            ref.name: Digests(ref.size, ref.sha256, ref.xxh3)
            for ref in known
            # Of all others, shared ones too, a later file may have the name, and even the size.
            if (ref.shared or complete) and ref.xxh3 and ref.name.endswith(".sst")
        }

    def of(self, path: Path) -> Digests:
        """Size and digests of the file; computed once per SST file."""
        size = path.stat().st_size
        known = self._known.get(path.name)
        if known is not None and (known.size == size or self._complete):
            return known
        found = digests_of(path)
        if path.suffix == ".sst":
            self._known[path.name] = found
        return found

    def keep(self, names: Collection[str]) -> None:
        """Forget all files but these, by name."""
        # Not in one step: an upload may come to know another one meanwhile.
        for name in list(self._known):
            if name not in names:
                self._known.pop(name, None)


@dataclass(slots=True)
class Taken:
    """A local copy at `version`, in the directory `path`; `cancel` ends its upload.

    `pending` is what the files are to be written from, until its first upload ends; `stored` is
    where they were uploaded to.
    """

    checkpoint_id: int
    version: Version
    path: Path
    cancel: threading.Event = field(default_factory=threading.Event)
    uploading: bool = False
    # An upload of it has ended; until then a later checkpoint does not drop it.
    used: bool = False
    pending: PendingCopy | None = None
    stored: StoredFiles | None = None

    def let_go(self) -> None:
        """Drop what the files were to be written from."""
        if self.pending is not None:
            self.pending.drop()
            self.pending = None


class Linked(NamedTuple):
    """A local copy that was taken: the bytes of all its files, and how long the flush took."""

    bytes: int
    flush_seconds: float


class Snapshots:
    """The snapshots of one open range.

    RocksDB's files are hard-linked when one is taken; a copy of state in memory is written by
    whoever needs it first, beside running epochs. `take` is called under the range's lock.

    Args:
        label: the backend whose files they are, as handles name it; empty for the built-in ones.
    """

    def __init__(
        self,
        spec: RangeSpec,
        directory: RangeDirectory,
        backend_uuid: str,
        hashes: FileHashes,
        label: str = "",
    ) -> None:
        self.spec = spec
        self.label = label
        self.backend_uuid = backend_uuid
        self.hashes = hashes
        self.log: RangeLog | None = None
        self._directory = directory
        self._lock = threading.Lock()
        self._taken: dict[int, Taken] = {}
        self._newest_complete = 0
        self._database: StoredDatabase | None = None

    def take(self, database: RangeDatabase, checkpoint_id: int, version: Version) -> Linked:
        """Take a copy of `database`, which is at `version`.

        Repeating it for the same version is harmless.
        """
        path = self._directory.checkpoint(checkpoint_id)
        with self._lock:
            taken = self._taken.get(checkpoint_id)
        if taken is not None and taken.version == version:
            if taken.pending is not None:
                return Linked(taken.pending.bytes, 0.0)
            if path.exists():
                return Linked(_bytes_in(path), 0.0)
        if taken is not None:
            taken.let_go()
        self._directory.drop_checkpoints(lambda other: other == checkpoint_id)
        unfinished = path.with_suffix(".tmp")
        shutil.rmtree(unfinished, ignore_errors=True)
        # The hard links are made under the GIL, a flush is not: heartbeats go on during it.
        began = time.monotonic()
        database.flush()
        flushed = time.monotonic()
        pending = database.checkpoint(unfinished)
        if pending is None:
            _name(unfinished, path)
        with self._lock:
            self._taken[checkpoint_id] = Taken(checkpoint_id, version, path, pending=pending)
            if isinstance(database, StoredDatabase):
                self._database = database
        return Linked(pending.bytes if pending else _bytes_in(path), flushed - began)

    def begin_log(self) -> RangeLog:
        """What checkpoints list from now on that are no copies."""
        self.log = self.log or RangeLog()
        return self.log

    def listing(self, checkpoint_id: int) -> Listing | None:
        """What a checkpoint that is under way lists; None where it is a copy of all, as it is."""
        return self.log.listing(checkpoint_id) if self.log else None

    @property
    def where(self) -> Path:
        """The directory of the range."""
        return self._directory.root

    def scratch(self, checkpoint_id: int) -> Path:
        """A directory for an export; what a crash leaves there goes when the range is opened."""
        return self._directory.root / f"import-export-{checkpoint_id}"

    @contextmanager
    def uploading(self, checkpoint_id: int) -> Iterator[Taken]:
        """The snapshot, whose files stay for the length of the with block.

        Raises `Retryable` where it is not here, was aborted, or is being uploaded already.
        """
        with self._lock:
            taken = self._taken.get(checkpoint_id)
            if taken is None or taken.cancel.is_set() or taken.uploading:
                state = "not here" if taken is None else "aborted or being uploaded"
                raise Retryable(
                    f"no snapshot to upload ({state}): uid={self.spec.uid} "
                    f"start={self.spec.start} checkpoint={checkpoint_id}; take another one"
                )
            taken.uploading = True
        try:
            _write(taken)
            yield taken
        finally:
            self._uploaded(checkpoint_id, taken)

    @property
    def may_be_away(self) -> bool:
        """Whether files of a copy may be in the store alone."""
        return self._database is not None

    def whole(self, path: Path) -> AbstractContextManager[None]:
        """Have the bytes of a copy's file there, for the length of the with block."""
        return self._database.whole(path) if self._database else nullcontext()

    def frozen(self) -> AbstractContextManager[StoredFiles | None]:
        """Where files of any copy are; what it has besides stays for the with block."""
        return self._database.frozen() if self._database else nullcontext()

    def complete(self, checkpoint_id: int, before: int = 0, copy: int = 0) -> Taken | None:
        """Keep this local copy and drop the older ones; the copy, None if it is not here.

        Args:
            before: with a changelog the checkpoint that completed, which begins with the copy of
                `checkpoint_id`: what is between is of savepoints and of checkpoints that failed.
            copy: the one there that later checkpoints begin with.
        """
        with self._lock:
            taken = self._taken.get(checkpoint_id)
            if taken is None:
                return None
            self._newest_complete = max(self._newest_complete, checkpoint_id)
            # An upload of an older one may be about to begin: checkpoints can run beside each
            # other.
            awaited = {key for key, other in self._taken.items() if not other.used}
            awaited.discard(checkpoint_id)
            known = set(self._taken)
        # What is not known was restored from elsewhere, under an id of another lineage.
        self._drop(
            lambda other: (
                other not in awaited
                and (
                    other < self._newest_complete
                    or other not in known
                    or (checkpoint_id < other < before and other != copy)
                )
            )
        )
        self.forget()
        return taken

    def forget(self) -> None:
        """Let go of the digests of files that neither a local copy nor the database has any more.

        Where files may have no bytes, and nothing but their names tells what they are, only when a
        checkpoint is complete: its copy has all of them, also those of a copy that is being taken.
        """
        # Under the lock: no copy goes meanwhile, and of none that comes a file is known yet.
        with self._lock:
            places = [self._directory.work(self.backend_uuid)]
            places += [taken.path for taken in self._taken.values()]
            self.hashes.keep({name for place in places for name in _names_in(place)})

    def aborted(self, checkpoint_id: int) -> None:
        """Stop the upload of this snapshot and drop its local copy; idempotent."""
        with self._lock:
            taken = self._taken.get(checkpoint_id)
            # A late abort of one that is complete after all: the next restore begins from its
            # files.
            if taken is None or checkpoint_id == self._newest_complete:
                return
            taken.cancel.set()
        self._drop(lambda other: other == checkpoint_id)

    def busy(self) -> bool:
        """Whether an upload is running."""
        with self._lock:
            return any(taken.uploading for taken in self._taken.values())

    def close(self) -> None:
        """Stop all uploads."""
        with self._lock:
            for taken in self._taken.values():
                taken.cancel.set()
                if not taken.uploading:
                    taken.let_go()

    def _uploaded(self, checkpoint_id: int, taken: Taken) -> None:
        with self._lock:
            taken.uploading, taken.used = False, True
            # Once it is written, memory need not hold it; of an upload that failed the next one
            # needs it.
            if taken.path.exists() or taken.cancel.is_set():
                taken.let_go()
            useless = taken.cancel.is_set() or checkpoint_id < self._newest_complete
        if useless:
            self._drop(lambda other: other == checkpoint_id)

    def _drop(self, choose: Callable[[int], bool]) -> None:
        """Drop the chosen local copies, those being uploaded only when that ends."""
        with self._lock:
            kept = {key for key, taken in self._taken.items() if taken.uploading}
            dropped = [key for key in self._taken if key not in kept and choose(key)]
            for key in dropped:
                self._taken.pop(key).let_go()
        with disk_errors("drop a local checkpoint", self._directory.root):
            self._directory.drop_checkpoints(lambda other: choose(other) and other not in kept)


def _write(taken: Taken) -> None:
    """Have the files there, if they are not yet; an earlier upload may have written them."""
    if taken.pending is None or taken.path.exists():
        return
    unfinished = taken.path.with_suffix(".tmp")
    shutil.rmtree(unfinished, ignore_errors=True)
    with watching(partial(bytes_below, unfinished)):
        taken.pending.write(unfinished, taken.cancel.is_set)
    _name(unfinished, taken.path)


def _name(unfinished: Path, path: Path) -> None:
    with disk_errors("name a local checkpoint", path):
        unfinished.replace(path)


def _names_in(path: Path) -> list[str]:
    """What is in a directory, nothing if it is not there."""
    with disk_errors("read a local directory", path), suppress(FileNotFoundError):
        return [file.name for file in path.iterdir()]
    return []


def _bytes_in(path: Path) -> int:
    with disk_errors("read a local checkpoint", path):
        return sum(file.stat().st_size for file in path.iterdir())
