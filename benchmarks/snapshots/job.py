"""A job without Spark: one operator's ranges, driven as the engine drives them.

Epochs are staged, prepared and committed; checkpoints are linked, uploaded, completed in the log
and retired, in the order and by the classes that `moorage run` uses.
"""

import datetime
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np

from benchmarks.snapshots.params import Size
from benchmarks.snapshots.records import (
    MAX_PARALLELISM,
    Counts,
    Keys,
    groups_of,
    ordered,
    values_of,
)
from moorage.driver.local import LocalServers
from moorage.driver.manifests import range_entries, ranges_of
from moorage.engine.fleet import FleetUpload, RangeFleet, StoredRange
from moorage.engine.range_access import LeasedRange
from moorage_state.deltas import encode_frame
from moorage_state.server.exchange import Answer, exchange
from moorage_state.server.group import ServerGroup
from moorage_state.server.operations import OpenResult, SnapshotSync
from moorage_state.snapshots import (
    CheckpointStore,
    LogWriter,
    OperatorParts,
    Owner,
    Root,
    Run,
    StateMeta,
    run_token,
)

__all__ = ["UID", "Job", "Taken"]

UID = "state"

_FRAME_KEYS = 20_000
_OWNER = Owner("local", "benchmarks", "snapshots", "local", "")


@dataclass(frozen=True, slots=True)
class Taken:
    """One checkpoint.

    Attributes:
        syncs: what each subtask says of its synchronous part.
        apply_seconds: how long the last epoch's writes were waited for before it.
        round_trip_seconds: the synchronous part of all subtasks, as the driver sees it.
        bytes_total: the size of all files it consists of.
        bytes_uploaded: what was written for it, inline files included.
        objects: how many objects that were.
        upload_seconds: how long that took.
    """

    checkpoint_id: int
    syncs: tuple[SnapshotSync, ...]
    apply_seconds: float
    round_trip_seconds: float
    bytes_total: int
    bytes_uploaded: int
    objects: int
    upload_seconds: float


class _Recording:
    """The exchange with servers, keeping what they told of snapshots."""

    def __init__(self) -> None:
        self.syncs: list[SnapshotSync] = []

    def __call__(self, *asked: Any, **names: Any) -> dict[int, Answer]:
        """See `exchange`."""
        answers = exchange(*asked, **names)
        results = [result for answer in answers.values() for result in answer.results]
        self.syncs += [result for result in results if isinstance(result, SnapshotSync)]
        return answers


class Job:
    """One run of the job; a context manager that releases everything but the store.

    Args:
        group: as many servers as there are subtasks.
        store: where checkpoints are.
    """

    def __init__(self, group: ServerGroup, store: CheckpointStore, size: Size) -> None:
        self._size = size
        self._store = store
        self._servers = LocalServers(group)
        self._told = _Recording()
        self._writer = LogWriter.claim(store.objects, _OWNER, "benchmark")
        self._run = run_token(self._writer.fence, 0)
        self._fleet = RangeFleet(
            self._servers,
            [UID],
            size.subtasks,
            MAX_PARALLELISM,
            store.objects.url,
            exchange=self._told,
        )
        self._clients = [self._servers.connect(i) for i in range(size.subtasks)]
        self._pool = ThreadPoolExecutor(size.subtasks, "subtask")
        self._base: Mapping[str, Sequence[StoredRange]] = {}
        self._base_id = 0
        self._epoch = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._pool.shutdown()
        for client in self._clients:
            client.close()
        self._fleet.close()

    def open(self) -> list[OpenResult]:
        """Open all ranges: from the newest checkpoint, or empty."""
        loaded = self._store.load_latest(self._writer.entries)
        manifest = loaded.manifest if loaded else None
        source = f"chk-{manifest.checkpoint_id}" if manifest else None
        self._writer.append(Run(self._writer.fence, 0, source))
        if manifest is None:
            return self._fleet.open(self._run, 0, {}, 0)
        self._epoch = manifest.epoch
        self._base_id = manifest.checkpoint_id
        self._base = ranges_of(manifest)
        return self._fleet.open(self._run, manifest.epoch, self._base, manifest.checkpoint_id)

    def write(self, keys: Keys, writes: Counts) -> None:
        """Write each key's value for the `writes`-th time, in as many epochs as that takes."""
        for at in range(0, len(keys), self._size.epoch_keys):
            chosen = slice(at, at + self._size.epoch_keys)
            self._write_epoch(keys[chosen], writes[chosen])

    def read(self, keys: Keys) -> tuple[Keys, list[bytes | None]]:
        """The stored values of `keys`, and the keys in the same order."""
        found = self._each(self._read_one, self._split(keys, np.zeros(len(keys), np.uint16)))
        return (
            np.concatenate([part for part, _ in found]),
            [value for _, values in found for value in values],
        )

    def settle(self, seconds: float = 600.0) -> float:
        """Wait until nothing is left to be compacted; how long that took."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            if not any(_compacting(stats.properties) for stats in self._fleet.stats()):
                break
            time.sleep(0.2)
        return time.monotonic() - began

    def checkpoint(self) -> Taken:
        """Take a checkpoint to its end, and retire what is too old."""
        apply_seconds = self._timed(partial(self.read, np.arange(1024, dtype=np.int64)))
        checkpoint_id = self._store.next_id(self._writer.entries)
        self._told.syncs.clear()
        round_trip = self._timed(lambda: self._fleet.snapshot(checkpoint_id))
        syncs = tuple(self._told.syncs)
        began = time.monotonic()
        uploaded = self._fleet.upload(checkpoint_id, self._base)
        upload_seconds = time.monotonic() - began
        now = datetime.datetime.now(datetime.UTC)
        self._store.complete(self._writer, self._manifest(checkpoint_id, uploaded, now), now)
        self._fleet.complete(checkpoint_id, self._epoch, uploaded.handles)
        self._base, self._base_id = uploaded.handles, checkpoint_id
        self._store.retire(self._writer, self._size.retain, pinned={checkpoint_id})
        return Taken(
            checkpoint_id,
            syncs,
            apply_seconds,
            round_trip,
            uploaded.bytes_total,
            uploaded.bytes_written + uploaded.bytes_inline,
            uploaded.objects,
            upload_seconds,
        )

    def _write_epoch(self, keys: Keys, writes: Counts) -> None:
        self._epoch += 1
        parts = self._split(keys, writes)
        digests = self._each(self._prepare, parts)
        self._fleet.commit(self._epoch, {(UID, at): digest for at, digest in enumerate(digests)})

    def _prepare(self, subtask: int, keys: Keys, writes: Counts) -> str:
        """Stage one subtask's part of an epoch; the digest of its delta."""
        leased = self._leased(subtask)
        opened, attempt = self._clients[subtask].range(leased.lease), f"e{self._epoch}"
        stored, order = ordered(keys)
        values: list[bytes | None] = [*values_of(keys[order], writes[order])]
        frames = range(0, len(stored), _FRAME_KEYS)
        # As every epoch of a job does: a read, which waits for the writes of the one before.
        opened.get_many(leased.version, stored[:1])
        for seq, at in enumerate(frames):
            part = slice(at, at + _FRAME_KEYS)
            frame = encode_frame([], stored[part], values[part])
            opened.stage(self._epoch, attempt, frame, seq)
        parent = leased.version.digest
        digest: str = opened.prepare(self._epoch, attempt, parent, len(frames)).digest
        return digest

    def _read_one(
        self, subtask: int, keys: Keys, _writes: Counts
    ) -> tuple[Keys, list[bytes | None]]:
        leased = self._leased(subtask)
        stored, order = ordered(keys)
        opened = self._clients[subtask].range(leased.lease)
        values = opened.get_many(leased.version, stored)
        return keys[order], values

    def _leased(self, subtask: int) -> LeasedRange:
        return self._fleet.leased(UID)[subtask]

    def _split(self, keys: Keys, writes: Counts) -> list[tuple[int, Keys, Counts]]:
        count = self._size.subtasks
        owners = groups_of(keys) * count // MAX_PARALLELISM
        return [(at, keys[owners == at], writes[owners == at]) for at in range(count)]

    def _each(self, action: Callable[..., Any], parts: list[tuple[int, Keys, Counts]]) -> list[Any]:
        return [work.result() for work in [self._pool.submit(action, *part) for part in parts]]

    def _timed(self, action: Callable[[], object]) -> float:
        began = time.monotonic()
        action()
        return time.monotonic() - began

    def _manifest(self, checkpoint_id: int, uploaded: FleetUpload, now: datetime.datetime) -> Root:
        state = OperatorParts(
            parallelism=self._size.subtasks,
            key_types=["bigint"],
            states=[StateMeta(name="value", kind="value", type="binary")],
            subtasks=range_entries(uploaded, UID),
            backend=uploaded.backend,
        )
        return Root(
            lineage=self._writer.lineage,
            checkpoint_id=checkpoint_id,
            epoch=self._epoch,
            fence=self._writer.fence,
            run=0,
            created_at=now,
            job_name="snapshots",
            moorage_version="benchmark",
            max_parallelism=MAX_PARALLELISM,
            operators={UID: state},
            source={},
            parts=list(uploaded.parts),
            base_id=self._base_id,
        )


def _compacting(properties: dict[str, int]) -> bool:
    names = ("num-running-compactions", "num-running-flushes", "estimate-pending-compaction-bytes")
    return any(properties.get(name, 0) for name in names)
