"""Spark's executors, as the driver sees and orders them.

Decides which executors leave when fewer are wanted. Called by the cluster's state servers, which
live and die with executors, and by whoever asks for another number of them. Knows no state.
"""

import threading
from collections.abc import Iterable
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


class SparkExecutors:
    """See `ExecutorPool`. For any thread.

    Args:
        desired: how many Spark was told to begin with.
    """

    def __init__(self, context: SparkContext, desired: int) -> None:
        self._context = context
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
        except (Py4JError, OSError) as error:
            raise _ended(error) from error
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
