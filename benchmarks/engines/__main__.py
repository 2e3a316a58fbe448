"""Runs one engine once and writes what came of it. The parent process is `benchmarks.schedule`."""

import json
import os
import sys
from pathlib import Path

from benchmarks.engines.outcome import Outcome
from benchmarks.inputs import first_files
from benchmarks.oracle import check_final, check_running, expected
from benchmarks.params import BASE, BY_COLUMN, WITH_CHANGELOG
from benchmarks.request import EngineRun, Request


def main(request_path: str, result_path: str) -> None:
    """Run what the request asks for; an exception is a run without a figure."""
    request = Request.read(Path(request_path))
    _pin(request.params.parallelism)
    outcome = _run(request)
    rows, keys = _check(request, outcome)
    run = EngineRun(
        engine=request.engine,
        shape=request.shape,
        repeat=request.repeat,
        steady=tuple(outcome.steady),
        cpu_seconds=outcome.cpu_seconds,
        batches=outcome.batches,
        checked_rows=rows,
        checked_keys=keys,
        checkpoints=outcome.checkpoints,
        versions=outcome.versions,
    )
    Path(result_path).write_text(json.dumps(run.to_json()))


def _pin(processors: int) -> None:
    """As many processors for everything the engine starts as it has task slots.

    Without it an engine with helpers beside Spark would have more than one without.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:processors])


def _run(request: Request) -> Outcome:
    if request.engine in {BASE, BY_COLUMN, WITH_CHANGELOG}:
        from benchmarks.engines import moorage_job

        return moorage_job.run(request)
    from benchmarks.engines import spark_peers

    return spark_peers.run(request)


def _check(request: Request, outcome: Outcome) -> tuple[int, int]:
    """Compare the answer on all committed batches; returns their rows and keys."""
    rows = first_files(request.source, outcome.batches)
    if outcome.rows is not None and outcome.rows != rows.num_rows:
        raise ValueError(
            f"batches are not files: batches={outcome.batches} rows={outcome.rows} "
            f"in_files={rows.num_rows}"
        )
    right = expected(rows.to_pandas())
    check = check_running if outcome.is_running else check_final
    check(right, outcome.answer)
    return rows.num_rows, len(right)


if __name__ == "__main__":
    main(*sys.argv[1:])
