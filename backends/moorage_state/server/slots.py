"""Places for state servers on a volume that several executors of one node may share.

Decides which of them a sidecar gets: of those that nobody holds one that its job had before, so
that what lies there is found again. Called by `sidecar`. Knows nothing of what the servers write.

    <dir>/                  slot 0, all there is on a volume of one executor
        SLOT                held (flock) by the sidecar for as long as it lives; names the
                            job, and was changed when its sidecar was last there
        state/              the servers' local directory
        run/ID              what the identities of its servers begin with: random, and the number
                            of the slot; lives as long as the volume
        run/<i>.sock        where server i listens
    <dir>/slot-<k>/         slot k, the same once more
"""

import fcntl
import os
import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from moorage_state.errors import Retryable, disk_errors

ID_FILE = "ID"
_RUN = "run"
_SLOT = "SLOT"
_LONGEST_JOB = 1024
# Far more executors than share the volume of one node.
_MOST_SLOTS = 64
_ID_BYTES = 16
_LEFT_SECONDS = 86_400.0
"""After which a place counts as left for good by its job, and is anybody's."""
_SIGN_SECONDS = 60.0
_IDENTITY = re.compile(r"[0-9a-f]{32}-\d+")


@dataclass(slots=True)
class Slot:
    """One sidecar's place; a context manager that gives it back."""

    root: Path
    number: int
    identity: str
    _lock: int
    _clock: Callable[[], float]
    _signed: float

    @classmethod
    def take(cls, volume: Path, job: str = "", clock: Callable[[], float] = time.time) -> "Slot":
        """A place that nobody holds: what `job` had last, else one that nobody has, else any.

        Places of other jobs that were there within a day are the last that are taken.

        Raises `LocalDiskError`, and `Retryable` where there are too many sidecars on the volume.
        """
        now = clock()
        with disk_errors("look for a place for state servers", volume):
            ranks = {n: _rank(_root(volume, n), job, now) for n in range(_MOST_SLOTS)}
        for number in sorted(ranks, key=lambda number: (ranks[number], number)):
            root = _root(volume, number)
            with disk_errors("make a place for state servers", root):
                for folder in (root, root / "state", root / _RUN):
                    folder.mkdir(parents=True, exist_ok=True)
                lock = os.open(root / _SLOT, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(lock)
                    continue
                try:
                    os.truncate(lock, 0)
                    os.pwrite(lock, job.encode(), 0)
                    identity = _identity(root / _RUN / ID_FILE, number)
                    return cls(root, number, identity, lock, clock, now)
                except BaseException:
                    os.close(lock)
                    raise
        raise Retryable(
            f"all places for state servers on the volume are taken: path={volume} "
            f"places={_MOST_SLOTS}; end sidecars that nobody needs"
        )

    def sign(self) -> None:
        """Note now and then that the place is in use; what cannot be noted is not."""
        now = self._clock()
        if now - self._signed >= _SIGN_SECONDS:
            self._signed = now
            with suppress(OSError):
                os.utime(self._lock, (now, now))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        os.close(self._lock)

    @property
    def state(self) -> Path:
        """The servers' local directory."""
        return self.root / "state"

    @property
    def run(self) -> Path:
        """Where the sockets are."""
        return self.root / _RUN


def _root(volume: Path, number: int) -> Path:
    return volume / f"slot-{number}" if number else volume


def _rank(root: Path, job: str, now: float) -> tuple[int, float]:
    """How much a place is wanted, the least first."""
    # Of two that the job had it was in the later one last: in the other one while that was held,
    # by a sidecar that took its time to end, and what lies there is older.
    try:
        with (root / _SLOT).open("rb") as file:
            owner, used = file.read(_LONGEST_JOB).decode(errors="replace"), os.fstat(file.fileno())
    except (FileNotFoundError, NotADirectoryError):
        return 3, 0.0
    if owner == job:
        return 0, -used.st_mtime
    if not owner:
        return 1, 0.0
    # Rather than let what it left there lie for ever.
    return (2, 0.0) if now - used.st_mtime >= _LEFT_SECONDS else (4, 0.0)


def socket_path(volume: str, server: str) -> str:
    """Where the server of this identity has its socket on its volume; empty if it is in no slot."""
    slot, _, index = server.rpartition(".")
    _, _, number = slot.rpartition("-")
    if not (number.isdecimal() and index.isdecimal()):
        return ""
    root = f"{volume}/slot-{number}" if int(number) else volume
    return f"{root}/{_RUN}/{index}.sock"


def _identity(path: Path, number: int) -> str:
    """The identity in the file, written whole if there is none."""
    if path.exists() and _IDENTITY.fullmatch(found := path.read_text().strip()):
        return found
    made = f"{secrets.token_hex(_ID_BYTES)}-{number}"
    # Whole or not at all: a second of two sidecars would otherwise read half an identity.
    fresh = path.with_suffix(".tmp")
    fresh.write_text(made)
    fresh.replace(path)
    return made
