"""This machine as the place a job runs in: Spark in this process, state servers beside it.

Decides where scratch lives and that nothing of it survives its process. Called by `run_job`.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from moorage.driver.control import own_folder
from moorage.driver.environment import Platform, StoppedWaiting
from moorage.driver.session import end_session, local_session
from moorage.driver.settings import JobSettings
from moorage.driver.types import RunOptions
from moorage.driver.views import ExecutorsView
from moorage.engine.placement import LocalPlacement
from moorage.engine.range_access import ServerConnection, ServerDoor
from moorage_state.errors import LocalDiskError, MoorageError, UserError
from moorage_state.keygroups import KeyGroupRange
from moorage_state.server.client import StateClient
from moorage_state.server.group import ServerGroup
from moorage_state.state_backends import StateBackend

_OWNED = ".owned"
_SOCKETS = "sockets"
_SHORT = 80


class LocalEnvironment:
    """See `moorage.driver.environment.JobEnvironment`."""

    @contextlib.contextmanager
    def open(
        self,
        settings: JobSettings,
        lineage: str,  # noqa: ARG002 - scratch is always new
        options: RunOptions,
        tell: Callable[[str], None],
    ) -> Iterator[Platform]:
        """See `JobEnvironment.open`."""
        cores, servers_wanted = cores_and_servers(settings, options.cores, os.cpu_count() or 1)
        scratch = Scratch(settings.checkpoint_dir, options.local_dir)
        tell(f"starting spark: cores={cores} parallelism={settings.parallelism}")
        with contextlib.ExitStack() as stack:
            stack.callback(scratch.remove)
            local_dir = stack.enter_context(_state_dir(settings.backend, scratch))
            with _unless_stopped(options):
                group = ServerGroup(
                    servers_wanted,
                    local_dir,
                    backend=settings.backend.for_servers(servers_wanted, None),
                    code=settings.code,
                    socket_dir=scratch.sockets,
                )
                servers = LocalServers(group)
                stack.callback(servers.close)
                spark = local_session(settings, cores, scratch.path)
            stack.callback(end_session, spark)
            yield Platform(spark, servers, servers.token, LocalPlacement(), scratch.path, local_dir)

    def scale(self, executors: int) -> None:
        """See `JobEnvironment.scale`."""
        raise UserError(
            f"there are no executors on this machine: executors={executors}; set --cores, or run "
            f"the job on a cluster"
        )

    def executors(self) -> ExecutorsView:
        """See `JobEnvironment.executors`: there are none."""
        return ExecutorsView()


def cores_and_servers(settings: JobSettings, asked: int | None, machine: int) -> tuple[int, int]:
    """How many cores Spark has and how many state servers there are; neither can change later.

    Where subtasks may become more there are cores for them, which cost nothing as long as nobody
    uses them, but servers only for those that were asked for: of cores, or of subtasks.
    """
    most = settings.max_parallelism if settings.rescales_live else settings.parallelism
    cores = asked or min(most, machine)
    return cores, min(most if asked else settings.parallelism, cores)


@contextlib.contextmanager
def _unless_stopped(options: RunOptions) -> Iterator[None]:
    """A signal to every process ends those that are still starting: not a failure of theirs."""
    try:
        yield
    except MoorageError as error:
        if options.stop.is_set():
            raise StoppedWaiting from error
        raise


@contextlib.contextmanager
def _state_dir(backend: StateBackend, scratch: "Scratch") -> Iterator[Path]:
    """Where working state lies: in scratch, or where the job says."""
    if backend.working_directory is None:
        yield scratch.path / "state"
        return
    other = Scratch(str(scratch.path), backend.working_directory)
    try:
        yield other.path / "state"
    finally:
        other.remove()


class Scratch:
    """A directory for one process's working data; left-overs of dead processes are removed.

    Args:
        checkpoint_dir: scratch of one job lies together, so that the next run finds left-overs.
        base: where to make it; the system's directory for temporary files by default.

    Raises:
        LocalDiskError: it cannot be made.
    """

    def __init__(self, checkpoint_dir: str, base: Path | None = None) -> None:
        job = hashlib.sha256(checkpoint_dir.encode()).hexdigest()[:12]
        parent = (base or Path(tempfile.gettempdir())) / f"moorage-{os.getuid()}-{job}"
        try:
            parent.parent.mkdir(parents=True, exist_ok=True)
            own_folder(parent, "scratch")
            _remove_orphans(parent)
            self.path = Path(tempfile.mkdtemp(prefix="run-", dir=parent))
            self._owned = os.open(self.path / _OWNED, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
            fcntl.flock(self._owned, fcntl.LOCK_EX)
            self.sockets = _socket_dir(self.path)
        except OSError as exc:
            raise LocalDiskError(
                f"cannot make a scratch directory: path={parent} error={exc.strerror}; make room, "
                f"or name another place with --local-dir"
            ) from exc

    def remove(self) -> None:
        """Delete everything."""
        os.close(self._owned)
        _remove(self.path)
        with suppress(OSError):
            self.path.parent.rmdir()


def _socket_dir(scratch: Path) -> Path:
    """A directory for sockets, whose paths must be short; scratch knows the way to it."""
    inside = scratch / _SOCKETS
    if len(str(inside)) <= _SHORT:
        inside.mkdir()
        return inside
    elsewhere = Path(tempfile.mkdtemp(prefix="moorage-", dir="/tmp"))
    inside.symlink_to(elsewhere)
    return elsewhere


def _remove(scratch: Path) -> None:
    """Delete a scratch directory and its sockets, wherever they are."""
    shutil.rmtree((scratch / _SOCKETS).resolve(), ignore_errors=True)
    shutil.rmtree(scratch, ignore_errors=True)


def _remove_orphans(parent: Path) -> None:
    for path in parent.glob("run-*"):
        try:
            handle = os.open(path / _OWNED, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        else:
            _remove(path)
        finally:
            os.close(handle)


class LocalServers:
    """State servers on this machine, one process each; see `engine.range_access.Servers`."""

    def __init__(self, group: ServerGroup) -> None:
        self._group = group

    def place(self, groups: Sequence[KeyGroupRange], checkpoint_id: int) -> list[int]:  # noqa: ARG002
        """Subtask i is served by server i modulo their number."""
        self.ensure_alive()
        return [subtask % len(self._group.pids) for subtask in range(len(groups))]

    def door(self, index: int) -> ServerDoor:
        """How tasks find a server."""
        return ServerDoor(self._group.addresses[index])

    def gone(self) -> frozenset[int]:
        """None: they end with this process."""
        return frozenset()

    def refuse_lost(self) -> None:
        """Nothing: they are restarted in place."""

    def wants_to_move(self, *, busy: bool = False) -> bool:  # noqa: ARG002
        """Never: all servers have one volume."""
        return False

    @property
    def token(self) -> str:
        """What a client must know to be served."""
        return self._group.token

    def connect(self, index: int) -> ServerConnection:
        """A new connection to a server."""
        return StateClient.connect(self._group.addresses[index], self._group.token)

    def ensure_alive(self, well: Container[int] = ()) -> list[int]:  # noqa: ARG002
        """Restart what is dead; returns the indices of the servers that were restarted."""
        return self._group.ensure_alive()

    def close(self) -> None:
        """End all servers."""
        self._group.close()
