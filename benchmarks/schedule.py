"""The order of runs, and each run in a process of its own.

Rounds of all engines, shape by shape, so that what disturbs the machine for a while disturbs all
of them. Knows nothing of what an engine does; imports no Spark.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.inputs import generate
from benchmarks.machine import load
from benchmarks.params import ENGINES, SHAPES, EngineName, Parameters, ShapeName
from benchmarks.request import EngineRun, Request

__all__ = ["Planned", "measure", "plan"]

_ROOT = Path(__file__).parents[1]
_RUN_TIMEOUT = 400.0
_GRACE_SECONDS = 60.0
_STOP_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Planned:
    """A run that is to come."""

    repeat: int
    shape: ShapeName
    engine: EngineName


def plan(
    params: Parameters, shapes: Sequence[ShapeName], engines: Sequence[EngineName]
) -> list[Planned]:
    """All runs in order: round by round, in each shape by shape, in each engine by engine."""
    return [
        Planned(repeat, shape, engine)
        for repeat in range(params.repeats)
        for shape in shapes
        for engine in engines
        if ENGINES[engine].repeats is None or repeat < (ENGINES[engine].repeats or 0)
    ]


def measure(
    params: Parameters,
    planned: Sequence[Planned],
    work: Path,
    tell: Callable[[str], None],
) -> Iterator[EngineRun]:
    """Run what is planned, in order, and yield what came of each.

    A run is left out for which no time is left: judged, where there was one, by the run of the same
    engine and shape before it. None goes on for longer than a minute after the budget's end.
    """
    began = time.monotonic()
    took: dict[tuple[ShapeName, EngineName], float] = {}
    for shape in dict.fromkeys(p.shape for p in planned):
        tell(f"writing the input: {SHAPES[shape].title}")
        generate(work / "input" / shape, params, SHAPES[shape])
    for one in planned:
        key = one.shape, one.engine
        left = params.budget_seconds - (time.monotonic() - began)
        if took.get(key, 0.0) >= left:
            tell(f"no time left: {ENGINES[one.engine].title}, {SHAPES[one.shape].title}")
            continue
        run = _run(params, one, work, min(_RUN_TIMEOUT, left + _GRACE_SECONDS))
        took[key] = run.seconds
        yield run


def _run(params: Parameters, one: Planned, work: Path, timeout: float) -> EngineRun:
    name = f"{one.engine}-{one.shape}-{one.repeat}"
    home = work / name
    home.mkdir(parents=True)
    request = Request(
        engine=one.engine,
        shape=one.shape,
        repeat=one.repeat,
        source=work / "input" / one.shape,
        work=home,
        params=params,
    )
    request_path, result_path = work / f"{name}.request.json", work / f"{name}.result.json"
    request.write(request_path)
    before, began = load(), time.monotonic()
    error = _process(request_path, result_path, work / f"{name}.log", timeout)
    took = time.monotonic() - began
    shutil.rmtree(home, ignore_errors=True)
    if error:
        run = EngineRun(one.engine, one.shape, one.repeat, error=error)
    else:
        run = EngineRun.from_json(json.loads(result_path.read_text()))
    return replace(run, seconds=took, load=before)


def _process(request: Path, result: Path, log: Path, timeout: float) -> str:
    """Run an engine's process to its end; returns why it failed, or nothing."""
    command = [sys.executable, "-m", "benchmarks.engines", str(request), str(result)]
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=_ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            _end(process)
            return f"not done after {timeout:.0f} s"
        except BaseException:
            _end(process)
            raise
    if status == 0:
        return ""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return f"{lines[-1] if lines else 'no message'} (exit status {status}, log {log})"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and its group; Spark's JVM and the state servers end with their parent."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
            return
