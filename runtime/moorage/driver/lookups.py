"""Look-ups in the state of a running job, which read what the last committed epoch left.

Decides which state servers are asked (each with one message, all side by side), that a look-up
which meets a rewind, a restart of a server or a change of parallelism asks again where ranges are
now, and for how long. Reads only. Called by the driver's endpoint and by its control socket, from
threads of their own: connections are not those of the epochs, which never wait for a look-up.
"""

import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from moorage.driver.lookup_requests import LookupRequest
from moorage.driver.requests import TooManyRequests
from moorage.driver.stored_state import StoredState
from moorage_state.errors import (
    Bug,
    CorruptState,
    LocalDiskError,
    MoorageError,
    Retryable,
    ServerGone,
    StaleLease,
    UserError,
    VersionGone,
    VersionMismatch,
)
from moorage_state.server.exchange import Answer, exchange
from moorage_state.server.operations import Call, Lease

if TYPE_CHECKING:  # whoever takes look-ups in speaks of them without importing Spark
    from moorage.engine.fleet import RangeFleet, RangePlaces
    from moorage.engine.kv_states import KvStateLocationRegistry
    from moorage.engine.range_access import ServerConnection, Servers

_THREADS = 4
_MOST_WAITING = 64
_WAIT_SECONDS = 5.0
"""For which a look-up asks again and again while ranges are not where they were."""

_LEAST_SECONDS = 1.0
"""What a server has to answer, however late: one that is cut off hides why none came before."""

_PAUSE_SECONDS = 0.05
_ANSWER_BYTES = 8 << 20
_LEAST_BYTES = 4 << 10
_MOVING = (Retryable, StaleLease, VersionGone, VersionMismatch, LocalDiskError, CorruptState)
"""What the job gets over by itself, with a rewind at the worst."""

_NOT_OF_THE_TYPE = (ValueError, LookupError, ArithmeticError, msgspec.MsgspecError)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class JobNotRunning(Retryable):
    """There is no run whose state could be read."""

    code = "job_not_running"


class StateMoving(Retryable):
    """Ranges did not come to rest in time."""

    code = "state_moving"


@dataclass(frozen=True, slots=True)
class LookupDone:
    """One look-up that ended; `result` is `answered`, `refused`, or `unavailable`."""

    result: str
    keys: int
    seconds: float


@dataclass(slots=True, eq=False)
class _Asked:
    """A look-up that is not answered yet; `lookup` once what it asks for is known."""

    request: LookupRequest
    began: float
    future: "Future[bytes]" = field(default_factory=Future)
    lookup: "_Lookup | None" = None


@dataclass(frozen=True, slots=True)
class LookupSource:
    """The state of a job, while it has any; `keeps_state` is False where the backend keeps none."""

    fleet: "RangeFleet"
    servers: "Servers"
    states: "KvStateLocationRegistry"
    key_hash: str
    keeps_state: bool = True


class StateLookups:
    """Answers look-ups for as long as a job serves them; for any thread.

    Args:
        observe: hears of every look-up that ended.
        wall_ms: milliseconds since 1970 UTC, by which state expires that no epoch has looked at.
        exchange: makes calls of several servers side by side.
    """

    def __init__(
        self,
        observe: Callable[[LookupDone], object] = lambda _done: None,
        *,
        wait_seconds: float = _WAIT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = _wall_ms,
        exchange: Callable[..., dict[int, Answer]] = exchange,
    ) -> None:
        self._observe = observe
        self._wait_seconds = wait_seconds
        self._clock = clock
        self._wall_ms = wall_ms
        self._exchange = exchange
        self._lock = threading.Lock()
        self._source: LookupSource | None = None
        self._ended = threading.Event()
        self._pool: ThreadPoolExecutor | None = None
        # Asked and not answered, and of those what waits for ranges to come to rest: by no thread.
        self._open: set[_Asked] = set()
        self._resting: list[_Asked] = []
        self._connections: list[_Connections] = []
        # Those that no look-up has; the last one first, since what serves it is still in caches.
        self._idle: list[_Connections] = []
        self._known: dict[str, StoredState] = {}

    @contextmanager
    def serving(self, source: LookupSource) -> Iterator[None]:
        """Within the block the job can be asked."""
        self._ended.clear()
        self._source = source
        try:
            yield
        finally:
            self._source = None
            self._ended.set()
            self._close()

    def submit(self, request: LookupRequest) -> "Future[bytes]":
        """Have a look-up answered by a thread of our own; its future gives the answer as JSON.

        While ranges move it waits without one, so that others are answered meanwhile.

        Raises:
            TooManyRequests: more wait than these threads get done soon.
            JobNotRunning: no job can be asked; this and what follows by the future.
            NoKvStatesYet: no epoch was committed yet.
            UnknownKvState: no state has this name.
            UserError: a key is not of its type, or another part of the question is wrong.
            StateMoving: ranges are not to be found in time.
        """
        with self._lock:
            if len(self._open) >= _MOST_WAITING:
                raise TooManyRequests(
                    f"too many look-ups wait: waiting={len(self._open)}; ask for more keys at "
                    f"once, or less often"
                )
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_THREADS, "lookup")
            asked = _Asked(request, self._clock())
            self._open.add(asked)
            self._pool.submit(self._work, asked)
        return asked.future

    def _work(self, asked: _Asked) -> None:
        try:
            answer = self._step(asked)
        except BaseException as error:  # noqa: BLE001 - whoever asked is to hear of it
            self._finish(asked, error=error)
            return
        if answer is not None:
            self._finish(asked, answer)
            return
        with self._lock:
            if asked not in self._open:
                return
            self._resting.append(asked)
            if len(self._resting) == 1:
                threading.Thread(target=self._wake, name="lookup-again", daemon=True).start()

    def _wake(self) -> None:
        """Have those that wait asked again, after a moment."""
        self._ended.wait(_PAUSE_SECONDS)
        with self._lock:
            again, self._resting = self._resting, []
            if self._pool is not None:
                for asked in again:
                    self._pool.submit(self._work, asked)

    def _finish(
        self,
        asked: _Asked,
        answer: bytes = b"",
        *,
        error: BaseException | None = None,
    ) -> None:
        with self._lock:
            if asked not in self._open:
                return  # the job has ended, and that was the answer
            self._open.remove(asked)
        # Whoever asked may have gone, and cancelled it.
        if not asked.future.set_running_or_notify_cancel():
            return
        if error is not None:
            asked.future.set_exception(error)
        else:
            asked.future.set_result(answer)

    def _step(self, asked: _Asked) -> bytes | None:
        """The answer, if it can be given now; None: ask again in a moment."""
        result = "refused"
        try:
            answer = self._go_on(asked)
            result = "answered" if answer is not None else ""
        except Retryable:
            result = "unavailable"
            raise
        else:
            return answer
        finally:
            if result:
                keys = len(asked.request.keys) if result == "answered" else 0
                self._observe(LookupDone(result, keys, self._clock() - asked.began))

    def _go_on(self, asked: _Asked) -> bytes | None:
        source = self._source
        if source is None:
            raise JobNotRunning("the job is not running, so its state cannot be asked for")
        if not source.keeps_state:
            raise UserError("the backend batch keeps no state that could be asked for")
        request, until = asked.request, asked.began + self._wait_seconds
        while True:
            lookup = asked.lookup
            if lookup is None or lookup.source is not source:
                state = self._state(source, request.name)
                lookup = asked.lookup = _Lookup(source, state, request, self)
            try:
                return lookup.answer() if lookup.go_on(until) else None
            except _NOT_OF_THE_TYPE as error:
                # An epoch may have given the state another type between the two looks.
                if self._state(source, request.name) is lookup.state:
                    raise Bug(
                        f"a stored value is not of its state's type: queryable={request.name} "
                        f"type={lookup.state.location.schema.type}: {error}"
                    ) from error
                asked.lookup = None

    def _state(self, source: LookupSource, name: str) -> StoredState:
        location = source.states.location(name)
        known = self._known.get(name)
        most = source.fleet.max_parallelism
        if known is None or known.location is not location or known.max_parallelism != most:
            known = self._known[name] = StoredState(location, most, source.key_hash)
        return known

    # -- what a look-up needs of this ------------------------------------------------------

    def now_ms(self, source: LookupSource) -> int:
        """The time by which state has expired: never before that of an epoch."""
        return max(self._wall_ms(), source.states.now_ms)

    def asked(
        self, source: LookupSource, calls: dict[int, list[Call]], until: float
    ) -> dict[int, Answer]:
        """Ask servers over connections of our own; an error for those that are not reached."""
        with self._lent(source.servers) as own:
            answers: dict[int, Answer] = {}
            clients = {}
            for index, some in calls.items():
                try:
                    clients[index] = own.to(index), some
                except MoorageError as error:
                    answers[index] = Answer(error=error)
            left = max(_LEAST_SECONDS, until - self._clock())
            answers |= self._exchange(clients, seconds=left, keep_going=True)
            for index, answer in answers.items():
                if isinstance(answer.error, ServerGone):
                    own.drop(index)
        return answers

    def is_over(self, until: float) -> bool:
        """Whether it is too late to ask again, or the job has ended."""
        return self._clock() >= until or self._ended.is_set()

    @contextmanager
    def _lent(self, servers: "Servers") -> "Iterator[_Connections]":
        with self._lock:
            own = self._idle.pop() if self._idle else None
            if own is None or own.servers is not servers:
                own = _Connections(servers)
                self._connections.append(own)
        try:
            yield own
        finally:
            with self._lock:
                kept = own in self._connections
                if kept:
                    self._idle.append(own)
            if not kept:  # the job has ended meanwhile
                own.close()

    def _close(self) -> None:
        with self._lock:
            pool, self._pool = self._pool, None
            connections, self._connections, self._idle = self._connections, [], []
            unanswered, self._resting = list(self._open), []
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
        for asked in unanswered:
            self._finish(asked, error=JobNotRunning("the job ended before it could be asked"))
        for own in connections:
            own.close()


class _Connections:
    """One look-up's connections to state servers."""

    def __init__(self, servers: "Servers") -> None:
        self.servers = servers
        self._clients: dict[int, ServerConnection] = {}

    def to(self, index: int) -> "ServerConnection":
        if index not in self._clients:
            self._clients[index] = self.servers.connect(index)
        return self._clients[index]

    def drop(self, index: int) -> None:
        client = self._clients.pop(index, None)
        if client is not None:
            with suppress(MoorageError, OSError):
                client.close()

    def close(self) -> None:
        for index in list(self._clients):
            self.drop(index)


class _Lookup:
    """One look-up, until every key has its answer."""

    def __init__(
        self,
        source: LookupSource,
        state: StoredState,
        request: LookupRequest,
        lookups: StateLookups,
    ) -> None:
        self.source = source
        self.state = state
        self._request = request
        self._lookups = lookups
        self._is_point = state.is_point(request)
        self._now_ms = lookups.now_ms(source)
        self._room = _ANSWER_BYTES
        self._wanted = state.wanted(request)
        # In the order of their bytes, in which a database finds them soonest: so by key group.
        self._open = sorted(range(len(request.keys)), key=self._wanted.under.__getitem__)

    def answer(self) -> bytes:
        """The answer, once every key has its own."""
        schema = self.state.location.schema
        return msgspec.json.encode(
            {
                "format": 1,
                "queryable": self._request.name,
                "uid": self.state.location.uid,
                "state": schema.name,
                "kind": schema.kind,
                "byNamespace": self._by_namespace,
                "results": self._wanted.shown,
            }
        )

    def go_on(self, until: float) -> bool:
        """Ask for what has no answer yet; False where nothing was found, so that it has to wait.

        Raises `StateMoving`.
        """
        while self._open:
            before, problem = len(self._open), self._turn(until)
            self._open = [at for at in self._open if self._wanted.shown[at] is None]
            if self._room <= 0:
                self.state.left_out(self._wanted, self._open)
                return True
            if len(self._open) < before:
                continue
            if self._lookups.is_over(until):
                raise StateMoving(
                    f"the state is not to be found at the moment: queryable={self._request.name} "
                    f"keys={before} cause={problem}; the job goes back to a checkpoint, or its "
                    f"ranges move: ask again in a few seconds"
                ) from (problem if isinstance(problem, MoorageError) else None)
            return False
        return True

    def _turn(self, until: float) -> MoorageError | str:
        """Ask for all that has no answer yet; what kept one from it, if anything did."""
        places = self.source.fleet.places
        if places is None:
            return "its ranges are being opened"
        groups = self._by_place(places)
        asked: dict[int, list[list[int]]] = {}
        calls: dict[int, list[Call]] = {}
        share = max(_LEAST_BYTES, self._room // max(1, len(groups)))
        for (server, lease), some in groups.items():
            for call, about in self._calls(lease, some, share):
                calls.setdefault(server, []).append(call)
                asked.setdefault(server, []).append(about)
        problem: MoorageError | str = ""
        for server, answer in self._lookups.asked(self.source, calls, until).items():
            if answer.error is not None:
                if not isinstance(answer.error, _MOVING):
                    raise answer.error
                problem = answer.error
            for about, result in zip(asked[server], answer.results, strict=False):
                if result is not None:
                    self._take(about, result)
        return problem

    def _by_place(self, places: "RangePlaces") -> dict[tuple[int, Lease], list[int]]:
        """What has no answer yet, by who has it."""
        found: dict[tuple[int, Lease], list[int]] = {}
        groups, begin = self._wanted.groups, 0
        while begin < len(self._open):
            group = groups[self._open[begin]]
            last = places.group_range(group).end
            end = bisect_right(self._open, last, begin, key=groups.__getitem__)
            found[places.of(self.state.location.uid, group)] = self._open[begin:end]
            begin = end
        return found

    def _calls(self, lease: Lease, some: list[int], share: int) -> Iterator[tuple[Call, list[int]]]:
        under = self._wanted.under
        if self._is_point:
            yield Call("look_up", ([under[at] for at in some], share), lease), some
            return
        each = max(_LEAST_BYTES, share // len(some))
        for at in some:
            limits = self._request.limit, each
            yield Call("look_under", (under[at], self._wanted.after, *limits), lease), [at]

    def _take(self, about: list[int], result: Any) -> None:
        if self._is_point:
            self._room -= sum(map(len, filter(None, result.values)))
            seen = result.epoch, self._now_ms
            self.state.show_values(self._wanted, about, result.values, *seen)
            return
        scan = result.scan
        self._room -= sum(map(len, scan.keys)) + sum(map(len, scan.values))
        self.state.show_entries(
            self._wanted,
            about[0],
            scan.keys,
            scan.values,
            result.epoch,
            self._now_ms,
            complete=scan.complete,
            by_namespace=self._by_namespace,
        )

    @property
    def _by_namespace(self) -> bool:
        return bool(self.state.location.schema.namespace_types) and self._request.namespace is None
