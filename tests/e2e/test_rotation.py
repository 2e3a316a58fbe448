"""What is replaced while a job runs: the token of its account, the keys of its store."""

import base64
import json
import time
import uuid
from contextlib import suppress
from itertools import starmap

import pytest
from kubernetes.client.exceptions import ApiException

from .e2e_cluster import wait_until
from .ticker import Ticker

_SECONDS = 600
"""How long a token holds here; none is made for less. On some clouds it is an hour."""

_LEEWAY = 90
"""For which the API server takes one that has ended, and a little more."""

_PLACE = "/var/run/secrets/kubernetes.io/serviceaccount"
_VOLUME = {
    "name": "account",
    "projected": {
        "sources": [
            {"serviceAccountToken": {"path": "token", "expirationSeconds": _SECONDS}},
            {
                "configMap": {
                    "name": "kube-root-ca.crt",
                    "items": [{"key": "ca.crt", "path": "ca.crt"}],
                }
            },
        ]
    },
}
_TEMPLATE = {
    "spec": {
        "containers": [
            {"name": "driver", "volumeMounts": [{"name": "account", "mountPath": _PLACE}]}
        ],
        "volumes": [_VOLUME],
    }
}
_USERS = "/etc/s3/users.json"


@pytest.fixture(scope="module")
def ticker(namespace, images, pull_policy, s3):
    ticker = Ticker(namespace, images["job"], pull_policy, s3, "spark")
    driver = ticker.manifest()["spec"]["driver"]
    ticker.start(driver={**driver, "podTemplate": _TEMPLATE})
    ticker.wait_ready()
    ticker.wait_checkpoints()
    return ticker


def ends(ticker):
    """When the token that is in the driver's file now ends."""
    name = ticker.driver["metadata"]["name"]
    token = ticker.namespace.run_in(name, "driver", "cat", f"{_PLACE}/token").strip()
    claims = token.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["exp"]


@pytest.mark.soak
def test_a_driver_gets_executors_after_the_token_that_it_began_with_has_ended(ticker):
    before, first = ticker.attempt, ends(ticker)
    over = first + _LEEWAY
    wait_until(lambda: time.time() > over, _SECONDS + _LEEWAY + 60, "the first token has ended")
    assert ends(ticker) > first
    lost = ticker.namespace.pods("executor")[0]["metadata"]["name"]
    ticker.namespace.delete("Pod", lost, "v1")

    def replaced():
        names = {pod["metadata"]["name"] for pod in ticker.namespace.pods("executor")}
        return lost not in names and ticker.namespace.status()["executors"]["ready"] == 2

    wait_until(replaced, 300, "two executors again")
    ticker.wait_checkpoints(2)
    assert ticker.attempt == before
    ticker.audit()


class Users:
    """Whom the tests' S3 server knows, by their keys."""

    def __init__(self, system):
        self._system = system
        found = system.get("Secret", "s3-users", "v1")["data"]["users.json"]
        self._users = json.loads(base64.b64decode(found))
        self.first = dict(self._users["identities"][0]["credentials"][0])

    def are(self, *keys):
        """Have the server begin anew with these keys, and no others."""
        self._users["identities"][0]["credentials"] = list(keys)
        data = json.dumps(self._users)
        self._system.patch("Secret", "s3-users", {"stringData": {"users.json": data}}, "v1")
        wait_until(
            lambda: self._system.run_in("s3", "s3", "cat", _USERS) == data,
            240,
            "the server's pod has the file",
        )
        before = self._restarts()
        with suppress(ApiException, AssertionError):  # the connection may end with it
            self._system.run_in("s3", "s3", "sh", "-c", "kill -TERM 1")
        wait_until(lambda: self._restarts() > before, 240, "the server has begun anew")

    def _restarts(self):
        """How often, of a server that is ready; -1 while it is not."""
        (found,) = self._system.get("Pod", "s3", "v1")["status"]["containerStatuses"]
        return found["restartCount"] if found["ready"] else -1


def test_keys_of_the_store_are_replaced_while_the_job_runs(ticker, system, request):
    if request.config.getoption("--s3-endpoint"):
        pytest.skip("the S3 server's keys are not ours to replace")
    users, before = Users(system), ticker.attempt
    newer = {"accessKey": "moorage-e2e-newer", "secretKey": uuid.uuid4().hex}

    def has_taken(pod, container):
        log = ticker.namespace.log(pod["metadata"]["name"], container=container)
        return "keys of the store taken up" in log

    users.are(users.first, newer)
    try:
        data = {
            "AWS_ACCESS_KEY_ID": newer["accessKey"],
            "AWS_SECRET_ACCESS_KEY": newer["secretKey"],
        }
        ticker.namespace.patch("Secret", "s3", {"stringData": data}, "v1")
        pods = [(ticker.driver, "driver")]
        pods += [(pod, "state-server") for pod in ticker.namespace.pods("executor")]
        wait_until(lambda: all(starmap(has_taken, pods)), 300, "all pods have taken up the keys")
        users.are(newer)
        ticker.wait_checkpoints(2)
        assert ticker.attempt == before
        ticker.audit()
    finally:
        users.are(users.first, newer)
