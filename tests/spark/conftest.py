"""Spark for tests: one local session per run, and whole clusters in processes of their own."""

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from moorage.class_archive import sharing_options
from moorage.engine.placement import required_conf

ROOT = Path(__file__).parents[2]
JARS = Path(pyspark.__file__).parent / "jars"
# As Spark's launcher has it, so that the archive of classes fits whatever home a test gives Spark.
CLASS_PATH = os.pathsep.join([*map(str, JARS.glob("slf4j-api-*.jar")), f"{JARS}/*"])
BOOTSTRAP = "import sys; from tests.spark.conftest import run_scenario; run_scenario(sys.argv[1])"


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
def local_cluster(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Run `scenario(spark)` against executors that are processes of their own.

    Call it as ``local_cluster(scenario, executors=3, conf={}, timeout=240)``. The scenario is a
    function at the top level of a test module, runs in a fresh process (a process holds one Spark
    context only), and returns what JSON can carry. Executors have one core each. Whatever the
    scenario left running is killed.
    """

    def run(
        scenario: Callable[[SparkSession], Any],
        *,
        executors: int = 3,
        conf: dict[str, str] | None = None,
        timeout: float = 240,
    ) -> Any:
        base = tmp_path_factory.mktemp("cluster")
        home = spark_home(base)
        request = {
            "module": scenario.__module__,
            "function": scenario.__name__,
            "master": f"local-cluster[{executors},1,1024]",
            "executors": executors,
            "conf": conf or {},
            "base": str(base),
        }
        return in_a_fresh_process(BOOTSTRAP, request, timeout, {"SPARK_HOME": str(home)})

    return run


def in_a_fresh_process(
    bootstrap: str,
    request: dict[str, Any],
    timeout: float,
    environment: dict[str, str] | None = None,
) -> Any:
    """The answer of a scenario in a process of its own; whatever it left running is killed.

    Args:
        bootstrap: the program, whose argument is the request as JSON.
        request: names `base`, the folder of the process; its `result.json` is the answer.
    """
    base = Path(request["base"])
    output = base / "output"
    with output.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-c", bootstrap, json.dumps(request)],
            cwd=base,
            env=os.environ | _environment(base) | (environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            pass
        finally:
            _kill_session(process.pid)
            process.wait()
    result = base / "result.json"
    if not result.exists():
        tail = output.read_text(errors="replace")[-8000:]
        pytest.fail(f"scenario gave no result: exit={process.returncode}\n{tail}")
    return json.loads(result.read_text())


def start_session(master: str, base: Path, conf: dict[str, str] | None = None) -> SparkSession:
    """Start a session that listens on loopback only and writes below `base` only."""
    temporary = base / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    # Short-lived and small: what matters is how soon they are up.
    short = [f"-Djava.io.tmpdir={temporary}", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
    java = " ".join([*short, *sharing_options()])
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": java,
        "spark.driver.memory": "1g",
        "spark.executor.extraJavaOptions": java,
        # Under the path of the archive of classes, whatever the home of a local cluster is.
        "spark.driver.extraClassPath": CLASS_PATH,
        "spark.executor.extraClassPath": CLASS_PATH,
        "spark.executor.memory": "512m",
        "spark.local.dir": str(base / "local"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(base / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **required_conf(),
        **(conf or {}),
    }
    builder: Any = SparkSession.builder.master(master).appName("moorage-tests")
    session: SparkSession = builder.config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def run_scenario(request: str) -> None:
    """What the process of `local_cluster` runs: start, wait for all executors, call, answer."""
    task = json.loads(request)
    base = Path(task["base"])
    session = start_session(task["master"], base, task["conf"])
    backend: Any = session.sparkContext._jsc.sc()
    deadline = time.monotonic() + 60
    while backend.getExecutorIds().size() < task["executors"]:
        if time.monotonic() > deadline:
            sys.exit("executors did not start")
        time.sleep(0.05)
    scenario = getattr(importlib.import_module(task["module"]), task["function"])
    answer = json.dumps(scenario(session))
    (base / "result.json").write_text(answer)


def _environment(base: Path) -> dict[str, str]:
    roots = [ROOT, *(ROOT / name for name in ("backends", "operator", "runtime", "tests/support"))]
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(map(str, roots)),
        "SPARK_LOCAL_DIRS": str(base / "local"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def spark_home(base: Path) -> Path:
    """PySpark's own files by links: a worker of local-cluster puts `work/` beside them."""
    source = Path(pyspark.__file__).parent
    home = base / "home"
    home.mkdir(parents=True)
    for name in ("bin", "jars"):
        (home / name).symlink_to(source / name)
    return home


def _stop_jvm() -> None:
    """End the gateway's JVM now, instead of when the interpreter exits."""
    gateway: Any = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(timeout=30)
    SparkContext._gateway = None
    SparkContext._jvm = None


def _kill_session(session_id: int) -> None:
    """Kill every process of the session (Python's worker daemons leave the process group)."""
    deadline = time.monotonic() + 30
    while members := [pid for pid in _processes() if _session_of(pid) == session_id]:
        if time.monotonic() > deadline:
            pytest.fail(f"processes do not die: pids={members}")
        for pid in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _session_of(pid: int) -> int:
    """The session of a process that still runs, or 0."""
    try:
        state, _, _, session = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:4]
    except OSError:
        return 0
    return 0 if state == "Z" else int(session)
