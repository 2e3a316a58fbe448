"""Processor time of a process and all its descendants, from /proc.

Wall-clock figures of a shared machine move with its neighbours; processor time moves less, so it
stands beside them. Called by engine processes at both ends of the measured window.
"""

import os
from pathlib import Path

__all__ = ["tree_seconds"]

_PROC = Path("/proc")
# Fields of /proc/<pid>/stat after the command's closing parenthesis.
_PARENT, _USER, _CHILDREN_SYSTEM = 1, 11, 14


def tree_seconds(root: int) -> float | None:
    """User and system seconds of `root`, what descends from it, and what they have waited for.

    None where there is no /proc.
    """
    if not _PROC.is_dir():
        return None
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (stat := _stat(entry)) is not None:
            pid = int(entry.name)
            parents[pid] = int(stat[_PARENT])
            ticks[pid] = sum(map(int, stat[_USER : _CHILDREN_SYSTEM + 1]))
    mine = [pid for pid in parents if _descends(pid, root, parents)]
    return sum(ticks[pid] for pid in mine) / os.sysconf("SC_CLK_TCK")


def _stat(entry: Path) -> list[str] | None:
    try:
        return (entry / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _descends(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        if pid == root:
            return True
        pid = parents[pid]
    return False
