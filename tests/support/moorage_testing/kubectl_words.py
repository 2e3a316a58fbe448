"""A cluster's objects as `kubectl` shows them, for tests of `kubectl moorage`."""

import json
import subprocess
from copy import deepcopy

from moorage.cli.kubectl import JOBS

CHECKPOINT = "s3://bucket/clicks/chk-7?endpoint=http://s3:1&path_style=true"


def conditions(**statuses):
    normal = {
        "Ready": "True",
        "Progressing": "False",
        "Degraded": "False",
        "Blocked": "False",
        "SpecValid": "True",
        "Suspended": "False",
        "Stable": "False",
    }
    return [
        {"type": name, "status": status, "reason": "Why", "message": "" if name in normal else "x"}
        for name, status in (normal | statuses).items()
    ]


def job(name="clicks", **status):
    return {
        "metadata": {
            "name": name,
            "namespace": "streams",
            "uid": "u-1",
            "generation": 1,
            "resourceVersion": "100",
        },
        "spec": {
            "desiredState": "Running",
            "restore": {"nonce": 4},
            "scaling": {"parallelism": 2},
            "state": {
                "checkpointDir": "s3://bucket/clicks",
                "savepointDir": "s3://bucket/saves",
                "s3": {"endpoint": "http://s3:1", "pathStyle": True},
            },
        },
        "status": {
            "phase": "Running",
            "observedGeneration": 1,
            "conditions": conditions(),
            "scaling": {"observedParallelism": 2, "maxParallelism": 128},
            "job": {
                "epoch": 41,
                "inputRowsPerSecond": "12.5",
                "busyRatio": "0.40",
                "stateBytes": 2048,
            },
            "restarts": {"total": 1, "lastReason": "DriverLost", "lastMessage": "node gone"},
            "reconciliation": {"restoreNonce": 4},
            "snapshots": {
                "lastCheckpoint": {
                    "id": 7,
                    "completedAt": "2026-11-23T14:19:30Z",
                    "epoch": 40,
                    "sizeBytes": 1024,
                }
            },
            **status,
        },
    }


def snapshot(name, state="Completed", age=0, **status):
    return {
        "metadata": {
            "name": name,
            "creationTimestamp": f"2026-11-23T14:0{9 - age}:00Z",
            "labels": {"moorage.dev/job": "clicks", "moorage.dev/trigger": "Manual"},
        },
        "spec": {"jobRef": {"name": "clicks"}, "type": "Savepoint", "name": name},
        "status": {"state": state, "path": f"s3://bucket/{name}", "sizeBytes": 2048, **status},
    }


def pod(name, role, *, ready=True, **status):
    servers = [{"name": "state-server", "restartPolicy": "Always"}] if role == "executor" else []
    return {
        "metadata": {"name": name, "labels": {"moorage.dev/role": role}},
        "spec": {"nodeName": "node1", "initContainers": servers, "containers": [{"name": role}]},
        "status": {
            "phase": "Running",
            "initContainerStatuses": [{"name": one["name"], "ready": True} for one in servers],
            "containerStatuses": [{"name": role, "ready": ready, "restartCount": 2}],
            **status,
        },
    }


class Conflict(Exception):
    """A patch of an object that is another one by now."""


class Kubectl:
    """A cluster's objects, behind kubectl's words; `steps` are made of a job one look at a time."""

    def __init__(self, *objects, pods=()):
        self.jobs = {
            one["metadata"]["name"]: one for one in objects if "desiredState" in one["spec"]
        }
        self.snapshots = {
            one["metadata"]["name"]: one for one in objects if "desiredState" not in one["spec"]
        }
        self.pods = pods
        self.secrets = {}
        self.steps = []
        self.patches = []
        self.made = []
        self.meanwhile = []
        """What others do with a job just before a patch of it, one after the other."""
        self.calls = []

    def __call__(self, arguments, text=""):
        self.calls.append(list(arguments))
        try:
            return subprocess.CompletedProcess([], 0, json.dumps(self._done(*arguments, text=text)))
        except Conflict:
            told = "Error from server (Conflict): the object has been modified; please try again"
            return subprocess.CompletedProcess([], 1, "", told)
        except KeyError as error:
            return subprocess.CompletedProcess([], 1, "", f"Error from server (NotFound): {error}")

    def _done(self, verb, kind, *words, text):
        if verb == "create":
            self.made.append(json.loads(text))
            made = json.loads(text)
            made["metadata"]["creationTimestamp"] = "2026-11-23T14:19:00Z"
            self.snapshots[made["metadata"]["name"]] = made
            return deepcopy(made)
        if kind == "pods":
            return {"items": list(self.pods)}
        if kind == "secrets":
            return self.secrets[words[0]]
        known = self.jobs if kind == JOBS else self.snapshots
        if verb == "get" and (not words or words[0].startswith("-")):
            return {"items": list(known.values())}
        found = known[words[0]]
        if verb == "patch":
            change = json.loads(words[words.index("-p") + 1])
            if self.meanwhile:
                self.meanwhile.pop(0)(found)
            meta = found["metadata"]
            if change.get("metadata", meta)["resourceVersion"] != meta["resourceVersion"]:
                raise Conflict
            self.patches.append(change)
            found["metadata"]["generation"] += 1
        elif self.steps:
            found["status"] = {**found.get("status", {}), **self.steps.pop(0)}
        return deepcopy(found)
