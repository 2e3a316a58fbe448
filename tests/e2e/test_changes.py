"""What a person does to a job that runs: looks at it, orders, rescales, and gives it bad versions.

One job with everything switched on that may be: another parallelism while it runs, a trial before
an upgrade, the way back after one. After each the auditor compares all state and all output.
"""

import base64
import json
import subprocess
from contextlib import closing, contextmanager
from http.client import HTTPConnection

import pytest

from moorage_api.driver import ENDPOINT_PORT

from .e2e_cluster import wait_until
from .e2e_epochs import watched
from .e2e_pages import at_hand, type_in
from .e2e_versions import NOWHERE, WARM, condition, edition, events, reason, wait_told
from .ticker import Ticker

RULES = {
    "preflight": False,
    # Long enough for a good version on a busy machine; who wants it short says so.
    "rollback": {"enabled": True, "readinessTimeout": "10m", "stableAfter": {"duration": "10s"}},
}


@pytest.fixture(scope="module")
def ticker(namespace, images, pull_policy, s3):
    """As everywhere, and with what this module is about."""
    ticker = Ticker(namespace, images["job"], pull_policy, s3, "spark")
    scaling = {"mode": "InPlaceParallelism", "parallelism": 2, "maxParallelism": 16}
    # Some minutes of them: the status names one that may be a minute old.
    checkpoint = {**ticker.manifest()["spec"]["checkpoint"], "retain": {"count": 30}}
    ticker.start(scaling=scaling, upgrade=RULES, checkpoint=checkpoint)
    ticker.wait_ready()
    ticker.wait_checkpoints()
    return ticker


@pytest.fixture(autouse=True)
def stable_before(ticker):
    ticker.wait_ready()
    wait_until(lambda: reason(ticker, "Stable") == "True/Stable", 300, "the version is stable")


@pytest.fixture(scope="module")
def environment(cluster, tmp_path_factory):
    """A person's, with the cluster and the tools at hand."""
    return at_hand(cluster, tmp_path_factory.mktemp("person"))


@pytest.fixture(scope="module")
def person(namespace, environment, tmp_path_factory):
    """Types a command, with the namespace for PLACE; what it printed."""
    folder = tmp_path_factory.mktemp("typed")

    def types(command):
        return type_in(command.replace("PLACE", f"-n {namespace.name}"), folder, environment, 600)

    return types


# -- hands on it


@contextmanager
def forwarded(environment, namespace, target):
    """A port of this machine that leads to the driver's, as `kubectl port-forward` makes it."""
    command = ["kubectl", "-n", namespace, "port-forward", target, f":{ENDPOINT_PORT}"]
    shown = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert shown.stdout is not None
        line = shown.stdout.readline()  # Forwarding from 127.0.0.1:40000 -> 7780
        yield int(line.partition(" -> ")[0].rpartition(":")[2])
    finally:
        shown.terminate()
        shown.communicate(timeout=30)


def test_the_page_of_a_driver_is_served_to_who_has_the_token(ticker, person, environment):
    token = person("kubectl PLACE get secret ticker-scrape -o jsonpath='{.data.token}' | base64 -d")
    named = {"Authorization": f"Basic {base64.b64encode(f'anybody:{token}'.encode()).decode()}"}
    with forwarded(environment, ticker.namespace.name, "svc/ticker-driver") as port:

        def ask(path, headers):
            connection = HTTPConnection("localhost", port, timeout=30)
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            with closing(connection):
                return answer.status, answer.headers, answer.read().decode()

        status, headers, page = ask("/", named)
        assert (status, headers.get_content_type()) == (200, "text/html")
        assert "<title>" in page
        status, headers, state = ask("/state", named)
        assert (status, headers.get_content_type()) == (200, "application/json")
        assert json.loads(state)["parallelism"] == 2
        status, headers, _ = ask("/", {})
        assert status == 401
        assert headers["WWW-Authenticate"].startswith("Basic")


def test_kubectl_moorage_shows_a_job_and_takes_a_savepoint(ticker, person):
    shown = person("kubectl moorage status ticker PLACE")
    assert "├── 2 subtasks of 16 key groups" in shown
    assert shown.count("── executor ") == 2
    address = person("kubectl moorage savepoint ticker by-hand PLACE").splitlines()[-1]
    assert address.partition("?")[0] == f"{ticker.root}/savepoints/by-hand"
    assert "by-hand" in person("kubectl moorage history ticker PLACE")


@pytest.mark.scenario(52)
@pytest.mark.parametrize("parallelism", [5, 2])
def test_another_parallelism_while_the_job_runs_keeps_driver_and_every_tick(
    ticker, person, parallelism
):
    before, driver = ticker.attempt, ticker.driver
    executors = {pod["metadata"]["uid"] for pod in ticker.namespace.pods("executor")}
    person(f"kubectl moorage rescale ticker {parallelism} PLACE")
    assert ticker.namespace.status()["scaling"]["observedParallelism"] == parallelism
    assert ticker.attempt == before
    assert ticker.driver["metadata"]["uid"] == driver["metadata"]["uid"]
    assert {pod["metadata"]["uid"] for pod in ticker.namespace.pods("executor")} == executors
    wait_told(ticker, "RescaledInPlace")
    assert "RescaleFallback" not in events(ticker)
    ticker.wait_checkpoints()
    ticker.audit()


def test_kubectl_moorage_goes_back_to_a_checkpoint(ticker, person):
    before = ticker.attempt
    number = ticker.namespace.status()["snapshots"]["lastCheckpoint"]["id"]
    person(f"kubectl moorage restore ticker chk-{number} --yes PLACE")
    assert ticker.attempt == before + 1
    restored = ticker.namespace.status()["attempt"]["restoredFrom"]["path"]
    assert restored.partition("?")[0] == f"{ticker.root}/checkpoints/chk-{number}"
    ticker.wait_checkpoints()
    ticker.audit()


# -- versions that try themselves


PREFLIGHT = {"upgrade": {"preflight": True}}


def unharmed(ticker, attempt, driver):
    assert ticker.attempt == attempt
    assert ticker.driver["metadata"]["uid"] == driver["metadata"]["uid"]
    assert reason(ticker, "Ready") == "True/Running"


@pytest.mark.scenario(69)
def test_a_version_that_fails_its_preflight_leaves_the_old_one_running(ticker):
    before, driver = ticker.attempt, ticker.driver
    ticker.namespace.edit({**PREFLIGHT, **edition(ticker, "no-number")})
    wait_until(lambda: reason(ticker, "Reconciled") == "False/Rejected", 240, "it is refused")
    assert "no-number" in condition(ticker, "Reconciled")["message"]
    wait_told(ticker, "PreflightFailed")
    unharmed(ticker, before, driver)
    ticker.wait_checkpoints()
    ticker.audit()


def test_while_the_image_of_a_preflight_is_nowhere_the_old_version_runs(ticker):
    before, driver = ticker.attempt, ticker.driver
    ticker.namespace.edit({"image": NOWHERE, **PREFLIGHT, **edition(ticker, "2")})
    wait_until(
        lambda: (
            reason(ticker, "Reconciled") == "False/Preflight"
            and NOWHERE in condition(ticker, "Reconciled")["message"]
        ),
        120,
        "the image is named",
    )
    unharmed(ticker, before, driver)


def test_a_version_that_passes_its_preflight_takes_over(ticker):
    before = ticker.attempt
    ticker.namespace.edit({"image": ticker.image, **PREFLIGHT, **edition(ticker, "2")})
    ticker.wait_ready(attempt=before + 1)
    wait_told(ticker, "PreflightPassed")
    assert ticker.attempt == before + 1
    ticker.wait_checkpoints(2)
    assert ticker.audit()["editions"] == [2]


# -- versions that run beside the old one


@pytest.mark.scenario(72)
def test_a_version_that_fails_beside_the_old_one_leaves_that_running(ticker):
    before, driver = ticker.attempt, ticker.driver
    # Another one than a preflight refused: that would not be tried again.
    wrong = edition(ticker, "none-either")
    ticker.namespace.edit({"upgrade": {"preflight": False, **WARM}, **wrong})
    wait_until(lambda: reason(ticker, "Reconciled") == "False/Rejected", 400, "it is refused")
    assert "none-either" in condition(ticker, "Reconciled")["message"]
    wait_told(ticker, "StandbyFailed")
    unharmed(ticker, before, driver)
    ticker.wait_checkpoints()
    ticker.audit()


@pytest.mark.scenario(71)
def test_a_version_that_keeps_up_takes_over_with_the_pods_that_ran_beside(ticker, measured):
    old = ticker.driver

    def names():
        return {pod["metadata"]["name"] for pod in ticker.namespace.pods("driver")}

    while_it_runs = ticker.namespace.status()["snapshots"]["lastCheckpoint"]["id"]
    with watched(ticker.namespace) as epochs:
        ticker.namespace.edit({"upgrade": WARM, **edition(ticker, "3")})
        # The number of the one that failed does not come again.
        wait_until(lambda: reason(ticker, "Reconciled") == "False/Standby", 60, "it runs beside")
        beside = f"ticker-{ticker.namespace.status()['operation']['standby']['attempt']}-driver"
        wait_until(lambda: beside in names(), 60, "its pod")
        assert ticker.driver["metadata"]["uid"] == old["metadata"]["uid"]
        wait_until(lambda: ticker.driver["metadata"]["name"] == beside, 400, "it leads")
        ticker.wait_ready(attempt=ticker.attempt)
        wait_told(ticker, "StandbyPromoted")
        restored = ticker.namespace.status()["attempt"]["restoredFrom"]["path"]
        assert int(restored.rpartition("-")[2]) > while_it_runs
        ticker.wait_checkpoints(2)
    measured("between epochs at a promotion", epochs.between(old["metadata"]["name"], beside))
    assert ticker.audit()["editions"] == [3]
    ticker.namespace.edit({"upgrade": {"strategy": "Restart"}})


# -- versions that never become stable


@pytest.mark.scenario(56)
def test_a_version_that_published_nothing_is_rolled_back_by_itself(ticker):
    before, old = ticker.attempt, ticker.namespace.status()["attempt"]["revision"]
    soon = {"readinessTimeout": "30s"}
    ticker.namespace.edit({"image": NOWHERE, "upgrade": {"preflight": False, "rollback": soon}})
    wait_until(lambda: ticker.attempt == before + 2, 300, "the old version is started again")
    ticker.wait_ready(attempt=before + 2)
    ticker.namespace.edit({"upgrade": {"rollback": RULES["rollback"]}})
    status = ticker.namespace.status()
    assert status["attempt"]["revision"] == old
    assert "/savepoints/" in status["attempt"]["restoredFrom"]["path"]
    wait_told(ticker, "RolledBack")
    assert reason(ticker, "Reconciled") == "False/Rejected"
    ticker.wait_checkpoints()
    ticker.audit()


def on_trial(patience):
    """How long a version has to become stable, and how long it takes at least."""
    return {"readinessTimeout": patience, "stableAfter": {"duration": patience}}


@pytest.mark.scenario(73)
def test_what_a_version_published_is_taken_back_with_it_where_that_may_be(ticker):
    before, old = ticker.attempt, ticker.namespace.status()["attempt"]["revision"]
    editions = ticker.audit()["editions"]
    rules = {"retractOutput": True, **on_trial("10m")}
    ticker.namespace.edit(
        {"image": ticker.image, "upgrade": {"rollback": rules}, **edition(ticker, "4")}
    )
    ticker.wait_ready(attempt=before + 1)
    ticker.wait_checkpoints(2)
    tried = ticker.namespace.status()["attempt"]["revision"]
    assert ticker.audit()["editions"] == [4]
    ticker.namespace.delete("Pod", ticker.driver["metadata"]["name"], "v1")
    wait_until(lambda: ticker.attempt == before + 2, 120, "it is started again")
    ticker.namespace.edit({"upgrade": {"rollback": on_trial("5s")}})
    wait_until(lambda: ticker.attempt == before + 3, 300, "the old version is started again")
    ticker.wait_ready(attempt=before + 3)
    ticker.namespace.edit({"upgrade": {"rollback": RULES["rollback"]}})
    ticker.namespace.edit({"upgrade": {"rollback": {"retractOutput": False}}})
    status = ticker.namespace.status()
    assert status["attempt"]["revision"] == old
    assert "/savepoints/" in status["attempt"]["restoredFrom"]["path"]
    assert reason(ticker, "Reconciled") == "False/Rejected"
    (outcome,) = (r["outcome"] for r in status["revisions"] if r["name"] == tried)
    assert outcome == "RolledBack"
    ticker.wait_checkpoints(2)
    assert ticker.audit()["editions"] == editions


@pytest.mark.scenario(73)
def test_from_a_version_that_published_a_person_goes_back(ticker):
    before, old = ticker.attempt, ticker.namespace.status()["attempt"]["revision"]
    ticker.namespace.edit(
        {"image": ticker.image, "upgrade": {"rollback": on_trial("10m")}, **edition(ticker, "5")}
    )
    ticker.wait_ready(attempt=before + 1)
    ticker.wait_checkpoints()
    ticker.namespace.delete("Pod", ticker.driver["metadata"]["name"], "v1")
    wait_until(lambda: ticker.attempt == before + 2, 120, "it is started again")
    ticker.namespace.edit({"upgrade": {"rollback": on_trial("5s")}})
    wait_until(
        lambda: reason(ticker, "Stable") == "False/RollbackBlocked", 120, "a person is asked"
    )
    assert f"moorage.dev/rollback={old}" in condition(ticker, "Stable")["message"]
    ticker.namespace.annotate({"rollback": old})
    ticker.wait_ready(attempt=before + 3)
    status = ticker.namespace.status()
    assert status["attempt"]["revision"] == old
    assert "/savepoints/" in status["attempt"]["restoredFrom"]["path"]
    ticker.wait_checkpoints(2)
    assert ticker.audit()["editions"] == [3]
