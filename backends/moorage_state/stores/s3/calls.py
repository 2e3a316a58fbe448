"""One request to the server: with the right client, tried again where that helps."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from moorage_state.errors import MoorageError, ObjectNotFound, StoreUnavailable
from moorage_state.progress import advance
from moorage_state.stores.retries import Failure, Retries
from moorage_state.stores.s3.address import S3Address, S3Credentials
from moorage_state.stores.s3.connection import Client, Connection, connection_to
from moorage_state.stores.s3.failures import code_of, failure_of, status_of

__all__ = ["Attempt", "Calls", "Final"]

T = TypeVar("T")

_NO_CODE = frozenset({"404", "NotFound"})
"""What a client makes of a 404 without a body: the answer to every HEAD."""


class Final(Exception):
    """Ends a request with an error that would otherwise be tried again."""

    def __init__(self, error: MoorageError) -> None:
        super().__init__(error)
        self.error = error


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one attempt of a request works with.

    Attributes:
        connection: the connection.
        bucket: the bucket.
        key: the key in the bucket.
        number: which attempt it is, from 1.
    """

    connection: Connection
    bucket: str
    key: str
    number: int

    @property
    def client(self) -> Client:
        """The client."""
        return self.connection.client

    @property
    def target(self) -> dict[str, str]:
        """The arguments that name the object."""
        return {"Bucket": self.bucket, "Key": self.key}


@dataclass(frozen=True, slots=True)
class Calls:
    """Requests to the store at an address.

    Attributes:
        address: the address.
        retries: how a request is tried again.
        credentials: whose requests they are; None for those that boto3 finds.
    """

    address: S3Address
    retries: Retries
    credentials: S3Credentials | None = None

    @property
    def connection(self) -> Connection:
        """The connection. Raises what boto3 raises when it finds no region or a broken profile."""
        return connection_to(self.address, self.credentials)

    def run(
        self,
        operation: str,
        key: str | None,
        work: Callable[[Attempt], T],
        stop: threading.Event | None = None,
    ) -> T:
        """Return what `work` returns, with its errors made into ours.

        Args:
            operation: its name in errors.
            key: the store's key that it is about; None for the whole store.
            work: one attempt. It may raise what boto3 raises.
            stop: when set, no further attempt starts.

        Raises what `failure_of` says.
        """
        place = self.address.prefix if key is None else self.address.object_key(key)

        def attempt(number: int) -> T:
            if stop is not None and stop.is_set():
                raise StoreUnavailable(f"transfer was stopped: operation={operation} key={key}")
            connection = self.connection
            one = Attempt(connection, self.address.bucket, place, number)
            try:
                done = work(one)
            except Exception as error:
                if status_of(error) == 404 and code_of(error) in _NO_CODE:
                    # Without a body nobody knows whether the object is missing or the bucket.
                    self._check_bucket(connection)
                    raise ObjectNotFound(
                        f"no such object: store={self.address.url} key={key}"
                    ) from error
                raise
            advance()
            return done

        def judge(error: Exception) -> Failure:
            if isinstance(error, Final):
                return Failure(error.error, again=False)
            failure = failure_of(error, operation, self.address, key or "")
            return replace(failure, again=failure.again and not (stop and stop.is_set()))

        return self.retries.run(attempt, judge)

    def once(self) -> "Calls":
        """Return the same with few attempts: for tidying up, of which nothing depends."""
        return replace(self, retries=replace(self.retries, attempts=3, deadline=10.0))

    def _check_bucket(self, connection: Connection) -> None:
        try:
            connection.client.head_bucket(Bucket=self.address.bucket)
        except Exception as error:
            if status_of(error) != 404:
                raise
            response = {
                "Error": {"Code": "NoSuchBucket"},
                "ResponseMetadata": {"HTTPStatusCode": 404},
            }
            from botocore.exceptions import ClientError

            raise ClientError(response, "HeadBucket") from error
