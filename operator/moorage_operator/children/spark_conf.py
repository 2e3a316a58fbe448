"""`spark.json`: the settings of Spark that follow from the spec and from how the pods are made.

They win over the job's own sparkConf, but for `DEFAULTS`; what the engine needs wins over both. The
runtime adds what only the driver's pod knows: the master's address and its own.
"""

from moorage_api import JobSpec
from moorage_api.driver import CONFIG_DIR, SPARK_SECRET_FILE, StartOrder
from moorage_api.reserved import BLOCK_MANAGER_PORT, DRIVER_PORT, EXECUTOR_CONTAINER
from moorage_api.sizing import driver_memory, executor_count, executor_memory
from moorage_operator.children.names import driver_pod_name, executor_prefix, labels
from moorage_operator.children.pods import executor_template, local_settings
from moorage_operator.world import Meta

_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"

DEFAULTS = {
    # A pod that was made and never seen is made again, and a claim that is older is free to use:
    # Spark's ten minutes are for who looks every half minute.
    "spark.kubernetes.allocation.executor.timeout": "60s",
    # Spark's watch takes a pod that is deleted by force for one that runs, and once it has ended,
    # as when the API server is restarted, it is not opened again. Then only looking tells.
    "spark.kubernetes.executor.apiPollingInterval": "5s",
    "spark.ui.enabled": "false",
    # Its pages ask for no token: whoever reaches them may look, and end no stage.
    "spark.ui.killEnabled": "false",
}
"""What a job may set otherwise in its sparkConf."""


def spark_settings(meta: Meta, spec: JobSpec, order: StartOrder) -> dict[str, str]:
    """Return the settings, sorted by name."""
    settings = {
        **_width(spec),
        **_pods(meta, spec, order),
        **_security(spec),
        **local_settings(meta, spec.state.local, order.attempt),
        **_failures(spec),
        "spark.blockManager.port": str(BLOCK_MANAGER_PORT),
        "spark.driver.bindAddress": "0.0.0.0",  # noqa: S104  the pod's own network
        "spark.driver.port": str(DRIVER_PORT),
        **{name: spec.spark_conf.get(name, usual) for name, usual in DEFAULTS.items()},
    }
    return dict(sorted(settings.items()))


def _width(spec: JobSpec) -> dict[str, str]:
    executor = executor_memory(spec.executor)
    count = executor_count(spec.executor, spec.scaling.parallelism)
    return {
        "spark.driver.memory": f"{driver_memory(spec.driver).heap}m",
        "spark.dynamicAllocation.enabled": "false",
        "spark.executor.cores": str(spec.executor.cores),
        "spark.executor.instances": str(count),
        "spark.executor.memory": f"{executor.heap}m",
        "spark.executor.memoryOverhead": f"{executor.besides}m",
        "spark.kubernetes.executor.request.cores": str(
            spec.executor.cpu_request or spec.executor.cores
        ),
        # A task for each core: the state servers are counted by cores too.
        "spark.task.cpus": "1",
    }


def _pods(meta: Meta, spec: JobSpec, order: StartOrder) -> dict[str, str]:
    marks = {
        f"spark.kubernetes.executor.label.{name}": value
        for name, value in labels(meta, "executor", order.attempt).items()
    }
    template = executor_template(meta, spec, "", order.attempt)["spec"]
    return {
        **marks,
        "spark.kubernetes.container.image": spec.image or "",
        "spark.kubernetes.container.image.pullPolicy": spec.image_pull_policy,
        "spark.kubernetes.driver.pod.name": driver_pod_name(meta.name, order.attempt),
        "spark.kubernetes.executor.container.image": spec.image or "",
        # The sidecar of an executor that ends may live on for a last upload.
        "spark.kubernetes.executor.checkAllContainers": "false",
        "spark.kubernetes.executor.podNamePrefix": executor_prefix(meta.name, order.attempt),
        "spark.kubernetes.executor.podTemplateContainerName": EXECUTOR_CONTAINER,
        "spark.kubernetes.executor.podTemplateFile": f"{CONFIG_DIR}/executor.yaml",
        # Else Spark has 30 s take the place of what the template says.
        "spark.kubernetes.executor.terminationGracePeriodSeconds": (
            f"{template['terminationGracePeriodSeconds']}s"
        ),
        "spark.kubernetes.namespace": meta.namespace,
    }


def _security(spec: JobSpec) -> dict[str, str]:
    """Spark's processes know each other by a secret of their own, in a file: in no setting."""
    local = {"spark.io.encryption.enabled": "true"} if spec.tls_secret else {}
    return {
        **local,
        "spark.authenticate": "true",
        "spark.authenticate.secret.file": SPARK_SECRET_FILE,
        # Never the token's file beside it: that is read once, and its token ends, on some clouds
        # within an hour. Where none is named Spark's client reads the account's anew.
        "spark.kubernetes.authenticate.caCertFile": f"{_ACCOUNT}/ca.crt",
        # Else they only prove that they know it, and talk in the clear.
        "spark.network.crypto.enabled": "true",
    }


def _failures(spec: JobSpec) -> dict[str, str]:
    policy = spec.failure_policy.executor_failures
    return {
        "spark.decommission.enabled": "true",
        "spark.executor.failuresValidityInterval": f"{round(policy.window.seconds * 1000)}ms",
        "spark.executor.maxNumFailures": str(policy.max),
    }
