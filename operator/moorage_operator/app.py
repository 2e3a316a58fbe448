"""The operator's process: what is made of which settings, what runs beside what, how it ends.

One process leads and does everything; others stand by, with open health ports. When leading is
lost, everything is cancelled at once and the process ends: whoever starts it anew begins with an
empty memory. SIGTERM lets passes under way end, gives the Lease back, and goes, whatever the
process is at. What fails in one namespace fails there alone.
"""

import asyncio
import gc
import logging
import random
import signal
import socket
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

from kubernetes.aio.client import Configuration
from prometheus_client import CollectorRegistry

from moorage_operator.children.names import JOB_LABEL, JOB_UID_LABEL, ROLE_LABEL
from moorage_operator.decide import decide_job
from moorage_operator.endpoint import HttpDrivers
from moorage_operator.fleet_source import FleetSource
from moorage_operator.health_server import health_server
from moorage_operator.kube.client import KubeCluster, configuration
from moorage_operator.leader import Leader, LeaseTimes
from moorage_operator.lineages import ChosenLineages
from moorage_operator.lineages.direct import DirectLineages
from moorage_operator.lineages.pods import PodLineages
from moorage_operator.loop import Reconciler
from moorage_operator.metrics import ApiMetrics, OperatorMetrics
from moorage_operator.namespaces import LabelledNamespaces
from moorage_operator.ports import Cluster, ClusterError, JobRefs, Kind, NotFound, Ref, WallClock
from moorage_operator.settings import Settings, SettingsError
from moorage_operator.shards import Ownership, Selection, joined
from moorage_operator.snapshots import decide_snapshot
from moorage_operator.watch_cache import WATCHED, Listing, WatchCache
from moorage_operator.watch_health import Canary, Namespace, WatchedNamespaces
from moorage_operator.watches import NOTHING, Wakeups, Watching
from moorage_operator.workqueue import MOST_UNDER_WAY, WorkQueue
from moorage_operator.world import Config

_log = logging.getLogger("moorage.operator")

_Result = TypeVar("_Result")

# Every request of a pass has a time limit of its own: only a bug keeps one up for so long.
_STUCK = 300.0
# A thousand namespaces at once would be thousands of requests in one second, at every start.
_LISTS_AT_ONCE = 4
# Seconds that the first lists wait for watches to begin; later, they are made again after that.
_UNTIL_WATCHES = 10.0
_OURS: tuple[Kind, ...] = ("StatefulSparkJob", "StatefulSparkSnapshot")
_LIST_AGAIN = 30.0
"""Seconds until a namespace that could not be listed is tried again."""
# New objects until the youngest are looked at, more than a page of a list is made of; how many such
# looks until older ones are.
_GARBAGE = (200_000, 20, 50)
# Seconds over which the objects of a list are woken, so that they do not all come at once.
_SPREAD = 10.0


class LeadershipLost(Exception):
    """Another process may lead by now: this one must end."""


class SystemClock:
    """The machine's time."""

    def now(self) -> datetime:
        """See `WallClock.now`."""
        return datetime.now(UTC)

    def tick(self) -> float:
        """See `WallClock.tick`."""
        return time.monotonic()


@dataclass(slots=True)
class App:
    """Everything that one process has, put together. It runs until it is cancelled."""

    settings: Settings
    found: Configuration  # how the API server is reached, for the watches
    cluster: Cluster
    reconciler: Reconciler
    queue: WorkQueue
    metrics: OperatorMetrics
    leader: Leader | None  # None if there is only ever one process
    namespaces: WatchedNamespaces  # those to look after, and which of them cannot be
    watched: WatchCache  # what lists and watches have shown, which passes look at first
    ownership: Ownership  # which jobs are this operator's
    # Those with a label are looked after; None where namespaces are named, or all are meant
    labelled: LabelledNamespaces | None = None
    # Knows whether the watches are alive
    canary: Canary = field(default_factory=lambda: Canary(time.monotonic))
    _learned: set[Namespace] = field(default_factory=set)  # whose jobs' revisions were listed
    # By namespace: what lists it again and again
    _relists: dict[Namespace, asyncio.Task[None]] = field(default_factory=dict)
    _lists: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_LISTS_AT_ONCE))

    async def run(self) -> None:
        """Lead and work, once the Lease is this process's.

        Raises:
            ExceptionGroup: with `LeadershipLost`, or with whatever ended the watches.
        """
        if self.leader is not None:
            await self.leader.acquire()
        begun = time.monotonic()
        async with asyncio.TaskGroup() as group:
            # Renewing begins first: the first lists may take longer than the Lease lasts.
            if self.leader is not None:
                group.create_task(self._hold(self.leader))
            await self._until_served()
            await self._find_namespaces()
            watching = self._watching()
            group.create_task(watching.run())
            with suppress(TimeoutError):
                async with asyncio.timeout(_UNTIL_WATCHES):
                    await self.namespaces.answered()
            await self.prime()
            group.create_task(self.queue.run())
            for namespace in self.namespaces.names:
                self._relists[namespace] = group.create_task(self._relist(namespace))
            if self.labelled is not None:
                group.create_task(self._follow_labels(self.labelled, watching, group))
            many, seconds = await self.queue.once(), time.monotonic() - begun
            _log.info("all was looked at: objects=%s seconds=%.1f", many, seconds)

    async def _until_served(self) -> None:
        """Wait for our definitions: Kopf looks once which kinds there are, and not again."""
        names, nothing = self.namespaces.names, joined(self.selection.selector, NOTHING)
        namespace = names[0] if names else None
        for kind in _OURS:
            while True:
                try:
                    async for _ in self.cluster.pages(kind, namespace, nothing):
                        pass
                except NotFound as error:
                    _log.warning("a kind is not served yet: kind=%s error=%s", kind, error)
                    await asyncio.sleep(random.uniform(1.0, 3.0))  # noqa: S311
                    continue
                except ClusterError:
                    # Lists and watches say so themselves, and are tried again.
                    pass
                break

    @property
    def selection(self) -> Selection:
        """Which jobs are this operator's, by now."""
        return self.ownership.selection

    async def _find_namespaces(self) -> None:
        """Begin with the namespaces that have the label, if one selects them."""
        if self.labelled is None:
            return
        found = await self.labelled.known()
        for namespace in sorted(found):
            self.namespaces.add(namespace)
        self._select(found)
        _log.info("namespaces have the label: namespaces=%s", ",".join(sorted(found)) or "none")

    async def _follow_labels(
        self, labelled: LabelledNamespaces, watching: Watching, group: asyncio.TaskGroup
    ) -> None:
        """Look after namespaces as they get the label, and let go of those that lose it."""
        while True:
            found, known = await labelled.changed(), frozenset(self.selection.namespaces)
            for namespace in sorted(found - known):
                self.namespaces.add(namespace)
            # From here on no pass begins for a job of one that is let go.
            self._select(found)
            watching.follow(found)
            for namespace in sorted(known - found):
                self._let_go(namespace)
            for namespace in sorted(found - known):
                _log.info("a namespace got the label: namespace=%s", namespace)
                self._relists[namespace] = group.create_task(self._take_up(namespace))

    def _select(self, namespaces: frozenset[str]) -> None:
        self.ownership.selection = replace(self.selection, namespaces=namespaces)

    async def _take_up(self, namespace: Namespace) -> None:
        """List a namespace once its watches have begun, and then as any other."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_UNTIL_WATCHES):
                await self.namespaces.answered()
        await self._list(namespace, spread=0.0)
        await self._relist(namespace)

    def _let_go(self, namespace: str) -> None:
        """Its jobs run on, and nobody here knows of them any more."""
        task = self._relists.pop(namespace, None)
        if task is not None:
            task.cancel()
        self.namespaces.remove(namespace)
        self._learned.discard(namespace)
        self.watched.let_go(namespace)
        for kind in WATCHED:
            self.canary.excuse(kind, namespace)
        _log.info(
            "a namespace lost the label, or is gone, and is let go: namespace=%s jobs=%d; what "
            "runs there runs on, and is deleted only where an operator looks after it",
            namespace,
            self.reconciler.let_go(namespace),
        )

    async def drain(self) -> None:
        """Begin nothing more, and let passes under way end. `run` is then to be cancelled."""
        if not await self.queue.drain(self.settings.stop_grace):
            _log.warning("passes are cut short: seconds=%s", self.settings.stop_grace)

    async def prime(self) -> None:
        """List all objects once: which directory is whose must be known before any decision.

        A namespace that cannot be listed is waited for only if no other can be.
        """
        while True:
            lists = (self._list(one, spread=0.0) for one in self.namespaces.names)
            await asyncio.gather(*lists)
            if self.namespaces.primed:
                return
            await asyncio.sleep(random.uniform(1.0, 3.0))  # noqa: S311

    def trouble(self) -> str:
        """Why the process should be started anew; empty if it should not."""
        longest = self.queue.longest()
        return f"a pass takes {longest:.0f} s" if longest > _STUCK else self.canary.trouble()

    def waits_for(self) -> str:
        """Why the process is not ready; empty if it works, or stands by to."""
        if self.leader is not None and not self.leader.leads:
            return "" if self.leader.stands_by else "the lease cannot be read, or is not yet"
        return "" if self.namespaces.primed else "no namespace's objects were listed yet"

    def _watching(self) -> Watching:
        wakeups = Wakeups(self.queue.wake, self.reconciler.is_no_news)

        def seen(event: str, kind: Kind, body: dict[str, Any]) -> None:
            if not self.selection.reaches(body["metadata"].get("namespace", "")):
                # On its way when its namespace was let go.
                return
            self.canary.seen(event, kind, body)
            self.watched.seen(event, kind, body)
            wakeups.seen(event, kind, body)

        def told(namespace: Namespace, kind: Kind, refusal: str) -> None:
            self.namespaces.watched(namespace, kind, refusal)
            if refusal:
                self.canary.excuse(kind, namespace)

        def begun(namespace: Namespace, kind: Kind) -> None:
            self.namespaces.begun(namespace, kind)
            self.canary.excuse(kind, namespace)

        return Watching(self.found, self.selection, seen, told, begun)

    async def _hold(self, leader: Leader) -> None:
        await leader.hold()
        raise LeadershipLost("another process may lead: this one ends, to be started anew")

    async def _relist(self, namespace: Namespace) -> None:
        took = 0.0
        while True:
            await self._until_next_list(namespace, took)
            begun = time.monotonic()
            await self._list(namespace, spread=_SPREAD)
            took = time.monotonic() - begun

    async def _until_next_list(self, namespace: Namespace, took: float) -> None:
        """What a list showed and no watch since is soon looked for in another one.

        Args:
            took: seconds that the last list did.
        """
        # And so is a namespace that could not be looked after: it may be back.
        relist = self.settings.relist
        if self.namespaces.problem(namespace):
            await asyncio.sleep(min(_LIST_AGAIN, relist) * random.uniform(0.8, 1.0))  # noqa: S311
            return
        soon = min(self.canary.patience + 1.0, relist)
        left = (relist - soon) * random.uniform(0.8, 1.0)  # noqa: S311
        for wait in (soon, left):
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self.namespaces.anew(namespace).wait()
                # Watches lose their place together, and perhaps again: lists are not all there is.
                await asyncio.sleep(max(took, 1.0) * random.uniform(1.0, 2.0))  # noqa: S311
                return
            if self.canary.wants_list(namespace):
                return

    async def _list(self, namespace: Namespace, spread: float) -> None:
        """Wake every object of a namespace, in the course of so many seconds."""
        try:
            async with self._lists:
                anew = self.namespaces.anew(namespace)
                # What happened before a watch began, none need have shown.
                fresh = anew.is_set()
                anew.clear()
                jobs = await self._take_in(
                    "StatefulSparkJob", namespace, spread=spread, fresh=fresh
                )
                # What is known of the others rests on jobs; else each waits for its own pages.
                snapshots, pods, _ = await _all(
                    self._take_in("StatefulSparkSnapshot", namespace, spread=spread, fresh=fresh),
                    self._list_pods(namespace, fresh=fresh),
                    self._list_revisions(namespace),
                )
        except ClusterError as error:
            anew.set()
            self.namespaces.listed(namespace, str(error))
        else:
            self.namespaces.listed(namespace)
            if not anew.is_set():
                self._show_canary((jobs, snapshots, pods))
            selector = joined(JOB_UID_LABEL, self.selection.selector)
            for job in await self.reconciler.look_for_lost(namespace, selector):
                self._wake(job.kind, (job.namespace, job.name), spread)

    async def _take_in(
        self, kind: Kind, namespace: Namespace, *, spread: float, fresh: bool
    ) -> Listing:
        listing = self.watched.listing(kind, namespace, fresh=fresh)
        async for page in self.cluster.pages(kind, namespace, self.selection.selector):
            listing.take(page)
            if kind == "StatefulSparkJob":
                await self.reconciler.specs.learn(page.items)
            for body in page.items:
                if kind == "StatefulSparkJob":
                    self.reconciler.directories.note(body)
                elif self.reconciler.is_no_news(body):
                    continue
                self._wake(kind, (body["metadata"]["namespace"], body["metadata"]["name"]), spread)
        for gone in listing.end():
            self._wake(kind, gone, spread)
        return listing

    def _wake(self, kind: Kind, where: tuple[str, str], spread: float) -> None:
        self.queue.wake(Ref(kind, *where), random.uniform(0.0, spread))  # noqa: S311

    async def _list_pods(self, namespace: Namespace, *, fresh: bool) -> Listing:
        listing = self.watched.listing("Pod", namespace, fresh=fresh)

        async def take(role: str) -> None:
            # Anybody may put the one label on a pod; only those with the other are watched.
            selector = joined(f"{ROLE_LABEL}={role}", JOB_LABEL, self.selection.selector)
            async for page in self.cluster.pages("Pod", namespace, selector):
                listing.take(page, role)

        await _all(take("driver"), take("executor"))
        listing.end()
        return listing

    async def _list_revisions(self, namespace: Namespace) -> None:
        """Once, as they do not change; else the first pass of each job reads its own."""
        if namespace in self._learned:
            return
        selector = joined(JOB_UID_LABEL, self.selection.selector)
        try:
            async for page in self.cluster.pages("ControllerRevision", namespace, selector):
                for body in page.items:
                    self.reconciler.learn(body)
        except ClusterError as error:
            _log.warning("revisions of jobs are read one by one: error=%s", error)
        self._learned.add(namespace)

    def _show_canary(self, listings: Iterable[Listing]) -> None:
        """A watch that is refused is behind for a reason, and a new process would not help."""
        for one in listings:
            if one.news is not None and self.namespaces.is_watched(one.namespace, one.kind):
                self.canary.listed(one.kind, one.namespace, one.news, self.watched.knows)


async def _all(*work: Coroutine[Any, Any, Any]) -> list[Any]:
    """What comes of each; the first error only once none is under way any more."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for one in results:
        if isinstance(one, BaseException):
            raise one
    return results


def spare_collector() -> None:
    """Let garbage be looked for less often: what a fleet takes in is kept, and holds no cycles.

    It took a third of the processor time of a start.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GARBAGE)


async def serve(settings: Settings) -> None:
    """Run the operator until SIGTERM or SIGINT.

    Raises:
        ExceptionGroup: as `App.run`.
        ConfigException, SettingsError: the API server cannot be found.
    """
    spare_collector()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    found = await configuration(settings.kubeconfig, settings.context)
    async with AsyncExitStack() as stack:
        registry, made = CollectorRegistry(), list[App]()
        told = ApiMetrics(registry).answered
        cluster = KubeCluster(found, timeout=settings.request_timeout, told=told)
        stack.push_async_callback(cluster.close)
        health = health_server(
            settings.health_host,
            settings.health_port,
            trouble=lambda: made[0].trouble() if made else "",
            waits_for=lambda: made[0].waits_for() if made else "the cluster's id is not known yet",
            registry=registry,
        )
        await stack.enter_async_context(health)
        app = await _unless(stop, build(settings, found, cluster, stack, registry))
        if app is not None:
            made.append(app)
            await run_until(app, stop)


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, _Result]) -> _Result | None:
    """What comes of the work; None if the process is to stop before it is done."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)


async def run_until(app: App, stop: asyncio.Event) -> None:
    """Run the app until `stop` is set, or until it ends by an error.

    Nothing acts any more when the Lease is given back: neither passes nor what renews the Lease.
    """
    running = asyncio.create_task(app.run(), name="app")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    try:
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            await app.drain()
    finally:
        stopping.cancel()
        running.cancel()
        given_back = app.leader.release() if app.leader is not None else asyncio.sleep(0)
        results = await asyncio.gather(running, given_back, return_exceptions=True)
    if not isinstance(results[0], Exception):
        return
    if not stop.is_set():
        raise results[0]
    _log.warning("the operator was to end, and did so by an error: problem=%r", results[0])


async def build(
    settings: Settings,
    found: Configuration,
    cluster: Cluster,
    stack: AsyncExitStack,
    registry: CollectorRegistry | None = None,
) -> App:
    """Put everything together; what must be closed is left to `stack`.

    Raises:
        SettingsError: the cluster has no name and cannot be given one.
    """
    config = Config(
        cluster_id=settings.cluster_id or await _cluster_uid(cluster),
        own_namespace=settings.namespace,
        state_backend=settings.state_backend,
        resync=settings.resync,
        endpoint_patience=settings.endpoint_patience,
        start_timeout=settings.start_timeout,
        stop_timeout=settings.stop_timeout,
    )
    labels = settings.watch_namespace_selector
    selection = Selection(settings.watch_namespaces, settings.shard, settings.shards, labels)
    ownership = Ownership(
        cluster,
        selection,
        f"{settings.namespace}/{settings.lease}",
        settings.lease_duration,
        asyncio.get_running_loop().time,
    )
    leader = _leader(settings, cluster, ownership) if settings.leader_election else None
    clock: WallClock = SystemClock()
    drivers = HttpDrivers(connections=MOST_UNDER_WAY)
    stack.push_async_callback(drivers.close)
    lineages = _lineages(
        settings, cluster, clock, config.cluster_id, stack, lambda job: queue.wake(_ref_of(job))
    )
    leads = (lambda: leader.leads) if leader is not None else (lambda: True)
    namespaces = WatchedNamespaces(settings.watch_namespaces, all_if_none=not labels)
    watched, by_name = WatchCache(), bool(settings.watch_namespaces or labels)
    metrics = OperatorMetrics(
        waiting=lambda: queue.waiting,
        leads=leads,
        namespaces=namespaces.shown,
        held_elsewhere=lambda: ownership.waiting,
        shards=tuple(dict.fromkeys((settings.shard, "", *settings.shards))),
        version=_version(),
        registry=registry,
    )
    reconciler = Reconciler(
        cluster,
        drivers,
        lineages,
        clock,
        config,
        decide_job,
        decide_snapshot,
        may_act=leads,
        wake=lambda ref: queue.wake(ref, 0.0),
        metrics=metrics,
        watched=watched,
        aside=lambda: queue.aside(),  # noqa: PLW0108  it is made below
        shows=lambda one: not namespaces.problem(one if by_name else None),
        # Without a Lease there is nothing by which another operator could know this one.
        ownership=ownership if leader is not None else None,
        fleet=FleetSource(settings.fleet, asyncio.get_running_loop().time),
    )
    queue = WorkQueue(reconciler.reconcile, settings.workers, waited=metrics.waited)
    return App(
        settings,
        found,
        cluster,
        reconciler,
        queue,
        metrics,
        leader,
        namespaces,
        watched,
        ownership,
        LabelledNamespaces(cluster, labels) if labels else None,
    )


def _lineages(
    settings: Settings,
    cluster: Cluster,
    clock: WallClock,
    cluster_id: str,
    stack: AsyncExitStack,
    answered: Callable[[JobRefs], None],
) -> ChosenLineages:
    direct = DirectLineages(
        cluster,
        clock,
        cluster_id,
        own_chain=settings.own_credentials,
        schemes=frozenset({"s3", "file"} if settings.local_files else {"s3"}),
        answered=answered,
    )
    stack.push_async_callback(direct.close)
    return ChosenLineages(direct, PodLineages(cluster, clock, cluster_id), settings)


def _ref_of(job: JobRefs) -> Ref:
    return Ref("StatefulSparkJob", job.meta.namespace, job.meta.name)


def _leader(settings: Settings, cluster: Cluster, ownership: Ownership) -> Leader:
    duration = settings.lease_duration
    times = LeaseTimes(duration, give_up=duration * 2 / 3, retry=duration * 2 / 15)
    # A process that was started anew under the same name is another one.
    identity = f"{settings.identity or socket.gethostname()}_{uuid.uuid4()}"
    tick = asyncio.get_running_loop().time
    where = (settings.namespace, settings.lease)

    def said() -> str:
        return ownership.selection.text

    return Leader(cluster, *where, identity, selection=said, times=times, tick=tick)


async def _cluster_uid(cluster: Cluster) -> str:
    while True:
        try:
            found = await cluster.get("Namespace", "", "kube-system")
        except ClusterError as error:
            _log.warning("the cluster's id cannot be read: error=%s", error)
            await asyncio.sleep(2.0)
            continue
        if found is None:
            raise SettingsError(
                "there is no namespace kube-system to name the cluster by; set MOORAGE_CLUSTER_ID"
            )
        return str(found["metadata"]["uid"])


def _version() -> str:
    try:
        return version("moorage")
    except PackageNotFoundError:
        return "unknown"
