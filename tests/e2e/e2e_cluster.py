"""A cluster as the e2e tests use it: objects, waiting, programs in pods. Any cluster will do."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kubernetes import client, config, dynamic
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import stream

__all__ = ["Cluster", "Namespace", "restricted", "wait_until"]

GROUP = "moorage.dev/v1alpha1"
_PROGRAM_SECONDS = 60
_PROFILE = "pod-security.kubernetes.io/enforce"


def restricted(spec: dict[str, Any]) -> dict[str, Any]:
    """A pod's spec with what the strictest of the Pod Security Standards wants to see in it."""
    container = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    pod = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    containers = [{**one, "securityContext": container} for one in spec["containers"]]
    return {**spec, "securityContext": pod, "containers": containers}


class Cluster:
    """One API server, reached with a kubeconfig."""

    def __init__(self, kubeconfig: Path, context: str | None = None) -> None:
        self.kubeconfig = kubeconfig
        self.context = context
        self.api = config.new_client_from_config(str(kubeconfig), context)
        self.core = client.CoreV1Api(self.api)
        self.dynamic = dynamic.DynamicClient(self.api)

    def close(self) -> None:
        """Close its connections."""
        self.api.rest_client.pool_manager.clear()
        self.api.close()

    def resource(self, kind: str, api_version: str) -> Any:
        """The resource of a kind; looked up anew when it was not known (a CRD has just come)."""
        try:
            return self.dynamic.resources.get(api_version=api_version, kind=kind)
        except dynamic.exceptions.ResourceNotFoundError:
            self.dynamic.resources.invalidate_cache()
            return self.dynamic.resources.get(api_version=api_version, kind=kind)

    def apply(self, body: dict[str, Any]) -> dict[str, Any]:
        """`kubectl apply --server-side`."""
        resource = self.resource(body["kind"], body["apiVersion"])
        found = resource.server_side_apply(
            body=body,
            namespace=body["metadata"].get("namespace"),
            name=body["metadata"]["name"],
            field_manager="moorage-e2e",
            force_conflicts=True,
        )
        return dict(found.to_dict())

    @contextmanager
    def namespace(self, name: str, artifacts: Path) -> Iterator["Namespace"]:
        """A namespace of a test's own; what is in it is written to `artifacts` and deleted."""
        meta = client.V1ObjectMeta(name=name, labels={_PROFILE: "restricted"})
        self.core.create_namespace(client.V1Namespace(metadata=meta))
        namespace = Namespace(self, name)
        try:
            yield namespace
        finally:
            namespace.dump(artifacts / name)
            namespace.remove()


class Namespace:
    """One namespace, and everything that a test does in it."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name

    # -- objects

    def apply(self, body: dict[str, Any]) -> dict[str, Any]:
        """Apply an object in this namespace."""
        meta = {**body["metadata"], "namespace": self.name}
        return self.cluster.apply({**body, "metadata": meta})

    def get(self, kind: str, name: str, api_version: str = GROUP) -> dict[str, Any] | None:
        """The object, or None."""
        try:
            found = self.cluster.resource(kind, api_version).get(name=name, namespace=self.name)
        except ApiException as error:
            if error.status == 404:
                return None
            raise
        return dict(found.to_dict())

    def patch(self, kind: str, name: str, patch: dict[str, Any], api_version: str = GROUP) -> None:
        """Merge a patch."""
        self.cluster.resource(kind, api_version).patch(
            name=name,
            namespace=self.name,
            body=patch,
            content_type="application/merge-patch+json",
        )

    def delete(self, kind: str, name: str, api_version: str = GROUP, **options: Any) -> None:
        """Delete it; one that is gone is fine."""
        try:
            self.cluster.resource(kind, api_version).delete(
                name=name, namespace=self.name, body=client.V1DeleteOptions(**options)
            )
        except ApiException as error:
            if error.status != 404:
                raise

    def every(self, kind: str, labels: str = "", api_version: str = "v1") -> list[dict[str, Any]]:
        """Objects with these labels."""
        found = self.cluster.resource(kind, api_version).get(
            namespace=self.name, label_selector=labels
        )
        return list(found.to_dict()["items"])

    # -- a job

    def job(self, name: str = "ticker") -> dict[str, Any]:
        """The job's object; it must be there."""
        found = self.get("StatefulSparkJob", name)
        assert found is not None, f"there is no job {name}"
        return found

    def status(self, name: str = "ticker") -> dict[str, Any]:
        """The job's status."""
        return dict(self.job(name).get("status") or {})

    def edit(self, spec: dict[str, Any], name: str = "ticker") -> None:
        """Change the spec."""
        self.patch("StatefulSparkJob", name, {"spec": spec})

    def annotate(self, notes: dict[str, str | None], name: str = "ticker") -> None:
        """Set `moorage.dev/` annotations."""
        marked = {f"moorage.dev/{key}": value for key, value in notes.items()}
        self.patch("StatefulSparkJob", name, {"metadata": {"annotations": marked}})

    def is_ready(self, name: str = "ticker", *, attempt: int = 0, generation: int = 0) -> bool:
        """Whether Ready is True, in an attempt of at least this number."""
        status = self.status(name)
        conditions = {c["type"]: c for c in status.get("conditions", [])}
        ready = conditions.get("Ready", {})
        return (
            ready.get("status") == "True"
            and status.get("attempt", {}).get("number", 0) >= attempt
            and ready.get("observedGeneration", 0) >= generation
        )

    def pods(self, role: str, name: str = "ticker") -> list[dict[str, Any]]:
        """The job's pods of a role that are not going."""
        found = self.every("Pod", f"moorage.dev/job={name},moorage.dev/role={role}")
        return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]

    def operators(self) -> set[str]:
        """The names of the operator's pods, where this is its namespace."""
        pods = self.every("Pod", "app.kubernetes.io/name=moorage-operator")
        return {pod["metadata"]["name"] for pod in pods}

    def kill_operators(self) -> set[str]:
        """Delete the operator's pods without grace; returns which."""
        killed = self.operators()
        assert killed, "there is no operator to kill"
        for pod in killed:
            self.delete("Pod", pod, "v1", grace_period_seconds=0)
        return killed

    # -- programs

    def run_in(self, pod: str, container: str, *command: str) -> str:
        """Run a program in a container; what it printed."""
        channel = stream(
            self.cluster.core.connect_get_namespaced_pod_exec,
            pod,
            self.name,
            container=container,
            command=list(command),
            stdout=True,
            stderr=True,
            stdin=False,
            tty=False,
            _preload_content=False,
        )
        try:
            channel.run_forever(timeout=_PROGRAM_SECONDS)
            return str(channel.read_all())
        finally:
            channel.close()

    def run_pod(self, name: str, spec: dict[str, Any], seconds: float = 180) -> tuple[str, str]:
        """Run a pod to its end; its phase and its log."""
        self.delete("Pod", name, "v1")
        wait_until(lambda: self.get("Pod", name, "v1") is None, 60, f"pod {name} goes")
        meta = {"name": name}
        self.apply({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": restricted(spec)})

        def ended() -> bool:
            pod = self.get("Pod", name, "v1") or {}
            return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")

        wait_until(ended, seconds, f"pod {name} ends")
        log = self.log(name)
        phase = (self.get("Pod", name, "v1") or {})["status"]["phase"]
        return phase, log

    def log(self, pod: str, **options: Any) -> str:
        """What a container has printed; as it is, for the client would read JSON in it."""
        answer: Any = self.cluster.core.read_namespaced_pod_log(
            pod, self.name, _preload_content=False, **options
        )
        return str(answer.data.decode(errors="replace"))

    # -- the end

    def dump(self, folder: Path) -> None:
        """Write down everything that helps to see what happened."""
        folder.mkdir(parents=True, exist_ok=True)
        for kind, version in (
            ("StatefulSparkJob", GROUP),
            ("StatefulSparkSnapshot", GROUP),
            ("Pod", "v1"),
            ("Event", "v1"),
            ("ControllerRevision", "apps/v1"),
        ):
            try:
                found = self.every(kind, api_version=version)
            except Exception as error:  # noqa: BLE001 - the rest is wanted all the same
                found = [{"error": str(error)}]
            (folder / f"{kind}.json").write_text(json.dumps(found, indent=1, default=str))
            if kind == "Pod":
                self._dump_logs(found, folder)

    def _dump_logs(self, pods: list[dict[str, Any]], folder: Path) -> None:
        for pod in pods:
            spec = pod.get("spec", {})
            for container in [*spec.get("initContainers", []), *spec.get("containers", [])]:
                name = pod["metadata"]["name"]
                try:
                    log = self.log(name, container=container["name"])
                except ApiException:
                    continue
                (folder / f"{name}-{container['name']}.log").write_text(log)

    def remove(self) -> None:
        """Delete the jobs, then the namespace, and wait for that."""
        for kind in ("StatefulSparkJob", "StatefulSparkSnapshot"):
            for found in self.every(kind, api_version=GROUP):
                name = found["metadata"]["name"]
                notes = {"metadata": {"annotations": {"moorage.dev/skip-final-savepoint": "true"}}}
                try:
                    self.patch(kind, name, notes)
                    self.delete(kind, name)
                except ApiException as error:
                    if error.status != 404:
                        raise
        kinds = ("StatefulSparkJob", "StatefulSparkSnapshot")
        wait_until(
            lambda: not any(self.every(kind, api_version=GROUP) for kind in kinds),
            180,
            f"jobs of {self.name} go",
        )
        self.delete_itself()
        wait_until(self.is_gone, 180, f"namespace {self.name} goes")

    def delete_itself(self) -> None:
        """Delete the namespace with all that is in it; one that is gone is fine."""
        try:
            self.cluster.core.delete_namespace(self.name)
        except ApiException as error:
            if error.status != 404:
                raise

    def is_gone(self) -> bool:
        """Whether there is no such namespace."""
        try:
            self.cluster.core.read_namespace(self.name)
        except ApiException as error:
            return bool(error.status == 404)
        return False


def wait_until(there: Callable[[], bool], seconds: float, what: str) -> None:
    """Look until something is the case; an API server that stumbles is asked again."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if there():
                return
        except ApiException as error:
            if error.status not in (409, 429, 500, 503, 504):
                raise
        if time.monotonic() > deadline:
            raise AssertionError(f"it did not come true in {seconds:g} s: {what}")
        time.sleep(0.5)
