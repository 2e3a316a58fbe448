"""The parts of a manifest: in each, one state server lists the files of its ranges.

A part is an object of its own. Its first line is

    MOORAGE-PART <format> sha256:<hex digest of the rest> <size of the rest in bytes>

and the rest is msgpack, in which every object's key stands once. Decides what it says of objects
that others may need too. Written and read by state servers, and by whoever wants to see files; the
driver names parts and never opens one for a checkpoint or a restore.
"""

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec
from msgspec.structs import asdict

from moorage_state.errors import Bug, CorruptState, ObjectNotFound, UserError
from moorage_state.formats import UNREADABLE, require_known_format, sealed, unsealed
from moorage_state.snapshots.manifest import (
    RESTORE_ADVICE,
    FileRef,
    Manifest,
    Materialized,
    OperatorState,
    PartEntry,
    PartRef,
    RangeHandle,
    Root,
    SnapshotRoot,
    files_problem,
    object_keys,
)
from moorage_state.snapshots.object_keys import pack_size
from moorage_state.snapshots.source_texts import refs_of, with_texts
from moorage_state.stores import ObjectStore, in_parallel

T = TypeVar("T")

PART_FORMAT = 1

LOGGED_FORMAT = 2
"""Of a part with a range whose files are those of an earlier version, and deltas."""

_WORD = "MOORAGE-PART"
_SMALL_PACK_BYTES = 1 << 20
_THREADS = 16
_INLINE = -1


@dataclass(frozen=True, slots=True)
class Part:
    """What one server wrote of a checkpoint.

    Attributes:
        common: keys of shared objects that other parts of the checkpoint may reference as well;
            all others only this one does.
    """

    handles: list[RangeHandle]
    common: frozenset[str] = frozenset()


class _File(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A file; `place` is its key's place among the keys."""

    name: str
    place: int
    offset: int
    size: int
    sha256: bytes
    xxh3: bytes
    shared: bool
    inline: bytes | None


class _Range(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    uid: str
    start: int
    end: int
    epoch: int
    digest: str
    backend_uuid: str
    backend: str | None
    files: list[_File]


class _LoggedRange(_Range, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What its database files hold; of a range without deltas the checkpoint's id is 0."""

    base_checkpoint: int
    base_epoch: int
    base_digest: str


class _Body(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`common` are places of keys."""

    format: int
    keys: list[str]
    common: list[int]
    ranges: list[_Range]


class _LoggedBody(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """`common` are places of keys."""

    format: int
    keys: list[str]
    common: list[int]
    ranges: list[_LoggedRange]


class _Head(msgspec.Struct, array_like=True):
    """What all formats have."""

    format: int


class _Keys(_Head, array_like=True):
    """What is needed to tell which objects a part needs; the rest is passed over."""

    keys: list[str]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Body).decode
_decode_logged = msgspec.msgpack.Decoder(_LoggedBody).decode
_decode_head = msgspec.msgpack.Decoder(_Head).decode
_decode_keys = msgspec.msgpack.Decoder(_Keys).decode


def encode_part(part: Part) -> bytes:
    """Return the part as bytes. Raises Bug if it would not read back as equal."""
    keys = sorted(object_keys(part.handles))
    places = {key: place for place, key in enumerate(keys)}
    try:
        common = sorted(places[key] for key in part.common)
        ranges = [_range(handle, places) for handle in part.handles]
        # Without a changelog the bytes are those that earlier releases read.
        version = LOGGED_FORMAT if any(h.logged for h in part.handles) else PART_FORMAT
        if version == LOGGED_FORMAT:
            logged = [_logged(r, h) for r, h in zip(ranges, part.handles, strict=True)]
            body = _encode(_LoggedBody(version, keys, common, logged))
        else:
            body = _encode(_Body(version, keys, common, ranges))
        data = sealed(_WORD, version, body)
        same = decode_part(data, "new part") == part
    except (KeyError, TypeError, ValueError, OverflowError, CorruptState, UserError) as error:
        raise Bug(f"part of a manifest cannot be written: error={error}") from error
    if not same:
        raise Bug("part of a manifest would read back differently")
    return data


def decode_part(data: bytes, path: str) -> Part:
    """Return the part in `data`; `path` is where it came from, for errors.

    Raises:
        CorruptState: any byte differs from what was written.
        NewerFormat: a newer or an incompatible Moorage wrote it.
    """

    def made(body: bytes, version: int) -> Part:
        found = _decode_logged(body) if version == LOGGED_FORMAT else _decode(body)
        return Part(
            [_handle(one, found.keys) for one in found.ranges],
            frozenset(found.keys[place] for place in found.common),
        )

    part = _decoded(data, path, made)
    if problem := files_problem(part.handles):
        raise UserError(
            f"part of a manifest is not complete: path={path} problem={problem}; do not use it"
        )
    return part


def _decoded(data: bytes, path: str, decode: Callable[[bytes, int], T]) -> T:
    version, body = unsealed(_WORD, data, "part of a manifest", path, RESTORE_ADVICE)
    try:
        if _decode_head(body).format != version:
            raise CorruptState(
                "part of a manifest contradicts its own header", path, RESTORE_ADVICE
            )
        require_known_format("part of a manifest", version, LOGGED_FORMAT, path)
        return decode(body, version)
    except (*UNREADABLE, IndexError) as error:
        raise CorruptState(
            f"part of a manifest cannot be read ({error})", path, RESTORE_ADVICE
        ) from error


def part_ref(key: str, data: bytes) -> PartRef:
    """How a root names the part with these bytes."""
    return PartRef(key=key, size=len(data), sha256=hashlib.sha256(data).hexdigest())


def read_part(store: ObjectStore, ref: PartRef) -> Part:
    """Return the part. Raises CorruptState if it is missing, or another; StoreUnavailable."""
    return decode_part(_read(store, ref), f"{store.url}/{ref.key}")


def _read(store: ObjectStore, ref: PartRef) -> bytes:
    path = f"{store.url}/{ref.key}"
    try:
        data = store.get(ref.key)
    except ObjectNotFound as error:
        raise CorruptState("part of a manifest is missing", path, RESTORE_ADVICE) from error
    if part_ref(ref.key, data) != ref:
        raise CorruptState(
            "part of a manifest is not the one that its root names", path, RESTORE_ADVICE
        )
    return data


def references_of(store: ObjectStore, root: SnapshotRoot) -> Iterator[Iterable[str]]:
    """Yield, some at a time, the keys of all objects that a checkpoint needs beside its root.

    A few parts are in memory at once, and their keys alone. Raises as `read_part`.
    """
    if isinstance(root, Manifest):
        yield root.keys
        return
    yield [ref.key for ref in (*root.parts, *refs_of(root))]

    def keys(ref: PartRef) -> list[str]:
        path = f"{store.url}/{ref.key}"
        return _decoded(_read(store, ref), path, lambda body, _: _decode_keys(body).keys)

    refs = [part.ref for part in root.parts]
    for start in range(0, len(refs), _THREADS):
        some = refs[start : start + _THREADS]
        yield from in_parallel((partial(keys, ref) for ref in some), _THREADS, "parts")


def with_files(store: ObjectStore, root: Root) -> Manifest:
    """Return the manifest with all files, which are read from its parts.

    Raises CorruptState if a part is missing, or is not what the root says; StoreUnavailable.
    """
    refs = [part.ref for part in root.parts]
    parts = in_parallel((partial(read_part, store, ref) for ref in refs), _THREADS, "parts")
    operators: dict[str, OperatorState] = {}
    for uid, operator in root.operators.items():
        handles = []
        for one in operator.subtasks:
            stored = operator.stored_uid or uid
            handle = _found(parts[one.part], stored, one.start, one.end)
            if handle is None or handle.bytes_total != one.bytes_total:
                raise CorruptState(
                    f"part of a manifest lacks range {stored} {one.start}-{one.end}",
                    f"{store.url}/{refs[one.part].key}",
                    RESTORE_ADVICE,
                )
            handles.append(msgspec.structs.replace(handle, uid=uid))
        operators[uid] = OperatorState(
            parallelism=operator.parallelism,
            key_types=operator.key_types,
            states=operator.states,
            subtasks=handles,
            operator_states=operator.operator_states,
            owners=operator.owners,
        )
    fields = asdict(root)
    for name in ("format", "operators", "parts", "base_id", "base_listed", "source_texts"):
        del fields[name]
    fields["source"] = with_texts(store, root)
    return Manifest(**fields, operators=operators, parts=[*refs, *refs_of(root)])


def _found(part: Part, uid: str, start: int, end: int) -> RangeHandle | None:
    mine = (h for h in part.handles if (h.uid, h.start, h.end) == (uid, start, end))
    return next(mine, None)


def _range(handle: RangeHandle, places: Mapping[str, int]) -> _Range:
    if handle.format != "native":
        raise ValueError("canonical files stand in no part")
    return _Range(
        handle.uid,
        handle.start,
        handle.end,
        handle.epoch,
        handle.digest,
        handle.backend_uuid,
        handle.backend if isinstance(handle.backend, str) else None,
        [
            _File(
                file.name,
                places[file.key] if file.key else _INLINE,
                file.offset,
                file.size,
                bytes.fromhex(file.sha256),
                bytes.fromhex(file.xxh3),
                file.shared,
                file.inline,
            )
            for file in handle.files
        ],
    )


def _logged(one: _Range, handle: RangeHandle) -> _LoggedRange:
    base = handle.logged
    return _LoggedRange(
        one.uid,
        one.start,
        one.end,
        one.epoch,
        one.digest,
        one.backend_uuid,
        one.backend,
        one.files,
        base.checkpoint_id if base else 0,
        base.epoch if base else 0,
        base.digest if base else "",
    )


def _materialized(one: _Range) -> Materialized | msgspec.UnsetType:
    if not isinstance(one, _LoggedRange) or not one.base_checkpoint:
        return msgspec.UNSET
    return Materialized(
        checkpoint_id=one.base_checkpoint, epoch=one.base_epoch, digest=one.base_digest
    )


def _handle(one: _Range, keys: Sequence[str]) -> RangeHandle:
    files = [
        FileRef(
            name=file.name,
            key="" if file.place == _INLINE else keys[file.place],
            offset=file.offset,
            size=file.size,
            sha256=file.sha256.hex(),
            xxh3=file.xxh3.hex(),
            shared=file.shared,
            inline=file.inline,
        )
        for file in one.files
    ]
    return RangeHandle(
        uid=one.uid,
        start=one.start,
        end=one.end,
        epoch=one.epoch,
        digest=one.digest,
        backend_uuid=one.backend_uuid,
        files=files,
        bytes_total=sum(file.size for file in files),
        backend=msgspec.UNSET if one.backend is None else one.backend,
        materialized=_materialized(one),
    )


class Inherited(NamedTuple):
    """What ranges may build on, and what is known of it.

    Attributes:
        files: by place of the range, shared files of the base that are worth building on.
        keys: of all shared objects that the base references from these ranges.
        common: those of them that other servers may reference from now on.
        given: whether there is a base; without one everything is new, and need not be named.
    """

    files: list[list[FileRef]]
    keys: frozenset[str]
    common: frozenset[str]
    given: bool


def inherited(
    ranges: Sequence[tuple[str, int, int]], base: Sequence[Part], most_small: int
) -> Inherited:
    """What these ranges, (operator, start, end) as the base calls them, have of its parts.

    An object stays a server's own while the ranges that reference it stay together and as they are;
    else whoever inherits it cannot know who else does.

    Args:
        most_small: see `worn_packs`.
    """
    wanted = set(ranges)
    listed = (file for part in base for handle in part.handles for file in handle.files)
    worn = worn_packs(listed, most_small)
    files: list[list[FileRef]] = [[] for _ in ranges]
    keys: set[str] = set()
    common: set[str] = set()
    for part in base:
        common |= part.common
        split = any((h.uid, h.start, h.end) not in wanted for h in part.handles)
        for handle in part.handles:
            exact = (handle.uid, handle.start, handle.end) in wanted
            shared = [file for file in handle.files if file.shared and file.key]
            for place, (uid, start, end) in enumerate(ranges):
                if handle.uid == uid and handle.start <= end and handle.end >= start:
                    files[place] += [file for file in shared if file.key not in worn]
                    keys.update(file.key for file in shared)
            common.update(
                file.key for file in shared if not exact or (split and pack_size(file.key))
            )
    return Inherited(files, frozenset(keys), frozenset(common & keys), bool(base))


class References(NamedTuple):
    """How a part's shared objects differ from what its ranges inherited; see `PartEntry`."""

    added: list[str]
    lost: list[str]
    unsure: list[str]
    common: frozenset[str]


def references(handles: Iterable[RangeHandle], before: Inherited) -> References:
    """Compare what these handles reference with what was inherited."""
    now = {file.key for handle in handles for file in handle.files if file.shared and file.key}
    gone = before.keys - now
    return References(
        sorted(now - before.keys) if before.given else [],
        sorted(gone - before.common),
        sorted(gone & before.common),
        frozenset(before.common & now),
    )


def part_entry(ref: PartRef, handles: Sequence[RangeHandle], change: References) -> PartEntry:
    """What a root says of the part with these handles."""
    return PartEntry(
        key=ref.key,
        size=ref.size,
        sha256=ref.sha256,
        files=sum(len(handle.files) for handle in handles),
        bytes_total=sum(handle.bytes_total for handle in handles),
        added=change.added,
        lost=change.lost,
        unsure=change.unsure,
    )


class PartCache:
    """The parts that were read last: ranges of one server ask for the same ones."""

    def __init__(self, most: int = 8) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._read: dict[tuple[str, PartRef], Part] = {}

    def get(self, store: ObjectStore, ref: PartRef) -> Part:
        """The part; raises as `read_part`."""
        url = store.url
        # Held while it is read: who asks for the same one meanwhile gets this answer.
        with self._lock:
            known = self._read.pop((url, ref), None) or read_part(store, ref)
            self._read[url, ref] = known  # the newest last
            for old in list(self._read)[: -self._most]:
                del self._read[old]
        return known

    def add(self, url: str, ref: PartRef, part: Part) -> None:
        """Remember a part that was just written: the next checkpoint builds on it."""
        with self._lock:
            self._read[url, ref] = part


def worn_packs(files: Iterable[FileRef], most_small: int = 32) -> frozenset[str]:
    """Return the packs that the checkpoint after the one with these files does not build on.

    They are those of which less than half is referenced: so no checkpoint keeps more than twice the
    bytes alive that it needs. And, once there are more than `most_small` of them, those under 1
    MiB, which small increments leave behind one by one.

    Args:
        files: all of the base, of all servers: a pack may be shared by several of them.
        most_small: some multiple of the number of servers, each of which writes its own packs.
    """
    slices = {
        (file.key, file.offset): file.size
        for file in files
        if file.shared and pack_size(file.key) is not None
    }
    used: Counter[str] = Counter()
    for (key, _), size in slices.items():
        used[key] += size
    sizes = {key: pack_size(key) or 0 for key in used}
    worn = {key for key, size in sizes.items() if 2 * used[key] < size}
    small = {key for key, size in sizes.items() if size < _SMALL_PACK_BYTES}
    # What is still needed of them is in the local snapshot and goes into the next pack; the old
    # ones die with the last manifest that references them.
    return frozenset(worn | small if len(small) > most_small else worn)
