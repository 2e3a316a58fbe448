"""What is Moorage's in a job's pods: names, paths, ports, variables, settings of Spark.

The builders of the control plane make pods from these, the judges of this package refuse manifests
that clash with them and say what to write instead, and the runtime finds its files by them.
Constants only.
"""

DRIVER_CONTAINER = "driver"
EXECUTOR_CONTAINER = "executor"
SIDECAR_CONTAINER = "state-server"

CONFIG_VOLUME = "moorage-config"
TOKEN_VOLUME = "moorage-token"  # noqa: S105  a volume's name
SCRAPE_VOLUME = "moorage-scrape"
TLS_VOLUME = "moorage-tls"
CREDENTIALS_VOLUME = "moorage-credentials"
LOCAL_VOLUME = "moorage-local"
OWNED_VOLUMES = (
    CONFIG_VOLUME,
    TOKEN_VOLUME,
    SCRAPE_VOLUME,
    TLS_VOLUME,
    CREDENTIALS_VOLUME,
    LOCAL_VOLUME,
)

TOKEN_DIR = "/etc/moorage/token"  # noqa: S105  a directory
SCRAPE_DIR = "/etc/moorage/scrape"
TLS_DIR = "/etc/moorage/tls"
CREDENTIALS_DIR = "/etc/moorage/credentials"
LOCAL_DIR = "/var/lib/moorage"
"""Where the working databases and the sockets of state servers lie."""

DRIVER_PORT = 7078
BLOCK_MANAGER_PORT = 7079
SIDECAR_HEALTH_PORT = 7789
SIDECAR_PORT = 7790
"""The first state server's; the others follow."""
OWNED_PORTS = (DRIVER_PORT, BLOCK_MANAGER_PORT, 7780, SIDECAR_HEALTH_PORT, SIDECAR_PORT)

SPARK_UID = 185
"""User and group of all containers: those of Spark's own images."""

CREDENTIAL_ENV = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
"""Taken from credentialsSecretRef; the last one only if the Secret has it."""
CREDENTIALS_DIR_ENV = "MOORAGE_CREDENTIALS_DIR"
"""Where the same lie as files, which follow the Secret while a pod runs."""

OWNED_ENV = (
    "PYSPARK_DRIVER_PYTHON",
    "PYSPARK_PYTHON",
    "SPARK_APPLICATION_ID",
    "SPARK_CONF_DIR",
    "SPARK_DRIVER_URL",
    "SPARK_LOCAL_DIRS",
    "SPARK_RESOURCE_PROFILE_ID",
    "SPARK_USER",
)
"""Variables that Spark or the runtime sets itself."""
OWNED_ENV_PREFIXES = ("MOORAGE_", "SPARK_EXECUTOR_", "SPARK_JAVA_OPT_", "_SPARK_")


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
    "spark.kubernetes.executor.terminationGracePeriodSeconds": _TEMPLATE,
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
