"""The lineage's log: who owns the lineage, who may write, which checkpoints exist.

An entry is created under the next free number with put-if-absent, and only by a writer that has
read all entries before it. So the log has no gaps, entries never change, and a writer that another
one has overtaken finds that out at its next put, however long it was asleep. Listings only hint at
where the end is; the put decides.
"""

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from moorage_state import failpoints
from moorage_state.errors import (
    AlreadyExists,
    Bug,
    CorruptState,
    Fenced,
    ObjectNotFound,
    StoreUnavailable,
    UserError,
)
from moorage_state.formats import unknown_name
from moorage_state.snapshots.entries import (
    Entry,
    Fence,
    Owner,
    Record,
    Unknown,
    decode_record,
    encode_record,
)
from moorage_state.snapshots.history import current_fence, current_owner, is_released
from moorage_state.snapshots.object_keys import LOG_PREFIX, is_log_key, log_key, log_seq
from moorage_state.stores import ObjectStore

Clock = Callable[[], datetime]
NewId = Callable[[], str]


class NotOwner(UserError):
    """The lineage belongs to another job."""

    code = "checkpoint_dir_conflict"


class AdoptionNeeded(NotOwner):
    """The lineage belongs to another object of the job's name that did not release it."""

    code = "adopt_required"


def utc_now() -> datetime:
    """Return the present time, aware, in UTC."""
    return datetime.now(UTC)


def random_id() -> str:
    """Return an id that nobody else has."""
    return uuid.uuid4().hex


class LineageLog:
    """Reading a lineage's log; anyone may, at any time."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @classmethod
    def open(cls, store: ObjectStore) -> "LineageLog":
        """Return the log in this store; reads nothing yet."""
        return cls(store)

    def read(self) -> list[tuple[int, Entry]]:
        """Return all entries with their numbers, in order; an empty list for a new lineage.

        Raises:
            CorruptState: an entry is damaged, missing in the middle, or the whole log is missing
                beside checkpoints that it must have named.
            UserError: a newer Moorage wrote an entry, or something foreign lies in the log.
            StoreUnavailable: the store does not answer.
        """
        return [(record.seq, record.entry) for record in self.read_records()]

    def read_records(self, after: int = 0) -> list[Record]:
        """Like `read`, with attempts and times; only the entries numbered above `after`."""
        return list(self.each_record(after))

    def each_record(self, after: int = 0) -> Iterator[Record]:
        """Like `read_records`, one by one: what follows one may be of a kind that is refused."""
        listed = self._listed(after)
        end = after
        while (record := self.read_one(end + 1)) is not None:
            yield record
            end = record.seq
        later = [seq for seq in listed if seq > end]
        if later:
            # It may say itself why those before it are not there, to who knows its kind.
            self.read_one(min(later))
            raise CorruptState(
                f"log entry is missing although entry {max(later)} exists",
                self._path(end + 1),
                "restore it from a backup of the checkpoint directory",
            )
        if end == 0:
            self._check_really_new()

    def read_one(self, seq: int) -> Record | None:
        """Return the entry with this number, or None if there is none (yet)."""
        path = self._path(seq)
        try:
            record = decode_record(self._store.get(log_key(seq)), path)
        except ObjectNotFound:
            return None
        if record.seq != seq:
            raise CorruptState(
                f"log entry {record.seq} lies under another number",
                path,
                "restore the log from a backup of the checkpoint directory",
            )
        return record

    def _listed(self, after: int) -> list[int]:
        found = []
        for info in self._store.list(LOG_PREFIX, log_key(after) if after else ""):
            seq = log_seq(info.key)
            if seq is not None:
                found.append(seq)
            elif is_log_key(info.key):
                name = info.key.removeprefix(LOG_PREFIX)
                raise unknown_name("log", f"object={name}", f"{self._store.url}/{LOG_PREFIX}")
            else:
                raise UserError(
                    f"unexpected object in the log: path={self._store.url}/{info.key}; "
                    "move it away, only moorage writes there"
                )
        return found

    def _check_really_new(self) -> None:
        """A lineage with checkpoints has a log; without one it must not start empty."""
        for prefix in ("chk-", "shared/"):
            found = next(iter(self._store.list(prefix)), None)
            if found is not None:
                raise CorruptState(
                    f"the log is missing beside objects of checkpoints, such as {found.key}",
                    f"{self._store.url}/{LOG_PREFIX}",
                    "restore the log from a backup, or use an empty directory for a new lineage",
                )

    def _path(self, seq: int) -> str:
        return f"{self._store.url}/{log_key(seq)}"


class LogWriter:
    """The one writer of a lineage, from its claim until another one claims a higher fence.

    Made by `claim`. Safe to use from several threads. Once Fenced is raised every further call
    raises it.
    """

    def __init__(
        self, store: ObjectStore, records: Sequence[Record], clock: Clock, new_id: NewId
    ) -> None:
        """Private: use `claim`."""
        self._store = store
        self._log = LineageLog(store)
        # Replaced and never changed, so that it can be read without the lock.
        self._records = tuple(records)
        self._clock = clock
        self._new_id = new_id
        self._lock = threading.RLock()
        self._fence = 0
        self._in_doubt: Record | None = None
        self._fenced_because: str | None = None
        self._on_fenced: Callable[[str], object] | None = None

    @classmethod
    def claim(
        cls,
        store: ObjectStore,
        owner: Owner,
        holder: str,
        *,
        adopt: str = "",
        clock: Clock = utc_now,
        new_id: NewId = random_id,
        fenced: Callable[[str], object] | None = None,
    ) -> "LogWriter":
        """Become the writer: read the log, check the owner, and append the next fence.

        A new lineage gets `owner` as its owner. A released one goes to another `uid` of the same
        job, as does one that was not released when `adopt` is its id.

        Args:
            owner: the job that wants to write; its `lineage` is ignored.
            holder: who this writer is, in words for people.
            fenced: called once, with the reason, when a higher fence shows, by the thread that
                came upon it and before `Fenced` is raised.

        Raises:
            NotOwner: the lineage belongs to another job.
            AdoptionNeeded: it belongs to another uid that did not release it.
            StoreUnavailable: the store does not answer. The claim may have been written; claiming
                again takes the next fence, which is always right.
            CorruptState, UserError: see `LineageLog.read`.
        """
        writer = cls(store, LineageLog.open(store).read_records(), clock, new_id)
        writer._on_fenced = fenced
        while writer._fence == 0:
            entry = _next_claim(writer.entries, owner, holder, adopt=adopt, new_id=new_id)
            record = writer._next_record(entry)
            writer._put(record, encode_record(record))
            if isinstance(entry, Fence) and writer._has(record):
                writer._fence = entry.fence
        return writer

    @property
    def fence(self) -> int:
        """The fence of this writer."""
        return self._fence

    @property
    def owner(self) -> Owner:
        """The owner in the log, with the id of the lineage."""
        owner = current_owner(self.entries)
        if owner is None:
            raise Bug("log has no owner after a claim")
        return owner

    @property
    def lineage(self) -> str:
        """The id of the lineage; another directory never has the same."""
        return self.owner.lineage

    @property
    def entries(self) -> list[Entry]:
        """All entries this writer knows of, in order: up to its own last one at least."""
        return [record.entry for record in self._records]

    @property
    def possible_entries(self) -> list[Entry]:
        """Like `entries`, with the one in doubt as if it were there: what it names must be kept.

        An entry that is appended later, by whatever is decided with these, comes after it.
        """
        doubtful = self._in_doubt  # before the entries: it moves from here to there
        records = self._records
        if doubtful is not None and all(r.attempt != doubtful.attempt for r in records[-2:]):
            return [*(record.entry for record in records), doubtful.entry]
        return [record.entry for record in records]

    def append(self, entry: Entry) -> int:
        """Append `entry` durably and return its number.

        After StoreUnavailable the entry may or may not be in the log: what it names must be kept.
        Appending an equal entry again settles that without a second copy; any other append settles
        it first, by writing it if it is not there.

        Raises:
            Fenced: another writer claimed a higher fence. `entry` was not appended.
            StoreUnavailable: the store does not answer.
        """
        with self._lock:
            self._check_own(entry)
            settled = self.settle()
            if settled is not None and settled.entry == entry:
                return settled.seq
            return self._append(self._next_record(entry)).seq

    def settle(self) -> Record | None:
        """Bring an entry in doubt into the log and return it; None if there is none.

        Raises like `append`.
        """
        with self._lock:
            self._check_fence()
            return self._append(self._in_doubt) if self._in_doubt else None

    def refresh(self) -> None:
        """Read what others appended. Raises Fenced as soon as a higher fence is claimed."""
        with self._lock:
            self._check_fence()
            # One by one: who took over may have gone on with what this release does not know.
            for record in self._log.each_record(after=len(self._records)):
                self._learn([record])

    def watch(self) -> None:
        """Like `refresh`, from a thread of its own: nobody waits while it reads."""
        with self._lock:
            self._check_fence()
            known = len(self._records)
        if next(self._log.each_record(after=known), None) is not None:
            self.refresh()

    def _append(self, record: Record) -> Record:
        """Put `record`, under later numbers when others came first (a claimer names its owner)."""
        while True:
            data = encode_record(record)
            self._in_doubt = record
            if record.seq > len(self._records):
                self._put(record, data)
            if self._has(record):
                self._in_doubt = None
                return record
            record = record._replace(seq=len(self._records) + 1)

    def _has(self, record: Record) -> bool:
        """Whether the entry under the number of `record`, which is known, is that very record."""
        # The attempt id tells our own entry from another's when the reply to an earlier put of it
        # was lost. Such a put can only have taken the number it was sent with, so a foreign entry
        # under that number proves that it failed.
        return self._records[record.seq - 1].attempt == record.attempt

    def _put(self, record: Record, data: bytes) -> None:
        """Put `record` at the end; afterwards the entry that lies there, ours or not, is known."""
        failpoints.hit("log.before_put")
        try:
            self._store.put_if_absent(log_key(record.seq), data)
        except AlreadyExists as error:
            found = self._log.read_one(record.seq)
            if found is None:
                raise StoreUnavailable(
                    f"log entry exists and cannot be read: store={self._store.url} "
                    f"seq={record.seq}; try again"
                ) from error
            self._learn([found])
            return
        self._learn([record])
        failpoints.hit("log.after_put")

    def _learn(self, records: Sequence[Record]) -> None:
        self._records = (*self._records, *records)
        for record in records:
            entry = record.entry
            if self._fence and isinstance(entry, Fence) and entry.fence > self._fence:
                self._in_doubt = None
                self._fenced_because = (
                    f"another writer took over: store={self._store.url} fence={entry.fence} "
                    f"holder={entry.holder!r} own_fence={self._fence}; end this process, the other "
                    "one goes on"
                )
        self._check_fence()

    def _next_record(self, entry: Entry) -> Record:
        return Record(len(self._records) + 1, self._new_id(), self._clock(), entry)

    def _check_own(self, entry: Entry) -> None:
        if isinstance(entry, Fence | Owner):
            raise Bug(f"only a claim writes this entry: entry={entry!r}")
        if not isinstance(entry, Unknown) and entry.fence != self._fence:
            raise Bug(f"entry carries another fence: entry={entry!r} own_fence={self._fence}")

    def _check_fence(self) -> None:
        if self._fenced_because is not None:
            tell, self._on_fenced = self._on_fenced, None
            if tell is not None:
                tell(self._fenced_because)
            raise Fenced(self._fenced_because)


def _next_claim(
    entries: Sequence[Entry], owner: Owner, holder: str, *, adopt: str, new_id: NewId
) -> Owner | Fence:
    """Return the entry that a claim must append next: the owner, where it changes, or the fence."""
    present = current_owner(entries)
    if present is None:
        return _owned(owner, new_id())
    if not present.same_job(owner):
        raise NotOwner(
            f"checkpoint directory belongs to another job: owner={present} asking={owner}; "
            "give each job its own directory"
        )
    if is_released(entries) or (present.uid != owner.uid and adopt == present.lineage):
        return _owned(owner, present.lineage)
    if present.uid != owner.uid:
        raise AdoptionNeeded(
            f"checkpoint directory belongs to another object of the same name that did not "
            f"release it: owner={present} asking={owner} lineage={present.lineage}; make sure "
            "that it is gone, then adopt the lineage explicitly, by this id"
        )
    fence = current_fence(entries)
    return Fence((fence.fence if fence else 0) + 1, holder)


def _owned(owner: Owner, lineage: str) -> Owner:
    return Owner(owner.cluster, owner.namespace, owner.name, owner.uid, lineage)
