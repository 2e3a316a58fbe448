"""State servers as the engine knows them, wherever they run.

Decides nothing: the words between the ranges of a run and this machine's or a cluster's servers.
Implemented by `moorage.driver.local` and `moorage.cluster.servers`.
"""

from typing import ClassVar, Protocol

from moorage.engine.range_access import ServerDoor
from moorage_state.errors import VersionGone
from moorage_state.server.api import StateApi

__all__ = ["ExecutorLost", "ServerConnection", "Servers"]


class ExecutorLost(VersionGone):
    """An executor is gone and the state on its volume with it; rewind the job."""

    code: ClassVar[str] = "executor_lost"


class ServerConnection(StateApi, Protocol):
    """A connection to a state server."""

    def close(self) -> None:
        """End the connection."""
        ...


class Servers(Protocol):
    """State servers on one or several hosts.

    A server has its index for as long as it is known; that of one that is gone is not used again.
    """

    def place(self, parallelism: int) -> list[int]:
        """By subtask, the index of the server that has its ranges from now on.

        Called when a run begins, and only then do ranges move. May wait for servers to be there.
        """
        ...

    def door(self, index: int) -> ServerDoor:
        """How tasks find a server."""
        ...

    def connect(self, index: int) -> ServerConnection:
        """A new connection to a server."""
        ...

    def ensure_alive(self) -> list[int]:
        """Bring back what is dead; returns the indices of the servers that were restarted.

        Raises:
            ExecutorLost: a server that has ranges is gone with its volume.
        """
        ...

    def gone(self) -> frozenset[int]:
        """Servers that are gone with their hosts: nothing is asked of them any more.

        Raises:
            MoorageError: nobody knows, since what knows it has ended.
        """
        ...

    def wants_to_move(self, *, busy: bool = False) -> bool:
        """Whether ranges should move: worth a checkpoint, an end of the run and a new one.

        Args:
            busy: the end of the run would undo something; then only if they must.
        """
        ...
