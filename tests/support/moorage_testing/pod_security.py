"""The rules of Kubernetes' pod security standard `restricted`, each by its name, for any pod.

Written down from the standard as of Kubernetes 1.35, and not from what our pods have: a cluster's
own admission is asked by the tests on a cluster.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["RULES", "violations"]

Object = Mapping[str, Any]
Rule = Callable[[Object], Iterator[str]]

_CAPABILITIES = frozenset({
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD",
    "NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
})  # fmt: skip
_SYSCTLS = frozenset({
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start", "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range",
    "net.ipv4.ip_local_reserved_ports", "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes",
})  # fmt: skip
_VOLUMES = frozenset({
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim",
    "projected", "secret",
})  # fmt: skip
_SELINUX = frozenset({"", "container_t", "container_init_t", "container_kvm_t"})
_SECCOMP = frozenset({"RuntimeDefault", "Localhost"})


def _containers(pod: Object) -> Iterator[Object]:
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        yield from pod.get(kind) or ()


def _contexts(pod: Object) -> Iterator[tuple[str, Object]]:
    yield "pod", pod.get("securityContext") or {}
    for one in _containers(pod):
        yield one["name"], one.get("securityContext") or {}


def _host_process(pod: Object) -> Iterator[str]:
    for who, context in _contexts(pod):
        if (context.get("windowsOptions") or {}).get("hostProcess"):
            yield who


def _host_namespaces(pod: Object) -> Iterator[str]:
    yield from (name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name))


def _privileged(pod: Object) -> Iterator[str]:
    yield from (who for who, context in _contexts(pod) if context.get("privileged"))


def _baseline_capabilities(pod: Object) -> Iterator[str]:
    for who, context in _contexts(pod):
        added = set((context.get("capabilities") or {}).get("add") or ())
        yield from (f"{who}: {one}" for one in sorted(added - _CAPABILITIES))


def _host_paths(pod: Object) -> Iterator[str]:
    yield from (one["name"] for one in pod.get("volumes") or () if one.get("hostPath"))


def _host_ports(pod: Object) -> Iterator[str]:
    for one in _containers(pod):
        yield from (one["name"] for port in one.get("ports") or () if port.get("hostPort"))


def _host_probes(pod: Object) -> Iterator[str]:
    for one in _containers(pod):
        hooks = one.get("lifecycle") or {}
        asked = [one.get(f"{kind}Probe") for kind in ("liveness", "readiness", "startup")]
        for handler in (*asked, hooks.get("postStart"), hooks.get("preStop")):
            for way in ("httpGet", "tcpSocket"):
                if ((handler or {}).get(way) or {}).get("host"):
                    yield one["name"]


def _app_armor(pod: Object) -> Iterator[str]:
    for who, context in _contexts(pod):
        if (context.get("appArmorProfile") or {}).get("type") == "Unconfined":
            yield who


def _selinux(pod: Object) -> Iterator[str]:
    for who, context in _contexts(pod):
        options = context.get("seLinuxOptions") or {}
        if options.get("type", "") not in _SELINUX or options.get("user") or options.get("role"):
            yield who


def _proc_mount(pod: Object) -> Iterator[str]:
    yield from (
        who for who, context in _contexts(pod) if context.get("procMount", "Default") != "Default"
    )


def _sysctls(pod: Object) -> Iterator[str]:
    asked = (pod.get("securityContext") or {}).get("sysctls") or ()
    yield from (one["name"] for one in asked if one["name"] not in _SYSCTLS)


def _volume_types(pod: Object) -> Iterator[str]:
    for one in pod.get("volumes") or ():
        if not _VOLUMES & set(one):
            yield one["name"]


def _escalation(pod: Object) -> Iterator[str]:
    for one in _containers(pod):
        if (one.get("securityContext") or {}).get("allowPrivilegeEscalation") is not False:
            yield one["name"]


def _non_root(pod: Object) -> Iterator[str]:
    of_pod = (pod.get("securityContext") or {}).get("runAsNonRoot")
    for one in _containers(pod):
        if (one.get("securityContext") or {}).get("runAsNonRoot", of_pod) is not True:
            yield one["name"]


def _non_root_user(pod: Object) -> Iterator[str]:
    yield from (who for who, context in _contexts(pod) if context.get("runAsUser") == 0)


def _seccomp(pod: Object) -> Iterator[str]:
    of_pod = ((pod.get("securityContext") or {}).get("seccompProfile") or {}).get("type")
    if of_pod is not None and of_pod not in _SECCOMP:
        yield "pod"
    for one in _containers(pod):
        own = (one.get("securityContext") or {}).get("seccompProfile") or {}
        if own.get("type", of_pod) not in _SECCOMP:
            yield one["name"]


def _capabilities(pod: Object) -> Iterator[str]:
    for one in _containers(pod):
        found = (one.get("securityContext") or {}).get("capabilities") or {}
        if "ALL" not in (found.get("drop") or ()) or set(found.get("add") or ()) - {
            "NET_BIND_SERVICE"
        }:
            yield one["name"]


RULES: dict[str, Rule] = {
    "HostProcess": _host_process,
    "Host Namespaces": _host_namespaces,
    "Privileged Containers": _privileged,
    "Capabilities (baseline)": _baseline_capabilities,
    "HostPath Volumes": _host_paths,
    "Host Ports": _host_ports,
    "Host Probes / Lifecycle Hooks": _host_probes,
    "AppArmor": _app_armor,
    "SELinux": _selinux,
    "/proc Mount Type": _proc_mount,
    "Sysctls": _sysctls,
    "Volume Types": _volume_types,
    "Privilege Escalation": _escalation,
    "Running as Non-root": _non_root,
    "Running as Non-root user": _non_root_user,
    "Seccomp": _seccomp,
    "Capabilities": _capabilities,
}
"""By the name that the standard has for it: who in a pod's spec breaks it."""


def violations(pod: Object) -> dict[str, list[str]]:
    """By rule who in this spec breaks it; empty for a pod of the restricted profile."""
    found = {name: list(rule(pod)) for name, rule in RULES.items()}
    return {name: who for name, who in found.items() if who}
