"""Raw state: byte streams that only their owner can read, for each key group or for the operator.

Decides how streams are cut, kept and handed out again. A snapshot that asks for an output replaces
all streams of that kind; one that does not leaves them as they are. The streams of key groups
move with their key groups; those of the operator are split evenly where parallelism changes.
"""

import io
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from moorage_state.keyed.access import RangeAccess
from moorage_state.keygroups import KeyGroupRange
from moorage_state.keylayout import prefix_end
from moorage_state.operator_state.layout import piece_key, raw_prefix, stream_pieces
from moorage_state.operator_state.ranges import RangeOperatorStates, Writer, entries_under
from moorage_state.operator_state.schemas import (
    RAW_KEYED_STREAMS,
    RAW_OPERATOR,
    RAW_OPERATOR_STREAMS,
)

_GROUPS_AT_ONCE = 256


class StatePartitionStreamProvider(NamedTuple):
    """One raw stream of the operator, as a snapshot wrote it."""

    read: Callable[[], bytes]

    def get_stream(self) -> io.BytesIO:
        """A new stream over its bytes, at the beginning."""
        return io.BytesIO(self.read())


class KeyGroupStatePartitionStreamProvider(NamedTuple):
    """The raw stream of one key group, as a snapshot wrote it."""

    key_group_id: int
    read: Callable[[], bytes]

    def get_key_group_id(self) -> int:
        """The key group."""
        return self.key_group_id

    def get_stream(self) -> io.BytesIO:
        """A new stream over its bytes, at the beginning."""
        return io.BytesIO(self.read())


class KeyedStateCheckpointOutputStream:
    """Where a snapshot writes the raw stream of each key group, one after the other."""

    def __init__(self, groups: KeyGroupRange) -> None:
        self._groups = groups
        self._streams: dict[int, bytearray] = {}
        self._current: bytearray | None = None

    def get_key_group_list(self) -> list[int]:
        """The key groups that may have a stream: those of the subtask."""
        return list(range(self._groups.start, self._groups.end + 1))

    def start_new_key_group(self, key_group: int) -> None:
        """Let what is written from here on be the stream of `key_group`.

        Raises:
            ValueError: it is not the subtask's, or has its stream already.
        """
        if key_group not in self._groups:
            raise ValueError(
                f"raw state can be written for the key groups of the subtask only: "
                f"key_group={key_group!r} range={self._groups.start}-{self._groups.end}"
            )
        if key_group in self._streams:
            raise ValueError(f"a key group has one raw stream: key_group={key_group} began before")
        self._current = self._streams[key_group] = bytearray()

    def write(self, data: bytes) -> int:
        """Append to the stream of the current key group; returns the number of bytes.

        Raises:
            ValueError: no key group was begun.
        """
        if self._current is None:
            raise ValueError("raw keyed state belongs to a key group: call start_new_key_group")
        return _append(self._current, data)

    def streams(self) -> dict[int, bytes]:
        """By key group in order, what was written."""
        return {group: bytes(stream) for group, stream in sorted(self._streams.items())}


class OperatorStateCheckpointOutputStream:
    """Where a snapshot writes the raw streams of the operator, its partitions."""

    def __init__(self) -> None:
        self._partitions: list[bytearray] = []

    def start_new_partition(self) -> None:
        """Let what is written from here on be a stream of its own, which may move by itself."""
        self._partitions.append(bytearray())

    def write(self, data: bytes) -> int:
        """Append to the current partition, the first if none was begun; returns how many bytes."""
        if not self._partitions:
            self.start_new_partition()
        return _append(self._partitions[-1], data)

    def streams(self) -> list[bytes]:
        """What was written, in order."""
        return [bytes(stream) for stream in self._partitions]


class RawStates:
    """Raw state of one subtask for one epoch; `access` is its range at the version that is read.

    The streams of the operator are kept in `states`, those of its key groups in the range.
    """

    def __init__(
        self,
        states: RangeOperatorStates,
        access: RangeAccess,
        writer: Writer,
        groups: KeyGroupRange,
    ) -> None:
        self._states = states
        self._access = access
        self._writer = writer
        self._groups = groups
        self._keyed: KeyedStateCheckpointOutputStream | None = None
        self._operator: OperatorStateCheckpointOutputStream | None = None

    def keyed_inputs(self) -> Iterator[KeyGroupStatePartitionStreamProvider]:
        """The streams of the subtask's key groups, in their order; each is read when asked for."""
        for group in self._stored_groups():
            yield KeyGroupStatePartitionStreamProvider(group, self._reader(group))

    def operator_inputs(self) -> list[StatePartitionStreamProvider]:
        """The streams of the operator that this subtask has, in order."""
        return [
            StatePartitionStreamProvider(_constant(raw))
            for raw in self._states.stored(RAW_OPERATOR)
        ]

    def keyed_output(self) -> KeyedStateCheckpointOutputStream:
        """The output for key groups; the same one when asked again."""
        if self._keyed is None:
            self._states.register(RAW_KEYED_STREAMS)
            self._keyed = KeyedStateCheckpointOutputStream(self._groups)
        return self._keyed

    def operator_output(self) -> OperatorStateCheckpointOutputStream:
        """The output for the operator; the same one when asked again."""
        if self._operator is None:
            self._states.register(RAW_OPERATOR_STREAMS)
            self._operator = OperatorStateCheckpointOutputStream()
        return self._operator

    def flush(self) -> None:
        """Write what the outputs got; called once, when the function is done with the epoch."""
        if self._operator is not None:
            self._states.stored(RAW_OPERATOR)
            self._states.replace(RAW_OPERATOR, self._operator.streams())
        if self._keyed is not None:
            self._flush_keyed(self._keyed.streams())

    def _flush_keyed(self, streams: dict[int, bytes]) -> None:
        stored = self._stored_groups()
        for group in stored:
            if streams.get(group) != self._reader(group)():
                prefix = raw_prefix(group)
                self._writer.delete_range(prefix, prefix_end(prefix))
            else:
                del streams[group]
        for group, stream in streams.items():
            for number, piece in enumerate(stream_pieces(stream)):
                self._writer.write(piece_key(group, number), piece)
                self._writer.flush_key()

    def _stored_groups(self) -> list[int]:
        """The key groups of the range that have a stream."""
        found: list[int] = []
        for first in range(self._groups.start, self._groups.end + 1, _GROUPS_AT_ONCE):
            groups = range(first, min(first + _GROUPS_AT_ONCE, self._groups.end + 1))
            found += self._with_stream(list(groups))
        return found

    def _with_stream(self, groups: list[int]) -> list[int]:
        values = self._access.get_many([piece_key(group, 0) for group in groups])
        return [group for group, raw in zip(groups, values, strict=True) if raw is not None]

    def _reader(self, group: int) -> Callable[[], bytes]:
        access = self._access

        def read() -> bytes:
            return b"".join(piece for _, piece in entries_under(access, raw_prefix(group)))

        return read


def _constant(raw: bytes) -> Callable[[], bytes]:
    return lambda: raw


def _append(stream: bytearray, data: Any) -> int:
    before = len(stream)
    stream += memoryview(data)
    return len(stream) - before
