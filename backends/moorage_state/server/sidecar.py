"""The parent of an executor's state servers: `python -m moorage_state.server.sidecar --dir D ...`.

Decides when a server is restarted: when it is dead, or alive without an answer for half a minute.
Holds no database, so that it answers `GET /healthz` whatever the servers do. At SIGTERM everything
ends at once, but for uploads in flight, which have the time of `--grace`; servers end with this
process, however it ends. Started as a container of the executor's pod, on the same volume.
"""

import argparse
import dataclasses
import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec

from moorage_state.errors import MoorageError, Retryable, UserError
from moorage_state.rocks.options import RocksOptions
from moorage_state.server.group import ServerGroup
from moorage_state.server.process import MAX_SOCKET_PATH, end_signals
from moorage_state.server.slots import Slot

__all__ = ["Sidecar", "main", "options_for"]

_log = logging.getLogger(__name__)

_MIB = 1 << 20
_LOOK_SECONDS = 1.0
_PING_SECONDS = 5.0
_HTTP_SECONDS = 5.0
_START_SECONDS = 60.0
"""What a port or a range that a killed predecessor still holds may take to become free."""
_SICK_SECONDS = 60.0
"""How long a server may fail to start before the container should be started anew."""


def main(arguments: list[str] | None = None) -> int:
    """Serve until told to end; the exit code."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s state-sidecar %(levelname)s %(message)s"
    )
    end = end_signals()
    try:
        token = _token(options.token_file)
        tuning = options_for(options.options, options.memory, options.servers)
        with Slot.take(options.dir) as slot:
            _refuse_long_paths(slot)
            return _serve(options, token, tuning, slot, end)
    except (MoorageError, OSError) as error:
        sys.stderr.write(f"state sidecar cannot start: {error}\n")
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m moorage_state.server.sidecar", description=__doc__
    )
    parser.add_argument("--dir", type=Path, required=True, help="the local volume")
    parser.add_argument("--servers", type=_positive, required=True, help="one for each core")
    parser.add_argument("--port", type=_positive, default=7790, help="of server 0, others follow")
    parser.add_argument("--host", default="0.0.0.0", help="where to listen")  # noqa: S104
    parser.add_argument("--health-port", type=int, default=7789, help="of GET /healthz; 0: any")
    parser.add_argument("--token-file", type=Path, required=True, help="what clients must know")
    parser.add_argument("--grace", type=float, default=0.0, help="seconds for uploads at SIGTERM")
    parser.add_argument("--memory", type=_positive, help="MiB for databases of all servers")
    parser.add_argument("--options", default="{}", help="RocksDB options as JSON, per server")
    parser.add_argument("--sync-deltas", action="store_true", help="fsync every delta")
    parser.add_argument(
        "--hung-after", type=float, default=30.0, help="seconds without an answer to a ping"
    )
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def options_for(given: str, memory: int | None, servers: int) -> RocksOptions:
    """RocksDB's options of each server.

    Args:
        given: RocksOptions as JSON; what it says wins.
        memory: MiB that all servers together have for caches and write buffers.

    Raises:
        UserError: they are not options of RocksDB.
    """
    try:
        asked = msgspec.json.decode(given, type=dict[str, Any])
        if memory is not None:
            share = max(8, memory // servers) * _MIB
            budget = {
                "block_cache_bytes": share,
                "write_buffers_bytes": share // 2,
                "write_buffer_bytes": min(RocksOptions().write_buffer_bytes, share // 8),
            }
            asked = {**budget, **asked}
        unknown = sorted(set(asked) - {field.name for field in dataclasses.fields(RocksOptions)})
        if unknown:
            raise UserError(f"rocksdb options are not known: options={unknown}")
        return msgspec.convert(asked, RocksOptions)
    except msgspec.MsgspecError as error:
        raise UserError(f"rocksdb options are not understood: error={error}") from error


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
    options: argparse.Namespace, token: str, tuning: RocksOptions, slot: Slot, end: socket.socket
) -> int:
    sidecar = Sidecar(
        lambda: ServerGroup(
            options.servers,
            slot.state,
            options=tuning,
            sync_deltas=options.sync_deltas,
            tcp_host=options.host,
            tcp_port=options.port,
            token=token,
            identity=slot.identity,
            grace=options.grace,
            socket_dir=slot.run,
        ),
        hung_seconds=options.hung_after,
    )
    health = _health(options.host, options.health_port, sidecar)
    _log.info("sidecar.began slot=%d health=%d", slot.number, health.server_port)
    work = threading.Thread(target=sidecar.work, name="work", daemon=True)
    work.start()
    end.recv(1)
    sidecar.end()
    return 2 if sidecar.failure else 0


class Sidecar:
    """Keeps a group of servers alive.

    Args:
        start: makes the group; tried again while it raises `Retryable`, for a minute.
        hung_seconds: how long a living server may leave pings unanswered.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        start: Callable[[], ServerGroup],
        *,
        hung_seconds: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._start = start
        self._hung_seconds = hung_seconds
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
                signal.raise_signal(signal.SIGTERM)
            return
        for index in range(len(group.pids)):
            threading.Thread(
                target=self._watch, args=(group, index), name=f"watch-{index}", daemon=True
            ).start()
        _log.info("sidecar.ready addresses=%s", group.tcp_addresses)
        while not self._ending.wait(_LOOK_SECONDS):
            self._revive(group)

    def health(self) -> tuple[bool, str]:
        """Whether the sidecar does what it is for, and why not."""
        sick = self._sick_since
        if self._group is None:
            return False, "starting"
        if sick is not None and self._clock() - sick > _SICK_SECONDS:
            return False, self.failure
        return True, f"servers={len(self._group.pids)} restarts={self.restarts}"

    def end(self) -> None:
        """End the servers; uploads in flight have their grace."""
        self._ending.set()
        if self._group is not None:
            self._group.end()

    def _started(self) -> ServerGroup:
        deadline = self._clock() + _START_SECONDS
        while True:
            try:
                return self._start()
            except Retryable:
                if self._clock() > deadline or self._ending.wait(_LOOK_SECONDS):
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
        """Kill the server when it lives without answering; `_revive` starts another."""
        pid, answered = group.pids[index], self._clock()
        while not self._ending.wait(_LOOK_SECONDS):
            if group.pids[index] != pid or _answers(group, index):
                pid, answered = group.pids[index], self._clock()
            elif self._clock() - answered >= self._hung_seconds:
                _log.warning("sidecar.hung server=%d pid=%d", index, pid)
                group.kill(index, pid)
                answered = self._clock()


def _answers(group: ServerGroup, index: int) -> bool:
    try:
        with group.connect(index, _PING_SECONDS) as client:
            client.ping()
    except MoorageError:
        return False
    return True


def _health(host: str, port: int, sidecar: Sidecar) -> ThreadingHTTPServer:
    """Answer `GET /healthz` in the background."""

    class Handler(BaseHTTPRequestHandler):
        timeout = _HTTP_SECONDS
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

        def handle_error(self, *_: object) -> None:
            """Peers come and go."""

    server = Server((host, port), Handler)
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
    return server


if __name__ == "__main__":
    sys.exit(main())
