"""When the operator dies in the middle of something, has company, or loses its rights."""

import time

import pytest

from .e2e_cluster import wait_until
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
    args = [*ticker.manifest()["spec"]["application"]["args"], "2"]
    ticker.namespace.edit({"application": {"args": args}})
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


@pytest.mark.scenario(4)
def test_of_two_operators_one_acts_and_the_other_takes_over(ticker, system, operator):
    def lease_holder():
        (lease,) = system.every("Lease", api_version="coordination.k8s.io/v1")
        return lease["spec"].get("holderIdentity") or ""

    def replicas(count):
        system.patch("Deployment", operator, {"spec": {"replicas": count}}, "apps/v1")
        wait_until(
            lambda: (
                len(system.operators()) == count
                and (system.get("Deployment", operator, "apps/v1") or {})["status"].get(
                    "readyReplicas"
                )
                == count
            ),
            180,
            f"{count} operators are ready",
        )

    before = ticker.attempt
    try:
        replicas(2)
        first = lease_holder()
        leader = next(name for name in system.operators() if name in first)
        system.delete("Pod", leader, "v1", grace_period_seconds=0)
        ticker.take_savepoint("by-the-other")
        assert lease_holder() != first
    finally:
        replicas(1)
    assert ticker.attempt == before
    ticker.audit()


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
