"""The parent of an executor's state servers: `python -m moorage_state.server.sidecar --dir D ...`.

Decides when a server is restarted: when it is dead, or was ready and then gave neither an answer
nor another sign of life (it reads, writes, computes, waits for a disk) for half a minute. A slow
disk makes a server slow and not dead: killed, it would have the same work again. One that starts is
not asked: it has the time of its group, which grows where that was too short.
Holds no database, so that it answers `GET /healthz` whatever the servers do. At SIGTERM everything
ends at once, but for uploads in flight, which have the time of `--grace`; servers end with this
process, however it ends. Started as a container of the executor's pod, on the same volume.
"""

import argparse
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec

from moorage_state.core_dumps import no_core_dumps
from moorage_state.errors import MoorageError, Retryable, UserError
from moorage_state.import_path import after_standard_library
from moorage_state.server.addresses import EVERYWHERE, listen
from moorage_state.server.group import ServerGroup
from moorage_state.server.process import MAX_SOCKET_PATH, end_signals
from moorage_state.server.service import Lobby
from moorage_state.server.slots import Slot
from moorage_state.server.tls import certificates, tls_files
from moorage_state.state_backends import StateBackend, job_backend
from moorage_state.tuning import default_options

_log = logging.getLogger(__name__)

_MIB = 1 << 20
_LOOK_SECONDS = 1.0
_PING_SECONDS = 5.0
_HTTP_SECONDS = 5.0
_MOST_HTTP = 16
_START_SECONDS = 60.0
"""What a port or a range that a killed predecessor still holds may take to become free."""
_SICK_SECONDS = 60.0
"""How long a server may fail to start before the container should be started anew; longer while its
starts are slow."""
_FIRST_START_SECONDS = 60.0
"""What the first start of all servers may take, before it is tried again with twice as much."""
_LONGEST_START_SECONDS = 480.0

_TICKS = os.sysconf("SC_CLK_TCK")
_COUNTED = ("rchar:", "wchar:", "read_bytes:", "write_bytes:")
_LEAST_CPU = 0.2
"""Share of a processor; threads that wait for Python's lock in vain take some, too."""
_CPU_FACTOR = 10
"""Times the patience, for what computes and neither answers nor reads nor writes."""
_STATE, _USER, _SYSTEM = 0, 11, 12
"""Fields of /proc/<pid>/stat behind the name of the program."""


def main(arguments: list[str] | None = None) -> int:
    """Serve until told to end; the exit code."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s state-sidecar %(levelname)s %(message)s"
    )
    no_core_dumps()
    end = end_signals()
    try:
        token = _token(options.token_file)
        backend = backend_for(options)
        # Sidecars of one node may share the volume.
        with Slot.take(options.dir, options.job) as slot:
            _refuse_long_paths(slot)
            return _serve(options, token, backend, slot, end)
    except (MoorageError, OSError) as error:
        sys.stderr.write(f"state sidecar cannot start: {error}\n")
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m moorage_state.server.sidecar", description=__doc__
    )
    parser.add_argument("--dir", type=Path, required=True, help="the local volume")
    parser.add_argument("--job", default="", help="whose servers, where several share the volume")
    parser.add_argument("--servers", type=_positive, required=True, help="one for each core")
    parser.add_argument("--port", type=_positive, default=7790, help="of server 0, others follow")
    parser.add_argument("--host", default=EVERYWHERE, help="where to listen; *: on all addresses")
    parser.add_argument("--health-port", type=int, default=7789, help="of GET /healthz; 0: any")
    parser.add_argument("--token-file", type=Path, required=True, help="what clients must know")
    parser.add_argument("--tls-dir", default="", help="tls.crt, tls.key and ca.crt, for TCP")
    parser.add_argument("--tls-name", default="", help="the name that all certificates have")
    parser.add_argument("--grace", type=float, default=0.0, help="seconds for uploads at SIGTERM")
    parser.add_argument("--memory", type=_positive, help="MiB for databases of all servers")
    parser.add_argument("--backend", default="rocksdb", help="as in spec.state.backend")
    parser.add_argument("--state-options", default="{}", help="as in spec.state.options, as JSON")
    parser.add_argument(
        "--code", type=Path, action="append", default=[], help="a folder or archive of the job"
    )
    parser.add_argument("--sync-deltas", action="store_true", help="fsync every delta")
    parser.add_argument(
        "--hung-after", type=float, default=30.0, help="seconds without answer or sign of life"
    )
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def backend_for(options: argparse.Namespace) -> StateBackend:
    """The backend of each server. Raises `UserError` for an unknown one, or for a wrong option."""
    try:
        named = msgspec.json.decode(options.state_options, type=dict[str, str])
    except msgspec.MsgspecError as error:
        raise UserError(f"state options are not understood: error={error}") from error
    after_standard_library(str(path) for path in options.code)
    backend = job_backend(options.backend, named, default_options(os.environ))
    servers = options.servers
    return backend.for_servers(servers, options.memory and max(8 * servers, options.memory) * _MIB)


def _token(path: Path) -> str:
    token = path.read_text().strip()
    if not token:
        raise UserError(f"the token file is empty: path={path}; put the job's token there")
    return token


def _refuse_long_paths(slot: Slot) -> None:
    if len(str(slot.run / "999.sock")) > MAX_SOCKET_PATH:
        raise UserError(
            f"path of sockets is too long: path={slot.run} limit={MAX_SOCKET_PATH}; use a "
            f"shorter --dir"
        )


def _serve(
    options: argparse.Namespace, token: str, backend: StateBackend, slot: Slot, end: socket.socket
) -> int:
    tls = tls_files(options.tls_dir, options.tls_name)
    if tls is not None:
        certificates(tls).check()
    sidecar = Sidecar(
        lambda seconds: ServerGroup(
            options.servers,
            slot.state,
            backend=backend,
            code=options.code,
            sync_deltas=options.sync_deltas,
            tcp_host=options.host,
            tcp_port=options.port,
            token=token,
            identity=slot.identity,
            grace=options.grace,
            socket_dir=slot.run,
            start_timeout=seconds,
            tls=tls,
        ),
        hung_seconds=options.hung_after,
        sign=slot.sign,
    )
    health = _health(options.host, options.health_port, sidecar)
    _log.info("sidecar.began slot=%d health=%d", slot.number, health.server_port)
    work = threading.Thread(target=sidecar.work, name="work", daemon=True)
    work.start()
    end.recv(1)
    sidecar.end()
    return 2 if sidecar.failure else 0


@dataclass(frozen=True, slots=True)
class Signs:
    """What the kernel knows of a process: bytes read and written, processor time of its threads.

    `waits_for_disk`: a thread is in uninterruptible sleep; it could not be killed either.
    """

    moved: int
    cpu_seconds: float
    waits_for_disk: bool


def signs_of(pid: int) -> Signs:
    """A look at a process; one that is gone gives no signs."""
    process = Path(f"/proc/{pid}")
    moved, cpu, waits = 0, 0.0, False
    with suppress(OSError):
        lines = (line.split() for line in (process / "io").read_text().splitlines())
        moved = sum(int(count) for name, count in lines if name in _COUNTED)
    with suppress(OSError):
        fields = _fields(process / "stat")
        cpu = (int(fields[_USER]) + int(fields[_SYSTEM])) / _TICKS
    with suppress(OSError):
        for thread in (process / "task").iterdir():
            with suppress(OSError):
                waits = waits or _fields(thread / "stat")[_STATE] == "D"
    return Signs(moved, cpu, waits)


class HangJudge:
    """Whether one process hangs, asked again and again while it does not answer.

    `patience` is in seconds without an answer and without a sign, by the monotonic `clock`.
    """

    def __init__(
        self,
        patience: float,
        clock: Callable[[], float],
        look: Callable[[int], Signs] = signs_of,
    ) -> None:
        self._patience = patience
        self._clock = clock
        self._look = look
        self.answered(0)

    def answered(self, pid: int) -> None:
        """This process answers, or is another one than before."""
        self._pid = pid
        self._answered = self._alive = self._computed = self._looked = self._clock()
        self._signs: Signs | None = None

    @property
    def silent_seconds(self) -> float:
        """How long it has not answered."""
        return self._clock() - self._answered

    def hangs(self) -> bool:
        """Whether it may be killed: it did not answer just now."""
        now, signs, before = self._clock(), self._look(self._pid), self._signs
        if signs.waits_for_disk or (before and signs.moved != before.moved):
            self._alive = now
        if before and signs.cpu_seconds - before.cpu_seconds >= _LEAST_CPU * (now - self._looked):
            self._computed = now
        self._signs, self._looked = signs, now
        # One look alone does not tell what moves.
        if before is None or now - self._alive < self._patience:
            return False
        computes = now - self._computed < self._patience
        return not computes or now - self._answered >= _CPU_FACTOR * self._patience


def _fields(path: Path) -> list[str]:
    # The name of the program may hold blanks and brackets.
    return path.read_text().rpartition(")")[2].split()


class Sidecar:
    """Keeps a group of servers alive.

    Args:
        start: makes the group, whose servers have so many seconds to start; tried again while it
            raises `Retryable`: for a minute, and whenever it took all of these seconds.
        hung_seconds: how long a server may leave pings unanswered while it shows no sign of life.
        sign: called again and again while it works.
    """

    def __init__(
        self,
        start: Callable[[float], ServerGroup],
        *,
        hung_seconds: float = 30.0,
        look: Callable[[int], Signs] = signs_of,
        clock: Callable[[], float] = time.monotonic,
        sign: Callable[[], None] = lambda: None,
    ) -> None:
        self._start = start
        self._sign = sign
        self._hung_seconds = hung_seconds
        self._look = look
        self._clock = clock
        self._group: ServerGroup | None = None
        self._ending = threading.Event()
        self._sick_since: float | None = None
        self.failure = ""
        self.restarts = 0

    def work(self) -> None:
        """Start the servers and look after them until `end`."""
        try:
            group = self._group = self._started()
        except MoorageError as error:
            if not self._ending.is_set():
                self.failure = str(error)
                _log.error("sidecar.failed error=%s", error)
                # Ends the main thread's wait, which then tells the failure by the exit code.
                signal.raise_signal(signal.SIGTERM)
            return
        for index in range(len(group.pids)):
            threading.Thread(
                target=self._watch, args=(group, index), name=f"watch-{index}", daemon=True
            ).start()
        _log.info("sidecar.ready addresses=%s", group.tcp_addresses)
        while not self._ending.wait(_LOOK_SECONDS):
            self._revive(group)
            self._sign()

    def health(self) -> tuple[bool, str]:
        """Whether the sidecar does what it is for, and why not."""
        sick, group = self._sick_since, self._group
        if group is None:
            return False, "starting"
        slow = group.slow_starts
        patience = _SICK_SECONDS * (2 ** (slow + 1) if slow else 1)
        if sick is not None and self._clock() - sick > patience:
            return False, self.failure
        return True, f"servers={len(group.pids)} restarts={self.restarts}"

    def end(self) -> None:
        """End the servers; uploads in flight have their grace."""
        self._ending.set()
        if self._group is not None:
            self._group.end()

    def _started(self) -> ServerGroup:
        seconds, deadline = _FIRST_START_SECONDS, self._clock() + _START_SECONDS
        while True:
            began = self._clock()
            try:
                return self._start(seconds)
            except Retryable as error:
                now = self._clock()
                if now - began >= seconds:
                    _log.warning("sidecar.slow-start seconds=%g error=%s", seconds, error)
                    seconds = min(2 * seconds, _LONGEST_START_SECONDS)
                    deadline = now + _START_SECONDS
                if now > deadline or self._ending.wait(_LOOK_SECONDS):
                    raise

    def _revive(self, group: ServerGroup) -> None:
        try:
            revived = group.ensure_alive()
        except (MoorageError, OSError) as error:
            if self._ending.is_set():
                return
            _log.warning("sidecar.not-revived error=%s", error)
            self.failure = str(error)
            self._sick_since = self._sick_since or self._clock()
            return
        self._sick_since, self.failure = None, ""
        self.restarts += len(revived)
        if revived:
            _log.warning("sidecar.revived servers=%s", revived)

    def _watch(self, group: ServerGroup, index: int) -> None:
        """Kill the server when it was ready and does not answer; `_revive` starts another."""
        judge = HangJudge(self._hung_seconds, self._clock, self._look)
        pid, told = group.pids[index], False
        judge.answered(pid)
        while not self._ending.wait(_LOOK_SECONDS):
            another = group.pids[index] != pid or group.is_starting(index)
            if another or _answers(group, index):
                pid, told = group.pids[index], False
                judge.answered(pid)
            elif judge.hangs():
                _log.warning("sidecar.hung server=%d pid=%d", index, pid)
                group.kill(index, pid)
                judge.answered(pid)
            elif judge.silent_seconds >= self._hung_seconds and not told:
                _log.warning("sidecar.slow server=%d pid=%d", index, pid)
                told = True


def _answers(group: ServerGroup, index: int) -> bool:
    try:
        with group.connect(index, _PING_SECONDS) as client:
            client.ping()
    except MoorageError:
        return False
    return True


def _health(
    host: str,
    port: int,
    sidecar: Sidecar,
    *,
    most: int = _MOST_HTTP,
    seconds: float = _HTTP_SECONDS,
) -> ThreadingHTTPServer:
    """Answer `GET /healthz` in the background, `most` at a time, each for `seconds` in all."""
    lobby = Lobby(most, seconds)

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "moorage", ""

        def do_GET(self) -> None:
            well, text = sidecar.health()
            status = 404 if self.path != "/healthz" else 200 if well else 503
            body = f"{text if status != 404 else 'not found'}\n".encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Probes come every few seconds."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def process_request(self, request: Any, client_address: Any) -> None:
            lobby.enter(request)
            super().process_request(request, client_address)

        def shutdown_request(self, request: Any) -> None:
            super().shutdown_request(request)
            lobby.leave(request)

        def handle_error(self, *_: object) -> None:
            """Peers come and go."""

    server = Server((host, port), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listen(host, port)
    server.server_port = server.socket.getsockname()[1]
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
    return server


if __name__ == "__main__":
    sys.exit(main())
