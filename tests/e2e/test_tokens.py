"""Tokens that end while their driver runs, as those of service accounts do: on some clouds in an
hour. The kubelet puts another one into the file in time; who read it once is shut out."""

import base64
import json
import time

import pytest

from .e2e_cluster import wait_until
from .ticker import Ticker

_SECONDS = 600
"""How long such a token holds; none is made for less."""

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
    wait_until(lambda: time.time() > first + 5, _SECONDS + 60, "the first token ends")
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
