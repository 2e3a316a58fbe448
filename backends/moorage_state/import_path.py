"""Where our processes look for modules: the standard library first, then everything else.

A job's folder comes before what is installed, so that its own modules are found; a `pickle.py` in
it must not become everybody's pickle. Called first of all by our programs, and for those they
start. Imports only what every Python has loaded before it looks anywhere.
"""

import os
import sys
from collections.abc import Iterable, Sequence


def standard_library() -> list[str]:
    """Its folders, which are the same for all Pythons of this installation."""
    folder = os.path.dirname(os.__file__)  # noqa: PTH120  pathlib may be somebody else's yet
    return [folder, os.path.join(folder, "lib-dynload")]  # noqa: PTH118  as above


def standard_library_first() -> None:
    """Have this process find the modules of the standard library there and nowhere else."""
    sys.path[:] = [*standard_library(), *(p for p in sys.path if p not in standard_library())]


def after_standard_library(folders: Iterable[str]) -> None:
    """Have this process look in these folders next."""
    new = [folder for folder in folders if folder not in sys.path]
    last = max((sys.path.index(p) for p in standard_library() if p in sys.path), default=-1)
    sys.path[last + 1 : last + 1] = new


def python_path(folders: Sequence[str]) -> str:
    """`PYTHONPATH` for a process that is to find modules in these folders."""
    return os.pathsep.join(dict.fromkeys([*standard_library(), *filter(None, folders)]))
