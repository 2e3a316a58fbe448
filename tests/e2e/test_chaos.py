"""Faults of every kind, one after the other, for as long as `--soak-time` says.

    make e2e ARGS="-m 'e2e and soak' --soak-time 30m --kubeconfig FILE ..."

Operator, driver, executors, state servers and the store are killed, the store is stopped, and the
job is rescaled while it runs. Now and then the job is let come to itself, and the auditor compares
all state and all output with what a clock without gaps must give.
"""

import json
import random
import time
from collections import Counter

import pytest
from kubernetes.client.exceptions import ApiException

from moorage_api.reserved import LOCAL_DIR

from .e2e_cluster import wait_until
from .ticker import Ticker

PAUSE_SECONDS = (3.0, 30.0)
"""From one fault to the next: some come before the job is over the last one."""
STORE_SECONDS = (3.0, 25.0)
ROUND_SECONDS = 240.0
"""After so long the job is let come to itself."""
BACK_SECONDS = 600.0


@pytest.fixture(scope="module")
def ticker(namespace, images, pull_policy, s3):
    """As everywhere, and it can be rescaled while it runs."""
    ticker = Ticker(namespace, images["job"], pull_policy, s3, "spark")
    scaling = {"mode": "InPlaceParallelism", "parallelism": 2, "maxParallelism": 16}
    ticker.start(scaling=scaling)
    ticker.wait_ready()
    ticker.wait_checkpoints()
    return ticker


class Chaos:
    """What is done to a job, its operator and its store; each method is one fault."""

    def __init__(self, ticker, system, rng):
        self.ticker, self.system, self.rng = ticker, system, rng
        self.done: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()

    def strike(self):
        """One fault; a pod that is just gone is a fault that missed."""
        fault = self.rng.choice(FAULTS)
        try:
            fault(self)
        except (ApiException, AssertionError, KeyError, IndexError):
            self.missed[fault.__name__] += 1
        else:
            self.done[fault.__name__] += 1

    def rescale(self):
        self.ticker.namespace.edit(
            {"scaling": {"parallelism": self.rng.choice((1, 2, 3, 4, 5, 8))}}
        )

    def operator(self):
        self.system.kill_operators()

    def driver(self):
        name = self.ticker.driver["metadata"]["name"]
        self.ticker.namespace.delete("Pod", name, "v1", grace_period_seconds=0)

    def driver_process(self):
        name = self.ticker.driver["metadata"]["name"]
        self._run(name, "driver", "pkill -9 -f moorage.cluster")

    def executor(self):
        self.ticker.namespace.delete("Pod", self._executor(), "v1", grace_period_seconds=0)

    def executor_process(self):
        self._run(self._executor(), "executor", "pkill -9 java")

    def workers(self):
        self._run(self._executor(), "executor", "pkill -9 -f worker_daemon || true")

    def server(self):
        self._run(self._executor(), "state-server", "pkill -9 -f moorage_state.server")

    def volume(self):
        command = f"rm -rf {LOCAL_DIR}/*; pkill -9 -f moorage_state.server.sidecar"
        self._run(self._executor(), "state-server", command)

    def store(self):
        self.system.run_in("s3", "s3", "sh", "-c", "pkill -9 weed")

    def store_asleep(self):
        self.system.run_in("s3", "s3", "sh", "-c", "pkill -STOP weed")
        try:
            time.sleep(self.rng.uniform(*STORE_SECONDS))  # the time is the fault
        finally:
            self.system.run_in("s3", "s3", "sh", "-c", "pkill -CONT weed")

    def savepoint(self):
        """No fault, but it shall be taken beside them."""
        self.ticker.namespace.annotate({"savepoint": f"amid-{self.rng.randrange(10**6)}"})

    def _executor(self):
        pods = self.ticker.namespace.pods("executor")
        return self.rng.choice(pods)["metadata"]["name"]

    def _run(self, pod, container, command):
        self.ticker.namespace.run_in(pod, container, "sh", "-c", command)


FAULTS = (
    *(Chaos.rescale,) * 4,
    Chaos.operator,
    Chaos.driver,
    Chaos.driver_process,
    *(Chaos.executor,) * 2,
    Chaos.executor_process,
    Chaos.workers,
    *(Chaos.server,) * 2,
    Chaos.volume,
    Chaos.store,
    Chaos.store_asleep,
    Chaos.savepoint,
)


def come_to_itself(ticker):
    """The job runs, as wide as its spec says, and the audit is right."""
    ticker.wait_ready(seconds=BACK_SECONDS)
    ticker.wait_checkpoints(2, seconds=BACK_SECONDS)
    scaling = ticker.namespace.job()["spec"]["scaling"]
    wait_until(
        lambda: (
            ticker.namespace.status()["scaling"]["observedParallelism"] == scaling["parallelism"]
        ),
        BACK_SECONDS,
        f"it has {scaling['parallelism']} subtasks",
    )
    return ticker.audit()


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_whatever_happens_every_tick_is_counted_once(
    ticker, system, soak_seconds, request, artifacts
):
    if request.config.getoption("--s3-endpoint"):
        pytest.skip("the S3 server is not ours to kill")
    seed = random.SystemRandom().randrange(10**6)
    chaos = Chaos(ticker, system, random.Random(seed))
    ends = time.monotonic() + soak_seconds
    diary = artifacts / "chaos.jsonl"
    diary.parent.mkdir(parents=True, exist_ok=True)
    while time.monotonic() < ends:
        rest = min(time.monotonic() + ROUND_SECONDS, ends)
        while time.monotonic() < rest:
            chaos.strike()
            time.sleep(chaos.rng.uniform(*PAUSE_SECONDS))  # faults are as far apart as they are
        found = come_to_itself(ticker)
        told = {"attempt": ticker.attempt, "done": chaos.done, "missed": chaos.missed}
        with diary.open("a") as file:
            file.write(json.dumps({"seed": seed, **found, **told}) + "\n")
    assert chaos.done
