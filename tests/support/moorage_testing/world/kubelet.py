"""Nodes, as far as pods of jobs notice them: a scheduler, a kubelet and their misfortunes."""

import json
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from moorage_state.snapshots.store_tasks import Answer, encode_answer
from moorage_testing.world.drivers import Drivers, FakeDriver, address_of

__all__ = ["Kubelet"]

ROLE = "moorage.dev/role"
ATTEMPT = "moorage.dev/attempt"
STORE_TASK = "errand"
_ONE_MORE = "-exec-2"
_CLAIM = "spark.kubernetes.executor.volumes.persistentVolumeClaim.moorage-local"
_YOUNG = timedelta(seconds=60)
_SHUTDOWN = "Pod was terminated in response to imminent node shutdown."


def _target(reason: str, message: str) -> dict[str, Any]:
    """The condition with which Kubernetes says that a pod did not end by itself."""
    said = {"reason": reason, "message": message}
    return {"type": "DisruptionTarget", "status": "True", **said}


def _claims(pod: dict[str, Any]) -> list[str]:
    return [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in pod["spec"].get("volumes", [])
        if "persistentVolumeClaim" in volume
    ]


def _moment(body: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(body["metadata"]["creationTimestamp"])


@dataclass(slots=True)
class Kubelet:
    """Walks pods through their life, one step a tick.

    Attributes:
        namespace: of the pods.
        prefix: of the names of nodes.
        nodes: which are there, by name without the prefix, and whether they answer.
        image_error: the reason with which driver containers wait, instead of starting.
        unschedulable: the reason why new pods get no node.
        room_for: subtasks for which there are nodes; the executor of more waits. 0 for any.
        held_claims: why no node is found for pods with these claims, as the scheduler says it.
    """

    api: Any
    drivers: Drivers
    now: Callable[[], datetime]
    nodes: dict[str, bool] = field(default_factory=lambda: {"node-1": True})
    image_error: str = ""
    unschedulable: str = ""
    room_for: int = 0
    held_claims: dict[str, str] = field(default_factory=dict)
    namespace: str = "default"
    prefix: str = ""
    _beats: int = 0
    _told: dict[str, tuple[str, str]] = field(default_factory=dict)
    _leaving: set[str] = field(default_factory=set)
    _to_make: list[dict[str, Any]] = field(default_factory=list)

    def tick(self) -> None:
        """One step for every pod."""
        # Spark makes an executor's pod first, and its claim then.
        while self._to_make:
            self.api.create(self._to_make.pop(0))
        for pod in self.api.peek("Pod"):
            if pod["metadata"].get("labels", {}).get(ROLE):
                self._step(pod)
        self._beat()
        self.api.collect()

    def lose_node(self, name: str = "node-1") -> None:
        """The node is silent; what runs there runs on, and nobody hears of it."""
        self.nodes[name] = False
        self.nodes["node-2"] = True
        self._tell_nodes()
        self._cut_off()

    def find_node(self, name: str = "node-1") -> None:
        """The node is back."""
        self.nodes[name] = True
        self._tell_nodes()
        self._cut_off()

    def _cut_off(self) -> None:
        """Nobody outside reaches what runs on a lost node."""
        for pod in self.api.list("Pod"):
            driver = self.drivers.by_pod.get(pod["metadata"]["uid"])
            if driver is not None:
                driver.cut_off = not self._answers(pod["spec"].get("nodeName"), there=True)
                if driver.cut_off:
                    self._not_ready(pod)

    def _not_ready(self, pod: dict[str, Any]) -> None:
        """What the node controller says of pods on a silent node."""
        meta = pod["metadata"]
        conditions = [
            {**c, "status": "False"} if c["type"] == "Ready" else c
            for c in pod["status"]["conditions"]
        ]
        self.api.set_status("Pod", meta["namespace"], meta["name"], conditions=conditions)

    def drain(self, pod: str) -> None:
        """Evict a pod, as a drain does."""
        self.take(pod, "EvictionByEvictionAPI", "Eviction API: evicting")

    def preempt(self, pod: str) -> None:
        """The scheduler makes room for a pod of a higher priority."""
        text = "default-scheduler: preempting to accommodate a higher priority pod"
        self.take(pod, "PreemptionByScheduler", text)

    def taint(self, pod: str) -> None:
        """Its node is not for it any more."""
        self.take(pod, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")

    def take(self, pod: str, reason: str, message: str) -> None:
        """Take a pod away as Kubernetes does: a DisruptionTarget condition, then the deletion."""
        self.api.set_status("Pod", self.namespace, pod, conditions=[_target(reason, message)])
        self.api.delete("Pod", self.namespace, pod)

    def shut_down(self, name: str = "node-1") -> None:
        """The node is shut down in order: its kubelet ends all pods, which stay, failed."""
        self.nodes["node-2"] = True
        self._tell_nodes()
        self._leaving.add(name)
        for pod in self.api.list("Pod"):
            driver = self.drivers.by_pod.get(pod["metadata"]["uid"])
            if pod["spec"].get("nodeName") == self.prefix + name and driver is not None:
                driver.terminate(self.now())

    def kill_container(self, pod: str, reason: str = "OOMKilled") -> None:
        """SIGKILL the container; the pod stays, failed."""
        found = self.api.get("Pod", self.namespace, pod)
        driver = self.drivers.by_pod[found["metadata"]["uid"]]
        driver.kill()
        self._ended(found, driver, reason)

    def evict_for(self, pod: str, message: str) -> None:
        """Evict a pod for what it uses itself: it stays, failed, and no condition says why."""
        found = self.api.get("Pod", self.namespace, pod)
        driver = self.drivers.by_pod[found["metadata"]["uid"]]
        driver.kill()
        self._ended(found, driver)
        self.api.set_status("Pod", self.namespace, pod, reason="Evicted", message=message)

    def _beat(self) -> None:
        """A real node controller takes a node for lost that is silent for 40 seconds."""
        self._beats += 1
        if self.prefix and self._beats % 20 == 0:
            self._tell_nodes()

    def _answers(self, node: str | None, *, there: bool) -> bool:
        return self.nodes.get((node or "").removeprefix(self.prefix), there)

    def _tell_nodes(self) -> None:
        stamp = self._stamp()
        for short, ready in self.nodes.items():
            name = self.prefix + short
            if self.api.get("Node", None, name) is None:
                self.api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
            status = "True" if ready else "Unknown"
            reason = "KubeletReady" if ready else "NodeStatusUnknown"
            condition = {"type": "Ready", "status": status, "reason": reason}
            known = self._told.get(short)
            since = known[1] if known and known[0] == status else stamp
            self._told[short] = (status, since)
            times = {"lastTransitionTime": since, "lastHeartbeatTime": stamp}
            self.api.set_status("Node", None, name, conditions=[condition | times])

    def _step(self, pod: dict[str, Any]) -> None:
        node = pod["spec"].get("nodeName")
        if node and not self._answers(node, there=False):
            return
        phase = pod.get("status", {}).get("phase", "Pending")
        driver = self.drivers.by_pod.get(pod["metadata"]["uid"])
        if pod["metadata"].get("deletionTimestamp"):
            self._end(pod, driver)
        elif not node:
            self._schedule(pod)
        elif phase == "Pending":
            self._begin(pod)
        elif phase == "Running" and driver is not None:
            self._watch(pod, driver)
        elif phase == "Running" and pod["metadata"]["labels"][ROLE] == STORE_TASK:
            self._try(pod)

    def _try(self, pod: dict[str, Any]) -> None:
        """The end of a pod that tries a version, when it has taken its time."""
        habits, container = self.drivers.habits, pod["status"]["containerStatuses"][0]
        since = datetime.fromisoformat(container["state"]["running"]["startedAt"])
        if self.now() < since + timedelta(seconds=habits.preflight):
            return
        task = pod["metadata"]["annotations"]["moorage.dev/errand"]
        answer = Answer(id=task, state="Completed", result={"text": "as told"})
        told = habits.preflight_fails
        if not pod["spec"]["containers"][0]["image"].startswith(habits.preflight_fails_of):
            told = ""
        if told:
            answer = Answer(id=task, state="Failed", code="user_function", message=told)
        self._terminated(
            pod,
            code=int(bool(habits.preflight_breaks or told)),
            message="" if habits.preflight_breaks else encode_answer(answer),
        )

    def _schedule(self, pod: dict[str, Any]) -> None:
        meta = pod["metadata"]
        lacks = self.unschedulable
        for claim in _claims(pod):
            lacks = self.held_claims.get(claim, lacks)
        if meta["name"].endswith(_ONE_MORE):
            lacks = "0/1 nodes are available: 1 Insufficient memory"
        if lacks:
            condition = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": lacks,
            }
            self.api.set_status("Pod", meta["namespace"], meta["name"], conditions=[condition])
            return
        here = (name for name, ready in self.nodes.items() if ready)
        node = next(name for name in here if name not in self._leaving)
        self._tell_nodes()
        self.api.bind(meta["namespace"], meta["name"], self.prefix + node)

    def _begin(self, pod: dict[str, Any]) -> None:
        meta = pod["metadata"]
        name = pod["spec"]["containers"][0]["name"]
        if self.image_error and meta["labels"][ROLE] == "driver":
            waiting = {"reason": self.image_error, "message": "the image cannot be had"}
            self._status(pod, "Pending", [{"name": name, "state": {"waiting": waiting}}])
            return
        if meta["labels"][ROLE] == "driver":
            data = self._config_of(pod)
            if data is None:
                return  # the kubelet waits for the volume
            self.drivers.start(pod, *data)
        self._status(
            pod,
            "Running",
            [{"name": name, "ready": True, "state": {"running": {"startedAt": self._stamp()}}}],
        )

    def _config_of(self, pod: dict[str, Any]) -> tuple[dict[str, str], str] | None:
        meta = pod["metadata"]
        names = {}
        for volume in pod["spec"].get("volumes", []):
            if volume["name"].startswith("kube-api-access-"):
                continue  # the account's own, which the API server adds
            if "configMap" in volume:
                names["config"] = volume["configMap"]["name"]
            if "secret" in volume and not volume["secret"].get("optional"):
                names["secret"] = volume["secret"]["secretName"]
            for source in volume.get("projected", {}).get("sources", []):
                names |= {"config": source["configMap"]["name"]} if "configMap" in source else {}
                names |= {"secret": source["secret"]["name"]} if "secret" in source else {}
        config = self.api.get("ConfigMap", meta["namespace"], names["config"])
        secret = self.api.get("Secret", meta["namespace"], names["secret"])
        if config is None or secret is None:
            return None
        return config["data"], b64decode(secret["data"]["control"]).decode()

    def _watch(self, pod: dict[str, Any], driver: FakeDriver) -> None:
        if not driver.alive:
            self._ended(pod, driver)
        elif driver.running_since is not None:
            self._executor_of(pod, "-exec-1")
            if self.room_for and driver.parallelism > self.room_for:
                self._executor_of(pod, _ONE_MORE)

    def _executor_of(self, pod: dict[str, Any], suffix: str) -> None:
        """What Spark does: an executor's pod, which belongs to the driver's."""
        meta = pod["metadata"]
        name = f"{meta['name'].removesuffix('-driver')}{suffix}"
        if self.api.exists("Pod", meta["namespace"], name):
            return
        owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
        self.api.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": name,
                    "namespace": meta["namespace"],
                    "labels": {**meta["labels"], ROLE: "executor"},
                    "ownerReferences": [owner | {"controller": True}],
                },
                "spec": {
                    "containers": [{"name": "executor", "image": "x"}],
                    "volumes": self._claims_of(pod, name),
                },
            }
        )

    def _claims_of(self, driver: dict[str, Any], executor: str) -> list[dict[str, Any]]:
        """What Spark does: a claim of its application that no pod has, or one that it makes."""
        found = self._config_of(driver)
        settings = json.loads(found[0]["spark.json"]) if found is not None else {}
        if settings.get(f"{_CLAIM}.options.claimName") != "OnDemand":
            return []
        meta, claims = driver["metadata"], self.api.list("PersistentVolumeClaim")
        used = {name for pod in self.api.list("Pod") for name in _claims(pod)}
        application = settings["spark.app.id"]
        free = [
            claim["metadata"]["name"]
            for claim in claims
            if claim["metadata"]["labels"].get("spark-app-selector") == application
            and claim["metadata"]["name"] not in used
            and self.now() > _moment(claim) + _YOUNG
        ]
        name = free[0] if free else f"{executor}-pvc-{len(claims)}"
        if not free:
            owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
            marks = {
                key.removeprefix(f"{_CLAIM}.label."): value
                for key, value in settings.items()
                if key.startswith(f"{_CLAIM}.label.")
            }
            self._to_make.append(
                {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "metadata": {
                        "name": name,
                        "namespace": meta["namespace"],
                        "labels": marks | {"spark-app-selector": application},
                        "ownerReferences": [owner | {"controller": True}],
                    },
                    "spec": {
                        "accessModes": ["ReadWriteOnce"],
                        "storageClassName": settings[f"{_CLAIM}.options.storageClass"],
                        "resources": {
                            "requests": {"storage": settings[f"{_CLAIM}.options.sizeLimit"]}
                        },
                    },
                }
            )
        return [{"name": "moorage-local", "persistentVolumeClaim": {"claimName": name}}]

    def _end(self, pod: dict[str, Any], driver: FakeDriver | None) -> None:
        meta = pod["metadata"]
        if driver is not None and driver.alive:
            driver.terminate(self.now())
            if self.now() < datetime.fromisoformat(meta["deletionTimestamp"]):
                return
            driver.kill()
        self.api.delete("Pod", meta["namespace"], meta["name"], uid=meta["uid"], grace=0)

    def _ended(self, pod: dict[str, Any], driver: FakeDriver, reason: str = "") -> None:
        message = json.dumps(driver.end.to_json()) if driver.end else ""
        self._terminated(pod, driver.exit_code, message, reason)

    def _terminated(self, pod: dict[str, Any], code: int, message: str, reason: str = "") -> None:
        name = pod["spec"]["containers"][0]["name"]
        terminated = {
            "exitCode": code,
            "reason": reason or ("Completed" if code == 0 else "Error"),
            "message": message,
            "finishedAt": self._stamp(),
        }
        phase = "Succeeded" if code == 0 else "Failed"
        state = [{"name": name, "state": {"terminated": terminated}}]
        if pod["spec"].get("nodeName", "").removeprefix(self.prefix) in self._leaving:
            # However it ended: the kubelet says that it did not do so by itself.
            told = {"reason": "Terminated", "message": _SHUTDOWN}
            self._status(pod, "Failed", state, (_target("TerminationByKubelet", _SHUTDOWN),), told)
        else:
            self._status(pod, phase, state)

    def _status(
        self,
        pod: dict[str, Any],
        phase: str,
        containers: list[dict[str, Any]],
        more: tuple[dict[str, Any], ...] = (),
        said: dict[str, str] | None = None,
    ) -> None:
        meta = pod["metadata"]
        ready = any(container.get("ready") for container in containers)
        self.api.set_status(
            "Pod",
            meta["namespace"],
            meta["name"],
            phase=phase,
            podIP=address_of(meta["uid"]),
            containerStatuses=containers,
            conditions=[
                {"type": "PodScheduled", "status": "True"},
                {"type": "Ready", "status": "True" if ready else "False"},
                *more,
            ],
            **(said or {}),
        )

    def _stamp(self) -> str:
        return self.now().strftime("%Y-%m-%dT%H:%M:%SZ")
