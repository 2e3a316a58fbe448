"""The Spark session of a job: what the engine requires of it, wherever it runs.

Decides the Spark settings that the engine relies on; the job's own come first and cannot undo
them. Called once per process: a process has one Spark context.
"""

import logging
import os
import re
import sys
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

import pyspark
from pyspark import SparkContext
from pyspark.sql import SparkSession

from moorage.class_archive import sharing_options
from moorage.driver.environment import SparkNotStarted
from moorage.driver.gateway import start_jvm
from moorage.driver.hidden_conf import hidden, out_of_sight
from moorage.driver.settings import JobSettings
from moorage.driver.tuning import COMPILER
from moorage.engine import worker_daemon
from moorage.engine.placement import required_conf
from moorage.engine.worker_daemon import DAEMON_MODULE
from moorage.redaction import SPARK_REDACTION
from moorage_state.errors import UserError
from moorage_state.import_path import python_path

__all__ = [
    "check_spark_version",
    "end_session",
    "engine_conf",
    "java_options",
    "local_session",
    "start_session",
    "worker_path",
]

_log = logging.getLogger(__name__)

_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")
_NO_JAVA = "JAVA_GATEWAY_EXITED"
_BATCH_ROWS = "50000"
_SUPPORTED = ((4, 1), (4, 4))


def check_spark_version() -> None:
    """Refuse a PySpark whose checkpoint files this release was not tried on.

    Raises:
        UserError: naming the version and the range.
    """
    version = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    low, high = _SUPPORTED
    if not low <= version < high:
        raise UserError(
            f"this release works with pyspark >={low[0]}.{low[1]},<{high[0]}.{high[1]}: "
            f"installed={pyspark.__version__}; install another pyspark"
        )


def local_session(settings: JobSettings, cores: int, scratch: Path) -> SparkSession:
    """A session with `cores` task slots in this process; Spark's log goes to `scratch`.

    Raises:
        UserError: Spark does not start, for example because there is no Java.
    """
    os.environ.update(settings.env)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = worker_path(settings)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    (scratch / "tmp").mkdir(exist_ok=True)
    conf = {**settings.spark_conf, **engine_conf(settings), **_local_conf(settings, scratch)}
    log = f"its log is {scratch / 'spark.log'}"
    return start_session(settings, f"local[{cores}]", conf, log)


def start_session(
    settings: JobSettings, master: str, conf: Mapping[str, str], log: str
) -> SparkSession:
    """Start Spark.

    Args:
        log: where its log is, for the error.

    Raises:
        UserError: it cannot start here: the version is wrong, Java is missing or too old.
        SparkNotStarted: it did not start on a cluster, and may the next time.
    """
    check_spark_version()
    # What a JVM is told that runs already appears on no command line.
    secret = hidden(conf) if SparkContext._gateway is None else {}
    shown = {key: value for key, value in conf.items() if key not in secret}
    shown |= {"spark.master": master, "spark.app.name": settings.name}
    builder = SparkSession.builder
    for key, value in shown.items():
        builder = builder.config(key, value)
    try:
        with out_of_sight(secret):
            start_jvm(shown)
            spark = builder.getOrCreate()
    except Exception as exc:
        text = str(exc)
        what = next(iter(text.splitlines()), type(exc).__name__)
        if master.startswith("local[") or _NO_JAVA in text:
            raise UserError(
                f"spark does not start: {what}; it needs Java 17 or later (java -version), and "
                f"{log}"
            ) from exc
        causes = [line for line in text.splitlines() if line.startswith("Caused by: ")]
        cause = f" ({causes[-1][:500]})" if causes else ""
        raise SparkNotStarted(f"spark does not start: {what}{cause}; {log}") from exc
    spark.sparkContext.setLogLevel("WARN")
    return spark


def end_session(spark: SparkSession) -> None:
    """Stop Spark; an error is only logged, since the job has ended already."""
    try:
        spark.stop()
    except Exception as error:  # noqa: BLE001 - it must not hide how the job ended
        _log.warning("spark_not_stopped: %s: %s", type(error).__name__, error)


def _local_conf(settings: JobSettings, scratch: Path) -> dict[str, str]:
    """What holds for Spark in this process alone, whose log goes to `scratch`."""
    log4j = files("moorage.driver").joinpath("log4j2.properties")
    return {
        "spark.driver.memory": f"{settings.driver_memory_mb}m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": " ".join(
            [
                *java_options(settings.spark_conf.get("spark.driver.extraJavaOptions", "")),
                f"-Dlog4j2.configurationFile={log4j}",
                f"-Dmoorage.log={scratch / 'spark.log'}",
                f"-Djava.io.tmpdir={scratch / 'tmp'}",
                "-XX:-UsePerfData",
            ]
        ),
        "spark.local.dir": str(scratch / "spark-local"),
    }


def engine_conf(settings: JobSettings) -> dict[str, str]:
    """What the engine requires wherever it runs."""
    return {
        **required_conf(),
        "spark.ui.enabled": settings.spark_conf.get("spark.ui.enabled", "false"),
        "spark.ui.showConsoleProgress": "false",
        "spark.redaction.regex": settings.spark_conf.get("spark.redaction.regex", SPARK_REDACTION),
        "spark.python.worker.reuse": "true",
        DAEMON_MODULE: settings.spark_conf.get(DAEMON_MODULE, worker_daemon.__name__),
        "spark.speculation": "false",
        "spark.sql.shuffle.partitions": str(settings.parallelism),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": _BATCH_ROWS,
        # A shuffle that is computed again must give the same rows, or all that read it run again.
        "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
        "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
        # Without it Spark starts empty batches for its own stateful operators; there are none.
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.streaming.metricsEnabled": "false",
    }


def java_options(given: str, *further: str) -> list[str]:
    """What a JVM of a job is told: ours, then what the job's author gives, who may undo it.

    The collector is the one for throughput, a tenth less work than Java's own choice.
    """
    collector = [] if _COLLECTOR.search(given) else ["-XX:+UseParallelGC"]
    return [*collector, *COMPILER, *sharing_options(given), *further, *filter(None, [given])]


def worker_path(settings: JobSettings) -> str:
    """What workers need to import: what the driver sees, the job's directory, its pyFiles."""
    own = [str(settings.main_file.parent), *map(str, settings.py_files)]
    return python_path([*own, *sys.path])
