"""The manifest of a checkpoint: everything a restore needs to know, in one immutable object.

On disk it is text. The first line is

    MOORAGE-MANIFEST <format> sha256:<hex digest of the rest> <size of the rest in bytes>

and the rest is one JSON document, indented for people, whose first field `format` repeats the
format. Every later format keeps the first line and that field. Pure functions; no I/O.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from moorage_state.errors import Bug, CorruptState, UserError
from moorage_state.formats import decode_document, require_known_format
from moorage_state.snapshots.object_keys import pack_size
from moorage_state.stores import check_key

if TYPE_CHECKING:
    from moorage_state.keyed.schema import StateSchema

MANIFEST_FORMAT = 1

MAX_INLINE_BYTES = 4 << 20
"""What all inline files of one manifest may have together: it is read as a whole, by everyone."""

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Positive = Annotated[int, msgspec.Meta(ge=1)]
_Uid = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")]
_FileName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}\Z")]
_Xxh3 = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{32})?\Z")]
_Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]

_HEADER = re.compile(rb"MOORAGE-MANIFEST ([0-9]{1,9}) sha256:([0-9a-f]{64}) ([0-9]{1,18})\n")
_ADVICE = (
    "restore this object from a backup, restore an older checkpoint, or allow an older one to "
    "take its place"
)
_SMALL_PACK_BYTES = 1 << 20


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What all parts of a manifest share: immutable, and no field the reader does not know."""


class FileRef(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """One file of a range's database.

    Attributes:
        key: the object that holds its bytes; empty where they stand in `inline`.
        offset: where in the object its bytes begin; several small files may lie in one object.
        sha256: hex digest of its bytes.
        xxh3: 128-bit XXH3 of its bytes, hex; empty where it was not taken. Restores check this one,
            which is twenty times as fast.
        shared: other checkpoints may reference the same object.
        inline: its bytes, where they are so few that an object of their own would be waste.
    """

    name: _FileName
    key: str
    offset: _Count = 0
    size: _Count
    sha256: _Sha256
    xxh3: _Xxh3 = ""
    shared: bool
    inline: bytes | None = None


class RangeHandle(_Part, frozen=True, kw_only=True):
    """The snapshot of one key-group range of one stateful operator, `end` included.

    Attributes:
        epoch: the last epoch it contains.
        digest: the digest of that epoch's delta; with the epoch, the version of the range.
        backend_uuid: which database the files come from.
        files: what a restore must put into an empty directory; or, of a canonical handle, Parquet
            files by state.
        format: the backend's own files, or those that every backend and any tool reads.
        backend: the identifier of the backend whose files they are. Not there for those that
            every release has, which are told apart by the names of their files.
    """

    uid: _Uid
    start: _Count
    end: _Count
    epoch: _Count
    digest: str
    backend_uuid: str
    files: list[FileRef]
    bytes_total: _Count
    format: Literal["native", "canonical"] = "native"
    # Unset and not empty: handles without it are written as they were before there was this name.
    backend: _Uid | msgspec.UnsetType = msgspec.UNSET


class StateMeta(_Part, frozen=True, kw_only=True):
    """One declared state of an operator.

    Attributes:
        type: the type of the value, of a list's element, of a map's value, or of what an
            aggregating state accumulates, as Spark DDL.
        earlier: the types that stored values may still have, oldest first; `type` is the last one.
        ttl_ms: its time to live in milliseconds, 0 where it has none any more; None where stored
            values bear no stamps, because it never had one.
        namespace_types: the types of what it has besides the key, as Spark DDL.
        indexed_ms: the time to live by which everything stored is in the index that a sweep
            follows; 0 where that has to be made first; None where nothing is swept.
        cleanup_in_full_snapshot: whether canonical files leave out what has expired.
    """

    name: str
    kind: Literal["value", "list", "map", "reducing", "aggregating"]
    type: str
    key_type: str | None = None
    earlier: list[str] = []
    ttl_ms: _Count | None = None
    namespace_types: list[str] = []
    indexed_ms: _Count | None = None
    cleanup_in_full_snapshot: bool = False


def metas_of(schemas: Iterable["StateSchema"]) -> list[StateMeta]:
    """Declared states as manifests and canonical files record them."""
    return [
        StateMeta(
            name=schema.name,
            kind=schema.kind,
            type=schema.type,
            key_type=schema.key_type or None,
            earlier=list(schema.earlier),
            ttl_ms=schema.ttl_ms,
            namespace_types=list(schema.namespace_types),
            indexed_ms=schema.indexed_ms,
            cleanup_in_full_snapshot=schema.cleanup_in_full_snapshot,
        )
        for schema in schemas
    ]


class OperatorStateMeta(_Part, frozen=True, kw_only=True):
    """One state of an operator that belongs to its subtasks and to no key.

    Attributes:
        name: its name in the descriptor; a reserved one for raw streams.
        mode: how it is distributed: lists that are split or read as a union, broadcast maps, raw
            streams of the operator and of its key groups.
        type: the type of an element, or of a map's value, as Spark DDL.
    """

    name: str
    mode: Literal["split", "union", "broadcast", "raw", "raw_keyed"]
    type: str
    key_type: str | None = None

    @property
    def label(self) -> str:
        """How it is named beside keyed states, whose names never begin so."""
        return self.name if self.mode in {"raw", "raw_keyed"} else f"_operator.{self.name}"


class OperatorState(_Part, frozen=True, kw_only=True, omit_defaults=True):
    """The state of one stateful operator, all types as Spark DDL.

    Attributes:
        subtasks: one handle for each subtask, in order; together they cover all key groups.
        operator_states: what belongs to subtasks and to no key.
        owners: the first key groups under which subtasks have operator state, in their order, where
            they are others than those of `subtasks`.
    """

    parallelism: _Positive
    key_types: list[str]
    states: list[StateMeta]
    subtasks: list[RangeHandle]
    operator_states: list[OperatorStateMeta] = []
    owners: list[_Count] = []

    @property
    def operator_state_owners(self) -> list[int]:
        """The first key groups under which subtasks have operator state, in their order."""
        return list(self.owners) or [handle.start for handle in self.subtasks]


class Manifest(_Part, frozen=True, kw_only=True):
    """One checkpoint, or one savepoint.

    Attributes:
        kind: which of the two; the keys of a savepoint are relative to its own directory.
        name: of a savepoint; empty for a checkpoint.
        epoch: the last epoch it contains.
        max_parallelism: the number of key groups.
        operators: the stateful operators by uid.
        source: how far the inputs were read; opaque to this layer.
        watermarks: per input uid the newest event time, per operator uid the watermark it worked
            with last, in milliseconds since 1970, or None.
        idle_inputs: uids of the inputs that do not hold the watermark back because they are silent.
        processing_time: that of the epoch, in milliseconds since 1970; it never goes back.
        sinks: per sink uid, output that is staged and not yet published; opaque to this layer.
        extra: anything else the engine keeps; opaque to this layer.
    """

    format: int = MANIFEST_FORMAT
    kind: Literal["checkpoint", "savepoint"] = "checkpoint"
    name: str = ""
    lineage: str
    checkpoint_id: _Positive
    epoch: _Count
    fence: _Positive
    run: _Count
    created_at: Annotated[datetime, msgspec.Meta(tz=True)]
    job_name: str
    moorage_version: str
    max_parallelism: Annotated[int, msgspec.Meta(ge=1, le=32768)]
    key_hash: str = "spark-xxhash64"
    operators: dict[_Uid, OperatorState]
    source: dict[str, Any]
    watermarks: dict[str, int | None] = {}
    idle_inputs: list[str] = []
    processing_time: _Count = 0
    sinks: dict[str, list[dict[str, Any]]] = {}
    extra: dict[str, Any] = {}

    @property
    def handles(self) -> tuple[RangeHandle, ...]:
        """The handles of all subtasks of all operators."""
        return tuple(h for operator in self.operators.values() for h in operator.subtasks)

    @property
    def files(self) -> tuple[FileRef, ...]:
        """The files of all handles."""
        return tuple(file for handle in self.handles for file in handle.files)

    @property
    def keys(self) -> frozenset[str]:
        """The objects that hold the files; the manifest's own is not among them."""
        return object_keys(self.handles)


def object_keys(handles: Iterable[RangeHandle]) -> frozenset[str]:
    """Return the keys of all objects that the files of these handles lie in, wholly or in part."""
    return frozenset(file.key for handle in handles for file in handle.files if file.key)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the manifest as bytes.

    Raises Bug if it is not complete (every operator's ranges must cover all key groups) or would
    not read back as equal.
    """
    try:
        plain = msgspec.json.encode(manifest, order="deterministic")
        body = msgspec.json.format(plain, indent=2) + b"\n"
        data = _header(MANIFEST_FORMAT, body) + body
        same = decode_manifest(data, "new manifest") == manifest
    except (TypeError, ValueError, OverflowError, CorruptState, UserError) as error:
        raise Bug(
            f"manifest cannot be written: checkpoint={manifest.checkpoint_id} error={error}"
        ) from error
    if not same:
        raise Bug(
            f"manifest would read back differently: checkpoint={manifest.checkpoint_id}; "
            "opaque parts must be plain JSON"
        )
    return data


def decode_manifest(data: bytes, path: str) -> Manifest:
    """Return the manifest in `data`; `path` is where it came from, for errors.

    Raises:
        CorruptState: any byte differs from what was written.
        NewerFormat: a newer or an incompatible Moorage wrote it.
    """
    header = _HEADER.match(data)
    body = data[header.end() :] if header else b""
    if header is None or _header(int(header[1]), body) != header[0]:
        raise CorruptState("manifest does not match its checksum", path, _ADVICE)
    version = int(header[1])
    try:
        if _format_in(body) != version:
            raise CorruptState("manifest contradicts its own header", path, _ADVICE)
        require_known_format("manifest", version, MANIFEST_FORMAT, path)
        manifest = decode_document(body, Manifest, "manifest", path)
    except msgspec.DecodeError as error:
        raise CorruptState(f"manifest cannot be read ({error})", path, _ADVICE) from error
    if problem := _problem(manifest):
        raise UserError(f"manifest is not complete: path={path} problem={problem}; do not use it")
    return manifest


def manifest_digest(data: bytes) -> str:
    """Return the digest of an encoded manifest, as log entries carry it."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _header(version: int, body: bytes) -> bytes:
    digest = hashlib.sha256(body).hexdigest()
    return f"MOORAGE-MANIFEST {version} sha256:{digest} {len(body)}\n".encode()


class _Head(msgspec.Struct):
    """The part of the document that all formats have."""

    format: int


def _format_in(body: bytes) -> int:
    return msgspec.json.decode(body, type=_Head).format


def _name(handle: RangeHandle) -> str:
    return f"range {handle.uid} {handle.start}-{handle.end}"


def _problem(manifest: Manifest) -> str:
    """Return what makes the manifest unusable, or ""."""
    for uid, operator in manifest.operators.items():
        if len(operator.subtasks) != operator.parallelism:
            return f"operator {uid} has {len(operator.subtasks)} of {operator.parallelism} subtasks"
        next_group = 0
        for handle in operator.subtasks:
            if handle.uid != uid or handle.start != next_group or handle.end < handle.start:
                return f"operator {uid} has {_name(handle)} out of place"
            next_group = handle.end + 1
        if next_group != manifest.max_parallelism:
            return f"operator {uid} covers {next_group} of {manifest.max_parallelism} key groups"
    for handle in manifest.handles:
        if handle.bytes_total != sum(file.size for file in handle.files):
            return f"{_name(handle)} has a wrong sum of sizes"
    inline = sum(file.size for file in manifest.files if file.inline is not None)
    if inline > MAX_INLINE_BYTES:
        return f"{inline} bytes are inline, more than {MAX_INLINE_BYTES}"
    groups = manifest.max_parallelism
    problems = [_owners_problem(uid, o.owners, groups) for uid, o in manifest.operators.items()]
    return next(filter(None, (*problems, *map(_file_problem, manifest.files))), "")


def _owners_problem(uid: str, owners: list[int], groups: int) -> str:
    in_place = sorted({owner for owner in owners if owner < groups})
    return "" if owners == in_place else f"operator {uid} has owners out of place: {owners}"


def _file_problem(file: FileRef) -> str:
    if file.inline is None:
        check_key(file.key)
    elif file.key or file.offset or len(file.inline) != file.size:
        return f"inline file {file.name} has a key, an offset or another size"
    return ""


def worn_packs(handles: Iterable[RangeHandle], most_small: int = 32) -> frozenset[str]:
    """Return the packs that the checkpoint after the one with these handles does not build on.

    They are those of which less than half is referenced: so no checkpoint keeps more than twice the
    bytes alive that it needs. And, once there are more than `most_small` of them, those under 1
    MiB, which small increments leave behind one by one.

    Args:
        handles: all handles of the base, of all servers: a pack may be shared by several of them.
        most_small: some multiple of the number of servers, each of which writes its own packs.
    """
    slices = {
        (file.key, file.offset): file.size
        for handle in handles
        for file in handle.files
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
