"""One life of a driver with executors of its own, in which things are broken from a seed.

    python cluster_life.py HOME ORDERS

ORDERS is JSON: `seed`, `executors`, `parallelism`, `state` and `spec` of the job, whether there are
`faults`, and by what they are further apart than usual (`calm`); perhaps the file of another `job`.
SIGTERM lets the job take a last checkpoint and end; everything else is up to the faults, and to
whoever kills this process. What was done is in `HOME/faults.log`; without faults, what the driver's
JVM holds after a collection is in `HOME/heap.log`, in bytes.
"""

import json
import os
import random
import shutil
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

from moorage_testing.jobs import pace_of, processes_of
from moorage_testing.quick_spark import quick_java
from moorage_testing.sidecars import Sidecars, executor_pid
from pyspark import SparkContext

from moorage.cluster.environment import ClusterEnvironment
from moorage.cluster.servers import Patience
from moorage.driver.requests import RescaleRequest, SavepointRequest
from moorage.driver.runner import run_job
from moorage.driver.types import JobProgress, Orders, RunOptions
from moorage.engine.placement import AnchoredPlacement
from moorage_api import StatefulSparkJob
from moorage_state.errors import MoorageError

TOKEN = "secret"  # noqa: S105
JOB = Path(__file__).with_name("audited_job.py")
PARALLELISMS = (2, 3, 4, 6)
PAUSE_SECONDS = (0.5, 4.0)
STALL_SECONDS = (0.5, 6.0)
WEIGH_SECONDS = 20.0


class Volumes(Sidecars):
    """Sidecars whose volumes may come back with another executor."""

    def __init__(self, work: Path, folder: Path) -> None:
        super().__init__(work, folder, TOKEN)
        left = sorted(path for path in folder.iterdir() if path.is_dir())
        self.spare: list[Path] = [self._put_aside(path) for path in left]

    def start(self, executor: str) -> None:
        if not (self._folder / executor).exists() and self.spare:
            self.spare.pop().rename(self._folder / executor)
        super().start(executor)

    def part(self, executor: str) -> None:
        """The executor is lost, and its volume is found again by another one."""
        os.kill(executor_pid(executor), signal.SIGKILL)
        self.kill(executor)
        self.spare.append(self._put_aside(self._folder / executor))

    @staticmethod
    def _put_aside(path: Path) -> Path:
        """Under a name of its own: a life before may have had an executor of this number."""
        return path.rename(path.with_name(f"spare-{uuid.uuid4().hex}"))


class Faults:
    """What goes wrong in a life, one thing after the other."""

    def __init__(
        self, home: Path, orders: dict[str, Any], sidecars: Volumes, options: RunOptions
    ) -> None:
        self._home = home
        self._rng = random.Random(orders["seed"])
        self._calm = orders.get("calm", 1)
        self._sidecars = sidecars
        self._options = options
        self._number = 0
        self.owners: dict[int, str] = {}
        self.kinds: list[Callable[[str], object]] = [
            self.server,
            self.sidecar,
            self.wiped,
            self.executor,
            self.volume_returns,
            self.workers,
            self.stalled,
            self.savepoint,
            self.rescale,
        ]

    def work(self) -> None:
        began, pace = time.monotonic(), 0.0
        while not self._options.stop.wait(
            self._rng.uniform(*PAUSE_SECONDS) * (pace or 1.0) * self._calm
        ):
            executors = sorted(set(self.owners.values()) & set(self._sidecars.processes))
            if not executors:
                continue
            pace = pace or pace_of(time.monotonic() - began)
            kind, victim = self._rng.choice(self.kinds), self._rng.choice(executors)
            try:
                kind(victim)
                end = "done"
            except (OSError, MoorageError) as error:
                end = f"{type(error).__name__}: {error}"
            self.say(f"{kind.__name__} {victim}: {end}")

    def say(self, text: str) -> None:
        with (self._home / "faults.log").open("a") as log:
            log.write(f"{time.strftime('%H:%M:%S')} {os.getpid()} {text}\n")

    def server(self, victim: str) -> None:
        for pid in processes_of(self._sidecars.processes[victim].pid)[1:]:
            os.kill(pid, signal.SIGKILL)

    def sidecar(self, victim: str) -> None:
        self._sidecars.kill(victim)
        self._sidecars.start(victim)

    def wiped(self, victim: str) -> None:
        self._sidecars.kill(victim)
        shutil.rmtree(self._sidecars._folder / victim, ignore_errors=True)
        self._sidecars.start(victim)

    def executor(self, victim: str) -> None:
        self._sidecars.lose(victim)

    def volume_returns(self, victim: str) -> None:
        self._sidecars.part(victim)

    def workers(self, victim: str) -> None:
        for pid in processes_of(executor_pid(victim))[1:]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stalled(self, victim: str) -> None:
        pids = processes_of(executor_pid(victim))
        self._signal(pids, signal.SIGSTOP)
        self._options.stop.wait(self._rng.uniform(*STALL_SECONDS))
        self._signal(pids, signal.SIGCONT)

    def savepoint(self, _victim: str) -> None:
        self._number += 1
        name = f"life-{os.getpid()}-{self._number}"
        form: Literal["canonical", "native"] = self._rng.choice(("canonical", "native"))
        # Nobody waits for it: what goes wrong next does so while it is taken.
        self._options.requests.put(SavepointRequest(name=name, format=form))

    def rescale(self, _victim: str) -> None:
        """Another number of subtasks, for the running job."""
        self._options.requests.put(RescaleRequest(parallelism=self._rng.choice(PARALLELISMS)))

    @staticmethod
    def _signal(pids: list[int], number: int) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def live(home: Path, orders: dict[str, Any]) -> None:
    """Run the job until it is told to stop, or cannot go on."""
    volumes, stop = Path(os.environ["MOORAGE_TEST_VOLUMES"]), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with Volumes(Path(os.environ["SPARK_HOME"]) / "work", volumes) as sidecars:
        sidecars.memory = orders.get("memory", sidecars.memory)
        options = RunOptions(
            environment=environment(home, orders, sidecars),
            stop=stop,
            local_dir=home / "scratch",
            orders=Orders("chaos", "uid", f"life-{os.getpid()}"),
        )
        faults = Faults(home, orders, sidecars, options)
        placing = AnchoredPlacement.pin

        def pinned(self: AnchoredPlacement, owners: Mapping[int, str]) -> None:
            faults.owners = dict(owners)
            placing(self, owners)

        AnchoredPlacement.pin = pinned  # type: ignore[method-assign]  # watched
        work = faults.work if orders["faults"] else partial(weigh, home, options)
        threading.Thread(target=work, daemon=True).start()
        run(home, orders, options, faults)


def weigh(home: Path, options: RunOptions) -> None:
    """Have the driver's JVM collect, and say what is left, now and then."""
    while not options.stop.wait(WEIGH_SECONDS):
        context = SparkContext._active_spark_context
        if context is None or context._jvm is None:
            continue
        context._jvm.System.gc()
        runtime = context._jvm.Runtime.getRuntime()
        with (home / "heap.log").open("a") as log:
            log.write(f"{runtime.totalMemory() - runtime.freeMemory()}\n")


def run(home: Path, orders: dict[str, Any], options: RunOptions, faults: Faults) -> None:
    job = StatefulSparkJob.model_validate(manifest(home, orders))
    answer: list[str] = []

    def work() -> None:
        try:
            answer.append(str(run_job(job, home, options, lambda p: tell(home, p)).outcome))
        except MoorageError as error:
            answer.append(f"{error.code}: {error}")

    # `run_job` is called outside the main thread, to which signals come.
    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        thread.join(0.2)
    faults.say(f"ended {answer}")


def tell(home: Path, progress: JobProgress) -> None:
    # One that was stalled and goes on beside its successor tells, too.
    fresh = home / f".progress-{os.getpid()}"
    told = {"pid": os.getpid(), "epoch": progress.epoch, "phase": progress.phase}
    fresh.write_text(json.dumps(told))
    fresh.rename(home / "progress")
    if progress.message:
        with (home / "messages.log").open("a") as log:
            log.write(f"{time.strftime('%H:%M:%S')} {os.getpid()} {progress.message}\n")


def environment(home: Path, orders: dict[str, Any], sidecars: Volumes) -> ClusterEnvironment:
    ordered = {
        "spark.master": f"local-cluster[{orders['executors']},1,1024]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        **quick_java(),
        "spark.local.dir": str(home / "local"),
    }
    patience = Patience(60.0, revival=20.0, settle=0.5, between_moves=1.0, look=0.5)
    return ClusterEnvironment(ordered, TOKEN, find=sidecars.find, patience=patience)


def manifest(home: Path, orders: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "moorage.dev/v1alpha1",
        "kind": "StatefulSparkJob",
        "metadata": {"name": "audited"},
        "spec": {
            "application": {"mainFile": f"local://{orders.get('job', JOB)}", "args": [str(home)]},
            "scaling": {"parallelism": orders["parallelism"], "mode": "InPlaceParallelism"},
            "epoch": {"interval": "0s"},
            "checkpoint": {"interval": "2s", "minPause": "100ms", "retain": {"count": 3}},
            "sparkConf": {"spark.task.maxFailures": "2"},
            "state": orders["state"],
            **orders["spec"],
        },
    }


if __name__ == "__main__":
    live(Path(sys.argv[1]), json.loads(sys.argv[2]))
