"""`run_job`: a whole job file in this process, over rows that a test gives."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from moorage.api.streams import StreamEnvironment
from moorage.engine.rows import TupleReader
from moorage.testing.environment import TestEnvironment
from moorage.testing.in_process import LAST_MS, Collector, InProcessJob, require_whole
from moorage_state.errors import UserError

Rows = Mapping[str, Sequence[Any]]


def run_job(
    build: Callable[[StreamEnvironment], object],
    inputs: Rows | Sequence[Rows],
    *,
    args: Sequence[str] = (),
    parallelism: int = 2,
    now_ms: int = 0,
) -> dict[str, list[Any]]:
    """What a job sends to its sinks, from empty state to the end of its input.

    Sinks are not opened: their rows are what is given back. Event time goes as in a job, by the
    rows; when they are used up every event-time timer fires.

    Args:
        build: the job file's.
        inputs: by uid of an input its rows, tuples or dicts; or several of these, an epoch each.
        args: `env.args`.
        now_ms: processing time, which stands still.

    Returns:
        By uid of a sink its rows as named tuples, in the order of epochs and subtasks.

    Raises:
        UserError: the job has no sink, or uses Spark itself (`transform`, `env.spark`); or a row
            does not fit its input.
        Exception: what code of the job raised, with a note that names the key.
    """
    if isinstance(args, str):
        raise UserError(f"args is a list of texts, as env.args is: args={args!r:.100}; give a list")
    require_whole("now_ms", now_ms, 0, LAST_MS)
    epochs: Any = [inputs] if isinstance(inputs, Mapping) else inputs
    if not isinstance(epochs, (list, tuple)) or not all(isinstance(e, Mapping) for e in epochs):
        raise UserError(
            f"inputs is rows by uid of their input, or a list of such, an epoch each: "
            f"inputs={inputs!r:.100}; give {{uid: [row, ...]}}"
        )
    env = TestEnvironment(tuple(args))
    build(env)
    collectors: dict[str, Collector] = {}
    for node in env.graph.sinks:
        collectors[node.uid] = collector = Collector()
        sink: Any = collector
        node.sink = sink
    if not collectors:
        raise UserError("a job without sinks shows nothing: end a stream with sink_to")
    readers = {node.uid: TupleReader(node.upstream.schema.names) for node in env.graph.sinks}
    found: dict[str, list[Any]] = {uid: [] for uid in collectors}
    job = InProcessJob(env.graph, clock=lambda: now_ms, parallelism=parallelism)
    with job:
        for rows in (*epochs, None):
            if rows is None:
                job.runner.watermarks = job.runner.watermarks.drain()
            job.epoch(rows or {})
            for uid, collector in collectors.items():
                found[uid] += chain.from_iterable(map(readers[uid].rows, collector.take()))
    return found
