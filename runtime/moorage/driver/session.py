"""The Spark session of a job: what the engine requires of it, wherever it runs.

Decides the Spark settings that the engine relies on; the job's own come first and cannot undo
them. Settings with secrets travel to Spark's JVM in a file, as it shows its arguments to everybody.
The JVM is deaf to signals that are meant for this process: the last checkpoint needs it; it ends
when our end of its stdin closes, which we take with us however we end. Called once per process: a
process has one Spark context.
"""

import logging
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    BooleanType,
    DateType,
    NumericType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from moorage.api.graph import JobGraph
from moorage.class_archive import sharing_options
from moorage.driver.environment import SparkNotStarted
from moorage.driver.java import java_home
from moorage.driver.settings import JobSettings
from moorage.engine import worker_daemon
from moorage.engine.placement import required_conf
from moorage.engine.worker_daemon import DAEMON_MODULE, SAFE_PATH
from moorage.redaction import SPARK_REDACTION, has_credentials, is_secret
from moorage_state.errors import UserError
from moorage_state.import_path import python_path

_log = logging.getLogger(__name__)

LOG_LEVEL = "spark.log.level"

_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")

_NO_JAVA = "JAVA_GATEWAY_EXITED"

_BATCH_ROWS = "50000"

_LOG_FILES = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
"""How Spark writes its log of a query: to a file beside the one meant, which is then renamed."""

_UI = "spark.ui.enabled"

_RETAINED = {
    "spark.sql.ui.retainedExecutions": "20",
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
}
"""What Spark remembers of what has ended, for pages that nobody can open without its UI.

Of a thousand stages, its own choice, each task has 0.8 KB: 0.8 GB where there are 1,000 subtasks.
"""

_SUPPORTED = ((4, 1), (4, 4))

_OURS = ("HUP", "INT", "TERM")

_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"

_SHELL = "pyspark-shell"

_ESCAPED = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}

COMPILER = (
    "-XX:Tier4InvocationThreshold=100000",
    "-XX:Tier4MinInvocationThreshold=50000",
    "-XX:Tier4CompileThreshold=200000",
)
"""Java's second compiler takes loops, and what is called a hundred thousand times: for every row.

To compile what plans an epoch costs more than it saves in hours.
"""

_BYTE_LIMIT = "spark.sql.execution.arrow.maxBytesPerBatch"

_NO_LIMIT = (1 << 31) - 1

_FIXED_WIDTH = (NumericType, BooleanType, DateType, TimestampType, TimestampNTZType)

# Of 16 bytes at most, times the rows of a batch: less than Spark's own limit of 64 MB.
_NARROW_COLUMNS = 64


class SessionSettings(Protocol):
    """What a session asks of those whom it is for: of a job its `JobSettings`."""

    @property
    def name(self) -> str: ...  # noqa: D102 - as in JobSettings, all of them
    @property
    def env(self) -> Mapping[str, str]: ...  # noqa: D102
    @property
    def main_file(self) -> Path: ...  # noqa: D102
    @property
    def py_files(self) -> Sequence[Path]: ...  # noqa: D102
    @property
    def parallelism(self) -> int: ...  # noqa: D102
    @property
    def driver_memory_mb(self) -> int: ...  # noqa: D102
    @property
    def spark_conf(self) -> Mapping[str, str]: ...  # noqa: D102


def check_spark_version() -> None:
    """Refuse a PySpark whose checkpoint files this release was not tried on.

    Raises UserError: naming the version and the range.
    """
    version = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    low, high = _SUPPORTED
    if not low <= version < high:
        raise UserError(
            f"this release works with pyspark >={low[0]}.{low[1]},<{high[0]}.{high[1]}: "
            f"installed={pyspark.__version__}; install another pyspark"
        )


def local_session(settings: SessionSettings, cores: int, scratch: Path) -> SparkSession:
    """A session with `cores` task slots in this process; Spark's log goes to `scratch`.

    Raises UserError: Spark does not start, for example because there is no Java.
    """
    os.environ.update(settings.env)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = worker_path(settings)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if home := java_home(os.environ):
        os.environ["JAVA_HOME"] = str(home)
    (scratch / "tmp").mkdir(exist_ok=True)
    conf = {**settings.spark_conf, **engine_conf(settings), **_local_conf(settings, scratch)}
    log = f"its log is {scratch / 'spark.log'}"
    return start_session(settings, f"local[{cores}]", conf, log)


def start_session(
    settings: SessionSettings, master: str, conf: Mapping[str, str], log: str
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
    _write_single_files(spark)
    return spark


def _write_single_files(spark: SparkSession) -> None:
    """Have Hadoop write no checksums beside local files.

    Each is one more file of Spark's log of the query, and one more `chmod` that is started: three
    in an epoch. What of this log is kept has its checksum in the checkpoint.
    """
    jvm: Any = spark._jvm
    conf = spark._jsc.hadoopConfiguration()
    # Where the job says what `file:` is, it may be something that writes none.
    with suppress(Py4JError):
        jvm.org.apache.hadoop.fs.FileSystem.getLocal(conf).setWriteChecksum(False)


def end_session(spark: SparkSession) -> None:
    """Stop Spark; an error is only logged, since the job has ended already."""
    try:
        spark.stop()
    except Exception as error:  # noqa: BLE001 - it must not hide how the job ended
        _log.warning("spark_not_stopped: %s: %s", type(error).__name__, error)


def _local_conf(settings: SessionSettings, scratch: Path) -> dict[str, str]:
    """What holds for Spark in this process alone, whose log goes to `scratch`."""
    log4j = files("moorage.driver").joinpath("log4j2.properties")
    return {
        "spark.driver.memory": f"{settings.driver_memory_mb}m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # Spark splits them as a shell does.
        "spark.driver.extraJavaOptions": " ".join(
            [
                *java_options(settings.spark_conf.get("spark.driver.extraJavaOptions", "")),
                shlex.quote(f"-Dlog4j2.configurationFile={log4j}"),
                shlex.quote(f"-Dmoorage.log={scratch / 'spark.log'}"),
                shlex.quote(f"-Djava.io.tmpdir={scratch / 'tmp'}"),
                "-XX:-UsePerfData",
            ]
        ),
        "spark.local.dir": str(scratch / "spark-local"),
    }


def engine_conf(settings: SessionSettings) -> dict[str, str]:
    """What the engine requires wherever it runs."""
    return {
        **required_conf(),
        _UI: settings.spark_conf.get(_UI, "false"),
        **_retained(settings.spark_conf),
        "spark.ui.showConsoleProgress": "false",
        "spark.redaction.regex": settings.spark_conf.get("spark.redaction.regex", SPARK_REDACTION),
        "spark.python.worker.reuse": "true",
        DAEMON_MODULE: settings.spark_conf.get(DAEMON_MODULE, worker_daemon.__name__),
        LOG_LEVEL: settings.spark_conf.get(LOG_LEVEL, "WARN"),
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
        # Spark's choice for a local log starts `readlink` some 24 times in an epoch.
        "spark.sql.streaming.checkpointFileManagerClass": _LOG_FILES,
    }


def _retained(given: Mapping[str, str]) -> dict[str, str]:
    """As little as may be, unless the job says otherwise or shows it."""
    if given.get(_UI, "false").lower() == "true":
        return {}
    return {name: given.get(name, few) for name, few in _RETAINED.items()}


def java_options(given: str, *further: str) -> list[str]:
    """What a JVM of a job is told: ours, then what the job's author gives, who may undo it."""
    # For throughput: a tenth less work than with Java's own choice.
    collector = [] if _COLLECTOR.search(given) else ["-XX:+UseParallelGC"]
    return [*collector, *COMPILER, *sharing_options(given), *further, *filter(None, [given])]


def worker_path(settings: SessionSettings) -> str:
    """What workers need to import: what the driver sees, the job's directory, its pyFiles."""
    own = [str(settings.main_file.parent), *map(str, settings.py_files)]
    return python_path([*own, *sys.path])


def start_jvm(conf: Mapping[str, str]) -> None:
    """Start the JVM with these settings on its command line, if this process has none yet.

    Raises PySparkRuntimeError: it ended before it could be reached.
    """
    if SparkContext._gateway is not None:
        return
    settings = SparkConf(loadDefaults=False)
    settings.setAll(list(conf.items()))
    # Workers must not import from the directory we are in, which may be a job's.
    safe = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = safe or "1"
    try:
        gateway = launch_gateway(  # type: ignore[no-untyped-call]  # PySpark has no types here
            settings, {"start_new_session": True}
        )
    finally:
        if safe is None:
            del os.environ[SAFE_PATH]
    SparkContext._gateway, SparkContext._jvm = gateway, gateway.jvm
    misc = gateway.jvm.sun.misc
    try:
        for name in _OURS:
            misc.Signal.handle(misc.Signal(name), misc.SignalHandler.SIG_IGN)
    except Py4JError as error:  # -Xrs, say: then the JVM leaves signals as they are
        _log.info("jvm_takes_signals: %s", error)


def hidden(conf: Mapping[str, str]) -> dict[str, str]:
    """The settings that must not stand on a command line."""
    return {key: value for key, value in conf.items() if is_secret(key) or has_credentials(value)}


@contextmanager
def out_of_sight(conf: Mapping[str, str]) -> Iterator[None]:
    """A JVM that is started within gets these settings from a file that nobody else can read."""
    if not conf:
        yield
        return
    before = os.environ.get(_ARGUMENTS)
    # Readable for this user alone, and gone as soon as the JVM has it.
    with tempfile.TemporaryDirectory(prefix="moorage-") as folder:
        file = Path(folder) / "spark.properties"
        file.touch(mode=0o600)
        file.write_text(properties(conf), encoding="ascii")
        arguments = f"--load-spark-defaults --properties-file {shlex.quote(str(file))}"
        os.environ[_ARGUMENTS] = f"{arguments} {before or _SHELL}"
        try:
            yield
        finally:
            if before is None:
                os.environ.pop(_ARGUMENTS, None)
            else:
                os.environ[_ARGUMENTS] = before


def properties(conf: Mapping[str, str]) -> str:
    """The settings as a file of Java properties, in ASCII."""
    return "".join(f"{_escaped(key, key=True)}={_escaped(value)}\n" for key, value in conf.items())


def _escaped(text: str, *, key: bool = False) -> str:
    return "".join(_character(one, key=key) for one in text)


def _character(one: str, *, key: bool) -> str:
    if one in _ESCAPED:
        return _ESCAPED[one]
    if one == " " or (key and one in "=:#!"):
        return f"\\{one}"
    if " " < one <= "~":
        return one
    units = one.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def spare_byte_counts(spark: SparkSession, graph: JobGraph, settings: JobSettings) -> None:
    """Have Spark not add up the bytes of an Arrow batch at each row, where rows are narrow.

    Streams that begin later take it over.
    """
    consumers = [one.stream.schema for o in graph.operators for one in o.keyed_inputs]
    consumers += [sink.upstream.schema for sink in graph.sinks]
    # It costs a fifth of what executors do for a row, and the limit of rows comes first.
    if _BYTE_LIMIT not in settings.spark_conf and all(map(_is_narrow, consumers)):
        spark.conf.set(_BYTE_LIMIT, str(_NO_LIMIT))


def _is_narrow(schema: StructType) -> bool:
    fixed = all(isinstance(field.dataType, _FIXED_WIDTH) for field in schema.fields)
    return fixed and len(schema.fields) <= _NARROW_COLUMNS
