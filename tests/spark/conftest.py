"""Spark for tests: a local session for each of pytest's processes, and clusters of their own."""

import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from moorage_testing.engine import Engine
from moorage_testing.fresh_process import call_in_process, function_at, place_of, short_folder
from moorage_testing.quick_spark import spark_home, start_session
from pyspark import SparkContext
from pyspark.sql import SparkSession

from moorage import StreamEnvironment
from moorage_state.server.group import ServerGroup

ROOT = Path(__file__).parents[2]


# --- a session, and engines on it -----------------------------------------------------------------


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on local[2], configured as the engine wants it."""
    base = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _environment(base).items():
            patch.setenv(name, value)
        patch.delenv("SPARK_HOME", raising=False)
        session = start_session("local[2]", base)
        yield session
        session.stop()
        _stop_jvm()


@pytest.fixture(scope="session")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerGroup]:
    """State servers for all engines, one after the other."""
    with ServerGroup(2, tmp_path_factory.mktemp("state")) as servers:
        yield servers


@pytest.fixture(scope="session")
def fences() -> Iterator[int]:
    """Fences for the engines on `group`."""
    return itertools.count(1)


@pytest.fixture
def start(
    spark: SparkSession, group: ServerGroup, fences: Iterator[int]
) -> Iterator[Callable[..., Engine]]:
    """Starts engines, each from empty state; the last one holds the ranges."""
    engines = []

    def start(build: Callable[[StreamEnvironment], object], **options: Any) -> Engine:
        engines.append(Engine(spark, group, build, fence=next(fences), **options))
        return engines[-1]

    yield start
    for engine in engines:
        engine.fleet.close()


# --- processes of their own -----------------------------------------------------------------------


@pytest.fixture(scope="session")
def fresh_process(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Run `scenario()` in a process of its own, which may start whatever Spark it likes.

    Call it as ``fresh_process(scenario, timeout=240)``. The scenario is a function at the top level
    of a test module, finds an empty folder as its working directory, and returns what JSON can
    carry. Whatever it left running is killed.
    """

    def run(
        scenario: Callable[..., Any],
        *arguments: Any,
        timeout: float = 240,
        environment: dict[str, str] | None = None,
    ) -> Any:
        base = tmp_path_factory.mktemp("process")
        settings = {"SPARK_HOME": str(spark_home(base)), **_environment(base)}
        with short_folder() as short:
            settings |= {"MOORAGE_TEST_VOLUMES": short, **(environment or {})}
            return call_in_process(
                scenario, *arguments, folder=base, timeout=timeout, environment=settings
            )

    return run


@pytest.fixture(scope="session")
def local_cluster(fresh_process: Callable[..., Any]) -> Callable[..., Any]:
    """Run `scenario(spark)` against executors that are processes of their own.

    Call it as ``local_cluster(scenario, executors=3, conf={}, timeout=240)``; see `fresh_process`.
    Executors have one core each.
    """

    def run(
        scenario: Callable[[SparkSession], Any],
        *,
        executors: int = 3,
        conf: dict[str, str] | None = None,
        timeout: float = 240,
    ) -> Any:
        place = place_of(scenario)
        return fresh_process(on_a_cluster, place, executors, conf or {}, timeout=timeout)

    return run


def on_a_cluster(place: str, executors: int, conf: dict[str, str]) -> Any:
    """What the process of `local_cluster` runs: start, wait for all executors, call."""
    session = start_session(f"local-cluster[{executors},1,1024]", Path.cwd(), conf)
    backend: Any = session.sparkContext._jsc.sc()
    deadline = time.monotonic() + 60
    while backend.getExecutorIds().size() < executors:
        if time.monotonic() > deadline:
            sys.exit("executors did not start")
        time.sleep(0.05)
    return function_at(place)(session)


def _environment(base: Path) -> dict[str, str]:
    roots = [ROOT, *(ROOT / name for name in ("backends", "operator", "runtime", "tests/support"))]
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(map(str, roots)),
        "SPARK_LOCAL_DIRS": str(base / "local"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def _stop_jvm() -> None:
    """End the gateway's JVM now, instead of when the interpreter exits."""
    gateway: Any = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout=30)
    SparkContext._gateway = None
    SparkContext._jvm = None
