"""A session of Spark for tests: as jobs have it, on one core, soon up.

Called by the plugin of pytest.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from moorage.driver.session import end_session, local_session

_JAVA = "spark.driver.extraJavaOptions"
# For a JVM that lives for seconds what counts is how soon it is up.
_QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


@dataclass(frozen=True, slots=True)
class _Settings:
    """See `moorage.driver.session.SessionSettings`."""

    main_file: Path
    name: str = "moorage-tests"
    env: Mapping[str, str] = field(default_factory=dict)
    py_files: tuple[Path, ...] = ()
    parallelism: int = 1
    driver_memory_mb: int = 1024
    spark_conf: Mapping[str, str] = field(default_factory=lambda: {_JAVA: _QUICK})


@contextmanager
def session_of_tests(scratch: Path) -> Iterator[SparkSession]:
    """The session of this process, which stays; if there is none, one that ends with the context.

    Workers import what this process can, and what lies in its working directory.

    Args:
        scratch: an empty folder, for Spark's files and its log.

    Raises:
        UserError: Spark does not start, for example because there is no Java.
    """
    if (running := SparkSession.getActiveSession()) is not None:
        yield running
        return
    with ExitStack() as stack:
        before = dict(os.environ)
        try:
            spark = local_session(_Settings(Path.cwd() / "job.py"), 1, scratch)
        finally:
            for name, value in os.environ.items():
                if before.get(name) != value:
                    stack.callback(_put_back, name, before.get(name))
        stack.callback(end_session, spark)
        yield spark


def _put_back(name: str, value: str | None) -> None:
    if value is None:
        del os.environ[name]
    else:
        os.environ[name] = value
