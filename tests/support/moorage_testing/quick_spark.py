"""Spark for tests: short-lived JVMs that start soon, and a session that stays in its folder."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

from moorage.class_archive import sharing_options
from moorage.engine import worker_daemon
from moorage.engine.placement import required_conf
from moorage.engine.worker_daemon import DAEMON_MODULE

__all__ = ["quick_java", "spark_home", "start_session"]

PYSPARK = Path(pyspark.__file__).parent
JARS = PYSPARK / "jars"
# As Spark's launcher has it, so that the archive of classes fits whatever home a test gives Spark.
CLASS_PATH = os.pathsep.join([*map(str, JARS.glob("slf4j-api-*.jar")), f"{JARS}/*"])


def quick_java(*options: str) -> dict[str, str]:
    """Settings for JVMs that are short-lived and small: what matters is how soon they are up.

    Args:
        options: further ones for each JVM.
    """
    quick = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *sharing_options(), *options]
    conf = {}
    for process in ("driver", "executor"):
        conf[f"spark.{process}.extraJavaOptions"] = " ".join(quick)
        conf[f"spark.{process}.extraClassPath"] = CLASS_PATH
    return conf


def start_session(master: str, base: Path, conf: Mapping[str, str] | None = None) -> SparkSession:
    """Start a session that listens on loopback only and writes below `base` only."""
    temporary = base / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.executor.memory": "512m",
        "spark.local.dir": str(base / "local"),
        DAEMON_MODULE: worker_daemon.__name__,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(base / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **quick_java(f"-Djava.io.tmpdir={temporary}"),
        **required_conf(),
        **(conf or {}),
    }
    builder: Any = SparkSession.builder.master(master).appName("moorage-tests")
    session: SparkSession = builder.config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def spark_home(base: Path) -> Path:
    """PySpark's own files by links: a worker of local-cluster puts `work/` beside them."""
    home = base / "home"
    home.mkdir(parents=True)
    for name in ("bin", "jars"):
        (home / name).symlink_to(PYSPARK / name)
    return home
