"""The store in a bucket, with its listings and deletions.

A listing is in the order of the keys, whatever order the server has. AWS lists in the order of the
keys' bytes. Servers that keep folders list a folder's content before a neighbour such as
`folder-1`, although `-` sorts before `/`. From those a listing is read to its end and sorted; that
holds some 300 bytes for each key in memory. Up to a thousand objects are deleted in one request,
each with an answer of its own.
"""
# ruff: noqa: D102  `ObjectStore` documents the methods

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from moorage_state.errors import MoorageError, ObjectNotFound, StoreUnavailable, UserError
from moorage_state.stores.base import ObjectInfo, check_key, check_prefix
from moorage_state.stores.retries import Failure, Retries
from moorage_state.stores.s3.address import S3Address, S3Credentials
from moorage_state.stores.s3.calls import Attempt, Calls, code_of, failure_of
from moorage_state.stores.s3.downloads import download, read
from moorage_state.stores.s3.uploads import (
    bytes_source,
    create_once,
    file_source,
    put_source,
)
from moorage_state.stores.transfers import in_parallel

_MOST_KEYS = 1000
"""More in one request are refused."""

_UNKNOWN_REQUEST = frozenset({"NotImplemented", "MethodNotAllowed", "MissingContentMD5"})
"""What servers answer that do not know the request, or not with the checksums of today."""

_WINDOW = 8


@dataclass(frozen=True, slots=True)
class S3Store:
    """Objects in a bucket that must exist, below a prefix.

    It is a value: stores with equal addresses are equal, and it can be pickled and used on both
    sides of a fork. Nothing is asked of the server before the first operation.
    """

    address: S3Address
    retries: Retries = Retries()  # noqa: RUF009 - frozen
    credentials: S3Credentials | None = field(default=None, repr=False)

    @classmethod
    def at(cls, url: str) -> Self:
        """Return the store at `url`. Raises UserError."""
        return cls(S3Address.parse(url))

    @property
    def once(self) -> Self:
        """The same with few attempts."""
        return replace(self, retries=self.retries.few)

    @property
    def url(self) -> str:
        return self.address.url

    def get(self, key: str, *, offset: int = 0, length: int | None = None) -> bytes:
        return read(self._calls, key, offset, length)

    def get_to_file(
        self, key: str, path: Path, *, offset: int = 0, length: int | None = None
    ) -> None:
        download(self._calls, key, path, offset, length)

    def put(self, key: str, data: bytes) -> None:
        put_source(self._calls, key, bytes_source(data))

    def put_file(self, key: str, path: Path) -> None:
        # Refuses a wrong key before the file is opened.
        self.address.object_key(key)
        with file_source(path) as source:
            put_source(self._calls, key, source)

    def put_if_absent(self, key: str, data: bytes) -> None:
        create_once(self._calls, key, data)

    def head(self, key: str) -> ObjectInfo | None:
        def look(attempt: Attempt) -> ObjectInfo:
            reply = attempt.client.head_object(**attempt.target)
            return ObjectInfo(key, reply["ContentLength"], reply["LastModified"].astimezone(UTC))

        try:
            return self._calls.run("head", key, look)
        except ObjectNotFound:
            return None

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        return list_objects(self._calls, check_prefix(prefix), start_after)

    def delete(self, key: str) -> None:
        delete_one(self._calls, key)

    def delete_many(self, keys: Collection[str]) -> dict[str, MoorageError]:
        return delete_objects(self._calls, keys)

    def now(self) -> datetime:
        def look(attempt: Attempt) -> str:
            reply = attempt.client.list_objects_v2(
                Bucket=attempt.bucket, Prefix=self.address.prefix, MaxKeys=1
            )
            return str(reply["ResponseMetadata"]["HTTPHeaders"].get("date", ""))

        date = self._calls.run("look at the clock", None, look)
        try:
            return parsedate_to_datetime(date).astimezone(UTC)
        except ValueError as error:
            raise UserError(
                f"s3 store does not date its replies: store={self.url} date={date!r}; ages of "
                "objects cannot be told, use a server that sends the header Date"
            ) from error

    @property
    def _calls(self) -> Calls:
        return Calls(self.address, self.retries, self.credentials)


def list_objects(calls: Calls, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
    """Yield the objects. See `ObjectStore.list`."""
    found = (
        info
        for info in _objects(calls, prefix, start_after)
        if info.key > start_after and info.key.startswith(prefix)
    )
    if _is_aws(calls):
        yield from found
    else:
        yield from sorted(found, key=lambda info: info.key.encode())


def _is_aws(calls: Calls) -> bool:
    """Whether AWS itself answers, which keeps to the letter of its own documents."""
    # Not by the address: boto3 takes an endpoint from the environment and its files as well.
    endpoint = calls.run("list", None, lambda attempt: str(attempt.client.meta.endpoint_url))
    host = urlsplit(endpoint).hostname or ""
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn"))


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
    """Return a start that skips nothing after `start_after`, in either order; empty for none."""
    folder = prefix.rpartition("/")[0]
    folder = f"{folder}/" if folder else ""
    if not start_after.startswith(folder):
        return ""
    name = start_after.removeprefix(folder)
    # Within one folder the orders differ only where a name goes on with a character that sorts
    # before `/`; so the start is cut before the first of those.
    cut = next((at for at, letter in enumerate(name) if letter <= "/"), len(name))
    # One character less, because servers skip the whole folder whose name is the start.
    return folder + name[: cut - 1] if cut > 1 else ""


def _is_ours(key: str) -> bool:
    """Whether a store could have written it: consoles put markers such as `folder/`."""
    try:
        check_key(key)
    except UserError:
        return False
    return True


class _SomeLeft(StoreUnavailable):
    """Some of the objects may go at another attempt."""


def delete_one(calls: Calls, key: str) -> None:
    """Remove the object; succeeds when there is none."""

    def remove(attempt: Attempt) -> None:
        attempt.client.delete_object(**attempt.target)

    calls.address.object_key(key)
    try:
        calls.run("delete", key, remove)
    except ObjectNotFound:
        return


def delete_objects(calls: Calls, keys: Collection[str]) -> dict[str, MoorageError]:
    """Remove the objects. See `ObjectStore.delete_many`."""
    places = {calls.address.object_key(check_key(key)): key for key in keys}
    wanted, failed = list(places), dict[str, MoorageError]()
    for start in range(0, len(wanted), _MOST_KEYS):
        batch = _Batch(calls, {p: places[p] for p in wanted[start : start + _MOST_KEYS]})
        failed |= batch.delete()
    return failed


class _Batch:
    """The objects of one request, and over its attempts what is left of them."""

    def __init__(self, calls: Calls, places: dict[str, str]) -> None:
        self._calls = calls
        self._left = places
        self._failed: dict[str, MoorageError] = {}

    def delete(self) -> dict[str, MoorageError]:
        """Remove them; returns the errors of those that may still be there, by key."""
        try:
            self._calls.run("delete objects", None, self._attempt)
        except _SomeLeft:
            return self._failed
        except MoorageError as error:
            cause = error.__cause__
            if not isinstance(cause, Exception) or code_of(cause) not in _UNKNOWN_REQUEST:
                raise
            return self._one_by_one()
        return self._failed

    def _attempt(self, attempt: Attempt) -> None:
        reply = attempt.client.delete_objects(
            Bucket=attempt.bucket,
            Delete={"Objects": [{"Key": place} for place in self._left], "Quiet": True},
        )
        failures = self._failures(reply)
        for key in self._left.values():
            self._failed.pop(key, None)
        self._failed |= {self._left[place]: failure.error for place, failure in failures.items()}
        self._left = {p: self._left[p] for p, failure in failures.items() if failure.again}
        if self._left:
            raise _SomeLeft(f"some objects were not deleted: count={len(self._left)}")

    def _failures(self, reply: dict[str, Any]) -> dict[str, Failure]:
        from botocore.exceptions import ClientError

        failures = {}
        for answer in reply.get("Errors", []):
            place, code = answer.get("Key", ""), answer.get("Code", "")
            if place in self._left and code != "NoSuchKey":
                # Only so much is told of each object; what it means is judged as if it had been
                # asked for alone.
                status = {"HTTPStatusCode": 403 if code == "AccessDenied" else 200}
                told = ClientError(
                    {"Error": {"Code": code}, "ResponseMetadata": status}, "DeleteObjects"
                )
                key = self._left[place]
                failures[place] = failure_of(told, "delete", self._calls.address, key)
        return failures

    def _one_by_one(self) -> dict[str, MoorageError]:
        self._calls.connection.tell_once(
            "s3_store_deletes_singly",
            "the server does not delete several objects in one request: each takes its own",
        )
        keys = list(self._left.values())
        answers = in_parallel((partial(_error_of, self._calls, key) for key in keys), _WINDOW)
        found = {key: error for key, error in zip(keys, answers, strict=True) if error is not None}
        return self._failed | found


def _error_of(calls: Calls, key: str) -> MoorageError | None:
    try:
        delete_one(calls, key)
    except MoorageError as error:
        return error
    return None
