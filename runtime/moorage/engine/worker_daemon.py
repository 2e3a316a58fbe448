"""Spark's daemon of Python workers, which imports what they need before it forks them.

Spark's own leaves that to each worker, and has it import PySpark out of a zip that is compiled anew
each time: three seconds of work for each core of an executor, before its first row. Started by the
JVM of a driver or an executor, as `spark.python.daemon.module` says, with the name of the workers'
module as its argument. Decides nothing about what workers do.
"""

import gc
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any
from zipimport import ZipImportError, zipimporter

DAEMON_MODULE = "spark.python.daemon.module"
SAFE_PATH = "PYTHONSAFEPATH"

_WORKER = "pyspark.worker"
_NEEDED = (
    "numpy",
    "pandas",  # Arrow imports it for the first column that becomes an array
    "pyarrow.compute",
    "pyarrow.parquet",
    _WORKER,
    "moorage.api.file_sink",  # subtasks know of no sink, and most jobs have this one
    "moorage.engine.subtask",
)
_ARCHIVES = ("pyspark.zip", "-src.zip", ".jar")
_VERSION = Path("pyspark", "version.py")


def main() -> None:
    """Import, then fork workers until Spark's JVM goes."""
    os.environ.pop(SAFE_PATH, None)  # meant for us, and not for what workers start
    kept = without_archives(sys.path)
    for dropped in set(sys.path) - set(kept):
        sys.path_importer_cache.pop(dropped, None)
    sys.path[:] = kept
    for name in _NEEDED:
        import_module(name)
    name = sys.argv[1] if sys.argv[1:] and sys.argv[1].startswith("pyspark") else _WORKER
    _leave_sigterm_to_the_driver(import_module(name))
    gc.collect()
    # Spark's daemon collects after every task, and most of that work is what was imported.
    gc.freeze()
    import_module("pyspark.daemon").manager()


def _leave_sigterm_to_the_driver(workers: ModuleType) -> None:
    """Have SIGTERM end neither the daemon nor a worker: Spark ends both by closing their stdin."""
    work = workers.main

    def main(*streams: Any) -> Any:
        # A service manager sends it to every process of a job, whose driver then takes a last
        # checkpoint, for which a worker must end its task. A handler is not inherited: what a
        # worker starts takes SIGTERM as usual.
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        return work(*streams)

    workers.main = main  # type: ignore[attr-defined]  # where Spark's daemon looks for it
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def without_archives(path: Sequence[str]) -> list[str]:
    """`path` without the archives that Spark puts on it, if the same PySpark is installed."""
    # Python compiles what it imports from an archive each time, and reads the directory of every
    # archive anew when Spark has it look for new files.
    kept = [entry for entry in path if not entry.endswith(_ARCHIVES)]
    archive = next((entry for entry in path if Path(entry).name == "pyspark.zip"), "")
    installed = PathFinder.find_spec("pyspark", kept)
    if installed is None or PathFinder.find_spec("py4j", kept) is None:
        return list(path)
    places = installed.submodule_search_locations or []
    files = [Path(place, _VERSION.name) for place in places]
    same = any(file.is_file() and file.read_bytes() == _version(archive) for file in files)
    return kept if same or not Path(archive).is_file() else list(path)


def _version(archive: str) -> bytes | None:
    try:
        return zipimporter(archive).get_data(str(Path(archive) / _VERSION))
    except (ZipImportError, OSError):
        return None


if __name__ == "__main__":
    main()
