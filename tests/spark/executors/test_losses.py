"""A job on three executors that loses servers and executors in mid-stream, moves, and is right.

One job and one cluster for all of it: the scenario feeds the stream and breaks things, the tests
look at what it saw. In the end the job's state and output are held against the oracle's.
"""

import json
import os
import signal
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from moorage_testing.oracle import expected, judge
from moorage_testing.quick_spark import quick_java
from moorage_testing.sidecars import Sidecars
from moorage_testing.tls import mount

from moorage.cluster.environment import ClusterEnvironment
from moorage.cluster.servers import Patience
from moorage.driver.runner import run_job
from moorage.driver.types import JobProgress, RunOptions
from moorage.engine.fleet import RangeFleet
from moorage.engine.placement import AnchoredPlacement, LiveExecutor
from moorage_api import StatefulSparkJob
from moorage_state.server.client import StateClient

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(900)]

TOKEN = "secret"  # noqa: S105
ENCRYPTED = {
    "spark.authenticate": "true",
    "spark.authenticate.secret": "only-for-these-tests",
    "spark.network.crypto.enabled": "true",
    "spark.io.encryption.enabled": "true",
}
"""As on a cluster with spec.security.tls, where the secret lies in a file."""
SUBTASKS, EXECUTORS, ROWS, KEYS = 6, 3, 3000, 400
WAIT_SECONDS = 240.0
JOB = Path(__file__).with_name("counting_job.py")


@dataclass
class World:
    """A running job, what is known of it, and the ways to break it."""

    home: Path
    sidecars: Sidecars
    environment: ClusterEnvironment
    stop: threading.Event = field(default_factory=threading.Event)
    progress: JobProgress = field(default_factory=JobProgress)
    messages: list[str] = field(default_factory=list)
    opened: list[dict] = field(default_factory=list)
    placements: list[AnchoredPlacement] = field(default_factory=list)
    files: int = 0
    result: object = None
    error: str = ""

    def listen(self, progress):
        if progress.message and progress.message not in self.messages[-1:]:
            self.messages.append(progress.message)
        self.progress = progress

    def run(self):
        manifest = {
            "apiVersion": "moorage.dev/v1alpha1",
            "kind": "StatefulSparkJob",
            "metadata": {"name": "counting"},
            "spec": {
                "application": {"mainFile": f"local://{JOB}", "args": [str(self.home)]},
                "scaling": {"parallelism": SUBTASKS},
                "epoch": {"interval": "0s"},
                "state": {"checkpointDir": f"file://{self.home}/checkpoints"},
                "checkpoint": {"interval": "2s", "minPause": "100ms", "retain": {"count": 3}},
                "sparkConf": {"spark.task.maxFailures": "2"},
            },
        }
        job = StatefulSparkJob.model_validate(yaml.safe_load(yaml.safe_dump(manifest)))
        options = RunOptions(
            environment=self.environment, stop=self.stop, local_dir=self.home / "scratch"
        )
        try:
            self.result = run_job(job, self.home, options, self.listen)
        except BaseException as error:  # noqa: BLE001 - goes into the test's answer
            self.error = f"{type(error).__name__}: {error}"

    def feed(self, count=1):
        """Put some more files into the input."""
        rng = np.random.default_rng(self.files)
        for _ in range(count):
            table = pa.table(
                {"key": rng.integers(0, KEYS, ROWS), "value": rng.integers(-1000, 1000, ROWS)}
            )
            path = self.home / "in" / f"{self.files:05d}.parquet"
            # Hidden until it is whole: Spark would take it under its first name, find nothing there
            # when it reads it, and pass over the real one, which is a week older, for good.
            hidden = path.with_name(f".{path.name}")
            pq.write_table(table, hidden)
            os.utime(hidden, (1.6e9 + self.files, 1.6e9 + self.files))
            hidden.rename(path)
            self.files += 1

    def wait(self, what, condition):
        """Feed the stream until the condition holds."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not condition():
            if self.error or time.monotonic() > deadline:
                raise AssertionError(
                    f"in vain for {what}: error={self.error} files={self.files} "
                    f"messages={self.messages} progress={self.progress}"
                )
            time.sleep(0.1)

    def epochs(self, count):
        """Feed for some epochs and wait for them."""
        goal = self.progress.epoch + count
        self.feed(count)
        self.wait(f"epoch {goal}", lambda: self.progress.epoch >= goal)

    def checkpoint(self):
        """Wait for a checkpoint that has all that was committed until now."""
        epoch = self.progress.epoch
        self.wait(
            f"a checkpoint of epoch {epoch}",
            lambda: (last := self.progress.last_checkpoint) and last.epoch >= epoch,
        )

    def owners(self):
        return dict(self.placements[-1]._pinned or {})

    def notes(self, epoch):
        found = [json.loads(p.read_text()) for p in (self.home / "journal").glob("*.json")]
        return [note for note in found if note["epoch"] >= epoch]

    def published(self):
        files = (self.home / "out").glob("part-*.parquet")
        return sum(pq.read_metadata(path).num_rows for path in files)


def make_world(base, work, stack_of):
    home = base / "home"
    for name in ("in", "out", "journal", "scratch"):
        (home / name).mkdir(parents=True)
    volumes = Path(os.environ["MOORAGE_TEST_VOLUMES"])
    tls = mount(base / "tls")
    sidecars = stack_of(Sidecars(work, volumes, TOKEN, tls))
    ordered = {
        "spark.master": f"local-cluster[{EXECUTORS},1,1024]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        **quick_java(),
        "spark.local.dir": str(base / "local"),
        **ENCRYPTED,
    }
    patience = Patience(200.0, settle=0.5, between_moves=1.0, look=0.5)
    environment = ClusterEnvironment(ordered, TOKEN, find=sidecars.find, patience=patience, tls=tls)
    return World(home, sidecars, environment)


def spy(world):
    """Note where the ranges of each run come from, and the job's placement."""
    opening, placing = RangeFleet.open, AnchoredPlacement.pin

    def opened(fleet, *arguments):
        results = opening(fleet, *arguments)
        world.opened.append(
            {
                "sources": [result.source for result in results],
                "bytes": [result.bytes_restored for result in results],
                "owners": world.owners(),
            }
        )
        return results

    def pinned(placement, owners):
        world.placements.append(placement)
        placing(placement, owners)

    RangeFleet.open = opened  # type: ignore[method-assign]  # watched
    AnchoredPlacement.pin = pinned  # type: ignore[method-assign]  # watched


def scenario():
    base = Path.cwd()
    with ExitStack() as stack:
        world = make_world(base / "job", base / "home" / "work", stack.enter_context)
        spy(world)
        world.feed(4)
        thread = threading.Thread(target=world.run, daemon=True)
        thread.start()
        world.wait("a first checkpoint", lambda: world.progress.last_checkpoint)
        answer = {"first": world.opened[-1], "near": world.notes(0)}
        answer["server"] = kill_a_server(world)
        answer["sidecar"] = kill_a_sidecar(world)
        answer["executor"] = lose_an_executor(world)
        answer["elsewhere"] = run_elsewhere(world)
        answer["fewer"] = scale(world, 2)
        answer["more"] = scale(world, 3)
        world.wait("all output", lambda: world.published() == world.files * ROWS)
        world.stop.set()
        thread.join(WAIT_SECONDS)
        answer |= {"error": world.error, "messages": world.messages}
        answer["problems"] = judge(world.home, expected(world.home / "in"))
    return answer


def kill_a_server(world):
    runs = len(world.opened)
    executor = world.owners()[0]
    place = world.sidecars.find(LiveExecutor(executor, "127.0.0.1"))
    address = f"tcp:127.0.0.1:{place.port}"
    with StateClient.connect(address, TOKEN, tls=world.sidecars.tls) as client:
        os.kill(client.ping(), signal.SIGKILL)
    world.epochs(3)
    return {"runs": len(world.opened) - runs}


def kill_a_sidecar(world):
    runs = len(world.opened)
    executor = world.owners()[1]
    world.feed(2)
    world.sidecars.kill(executor)
    world.sidecars.start(executor)
    world.epochs(3)
    return {"runs": len(world.opened) - runs}


def lose_an_executor(world):
    world.checkpoint()
    runs, owners = len(world.opened), world.owners()
    victim = owners[2]
    world.feed(3)
    world.sidecars.lose(victim)
    world.wait("another run", lambda: len(world.opened) > runs)
    world.epochs(2)
    lost = world.environment.executors().lost
    # The others stand in, until the one that Spark starts has been there for a while.
    world.wait("a replacement", lambda: len(set(world.owners().values())) == EXECUTORS)
    world.epochs(2)
    return {"victim": victim, "before": owners, "runs": world.opened[runs:], "view": lost}


def run_elsewhere(world):
    """Tasks are sent to other executors than those that have their state."""
    owners, epoch = world.owners(), world.progress.epoch
    runs, ids = len(world.opened), sorted(set(owners.values()))
    turned = {s: ids[(ids.index(e) + 1) % len(ids)] for s, e in owners.items()}
    for placement in world.placements[-1:]:
        placement._pinned = turned
        placement._anchors.clear()
    world.epochs(3)
    for placement in world.placements[-1:]:
        placement._pinned = owners
        placement._anchors.clear()
    notes = world.notes(epoch + 2)
    return {
        "runs": len(world.opened) - runs,
        "moved": [n for n in notes if turned[n["subtask"]] == n["executor"]],
    }


def scale(world, count):
    world.checkpoint()
    runs = len(world.opened)
    world.environment.scale(count)
    world.wait("another run", lambda: len(world.opened) > runs)
    world.wait(f"{count} executors", lambda: world.environment.executors().ready == count)
    for executor in set(world.sidecars.processes) - set(world.owners().values()):
        world.sidecars.kill(executor)
    world.epochs(2)
    return {"runs": world.opened[runs:], "view": world.environment.executors().desired}


@pytest.fixture(scope="module")
def seen(fresh_process):
    return fresh_process(scenario, timeout=800)


@pytest.mark.scenario(40)
def test_whatever_happened_state_and_output_are_the_oracles(seen):
    assert seen["error"] == ""
    assert seen["problems"] == []


def test_a_task_on_the_executor_of_its_state_uses_the_socket(seen):
    assert set(seen["first"]["sources"]) == {"empty"}
    ways = {note["address"].partition(":")[0] for note in seen["near"]}
    at_home = [
        n for n in seen["near"] if seen["first"]["owners"][str(n["subtask"])] == n["executor"]
    ]
    assert {note["address"] for note in at_home} == {"unix:moorage/run/0.sock"}
    assert "unix" in ways


@pytest.mark.parametrize("what", ["server", "sidecar"])
def test_a_killed_server_whose_volume_lives_is_opened_in_place_without_a_rewind(seen, what):
    assert seen[what]["runs"] == 0


@pytest.mark.scenario(40)
@pytest.mark.scenario(43)
def test_after_the_loss_of_an_executor_only_its_ranges_are_downloaded(seen):
    loss = seen["executor"]
    assert len(loss["runs"]) == 2
    run, lost = loss["runs"][0], [s for s, e in loss["before"].items() if e == loss["victim"]]
    assert sorted(run["sources"]) == ["live"] * 4 + ["store"] * 2
    assert len(lost) == 2
    assert {s for s, e in run["owners"].items() if loss["before"][s] != e} == set(lost)
    assert loss["view"] == 1
    assert len(set(run["owners"].values())) == EXECUTORS - 1, "those that were left stand in"
    assert sorted(loss["runs"][1]["sources"]) == ["live"] * 4 + ["store"] * 2
    assert any("executor is gone" in message for message in seen["messages"])


def test_a_task_that_runs_elsewhere_reaches_its_state_over_the_network(seen):
    assert seen["elsewhere"]["runs"] == 0
    assert seen["elsewhere"]["moved"]
    assert {n["address"].partition(":")[0] for n in seen["elsewhere"]["moved"]} == {"tcp"}


@pytest.mark.parametrize(("what", "count", "moved"), [("fewer", 2, 2), ("more", 3, 2)])
def test_another_number_of_executors_costs_a_checkpoint_and_moves_what_it_must(
    seen, what, count, moved
):
    (run,) = seen[what]["runs"]
    assert sorted(run["sources"]) == ["live"] * (SUBTASKS - moved) + ["store"] * moved
    assert len(set(run["owners"].values())) == count, "one move, and to the right number"
    assert seen[what]["view"] == count
