"""Bringing a snapshot of all ranges to a store: a checkpoint's increments, a savepoint's files.

Decides what a range may build on and how the work is shared among the servers. Called by the
`RangeFleet`, in threads beside the epochs, on connections of its own.
"""

import threading
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TypeVar

from moorage.engine.state_servers import ServerConnection, Servers
from moorage_state.canonicalspec import CanonicalSpec
from moorage_state.errors import Retryable
from moorage_state.server.api import RangeSpec, Uploaded, UploadLimits, UploadRequest
from moorage_state.snapshots import (
    MAX_INLINE_BYTES,
    FileRef,
    OperatorStateMeta,
    RangeHandle,
    StateMeta,
    worn_packs,
)

__all__ = ["FleetUpload", "FleetUploads", "PlacedRange", "SavedOperator"]

PlacedRange = tuple[RangeSpec, int]
"""A range, and the server that has it."""

T = TypeVar("T")

_SMALL_PACKS_PER_SERVER = 16


@dataclass(frozen=True, slots=True)
class FleetUpload:
    """What a checkpoint wrote: handles by operator uid, and what they cost.

    `bytes_written` counts what went into objects, `bytes_inline` what the manifest will hold.
    """

    handles: dict[str, list[RangeHandle]]
    objects: int
    bytes_written: int
    bytes_inline: int


@dataclass(frozen=True, slots=True)
class SavedOperator:
    """What the canonical files of an operator declare; `now_ms` is the epoch's processing time."""

    key_types: list[str]
    states: list[StateMeta]
    now_ms: int = 0
    operator_states: Sequence[OperatorStateMeta] = ()


@dataclass(slots=True, eq=False)
class _UnderWay:
    """An upload, and its connection to each server."""

    checkpoint_id: int
    clients: dict[int, ServerConnection] = field(default_factory=dict)
    ended: bool = False


class FleetUploads:
    """Uploads of the ranges of one job.

    Args:
        store_url: where checkpoints are written to.
        max_parallelism: the number of key groups.
    """

    def __init__(self, servers: Servers, store_url: str, max_parallelism: int) -> None:
        self._servers = servers
        self._lock = threading.Lock()
        self._under_way: list[_UnderWay] = []
        self._store_url = store_url
        self._max_parallelism = max_parallelism

    def checkpoint(
        self,
        run: str,
        checkpoint_id: int,
        ranges: Sequence[PlacedRange],
        base: Mapping[str, list[RangeHandle]],
    ) -> FleetUpload:
        """Upload what the base lacks.

        Args:
            base: by operator uid, the handles of a retained checkpoint that was notified.
        """
        worn = worn_packs(
            (h for handles in base.values() for h in handles),
            most_small=_SMALL_PACKS_PER_SERVER * len({server for _, server in ranges}),
        )
        by_server: dict[int, list[UploadRequest]] = {}
        for spec, server in ranges:
            files = _base_files(spec, base.get(spec.uid, []), worn)
            by_server.setdefault(server, []).append(UploadRequest(spec.uid, spec.start, files))

        def upload(client: ServerConnection, requests: list[UploadRequest]) -> Uploaded:
            share = MAX_INLINE_BYTES * len(requests) // len(ranges)
            limits = UploadLimits(inline_total=share)
            return client.upload_many(run, checkpoint_id, self._store_url, requests, limits)

        return self._all(checkpoint_id, upload, by_server)

    def savepoint(
        self,
        run: str,
        checkpoint_id: int,
        epoch: int,
        url: str,
        ranges: Sequence[PlacedRange],
        operators: Mapping[str, SavedOperator],
        *,
        canonical: bool,
    ) -> FleetUpload:
        """Write everything into a savepoint's own directory.

        Args:
            epoch: the last epoch it contains.
            url: the directory.
            operators: by operator uid, what canonical files declare.
        """
        by_server: dict[int, list[CanonicalSpec]] = {}
        for placed, server in ranges:
            operator = operators[placed.uid]
            spec = CanonicalSpec(
                uid=placed.uid,
                start=placed.start,
                end=placed.end,
                epoch=epoch,
                max_parallelism=self._max_parallelism,
                key_types=tuple(operator.key_types),
                states=tuple(operator.states),
                operator_states=tuple(operator.operator_states),
                now_ms=operator.now_ms,
            )
            by_server.setdefault(server, []).append(spec)

        def save(client: ServerConnection, specs: list[CanonicalSpec]) -> Uploaded:
            return client.save_many(run, checkpoint_id, url, specs, canonical)

        return self._all(checkpoint_id, save, by_server)

    def end(self, checkpoint_id: int) -> None:
        """Close the connections of an upload: what waits for it ends with an error."""
        with self._lock:
            found = [way for way in self._under_way if way.checkpoint_id == checkpoint_id]
            for way in found:
                way.ended = True
            clients = [client for way in found for client in way.clients.values()]
        for client in clients:
            client.close()

    def close_gone(self, gone: Container[int]) -> None:
        """Close the connections to servers that are gone, of all uploads."""
        with self._lock:
            held = [one for way in self._under_way for one in way.clients.items()]
        for server, client in held:
            if server in gone:
                client.close()

    def _all(
        self,
        checkpoint_id: int,
        action: Callable[[ServerConnection, list[T]], Uploaded],
        by_server: Mapping[int, list[T]],
    ) -> FleetUpload:
        """Servers side by side, each over a connection of its own; the first error ends all."""
        way = _UnderWay(checkpoint_id)

        def one_server(server: int, work: list[T]) -> Uploaded:
            client = self._servers.connect(server)
            try:
                with self._lock:
                    if way.ended:
                        raise Retryable(f"upload was stopped: checkpoint={checkpoint_id}")
                    way.clients[server] = client
                return action(client, work)
            finally:
                client.close()

        with self._lock:
            self._under_way.append(way)
        try:
            with ThreadPoolExecutor(max_workers=max(1, len(by_server))) as pool:
                futures = [pool.submit(one_server, *one) for one in by_server.items()]
                done, others = wait(futures, return_when=FIRST_EXCEPTION)
                if others:
                    self.end(checkpoint_id)
                    raise next(error for future in done if (error := future.exception()))
                return _together([future.result() for future in futures])
        finally:
            with self._lock:
                self._under_way.remove(way)


def _base_files(spec: RangeSpec, base: list[RangeHandle], worn: frozenset[str]) -> list[FileRef]:
    """What a range may build on: the shared files of the handles that it can come from."""
    return [
        file
        for handle in base
        if handle.start <= spec.end and handle.end >= spec.start
        for file in handle.files
        if file.shared and file.key and file.key not in worn
    ]


def _together(uploads: list[Uploaded]) -> FleetUpload:
    handles: dict[str, list[RangeHandle]] = {}
    for handle in (handle for upload in uploads for handle in upload.handles):
        handles.setdefault(handle.uid, []).append(handle)
    return FleetUpload(
        handles,
        objects=sum(upload.objects for upload in uploads),
        bytes_written=sum(upload.bytes_written for upload in uploads),
        bytes_inline=sum(upload.bytes_inline for upload in uploads),
    )
