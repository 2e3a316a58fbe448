"""Snapshots of a server's ranges on their way to a store: increments, and files of savepoints.

Decides what becomes of each file (known already, inline, part of a pack, or an object), what
happens in which order and what it costs. A file of a checkpoint is skipped only where the base has
its content, never because the store seems to have it: only a manifest keeps an object alive. Of a
savepoint nothing outside of its directory is referenced, so that it can be copied elsewhere. Called
by `RangeHost`, beside running epochs.
"""

import hashlib
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from moorage_state import failpoints
from moorage_state.canonicalspec import CanonicalSpec
from moorage_state.database import StoredFile
from moorage_state.deltas import DeltaReader
from moorage_state.errors import (
    CorruptState,
    LocalDiskError,
    Retryable,
    StateSizeExceeded,
    StoreUnavailable,
    disk_errors,
)
from moorage_state.progress import bytes_below, carried, counting_retries, watching
from moorage_state.server.databases import Databases
from moorage_state.server.local_files import Digests, Snapshots, Taken, digests_of
from moorage_state.server.operations import (
    RangeSpec,
    Uploaded,
    UploadLimits,
    UploadRequest,
    Version,
    WrittenPart,
    WrittenRange,
)
from moorage_state.server.range_log import Listing
from moorage_state.snapshots import (
    FileRef,
    PartRef,
    RangeHandle,
    part_key,
    private_key,
    private_pack_key,
    savepoint_key,
    shared_key,
    shared_pack_key,
)
from moorage_state.snapshots.parts import (
    Inherited,
    Part,
    PartCache,
    encode_part,
    inherited,
    part_entry,
    part_ref,
    references,
    worn_packs,
)
from moorage_state.stores import ObjectStore, check_key
from moorage_state.tuning import CHECKPOINT_STORAGE_KEY, MAX_STATE_SIZE_KEY

_UPLOAD_THREADS = 4
_LEAST_SHARE = 1 << 20
"""Deltas of less than this are one object: another one would cost a request, and no time."""

MOST_SMALL_PACKS = 16
"""That the base of one server may have before the next checkpoint joins them."""

T = TypeVar("T")
U = TypeVar("U")
_Place = tuple[str, int]
"""The key of an object, and an offset in it."""


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file of a snapshot; `part` is the number of its range in the upload."""

    part: int
    path: Path
    size: int
    sha256: str
    xxh3: str = ""
    kept: bool = False

    @property
    def shared(self) -> bool:
        """Whether later checkpoints may reference its bytes too.

        SST files never change; with a changelog several checkpoints begin with one copy.
        """
        return self.kept or self.path.suffix == ".sst"

    @property
    def content(self) -> tuple[bool, int, str]:
        """What makes two files of one upload the same slice of a pack."""
        return self.shared, self.size, self.sha256


@dataclass(frozen=True, slots=True)
class Pack:
    """An object made of these files' bytes, one after the other; no content is there twice."""

    shared: bool
    files: tuple[LocalFile, ...]

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class UploadPlan:
    """Every file of an upload is in exactly one of these, or has the content of a packed one.

    Attributes:
        known: what the base has, and where.
        inline: what goes into the handles.
        packs: small files that share objects.
        alone: the others, each an object.
    """

    known: dict[LocalFile, FileRef]
    inline: frozenset[LocalFile]
    packs: tuple[Pack, ...]
    alone: tuple[LocalFile, ...]


def plan_upload(
    parts: Sequence[Sequence[LocalFile]],
    bases: Sequence[Iterable[FileRef]],
    limits: UploadLimits,
) -> UploadPlan:
    """Return what to do with the files of each range, given what the base of each has."""
    files = [file for part in parts for file in part]
    # What several checkpoints list would be in each of their parts, and those of a server would
    # have more together than one may.
    parts = [[file for file in part if not file.kept or not file.size] for part in parts]
    inline = _inline(parts, limits) if limits.max_state_size is None else frozenset(files)
    known = _known(files, bases)
    left = [file for file in files if file not in inline and file not in known]
    small = [file for file in left if file.size < limits.merge_below]
    return UploadPlan(
        known={file: ref for file, ref in known.items() if file not in inline},
        inline=inline,
        packs=(
            *_packed(small, limits.pack, shared=False),
            *_packed(small, limits.pack, shared=True),
        ),
        alone=tuple(file for file in left if file.size >= limits.merge_below),
    )


def side_by_side(parts: Sequence[Sequence[LocalFile]], limits: UploadLimits) -> UploadLimits:
    """Limits by which deltas go to the store in as many objects as there are upload threads.

    One object would have half of the way to the store where a materialization has the other half,
    and a checkpoint is waited for.
    """
    size = sum(file.size for part in parts for file in part if file.size < limits.merge_below)
    share = -(-size // _UPLOAD_THREADS)
    return replace(limits, pack=min(limits.pack, max(_LEAST_SHARE, share)))


def require_room(ranges: Sequence[RangeSpec], sizes: Sequence[int], limits: UploadLimits) -> None:
    """Refuse ranges whose files, of these sizes together, must go into handles and do not fit.

    Raises:
        StateSizeExceeded: naming the largest one, the limit, and what to do.
    """
    if limits.max_state_size is None or not sizes:
        return
    size, at = max((size, at) for at, size in enumerate(sizes))
    largest = ranges[at]
    name = f"operator={largest.uid} key_groups={largest.start}-{largest.end} size={size}"
    if size > limits.max_state_size:
        raise StateSizeExceeded(
            f"state of a subtask is larger than a checkpoint keeps with the driver: {name} "
            f"maximum={limits.max_state_size} setting={MAX_STATE_SIZE_KEY}; {_USE_FILES}"
        )
    if (total := sum(sizes)) > limits.inline_total:
        raise StateSizeExceeded(
            f"state of a server's subtasks is larger than its part of a checkpoint holds: "
            f"size={total} maximum={limits.inline_total} subtasks={len(sizes)} largest: {name}; "
            f"{_USE_FILES}"
        )


_USE_FILES = (
    f"set {CHECKPOINT_STORAGE_KEY} to filesystem, which writes files of any size into the "
    f"checkpoint directory"
)


def _known(
    files: Iterable[LocalFile], bases: Sequence[Iterable[FileRef]]
) -> dict[LocalFile, FileRef]:
    has = [
        {(ref.size, ref.sha256): ref for ref in base if ref.shared and ref.inline is None}
        for base in bases
    ]
    found = {f: has[f.part].get((f.size, f.sha256)) for f in files if f.shared}
    return {file: ref for file, ref in found.items() if ref is not None}


def _inline(parts: Sequence[Sequence[LocalFile]], limits: UploadLimits) -> frozenset[LocalFile]:
    """What stands in the handles themselves."""
    # A slice of a pack cannot be empty.
    chosen = {file for part in parts for file in part if not file.size}
    left = limits.inline_total
    # Whole small ranges first, the smallest before the others; then small private files.
    sized = sorted((sum(file.size for file in part), n) for n, part in enumerate(parts))
    for size, number in sized:
        if size < limits.inline_range and size <= left:
            chosen.update(parts[number])
            left -= size
    private = [file for part in parts for file in part if not file.shared and file not in chosen]
    for file in sorted(private, key=lambda file: (file.size, file.part, file.path.name)):
        if file.size <= limits.inline_file and file.size <= left:
            chosen.add(file)
            left -= file.size
    return frozenset(chosen)


def _packed(files: Iterable[LocalFile], most: int, *, shared: bool) -> list[Pack]:
    """Files in their order, so that those of one range lie side by side, cut at `most` bytes."""
    once = {file.content: file for file in reversed([f for f in files if f.shared is shared])}
    groups: dict[int, list[LocalFile]] = defaultdict(list)
    number = size = 0
    for file in reversed(once.values()):
        if size and size + file.size > most:
            number, size = number + 1, 0
        groups[number].append(file)
        size += file.size
    return [Pack(shared, tuple(group)) for group in groups.values()]


_Places = dict[tuple[bool, int, str] | LocalFile, _Place]
"""Where each packed content, and each file that is an object of its own, lies."""


@dataclass(frozen=True, slots=True)
class UploadPart:
    """The snapshots of one range, and the files of its base."""

    snapshots: Snapshots
    base_files: list[FileRef]


def upload(
    parts: Sequence[UploadPart],
    run: str,
    checkpoint_id: int,
    store: ObjectStore,
    limits: UploadLimits,
    *,
    names: "Names | None" = None,
    copies: bool = False,
    ahead: "Sequence[Listing] | None" = None,
) -> Uploaded:
    """Bring the snapshots of all `parts` to the store.

    Args:
        names: has the keys of the objects; those of a checkpoint if not given.
        copies: the copies that were taken, also where a checkpoint lists a log.
        ahead: what is uploaded of each, where no checkpoint asks for it.
    """
    with ExitStack() as stack:
        taken: Sequence[Taken | Listing] = ahead or [
            _taken(stack, part.snapshots, checkpoint_id, copies=copies) for part in parts
        ]
        # One where nobody waits, so that checkpoints have most of the way to the store.
        threads = 1 if copies else _UPLOAD_THREADS
        pool = stack.enter_context(ThreadPoolExecutor(threads, "upload"))
        files = _each(pool, partial(_files_of, copies), list(zip(count(), parts, taken)))
        sizes = [sum(file.size for file in group) for group in files]
        require_room([part.snapshots.spec for part in parts], sizes, limits)
        if any(isinstance(at, Listing) for at in taken):
            limits = side_by_side(files, limits)
        plan = plan_upload(files, [part.base_files for part in parts], limits)
        names = names or CheckpointNames(run, checkpoint_id)
        transfer = _Transfer(parts, taken, names, store)
        with counting_retries() as retries:
            places = transfer.carry_out(pool, plan)
            attempts = transfer.objects + retries()
        handles = [
            _handle(part.snapshots, at, [_ref(file, plan, places, names, part) for file in group])
            for part, at, group in zip(parts, taken, files, strict=True)
        ]
        for part, at, handle in zip(parts, taken, handles, strict=True):
            if names.shares and part.snapshots.may_be_away and isinstance(at, Taken):
                at.stored = {ref.name: StoredFile(store, ref) for ref in handle.files}
    return Uploaded(
        handles,
        transfer.objects,
        transfer.bytes,
        sum(file.size for file in plan.inline),
        attempts,
    )


class PartWriter:
    """Uploads of checkpoints by one server, and the parts of manifests that they write.

    Args:
        owner: the identifier of the backend whose files they are.
        parts: remembers what was read and written.
    """

    def __init__(
        self, store: ObjectStore, run: str, checkpoint_id: int, owner: str, parts: PartCache
    ) -> None:
        self._store = store
        self._owner = owner
        self._names = CheckpointNames(run, checkpoint_id)
        self._run = run
        self._checkpoint_id = checkpoint_id
        self._parts = parts

    def write(
        self,
        snapshots: Sequence[Snapshots],
        requests: Sequence[UploadRequest],
        limits: UploadLimits,
        base: Sequence[PartRef],
    ) -> WrittenPart:
        """See `StateApi.upload_many`; `snapshots` are those of the requests."""
        before = self._inherited(snapshots, requests, base)
        work = [UploadPart(s, files) for s, files in zip(snapshots, before.files, strict=True)]
        done = upload(work, self._run, self._checkpoint_id, self._store, limits, names=self._names)
        for one, handle in zip(snapshots, done.handles, strict=True):
            if (listing := one.listing(self._checkpoint_id)) is not None:
                listing.written(handle, self._checkpoint_id)
        change = references(done.handles, before)
        part = Part(done.handles, change.common)
        with counting_retries() as retries:
            entry = part_entry(self._put(part), done.handles, change)
            attempts = done.attempts + 1 + retries()
        ranges = [WrittenRange(h.uid, h.start, h.end, h.bytes_total) for h in done.handles]
        return WrittenPart(
            entry,
            ranges,
            self._owner,
            done.objects + 1,
            done.bytes_written,
            done.bytes_inline,
            attempts,
        )

    def _inherited(
        self,
        snapshots: Sequence[Snapshots],
        requests: Sequence[UploadRequest],
        base: Sequence[PartRef],
    ) -> Inherited:
        ranges = [
            (request.stored_uid or s.spec.uid, s.spec.start, s.spec.end)
            for s, request in zip(snapshots, requests, strict=True)
        ]
        parts = [self._parts.get(self._store, ref) for ref in base]
        found = inherited(ranges, parts, MOST_SMALL_PACKS)
        # Who else has them is known of what parts list alone.
        given = {f.key for request in requests for f in request.base_files if f.shared and f.key}
        files = [
            [*mine, *request.base_files]
            for mine, request in zip(found.files, requests, strict=True)
        ]
        return Inherited(
            files, found.keys | given, found.common | given, found.given or bool(given)
        )

    def _put(self, part: Part) -> PartRef:
        data = encode_part(part)
        key = self._names.part
        failpoints.hit("upload.before_part")
        self._store.put(key, data)
        failpoints.hit("upload.after_part")
        ref = part_ref(key, data)
        self._parts.add(self._store.url, ref, part)
        return ref


def materialize(
    snapshots: Sequence[Snapshots],
    run: str,
    checkpoint_id: int,
    store: ObjectStore,
    limits: UploadLimits,
) -> Uploaded:
    """See `StateApi.materialize_many`."""
    # Where there was nothing to list, the checkpoint itself was the copy.
    snapshots = [s for s in snapshots if not s.begin_log().begins_with(checkpoint_id)]
    bases = [one.begin_log().materializing() for one in snapshots]
    worn = worn_packs((file for _, files in bases for file in files), MOST_SMALL_PACKS)
    work = [
        UploadPart(one, [file for file in files if file.key not in worn])
        for one, (_, files) in zip(snapshots, bases, strict=True)
    ]
    done = upload(work, run, checkpoint_id, store, limits, copies=True)
    for one, (on, _), handle in zip(snapshots, bases, done.handles, strict=True):
        one.begin_log().materialized(
            checkpoint_id, Version(handle.epoch, handle.digest), handle.files, on
        )
    return replace(done, handles=[])


def persist(
    snapshots: Sequence[Snapshots],
    listings: Sequence[Listing],
    run: str,
    store: ObjectStore,
    limits: UploadLimits,
) -> Uploaded:
    """See `StateApi.persist_many`."""
    work = [UploadPart(one, []) for one in snapshots]
    done = upload(work, run, 0, store, limits, ahead=listings)
    for one, listing, handle in zip(snapshots, listings, done.handles, strict=True):
        one.begin_log().uploaded(handle.deltas, listing.base)
    return replace(done, handles=[])


class Names(Protocol):
    """The keys of an upload's objects; none is ever used twice.

    Attributes:
        shares: whether later checkpoints may reference its SST files.
    """

    shares: bool

    def pack(self, number: int, size: int, *, shared: bool) -> str:
        """Of an object with several small files."""

    def alone(self, snapshots: Snapshots, file: LocalFile) -> str:
        """Of an object that is one file."""


class CheckpointNames:
    """In the lineage's directory."""

    shares = True

    def __init__(self, run: str, checkpoint_id: int) -> None:
        self._run = run
        self._checkpoint_id = checkpoint_id
        self._id = uuid.uuid4().hex

    @property
    def part(self) -> str:
        """Of the part of the manifest."""
        return part_key(self._checkpoint_id, self._run, self._id)

    def pack(self, number: int, size: int, *, shared: bool) -> str:
        """See `Names`."""
        if shared:
            return shared_pack_key(self._id, number, size)
        return private_pack_key(self._checkpoint_id, self._run, self._id, number, size)

    def alone(self, snapshots: Snapshots, file: LocalFile) -> str:
        """See `Names`."""
        name = file.path.name
        if file.shared:
            return shared_key(snapshots.backend_uuid, name, file.sha256, self._id)
        uid, start, end = snapshots.spec.uid, snapshots.spec.start, snapshots.spec.end
        return private_key(self._checkpoint_id, self._run, uid, start, end, name, self._id)


class _Transfer:
    """One upload, and what it has written."""

    def __init__(
        self,
        parts: Sequence[UploadPart],
        taken: Sequence[Taken | Listing],
        names: Names,
        store: ObjectStore,
    ) -> None:
        self._parts = parts
        self._taken = taken
        self._names = names
        self._store = store
        self._lock = threading.Lock()
        self.objects = 0
        self.bytes = 0

    def carry_out(self, pool: ThreadPoolExecutor, plan: UploadPlan) -> _Places:
        """Write all objects."""
        places: _Places = {}
        for packed in _each(pool, self._put_pack, list(enumerate(plan.packs))):
            places.update(packed)
        alone = _each(pool, self._put_alone, plan.alone)
        places.update(zip(plan.alone, alone, strict=True))
        return places

    def _put_pack(self, numbered: tuple[int, Pack]) -> _Places:
        number, pack = numbered
        key = self._names.pack(number, pack.size, shared=pack.shared)
        places: _Places = {}
        pieces, offset = [], 0
        for file in pack.files:
            places[file.content] = (key, offset)
            pieces.append(self._read(file))
            offset += file.size
        self._put(key, pack.size, lambda: self._store.put(key, b"".join(pieces)))
        return places

    def _put_alone(self, file: LocalFile) -> _Place:
        snapshots = self._parts[file.part].snapshots
        key = self._names.alone(snapshots, file)
        with snapshots.whole(file.path):
            self._put(key, file.size, lambda: self._store.put_file(key, file.path))
        return key, 0

    def _read(self, file: LocalFile) -> bytes:
        with self._parts[file.part].snapshots.whole(file.path):
            return _read_checked(file)

    def _put(self, key: str, size: int, write: Callable[[], None]) -> None:
        if any(taken.cancel.is_set() for taken in self._taken):
            raise Retryable(f"upload was stopped: key={key}; the checkpoint is not completed")
        failpoints.hit("upload.before_object")
        write()
        stored = self._store.head(key)
        if stored is None or stored.size != size:
            found = None if stored is None else stored.size
            raise StoreUnavailable(
                f"store does not have what was uploaded: key={key} bytes={size} found={found}"
            )
        with self._lock:
            self.objects += 1
            self.bytes += size
        failpoints.hit("upload.after_object")


def _taken(
    stack: ExitStack, snapshots: Snapshots, checkpoint_id: int, *, copies: bool
) -> Taken | Listing:
    """What is to be uploaded of a range: the copy, or the deltas that no checkpoint listed."""
    listing = None if copies else snapshots.listing(checkpoint_id)
    if listing is not None and listing.base is not None:
        return listing
    return stack.enter_context(snapshots.uploading(checkpoint_id))


def _files_of(copies: bool, item: tuple[int, UploadPart, Taken | Listing]) -> list[LocalFile]:  # noqa: FBT001
    number, part, taken = item
    if isinstance(taken, Listing):
        return [LocalFile(number, path, *_whole_delta(part, path), True) for path in taken.local]
    kept = copies or part.snapshots.listing(taken.checkpoint_id) is not None
    with disk_errors("read a local checkpoint", taken.path):
        paths = sorted(path for path in taken.path.iterdir() if not _is_empty_log(path))
        found = [(path, *part.snapshots.hashes.of(path)) for path in paths]
    return [LocalFile(number, *fields, kept) for fields in found]


def _whole_delta(part: UploadPart, path: Path) -> Digests:
    """The digests of a delta that is what was committed: nobody could restore from another."""
    try:
        with DeltaReader(path) as reader:
            reader.require_whole()
        with disk_errors("read a delta file", path):
            return digests_of(path)
    except (CorruptState, LocalDiskError) as error:
        # The database has it already, so a copy of that needs no delta.
        part.snapshots.begin_log().damaged()
        raise LocalDiskError(
            f"a committed delta cannot be uploaded: path={path} cause={error}; the next checkpoint "
            f"is a copy without it; check this volume's health"
        ) from error


def _is_empty_log(path: Path) -> bool:
    """RocksDB's own log is unused; it leaves an empty file."""
    return path.suffix == ".log" and path.stat().st_size == 0


def _read_checked(file: LocalFile) -> bytes:
    """The bytes of a small file, which must be those that its digest was made of."""
    with disk_errors("read a local checkpoint", file.path):
        data = file.path.read_bytes()
    if len(data) != file.size or hashlib.sha256(data).hexdigest() != file.sha256:
        raise LocalDiskError(
            f"a file of a local checkpoint changed: path={file.path} bytes={len(data)} "
            f"expected={file.size}; check this volume's health"
        )
    return data


def _ref(
    file: LocalFile,
    plan: UploadPlan,
    places: _Places,
    names: Names,
    part: UploadPart,
) -> FileRef:
    known, inline = plan.known.get(file), None
    if file in plan.inline:
        with part.snapshots.whole(file.path):
            inline = _read_checked(file)
    if known is not None:
        key, offset = known.key, known.offset
    elif inline is not None:
        key, offset = "", 0
    else:
        key, offset = places[file] if file in places else places[file.content]
    return FileRef(
        name=file.path.name,
        key=key,
        offset=offset,
        size=file.size,
        sha256=file.sha256,
        xxh3=file.xxh3,
        shared=file.shared and names.shares,
        inline=inline,
    )


def _handle(snapshots: Snapshots, taken: Taken | Listing, files: list[FileRef]) -> RangeHandle:
    base = taken.base if isinstance(taken, Listing) else None
    if isinstance(taken, Listing) and base is not None:
        files = [*base.files, *taken.stored, *files]
    logged = base.materialized if base else None
    return RangeHandle(
        uid=snapshots.spec.uid,
        start=snapshots.spec.start,
        end=snapshots.spec.end,
        epoch=taken.version.epoch,
        digest=taken.version.digest,
        backend_uuid=snapshots.backend_uuid,
        files=files,
        bytes_total=sum(ref.size for ref in files),
        backend=snapshots.label or msgspec.UNSET,
        materialized=logged or msgspec.UNSET,
    )


def _each(pool: ThreadPoolExecutor, action: Callable[[T], U], items: Iterable[T]) -> list[U]:
    """The results in order; the first error stops what has not begun."""
    pending = [pool.submit(carried(action), item) for item in items]
    try:
        return [future.result() for future in pending]
    except BaseException:
        for future in pending:
            future.cancel()
        raise


class _SavepointNames:
    """In a savepoint's directory, which nobody else writes to."""

    shares = False

    def __init__(self) -> None:
        self._id = uuid.uuid4().hex

    def pack(self, number: int, size: int, *, shared: bool) -> str:
        """Of an object with several small files."""
        kind = "tables" if shared else "files"
        return check_key(f"packs/{kind}-{self._id}-{number}-{size}")

    def alone(self, snapshots: Snapshots, file: LocalFile) -> str:
        """Of an object that is one file."""
        spec = snapshots.spec
        return savepoint_key(spec.uid, spec.start, spec.end, file.path.name)


def copy_native(
    parts: Sequence[Snapshots], run: str, checkpoint_id: int, store: ObjectStore
) -> Uploaded:
    """All files of the snapshots, in the backend's own format; see `StateApi.save_many`."""
    whole = [UploadPart(snapshots, []) for snapshots in parts]
    return upload(whole, run, checkpoint_id, store, UploadLimits(), names=_SavepointNames())


def export(
    parts: Sequence[Snapshots],
    specs: Sequence[CanonicalSpec],
    checkpoint_id: int,
    store: ObjectStore,
    databases: Databases,
) -> Uploaded:
    """The snapshots in the canonical format; see `StateApi.save_many`."""
    # Imports Arrow, without which a server starts in a third of the time.
    from moorage_state.canonical import export_snapshot

    # One after the other, because each is written to the local volume first.
    handles: list[RangeHandle] = []
    for snapshots, spec in zip(parts, specs, strict=True):
        scratch = snapshots.scratch(checkpoint_id)
        with (
            watching(partial(bytes_below, scratch)),
            snapshots.uploading(checkpoint_id) as taken,
            snapshots.frozen() as stored,
        ):
            handles.append(
                export_snapshot(
                    # State in memory as it is, files that were written as a directory.
                    taken.path if taken.pending is None else taken.pending.view(),
                    spec,
                    scratch,
                    store,
                    open_copy=partial(databases.open_copy, stored=stored),
                    digest=taken.version.digest,
                    backend_uuid=snapshots.backend_uuid,
                    stopped=taken.cancel.is_set,
                )
            )
    files = [file for handle in handles for file in handle.files]
    return Uploaded(handles, len(files), sum(file.size for file in files), 0)
