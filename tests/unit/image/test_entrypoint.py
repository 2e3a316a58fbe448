"""The runtime image's entry point, with stand-ins for java and tini on PATH."""

import os
import subprocess
import sys
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


TINI = '[ "$1 $2" = "-s --" ] && shift 2 && exec "$@"'


def stand_in(folder, name, text):
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def run(tmp_path):
    """Run the script; the arguments that java (or anything else) was started with, one a line."""
    stand_in(tmp_path, "java", 'for a in "$@"; do echo "$a"; done')
    stand_in(tmp_path, "sleep", "exit 0")
    stand_in(tmp_path, "tini", TINI)

    def run(*arguments, **variables):
        done = subprocess.run(
            [str(SCRIPT), *arguments],
            env={
                "PATH": f"{tmp_path}:{os.environ['PATH']}",
                "TMPDIR": str(tmp_path),
                **variables,
            },
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


@pytest.fixture
def held(tmp_path):
    """A pipe: who reads it waits until the test has closed it."""
    os.mkfifo(tmp_path / "held")
    return tmp_path / "held"


@pytest.fixture
def container(tmp_path):
    """Start an executor whose Java does what a text says; its process, once a text was printed."""
    begun = []
    stand_in(tmp_path, "tini", TINI)

    def start(java, text, sleep):
        stand_in(tmp_path, "java", java)
        stand_in(tmp_path, "sleep", sleep)
        path = f"{tmp_path}:{os.environ['PATH']}"
        environment = {"PATH": path, "TMPDIR": str(tmp_path), **EXECUTOR}
        process = subprocess.Popen(
            [str(SCRIPT), "executor"], env=environment, stdout=subprocess.PIPE, text=True
        )
        begun.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == f"{text}\n"
        return process

    yield start
    for process in begun:
        process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def test_the_container_is_there_for_a_stop_hook_after_java_has_ended_well(container, held):
    process = container("exit 0", "outlives 3", sleep=f"echo outlives $1; read nothing <{held}")
    with held.open("w"):
        assert process.poll() is None
        process.terminate()
        assert process.wait() == 0


def test_the_container_is_there_for_a_stop_hook_at_work_however_java_has_ended(
    container, held, tmp_path
):
    hook = tmp_path / "moorage-stop-hook"
    assert hook.name in (SCRIPT.parent / "decom.sh").read_text()
    hook.touch()
    process = container("exit 7", "outlives 1", sleep=f"echo outlives $1; read nothing <{held}")
    with held.open("w"):
        assert process.poll() is None
        hook.unlink()
    assert process.wait() == 7


@pytest.mark.parametrize(
    ("java", "status"), [("exit 7", 7), ("kill -9 $$", 137)], ids=["fails", "is killed"]
)
def test_a_java_that_does_not_end_well_is_told_at_once(run, tmp_path, java, status):
    stand_in(tmp_path, "java", java)
    stand_in(tmp_path, "sleep", "echo outlives")
    code, lines, _ = run("executor", **EXECUTOR)
    assert (code, lines) == (status, [])


WAITS = """exec {python} -Sc '
from signal import *
pthread_sigmask(SIG_BLOCK, [SIGTERM])
print("runs", flush=True)
sigwait([SIGTERM])
print("told", flush=True)
raise SystemExit({status})'"""


@pytest.mark.parametrize("status", [0, 143])
def test_java_is_told_to_end_and_its_status_is_passed_on(container, status):
    java = WAITS.format(python=sys.executable, status=status)
    process = container(java, "runs", sleep="echo outlives")
    process.terminate()
    assert process.wait() == status
    assert process.stdout.read() == "told\n"


def test_anything_else_is_run_as_it_is(run):
    assert run("echo", "a b", "$c")[1] == ["a b $c"]


def test_an_exit_status_is_passed_on(run):
    assert run("sh", "-c", "exit 7")[0] == 7


def test_what_crashes_leaves_no_image_of_its_memory(run):
    code, lines, _ = run("sh", "-c", "ulimit -c")
    assert (code, lines) == (0, ["0"])
