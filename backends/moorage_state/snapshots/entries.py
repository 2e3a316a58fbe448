"""The entries of a lineage's log, and their form on disk.

An entry is one line of JSON, closed by a line feed, in exactly this form:

    {"moorage-log":1,"seq":7,"attempt":"...","at":"...","entry":{"kind":...},"sha256":"<64 hex>"}

The digest covers every byte before `,"sha256":"`. The first field (format version) and the last one
(digest of what is before it) stay where they are in every later format, so that a reader can tell a
newer entry from a damaged one. A kind or a field that this release does not know is refused by
name, unless its name says that it is optional (see `formats`). Pure functions; no I/O.
"""

import hashlib
import re
from datetime import datetime
from typing import Annotated, Any, NamedTuple, get_args

import msgspec

from moorage_state.errors import Bug, CorruptState, UserError
from moorage_state.formats import (
    UNREADABLE,
    decode_document,
    is_optional,
    require_known_format,
    unknown_name,
)

LOG_FORMAT = 1

AwareTime = Annotated[datetime, msgspec.Meta(tz=True)]
_Count = Annotated[int, msgspec.Meta(ge=0)]
_Id = Annotated[int, msgspec.Meta(ge=1)]

_VERSION = re.compile(rb'\{"moorage-log":([0-9]{1,9}),')
_TAIL = re.compile(rb',"sha256":"([0-9a-f]{64})"\}\n')
_TAIL_BYTES = len(b',"sha256":""}\n') + 64
_ADVICE = (
    "restore this object from a backup of the checkpoint directory, or start a new lineage in an "
    "empty directory from a savepoint"
)


class _Entry(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag=str.lower
):
    """What all entries share: immutable, and no field that the reader does not know."""


class Owner(_Entry, frozen=True):
    """The job that owns the lineage; two owners are the same job when all but `uid` are equal.

    Attributes:
        uid: which object of that name; a job deleted and made again has another one.
        lineage: the id of the lineage. Empty in what a caller passes; the log's entry has it.
    """

    cluster: str
    namespace: str
    name: str
    uid: str
    lineage: str = ""

    def same_job(self, other: "Owner") -> bool:
        """Whether both are the job of the same cluster, namespace and name."""
        return (self.cluster, self.namespace, self.name) == (
            other.cluster,
            other.namespace,
            other.name,
        )

    def __str__(self) -> str:
        return f"{self.cluster}/{self.namespace}/{self.name} (uid {self.uid})"


class Fence(_Entry, frozen=True):
    """A writer's claim: from this entry on, no writer with a lower fence may append.

    `holder` is who claimed, for people (a host and process, or a pod).
    """

    fence: _Id
    holder: str


class Run(_Entry, frozen=True):
    """A start or rewind of the stream.

    Attributes:
        run: counts the runs under this fence, from 0.
        restored_from: `chk-<id>` or the address of a savepoint; None for an empty start.
        explicit: a person chose `restored_from` (or the empty start): until there is a newer
            checkpoint this is the restore point, whatever older checkpoints there are.
        restore_nonce: one more than the nonce by which the job's manifest asked for that; 0 if
            the manifest did not ask.
        restored_id: the id of a restored savepoint of this lineage, wherever it lay; else 0.
        claimed: the digest of the restored savepoint's manifest, if the job owns it and deletes it
            when its own checkpoints have taken its place; else empty.
        order_id: names the order by which an operator asked for that; empty if none did.
    """

    fence: _Id
    run: _Count
    restored_from: str | None = None
    explicit: bool = False
    restore_nonce: int = 0
    restored_id: _Count = 0
    claimed: str = ""
    order_id: str = ""


class Checkpoint(_Entry, frozen=True):
    """A completed checkpoint: it exists because this entry does.

    `checkpoint_id` grows within the lineage and is never used twice; `epoch` is the last that it
    contains.
    """

    fence: _Id
    run: _Count
    checkpoint_id: _Id
    manifest_key: str
    manifest_digest: str
    epoch: _Count
    completed_at: AwareTime


class Savepoint(_Entry, frozen=True):
    """A savepoint, announced: it exists once the manifest with this digest lies at `url`.

    It is a person's: no retention touches it, no restart looks for it. Its id is from the same
    count as those of checkpoints.
    """

    fence: _Id
    run: _Count
    checkpoint_id: _Id
    url: str
    manifest_digest: str
    epoch: _Count
    completed_at: AwareTime


class Retire(_Entry, frozen=True):
    """The checkpoint no longer exists; its objects may be deleted from this entry on."""

    fence: _Id
    checkpoint_id: _Id


class Released(_Entry, frozen=True):
    """The owner gave the lineage up: another job object of the same name may take it over."""

    fence: _Id
    reason: str = ""


class Finished(_Entry, frozen=True, tag="?finished"):
    """The job's input is used up, and its checkpoints are about to go, as its retention says.

    Without it nobody who comes later could tell such a job from one that lost its checkpoints.
    Earlier releases pass it over: to them all checkpoints were retired.
    """

    fence: _Id


class Compacted(msgspec.Struct, frozen=True):
    """All that the entries before this one still say, so that they need not be read, nor kept.

    What says nothing any more is not among `records` (see `history.compacted`); the others are as
    they were written.

    Attributes:
        base: the number where the log began when this was written; 0 for its very first entry.
        cleared: entries with lower numbers were deleted by then.
    """

    fence: int
    base: int
    cleared: int
    past: "Past"
    records: tuple["Record", ...]


class Past(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The checkpoints that were compacted away, where something that is there descends from them.

    `links` has, for checkpoints, savepoints and where runs began: its id, the point before it that
    is among the records or links, 0 for none, and the ranges of ids between the two, both ends
    included. `forgotten` are savepoints with a link and no record: somebody may have them still.
    """

    links: tuple[tuple[int, int, tuple[tuple[int, int], ...]], ...] = ()
    forgotten: tuple[int, ...] = ()


class Moved(_Entry, frozen=True):
    """A mark beside the log: it begins with a later entry, and those before that may be deleted.

    Never an entry; its own number is where the log begins now.

    Attributes:
        base: where it began before; 0 for its very first entry.
    """

    fence: _Id
    base: _Count


class Forgotten(_Entry, frozen=True, tag="?forgotten"):
    """The savepoint does not lie where it was put any more: nobody looks for it again.

    Earlier releases pass it over: they look for it once in each process.
    """

    fence: _Id
    checkpoint_id: _Id


class Rescaled(_Entry, frozen=True, tag="?rescaled"):
    """From here on the job has another number of subtasks: the point of no return of a rescale.

    What follows is of run `run` or of later ones, and of the new layout only. Earlier releases pass
    it over: they start with what the job's manifest says, from any checkpoint.

    Attributes:
        run: the first run with the new layout; with the fence, its token.
        checkpoint_id: what that run begins from; 0 for none of this lineage.
        parallelism: of every operator from now on.
        declared: what the manifest of the job said at the time: a start whose manifest says
            something else follows its manifest.
    """

    fence: _Id
    run: _Count
    checkpoint_id: _Count
    parallelism: _Id
    declared: _Id


class Unknown(msgspec.Struct, frozen=True):
    """An optional entry of a kind that this release does not know: passed over by all who read."""

    kind: str
    fields: dict[str, Any]


_Known = (
    Owner
    | Fence
    | Run
    | Checkpoint
    | Savepoint
    | Retire
    | Released
    | Finished
    | Moved
    | Forgotten
    | Rescaled
)
Entry = _Known | Compacted | Unknown

_KINDS = frozenset(kind.__struct_config__.tag for kind in get_args(_Known))
_COMPACTED = "compacted"


class Record(NamedTuple):
    """An entry with what the log adds: its number, from 1 without gaps, and who wrote it when.

    `at` has a time zone, and is by the writer's clock.
    """

    seq: int
    # By it a writer knows its own entry after a lost reply.
    attempt: str
    at: datetime
    entry: Entry


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The line without its digest."""

    version: int = msgspec.field(name="moorage-log")
    seq: _Id
    attempt: str
    at: AwareTime
    entry: msgspec.Raw


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A record within a compacted entry."""

    seq: _Id
    attempt: str
    at: AwareTime
    entry: msgspec.Raw


class _Lines(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag=_COMPACTED
):
    """A compacted entry as it is stored."""

    fence: _Id
    base: _Count
    cleared: _Count
    past: Past
    records: tuple[_Line, ...]


def encode_record(record: Record) -> bytes:
    """Return the bytes of one log object. Raises Bug if they would not read back as equal."""
    entry = record.entry
    try:
        body = _Body(LOG_FORMAT, record.seq, record.attempt, record.at, _encode_entry(entry))
        head = msgspec.json.encode(body)[:-1]
        data = head + b',"sha256":"' + hashlib.sha256(head).hexdigest().encode() + b'"}\n'
        same = decode_record(data, "new entry") == record
    except (TypeError, ValueError, OverflowError, CorruptState, UserError) as error:
        raise Bug(f"log entry cannot be written: entry={entry!r} error={error}") from error
    if not same:
        raise Bug(f"log entry would read back differently: entry={entry!r}")
    return data


def decode_record(data: bytes, path: str) -> Record:
    """Return the record in `data`, the whole object at `path`.

    Raises:
        CorruptState: any byte differs from what was written.
        NewerFormat: a newer Moorage wrote it, and it may not be passed over.
    """
    head, tail = data[:-_TAIL_BYTES], data[-_TAIL_BYTES:]
    digest = _TAIL.fullmatch(tail)
    if digest is None or hashlib.sha256(head).hexdigest().encode() != digest[1]:
        raise CorruptState("log entry does not match its checksum", path, _ADVICE)
    version = _VERSION.match(head)
    if version is None:
        raise CorruptState("object is not a log entry", path, _ADVICE)
    require_known_format("log entry", int(version[1]), LOG_FORMAT, path)
    try:
        body = decode_document(head + b"}", _Body, "log entry", path)
        return Record(body.seq, body.attempt, body.at, _decode_entry(bytes(body.entry), path))
    except UNREADABLE as error:
        raise CorruptState(f"object is not a log entry ({error})", path, _ADVICE) from error


class _Kind(msgspec.Struct):
    """The part that all entries have."""

    kind: str


def _encode_entry(entry: Entry) -> msgspec.Raw:
    plain: Any = entry
    if isinstance(entry, Unknown):
        plain = {"kind": entry.kind, **entry.fields}
    elif isinstance(entry, Compacted):
        lines = (_Line(r.seq, r.attempt, r.at, _encode_entry(r.entry)) for r in entry.records)
        plain = _Lines(entry.fence, entry.base, entry.cleared, entry.past, tuple(lines))
    return msgspec.Raw(msgspec.json.encode(plain, order="deterministic"))


def _decode_entry(raw: bytes, path: str) -> Entry:
    kind = decode_document(raw, _Kind, "log entry", path).kind
    if kind == _COMPACTED:
        found_lines = decode_document(raw, _Lines, "log entry", path)
        records = (
            Record(line.seq, line.attempt, line.at, _decode_entry(bytes(line.entry), path))
            for line in found_lines.records
        )
        whole = found_lines
        return Compacted(whole.fence, whole.base, whole.cleared, whole.past, tuple(records))
    if kind in _KINDS:
        found: Entry = decode_document(raw, _Known, "log entry", path)  # type: ignore[arg-type]  # mypy takes no union for a type
        return found
    if not is_optional(kind):
        raise unknown_name("log entry", f"kind={kind}", path)
    fields = msgspec.json.decode(raw, type=dict[str, Any])
    del fields["kind"]
    return Unknown(kind, fields)
