"""Which Spark settings a job may not set, and what to write instead.

Some are decided by other fields wherever a job runs; more of them on a cluster, where the operator
makes the pods. Tables and a pattern, for the models and the rules of the API server alike.
"""

from moorage_api.pods import LOCAL_VOLUME

__all__ = [
    "CLUSTER_SPARK_CONF",
    "CLUSTER_SPARK_PREFIXES",
    "DENIED_SPARK_CONF",
    "SPARK_KEY_PATTERN",
]

SPARK_KEY_PATTERN = r"^spark[.][-A-Za-z0-9._/:@$*]+$"

# Each of these is decided by another field of the spec, or by the cluster.
DENIED_SPARK_CONF: dict[str, str] = {
    "spark.app.id": "leave it out: each run has its own",
    "spark.dynamicAllocation.enabled": "use scaling.autoscaler",
    "spark.executor.instances": "use executor.instances or scaling.parallelism",
    "spark.kubernetes.driver.pod.name": "leave it out: it follows from metadata.name",
    "spark.kubernetes.namespace": "use metadata.namespace",
    "spark.master": "leave it out: it follows from where the job runs",
    "spark.sql.shuffle.partitions": "use scaling.parallelism",
    "spark.submit.deployMode": "leave it out: it follows from where the job runs",
}

_FIXED = "leave it out: the operator decides it"
_MEMORY = "use executor.memory: it is divided between the JVM and Python"
_TEMPLATE = "use executor.podTemplate"

# On a cluster these too.
CLUSTER_SPARK_CONF: dict[str, str] = {
    "spark.authenticate": _FIXED,
    "spark.authenticate.secret": _FIXED,
    "spark.authenticate.secret.driver.file": _FIXED,
    "spark.authenticate.secret.executor.file": _FIXED,
    "spark.authenticate.secret.file": _FIXED,
    "spark.blockManager.port": _FIXED,
    "spark.decommission.enabled": _FIXED,
    "spark.driver.bindAddress": _FIXED,
    "spark.driver.blockManager.port": _FIXED,
    "spark.driver.host": _FIXED,
    "spark.driver.memory": "use driver.memory",
    "spark.driver.port": _FIXED,
    "spark.executor.cores": "use executor.cores",
    "spark.executor.failuresValidityInterval": "use failurePolicy.executorFailures.window",
    "spark.executor.maxNumFailures": "use failurePolicy.executorFailures.max",
    "spark.executor.memory": _MEMORY,
    "spark.executor.memoryOverhead": _MEMORY,
    "spark.executor.memoryOverheadFactor": _MEMORY,
    "spark.executor.pyspark.memory": _MEMORY,
    "spark.kubernetes.authenticate.caCertFile": _FIXED,
    "spark.kubernetes.authenticate.oauthToken": _FIXED,
    "spark.kubernetes.authenticate.oauthTokenFile": _FIXED,
    "spark.kubernetes.container.image": "use image",
    "spark.kubernetes.container.image.pullPolicy": "use imagePullPolicy",
    "spark.kubernetes.driver.ownPersistentVolumeClaim": "use state.local",
    "spark.kubernetes.driver.reusePersistentVolumeClaim": "use state.local",
    "spark.kubernetes.executor.checkAllContainers": _FIXED,
    "spark.kubernetes.executor.container.image": "use image",
    "spark.kubernetes.executor.podNamePrefix": _FIXED,
    "spark.kubernetes.executor.podTemplateContainerName": _FIXED,
    "spark.kubernetes.executor.podTemplateFile": _TEMPLATE,
    "spark.kubernetes.executor.request.cores": "use executor.cpuRequest",
    "spark.kubernetes.memoryOverheadFactor": _MEMORY,
    "spark.network.crypto.enabled": _FIXED,
    "spark.task.cpus": _FIXED,
}

# And on a cluster whatever begins so.
CLUSTER_SPARK_PREFIXES: dict[str, str] = {
    "spark.kubernetes.executor.label.app.kubernetes.io/": _FIXED,
    "spark.kubernetes.executor.label.moorage.dev/": _FIXED,
    f"spark.kubernetes.executor.volumes.persistentVolumeClaim.{LOCAL_VOLUME}.": "use state.local",
}
