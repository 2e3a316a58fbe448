"""Secrets in Spark's settings: they reach Spark, and stand on no command line."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from moorage_testing.quick_spark import quick_java

from moorage.driver.session import start_session

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
