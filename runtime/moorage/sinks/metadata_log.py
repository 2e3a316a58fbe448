"""The list of visible files that Spark's own readers follow: `_spark_metadata/`.

Spark's streaming file sink writes this log and every Spark reader of the folder honours it: a file
that it does not name is not read. Objects, in UTF-8, the first line "v1":

    <n>            adds files to what is visible; one JSON object a line
    <n>.compact    all that is visible; n + 1 is a multiple of the interval

A commit is one put-if-absent under the number that follows the last, by a writer that has read all
before it, so commits of several writers never overlap and no reader sees half of one. The format
knows no removal: taking files back fills the numbers up to the next compact object and leaves them
out there.

Readers take the distance between the last two compact objects for the interval (and where there are
fewer their own setting, so a new log begins with two empty ones). It is ten at first and doubles as
the list grows, so that a checkpoint writes about as much however long the list is: see `End`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from moorage_state import failpoints
from moorage_state.errors import (
    AlreadyExists,
    CorruptState,
    ObjectNotFound,
    StoreUnavailable,
    UserError,
)
from moorage_state.formats import read_json
from moorage_state.stores import ObjectInfo, ObjectStore, delete_all

LOG_PREFIX = "_spark_metadata/"

Visible = dict[str, str]
"""Lines of the log by the path they name."""

_VERSION = "v1"
_INTERVAL = 10
_FIRST = 2 * _INTERVAL - 1
_COMPACT = ".compact"
_NAME = re.compile(r"(\d+)(\.compact)?")
_ATTEMPTS = 100
_ADVICE = "put it back from a copy; readers do not see the output as it was published until then"

GROW_BYTES = 256 << 10
"""The interval doubles while a compact object has more bytes than this for each entry of it: then
what a checkpoint writes of the list is twice this at most, or four times its own lines, and readers
open one small object for so many bytes of the list that they parse."""


@dataclass(frozen=True, slots=True)
class End:
    """Where the log ends, and with that the name of its next entry, the same for all writers.

    After a compact entry `c` at the interval `i` come `c + 1` to `c + i - 1`, then the next compact
    one. That is `c + i`, or `c + 2 i` where the interval doubles. The numbers in between are never
    used then: readers that see the new compact entry see the new distance with it, and start there.

    Attributes:
        newest: the number of the last entry.
        compact: the number of the last compact entry.
        interval: from the compact entry before to this one.
        size: bytes of the last compact entry.
    """

    newest: int
    compact: int
    interval: int
    size: int

    @property
    def is_full(self) -> bool:
        """Whether the next entry is a compact one."""
        return self.newest + 1 == self.compact + self.interval

    @property
    def next_compact(self) -> int:
        """The number of the next compact entry."""
        # Readers ask for a number that the interval divides.
        doubles = (self.compact + 1) % (2 * self.interval) == 0
        grows = doubles and self.size >= self.interval * GROW_BYTES
        return self.compact + (2 if grows else 1) * self.interval

    @property
    def following(self) -> str:
        """The name of the next entry."""
        return f"{self.next_compact}{_COMPACT}" if self.is_full else str(self.newest + 1)

    def name(self, number: int) -> str:
        """The name of an entry from the last compact one on."""
        return f"{number}{_COMPACT}" if number == self.compact else str(number)

    def after(self, size: int) -> "End":
        """The end once there is the next entry, of so many bytes."""
        if not self.is_full:
            return replace(self, newest=self.newest + 1)
        number = self.next_compact
        return End(number, number, number - self.compact, size)


FIRST_END = End(_FIRST, _FIRST, _INTERVAL, len(_VERSION))
"""Where a new list ends."""


class MetadataLog:
    """The log below a prefix of a store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._known: End | None = None
        self._old = True

    def read(self) -> Visible:
        """All visible files. Raises CorruptState where an entry is missing or damaged."""
        return self._read()[1]

    def add(self, lines: Mapping[str, str], check: Callable[[], None], *, new: bool = False) -> int:
        """Make files visible, all at once; returns how many were not.

        Args:
            lines: by path.
            check: called before each attempt; raises when this writer may not commit any more.
            new: none of them can be visible, so that there is no need to read the list for them.
        """
        end = self._end_if_unread() if new else None
        missing = dict(lines)
        for _ in range(_ATTEMPTS):
            if end is None:
                end, visible = self._read()
                missing = {path: line for path, line in lines.items() if path not in visible}
            if not missing:
                return 0
            check()
            with suppress(ObjectNotFound):  # deleted behind a compact entry of somebody else
                before = [body for _, body in self._bodies(end)] if end.is_full else []
                if self._append(end, (*before, *missing.values())):
                    return len(missing)
            end = None
        raise _contended(self._store)

    def replace(self, wanted: Callable[[Visible], Visible], check: Callable[[], None]) -> None:
        """Make just what `wanted` returns visible, given what is; readers see before or after.

        At least one entry is written, so that whoever read the log before and wants to append
        meets it and must look again.
        """
        for _ in range(_ATTEMPTS):
            end, visible = self._read()
            target = wanted(dict(visible))
            check()
            added = {path: line for path, line in target.items() if path not in visible}
            if len(added) + len(visible) != len(target):
                # The format knows no removal but in compact entries: fill the numbers up to the
                # next.
                while not end.is_full and self._append(end, ()):
                    end = end.after(0)
                if not end.is_full:
                    continue
            if self._append(end, (target if end.is_full else added).values()):
                return
        raise _contended(self._store)

    def expire(self) -> int:
        """Delete what no reader needs, however slow: all before the last compact but one.

        Looks for it once after each compact entry of this writer.
        """
        if not self._old:
            return 0
        entries = self._entries()
        compacts = _compacts(entries)
        old = [n for n in sorted(entries) if len(compacts) > 1 and n < compacts[-2]]
        delete_all(self._store, [entries[number].key for number in old])
        self._old = False
        return len(old)

    def begin(self) -> None:
        """Make the log of a new folder; does nothing where there is one."""
        # Readers work out the distance between compact entries from the last two of them.
        if self._end_if_unread() is not None or self._read()[0].newest >= _FIRST:
            return
        for number in (_INTERVAL - 1, _FIRST):
            with suppress(AlreadyExists):
                self._store.put_if_absent(f"{LOG_PREFIX}{number}{_COMPACT}", _VERSION.encode())

    def _append(self, end: End, lines: Iterable[str]) -> bool:
        """Put the next entry; whether it was ours and not another writer's."""
        data = "\n".join([_VERSION, *lines]).encode()
        self._known = None
        try:
            failpoints.hit("sink.before_commit")
            self._store.put_if_absent(LOG_PREFIX + end.following, data)
        except AlreadyExists:
            return False
        failpoints.hit("sink.committed")
        self._known = end.after(len(data))
        self._old = self._old or end.is_full
        return True

    def _end_if_unread(self) -> End | None:
        """The end as this object left it; None where others wrote since, or nothing is known."""
        end = self._known
        if end is None or self._store.head(LOG_PREFIX + end.name(end.newest)) is None:
            return None
        # Entries may have been deleted behind a compact one, and their numbers be free again.
        behind = self._store.head(f"{LOG_PREFIX}{end.next_compact}{_COMPACT}")
        return end if behind is None else None

    def _read(self) -> tuple[End, Visible]:
        """Read on from the last compact entry; again where that was deleted meanwhile."""
        with suppress(ObjectNotFound):
            return self._read_once()
        try:
            return self._read_once()
        except ObjectNotFound as error:
            raise CorruptState(
                "an entry of the list of visible files is missing",
                f"{self._store.url}/{LOG_PREFIX}",
                _ADVICE,
            ) from error

    def _read_once(self) -> tuple[End, Visible]:
        end, files = self._look(), {}
        for key, body in self._bodies(end):
            for line in body.split("\n"):
                files[_path(line, f"{self._store.url}/{key}")] = line
        return end, files

    def _bodies(self, end: End) -> Iterator[tuple[str, str]]:
        """By key, the lines of all entries that say what is visible; none of those without."""
        for number in range(max(end.compact, 0), end.newest + 1):
            key = LOG_PREFIX + end.name(number)
            version, _, body = self._store.get(key).decode(errors="replace").partition("\n")
            if version != _VERSION:
                raise _damaged(f"{self._store.url}/{key}")
            if body:
                yield key, body

    def _look(self) -> End:
        """Find the end. Raises UserError for a log that somebody else began."""
        for _ in range(2):  # what is written while a listing goes on may be in it in part
            if (end := _end_of(self._entries())) is not None:
                return end
        raise UserError(
            f"the output folder has a list of files that another writer began: "
            f"list={self._store.url}/{LOG_PREFIX}; give the sink a folder of its own"
        )

    def _entries(self) -> dict[int, ObjectInfo]:
        infos = self._store.list(LOG_PREFIX)
        named = ((_NAME.fullmatch(info.key.removeprefix(LOG_PREFIX)), info) for info in infos)
        return {int(match[1]): info for match, info in named if match}


def _end_of(entries: Mapping[int, ObjectInfo]) -> End | None:
    """Where a log with these entries ends; None where it is none of ours."""
    if not entries:
        return End(-1, -1, _INTERVAL, 0)
    newest = max(entries)
    compacts = _compacts(entries)
    if min(entries) < _INTERVAL - 1 or not compacts:
        return None
    last = compacts[-1]
    interval = last - compacts[-2] if len(compacts) > 1 else _INTERVAL
    ours = all((number + 1) % _INTERVAL == 0 for number in compacts)
    if not ours or (last + 1) % interval or newest - last >= interval:
        return None
    return End(newest, last, interval, entries[last].size)


def _compacts(entries: Mapping[int, ObjectInfo]) -> list[int]:
    return sorted(n for n, info in entries.items() if info.key.endswith(_COMPACT))


def _path(line: str, where: str) -> str:
    try:
        return str(read_json(line)["path"])
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(where) from error


def _damaged(path: str) -> CorruptState:
    return CorruptState("an entry of the list of visible files is damaged", path, _ADVICE)


def _contended(store: ObjectStore) -> StoreUnavailable:
    return StoreUnavailable(
        f"other writers commit to the output folder all the time: store={store.url}; try again"
    )
