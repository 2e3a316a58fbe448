"""Writing a lineage's log: who owns the lineage, who may write, which checkpoints exist.

An entry is created under the next free number with put-if-absent, and only by a writer that has
read all entries before it. So the log has no gaps, entries never change, and a writer that another
one has overtaken finds that out at its next put, however long it was asleep. Listings only hint at
where the end is; the put decides.

So that nobody has to read all that ever was, the holder of the fence puts the log together: an
entry says what those before it still say, a mark says that the log begins there, and what lies
before is deleted. A put under a number that was deleted would succeed: so a put counts only when
afterwards there is no mark yet at the beginning that its writer knows. Beside the log lies a copy
of what it says as of a few entries ago, which is never more than a place to begin from.
"""

import contextlib
import threading
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from moorage_state import failpoints
from moorage_state.errors import (
    AlreadyExists,
    Bug,
    CorruptState,
    Fenced,
    StoreUnavailable,
    UserError,
)
from moorage_state.snapshots.entries import (
    Checkpoint,
    Compacted,
    Entry,
    Fence,
    Moved,
    Owner,
    Record,
    Savepoint,
    Unknown,
    encode_record,
)
from moorage_state.snapshots.history import (
    compacted,
    current_fence,
    current_owner,
    is_released,
    rescaled,
)
from moorage_state.snapshots.lineage_log import LineageLog, View, alone
from moorage_state.snapshots.object_keys import (
    VIEW_KEY,
    log_key,
    moved_key,
)
from moorage_state.stores import ObjectStore, delete_all

VIEW_EVERY = 8
"""Entries after which the copy is written anew: as many may have to be read one by one."""

COMPACT_EVERY = 4096
"""Entries after which the log begins anew: each beginning leaves a mark for good."""

_DELETES_AT_ONCE = 1000

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


class _MovedOn(Exception):
    """The log says something else by now than a claim that is under way has read."""


class LogWriter:
    """The one writer of a lineage, from its claim until another one claims a higher fence.

    Made by `claim`. Safe to use from several threads. Once Fenced is raised every further call
    raises it.
    """

    def __init__(self, store: ObjectStore, view: View, clock: Clock, new_id: NewId) -> None:
        """Private: use `claim`."""
        self._store = store
        self._log = LineageLog(store)
        # Replaced and never changed, so that it can be read without the lock.
        self._records = view.records
        self._end, self._base, self._cleared = view.end, view.base, view.cleared
        self._copied = max((r.seq for r in view.records if _is_compacted(r)), default=0)
        # The last entry of its own that puts the log together.
        self._together = 0
        # Of the last entry, and all since the one in doubt: that is there if its number has its
        # attempt.
        self._attempts: dict[int, str] = {}
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
        while True:
            writer = cls(store, LineageLog.open(store).view(), clock, new_id)
            writer._on_fenced = fenced
            try:
                writer._claim(owner, holder, adopt)
            except _MovedOn:
                continue
            return writer

    def _claim(self, owner: Owner, holder: str, adopt: str) -> None:
        while self._fence == 0:
            try:
                entry = _next_claim(self.entries, owner, holder, adopt=adopt, new_id=self._new_id)
            except NotOwner:
                self._confirm()
                raise
            record = self._next_record(entry)
            self._put(record, encode_record(record))
            if not self._has(record):
                # Under numbers that were deleted may lie what is no entry, and hide a fence.
                raise _MovedOn
            if isinstance(entry, Fence):
                self._fence = entry.fence

    @property
    def fence(self) -> int:
        """The fence of this writer."""
        return self._fence

    @property
    def fenced(self) -> bool:
        """Whether a higher fence has shown, so that every call raises Fenced; never waits."""
        return self._fenced_because is not None

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
        """What the log says to this writer, in order: up to its own last entry at least.

        Entries that say nothing any more may be left out, see `history.compacted`.
        """
        return [record.entry for record in self._records]

    @property
    def possible_entries(self) -> list[Entry]:
        """Like `entries`, with the one in doubt as if it were there: what it names must be kept.

        An entry that is appended later, by whatever is decided with these, comes after it.
        """
        doubtful = self._in_doubt  # before the entries: it moves from here to there
        records = self._records
        if doubtful is not None and all(r.attempt != doubtful.attempt for r in records):
            return [*(record.entry for record in records), doubtful.entry]
        return [record.entry for record in records]

    def append(self, entry: Entry) -> int:
        """Append `entry` durably and return its number.

        After StoreUnavailable the entry may or may not be in the log: what it names must be kept.
        Appending an equal entry again settles that without a second copy; any other append settles
        it first, by writing it if it is not there.

        Raises:
            Fenced: another writer claimed a higher fence. Whether `entry` was appended before
                that, only that one knows.
            StoreUnavailable: the store does not answer.
        """
        with self._lock:
            self._check_own(entry)
            settled = self.settle()
            if settled is None or settled.entry != entry:
                settled = self._append(self._next_record(entry))
            if settled is None:
                raise Bug(f"entry was passed over: entry={entry!r}")
            return settled.seq

    @property
    def end(self) -> int:
        """The number of the last entry that this writer knows of."""
        return self._end

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
            try:
                # One by one: who took over may have gone on with what this release does not know.
                for record in self._log.each_record(after=self._end):
                    self._learn(record)
            except CorruptState:
                self._confirm()
                raise
            self._confirm()

    def watch(self) -> None:
        """Like `refresh`, from a thread of its own: nobody waits while it reads."""
        with self._lock:
            self._check_fence()
            known, base = self._end, self._base
        if (
            self._log.moved(base) is not None
            or next(self._log.each_record(known), None) is not None
        ):
            self.refresh()

    def compact(self, every: int | None = None) -> None:
        """Let go of entries that say nothing any more, where there are enough of them.

        Called beside the epochs by one thread at a time, once what was retired is deleted: a
        checkpoint that is not known any more is left for a sweep. Raises like `append`; it can be
        cut short anywhere, and goes on the next time.

        Args:
            every: how many entries are enough for the log to begin anew; COMPACT_EVERY by default.
        """
        if self._end - self._base >= (COMPACT_EVERY if every is None else every):
            self._begin_anew()
        with self._lock:
            self._check_fence()
            due = self._end - self._copied >= VIEW_EVERY or self._copied < self._base
            copy = self._forget() if due else None
        if copy is not None:
            failpoints.hit("log.before_copy")
            self._store.put(VIEW_KEY, encode_record(copy))
            self._copied = copy.seq
        self._clear()

    def _forget(self) -> Record:
        """Let go in memory of what says nothing any more; returns what is left as one record."""
        entry = self._compacted()
        # With the attempt of the last entry, by which readers know that it is of their log.
        whole = Record(self._end, self._attempts[self._end], self._clock(), entry)
        self._records = (*entry.records, alone(whole))
        return whole

    def _begin_anew(self) -> None:
        """Put the log together, and mark that it begins there."""
        # Others' appends wait for it, once in thousands of entries.
        with self._lock:
            self.settle()
            if self._together <= self._base:
                self._forget()
                if self._append(self._next_record(self._compacted())) is None:
                    return
            to = self._together
            failpoints.hit("log.before_mark")
            mark = Record(to, self._new_id(), self._clock(), Moved(self._fence, self._base))
            with contextlib.suppress(AlreadyExists):
                self._store.put_if_absent(moved_key(self._base), encode_record(mark))
            if self._log.moved(self._base) == to:
                self._base = to
            else:
                # Another's, which counts: of one that was late with it, or that took over.
                self._confirm()
            failpoints.hit("log.after_mark")

    def _clear(self) -> None:
        """Delete what lies before the beginning: nobody appends there, and nobody reads it."""
        base = self._base
        for first in range(max(self._cleared, 1), base, _DELETES_AT_ONCE):
            failpoints.hit("log.before_clear")
            numbers = range(first, min(first + _DELETES_AT_ONCE, base))
            delete_all(self._store, [log_key(seq) for seq in numbers])
            self._cleared = numbers.stop

    def _append(self, record: Record) -> Record | None:
        """Put `record`, under later numbers when others came first (a claimer names its owner).

        None for a compacted entry that another one came before: it does not speak for that one.
        """
        while True:
            data = encode_record(record)
            self._in_doubt = record
            if record.seq > self._end:
                self._put(record, data)
            if self._has(record):
                self._in_doubt = None
                if isinstance(record.entry, Compacted):
                    self._together = record.seq
                return record
            if isinstance(record.entry, Compacted):
                self._in_doubt = None
                return None
            record = record._replace(seq=self._end + 1)

    def _has(self, record: Record) -> bool:
        """Whether the entry under the number of `record`, which is known, is that very record."""
        # The attempt id tells our own entry from another's when the reply to an earlier put of it
        # was lost. Such a put can only have taken the number it was sent with, so a foreign entry
        # under that number proves that it failed.
        return self._attempts[record.seq] == record.attempt

    def _put(self, record: Record, data: bytes) -> None:
        """Put `record` at the end; afterwards the entry that lies there, ours or not, is known."""
        failpoints.hit("log.before_put")
        try:
            self._store.put_if_absent(log_key(record.seq), data)
        except AlreadyExists as error:
            found = self._log.read_one(record.seq)
            if found is None:
                self._confirm()
                raise StoreUnavailable(
                    f"log entry exists and cannot be read: store={self._store.url} "
                    f"seq={record.seq}; try again"
                ) from error
            if found.attempt != record.attempt:
                self._learn(found)
                return
        failpoints.hit("log.before_confirm")
        self._confirm()
        self._learn(record)
        failpoints.hit("log.after_put")

    def _confirm(self) -> None:
        """Make sure that the log begins where this writer thinks: it knows what was appended since.

        Raises:
            Fenced: another writer had it begin anew.
            _MovedOn: the log begins anew, and this is a claim.
        """
        if self._log.moved(self._base) is None:
            return
        if not self._fence:
            raise _MovedOn
        view = self._log.view()
        for record in view.records:
            self._look_at_fence(record.entry)
        self._check_fence()
        # By its own hand, of which the reply was lost: all since then is known.
        self._base = view.base

    def _learn(self, record: Record) -> None:
        if self._in_doubt is None:
            self._attempts.clear()
        self._attempts[record.seq] = record.attempt
        self._records, self._end = (*self._records, alone(record)), record.seq
        self._look_at_fence(record.entry)
        self._check_fence()

    def _look_at_fence(self, entry: Entry) -> None:
        # One that puts the log together stands for the fence before it, which may be deleted.
        if not isinstance(entry, Fence | Compacted) or not 0 < self._fence < entry.fence:
            return
        holder = f" holder={entry.holder!r}" if isinstance(entry, Fence) else ""
        if self._fenced_because is not None and not holder:
            return
        self._in_doubt = None
        self._fenced_because = (
            f"another writer took over: store={self._store.url} fence={entry.fence}{holder} "
            f"own_fence={self._fence}; end this process, the other one goes on"
        )

    def _compacted(self) -> Compacted:
        """All that is known, put together."""
        records, past = compacted(self._records)
        return Compacted(self._fence, self._base, self._cleared, past, tuple(records))

    def _next_record(self, entry: Entry) -> Record:
        return Record(self._end + 1, self._new_id(), self._clock(), entry)

    def _check_own(self, entry: Entry) -> None:
        if isinstance(entry, Fence | Owner | Compacted | Moved):
            raise Bug(f"only the log itself writes this entry: entry={entry!r}")
        if not isinstance(entry, Unknown) and entry.fence != self._fence:
            raise Bug(f"entry carries another fence: entry={entry!r} own_fence={self._fence}")
        if isinstance(entry, Checkpoint | Savepoint):
            last = rescaled(self.entries)
            if last is not None and (entry.fence, entry.run) < (last.fence, last.run):
                raise Bug(f"entry of the layout before a rescale: entry={entry!r} since={last!r}")

    def _check_fence(self) -> None:
        if self._fenced_because is not None:
            tell, self._on_fenced = self._on_fenced, None
            if tell is not None:
                tell(self._fenced_because)
            raise Fenced(self._fenced_because)


def _is_compacted(record: Record) -> bool:
    return isinstance(record.entry, Compacted)


def check_claim(entries: Sequence[Entry], owner: Owner) -> None:
    """Refuse what a claim of this lineage would; writes nothing.

    Raises NotOwner: as `LogWriter.claim`, without the lineage's id to adopt.
    """
    _next_claim(entries, owner, "", adopt="", new_id=str)


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
