"""`state ls`, `get` and `count`: what states there are, one key of one, and how many.

`list_states` reads the manifest alone; the rest fetches the files of the ranges it needs, one range
at a time.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from moorage.offline.value_text import json_value, parse_key, parse_value
from moorage.state.snapshot_path import Found, unless_retired
from moorage_state.errors import UserError
from moorage_state.snapshots import OperatorState
from moorage_state.types import parse_type

_TIMERS = "_timers"


@dataclass(frozen=True, slots=True)
class StateRow:
    """One state of one operator.

    Attributes:
        kind: `value`, `list`, `map`, `reducing`, `aggregating`, or `timers`.
        bytes: of its files; None where files hold several states (native snapshots).
        operator_bytes: of all files of the operator.
    """

    uid: str
    state: str
    kind: str
    type: str
    map_key_type: str | None
    key_types: Sequence[str]
    format: str
    bytes: int | None
    operator_bytes: int


@dataclass(frozen=True, slots=True)
class KeyState:
    """What one key has in one state.

    Attributes:
        found: whether it has anything.
        value: the value, or what a reducing or aggregating state made of values; the elements of a
            list in order; the entries of a map, in the order of their keys, as
            `{"key": .., "value": ..}`; the times of timers in milliseconds. Of a state with
            namespaces all of that by namespace, as `{"namespace": [..], "value": ..}`.
    """

    uid: str
    state: str
    kind: str
    key: Sequence[Any]
    key_group: int
    found: bool
    value: Any
    by_namespace: bool = False


@dataclass(frozen=True, slots=True)
class GroupCount:
    """How much one key group holds of a state."""

    key_group: int
    keys: int
    rows: int


@dataclass(frozen=True, slots=True)
class StateCount:
    """How many keys and rows (values, elements, entries, timers) a state has; groups if asked."""

    uid: str
    state: str
    keys: int
    rows: int
    groups: Sequence[GroupCount] | None = None


def list_states(found: Found) -> list[StateRow]:
    """The states of all operators, by uid, in declared order."""
    operators = sorted(found.snapshot.manifest.operators.items())
    return [row for uid, operator in operators for row in _rows(uid, operator)]


def split_name(found: Found, text: str) -> tuple[str, str | None]:
    """The uid and the state that `UID/STATE` or `UID` names; refuses what there is not."""
    uid, slash, state = text.partition("/")
    operator = found.snapshot.operator(uid)
    if not slash:
        return uid, None
    names = [row.state for row in _rows(uid, operator)]
    if state not in names:
        raise UserError(
            f"no such state: path={found.snapshot.path} uid={uid} state={state!r}; there are: "
            f"{', '.join(f'{uid}/{name}' for name in names)}"
        )
    return uid, state


def get(found: Found, name: str, key: str, map_key: str | None = None) -> KeyState:
    """What a state has for one key; only the key's range is fetched.

    Args:
        name: `UID/STATE`.
        key: as a person types it, see `parse_key`.
        map_key: only this entry of a map.

    Raises:
        UserError: no such state; the key is not of its type; it is no map; or the checkpoint was
            retired meanwhile.
    """
    # Here, and not above: listing states needs neither RocksDB nor Arrow.
    from moorage.state.reader import select, selected_rows

    uid, state = whole_name(found, name)
    if state.startswith("_") and state != _TIMERS:
        raise UserError(
            f"operator state belongs to subtasks and to no key: state={name}; export it instead"
        )
    types = found.snapshot.operator(uid).key_types
    parsed_key = parse_key(types, key)
    selection = select(found.snapshot, uid, state, [parsed_key])
    meta = selection.meta
    if map_key is not None and meta.key_type is None:
        raise UserError(f"state is no map: state={name} kind={meta.kind}; leave --map-key out")
    wanted = None if map_key is None else parse_value(meta.key_type or "", map_key, "map key")
    with unless_retired(found.store, found.checkpoint):
        rows = [
            row
            for handle in selection.handles
            for batch in selected_rows(selection, handle)
            for row in batch.to_pylist()
            if map_key is None or row["map_key"] == wanted
        ]
    kinds = [parse_type(ddl) for ddl in types]
    shown = [json_value(kind, part) for kind, part in zip(kinds, parsed_key, strict=True)]
    group = selection.ranges[0][0]
    value, by_namespace = _value(meta, rows), bool(meta.namespace_types)
    return KeyState(uid, state, meta.kind, shown, group, bool(rows), value, by_namespace)


def count(
    found: Found,
    name: str,
    *,
    by_group: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> list[StateCount]:
    """Count exactly, by reading all of it.

    Args:
        name: `UID/STATE`, or `UID` for all of its states.
        progress: called with how many more ranges were read, and how many there are.
    """
    uid, state = split_name(found, name)
    operator = found.snapshot.operator(uid)
    names = [state] if state else [row.state for row in _rows(uid, operator)]
    tallies = {one: _Tally() for one in names}
    for handle in operator.subtasks:
        with unless_retired(found.store, found.checkpoint):
            _count_range(found, handle, tallies)
        progress(1, len(operator.subtasks))
    return [tallies[one].result(uid, one, by_group=by_group) for one in names]


def _count_range(found: Found, handle: Any, tallies: dict[str, "_Tally"]) -> None:
    from moorage.state.reader import range_rows
    from moorage_state.canonical import RowReader

    for meta, batch in range_rows(found.snapshot, handle, set(tallies)):
        tallies[meta.state].add(RowReader(meta).prefixes(batch))


class _Tally:
    """Counts rows, and keys of which the rows come together."""

    def __init__(self) -> None:
        self._last = b""
        self._groups: dict[int, list[int]] = {}

    def add(self, prefixes: Sequence[bytes]) -> None:
        for prefix in prefixes:
            tally = self._groups.setdefault(int.from_bytes(prefix[:2], "big"), [0, 0])
            tally[0] += prefix != self._last
            tally[1] += 1
            self._last = prefix

    def result(self, uid: str, state: str, *, by_group: bool) -> StateCount:
        groups = [GroupCount(group, *tally) for group, tally in sorted(self._groups.items())]
        keys, rows = sum(one.keys for one in groups), sum(one.rows for one in groups)
        return StateCount(uid, state, keys, rows, groups if by_group else None)


def _rows(uid: str, operator: OperatorState) -> Iterator[StateRow]:
    handles = operator.subtasks
    formats = {handle.format for handle in handles}
    total = sum(handle.bytes_total for handle in handles)

    def size(state: str) -> int | None:
        files = [file for handle in handles for file in handle.files]
        if formats != {"canonical"}:
            return None
        return sum(file.size for file in files if file.name == f"{state}.parquet")

    shown = "".join(formats) if len(formats) == 1 else "mixed"
    declared = [(s.name, str(s.kind), s.type, s.key_type) for s in operator.states]
    declared += [(s.label, s.mode, s.type, s.key_type) for s in operator.operator_states]
    for name, kind, ddl, key_type in [*declared, (_TIMERS, "timers", "bigint", None)]:
        yield StateRow(uid, name, kind, ddl, key_type, operator.key_types, shown, size(name), total)


def whole_name(found: Found, name: str) -> tuple[str, str]:
    """Like `split_name`, of a name that must have a state."""
    uid, state = split_name(found, name)
    if state is None:
        names = ", ".join(f"{uid}/{row.state}" for row in _rows(uid, found.snapshot.operator(uid)))
        raise UserError(f"name one state of the operator: given={name}; there are: {names}")
    return uid, state


def _value(meta: Any, rows: list[dict[str, Any]]) -> Any:
    from moorage_state.canonical import namespace_columns

    if not (names := namespace_columns(meta)):
        return _plain_value(meta, rows)
    kinds = [parse_type(ddl) for ddl in meta.namespace_types]
    return [
        {
            "namespace": [json_value(k, part) for k, part in zip(kinds, namespace, strict=True)],
            "value": _plain_value(meta, list(mine)),
        }
        for namespace, mine in groupby(rows, key=lambda row: [row[name] for name in names])
    ]


def _plain_value(meta: Any, rows: list[dict[str, Any]]) -> Any:
    if meta.kind == "timers":
        return [row["time"] for row in rows]
    kind = parse_type(meta.type)
    if meta.kind == "list":
        return [json_value(kind, row["value"]) for row in rows]
    if meta.kind == "map":
        key = parse_type(meta.key_type)
        return [
            {"key": json_value(key, row["map_key"]), "value": json_value(kind, row["value"])}
            for row in rows
        ]
    return json_value(kind, rows[0]["value"]) if rows else None
