"""Spark's settings in a driver's pod: who decides which."""

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError

from moorage.cluster import environment
from moorage.cluster.environment import ClusterEnvironment, Pod, cluster_conf
from moorage.driver import session
from moorage.driver.environment import JobEnvironment, SparkNotStarted
from moorage.driver.local import LocalEnvironment
from moorage_state.errors import UserError
from moorage_state.import_path import standard_library

POD = Pod("clicks-3-driver", "team", "10.0.0.7")


@pytest.fixture
def settings(tmp_path):
    return SimpleNamespace(
        main_file=tmp_path / "job.py",
        py_files=(),
        parallelism=4,
        driver_memory_mb=1024,
        spark_conf={
            "spark.sql.adaptive.enabled": "true",
            "spark.executor.memory": "1g",
            "spark.sql.session.timeZone": "Europe/Berlin",
            "spark.executorEnv.PYTHONPATH": "/mine",
            "spark.executor.extraJavaOptions": "-XX:+UseZGC",
            "spark.kubernetes.namespace": "elsewhere",
            "spark.custom": "kept",
        },
    )


def test_the_jobs_settings_yield_to_the_operators_and_those_to_the_engine(settings):
    ordered = {
        "spark.executor.memory": "2g",
        "spark.driver.port": "17078",
        "spark.dynamicAllocation.enabled": "true",
    }
    conf = cluster_conf(settings, ordered, POD)
    assert conf["spark.custom"] == "kept"
    assert conf["spark.executor.memory"] == "2g"
    assert conf["spark.driver.port"] == "17078"
    assert conf["spark.kubernetes.namespace"] == "team"
    assert conf["spark.sql.adaptive.enabled"] == "false"
    assert conf["spark.sql.session.timeZone"] == "UTC"
    assert conf["spark.dynamicAllocation.enabled"] == "false"


def test_the_drivers_heap_is_what_the_operator_leaves_of_its_pod(settings):
    conf = cluster_conf(settings, {"spark.driver.memory": "600m"}, POD)
    assert conf["spark.driver.memory"] == "600m"


def log_options(settings):
    options = cluster_conf(settings, {}, POD)["spark.executor.extraJavaOptions"].split()
    return dict(one.split("=") for one in options if "log4j2." in one or "log.level" in one)


def test_executors_log_warnings_unless_the_job_says_otherwise(settings):
    found = log_options(settings)
    assert Path(found["-Dlog4j2.configurationFile"]).exists()
    assert found["-Dmoorage.log.level"] == "WARN"
    settings.spark_conf["spark.log.level"] = "INFO"
    assert log_options(settings)["-Dmoorage.log.level"] == "INFO"


def test_executors_find_what_they_log_by_in_a_folder_with_blanks(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "files", lambda _package: tmp_path / "my venv")
    options = cluster_conf(settings, {}, POD)["spark.executor.extraJavaOptions"]
    file = tmp_path / "my venv" / "log4j2.properties"
    assert f"-Dlog4j2.configurationFile={file}" in shlex.split(options)


def test_who_configures_sparks_log_configures_that_of_executors(settings, tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert log_options(settings)
    (tmp_path / "log4j2.properties").touch()
    assert log_options(settings) == {}


def test_spark_asks_as_the_account_of_its_pod_with_no_token_that_was_read_once(settings):
    earlier = {"spark.kubernetes.authenticate.oauthTokenFile": "/var/run/token"}
    conf = cluster_conf(settings, earlier, POD)
    assert not [name for name in conf if "oauthToken" in name]
    options = conf["spark.driver.extraJavaOptions"].split()
    assert "-Dkubernetes.auth.tryKubeConfig=false" in options


def test_on_an_ipv6_cluster_spark_listens_there_and_is_told_of_it(settings):
    pod = Pod("clicks-3-driver", "team", "fd00::7")
    conf = cluster_conf(settings, {}, pod)
    assert conf["spark.driver.host"] == "[fd00::7]"
    assert conf["spark.driver.bindAddress"] == "[::]"
    for who in ("driver", "executor"):
        options = conf[f"spark.{who}.extraJavaOptions"]
        assert "-Djava.net.preferIPv6Addresses=true" in options.split()
    assert "preferIPv6" not in str(cluster_conf(settings, {}, POD))


@pytest.mark.parametrize(
    ("master", "error", "kind"),
    [
        ("k8s://api", "External scheduler cannot be instantiated", SparkNotStarted),
        ("k8s://api", "[JAVA_GATEWAY_EXITED] Java gateway process exited", UserError),
        ("local[2]", "Unable to find any JVMs", UserError),
    ],
)
def test_a_cluster_that_is_away_is_no_fault_of_the_job(settings, monkeypatch, master, error, kind):
    def away():
        raise RuntimeError(f"{error}\nCaused by: java.net.ConnectException: refused")

    builder = SimpleNamespace(getOrCreate=away)
    builder.master = builder.appName = builder.config = lambda *_: builder
    monkeypatch.setattr(session, "SparkSession", SimpleNamespace(builder=builder))
    settings.name = "clicks"
    with pytest.raises(kind, match="spark does not start") as failed:
        session.start_session(settings, master, {}, "its log is the driver's")
    assert type(failed.value) is kind
    if kind is SparkNotStarted:
        assert "ConnectException: refused" in str(failed.value)


def test_executors_find_the_driver_by_its_address_and_the_jobs_modules(settings, tmp_path):
    conf = cluster_conf(settings, {}, POD)
    assert conf["spark.driver.host"] == "10.0.0.7"
    assert conf["spark.kubernetes.driver.pod.name"] == "clicks-3-driver"
    path = conf["spark.executorEnv.PYTHONPATH"].split(":")
    library = standard_library()
    assert (path[: len(library)], path[len(library)]) == (library, str(tmp_path))
    assert path[-1] == "/mine"


def test_a_collector_that_the_job_names_stays(settings):
    conf = cluster_conf(settings, {}, POD)
    for process, collector in (("executor", "-XX:+UseZGC"), ("driver", "-XX:+UseParallelGC")):
        options = conf[f"spark.{process}.extraJavaOptions"].split()
        assert [option for option in options if option.endswith("GC")] == [collector]


def test_without_a_pod_nothing_of_kubernetes_is_set(settings):
    conf = cluster_conf(settings, {}, None)
    assert "spark.driver.host" not in conf
    assert [key for key in conf if key.startswith("spark.kubernetes.")] == [
        "spark.kubernetes.namespace"
    ]


def test_a_driver_that_does_not_know_its_pod_names_the_variable():
    known = {"MOORAGE_POD_NAME": "a", "MOORAGE_NAMESPACE": "b", "MOORAGE_POD_IP": "10.0.0.7"}
    assert Pod.of(known) == Pod("a", "b", "10.0.0.7")
    with pytest.raises(UserError, match="MOORAGE_POD_IP"):
        Pod.of(known | {"MOORAGE_POD_IP": ""})


def test_no_token_shows_in_an_environments_text():
    assert "s3cr3t" not in repr(ClusterEnvironment({}, "s3cr3t", pod=POD))


def test_what_has_no_executors_says_so_when_it_is_scaled():
    local: JobEnvironment = LocalEnvironment()
    with pytest.raises(UserError, match="no executors on this machine"):
        local.scale(3)
    cluster: JobEnvironment = ClusterEnvironment({}, "token")
    with pytest.raises(UserError, match="has not begun"):
        cluster.scale(3)
    assert (local.executors().desired, cluster.executors().desired) == (0, 0)


def test_of_a_spark_that_counts_elsewhere_pods_that_fail_have_no_limit(caplog):
    class Context:
        @property
        def _jsc(self):
            raise Py4JError("Spark's backend has no ExecutorPodsLifecycleManager")

    ordered = {"spark.master": "k8s://https://server", "spark.executor.maxNumFailures": "3"}
    on_kubernetes = ClusterEnvironment(ordered, "token", pod=POD)
    context: Any = Context()
    assert on_kubernetes._failures(context) is None
    assert "pods_that_fail_are_not_counted" in caplog.text
