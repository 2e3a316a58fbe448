"""When the operator dies in the middle of something, has company, or loses its rights."""

import time

import pytest

from .e2e_cluster import wait_until
from .e2e_versions import NOWHERE, WARM, condition, edition, reason, wait_told
from .ticker import Ticker

RBAC = "rbac.authorization.k8s.io/v1"


@pytest.fixture(autouse=True)
def ready_before(ticker):
    ticker.wait_ready()


def phase(ticker):
    return ticker.namespace.status()["phase"]


@pytest.mark.scenario(1)
def test_killed_while_a_savepoint_is_taken_it_is_taken_once(ticker, system):
    before = ticker.attempt
    ticker.namespace.annotate({"savepoint": "under-fire"})
    wait_until(lambda: "state" in ticker.savepoint("under-fire"), 60, "it is asked for")
    system.kill_operators()
    ticker.wait_savepoint("under-fire")
    assert ticker.attempt == before
    ticker.audit()


@pytest.mark.scenario(2, 3)
def test_killed_in_the_middle_of_an_upgrade_the_next_one_finishes_it(ticker, system):
    before = ticker.attempt
    # Not the rate: the clock counts from its start, and would leap.
    ticker.namespace.edit(edition(ticker, "2"))
    wait_until(lambda: phase(ticker) in ("Upgrading", "Deploying"), 120, "the upgrade begins")
    system.kill_operators()
    wait_until(lambda: ticker.attempt == before + 1, 300, "the next attempt")
    system.kill_operators()
    ticker.wait_ready(attempt=before + 1)
    assert ticker.attempt == before + 1
    ticker.wait_checkpoints()
    ticker.audit()


@pytest.mark.scenario(2)
def test_killed_while_a_job_is_suspended_and_resumed(ticker, system):
    before = ticker.attempt
    ticker.namespace.edit({"desiredState": "Suspended"})
    wait_until(lambda: phase(ticker) in ("Suspending", "Suspended"), 120, "it is being suspended")
    system.kill_operators()
    wait_until(lambda: phase(ticker) == "Suspended", 300, "it is suspended")
    ticker.namespace.edit({"desiredState": "Running"})
    wait_until(lambda: ticker.attempt == before + 1, 120, "the next attempt")
    system.kill_operators()
    ticker.wait_ready(attempt=before + 1)
    assert ticker.attempt == before + 1
    ticker.wait_checkpoints()
    ticker.audit()


def test_what_belongs_to_a_job_and_is_deleted_by_hand_comes_back(ticker):
    before = ticker.attempt
    namespace = ticker.namespace

    def belongings():
        mine = f"moorage.dev/job={ticker.name}"
        return {
            (kind, found["metadata"]["name"]): found["metadata"]["uid"]
            for kind in ("Service", "Secret")
            for found in namespace.every(kind, mine)
        }

    had = belongings()
    assert had
    for kind, name in had:
        namespace.delete(kind, name, "v1")
    wait_until(lambda: set(belongings()) == set(had), 120, f"they are back: {sorted(had)}")
    assert not set(belongings().values()) & set(had.values())
    ticker.take_savepoint("with-new-belongings")
    assert ticker.attempt == before
    ticker.audit()


class Pair:
    """Two replicas of the operator, of which one leads."""

    def __init__(self, system, deployment):
        self.system, self.deployment = system, deployment

    def wait_replicas(self, count):
        system, name = self.system, self.deployment
        system.patch("Deployment", name, {"spec": {"replicas": count}}, "apps/v1")

        def ready():
            found = system.get("Deployment", name, "apps/v1") or {}
            ready = found["status"].get("readyReplicas")
            return (len(system.operators()), ready) == (count, count)

        wait_until(ready, 180, f"{count} operators are ready")

    def leader(self):
        (lease,) = self.system.every("Lease", api_version="coordination.k8s.io/v1")
        return lease["spec"].get("holderIdentity") or ""

    def kill_leader(self):
        """Without grace; waits until the other one leads."""
        self.wait_replicas(2)
        first = self.leader()
        pod = next(name for name in self.system.operators() if name in first)
        self.system.delete("Pod", pod, "v1", grace_period_seconds=0)
        wait_until(lambda: self.leader() not in ("", first), 120, "the other one leads")


@pytest.fixture(scope="module")
def pair(system, operator):
    """As `Pair` says, and a single one again in the end."""
    pair = Pair(system, operator)
    pair.wait_replicas(2)
    try:
        yield pair
    finally:
        pair.wait_replicas(1)


def wait_begun(ticker, is_done=lambda: False):
    """Until the operator is in the middle of something, or is done with it already."""
    wait_until(
        lambda: bool(ticker.namespace.status().get("operation")) or is_done(), 120, "it begins"
    )


@pytest.mark.scenario(4)
def test_of_two_operators_one_acts_and_the_other_takes_over(ticker, pair):
    before = ticker.attempt
    pair.kill_leader()
    ticker.take_savepoint("by-the-other")
    assert ticker.attempt == before
    ticker.audit()


@pytest.mark.scenario(3, 4)
def test_the_other_one_finishes_an_upgrade(ticker, pair):
    before = ticker.attempt
    ticker.namespace.edit(edition(ticker, "3"))
    wait_begun(ticker)
    pair.kill_leader()
    ticker.wait_ready(attempt=before + 1)
    assert ticker.attempt == before + 1
    ticker.wait_checkpoints(2)
    assert ticker.audit()["editions"] == [3]


def under_way(ticker):
    return ticker.namespace.status().get("operation") or {}


def step(ticker):
    return under_way(ticker).get("step", "")


PLAIN = {"strategy": "Restart", "preflight": False}
TRIED = {
    "Preflight": ({**PLAIN, "preflight": True}, "PreflightPassed"),
    "Standby": ({**PLAIN, **WARM}, "StandbyPromoted"),
}
"""By the reason of `Reconciled` meanwhile: how a version is tried, and what says it was good."""


def is_tried(ticker, way):
    return reason(ticker, "Reconciled") == f"False/{way}"


def is_refused(ticker, wrong):
    """This version is; another one may have been before."""
    rejected = reason(ticker, "Reconciled") == "False/Rejected"
    return rejected and wrong in condition(ticker, "Reconciled")["message"]


@pytest.mark.scenario(4, 69, 72)
@pytest.mark.parametrize("way", TRIED)
def test_the_other_one_ends_the_trial_of_a_version_that_cannot_be_built(ticker, pair, way):
    before, driver, wrong = ticker.attempt, ticker.driver, f"no-number-for-{way}"
    ticker.namespace.edit({"upgrade": TRIED[way][0], **edition(ticker, wrong)})
    wait_until(lambda: is_tried(ticker, way) or is_refused(ticker, wrong), 120, "it is tried")
    pair.kill_leader()
    wait_until(lambda: is_refused(ticker, wrong), 400, "it is refused")
    assert ticker.attempt == before
    assert ticker.driver["metadata"]["uid"] == driver["metadata"]["uid"]
    ticker.wait_checkpoints()
    ticker.audit()


@pytest.mark.scenario(4, 71)
@pytest.mark.parametrize(("way", "number"), [("Preflight", 4), ("Standby", 5)])
def test_the_other_one_finishes_the_trial_of_a_good_version(ticker, pair, way, number):
    before, (rules, good) = ticker.attempt, TRIED[way]
    ticker.namespace.edit({"upgrade": rules, **edition(ticker, str(number))})
    wait_until(lambda: is_tried(ticker, way), 120, "it is tried")
    pair.kill_leader()
    wait_until(lambda: step(ticker) not in ("", way) or ticker.attempt > before, 420, "it was good")
    pair.kill_leader()
    wait_until(lambda: ticker.attempt > before, 420, "it takes over")
    ticker.wait_ready(attempt=before + 1)
    wait_told(ticker, good)
    ticker.wait_checkpoints(2)
    assert ticker.audit()["editions"] == [number]
    ticker.namespace.edit({"upgrade": PLAIN})


@pytest.mark.scenario(4, 52)
@pytest.mark.parametrize(("parallelism", "mode"), [(5, "InPlaceParallelism"), (2, "Restart")])
def test_the_other_one_finishes_a_rescale(ticker, pair, parallelism, mode):
    before = ticker.attempt

    def rescaled():
        status = ticker.namespace.status()
        return status["scaling"]["observedParallelism"] == parallelism

    ticker.namespace.edit({"scaling": {"parallelism": parallelism, "mode": mode}})
    wait_begun(ticker, rescaled)
    pair.kill_leader()
    wait_until(rescaled, 420, f"{parallelism} subtasks")
    ticker.wait_ready()
    assert ticker.attempt - before == (mode == "Restart")
    ticker.wait_checkpoints()
    ticker.audit()


@pytest.mark.scenario(4, 61)
def test_the_other_one_finishes_a_restore_and_a_deletion(
    ticker, pair, namespace, images, pull_policy, s3
):
    """Of a job that begins from another one's savepoint: all that it writes is its own."""
    copied = ticker.take_savepoint("to-begin-from")["path"].partition("?")[0]
    second = Ticker(namespace, images["job"], pull_policy, s3, "spark", name="second")
    manifest = second.manifest()["spec"]
    second.start(
        application={
            **manifest["application"],
            "args": [*manifest["application"]["args"], "3"],
        },
        restore={"mode": "Path", "path": copied},
        deletion={"policy": "Delete", "finalSnapshot": "None"},
        scaling={"parallelism": 1, "maxParallelism": 16},
        executor={**manifest["executor"], "instances": 1},
    )
    wait_until(lambda: second.attempt == 1, 120, "it is being started")
    pair.kill_leader()
    second.wait_ready()
    second.wait_checkpoints()
    status = namespace.status("second")
    assert status["attempt"]["number"] == 1
    assert status["attempt"]["restoredFrom"]["path"].partition("?")[0] == copied
    found = second.state()
    assert (found["counters"], found["wrong_counters"]) == (100, 0)
    namespace.delete("StatefulSparkJob", "second")
    pair.kill_leader()
    wait_until(lambda: namespace.get("StatefulSparkJob", "second") is None, 300, "second goes")
    assert second.objects("checkpoints") == []
    assert ticker.namespace.is_ready()


@pytest.mark.scenario(4, 56, 73)
@pytest.mark.parametrize("ordered", [False, True])
def test_the_other_one_finishes_a_rollback(ticker, pair, ordered):
    """Of a version that never runs: by itself after its time, or by annotation before."""
    rules = {"enabled": True, "readinessTimeout": "10m", "stableAfter": {"duration": "10s"}}
    ticker.namespace.edit({"upgrade": {**PLAIN, "rollback": rules}})
    wait_until(lambda: reason(ticker, "Stable") == "True/Stable", 300, "the version is stable")
    before, old = ticker.attempt, ticker.namespace.status()["attempt"]["revision"]
    patience = {"readinessTimeout": "10m" if ordered else "30s"}
    nowhere = {"image": NOWHERE, **edition(ticker, str(6 + ordered))}
    ticker.namespace.edit({"upgrade": {"rollback": patience}, **nowhere})
    if ordered:
        wait_until(lambda: ticker.attempt == before + 1, 300, "it is started")
        ticker.namespace.annotate({"rollback": old})
    wait_until(lambda: under_way(ticker).get("type") == "Rollback", 300, "it goes back")
    pair.kill_leader()
    wait_until(lambda: ticker.attempt == before + 2, 300, "the old version is started again")
    ticker.wait_ready(attempt=before + 2)
    assert ticker.namespace.status()["attempt"]["revision"] == old
    wait_told(ticker, "RolledBack")
    assert reason(ticker, "Reconciled") == "False/Rejected"
    ticker.wait_checkpoints()
    ticker.audit()
    off = {"upgrade": {"rollback": {"enabled": False}}}
    ticker.namespace.edit({"image": ticker.image, **off, **edition(ticker, str(8 + ordered))})
    ticker.wait_ready(attempt=before + 3)


@pytest.mark.scenario(5)
def test_an_operator_without_rights_touches_nothing_and_goes_on_when_it_has_them_again(
    ticker, system
):
    before = ticker.attempt
    bindings = ticker.namespace.cluster.resource("ClusterRoleBinding", RBAC)
    mine = [
        found
        for found in bindings.get().to_dict()["items"]
        if any(one.get("namespace") == system.name for one in found.get("subjects") or [])
    ]
    assert mine

    def rights(*, there):
        for binding in mine:
            bindings.patch(
                name=binding["metadata"]["name"],
                body={"subjects": binding["subjects"] if there else []},
                content_type="application/merge-patch+json",
            )

    driver = ticker.driver
    rights(there=False)
    try:
        time.sleep(15)  # long enough for a pass that sees nothing at all
        assert ticker.driver["metadata"]["uid"] == driver["metadata"]["uid"]
        ticker.namespace.delete("Pod", driver["metadata"]["name"], "v1", grace_period_seconds=0)
        time.sleep(15)
        assert ticker.attempt == before
    finally:
        rights(there=True)
    ticker.wait_ready(attempt=before + 1)
    ticker.wait_checkpoints()
    assert ticker.attempt == before + 1
    ticker.audit()


@pytest.mark.scenario(61)
def test_a_job_deleted_with_its_data_leaves_nothing(namespace, images, pull_policy, s3):
    gone = Ticker(namespace, images["job"], pull_policy, s3, "spark", name="gone")
    gone.start(
        deletion={"policy": "Delete", "finalSnapshot": "None"},
        scaling={"parallelism": 1, "maxParallelism": 16},
        executor={**gone.manifest()["spec"]["executor"], "instances": 1},
    )
    gone.wait_ready()
    gone.wait_checkpoints()
    assert gone.objects("checkpoints")
    namespace.delete("StatefulSparkJob", "gone")
    wait_until(lambda: namespace.get("StatefulSparkJob", "gone") is None, 300, "gone goes")
    assert gone.objects("checkpoints") == []
