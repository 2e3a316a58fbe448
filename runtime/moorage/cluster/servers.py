"""State servers on executors: which there are, which subtask each serves, and when one is gone.

Decides at the beginning of each run which executor has which subtask, and waits for executors
until there are enough. Within a run nothing moves: a server that died is waited for while its
volume lives, an executor that is gone ends the run. Implements `engine.range_access.Servers`.
Knows executors only through `ExecutorPool`, so that it is tested without Spark.
"""

import logging
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from moorage.cluster.executors import ExecutorPool
from moorage.driver.environment import NoExecutors, StoppedWaiting
from moorage.engine.placement import LiveExecutor, assign
from moorage.engine.range_access import ExecutorLost, ServerConnection, ServerDoor
from moorage_state.errors import MoorageError
from moorage_state.keygroups import KeyGroupRange
from moorage_state.server.addresses import join_address
from moorage_state.server.client import StateClient
from moorage_state.server.operations import RangeSpec
from moorage_state.server.slots import socket_path
from moorage_state.server.tls import TlsFiles
from moorage_state.server.wire import AnotherServer

_log = logging.getLogger(__name__)

_POLL_SECONDS = 0.25
_TELL_SECONDS = 30.0
_GREET_SECONDS = 20.0
_GREETERS = 16


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """Where the state servers of one executor are.

    Attributes:
        host: where the driver and other executors reach them.
        port: of the first; the others follow.
        count: how many there are.
        volume: the path of their volume as tasks of this executor see it.
    """

    host: str
    port: int
    count: int
    volume: str


@dataclass(frozen=True, slots=True)
class Patience:
    """How long things may take, in seconds.

    Attributes:
        all_executors: to wait for the last of the wanted executors, when some are there.
        any_executor: to wait for the first one.
        revival: to wait for a server on a living executor.
        settle: that executors must have been there before subtasks move to them.
        between_moves: from one move to the next one.
        look: from one look at the executors to the next one.
    """

    all_executors: float = 60.0
    any_executor: float = 900.0
    revival: float = 90.0
    settle: float = 10.0
    between_moves: float = 60.0
    look: float = 2.0


_Copy = tuple[RangeSpec, int]
"""A range, and the checkpoint of which a volume has a copy."""


@dataclass(frozen=True, slots=True)
class _Server:
    executor: str
    door: ServerDoor


class ClusterServers:
    """See `moorage.engine.range_access.Servers`.

    Args:
        executors: Spark's.
        find: where the servers of an executor are.
        token: what they ask for.
        lineage: to which the state on their volumes must belong.
        pin: told which executor has which subtask, when that changes.
        tell: takes sentences that a person should read.
        stop: set when the job is told to stop.
        at_once: whether somebody asked for the job's end without a checkpoint.
        spares: executors have room for half as much state again, until a lost one is replaced.
        tls: how servers are known, the same in every pod; None: in the clear.
    """

    def __init__(
        self,
        executors: ExecutorPool,
        find: Callable[[LiveExecutor], ServerPlace],
        token: str,
        lineage: str,
        *,
        pin: Callable[[Mapping[int, str]], None],
        tell: Callable[[str], None],
        stop: threading.Event,
        at_once: Callable[[], bool] = lambda: False,
        spares: bool = False,
        patience: Patience | None = None,
        clock: Callable[[], float] = time.monotonic,
        tls: TlsFiles | None = None,
    ) -> None:
        self._executors = executors
        self._find = find
        self._token = token
        self._lineage = lineage
        self._pin = pin
        self._tell = tell
        self._stop = stop
        self._at_once = at_once
        self._spares = spares
        self._patience = patience or Patience()
        self._clock = clock
        self._tls = tls
        self._servers: list[_Server] = []
        self._of: dict[str, list[int]] = {}
        self._owners: dict[int, str] = {}
        self._placed: list[int] = []
        self._unrest: tuple[float, dict[int, str]] | None = None
        self._short: float | None = None
        self._looked = self._moved = float("-inf")
        self._absent: dict[str, str] = {}
        self._entering = threading.Lock()
        self._pool = ThreadPoolExecutor(_GREETERS, "greet")

    def close(self) -> None:
        """End the threads that greet servers."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    # -- what the fleet asks ---------------------------------------------------------------

    def place(self, groups: Sequence[KeyGroupRange], checkpoint_id: int) -> list[int]:
        """Wait for executors and share the subtasks among them, moving as little as possible.

        A volume may come back with another executor, or be found by another driver.

        Raises:
            NoExecutors: there is none after the time given.
            SparkEnded: there will be none.
            StoppedWaiting: the job was told to stop meanwhile.
        """
        ready = self._wait()
        before = self._owners if len(self._owners) == len(groups) else {}
        homes = before | _homes(groups, before, self._copies(ready, checkpoint_id))
        self._owners = assign(homes, ready, len(groups))
        self._placed = self._share()
        self._pin(self._owners)
        self._unrest, self._moved = None, self._clock()
        self._executors.dismiss()
        _log.info("servers.placed owners=%s servers=%s", self._owners, self._placed)
        return list(self._placed)

    def door(self, index: int) -> ServerDoor:
        """See `Servers.door`."""
        return self._servers[index].door

    def connect(self, index: int) -> ServerConnection:
        """See `Servers.connect`; always over TCP, and only to the very server."""
        door = self._servers[index].door
        return StateClient.connect(door.address, self._token, server=door.server, tls=self._tls)

    def ensure_alive(self, well: Container[int] = ()) -> list[int]:
        """Wait for servers that do not answer, as long as their executors and volumes live.

        Those are restarted by their own parents; who has restarted shows when it is asked for its
        ranges, so none is named here.

        Raises:
            ExecutorLost: one is gone, and the state on its volume with it.
        """
        deadline = self._clock() + self._patience.revival
        placed = sorted(set(self._placed))
        self._refuse_lost(placed)
        missing = [index for index in placed if index not in well]
        while missing:
            self._refuse_lost(missing)
            missing = [
                i for i, there in zip(missing, self._each(missing), strict=True) if not there
            ]
            if missing and self._clock() > deadline:
                raise self._lost(missing[0], "its state server does not come back")
            if missing:
                time.sleep(_POLL_SECONDS)
        return []

    def gone(self) -> frozenset[int]:
        """See `Servers.gone`: those of executors that Spark has lost or ended."""
        registered = self._executors.registered()
        known = enumerate(self._servers)
        return frozenset(i for i, server in known if server.executor not in registered)

    def refuse_lost(self) -> None:
        """See `Servers.refuse_lost`."""
        lost = {*self._owners.values()} - self._executors.registered()
        if lost and self._placed:
            self._refuse_gone(lost)

    def wants_to_move(self, *, busy: bool = False) -> bool:
        """Whether subtasks should move: away from executors that leave, or to new ones.

        To new ones only when they have been there for a while, so that a batch of them makes one
        move; and not while the run is `busy` with what a move would undo. Asks Spark now and then
        only; says so once, and again after a while.

        Raises:
            ExecutorLost: one that has subtasks is gone, and its servers with it.
        """
        now = self._clock()
        if not self._placed or now - self._looked < self._patience.look:
            return False
        self._looked = now
        self._count(now)
        lost = {*self._owners.values()} - self._executors.registered()
        leaving = self._executors.leaving()
        staying = [e for e in self._executors.live() if e.id not in leaving]
        if lost:
            self._refuse_gone(lost)
        if not staying:
            return False
        wanted = assign(self._owners, staying, len(self._owners))
        if wanted == self._owners:
            self._unrest = None
            if leaving:
                self._executors.dismiss()
            return False
        since, before = self._unrest or (now, wanted)
        if before != wanted:
            since = now
        self._unrest = since, wanted
        fleeing = bool(lost or leaving & {*self._owners.values()})
        settled = now - since >= self._patience.settle
        due = now - self._moved >= (
            self._patience.look if fleeing else self._patience.between_moves
        )
        if not due or not (fleeing or (settled and not busy)):
            return False
        new = [e for e in staying if e.id in {*wanted.values()} and e.id not in self._of]
        if not all(self._pool.map(self._greeted, new)):
            return False
        self._moved = now
        return True

    # -- waiting for executors -------------------------------------------------------------

    def _wait(self) -> list[LiveExecutor]:
        """Executors whose servers answer: all that are wanted, or in the end what there is."""
        began = self._clock()
        told, ready = began, dict[str, LiveExecutor]()
        while True:
            self._executors.registered()  # tells when Spark is over
            leaving = self._executors.leaving()
            live = {e.id: e for e in self._executors.live() if e.id not in leaving}
            new = [executor for executor in live.values() if executor.id not in ready]
            greeted = list(self._pool.map(self._greeted, new))
            ready = {name: executor for name, executor in ready.items() if name in live}
            ready |= {e.id: e for e, there in zip(new, greeted, strict=True) if there}
            ready = self._without_doubles(ready)
            now, desired = self._clock(), self._executors.desired
            waited, short = now - began, now - min(began, self._count(now))
            if (
                len(ready) >= desired
                or (ready and short >= self._patience.all_executors)
                or self._may_stand_in(ready)
            ):
                if len(ready) < desired:
                    self._tell(self._progress("going on with fewer executors", len(ready), waited))
                return list(ready.values())
            if waited >= self._patience.any_executor:
                raise NoExecutors(
                    self._progress("no executor came", 0, waited) + "; make room for them"
                )
            if self._clock() - told >= _TELL_SECONDS or told == began:
                told = self._clock()
                self._tell(self._progress("waiting for executors", len(ready), waited))
            if self._at_once() or self._stop.wait(_POLL_SECONDS):
                raise StoppedWaiting

    def _may_stand_in(self, ready: Container[str]) -> bool:
        """Whether those that are left take over from those that were lost, without waiting.

        Nobody has to hold more than half as much again; a replacement gets its share later.
        """
        owners = {*self._owners.values()}
        left = [owner for owner in owners if owner in ready]
        return self._spares and len(left) < len(owners) and 3 * len(left) >= 2 * len(owners)

    def _copies(self, ready: Sequence[LiveExecutor], checkpoint_id: int) -> dict[str, list[_Copy]]:
        """By executor, of which ranges its volume has a copy; one that does not say has none."""

        def ask(executor: LiveExecutor) -> list[_Copy]:
            # The servers of an executor have one volume.
            door = self._servers[self._of[executor.id][0]].door
            try:
                with StateClient.connect(
                    door.address, self._token, _GREET_SECONDS, server=door.server, tls=self._tls
                ) as client:
                    return client.local_copies(checkpoint_id)
            except MoorageError as error:
                _log.warning("servers.copies-unknown executor=%s error=%s", executor.id, error)
                return []

        found = self._pool.map(ask, ready) if checkpoint_id else ()
        return dict(zip((executor.id for executor in ready), found, strict=False))

    def _count(self, now: float) -> float:
        """Since when there are fewer executors than are wanted; the running stream waits, too."""
        if len(self._executors.live()) >= self._executors.desired:
            self._short = None
            return now
        self._short = now if self._short is None else self._short
        return self._short

    def _without_doubles(self, ready: dict[str, LiveExecutor]) -> dict[str, LiveExecutor]:
        """Of executors with the same servers only the newest: it has the others' address.

        Spark may not have noticed yet that the older one is gone.
        """
        newest: dict[str, str] = {}
        for name in sorted(ready, key=lambda name: (len(name), name)):
            for index in self._of[name]:
                newest[self._servers[index].door.server] = name
        return {name: ready[name] for name in ready if name in newest.values()}

    def _progress(self, what: str, ready: int, waited: float) -> str:
        registered = self._executors.registered()
        absent = [f"executor {e}: {why}" for e, why in self._absent.items() if e in registered]
        why = absent[0] if absent else self._executors.trouble()
        return (
            f"{what}: ready={ready} wanted={self._executors.desired} seconds={waited:.0f} ({why})"
        )

    def _greeted(self, executor: LiveExecutor) -> bool:
        """Whether all servers of an executor answer; from then on they are known.

        Servers that have another identity than before are others: their volume is new.
        """
        place = self._find(executor)
        doors: list[ServerDoor] = []
        for number in range(place.count):
            address = f"tcp:{join_address(place.host, place.port + number)}"
            try:
                with StateClient.connect(
                    address, self._token, _GREET_SECONDS, tls=self._tls
                ) as client:
                    if client.adopt(self._lineage):
                        self._tell(
                            f"the volume of an executor held state of another lineage, which was "
                            f"deleted: executor={executor.id} address={address}"
                        )
                    doors.append(
                        ServerDoor(
                            address,
                            client.server,
                            socket_path(place.volume, client.server),
                            self._tls,
                        )
                    )
            except MoorageError as error:
                self._absent[executor.id] = str(error)
                return False
        self._absent.pop(executor.id, None)
        known = [self._servers[index].door for index in self._of.get(executor.id, [])]
        if known != doors:
            self._enter(executor.id, doors)
        return True

    def _enter(self, executor: str, doors: Sequence[ServerDoor]) -> None:
        """Give servers their indices; for good, and never those of others."""
        with self._entering:
            first = len(self._servers)
            self._servers += [_Server(executor, door) for door in doors]
            self._of[executor] = list(range(first, len(self._servers)))

    def _share(self) -> list[int]:
        """By subtask a server of its executor: the one it had, else the one with the fewest."""
        placed: dict[int, int] = {}
        for subtask, owner in self._owners.items():
            before = self._placed[subtask] if subtask < len(self._placed) else -1
            if before in self._of[owner]:
                placed[subtask] = before
        loads = {index: 0 for owner in self._owners.values() for index in self._of[owner]}
        for index in placed.values():
            loads[index] += 1
        for subtask, owner in self._owners.items():
            if subtask not in placed:
                index = min(self._of[owner], key=lambda i: (loads[i], i))
                loads[index] += 1
                placed[subtask] = index
        return [placed[subtask] for subtask in range(len(placed))]

    # -- looking after them ----------------------------------------------------------------

    def _refuse_lost(self, indices: Sequence[int]) -> None:
        registered = self._executors.registered()
        for index in indices:
            if self._servers[index].executor not in registered:
                raise self._lost(index, self._executors.trouble())

    def _refuse_gone(self, lost: set[str]) -> None:
        """Lost executors count as gone unless their servers answer still: then state can be saved.

        They have some time when an upload is in flight.
        """
        asked = [i for i in sorted(set(self._placed)) if self._servers[i].executor in lost]
        for index, there in zip(asked, self._each(asked), strict=True):
            if not there:
                raise self._lost(index, self._executors.trouble())

    def _each(self, indices: Sequence[int]) -> list[bool]:
        return list(self._pool.map(self._answers, indices))

    def _answers(self, index: int) -> bool:
        door = self._servers[index].door
        try:
            with StateClient.connect(
                door.address, self._token, _GREET_SECONDS, server=door.server, tls=self._tls
            ) as client:
                client.ping()
        except AnotherServer as error:
            raise self._lost(index, str(error)) from error
        except MoorageError:
            return False
        return True

    def _lost(self, index: int, why: str) -> ExecutorLost:
        executor = self._servers[index].executor
        subtasks = [subtask for subtask, owner in self._owners.items() if owner == executor]
        with suppress(MoorageError):
            why = f"{why}; registered={len(self._executors.registered())}"
        return ExecutorLost(
            f"an executor is gone and the state of its subtasks with it: executor={executor} "
            f"subtasks={subtasks} wanted={self._executors.desired} ({why})"
        )


def _homes(
    groups: Sequence[KeyGroupRange],
    before: Mapping[int, str],
    copies: Mapping[str, Sequence[_Copy]],
) -> dict[int, str]:
    """By subtask the executor whose volume has most of its key groups, of all operators together.

    Only the newest copies count: a volume that comes back after long has older ones. Left out
    where none has any. The one of `before` is preferred to another that has as many.
    """
    starts = [one.start for one in groups]
    newest = [0 for _ in groups]
    held: list[dict[str, int]] = [{} for _ in groups]
    for executor, specs in copies.items():
        for spec, copy in specs:
            there = KeyGroupRange(spec.start, spec.end)
            first = max(0, bisect_right(starts, spec.start) - 1)
            for subtask in range(first, bisect_right(starts, spec.end)):
                common = groups[subtask].overlap(there)
                if common and copy > newest[subtask]:
                    newest[subtask], held[subtask] = copy, {}
                if copy == newest[subtask]:
                    held[subtask][executor] = held[subtask].get(executor, 0) + common
    return {
        subtask: max(counts, key=lambda e: (counts[e], before.get(subtask) == e, e))
        for subtask, counts in enumerate(held)
        if any(counts.values())
    }
