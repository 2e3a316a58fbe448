"""Removing many objects: up to a thousand in one request, each with an answer of its own.

Called by the store. A server without that request is asked for each object, several at a time.
"""

from collections.abc import Collection
from functools import partial
from typing import Any

from moorage_state.errors import MoorageError, ObjectNotFound, StoreUnavailable
from moorage_state.stores.base import check_key
from moorage_state.stores.retries import Failure
from moorage_state.stores.s3.calls import Attempt, Calls
from moorage_state.stores.s3.failures import code_of, failure_of
from moorage_state.stores.transfers import in_parallel

__all__ = ["delete_objects", "delete_one"]

_MOST_KEYS = 1000
"""More in one request are refused."""

_UNKNOWN_REQUEST = frozenset({"NotImplemented", "MethodNotAllowed", "MissingContentMD5"})
"""What servers answer that do not know the request, or not with the checksums of today."""

_WINDOW = 8


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
