"""What a namespace's quotas lack for a job's pods, as the API server would count them."""

from decimal import Decimal

import pytest
from moorage_testing.manifests import spec_data

from moorage_api import JobSpec
from moorage_operator.children.pods import executor_pod
from moorage_operator.quota import refused_by, room, usage
from moorage_operator.world import Meta, Room

META = Meta("clicks", "default", "uid", 1, "1")


def spec(**changes):
    return JobSpec.model_validate(spec_data(scaling={"parallelism": 4}, **changes))


def quota(hard, used=None, **rules):
    status = {"hard": hard, "used": used or {}}
    return {"metadata": {"name": "compute"}, "spec": {"hard": hard, **rules}, "status": status}


def found(one, wanted=None, running=None, drivers=0, executors=0, ranges=(), claims=0):
    return room([one], META, wanted or spec(), running, drivers, executors, ranges, claims)


@pytest.mark.parametrize(
    ("hard", "start", "whole"),
    [
        ({"pods": "3"}, "", ""),
        ({"pods": "2"}, "", "ResourceQuota compute has no room for pods 3 of 2"),
        ({"count/pods": "1"}, "for count/pods 2 of 1", "for count/pods 3 of 1"),
        # A driver of 2Gi and two executors of 4Gi, each with servers of 1088Mi.
        ({"limits.memory": "12416Mi"}, "", ""),
        ({"memory": "12415Mi"}, "", "for memory 12416Mi of 12415Mi"),
        # A core, and twice two cores with 200m beside them.
        ({"requests.cpu": "5400m"}, "", ""),
        ({"cpu": "5"}, "", "for cpu 5400m of 5"),
        ({"requests.nvidia.com/gpu": "0", "services": "0"}, "", ""),
        ({"pods": "a few"}, "for pods 2 of a few", "for pods 3 of a few"),
    ],
)
def test_what_is_missing_is_named_with_how_much(hard, start, whole):
    lacks = found(quota(hard))
    assert bool(lacks.start) == bool(start)
    assert start in lacks.start
    assert bool(lacks.whole) == bool(whole)
    assert whole in lacks.whole


def test_claims_count_where_the_state_has_a_volume_of_its_own():
    wanted = spec(state={"local": {"type": "EphemeralPVC", "size": "10Gi"}, **DIRECTORIES})
    assert (
        found(quota({"requests.storage": "20Gi", "persistentvolumeclaims": "2"}), wanted) == Room()
    )
    assert (
        "requests.storage 20480Mi of 10Gi"
        in found(quota({"requests.storage": "10Gi"}), wanted).whole
    )


DIRECTORIES = {"checkpointDir": "s3://state/clicks", "savepointDir": "s3://savepoints/clicks"}

WITH_CLASS = {"podTemplate": {"spec": {"priorityClassName": "high"}}}


def chosen(how, *values):
    one = {"scopeName": "PriorityClass", "operator": how, **({"values": values} if values else {})}
    return {"scopeSelector": {"matchExpressions": [one]}}


@pytest.mark.parametrize(
    ("rules", "applies"),
    [
        ({}, True),
        ({"scopes": ["NotTerminating", "NotBestEffort"]}, True),
        ({"scopes": ["Terminating"]}, False),
        (chosen("In", "high"), True),
        (chosen("In", "low"), False),
        (chosen("NotIn", "high"), False),
        (chosen("Exists"), True),
        (chosen("DoesNotExist"), False),
    ],
)
def test_a_quota_with_scopes_counts_where_it_holds(rules, applies):
    wanted = spec(executor=WITH_CLASS, driver=WITH_CLASS)
    assert bool(found(quota({"pods": "0"}, **rules), wanted).start) == applies


def test_each_pod_counts_where_its_own_priority_class_says():
    of_driver = spec(driver=WITH_CLASS)
    high, low = quota({"pods": "1"}, **chosen("In", "high")), chosen("DoesNotExist")
    assert found(high, of_driver) == Room()
    assert not found(quota({"pods": "2"}, **low), of_driver).whole
    assert "pods 2 of 1" in found(quota({"pods": "1"}, **low), of_driver).whole
    of_executors = spec(executor=WITH_CLASS)
    assert "pods 2 of 1" in found(high, of_executors).whole
    assert found(quota({"pods": "1"}, **low), of_executors) == Room()
    # Claims have no priority: such a quota says nothing of them.
    wanted = spec(state={"local": {"type": "EphemeralPVC", "size": "10Gi"}, **DIRECTORIES})
    assert found(quota({"persistentvolumeclaims": "0"}, **low), wanted) == Room()


def test_pods_that_go_make_room_and_an_edit_is_held_by_what_it_adds_alone():
    full = quota(
        {"pods": "3", "limits.memory": "12416Mi"}, {"pods": "3", "limits.memory": "12416Mi"}
    )
    same = found(full, spec(image="clicks:2"), spec(), 1, 2)
    assert (same.start, same.whole, same.growth) == ("", "", "")
    wider = found(full, spec(driver={"memory": "3Gi"}), spec(), 1, 2)
    assert "for limits.memory 13440Mi of 12416Mi" in wider.growth
    # One executor is missing already: that is no reason to hold an edit of the image.
    lost = found(quota({"pods": "2"}, {"pods": "2"}), spec(image="clicks:2"), spec(), 1, 1)
    assert lost.whole
    assert not lost.growth


def test_resources_that_are_no_mapping_have_nothing_and_stop_no_pass():
    beside = {"name": "a", "image": "x", "restartPolicy": "Always"}
    for wrong in ({"requests": ["cpu"]}, {"limits": "cpu"}, "cpu"):
        template = {"spec": {"initContainers": [{**beside, "resources": wrong}]}}
        assert found(quota({"pods": "3"}), spec(executor={"podTemplate": template})) == Room()


def test_a_pod_takes_what_its_containers_take_beside_each_other_or_the_most_of_one_before():
    pod = executor_pod(META, spec(executor={"cores": 1, "memory": "2Gi"}), "r", 1)
    (sidecar,) = pod["spec"]["initContainers"]
    beside = Decimal(str(sidecar["resources"]["requests"]["memory"]).removesuffix("Mi"))
    mib = Decimal(1 << 20)
    assert usage(pod)["requests.memory"] == (2048 + beside) * mib
    assert usage(pod)["memory"] == usage(pod)["requests.memory"]
    once = {"name": "fetch", "resources": {"requests": {"memory": "64Gi"}}}
    pod["spec"]["initContainers"].append(once)
    # One that only begins it does so beside those before it that stay.
    assert usage(pod)["memory"] == (64 * 1024 + beside) * mib
    pod["spec"]["initContainers"].reverse()
    assert usage(pod)["memory"] == 64 * 1024 * mib
    assert usage(pod)["count/pods"] == 1
    assert "services.loadbalancers" not in usage(pod)


def test_requests_that_are_not_said_are_the_limits():
    beside = {"name": "a", "image": "x", "resources": {"limits": {"cpu": "3", "example.com/x": 1}}}
    template = {"spec": {"containers": [beside]}}
    pod = executor_pod(META, spec(executor={"podTemplate": template}), "", 1)
    without = usage(executor_pod(META, spec(), "", 1))
    more = {name: amount - without.get(name, 0) for name, amount in usage(pod).items()}
    assert {name: amount for name, amount in more.items() if amount} == {
        "requests.cpu": 3,
        "cpu": 3,
        "limits.cpu": 3,
        "requests.example.com/x": 1,
    }


def test_what_a_pod_says_for_all_its_containers_and_its_overhead_count():
    whole = {"spec": {"resources": {"limits": {"memory": "64Gi"}}, "overhead": {"memory": "1Gi"}}}
    found = usage(executor_pod(META, spec(executor={"podTemplate": whole}), "", 1))
    assert found["requests.memory"] == found["limits.memory"] == 65 * 1024**3


def test_claims_that_the_next_executors_find_are_not_asked_for_twice():
    local = {"type": "ReusedPVC", "size": "10Gi", "storageClassName": "fast"}
    wanted = spec(state={"local": local, **DIRECTORIES})
    fast = "fast.storageclass.storage.k8s.io/persistentvolumeclaims"
    for name in ("persistentvolumeclaims", "count/persistentvolumeclaims", fast):
        full = quota({name: "2"}, {name: "2"})
        # An executor is lost, and its claim waits for the next one; or the driver is.
        assert not found(full, wanted, wanted, 1, 1, claims=2).whole
        assert not found(full, wanted, wanted, 0, 0, claims=2).whole
        assert found(full, wanted, wanted, 0, 0, claims=1).whole
        gone = found(full, wanted, wanted, 0, 0)
        assert gone.start
        assert gone.left


def test_claims_that_go_with_their_executors_are_no_ended_drivers():
    local = {"type": "EphemeralPVC", "size": "10Gi"}
    wanted = spec(state={"local": local, **DIRECTORIES})
    gone = found(quota({"persistentvolumeclaims": "2"}, {"persistentvolumeclaims": "2"}), wanted)
    assert (bool(gone.start), gone.left) == (True, False)


def test_what_stands_by_needs_room_beside_what_runs():
    half = quota({"pods": "5"}, {"pods": "3"})
    asked = found(half, spec(image="clicks:2"), spec(), 1, 2)
    assert asked == Room(beside="ResourceQuota compute has no room for pods 3 of 5")
    assert found(quota({"pods": "6"}, {"pods": "3"}), spec(), spec(), 1, 2) == Room()


def test_what_is_said_does_not_change_with_what_others_use():
    said = {found(quota({"pods": "6"}, {"pods": used})).whole for used in ("4", "5", "6")}
    assert said == {"ResourceQuota compute has no room for pods 3 of 6"}


def test_a_refusal_by_a_quota_is_read_and_any_other_is_not():
    used = "requested: pods=1,cpu=2, used: pods=9,cpu=1500m"
    one = refused_by(f'pods "x" is forbidden: exceeded quota: small, {used}, limited: pods=9,cpu=2')
    assert one is not None
    assert one["status"]["hard"] == {"pods": "9", "cpu": "2"}
    assert one["status"]["used"] == {"pods": "9", "cpu": "1500m"}
    assert "cpu" in found(one).start
    assert refused_by('pods "x" is forbidden: violates PodSecurity') is None
    assert refused_by("exceeded quota: small") is None


def limit_range(**limits):
    one = {"type": "Container", **{name: {"cpu": amount} for name, amount in limits.items()}}
    return {"metadata": {"name": "usual"}, "spec": {"limits": [{"type": "Pod"}, one]}}


def test_a_limit_that_no_container_says_and_a_quota_asks_for_is_named():
    lacks = found(quota({"limits.cpu": "100"}))
    asked = "ResourceQuota compute asks every container for limits.cpu, and driver says none"
    assert asked in lacks.silent
    assert "set it in the podTemplate, or by a LimitRange's default" in lacks.silent
    assert "executor says none" in lacks.silent
    # The API server says it at once of a driver; and a webhook may add it.
    assert (lacks.start, lacks.whole) == ("", "")
    assert found(quota({"limits.cpu": "100"}), spec(image="b:2"), spec(), 1, 2).growth == ""
    assert found(quota({"limits.cpu": "100"}, scopes=["Terminating"])) == Room()


def test_an_edit_with_a_container_that_does_not_say_it_is_held():
    beside = {"name": "proxy", "image": "x", "restartPolicy": "Always"}
    wider = spec(driver={"podTemplate": {"spec": {"initContainers": [beside]}}})
    lacks = found(quota({"limits.cpu": "100"}), wider, spec(), 1, 2)
    assert "proxy says none" in lacks.growth
    assert "driver says none" not in lacks.growth


def test_a_limit_of_cores_that_spark_sets_counts():
    limited = spec(sparkConf={"spark.kubernetes.executor.limit.cores": "3"})
    lacks = found(quota({"limits.cpu": "5"}), limited)
    assert "limits.cpu 6 of 5" in lacks.whole
    assert "executor says none" not in lacks.silent


def test_what_a_limit_range_puts_in_counts():
    usual = limit_range(default="1", defaultRequest="1")
    # The driver, and two executors of two containers each.
    assert found(quota({"limits.cpu": "5"}), ranges=[usual]) == Room()
    lacks = found(quota({"limits.cpu": "4"}), ranges=[usual])
    assert "limits.cpu 5 of 4" in lacks.whole
    # Requests that are said stay as they are: 1 + 2 * (2 + 200m).
    assert found(quota({"requests.cpu": "5400m"}), ranges=[usual]) == Room()


def test_what_runs_counts_by_the_same_limit_range():
    usual, full = limit_range(default="1"), quota({"limits.cpu": "5"}, {"limits.cpu": "5"})
    assert found(full, spec(image="b:2"), spec(), 1, 2, [usual]).growth == ""
    wider = JobSpec.model_validate(spec_data(scaling={"parallelism": 6}))
    assert "limits.cpu 7 of 5" in found(full, wider, spec(), 1, 2, [usual]).growth


@pytest.mark.parametrize("name", ["configmaps", "count/configmaps"])
def test_objects_that_an_attempt_needs_count(name):
    lacks = found(quota({name: "1"}))
    assert f"no room for {name} 2 of 1" in lacks.start
    # Those of a driver that lives go with it; those of one that ended are to be deleted first.
    full = quota({name: "2"}, {name: "2"})
    assert found(full, spec(image="b:2"), spec(), 1, 2).growth == ""
    gone = found(full, spec(), spec())
    assert gone.start
    assert gone.left


def test_a_secret_for_each_attempt_counts():
    assert "secrets 1 of 0" in found(quota({"secrets": "0"})).start
    assert found(quota({"count/secrets": "1"})) == Room()


def test_volumes_that_a_template_adds_count():
    claim = {"spec": {"resources": {"requests": {"storage": "5Gi"}}, "storageClassName": "fast"}}
    volume = {"name": "spill", "ephemeral": {"volumeClaimTemplate": claim}}
    wanted = spec(executor={"podTemplate": {"spec": {"volumes": [volume]}}})
    fast = "fast.storageclass.storage.k8s.io/requests.storage"
    assert f"{fast} 10240Mi of 9Gi" in found(quota({fast: "9Gi"}), wanted).whole


def test_a_preflight_needs_room_for_its_pod_beside_what_runs():
    tried = spec(image="b:2", upgrade={"preflight": True})
    full = quota({"pods": "3"}, {"pods": "3"})
    assert found(full, tried, spec(), 1, 2).trial == (
        "ResourceQuota compute has no room for pods 1 of 3"
    )
    assert found(quota({"pods": "4"}, {"pods": "3"}), tried, spec(), 1, 2).trial == ""
    # It ends by a deadline, which other pods of a job have not.
    ends = quota({"pods": "0"}, scopes=["Terminating"])
    assert found(ends, tried, spec(), 1, 2).trial
    assert not found(ends, tried, spec(), 1, 2).growth


@pytest.mark.parametrize(
    "term", [{"namespaces": ["web"]}, {"namespaceSelector": {}}, {"topologyKey": "zone"}]
)
def test_a_quota_of_pods_that_are_placed_by_other_namespaces_counts_those(term):
    for rule in (
        {"requiredDuringSchedulingIgnoredDuringExecution": [term]},
        {"preferredDuringSchedulingIgnoredDuringExecution": [{"podAffinityTerm": term}]},
    ):
        template = {"spec": {"affinity": {"podAntiAffinity": rule}}}
        one = quota({"pods": "1"}, scopes=["CrossNamespacePodAffinity"])
        lacks = found(one, spec(executor={"podTemplate": template})).whole
        assert bool(lacks) == ("topologyKey" not in term)
