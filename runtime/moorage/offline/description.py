"""`snapshots show`: what one checkpoint or savepoint holds.

Decides which facts of a manifest a person sees; pure but for looking at the log's entries that came
with it. What is opaque to snapshots (offsets, staged output) is given whole in the JSON form.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from moorage.offline.listing import format_of, standings
from moorage.state.snapshot_path import Found
from moorage_state.errors import UserError
from moorage_state.snapshots import (
    Fence,
    OperatorState,
    RangeHandle,
    StateMeta,
    restore_point,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# As in `moorage.api.functions`, which needs numpy: these tools do without.
_NO_WATERMARK = -(1 << 63)


@dataclass(frozen=True, slots=True)
class RangeSummary:
    """One subtask's range of key groups, both ends included; sizes in bytes."""

    start: int
    end: int
    epoch: int
    bytes: int
    files: int
    shared_files: int
    inline_files: int
    format: str


@dataclass(frozen=True, slots=True)
class OperatorView:
    """One stateful operator."""

    uid: str
    parallelism: int
    key_types: Sequence[str]
    states: Sequence[StateMeta]
    bytes: int
    ranges: Sequence[RangeSummary]


@dataclass(frozen=True, slots=True)
class Description:
    """One checkpoint or savepoint.

    Attributes:
        standing: as in `ls`, or `completed` for a savepoint.
        state_format: of its files: `native`, `canonical`, `mixed`, or empty without state.
        holder: who held the fence under which it was taken; None where the log does not say.
        source: how far the inputs were read, as the engine keeps it.
        watermarks: newest event times by input uid, watermarks by operator uid, or None.
        sinks: by sink uid, output that is staged and not yet published.
        warnings: for people.
    """

    path: str
    kind: str
    name: str
    standing: str
    state_format: str
    job: str
    lineage: str
    checkpoint_id: int
    epoch: int
    created_at: datetime
    completed_at: datetime | None
    moorage_version: str
    fence: int
    run: int
    holder: str | None
    max_parallelism: int
    key_hash: str
    bytes: int
    files: int
    objects: int
    operators: Sequence[OperatorView]
    source: Mapping[str, Any]
    watermarks: Mapping[str, datetime | int | None]
    sinks: Mapping[str, Sequence[Mapping[str, Any]]]
    extra: Mapping[str, Any]


def describe(found: Found) -> Description:
    """The facts of one snapshot."""
    manifest = found.snapshot.manifest
    return Description(
        path=found.snapshot.path,
        kind=manifest.kind,
        name=manifest.name,
        standing=_standing(found),
        state_format=format_of(manifest),
        job=manifest.job_name,
        lineage=manifest.lineage,
        checkpoint_id=manifest.checkpoint_id,
        epoch=manifest.epoch,
        created_at=manifest.created_at,
        completed_at=found.checkpoint.completed_at if found.checkpoint else None,
        moorage_version=manifest.moorage_version,
        fence=manifest.fence,
        run=manifest.run,
        holder=_holder(found),
        max_parallelism=manifest.max_parallelism,
        key_hash=manifest.key_hash,
        bytes=manifest.bytes_total,
        files=len(manifest.files),
        objects=len(manifest.keys),
        operators=[_operator(uid, one) for uid, one in sorted(manifest.operators.items())],
        source=manifest.source,
        watermarks={uid: moment_of(at) for uid, at in sorted(manifest.watermarks.items())},
        sinks=manifest.sinks,
        extra=manifest.extra,
    )


def clocks_of(found: Description) -> list[tuple[str, datetime | int | None]]:
    """Its watermarks by names for people: of an input it is the newest event time that counts."""
    operators = {one.uid for one in found.operators}

    def name(uid: str) -> str:
        if not uid:
            return "lowest watermark"
        return f"watermark of {uid}" if uid in operators else f"newest event time of {uid}"

    return [(name(uid), at) for uid, at in found.watermarks.items()]


def moment_of(milliseconds: int | None) -> datetime | int | None:
    """A watermark as a time, or the number where no calendar has it; None where there is none."""
    if milliseconds is None or milliseconds == _NO_WATERMARK:
        return None
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return milliseconds


def _standing(found: Found) -> str:
    if found.checkpoint is None:
        return "completed"
    try:
        point = restore_point(found.entries)
    except UserError:
        point = None
    newest = point.checkpoint.checkpoint_id if point and point.checkpoint else None
    return standings(found.entries, newest, ())[found.checkpoint.checkpoint_id]


def _holder(found: Found) -> str | None:
    fence = found.snapshot.manifest.fence
    claims = [e.holder for e in found.entries if isinstance(e, Fence) and e.fence == fence]
    return claims[0] if claims else None


def _operator(uid: str, operator: OperatorState) -> OperatorView:
    return OperatorView(
        uid=uid,
        parallelism=operator.parallelism,
        key_types=operator.key_types,
        states=operator.states,
        bytes=sum(handle.bytes_total for handle in operator.subtasks),
        ranges=[_range(handle) for handle in operator.subtasks],
    )


def _range(handle: RangeHandle) -> RangeSummary:
    return RangeSummary(
        start=handle.start,
        end=handle.end,
        epoch=handle.epoch,
        bytes=handle.bytes_total,
        files=len(handle.files),
        shared_files=sum(file.shared for file in handle.files),
        inline_files=sum(file.inline is not None for file in handle.files),
        format=handle.format,
    )
