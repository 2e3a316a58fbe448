"""The runtime image's entry point, with stand-ins for java and tini on PATH."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "runtime" / "image" / "entrypoint.sh"
EXECUTOR = {
    "SPARK_EXECUTOR_MEMORY": "900m",
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.1.2.3:7078",
    "SPARK_EXECUTOR_ID": "4",
    "SPARK_EXECUTOR_CORES": "2",
    "SPARK_APPLICATION_ID": "app-1",
    "SPARK_EXECUTOR_POD_IP": "10.1.2.4",
    "SPARK_EXECUTOR_POD_NAME": "clicks-1-exec-4",
    "SPARK_RESOURCE_PROFILE_ID": "0",
}


@pytest.fixture
def run(tmp_path):
    """Run the script; the arguments that java (or anything else) was started with, one a line."""
    for name, text in (
        ("java", '#!/bin/sh\nfor a in "$@"; do echo "$a"; done\n'),
        ("tini", '#!/bin/sh\n[ "$1 $2" = "-s --" ] && shift 2 && exec "$@"\n'),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def run(*arguments, **variables):
        done = subprocess.run(
            [str(SCRIPT), *arguments],
            env={"PATH": f"{tmp_path}:{os.environ['PATH']}", **variables},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout.splitlines(), done.stderr

    return run


def test_an_executor_is_started_as_sparks_own_images_start_it(run):
    code, lines, _ = run("executor", **EXECUTOR, SPARK_HOME="/opt/spark")
    assert code == 0
    assert lines[:3] == ["-Xms900m", "-Xmx900m", "-cp"]
    assert "/opt/spark/jars/*" in lines[3].split(":")
    assert lines[4] == "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
    given = dict(zip(lines[5::2], lines[6::2], strict=True))
    assert given == {
        "--driver-url": EXECUTOR["SPARK_DRIVER_URL"],
        "--executor-id": "4",
        "--cores": "2",
        "--app-id": "app-1",
        "--hostname": "10.1.2.4",
        "--resourceProfileId": "0",
        "--podName": "clicks-1-exec-4",
    }


def test_java_options_come_in_their_order_with_their_blanks_and_quotes(run):
    options = {
        "SPARK_JAVA_OPT_0": "-Dfirst=a b",
        "SPARK_JAVA_OPT_1": "-Dsecond='$HOME' \"x\" `id`",
        "SPARK_JAVA_OPT_10": "-Deleventh=k",
        **{f"SPARK_JAVA_OPT_{n}": f"-Dn{n}" for n in range(2, 10)},
    }
    _, lines, _ = run("executor", **EXECUTOR, **options)
    assert lines[0] == "-Dfirst=a b"
    assert lines[1] == "-Dsecond='$HOME' \"x\" `id`"
    assert lines[10] == "-Deleventh=k"
    assert lines[11] == "-Xms900m"


def test_class_paths_of_the_environment_come_first(run):
    extra = {"SPARK_EXTRA_CLASSPATH": "/extra/*", "HADOOP_CONF_DIR": "/hadoop"}
    _, lines, _ = run("executor", **EXECUTOR, **extra, SPARK_CLASSPATH="/own")
    path = lines[lines.index("-cp") + 1].split(":")
    assert path.index("/hadoop") < path.index("/extra/*") < path.index("/own")
    assert path.index("/own") < path.index("/opt/spark/jars/*")


@pytest.mark.parametrize(
    ("files", "comes_first"), [(["spark.properties"], False), (["log4j2.properties"], True)]
)
def test_configuration_comes_before_the_jars_where_there_is_more_than_sparks_own(
    run, tmp_path, files, comes_first
):
    conf = tmp_path / "conf"
    conf.mkdir()
    for name in ("spark.kubernetes.namespace", *files):
        (conf / name).touch()
    _, lines, _ = run("executor", **EXECUTOR, SPARK_CONF_DIR=str(conf), SPARK_HOME="/opt/spark")
    path = lines[lines.index("-cp") + 1].split(":")
    assert (path.index(str(conf)) < path.index("/opt/spark/jars/*")) is comes_first


@pytest.mark.parametrize("missing", ["SPARK_DRIVER_URL", "SPARK_EXECUTOR_ID"])
def test_an_executor_without_its_variables_says_which_is_missing(run, missing):
    code, _, told = run("executor", **{k: v for k, v in EXECUTOR.items() if k != missing})
    assert code != 0
    assert missing in told


def test_anything_else_is_run_as_it_is(run):
    assert run("echo", "a b", "$c")[1] == ["a b $c"]


def test_an_exit_status_is_passed_on(run):
    assert run("sh", "-c", "exit 7")[0] == 7


def test_what_crashes_leaves_no_image_of_its_memory(run):
    code, lines, _ = run("sh", "-c", "ulimit -c")
    assert (code, lines) == (0, ["0"])
