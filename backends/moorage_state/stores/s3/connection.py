"""The clients of a process: one for each server and user, made at first use, never inherited.

A client holds sockets and locks, so a forked child must not use its parent's: it starts with none
and makes its own. For the same reason stores do not hold clients but ask for them, which lets a
store be pickled.
"""

import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

from moorage_state.stores.s3.address import S3Address, S3Credentials

__all__ = ["TRANSFER_THREADS", "Client", "Connection", "connection_to"]

Client = Any
"""boto3's S3 client, which has no types of its own."""

TRANSFER_THREADS = 8
"""How many parts of objects a process sends and receives at a time, whoever asks for them."""

_POOL_CONNECTIONS = 32
"""Sockets that are kept: for the transfer threads, and for as many callers' own requests."""

_GIVEN_CONNECTIONS = 16
"""Connections with credentials of their own that are kept; each takes some megabytes."""

_CONNECT_SECONDS = 5
_READ_SECONDS = 30

_SMALL_BYTES = 64 << 10
"""What a socket takes in one go."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Connection:
    """What the stores of one server share within a process.

    Attributes:
        client: the client.
        pool: the threads that move the parts of large objects.
        creates_once: the buckets of which a probe showed that they refuse to create twice.
        probing: held while a bucket is probed.
    """

    client: Client
    pool: ThreadPoolExecutor
    creates_once: set[str] = field(default_factory=set)
    probing: threading.Lock = field(default_factory=threading.Lock)
    _told: set[str] = field(default_factory=set)

    def tell_once(self, event: str, message: str) -> None:
        """Log `message` the first time that `event` happens here."""
        if event not in self._told:
            self._told.add(event)
            _log.info("%s: %s", event, message)


_Server = tuple[str | None, str | None, bool, S3Credentials | None]


class _Connections:
    """All connections of the process, by (endpoint, region, path style, given credentials).

    Of those with credentials of their own the ones used last are kept: they belong to many jobs
    and change in time.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[_Server, Connection] = {}

    def get(
        self,
        address: S3Address,
        credentials: S3Credentials | None,
        make: Callable[[S3Address, S3Credentials | None], Client],
    ) -> Connection:
        server = (address.endpoint, address.region, address.path_style, credentials)
        with self._lock:
            found = self._open.pop(server, None)
            if found is None:
                pool = ThreadPoolExecutor(TRANSFER_THREADS, "s3")
                found = Connection(make(address, credentials), pool)
            self._open[server] = found
            if credentials is not None:
                self._drop_oldest()
            return found

    def _drop_oldest(self) -> None:
        """Forget what was not used for long; who still uses it holds it until done."""
        given = [server for server in self._open if server[3] is not None]
        for server in given[:-_GIVEN_CONNECTIONS]:
            del self._open[server]


_connections = _Connections()
os.register_at_fork(after_in_child=_connections.forget)


def connection_to(address: S3Address, credentials: S3Credentials | None = None) -> Connection:
    """Return the connection of this process to the server of `address`.

    Without `credentials` boto3 finds them in its usual places.

    Raises what boto3 raises when it finds no region or a broken profile.
    """
    return _connections.get(address, credentials, _client)


def _client(address: S3Address, credentials: S3Credentials | None) -> Client:
    # Slow to import, and a job on a directory needs neither.
    import boto3
    from botocore.config import Config

    config = Config(
        retries={"total_max_attempts": 1, "mode": "standard"},
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=_READ_SECONDS,
        max_pool_connections=_POOL_CONNECTIONS,
        tcp_keepalive=True,
        s3={"addressing_style": "path" if address.path_style else "auto"},
        # Checksums are sent as plain headers by us: trailers break servers other than AWS.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_supported",
    )
    region = address.region or (credentials.region if credentials else None)
    session = boto3.session.Session(**_given(credentials))
    client = session.client("s3", endpoint_url=address.endpoint, region_name=region, config=config)
    client.meta.events.register_last("before-call.s3", _send_small_bodies_at_once)
    return client


def _given(credentials: S3Credentials | None) -> dict[str, str | None]:
    if credentials is None:
        return {}
    return {
        "aws_access_key_id": credentials.access_key_id,
        "aws_secret_access_key": credentials.secret_access_key,
        "aws_session_token": credentials.session_token,
    }


def _send_small_bodies_at_once(params: dict[str, Any], **_: object) -> None:
    """Leave out the question whether the server wants the body: it takes a round trip.

    Large bodies keep it, so that a refusal is read and not lost in a broken connection.
    """
    body = params.get("body")
    if isinstance(body, BytesIO) and body.getbuffer().nbytes <= _SMALL_BYTES:
        params["headers"].pop("Expect", None)
