"""Who is looked at next: one pass at a time for each object, many objects at once.

Wake-ups of an object that waits already are one; those that come while it is being looked at lead
to another look after that. So nothing is lost, and nothing is done twice at the same time.
"""

import asyncio
import logging
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable
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
    """Passes under way, by namespace."""
    _held: dict[str, deque[Ref]] = field(default_factory=dict)
    """Due, in namespaces that have all the workers that one may have."""
    _entries: dict[Ref, _Entry] = field(default_factory=dict)
    _running: dict[Ref, float] = field(default_factory=dict)
    _stopping: bool = False
    _idle: asyncio.Event = field(default_factory=asyncio.Event)
    _ready: asyncio.Queue[Ref] = field(default_factory=asyncio.Queue)

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
        return self._ready.qsize() + sum(map(len, self._held.values()))

    @property
    def share(self) -> int:
        """Passes at once in one namespace: one full of drivers that do not answer leaves others."""
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

    async def run(self) -> None:
        """Work until cancelled; a pass under way is cancelled with it."""
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self.workers):
                    group.create_task(self._work())
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
            self._ready.put_nowait(ref)

    async def _work(self) -> None:
        while True:
            ref = await self._ready.get()
            if self._stopping:
                continue
            if self._busy[ref.namespace] >= self.share:
                self._held.setdefault(ref.namespace, deque()).append(ref)
                continue
            entry = self._entries[ref]
            entry.ready, entry.running, entry.again = False, True, False
            if entry.timer is not None:
                entry.timer.cancel()
                entry.timer = None
            self._running[ref] = entry.begun = asyncio.get_running_loop().time()
            self.waited(entry.begun - entry.due)
            self._busy[ref.namespace] += 1
            try:
                wait = await self._once(ref, entry)
            finally:
                entry.running = False
                self._leave(ref.namespace)
                del self._running[ref]
                if not self._running:
                    self._idle.set()
            self._plan(ref, entry, wait)

    def _leave(self, namespace: str) -> None:
        """One pass less there: the first that was held may go."""
        self._busy[namespace] -= 1
        if not self._busy[namespace]:
            del self._busy[namespace]
        held = self._held.get(namespace)
        if held:
            self._ready.put_nowait(held.popleft())
            if not held:
                del self._held[namespace]

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
