"""What a namespace's quotas lack for a job's pods, as the API server would count them."""

import pytest
from moorage_testing.manifests import spec_data

from moorage_api import JobSpec
from moorage_operator.quota import room
from moorage_operator.world import Meta, Room

META = Meta("clicks", "default", "uid", 1, "1")


def spec(**changes):
    return JobSpec.model_validate(spec_data(scaling={"parallelism": 4}, **changes))


def quota(hard, used=None, **rules):
    status = {"hard": hard, "used": used or {}}
    return {"metadata": {"name": "compute"}, "spec": {"hard": hard, **rules}, "status": status}


def found(one, wanted=None, running=None, drivers=0, executors=0):
    return room([one], META, wanted or spec(), running, drivers, executors)


@pytest.mark.parametrize(
    ("hard", "start", "whole"),
    [
        ({"pods": "3"}, "", ""),
        ({"pods": "2"}, "", "lacks pods 1: 3 more are needed, 2 of 2 are left"),
        ({"count/pods": "1"}, "lacks count/pods 1", "lacks count/pods 2"),
        # A driver of 2Gi and two executors of 4Gi, each with servers of 1088Mi.
        ({"limits.memory": "12416Mi"}, "", ""),
        ({"memory": "12415Mi"}, "", "lacks memory 1Mi"),
        # A core, and twice two cores with 200m beside them.
        ({"requests.cpu": "5400m"}, "", ""),
        ({"cpu": "5"}, "", "lacks cpu 400m"),
        ({"requests.nvidia.com/gpu": "0", "services": "0"}, "", ""),
        ({"pods": "a few"}, "lacks pods", "lacks pods"),
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
    assert "10240Mi" in found(quota({"requests.storage": "10Gi"}), wanted).whole


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
    lacks = found(quota({"pods": "0"}, **rules), spec(executor=WITH_CLASS))
    assert bool(lacks.start) == applies


def test_pods_that_go_make_room_and_an_edit_is_held_by_what_it_adds_alone():
    full = quota(
        {"pods": "3", "limits.memory": "12416Mi"}, {"pods": "3", "limits.memory": "12416Mi"}
    )
    same = found(full, spec(image="clicks:2"), spec(), 1, 2)
    assert same == Room()
    wider = found(full, spec(driver={"memory": "3Gi"}), spec(), 1, 2)
    assert "lacks limits.memory 1024Mi" in wider.growth
    # One executor is missing already: that is no reason to hold an edit of the image.
    lost = found(quota({"pods": "2"}, {"pods": "2"}), spec(image="clicks:2"), spec(), 1, 1)
    assert lost.whole
    assert not lost.growth


def test_resources_that_are_no_mapping_have_nothing_and_stop_no_pass():
    beside = {"name": "a", "image": "x", "restartPolicy": "Always"}
    for wrong in ({"requests": ["cpu"]}, {"limits": "cpu"}, "cpu"):
        template = {"spec": {"initContainers": [{**beside, "resources": wrong}]}}
        assert found(quota({"pods": "3"}), spec(executor={"podTemplate": template})) == Room()
