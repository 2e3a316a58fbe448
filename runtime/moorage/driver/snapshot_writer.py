"""Bringing a snapshot to the store: uploads, manifests, log entries.

Decides what is written in which order, so that a checkpoint or savepoint exists only when all of
it is there. Called by the checkpointer, in threads beside the epochs.
"""

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from uuid import uuid4

from moorage.driver.manifests import Boundary, ManifestMaker, state_metas
from moorage.engine.fleet import FleetUpload, RangeFleet, SavedOperator
from moorage.graph import JobGraph
from moorage.sinks import Committable
from moorage_state.coordinator import CheckpointOptions, SavepointFormat
from moorage_state.errors import Bug
from moorage_state.snapshots import (
    CheckpointStore,
    LogWriter,
    Manifest,
    RangeHandle,
    Savepoint,
    SavepointStore,
    encode_manifest,
    manifest_digest,
)

__all__ = ["CheckpointReport", "SnapshotWriter", "Work"]


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """A checkpoint that was completed."""

    checkpoint_id: int
    epoch: int
    bytes_total: int
    bytes_uploaded: int
    objects_written: int
    pause_seconds: float
    seconds: float
    completed_at: datetime.datetime


@dataclass(slots=True)
class Work:
    """A checkpoint or savepoint from its trigger to its end."""

    checkpoint_id: int
    options: CheckpointOptions
    boundary: Boundary
    pause_seconds: float
    started: float
    base_id: int
    base: Mapping[str, list[RangeHandle]]
    uploaded: FleetUpload | None = None
    committables: dict[str, list[Committable]] = field(default_factory=dict)
    report: CheckpointReport | None = None

    @property
    def is_savepoint(self) -> bool:
        """Whether its files are a person's."""
        return self.options.checkpoint_type.is_savepoint

    @property
    def location(self) -> str:
        """The directory of a savepoint."""
        return self.options.target_location or ""

    @property
    def name(self) -> str:
        """The name of a savepoint: the last part of its address."""
        return self.location.partition("?")[0].rstrip("/").rpartition("/")[2]


class SnapshotWriter:
    """Writes the checkpoints and savepoints of one run.

    Args:
        clock: seconds on a clock that only goes forward.
    """

    def __init__(
        self,
        graph: JobGraph,
        store: CheckpointStore,
        writer: LogWriter,
        fleet: RangeFleet,
        manifests: ManifestMaker,
        clock: Callable[[], float],
    ) -> None:
        self._graph = graph
        self._store = store
        self._writer = writer
        self._fleet = fleet
        self._manifests = manifests
        self._clock = clock

    def upload(self, work: Work) -> FleetUpload:
        """Bring all ranges to the store."""
        if not work.is_savepoint:
            return self._fleet.upload(work.checkpoint_id, work.base)
        savepoint = SavepointStore(work.location, create=True)
        savepoint.begin(uuid4().hex)
        operators = {
            operator.uid: SavedOperator(
                list(operator.key_types), state_metas(work.boundary.schemas.get(operator.uid, ()))
            )
            for operator in self._graph.operators
        }
        return self._fleet.save(
            work.checkpoint_id,
            work.boundary.epoch,
            savepoint.url,
            operators,
            canonical=work.options.format is SavepointFormat.CANONICAL,
        )

    def finalize(self, work: Work) -> str:
        """Write the manifest and the log's entry, with which it exists; returns its address."""
        if work.uploaded is None:
            raise Bug(f"finalized before it was uploaded: checkpoint={work.checkpoint_id}")
        manifest = self._manifests.make(
            work.checkpoint_id,
            work.boundary,
            work.uploaded.handles,
            work.committables,
            work.name if work.is_savepoint else "",
        )
        now = datetime.datetime.now(datetime.UTC)
        if work.is_savepoint:
            address = self._write_savepoint(work, manifest, now)
        else:
            address = self._store.complete(self._writer, manifest, now).manifest_key
        work.report = CheckpointReport(
            checkpoint_id=work.checkpoint_id,
            epoch=work.boundary.epoch,
            bytes_total=sum(f.size for f in manifest.files),
            bytes_uploaded=work.uploaded.bytes_written + work.uploaded.bytes_inline,
            objects_written=work.uploaded.objects,
            pause_seconds=work.pause_seconds,
            seconds=self._clock() - work.started,
            completed_at=now,
        )
        return address

    def _write_savepoint(self, work: Work, manifest: Manifest, now: datetime.datetime) -> str:
        """Announce it in the log, which only the fence's holder can, and then let it exist."""
        savepoint = SavepointStore(work.location)
        digest = manifest_digest(encode_manifest(manifest))
        self._writer.append(
            Savepoint(
                manifest.fence,
                manifest.run,
                manifest.checkpoint_id,
                savepoint.url,
                digest,
                manifest.epoch,
                now,
            )
        )
        savepoint.create(manifest)
        return savepoint.url
