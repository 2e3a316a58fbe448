"""Spark's executors, as the driver sees and orders them.

Decides which executors leave when fewer are wanted, and when too many have failed. Called by the
cluster's state servers, which live and die with executors, and by whoever asks for another number
of them. Knows no state.
"""

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from py4j.protocol import Py4JError
from pyspark import SparkContext

from moorage.driver.views import ExecutorsView
from moorage.engine.placement import ExecutorWatch, LiveExecutor
from moorage.engine.task_failures import SparkEnded
from moorage_state.errors import UserError


class ExecutorPool(Protocol):
    """The executors of a job."""

    @property
    def desired(self) -> int:
        """How many are wanted."""
        ...

    def live(self) -> list[LiveExecutor]:
        """Those that can take tasks now, without dismissed ones. Raises SparkEnded."""
        ...

    def registered(self) -> frozenset[str]:
        """The ids of those that were neither lost nor dismissed. Raises SparkEnded."""
        ...

    def leaving(self) -> frozenset[str]:
        """The ids of those that are to go as soon as nothing needs them."""
        ...

    def dismiss(self) -> None:
        """End those that are leaving. Raises SparkEnded."""
        ...

    def trouble(self) -> str:
        """Why there are fewer than wanted, as far as Spark tells."""
        ...


class PodFailures:
    """How many pods of executors failed lately, of those that there were.

    Spark counts them, and from 4.2 on also each pod that the API server does not make: one a second
    and more, while a quota still counts pods that end, or a webhook is away. So Spark is given no
    limit, and only what failed is held against ours.

    Args:
        most: how many are tolerated.
    """

    WINDOW = "spark.executor.failuresValidityInterval"

    def __init__(
        self, context: SparkContext, most: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        scala: Any = context._jsc.sc()
        backend = scala.schedulerBackend()
        # By their classes: releases of Spark name the fields otherwise.
        self._counter = _field(backend, "ExecutorPodsLifecycleManager")
        self._allocator = _field(backend, "ExecutorPodsAllocator", "AbstractPodsAllocator")
        self._most, self._clock, self._began = most, clock, clock()
        self._window: float = scala.conf().getTimeAsMs(self.WINDOW, "0ms") / 1000
        self._refused_before = self._told = 0
        try:
            jvm: Any = context._jvm
            detach = getattr(self._allocator, "executorPodsLifecycleManager_$eq")
            detach(jvm.scala.Option.empty())
            self._refused_before = self._refused()
        except Py4JError:
            self._allocator = None  # Spark 4.1 counts none of them

    def check(self) -> None:
        """Raise SparkEnded where more have failed than are tolerated."""
        failed = int(self._counter.getNumExecutorsFailed())
        if failed > self._most and not self._is_over():
            failed -= self._refused_before
        if failed > self._most:
            raise SparkEnded(
                f"too many pods of executors failed: failed={failed} max={self._most} "
                f"seconds={self._window:.0f}; kubectl describe them, or raise "
                f"failurePolicy.executorFailures"
            )

    def refused(self) -> int:
        """How many pods the API server did not make since this was asked before."""
        before, self._told = self._told, self._refused() if self._allocator is not None else 0
        return self._told - before

    def _refused(self) -> int:
        return int(self._allocator.totalFailedPodCreations())

    def _is_over(self) -> bool:
        """Whether Spark has forgotten what it counted before it was told not to."""
        return 0 < self._window < self._clock() - self._began


def _field(owner: Any, *types: str) -> Any:
    for field in owner.getClass().getDeclaredFields():
        if field.getType().getSimpleName() in types:
            field.setAccessible(True)
            return field.get(owner)
    raise Py4JError(f"Spark's backend has no {types[0]}")


class SparkExecutors:
    """See `ExecutorPool`. For any thread.

    Args:
        desired: how many Spark was told to begin with.
        failures: of their pods, where they have any.
    """

    def __init__(
        self, context: SparkContext, desired: int, failures: PodFailures | None = None
    ) -> None:
        self._context = context
        self._failures = failures
        self._lock = threading.Lock()
        self._desired = desired
        self._leaving: frozenset[str] = frozenset()
        self._dismissed: set[str] = set()
        self._watch = ExecutorWatch(context)
        self._lost_by: tuple[frozenset[str], list[tuple[str, str]]] | None = None

    @property
    def desired(self) -> int:
        """See `ExecutorPool`."""
        return self._desired

    def live(self) -> list[LiveExecutor]:
        """See `ExecutorPool`."""
        try:
            found = self._watch.live()
        except (Py4JError, OSError) as error:
            raise _ended(error) from error
        # Spark takes a while to forget those that it was told to end.
        return [executor for executor in found if executor.id not in self._dismissed]

    def registered(self) -> frozenset[str]:
        """See `ExecutorPool`."""
        try:
            backend = self._backend()
            if backend.isStopped():
                raise SparkEnded("spark has ended by itself; its log in the driver's says why")
            if self._failures is not None:
                self._failures.check()
            return self._watch.ids() - self._dismissed
        except (Py4JError, OSError) as error:
            raise _ended(error) from error

    def leaving(self) -> frozenset[str]:
        """See `ExecutorPool`."""
        return self._leaving

    def scale(self, count: int) -> None:
        """Want `count` executors. More are asked for at once; the newest ones leave if it is less.

        Raises:
            SparkEnded: there is nobody to ask.
            UserError: a job needs at least one.
        """
        if count < 1:
            raise UserError(f"a job needs executors: executors={count}; ask for 1 or more")
        with self._lock:
            self._desired = count
            ids = [executor.id for executor in self.live()]
            self._leaving = frozenset(ids[count:])
            # Those that leave still count, or Spark's request would be met by those that stay.
            self._request(count + len(self._leaving))

    def dismiss(self) -> None:
        """See `ExecutorPool`."""
        with self._lock:
            going = sorted(self._leaving & self.registered())
            if going:
                self._dismissed = self._dismissed | set(going)
                jvm: Any = self._context._jvm
                ids = jvm.org.apache.spark.api.python.PythonUtils.toSeq(_java_list(jvm, going))
                self._backend().killExecutors(ids)
            if self._leaving:
                # A kill lowers the request by itself, whatever it was; this is what it is. One that
                # was lost before it could leave is not replaced any more.
                self._request(self._desired)
            self._leaving = frozenset()

    def trouble(self) -> str:
        """See `ExecutorPool`."""
        try:
            unheard = sorted(self._watch.disconnected() - self._dismissed)
            refused = self._failures.refused() if self._failures is not None else 0
        except (Py4JError, OSError) as error:
            raise _ended(error) from error
        if refused:
            return (
                f"the API server does not make their pods: refused={refused}; the driver's log "
                f"says why, after `Failed to create executor pod`: mostly a quota or a webhook"
            )
        if unheard:
            return f"executor {unheard[-1]} has no connection any more, and nobody has said yet why"
        lost = self._lost()
        if not lost:
            return "none was lost: look at the events of the executor pods"
        executor_id, reason = lost[-1]
        return f"executor {executor_id} was lost last: {reason[:300]}"

    def view(self) -> ExecutorsView:
        """How many there are; as it was wanted where Spark cannot be asked any more."""
        try:
            ready, lost = len(self.live()), len(self._lost())
        except SparkEnded:
            ready, lost = 0, 0
        return ExecutorsView(desired=self._desired, ready=ready, lost=lost)

    def _lost(self) -> list[tuple[str, str]]:
        """Executors that were lost, and why, oldest first; dismissed ones were not."""
        try:
            ids, known = self._watch.ids(), self._lost_by
            if known is None or known[0] != ids:
                active, lost = self._summaries()
                # Spark's list may lag behind its ids for a moment.
                known = ids, lost
                self._lost_by = known if active == ids else None
        except (Py4JError, OSError) as error:
            raise _ended(error) from error
        return [one for one in known[1] if one[0] not in self._dismissed]

    def _summaries(self) -> tuple[frozenset[str], list[tuple[str, str]]]:
        """The ids of executors that are there, and those that were lost, with the reasons."""
        summaries = self._backend().statusStore().executorList(False)
        active: set[str] = set()
        lost: list[tuple[str, str]] = []
        for index in range(summaries.size()):
            summary = summaries.apply(index)
            name = str(summary.id())
            if summary.isActive():
                active.add(name)
                continue
            reason = summary.removeReason()
            text = str(reason.get()) if reason.isDefined() else "no reason given"
            lost.append((name, " ".join(text.split())))
        return frozenset(active) - {"driver"}, sorted(lost, key=lambda one: (len(one[0]), one[0]))

    def _request(self, count: int) -> None:
        jvm: Any = self._context._jvm
        nothing = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(jvm.java.util.HashMap())
        try:
            self._backend().requestTotalExecutors(count, 0, nothing)
        except (Py4JError, OSError) as error:
            raise _ended(error) from error

    def _backend(self) -> Any:
        return self._context._jsc.sc()


def _java_list(jvm: Any, items: Iterable[str]) -> Any:
    made = jvm.java.util.ArrayList()
    for item in items:
        made.add(item)
    return made


def _ended(error: Exception) -> SparkEnded:
    return SparkEnded(
        f"spark cannot be asked for its executors, it has ended by itself: "
        f"error={str(error).splitlines()[0] if str(error) else type(error).__name__}"
    )
