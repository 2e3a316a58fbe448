"""Listing a bucket in the order of the keys, whatever order the server has.

AWS lists in the order of the keys' bytes. Servers that keep folders list a folder's content before
a neighbour such as `folder-1`, although `-` sorts before `/`. From those a listing is read to its
end and sorted; that holds some 300 bytes for each key in memory.
"""

from collections.abc import Iterator
from datetime import UTC
from functools import partial
from typing import Any

from moorage_state.errors import UserError
from moorage_state.stores.base import ObjectInfo, check_key
from moorage_state.stores.s3.calls import Attempt, Calls

__all__ = ["list_objects"]


def list_objects(calls: Calls, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
    """Yield the objects. See `ObjectStore.list`."""
    found = (
        info
        for info in _objects(calls, prefix, start_after)
        if info.key > start_after and info.key.startswith(prefix)
    )
    if calls.address.is_aws:
        return found
    return _sorted(found)


def _sorted(found: Iterator[ObjectInfo]) -> Iterator[ObjectInfo]:
    yield from sorted(found, key=lambda info: info.key.encode())


def _objects(calls: Calls, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
    root = f"{calls.address.prefix}/" if calls.address.prefix else ""
    query: dict[str, str] = {"Prefix": root + prefix}
    if early := _earlier_in_any_order(prefix, start_after):
        query["StartAfter"] = root + early
    while True:
        page = calls.run("list", None, partial(_page, query))
        for item in page.get("Contents", []):
            key = item["Key"].removeprefix(root)
            if _is_ours(key):
                yield ObjectInfo(key, item["Size"], item["LastModified"].astimezone(UTC))
        if not page.get("IsTruncated"):
            return
        query = {"Prefix": root + prefix, "ContinuationToken": page["NextContinuationToken"]}


def _page(query: dict[str, str], attempt: Attempt) -> dict[str, Any]:
    page: dict[str, Any] = attempt.client.list_objects_v2(Bucket=attempt.bucket, **query)
    return page


def _earlier_in_any_order(prefix: str, start_after: str) -> str:
    """Return a start that skips nothing after `start_after`, in either order; empty for none.

    Within one folder the orders differ only where a name goes on with a character that sorts
    before `/`; so the start is cut before the first of those. It loses one more character, because
    servers skip the whole folder whose name is the start.
    """
    folder = prefix.rpartition("/")[0]
    folder = f"{folder}/" if folder else ""
    if not start_after.startswith(folder):
        return ""
    name = start_after.removeprefix(folder)
    cut = next((at for at, letter in enumerate(name) if letter <= "/"), len(name))
    return folder + name[: cut - 1] if cut > 1 else ""


def _is_ours(key: str) -> bool:
    """Whether a store could have written it: consoles put markers such as `folder/`."""
    try:
        check_key(key)
    except UserError:
        return False
    return True
