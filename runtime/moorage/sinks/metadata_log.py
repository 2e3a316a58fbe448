"""The list of visible files that Spark's own readers follow: `_spark_metadata/`.

Spark's streaming file sink writes this log and every Spark reader of the folder honours it: a file
that it does not name is not read. Objects, in UTF-8, the first line "v1":

    <n>            adds files to what is visible; one JSON object a line
    <n>.compact    all that is visible; where (n + 1) is a multiple of 10

A commit is one put-if-absent under the number after the last, by a writer that has read all before
it, so commits of several writers never overlap and no reader sees half of one. The format knows
no removal: taking files back fills the numbers up to the next compact object and leaves them out
there. Readers work out the distance between compact objects from the last two of them, and where
there are fewer from their own setting, so a new log begins with two empty ones.
"""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from moorage_state import failpoints
from moorage_state.errors import (
    AlreadyExists,
    CorruptState,
    ObjectNotFound,
    StoreUnavailable,
    UserError,
)
from moorage_state.stores import ObjectStore, delete_all

LOG_PREFIX = "_spark_metadata/"

Visible = dict[str, str]
"""Lines of the log by the path they name."""

_VERSION = "v1"
_INTERVAL = 10
_FIRST = 2 * _INTERVAL - 1
_NAME = re.compile(r"(\d+)(\.compact)?")
_ATTEMPTS = 100
_ADVICE = "put it back from a copy; readers do not see the output as it was published until then"


@dataclass(frozen=True, slots=True)
class _State:
    """The log up to an entry; `newest` is -1 while there is none."""

    newest: int
    files: Visible


class MetadataLog:
    """The log below a prefix of a store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def read(self) -> Visible:
        """All visible files. Raises CorruptState where an entry is missing or damaged."""
        return self._read().files

    def add(self, lines: Mapping[str, str], check: Callable[[], None]) -> int:
        """Make files visible, all at once; returns how many were not.

        Args:
            lines: by path.
            check: called before each attempt; raises when this writer may not commit any more.
        """
        for _ in range(_ATTEMPTS):
            state = self._read()
            missing = {path: line for path, line in lines.items() if path not in state.files}
            if not missing:
                return 0
            check()
            if self._append(state, state.files | missing, missing):
                return len(missing)
        raise _contended(self._store)

    def replace(self, wanted: Callable[[Visible], Visible], check: Callable[[], None]) -> None:
        """Make just what `wanted` returns visible, given what is; readers see before or after.

        At least one entry is written, so that whoever read the log before and wants to append
        meets it and must look again.
        """
        for _ in range(_ATTEMPTS):
            state = self._read()
            target = wanted(dict(state.files))
            check()
            added = {path: line for path, line in target.items() if path not in state.files}
            only_adds = len(added) + len(state.files) == len(target)
            if only_adds or _is_compact(state.newest + 1):
                if self._append(state, target, added):
                    return
            else:
                # The format knows no removal but in compact entries: fill the numbers up to the
                # next.
                self._append(state, state.files, {})
        raise _contended(self._store)

    def expire(self) -> int:
        """Delete what no reader needs, however slow: all before the last compact but one."""
        names = self._names()
        compacts = sorted(n for n, name in names.items() if name.endswith(".compact"))
        old = [n for n in sorted(names) if len(compacts) > 1 and n < compacts[-2]]
        delete_all(self._store, [LOG_PREFIX + names[number] for number in old])
        return len(old)

    def _append(self, state: _State, everything: Visible, added: Visible) -> bool:
        """Put the next entry; whether it was ours and not another writer's."""
        number = state.newest + 1
        lines = (everything if _is_compact(number) else added).values()
        key = LOG_PREFIX + _name(number)
        try:
            failpoints.hit("sink.before_commit")
            self._store.put_if_absent(key, "\n".join([_VERSION, *lines]).encode())
        except AlreadyExists:
            return False
        failpoints.hit("sink.committed")
        return True

    def _read(self) -> _State:
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

    def _read_once(self) -> _State:
        names = self._names()
        newest = max(names, default=-1)
        start = max((n for n, name in names.items() if name.endswith(".compact")), default=0)
        files: Visible = {}
        for number in range(start, newest + 1):
            key = LOG_PREFIX + _name(number)
            files.update(_lines(self._store.get(key), f"{self._store.url}/{key}"))
        return _State(newest, files)

    def _names(self) -> dict[int, str]:
        """Entries by number. Raises UserError for a log that somebody else began."""
        names: dict[int, str] = {}
        for info in self._store.list(LOG_PREFIX):
            match = _NAME.fullmatch(info.key.removeprefix(LOG_PREFIX))
            if match:
                names[int(match[1])] = match[0]
        if any(name != _name(number) for number, name in names.items()) or (
            names and min(names) < _INTERVAL - 1
        ):
            raise UserError(
                f"the output folder has a list of files that another writer began: "
                f"list={self._store.url}/{LOG_PREFIX}; give the sink a folder of its own"
            )
        return names

    def begin(self) -> None:
        """Make the log of a new folder; does nothing where there is one."""
        # Readers work out the distance between compact entries from the last two of them.
        if self._read().newest >= _FIRST:
            return
        for number in (_INTERVAL - 1, _FIRST):
            with suppress(AlreadyExists):
                self._store.put_if_absent(LOG_PREFIX + _name(number), _VERSION.encode())


def _is_compact(number: int) -> bool:
    return (number + 1) % _INTERVAL == 0


def _name(number: int) -> str:
    return f"{number}.compact" if _is_compact(number) else str(number)


def _lines(data: bytes, path: str) -> Visible:
    version, *lines = data.decode(errors="replace").split("\n")
    if version != _VERSION:
        raise CorruptState("an entry of the list of visible files is damaged", path, _ADVICE)
    try:
        return {str(json.loads(line)["path"]): line for line in lines}
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptState(
            "an entry of the list of visible files is damaged", path, _ADVICE
        ) from error


def _contended(store: ObjectStore) -> StoreUnavailable:
    return StoreUnavailable(
        f"other writers commit to the output folder all the time: store={store.url}; try again"
    )
