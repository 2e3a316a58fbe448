"""The Secrets of a job: one for each attempt, and one that lives as long as the job.

Decides what each of them opens. An attempt's is made of one random word, `control`, which alone may
tell the driver what to do; what other processes need is derived from it one way, so that an
executor's pod, or whoever sees Spark's secret, cannot give orders. Pure.

    Secret             key           what it opens                            in the pods of
    <job>-<n>-tokens   control       the driver's endpoint, all of it         driver
                       token         state servers (older runtimes: all)      driver, executor
                       spark-file    Spark's processes, as the driver reads   driver
                       spark         the same in base64, as executors do      executor
    <job>-scrape       token         reading from the endpoint, every attempt driver
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping
from typing import Any

from moorage_operator.children.names import (
    config_map_name,
    labels,
    owner_reference,
    scrape_secret_name,
    token_secret_name,
)
from moorage_operator.world import Meta

SPARK_SECRET_KEY = "spark"  # noqa: S105  where it lies in the Secret

_SERVERS, _SPARK = "moorage state servers 1", "moorage spark 1"


def token_secret(
    meta: Meta, attempt: int, control: str, owner: Mapping[str, Any]
) -> dict[str, Any]:
    """The secrets of one attempt; never changed: whoever runs has the first ones.

    Args:
        owner: a reference to what it goes with: see `config_owner`.
    """
    spark = derived(control, _SPARK)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": token_secret_name(meta.name, attempt),
            "namespace": meta.namespace,
            "labels": labels(meta, attempt=attempt),
            "ownerReferences": [dict(owner)],
        },
        "type": "Opaque",
        "immutable": True,
        "stringData": {
            "control": control,
            "token": derived(control, _SERVERS),
            "spark-file": spark,
            SPARK_SECRET_KEY: base64.b64encode(spark.encode()).decode(),
        },
    }


def scrape_secret(meta: Meta, token: str) -> dict[str, Any]:
    """The word that only reads. It has one name for all attempts, and may be changed by anybody."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": scrape_secret_name(meta.name),
            "namespace": meta.namespace,
            "labels": labels(meta),
            "ownerReferences": [owner_reference(meta)],
        },
        "type": "Opaque",
        "stringData": {"token": token},
    }


def config_owner(meta: Meta, attempt: int, uid: str) -> Mapping[str, Any]:
    """Makes an attempt's Secret go with its ConfigMap, which is cleared up when it is old.

    So the operator needs no right to delete Secrets, or to list them.
    """
    name = config_map_name(meta.name, attempt)
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid}


def derived(secret: str, label: str) -> str:
    """Another secret, from which this one cannot be found: HMAC-SHA256 of the label, as hex."""
    return hmac.digest(secret.encode(), label.encode(), hashlib.sha256).hex()
