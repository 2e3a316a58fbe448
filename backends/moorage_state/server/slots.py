"""Places for state servers on a volume that several executors of one node may share.

Decides which of them a sidecar gets: the first that nobody holds. Called by `sidecar`. Knows
nothing of what the servers write there.

    <dir>/                  slot 0, all there is on a volume of one executor
        SLOT                held (flock) by the sidecar for as long as it lives
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
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from moorage_state.errors import Retryable, disk_errors

ID_FILE = "ID"
_RUN = "run"
# Far more executors than share the volume of one node.
_MOST_SLOTS = 64
_ID_BYTES = 16
_IDENTITY = re.compile(r"[0-9a-f]{32}-\d+")


@dataclass(slots=True)
class Slot:
    """One sidecar's place; a context manager that gives it back."""

    root: Path
    number: int
    identity: str
    _lock: int

    @classmethod
    def take(cls, volume: Path) -> "Slot":
        """The first slot that nobody holds; made if it was never used.

        Raises `LocalDiskError`, and `Retryable` where there are too many sidecars on the volume.
        """
        for number in range(_MOST_SLOTS):
            root = volume / f"slot-{number}" if number else volume
            with disk_errors("make a place for state servers", root):
                for folder in (root, root / "state", root / _RUN):
                    folder.mkdir(parents=True, exist_ok=True)
                lock = os.open(root / "SLOT", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(lock)
                    continue
                try:
                    return cls(root, number, _identity(root / _RUN / ID_FILE, number), lock)
                except BaseException:
                    os.close(lock)
                    raise
        raise Retryable(
            f"all places for state servers on the volume are taken: path={volume} "
            f"places={_MOST_SLOTS}; end sidecars that nobody needs"
        )

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
