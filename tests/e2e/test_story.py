"""The whole story on a real cluster: whatever is killed, every tick is counted exactly once.

After each misfortune the auditor, a pod beside the job, compares all state and all published output
with what a clock without gaps must give.
"""

import re
import threading
import time
from contextlib import closing, contextmanager
from datetime import datetime, timedelta

import pytest
from kubernetes.client.exceptions import ApiException

from moorage_api.reserved import LOCAL_DIR

from .e2e_cluster import Cluster, Namespace, wait_until
from .e2e_epochs import watched
from .ticker import Ticker


@pytest.fixture(autouse=True)
def ready_before(ticker):
    ticker.wait_ready()


def an_executor(ticker):
    pods = ticker.namespace.pods("executor")
    assert pods, "there are no executors"
    return pods[0]["metadata"]["name"]


FEWER = "going on with fewer executors"
HEARD_OF = timedelta(seconds=15)
"""From when an executor's pod is ready until the driver knows of it, at most."""


def ready_since(pod):
    """Since when a pod is ready; None for one that is not."""
    conditions = {c["type"]: c for c in pod.get("status", {}).get("conditions") or []}
    ready = conditions.get("Ready", {})
    since = str(ready.get("lastTransitionTime"))
    return datetime.fromisoformat(since) if ready.get("status") == "True" else None


def went_on_without_one_that_was_there(ticker):
    """What the driver said of too few executors when the pods of all were ready for a while."""
    wanted = ticker.namespace.job()["spec"]["executor"]["instances"]

    def ready():
        times = [ready_since(pod) for pod in ticker.namespace.pods("executor")]
        return [since for since in times if since is not None]

    wait_until(lambda: len(ready()) == wanted, 300, f"{wanted} executors are ready")
    after = max(ready()) + HEARD_OF
    name = ticker.driver["metadata"]["name"]
    lines = ticker.namespace.log(name, container="driver", timestamps=True).splitlines()
    # Stamps have more digits than a time holds.
    told = [(datetime.fromisoformat(f"{s[:19]}+00:00"), s) for s in lines if FEWER in s]
    return [line for at, line in told if at > after]


def test_a_job_is_ready_and_completes_checkpoints(ticker):
    ticker.wait_checkpoints(2)
    wait_until(
        lambda: ticker.namespace.status()["snapshots"].get("lastCheckpoint") is not None,
        120,
        "the status says so",
    )
    status = ticker.namespace.status()
    assert status["phase"] in ("Running", "Stable")
    assert status["snapshots"]["lastCheckpoint"]["path"].startswith(ticker.root)
    assert status["executors"]["ready"] == 2
    assert ticker.audit()["counters"] == 100


@pytest.mark.scenario(12)
def test_a_savepoint_is_taken_when_an_annotation_asks(ticker):
    ticker.take_savepoint("first")
    assert ticker.attempt == 1


KILLS = {
    "a Python worker": ("executor", "pkill -9 -f pyspark.daemon || true"),
    "the executor's JVM": ("executor", "pkill -9 java"),
    "a state server": ("state-server", "pkill -9 -f 'moorage_state.server --dir' || true"),
    "the state server's container": ("state-server", "pkill -9 -f moorage_state.server.sidecar"),
    "process 1 of the state server's container": ("state-server", "kill 1"),
    "what lay on the local volume": (
        "state-server",
        f"rm -rf {LOCAL_DIR}/*; pkill -9 -f moorage_state.server.sidecar",
    ),
}


@pytest.mark.scenario(40, 44)
@pytest.mark.parametrize("what", KILLS)
def test_what_is_killed_in_an_executor_comes_back_and_nothing_is_lost(ticker, what):
    container, command = KILLS[what]
    ticker.namespace.run_in(an_executor(ticker), container, "sh", "-c", command)
    ticker.wait_checkpoints(2, seconds=420)
    assert not went_on_without_one_that_was_there(ticker)
    ticker.audit()


@pytest.mark.scenario(40)
def test_a_deleted_executor_pod_is_replaced_and_nothing_is_lost(ticker):
    ticker.namespace.delete("Pod", an_executor(ticker), "v1", grace_period_seconds=0)
    ticker.wait_checkpoints(2, seconds=420)
    assert not went_on_without_one_that_was_there(ticker)
    ticker.audit()


@pytest.mark.scenario(48)
def test_a_deleted_driver_pod_is_replaced_and_goes_on_from_its_last_checkpoint(ticker):
    before = ticker.attempt
    ticker.namespace.delete("Pod", ticker.driver["metadata"]["name"], "v1")
    ticker.wait_ready(attempt=before + 1)
    ticker.wait_checkpoints()
    ticker.audit()


def test_a_driver_killed_at_once_is_replaced_and_nothing_is_lost(ticker):
    before = ticker.attempt
    ticker.namespace.run_in(
        ticker.driver["metadata"]["name"], "driver", "sh", "-c", "pkill -9 -f moorage.cluster"
    )
    ticker.wait_ready(attempt=before + 1)
    ticker.wait_checkpoints()
    ticker.audit()


def evict(ticker, name):
    """As a drain does it; whether it was let."""
    try:
        ticker.namespace.cluster.core.create_namespaced_pod_eviction(
            name, ticker.namespace.name, {"metadata": {"name": name}}
        )
    except ApiException as error:
        if error.status != 429:
            raise
        return False
    return True


@pytest.mark.scenario(80)
@pytest.mark.scenario(38)
def test_an_evicted_driver_is_back_and_was_not_blamed(ticker, measured):
    before = ticker.attempt
    name = ticker.driver["metadata"]["name"]
    with watched(ticker.namespace) as epochs:
        wait_until(lambda: bool(epochs.by(name)), 60, "the driver is heard")
        assert evict(ticker, name)
        blamed = len(ticker.namespace.status()["restarts"].get("window", []))
        ticker.wait_ready(attempt=before + 1)
        follower = ticker.driver["metadata"]["name"]
        wait_until(lambda: bool(epochs.by(follower)), 120, "its follower is heard")
    measured("between epochs at an eviction of the driver", epochs.between(name, follower))
    restarts = ticker.namespace.status()["restarts"]
    assert restarts["lastReason"] == "DriverEvicted"
    assert len(restarts.get("window", [])) == blamed
    ticker.wait_checkpoints()
    ticker.audit()


@contextmanager
def heard(ticker, name):
    """What a driver says to its end; it goes with its pod, so it is listened to while it runs."""
    mine, lines = ticker.namespace.cluster, []

    def listen():
        with closing(Cluster(mine.kubeconfig, mine.context)) as cluster:
            there = Namespace(cluster, ticker.namespace.name)
            lines.extend(there.log(name, container="driver", follow=True).splitlines())

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    yield lines
    listener.join(120)
    assert not listener.is_alive(), f"{name} does not end"


def last_of(pattern, lines):
    found = [match for line in lines if (match := re.search(pattern, line))]
    assert found, f"{pattern} was not said: {lines[-20:]}"
    return [int(number) for number in found[-1].groups()]


@pytest.mark.scenario(80)
@pytest.mark.scenario(38)
def test_everything_of_a_job_evicted_at_once_goes_on_from_a_last_checkpoint(ticker, measured):
    """As from a drained node: none of the epochs that were committed is computed again."""
    before, name = ticker.attempt, ticker.driver["metadata"]["name"]
    pods = [*(pod["metadata"]["name"] for pod in ticker.namespace.pods("executor")), name]
    assert len(pods) == 3
    with watched(ticker.namespace) as epochs, heard(ticker, name) as lines:
        wait_until(lambda: bool(epochs.by(name)), 60, "the driver is heard")
        known = ticker.newest_checkpoint()
        assert all(evict(ticker, pod) for pod in pods)
        ticker.wait_ready(attempt=before + 1)
        follower = ticker.driver["metadata"]["name"]
        wait_until(lambda: bool(epochs.by(follower)), 120, "its follower is heard")
    measured("between epochs at an eviction of all pods", epochs.between(name, follower))
    (committed,) = last_of(r"phase: phase=checkpointing epoch=(\d+)", lines)
    checkpoint, epoch = last_of(r"checkpoint: id=(\d+) epoch=(\d+)", lines)
    assert checkpoint > known
    assert epoch == committed
    status = ticker.namespace.status()
    assert status["attempt"]["restoredFrom"]["checkpointId"] == checkpoint
    assert status["restarts"]["lastReason"] == "DriverEvicted"
    ticker.wait_checkpoints()
    ticker.audit()


@pytest.mark.scenario(80)
@pytest.mark.scenario(40)
def test_budgets_hold_evictions_up_and_are_gone_when_they_are_not_wanted(ticker):
    before, namespace = ticker.attempt, ticker.namespace
    driver = ticker.driver["metadata"]["name"]

    def room():
        """What each budget allows, by the role that it is for."""
        found = namespace.every("PodDisruptionBudget", "moorage.dev/job=ticker", "policy/v1")
        return {
            one["spec"]["selector"]["matchLabels"]["moorage.dev/role"]: one["status"].get(
                "disruptionsAllowed"
            )
            for one in found
        }

    budget = {"driver": True, "executorsAtOnce": 1}
    namespace.edit({"failurePolicy": {"disruptionBudget": budget}})
    wait_until(lambda: room() == {"driver": 0, "executor": 1}, 120, "the budgets are there")
    first, second = (pod["metadata"]["name"] for pod in namespace.pods("executor"))
    assert not evict(ticker, driver)
    assert evict(ticker, first)
    assert not evict(ticker, second)
    wait_until(lambda: room().get("executor") == 1, 300, "another executor is ready")
    assert ticker.attempt == before
    ticker.wait_checkpoints(2, seconds=420)
    namespace.edit({"failurePolicy": {"disruptionBudget": None}})
    wait_until(lambda: room() == {}, 120, "the budgets are gone")
    assert evict(ticker, driver)
    ticker.wait_ready(attempt=before + 1)
    ticker.wait_checkpoints()
    ticker.audit()


@pytest.mark.scenario(24)
def test_a_minute_without_the_store_costs_no_restart(ticker, system, request):
    if request.config.getoption("--s3-endpoint"):
        pytest.skip("the S3 server is not ours to stop")
    before = ticker.attempt
    system.run_in("s3", "s3", "sh", "-c", "pkill -STOP weed")
    try:
        time.sleep(60)  # the minute is what is tested
    finally:
        system.run_in("s3", "s3", "sh", "-c", "pkill -CONT weed")
    ticker.wait_checkpoints(2, seconds=300)
    assert ticker.attempt == before
    ticker.audit()


def test_the_operator_can_be_killed_and_the_job_does_not_notice(ticker, system):
    before = ticker.attempt
    killed = system.kill_operators()
    ticker.namespace.annotate({"checkpoint": "after-the-operator"})

    def completed_by_another():
        found = ticker.namespace.get(
            "StatefulSparkSnapshot", "ticker-checkpoint-after-the-operator"
        )
        completed = (found or {}).get("status", {}).get("state") == "Completed"
        return completed and not system.operators() & killed

    wait_until(completed_by_another, 180, "the next operator sees to the checkpoint")
    ticker.wait_checkpoints()
    assert ticker.attempt == before


@pytest.mark.scenario(52)
@pytest.mark.parametrize(
    ("parallelism", "mode"), [(4, "Restart"), (1, "InPlaceParallelism"), (2, "Restart")]
)
def test_a_rescale_keeps_every_tick(ticker, parallelism, mode):
    ticker.namespace.edit({"scaling": {"parallelism": parallelism, "mode": mode}})

    def rescaled():
        status = ticker.namespace.status()
        return status["scaling"]["observedParallelism"] == parallelism

    wait_until(rescaled, 420, f"parallelism {parallelism}")
    ticker.wait_ready()
    ticker.wait_checkpoints()
    ticker.audit()


@pytest.mark.scenario(58)
def test_an_upgrade_to_another_image_and_type_of_state_goes_by_a_savepoint(ticker, images):
    before = ticker.attempt
    # Not the rate: the clock counts from its start, and would leap.
    args = [*ticker.manifest()["spec"]["application"]["args"], "2"]
    ticker.namespace.edit({"image": images["next"], "application": {"args": args}})
    ticker.wait_ready(attempt=before + 1)
    for pod in [ticker.driver, *ticker.namespace.pods("executor")]:
        assert {c["image"] for c in pod["spec"]["containers"]} == {images["next"]}
    restored = ticker.namespace.status()["attempt"]["restoredFrom"]
    assert "/savepoints/" in restored["path"]
    ticker.wait_checkpoints(2)
    assert ticker.audit()["editions"] == [2]


def test_suspend_and_resume(ticker):
    ticker.namespace.edit({"desiredState": "Suspended"})
    wait_until(
        lambda: ticker.namespace.status()["phase"] == "Suspended", 300, "the job is suspended"
    )
    wait_until(lambda: not ticker.namespace.pods("executor"), 120, "no executors")
    ticker.audit()
    ticker.namespace.edit({"desiredState": "Running"})
    ticker.wait_ready()
    ticker.wait_checkpoints()
    ticker.audit()


def test_a_named_savepoint_starts_a_second_job(ticker, namespace, images, pull_policy, s3):
    newest = ticker.state()["newest"]
    found = ticker.take_savepoint("for-the-second")
    second = Ticker(namespace, images["job"], pull_policy, s3, "spark", name="second")
    second.start(
        restore={"mode": "Path", "path": found["path"]},
        scaling={"parallelism": 1, "maxParallelism": 16},
        executor={**ticker.manifest()["spec"]["executor"], "instances": 1},
    )
    second.wait_ready()
    second.wait_checkpoints()
    state = second.state()
    assert (state["counters"], state["wrong_counters"]) == (100, 0)
    assert state["newest"] > newest
    namespace.delete("StatefulSparkJob", "second")
    wait_until(lambda: namespace.get("StatefulSparkJob", "second") is None, 300, "second goes")


@pytest.mark.scenario(61, 63)
def test_a_deleted_job_keeps_its_state_for_one_that_is_made_again(ticker):
    namespace = ticker.namespace
    namespace.delete("StatefulSparkJob", "ticker")
    wait_until(lambda: namespace.get("StatefulSparkJob", "ticker") is None, 300, "ticker goes")
    wait_until(lambda: not namespace.pods("driver"), 120, "no driver")
    before = ticker.audit()["rows"]
    ticker.start()
    ticker.wait_ready()
    ticker.wait_checkpoints()
    assert ticker.audit()["rows"] > before
