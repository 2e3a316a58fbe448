"""Where each subtask runs: on the executor whose disk holds its state.

Decides which executor owns which subtask (`assign`, a pure function) and makes Spark's scheduler
prefer that executor. Placement is about speed, never about correctness: a task that Spark starts
elsewhere reaches its state over the network, so every failure here ends in a warning.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import Any, Protocol

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import DataFrame

from moorage.engine.columns import TARGET_COLUMN
from moorage_state.errors import Bug

_log = logging.getLogger(__name__)

_EXCLUDING = "spark.excludeOnFailure."
"""Settings by which Spark takes executors out of use for a while."""

_HOST = re.compile(r"(\[[^\]]+\]|[^:\[\]]+):[0-9]+\Z")
"""The host in an address that has a port."""


@dataclass(frozen=True, slots=True)
class LiveExecutor:
    """A live executor as the driver knows it.

    Attributes:
        id: Spark's executor id; never used again after the executor is lost.
        host: the host name or address under which the executor registered.
        cores: task slots, at least 1.
    """

    id: str
    host: str
    cores: int = 1


class Placement(Protocol):
    """Brings every row to its subtask and every subtask to its executor."""

    def look(self) -> None:
        """Find out which executors there are; called once before the operators of an epoch."""

    def place(self, df: DataFrame, parallelism: int) -> DataFrame:
        """Return the rows of `df` in exactly `parallelism` partitions, one for each subtask.

        Lazy, with the schema of `df`: partition i holds the rows with `_m_target` == i (an int
        column, never null) in no particular order, and exists even when it holds none.

        Raises:
            Bug: Spark planned another number of partitions than asked for.
        """


def required_conf(locality_wait: str = "10s") -> dict[str, str]:
    """Return the Spark configuration that placement needs before the context starts.

    Args:
        locality_wait: how long a subtask waits for its busy or lost executor before Spark runs
            it anywhere, as a Spark duration.
    """
    return {
        # An adaptive plan would run the shuffle while the epoch is still being planned.
        "spark.sql.adaptive.enabled": "false",
        # Else the executors with the most shuffle data outvote the one that owns the subtask.
        "spark.shuffle.reduceLocality.enabled": "false",
        # Too short moves subtasks away from their state in any epoch of uneven load; too long
        # delays the one epoch in which an executor dies.
        "spark.locality.wait": locality_wait,
        # Another executor of the same host is no nearer to the state: never wait for it.
        "spark.locality.wait.node": "0s",
        "spark.locality.wait.rack": "0s",
        # A hung executor is given up after 40 s; by default an epoch would wait for up to 180.
        "spark.executor.heartbeatInterval": "5s",
        "spark.storage.blockManagerHeartbeatTimeoutMs": "30s",
        "spark.network.timeoutInterval": "10s",
        "spark.shuffle.io.connectionTimeout": "30s",
        # A dead executor's shuffle files are asked for again every second, not every five.
        "spark.shuffle.io.retryWait": "1s",
    }


def assign(
    previous: Mapping[int, str], live: Sequence[LiveExecutor], parallelism: int
) -> dict[int, str]:
    """Share subtasks among executors by their cores, moving as few as possible.

    Pure and deterministic: the order of `live` does not matter. When an executor leaves a balanced
    assignment only its subtasks move; when one joins, subtasks move only to it.

    Args:
        previous: subtask -> executor id of the assignment before; what is gone is ignored.
        live: executors to use, ids unique; none: the result is empty.
    """
    if not live:
        return {}
    held: dict[str, list[int]] = {executor.id: [] for executor in live}
    for subtask in range(parallelism):
        if (owner := previous.get(subtask)) in held:
            held[owner].append(subtask)
    quota = _quotas(live, {owner: len(tasks) for owner, tasks in held.items()}, parallelism)
    result = {task: owner for owner, tasks in held.items() for task in tasks[: quota[owner]]}
    # Those with the most open slots first, and of these the oldest.
    turns = [(len(tasks) - quota[owner], _age(owner), owner) for owner, tasks in held.items()]
    heapify(turns)
    for subtask in range(parallelism):
        if subtask not in result:
            filled, age, owner = turns[0]
            heapreplace(turns, (filled + 1, age, owner))
            result[subtask] = owner
    return dict(sorted(result.items()))


def _quotas(
    live: Sequence[LiveExecutor], held: Mapping[str, int], parallelism: int
) -> dict[str, int]:
    """Subtasks for each executor, by highest averages (D'Hondt)."""
    quota = {executor.id: 0 for executor in live}

    def turn(executor: LiveExecutor) -> tuple[float, bool, tuple[int, str]]:
        count = quota[executor.id]
        # Unlike rounding to the largest remainder, this never takes a subtask from an executor
        # because another one left. Ties go to the executor that already holds the subtask.
        average = max(executor.cores, 1) / (count + 1)
        return -average, held[executor.id] <= count, _age(executor.id)

    turns = [(*turn(executor), index) for index, executor in enumerate(live)]
    heapify(turns)
    for _ in range(parallelism):
        index = turns[0][-1]
        quota[live[index].id] += 1
        # Whose turn comes when depends on nothing but its own quota.
        heapreplace(turns, (*turn(live[index]), index))
    return quota


def _age(executor_id: str) -> tuple[int, str]:
    """A key that sorts the oldest executor first: Spark counts ids up from 0."""
    return (int(executor_id), "") if executor_id.isdigit() else (-1, executor_id)


class ExecutorWatch:
    """The executors that can take tasks, read anew where there are others than before.

    For any thread. Asking Spark about one executor takes several calls into the JVM, and who they
    are two. One whose connection has ended is no executor any more: it ends by itself, and Spark
    gives it no task; but it is listed until somebody says why it went, seconds later on Kubernetes.
    """

    def __init__(self, context: SparkContext) -> None:
        self._scala: Any = context._jsc.sc()
        self._local = bool(self._scala.isLocal())
        # Of an executor that is excluded and then is not, the ids tell nothing.
        self._changes_unseen = any(
            name.startswith(_EXCLUDING) and value == "true"
            for name, value in context.getConf().getAll()
        )
        self._known: tuple[frozenset[str], list[LiveExecutor]] | None = None
        self._ended: Any = None if self._local else _ended_ones(self._scala)

    def ids(self) -> frozenset[str]:
        """Of all that are connected; none in local mode."""
        if self._local:
            return frozenset()
        found = frozenset(filter(None, str(self._scala.getExecutorIds().mkString(",")).split(",")))
        return found - self.disconnected()

    def live(self) -> list[LiveExecutor]:
        """Those that can take tasks now, sorted by id; none in local mode."""
        ids, known = self.ids(), self._known
        if known is not None and known[0] == ids:
            return known[1]
        found = self._listed(ids)
        # Until all that registered are listed, and none besides, the list may change as it is.
        listed = {executor.id for executor in found} == ids
        self._known = (ids, found) if listed and not self._changes_unseen else None
        return found

    def disconnected(self) -> frozenset[str]:
        """Of those that are gone and of which Spark has not heard yet why."""
        if self._ended is None or self._ended.isEmpty():
            return frozenset()
        try:
            return frozenset(str(self._ended.mkString(",")).split(","))
        except Py4JJavaError:  # it was changed meanwhile; the next look sees it
            return frozenset()

    def _listed(self, ids: frozenset[str]) -> list[LiveExecutor]:
        if not ids:
            return []
        summaries = self._scala.statusStore().executorList(True)
        found = []
        for index in range(summaries.size()):
            summary = summaries.apply(index)
            # Excluded are those that failed too often. One that has just registered may be missing
            # for some milliseconds; then it is listed, and its cores and its port each come with an
            # event of their own: until then the address is its host alone.
            cores, address = int(summary.totalCores()), str(summary.hostPort() or "")
            host = _HOST.match(address)
            if not cores or host is None or str(summary.id()) not in ids:
                continue
            if not summary.isExcluded():
                found.append(LiveExecutor(str(summary.id()), host[1], cores))
        return sorted(found, key=lambda executor: _age(executor.id))


def _ended_ones(scala_context: Any) -> Any:
    """The set of executors without a connection that Spark keeps; None where it keeps none."""
    try:
        return scala_context.schedulerBackend().executorsPendingLossReason()
    except Py4JError as error:
        _log.warning("executors.connections-unknown: %s", str(error)[:256])
        return None


class LocalPlacement:
    """For local mode, where all state is on one disk: rows go to their subtask, no more."""

    def look(self) -> None:
        """See `Placement.look`."""

    def place(self, df: DataFrame, parallelism: int) -> DataFrame:
        """See `Placement.place`."""
        return _as_dataframe(_routed(df, parallelism), df)


class AnchoredPlacement:
    """For clusters: a partition-wise union with an empty RDD that names the executors.

    Subtask i of different operators shares an executor: who serves the ranges says which, by `pin`.
    Not thread-safe: used by the epoch's thread.
    """

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._watch = ExecutorWatch(context)
        self._live: list[LiveExecutor] = []
        self._anchors: dict[int, _Anchor] = {}
        self._pinned: dict[int, str] = {}
        self._usable = self._probe()

    def look(self) -> None:
        """See `Placement.look`."""
        self._live = self._watch.live()

    def place(self, df: DataFrame, parallelism: int) -> DataFrame:
        """See `Placement.place`."""
        rows, anchor = _routed(df, parallelism), self._anchor(parallelism)
        if anchor.rdd is not None:
            # The union inherits the preferred locations of the anchor, with no work for each row.
            rows = self._union(anchor.rdd, rows, parallelism)
        return _as_dataframe(rows, df)

    def pin(self, owners: Mapping[int, str]) -> None:
        """From now on subtasks belong where `owners` says, whoever comes or goes.

        A subtask whose executor is gone, or that has none, runs anywhere.
        """
        self._pinned = dict(owners)
        self._anchors.clear()

    def _anchor(self, parallelism: int) -> "_Anchor":
        live = self._live
        known = self._anchors.get(parallelism)
        if known is not None and known.live == live:
            return known
        hosts = {executor.id: executor.host for executor in live}
        locations = [_location(hosts, self._pinned.get(task, "")) for task in range(parallelism)]
        useful = self._usable and len(live) > 1
        anchor = _Anchor(live, self._empty_rdd(locations) if useful else None)
        self._anchors[parallelism] = anchor
        return anchor

    def _empty_rdd(self, locations: Sequence[str | None]) -> Any:
        """What `SparkContext.makeRDD` with preferences builds, less the rows."""
        jvm: Any = self._context._jvm
        by_partition = jvm.java.util.HashMap()
        # One for each executor: it takes some calls to make.
        seqs = {place: self._scala_seq([place] if place else []) for place in {*locations}}
        for index, location in enumerate(locations):
            by_partition.put(index, seqs[location])
        return jvm.org.apache.spark.rdd.ParallelCollectionRDD(
            self._context._jsc.sc(),
            self._scala_seq([]),
            len(locations),
            jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(by_partition),
            self._row_tag(),
        )

    def _union(self, anchor: Any, rows: Any, parallelism: int) -> Any:
        jvm: Any = self._context._jvm
        return jvm.org.apache.spark.rdd.SQLPartitioningAwareUnionRDD(
            self._context._jsc.sc(),
            self._scala_seq([anchor, rows]),
            parallelism,
            self._row_tag(),
        )

    def _row_tag(self) -> Any:
        jvm: Any = self._context._jvm
        row = jvm.java.lang.Class.forName("org.apache.spark.sql.catalyst.InternalRow")
        return jvm.scala.reflect.ClassTag.apply(row)

    def _scala_seq(self, items: Sequence[Any]) -> Any:
        jvm: Any = self._context._jvm
        java_list = jvm.java.util.ArrayList()
        for item in items:
            java_list.add(item)
        return jvm.org.apache.spark.api.python.PythonUtils.toSeq(java_list)

    def _probe(self) -> bool:
        """Whether this Spark keeps an anchor's preference: asked once, runs no job."""
        wanted = "executor_moorage-probe_0"
        try:
            anchor = self._empty_rdd([_location({"0": "moorage-probe"}, "0")])
            union = self._union(anchor, self._empty_rdd([None]), 1)
            found = str(union.preferredLocations(union.partitions()[0]).mkString(","))
        except (Py4JError, TypeError) as error:
            found = f"{type(error).__name__}: {str(error)[:256]}"
        if found == wanted:
            return True
        _log.warning(
            "placement.unavailable: spark chooses where subtasks run, state is read over the"
            " network: spark=%s wanted=%s found=%s",
            self._context.version,
            wanted,
            found,
        )
        return False


def _routed(df: DataFrame, parallelism: int) -> Any:
    """The rows of `df` as an RDD with one partition for each subtask."""
    # As an RDD no rule of the SQL optimizer can take it apart: it would plan rows that it knows to
    # be none without any partition, and no subtask would run.
    shuffled = df.repartitionById(parallelism, TARGET_COLUMN)
    rows: Any = shuffled._jdf.queryExecution().toRdd()
    if (planned := int(rows.getNumPartitions())) != parallelism:
        raise Bug(f"rows not partitioned as asked: planned={planned} parallelism={parallelism}")
    return rows


def _as_dataframe(rows: Any, like: DataFrame) -> DataFrame:
    session = like.sparkSession
    create = session._jsparkSession.internalCreateDataFrame
    return DataFrame(create(rows, like._jdf.schema(), False), session)


@dataclass(frozen=True, slots=True)
class _Anchor:
    """The executors that there were, and the RDD that names those of the subtasks, or None."""

    live: list[LiveExecutor]
    rdd: Any


def _location(hosts: Mapping[str, str], executor_id: str) -> str | None:
    """The task location of an executor, in a form that survives a union; None: Spark chooses."""
    host = hosts.get(executor_id)
    # The union asks each parent's location for its host part only, which would drop the executor.
    # Behind this prefix Spark takes all of the rest for the host, and reads it as the location of
    # an executor later. It splits at the first underscore, so no host may have one.
    if host is None or "_" in host:
        return None
    return f"hdfs_cache_executor_{host}_{executor_id}"
