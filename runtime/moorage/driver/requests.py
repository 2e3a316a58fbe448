"""What people ask of a running job: savepoints.

A request is put in from any thread and taken up at the next epoch boundary; whoever asked waits
for its answer. Called by the control socket of `moorage run` and by tests.
"""

import queue
import re
import threading
from dataclasses import dataclass, field
from typing import Literal

from moorage_state.errors import MoorageError, UserError

__all__ = ["Requests", "SavepointRequest", "SavepointView", "check_name"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class SavepointView:
    """A completed savepoint: what to name to restore it, and what it cost."""

    name: str
    url: str
    checkpoint_id: int
    epoch: int
    bytes_total: int
    duration_seconds: float


@dataclass(slots=True)
class SavepointRequest:
    """One savepoint that somebody waits for.

    Attributes:
        name: of its directory below the job's savepointDir.
        format: canonical is readable by anyone, native is the backend's own files.
        stop: end the job with it.
    """

    name: str
    format: Literal["canonical", "native"] = "canonical"
    stop: bool = False
    _done: threading.Event = field(default_factory=threading.Event, repr=False)
    _result: SavepointView | MoorageError | None = field(default=None, repr=False)

    def answer(self, result: SavepointView | MoorageError) -> None:
        """Say what came of it; the first answer counts."""
        if not self._done.is_set():
            self._result = result
            self._done.set()

    def wait(self, timeout: float | None = None) -> SavepointView | None:
        """The savepoint; None when it is not there in `timeout` seconds.

        Raises:
            MoorageError: why there is none.
        """
        if not self._done.wait(timeout):
            return None
        if isinstance(self._result, MoorageError):
            raise self._result
        return self._result


class Requests:
    """Requests that wait for the next boundary; for any thread. Closed when the job has ended."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[SavepointRequest] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._ended = ""

    def put(self, request: SavepointRequest) -> SavepointRequest:
        """Ask for a savepoint.

        Raises:
            UserError: the name cannot be that of a directory.
        """
        check_name(request.name)
        with self._lock:
            if not self._ended:
                self._waiting.put(request)
                return request
        request.answer(UserError(self._ended))
        return request

    def take_one(self) -> SavepointRequest | None:
        """The one that waits longest, or None."""
        try:
            return self._waiting.get_nowait()
        except queue.Empty:
            return None

    def take(self) -> list[SavepointRequest]:
        """All that wait, in their order."""
        return list(iter(self.take_one, None))

    def close(self, reason: str) -> None:
        """The job has ended: what waits, and what still comes, is refused with this reason."""
        with self._lock:
            self._ended = reason
        for request in self.take():
            request.answer(UserError(reason))


def check_name(name: str) -> None:
    """Refuse what is no name of a savepoint.

    Raises:
        UserError: saying what a name is made of.
    """
    if not _NAME.fullmatch(name):
        raise UserError(
            f"not a name for a savepoint: name={name!r}; use letters, digits, dots, dashes and "
            f"underscores, 63 at most, and begin with a letter or digit"
        )
