"""Directories of the manifest on a file system: their last part is made, nothing above it.

So that an unmounted volume is not taken for an empty store. Called before a directory is used.
"""

from pathlib import Path
from urllib.parse import unquote

from moorage.driver.types import StoreRefused

__all__ = ["make_last_part"]


def make_last_part(field: str, url: str) -> None:
    """Make the directory at a `file://` address; others are left alone.

    Args:
        field: which of the manifest's directories it is, for the error.

    Raises:
        StoreRefused: the folder it is in does not exist, or it cannot be made there.
    """
    if not url.startswith("file://"):
        return
    directory = Path(unquote(url.removeprefix("file://")))
    try:
        directory.mkdir(exist_ok=True)
    except FileNotFoundError as exc:
        raise StoreRefused(
            f"the folder of the directory does not exist: {field}={url}; mount or make "
            f"{directory.parent}: only the last part of the path is made for you, so that an "
            f"unmounted volume is not taken for an empty store"
        ) from exc
    except OSError as exc:
        raise StoreRefused(
            f"cannot use the directory: {field}={url} error={exc.strerror}; name a directory that "
            f"you may write to"
        ) from exc
