r"""Snapshots of operator state outside of the engine: their bytes, their handles, who gets what.

Decides the layout of the stream of one subtask and how handles are dealt out when there are other
subtasks than before. A stream is::

    magic "MOOROPS\0" (8) | format version (2) | elements, one after the other

An element of a list is its encoded value; a broadcast state is one element, a MessagePack list of
pairs. Where each element lies is in the handle, so that a part can be handed on without reading
it. Called by the in-process backend; the stream's own handle checks the bytes.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from moorage_state.backends.streams import StreamStateHandle
from moorage_state.errors import CorruptState, NewerFormat, UserError
from moorage_state.operator_state.redistribution import Run, broadcast, even_split, union
from moorage_state.operator_state.schemas import OperatorStateSchema, require_same

__all__ = [
    "OPERATOR_STREAM_FORMAT",
    "Content",
    "OperatorSnapshotResult",
    "OperatorStateHandle",
    "StoredState",
    "read_handles",
    "reassign",
    "write_content",
]

OPERATOR_STREAM_FORMAT = 0

_MAGIC = b"MOOROPS\0"
_HEAD = _MAGIC + OPERATOR_STREAM_FORMAT.to_bytes(2, "big")
_ADVICE = "restore an older checkpoint or a savepoint"

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]]).decode


class Content(NamedTuple):
    """What one subtask has: elements of lists, entries of maps, both encoded, by state name."""

    schemas: list[OperatorStateSchema]
    lists: dict[str, list[bytes]]
    maps: dict[str, dict[bytes, bytes]]


class StoredState(msgspec.Struct, frozen=True):
    """One state in a stream: `spans` are begin and end of each element."""

    schema: OperatorStateSchema
    spans: tuple[tuple[int, int], ...]


class OperatorStateHandle(msgspec.Struct, frozen=True, kw_only=True):
    """The operator state of one subtask in one snapshot, or a part of it.

    Attributes:
        operator: the operator's uid.
        checkpoint_id: the snapshot.
        states: what of the stream belongs to it.
        stream: the bytes.
    """

    operator: str
    checkpoint_id: int
    states: tuple[StoredState, ...]
    stream: StreamStateHandle

    @property
    def state_size(self) -> int:
        """Bytes of the elements."""
        return sum(end - begin for state in self.states for begin, end in state.spans)

    def discard(self) -> None:
        """Delete the stream; idempotent."""
        self.stream.discard()


class OperatorSnapshotResult(msgspec.Struct, frozen=True):
    """What a snapshot of operator state gave; no handle where there was none."""

    handle: OperatorStateHandle | None = None

    @property
    def state_size(self) -> int:
        """Bytes of the elements."""
        return 0 if self.handle is None else self.handle.state_size

    def discard(self) -> None:
        """Delete what was written; idempotent."""
        if self.handle is not None:
            self.handle.discard()


def write_content(content: Content) -> tuple[list[bytes], tuple[StoredState, ...]]:
    """The pieces of a stream, and where in it each state lies."""
    pieces = [_HEAD]
    at = len(_HEAD)
    stored = []
    for schema in content.schemas:
        if schema.mode == "broadcast":
            elements = [_pack(list(content.maps.get(schema.name, {}).items()))]
        else:
            elements = content.lists.get(schema.name, [])
        spans = []
        for element in elements:
            pieces.append(element)
            spans.append((at, at + len(element)))
            at += len(element)
        stored.append(StoredState(schema, tuple(spans)))
    return pieces, tuple(stored)


def read_handles(handles: Iterable[OperatorStateHandle]) -> Content:
    """What the assigned handles hold together.

    Raises:
        CorruptState: bytes are not what was written.
        NewerFormat: a newer Moorage wrote them.
        UserError: they contradict each other about what a state is.
    """
    content = Content([], {}, {})
    known: dict[str, OperatorStateSchema] = {}
    for handle in handles:
        data = _checked(handle)
        for state in handle.states:
            schema, name = state.schema, state.schema.name
            require_same(schema, known.setdefault(name, schema), "was written")
            elements = [data[begin:end] for begin, end in state.spans]
            if schema.mode == "broadcast":
                for element in elements:
                    content.maps.setdefault(name, {}).update(_unpack(element))
            else:
                content.lists.setdefault(name, []).extend(elements)
    content.schemas.extend(known[name] for name in sorted(known))
    return content


def reassign(
    handles: Sequence[OperatorStateHandle | None], parallelism: int
) -> list[list[OperatorStateHandle]]:
    """By new subtask, the handles that make up its operator state.

    Args:
        handles: of one snapshot, by old subtask; None where one had no operator state.
        parallelism: the number of subtasks from now on.

    Raises:
        UserError: the handles are of several operators or snapshots.
        ValueError: for a parallelism below one.
    """
    present = [handle for handle in handles if handle is not None]
    if len({(handle.operator, handle.checkpoint_id) for handle in present}) > 1:
        raise UserError("handles of operator state are of several operators or snapshots")
    names = sorted({s.schema.name for handle in present for s in handle.states})
    given: list[dict[int, list[StoredState]]] = [{} for _ in range(parallelism)]
    for name in names:
        states = [_state(handle, name) for handle in handles]
        for subtask, runs in enumerate(_runs(states, parallelism)):
            for run in runs:
                state = states[run.source]
                if state is not None:
                    part = StoredState(state.schema, state.spans[run.first : run.last])
                    given[subtask].setdefault(run.source, []).append(part)
    return [
        [
            replace(handle, states=tuple(parts[source]))
            for source, handle in enumerate(handles)
            if handle is not None and source in parts
        ]
        for parts in given
    ]


def _state(handle: OperatorStateHandle | None, name: str) -> StoredState | None:
    states = handle.states if handle is not None else ()
    return next((state for state in states if state.schema.name == name), None)


def _runs(states: Sequence[StoredState | None], parallelism: int) -> list[list[Run]]:
    counts = [len(state.spans) if state is not None else 0 for state in states]
    mode = next(state.schema.mode for state in states if state is not None)
    if mode == "union":
        return union(counts, parallelism)
    if mode != "broadcast":
        return even_split(counts, parallelism)
    sources = broadcast(len(states), parallelism)
    return [[Run(source, 0, 1)] if source is not None else [] for source in sources]


def _checked(handle: OperatorStateHandle) -> bytes:
    data = handle.stream.read()
    if data[: len(_MAGIC)] != _MAGIC:
        raise CorruptState("not a stream of operator state", handle.stream.place, _ADVICE)
    version = int.from_bytes(data[len(_MAGIC) : len(_HEAD)], "big")
    if version > OPERATOR_STREAM_FORMAT:
        raise NewerFormat(
            f"operator state was written by a newer moorage: path={handle.stream.place} "
            f"format={version} known={OPERATOR_STREAM_FORMAT}; upgrade moorage"
        )
    return data
