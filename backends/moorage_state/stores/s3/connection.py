"""The clients of a process: one for each server, made at first use, never inherited.

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

from moorage_state.stores.s3.address import S3Address

__all__ = ["TRANSFER_THREADS", "Client", "Connection", "connection_to"]

Client = Any
"""boto3's S3 client, which has no types of its own."""

TRANSFER_THREADS = 8
"""How many parts of objects a process sends and receives at a time, whoever asks for them."""

_POOL_CONNECTIONS = 32
"""Sockets that are kept: for the transfer threads, and for as many callers' own requests."""

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


class _Connections:
    """All connections of the process, by (endpoint, region, path style)."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[tuple[str | None, str | None, bool], Connection] = {}

    def get(self, address: S3Address, make: Callable[[S3Address], Client]) -> Connection:
        server = (address.endpoint, address.region, address.path_style)
        with self._lock:
            if server not in self._open:
                pool = ThreadPoolExecutor(TRANSFER_THREADS, "s3")
                self._open[server] = Connection(make(address), pool)
            return self._open[server]


_connections = _Connections()
os.register_at_fork(after_in_child=_connections.forget)


def connection_to(address: S3Address) -> Connection:
    """Return the connection of this process to the server of `address`.

    Raises what boto3 raises when it finds no region or a broken profile.
    """
    return _connections.get(address, _client)


def _client(address: S3Address) -> Client:
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
    session = boto3.session.Session()
    client = session.client(
        "s3", endpoint_url=address.endpoint, region_name=address.region, config=config
    )
    client.meta.events.register_last("before-call.s3", _send_small_bodies_at_once)
    return client


def _send_small_bodies_at_once(params: dict[str, Any], **_: object) -> None:
    """Leave out the question whether the server wants the body: it takes a round trip.

    Large bodies keep it, so that a refusal is read and not lost in a broken connection.
    """
    body = params.get("body")
    if isinstance(body, BytesIO) and body.getbuffer().nbytes <= _SMALL_BYTES:
        params["headers"].pop("Expect", None)
