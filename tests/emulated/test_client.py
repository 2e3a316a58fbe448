"""The client on the wire: what it sends, and what it makes of answers that go wrong."""

import asyncio
import json

import kmock
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.aio.client import Configuration
from moorage_testing.kube.emulator import Emulator

from moorage_operator.kube.client import KubeCluster, configuration
from moorage_operator.kube.rest import encoded
from moorage_operator.ports import ApiUnavailable, Conflict, Forbidden, Invalid

MAP = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "a", "namespace": "n"},
    "data": {"k": "v"},
}


@pytest.fixture
async def emulator():
    async with Emulator() as found, kmock.Server(found):
        yield found


@pytest.fixture
async def cluster(emulator):
    found = Configuration(host=str(emulator.url).rstrip("/"))
    found.api_key["BearerToken"] = "bearer t0ken"
    cluster = KubeCluster(found, timeout=2.0)
    yield cluster
    await cluster.close()


# -- what is sent ----------------------------------------------------------------------------------


async def test_applying_is_forced_under_our_manager(cluster, emulator):
    await cluster.apply(MAP)
    method, path, query, _ = emulator.raw[-1]
    assert (method, path) == ("PATCH", "/api/v1/namespaces/n/configmaps/a")
    assert query == {"fieldManager": "moorage-operator", "force": "true"}


async def test_every_request_says_who_we_are(cluster, emulator):
    await cluster.get("ConfigMap", "n", "a")
    assert list(emulator)[-1].headers["Authorization"] == "bearer t0ken"


async def test_a_revision_is_sent_as_the_server_would_write_it(cluster, emulator):
    text = "a < b & c > d\u2028é"
    await cluster.create(
        {
            "apiVersion": "apps/v1",
            "kind": "ControllerRevision",
            "metadata": {"name": "r", "namespace": "n"},
            "revision": 1,
            "data": {"z": text, "a": 1},
        }
    )
    sent = emulator.raw[-1][3]
    wanted = '"data":{"a":1,"z":"a \\u003c b \\u0026 c \\u003e d\\u2028é"}'
    assert wanted.encode() in sent


@given(st.recursive(st.text() | st.integers() | st.booleans() | st.none(), st.lists, max_leaves=9))
def test_what_is_encoded_says_the_same(value):
    text = encoded({"a": value})
    assert json.loads(text) == {"a": value}
    assert not set(b"<>&") & set(text)


async def test_a_deletion_carries_uid_and_grace(cluster, emulator):
    await cluster.create(MAP)
    with pytest.raises(Conflict):
        await cluster.delete("ConfigMap", "n", "a", uid="another", grace_seconds=0)
    assert json.loads(emulator.raw[-1][3]) == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "gracePeriodSeconds": 0,
        "preconditions": {"uid": "another"},
        "propagationPolicy": "Background",
    }


async def test_a_long_list_is_read_page_by_page(cluster, emulator):
    emulator.page = 3
    for number in range(8):
        meta = {"name": f"m{number}", "namespace": "n", "labels": {"x": "y"}}
        emulator.api.create({**MAP, "metadata": meta})
    found = await cluster.list("ConfigMap", "n", {"x": "y"})
    assert [item["metadata"]["name"] for item in found] == [f"m{n}" for n in range(8)]


async def test_a_list_that_expires_on_the_way_is_read_anew(cluster, emulator):
    emulator.page = 1
    for number in range(2):
        emulator.api.create({**MAP, "metadata": {"name": f"m{number}", "namespace": "n"}})
    gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
    emulator[{"continue": "1"}][:1] << 410 << gone
    assert len(await cluster.list("ConfigMap", "n")) == 2


# -- what comes back -------------------------------------------------------------------------------


def refusal(code, reason="", **more):
    return {"kind": "Status", "code": code, "reason": reason, "message": "no", **more}


@pytest.mark.parametrize(
    ("code", "reason", "error"),
    [
        (400, "BadRequest", Invalid),
        (401, "Unauthorized", Forbidden),
        (403, "Forbidden", Forbidden),
        (409, "Conflict", Conflict),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", ApiUnavailable),
        (500, "InternalError", ApiUnavailable),
        (503, "ServiceUnavailable", ApiUnavailable),
        (504, "Timeout", ApiUnavailable),
    ],
)
async def test_a_refusal_is_the_error_of_its_code(cluster, emulator, code, reason, error):
    emulator["get"] << code << refusal(code, reason)
    with pytest.raises(error) as refused:
        await cluster.get("ConfigMap", "n", "a")
    assert refused.value.reason == reason


async def test_a_wish_for_a_wait_is_passed_on(cluster, emulator):
    emulator["get"] << 429 << {"Retry-After": "7"} << refusal(429, "TooManyRequests")
    with pytest.raises(ApiUnavailable) as refused:
        await cluster.get("ConfigMap", "n", "a")
    assert refused.value.retry_after == 7.0


@pytest.mark.parametrize("answer", [b"<html>proxy</html>", b"", b"[]", b'{"half":'])
async def test_an_answer_that_is_no_object_is_no_answer(cluster, emulator, answer):
    emulator["get"] << answer
    with pytest.raises(ApiUnavailable):
        await cluster.get("ConfigMap", "n", "a")


async def test_a_missing_kind_is_told_apart_from_a_missing_object(cluster, emulator):
    emulator["list"] << 404 << refusal(404, "NotFound")
    assert await cluster.get("ConfigMap", "n", "a") is None
    with pytest.raises(Exception, match="no"):
        await cluster.list("StatefulSparkJob", None)


async def test_a_redirect_is_not_followed(cluster, emulator):
    emulator["get"] << 302 << {"Location": "http://127.0.0.1:1/"}
    with pytest.raises(ApiUnavailable):
        await cluster.get("ConfigMap", "n", "a")


async def test_a_server_that_is_not_there_is_unavailable():
    cluster = KubeCluster(Configuration(host="http://127.0.0.1:1"), timeout=2.0)
    with pytest.raises(ApiUnavailable, match="no answer from the API server: GET"):
        await cluster.get("ConfigMap", "n", "a")
    await cluster.close()


async def test_a_server_that_is_silent_is_unavailable_in_time(cluster, emulator):
    cluster._timeout = type(cluster._timeout)(total=0.1)
    emulator["get"] << (lambda: asyncio.sleep(5))
    with pytest.raises(ApiUnavailable):
        await cluster.get("ConfigMap", "n", "a")


async def test_a_write_is_sent_once_whatever_comes_back(cluster, emulator):
    emulator["patch"] << 503 << refusal(503)
    with pytest.raises(ApiUnavailable):
        await cluster.apply(MAP)
    assert len(list(emulator["patch"])) == 1


async def test_a_kubeconfig_says_where_the_server_is(tmp_path):
    file = tmp_path / "config"
    file.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "kind-a",
                "contexts": [{"name": "kind-a", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": "https://k.example:6443"}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
            }
        )
    )
    found = await configuration(file)
    assert found.host == "https://k.example:6443"
    assert (await KubeCluster(found)._who())["authorization"] == "Bearer t"
