"""How people reach a job that runs on this machine: a Unix socket that only its user can open.

One request a connection, one line of JSON each way, see `docs/cli.md`. Decides where the socket
lies: a name made of the checkpoint directory, so that whoever has the manifest finds it. Called by
`moorage run`, which serves, and by `moorage savepoint`, `moorage rescale`, `moorage status` and
`moorage state get --live`, which ask.
"""

import contextlib
import hashlib
import json
import os
import socket
import tempfile
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

import moorage_state.snapshots  # noqa: F401 - its errors cross the socket, too
from moorage.driver.lookup_requests import LookupRequest, from_json
from moorage.driver.lookups import StateLookups
from moorage.driver.requests import JobRequest, Requests, RescaleRequest, SavepointRequest
from moorage.driver.run_status import RunStatus
from moorage.driver.views import SavepointView
from moorage_state.errors import MoorageError, Retryable, UserError, error_from_wire, error_to_wire
from moorage_state.formats import read_json
from moorage_state.stores.addresses import without_links

FORMAT = 1
_MAX_LINE = 1 << 19
_MAX_REPLY = 64 << 20
_PIECE = 64 << 10
_MAX_PATH = 100
"""Of a Unix socket: 107 bytes and the zero behind them."""
_NAME = 22
"""Bytes of a slash and a socket's name."""
_BACKLOG = 8
_READ_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class StatusRequest:
    """How is it?"""


class NotRunning(UserError):
    """No job runs on this machine by this checkpoint directory, as this user."""

    code = "no_such_run"


def control_path(checkpoint_dir: str) -> Path:
    """The socket of the job with this checkpoint directory; its folder is made, for this user."""
    # However somebody writes the path, and by whichever link they come to it.
    place = without_links(checkpoint_dir)
    return _folder() / f"{hashlib.sha256(place.encode()).hexdigest()[:16]}.sock"


def control_sockets() -> list[Path]:
    """The sockets of this user's jobs; who was killed has left his."""
    return sorted(_folder().glob("*.sock"))


def own_folder(folder: Path, what: str) -> Path:
    """Make a folder that nobody else can look or write into, or take the one that is there.

    Its name can be guessed, and anybody may make it in a directory for temporary files.

    Raises:
        UserError: it is somebody else's, or open to others.
        OSError: it cannot be made.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077 or folder.is_symlink():
        raise UserError(
            f"the folder of {what} is open to others: path={folder}; remove it, or set TMPDIR to a "
            f"directory of your own"
        )
    return folder


def _folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"moorage-{os.getuid()}"
    if len(os.fsencode(folder)) > _MAX_PATH - _NAME:
        folder = Path("/tmp") / folder.name  # noqa: S108 - it is ours alone, as is checked below
    return own_folder(folder, "control sockets")


class ControlServer:
    """Serves one job until it is closed; a context manager.

    Args:
        status: how the job is; asked from any thread.
    """

    def __init__(
        self,
        path: Path,
        requests: Requests,
        lookups: StateLookups,
        status: Callable[[], RunStatus],
    ) -> None:
        self._path = path
        self._status = status
        self._requests = requests
        self._lookups = lookups
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # What a killed run left; a living one is kept out by the lock on its directory.
        path.unlink(missing_ok=True)
        self._socket.bind(str(path))
        self._inode = path.stat().st_ino
        self._socket.listen(_BACKLOG)
        threading.Thread(target=self._serve, name="control", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take no more requests; who waits for one is told by `Requests.close`."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with contextlib.suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(peer,), daemon=True).start()

    def _answer(self, peer: socket.socket) -> None:
        with peer, contextlib.suppress(OSError):
            peer.settimeout(_READ_SECONDS)
            reply: dict[str, Any]
            try:
                request = _request_in(_read_line(peer, _MAX_LINE))
                reply = {"ok": True, **self._done(request)}
            except MoorageError as error:
                reply = {"ok": False, "error": error_to_wire(error)}
            peer.sendall(json.dumps({"format": FORMAT, **reply}).encode() + b"\n")

    def _done(self, request: JobRequest | LookupRequest | StatusRequest) -> dict[str, Any]:
        if isinstance(request, StatusRequest):
            return {"status": msgspec.to_builtins(self._status())}
        if isinstance(request, LookupRequest):
            return {"lookup": msgspec.json.decode(self._lookups.submit(request).result())}
        view = self._requests.put(request).wait()
        if isinstance(request, SavepointRequest):
            return {"savepoint": _plain(_required(view))}
        return {}


def ask_for_status(path: Path, timeout: float | None = None) -> RunStatus:
    """Ask the job that listens at `path` how it is.

    Raises:
        UserError: no job runs there.
        Retryable: it did not answer in `timeout` seconds, or ended first.
    """
    late = f"no answer in {timeout or 0:g} s; ask again"
    answer = _ask(path, {"status": {}}, timeout, late, "status")["status"]
    return msgspec.convert(answer, RunStatus)


def ask_for_state(path: Path, request: LookupRequest, timeout: float | None = None) -> Any:
    """Ask the job that listens at `path` for some of its state; what `StateLookups.submit` gives.

    Raises:
        UserError: no job runs there, or the question is wrong.
        Retryable: it did not answer in `timeout` seconds, ended first, or cannot at the moment.
    """
    lookup = {"name": request.name, "body": request.to_json().decode()}
    late = f"no answer in {timeout or 0:g} s; ask again"
    return _ask(path, {"lookup": lookup}, timeout, late, f"queryable={request.name}")["lookup"]


def ask_for_savepoint(
    path: Path, request: SavepointRequest, timeout: float | None = None
) -> SavepointView:
    """Ask the job that listens at `path` and wait for its answer.

    Raises:
        UserError: no job runs there, or it refuses.
        Retryable: it did not answer in `timeout` seconds, or ended first.
        MoorageError: why the savepoint failed.
    """
    asked = {"name": request.name, "format": request.format, "stop": request.stop}
    late = f"no answer in {timeout or 0:g} s; the job may still complete the savepoint"
    reply = _ask(path, {"savepoint": asked}, timeout, late, f"name={request.name}")
    view = reply["savepoint"]
    if view["completed_at"] is not None:
        view["completed_at"] = datetime.fromisoformat(view["completed_at"])
    return SavepointView(**view)


def ask_to_rescale(path: Path, parallelism: int, timeout: float | None = None) -> None:
    """Ask the job that listens at `path` for so many subtasks, and wait until it has them.

    Raises:
        UserError: no job runs there, or it refuses.
        Retryable: it did not answer in `timeout` seconds, or ended first.
        MoorageError: why it goes on as it was.
    """
    asked = {"parallelism": parallelism}
    late = f"no answer in {timeout or 0:g} s; the job may still do it"
    _ask(path, {"rescale": asked}, timeout, late, f"parallelism={parallelism}")


def _ask(
    path: Path, asked: dict[str, Any], timeout: float | None, late: str, what: str
) -> dict[str, Any]:
    """What the job answers; raises its error."""
    body = {"format": FORMAT, **asked}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        try:
            peer.connect(str(path))
        except OSError as error:
            raise NotRunning(
                f"the job does not run on this machine, or not as this user with this TMPDIR: "
                f"socket={path}; start it with moorage run, then ask again"
            ) from error
        peer.settimeout(timeout)
        try:
            peer.sendall(json.dumps(body).encode() + b"\n")
            reply = json.loads(_read_line(peer, _MAX_REPLY))
        except TimeoutError as error:
            raise Retryable(f"{late}: {what}") from error
        except (OSError, ValueError) as error:
            raise Retryable(
                f"the job ended before it answered: {what}; see its own messages"
            ) from error
    if not reply["ok"]:
        raise error_from_wire(reply["error"])
    answer: dict[str, Any] = reply
    return answer


def _plain(view: SavepointView) -> dict[str, Any]:
    moment = view.completed_at.isoformat() if view.completed_at else None
    return {**asdict(view), "completed_at": moment}


def _read_line(peer: socket.socket, most: int) -> bytes:
    data = bytearray()
    while not data.endswith(b"\n"):
        piece = peer.recv(_PIECE)
        if not piece:
            raise ConnectionError("the other side hung up")
        data += piece
        if len(data) > most:
            raise UserError(f"a control request is too long: bytes={len(data)} max={most}")
    return bytes(data)


def _request_in(line: bytes) -> JobRequest | LookupRequest | StatusRequest:
    try:
        body = read_json(line)
        if body["format"] != FORMAT:
            raise UserError(
                f"a control request of another moorage: format={body['format']} known={FORMAT}; "
                f"use the same version for run and for what asks it"
            )
        if "status" in body:
            return StatusRequest()
        if "rescale" in body:
            return _rescale_in(body["rescale"])
        if "lookup" in body:
            return from_json(str(body["lookup"]["name"]), str(body["lookup"]["body"]).encode())
        asked = body["savepoint"]
        kind, stop = asked["format"], bool(asked["stop"])
        request = SavepointRequest(str(asked["name"]), kind, stop)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"not a control request: error={error}") from error
    if kind not in ("canonical", "native"):
        raise UserError(f"a savepoint is canonical or native: format={kind!r:.40}")
    return request


def _rescale_in(asked: dict[str, Any]) -> RescaleRequest:
    wanted = asked["parallelism"]
    if type(wanted) is not int:
        raise UserError(f"not a number of subtasks: parallelism={wanted!r:.40}")
    return RescaleRequest(parallelism=wanted)


def _required(view: SavepointView | None) -> SavepointView:
    if view is None:
        raise Retryable("the savepoint has no result")
    return view
