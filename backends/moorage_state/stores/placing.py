"""Giving a new file its name in one step, durably, below a directory that others also change."""

import errno
import os
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["TEMPORARY", "Place", "place_file", "present_time"]

Place = Callable[[Path, Path], None]
"""Gives the first file the name of the second: `os.replace`, or `os.link`, which never replaces."""

TEMPORARY = ".tmp"
"""The directory below the root for files that are still being written."""

_ATTEMPTS = 20
"""How often a directory that a concurrent delete emptied and removed is made anew."""


def place_file(root: Path, target: Path, chunks: Iterable[bytes], place: Place) -> None:
    """Write a new file below `root` and let `place` name it `target`.

    When this returns, the bytes, the name and the directories down from the root are synced. The
    root itself is never made. Raises OSError, FileExistsError only where `place` does.
    """
    temporary = _temporary(root)
    try:
        _make_folders(root, temporary.parent)
        with temporary.open("xb") as file:
            file.writelines(chunks)
            file.flush()
            os.fsync(file.fileno())
        _name(root, temporary, target, place)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    for folder in target.parents:
        with suppress(FileNotFoundError):  # deleted again by somebody: nothing to keep
            _sync(folder)
        if folder == root:
            break


def present_time(root: Path) -> float:
    """Return the seconds since 1970 that a file written now below `root` is dated with."""
    temporary = _temporary(root)
    try:
        _make_folders(root, temporary.parent)
        with temporary.open("xb") as file:
            return os.fstat(file.fileno()).st_mtime
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _temporary(root: Path) -> Path:
    return root / TEMPORARY / f"{os.getpid()}-{uuid.uuid4().hex}"


def _name(root: Path, temporary: Path, target: Path, place: Place) -> None:
    for attempt in range(_ATTEMPTS):
        _make_folders(root, target.parent)
        try:
            place(temporary, target)
        except FileNotFoundError:
            if attempt == _ATTEMPTS - 1 or not temporary.exists():
                raise
        else:
            return


def _make_folders(root: Path, folder: Path) -> None:
    """Make the directories from below the root down to `folder`.

    When a concurrent delete removes one of them meanwhile, some are missing afterwards.
    """
    missing: deque[Path] = deque()
    while folder != root and not folder.is_dir():
        missing.appendleft(folder)
        folder = folder.parent
    for path in missing:
        try:
            path.mkdir(exist_ok=True)
        except FileNotFoundError:
            return
        except FileExistsError as error:
            if path.is_file():
                text = os.strerror(errno.ENOTDIR)
                raise NotADirectoryError(errno.ENOTDIR, text, str(path)) from error
            return


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
