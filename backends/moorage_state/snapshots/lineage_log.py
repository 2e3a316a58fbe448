"""Reading a lineage's log: which entries there are, and what they say by now.

The log begins at its first entry, or at one that says what all before it still say; marks lead from
one beginning to the next. What is read counts only if the log still begins there afterwards: under
numbers before that anything may lie. The copy of what the log says is a place to begin from and
nothing more: one that was made of another log, or of more than there is, is passed over. Knows
nothing of writing.
"""

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from moorage_state.errors import CorruptState, ObjectNotFound, UserError
from moorage_state.formats import unknown_name
from moorage_state.progress import carried
from moorage_state.snapshots.entries import Compacted, Entry, Moved, Record, decode_record
from moorage_state.snapshots.object_keys import (
    LOG_PREFIX,
    VIEW_KEY,
    is_log_key,
    is_moved_key,
    log_key,
    log_seq,
    moved_key,
)
from moorage_state.stores import ObjectStore, in_parallel

_log = logging.getLogger(__name__)

_THREADS = 16
_WINDOW = 512
"""Entries that are read ahead of those that were decoded."""


class View(NamedTuple):
    """What the log says, up to entry number `end`.

    Attributes:
        base: where the log began when it was read; 0 for its very first entry.
        cleared: entries with lower numbers are known to be deleted.
    """

    records: tuple[Record, ...] = ()
    end: int = 0
    base: int = 0
    cleared: int = 0


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

        Of those that were deleted the ones that still say something are there.

        Raises:
            CorruptState: an entry is damaged, missing in the middle, or the whole log is missing
                beside checkpoints that it must have named.
            UserError: a newer Moorage wrote an entry, or something foreign lies in the log.
            StoreUnavailable: the store does not answer.
        """
        return [(record.seq, record.entry) for record in self.read_records()]

    def read_records(self) -> list[Record]:
        """Like `read`, with attempts and times."""
        copy, _ = self._copied()
        # Who asks for the entries wants all there are: the copy only says where they begin.
        return list(self._read(_from_base(copy.base, copy.cleared)).records)

    def view(self) -> View:
        """Return what the log says, in as few requests as for a new one.

        Like `read_records`, without entries that say nothing any more.
        """
        return self._read(*self._copied())

    def each_record(self, after: int = 0, listed: list[int] | None = None) -> Iterator[Record]:
        """Yield the entries numbered above `after`, where the log has not begun anew since.

        Decoded one by one: what follows one may be of a kind that is refused. Raises like `read`;
        CorruptState also where the log begins later by now.

        Args:
            listed: those that a list showed a moment ago; listed now if not given.
        """
        listed = self._listed(after) if listed is None else listed
        end = after
        for record in self._fetched(after, _unbroken(listed, after)):
            yield record
            end = record.seq
        while (one := self.read_one(end + 1)) is not None:
            yield one
            end = one.seq
        later = [seq for seq in listed if seq > end]
        if later:
            # It may say itself why those before it are not there, to who knows its kind.
            self.read_one(min(later))
            raise CorruptState(
                f"log entry is missing although entry {max(later)} exists",
                self._path(end + 1),
                "restore it from a backup of the checkpoint directory",
            )

    def begins(self, base: int = 0) -> int:
        """Return where the log begins by now, which began at `base` once."""
        while (moved := self.moved(base)) is not None:
            base = moved
        return base

    def moved(self, base: int) -> int | None:
        """Return where the log goes on that began at `base`; None while it begins there."""
        key = moved_key(base)
        path = f"{self._store.url}/{key}"
        try:
            record = decode_record(self._store.get(key), path)
        except ObjectNotFound:
            return None
        if not isinstance(record.entry, Moved) or not record.entry.base == base < record.seq:
            raise CorruptState(
                "mark of the log is not one of this place",
                path,
                "restore the log from a backup of the checkpoint directory",
            )
        return record.seq

    def _read(self, start: View, listed: list[int] | None = None) -> View:
        while True:
            try:
                found = self._read_on(start, listed)
            except CorruptState:
                base = self.begins(start.base)
                if base == start.base:
                    raise
            else:
                # What was read under numbers that were deleted meanwhile may be anything.
                base = self.begins(start.base)
                if base == start.base:
                    return found
            ahead, listed = start.end >= base, None
            start = start._replace(base=base) if ahead else _from_base(base, start.cleared)

    def _read_on(self, start: View, listed: list[int] | None) -> View:
        records, end, cleared = list(start.records), start.end, start.cleared
        for record in self.each_record(start.end, listed):
            end = record.seq
            if isinstance(record.entry, Compacted) and end == start.base:
                records = list(record.entry.records)
                cleared = max(cleared, record.entry.cleared)
            records.append(alone(record))
        if not records:
            self._check_really_new(start.base)
        return View(tuple(records), end, start.base, cleared)

    def _copied(self) -> tuple[View, list[int] | None]:
        """What the copy says; nothing where there is none of this log, or none that is whole.

        With it the numbers of what follows, where they were listed on the way.
        """
        path = f"{self._store.url}/{VIEW_KEY}"
        try:
            record = decode_record(self._store.get(VIEW_KEY), path)
        except ObjectNotFound:
            return View(), None
        except CorruptState as error:
            _log.warning("copy of the log's state is damaged, reading the log: %s", error)
            return View(), None
        entry = record.entry
        if not isinstance(entry, Compacted):
            return View(), None
        # Its last entry tells whether it is of this log: nobody else's has that attempt. What
        # follows is listed meanwhile: which entries there were a moment ago is all that says, and
        # whether the log still begins at its base is looked at after they were read.
        with ThreadPoolExecutor(1, "log") as pool:
            listing = pool.submit(carried(self._listed), record.seq)
            last, listed = self._attempt_of(record.seq), listing.result()
        if last == record.attempt:
            whole = (*entry.records, alone(record))
            return View(whole, record.seq, entry.base, entry.cleared), listed
        # That one was deleted since, which a mark tells; or the log is another one by now: of a new
        # lineage in the same place, or from a backup.
        base = self.begins(entry.base)
        return _from_base(base if base > entry.base else 0, 0), None

    def _attempt_of(self, seq: int) -> str | None:
        """Whose entry has the number; None if nobody's, or nobody can tell."""
        try:
            found = self.read_one(seq)
        except CorruptState:
            # If it still counts, whoever reads the log meets it again.
            return None
        return found.attempt if found is not None else None

    def _fetched(self, after: int, last: int) -> Iterator[Record]:
        """The entries up to `last`, read in parallel; up to the first that is not there."""
        for first in range(after + 1, last + 1, _WINDOW):
            numbers = range(first, min(first + _WINDOW, last + 1))
            found = in_parallel(
                (partial(self._bytes, seq) for seq in numbers), min(_THREADS, len(numbers)), "log"
            )
            for seq, data in zip(numbers, found, strict=True):
                if data is None:
                    return
                yield self._decoded(seq, data)

    def read_one(self, seq: int) -> Record | None:
        """Return the entry with this number, or None if there is none (yet, or any more)."""
        data = self._bytes(seq)
        return None if data is None else self._decoded(seq, data)

    def _bytes(self, seq: int) -> bytes | None:
        try:
            return self._store.get(log_key(seq))
        except ObjectNotFound:
            return None

    def _decoded(self, seq: int, data: bytes) -> Record:
        path = self._path(seq)
        record = decode_record(data, path)
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
            elif is_moved_key(info.key):
                continue
            elif is_log_key(info.key):
                name = info.key.removeprefix(LOG_PREFIX)
                raise unknown_name("log", f"object={name}", f"{self._store.url}/{LOG_PREFIX}")
            else:
                raise UserError(
                    f"unexpected object in the log: path={self._store.url}/{info.key}; "
                    "move it away, only moorage writes there"
                )
        return found

    def _check_really_new(self, base: int) -> None:
        """A lineage with checkpoints has a log; without one it must not start empty."""
        if base:
            raise CorruptState(
                "the log is missing where its mark says that it begins",
                self._path(base),
                "restore it from a backup of the checkpoint directory",
            )
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


def _from_base(base: int, cleared: int) -> View:
    return View((), max(base, 1) - 1, base, cleared)


def alone(record: Record) -> Record:
    """The record; of one that is put together only what stands in no other."""
    entry = record.entry
    if not isinstance(entry, Compacted):
        return record
    return record._replace(entry=Compacted(entry.fence, entry.base, entry.cleared, entry.past, ()))


def _unbroken(listed: Sequence[int], after: int) -> int:
    """The last of the numbers that follow `after` without a gap."""
    last = after
    for seq in listed:
        if seq != last + 1:
            break
        last = seq
    return last
