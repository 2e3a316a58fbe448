"""Faults of every kind, one after the other, for as long as `--soak-time` says.

    make e2e ARGS="-m 'e2e and soak' --soak-time 30m --kubeconfig FILE ..."

Operator, driver, executors, state servers and the store are killed, the store is stopped, pods are
evicted, the node is drained, the job is rescaled while it runs, by hand and by its autoscaler, and
gets versions that are good and versions that are not. Now and then it is let come to itself with a
good one, and the auditor compares all state and all output with what a clock without gaps gives.

Then it is given a version that is to take over after it stood by, to be rolled back, or to be
refused by its preflight, each in its turn and with time for it. How often that was seen is written
down; where all of one kind were given in vain, or none in an hour, the test fails.
"""

import json
import random
import time
from collections import Counter
from contextlib import contextmanager
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException
from moorage_testing.version_ends import VersionEnds

from moorage_api.driver import certificate_name
from moorage_api.reserved import LOCAL_DIR

from .e2e_certificates import Authority
from .e2e_cluster import wait_until
from .e2e_versions import NOWHERE
from .ticker import Ticker

SECRET = "ticker-tls"  # noqa: S105 - its name

PAUSE_SECONDS = (3.0, 60.0)
"""From one fault to the next: some come before the job is over the last."""
STORE_SECONDS = (3.0, 25.0)
ROUND_SECONDS = 300.0
"""After so long the job is let come to itself."""
BACK_SECONDS = 600.0
DRAIN_SECONDS = 60.0
STABLE_SECONDS = 120.0
TRIAL_SECONDS = 420.0
"""What a version has to end as it is to: longer than a standby may take to catch up."""
LONG_SECONDS = 3600.0
"""A chaos of so long has time for each end of a version."""
SCALER = {
    "enabled": True,
    "dryRun": False,
    "min": 2,
    "max": 5,
    "window": "1m",
    "scaleDownDelay": "30s",
    "stabilizationInterval": "20s",
}
"""Who edits the parallelism decides anew, and the autoscaler goes on from there: it brings back
what is outside its bounds, and takes away what is more than the clock needs."""
WIDTHS = (1, 2, 3, 4, 5, 8)
UPGRADES = (
    {"strategy": "Restart", "preflight": False},
    {"strategy": "Restart", "preflight": True},
    {"strategy": "WarmStandby", "preflight": False},
)
"""The ways to another version."""
TRIALS = ("promotion", "rollback", "refusal")
"""What is to become of the version that a round ends with."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def ticker(namespace, images, pull_policy, s3, authority):
    """As everywhere, and with everything switched on that may be."""
    ticker = Ticker(namespace, images["job"], pull_policy, s3, "spark")
    namespace.apply(certificate(ticker, authority))
    ticker.start(
        security={"tls": {"secretName": SECRET}},
        scaling={
            "mode": "InPlaceParallelism",
            "parallelism": 2,
            "maxParallelism": 16,
            "autoscaler": SCALER,
        },
        upgrade={
            "standby": {"observeFor": "5s", "catchUpTimeout": "3m"},
            "rollback": {
                "enabled": True,
                "retractOutput": True,
                "readinessTimeout": "5m",
                "stableAfter": {"duration": "10s"},
            },
        },
        failurePolicy={
            **ticker.manifest()["spec"]["failurePolicy"],
            "disruptionBudget": {"executorsAtOnce": 1},
        },
    )
    ticker.wait_ready()
    ticker.wait_checkpoints()
    return ticker


def certificate(ticker, authority):
    return authority.secret(SECRET, certificate_name(ticker.name, ticker.namespace.name))


class Chaos:
    """What is done to a job, its operator and its store; each method is one fault."""

    def __init__(self, ticker, system, authority, rng):
        self.ticker, self.system, self.authority, self.rng = ticker, system, authority, rng
        self.edition = 1
        self.decks: dict[str, list[Any]] = {}
        self.done: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()
        self.scaled: set[str] = set()
        self.ends = VersionEnds()
        self.wrong = 0

    def deal(self, name, cards):
        """One of them by chance, and none again before all others came as often."""
        deck = self.decks.setdefault(name, [])
        if not deck:
            deck.extend(self.rng.sample(cards, len(cards)))
        return deck.pop()

    def strike(self):
        """One fault, and its name; a pod that is just gone is a fault that missed."""
        fault = self.deal("faults", FAULTS)
        try:
            fault(self)
        except (ApiException, AssertionError, KeyError, IndexError) as error:
            self.missed[fault.__name__] += 1
            return f"{fault.__name__} missed: {str(error)[:100]}"
        self.done[fault.__name__] += 1
        return fault.__name__

    def rescale(self):
        self.ticker.namespace.edit({"scaling": {"parallelism": self.deal("widths", WIDTHS)}})

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

    def renewal(self):
        """No fault either: the pods' certificate is another one from now on."""
        self.ticker.namespace.apply(certificate(self.ticker, self.authority))

    def good_version(self):
        """Of the job's program; it says in the state which edition it is."""
        self.edition += 1
        self._version(self.deal("good", UPGRADES), str(self.edition))

    def bad_version(self):
        """Its graph cannot be built: it is refused, or rolled back."""
        self._bad(self.deal("bad", UPGRADES))

    def _bad(self, upgrade):
        # Each time another one: what was given up once is not tried again.
        self.wrong += 1
        self._version(upgrade, f"no-number-{self.wrong}", patience="30s")

    def version_from_nowhere(self):
        """It never runs: it is rolled back, or the next edit leads out of it."""
        self._version(self.deal("nowhere", UPGRADES), str(self.edition), NOWHERE, patience="30s")

    def settle(self):
        """A good version, in place of what the job was given last: one that nobody gave up yet."""
        self.edition += 1
        self._version(UPGRADES[0], str(self.edition))

    def trial(self):
        """Give a version to a job that has come to itself, with time to end as it is to.

        None is given where the job does not become stable: nothing is rolled back to what is not.
        """
        end, namespace = self.deal("trials", TRIALS), self.ticker.namespace
        if not comes_true(lambda: is_stable(namespace.status()), STABLE_SECONDS):
            return {"trial": end, "given": False}
        restart, preflight, standby = UPGRADES
        self.look()
        before = self.ends.seen()[end]
        if end == "promotion":
            self.edition += 1
            self._version(standby, str(self.edition))
        else:
            self._bad(preflight if end == "refusal" else restart)

        def seen():
            self.look()
            return self.ends.seen()[end] > before

        came = bool(comes_true(seen, TRIAL_SECONDS))
        self.ends.tried(end, came=came)
        return {"trial": end, "given": True, "seen": came}

    def look(self):
        """Write down what events and the autoscaler say by now: they do not stay."""
        self.ends.note(self.ticker.namespace.every("Event"))
        decided = self.ticker.namespace.status()["scaling"].get("autoscaler") or {}
        if step := decided.get("step"):
            self.scaled.add(f"{step['at']}: {step['before']} to {step['after']}")

    def eviction(self):
        pods = (*self.ticker.namespace.pods("executor"), self.ticker.driver)
        self._evict(self.rng.choice(pods)["metadata"]["name"])

    def drain(self):
        """As `kubectl drain` does it, and the node is there again."""
        with self._cordoned():
            wait_until(self._is_drained, DRAIN_SECONDS, "the drain")

    def _is_drained(self):
        """What a budget holds up is asked for again."""
        there = self._running()
        for name in there:
            self._evict(name)
        return not there

    def _running(self):
        pods = (*self.ticker.namespace.pods("executor"), *self.ticker.namespace.pods("driver"))
        return [p["metadata"]["name"] for p in pods if p["status"]["phase"] == "Running"]

    @contextmanager
    def _cordoned(self):
        core = self.ticker.namespace.cluster.core
        nodes = [node.metadata.name for node in core.list_node().items]
        try:
            for node in nodes:
                core.patch_node(node, {"spec": {"unschedulable": True}})
            yield
        finally:
            for node in nodes:
                core.patch_node(node, {"spec": {"unschedulable": None}})

    def _evict(self, name):
        namespace = self.ticker.namespace
        try:
            namespace.cluster.core.create_namespaced_pod_eviction(
                name, namespace.name, {"metadata": {"name": name}}
            )
        except ApiException as error:
            if error.status not in (404, 429):  # it is gone, or a budget says not yet
                raise

    def _version(self, upgrade, edition, image=None, patience="5m"):
        args = [*self.ticker.manifest()["spec"]["application"]["args"], edition]
        self.ticker.namespace.edit(
            {
                "image": image or self.ticker.image,
                "application": {"args": args},
                "upgrade": {**upgrade, "rollback": {"readinessTimeout": patience}},
            }
        )

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
    Chaos.renewal,
    *(Chaos.good_version,) * 2,
    Chaos.bad_version,
    Chaos.version_from_nowhere,
    *(Chaos.eviction,) * 2,
    Chaos.drain,
)


def come_to_itself(ticker, chaos):
    """The job runs, in its newest version, as wide as it should be, and the audit is right."""
    chaos.settle()
    generation = ticker.namespace.job()["metadata"]["generation"]
    wait_until(
        lambda: reconciled(ticker.namespace.status(), generation),
        BACK_SECONDS,
        f"generation {generation} runs",
    )
    ticker.wait_ready(seconds=BACK_SECONDS)
    ticker.wait_checkpoints(2, seconds=BACK_SECONDS)
    wait_until(lambda: has_its_width(ticker.namespace), BACK_SECONDS, "it has its subtasks")
    chaos.look()
    found = ticker.audit()
    assert found["editions"] == [chaos.edition]
    return found


def has_its_width(namespace):
    """Whether it runs with what the autoscaler decided, or the spec where that came later."""
    status, declared = namespace.status()["scaling"], namespace.job()["spec"]["scaling"]
    decided, wanted = status.get("autoscaler") or {}, declared["parallelism"]
    if decided.get("declared") == wanted and decided.get("target"):
        wanted = decided["target"]
    within = SCALER["min"] <= wanted <= SCALER["max"]
    return within and status["observedParallelism"] == wanted


def reconciled(status, generation):
    """Whether this generation runs."""
    conditions = {c["type"]: c for c in status.get("conditions", [])}
    found = conditions.get("Reconciled", {})
    return found.get("status") == "True" and found.get("observedGeneration", 0) >= generation


def comes_true(there, seconds):
    try:
        wait_until(there, seconds, "what is waited for")
    except AssertionError:
        return False
    return True


def is_stable(status):
    """Whether another version may be rolled back to the one that runs."""
    conditions = {c["type"]: c["status"] for c in status.get("conditions", [])}
    return conditions.get("Stable") == "True"


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_whatever_happens_every_tick_is_counted_once(
    ticker, system, authority, soak_seconds, request, artifacts
):
    if request.config.getoption("--s3-endpoint"):
        pytest.skip("the S3 server is not ours to kill")
    seed = random.SystemRandom().randrange(10**6)
    chaos = Chaos(ticker, system, authority, random.Random(seed))
    ends = time.monotonic() + soak_seconds
    diary = artifacts / "chaos.jsonl"
    diary.parent.mkdir(parents=True, exist_ok=True)

    def write(line):
        with diary.open("a") as file:
            file.write(json.dumps({"at": time.strftime("%H:%M:%S"), **line}) + "\n")

    write({"seed": seed})
    while time.monotonic() < ends:
        rest = min(time.monotonic() + ROUND_SECONDS, ends)
        while time.monotonic() < rest:
            write({"fault": chaos.strike()})
            chaos.look()
            time.sleep(chaos.rng.uniform(*PAUSE_SECONDS))  # faults are as far apart as they are
        quiet = time.monotonic()
        found = come_to_itself(ticker, chaos)
        back = round(time.monotonic() - quiet)
        told = {"attempt": ticker.attempt, "done": chaos.done, "missed": chaos.missed}
        told["scaled"] = sorted(chaos.scaled)
        write({"back_after": back, **found, **told})
        write({**chaos.trial(), "versions": chaos.ends.seen()})
    assert chaos.done
    struck = chaos.done.total() + chaos.missed.total()
    if struck >= 2 * len(FAULTS):
        assert not {fault.__name__ for fault in FAULTS} - set(chaos.done)
        assert chaos.scaled
    found = come_to_itself(ticker, chaos)
    write({"versions": chaos.ends.seen(), **found})
    assert not chaos.ends.missed(all_of_them=soak_seconds >= LONG_SECONDS), chaos.ends.seen()
