"""Opening a place of which nobody knows yet whether it is there."""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

from moorage_state.errors import ObjectNotFound, StoreDenied, UserError
from moorage_state.stores import ObjectStore

__all__ = ["Opener", "bytes_of", "opened"]

Opener = Callable[[str], ObjectStore]
"""From an address to the store, with the right credentials. Raises as `open_store` does."""


def opened(open_: Opener, url: str) -> ObjectStore | None:
    """Return the store at `url`; None for a directory that is not there, beside others that are.

    Raises:
        StoreDenied: not even the folder that the directory should be in is there: a volume may
            not be mounted. That must not pass for an empty store.
        UserError: the address is not supported.
        StoreUnavailable: the store does not answer.
    """
    try:
        return open_(url)
    except UserError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        if Path(unquote(url.removeprefix("file://"))).parent.is_dir():
            return None
        raise StoreDenied(str(error)) from error


def bytes_of(store: ObjectStore, key: str) -> bytes | None:
    """Return the object, or None if the store says that there is none."""
    try:
        return store.get(key)
    except ObjectNotFound:
        return None
