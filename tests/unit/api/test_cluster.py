"""What a cluster refuses that the API server cannot see: field, reason, fix."""

import pytest

from moorage_api import StatefulSparkJob, cluster_problems

GOOD = {
    "spec.image": "registry/clicks:1",
    "spec.application.mainFile": "local:///app/job.py",
    "spec.state.checkpointDir": "s3://state/clicks",
    "spec.state.savepointDir": "s3://savepoints/clicks",
}
D, E = "spec.driver.podTemplate", "spec.executor.podTemplate"


def driver(**fields):
    return {D: {"spec": {"containers": [{"name": "driver", **fields}]}}}


def executor(name="executor", **fields):
    where = "containers" if name == "executor" else "initContainers"
    return {E: {"spec": {where: [{"name": name, **fields}]}}}


REFUSED = {
    "a relative python file": (
        {"spec.application.pyFiles": ["lib.zip"]},
        "spec.application.pyFiles[0]",
        "local:///",
    ),
    "a variable of ours": (
        {"spec.application.env": [{"name": "MOORAGE_POD_IP", "value": "1"}]},
        "spec.application.env[0].name",
        "MOORAGE_POD_IP",
    ),
    "a variable of Spark's": (
        {"spec.application.env": [{"name": "SPARK_EXECUTOR_CORES"}]},
        "spec.application.env[0].name",
        "another name",
    ),
    "credentials twice": (
        {
            "spec.application.env": [{"name": "AWS_ACCESS_KEY_ID", "value": "x"}],
            "spec.state.credentialsSecretRef": {"name": "s3"},
        },
        "spec.application.env[0].name",
        "keep one",
    ),
    "a variable from nowhere": (
        {"spec.application.env": [{"name": "A", "valueFrom": {"secret": {"name": "s"}}}]},
        "spec.application.env[0].valueFrom",
        "secretKeyRef",
    ),
    "a setting that the operator makes": (
        {"spec.sparkConf": {"spark.executor.memory": "8g"}},
        "spec.sparkConf['spark.executor.memory']",
        "executor.memory",
    ),
    "a label that finds pods": (
        {"spec.sparkConf": {"spark.kubernetes.executor.label.moorage.dev/role": "x"}},
        "spec.sparkConf['spark.kubernetes.executor.label.moorage.dev/role']",
        "leave it out",
    ),
    "a driver too small": ({"spec.driver.memory": "1000Mi"}, "spec.driver.memory", "1090Mi"),
    "an executor too small for its cores": (
        {"spec.executor": {"cores": 8, "memory": "2Gi"}},
        "spec.executor.memory",
        "2882Mi or more",
    ),
    "a sidecar too small for its servers": (
        {
            "spec.executor": {
                "cores": 4,
                "sidecar": {"resources": {"limits": {"memory": "1Gi"}}},
            }
        },
        "spec.executor.sidecar.resources.limits.memory",
        "1344Mi or more",
    ),
    "claims without a class": (
        {"spec.state.local": {"type": "ReusedPVC", "size": "1Gi"}},
        "spec.state.local.storageClassName",
        "storage class",
    ),
    "a directory of the node": (
        {"spec.state.local": {"type": "HostPath", "path": "/var/lib/kubelet/x"}},
        "spec.state.local.path",
        "/var/lib/kubelet",
    ),
    "a way out of a directory": (
        {"spec.state.local": {"type": "HostPath", "path": "/mnt/../etc"}},
        "spec.state.local.path",
        "plain",
    ),
    "a template that is no pod": ({D: {"containers": []}}, f"{D}.containers", "not a field"),
    "a typing error": ({D: {"spec": {"nodeSelectors": {}}}}, f"{D}.spec.nodeSelectors", "nodeS"),
    "a field of another kind": (
        {D: {"spec": {"tolerations": {}}}},
        f"{D}.spec.tolerations",
        "list",
    ),
    "another kind of object": ({D: {"kind": "Deployment"}}, f"{D}.kind", "Pod"),
    "a label of ours": (
        {D: {"metadata": {"labels": {"moorage.dev/job": "x"}}}},
        f"{D}.metadata.labels['moorage.dev/job']",
        "operator",
    ),
    "a label that is a number": (
        {D: {"metadata": {"labels": {"version": 2}}}},
        f"{D}.metadata.labels.version",
        "quotes",
    ),
    "an owner": (
        {D: {"metadata": {"ownerReferences": []}}},
        f"{D}.metadata.ownerReferences",
        "labels and annotations",
    ),
    "a deadline": (
        {D: {"spec": {"activeDeadlineSeconds": 60}}},
        f"{D}.spec.activeDeadlineSeconds",
        "end the stream",
    ),
    "another account": (
        {E: {"spec": {"serviceAccountName": "x"}}},
        f"{E}.spec.serviceAccountName",
        "spec.serviceAccountName",
    ),
    "a container that outlives the driver": (
        {D: {"spec": {"containers": [{"name": "logs", "image": "logs:1"}]}}},
        f"{D}.spec.containers[0]",
        "initContainers",
    ),
    "a container without an image": (
        {D: {"spec": {"initContainers": [{"name": "warm"}]}}},
        f"{D}.spec.initContainers[0].image",
        "name the image",
    ),
    "a container without a name": (
        {D: {"spec": {"initContainers": [{"image": "warm:1"}]}}},
        f"{D}.spec.initContainers[0]",
        "a name",
    ),
    "two containers of one name": (
        {
            E: {
                "spec": {
                    "initContainers": [{"name": "a", "image": "a"}, {"name": "a", "image": "a"}]
                }
            }
        },
        f"{E}.spec.initContainers[1].name",
        "keep one",
    ),
    "another image": (driver(image="x"), f"{D}.spec.containers[0].image", "spec.image"),
    "another command": (driver(command=["x"]), f"{D}.spec.containers[0].command", "leave it out"),
    "memory of the driver": (
        driver(resources={"limits": {"memory": "1Gi"}}),
        f"{D}.spec.containers[0].resources.limits.memory",
        "spec.driver.memory",
    ),
    "a limit of CPU below the request": (
        driver(resources={"limits": {"cpu": "500m"}}),
        f"{D}.spec.containers[0].resources.limits.cpu",
        "below the request 1",
    ),
    "resources of the sidecar": (
        executor("state-server", resources={"requests": {"cpu": "1"}}),
        f"{E}.spec.initContainers[0].resources.requests.cpu",
        "sidecar.resources",
    ),
    "a hook of an executor": (
        executor(lifecycle={}),
        f"{E}.spec.containers[0].lifecycle",
        "Spark",
    ),
    "a variable of ours in a template": (
        executor(env=[{"name": "MOORAGE_POD_UID", "value": "x"}]),
        f"{E}.spec.containers[0].env[0].name",
        "MOORAGE_POD_UID",
    ),
    "a mount over ours": (
        executor(volumeMounts=[{"name": "x", "mountPath": "/var/lib/moorage/state/"}]),
        f"{E}.spec.containers[0].volumeMounts[0].mountPath",
        "/var/lib/moorage",
    ),
    "a mount around ours": (
        driver(volumeMounts=[{"name": "x", "mountPath": "/etc"}]),
        f"{D}.spec.containers[0].volumeMounts[0].mountPath",
        "elsewhere",
    ),
    "a port of ours": (
        driver(ports=[{"containerPort": 7780}]),
        f"{D}.spec.containers[0].ports[0].containerPort",
        "another port",
    ),
    "a volume of ours": (
        {E: {"spec": {"volumes": [{"name": "moorage-local", "emptyDir": {}}]}}},
        f"{E}.spec.volumes[0].name",
        "state.local",
    ),
    "a volume without a source": (
        {E: {"spec": {"volumes": [{"name": "x"}]}}},
        f"{E}.spec.volumes[0]",
        "emptyDir",
    ),
    "root": (
        {D: {"spec": {"securityContext": {"runAsUser": 0}}}},
        f"{D}.spec.securityContext.runAsUser",
        "runAsNonRoot",
    ),
    "the state server under containers": (
        {E: {"spec": {"initContainers": [{"name": "executor"}]}}},
        f"{E}.spec.initContainers[0].name",
        "under containers",
    ),
    "what is not there yet": (
        {"spec.scaling.repartition": "Offline"},
        "spec.scaling.repartition",
        "leave",
    ),
}


def problems(manifest, changes):
    data = manifest({**GOOD, **changes})
    return cluster_problems(StatefulSparkJob.model_validate(data))


@pytest.mark.parametrize("what", REFUSED)
def test_a_cluster_refuses(what, manifest):
    changes, field, words = REFUSED[what]
    (problem,) = problems(manifest, changes)
    assert problem.field == field
    assert words in f"{problem.reason}; {problem.fix}"


ACCEPTED = {
    "a template with everything that is left open": {
        D: {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"labels": {"team": "web"}, "annotations": {"a/b": "c"}},
            "spec": {
                "affinity": {"podAntiAffinity": {}},
                "tolerations": [{"operator": "Exists"}],
                "volumes": [{"name": "models", "configMap": {"name": "models"}}],
                "initContainers": [{"name": "logs", "image": "logs:1", "restartPolicy": "Always"}],
                "containers": [
                    {
                        "name": "driver",
                        "env": [{"name": "TZ", "value": "UTC"}],
                        "resources": {"limits": {"cpu": 2, "nvidia.com/gpu": 1}},
                        "volumeMounts": [{"name": "models", "mountPath": "/models"}],
                        "livenessProbe": {"exec": {"command": ["true"]}},
                    }
                ],
            },
        }
    },
    "root where the image needs it": {
        D: {"spec": {"securityContext": {"runAsUser": 0, "runAsNonRoot": False}}}
    },
    "a directory for jobs on nodes": {
        "spec.state.local": {"type": "HostPath", "path": "/mnt/nvme/moorage"}
    },
    "settings of Spark itself": {
        "spec.sparkConf": {
            "spark.sql.ansi.enabled": "true",
            "spark.kubernetes.executor.node.selector.pool": "big",
            "spark.ui.enabled": "true",
        }
    },
    "periodic savepoints": {"spec.savepoint.schedule": {"cron": "0 3 * * *"}},
}


@pytest.mark.parametrize("what", ACCEPTED)
def test_a_cluster_accepts(what, manifest):
    assert problems(manifest, ACCEPTED[what]) == []


def test_all_problems_are_said_at_once(manifest):
    changes = {"spec.driver.memory": "1000Mi", **executor(command=["x"]), **driver(image="x")}
    fields = [problem.field for problem in problems(manifest, changes)]
    assert fields == [
        "spec.driver.memory",
        f"{D}.spec.containers[0].image",
        f"{E}.spec.containers[0].command",
    ]
