"""Kopf watches, and every event only wakes the loop.

Kopf runs in a thread and an event loop of its own: what it installs and cancels there is not ours,
and a flood of events does not hold up passes. It has low-level event handlers only, so it writes
nothing to the objects: no finalizer, no annotation.

Kopf ends all its watches when one request of one of them is refused for good. So its requests are
repeated without end: a namespace that is forbidden, or gone, holds up no other, and is watched
again once it is back. What the API server answers to each is told (`Told`).

Before each watch Kopf lists what there is, and takes a task, a queue and a patch for each object.
Lists are ours, page by page: so Kopf's ask for nothing, and give the version that the watch begins
at (`Begun`). Who lists after that misses nothing.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import aiohttp
import kopf
from kopf._cogs.structs.references import Insights  # the one word on when Kopf has begun
from kubernetes.aio.client import Configuration

from moorage_api import API_VERSION
from moorage_operator.children.names import JOB_LABEL
from moorage_operator.kube.rest import resource_of
from moorage_operator.objects import is_under_way, job_name_of
from moorage_operator.ports import Kind, Ref
from moorage_operator.shards import Selection, joined
from moorage_operator.watch_health import Namespace

_GROUP, _, _VERSION = API_VERSION.partition("/")
_KINDS: tuple[Kind, ...] = ("StatefulSparkJob", "StatefulSparkSnapshot", "Pod")
_TOLD_EVERY = 0.05
_SCAN_SECONDS = 3.0
_JOIN_SECONDS = 5.0
# 404 as well: so a kind answers whose definition is not there (yet, or any more).
_REFUSED = (403, 404)
_BACKOFFS = (1.0, 2.0, 5.0, 10.0)
_LONGEST_BACKOFF = 30.0

Wake = Callable[[str, Kind, dict[str, Any]], None]
"""Called with the event's type, the kind, and the object."""

Told = Callable[[Namespace, Kind, str], None]
"""Called when a kind can be watched in a namespace (empty text), or why it is refused."""

Begun = Callable[[Namespace, Kind], None]
"""Called when a watch of a kind in a namespace begins, or has lost its place and begins anew.

It shows what happens from now on; what happened before is in lists that begin after this.
"""

NOTHING = f"{JOB_LABEL},!{JOB_LABEL}"
"""A selector of labels that no object has."""

_PATTERN = "*"

# From the API server's own cache. A version that is not the newest does no harm: the watch shows
# what came after it.
_FROM_CACHE = "0"


class _WithoutEnd:
    """How long Kopf waits between two tries of a request; it never gives up."""

    def __iter__(self) -> Iterator[float]:
        yield from _BACKOFFS
        while True:
            yield _LONGEST_BACKOFF


class Watching:
    """Watches of jobs, snapshots and the jobs' pods.

    Args:
        found: how the API server is reached.
        selection: what to watch.
        wake: called in the loop that `run` is awaited in.
        told: likewise.
        begun: likewise.
    """

    def __init__(
        self,
        found: Configuration,
        selection: Selection,
        wake: Wake,
        told: Told = lambda *_: None,
        begun: Begun = lambda *_: None,
    ) -> None:
        self._configuration = found
        self._selector, self._by_label = selection.selector, bool(selection.labels)
        self._wake, self._told, self._begun = wake, told, begun
        self._stop = threading.Event()
        self._answers: dict[tuple[Namespace, Kind], str] = {}
        self._paths: dict[str, tuple[Namespace, Kind]] = {}
        self._inside: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._namespaces: tuple[str, ...] = ()
        self.follow(selection.namespaces)

    def follow(self, namespaces: Iterable[str]) -> None:
        """Watch in these namespaces from now on, and in no others; without any in none, or in all.

        While `run` is awaited they may change only where labels of namespaces select them.
        """
        self._namespaces = tuple(sorted(namespaces))
        everywhere = () if self._by_label else (None,)
        self._paths = {
            resource_of(kind).path(namespace): (namespace, kind)
            for namespace in self._namespaces or everywhere
            for kind in _KINDS
        }
        there = frozenset(self._namespaces)
        self._answers = {place: said for place, said in self._answers.items() if place[0] in there}
        if self._inside is not None:
            loop, changed = self._inside
            loop.call_soon_threadsafe(changed.set)

    async def run(self) -> None:
        """Watch until cancelled.

        Raises:
            RuntimeError: Kopf ended by itself, or a part of it that the rest depends on. What is
                left of it may hang; only the end of the process ends it.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        thread = threading.Thread(target=self._thread, args=(loop, ended), name="kopf", daemon=True)
        thread.start()
        try:
            await ended
        except asyncio.CancelledError:
            self._stop.set()
            await asyncio.shield(asyncio.to_thread(thread.join, _JOIN_SECONDS))
            raise
        except Exception as error:
            self._stop.set()
            text = f"the watches ended, and the process must start anew: problem={error}"
            raise RuntimeError(text) from error
        raise RuntimeError("the watches ended by themselves; the process must start anew")

    def _thread(self, loop: asyncio.AbstractEventLoop, ended: asyncio.Future[None]) -> None:
        failure: Exception | None = None
        try:
            asyncio.run(self._operator(loop, ended))
        except Exception as error:  # noqa: BLE001  told to whoever awaits
            failure = error
        except BaseException as error:  # noqa: BLE001  an exit of this thread is not the process's
            failure = RuntimeError(f"the watches were ended: problem={error!r}")
            failure.__cause__ = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(_finish, ended, failure)

    async def _operator(self, loop: asyncio.AbstractEventLoop, ended: asyncio.Future[None]) -> None:
        insights, stop = Insights(), asyncio.Event()
        told = asyncio.create_task(self._when_told(insights, stop))
        following = asyncio.create_task(self._followed(insights), name="namespaces")
        others = asyncio.all_tasks()

        def is_over(task: asyncio.Task[Any]) -> None:
            """One of Kopf's own: without it the others go on and do nothing."""
            if stop.is_set() or task.cancelled():
                return
            failure = task.exception() or RuntimeError("it has no more to do")
            text = f"{task.get_name()}: {failure!r}"
            loop.call_soon_threadsafe(_finish, ended, RuntimeError(text))

        try:
            tasks = await kopf.spawn_tasks(
                registry=self._registry(loop),
                settings=_settings(self._selector),
                # Else Kopf asks who the user is, which an image need not know; there is no peering.
                identity="moorage",  # type: ignore[arg-type]  # Kopf has a NewType for it
                insights=insights,
                stop_flag=stop,
                clusterwide=not (self._namespaces or self._by_label),
                # A pattern stands for none, as Kopf does not look which there are.
                namespaces=(_PATTERN,) if self._by_label else self._namespaces,
            )
            for task in (*tasks, following):
                task.add_done_callback(is_over)
            await kopf.run_tasks(tasks, ignored=others)
        finally:
            told.cancel()
            following.cancel()

    async def _followed(self, insights: Insights) -> None:
        """Let Kopf's streams be those of the namespaces that there are by now."""
        changed = asyncio.Event()
        self._inside = (asyncio.get_running_loop(), changed)
        await insights.ready_namespaces.wait()
        while True:
            changed.clear()
            wanted: set[Any] = {*self._namespaces}
            if self._by_label and insights.namespaces != wanted:
                async with insights.revised:
                    insights.namespaces.clear()
                    insights.namespaces.update(wanted)
                    insights.revised.notify_all()
            await changed.wait()

    async def _when_told(self, insights: Insights, stop: asyncio.Event) -> None:
        """End Kopf, but not while it looks which resources there are: it would try again then."""
        while not self._stop.is_set():  # noqa: ASYNC110  it is set in another thread
            await asyncio.sleep(_TOLD_EVERY)
        with suppress(TimeoutError):
            async with asyncio.timeout(_SCAN_SECONDS):
                await insights.ready_resources.wait()
        stop.set()

    def _registry(self, loop: asyncio.AbstractEventLoop) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        def woken(kind: Kind) -> Callable[..., Any]:
            async def handler(event: dict[str, Any], body: Any, **_: Any) -> None:
                loop.call_soon_threadsafe(self._wake, event["type"] or "", kind, dict(body))

            handler.__name__ = f"wake_{kind.lower()}"
            return handler

        kopf.on.event(_GROUP, _VERSION, "statefulsparkjobs", registry=registry)(
            woken("StatefulSparkJob")
        )
        kopf.on.event(_GROUP, _VERSION, "statefulsparksnapshots", registry=registry)(
            woken("StatefulSparkSnapshot")
        )
        kopf.on.event("", "v1", "pods", labels={JOB_LABEL: kopf.PRESENT}, registry=registry)(
            woken("Pod")
        )
        kopf.on.login(registry=registry)(self._login_in(loop))
        return registry

    def _login_in(self, loop: asyncio.AbstractEventLoop) -> Callable[..., Any]:
        async def login(**_: Any) -> kopf.AiohttpSession:
            info = await self._who()
            session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
                headers=info.as_http_headers(),
                middlewares=(self._between(loop),),
            )
            return kopf.AiohttpSession(server=info.server, aiohttp_session=session)

        return login

    def _between(self, loop: asyncio.AbstractEventLoop) -> aiohttp.ClientMiddlewareType:
        """Sees each request of Kopf, and what the API server answers."""

        async def ask(
            request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
        ) -> aiohttp.ClientResponse:
            place = self._paths.get(request.url.path)
            if place is None:
                return await send(request)
            begins = "watch" not in request.url.query
            if begins:
                selector = joined(request.url.query.get("labelSelector", ""), NOTHING)
                asked = {"labelSelector": selector, "resourceVersion": _FROM_CACHE}
                request.url = request.url.update_query(asked)
            response = await send(request)
            self._answered(loop, place, response)
            if begins and response.ok:
                loop.call_soon_threadsafe(self._begun, *place)
            return response

        return ask

    def _answered(
        self,
        loop: asyncio.AbstractEventLoop,
        place: tuple[Namespace, Kind],
        response: aiohttp.ClientResponse,
    ) -> None:
        """What refuses a watch, and what lets it be, is told."""
        code = response.status
        if code not in _REFUSED and not response.ok:
            return
        refusal = f"watch of {place[1]}: {code} {response.reason}" if code >= 400 else ""
        if self._answers.get(place, "") != refusal:
            self._answers[place] = refusal
            loop.call_soon_threadsafe(self._told, *place, refusal)

    async def _who(self) -> kopf.ConnectionInfo:
        """As the client of the loop does it; asked again when the API server refuses."""
        found = self._configuration
        token = await found.get_api_key_with_prefix("BearerToken", alias="authorization")
        scheme, _space, secret = (token or "").rpartition(" ")
        return kopf.ConnectionInfo(
            server=found.host.rstrip("/"),
            ca_path=found.ssl_ca_cert,
            insecure=not found.verify_ssl,
            scheme=(scheme or "Bearer").capitalize() if secret else None,
            token=secret or None,
            certificate_path=found.cert_file,
            private_key_path=found.key_file,
        )


def _settings(selector: str) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True
    # Its own events about handlers: ours are told by the loop, once each.
    settings.posting.enabled = False
    settings.networking.request_timeout = 30.0
    settings.networking.error_backoffs = _WithoutEnd()
    settings.watching.server_timeout = 270
    # What the server does not end, because nobody is there any more, ends here. A stream without
    # so much as a bookmark for a little more than a minute is ended by Kopf.
    settings.watching.client_timeout = 300
    settings.watching.chunk_size = 500
    # For so long an object that had an event has a task, a queue and its newest body: a node that
    # goes, or a fleet that starts, is an event of each of its pods.
    settings.queueing.idle_timeout = 0.5
    settings.watching.label_selectors["", "v1", "pods"] = joined(JOB_LABEL, selector)
    if selector:
        for kind in ("statefulsparkjobs", "statefulsparksnapshots"):
            settings.watching.label_selectors[_GROUP, _VERSION, kind] = selector
    # It would watch namespaces and definitions, cluster-wide rights that nobody needs to give.
    settings.scanning.disabled = True
    # Else Kopf kills the whole process, passes and all, when its own end takes too long.
    settings.process.ultimate_exiting_timeout = None
    return settings


def _finish(ended: asyncio.Future[None], failure: Exception | None) -> None:
    if ended.done():
        return
    if failure is not None:
        ended.set_exception(failure)
    else:
        ended.set_result(None)


class Wakeups:
    """Knows which snapshots of a job are under way, as far as it has been shown them.

    Args:
        wake: sees to a pass.
        is_no_news: whether a pass has seen an object of ours in this very version, as of what the
            operator itself wrote last, or passes of another see to it.
    """

    def __init__(
        self,
        wake: Callable[[Ref], None],
        is_no_news: Callable[[dict[str, Any]], bool] = lambda _: False,
    ) -> None:
        self._wake, self._is_no_news = wake, is_no_news
        self._waiting: dict[Ref, set[Ref]] = {}
        self._jobs: dict[Ref, Ref] = {}

    def seen(self, event: str, kind: str, body: dict[str, Any]) -> None:
        """An object was listed, or changed, or is gone (event DELETED)."""
        meta = body["metadata"]
        for ref in self._concerned(event, kind, meta.get("namespace", ""), body):
            self._wake(ref)

    def _concerned(
        self, event: str, kind: str, namespace: str, body: dict[str, Any]
    ) -> Iterable[Ref]:
        name = body["metadata"]["name"]
        if kind == "Pod":
            job = (body["metadata"].get("labels") or {}).get(JOB_LABEL, "")
            return [Ref("StatefulSparkJob", namespace, job)] if job else []
        if kind == "StatefulSparkJob":
            ref = Ref("StatefulSparkJob", namespace, name)
            return [*self._own(ref, event, body), *sorted(self._waiting.get(ref, ()))]
        ref = Ref("StatefulSparkSnapshot", namespace, name)
        job = Ref("StatefulSparkJob", namespace, job_name_of(body.get("spec") or {}))
        self._note(ref, job, waits=event != "DELETED" and is_under_way(body))
        return [*self._own(ref, event, body), *([job] if job.name else [])]

    def _own(self, ref: Ref, event: str, body: dict[str, Any]) -> list[Ref]:
        no_news = event != "DELETED" and self._is_no_news({**body, "kind": ref.kind})
        return [] if no_news else [ref]

    def _note(self, ref: Ref, job: Ref, *, waits: bool) -> None:
        before = self._jobs.pop(ref, None)
        if before is not None:
            self._waiting[before].discard(ref)
            if not self._waiting[before]:
                del self._waiting[before]
        if waits:
            self._jobs[ref] = job
            self._waiting.setdefault(job, set()).add(ref)
