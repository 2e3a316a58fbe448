"""An archive of the Java classes that Spark loads, with which a JVM starts in half the time.

Class data sharing (JEP 350) maps classes that were parsed and verified before. The archive belongs
to the Java and the Spark it was made with; any other Java ignores it. Made once where Moorage is
installed (`make setup` and the image do), by

    python -m moorage.class_archive
"""

import contextlib
import datetime
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

_CHOSEN = "-XX:SharedArchiveFile"
_MADE = "-XX:ArchiveClassesAtExit"
_LIMIT_SECONDS = 900
"""Half a minute is enough, but for another architecture, or beside much other work."""

_JOB = """
from moorage import FileSink, KeyedProcessFunction, ValueStateDescriptor


class Count(KeyedProcessFunction):
    def open(self, ctx):
        self.count = ctx.get_state(ValueStateDescriptor("count", "long"))

    def process(self, row, ctx):
        self.count.update((self.count.value() or 0) + 1)
        yield row.key, self.count.value()


def build(env):
    rows = env.read_stream("rows", "parquet", schema="key string, at timestamp", path="in")
    counts = rows.with_event_time("at").key_by("key")
    counted = counts.process(Count(), uid="count", output="key string, count long")
    counted.sink_to(FileSink("out"), uid="out")
"""

_MANIFEST = """
apiVersion: moorage.dev/v1alpha1
kind: StatefulSparkJob
metadata:
  name: classes
spec:
  bounded: true
  application: {mainFile: job.py}
  scaling: {parallelism: 2}
  state: {checkpointDir: file://./checkpoints}
  sparkConf: {spark.driver.extraJavaOptions: "@OPTIONS@"}
"""


def archive_path() -> Path:
    """Where the archive of this installation is, or would be: it names the version of Spark."""
    return Path(sys.prefix) / "share" / "moorage" / f"spark-{version('pyspark')}.jsa"


def sharing_options(given: str = "") -> list[str]:
    """What a JVM is told to use the archive; nothing where there is none, or `given` sees to it."""
    path = archive_path()
    if _CHOSEN in given or _MADE in given or not path.exists():
        return []
    # A JVM that cannot use it says so on its output, as a warning about nothing that matters.
    return [shlex.quote(f"{_CHOSEN}={path}"), "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def make_archive(path: Path | None = None) -> Path:
    """Run a small job, and have its JVM write down the classes that it loaded.

    Raises:
        RuntimeError: the job failed, did not end, or wrote no archive; with the end of what it
            printed.
    """
    path = path or archive_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="moorage-classes-") as folder:
        made = Path(folder) / "classes.jsa"
        _lay_out(Path(folder), f"{shlex.quote(f'{_MADE}={made}')} -Xlog:cds=off")
        said = _run(Path(folder))
        if not made.exists():
            raise RuntimeError(f"java wrote no archive of its classes: {said[-2000:]}")
        fresh = path.with_suffix(f".{os.getpid()}")
        shutil.copyfile(made, fresh)
        fresh.replace(path)
    return path


def _lay_out(folder: Path, java: str) -> None:
    """The job, its manifest with options for Java, and a few rows."""
    (folder / "job.py").write_text(_JOB)
    (folder / "job.yaml").write_text(_MANIFEST.replace("@OPTIONS@", java))
    (folder / "in").mkdir()
    at = pa.array([datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)] * 4)
    rows = pa.table({"key": pa.array(["a", "b", "a", "c"]), "at": at})
    for number in range(3):
        pq.write_table(rows, folder / "in" / f"{number}.parquet")


def _run(folder: Path) -> str:
    """What the job printed."""
    command = [sys.executable, "-m", "moorage.cli", "run", "job.yaml", "--plain"]
    try:
        with subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as job:
            try:
                said, _ = job.communicate(timeout=_LIMIT_SECONDS)
            finally:
                if job.returncode is None:
                    _kill(job)
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(
            f"the job did not end: limit={_LIMIT_SECONDS} s; try again when the machine is idle: "
            f"{sys.executable} -m moorage.class_archive"
        ) from error
    if job.returncode:
        raise RuntimeError(f"the job failed: status={job.returncode} {said[-2000:]}")
    return said


def _kill(job: "subprocess.Popen[str]") -> None:
    """It and its JVM, which has a session of its own and hears nothing while it writes."""
    children: list[int] = []
    for thread in Path(f"/proc/{job.pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread may end meanwhile
            children += map(int, thread.read_text().split())
    job.kill()
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def main() -> None:
    """Make the archive where `sharing_options` looks; what goes wrong is told in one line."""
    try:
        make_archive()
    except RuntimeError as error:
        sys.exit(f"moorage.class_archive: {error}")


if __name__ == "__main__":
    main()
