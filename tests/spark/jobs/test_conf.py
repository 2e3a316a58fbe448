"""What settings do to Spark: secrets stand on no command line, and epochs start no processes."""

import os
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from moorage_testing.quick_spark import quick_java

from moorage.driver.session import engine_conf, start_session

pytestmark = pytest.mark.spark

KEY = "spark.hadoop.fs.s3a.secret.key"
SECRET = "pä ss=w\\or:d#1 \U0001f511!"  # noqa: S105


def look():
    conf = {
        KEY: SECRET,
        "spark.ui.enabled": "false",
        "spark.local.dir": f"{os.environ['TMPDIR']}/local",
        **quick_java(),
    }
    settings: Any = SimpleNamespace(name="hidden")
    spark = start_session(settings, "local[1]", conf, "no log")
    seen = {
        "spark": spark.sparkContext.getConf().get(KEY),
        "hadoop": spark.sparkContext._jsc.hadoopConfiguration().get(KEY[13:]),
        "arguments": [_arguments(one) for one in Path("/proc").iterdir() if one.name.isdigit()],
        "variable": os.environ.get("PYSPARK_SUBMIT_ARGS"),
        "files": [str(path) for path in Path(os.environ["TMPDIR"]).rglob("*.properties")],
    }
    spark.stop()
    return seen


def _arguments(process):
    try:
        return (process / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def test_a_secret_reaches_spark_by_a_file_that_is_gone_when_it_runs(tmp_path, fresh_process):
    seen = fresh_process(look, environment={"TMPDIR": str(tmp_path)})
    assert (seen["spark"], seen["hadoop"]) == (SECRET, SECRET)
    mine = [one for one in seen["arguments"] if str(tmp_path) in one]
    assert any("SparkSubmit" in one for one in mine)
    assert not [one for one in mine if "or:d#1" in one]
    assert seen["variable"] is None
    assert seen["files"] == []


def stream_some_batches():
    settings: Any = SimpleNamespace(name="forks", spark_conf={}, parallelism=1)
    folder = os.environ["TMPDIR"]
    conf = {**engine_conf(settings), "spark.local.dir": f"{folder}/local", **quick_java()}
    spark = start_session(settings, "local[1]", conf, "no log")
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    done = threading.Event()
    writer = rows.writeStream.foreachBatch(lambda _frame, at: done.set() if at > 2 else None)
    query = writer.option("checkpointLocation", f"{folder}/log").start()
    assert done.wait(60), query.exception()
    query.stop()
    spark.stop()


def test_an_epoch_starts_no_more_programs_than_it_writes_files(tmp_path, fresh_process):
    """By its own choice Spark starts `readlink` 24 times, and `chmod` twice for each file."""
    (tmp_path / "bin").mkdir()
    for name in ("readlink", "chmod"):
        script = f'#!/bin/sh\necho "$*" >> {tmp_path}/{name}\nexec {shutil.which(name)} "$@"\n'
        (tmp_path / "bin" / name).write_text(script)
        (tmp_path / "bin" / name).chmod(0o755)
    environment = {"TMPDIR": str(tmp_path), "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    fresh_process(stream_some_batches, environment=environment)
    assert not (tmp_path / "readlink").exists()
    changed = [Path(line.split()[-1]) for line in (tmp_path / "chmod").read_text().splitlines()]
    logged = [path for path in changed if path.parent.name in {"offsets", "commits"}]
    # Of each batch one file is written in either, under another name at first.
    assert 0 < len(logged) <= 2 * (1 + len(list((tmp_path / "log" / "offsets").glob("[0-9]*"))))


def start_with_plain_files():
    settings: Any = SimpleNamespace(name="plain", spark_conf={}, parallelism=1)
    conf = {
        **engine_conf(settings),
        "spark.local.dir": f"{os.environ['TMPDIR']}/local",
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
        **quick_java(),
    }
    spark = start_session(settings, "local[1]", conf, "no log")
    count = spark.range(3).count()
    spark.stop()
    return count


def test_a_job_may_say_what_writes_local_files(tmp_path, fresh_process):
    assert fresh_process(start_with_plain_files, environment={"TMPDIR": str(tmp_path)}) == 3
