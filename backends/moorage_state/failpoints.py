"""Named places where a test may stop or kill a real process, or interrupt this one.

Nothing happens unless the environment of the process names a place before it starts:

    MOORAGE_FAILPOINT=log.before_put:stop:3

stops the process (SIGSTOP, so that SIGCONT goes on from exactly there) the third time it passes
`log.before_put`; `kill` in place of `stop` is SIGKILL. Within one process `watched` calls a
function at every place. `PLACES` lists them all, in the order in which a checkpoint passes them.
"""

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PLACES = {
    "upload.before_part": "all objects of a server's upload are in the store, its part is not",
    "upload.after_part": "the part is in the store, the driver does not know",
    "upload.before_object": "nothing of this object is in the store",
    "upload.after_object": "the object is in the store, no manifest names it",
    "complete.before_manifest": "all files are there, the manifest is not",
    "complete.after_manifest": "the manifest is there, the log does not name it: no checkpoint yet",
    "log.before_put": "the entry (of any kind) is not in the log",
    "log.before_confirm": "the entry is under its number; its writer does not know if that counts",
    "log.after_put": "the entry is in the log, its writer has not gone on",
    "complete.after_entry": "the checkpoint exists, nobody was told",
    "retire.before_entry": "the checkpoint still exists",
    "retire.after_entry": "it does not exist any more, its objects are all there",
    "retire.before_delete": "objects of it are about to go, in one request; manifests are the last",
    "retire.after_delete": "they are gone",
    "log.before_copy": "the copy of what the log says is an older one, or is not there",
    "log.before_mark": "the log is put together in an entry, and begins where it began before",
    "log.after_mark": "it begins there, all entries are there",
    "log.before_clear": "entries before that are about to go, in one request",
    "sweep.before_delete": "garbage is about to go, in one request; manifests are the last",
    "sweep.after_delete": "it is gone",
    "recover.before_undo": "a range that stays is about to undo epochs that do not count",
    "recover.after_undo": "it has the state of the restore point, and is not the next run's yet",
    "forst.before_evict": "a file that the store has is here, and is about to be truncated",
    "forst.before_refill": "its bytes were fetched, and are not in the file",
    "forst.before_compaction": "the files of a slice are here, nothing is rewritten",
    "forst.after_compaction": "a slice is rewritten, its old files are gone from the database",
}

_SIGNALS = {"stop": signal.SIGSTOP, "kill": signal.SIGKILL}
_VARIABLE = "MOORAGE_FAILPOINT"


def _armed(setting: str) -> tuple[str, signal.Signals, int] | None:
    if not setting:
        return None
    name, action, nth = setting.split(":")
    return name, _SIGNALS[action], int(nth)


_ARMED = _armed(os.environ.get(_VARIABLE, ""))
_PASSES = itertools.count(1)
_watchers: list[Callable[[str], None]] = []


def hit(name: str) -> None:
    """Pass the place `name`; the process stops or dies here if its environment says so."""
    if _ARMED is not None and _ARMED[0] == name and next(_PASSES) == _ARMED[2]:
        os.kill(os.getpid(), _ARMED[1])
    for watcher in _watchers:
        watcher(name)


@contextmanager
def watched(watcher: Callable[[str], None]) -> Iterator[None]:
    """Call `watcher` at every place that any thread passes; what it raises is raised there."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)
