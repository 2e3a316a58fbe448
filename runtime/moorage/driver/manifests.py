"""Manifests of a run: what they record, how they come to the store, and what a run takes from one.

Decides what is written in which order, so that a checkpoint or savepoint exists only when all of
it is there. Called by the checkpointer, in threads beside the epochs, and by a run that begins.
"""

import dataclasses
import datetime
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyspark
from msgspec.json import decode, encode
from msgspec.structs import replace

from moorage import __version__
from moorage.api.graph import JobGraph
from moorage.api.sinks import Committable
from moorage.api.windows import go_on_with_windows, stored_windows
from moorage.driver.settings import JobSettings
from moorage.driver.views import (
    CheckpointTimes,
    CheckpointView,
    GraphView,
    SavepointView,
    ServerPart,
)
from moorage.engine.event_time import JobClocks, Watermarks
from moorage.engine.fleet import (
    FleetUpload,
    RangeFleet,
    SavedOperator,
    ServerShare,
    StoredRange,
)
from moorage.engine.operator_states import OperatorStates
from moorage_state.coordinator import CheckpointOptions, SavepointFormat
from moorage_state.errors import Bug
from moorage_state.keyed.schema import StateSchema
from moorage_state.operator_state import OperatorStateSchema
from moorage_state.snapshots import (
    CheckpointStore,
    CutText,
    LogWriter,
    Manifest,
    OperatorParts,
    OperatorState,
    OperatorStateMeta,
    RangeEntry,
    RangeHandle,
    RangeInPart,
    Root,
    Savepoint,
    SavepointConflict,
    SavepointStore,
    SnapshotRoot,
    StateMeta,
    encode_manifest,
    manifest_digest,
    metas_of,
    run_token,
    store_texts,
    with_local,
)
from moorage_state.stores import open_store
from moorage_state.stores.addresses import child

STATELESS = "stateless"
"""In a manifest's extra: it was written by a run that keeps no state."""

UID_MAPPING = "uid_mapping"
"""Where a manifest keeps the mapping that its operators' uids were read with."""

VALUE_TIMES = "value_times"
"""Where a manifest keeps event times by the values of a column; not there where none counts so."""

GRAPH = "graph"
"""In a manifest's extra: what the job is made of, for people; see `GraphView`."""

WINDOWS = "windows"
"""In a manifest's extra: by operator uid, the windows that it has and had; not there for none."""

TIMES = "times"
"""In a manifest's extra: how long its steps took, for people; see `CheckpointTimes`."""

LOG_BASE = "log_base_ms"
"""In a manifest's extra: when the copy was made that its log begins with, in milliseconds since
1970; not there without a changelog."""

SPARK_VERSION = "spark_version"
"""In a manifest's extra: the Spark that wrote it."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """The job between two epochs: all that a checkpoint holds beside the state itself.

    Attributes:
        source_texts: texts of which `source` has only the ends.
    """

    epoch: int
    source: dict[str, Any]
    watermarks: Watermarks
    schemas: Mapping[str, tuple[StateSchema, ...]]
    finished: bool = False
    processing_time: int = 0
    operator_states: Mapping[str, tuple[OperatorStateSchema, ...]] = field(default_factory=dict)
    source_texts: Sequence[CutText] = ()


@dataclass(frozen=True, slots=True)
class ManifestMaker:
    """Makes the manifests of one run.

    Attributes:
        drawn: the job's graph for people; None leaves it out.
    """

    settings: JobSettings
    graph: JobGraph
    writer: LogWriter
    run: int
    drawn: GraphView | None = None

    def make(
        self,
        checkpoint_id: int,
        boundary: Boundary,
        uploaded: FleetUpload,
        committables: Mapping[str, list[Committable]],
        base: SnapshotRoot | None = None,
    ) -> Root:
        """The manifest of a checkpoint.

        Args:
            committables: by sink uid, output that is staged and not yet published.
            base: what the upload built on; None for nothing.
        """
        operators: dict[str, OperatorParts] = {}
        for operator in self.graph.operators:
            schemas = boundary.schemas.get(operator.uid, ())
            operators[operator.uid] = OperatorParts(
                parallelism=self.settings.parallelism,
                key_types=list(operator.key_types),
                states=metas_of(schemas),
                subtasks=range_entries(uploaded, operator.uid),
                operator_states=operator_metas(boundary.operator_states.get(operator.uid, ())),
                backend=uploaded.backend,
            )
        return Root(
            **self._fields(checkpoint_id, boundary, committables),
            operators=operators,
            parts=list(uploaded.parts),
            source_texts=uploaded.source_texts,
            base_id=base.checkpoint_id if base else 0,
            base_listed=base is None or set(base.operators) <= set(operators),
        )

    def make_savepoint(
        self,
        checkpoint_id: int,
        boundary: Boundary,
        uploaded: FleetUpload,
        committables: Mapping[str, list[Committable]],
        name: str,
    ) -> Manifest:
        """The manifest of a savepoint, with all its files and texts; arguments as of `make`."""
        operators: dict[str, OperatorState] = {}
        for operator in self.graph.operators:
            schemas = boundary.schemas.get(operator.uid, ())
            handles = [h for h in uploaded.handles[operator.uid] if isinstance(h, RangeHandle)]
            operators[operator.uid] = OperatorState(
                parallelism=self.settings.parallelism,
                key_types=list(operator.key_types),
                states=_metas_of(schemas, handles),
                subtasks=sorted(handles, key=lambda handle: handle.start),
                operator_states=operator_metas(boundary.operator_states.get(operator.uid, ())),
            )
        fields = self._fields(checkpoint_id, boundary, committables)
        fields["source"] = {**boundary.source, **uploaded.source}
        return Manifest(**fields, kind="savepoint", name=name, operators=operators)

    def _fields(
        self,
        checkpoint_id: int,
        boundary: Boundary,
        committables: Mapping[str, list[Committable]],
    ) -> dict[str, Any]:
        """What both have beside the operators."""
        settings = self.settings
        return {
            "lineage": self.writer.lineage,
            "checkpoint_id": checkpoint_id,
            "epoch": boundary.epoch,
            "fence": self.writer.fence,
            "run": self.run,
            "created_at": datetime.datetime.now(datetime.UTC),
            "job_name": settings.name,
            "moorage_version": __version__,
            "max_parallelism": settings.max_parallelism,
            "key_hash": settings.key_hash,
            "source": boundary.source,
            "watermarks": dict(boundary.watermarks.to_json()),
            "idle_inputs": sorted(boundary.watermarks.idle),
            "processing_time": boundary.processing_time,
            "sinks": {uid: list(items) for uid, items in committables.items()},
            "extra": {
                "finished": boundary.finished,
                STATELESS: settings.in_one_epoch and boundary.epoch > 0,
                UID_MAPPING: dict(settings.restore.uid_mapping),
                SPARK_VERSION: pyspark.__version__,
                # By way of JSON: opaque parts are read back as they were written.
                **({GRAPH: decode(encode(self.drawn))} if self.drawn is not None else {}),
                **({WINDOWS: windows} if (windows := windows_of(self.graph)) else {}),
                **(
                    {VALUE_TIMES: values}
                    if (values := boundary.watermarks.values_to_json())
                    else {}
                ),
            },
        }


def range_entries(uploaded: FleetUpload, uid: str) -> list[RangeEntry]:
    """The ranges of an operator as the root of a checkpoint names them."""
    places = {part.key: place for place, part in enumerate(uploaded.parts)}
    ranges = [one for one in uploaded.handles[uid] if isinstance(one, RangeInPart)]
    return [
        RangeEntry(
            start=one.start, end=one.end, bytes_total=one.bytes_total, part=places[one.part.key]
        )
        for one in sorted(ranges, key=lambda one: one.start)
    ]


def ranges_of(manifest: SnapshotRoot) -> dict[str, Sequence[StoredRange]]:
    """The ranges of a manifest by operator uid: with their files, or the parts that have them."""
    if isinstance(manifest, Root):
        return {uid: manifest.ranges(uid) for uid in manifest.operators}
    return {uid: state.subtasks for uid, state in manifest.operators.items()}


def _metas_of(schemas: tuple[StateSchema, ...], handles: Sequence[RangeHandle]) -> list[StateMeta]:
    """Declared states as they are in these files: canonical ones hold the last type only."""
    metas = metas_of(schemas)
    if any(handle.format == "native" for handle in handles):
        return metas
    return [replace(meta, earlier=[]) for meta in metas]


def operator_metas(schemas: Iterable[OperatorStateSchema]) -> list[OperatorStateMeta]:
    """Operator states as a manifest records them."""
    return [
        OperatorStateMeta(name=s.name, mode=s.mode, type=s.type, key_type=s.key_type or None)
        for s in schemas
    ]


def operator_sides(manifest: SnapshotRoot | None) -> OperatorStates:
    """What a run that begins with this manifest knows of operator state; None begins empty."""
    if manifest is None:
        return OperatorStates()
    schemas = {uid: operator_schemas(state) for uid, state in manifest.operators.items()}
    return OperatorStates(
        {uid: known for uid, known in schemas.items() if known},
        frozenset(manifest.operators),
        manifest.checkpoint_id,
    )


def operator_schemas(state: OperatorState | OperatorParts) -> tuple[OperatorStateSchema, ...]:
    """Operator states of one operator, as the checkpoint recorded them."""
    return tuple(
        OperatorStateSchema(s.name, s.mode, s.type, s.key_type or "") for s in state.operator_states
    )


def windows_of(graph: JobGraph) -> dict[str, list[list[str]]]:
    """By operator uid, what `stored_windows` gives; operators without are left out."""
    found = {one.uid: stored_windows(one.function) for one in graph.operators}
    return {uid: windows for uid, windows in found.items() if windows}


def go_on_with_windows_of(graph: JobGraph, manifest: SnapshotRoot | None) -> None:
    """Have operators end the windows that a manifest's versions of them had."""
    stored = manifest.extra.get(WINDOWS, {}) if manifest is not None else {}
    for operator in graph.operators:
        go_on_with_windows(operator.function, stored.get(operator.uid, ()))


def watermarks_at(clocks: JobClocks, manifest: SnapshotRoot | None) -> Watermarks:
    """The job's watermarks as the manifest has them; none yet without one."""
    if manifest is None:
        return Watermarks.at_first(clocks)
    stored = {uid: t for uid, t in manifest.watermarks.items() if t is not None}
    values = manifest.extra.get(VALUE_TIMES, {})
    return Watermarks.from_json(clocks, stored, manifest.idle_inputs, manifest.operators, values)


def known_schemas(manifest: SnapshotRoot) -> dict[str, tuple[StateSchema, ...]]:
    """State schemas by operator uid, as the checkpoint recorded them."""
    return {uid: _state_schemas(state) for uid, state in manifest.operators.items()}


def _state_schemas(state: OperatorState | OperatorParts) -> tuple[StateSchema, ...]:
    # Canonical files hold values of the last type only.
    native = state.is_native
    return tuple(
        StateSchema(
            s.name,
            s.kind,
            s.type,
            s.key_type or "",
            tuple(s.earlier) if native else (),
            s.ttl_ms,
            tuple(s.namespace_types),
            s.indexed_ms,
            s.cleanup_in_full_snapshot,
        )
        for s in state.states
    )


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """A checkpoint or savepoint that was completed."""

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
    upload_seconds: float = 0.0
    shares: Sequence[ServerShare] = ()


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
    base: SnapshotRoot | None
    """What its upload builds on; None: it uploads everything."""
    attempt: str = ""
    """Of a savepoint: the id of the request for it."""
    staged: list[Staged] = field(default_factory=list)
    """Output that was not published at its trigger: a newer one may be the first to publish it."""
    log_base_ms: int | None = None
    """As `LOG_BASE`."""
    uploaded: FleetUpload | None = None
    """Set last of all by the thread that uploads."""
    acknowledged: bool = False
    aborted: bool = False
    upload_seconds: float = 0.0
    committables: dict[str, list[Committable]] = field(default_factory=dict)
    manifest: SnapshotRoot | None = None
    """From when it exists."""
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
    """Writes the checkpoints and savepoints of one run."""

    def __init__(
        self,
        graph: JobGraph,
        store: CheckpointStore,
        writer: LogWriter,
        fleet: RangeFleet,
        manifests: ManifestMaker,
        clock: Callable[[], float],
        saving: Callable[[int, int, int], None],
    ) -> None:
        self._graph = graph
        self._store = store
        self._writer = writer
        self._fleet = fleet
        self._manifests = manifests
        self._clock = clock
        self._saving = saving

    def upload(self, work: Work) -> FleetUpload:
        """Bring all ranges to the store."""
        began = self._clock()
        uploaded = self._upload(work)
        work.upload_seconds = self._clock() - began
        work.uploaded = uploaded
        return uploaded

    def _upload(self, work: Work) -> FleetUpload:
        # First of all: of files that somebody else may delete.
        boundary = work.boundary
        if not work.is_savepoint:
            objects, upload = self._store.objects, uuid.uuid4().hex
            texts = store_texts(objects, boundary.source_texts, work.base, upload)
            base = ranges_of(work.base) if work.base else {}
            uploaded = self._fleet.upload(work.checkpoint_id, base)
            return dataclasses.replace(
                uploaded,
                source_texts=texts.texts,
                objects=uploaded.objects + texts.objects,
                bytes_written=uploaded.bytes_written + texts.bytes,
            )
        source = with_local(boundary.source, boundary.source_texts)
        savepoint = SavepointStore(work.location, create=True)
        folder = "" if savepoint.begin(work.attempt) else self._folder(work)
        operators = {
            operator.uid: SavedOperator(
                list(operator.key_types),
                metas_of(work.boundary.schemas.get(operator.uid, ())),
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
            told=partial(self._saving, work.checkpoint_id),
        )
        saved = dataclasses.replace(saved, source=source)
        return _below(saved, folder) if folder else saved

    def _folder(self, work: Work) -> str:
        """Where no other run puts files: one that began this savepoint may be asleep."""
        return f"{run_token(self._writer.fence, self._manifests.run)}-{work.checkpoint_id}"

    def finalize(self, work: Work) -> str:
        """Write the manifest and the log's entry, with which it exists; returns its address."""
        if work.uploaded is None:
            raise Bug(f"finalized before it was uploaded: checkpoint={work.checkpoint_id}")
        now, digest = datetime.datetime.now(datetime.UTC), ""
        given = work.checkpoint_id, work.boundary, work.uploaded, work.committables
        manifest: SnapshotRoot
        if work.is_savepoint:
            whole = self._manifests.make_savepoint(*given, work.name)
            address, digest, manifest = self._write_savepoint(work, whole, now)
        else:
            manifest = self._manifests.make(*given, work.base)
            more = {TIMES: _times(work, work.uploaded)}
            if work.log_base_ms is not None:
                more[LOG_BASE] = work.log_base_ms
            manifest = replace(manifest, extra={**manifest.extra, **more})
            address = self._store.complete(self._writer, manifest, now).manifest_key
        work.manifest = manifest
        work.report = CheckpointReport(
            checkpoint_id=manifest.checkpoint_id,
            epoch=manifest.epoch,
            bytes_total=manifest.bytes_total,
            bytes_uploaded=work.uploaded.bytes_written + work.uploaded.bytes_inline,
            objects_written=work.uploaded.objects,
            pause_seconds=work.pause_seconds,
            seconds=self._clock() - work.started,
            completed_at=now,
            digest=digest,
            max_parallelism=manifest.max_parallelism,
            upload_seconds=work.upload_seconds,
            shares=work.uploaded.shares,
        )
        return address

    def _write_savepoint(
        self, work: Work, manifest: Manifest, now: datetime.datetime
    ) -> tuple[str, str, Manifest]:
        """Announce it in the log, which only the fence's holder can, and then let it exist.

        Returns its address, its digest, and the manifest that lies there.
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
            # A driver before may have announced its own for this request, and woken up since.
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
        bytes_total=manifest.bytes_total,
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
            if isinstance(h, RangeHandle)
        ]
        for uid, some in saved.handles.items()
    }
    return dataclasses.replace(saved, handles=handles)


def _times(work: Work, uploaded: FleetUpload) -> Any:
    """What `TIMES` has of a checkpoint that is uploaded."""
    servers = [
        ServerPart(one.place, round(one.seconds, 3), one.objects, one.bytes_written)
        for one in uploaded.shares
    ]
    times = CheckpointTimes(
        round(work.pause_seconds, 3), round(work.upload_seconds, 3), tuple(servers)
    )
    # By way of JSON, as the graph.
    return decode(encode(times))
