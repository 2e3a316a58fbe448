"""The store in a bucket."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Self

from moorage_state.errors import MoorageError, ObjectNotFound, UserError
from moorage_state.stores.base import ObjectInfo, check_prefix
from moorage_state.stores.retries import Retries
from moorage_state.stores.s3.address import S3Address, S3Credentials
from moorage_state.stores.s3.calls import Attempt, Calls
from moorage_state.stores.s3.creation import create_once
from moorage_state.stores.s3.deletions import delete_objects, delete_one
from moorage_state.stores.s3.downloads import download, read
from moorage_state.stores.s3.listing import list_objects
from moorage_state.stores.s3.uploads import bytes_source, file_source, put_source, sweep_uploads

__all__ = ["S3Store"]


@dataclass(frozen=True, slots=True)
class S3Store:
    """Objects in a bucket that must exist, below a prefix.

    It is a value: stores with equal addresses are equal, and it can be pickled and used on both
    sides of a fork. Nothing is asked of the server before the first operation.

    Attributes:
        address: where it lies.
        retries: how requests are tried again. A request that fails for good takes its deadline.
        credentials: whose requests they are; None for those that boto3 finds. Never shown.
    """

    address: S3Address
    retries: Retries = Retries()  # noqa: RUF009 - frozen
    credentials: S3Credentials | None = field(default=None, repr=False)

    @classmethod
    def at(cls, url: str) -> Self:
        """Return the store at `url`. Raises UserError."""
        return cls(S3Address.parse(url))

    @property
    def url(self) -> str:
        """The address as text, without credentials."""
        return self.address.url

    def get(self, key: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """See `ObjectStore.get`."""
        return read(self._calls, key, offset, length)

    def get_to_file(
        self, key: str, path: Path, *, offset: int = 0, length: int | None = None
    ) -> None:
        """See `ObjectStore.get_to_file`; large ones are read in ranges at the same time."""
        download(self._calls, key, path, offset, length)

    def put(self, key: str, data: bytes) -> None:
        """See `ObjectStore.put`."""
        put_source(self._calls, key, bytes_source(data))

    def put_file(self, key: str, path: Path) -> None:
        """See `ObjectStore.put_file`; large ones are written in parts at the same time."""
        self.address.object_key(key)
        with file_source(path) as source:
            put_source(self._calls, key, source)

    def put_if_absent(self, key: str, data: bytes) -> None:
        """See `ObjectStore.put_if_absent`.

        Raises UserError when the server does not create once, see `creation`.
        """
        create_once(self._calls, key, data)

    def head(self, key: str) -> ObjectInfo | None:
        """See `ObjectStore.head`."""

        def look(attempt: Attempt) -> ObjectInfo:
            reply = attempt.client.head_object(**attempt.target)
            return ObjectInfo(key, reply["ContentLength"], reply["LastModified"].astimezone(UTC))

        try:
            return self._calls.run("head", key, look)
        except ObjectNotFound:
            return None

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """See `ObjectStore.list`."""
        return list_objects(self._calls, check_prefix(prefix), start_after)

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        delete_one(self._calls, key)

    def delete_many(self, keys: Collection[str]) -> dict[str, MoorageError]:
        """See `ObjectStore.delete_many`; a thousand go in one request."""
        return delete_objects(self._calls, keys)

    def now(self) -> datetime:
        """See `ObjectStore.now`: the date of a reply, in whole seconds like those of objects."""

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

    def sweep_temporaries(self, older_than: timedelta, now: datetime) -> int:
        """Remove the parts that dead writers left unfinished, by age; return of how many objects.

        `older_than` must exceed the longest write of an object, or a live writer loses its parts
        (and gets StoreUnavailable).
        """
        return sweep_uploads(self._calls, older_than, now)

    @property
    def _calls(self) -> Calls:
        return Calls(self.address, self.retries, self.credentials)
