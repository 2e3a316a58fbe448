"""The operator's other doors: what goes through them is counted, so that a sweep can kill there."""

from datetime import datetime

from pydantic import BaseModel

from moorage_api.driver import DriverState, RequestView
from moorage_operator.lineages.pods import PodLineages
from moorage_operator.lineages.requests import INSPECT, request_of, store_task_view, store_view
from moorage_operator.plan import StoreTask
from moorage_operator.ports import Cluster, DriverTarget, Forbidden, JobRefs, WallClock
from moorage_operator.world import StoreTaskView, StoreView, Unreadable
from moorage_state.snapshots.store_tasks import Answer, StoreTaskRequest, run_store_task
from moorage_state.stores import ObjectStore
from moorage_testing.kube import CrashPoints
from moorage_testing.world.buckets import Buckets
from moorage_testing.world.drivers import Drivers
from moorage_testing.world.habits import Habits

__all__ = ["CountedDrivers", "CountedLineages"]


class CountedDrivers:
    """The drivers' endpoints, as one operator reaches them."""

    def __init__(self, drivers: Drivers, points: CrashPoints) -> None:
        self._drivers = drivers
        self._points = points

    async def state(self, target: DriverTarget) -> DriverState:
        """See `moorage_operator.ports.DriverClient`."""
        self._points.check()
        return await self._drivers.state(target)

    async def ask(self, target: DriverTarget, path: str, body: BaseModel) -> RequestView:
        """See `moorage_operator.ports.DriverClient`."""
        with self._points.effect(f"ask {path}"):
            return await self._drivers.ask(target, path, body)


class CountedLineages:
    """The stores, read and changed by real store tasks, at once."""

    def __init__(
        self,
        buckets: Buckets,
        clock: WallClock,
        points: CrashPoints,
        cluster: Cluster,
        habits: Habits | None = None,
    ) -> None:
        self._buckets = buckets
        self._habits = habits or Habits()
        self._now = clock.now
        self._points = points
        self._pods = PodLineages(cluster, clock, "test")
        self._known: dict[tuple[str, str], StoreTaskView] = {}

    async def inspect(
        self,
        job: JobRefs,
        since: datetime | None = None,  # noqa: ARG002 - everything is read now
    ) -> StoreView | Unreadable | None:
        """See `moorage_operator.ports.Lineages`."""
        self._points.check()
        return store_view(self._answer(request_of(job, INSPECT, "test")))

    async def run(self, job: JobRefs, store_task: StoreTask) -> StoreTaskView:
        """See `moorage_operator.ports.Lineages`."""
        if store_task.kind == "Preflight":
            return await self._preflight(job, store_task)
        key = (job.meta.uid, store_task.id)
        known = self._known.get(key)
        if known is None or (known.state == "Failed" and known.retryable):
            with self._points.effect(f"store task {store_task.kind} {store_task.id}"):
                answer = self._answer(request_of(job, store_task, "test"))
                self._known[key] = store_task_view(answer)
        return self._known[key]

    async def look(self, job: JobRefs, task_id: str) -> StoreTaskView | None:
        """See `moorage_operator.ports.Lineages`."""
        self._points.check()
        key = (job.meta.uid, task_id)
        if key in self._buckets.preflights:
            return await self._pods.look(job, task_id)
        return self._known.get(key)

    async def _preflight(self, job: JobRefs, store_task: StoreTask) -> StoreTaskView:
        """By a real pod, which is there whichever operator looks for it."""
        if self._habits.preflight_refused:
            raise Forbidden(self._habits.preflight_refused)
        key = (job.meta.uid, store_task.id)
        self._buckets.preflights.setdefault(key, job.spec.image or "")
        return await self._pods.run(job, store_task)

    def _answer(self, request: StoreTaskRequest) -> Answer:
        return run_store_task(request, self._open, clock=self._now)

    def _open(self, url: str) -> ObjectStore:
        self._buckets.check()
        if url.startswith("memory://"):
            return self._buckets.named(url)
        return self._buckets.store(url.partition("?")[0])
