"""Addresses of stores: what a person typed, what lies below it, and the store at one.

An `s3://` address may end in options (`?endpoint=..`), which belong to the address and not to its
last segment: they stay at the end, whatever is added or taken away before them.
"""

import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote

from moorage_state.errors import ObjectNotFound, StoreDenied, UserError
from moorage_state.stores.base import ObjectStore
from moorage_state.stores.local import LocalStore
from moorage_state.stores.memory import MemoryStore
from moorage_state.stores.s3 import S3Address, S3Store

_SUPPORTED = (
    "use file:///absolute/path (a directory), s3://bucket/prefix, or memory://name "
    "(this process only)"
)
Opener = Callable[[str], ObjectStore]
"""From an address to the store, with the right credentials. Raises as `open_store` does."""


def address(text: str | Path) -> str:
    """The address of what a person typed; a path of the file system becomes a `file://` one."""
    if "://" not in str(text):
        # Not resolved: links stay as they were typed.
        return f"file://{quote(os.path.abspath(Path(text).expanduser()))}"  # noqa: PTH100
    place, options = _split(str(text))
    bare = place.rstrip("/")
    return (place if bare.endswith(":") else bare) + options


def child(url: str, name: str) -> str:
    """The address of `name` in the directory `url`."""
    place, options = _split(url)
    return f"{place.rstrip('/')}/{quote(name)}{options}"


def parent_and_name(url: str) -> tuple[str, str] | None:
    """The directory that an address lies in, and its name there; None for the top of a store."""
    place, options = _split(url)
    scheme, _, path = place.partition("://")
    head, slash, name = path.rstrip("/").rpartition("/")
    if not slash or not name or (not head and scheme != "file"):
        return None
    return f"{scheme}://{head or '/'}{options}", unquote(name)


def same_place(one: str, other: str) -> bool:
    """Whether two addresses name one directory, however its server is reached."""
    return bool(one) and _place(one)[0] == _place(other)[0]


def same_or_below(url: str, directory: str) -> bool:
    """Whether `url` names `directory` or something in it, on the same server."""
    (one, server), (other, other_server) = _place(url), _place(directory)
    return server == other_server and f"{one}/".startswith(f"{other}/")


def without_links(url: str) -> str:
    """The address of a local directory as its path is in the end, unquoted; others as they are."""
    if not url.startswith("file://"):
        return url
    return f"file://{os.path.realpath(unquote(url.removeprefix('file://')))}"


def _place(url: str) -> tuple[str, str]:
    """The place, and the endpoint where one is given."""
    place, options = _split(url)
    endpoint = dict(parse_qsl(options.removeprefix("?"))).get("endpoint", "")
    return unquote(place).rstrip("/"), endpoint.rstrip("/")


def _split(url: str) -> tuple[str, str]:
    """The place, and the options with their `?`; only `s3://` addresses have any."""
    if not url.startswith("s3://"):
        return url, ""
    place, mark, options = url.partition("?")
    return place, mark + options


def open_store(url: str, *, create: bool = False) -> ObjectStore:
    """Return the store at `url`: `file:///path`, `s3://bucket/prefix?...` or `memory://name`.

    With `create`, a missing directory is made; without, it is a UserError, as is any other address.
    A bucket is never made; that it is missing shows at the first use.
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


def opened(open_: Opener, url: str) -> ObjectStore | None:
    """Return the store at `url`; None for a directory that is not there, beside others that are.

    Raises what `open_store` does, and `StoreDenied` where not even its folder is there.
    """
    try:
        return open_(url)
    except UserError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        if Path(unquote(url.removeprefix("file://"))).parent.is_dir():
            return None
        # A volume may not be mounted; that must not pass for an empty store.
        raise StoreDenied(str(error)) from error


def bytes_of(store: ObjectStore, key: str) -> bytes | None:
    """Return the object, or None if the store says that there is none."""
    try:
        return store.get(key)
    except ObjectNotFound:
        return None
