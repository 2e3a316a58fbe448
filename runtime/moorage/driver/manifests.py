"""What a manifest records of a job beside its state, and what a run takes over from one.

Called by the checkpointer when all ranges are uploaded, and by the run when it begins.
"""

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyspark
from msgspec.structs import replace

from moorage import __version__
from moorage.api.graph import JobGraph
from moorage.api.sinks import Committable
from moorage.driver.settings import JobSettings
from moorage.engine.event_time import JobClocks, Watermarks
from moorage.engine.operator_states import OperatorStates
from moorage_state.keyed.schema import StateSchema
from moorage_state.operator_state import OperatorStateSchema
from moorage_state.snapshots import (
    LogWriter,
    Manifest,
    OperatorState,
    OperatorStateMeta,
    RangeHandle,
    StateMeta,
)

__all__ = [
    "SPARK_VERSION",
    "STATELESS",
    "UID_MAPPING",
    "VALUE_TIMES",
    "Boundary",
    "ManifestMaker",
    "handles_of",
    "known_schemas",
    "operator_metas",
    "operator_schemas",
    "operator_sides",
    "state_metas",
    "watermarks_at",
]

STATELESS = "stateless"
"""In a manifest's extra: it was written by a run that keeps no state."""

UID_MAPPING = "uid_mapping"
"""Where a manifest keeps the mapping that its operators' uids were read with."""

VALUE_TIMES = "value_times"
"""Where a manifest keeps event times by the values of a column; not there where none counts so."""

SPARK_VERSION = "spark_version"
"""In a manifest's extra: the Spark that wrote it."""


@dataclass(frozen=True, slots=True)
class Boundary:
    """The job between two epochs: all that a checkpoint holds beside the state itself."""

    epoch: int
    source: dict[str, Any]
    watermarks: Watermarks
    schemas: Mapping[str, tuple[StateSchema, ...]]
    finished: bool = False
    processing_time: int = 0
    operator_states: Mapping[str, tuple[OperatorStateSchema, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ManifestMaker:
    """Makes the manifests of one run."""

    settings: JobSettings
    graph: JobGraph
    writer: LogWriter
    run: int

    def make(
        self,
        checkpoint_id: int,
        boundary: Boundary,
        handles: Mapping[str, list[RangeHandle]],
        committables: Mapping[str, list[Committable]],
        savepoint: str = "",
    ) -> Manifest:
        """The manifest.

        Args:
            handles: by operator uid, those of all its subtasks.
            committables: by sink uid, output that is staged and not yet published.
            savepoint: the name of a savepoint; empty for a checkpoint.
        """
        settings = self.settings
        return Manifest(
            kind="savepoint" if savepoint else "checkpoint",
            name=savepoint,
            lineage=self.writer.lineage,
            checkpoint_id=checkpoint_id,
            epoch=boundary.epoch,
            fence=self.writer.fence,
            run=self.run,
            created_at=datetime.datetime.now(datetime.UTC),
            job_name=settings.name,
            moorage_version=__version__,
            max_parallelism=settings.max_parallelism,
            key_hash=settings.key_hash,
            operators={
                operator.uid: OperatorState(
                    parallelism=settings.parallelism,
                    key_types=list(operator.key_types),
                    states=_metas_of(boundary.schemas.get(operator.uid, ()), handles[operator.uid]),
                    subtasks=sorted(handles[operator.uid], key=lambda handle: handle.start),
                    operator_states=operator_metas(boundary.operator_states.get(operator.uid, ())),
                )
                for operator in self.graph.operators
            },
            source=boundary.source,
            watermarks=dict(boundary.watermarks.to_json()),
            idle_inputs=sorted(boundary.watermarks.idle),
            processing_time=boundary.processing_time,
            sinks={uid: list(items) for uid, items in committables.items()},
            extra={
                "finished": boundary.finished,
                STATELESS: settings.in_one_epoch and boundary.epoch > 0,
                UID_MAPPING: dict(settings.restore.uid_mapping),
                SPARK_VERSION: pyspark.__version__,
                **(
                    {VALUE_TIMES: values}
                    if (values := boundary.watermarks.values_to_json())
                    else {}
                ),
            },
        )


def handles_of(manifest: Manifest) -> dict[str, list[RangeHandle]]:
    """The handles of a manifest by operator uid."""
    return {uid: list(state.subtasks) for uid, state in manifest.operators.items()}


def _metas_of(schemas: tuple[StateSchema, ...], handles: Sequence[RangeHandle]) -> list[StateMeta]:
    """Declared states as they are in these files: canonical ones hold the last type only."""
    metas = state_metas(schemas)
    if any(handle.format == "native" for handle in handles):
        return metas
    return [replace(meta, earlier=[]) for meta in metas]


def state_metas(schemas: tuple[StateSchema, ...]) -> list[StateMeta]:
    """Declared states as a manifest records them."""
    return [
        StateMeta(
            name=s.name,
            kind=s.kind,
            type=s.type,
            key_type=s.key_type or None,
            earlier=list(s.earlier),
            ttl_ms=s.ttl_ms,
            namespace_types=list(s.namespace_types),
            indexed_ms=s.indexed_ms,
            cleanup_in_full_snapshot=s.cleanup_in_full_snapshot,
        )
        for s in schemas
    ]


def operator_metas(schemas: Iterable[OperatorStateSchema]) -> list[OperatorStateMeta]:
    """Operator states as a manifest records them."""
    return [
        OperatorStateMeta(name=s.name, mode=s.mode, type=s.type, key_type=s.key_type or None)
        for s in schemas
    ]


def operator_sides(manifest: Manifest | None) -> OperatorStates:
    """What a run that begins with this manifest knows of operator state; None begins empty."""
    if manifest is None:
        return OperatorStates()
    schemas = {uid: operator_schemas(state) for uid, state in manifest.operators.items()}
    return OperatorStates(
        {uid: known for uid, known in schemas.items() if known},
        frozenset(manifest.operators),
        manifest.checkpoint_id,
    )


def operator_schemas(state: OperatorState) -> tuple[OperatorStateSchema, ...]:
    """Operator states of one operator, as the checkpoint recorded them."""
    return tuple(
        OperatorStateSchema(s.name, s.mode, s.type, s.key_type or "") for s in state.operator_states
    )


def watermarks_at(clocks: JobClocks, manifest: Manifest | None) -> Watermarks:
    """The job's watermarks as the manifest has them; none yet without one."""
    if manifest is None:
        return Watermarks.at_first(clocks)
    stored = {uid: t for uid, t in manifest.watermarks.items() if t is not None}
    values = manifest.extra.get(VALUE_TIMES, {})
    return Watermarks.from_json(clocks, stored, manifest.idle_inputs, manifest.operators, values)


def known_schemas(manifest: Manifest) -> dict[str, tuple[StateSchema, ...]]:
    """State schemas by operator uid, as the checkpoint recorded them."""
    return {uid: _state_schemas(state) for uid, state in manifest.operators.items()}


def _state_schemas(state: OperatorState) -> tuple[StateSchema, ...]:
    # Canonical files hold values of the last type only.
    native = any(handle.format == "native" for handle in state.subtasks)
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
