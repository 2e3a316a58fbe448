"""The ticker on a cluster: its manifest, and the auditor that judges it from inside."""

import json
from pathlib import Path
from typing import Any

import yaml
from kubernetes.client.exceptions import ApiException

from moorage_api.driver import ENDPOINT_PORT, METRICS_PATH, SCRAPE_FILE

from .e2e_cluster import Namespace, wait_until

__all__ = ["Ticker"]

# What people start from; only places, images and sizes are the tests' own.
_EXAMPLE = yaml.safe_load(
    (Path(__file__).parents[2] / "examples" / "kubernetes" / "ticker.yaml").read_text()
)

_OF_JOB = ("job", "namespace")

_PROGRAM_SECONDS = 600.0
"""How long the auditor may take: it reads thousands of files beside a job that is not spared."""

_LIST = """
import json, sys
from moorage_state.stores import open_store
print(json.dumps([found.key for found in open_store(sys.argv[1]).list("")]))
"""


_STATE = """
import json, sys
import moorage.state
from audit import judge_state
rows = moorage.state.read(sys.argv[1], "counter", "seen").to_pylist()
newest = max(row["value"]["last"] for row in rows)
print(json.dumps({**judge_state(sys.argv[1]), "newest": newest}))
"""


# In a driver's pod, whether or not it speaks TLS; says nothing where it does not answer.
_METRICS = """
import contextlib, ssl, sys, urllib.request
token, place = open(sys.argv[1]).read().strip(), sys.argv[2]
trusting = ssl._create_unverified_context()
for scheme in ("http", "https"):
    asked = urllib.request.Request(scheme + place, headers={"Authorization": "Bearer " + token})
    with contextlib.suppress(Exception):
        print(urllib.request.urlopen(asked, timeout=10, context=trusting).read().decode())
"""


class Ticker:
    """One ticker job in a namespace of its own."""

    def __init__(
        self,
        namespace: Namespace,
        image: str,
        pull_policy: str,
        s3: dict[str, str],
        service_account: str,
        name: str = "ticker",
    ) -> None:
        self.namespace = namespace
        self.image = image
        self.pull_policy = pull_policy
        self.s3 = s3
        self.service_account = service_account
        self.name = name
        self.root = f"s3://{s3['bucket']}/{namespace.name}/{name}"

    def manifest(self, **spec: Any) -> dict[str, Any]:
        """The job; small enough for one node of two cores."""
        return {
            **_EXAMPLE,
            "metadata": {"name": self.name},
            "spec": {
                **_EXAMPLE["spec"],
                "image": self.image,
                "imagePullPolicy": self.pull_policy,
                "application": {
                    "mainFile": "local:///app/job.py",
                    "args": [f"{self.root}/counts?{self._query()}", "200"],
                },
                "serviceAccountName": self.service_account,
                "scaling": {"parallelism": 2, "maxParallelism": 16},
                "driver": {"cpuRequest": "50m", "memory": "1200Mi"},
                "executor": {
                    "instances": 2,
                    "cores": 1,
                    "cpuRequest": "50m",
                    "memory": "1200Mi",
                    "sidecar": {
                        "resources": {
                            "requests": {"cpu": "20m", "memory": "384Mi"},
                            "limits": {"memory": "512Mi"},
                        }
                    },
                },
                "state": {
                    "checkpointDir": f"{self.root}/checkpoints",
                    "savepointDir": f"{self.root}/savepoints",
                    "s3": {
                        "endpoint": self.s3["endpoint"],
                        "region": "us-east-1",
                        "pathStyle": True,
                    },
                    "credentialsSecretRef": {"name": "s3"},
                },
                "checkpoint": {"interval": "10s", "minPause": "1s"},
                "failurePolicy": {
                    "backoff": {"initial": "2s", "max": "20s"},
                    "infrastructure": {"nodeLostTimeout": "30s"},
                },
                **spec,
            },
        }

    def start(self, **spec: Any) -> None:
        """Apply it, and the Secret that it needs."""
        data = {"AWS_ACCESS_KEY_ID": self.s3["access"], "AWS_SECRET_ACCESS_KEY": self.s3["secret"]}
        self.namespace.apply(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": "s3"},
                "stringData": data,
            }
        )
        self.namespace.apply(self.manifest(**spec))

    def wait_ready(self, *, attempt: int = 0, generation: int = 0, seconds: float = 420) -> None:
        """Wait until the stream runs."""
        wait_until(
            lambda: self.namespace.is_ready(self.name, attempt=attempt, generation=generation),
            seconds,
            f"{self.name} is ready: {self.namespace.status(self.name).get('message')}",
        )

    def wait_checkpoints(self, more: int = 1, seconds: float = 240) -> None:
        """Wait until so many more checkpoints are complete.

        The driver says how many there are: the status is up to a minute behind, and what was
        newest in it may be older than the misfortune that a test waits to be over.
        """
        wanted: list[int] = []

        def completed() -> bool:
            newest = self.newest_checkpoint()
            if newest is not None and not wanted:
                wanted.append(newest + more)
            return newest is not None and newest >= wanted[0]

        wait_until(completed, seconds, f"{more} more checkpoints of {self.name} (to {wanted})")

    def newest_checkpoint(self) -> int | None:
        """The id of the newest checkpoint as the driver knows it; None if it does not say."""
        return int(self.metrics("moorage_last_checkpoint_id").get("", 0)) or None

    def ranges_opened(self) -> dict[str, int]:
        """How many ranges the driver's runs began with, by where they were found."""
        found = self.metrics("moorage_ranges_opened_total")
        counts = {
            labels.partition('source="')[2].partition('"')[0]: n for labels, n in found.items()
        }
        return {source: int(count) for source, count in counts.items() if count}

    def metrics(self, name: str) -> dict[str, float]:
        """A metric of the driver, by its labels beside the job's; nothing if it does not say."""
        place = f"://127.0.0.1:{ENDPOINT_PORT}{METRICS_PATH}"
        try:
            said = self.namespace.run_in(
                self.driver["metadata"]["name"],
                *("driver", "python", "-c", _METRICS, SCRAPE_FILE, place),
            )
        except (ApiException, AssertionError, KeyError):
            return {}  # it is being replaced
        lines = (line for line in said.splitlines() if line.startswith(f"{name}{{"))
        parts = (line.rpartition(" ") for line in lines)
        return {_further(labels): float(value) for labels, _, value in parts}

    @property
    def attempt(self) -> int:
        """The number of the attempt."""
        return int(self.namespace.status(self.name).get("attempt", {}).get("number", 0))

    @property
    def driver(self) -> dict[str, Any]:
        """The pod of the attempt. Of drivers that have ended the newest stays, for its log."""
        name = self.namespace.status(self.name)["attempt"]["driverPod"]
        found = self.namespace.get("Pod", name, "v1")
        assert found is not None, f"there is no pod {name}"
        return found

    def savepoint(self, name: str) -> dict[str, Any]:
        """What the savepoint's object says of itself; nothing where there is none, or not yet."""
        found = self.namespace.get("StatefulSparkSnapshot", f"{self.name}-{name}") or {}
        status: dict[str, Any] = found.get("status", {})
        return status

    def take_savepoint(self, name: str, seconds: float = 240) -> dict[str, Any]:
        """Ask for a savepoint by annotation and wait for it; returns its status."""
        self.namespace.annotate({"savepoint": name}, self.name)
        self.wait_savepoint(name, seconds)
        return self.savepoint(name)

    def wait_savepoint(self, name: str, seconds: float = 240) -> None:
        """Wait until a savepoint that was asked for is complete."""
        wait_until(
            lambda: self.savepoint(name).get("state") == "Completed",
            seconds,
            f"savepoint {name} of {self.name} completes",
        )

    def audit(self) -> dict[str, Any]:
        """Judge state and output from a pod in the cluster; fails if anything is wrong."""
        query = self._query()
        places = (f"{self.root}/checkpoints?{query}", f"{self.root}/counts?{query}")
        found: dict[str, Any] = self._run("audit", "audit.py", *places)
        assert found["right"], found
        return found

    def state(self) -> dict[str, Any]:
        """What the auditor says of the state alone, and the newest tick in it."""
        found: dict[str, Any] = self._run(
            "state", "-c", _STATE, f"{self.root}/checkpoints?{self._query()}"
        )
        return found

    def objects(self, below: str) -> list[str]:
        """What the store holds below a directory of the job."""
        found: list[str] = self._run("list", "-c", _LIST, f"{self.root}/{below}?{self._query()}")
        return found

    def _run(self, what: str, *arguments: str) -> Any:
        """Run a program in a pod of the job's image; the last line that it prints, as JSON."""
        spec = {
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": what,
                    "image": self.image,
                    "imagePullPolicy": self.pull_policy,
                    "workingDir": "/app",
                    "command": ["python", *arguments],
                    "env": [
                        {
                            "name": key,
                            "valueFrom": {"secretKeyRef": {"name": "s3", "key": key}},
                        }
                        for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
                    ],
                    "resources": {"requests": {"cpu": "20m", "memory": "128Mi"}},
                }
            ],
        }
        phase, log = self.namespace.run_pod(f"{what}-{self.name}", spec, _PROGRAM_SECONDS)
        assert phase == "Succeeded", log
        return json.loads(log.strip().splitlines()[-1])

    def _query(self) -> str:
        return f"endpoint={self.s3['endpoint']}&region=us-east-1&path_style=true"


def _further(labels: str) -> str:
    """The labels of a series but for those that all of a job's have."""
    inside = labels.partition("{")[2].rstrip("}")
    return ",".join(one for one in inside.split(",") if one.partition("=")[0] not in _OF_JOB)
