"""Operator state of a subtask of the engine: kept in its range, written with its epoch's delta.

Decides what of it is read when, and that what did not change is not written. Called by the subtask
in every epoch of a function that has operator state; talks to ranges only through `RangeAccess`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Protocol

from moorage_state.keyed.access import RangeAccess
from moorage_state.keylayout import prefix_end
from moorage_state.operator_state.layout import element_key, state_prefix
from moorage_state.operator_state.schemas import OperatorStateSchema
from moorage_state.operator_state.states import BroadcastState, OperatorListState
from moorage_state.operator_state.store import OperatorStateStore

_SCAN_ENTRIES = 10_000
_SCAN_BYTES = 16 << 20
_PAGE = 512


class Writer(Protocol):
    """Takes the writes of an epoch; the keyed state store is one."""

    def write(self, key: bytes, value: bytes | None) -> None:
        """Add a put, or a delete where `value` is None."""
        ...

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Add the deletion of [start, end), which comes before the writes of the same frame."""
        ...

    def flush_key(self) -> None:
        """Send what is staged, if it is enough for a frame."""
        ...


ReadUnion = Callable[[str], Mapping[int, list[bytes]]]
"""By the first key group of each subtask, its elements of the union list of a name, as stored."""


def entries_under(access: RangeAccess, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """All entries under a prefix in key order, page by page."""
    scan = access.scan_many([prefix], _SCAN_ENTRIES, _SCAN_BYTES)[0]
    while True:
        yield from zip(scan.keys, scan.values, strict=True)
        if scan.complete:
            return
        after = scan.keys[-1] if scan.keys else b""
        scan = access.scan_from(prefix, after, _PAGE)


class RangeOperatorStates(OperatorStateStore):
    """Operator states of one subtask for one epoch; not reusable.

    Args:
        access: the subtask's own range at the version this epoch reads.
        epoch: part of the position of what is added to lists.
        known: schemas that the restored state or earlier epochs recorded.
        union: what all subtasks have of a union list; None: there is nothing but the own.
        changed: states that other subtasks declare with another type in this epoch: they are
            converted here as well, whether or not anybody asks for them.

    Attributes:
        wrote_union: whether `flush` wrote to a union list, so that others have to read it again.
    """

    def __init__(
        self,
        access: RangeAccess,
        writer: Writer,
        first_group: int,
        epoch: int,
        known: Iterable[OperatorStateSchema] = (),
        union: ReadUnion | None = None,
        changed: Iterable[OperatorStateSchema] = (),
    ) -> None:
        super().__init__(known)
        self._changed = tuple(changed)
        self._access = access
        self._writer = writer
        self._first_group = first_group
        self._epoch = epoch
        self._union = union
        self._own: dict[str, list[bytes]] = {}
        self._stored: dict[str, dict[bytes, bytes]] = {}
        self._ordinal = 0
        self.wrote_union = False

    def flush(self) -> None:
        """Write what changed; called once, when the function is done with the epoch."""
        for schema in self._changed:
            if schema.name not in self._declared:
                self._map(schema) if schema.mode == "broadcast" else self._list(schema)
        for name in sorted(self._lists):
            self._flush_list(self._lists[name])
        for name in sorted(self._maps):
            self._flush_map(self._maps[name])

    def _flush_list(self, state: OperatorListState) -> None:
        name, change = state.schema.name, state.change()
        convert = self._converter(name)
        if convert is not None and not (change is not None and change.cleared):
            own = list(map(convert, self.stored(name)))
            wrote = self.replace(name, own + (change.added if change is not None else []))
        elif change is not None:
            wrote = self.replace(name, change.added, keep=not change.cleared)
        else:
            return
        self.wrote_union |= wrote and state.schema.mode == "union"

    def replace(self, name: str, elements: list[bytes], *, keep: bool = False) -> bool:
        """Write the elements of a list state; behind those that it has if `keep`.

        Returns whether there was anything to write.
        """
        prefix = state_prefix(self._first_group, name)
        known = self._own.get(name)
        # Functions write their whole list anew in each epoch: what lies there already, at the same
        # place, is not written again.
        if known is not None and not keep and elements[: len(known)] == known:
            elements = elements[len(known) :]
            keep = True
        elif not keep:
            self._writer.delete_range(prefix, prefix_end(prefix))
        for raw in elements:
            self._writer.write(element_key(prefix, self._epoch, self._ordinal), raw)
            self._ordinal += 1
            self._writer.flush_key()
        return bool(elements) or not keep

    def stored(self, name: str) -> list[bytes]:
        """The elements of a list state of this subtask as they are stored."""
        if name not in self._own:
            prefix = state_prefix(self._first_group, name)
            self._own[name] = [raw for _, raw in entries_under(self._access, prefix)]
        return self._own[name]

    def _flush_map(self, state: BroadcastState) -> None:
        change, converted = state.change(), self._converter(state.schema.name) is not None
        if change is None and not converted:
            return
        prefix = state_prefix(self._first_group, state.schema.name)
        before = self._stored.get(state.schema.name)
        entries: dict[bytes, bytes | None] = dict(change.entries) if change is not None else {}
        if converted or (change is not None and change.cleared):
            before = self._stored_map(state.schema.name)
            entries = dict.fromkeys(before) | state.encoded()
        for stored, raw in sorted(entries.items()):
            if before is None or before.get(stored) != raw:
                self._writer.write(prefix + stored, raw)

    def _converter(self, name: str) -> Callable[[bytes], bytes] | None:
        written = self._known.get(name)
        return self.converter(written) if written is not None else None

    def _load_list(self, schema: OperatorStateSchema) -> list[bytes]:
        found = self._all(schema) if schema.mode == "union" else list(self.stored(schema.name))
        convert = self._converter(schema.name)
        return found if convert is None else list(map(convert, found))

    def _all(self, schema: OperatorStateSchema) -> list[bytes]:
        """The elements of the lists of all subtasks, as they are stored."""
        if self._union is None:
            return list(self.stored(schema.name))
        lists = self._union(schema.name)
        self._own.setdefault(schema.name, lists[self._first_group])
        return list(chain.from_iterable(lists.values()))

    def _load_map(self, schema: OperatorStateSchema) -> dict[bytes, bytes]:
        found, convert = self._stored_map(schema.name), self._converter(schema.name)
        return found if convert is None else {key: convert(raw) for key, raw in found.items()}

    def _stored_map(self, name: str) -> dict[bytes, bytes]:
        """The entries of a broadcast state of this subtask as they are stored."""
        if name not in self._stored:
            prefix = state_prefix(self._first_group, name)
            found = entries_under(self._access, prefix)
            self._stored[name] = {key[len(prefix) :]: raw for key, raw in found}
        return self._stored[name]
