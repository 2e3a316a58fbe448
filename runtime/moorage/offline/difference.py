"""`snapshots diff`: what differs between two checkpoints or savepoints, by their manifests.

Decides what counts as the same: an operator is its uid, a state its name, a file its digest. Pure.
What differs in the state itself is another matter, see `state_difference`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moorage.offline.description import moment_of
from moorage.offline.listing import format_of
from moorage.state.snapshot_path import Found
from moorage_state.snapshots import Manifest, OperatorState, OperatorStateMeta, StateMeta


@dataclass(frozen=True, slots=True)
class ChangedFact:
    """One fact that differs; `before` or `after` is None where there is none."""

    what: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class FileShare:
    """How many files of state, and bytes of them, are in both or only in one; by their digests."""

    both: int
    both_bytes: int
    only_before: int
    only_before_bytes: int
    only_after: int
    only_after_bytes: int


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs. `same_lineage` says whether one can descend from the other."""

    before: str
    after: str
    same_lineage: bool
    changes: Sequence[ChangedFact]
    files: FileShare


@dataclass(frozen=True, slots=True)
class StateDifference:
    """How many keys are only in one of two snapshots, in both with other content, or equal."""

    uid: str
    state: str
    added: int
    removed: int
    changed: int
    same: int


def diff(before: Found, after: Found) -> Difference:
    """Compare two snapshots, in the order that they are given."""
    one, other = before.snapshot.manifest, after.snapshot.manifest
    return Difference(
        before=before.snapshot.path,
        after=after.snapshot.path,
        same_lineage=one.lineage == other.lineage,
        changes=list(_changes(one, other)),
        files=_shared(one, other),
    )


def _changes(one: Manifest, other: Manifest) -> Iterator[ChangedFact]:
    pairs = zip(_facts(one), _facts(other), strict=True)
    for (what, before), (_, after) in pairs:
        if before != after:
            yield ChangedFact(what, before, after)
    for uid in sorted({*one.operators, *other.operators}):
        yield from _operator(uid, one.operators.get(uid), other.operators.get(uid))
    yield from _mapping("watermark", _times(one), _times(other))
    yield from _mapping("source", _flat(one.source), _flat(other.source))
    yield from _mapping("staged output", _counts(one), _counts(other))


def _facts(manifest: Manifest) -> list[tuple[str, Any]]:
    return [
        ("kind", manifest.kind),
        ("job", manifest.job_name),
        ("lineage", manifest.lineage),
        ("checkpoint", manifest.checkpoint_id),
        ("epoch", manifest.epoch),
        ("run", f"f{manifest.fence}r{manifest.run}"),
        ("created at", manifest.created_at),
        ("moorage version", manifest.moorage_version),
        ("max parallelism", manifest.max_parallelism),
        ("key hash", manifest.key_hash),
        ("format", format_of(manifest)),
        ("bytes", manifest.bytes_total),
        ("files", len(manifest.files)),
    ]


def _operator(
    uid: str, one: OperatorState | None, other: OperatorState | None
) -> Iterator[ChangedFact]:
    where = f"operator {uid}"
    if one is None or other is None:
        yield ChangedFact(where, _summary(one), _summary(other))
        return
    if one.parallelism != other.parallelism:
        yield ChangedFact(f"{where} parallelism", one.parallelism, other.parallelism)
    if one.key_types != other.key_types:
        yield ChangedFact(f"{where} key types", one.key_types, other.key_types)
    yield from _mapping(f"{where} state", _states(one), _states(other))
    sizes = [sum(handle.bytes_total for handle in op.subtasks) for op in (one, other)]
    if sizes[0] != sizes[1]:
        yield ChangedFact(f"{where} bytes", *sizes)


def _mapping(what: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[ChangedFact]:
    for name in sorted({*one, *other}):
        if one.get(name) != other.get(name) or (name in one) != (name in other):
            yield ChangedFact(f"{what} {name}", one.get(name), other.get(name))


def _summary(operator: OperatorState | None) -> str | None:
    if operator is None:
        return None
    names = ", ".join(_states(operator))
    return f"parallelism {operator.parallelism}, states: {names or 'none'}"


def _states(operator: OperatorState) -> dict[str, str]:
    sides = {s.label: f"{s.mode} {_type(s)}" for s in operator.operator_states}
    return {state.name: type_text(state) for state in operator.states} | sides


def type_text(state: StateMeta) -> str:
    """`value bigint`, `list string`, `map date -> double`, `value int by bigint, ttl 60000 ms`."""
    spaces = f" by {', '.join(state.namespace_types)}" if state.namespace_types else ""
    lives = f", ttl {state.ttl_ms} ms" if state.ttl_ms else ""
    return f"{state.kind} {_type(state)}{spaces}{lives}"


def _type(state: StateMeta | OperatorStateMeta) -> str:
    return state.type if state.key_type is None else f"{state.key_type} -> {state.type}"


def _times(manifest: Manifest) -> dict[str, Any]:
    return {uid: moment_of(at) for uid, at in manifest.watermarks.items()}


def _counts(manifest: Manifest) -> dict[str, int]:
    return {uid: len(items) for uid, items in manifest.sinks.items()}


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    """The leaves of plain data by their paths."""
    if isinstance(value, Mapping):
        parts = [(str(name), inner) for name, inner in value.items()]
    elif isinstance(value, list):
        parts = [(str(number), inner) for number, inner in enumerate(value)]
    else:
        return {path: value}
    found: dict[str, Any] = {}
    for name, inner in parts:
        found |= _flat(inner, f"{path}.{name}" if path else name)
    return found


def _shared(one: Manifest, other: Manifest) -> FileShare:
    sides = [Counter((f.sha256, f.size) for f in manifest.files) for manifest in (one, other)]
    both, first, last = sides[0] & sides[1], sides[0] - sides[1], sides[1] - sides[0]
    counts: list[int] = []
    for side in (both, first, last):
        counts += [side.total(), sum(size * count for (_, size), count in side.items())]
    return FileShare(*counts)
