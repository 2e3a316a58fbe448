"""The state servers of one machine, seen from the process that starts them.

Decides how servers are started (exec, never fork: an open database hangs after a fork), told their
secret (over stdin), restarted when they died, and ended. A start has its time, which doubles after
each one that was too slow. Called by the driver in local mode and by an executor's sidecar. Holds
no database itself, so that it answers while the servers flush.
"""

import contextlib
import os
import secrets
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import moorage_state
from moorage_state.errors import Retryable
from moorage_state.import_path import python_path
from moorage_state.server.addresses import join_address
from moorage_state.server.client import StateClient
from moorage_state.server.tls import TlsFiles
from moorage_state.state_backends.rocksdb import EmbeddedRocksDBStateBackend
from moorage_state.state_backends.state_backend import StateBackend, backend_flags

_END_SECONDS = 5.0
_PROBE_SECONDS = 1.0
_READ_BYTES = 4096
_MOST_SLOW = 3
"""So often in a row the time for a start doubles."""


@dataclass(slots=True)
class _Server:
    process: subprocess.Popen[bytes]
    addresses: list[str]
    began: float
    patience: float
    ready: bool = False


class ServerGroup:
    """`n` server processes on one local directory; a context manager. They end with this process.

    Args:
        local_dir: shared by all of them; a range may be opened in any one at a time.
        backend: opens the databases; what they share is per server. RocksDB if none is given.
        code: folders and archives in which servers find the backend's module.
        tcp_host: also listen on this host, or on `addresses.EVERYWHERE`.
        tcp_port: of server 0, the others follow; free ports if 0.
        token: what clients must know; a new one if empty.
        identity: what the identities of the servers begin with; a new one if empty.
        grace: seconds that an upload in flight has to end when the group is closed.
        socket_dir: where the sockets go, a short path that the caller removes; by default a
            directory of the group's own, which a killed process leaves behind.
        start_timeout: seconds that the start of a server may take; doubled after each slow one.

    Raises `Retryable` where a server did not start; it has told why on stderr.
    """

    def __init__(
        self,
        n: int,
        local_dir: Path,
        *,
        backend: StateBackend | None = None,
        code: Sequence[Path] = (),
        sync_deltas: bool = False,
        tcp_host: str = "",
        tcp_port: int = 0,
        token: str = "",
        identity: str = "",
        grace: float = 0.0,
        socket_dir: Path | None = None,
        start_timeout: float = 60.0,
        tls: TlsFiles | None = None,
    ) -> None:
        self.token = token or secrets.token_hex(32)
        self.identity = identity or secrets.token_hex(16)
        self._local_dir = local_dir
        # Made here, so that a backend that cannot travel is refused before anything starts.
        self._flags = backend_flags(backend or EmbeddedRocksDBStateBackend())
        self._flags += [word for path in code for word in ("--code", str(path))]
        self._sync_deltas = sync_deltas
        self._tcp_host = tcp_host
        self._tcp_port = tcp_port
        self._grace = grace
        self._start_timeout = start_timeout
        self._tls = tls
        self._lock = threading.Lock()
        self._closed = False
        self._slow_starts = 0
        self._restarted: set[int] = set()
        self._own_sockets = socket_dir is None
        self._sockets = socket_dir or Path(tempfile.mkdtemp(prefix="moorage-", dir="/tmp"))
        self._servers: list[_Server] = []
        try:
            for index in range(n):
                self._servers.append(self._spawn(index))
            for server in self._servers:
                self._wait_until_ready(server)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @property
    def addresses(self) -> list[str]:
        """`unix:` addresses by index; they stay the same when a server is restarted."""
        return [server.addresses[0] for server in self._servers]

    @property
    def tcp_addresses(self) -> list[str]:
        """`tcp:` addresses by index, of the servers as they run; empty without `tcp_host`."""
        return [address for server in self._servers for address in server.addresses[1:]]

    @property
    def pids(self) -> list[int]:
        """Process ids by index."""
        return [server.process.pid for server in self._servers]

    @property
    def slow_starts(self) -> int:
        """How many starts in a row were too slow; 3 stands for more as well."""
        return self._slow_starts

    def is_starting(self, index: int) -> bool:
        """Whether a server has not said yet that it is ready."""
        return not self._servers[index].ready

    def connect(self, index: int, timeout: float = 120.0) -> StateClient:
        """A new connection to one server. Raises: see `StateClient.connect`."""
        return StateClient.connect(self._servers[index].addresses[0], self.token, timeout)

    def kill(self, index: int, pid: int) -> None:
        """SIGKILL for a server that does not answer; `ensure_alive` then starts another one."""
        process = self._servers[index].process
        # Only the process that was judged: another may have taken its place meanwhile.
        if process.pid == pid and process.poll() is None:
            process.kill()

    def ensure_alive(self) -> list[int]:
        """Restart servers that have ended; their indices. Their ranges must be opened again.

        Raises `Retryable` where one did not start.
        """
        with self._lock:
            if self._closed:
                raise Retryable("the group of state servers was closed; start another one")
            for index, server in enumerate(self._servers):
                if self._is_over(server):
                    _end_all([server], 0.0)
                    self._servers[index] = self._spawn(index)
                    self._restarted.add(index)
            for server in self._servers:
                if not server.ready:
                    self._wait_until_ready(server)
            restarted, self._restarted = sorted(self._restarted), set()
            return restarted

    def close(self) -> None:
        """End all servers and wait for that; idempotent. What they committed stays on disk."""
        with self._lock:
            self.end()
            if self._own_sockets:
                shutil.rmtree(self._sockets, ignore_errors=True)

    def end(self) -> None:
        """End all servers and wait for that, even while one is being restarted."""
        # Without the lock, which a restart holds for minutes; the server that it misses ends with
        # this process.
        self._closed = True
        _end_all(self._servers, self._grace)

    def _spawn(self, index: int) -> _Server:
        path = self._sockets / f"{index}.sock"
        # -P: not from the directory we are in, which may be a job's.
        command = [sys.executable, "-P", "-m", "moorage_state.server"]
        # The token goes over stdin: arguments and environment can be read by others.
        command += ["--dir", str(self._local_dir), "--socket", str(path), "--token-stdin"]
        command += ["--die-with-parent", str(os.getpid())]
        command += self._flags
        command += ["--sync-deltas"] if self._sync_deltas else []
        command += ["--id", f"{self.identity}.{index}", "--grace", str(self._grace)]
        if self._tcp_host:
            port = self._tcp_port + index if self._tcp_port else 0
            command += ["--tcp", join_address(self._tcp_host, port)]
            if self._tls is not None:
                command += ["--tls-dir", self._tls.directory, "--tls-name", self._tls.name]
        # A session of its own: Ctrl-C in the terminal is the parent's to answer.
        # Exec, never fork: an open database hangs after a fork.
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(),
            start_new_session=True,
        )
        assert process.stdin is not None  # noqa: S101  for the type checker
        # A server that has already ended is found out when it is not ready.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(f"{self.token}\n".encode())
            process.stdin.flush()
        patience = self._start_timeout * 2**self._slow_starts
        return _Server(process, [f"unix:{path}"], time.monotonic(), patience)

    def _wait_until_ready(self, server: _Server) -> None:
        if self._comes_up(server):
            return
        code = server.process.poll()
        if code is None:
            self._slow_starts = min(self._slow_starts + 1, _MOST_SLOW)
        why = "it was too slow" if code is None else "it has told why on stderr"
        raise Retryable(
            f"state server did not start: pid={server.process.pid} exit={code} "
            f"seconds={server.patience:g}; {why}"
        )

    def _comes_up(self, server: _Server) -> bool:
        """Whether it says in its time that it is ready, or has said so by now."""
        line = _first_line(server.process, server.began + server.patience)
        if not line.startswith("ready\t"):
            return False
        server.addresses = line.rstrip("\n").split("\t")[1:]
        server.ready, self._slow_starts = True, 0
        return True

    def _is_over(self, server: _Server) -> bool:
        """Whether it is to be replaced: what starts and has time left is not."""
        if server.ready or server.process.poll() is not None:
            return _has_ended(server)
        late = time.monotonic() >= server.began + server.patience
        return late and not self._comes_up(server)


def _has_ended(server: _Server) -> bool:
    """Whether the process is gone or going."""
    if server.process.poll() is not None:
        return True
    with socket.socket(socket.AF_UNIX) as probe:
        # A killed process closes its connections some moments before it can be waited for, and
        # whoever noticed the former asks here at once. A living one greets whoever connects.
        probe.settimeout(_PROBE_SECONDS)
        try:
            probe.connect(server.addresses[0].removeprefix("unix:"))
            return not probe.recv(1)
        except (ConnectionError, FileNotFoundError):
            return True
        except OSError:
            return False  # alive, and too busy to answer in time


def _environment() -> dict[str, str]:
    """This process's environment, with the folder that this package was imported from."""
    root = str(Path(moorage_state.__path__[0]).parent)
    others = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": python_path([root, *others.split(os.pathsep)])}


def _first_line(process: subprocess.Popen[bytes], deadline: float) -> str:
    """What the process prints first; empty when it ends or is too late."""
    assert process.stdout is not None  # noqa: S101  for the type checker
    descriptor = process.stdout.fileno()
    text = b""
    while not text.endswith(b"\n"):
        left = max(deadline - time.monotonic(), 0.0)
        if not select.select([descriptor], [], [], left)[0]:
            return ""
        piece = os.read(descriptor, _READ_BYTES)
        if not piece:
            process.wait()
            return ""
        text += piece
    return text.decode()


def _tell_to_end(server: _Server) -> None:
    """By a word and not by SIGTERM, to which servers do not listen; one that starts has nothing."""
    if not server.ready:
        server.process.kill()
    elif server.process.stdin is not None:
        with contextlib.suppress(OSError, ValueError):  # it is gone, or was told before
            server.process.stdin.write(b"end\n")
            server.process.stdin.close()


def _end_all(servers: list[_Server], grace: float) -> None:
    for server in servers:
        _tell_to_end(server)
    deadline = time.monotonic() + grace + _END_SECONDS
    for process in (server.process for server in servers):
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
