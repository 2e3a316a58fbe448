"""Directories of the manifest on a file system: made where that cannot hide a missing volume.

An unmounted volume must not be taken for an empty store. So the last part of a path is made, and
all that is missing directly below a mount point: there the volume is, and nothing on it yet. Called
before a directory is used.
"""

import os
from pathlib import Path
from urllib.parse import unquote

from moorage.driver.types import StoreRefused

__all__ = ["make_directory"]


def make_directory(field: str, url: str) -> None:
    """Make the directory at a `file://` address; others are left alone.

    Args:
        field: which of the manifest's directories it is, for the error.

    Raises:
        StoreRefused: the folder it is in does not exist and is on no volume of its own, or the
            directory cannot be made there.
    """
    if not url.startswith("file://"):
        return
    directory = Path(unquote(url.removeprefix("file://")))
    try:
        directory.mkdir(exist_ok=True, parents=_is_on_empty_volume(directory))
    except FileNotFoundError as exc:
        raise StoreRefused(
            f"the folder of the directory does not exist: {field}={url}; mount or make "
            f"{directory.parent}: where no volume is mounted only the last part of the path is "
            f"made for you, so that an unmounted volume is not taken for an empty store"
        ) from exc
    except OSError as exc:
        raise StoreRefused(
            f"cannot use the directory: {field}={url} error={exc.strerror}; name a directory that "
            f"you may write to"
        ) from exc


def _is_on_empty_volume(directory: Path) -> bool:
    """Whether the first folder above that exists is where a volume is mounted; `/` is none."""
    there = next(folder for folder in directory.parents if folder.exists())
    return there != Path("/") and os.path.ismount(there)
