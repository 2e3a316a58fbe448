"""What goes wrong beside the job: everything at once, no image, no store, no rights in it, no room.

After each the auditor compares all state and all output with what a clock without gaps must give.
"""

import time

import pytest

from moorage_api.reserved import LOCAL_DIR

from .e2e_cluster import GROUP, wait_until
from .ticker import Ticker


@pytest.fixture(scope="module")
def ticker(namespace, images, pull_policy, s3):
    """As everywhere, with little room for the working databases."""
    ticker = Ticker(namespace, images["job"], pull_policy, s3, "spark")
    state = ticker.manifest()["spec"]["state"]
    ticker.start(state={**state, "local": {"size": "128Mi"}})
    ticker.wait_ready()
    ticker.wait_checkpoints()
    return ticker


@pytest.fixture(scope="module")
def elsewhere(cluster, artifacts, job_account, namespace):
    """Another namespace, which a test may delete under the job that is in it."""
    with cluster.namespace(f"{namespace.name}-2", artifacts) as other:
        job_account(other)
        yield other


@pytest.fixture(autouse=True)
def ready_before(ticker):
    ticker.wait_ready()


def driver_of(ticker):
    return str(ticker.driver["metadata"]["name"])


def says(ticker, *words):
    status = ticker.namespace.status()
    text = " ".join([status.get("message", ""), *(str(c) for c in status.get("conditions", []))])
    return all(word in text for word in words)


@pytest.mark.scenario(18)
def test_a_driver_deleted_while_it_takes_a_savepoint_leaves_one_that_is_whole(ticker):
    before = ticker.attempt
    ticker.namespace.annotate({"savepoint": "cut-off"})
    wait_until(
        lambda: ticker.savepoint("cut-off").get("state") not in (None, "Pending"),
        60,
        "the driver is asked",
    )
    ticker.namespace.delete("Pod", driver_of(ticker), "v1", grace_period_seconds=0)
    ticker.wait_ready(attempt=before + 1)
    ticker.wait_savepoint("cut-off")
    ticker.wait_checkpoints()
    ticker.audit()


@pytest.mark.scenario(1, 13)
def test_an_operator_killed_at_any_time_after_an_annotation_takes_one_savepoint_for_it(
    ticker, system
):
    before = ticker.attempt
    for name, pause in (("at-once", 0.0), ("soon", 0.15), ("later", 0.6)):
        wait_until(lambda: bool(system.operators()), 120, "there is an operator")
        ticker.namespace.annotate({"savepoint": name})
        time.sleep(pause)  # the moment is what is tested
        system.kill_operators()
        ticker.wait_savepoint(name)
    taken = ticker.namespace.every("StatefulSparkSnapshot", "moorage.dev/job=ticker", GROUP)
    names = [found["spec"].get("name") for found in taken]
    assert {"at-once", "soon", "later"} <= set(names)
    assert len(names) == len(set(names))
    assert ticker.attempt == before
    ticker.audit()


@pytest.mark.scenario(44)
def test_a_local_volume_that_runs_full_costs_an_executor_and_no_tick(ticker):
    before, pods = ticker.attempt, ticker.namespace.pods("executor")
    full = pods[0]["metadata"]["name"]
    fill = f"dd if=/dev/zero of={LOCAL_DIR}/more bs=1M count=192 2>&1; sync"
    ticker.namespace.run_in(full, "state-server", "sh", "-c", fill)

    def evicted():
        pod = ticker.namespace.get("Pod", full, "v1") or {}
        gone = not pod or pod["metadata"].get("deletionTimestamp")
        return bool(gone or pod.get("status", {}).get("phase") == "Failed")

    wait_until(evicted, 180, f"the kubelet evicts {full}")
    wait_until(
        lambda: ticker.namespace.status()["executors"]["ready"] == 2, 300, "two executors again"
    )
    ticker.wait_checkpoints(2, seconds=420)
    assert ticker.attempt == before
    ticker.audit()


@pytest.mark.scenario(24)
def test_a_store_that_nobody_can_reach_for_ninety_seconds_costs_no_tick(ticker, system, request):
    if request.config.getoption("--s3-endpoint"):
        pytest.skip("the S3 server is not ours to cut off")
    before = ticker.attempt
    system.patch("Service", "s3", {"spec": {"selector": {"app": "nobody"}}}, "v1")
    try:
        time.sleep(90)  # the time is what is tested
    finally:
        system.patch("Service", "s3", {"spec": {"selector": {"app": "s3"}}}, "v1")
    ticker.wait_ready()
    ticker.wait_checkpoints(2, seconds=300)
    assert ticker.attempt == before
    ticker.audit()


@pytest.mark.scenario(38, 40)
def test_driver_executors_and_operator_evicted_at_once_are_all_back(ticker, system):
    before, core = ticker.attempt, ticker.namespace.cluster.core
    operators = system.operators()
    pods = [pod["metadata"]["name"] for pod in (*ticker.namespace.pods("executor"), ticker.driver)]
    assert operators
    assert len(pods) == 3
    for home, names in ((system.name, operators), (ticker.namespace.name, pods)):
        for name in names:
            core.create_namespaced_pod_eviction(name, home, {"metadata": {"name": name}})
    ticker.wait_ready(attempt=before + 1)
    assert ticker.namespace.status()["restarts"]["lastReason"].startswith("Driver")
    ticker.wait_checkpoints(2)
    ticker.audit()


@pytest.mark.scenario(49)
def test_a_driver_that_sleeps_for_a_minute_loses_nothing(ticker):
    before = ticker.attempt
    driver = driver_of(ticker)
    ticker.namespace.run_in(driver, "driver", "sh", "-c", "pkill -STOP java; pkill -STOP python")
    try:
        time.sleep(60)  # the minute is what is tested
    finally:
        if driver_of(ticker) == driver:
            wake = "pkill -CONT java; pkill -CONT python"
            ticker.namespace.run_in(driver, "driver", "sh", "-c", wake)
    ticker.wait_ready()
    ticker.wait_checkpoints(2, seconds=420)
    assert ticker.attempt == before
    ticker.audit()


@pytest.mark.scenario(10)
def test_a_status_that_somebody_wiped_is_made_anew_and_the_job_does_not_notice(ticker):
    before, driver = ticker.attempt, ticker.driver
    body = {**ticker.namespace.job(), "status": {}}
    resource = ticker.namespace.cluster.resource("StatefulSparkJob", GROUP)
    resource.status.replace(body=body, name="ticker", namespace=ticker.namespace.name)
    ticker.wait_ready()
    ticker.wait_checkpoints()
    assert ticker.driver["metadata"]["uid"] == driver["metadata"]["uid"]
    assert ticker.attempt == before
    ticker.take_savepoint("after-the-wipe")
    ticker.audit()


@pytest.mark.scenario(46)
def test_an_image_that_is_nowhere_is_named_and_an_edit_leads_out_of_it(ticker):
    before = ticker.attempt
    ticker.namespace.edit({"image": "localhost/nowhere:1"})
    wait_until(lambda: ticker.attempt == before + 1, 300, "the next attempt")
    wait_until(lambda: says(ticker, "localhost/nowhere:1"), 180, "the image is named")
    assert not ticker.namespace.is_ready()
    ticker.namespace.edit({"image": ticker.image})
    ticker.wait_ready(attempt=before + 2)
    ticker.wait_checkpoints()
    assert ticker.attempt == before + 2
    ticker.audit()


@pytest.mark.scenario(25)
def test_a_store_that_turns_the_job_away_blocks_it_until_somebody_lets_it_in(ticker):
    before, namespace = ticker.attempt, ticker.namespace

    def secret(value):
        data = {"AWS_ACCESS_KEY_ID": ticker.s3["access"], "AWS_SECRET_ACCESS_KEY": value}
        meta = {"name": "s3"}
        namespace.apply(
            {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": data}
        )

    secret("not-this-one")
    try:
        namespace.delete("Pod", driver_of(ticker), "v1", grace_period_seconds=0)
        wait_until(lambda: namespace.status()["phase"] == "Blocked", 420, "the job is blocked")
        status = namespace.status()
        assert status["blockedReason"] == "StoreDenied"
        assert "rights" in status["message"]
        assert "not-this-one" not in str(status)
    finally:
        secret(ticker.s3["secret"])
    namespace.annotate({"restart": "let-in"})
    ticker.wait_ready(attempt=before + 1)
    ticker.wait_checkpoints()
    ticker.audit()


@pytest.mark.scenario(15)
def test_a_savepoint_of_a_suspended_job_needs_no_driver_and_starts_another_job(
    ticker, elsewhere, images, pull_policy, s3
):
    namespace = ticker.namespace
    namespace.edit({"desiredState": "Suspended"})
    wait_until(lambda: namespace.status()["phase"] == "Suspended", 300, "the job is suspended")
    wait_until(lambda: not namespace.pods("executor"), 120, "no executors")
    newest = ticker.state()["newest"]
    copied = ticker.take_savepoint("asleep")
    assert not [p for p in namespace.pods("driver") if p["status"]["phase"] == "Running"]
    assert copied["path"].partition("?")[0] == f"{ticker.root}/savepoints/asleep"
    assert copied["source"]
    assert copied["manifestDigest"]
    second = Ticker(elsewhere, images["job"], pull_policy, s3, "spark", name="second")
    second.start(
        restore={"mode": "Path", "path": copied["path"].partition("?")[0]},
        scaling={"parallelism": 1, "maxParallelism": 16},
        executor={**ticker.manifest()["spec"]["executor"], "instances": 1},
    )
    second.wait_ready()
    second.wait_checkpoints()
    began = elsewhere.status("second")["attempt"]["restoredFrom"]["path"]
    assert began.partition("?")[0] == copied["path"].partition("?")[0]
    found = second.state()
    assert (found["counters"], found["wrong_counters"]) == (100, 0)
    assert found["newest"] > newest
    namespace.edit({"desiredState": "Running"})
    ticker.wait_ready()
    ticker.wait_checkpoints()
    ticker.audit()


@pytest.mark.scenario(48)
def test_a_namespace_that_is_deleted_is_gone_in_a_minute_with_all_that_is_in_it(elsewhere):
    """A job that runs, and savepoints whose data would go with them: nothing is waited for."""
    assert elsewhere.is_ready("second")
    for name, policy in (("kept", "Retain"), ("pinned", "Delete")):
        spec = {"jobRef": {"name": "second"}, "deletionPolicy": policy, "pinned": True}
        meta = {"name": name}
        kind = "StatefulSparkSnapshot"
        elsewhere.apply({"apiVersion": GROUP, "kind": kind, "metadata": meta, "spec": spec})

    def completed(name):
        found = elsewhere.get("StatefulSparkSnapshot", name) or {}
        return found.get("status", {}).get("state") == "Completed"

    wait_until(lambda: completed("kept") and completed("pinned"), 240, "both savepoints")
    elsewhere.delete_itself()
    wait_until(elsewhere.is_gone, 60, f"namespace {elsewhere.name} goes")
