"""A job on three executors, a store behind a bad network, and faults of every kind from a seed.

Drivers live and end one after the other, with another number of subtasks each; some are stopped
until the next one runs, with all that they started or alone, and go on beside it. In every life
executors, their workers, volumes and state servers are killed, stopped and wiped. In the end the
auditor looks at every key's state of each kind, at timers, at operator state and at every row that
was published.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from moorage_testing.audit import Audit
from moorage_testing.fault_proxy import PASSING, Chaos, Fault, FaultProxy
from moorage_testing.fresh_process import (
    kill_marked,
    short_folder,
    signal_marked,
    start_in_session,
)
from moorage_testing.jobs import pace_of, wait_until
from moorage_testing.quick_spark import spark_home
from moorage_testing.s3_server import S3Server

from moorage_state.stores import S3Address

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(0)]

LIFE = Path(__file__).with_name("cluster_life.py")
EXECUTORS = 3
START_SECONDS = 240.0
LIFE_SECONDS = (8.0, 40.0)
"""Where a driver starts in time; with another pace they are longer, or nothing got done in them."""
FILE_SECONDS = 2.0
LAST_SECONDS = 600.0
LOOK_SECONDS = 2.0
WEATHER_SECONDS = (2.0, 8.0)
LEAST_FAULTS = 3
MOST_IDLE_LIVES = 4
"""In a row that commit nothing, each with faults further apart than the one before: more, and the
job is stuck."""


@dataclass
class Life:
    """A driver, and the mark of all that it started."""

    process: "subprocess.Popen[bytes]"
    mark: str
    stalled: bool = False

    def stall(self, *, alone: bool) -> None:
        """Stop the driver, alone or with its JVM, executors, workers and state servers."""
        self.stalled = True
        if alone:
            self.process.send_signal(signal.SIGSTOP)
        else:
            signal_marked(self.mark, signal.SIGSTOP)

    def end(self) -> None:
        """Kill it, and all that it started."""
        kill_marked(self.mark)
        self.process.wait()


@dataclass
class World:
    """The job's home, its store, and the driver that lives now."""

    home: Path
    url: str
    seed: int
    backends: tuple[dict[str, Any], ...]
    rng: random.Random
    audit: Audit
    volumes: Path
    lives: list[str] = field(default_factory=list)
    stalled: list[Life] = field(default_factory=list)
    woken: list[Life] = field(default_factory=list)

    def orders(self, *, faults: bool, calm: int = 1) -> dict[str, Any]:
        address = S3Address.parse(self.url)
        where = f"s3://{address.bucket}/{address.prefix}"
        options = self.backends[len(self.lives) % len(self.backends)]
        state = {
            "checkpointDir": f"{where}/checkpoints",
            "savepointDir": f"{where}/savepoints",
            "s3": {"endpoint": address.endpoint, "region": address.region, "pathStyle": True},
            **options,
        }
        publishing = self.rng.choice(["checkpoint", "commit"])
        return {
            "seed": self.rng.randrange(1 << 30),
            "executors": EXECUTORS,
            "parallelism": self.rng.choice([3, 4, 6]),
            "state": state,
            "spec": {"sinks": {"publishWith": publishing}} if "changelog" in options else {},
            "faults": faults,
            "calm": calm,
        }

    @contextmanager
    def life(self, *, faults: bool, calm: int = 1) -> Iterator["Life"]:
        """A driver; nothing that it started is left in the end, unless it was stalled.

        Args:
            calm: by what faults are further apart.
        """
        orders, mark = self.orders(faults=faults, calm=calm), uuid.uuid4().hex
        spark = self.home / f"spark-{mark}"
        settings = {
            "SPARK_HOME": str(spark_home(spark)),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": os.pathsep.join(sys.path),
            "MOORAGE_TEST_VOLUMES": str(self.volumes),
            "MOORAGE_TEST_MARK": mark,
        }
        command = [sys.executable, str(LIFE), str(self.home), json.dumps(orders)]
        process = start_in_session(command, self.home, self.home / "life.log", settings)
        life = Life(process, mark)
        try:
            yield life
        finally:
            self.end_stalled()
            if life.stalled:
                self.stalled.append(life)
                # Those that it has are not taken away from under it.
                self.volumes = Path(mkdtemp(dir=self.volumes.parent))
            else:
                life.end()
            told = [orders[what] for what in ("parallelism", "state", "spec")]
            self.lives.append(f"{told} {'stalled' if life.stalled else process.returncode}")

    def wake(self) -> None:
        """Let drivers that were stalled go on, as far as they can."""
        while self.stalled:
            self.woken.append(self.stalled.pop())
            signal_marked(self.woken[-1].mark, signal.SIGCONT)

    def end_stalled(self) -> None:
        """End those that were stalled, whether they went on or not."""
        while ended := self.stalled or self.woken:
            ended.pop().end()

    @property
    def told_of(self) -> dict[str, Any]:
        """What the driver that told something last told."""
        with suppress(OSError, ValueError):
            told: dict[str, Any] = json.loads((self.home / "progress").read_text())
            return told
        return {"pid": 0, "epoch": 0, "phase": ""}

    def runs(self, driver: "subprocess.Popen[bytes]") -> bool:
        """Whether the stream of this driver has begun to run."""
        told = self.told_of
        return told["pid"] == driver.pid and told["phase"] in ("running", "checkpointing")

    def log(self, name: str) -> str:
        path = self.home / name
        return path.read_text(errors="replace") if path.exists() else ""

    def faults(self) -> Counter[str]:
        """How often what was done in all lives."""
        return Counter(re.findall(r"(\w+) \S+: done$", self.log("faults.log"), re.MULTILINE))

    def told(self) -> str:
        texts = [self.log(name)[-6000:] for name in ("faults.log", "messages.log", "life.log")]
        return "\n".join([f"seed={self.seed} lives={self.lives}", *texts])


def weather(proxy: FaultProxy, seed: int, over: threading.Event) -> None:
    """What the store's network is like, a while of this and a while of that."""
    rng = random.Random(seed)
    while not over.wait(rng.uniform(*WEATHER_SECONDS)):
        kind = rng.choice(["calm", "calm", "bad", "slow", "throttled", "stopped"])
        proxy.slow_seconds = 2.0 if kind == "slow" else 0.05
        rate, faults = {
            "calm": (0.0, PASSING),
            "bad": (0.1, PASSING),
            "slow": (0.3, (Fault.SLOW,)),
            "throttled": (0.5, (Fault.SLOW_DOWN,)),
            "stopped": (1.0, (Fault.ERROR, Fault.CUT_REQUEST)),
        }[kind]
        proxy.chaos = Chaos(rng.randrange(1 << 30), rate, faults)
    proxy.chaos = None


def storm(world: World, seconds: float) -> None:
    """Lives with faults until they have run for so long; each ends by a kill, or as it is told."""
    idle, fed, run = 0, 0.0, 0.0
    while run < seconds:
        before, calm = world.told_of["epoch"], 1 + idle
        with world.life(faults=True, calm=calm) as life:
            driver = life.process
            started = began = time.monotonic()
            latest, lasts = started + START_SECONDS, None
            while driver.poll() is None and time.monotonic() < latest:
                if lasts is None and world.runs(driver):
                    # From here on: how long a start takes says something about the machine.
                    began = time.monotonic()
                    pace = pace_of(began - started)
                    lasts = min(world.rng.uniform(*LIFE_SECONDS) * pace * calm, seconds)
                    latest = began + lasts
                    world.wake()
                if time.monotonic() - fed >= FILE_SECONDS:
                    fed = time.monotonic()
                    world.audit.feed()
                time.sleep(0.05)
            run += time.monotonic() - began if lasts is not None else 0.0
            # A short storm has few lives, and needs the machine for each.
            stalls = ["stall"] if seconds > STORM_SECONDS else []
            end = world.rng.choice(["kill", "kill", "ask", "ask", *stalls])
            if end == "ask":
                driver.send_signal(signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    driver.wait(60)
            elif end == "stall" and driver.poll() is None:
                life.stall(alone=world.rng.random() < 0.5)
        idle = 0 if world.told_of["epoch"] != before else idle + 1
        assert idle < MOST_IDLE_LIVES, f"no epoch in {idle} lives\n{world.told()}"


def finish(world: World) -> None:
    """A life without faults, until all is published."""
    world.audit.close()
    wanted = world.audit.expected_rows
    with world.life(faults=False) as life:
        driver = life.process

        def is_published() -> bool:
            assert driver.poll() is None, f"the driver ended\n{world.told()}"
            if world.runs(driver):
                world.wake()
            return world.audit.published_rows() >= wanted

        # Of thousands of files each look reads the ends, beside the driver on the same processors.
        wait_until(
            is_published, LAST_SECONDS, lambda: f"{wanted} rows\n{world.told()}", LOOK_SECONDS
        )
        driver.send_signal(signal.SIGTERM)
        driver.wait(120)


def chaos(
    folder: Path, server: S3Server, seed: int, seconds: float, *backends: dict[str, Any]
) -> World:
    """Live through it all; returns what is to be looked at."""
    home = folder / f"chaos-{seed}"
    rng = random.Random(seed)
    with (
        FaultProxy(server.endpoint) as proxy,
        short_folder() as volumes,
    ):
        url = server.url(f"chaos-{seed}-{uuid.uuid4().hex}", endpoint=proxy.endpoint)
        first = Path(mkdtemp(dir=volumes))
        world = World(home, url, seed, backends, rng, Audit(home, seed), first)
        world.audit.feed()
        over = threading.Event()
        thread = threading.Thread(target=weather, args=(proxy, seed, over))
        thread.start()
        try:
            storm(world, seconds)
            over.set()
            thread.join()
            finish(world)
        finally:
            over.set()
            world.end_stalled()
    return world


ROCKSDB: dict[str, Any] = {"backend": "rocksdb"}
HASHMAP: dict[str, Any] = {"backend": "hashmap"}
FORST: dict[str, Any] = {"backend": "forst"}
CHANGELOG: dict[str, Any] = {
    "changelog": True,
    "options": {
        "state.changelog.periodic-materialize.interval": "6 s",
        "state.changelog.dstl.dfs.preemptive-persist-threshold": "1 kb",
    },
}
LOGGED, LOGGED_HEAP = {**ROCKSDB, **CHANGELOG}, {**HASHMAP, **CHANGELOG}
TURNS = {
    "rocksdb": (ROCKSDB,),
    "hashmap": (HASHMAP,),
    "forst": (FORST,),
    "changelog": (LOGGED, LOGGED, ROCKSDB, LOGGED),
    "changelog-hashmap": (LOGGED_HEAP, LOGGED_HEAP, HASHMAP, LOGGED_HEAP),
    "all": (ROCKSDB, LOGGED, FORST, HASHMAP, LOGGED_HEAP, LOGGED),
}
"""What drivers have one after the other."""
STORM_SECONDS = 30.0
LONG_STORM_SECONDS = 300.0


def check(world: World) -> None:
    assert world.audit.problems() == [], world.told()
    # A good end proves something only of lives that were hard.
    assert sum(world.faults().values()) >= LEAST_FAULTS, world.told()


def test_whatever_goes_wrong_state_and_output_are_exact(
    tmp_path: Path, s3_server: S3Server
) -> None:
    check(chaos(tmp_path, s3_server, 1, STORM_SECONDS, LOGGED, FORST, HASHMAP))


@pytest.mark.soak
@pytest.mark.parametrize("turns", TURNS)
def test_for_an_hour_whatever_goes_wrong_state_and_output_are_exact(
    soak_seconds: float,
    tmp_path: Path,
    s3_server: S3Server,
    turns: str,
) -> None:
    end, seed = time.monotonic() + soak_seconds, 1
    while time.monotonic() < end:
        seed += 1
        check(chaos(tmp_path, s3_server, seed, LONG_STORM_SECONDS, *TURNS[turns]))
