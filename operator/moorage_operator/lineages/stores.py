"""Opening a job's stores in the operator's own process: whose credentials, where to, how long.

A job's object names addresses, and whoever may write such an object could name any. So a store is
opened only where the job itself keeps its state, with the job's credentials.
"""

import base64
import binascii
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from moorage_operator.ports import Cluster, JobRefs
from moorage_state.errors import MoorageError, StoreDenied, StoreUnavailable
from moorage_state.stores import (
    ObjectInfo,
    ObjectStore,
    Retries,
    S3Address,
    S3Credentials,
    S3Store,
    open_store,
)

__all__ = ["CredentialsMissing", "Limited", "credentials_of", "opener"]

T = TypeVar("T")

_RETRIES = Retries(attempts=4, first_pause=0.2, longest_pause=2.0, deadline=15.0)
_NEEDED = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


class CredentialsMissing(Exception):
    """The Secret with the job's credentials is not there or not whole; the text shows no value."""


async def credentials_of(cluster: Cluster, job: JobRefs) -> S3Credentials | None:
    """The credentials in the job's Secret, read anew; None if the job names none.

    Raises:
        CredentialsMissing: naming the Secret and what it lacks.
        ClusterError: the Secret could not be read.
    """
    reference = job.spec.state.credentials_secret_ref
    if reference is None:
        return None
    where = f"secret={job.meta.namespace}/{reference.name}"
    body = await cluster.get("Secret", job.meta.namespace, reference.name)
    if body is None:
        raise CredentialsMissing(
            f"spec.state.credentialsSecretRef: there is no such Secret: {where}; create it"
        )
    found = {name: _decoded(text, where) for name, text in (body.get("data") or {}).items()}
    missing = [name for name in _NEEDED if not found.get(name)]
    if missing:
        raise CredentialsMissing(
            f"spec.state.credentialsSecretRef: the Secret lacks {' and '.join(missing)}: {where}; "
            "add what is missing"
        )
    return S3Credentials(
        found["AWS_ACCESS_KEY_ID"],
        found["AWS_SECRET_ACCESS_KEY"],
        found.get("AWS_SESSION_TOKEN") or None,
        found.get("AWS_REGION") or found.get("AWS_DEFAULT_REGION") or None,
    )


def _decoded(text: object, where: str) -> str:
    try:
        return base64.b64decode(str(text), validate=True).decode().strip()
    except (binascii.Error, UnicodeDecodeError):
        raise CredentialsMissing(
            f"spec.state.credentialsSecretRef: the Secret's data cannot be read: {where}; write "
            "its values anew"
        ) from None


def opener(
    job: JobRefs,
    credentials: S3Credentials | None,
    schemes: frozenset[str],
    seconds: float,
    *,
    own_chain: bool,
    clock: Callable[[], float] = time.monotonic,
) -> Callable[[str], ObjectStore]:
    """Return what opens the job's stores, until `seconds` from now.

    Args:
        job: the job.
        credentials: its own; without them and with `own_chain` the operator's are used.
        schemes: the kinds of stores that may be opened in this process.
        seconds: after which a store that was opened refuses to go on.
        own_chain: whether the operator's own credentials may be used.
        clock: monotonic seconds.
    """
    deadline = clock() + seconds
    endpoint = (job.spec.state.s3.endpoint or "").rstrip("/")

    def open_(url: str) -> ObjectStore:
        scheme = url.partition("://")[0]
        if scheme not in schemes:
            raise StoreDenied(
                f"operator does not open such stores itself: scheme={scheme}; use s3://, or let "
                "errands run as pods"
            )
        if scheme != "s3":
            return Limited(open_store(url), deadline, clock)
        address = S3Address.parse(url)
        if (address.endpoint or "") != endpoint:
            raise StoreDenied(
                f"address is on another server than the job's: bucket={address.bucket}; use one "
                "that spec.state.s3.endpoint of the job names"
            )
        if credentials is None and not own_chain:
            raise StoreDenied(
                "no credentials for the store: name a Secret in spec.state.credentialsSecretRef, "
                "or let errands run as pods"
            )
        return Limited(S3Store(address, _RETRIES, credentials), deadline, clock)

    return open_


@dataclass(frozen=True, slots=True)
class Limited:
    """A store that begins nothing after a deadline: a thread that nobody waits for comes to an end.

    Attributes:
        deadline: on `clock`.
    """

    inner: ObjectStore
    deadline: float
    clock: Callable[[], float] = time.monotonic

    @property
    def url(self) -> str:
        """See `ObjectStore.url`."""
        return self.inner.url

    def get(self, key: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """See `ObjectStore.get`."""
        return self._in_time().get(key, offset=offset, length=length)

    def get_to_file(
        self, key: str, path: Path, *, offset: int = 0, length: int | None = None
    ) -> None:
        """See `ObjectStore.get_to_file`."""
        self._in_time().get_to_file(key, path, offset=offset, length=length)

    def put(self, key: str, data: bytes) -> None:
        """See `ObjectStore.put`."""
        self._in_time().put(key, data)

    def put_file(self, key: str, path: Path) -> None:
        """See `ObjectStore.put_file`."""
        self._in_time().put_file(key, path)

    def put_if_absent(self, key: str, data: bytes) -> None:
        """See `ObjectStore.put_if_absent`."""
        self._in_time().put_if_absent(key, data)

    def head(self, key: str) -> ObjectInfo | None:
        """See `ObjectStore.head`."""
        return self._in_time().head(key)

    def now(self) -> datetime:
        """See `ObjectStore.now`."""
        return self._in_time().now()

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectInfo]:
        """See `ObjectStore.list`."""
        for info in self._in_time().list(prefix, start_after):
            self._in_time()
            yield info

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        self._in_time().delete(key)

    def delete_many(self, keys: Collection[str]) -> dict[str, MoorageError]:
        """See `ObjectStore.delete_many`."""
        return self._in_time().delete_many(keys)

    def _in_time(self) -> ObjectStore:
        if self.clock() > self.deadline:
            raise StoreUnavailable(f"store is too slow: store={self.inner.url}; tried no longer")
        return self.inner
