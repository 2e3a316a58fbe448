"""A cluster as the place a job runs in: Spark in this pod, executors and state servers in others.

Decides Spark's settings in a driver's pod and puts session, placement and servers together. Called
by the entry point of a driver in a cluster; with another master by tests.
"""

import contextlib
import logging
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from moorage.cluster.executors import PodFailures, SparkExecutors
from moorage.cluster.servers import ClusterServers, Patience, ServerPlace
from moorage.driver.environment import Platform
from moorage.driver.local import Scratch
from moorage.driver.session import (
    LOG_LEVEL,
    end_session,
    engine_conf,
    java_options,
    start_session,
    worker_path,
)
from moorage.driver.settings import JobSettings
from moorage.driver.types import RunOptions
from moorage.driver.views import ExecutorsView
from moorage.engine.placement import AnchoredPlacement, LiveExecutor
from moorage_state.errors import UserError
from moorage_state.server.addresses import bracketed
from moorage_state.server.tls import TlsFiles

SERVER_PORT = 7790
"""Of the first state server of an executor."""

VOLUME = "/var/lib/moorage"
"""Where executors and their state servers have their local volume."""

_MASTER = "k8s://https://kubernetes.default.svc:443"
_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_TEMPLATE = "/etc/moorage/config/executor.yaml"
_PREFER_IPV6 = "-Djava.net.preferIPv6Addresses=true"
_AS_THE_ACCOUNT = "-Dkubernetes.auth.tryKubeConfig=false"
"""Spark asks Kubernetes as its pod's account, whatever kubeconfig an image has: with its token as
it is by then. One that Spark is given is read once, and ends."""

_READ_ONCE = "spark.kubernetes.authenticate.oauthTokenFile"
_log = logging.getLogger(__name__)
_MOST_FAILURES = "spark.executor.maxNumFailures"
_NO_LIMIT = str((1 << 31) - 1)
_OWN_CLAIMS = "spark.kubernetes.driver.ownPersistentVolumeClaim"

_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,\s*\d+\s*\]")


@dataclass(frozen=True, slots=True)
class Pod:
    """The driver's own pod."""

    name: str
    namespace: str
    ip: str

    @property
    def is_ipv6(self) -> bool:
        """Whether the cluster's first family, and so its pods' address, is IPv6."""
        return ":" in self.ip

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "Pod":
        """The pod that these variables tell of.

        Raises UserError: naming the variable that is missing.
        """
        names = ("MOORAGE_POD_NAME", "MOORAGE_NAMESPACE", "MOORAGE_POD_IP")
        for name in names:
            if not environ.get(name):
                raise UserError(
                    f"the driver does not know its pod: variable={name} is not set; it comes from "
                    f"the downward API in the driver's pod"
                )
        return cls(*(environ[name] for name in names))


def cluster_conf(
    settings: JobSettings, ordered: Mapping[str, str], pod: Pod | None
) -> dict[str, str]:
    """Spark's settings: the job's own, below the operator's, below what the engine requires.

    Args:
        ordered: what the operator decides.
        pod: the driver's; None where Spark's own processes are on this machine.
    """
    path = [worker_path(settings), settings.spark_conf.get("spark.executorEnv.PYTHONPATH", "")]
    conf = {
        **settings.spark_conf,
        **(_pod_conf(pod) if pod else {}),
        **ordered,
        **engine_conf(settings),
        **(_required(pod) if pod else {}),
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(filter(None, path)),
        # Executors are asked for and dismissed by the driver, which knows what they hold.
        "spark.dynamicAllocation.enabled": "false",
    }
    if pod:
        conf.pop(_READ_ONCE, None)  # an operator of an earlier release orders it
    family = [_PREFER_IPV6] if pod and pod.is_ipv6 else []
    further = {
        "spark.driver.extraJavaOptions": [*family, *([_AS_THE_ACCOUNT] if pod else [])],
        "spark.executor.extraJavaOptions": [*family, *_log_options(settings)],
    }
    for key, options in further.items():
        conf[key] = " ".join(java_options(conf.get(key, ""), *options))
    return conf


def _log_options(settings: JobSettings) -> list[str]:
    """What an executor logs: as much as the driver, where nobody configured it.

    Spark's own way to tell executors the level has no effect on them.
    """
    folder = os.environ.get("SPARK_CONF_DIR")
    if folder and any(Path(folder).glob("log4j2.*")):
        return []
    file = files("moorage.cluster").joinpath("log4j2.properties")
    level = settings.spark_conf.get(LOG_LEVEL, "WARN")
    return [shlex.quote(f"-Dlog4j2.configurationFile={file}"), f"-Dmoorage.log.level={level}"]


def _pod_conf(pod: Pod) -> dict[str, str]:
    return {
        "spark.driver.port": "7078",
        "spark.driver.blockManager.port": "7079",
        "spark.kubernetes.namespace": pod.namespace,
        "spark.kubernetes.driver.pod.name": pod.name,
        "spark.kubernetes.authenticate.caCertFile": f"{_ACCOUNT}/ca.crt",
        "spark.kubernetes.executor.podTemplateFile": _TEMPLATE,
        "spark.kubernetes.executor.podTemplateContainerName": "executor",
    }


def _required(pod: Pod) -> dict[str, str]:
    return {
        "spark.driver.host": bracketed(pod.ip),
        "spark.driver.bindAddress": "[::]" if pod.is_ipv6 else "0.0.0.0",  # noqa: S104  the pod's
        # Else newer Sparks send executors to the address that the driver binds.
        "spark.kubernetes.executor.useDriverPodIP": "false",
        # The driver counts for itself: see `PodFailures`.
        _MOST_FAILURES: _NO_LIMIT,
    }


def leave_claims(context: SparkContext) -> None:
    """Have Spark delete no claims when it stops; the operator gives them to the next driver.

    Those that nobody has taken over go with the driver's pod in any case.
    """
    scala: Any = context._jsc
    try:
        scala.sc().conf().set(_OWN_CLAIMS, "false")
    except (Py4JError, OSError) as error:
        _log.warning("spark_may_delete_volumes: error=%s", error)


class ClusterEnvironment:
    """See `moorage.driver.environment.JobEnvironment`.

    Args:
        ordered: Spark settings that the operator decides; `spark.master` may be one of them.
        pod: the driver's; None where Spark's own processes are on this machine.
        find: where the state servers of an executor are; by default in its pod.
        patience: how long to wait for executors and servers.
        tls: how state servers are known; None: in the clear.
    """

    def __init__(
        self,
        ordered: Mapping[str, str],
        token: str,
        *,
        pod: Pod | None = None,
        find: Callable[[LiveExecutor], ServerPlace] | None = None,
        patience: Patience | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        self._tls = tls
        self._ordered = dict(ordered)
        self._token = token
        self._pod = pod
        self._find = find or self._in_its_pod
        self._patience = patience
        self._executors: SparkExecutors | None = None

    def __repr__(self) -> str:
        return f"ClusterEnvironment(pod={self._pod!r})"

    @contextlib.contextmanager
    def open(
        self,
        settings: JobSettings,
        lineage: str,
        options: RunOptions,
        tell: Callable[[str], None],
    ) -> Iterator[Platform]:
        """See `JobEnvironment.open`."""
        scratch = Scratch(settings.checkpoint_dir, options.local_dir)
        with contextlib.ExitStack() as stack:
            stack.callback(scratch.remove)
            spark = self._session(settings)
            stack.callback(end_session, spark)
            context = spark.sparkContext
            stack.callback(leave_claims, context)
            self._executors = SparkExecutors(context, self._wanted(), self._failures(context))
            placement = AnchoredPlacement(context)
            servers = ClusterServers(
                self._executors,
                self._find,
                self._token,
                lineage,
                pin=placement.pin,
                tell=tell,
                stop=options.stop,
                at_once=lambda: options.requests.stop_at_once is not None,
                # State in Python's memory would have to fit into what each has of it.
                spares=settings.backend.use_managed_memory(),
                patience=self._patience,
                tls=self._tls,
            )
            stack.callback(servers.close)
            yield Platform(spark, servers, self._token, placement, scratch.path)

    def scale(self, executors: int) -> None:
        """See `JobEnvironment.scale`."""
        if self._executors is None:
            raise UserError("the job has not begun: ask again when it runs")
        self._executors.scale(executors)

    def executors(self) -> ExecutorsView:
        """See `JobEnvironment.executors`."""
        return self._executors.view() if self._executors else ExecutorsView()

    def _session(self, settings: JobSettings) -> SparkSession:
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        if self._pod and self._pod.is_ipv6:
            # Else Python looks for its own JVM at the loopback address of the other family.
            os.environ["SPARK_PREFER_IPV6"] = "true"
        conf = cluster_conf(settings, self._ordered, self._pod)
        return start_session(settings, self._master, conf, "its log is the driver's")

    @property
    def _master(self) -> str:
        return self._ordered.get("spark.master", _MASTER)

    def _wanted(self) -> int:
        """How many executors Spark was told to begin with."""
        local = _LOCAL_CLUSTER.fullmatch(self._master)
        if local:
            return int(local[1])
        return int(self._ordered.get("spark.executor.instances", "2"))

    def _failures(self, context: SparkContext) -> PodFailures | None:
        most = self._ordered.get(_MOST_FAILURES)
        if not most or not self._master.startswith("k8s://"):
            return None
        try:
            return PodFailures(context, int(most))
        except (Py4JError, OSError) as error:
            # Of a Spark that keeps its count elsewhere: better without a limit than not at all.
            _log.warning("pods_that_fail_are_not_counted: error=%s", error)
            return None

    def _in_its_pod(self, executor: LiveExecutor) -> ServerPlace:
        count = int(self._ordered.get("spark.executor.cores", "1"))
        return ServerPlace(executor.host, SERVER_PORT, count, VOLUME)
