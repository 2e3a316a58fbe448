"""From the address of a store to the store."""

from pathlib import Path
from urllib.parse import unquote

from moorage_state.errors import UserError
from moorage_state.stores.base import ObjectStore
from moorage_state.stores.local import LocalStore
from moorage_state.stores.memory import MemoryStore

__all__ = ["open_store"]

_SUPPORTED = "use file:///absolute/path (a directory) or memory://name (this process only)"


def open_store(url: str, *, create: bool = False) -> ObjectStore:
    """Return the store at `url`: `file:///absolute/path` or `memory://name`.

    With `create`, a missing directory is made. Without, it is a UserError, so that an unmounted
    volume never passes for an empty store. Raises UserError for any other address.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in ("file", "memory"):
        raise UserError(f"store address is not supported: url={url!r}; {_SUPPORTED}")
    if scheme == "memory":
        if not rest or "/" in rest:
            raise UserError(f"memory store needs a plain name: url={url!r}; {_SUPPORTED}")
        return MemoryStore.named(rest)
    path = unquote(rest)
    if not path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise UserError(f"store address needs an absolute path: url={url!r}; {_SUPPORTED}")
    return LocalStore(Path(path), create=create)
