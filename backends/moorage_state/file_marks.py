"""Whether files have changed, told without reading them.

Called by whoever follows files that change under way, as the kubelet brings what it mounts: keys,
tokens, certificates.
"""

from collections.abc import Iterable
from pathlib import Path

Marks = tuple[tuple[int, int, int], ...]

_NOT_THERE = (0, 0, 0)


def marks(files: Iterable[Path]) -> Marks:
    """What changes when one of the files does, comes or goes; follows links, as one is replaced.

    Taken before the files are read: what comes meanwhile is then read once more.
    """
    return tuple(map(_mark, files))


def _mark(file: Path) -> tuple[int, int, int]:
    try:
        status = file.stat()
    except OSError:
        return _NOT_THERE
    return status.st_ino, status.st_mtime_ns, status.st_size
