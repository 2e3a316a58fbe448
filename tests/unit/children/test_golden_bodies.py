"""Every byte of what the operator makes for an attempt, so that a change of it is a choice."""

from pathlib import Path

import pytest
import yaml

from moorage_operator.children import bodies
from moorage_operator.children.secrets import config_owner, scrape_secret, token_secret

GOLDEN = Path(__file__).parent / "golden"
TOKEN = "abc"  # noqa: S105


def spread(role: str) -> list[dict[str, object]]:
    """Constraints that keep the pods of a role apart."""
    return [
        {
            "maxSkew": 1,
            "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"moorage.dev/role": role}},
        }
    ]


FULL = {
    "application.args": ["--since", "2026-11-01"],
    "application.pyFiles": ["local:///app/lib.zip"],
    "application.env": [
        {"name": "MODE", "value": "fast"},
        {"name": "KAFKA_PASSWORD", "valueFrom": {"secretKeyRef": {"name": "k", "key": "p"}}},
    ],
    "sparkConf": {"spark.ui.enabled": "true", "spark.sql.ansi.enabled": "false"},
    "serviceAccountName": "clicks",
    "driver": {
        "cores": 2,
        "cpuRequest": "500m",
        "memory": "8Gi",
        "podTemplate": {
            "metadata": {"labels": {"team": "web"}, "annotations": {"note": "1e3"}},
            "spec": {
                "priorityClassName": "streams",
                "topologySpreadConstraints": spread("driver"),
                "nodeSelector": {"pool": "drivers"},
                "tolerations": [{"key": "pool", "operator": "Exists"}],
                "containers": [
                    {"name": "driver", "env": [{"name": "TZ", "value": "UTC"}]},
                ],
                "initContainers": [{"name": "logs", "image": "logs:1", "restartPolicy": "Always"}],
            },
        },
    },
    "executor": {
        "cores": 4,
        "instances": 3,
        "cpuRequest": "1",
        "memory": "16Gi",
        "sidecar": {"resources": {"requests": {"cpu": "1"}, "limits": {"memory": "4Gi"}}},
        "podTemplate": {
            "spec": {
                "priorityClassName": "stream-workers",
                "topologySpreadConstraints": spread("executor"),
                "securityContext": {"runAsUser": 1000},
                "initContainers": [{"name": "warm", "image": "warm:1"}],
                "volumes": [{"name": "models", "configMap": {"name": "models"}}],
                "containers": [
                    {
                        "name": "executor",
                        "resources": {"limits": {"nvidia.com/gpu": "1"}},
                        "volumeMounts": [{"name": "models", "mountPath": "/models"}],
                    }
                ],
            }
        },
    },
    "state.credentialsSecretRef": {"name": "s3-creds"},
    "failurePolicy.executorFailures": {"max": 5, "window": "90s"},
}
LOCAL = {
    "empty-dir": {"type": "EmptyDir", "size": "20Gi"},
    "ephemeral-claim": {"type": "EphemeralPVC", "size": "50Gi", "storageClassName": "fast"},
    "reused-claim": {"type": "ReusedPVC", "size": "50Gi", "storageClassName": "fast"},
    "host-path": {"type": "HostPath", "path": "/mnt/nvme/moorage"},
}
CASES = {
    "small": {},
    "tls": {"security": {"tls": {"secretName": "clicks-tls"}}},
    "full": FULL,
    **{f"local-{name}": {"state.local": local} for name, local in LOCAL.items()},
}


class Readable(yaml.SafeDumper):
    """Writes files in a ConfigMap as blocks."""


Readable.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    ),
)


@pytest.mark.parametrize("name", CASES)
def test_the_bodies_of_an_attempt_are_the_golden_ones(name, meta, spec, order):
    owner = config_owner(meta, order.attempt, "uid-of-the-config-map")
    made = [
        token_secret(meta, order.attempt, TOKEN, owner),
        scrape_secret(meta, TOKEN),
        *bodies(meta, spec(CASES[name]), "clicks-0123456789", order),
    ]
    file = GOLDEN / f"{name}.yaml"
    if not file.exists():
        file.write_text(yaml.dump_all(made, Dumper=Readable, sort_keys=True))
        pytest.fail(f"{file.name} did not exist and was written: read it, then run again")
    assert made == list(yaml.safe_load_all(file.read_text()))
