"""One process of the operator on injected time: its loop, cache and decisions, no HTTP, no Kopf.

What it needs of a process is here, so that hours take seconds: lists, events as watches show them,
and who is looked at when. Others act between its turns; only its own processor time is counted.
"""

import asyncio
import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from benchmarks import objects
from benchmarks.scale.apiserver import Ask, Client, Server
from moorage_operator.children.names import JOB_LABEL
from moorage_operator.decide import decide_job
from moorage_operator.loop import Reconciler
from moorage_operator.ports import Ref
from moorage_operator.snapshots import decide_snapshot
from moorage_operator.watch_cache import WATCHED, WatchCache
from moorage_operator.world import Config

__all__ = ["CLUSTER", "Process"]

CLUSTER = "bench"
_TURN = 1.0
_MINUTE = 60.0


@dataclass(slots=True, kw_only=True)
class Process:
    """An operator; `seconds` is the time of both clocks.

    Attributes:
        ask: the API server; one in this process by default.
        drivers, lineages: its other doors.
        cpu: seconds of processor time that lists and passes took, and what they were shown.
    """

    ask: Ask = field(default_factory=lambda: Server().answer)
    drivers: Any
    lineages: Any
    seconds: float = 0.0
    cpu: float = 0.0
    cluster: Client = field(init=False)
    reconciler: Reconciler = field(init=False)
    watched: WatchCache = field(init=False)
    _due: list[tuple[float, Ref]] = field(default_factory=list)
    _at: dict[Ref, float] = field(default_factory=dict)
    _news: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.cluster = Client(self.ask, lambda: self.seconds)
        self.cluster.changed = lambda event, body: self._news.append((event, body))

    def now(self) -> datetime:
        """See `WallClock.now`."""
        return objects.START + timedelta(seconds=self.seconds)

    def tick(self) -> float:
        """See `WallClock.tick`."""
        return self.seconds

    async def begin(self) -> None:
        """A process begins: it lists, and has a pass for each object."""
        self.watched = WatchCache()
        self.reconciler = Reconciler(
            self.cluster,
            self.drivers,
            self.lineages,
            self,
            Config(cluster_id=CLUSTER),
            decide_job,
            decide_snapshot,
            wake=lambda ref: self._wake(ref, self.seconds),
            watched=self.watched,
        )
        self._due, self._at, self._news = [], {}, []
        begun = time.process_time()
        for kind in WATCHED:
            await self._list(kind)
        async for page in self.cluster.pages("ControllerRevision", None, ""):
            for body in page.items:
                self.reconciler.learn(body)
        self.cpu += time.process_time() - begun
        await self._work()

    async def _list(self, kind: Any) -> None:
        """As the process does it."""
        listing = self.watched.listing(kind, None)
        for role in ("driver", "executor") if kind == "Pod" else ("",):
            selector = f"moorage.dev/role={role}" if role else ""
            async for page in self.cluster.pages(kind, None, selector):
                listing.take(page, role)
                if kind == "StatefulSparkJob":
                    await self.reconciler.specs.learn(page.items)
                for body in page.items if kind != "Pod" else ():
                    if not self.reconciler.is_no_news(body):
                        self._wake(_ref(body), self.seconds)
        listing.end()

    async def run(
        self, seconds: float, each: Callable[[], None] = lambda: None, every: float = _MINUTE
    ) -> None:
        """Let time pass; `each` is called once in `every` seconds."""
        end, due = self.seconds + seconds, self.seconds
        while self.seconds < end:
            if self.seconds >= due:
                each()
                due += every
            await self._work()
            # The loop lets go of time limits that were kept.
            await asyncio.sleep(0)
            self.seconds += _TURN

    def _take_news(self) -> None:
        """As the watches do it."""
        news, self._news = self._news, []
        for event, body in news:
            kind = body["kind"]
            if kind not in WATCHED:
                continue
            self.watched.seen(event, kind, body)
            if kind != "Pod" and not self.reconciler.is_no_news(body):
                # The answer to a write of a pass comes before its event.
                self._wake(_ref(body), self.seconds + _TURN)
            job = (body["metadata"].get("labels") or {}).get(JOB_LABEL)
            if kind != "StatefulSparkJob" and job:
                self._wake(
                    Ref("StatefulSparkJob", body["metadata"]["namespace"], job), self.seconds
                )

    def _wake(self, ref: Ref, at: float) -> None:
        if at < self._at.get(ref, float("inf")):
            self._at[ref] = at
            heapq.heappush(self._due, (at, ref))

    async def _work(self) -> None:
        begun = time.process_time()
        self._take_news()
        while self._due and self._due[0][0] <= self.seconds:
            at, ref = heapq.heappop(self._due)
            if self._at.get(ref) != at:
                continue
            del self._at[ref]
            done = await self.reconciler.reconcile(ref)
            assert not done.problem, (ref, done.problem)
            if done.changed:
                self._wake(ref, self.seconds)
            elif done.again_after is not None:
                self._wake(ref, self.seconds + done.again_after)
            self._take_news()
        self.cpu += time.process_time() - begun


def _ref(body: dict[str, Any]) -> Ref:
    return Ref(body["kind"], body["metadata"]["namespace"], body["metadata"]["name"])
