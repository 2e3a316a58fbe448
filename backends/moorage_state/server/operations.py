"""What is asked of a state server and of its ranges, and what comes back.

`StateApi` and `RangeApi` are the only place where an operation is declared: `wire` makes from them
how a call is encoded, `client` the methods that tasks and the driver call, `service` what a request
leads to; `RangeHost` and `OpenRange` carry it out. Arguments go by position: that is how they cross
the wire. Holds no behaviour.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from moorage_state.canonicalspec import CanonicalSpec
from moorage_state.database import Scan
from moorage_state.keylayout import EVENT_TIMERS
from moorage_state.snapshots import (
    MAX_INLINE_BYTES,
    FileRef,
    PartEntry,
    PartRef,
    RangeHandle,
)


class Version(NamedTuple):
    """What a range holds: everything up to `epoch`, ending with the delta `digest`.

    After another run's restore the digest is empty.
    """

    epoch: int
    digest: str


SnapshotWay = Literal["copy", "log", "log and copy"]
"""How a checkpoint is taken: as a copy; with a changelog by reference to deltas; also with a copy
that is to be materialized."""

COPY: SnapshotWay = "copy"


class Lease(NamedTuple):
    """Names an open range: the one of operator `uid` that begins at `start`, which `run` holds."""

    uid: str
    start: int
    run: str


@dataclass(frozen=True, slots=True)
class RangeSpec:
    """The key groups `start` to `end`, both included, of the operator `uid`."""

    uid: str
    start: int
    end: int

    def lease(self, run: str) -> Lease:
        """What names this range once `run` has opened it."""
        return Lease(self.uid, self.start, run)


@dataclass(frozen=True, slots=True)
class RestoreBase:
    """A completed checkpoint to begin from.

    `handles` and the handles in `parts` are those that overlap the range that is opened: one for
    the same parallelism, several after a rescale, none for an operator that the checkpoint does not
    know.

    Attributes:
        handles: of a checkpoint whose manifest is one document.
        parts: of any other; they may list other ranges too.
        stored_uid: what parts call the operator; empty: as the range does.
        builds: checkpoints that list a log may reference what this one does.
    """

    checkpoint_id: int
    epoch: int
    handles: list[RangeHandle]
    parts: list[PartRef] = field(default_factory=list)
    stored_uid: str = ""
    builds: bool = False


@dataclass(frozen=True, slots=True)
class OpenResult:
    """`source` is where the files came from; `live` when it was open, and was brought to `version`.

    `bytes_restored` is what was fetched or copied; of a live one, the size of deltas undone.
    """

    version: Version
    source: Literal["empty", "local", "store", "live"]
    bytes_restored: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Prepared:
    """A finished delta: its digest, its number of writes and the size of its file."""

    digest: str
    operations: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SnapshotSync:
    """The part of a checkpoint that an epoch waits for; `bytes` is the size of all its files.

    `seconds` includes `flush_seconds`, in which what was written came to files.
    """

    bytes: int
    seconds: float
    flush_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class UploadLimits:
    """What is too small for an object of its own; all in bytes.

    Attributes:
        inline_range: a range whose files are together smaller than this goes into the part.
        inline_file: so does a private file (not an SST file) up to this size.
        inline_total: what one call may put into its part; what would exceed it is packed.
        merge_below: smaller files of all ranges are packed into common objects.
        pack: the greatest size of such an object; one is held in memory by each upload thread.
        max_state_size: what a range may have where all of it goes into its handle, whatever the
            others say; None where it does not.
    """

    inline_range: int = 20_000
    # Between RocksDB's MANIFEST of a small database and its OPTIONS, of which all ranges have the
    # same 8 KB: packed it is stored once, inline as often as there are ranges.
    inline_file: int = 4096
    inline_total: int = MAX_INLINE_BYTES
    merge_below: int = 1 << 20
    pack: int = 16 << 20
    max_state_size: int | None = None


@dataclass(frozen=True, slots=True)
class UploadRequest:
    """One range to upload; see `StateApi.upload_many` for the base.

    Attributes:
        base_files: those of a base whose manifest is one document.
        stored_uid: what the parts of the base call the operator; empty: as the range does.
    """

    uid: str
    start: int
    base_files: list[FileRef]
    stored_uid: str = ""


class WrittenRange(NamedTuple):
    """A range in a part, `end` included."""

    uid: str
    start: int
    end: int
    bytes_total: int


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """What the upload of a checkpoint wrote, without its files: those a part lists.

    Attributes:
        ranges: in the order of the requests.
        backend: the identifier of the backend whose files they are.
        bytes_written: what went into objects, the part left out.
        bytes_inline: what stands in the part itself.
        attempts: at writing objects: one for each, and one for each request that was repeated.
    """

    part: PartEntry
    ranges: list[WrittenRange]
    backend: str
    objects: int
    bytes_written: int
    bytes_inline: int
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class Uploaded:
    """What the copy of a savepoint wrote: handles in the order of the specs, objects, and bytes.

    `bytes_written` counts what went into objects, `bytes_inline` what stands in the handles,
    `attempts` what `WrittenPart` has of them; 0 where nobody counted, as in a canonical savepoint.
    """

    handles: list[RangeHandle]
    objects: int
    bytes_written: int
    bytes_inline: int
    attempts: int = 0


@dataclass(frozen=True, slots=True)
class RangeStats:
    """A look at one open range that never waits for it.

    `size_bytes` approximates the live state (files, where there are any). `error` is why the
    range refuses requests until it is opened again, empty when it works. `busy` tells that the
    figures are from an earlier look because the range was at work.
    """

    uid: str
    start: int
    end: int
    run: str
    version: Version
    size_bytes: int
    properties: dict[str, int] = field(default_factory=dict)
    error: str = ""
    busy: bool = False


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """What the ranges of a server are together, by looks that never wait.

    Attributes:
        state_bytes: their live state, about.
        sizes: of each range its operator's uid, its first key group and its live state.
        crowded: so much of a volume is taken by what no checkpoint has that it is time for one.
    """

    state_bytes: int = 0
    crowded: bool = False
    sizes: list[tuple[str, int, int]] = field(default_factory=list)


class Found(NamedTuple):
    """Values at the last committed version, whose epoch is named; None where absent.

    Fewer than were asked for where a limit, or another epoch that was committed meanwhile, cut them
    off: never values of two versions.
    """

    epoch: int
    values: list[bytes | None]


class FoundUnder(NamedTuple):
    """Entries under a prefix at the last committed version, whose epoch is named; see `Found`."""

    epoch: int
    scan: Scan


class Call(NamedTuple):
    """A call that is made together with others: an operation, and its range where it is of one.

    Operations that move bulk (`wire.BULK_ARGUMENTS`) are called alone.
    """

    operation: str
    arguments: tuple[Any, ...] = ()
    lease: Lease | None = None


class RangeApi(Protocol):
    """Everything that can be asked of an open range, at a version: `VersionMismatch` at any other.

    But for what begins with `look_`: that is for who does not follow the epochs.

    Every method raises `StaleLease` when the run does not hold the range here (another run took
    it, it was released, or the server restarted and it must be opened again), and the error that
    put the range out of work if there was one.
    """

    def get_many(self, version: Version, keys: list[bytes], /) -> list[bytes | None]:
        """The values of `keys` in their order, None where absent; fastest for sorted keys."""

    def scan_many(
        self,
        version: Version,
        prefixes: list[bytes],
        limit_entries: int = 10_000,
        limit_bytes: int = 64 << 20,
        /,
    ) -> list[Scan]:
        """What is stored under each prefix, in key order.

        At most `limit_entries` a prefix and about `limit_bytes` in all: prefixes beyond that come
        back empty and incomplete.
        """

    def scan_from(
        self,
        version: Version,
        prefix: bytes,
        after: bytes = b"",
        limit: int = 10_000,
        /,
    ) -> Scan:
        """At most `limit` entries under `prefix` with keys greater than `after`.

        And no more than reach 8 MiB, but for one. What is not `complete` goes on.
        """

    def due_timers(
        self,
        version: Version,
        up_to_ms: int,
        limit: int,
        after: bytes = b"",
        kind: int = EVENT_TIMERS,
        /,
    ) -> list[bytes]:
        """Stored keys of timers with time <= `up_to_ms`, by key group, time and key.

        At most `limit`, beginning after the stored key `after`.
        """

    def next_timer(self, version: Version, after_ms: int, kind: int, /) -> int | None:
        """The earliest time, later than `after_ms`, of a stored timer of this kind; None if none.

        Raises:
            VersionMismatch: the range is not at `version`.
        """

    def stage(self, epoch: int, attempt: str, frame: bytes, seq: int, /) -> None:
        """Append a frame (of `deltas.encode_frame`) to an attempt's delta; `seq` counts from 0.

        A client may pipeline this: an error then surfaces in `prepare`.
        """

    def prepare(
        self,
        epoch: int,
        attempt: str,
        parent_digest: str,
        frame_count: int,
        /,
    ) -> Prepared:
        """Finish an attempt's delta. Changes no committed state; repeating it is harmless.

        Raises:
            VersionMismatch: the range has moved on from `parent_digest`.
            Retryable: not all frames are here: stage them again under another attempt.
            LocalDiskError: the volume is full; the attempt is gone, the range is unharmed.
        """

    def abort(self, epoch: int, attempt: str, /) -> None:
        """Forget an attempt; idempotent. A delta that another attempt also made stays."""

    def commit(
        self,
        epoch: int,
        digest: str,
        wait: bool = False,  # noqa: FBT001, FBT002  positional, as all are
        /,
    ) -> None:
        """Make a prepared delta the state of the range; idempotent.

        Returns when the delta is accepted; it is applied in the background, or before this
        returns with `wait`. The next read waits for it, and an error of applying it is raised by
        the next call on the range.

        Raises:
            VersionGone: the delta is not on this volume.
            VersionMismatch: it continues another version than the one here.
            Bug: another delta was committed for this epoch.
        """

    def look_up(self, cells: list[bytes], limit_bytes: int, /) -> Found:
        """Values of stored keys, at least one, as the last committed epoch left them.

        Nobody else waits for it longer than some milliseconds.
        """

    def look_under(
        self, prefix: bytes, after: bytes, limit_entries: int, limit_bytes: int, /
    ) -> FoundUnder:
        """At most so many entries under `prefix` beyond the key `after`; see `look_up`."""

    def snapshot(
        self,
        checkpoint_id: int,
        version: Version,
        way: SnapshotWay = COPY,
        base_id: int = 0,
        /,
    ) -> SnapshotSync:
        """Copy the range as it is at `version`; epochs may go on when this returns.

        With another way than COPY the checkpoint lists files that were materialized before, and
        the deltas since, as far as the checkpoint that it builds on does, `base_id`. Where the
        range did not hear that this is complete, or there is none, it is a copy all the same.
        """


class StateApi(Protocol):
    """Everything that can be asked of a state server.

    Methods that name ranges or their run raise what every method of `RangeApi` does.
    """

    def ping(self) -> int:
        """The process id of the server."""

    def adopt(self, lineage: str, /) -> bool:
        """Make the local directory that of `lineage`: what another one left there is deleted.

        Idempotent; returns whether anything was deleted. Not needed for a directory that only one
        lineage ever uses. Raises `Retryable` while a range of the other one is open in a server.
        """

    def local_copies(self, checkpoint_id: int, /) -> list[tuple[RangeSpec, int]]:
        """The ranges, open or not, of which the volume has a copy, and that copy's checkpoint.

        The newest one up to `checkpoint_id`: with a changelog a checkpoint begins with the copy of
        an earlier one. No file of it was read: whoever opens one of these ranges does, and takes
        what is right.
        """

    def open_range(
        self,
        spec: RangeSpec,
        run: str,
        base: RestoreBase | None,
        committed: list[Version],
        store_url: str,
        initial_epoch: int = 0,
        /,
    ) -> OpenResult:
        """Take the lease for `run` and bring the range to the last of `committed`.

        Starts from `base` (or empty, at version `(initial_epoch, "")`) and applies the deltas of
        `committed`, which are those of this run after the base, in order. The version of a base
        is `(base.epoch, "")`, or what it was when this very run took that checkpoint of this very
        range, so that the run's later deltas continue it. An older run that held any of these key
        groups here is shut out; its database is closed, or goes on under `run` where it has, or
        can be taken back to, the state of `base`.

        Raises:
            StaleLease: a newer run holds the range.
            VersionGone: a committed delta is not whole on this volume: rewind the job.
            CorruptState: the checkpoint in the store is damaged; names the object.
            Retryable: another server process still has the range open; StoreUnavailable likewise.
        """

    def range(self, lease: Lease, /) -> RangeApi:
        """An open range, to call; where it is served from afar only its methods ask the server."""

    def upload_many(
        self,
        run: str,
        checkpoint_id: int,
        store_url: str,
        requests: list[UploadRequest],
        limits: UploadLimits,
        base: list[PartRef] | None = None,
        /,
    ) -> WrittenPart:
        """Bring snapshots to the store, beside running epochs; takes as long as it takes.

        The base is a retained checkpoint that was notified complete, by the `base_files` of each
        request or its parts that list what overlaps these ranges: SST files with the content of its
        files are not uploaded again. Small files of all the requests go into common objects or into
        the part that is written last, see `UploadLimits`. No object is ever written over; after an
        error what was written is garbage for the sweep.

        Raises:
            CorruptState: a part of the base is missing or damaged.
            Retryable: a snapshot was aborted, or is not on this volume any more.
            StoreUnavailable: the store does not take it.
        """

    def persist_many(
        self,
        run: str,
        store_url: str,
        ranges: list[RangeSpec],
        limits: UploadLimits,
        least_bytes: int,
        /,
    ) -> Uploaded:
        """Bring committed deltas that no checkpoint lists to the store, if they are so many bytes.

        So the next checkpoint need not. Raises as `upload_many`.
        """

    def materialize_many(
        self,
        run: str,
        checkpoint_id: int,
        store_url: str,
        ranges: list[RangeSpec],
        limits: UploadLimits,
        /,
    ) -> Uploaded:
        """Bring the copies that were taken with this checkpoint, which listed a log, to the store.

        The next checkpoint of each range begins with them. Nothing of them is in the answer but
        what they cost. Raises as `upload_many`.
        """

    def save_many(
        self,
        run: str,
        checkpoint_id: int,
        store_url: str,
        specs: list[CanonicalSpec],
        canonical: bool,  # noqa: FBT001  positional, as all are
        /,
    ) -> Uploaded:
        """Bring the snapshots of ranges into a savepoint's own directory, which is `store_url`.

        Nothing outside of it is referenced. Canonical files, or the backend's own. Runs beside
        running epochs; takes as long as it takes.

        Raises:
            CorruptState: a local file is damaged, or holds what `specs` do not declare.
            LocalDiskError: the local volume is full; canonical files are written there first.
            Retryable: a snapshot was aborted, or is not on this volume any more.
            StoreUnavailable: the store does not take it.
        """

    def union_list(self, uid: str, name: str, version: str, /) -> bytes | None:
        """What was brought as this version of a union list of an operator.

        None: the caller is to bring it, by `keep_union_list`. Who asks meanwhile waits for that,
        for some seconds at most, and is then told the same.
        """

    def keep_union_list(self, uid: str, name: str, version: str, content: bytes, /) -> None:
        """Hold this version of a union list, and no other of it, for the tasks that ask."""

    def notify_complete(self, checkpoint_id: int, run: str = "", /) -> None:
        """Drop older local copies and the deltas this checkpoint contains, of `run` or of all.

        With `run` also ranges that the volume has from older ones, and that are open nowhere.
        """

    def notify_aborted(self, checkpoint_id: int, run: str = "", /) -> None:
        """Stop uploads of this checkpoint and drop its local copies, of `run` or of all."""

    def release_range(self, lease: Lease, /) -> None:
        """Close the range and give up its lease; files stay. Idempotent."""

    def stats(self) -> list[RangeStats]:
        """A look at every open range, ordered by uid and start."""

    def load(self) -> ServerLoad:
        """A look at all open ranges together; never waits for one."""
