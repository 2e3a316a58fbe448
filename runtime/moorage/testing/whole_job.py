"""`run_job`: a whole job file in this process, over rows that a test gives."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

from pyspark.sql import SparkSession

from moorage.api.declarations import misfit_of
from moorage.api.misplaced import calls_explained
from moorage.api.streams import StreamEnvironment
from moorage.engine.rows import TupleReader
from moorage.testing.environment import TestEnvironment, columns_explained
from moorage.testing.in_process import LAST_MS, Collector, InProcessJob, Snapshot, require_whole
from moorage_state.errors import UserError

Rows = Mapping[str, Sequence[Any]]
_TIME_ZONE = "spark.sql.session.timeZone"


def run_job(
    build: Callable[[StreamEnvironment], object],
    inputs: Rows | Sequence[Rows],
    *,
    args: Sequence[str] = (),
    parallelism: int | Sequence[int] = 2,
    now_ms: int = 0,
    spark: SparkSession | None = None,
) -> dict[str, list[Any]]:
    """What a job sends to its sinks, from empty state to the end of its input.

    Sinks are not opened: their rows are what is given back. Event time goes as in a job, by the
    rows; when they are used up every event-time timer fires.

    Args:
        build: the job file's.
        inputs: by uid of an input its rows, tuples or dicts; or several of these, an epoch each.
        args: `env.args`.
        parallelism: how many subtasks; or a list with a number for each epoch: where it is another
            one than before, a new job goes on from a snapshot of the one before.
        now_ms: processing time, which stands still.
        spark: a session, for jobs that use Spark itself (`transform`, `env.spark`). Each epoch's
            rows pass `transform` together, as a static DataFrame of it; all else runs in this
            process. Meanwhile its time zone is UTC, as in jobs.

    Returns:
        By uid of a sink its rows as named tuples, in the order of epochs and subtasks.

    Raises:
        UserError: `build` is none, or calls something with arguments that it does not take; the job
            has no sink, or uses Spark itself and there is no session; or a row does not fit its
            input.
        Exception: what code of the job raised, with a note that names the key.
    """
    _require_build(build)
    if not isinstance(args, (list, tuple)) or not all(isinstance(one, str) for one in args):
        raise UserError(f"args is a list of texts, as env.args is: args={args!r:.100}; give a list")
    require_whole("now_ms", now_ms, 0, LAST_MS)
    epochs: Any = [inputs] if isinstance(inputs, Mapping) else inputs
    if not isinstance(epochs, (list, tuple)) or not all(isinstance(e, Mapping) for e in epochs):
        raise UserError(
            f"inputs is rows by uid of their input, or a list of such, an epoch each: "
            f"inputs={inputs!r:.100}; give {{uid: [row, ...]}}"
        )
    # When the input is used up there is one more epoch, without rows.
    steps = zip(_numbers(parallelism, len(epochs)), (*epochs, None), strict=True)
    with _as_in_jobs(spark):
        return _run(build, steps, tuple(args), lambda: now_ms, spark)


def _run(
    build: Callable[[StreamEnvironment], object],
    steps: Iterable[tuple[int, Rows | None]],
    args: tuple[str, ...],
    clock: Callable[[], int],
    spark: SparkSession | None,
) -> dict[str, list[Any]]:
    """Epochs with their number of subtasks; None is the end of the input."""
    found: dict[str, list[Any]] = {}
    kept: Snapshot | None = None
    for number, some in groupby(steps, key=itemgetter(0)):
        env = TestEnvironment(args, spark)
        with calls_explained(), columns_explained():
            build(env)
        outputs = _collected(env)
        job = InProcessJob(env.graph, clock=clock, parallelism=number, restore=kept, spark=spark)
        with job:
            for _, rows in some:
                if rows is None:
                    job.runner.watermarks = job.runner.watermarks.drain()
                job.epoch(rows or {})
                for uid, (collector, reader) in outputs.items():
                    found.setdefault(uid, []).extend(chain(*map(reader.rows, collector.take())))
            # The last one goes to the end of the input.
            kept = None if rows is None else job.snapshot()
    return found


@contextmanager
def _as_in_jobs(spark: Any) -> Iterator[None]:
    """Have the session read and write times as that of a job does."""
    if spark is None:
        yield
        return
    if not isinstance(spark, SparkSession):
        raise UserError(
            f"spark is a session of Spark: spark={spark!r:.100}; give the one of the fixture "
            f"moorage_spark, or SparkSession.builder.master('local[1]').getOrCreate()"
        )
    before = spark.conf.get(_TIME_ZONE)
    spark.conf.set(_TIME_ZONE, "UTC")
    try:
        yield
    finally:
        spark.conf.set(_TIME_ZONE, before or "UTC")


def _require_build(build: Any) -> None:
    """Refuse what is no build of a job file, or cannot be called as one."""
    fix = "give the function of the job file, def build(env)"
    if not callable(build) or isinstance(build, type):
        raise UserError(f"run_job takes a job's build: got={build!r:.100}; {fix}")
    why = misfit_of(build, ["env"])
    if inspect.isgeneratorfunction(build):
        why = "it yields, and so does nothing when it is called"
    if why:
        raise UserError(f"build is called with env alone: build={build!r:.100}: {why}; {fix}")


def _numbers(parallelism: Any, epochs: int) -> list[Any]:
    """The parallelism of each epoch, and of the one at the end."""
    if not isinstance(parallelism, (list, tuple)):
        return [parallelism] * (epochs + 1)
    if len(parallelism) != epochs or not epochs:
        raise UserError(
            f"a list of parallelism has a number for each epoch: epochs={epochs} "
            f"parallelism={parallelism!r:.100}; give as many, or one number for all"
        )
    return [*parallelism, parallelism[-1]]


def _collected(env: TestEnvironment) -> dict[str, tuple[Collector, TupleReader]]:
    """Have the job's sinks keep their rows; by uid what keeps them, and what reads them."""
    found = {}
    for node in env.graph.sinks:
        collector = Collector()
        sink: Any = collector
        node.sink = sink
        found[node.uid] = collector, TupleReader(node.upstream.schema.names)
    if not found:
        raise UserError("a job without sinks shows nothing: end a stream with sink_to")
    return found
