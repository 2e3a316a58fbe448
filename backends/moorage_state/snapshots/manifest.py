"""The manifest of a checkpoint: everything a restore needs to know, in immutable objects.

On disk it is text. The first line is

    MOORAGE-MANIFEST <format> sha256:<hex digest of the rest> <size of the rest in bytes>

and the rest is one JSON document, indented for people, whose first field `format` repeats the
format. Every later format keeps the first line and that field. A `Manifest` (format 1) has
everything in this one document: savepoints, and checkpoints of earlier releases. A `Root` (format
2) names parts instead (see `parts`), in which state servers list their ranges' files. Pure
functions; no I/O.
"""

import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec

from moorage_state.deltas import is_delta_name
from moorage_state.errors import Bug, CorruptState, UserError
from moorage_state.formats import (
    UNREADABLE,
    decode_document,
    require_known_format,
    sealed,
    unsealed,
)
from moorage_state.stores import check_key

if TYPE_CHECKING:
    from moorage_state.keyed.schema import StateSchema

MANIFEST_FORMAT = 1
"""Of a manifest in one document."""

ROOT_FORMAT = 2
"""Of a manifest that names parts."""

MAX_INLINE_BYTES = 4 << 20
"""What all inline files of one object, manifest or part, may have together: it is read whole."""

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Positive = Annotated[int, msgspec.Meta(ge=1)]
_Uid = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")]
_FileName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}\Z")]
_Xxh3 = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{32})?\Z")]
_Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]

_WORD = "MOORAGE-MANIFEST"
RESTORE_ADVICE = (
    "restore this object from a backup, restore an older checkpoint, or allow an older one to "
    "take its place"
)


class _Piece(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What all pieces of a manifest share: immutable, and no field the reader does not know."""


class FileRef(_Piece, frozen=True, kw_only=True, omit_defaults=True):
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


class Materialized(_Piece, frozen=True, kw_only=True):
    """What the files of a database hold where deltas follow them: the range as it was before.

    Attributes:
        checkpoint_id: by which a local copy of these files is called.
        epoch: the last epoch that they contain; the deltas are of those after it.
        digest: with the epoch, the version of the files.
    """

    checkpoint_id: _Positive
    epoch: _Count
    digest: str


class RangeHandle(_Piece, frozen=True, kw_only=True):
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
        materialized: of a checkpoint with a changelog: `files` are those of a database as it was at
            this version, and the deltas of the epochs since, one for each, by their names.
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
    materialized: Materialized | msgspec.UnsetType = msgspec.UNSET

    @property
    def logged(self) -> Materialized | None:
        """What its database files hold, where deltas follow them."""
        return None if self.materialized is msgspec.UNSET else self.materialized

    @property
    def database_files(self) -> list[FileRef]:
        """The files of the database, without deltas."""
        if self.logged is None:
            return self.files
        return [file for file in self.files if not is_delta_name(file.name)]

    @property
    def deltas(self) -> list[FileRef]:
        """The deltas to apply to the database, in order."""
        if self.logged is None:
            return []
        found = [file for file in self.files if is_delta_name(file.name)]
        return sorted(found, key=lambda file: file.name)


class StateMeta(_Piece, frozen=True, kw_only=True):
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


class OperatorStateMeta(_Piece, frozen=True, kw_only=True):
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


class _OperatorMeta(_Piece, frozen=True, kw_only=True, omit_defaults=True):
    """What a manifest says of one stateful operator, however its files are listed.

    Attributes:
        subtasks: one for each subtask, in order; together they cover all key groups.
        operator_states: what belongs to subtasks and to no key.
        owners: the first key groups under which subtasks have operator state, in their order, where
            they are others than those of `subtasks`.
    """

    parallelism: _Positive
    key_types: list[str]
    states: list[StateMeta]
    subtasks: list[Any]
    operator_states: list[OperatorStateMeta] = []
    owners: list[_Count] = []

    @property
    def operator_state_owners(self) -> list[int]:
        """The first key groups under which subtasks have operator state, in their order."""
        return list(self.owners) or [one.start for one in self.subtasks]


class OperatorState(_OperatorMeta, frozen=True, kw_only=True, omit_defaults=True):
    """The state of one stateful operator, all types as Spark DDL."""

    subtasks: list[RangeHandle]

    @property
    def is_native(self) -> bool:
        """Whether there are files of a backend's own."""
        return any(handle.format == "native" for handle in self.subtasks)


class PartRef(_Piece, frozen=True, kw_only=True):
    """An object that holds a part, whole: its key, size and the digest of all its bytes."""

    key: str
    size: _Positive
    sha256: _Sha256


class PartEntry(PartRef, frozen=True, kw_only=True):
    """A part, and what its server knows of the objects that later checkpoints may reference.

    Attributes:
        files: how many it lists.
        bytes_total: their sizes together.
        added: keys of shared objects that this checkpoint is the first to reference.
        lost: those that the base referenced from these ranges, and no part of this one does.
        unsure: those that the base referenced and this part does not, and another may.
    """

    files: _Count
    bytes_total: _Count
    added: list[str] = []
    lost: list[str] = []
    unsure: list[str] = []

    @property
    def ref(self) -> PartRef:
        """The part alone."""
        return PartRef(key=self.key, size=self.size, sha256=self.sha256)


class RangeEntry(_Piece, frozen=True, kw_only=True):
    """A range whose files a part lists, `end` included; `part` is the part's place in the root."""

    start: _Count
    end: _Count
    bytes_total: _Count
    part: _Count


class RangeInPart(NamedTuple):
    """A range whose files a part lists, for who restores it or builds on it.

    `stored_uid` is what the part calls its operator.
    """

    uid: str
    start: int
    end: int
    bytes_total: int
    part: PartRef
    stored_uid: str


class OperatorParts(_OperatorMeta, frozen=True, kw_only=True, omit_defaults=True):
    """The state of one stateful operator, whose native files parts list.

    Attributes:
        backend: the identifier of the backend whose files they are.
        stored_uid: what the parts call it, where that is not its uid; never written.
    """

    subtasks: list[RangeEntry]
    backend: _Uid
    stored_uid: str = ""

    @property
    def is_native(self) -> bool:
        """Whether there are files of a backend's own."""
        return True


class _Snapshot(_Piece, frozen=True, kw_only=True):
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

    format: int
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
    operators: Any
    source: dict[str, Any]
    watermarks: dict[str, int | None] = {}
    idle_inputs: list[str] = []
    processing_time: _Count = 0
    sinks: dict[str, list[dict[str, Any]]] = {}
    extra: dict[str, Any] = {}


class SourceText(_Piece, frozen=True, kw_only=True):
    """A text of `source` whose beginning lies in objects.

    Attributes:
        path: the names under which the rest of it stands in `source`, from the outermost.
        objects: its beginning, in order, as UTF-8.
    """

    path: Annotated[list[str], msgspec.Meta(min_length=1)]
    objects: list[PartRef]


class SourceTexts(_Piece, frozen=True, kw_only=True):
    """All such texts of a checkpoint; `added` and `lost` against its base, as those of parts."""

    texts: list[SourceText]
    added: list[str]
    lost: list[str]


class Manifest(_Snapshot, frozen=True, kw_only=True):
    """A snapshot with all its files.

    Attributes:
        parts: those that the files were listed in, and what texts of `source` lay in; never
            written.
    """

    format: int = MANIFEST_FORMAT
    operators: dict[_Uid, OperatorState]
    parts: list[PartRef] | msgspec.UnsetType = msgspec.UNSET

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
        """All objects that it needs; the manifest's own is not among them."""
        parts = [] if self.parts is msgspec.UNSET else self.parts
        return object_keys(self.handles).union(part.key for part in parts)

    @property
    def bytes_total(self) -> int:
        """The sizes of all files together."""
        return sum(handle.bytes_total for handle in self.handles)

    @property
    def in_one(self) -> "Manifest":
        """The same without its parts, which can be written as one document."""
        return msgspec.structs.replace(self, parts=msgspec.UNSET)


class Root(_Snapshot, frozen=True, kw_only=True):
    """A checkpoint whose files its parts list.

    Attributes:
        base_id: the checkpoint that its upload built on; 0 where it references nothing of another.
        base_listed: whether `lost` and `unsure` of its parts name all that the base references and
            this one does not.
        source_texts: texts of `source` that do not stand there whole.
    """

    format: int = ROOT_FORMAT
    operators: dict[_Uid, OperatorParts]
    base_id: _Count = 0
    base_listed: bool = True
    parts: list[PartEntry] = []
    # Unset and not empty: earlier releases read roots without it.
    source_texts: SourceTexts | msgspec.UnsetType = msgspec.UNSET

    @property
    def added(self) -> frozenset[str]:
        """Shared objects that it was the first to reference, where it has a base."""
        texts = [] if self.source_texts is msgspec.UNSET else self.source_texts.added
        return frozenset(texts).union(*(part.added for part in self.parts))

    @property
    def lost(self) -> frozenset[str]:
        """Shared objects that its base references, and it does not."""
        texts = [] if self.source_texts is msgspec.UNSET else self.source_texts.lost
        return frozenset(texts).union(*(part.lost for part in self.parts))

    @property
    def bytes_total(self) -> int:
        """The sizes of all files together."""
        return sum(part.bytes_total for part in self.parts)

    def ranges(self, uid: str) -> list[RangeInPart]:
        """The ranges of an operator, in order."""
        operator = self.operators[uid]
        stored = operator.stored_uid or uid
        refs = [part.ref for part in self.parts]
        return [
            RangeInPart(uid, one.start, one.end, one.bytes_total, refs[one.part], stored)
            for one in operator.subtasks
        ]


SnapshotRoot = Manifest | Root
"""What is known of a checkpoint or savepoint: all of it, or all but the files in its parts."""


def object_keys(handles: Iterable[RangeHandle]) -> frozenset[str]:
    """Return the keys of all objects that the files of these handles lie in, wholly or in part."""
    return frozenset(file.key for handle in handles for file in handle.files if file.key)


def encode_manifest(manifest: SnapshotRoot) -> bytes:
    """Return the manifest as bytes.

    Raises Bug if it is not complete (every operator's ranges must cover all key groups) or would
    not read back as equal.
    """
    try:
        plain = msgspec.json.encode(manifest, order="deterministic")
        body = msgspec.json.format(plain, indent=2) + b"\n"
        data = sealed(_WORD, manifest.format, body)
        same = decode_snapshot(data, "new manifest") == manifest
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


def decode_snapshot(data: bytes, path: str) -> SnapshotRoot:
    """Return the manifest in `data`, or its root; `path` is where it came from, for errors.

    Raises:
        CorruptState: any byte differs from what was written.
        NewerFormat: a newer or an incompatible Moorage wrote it.
    """
    version, body = unsealed(_WORD, data, "manifest", path, RESTORE_ADVICE)
    manifest: SnapshotRoot
    try:
        if _format_in(body) != version:
            raise CorruptState("manifest contradicts its own header", path, RESTORE_ADVICE)
        require_known_format("manifest", version, ROOT_FORMAT, path)
        if version == ROOT_FORMAT:
            manifest = decode_document(body, Root, "manifest", path)
        else:
            manifest = decode_document(body, Manifest, "manifest", path)
    except UNREADABLE as error:
        raise CorruptState(f"manifest cannot be read ({error})", path, RESTORE_ADVICE) from error
    if problem := _problem(manifest):
        raise UserError(f"manifest is not complete: path={path} problem={problem}; do not use it")
    return manifest


def decode_manifest(data: bytes, path: str) -> Manifest:
    """Return the manifest in `data`, which is one document: that of a savepoint.

    Raises: as `decode_snapshot`; and UserError for the root of a checkpoint.
    """
    manifest = decode_snapshot(data, path)
    if isinstance(manifest, Root):
        raise UserError(
            f"not a savepoint but a checkpoint of a lineage: path={path}; name it as "
            f"<checkpoint directory>/chk-<id>"
        )
    return manifest


def manifest_digest(data: bytes) -> str:
    """Return the digest of an encoded manifest, as log entries carry it."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class _Head(msgspec.Struct):
    """The part of the document that all formats have."""

    format: int


_decode_head = msgspec.json.Decoder(_Head).decode


def _format_in(body: bytes) -> int:
    return _decode_head(body).format


def _problem(manifest: SnapshotRoot) -> str:
    """Return what makes the manifest unusable, or ""."""
    groups = manifest.max_parallelism
    for uid, operator in manifest.operators.items():
        problem = _ranges_problem(uid, operator, groups) or _owners_problem(
            uid, operator.owners, groups
        )
        if problem:
            return problem
    if isinstance(manifest, Root):
        return _parts_problem(manifest)
    if manifest.parts is not msgspec.UNSET:
        return "its files stand in parts"
    return files_problem(manifest.handles)


def _ranges_problem(uid: str, operator: OperatorState | OperatorParts, groups: int) -> str:
    if len(operator.subtasks) != operator.parallelism:
        return f"operator {uid} has {len(operator.subtasks)} of {operator.parallelism} subtasks"
    next_group = 0
    for one in operator.subtasks:
        strange = isinstance(one, RangeHandle) and one.uid != uid
        if strange or one.start != next_group or one.end < one.start:
            return f"operator {uid} has range {one.start}-{one.end} out of place"
        next_group = one.end + 1
    if next_group != groups:
        return f"operator {uid} covers {next_group} of {groups} key groups"
    return ""


def _parts_problem(root: Root) -> str:
    """Every part is of some range, and every range in a part; their sizes add up."""
    sizes = [0] * len(root.parts)
    used: set[int] = set()
    for uid, operator in root.operators.items():
        if operator.stored_uid:
            return f"operator {uid} has another uid in its parts"
        for one in operator.subtasks:
            if one.part >= len(sizes):
                return f"range {uid} {one.start}-{one.end} is in a part that is not there"
            used.add(one.part)
            sizes[one.part] += one.bytes_total
    if len(used) != len(sizes):
        return "a part has no range"
    if sizes != [part.bytes_total for part in root.parts]:
        return "a part has a wrong sum of sizes"
    if root.kind != "checkpoint":
        return "a savepoint has parts"
    _check_keys(root)
    return ""


def _check_keys(root: Root) -> None:
    for part in root.parts:
        for key in (part.key, *part.added, *part.lost, *part.unsure):
            check_key(key)
    if root.source_texts is not msgspec.UNSET:
        refs = [ref.key for text in root.source_texts.texts for ref in text.objects]
        for key in (*refs, *root.source_texts.added, *root.source_texts.lost):
            check_key(key)


def files_problem(handles: Sequence[RangeHandle]) -> str:
    """Return what makes the handles of one object unusable, or ""."""
    for handle in handles:
        if handle.bytes_total != sum(file.size for file in handle.files):
            return f"range {handle.uid} {handle.start}-{handle.end} has a wrong sum of sizes"
        if problem := _deltas_problem(handle):
            return f"range {handle.uid} {handle.start}-{handle.end} {problem}"
    files = [file for handle in handles for file in handle.files]
    inline = sum(file.size for file in files if file.inline is not None)
    if inline > MAX_INLINE_BYTES:
        return f"{inline} bytes are inline, more than {MAX_INLINE_BYTES}"
    return next(filter(None, map(_file_problem, files)), "")


def _deltas_problem(handle: RangeHandle) -> str:
    """What makes its deltas another thing than one for each epoch since the database's, or ""."""
    base = handle.logged
    if base is None:
        return ""
    epochs = [int(file.name[:20]) for file in handle.deltas]
    if epochs != list(range(base.epoch + 1, handle.epoch + 1)):
        return f"has not one delta for each epoch from {base.epoch + 1} to {handle.epoch}"
    return ""


def _owners_problem(uid: str, owners: list[int], groups: int) -> str:
    in_place = sorted({owner for owner in owners if owner < groups})
    return "" if owners == in_place else f"operator {uid} has owners out of place: {owners}"


def _file_problem(file: FileRef) -> str:
    if file.inline is None:
        check_key(file.key)
    elif file.key or file.offset or len(file.inline) != file.size:
        return f"inline file {file.name} has a key, an offset or another size"
    return ""
