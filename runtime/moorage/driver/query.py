"""The stream's query: its start and end, how far it has come, and whether it gets on.

Decides what it means when Spark does not answer. Of bounded input it tells how many files were
taken up, by Spark's file source log in the run's own checkpoint location. Within an epoch a sign
of life is that one of Spark's tasks ended or a stage began; between epochs, that Spark waits for
its next trigger because there is nothing to do. What cannot be seen is no sign. Called by the run.
"""

import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from moorage.api.graph import InputNode, JobGraph
from moorage.driver.settings import JobSettings
from moorage.engine.plan import tagged_union
from moorage.engine.task_failures import ask_spark

_log = logging.getLogger(__name__)

_EVERY_SECONDS = 5.0
_MEANWHILE_SECONDS = 0.1

_QUERIES = "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution"

_GLOB_PARTS = re.compile(r"\\(.)|(.)", re.DOTALL)
"""What a backslash has taken as it is; or another character."""

_T = TypeVar("_T")


class Halted(Exception):
    """A micro-batch came after the run was told to end; Spark must not count it as done."""


class BatchCallback:
    """What Spark calls with a batch.

    Its process holds it for long after its query has ended: not the run as well.
    """

    def __init__(self, to: Callable[[DataFrame, int], None]) -> None:
        self._to: Callable[[DataFrame, int], None] | None = to

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Pass it on. Raises Halted, which ends the query."""
        if self._to is None:
            raise Halted
        try:
            self._to(frame, batch_id)
        except Halted:
            _tell_end(frame.sparkSession, told=False)
            raise

    def let_go(self) -> None:
        """The query has ended."""
        self._to = None


def _tell_end(spark: SparkSession, *, told: bool) -> None:
    """Whether Spark logs the error with which a query ends, and the stack it came from.

    It takes an end that was asked for as a failure of what it calls with a batch. Where that did
    fail, the run has told why.
    """
    jvm: Any = spark.sparkContext._jvm
    log4j = jvm.org.apache.logging.log4j
    with suppress(Py4JError, TypeError):  # a log of another kind
        level = log4j.Level.WARN if told else log4j.Level.OFF
        log4j.core.config.Configurator.setLevel(_QUERIES, level)


def _is_news(record: logging.LogRecord) -> bool:
    """Of what py4j tells of calls that failed: not an end that was asked for."""
    return record.exc_info is None or not isinstance(record.exc_info[1], Halted)


def start_query(
    graph: JobGraph,
    settings: JobSettings,
    name: str,
    folder: Path,
    on_batch: Callable[[DataFrame, int], None],
) -> StreamingQuery:
    """Start Spark's query over all inputs of the job; its micro-batches go to `on_batch`.

    Args:
        folder: where Spark keeps its own log of the query.
    """
    frame = tagged_union(graph)
    _tell_end(frame.sparkSession, told=True)
    logging.getLogger("py4j.clientserver").addFilter(_is_news)
    writer = frame.writeStream.foreachBatch(on_batch)
    writer = writer.option("checkpointLocation", str(folder))
    if settings.in_one_epoch:
        # Spark calls it outdated because it minds no limit of a source, which is the point.
        writer = writer.trigger(once=True)
    elif settings.bounded:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{int(settings.epoch_seconds * 1000)} milliseconds")
    return writer.queryName(name).start()


def is_active(query: StreamingQuery) -> bool:
    """Whether it runs. Raises SparkEnded where there is nobody to ask."""
    return ask_spark(lambda: query.isActive)


def error_of(query: StreamingQuery) -> Exception | None:
    """Why it ended; None if it runs, or was told to end. Raises as `is_active`."""
    return ask_spark(query.exception)


def end(query: StreamingQuery) -> None:
    """Tell it to end; an error is only logged, since something else ended the run already."""
    try:
        if query.isActive:
            query.stop()
    except Exception as error:  # noqa: BLE001 - it must not hide why the run ends
        _log.warning("query_not_stopped: %s: %s", type(error).__name__, error)


class FileBound:
    """Counts files of inputs that read directories.

    Args:
        spark_dir: the checkpoint location of the run's query.
    """

    def __init__(self, graph: JobGraph, spark_dir: Path) -> None:
        self._logs = [
            FilesTaken(spark_dir, i)
            for i, node in enumerate(graph.inputs)
            if node.files is not None
        ]
        counts = [_count_files(node) for node in graph.inputs if node.files is not None]
        # Of an input that cannot be counted the log has files, too: they would count for others.
        self._total = 0 if None in counts else sum(filter(None, counts))

    def read(self) -> tuple[int, int] | None:
        """(files taken up, files there are); None where that is not known of each input."""
        if not self._logs or not self._total:
            return None
        return min(sum(log.count() for log in self._logs), self._total), self._total


class FilesTaken:
    """How many files an input that reads a directory has taken up, ever.

    Args:
        spark_dir: as above.
        index: of the input in the query.
    """

    def __init__(self, spark_dir: Path, index: int) -> None:
        self._log = spark_dir / "sources" / str(index)
        self._done: dict[Path, int] = {}

    def count(self) -> int:
        """Entries in the source log: a compact file holds all before it."""
        try:
            names = [path.name for path in self._log.iterdir()]
        except OSError:
            return 0
        compact = [int(n.removesuffix(".compact")) for n in names if n.endswith(".compact")]
        base = max(compact, default=-1)
        counted = [self._log / f"{base}.compact"] if compact else []
        counted += [self._log / n for n in names if n.isdigit() and int(n) > base]
        for path in counted:
            if path not in self._done:
                self._done[path] = _entries(path)
        return sum(self._done[path] for path in counted)


def _count_files(node: InputNode) -> int | None:
    """Files that Spark's source lists there; None where nobody counts them.

    In folders within it does so where these are partitions, or where it is told to.
    """
    root = (node.files or "").removeprefix("file://")
    if "://" in root or not Path(root).is_dir():
        return None
    try:
        wanted = _name_pattern(node.name_filter if node.name_filter is not None else "*")
    except re.error:
        return None  # Spark says what is wrong with it
    found = 0
    for _, folders, names in os.walk(root):
        folders[:] = [
            name for name in folders if not _passed_over(name) and (node.nested or "=" in name)
        ]
        found += sum(
            wanted.fullmatch(name) is not None and not _passed_over(name) for name in names
        )
    return found


def _name_pattern(glob: str) -> re.Pattern[str]:
    """The names that a pattern of Hadoop means: `GlobPattern`, which has alternatives in braces."""
    made, inner, braces = "", False, 0
    for escaped, char in _GLOB_PARTS.findall(glob):
        if escaped:
            made += re.escape(escaped)
        elif inner:
            made += "^" if char in "!^" and made[-1] == "[" else char
            inner = char != "]"
        elif char == "[":
            made, inner = made + char, True
        elif char == "{":
            made, braces = made + "(?:", braces + 1
        elif char == "}" and braces:
            made, braces = made + ")", braces - 1
        elif char == "," and braces:
            made += "|"
        else:
            made += {"*": ".*", "?": "."}.get(char) or re.escape(char)
    return re.compile(made, re.DOTALL)


def _passed_over(name: str) -> bool:
    """Whether Spark takes it for no data: `HadoopFSUtils.shouldFilterOutPathName`."""
    if name.startswith(("_metadata", "_common_metadata")):
        return False
    hidden = name.startswith(".") or (name.startswith("_") and "=" not in name)
    return hidden or name.endswith("._COPYING_")


def _entries(path: Path) -> int:
    """Lines after the version line."""
    try:
        return max(0, len(path.read_text().splitlines()) - 1)
    except OSError:
        return 0


def lag_of(sources: Iterable[tuple[Any, Any]]) -> int | None:
    """How many rows sources have and no epoch has taken, by the end and the latest offsets of each.

    Only offsets as Kafka's sources have them, by topic and partition, count rows; None if no source
    has such.
    """
    known = [(_by_partition(end), _by_partition(latest)) for end, latest in sources]
    counted = [pair for pair in known if all(pair)]
    if not counted:
        return None
    return sum(
        max(offset - taken.get(place, 0), 0)
        for taken, there in counted
        for place, offset in there.items()
    )


def _by_partition(offsets: Any) -> dict[tuple[str, str], int]:
    """Spark gives what can be read as JSON as what it is, and else as text."""
    if isinstance(offsets, str):
        try:
            offsets = json.loads(offsets)
        except ValueError:
            return {}
    if not isinstance(offsets, dict):
        return {}
    return {
        (topic, partition): offset
        for topic, each in offsets.items()
        if isinstance(each, dict)
        for partition, offset in each.items()
        if isinstance(offset, int)
    }


class Lock(Protocol):
    """What an epoch holds."""

    def acquire(self, *, timeout: float) -> bool:
        """Whether it was had in time."""

    def release(self) -> None:
        """Give it back."""


class Told(Protocol):
    """Hears of signs; see `moorage.driver.reporter.Reporter.lives`."""

    def __call__(self, *, tasks: int = 0, moved: bool = True) -> None:
        """So many tasks run; whether anything got on since the last time."""


class Liveness:
    """Looks at Spark every few seconds, and tells what has moved.

    Args:
        meanwhile: called several times a second while an epoch is under way, in whichever thread.
        tell_lag: hears every few seconds how many rows wait in the sources; see `lag_of`.
    """

    def __init__(
        self,
        spark: SparkSession,
        tell: Told,
        clock: Callable[[], float] = time.monotonic,
        meanwhile: Callable[[], object] = lambda: None,
        tell_lag: Callable[[int | None], object] = lambda _rows: None,
    ) -> None:
        self._spark = spark
        self._meanwhile = meanwhile
        self._tell_lag = tell_lag
        self._progress = ""
        self._tell = tell
        self._clock = clock
        self._last = clock()
        self._seen: frozenset[tuple[int, ...]] = frozenset()

    @contextmanager
    def watching(self, lock: Lock, query: StreamingQuery) -> Iterator[None]:
        """Hold the lock that an epoch holds; while that is waited for, look into the epoch."""
        self._look_until(lambda: lock.acquire(timeout=_MEANWHILE_SECONDS))
        try:
            self.between(query)
            yield
        finally:
            lock.release()

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Look, from another thread, into an epoch that this one runs."""
        over = threading.Event()
        thread = threading.Thread(
            target=lambda: self._look_until(lambda: over.wait(_MEANWHILE_SECONDS)),
            name="liveness",
            daemon=True,
        )
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _look_until(self, over: Callable[[], bool]) -> None:
        looked = self._clock()
        while not over():
            self._meanwhile()
            if self._clock() - looked >= _EVERY_SECONDS:
                looked = self._clock()
                self.within()

    def within(self) -> None:
        """Look at the tasks of the epoch under way."""
        found = self._look(self._stages)
        if found is not None:
            seen, tasks = found
            moved, self._seen = seen != self._seen, seen
            self._tell(tasks=tasks, moved=moved)

    def between(self, query: StreamingQuery) -> None:
        """Between two epochs, and not too often: whether Spark has nothing to do."""
        now = self._clock()
        if now - self._last < _EVERY_SECONDS:
            return
        self._last = now
        if self._look(lambda: query.status["isTriggerActive"]) is False:
            self._tell()
        self._look(lambda: self._look_at_sources(query))

    def _look_at_sources(self, query: StreamingQuery) -> None:
        """Spark's own word of the last trigger, once for each."""
        last = query.lastProgress
        if last is not None and last.timestamp != self._progress:
            self._progress = last.timestamp
            self._tell_lag(lag_of((one.endOffset, one.latestOffset) for one in last.sources))

    def _stages(self) -> tuple[frozenset[tuple[int, ...]], int]:
        """What changes when a task ends, and how many tasks run."""
        tracker = self._spark.sparkContext.statusTracker()
        known = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        stages = [stage for stage in known if stage is not None]
        done = frozenset(
            (one.stageId, one.currentAttemptId, one.numCompletedTasks) for one in stages
        )
        return done, sum(one.numActiveTasks for one in stages)

    def _look(self, at: Callable[[], _T]) -> _T | None:
        try:
            return at()
        except Exception as error:  # noqa: BLE001  a look must not end the run
            _log.debug("spark was not looked at: %s: %s", type(error).__name__, error)
            return None
