"""Who is looked at next: one pass at a time for each object, many objects at once.

Wake-ups of an object that waits already are one; those that come while it is being looked at lead
to another look after that. So nothing is lost, and nothing is done twice at the same time.

Namespaces take turns. A pass that waits for its driver takes no worker meanwhile; how many may wait
is bounded, in all and for each namespace, so that one full of drivers that accept a connection and
never answer holds up nobody else.
"""

import asyncio
import logging
import random
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from moorage_operator.loop import Pass
from moorage_operator.ports import Ref

_log = logging.getLogger("moorage.operator")

_PACE = 1.0
# After so many passes in a row that changed something there is a pause: a decision that never comes
# to rest must not keep a worker from the other objects.
_BUSY_LIMIT = 10
_BUSY_WAIT = 1.0
_BUG_WAITS = (1.0, 5.0, 30.0, 120.0)

MOST_UNDER_WAY = 256
"""Passes, of which each may wait for a driver, with one connection."""
_MOST_OF_NAMESPACE = 32


@dataclass(slots=True)
class _Entry:
    running: bool = False
    ready: bool = False
    again: bool = False
    """Woken while running."""
    begun: float = float("-inf")
    """When the last pass began."""
    due: float = 0.0
    """Since when it is ready."""
    timer: asyncio.TimerHandle | None = None
    in_a_row: int = 0
    bugs: int = 0
    working: bool = False
    """Whether its pass has a worker; one that waits for its driver has none."""


_PASS: ContextVar[tuple[Ref, _Entry]] = ContextVar("pass under way")


@dataclass(slots=True)
class WorkQueue:
    """Passes for objects, by wake-up and by time."""

    handle: Callable[[Ref], Awaitable[Pass]]  # one pass
    workers: int = 16  # passes at once
    chance: random.Random = field(default_factory=random.Random)  # spreads what would fall together
    # Seconds from the beginning of a pass to that of the next of the same object, where it is an
    # event that asks for it: many at once, such as those of all its pods, are one. After a pass
    # that changed nothing no other comes sooner, whatever asks for it.
    pace: float = _PACE
    waited: Callable[[float], None] = lambda _: None  # told how long an object that was due waited
    _busy: Counter[str] = field(default_factory=Counter)
    """Passes with a worker, by namespace."""
    _under_way: Counter[str] = field(default_factory=Counter)
    """Those, and passes that wait for drivers."""
    _due: dict[str, deque[Ref]] = field(default_factory=dict)
    """By namespace; the first one has its turn."""
    _back: deque[asyncio.Future[None]] = field(default_factory=deque)
    """Passes whose driver has answered, and that want a worker again."""
    _entries: dict[Ref, _Entry] = field(default_factory=dict)
    _running: dict[Ref, float] = field(default_factory=dict)
    _stopping: bool = False
    _idle: asyncio.Event = field(default_factory=asyncio.Event)
    _unseen: set[Ref] = field(default_factory=set)
    """Those that have had no pass yet, of what was due once."""
    _all_seen: asyncio.Event = field(default_factory=asyncio.Event)
    _group: asyncio.TaskGroup | None = None

    def wake(self, ref: Ref, after: float = 0.0) -> None:
        """See to it that the object is looked at, at the latest after so many seconds.

        But for the pace, which holds up what comes too soon after the last look.
        """
        entry = self._entries.setdefault(ref, _Entry())
        self._wake(ref, entry, max(after, self._too_soon(entry)))

    def _wake(self, ref: Ref, entry: _Entry, after: float) -> None:
        if after <= 0 or entry.running:
            self._wake_now(ref, entry)
            return
        loop = asyncio.get_running_loop()
        if entry.timer is not None:
            if entry.timer.when() <= loop.time() + after:
                return
            entry.timer.cancel()
        entry.timer = loop.call_later(after, self._ring, ref)

    @property
    def waiting(self) -> int:
        """Objects that are due and not yet looked at."""
        return sum(map(len, self._due.values()))

    @property
    def share(self) -> int:
        """Workers that one namespace may have at once."""
        return max(self.workers * 3 // 4, 1)

    @property
    def known(self) -> int:
        """Objects that are looked at from time to time."""
        return len(self._entries)

    def longest(self) -> float:
        """Seconds that the oldest pass under way has taken."""
        now = asyncio.get_running_loop().time()
        return max((now - begun for begun in self._running.values()), default=0.0)

    async def drain(self, seconds: float) -> bool:
        """Begin no more passes, and let those under way end; say whether they did in time."""
        self._stopping = True
        if not self._running:
            return True
        self._idle.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def once(self) -> int:
        """Wait until each object that is due or at its pass has had it; how many there are."""
        self._unseen = {*self._running, *(ref for due in self._due.values() for ref in due)}
        many = len(self._unseen)
        if many:
            self._all_seen.clear()
            await self._all_seen.wait()
        return many

    async def run(self) -> None:
        """Work until cancelled; a pass under way is cancelled with it."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                self._begin_due()
                try:
                    await asyncio.Event().wait()
                finally:
                    self._group = None
        finally:
            for entry in self._entries.values():
                if entry.timer is not None:
                    entry.timer.cancel()

    # -- inside

    def _too_soon(self, entry: _Entry) -> float:
        return entry.begun + self.pace - asyncio.get_running_loop().time()

    def _ring(self, ref: Ref) -> None:
        entry = self._entries.get(ref)
        if entry is not None:
            entry.timer = None
            self._wake_now(ref, entry)

    def _wake_now(self, ref: Ref, entry: _Entry) -> None:
        if entry.running:
            entry.again = True
        elif not entry.ready:
            entry.ready, entry.due = True, asyncio.get_running_loop().time()
            self._due.setdefault(ref.namespace, deque()).append(ref)
            # Not now: wake-ups that come together are one.
            asyncio.get_running_loop().call_soon(self._begin_due)

    def _begin_due(self) -> None:
        """Give workers to those that come back, then to objects that are due."""
        while self._back and self._busy.total() < self.workers:
            waiting = self._back.popleft()
            if not waiting.done():
                self._busy[_HELD] += 1
                waiting.set_result(None)
        while self._group is not None and (ref := self._next()) is not None:
            entry = self._entries[ref]
            entry.ready, entry.running, entry.again = False, True, False
            if entry.timer is not None:
                entry.timer.cancel()
                entry.timer = None
            self._running[ref] = entry.begun = asyncio.get_running_loop().time()
            self.waited(entry.begun - entry.due)
            self._under_way[ref.namespace] += 1
            self._take(ref, entry)
            self._group.create_task(self._pass(ref, entry))

    def _next(self) -> Ref | None:
        """The next object, of the first namespace that may have another pass."""
        if self._stopping or self._busy.total() >= self.workers:
            return None
        if len(self._running) >= MOST_UNDER_WAY:
            return None
        budget = self._budget()
        for namespace, due in self._due.items():
            if self._busy[namespace] >= self.share or self._under_way[namespace] >= budget:
                continue
            ref = due.popleft()
            del self._due[namespace]
            if due:  # behind all others
                self._due[namespace] = due
            return ref
        return None

    def _budget(self) -> int:
        """Passes of one namespace: with silent drivers in all of them there is room for another."""
        namespaces = len(self._due.keys() | self._under_way.keys())
        return max(1, min(_MOST_OF_NAMESPACE, MOST_UNDER_WAY // (namespaces + 1)))

    async def _pass(self, ref: Ref, entry: _Entry) -> None:
        _PASS.set((ref, entry))
        try:
            wait = await self._once(ref, entry)
        finally:
            entry.running = False
            del self._running[ref]
            self._unseen.discard(ref)
            if not self._unseen:
                self._all_seen.set()
            _less(self._under_way, ref.namespace)
            if entry.working:
                self._give(ref, entry)
            if not self._running:
                self._idle.set()
            self._begin_due()
        self._plan(ref, entry, wait)

    @asynccontextmanager
    async def aside(self) -> AsyncIterator[None]:
        """Within, the pass that this is waits for its driver, and takes no worker."""
        found = _PASS.get(None)
        if found is None or not found[1].working:
            yield
            return
        self._give(*found)
        self._begin_due()
        try:
            yield
        finally:
            await self._come_back(*found)

    async def _come_back(self, ref: Ref, entry: _Entry) -> None:
        if self._busy.total() >= self.workers:
            waiting = asyncio.get_running_loop().create_future()
            self._back.append(waiting)
            try:
                await waiting
            finally:
                if waiting.done() and not waiting.cancelled():
                    _less(self._busy, _HELD)
        self._take(ref, entry)

    def _take(self, ref: Ref, entry: _Entry) -> None:
        entry.working = True
        self._busy[ref.namespace] += 1

    def _give(self, ref: Ref, entry: _Entry) -> None:
        entry.working = False
        _less(self._busy, ref.namespace)

    async def _once(self, ref: Ref, entry: _Entry) -> float | None:
        """One pass; seconds until the next, None if the object is gone."""
        try:
            done = await self.handle(ref)
        except Exception:  # noqa: BLE001  a bug about one object must not stop the others
            _log.exception("a pass ended in an error of the operator's own: object=%s", ref)
            wait = _BUG_WAITS[min(entry.bugs, len(_BUG_WAITS) - 1)]
            entry.bugs += 1
            return wait * self.chance.uniform(0.75, 1.25)
        entry.bugs = 0
        entry.in_a_row = entry.in_a_row + 1 if done.changed else 0
        if done.changed:
            return 0.0 if entry.in_a_row < _BUSY_LIMIT else _BUSY_WAIT
        if done.again_after is None:
            return None
        # What changed nothing changes nothing a moment later either, whatever it asks for.
        return max(done.again_after, self.pace, 0.05)

    def _plan(self, ref: Ref, entry: _Entry, wait: float | None) -> None:
        if entry.again and not entry.bugs:
            soon = self._too_soon(entry)
            wait = soon if wait is None else min(wait, soon)
        if wait is None:
            del self._entries[ref]
        else:
            self._wake(ref, entry, wait)


_HELD = ""
"""No namespace: a worker on its way to the pass that it was given to."""


def _less(counts: Counter[str], key: str) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
