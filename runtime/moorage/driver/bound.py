"""How far a bounded job has come: input files taken up, out of all there are.

Reads Spark's file source log in the run's own checkpoint location; a look that fails shows no
bar, nothing else.
"""

import os
from pathlib import Path

from moorage.api.graph import JobGraph

__all__ = ["FileBound"]


class FileBound:
    """Counts files of inputs that read directories.

    Args:
        spark_dir: the checkpoint location of the run's query.
    """

    def __init__(self, graph: JobGraph, spark_dir: Path) -> None:
        self._logs = [
            spark_dir / "sources" / str(i)
            for i, node in enumerate(graph.inputs)
            if node.files is not None
        ]
        self._total = sum(_count_files(node.files) for node in graph.inputs if node.files)
        self._done: dict[Path, int] = {}

    def read(self) -> tuple[int, int] | None:
        """(files taken up, files there are); None where no input reads files."""
        if not self._logs or not self._total:
            return None
        done = sum(self._taken(log) for log in self._logs)
        return min(done, self._total), self._total

    def _taken(self, log: Path) -> int:
        """Entries in the source log: a compact file holds all before it."""
        try:
            names = [path.name for path in log.iterdir()]
        except OSError:
            return 0
        compact = [int(n.removesuffix(".compact")) for n in names if n.endswith(".compact")]
        base = max(compact, default=-1)
        counted = [log / f"{base}.compact"] if compact else []
        counted += [log / n for n in names if n.isdigit() and int(n) > base]
        for path in counted:
            if path not in self._done:
                self._done[path] = _entries(path)
        return sum(self._done[path] for path in counted)


def _count_files(url: str) -> int:
    root = url.removeprefix("file://")
    if "://" in root or not Path(root).is_dir():
        return 0
    return sum(not name.startswith(("_", ".")) for _, _, names in os.walk(root) for name in names)


def _entries(path: Path) -> int:
    """Lines after the version line."""
    try:
        return max(0, len(path.read_text().splitlines()) - 1)
    except OSError:
        return 0
