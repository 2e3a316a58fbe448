"""Where a listener's connections are until they have shown who they are.

Decides how many of them there may be, and how long each may take for all of it: whoever holds no
token must neither pile up threads nor hold one by a byte now and then. When there are too many, the
oldest makes room, so that a crowd of strangers keeps nobody out. Hangs up by shutting the socket
down, which wakes the thread that reads from it. Called by `Service` and by the sidecar's health.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable

__all__ = ["Lobby"]


class Lobby:
    """Connections of one listener that are not trusted yet.

    Args:
        most: how many there may be at a time.
        seconds: that each has, from `enter` to `leave`.
        clock: seconds, monotonic.
    """

    def __init__(
        self, most: int, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._places = threading.Semaphore(most)
        self._changed = threading.Condition()
        # In the order of coming, so that the first one is the oldest.
        self._since: dict[socket.socket, float] = {}
        threading.Thread(target=self._watch, name="lobby", daemon=True).start()

    def enter(self, connected: socket.socket) -> None:
        """Take a connection in; waits until the oldest has made room, if there is none."""
        if not self._places.acquire(blocking=False):
            with self._changed:
                oldest = next(iter(self._since), None)
                if oldest is not None:
                    _hang_up(oldest)
            # Whoever was hung up on, or has ended by itself, comes out: never more than `most`.
            self._places.acquire()
        with self._changed:
            self._since[connected] = self._clock()
            self._changed.notify()

    def leave(self, connected: socket.socket) -> None:
        """It is trusted, or over; idempotent."""
        with self._changed:
            inside = self._since.pop(connected, None) is not None
        if inside:
            self._places.release()

    def _watch(self) -> None:
        with self._changed:
            while True:
                now = self._clock()
                for connected, since in self._since.items():
                    if now - since >= self._seconds:
                        _hang_up(connected)
                first = next((s for s in self._since.values() if now - s < self._seconds), None)
                self._changed.wait(None if first is None else first + self._seconds - now)


def _hang_up(connected: socket.socket) -> None:
    # It may have ended by itself. A TLS socket waits for nobody here either.
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connected, socket.SHUT_RDWR)
