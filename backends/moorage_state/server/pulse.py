"""Tells clients that long calls get on, so that they can tell a slow server from a stuck one.

Decides when: every few seconds, for each call that has moved something since. A call that stands
still is not told of, and its client gives up in the end. Called by `Service`.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from moorage_state.progress import Progress, carrying
from moorage_state.server.wire import Connection

__all__ = ["Pulse"]

_PULSE_SECONDS = 5.0


@dataclass(slots=True, eq=False)
class _Call:
    """A call at work; nothing is sent for it without the lock, or when it is `over`."""

    connection: Connection
    progress: Progress = field(default_factory=Progress)
    lock: threading.Lock = field(default_factory=threading.Lock)
    over: bool = False


class Pulse:
    """The calls of a server that are at work.

    Args:
        seconds: from one look at them to the next.
        sleep: waits for seconds.
    """

    def __init__(
        self, seconds: float = _PULSE_SECONDS, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self._seconds = seconds
        self._sleep = sleep
        self._calls: dict[int, _Call] = {}

    def start(self) -> None:
        """Look after calls in the background for as long as the process lives."""
        threading.Thread(target=self._run, name="pulse", daemon=True).start()

    @contextmanager
    def of(self, connection: Connection) -> Iterator[None]:
        """Within the block a call of this connection is at work; nothing is sent after it."""
        call = _Call(connection)
        self._calls[id(call)] = call
        try:
            with carrying(call.progress):
                yield
        finally:
            with call.lock:
                call.over = True
            del self._calls[id(call)]

    def beat(self) -> None:
        """Tell the clients of all calls that have got on since the last time."""
        for call in list(self._calls.values()):
            with call.lock, suppress(OSError):  # who has gone is missed by nobody
                if not call.over and call.progress.moved():
                    call.connection.send_progress()

    def _run(self) -> None:
        while True:
            self._sleep(self._seconds)
            self.beat()
