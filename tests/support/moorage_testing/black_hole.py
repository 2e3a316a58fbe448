"""A way to a server that can lose its host: connections stay, and nothing comes through any more.

    with BlackHole("127.0.0.1:7790") as way:
        client = StateClient.connect(way.address, token)
        way.vanish()

A host without power answers no packet. Here the kernel of this one still acknowledges them, so
that only those are tested who wait for answers, not what TCP itself notices.
"""

import contextlib
import socket
import threading
from typing import Self

__all__ = ["BlackHole"]


class BlackHole:
    """A proxy in front of `host:port`; a context manager that frees everybody in the end."""

    def __init__(self, target: str) -> None:
        host, _, port = target.removeprefix("tcp:").rpartition(":")
        self._target = (host, int(port))
        self._gone = threading.Event()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp:127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def vanish(self) -> None:
        """The host is gone, and nobody is told."""
        self._gone.set()

    def close(self) -> None:
        """End all connections; idempotent."""
        for one in [self._listener, *self._sockets]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                self._sockets.append(near)
                if self._gone.is_set():
                    continue
                far = socket.create_connection(self._target)
            except OSError:
                return
            self._sockets.append(far)
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                if not self._gone.is_set():
                    other.sendall(data)
            if not self._gone.is_set():
                other.shutdown(socket.SHUT_WR)
