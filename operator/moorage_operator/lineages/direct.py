"""Store tasks by the operator's own process: the quickest way, where it has the credentials.

A job's object names addresses, and whoever may write such an object could name any. So a store is
opened only where the job itself keeps its state, with the job's credentials.

Blocking code runs in threads of its own, a bounded number for each server, so that one that hangs
holds up nobody else, and no pass of the reconcile loop ever waits for a store. Results are kept in
memory for a while: a process that dies takes them along, and the store task is begun again under
its id, which is harmless.
"""

import asyncio
import base64
import binascii
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar, cast

from moorage_operator.lineages.requests import (
    INSPECT,
    PENDING,
    request_of,
    store_task_view,
    store_view,
)
from moorage_operator.plan import StoreTask
from moorage_operator.ports import Cluster, ClusterError, JobRefs, WallClock
from moorage_operator.world import StoreTaskView, StoreView, Unreadable
from moorage_state.errors import StoreDenied, StoreUnavailable
from moorage_state.snapshots.store_tasks import Answer, StoreTaskRequest, run_store_task
from moorage_state.stores import (
    ObjectInfo,
    ObjectStore,
    Retries,
    S3Address,
    S3Credentials,
    S3Store,
    open_store,
)

T = TypeVar("T")

_RETRIES = Retries(attempts=4, first_pause=0.2, longest_pause=2.0, deadline=15.0)
_NEEDED = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


class CredentialsMissing(Exception):
    """The Secret with the job's credentials is not there or not whole; the text shows no value."""


async def credentials_of(cluster: Cluster, job: JobRefs) -> S3Credentials | None:
    """The credentials in the job's Secret, read anew; None if the job names none.

    Raises:
        CredentialsMissing: naming the Secret and what it lacks.
        ClusterError: the Secret could not be read.
    """
    reference = job.spec.state.credentials_secret_ref
    if reference is None:
        return None
    where = f"secret={job.meta.namespace}/{reference.name}"
    body = await cluster.get("Secret", job.meta.namespace, reference.name)
    if body is None:
        raise CredentialsMissing(
            f"spec.state.credentialsSecretRef: there is no such Secret: {where}; create it"
        )
    found = {name: _decoded(text, where) for name, text in (body.get("data") or {}).items()}
    missing = [name for name in _NEEDED if not found.get(name)]
    if missing:
        raise CredentialsMissing(
            f"spec.state.credentialsSecretRef: the Secret lacks {' and '.join(missing)}: {where}; "
            "add what is missing"
        )
    return S3Credentials(
        found["AWS_ACCESS_KEY_ID"],
        found["AWS_SECRET_ACCESS_KEY"],
        found.get("AWS_SESSION_TOKEN") or None,
        found.get("AWS_REGION") or found.get("AWS_DEFAULT_REGION") or None,
    )


def _decoded(text: object, where: str) -> str:
    try:
        return base64.b64decode(str(text), validate=True).decode().strip()
    except (binascii.Error, UnicodeDecodeError):
        raise CredentialsMissing(
            f"spec.state.credentialsSecretRef: the Secret's data cannot be read: {where}; write "
            "its values anew"
        ) from None


def opener(
    job: JobRefs,
    credentials: S3Credentials | None,
    schemes: frozenset[str],
    seconds: float,
    *,
    own_chain: bool,
    clock: Callable[[], float] = time.monotonic,
) -> Callable[[str], ObjectStore]:
    """Return what opens the job's stores, until `seconds` from now.

    Args:
        credentials: its own; without them and with `own_chain` the operator's are used.
        schemes: the kinds of stores that may be opened in this process.
        seconds: after which a store that was opened refuses to go on.
        own_chain: whether the operator's own credentials may be used.
    """
    deadline = clock() + seconds
    endpoint = (job.spec.state.s3.endpoint or "").rstrip("/")

    def within(store: ObjectStore) -> ObjectStore:
        return cast("ObjectStore", _Limited(store, deadline, clock))

    def open_(url: str) -> ObjectStore:
        scheme = url.partition("://")[0]
        if scheme not in schemes:
            raise StoreDenied(
                f"operator does not open such stores itself: scheme={scheme}; use s3://, or let "
                "store tasks run as pods"
            )
        if scheme != "s3":
            return within(open_store(url))
        address = S3Address.parse(url)
        if (address.endpoint or "") != endpoint:
            raise StoreDenied(
                f"address is on another server than the job's: bucket={address.bucket}; use one "
                "that spec.state.s3.endpoint of the job names"
            )
        if credentials is None and not own_chain:
            raise StoreDenied(
                "no credentials for the store: name a Secret in spec.state.credentialsSecretRef, "
                "or let store tasks run as pods"
            )
        return within(S3Store(address, _RETRIES, credentials))

    return open_


class _Limited:
    """A store that begins nothing after a deadline, so that a thread nobody waits for ends."""

    def __init__(self, inner: ObjectStore, deadline: float, clock: Callable[[], float]) -> None:
        self._inner, self._deadline, self._clock = inner, deadline, clock
        self.url = inner.url

    def __getattr__(self, name: str) -> Any:
        """Whatever a store can do, looked up when it is called."""
        self._check()
        return getattr(self._inner, name)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """See `ObjectStore.list`; each page is another request."""
        self._check()
        for info in self._inner.list(prefix, start_after):
            self._check()
            yield info

    def _check(self) -> None:
        if self._clock() > self._deadline:
            raise StoreUnavailable(f"store is too slow: store={self.url}; tried no longer")


_KEPT = timedelta(minutes=10)
_AGAIN = timedelta(seconds=10)
_FRESH = timedelta(seconds=5)
"""For how long what an inspection found counts as now."""
_PATIENCE = 5.0
"""Seconds for which a place among a server's threads is waited for."""


@dataclass(slots=True)
class _Known:
    """A store task that was begun in this process's life."""

    task: "asyncio.Task[Answer]"
    ended: datetime | None = None


_Key = tuple[str, str, str, str]


@dataclass(slots=True)
class _Look:
    """The inspections of one directory."""

    task: "asyncio.Task[Answer] | None" = None
    begun: datetime | None = None  # when the latest one began; None if there was none
    ended: datetime | None = None  # when it ended; None while it is under way
    # What the latest one that ended says, if it failed: it says nothing about what there is, so
    # that it does not grow old while the next one is under way
    failure: Unreadable | None = None


_Ended = tuple[datetime, dict[_Key, _Known] | dict[_Key, _Look], _Key]
"""When something ended, and where it is kept."""


class DirectLineages:
    """See `moorage_operator.ports.Lineages`.

    Args:
        cluster_id: names the cluster in lineages.
        own_chain: whether jobs without a Secret may use the operator's own credentials.
        schemes: the kinds of stores that may be opened.
        inspect_seconds: how long an inspection may take.
        store_task_seconds: how long any other store task may take.
        threads: how many store tasks run at once; half of them for one server.
        answered: called when an inspection for a job has ended, so that the job is looked at.
    """

    def __init__(
        self,
        cluster: Cluster,
        clock: WallClock,
        cluster_id: str,
        *,
        own_chain: bool = False,
        schemes: frozenset[str] = frozenset({"s3"}),
        inspect_seconds: float = 30.0,
        store_task_seconds: float = 600.0,
        threads: int = 8,
        answered: Callable[[JobRefs], None] = lambda _: None,
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._cluster_id = cluster_id
        self._own_chain = own_chain
        self._schemes = schemes
        self._inspect_seconds = inspect_seconds
        self._store_task_seconds = store_task_seconds
        self._answered = answered
        self._threads = asyncio.Semaphore(threads)
        self._per_server = max(threads // 2, 1)
        self._lanes: dict[str, asyncio.Semaphore] = {}
        self._known: dict[_Key, _Known] = {}
        self._looks: dict[_Key, _Look] = {}
        self._ended: deque[_Ended] = deque()

    async def inspect(
        self, job: JobRefs, since: datetime | None = None
    ) -> StoreView | Unreadable | None:
        """See `Lineages.inspect`; it never waits for the store.

        What was found counts for a few seconds, and only if it was looked for after `since`. A
        failure is told until another inspection has ended.
        """
        self._forget_old()
        request = request_of(job, INSPECT, self._cluster_id)
        look = self._looks.setdefault(_key(job, request.checkpoint_dir), _Look())
        if look.task is not None and look.ended is not None and look.begun is not None:
            found = store_view(look.task.result())
            look.failure = found if isinstance(found, Unreadable) else None
            early = since is not None and look.begun < since
            wait = _AGAIN if look.failure is not None else _FRESH
            if not early and self._clock.now() - look.ended <= wait:
                return found
        if look.task is None or look.ended is not None:
            look.begun, look.ended = self._clock.now(), None
            look.task = asyncio.create_task(self._look(job, request, look))
        return look.failure

    async def _look(self, job: JobRefs, request: StoreTaskRequest, look: _Look) -> Answer:
        try:
            return await self._answer(job, request, self._inspect_seconds)
        except Exception as error:  # noqa: BLE001  whatever it is, it is told as what it prevents
            return _failure(request, "errand_failed", f"{error!r}", retryable=True)
        finally:
            look.ended = self._clock.now()
            self._ended.append((look.ended, self._looks, _key(job, request.checkpoint_dir)))
            # Once the task is done: what is woken asks for its result.
            asyncio.get_running_loop().call_soon(self._answered, job)

    async def run(self, job: JobRefs, store_task: StoreTask) -> StoreTaskView:
        """See `Lineages.run`."""
        self._forget_old()
        key = _key(job, store_task.id)
        known = self._known.get(key)
        if known is None or self._may_begin_again(known):
            request = request_of(job, store_task, self._cluster_id)
            answer = self._answer(job, request, self._store_task_seconds)
            known = self._known[key] = _Known(asyncio.create_task(answer))
            known.task.add_done_callback(partial(self._end, key, known))
        return self._view(known)

    async def look(self, job: JobRefs, task_id: str) -> StoreTaskView | None:
        """See `Lineages.look`."""
        known = self._known.get(_key(job, task_id))
        return self._view(known) if known is not None else None

    async def close(self) -> None:
        """Wait for nobody: what is under way is begun again by whoever comes next."""
        tasks = [known.task for known in self._known.values()]
        tasks += [look.task for look in self._looks.values() if look.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._known.clear()
        self._looks.clear()

    def _view(self, known: _Known) -> StoreTaskView:
        if not known.task.done():
            return PENDING
        if known.task.cancelled():
            return StoreTaskView("Failed", {}, "errand_failed", "was cancelled", retryable=True)
        return store_task_view(known.task.result())

    def _may_begin_again(self, known: _Known) -> bool:
        view = self._view(known)
        if view.state != "Failed" or not view.retryable or known.ended is None:
            return False
        return self._clock.now() - known.ended > _AGAIN

    def _end(self, key: _Key, known: _Known, _: object) -> None:
        known.ended = self._clock.now()
        self._ended.append((known.ended, self._known, key))

    def _forget_old(self) -> None:
        """What ended long ago; in the order of ends, so that each is looked at once."""
        now = self._clock.now()
        while self._ended and now - self._ended[0][0] >= _KEPT:
            _, kept, key = self._ended.popleft()
            one = kept.get(key)
            # It may have been begun anew since.
            if one is not None and one.ended is not None and now - one.ended >= _KEPT:
                del kept[key]

    async def _answer(self, job: JobRefs, request: StoreTaskRequest, seconds: float) -> Answer:
        """Run it in a thread; whatever goes wrong is an answer too."""
        try:
            credentials = await credentials_of(self._cluster, job)
        except CredentialsMissing as error:
            return _failure(request, "credentials_missing", str(error), retryable=True)
        except ClusterError as error:
            text = f"the Secret with credentials cannot be read: {error}"
            return _failure(request, "errand_failed", text, retryable=True)
        open_ = opener(job, credentials, self._schemes, seconds, own_chain=self._own_chain)
        try:
            async with asyncio.timeout(seconds + _PATIENCE):
                return await self._in_thread(job, request, open_)
        except TimeoutError:
            text = f"the store did not answer in time: seconds={seconds:g}; see that it is up"
            return _failure(request, "store_unavailable", text, retryable=True)

    async def _in_thread(
        self, job: JobRefs, request: StoreTaskRequest, open_: Callable[[str], ObjectStore]
    ) -> Answer:
        """The places are taken as long as the thread is, also when nobody waits for it any more."""
        with contextlib.ExitStack() as places:
            # The server's place first: who waits for a slow server holds none that others need.
            for place in (self._lane(job), self._threads):
                await place.acquire()
                places.callback(place.release)
            future = _in_daemon(lambda: run_store_task(request, open_, clock=self._clock.now))
            kept = places.pop_all()
        future.add_done_callback(lambda _: kept.close())
        return await asyncio.shield(future)

    def _lane(self, job: JobRefs) -> asyncio.Semaphore:
        state = job.spec.state
        server = state.s3.endpoint or state.checkpoint_dir.partition("://")[0]
        return self._lanes.setdefault(server, asyncio.Semaphore(self._per_server))


def _in_daemon(work: Callable[[], Answer]) -> "asyncio.Future[Answer]":
    """Run it in a thread that a process which ends does not wait for."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Answer] = loop.create_future()

    def end(answer: Answer | None, error: Exception | None) -> None:
        if future.done():
            return
        if answer is not None:
            future.set_result(answer)
        else:
            future.set_exception(error or RuntimeError("a store task gave no answer"))

    def run() -> None:
        answer, failure = None, None
        try:
            answer = work()
        except Exception as error:  # noqa: BLE001  told to whoever awaits
            failure = error
        finally:
            # The loop may be closed by now: then nobody asks any more.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(end, answer, failure)

    threading.Thread(target=run, name="store", daemon=True).start()
    return future


def _key(job: JobRefs, what: str) -> _Key:
    return job.meta.namespace, job.meta.name, job.meta.uid, what


def _failure(request: StoreTaskRequest, code: str, message: str, *, retryable: bool) -> Answer:
    return Answer(id=request.id, state="Failed", code=code, message=message, retryable=retryable)
