"""The process of a state server: `python -m moorage_state.server --dir D --socket PATH`.

Decides when the process ends: at SIGTERM; where it belongs to a parent, when that says so or is
gone, and at no signal, for one that all processes get is the parent's to answer, and its last
checkpoint needs us. It ends at once, because everything that was promised is in files and the
working directory is never trusted; only a running upload may be given time with `--grace`. Called
by `ServerGroup`.
"""

import argparse
import contextlib
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Collection
from pathlib import Path

from moorage_state.errors import MoorageError, UserError
from moorage_state.server.addresses import EVERYWHERE, join_address, listen, split_address
from moorage_state.server.host import RangeHost
from moorage_state.server.service import Service
from moorage_state.server.tls import Certificates, tls_files
from moorage_state.state_backends.state_backend import received_backend

TOKEN_VARIABLE = "MOORAGE_STATE_TOKEN"  # noqa: S105  the name, not the token
MAX_SOCKET_PATH = 100
"""Bytes; the kernel takes 107 at most."""

_TELL = ("moorage_state.server.tls", "moorage_state.stores.s3.mounted_keys")
"""The loggers that say when new certificates and keys are used: people wait for it before they take
the old ones back."""

_END_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT})
_PARENTS_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_WATCH_SIGNAL = signal.SIGUSR1
_PARENT_LOOK_SECONDS = 0.5
_GRACE_LOOK_SECONDS = 0.02
_BACKLOG = 128
_GIVE_WAY_SECONDS = 0.0005
"""After which a thread gives way to one that waits for Python's lock; a look-up does so often."""


def main(arguments: list[str] | None = None) -> int:
    """Serve until told to end; the exit code if that did not begin."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s state-server %(levelname)s %(message)s"
    )
    for name in _TELL:
        logging.getLogger(name).setLevel(logging.INFO)
    sys.setswitchinterval(_GIVE_WAY_SECONDS)
    end = _end_by_parent() if options.die_with_parent else end_signals()
    try:
        host, addresses = _start(options)
    except (MoorageError, OSError) as error:
        sys.stderr.write(f"state server cannot start: {error}\n")
        return 2
    orphaned = threading.Event()
    if options.die_with_parent:
        watch = threading.Thread(
            target=_watch_parent, args=(options.die_with_parent, orphaned), daemon=True
        )
        watch.start()
    # Tabs: an address may hold blanks.
    sys.stdout.write("\t".join(["ready", *addresses]) + "\n")
    sys.stdout.flush()
    _wait_for_end(end, host, options.grace, orphaned)
    if options.socket:
        _remove_socket(options.socket, with_directory=bool(options.die_with_parent))
    # Past threads, atexit and destructors, none of which has anything to save.
    os._exit(0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m moorage_state.server", description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="local directory of the lineage")
    parser.add_argument("--socket", type=Path, help="path of the Unix socket to serve")
    parser.add_argument("--tcp", help="host:port to serve as well; port 0 for any")
    parser.add_argument("--backend", default="rocksdb", help="rocksdb, hashmap or module:Class")
    parser.add_argument("--options", default="{}", help="the backend's fields as JSON")
    parser.add_argument(
        "--code", action="append", default=[], help="a folder or archive with modules of the job"
    )
    parser.add_argument("--id", default="", help="the identity that clients are shown")
    parser.add_argument("--sync-deltas", action="store_true", help="fsync every delta")
    parser.add_argument("--grace", type=float, default=0.0, help="seconds for uploads at the end")
    parser.add_argument(
        "--die-with-parent",
        type=int,
        metavar="PID",
        help="end when stdin closes or PID is gone, and not at signals",
    )
    parser.add_argument("--tls-dir", default="", help="tls.crt, tls.key and ca.crt, for --tcp")
    parser.add_argument("--tls-name", default="", help="the name that all certificates have")
    token = parser.add_mutually_exclusive_group()
    token.add_argument("--token-stdin", action="store_true", help="token in the first line")
    token.add_argument("--token-file", type=Path, help=f"else from ${TOKEN_VARIABLE}")
    return parser


def _start(options: argparse.Namespace) -> tuple[RangeHost, list[str]]:
    token = _token(options)
    backend = received_backend(options.backend, options.options, options.code)
    # The port first: while a predecessor holds it, its socket must not be taken away.
    ports = [_listen_tcp(options.tcp)] if options.tcp else []
    listeners = [*([_listen_unix(options.socket)] if options.socket else []), *ports]
    if not listeners:
        raise UserError("nowhere to listen; give --socket or --tcp")
    options.dir.mkdir(parents=True, exist_ok=True)
    host = RangeHost(options.dir, backend, sync_deltas=options.sync_deltas)
    files = tls_files(options.tls_dir, options.tls_name)
    certificates = Certificates(files) if files is not None else None
    if certificates is not None:
        certificates.check()
    service = Service(host, token, options.id, certificates=certificates)
    for listener in listeners:
        service.listen(listener)
    return host, [_address(listener) for listener in listeners]


def _token(options: argparse.Namespace) -> str:
    if options.token_stdin:
        token = sys.stdin.readline().strip()
    elif options.token_file:
        token = options.token_file.read_text().strip()
    else:
        token = os.environ.pop(TOKEN_VARIABLE, "")
    if not token:
        raise UserError(f"no token; set {TOKEN_VARIABLE}, or use --token-file or --token-stdin")
    return str(token)


def _listen_unix(path: Path) -> socket.socket:
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise UserError(
            f"path of a socket is too long: path={path} limit={MAX_SOCKET_PATH}; use a directory "
            f"under /tmp"
        )
    # A predecessor that was killed left its own; nobody else serves in this directory.
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    # The token protects it all the same; this keeps other users from trying.
    path.chmod(0o600)
    listener.listen(_BACKLOG)
    return listener


def _listen_tcp(where: str) -> socket.socket:
    address = split_address(where)
    if address is None:
        raise UserError(
            f"not an address to listen on: tcp={where!r}; use host:port, [host]:port for IPv6, or "
            f"{EVERYWHERE}:port"
        )
    return listen(*address, backlog=_BACKLOG)


def _address(listener: socket.socket) -> str:
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"unix:{name}"
    return f"tcp:{join_address(name[0], name[1])}"


def _watch_parent(parent: int, orphaned: threading.Event) -> None:
    """Have this process end when the parent says so, or is gone, however it ended."""
    # It says so with a line, or by closing its end of our stdin, which its own end does at once. A
    # process that it forked may have kept that open, which is why the parent is looked at too.
    # (PR_SET_PDEATHSIG would end us with the parent's *thread*.)
    poller = select.poll()
    poller.register(sys.stdin.fileno(), select.POLLIN)
    while os.getppid() == parent and not poller.poll(_PARENT_LOOK_SECONDS * 1000):
        pass
    os.kill(os.getpid(), _WATCH_SIGNAL)
    while os.getppid() == parent:
        time.sleep(_PARENT_LOOK_SECONDS)
    orphaned.set()


def _end_by_parent() -> socket.socket:
    """The same as `end_signals` for a process that its parent ends."""
    for number in _PARENTS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    return end_signals({_WATCH_SIGNAL})


def end_signals(numbers: Collection[signal.Signals] = _END_SIGNALS) -> socket.socket:
    """A socket that becomes readable at a signal to end."""
    # Masks and `sigwait` would not do: threads that libraries made at import take signals too, and
    # while nobody waits the default action ends the process with its socket left behind.
    readable, writable = socket.socketpair()
    writable.setblocking(False)
    signal.set_wakeup_fd(writable.detach(), warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, lambda *_: None)
    return readable


def _wait_for_end(
    end: socket.socket, host: RangeHost, grace: float, orphaned: threading.Event
) -> None:
    """Wait for a signal, and then for uploads."""
    end.recv(1)
    deadline = time.monotonic() + grace
    # Not as an orphan: a successor waits for our port.
    while time.monotonic() < deadline and host.busy() and not orphaned.is_set():
        time.sleep(_GRACE_LOOK_SECONDS)


def _remove_socket(path: Path, *, with_directory: bool) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
        if with_directory:
            path.parent.rmdir()
