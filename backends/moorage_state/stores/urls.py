"""From the address of a store to the store."""

from pathlib import Path
from urllib.parse import unquote

from moorage_state.errors import UserError
from moorage_state.stores.base import ObjectStore
from moorage_state.stores.local import LocalStore
from moorage_state.stores.memory import MemoryStore
from moorage_state.stores.s3 import S3Address, S3Store

__all__ = ["open_store", "store_url"]

_SUPPORTED = (
    "use file:///absolute/path (a directory), s3://bucket/prefix, or memory://name "
    "(this process only)"
)


def open_store(url: str, *, create: bool = False) -> ObjectStore:
    """Return the store at `url`: `file:///path`, `s3://bucket/prefix?...` or `memory://name`.

    With `create`, a missing directory is made. Without, it is a UserError, so that an unmounted
    volume never passes for an empty store. A bucket is never made; that it is missing shows at the
    first use. Raises UserError for any other address.
    """
    scheme, separator, rest = url.partition("://")
    if scheme == "s3" and separator:
        return S3Store.at(url)
    if scheme in {"s3a", "s3n"} and separator:
        raise UserError(f"store address has the scheme {scheme}://, which is Hadoop's; write s3://")
    if not separator or scheme not in {"file", "memory"}:
        # An address of another kind may carry a password.
        shown = url if "@" not in url else f"{scheme}://..."
        raise UserError(f"store address is not supported: url={shown!r}; {_SUPPORTED}")
    if scheme == "memory":
        if not rest or "/" in rest:
            raise UserError(f"memory store needs a plain name: url={url!r}; {_SUPPORTED}")
        return MemoryStore.named(rest)
    path = unquote(rest)
    if not path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise UserError(f"store address needs an absolute path: url={url!r}; {_SUPPORTED}")
    return LocalStore(Path(path), create=create)


def store_url(
    directory: str,
    endpoint: str | None = None,
    region: str | None = None,
    *,
    path_style: bool = False,
) -> str:
    """Return the whole address of a directory of a manifest, with how S3 is reached.

    The address is all that another process needs besides credentials. What `directory` itself
    says of endpoint and region wins. Addresses other than `s3://` come back as they are.
    """
    if not directory.startswith("s3://"):
        return directory
    own = S3Address.parse(directory)
    return S3Address(
        own.bucket,
        own.prefix,
        own.endpoint or (endpoint.rstrip("/") if endpoint else None),
        own.region or region,
        own.path_style or path_style,
    ).url
