"""Whether any node could hold a pod, by what nodes say."""

import pytest

from moorage_operator.scheduling import Places


def node(name="a", cpu="8", memory="16Gi", labels=None, taints=(), **more):
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"taints": list(taints)},
        "status": {"allocatable": {"cpu": cpu, "memory": memory, **more}},
    }


def pod(cpu="4", memory="8Gi", **spec):
    asked = {"requests": {"cpu": cpu, "memory": memory}}
    return {"spec": {"containers": [{"name": "executor", "resources": asked}], **spec}}


def text(one, *nodes):
    places = Places(one)
    places.look(nodes)
    return places.text


def affinity(*expressions, fields=()):
    term = {"matchExpressions": list(expressions), "matchFields": list(fields)}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return {"affinity": {"nodeAffinity": required}}


def test_one_node_that_could_is_enough():
    assert text(pod(), node(cpu="1"), node()) == ""


def test_why_none_could_is_said_with_the_most_that_there_is():
    said = text(pod(memory="40Gi"), node(memory="12Gi"), node(memory="32Gi"), node(cpu="2"))
    assert said == (
        "of 3 nodes 2 with too little memory (32768Mi at most, and it asks for 40960Mi), "
        "1 with too little cpu (8 at most, and it asks for 4)"
    )


def test_a_resource_that_no_node_has_is_missing():
    one = pod()
    one["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": "1"}
    assert "too little nvidia.com/gpu (0 at most, and it asks for 1)" in text(one, node())
    assert text(one, node(**{"nvidia.com/gpu": "2"})) == ""


GPU = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("toleration", "holds"),
    [
        (None, False),
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "value": "yes"}, True),
        ({"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}, True),
        ({"key": "gpu", "operator": "Equal", "value": "no"}, False),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
    ],
)
def test_taints_are_borne_by_tolerations(toleration, holds):
    one = pod(tolerations=[toleration] if toleration else [])
    assert (text(one, node(taints=[GPU])) == "") == holds


def test_taints_that_pass_or_only_prefer_count_for_nothing():
    passing = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    assert text(pod(), node(taints=[passing, {"key": "x", "effect": "PreferNoSchedule"}])) == ""


@pytest.mark.parametrize(
    ("rules", "holds"),
    [
        ({"nodeSelector": {"disk": "ssd"}}, True),
        ({"nodeSelector": {"disk": "hdd"}}, False),
        ({"nodeName": "a"}, True),
        ({"nodeName": "b"}, False),
        (affinity({"key": "disk", "operator": "In", "values": ["ssd"]}), True),
        (affinity({"key": "disk", "operator": "NotIn", "values": ["ssd"]}), False),
        (affinity({"key": "disk", "operator": "Exists"}), True),
        (affinity({"key": "zone", "operator": "DoesNotExist"}), True),
        (affinity({"key": "cores", "operator": "Gt", "values": ["4"]}), True),
        (affinity({"key": "cores", "operator": "Lt", "values": ["4"]}), False),
        (affinity({"key": "disk", "operator": "Gt", "values": ["4"]}), False),
        (affinity(fields=[{"key": "metadata.name", "operator": "In", "values": ["a"]}]), True),
        (affinity(), False),
    ],
)
def test_a_node_is_chosen_by_labels_name_and_affinity(rules, holds):
    one = node(labels={"disk": "ssd", "cores": "8"})
    assert (text(pod(**rules), one) == "") == holds


def test_a_node_that_says_nothing_yet_may_do():
    one = node()
    del one["status"]
    assert text(pod(), one) == ""
    assert text(pod()) == ""
