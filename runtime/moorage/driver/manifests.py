"""From a boundary and the handles of all ranges to the manifest of a checkpoint or savepoint.

Decides what is recorded beside the state. Called by the checkpointer when all ranges are uploaded.
"""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyspark
from msgspec.structs import replace

from moorage import __version__
from moorage.api.graph import JobGraph
from moorage.api.sinks import Committable
from moorage.driver.operator_states import operator_metas
from moorage.driver.restore import STATELESS, UID_MAPPING, VALUE_TIMES
from moorage.driver.settings import JobSettings
from moorage.driver.versions import SPARK_VERSION
from moorage.engine.event_time import Watermarks
from moorage_state.keyed.store import StateSchema
from moorage_state.operator_state import OperatorStateSchema
from moorage_state.snapshots import LogWriter, Manifest, OperatorState, RangeHandle, StateMeta

__all__ = ["Boundary", "ManifestMaker", "handles_of", "state_metas"]


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
