"""What is kept of listed and watched objects is what is used of them, however they come."""

import json
import re

import pytest

from moorage_operator.podviews import pod_view
from moorage_operator.watch_cache import page_of, used_of

FIELDS = [{"manager": "kubelet", "fieldsV1": {"f:metadata": {}}}]
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def pod():
    state = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "startedAt": "2026-03-01"}}
    return {
        "metadata": {
            "name": "p",
            "namespace": "here",
            "uid": "u",
            "resourceVersion": "7",
            "labels": {"moorage.dev/role": "driver", "moorage.dev/attempt": "3"},
            "annotations": {"moorage.dev/revision": "r", "other": "x"},
            "ownerReferences": [{"controller": True, "uid": "j", "name": "clicks"}],
            "creationTimestamp": "2026-03-01T12:00:00Z",
            "managedFields": FIELDS,
        },
        "spec": {
            "nodeName": "n",
            "containers": [{"name": "driver", "env": [{"name": "A", "value": "b"}]}],
            "volumes": [
                {"name": "data", "emptyDir": {}},
                {"name": "moorage-tls", "secret": {"secretName": "tls"}},
            ],
            "tolerations": [{"key": "a"}],
        },
        "status": {
            "phase": "Failed",
            "podIP": "10.0.0.1",
            "hostIP": "10.0.0.2",
            "conditions": [{"type": "Ready", "status": "False", "reason": "x"}],
            "containerStatuses": [{"name": "driver", "image": "i", "state": state}],
        },
    }


def job(**meta):
    named = {"name": "clicks", "namespace": "here", "uid": "j", "resourceVersion": "9"}
    return {
        "metadata": {**named, "generation": 2, "finalizers": ["f"], **meta},
        "spec": {"any": {"thing": [1, 2.5, None]}},
        "status": {"phase": "Running"},
    }


def page(*items, **meta):
    return json.dumps({"kind": "List", "metadata": meta, "items": items}).encode()


def words(data):
    """All names and texts in it, but of volumes that are there until an object is kept."""
    return re.findall(r"\w+", json.dumps(used_of("Pod", data)))


def test_decisions_see_the_same_of_a_pod_by_list_by_watch_and_whole():
    (listed,), _ = page_of("Pod", page(pod()))
    whole = pod_view(pod(), "j")
    assert pod_view(used_of("Pod", pod()), "j") == pod_view(listed, "j") == whole
    assert whole.tls_secret
    assert used_of("Pod", listed) == used_of("Pod", pod())
    assert not {"tolerations", "hostIP", "managedFields", "env", "data"} & set(words(listed))


@pytest.mark.parametrize("missing", ["status", "spec"])
def test_a_pod_may_lack_any_part(missing):
    body = pod()
    del body[missing]
    (listed,), _ = page_of("Pod", page(body))
    assert pod_view(used_of("Pod", listed), "j") == pod_view(body, "j")


@pytest.mark.parametrize("kind", ["StatefulSparkJob", "StatefulSparkSnapshot"])
def test_of_our_own_all_is_kept_but_who_manages_which_field_and_what_kubectl_applied(kind):
    body = job(managedFields=FIELDS, annotations={LAST_APPLIED: "{}", "mine": "1"})
    (listed,), _ = page_of(kind, page(body))
    assert used_of(kind, listed) == used_of(kind, body) == job(annotations={"mine": "1"})


@pytest.mark.parametrize("kind", ["Pod", "StatefulSparkJob", "ControllerRevision"])
def test_pages_say_what_to_go_on_with(kind):
    assert page_of(kind, page(**{"continue": "x", "resourceVersion": "5"})) == ([], "x")
    assert page_of(kind, page(resourceVersion="5")) == ([], "")
    assert page_of(kind, b'{"items": null, "metadata": {"continue": null}}') == ([], "")


def test_what_has_another_form_than_it_should_comes_whole():
    """No API server gives it so; whoever reads it is never surprised by an odd shape."""
    odd = {**pod(), "spec": {"containers": 7}}
    assert page_of("Pod", page(odd)) == ([odd], "")
    assert used_of("Pod", odd) == odd


@pytest.mark.parametrize("text", [b"", b"[]", b"<html>", b'{"items": 7}', b'{"items": [7]}'])
def test_what_is_no_list_is_an_error(text):
    with pytest.raises(ValueError, match=r".+"):
        page_of("Pod", text)
