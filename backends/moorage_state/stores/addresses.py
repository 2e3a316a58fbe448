"""Addresses of stores as text: what a person typed, its last segment, and what lies below it.

Pure. An `s3://` address may end in options (`?endpoint=..`), which belong to the address and not to
its last segment: they stay at the end, whatever is added or taken away before them.
"""

import os
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote

__all__ = ["address", "child", "parent_and_name", "same_or_below"]


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


def same_or_below(url: str, directory: str) -> bool:
    """Whether `url` names `directory` or something in it, on the same server."""
    (one, server), (other, other_server) = _place(url), _place(directory)
    return server == other_server and f"{one}/".startswith(f"{other}/")


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
