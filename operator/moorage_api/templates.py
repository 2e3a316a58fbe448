"""Judges podTemplates: whether they are pods, and whether ours can be merged with them.

A template is free text for the API server; a mistake in it would show as pods that nobody can make,
after the old ones were stopped. So shapes of what users write most are checked here, and everything
that the operator owns is refused by name.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moorage_api.compute import DriverSpec, ExecutorSpec
from moorage_api.driver import CONFIG_DIR
from moorage_api.job import StatefulSparkJob
from moorage_api.problems import Problem, field_name
from moorage_api.quantities import Quantity
from moorage_api.reserved import (
    CREDENTIAL_ENV,
    CREDENTIALS_DIR,
    DRIVER_CONTAINER,
    EXECUTOR_CONTAINER,
    LOCAL_DIR,
    OWNED_ENV,
    OWNED_ENV_PREFIXES,
    OWNED_PORTS,
    OWNED_VOLUMES,
    SCRAPE_DIR,
    SIDECAR_CONTAINER,
    TLS_DIR,
    TOKEN_DIR,
)

Path = tuple[str | int, ...]

_POD_SPEC = {
    "activeDeadlineSeconds": int,
    "affinity": dict,
    "automountServiceAccountToken": bool,
    "containers": list,
    "dnsConfig": dict,
    "dnsPolicy": str,
    "enableServiceLinks": bool,
    "ephemeralContainers": list,
    "hostAliases": list,
    "hostIPC": bool,
    "hostNetwork": bool,
    "hostPID": bool,
    "hostUsers": bool,
    "hostname": str,
    "imagePullSecrets": list,
    "initContainers": list,
    "nodeName": str,
    "nodeSelector": dict,
    "os": dict,
    "overhead": dict,
    "preemptionPolicy": str,
    "priority": int,
    "priorityClassName": str,
    "readinessGates": list,
    "resourceClaims": list,
    "resources": dict,
    "restartPolicy": str,
    "runtimeClassName": str,
    "schedulerName": str,
    "schedulingGates": list,
    "securityContext": dict,
    "serviceAccount": str,
    "serviceAccountName": str,
    "setHostnameAsFQDN": bool,
    "shareProcessNamespace": bool,
    "subdomain": str,
    "terminationGracePeriodSeconds": int,
    "tolerations": list,
    "topologySpreadConstraints": list,
    "volumes": list,
}
_CONTAINER = {
    "args": list,
    "command": list,
    "env": list,
    "envFrom": list,
    "image": str,
    "imagePullPolicy": str,
    "lifecycle": dict,
    "livenessProbe": dict,
    "name": str,
    "ports": list,
    "readinessProbe": dict,
    "resizePolicy": list,
    "resources": dict,
    "restartPolicy": str,
    "restartPolicyRules": list,
    "securityContext": dict,
    "startupProbe": dict,
    "stdin": bool,
    "stdinOnce": bool,
    "terminationMessagePath": str,
    "terminationMessagePolicy": str,
    "tty": bool,
    "volumeDevices": list,
    "volumeMounts": list,
    "workingDir": str,
}
_KINDS = {dict: "a mapping", list: "a list", str: "text", int: "a whole number", bool: "a boolean"}

# Fields of the pod that the operator decides, and where to say it instead.
_POD_OWNED = {
    "activeDeadlineSeconds": "leave it out: it would end the stream",
    "ephemeralContainers": "leave it out: they are added to running pods only",
    "restartPolicy": "leave it out: the operator starts a new pod",
    "serviceAccount": "use spec.serviceAccountName",
    "serviceAccountName": "use spec.serviceAccountName",
}
_CONTAINER_OWNED = {
    "args": "leave it out: the operator decides what runs in it",
    "command": "leave it out: the operator decides what runs in it",
    "image": "use spec.image",
    "imagePullPolicy": "use spec.imagePullPolicy",
    "readinessProbe": "leave it out: the operator has its own",
    "restartPolicy": "leave it out: the operator decides it",
    "terminationMessagePath": "leave it out: the driver reports its end there",
    "terminationMessagePolicy": "leave it out: the driver reports its end there",
}
_MEMORY_FIELDS = {
    DRIVER_CONTAINER: "spec.driver.cpuRequest and spec.driver.memory",
    EXECUTOR_CONTAINER: "spec.executor.cpuRequest and spec.executor.memory",
    SIDECAR_CONTAINER: "spec.executor.sidecar.resources",
}


@dataclass(frozen=True, slots=True)
class _Pod:
    """One template: its place, and the containers in it that are ours."""

    at: Path
    template: Mapping[str, Any]
    main: str
    sidecar: str | None
    cpu: Quantity
    credentials: bool


def template_problems(job: StatefulSparkJob) -> Iterator[Problem]:
    """Yield what is wrong with driver.podTemplate and executor.podTemplate."""
    credentials = job.spec.state.credentials_secret_ref is not None
    for name, main, sidecar in (
        ("driver", DRIVER_CONTAINER, None),
        ("executor", EXECUTOR_CONTAINER, SIDECAR_CONTAINER),
    ):
        part: DriverSpec | ExecutorSpec = getattr(job.spec, name)
        cpu = part.cpu_request or Quantity(str(part.cores))
        at = ("spec", name, "podTemplate")
        yield from _pod(_Pod(at, part.pod_template, main, sidecar, cpu, credentials))


def _problem(path: Path, reason: str, fix: str) -> Problem:
    return Problem(field_name(path), reason, fix)


def _pod(pod: _Pod) -> Iterator[Problem]:
    known = {"apiVersion": str, "kind": str, "metadata": dict, "spec": dict}
    yield from _fields(pod.at, pod.template, known)
    metadata, spec = pod.template.get("metadata"), pod.template.get("spec")
    if pod.template.get("kind", "Pod") not in ("Pod", "PodTemplate"):
        yield _problem((*pod.at, "kind"), "is not Pod", "write a Pod, or leave kind out")
    if isinstance(metadata, Mapping):
        yield from _metadata((*pod.at, "metadata"), metadata)
    if isinstance(spec, Mapping):
        yield from _pod_spec(pod, (*pod.at, "spec"), spec)


def _fields(path: Path, value: Mapping[str, Any], known: Mapping[str, type]) -> Iterator[Problem]:
    """Unknown names, and values of another kind than the field's."""
    for name, given in value.items():
        wanted = known.get(name)
        if wanted is None:
            near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.6)
            fix = f"did you mean {near[0]}?" if near else "remove it; a pod has no such field"
            yield _problem((*path, str(name)), "is not a field", fix)
        elif given is not None and not _is(given, wanted):
            kind = _KINDS[wanted]
            yield _problem((*path, name), f"is not {kind}", f"write {kind}, as in a Pod")


def _is(given: Any, wanted: type) -> bool:
    if wanted is dict:
        return isinstance(given, Mapping)
    if wanted is list:
        return isinstance(given, Sequence) and not isinstance(given, str)
    return isinstance(given, wanted) and (wanted is bool or not isinstance(given, bool))


def _metadata(path: Path, metadata: Mapping[str, Any]) -> Iterator[Problem]:
    for name in metadata:
        if name not in ("labels", "annotations", "name", "namespace", "creationTimestamp"):
            fix = "keep labels and annotations only: the operator decides the rest"
            yield _problem((*path, name), "is not a template's to set", fix)
    for field in ("labels", "annotations"):
        for key, value in _map(metadata.get(field)).items():
            if str(key).startswith(("moorage.dev/", "app.kubernetes.io/")):
                fix = "leave it out, or use a prefix of your own"
                yield _problem((*path, field, str(key)), "is the operator's", fix)
            elif not isinstance(value, str):
                yield _problem((*path, field, str(key)), "is not text", "put it in quotes")


def _pod_spec(pod: _Pod, path: Path, spec: Mapping[str, Any]) -> Iterator[Problem]:
    yield from _fields(path, spec, _POD_SPEC)
    for name in sorted(set(spec) & set(_POD_OWNED)):
        yield _problem((*path, name), "is decided by the operator", _POD_OWNED[name])
    yield from _volumes((*path, "volumes"), spec.get("volumes"))
    yield from _security((*path, "securityContext"), _map(spec.get("securityContext")))
    yield from _names((*path, "containers"), spec.get("containers"))
    yield from _names((*path, "initContainers"), spec.get("initContainers"))
    for index, container in _items(spec.get("containers")):
        at = (*path, "containers", index)
        yield from _container(pod, at, container)
        if container.get("name") != pod.main:
            # The pod would run on beside a driver or executor that has ended.
            fix = "write it under initContainers with restartPolicy: Always"
            yield _problem(at, f"runs beside {pod.main} and would outlive it", fix)
    for index, container in _items(spec.get("initContainers")):
        at = (*path, "initContainers", index)
        yield from _container(pod, at, container)
        if container.get("name") == pod.main:
            fix = "write it under containers"
            yield _problem((*at, "name"), f"{pod.main} is no init container", fix)


def _names(path: Path, items: Any) -> Iterator[Problem]:
    """Items without a name, or two of one."""
    if not isinstance(items, list):
        return
    seen: set[str] = set()
    for index, item in enumerate(items):
        name = item.get("name") if isinstance(item, Mapping) else None
        if not isinstance(name, str):
            yield _problem((*path, index), "has no name", "give it a name")
        elif name in seen:
            yield _problem((*path, index, "name"), f"{name} is given twice", "keep one")
        else:
            seen.add(name)


def _container(pod: _Pod, path: Path, container: Mapping[str, Any]) -> Iterator[Problem]:
    yield from _fields(path, container, _CONTAINER)
    yield from _security((*path, "securityContext"), _map(container.get("securityContext")))
    name = container.get("name")
    if name is None or name not in (pod.main, pod.sidecar):
        if "image" not in container:
            yield _problem((*path, "image"), "is missing", "name the image")
        return
    for field in sorted(set(container) & set(_CONTAINER_OWNED)):
        reason = f"is decided by the operator for container {name}"
        yield _problem((*path, field), reason, _CONTAINER_OWNED[field])
    if name == EXECUTOR_CONTAINER and "lifecycle" in container:
        fix = "leave it out: Spark puts its own hook there"
        yield _problem((*path, "lifecycle"), "is decided by Spark for executors", fix)
    yield from _owned_resources(pod, str(name), path, container)
    yield from _owned_env(pod, path, container)
    yield from _owned_mounts(path, container)
    yield from _owned_ports(path, container)


def _owned_resources(
    pod: _Pod, name: str, path: Path, container: Mapping[str, Any]
) -> Iterator[Problem]:
    """CPU and memory are the spec's, but for a limit of CPU, which it has no field for."""
    for bound in ("requests", "limits"):
        given = _map(_map(container.get("resources")).get(bound))
        for resource in sorted({"cpu", "memory"} & set(given)):
            at = (*path, "resources", bound, resource)
            if (bound, resource) == ("limits", "cpu") and name == pod.main:
                yield from _cpu_limit(at, given[resource], pod.cpu)
            else:
                yield _problem(at, "is decided by the spec", f"use {_MEMORY_FIELDS[name]}")


def _cpu_limit(path: Path, given: Any, request: Quantity) -> Iterator[Problem]:
    try:
        limit = Quantity.parse(given)
    except ValueError as error:
        yield _problem(path, str(error), f"write {Quantity.example}")
        return
    if limit < request:
        fix = "raise it, or lower cpuRequest"
        yield _problem(path, f"{limit} is below the request {request}", fix)


def _owned_env(pod: _Pod, path: Path, container: Mapping[str, Any]) -> Iterator[Problem]:
    for index, variable in _items(container.get("env")):
        name = str(variable.get("name", ""))
        ours = name in OWNED_ENV or name.startswith(OWNED_ENV_PREFIXES)
        if ours or (pod.credentials and name in CREDENTIAL_ENV):
            at = (*path, "env", index, "name")
            yield _problem(at, f"{name} is set by the operator", "choose another name")


def _owned_mounts(path: Path, container: Mapping[str, Any]) -> Iterator[Problem]:
    for index, mount in _items(container.get("volumeMounts")):
        where = str(mount.get("mountPath", "")).rstrip("/")
        for ours in (CONFIG_DIR, TOKEN_DIR, SCRAPE_DIR, TLS_DIR, CREDENTIALS_DIR, LOCAL_DIR):
            if f"{where}/".startswith(f"{ours}/") or f"{ours}/".startswith(f"{where}/"):
                at = (*path, "volumeMounts", index, "mountPath")
                reason = f"{where or '/'} is, holds or lies in {ours}, which is the operator's"
                yield _problem(at, reason, "mount it elsewhere")
                break


def _owned_ports(path: Path, container: Mapping[str, Any]) -> Iterator[Problem]:
    for index, port in _items(container.get("ports")):
        number = port.get("containerPort")
        if number in OWNED_PORTS:
            at = (*path, "ports", index, "containerPort")
            yield _problem(at, f"{number} is used by Moorage", "use another port")


def _volumes(path: Path, volumes: Any) -> Iterator[Problem]:
    yield from _names(path, volumes)
    for index, volume in _items(volumes):
        name = volume.get("name")
        if name in OWNED_VOLUMES:
            fix = "use state.local" if name == "moorage-local" else "choose another name"
            yield _problem((*path, index, "name"), f"{name} is the operator's volume", fix)
        elif isinstance(name, str) and len(volume) != 2:
            yield _problem((*path, index), "has no single source", "write one, such as emptyDir")


def _security(path: Path, context: Mapping[str, Any]) -> Iterator[Problem]:
    """What the kubelet would refuse when the pod is already there."""
    user = context.get("runAsUser")
    if user == 0 and context.get("runAsNonRoot", True):
        fix = "write another user; with 0 also runAsNonRoot: false, if the image needs root"
        yield _problem((*path, "runAsUser"), "is 0, and pods of jobs do not run as root", fix)
    elif user is not None and not (_is(user, int) and user >= 0):
        yield _problem((*path, "runAsUser"), "is not a user's number", "write one, such as 185")


def _items(value: Any) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for index, item in enumerate(value if isinstance(value, list) else ()):
        if isinstance(item, Mapping):
            yield index, item


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
