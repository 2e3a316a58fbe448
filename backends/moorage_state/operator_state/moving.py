"""Operator state of other ranges made into that of these: what the first epoch has to write.

Decides, for a snapshot that was taken with other ranges, which entries each subtask gets. It is
read at the restored version and written as one delta for each range, so that a crash leaves
either all of it or nothing, and doing it again gives the same. Called by the driver before the
first epoch. Knows no servers.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from moorage_state.deltas import encode_frame
from moorage_state.errors import Bug
from moorage_state.keyed.access import RangeAccess
from moorage_state.keygroups import KeyGroupRange
from moorage_state.operator_state.layout import element_key, operator_section, state_prefix
from moorage_state.operator_state.ranges import entries_under
from moorage_state.operator_state.redistribution import Stretch, broadcast, even_split
from moorage_state.operator_state.schemas import OperatorStateSchema

_FRAME_ENTRIES = 20_000
_FRAME_BYTES = 8 << 20


@dataclass(slots=True)
class _Frame:
    """Writes until they are enough for a frame."""

    ranges: list[tuple[bytes, bytes]] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    size: int = 0

    def add(self, key: bytes, value: bytes) -> bool:
        """Add a put; whether it is time to take the frame."""
        self.keys.append(key)
        self.values.append(value)
        self.size += len(key) + len(value)
        return len(self.keys) >= _FRAME_ENTRIES or self.size >= _FRAME_BYTES


class Mover:
    """Redistributes the operator state of one operator, as deltas of `epoch`.

    From subtasks that began at the key groups `before` to those of the ranges `after`, both in
    order; `read` reaches the range of a new one, at the restored version.
    """

    def __init__(
        self,
        schemas: Sequence[OperatorStateSchema],
        before: Sequence[int],
        after: Sequence[KeyGroupRange],
        read: Callable[[int], RangeAccess],
        epoch: int,
    ) -> None:
        self._schemas = schemas
        self._before = before
        self._after = after
        self._read = read
        self._epoch = epoch
        self._shares = {s.name: self._split(s) for s in schemas if s.mode in {"split", "raw"}}

    def frames(self, subtask: int) -> Iterator[bytes]:
        """The frames of the delta of a new subtask; they hold a bounded part of it each."""
        inside = [first for first in self._before if first in self._after[subtask]]
        frame = _Frame(ranges=[operator_section(first) for first in inside])
        for key, value in self._entries(subtask):
            if frame.add(key, value):
                yield encode_frame(frame.ranges, frame.keys, frame.values)
                frame = _Frame()
        if frame.ranges or frame.keys:
            yield encode_frame(frame.ranges, frame.keys, frame.values)

    def _entries(self, subtask: int) -> Iterator[tuple[bytes, bytes]]:
        """What the subtask has from now on."""
        for schema in self._schemas:
            prefix = state_prefix(self._after[subtask].start, schema.name)
            if schema.mode == "broadcast":
                source = broadcast(len(self._before), len(self._after))[subtask]
                if source is not None:
                    old = self._prefix(source, schema)
                    for key, value in self._stored(source, schema):
                        yield prefix + key[len(old) :], value
            elif schema.mode != "raw_keyed":
                elements = self._elements(subtask, schema)
                for ordinal, value in enumerate(elements):
                    yield element_key(prefix, self._epoch, ordinal), value

    def _elements(self, subtask: int, schema: OperatorStateSchema) -> Iterator[bytes]:
        for run in self._runs(subtask, schema):
            stored = self._stored(run.source, schema)
            for _, value in islice(stored, run.first, run.last):
                yield value

    def _runs(self, subtask: int, schema: OperatorStateSchema) -> list[Stretch]:
        if schema.mode != "union":
            return self._shares[schema.name][subtask]
        # All subtasks see all of a union list anyway; it stays where its key groups are.
        whole = 1 << 62
        return [
            Stretch(i, 0, whole) for i, n in enumerate(self._before) if n in self._after[subtask]
        ]

    def _split(self, schema: OperatorStateSchema) -> list[list[Stretch]]:
        sources = range(len(self._before))
        counts = [sum(1 for _ in self._stored(source, schema)) for source in sources]
        return even_split(counts, len(self._after))

    def _stored(self, source: int, schema: OperatorStateSchema) -> Iterator[tuple[bytes, bytes]]:
        first = self._before[source]
        owner = next((i for i, groups in enumerate(self._after) if first in groups), None)
        if owner is None:
            raise Bug(f"no range has the key group: key_group={first} ranges={self._after}")
        return entries_under(self._read(owner), self._prefix(source, schema))

    def _prefix(self, source: int, schema: OperatorStateSchema) -> bytes:
        return state_prefix(self._before[source], schema.name)
