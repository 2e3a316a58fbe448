"""Bringing a snapshot to the store: uploads, manifests, log entries.

Decides what is written in which order, so that a checkpoint or savepoint exists only when all of
it is there. Called by the checkpointer, in threads beside the epochs.
"""

import dataclasses
import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from moorage.api.graph import JobGraph
from moorage.api.sinks import Committable
from moorage.driver.manifests import Boundary, ManifestMaker, operator_metas, state_metas
from moorage.driver.views import CheckpointView, SavepointView
from moorage.engine.fleet import FleetUpload, RangeFleet, SavedOperator
from moorage_state.coordinator import CheckpointOptions, SavepointFormat
from moorage_state.errors import Bug
from moorage_state.snapshots import (
    CheckpointStore,
    LogWriter,
    Manifest,
    RangeHandle,
    Savepoint,
    SavepointConflict,
    SavepointStore,
    encode_manifest,
    manifest_digest,
    run_token,
)
from moorage_state.stores import open_store
from moorage_state.stores.addresses import child

__all__ = ["CheckpointReport", "SnapshotWriter", "Staged", "Work", "savepoint_view", "view_of"]


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """A checkpoint or savepoint that was completed.

    Attributes:
        digest: of a savepoint's manifest.
        max_parallelism: the number of its key groups.
    """

    checkpoint_id: int
    epoch: int
    bytes_total: int
    bytes_uploaded: int
    objects_written: int
    pause_seconds: float
    seconds: float
    completed_at: datetime.datetime
    digest: str = ""
    max_parallelism: int = 0


@dataclass(frozen=True, slots=True)
class Staged:
    """Output of one sink in one epoch that is not published yet."""

    epoch: int
    uid: str
    items: list[Committable]


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
    attempt: str = ""
    """Of a savepoint: the id of the request for it."""
    staged: list[Staged] = field(default_factory=list)
    """Output that was not published at its trigger: a newer one may be the first to publish it."""
    uploaded: FleetUpload | None = None
    committables: dict[str, list[Committable]] = field(default_factory=dict)
    report: CheckpointReport | None = None
    unpublished: BaseException | None = None
    """Why the output of this checkpoint, which exists, could not be published."""

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
        folder = "" if savepoint.begin(work.attempt) else self._folder(work)
        operators = {
            operator.uid: SavedOperator(
                list(operator.key_types),
                state_metas(work.boundary.schemas.get(operator.uid, ())),
                work.boundary.processing_time,
                operator_metas(work.boundary.operator_states.get(operator.uid, ())),
            )
            for operator in self._graph.operators
        }
        url = child(savepoint.url, folder) if folder else savepoint.url
        open_store(url, create=True)
        saved = self._fleet.save(
            work.checkpoint_id,
            work.boundary.epoch,
            url,
            operators,
            canonical=work.options.format is SavepointFormat.CANONICAL,
        )
        return _below(saved, folder) if folder else saved

    def _folder(self, work: Work) -> str:
        """Where no other run puts files: one that began this savepoint may be asleep."""
        return f"{run_token(self._writer.fence, self._manifests.run)}-{work.checkpoint_id}"

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
        now, digest = datetime.datetime.now(datetime.UTC), ""
        if work.is_savepoint:
            address, digest, manifest = self._write_savepoint(work, manifest, now)
        else:
            address = self._store.complete(self._writer, manifest, now).manifest_key
        work.report = CheckpointReport(
            checkpoint_id=manifest.checkpoint_id,
            epoch=manifest.epoch,
            bytes_total=sum(f.size for f in manifest.files),
            bytes_uploaded=work.uploaded.bytes_written + work.uploaded.bytes_inline,
            objects_written=work.uploaded.objects,
            pause_seconds=work.pause_seconds,
            seconds=self._clock() - work.started,
            completed_at=now,
            digest=digest,
            max_parallelism=manifest.max_parallelism,
        )
        return address

    def _write_savepoint(
        self, work: Work, manifest: Manifest, now: datetime.datetime
    ) -> tuple[str, str, Manifest]:
        """Announce it in the log, which only the fence's holder can, and then let it exist.

        Returns its address, its digest, and the manifest that lies there: a driver before this one
        may have announced its own for the same request, and have woken up in between.
        """
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
        try:
            savepoint.create(manifest)
        except SavepointConflict:
            found = savepoint.completed_by(work.attempt)
            if found is None or found.lineage != manifest.lineage:
                raise
            savepoint.verify(found)
            return savepoint.url, savepoint.digest(), found
        return savepoint.url, digest, manifest


def view_of(report: CheckpointReport) -> CheckpointView:
    """A completed checkpoint as people see it."""
    return CheckpointView(
        checkpoint_id=report.checkpoint_id,
        epoch=report.epoch,
        completed_at=report.completed_at,
        bytes_total=report.bytes_total,
        bytes_uploaded=report.bytes_uploaded,
        duration_seconds=report.seconds,
        objects_written=report.objects_written,
    )


def savepoint_view(name: str, savepoint: SavepointStore, manifest: Manifest) -> SavepointView:
    """A savepoint that is complete already, as people see it."""
    return SavepointView(
        name=name,
        url=savepoint.url,
        checkpoint_id=manifest.checkpoint_id,
        epoch=manifest.epoch,
        bytes_total=sum(f.size for f in manifest.files),
        duration_seconds=0.0,
        manifest_digest=savepoint.digest(),
        max_parallelism=manifest.max_parallelism,
        completed_at=manifest.created_at,
    )


def _below(saved: FleetUpload, folder: str) -> FleetUpload:
    """The upload, with keys that are relative to the directory that the folder is in."""
    handles = {
        uid: [
            replace(h, files=[replace(f, key=f"{folder}/{f.key}") if f.key else f for f in h.files])
            for h in some
        ]
        for uid, some in saved.handles.items()
    }
    return dataclasses.replace(saved, handles=handles)
