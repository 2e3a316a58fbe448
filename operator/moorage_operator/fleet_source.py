"""The fleet file, read again when it changes: passes ask it for what holds now.

The kubelet renews a mounted ConfigMap without a word to the process, so the file is looked at every
few seconds, by whoever asks. A look is a `stat`: no thread, no request.
"""

import logging
from collections.abc import Callable
from pathlib import Path

from moorage_api import Problem
from moorage_api.fleet import Fleet, read_fleet

_log = logging.getLogger("moorage.operator")

_EVERY = 2.0
"""Seconds between two looks."""

_Mark = tuple[int, int, int]


class FleetSource:
    """Says what the file says.

    Args:
        path: None if there is no file, and nothing holds for many jobs.
        tick: seconds that only ever grow.
    """

    def __init__(self, path: Path | None, tick: Callable[[], float]) -> None:
        self._path, self._tick = path, tick
        self._looked = float("-inf")
        self._mark: _Mark | None = None
        self._fleet = Fleet()

    def __call__(self) -> Fleet:
        """The fleet as it is now; with the reason in `problems`, if that cannot be read."""
        if self._path is None or self._tick() - self._looked < _EVERY:
            return self._fleet
        self._looked = self._tick()
        try:
            found = self._path.stat()
            mark = (found.st_mtime_ns, found.st_ino, found.st_size)
            if mark != self._mark:
                self._take(read_fleet(self._path.read_bytes()))
                self._mark = mark
        except OSError as error:
            self._mark = None
            fix = "mount the ConfigMap there, or leave out --fleet"
            reason = f"cannot be read: file={self._path} error={error.strerror}"
            self._take(Fleet(problems=[Problem("", reason, fix)]))
        return self._fleet

    def _take(self, fleet: Fleet) -> None:
        if fleet.digest == self._fleet.digest:
            return
        self._fleet = fleet
        wrong = [str(one) for one in fleet.problems]
        wrong += [str(problem) for one in fleet.profiles.values() for problem in one.problems]
        known = ",".join(sorted(fleet.profiles)) or "none"
        _log.info("the fleet file was read: profiles=%s digest=%s", known, fleet.digest)
        for one in wrong:
            _log.warning("the fleet file is wrong: %s", one)
