"""Executors of a `local-cluster` with state servers beside them, as a pod has them."""

import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Self

from moorage.cluster.servers import ServerPlace
from moorage.engine.placement import LiveExecutor
from moorage_state.server.tls import TlsFiles
from moorage_testing.jobs import processes_of

__all__ = ["Sidecars", "executor_pid"]

_FIRST_PORT = 23_000
_LAST_PORT = 32_000
_VOLUME = "moorage"


class Sidecars:
    """Starts the sidecar of each executor when it is first asked for; a context manager.

    The volume of an executor is known to its tasks as `moorage` in their working directory.

    Args:
        work: Spark's `work` directory, in which every executor has its own.
        folder: where the volumes are; a short path, for sockets are there.
        tls: for TCP; None: in the clear.
    """

    def __init__(self, work: Path, folder: Path, token: str, tls: TlsFiles | None = None) -> None:
        self.tls = tls
        self.memory = 64
        """Of the databases of a server that is started from now on, in MiB."""
        self._work = work
        self._folder = folder
        (self._folder / "token").write_text(token)
        self._lock = threading.Lock()
        self._ports: dict[str, int] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()

    def find(self, executor: LiveExecutor) -> ServerPlace:
        """Where the server of an executor is; starts it if it never was. For any thread."""
        with self._lock:
            return self._found(executor)

    def _found(self, executor: LiveExecutor) -> ServerPlace:
        if executor.id not in self._ports:
            after = max([_FIRST_PORT + os.getpid() % 4000, *(p + 2 for p in self._ports.values())])
            self._ports[executor.id] = _free_ports(2, after)
            for directory in self._work.glob(f"app-*/{executor.id}"):
                with suppress(FileExistsError):
                    (directory / _VOLUME).symlink_to(self._folder / executor.id)
            self.start(executor.id)
        return ServerPlace("127.0.0.1", self._ports[executor.id], 1, _VOLUME)

    def start(self, executor: str) -> None:
        """Start a sidecar on the executor's volume, as the kubelet does when one died."""
        port = self._ports[executor]
        command = [sys.executable, "-m", "moorage_state.server.sidecar"]
        command += ["--dir", str(self._folder / executor), "--servers", "1"]
        command += ["--host", "127.0.0.1", "--port", str(port), "--health-port", str(port + 1)]
        command += ["--token-file", str(self._folder / "token"), "--memory", str(self.memory)]
        if self.tls is not None:
            command += ["--tls-dir", self.tls.directory, "--tls-name", self.tls.name]
        self.processes[executor] = subprocess.Popen(command)

    def kill(self, executor: str) -> None:
        """SIGKILL for the sidecar; its servers end with it, the volume stays."""
        self.processes[executor].kill()
        self.processes[executor].wait()

    def lose(self, executor: str) -> None:
        """SIGKILL for executor and sidecar at once; the volume is gone too."""
        os.kill(executor_pid(executor), signal.SIGKILL)
        self.kill(executor)
        subprocess.run(["rm", "-rf", str(self._folder / executor)], check=False)


def executor_pid(executor: str) -> int:
    """The process of an executor that this process has started by way of its JVM."""
    for pid in processes_of(os.getpid()):
        with suppress(OSError):
            arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if "--executor-id" not in arguments:
                continue
            if arguments[arguments.index("--executor-id") + 1] == executor:
                return pid
    raise ProcessLookupError(f"no process of executor {executor}")


def _free_ports(count: int, after: int) -> int:
    """The first of some neighbouring ports that nobody uses."""
    for first in range(after, _LAST_PORT, count):
        with ExitStack() as stack, suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(closing(socket.create_server(("127.0.0.1", port))))
            return first
    raise OSError("no free ports")
