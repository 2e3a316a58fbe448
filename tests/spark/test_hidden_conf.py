"""Secrets in Spark's settings: they reach Spark, and stand on no command line."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.spark.conftest import in_a_fresh_process

from moorage.driver.session import start_session

pytestmark = pytest.mark.spark

KEY = "spark.hadoop.fs.s3a.secret.key"
SECRET = "pä ss=w\\or:d#1 \U0001f511!"  # noqa: S105
BOOTSTRAP = """
import json, sys
from pathlib import Path
from tests.spark.test_hidden_conf import look
base = Path(json.loads(sys.argv[1])["base"])
(base / "result.json").write_text(json.dumps(look(base)))
"""


def look(base):
    conf = {
        KEY: SECRET,
        "spark.ui.enabled": "false",
        "spark.local.dir": str(base / "local"),
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    spark = start_session(SimpleNamespace(name="hidden"), "local[1]", conf, "no log")  # type: ignore[arg-type]
    seen = {
        "spark": spark.sparkContext.getConf().get(KEY),
        "hadoop": spark.sparkContext._jsc.hadoopConfiguration().get(KEY[13:]),
        "arguments": [_arguments(one) for one in Path("/proc").iterdir() if one.name.isdigit()],
        "variable": os.environ.get("PYSPARK_SUBMIT_ARGS"),
        "files": [str(path) for path in (base / "tmp").rglob("*.properties")],
    }
    spark.stop()
    return seen


def _arguments(process):
    try:
        return (process / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def test_a_secret_reaches_spark_by_a_file_that_is_gone_when_it_runs(tmp_path):
    (tmp_path / "tmp").mkdir()
    environment = {"TMPDIR": str(tmp_path / "tmp")}
    seen = in_a_fresh_process(BOOTSTRAP, {"base": str(tmp_path)}, 240, environment)
    assert (seen["spark"], seen["hadoop"]) == (SECRET, SECRET)
    mine = [one for one in seen["arguments"] if str(tmp_path) in one]
    assert any("SparkSubmit" in one for one in mine)
    assert not [one for one in mine if "or:d#1" in one]
    assert seen["variable"] is None
    assert seen["files"] == []
