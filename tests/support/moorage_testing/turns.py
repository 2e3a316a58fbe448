"""Which of pytest's processes runs what, and when."""

from collections.abc import Sequence
from pathlib import Path, PurePath

from xdist.scheduler import LoadFileScheduling

__all__ = ["PAGES", "Turns", "from_another_place", "turn_of"]

SESSION = "tests/spark"
"""The folder whose own files share a session of Spark; those in folders below it do not."""

PAGES = "tests/e2e/test_quickstart.py"
"""Installs an operator of all namespaces, which must be gone before there is another one."""

ALONE = ("tests/chaos", f"{SESSION}/")
"""Where the tests are that run jobs in processes of their own."""


class Turns(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """A file's tests run in one process, and all that share the session of Spark do.

    A session costs what a dozen epochs cost.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = PurePath(nodeid.partition("::")[0])
        return SESSION if str(file.parent) == SESSION else str(file)


def turn_of(nodeid: str) -> tuple[int, str]:
    """What takes longest has the first turn, so that no process still has minutes in the end.

    Tests of one turn go by file, whatever order they were found in.
    """
    name = nodeid.partition("::")[0]
    file = PurePath(name)
    if name == PAGES or str(file.parent) == SESSION:
        return 0, name
    return (1 if name.startswith(ALONE) else 2), name


def from_another_place(folders: Sequence[str], root: Path, number: int, of: int) -> list[str]:
    """All test files of the folders, for process `number` of so many to collect in this order.

    Each begins with a part of its own, and finds the others' compiled when it comes to them:
    compiling the asserts of all is half of the time that it takes to collect a fresh checkout.
    """
    found = [path for folder in folders for path in sorted((root / folder).rglob("test_*.py"))]
    files = [str(path.relative_to(root)) for path in found]
    first = len(files) * number // of
    return files[first:] + files[:first]
