"""What the operator makes are pods of the profile `restricted`, by each of its rules."""

import copy

import pytest
import yaml
from moorage_testing.attempts import META, ORDER, REVISION
from moorage_testing.pod_security import RULES, violations

from moorage_operator.children.pods import driver_pod, executor_template
from moorage_operator.lineages.pods import store_task_pod
from moorage_operator.lineages.requests import request_of
from moorage_operator.plan import StoreTask
from moorage_operator.ports import JobRefs

LOCAL = {
    "EmptyDir": {"type": "EmptyDir", "size": "1Gi"},
    "EphemeralPVC": {"type": "EphemeralPVC", "size": "1Gi"},
    "ReusedPVC": {"type": "ReusedPVC", "size": "1Gi", "storageClassName": "fast"},
}
EVERYTHING = {
    "state.credentialsSecretRef": {"name": "s3"},
    "security": {"tls": {"secretName": "clicks-tls"}},
}
PODS = {
    "driver": lambda spec: driver_pod(META, spec, REVISION, ORDER),
    "executor": lambda spec: executor_template(META, spec, REVISION, 7),
    "store task": lambda spec: task(spec, "Verify"),
    "preflight": lambda spec: task(spec, "Preflight"),
}


def task(spec, kind):
    job = JobRefs(META, spec)
    return store_task_pod(job, request_of(job, StoreTask("t-1", kind), "test"), 300)


@pytest.mark.parametrize("local", LOCAL)
@pytest.mark.parametrize("pod", PODS)
@pytest.mark.parametrize("rule", RULES)
def test_each_pod_keeps_each_rule(spec, rule, pod, local):
    made = PODS[pod](spec({**EVERYTHING, "state.local": LOCAL[local]}))
    assert list(RULES[rule](made["spec"])) == []


def test_a_volume_of_the_host_is_all_that_a_job_can_ask_for_by_itself(spec):
    host = {"type": "HostPath", "path": "/mnt/nvme"}
    made = PODS["executor"](spec({**EVERYTHING, "state.local": host}))
    assert set(violations(made["spec"])) == {"HostPath Volumes", "Volume Types"}


BREAKING = {
    "HostProcess": "securityContext: {windowsOptions: {hostProcess: true}}",
    "Host Namespaces": "hostPID: true",
    "Privileged Containers": "containers: [{securityContext: {privileged: true}}]",
    "Capabilities (baseline)": "securityContext: {capabilities: {add: [SYS_ADMIN]}}",
    "HostPath Volumes": "volumes: [{name: x, hostPath: {path: /}}]",
    "Host Ports": "containers: [{ports: [{containerPort: 1, hostPort: 1}]}]",
    "Host Probes / Lifecycle Hooks": "containers: [{readinessProbe: {httpGet: {host: 10.0.0.1}}}]",
    "AppArmor": "securityContext: {appArmorProfile: {type: Unconfined}}",
    "SELinux": "securityContext: {seLinuxOptions: {type: spc_t}}",
    "/proc Mount Type": "containers: [{securityContext: {procMount: Unmasked}}]",
    "Sysctls": "securityContext: {sysctls: [{name: kernel.msgmax, value: '1'}]}",
    "Volume Types": "volumes: [{name: x, nfs: {server: a, path: /}}]",
    "Privilege Escalation": "containers: [{securityContext: {allowPrivilegeEscalation: null}}]",
    "Running as Non-root": "securityContext: {runAsNonRoot: null}",
    "Running as Non-root user": "containers: [{securityContext: {runAsUser: 0}}]",
    "Seccomp": "securityContext: {seccompProfile: {type: Unconfined}}",
    "Capabilities": "containers: [{securityContext: {capabilities: {drop: []}}}]",
}


def changed(pod, changes):
    """The spec with the first container and the contexts changed, and nothing else."""
    made = copy.deepcopy(pod)
    for name, value in changes.items():
        if name == "containers":
            context = made["containers"][0]["securityContext"]
            made["containers"][0] |= {k: v for k, v in value[0].items() if k != "securityContext"}
            context |= value[0].get("securityContext", {})
        elif name == "securityContext":
            made["securityContext"] |= value
        elif name == "volumes":
            made["volumes"] = [*made.get("volumes", ()), *value]
        else:
            made[name] = value
    return made


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_finds_who_breaks_it(spec, rule):
    made = PODS["driver"](spec())
    assert rule in violations(changed(made["spec"], yaml.safe_load(BREAKING[rule])))
