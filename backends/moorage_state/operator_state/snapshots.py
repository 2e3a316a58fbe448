r"""Snapshots of operator state outside of the engine: their bytes, their handles, who gets what.

Decides the layout of the stream of one subtask and how handles are dealt out when there are other
subtasks than before. A stream is::

    magic "MOOROPS\0" (8) | format version (2) | elements, one after the other

An element of a list is its encoded value; a broadcast state is one element, a MessagePack list of
pairs. Where each element lies is in the handle, so that a part can be handed on without reading
it, and of which type it is: a subtask that did not ask for a state carries on what another type
wrote. Called by the in-process backend; the stream's own handle checks the bytes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from moorage_state.errors import CorruptState, UserError
from moorage_state.formats import require_known_format
from moorage_state.operator_state.redistribution import Stretch, broadcast, even_split, union
from moorage_state.operator_state.schemas import OperatorStateSchema, require_same
from moorage_state.state_backends.streams import StreamStateHandle

OPERATOR_STREAM_FORMAT = 1

_MAGIC = b"MOOROPS\0"
_HEAD = _MAGIC + OPERATOR_STREAM_FORMAT.to_bytes(2, "big")
_ADVICE = "restore an older checkpoint or a savepoint"

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]]).decode


class Portion(NamedTuple):
    """Elements of a list state, encoded; of a broadcast state the pairs of each map, packed.

    `of_others` are elements of a union that this subtask reads, and that stay other subtasks' own.
    """

    schema: OperatorStateSchema
    elements: list[bytes]
    of_others: bool = False


class StoredState(msgspec.Struct, frozen=True):
    """One state in a stream: `spans` are begin and end of each element; see `Portion`."""

    schema: OperatorStateSchema
    spans: tuple[tuple[int, int], ...]
    of_others: bool = False


class OperatorStateHandle(msgspec.Struct, frozen=True, kw_only=True):
    """The operator state of one subtask in one snapshot, or a part of it.

    `states` says what of `stream` belongs to it.
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


def pack_map(entries: Mapping[bytes, bytes]) -> bytes:
    """The element of a broadcast state that stands for its entries."""
    return _pack(list(entries.items()))


def unpack_map(element: bytes) -> dict[bytes, bytes]:
    """The entries that `pack_map` packed."""
    return dict(_unpack(element))


def write_content(content: Iterable[Portion]) -> tuple[list[bytes], tuple[StoredState, ...]]:
    """The pieces of a stream, and where in it each state lies."""
    pieces = [_HEAD]
    at = len(_HEAD)
    stored = []
    for portion in content:
        spans = []
        for element in portion.elements:
            pieces.append(element)
            spans.append((at, at + len(element)))
            at += len(element)
        stored.append(StoredState(portion.schema, tuple(spans)))
    return pieces, tuple(stored)


def read_handles(handles: Iterable[OperatorStateHandle]) -> list[Portion]:
    """What the assigned handles hold together, by name; of one name in their order.

    Raises:
        CorruptState: bytes are not what was written.
        NewerFormat: a newer Moorage wrote them.
        UserError: they contradict each other about what a state is; its type may be another.
    """
    content: dict[str, list[Portion]] = {}
    for handle in handles:
        data = _checked(handle)
        for state in handle.states:
            schema, mine = state.schema, content.setdefault(state.schema.name, [])
            elements = [data[begin:end] for begin, end in state.spans]
            if mine and (mine[-1].schema, mine[-1].of_others) == (schema, state.of_others):
                mine[-1].elements.extend(elements)
                continue
            if mine:
                first = mine[0].schema
                require_same(replace(schema, type=first.type), first, "was written")
            mine.append(Portion(schema, elements, state.of_others))
    return [portion for name in sorted(content) for portion in content[name]]


def reassign(
    handles: Sequence[OperatorStateHandle | None], parallelism: int
) -> list[list[OperatorStateHandle]]:
    """By new subtask, the handles that make up its operator state.

    The elements of a union are given to all. `handles` are by old subtask, all of one snapshot;
    None where one had no operator state.

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
        states = [_states(handle, name) for handle in handles]
        for subtask, runs in enumerate(_runs(states, parallelism)):
            for run in runs:
                # Each element of a union goes on as the own one of one subtask: that which had it,
                # or the one in its place. Else every restore would multiply the list.
                own = run.source * parallelism // len(handles) == subtask
                parts = _between(states[run.source], run.first, run.last, own=own)
                given[subtask].setdefault(run.source, []).extend(parts)
    return [
        [
            replace(handle, states=tuple(parts[source]))
            for source, handle in enumerate(handles)
            if handle is not None and source in parts
        ]
        for parts in given
    ]


def _states(handle: OperatorStateHandle | None, name: str) -> list[StoredState]:
    """What a handle has of a state: more than one part where it has several types."""
    states = handle.states if handle is not None else ()
    return [state for state in states if state.schema.name == name]


def _between(
    states: Sequence[StoredState], first: int, last: int, *, own: bool
) -> Iterator[StoredState]:
    """The elements `first` to `last` (excluded) of these states, one after the other."""
    begin = 0
    for state in states:
        spans = state.spans[max(0, first - begin) : max(0, last - begin)]
        if spans:
            of_others = not own and state.schema.mode == "union"
            yield StoredState(state.schema, spans, of_others)
        begin += len(state.spans)


def _runs(states: Sequence[Sequence[StoredState]], parallelism: int) -> list[list[Stretch]]:
    counts = [sum(len(part.spans) for part in parts) for parts in states]
    mode = next(part.schema.mode for parts in states for part in parts)
    if mode == "union":
        return union(counts, parallelism)
    if mode != "broadcast":
        return even_split(counts, parallelism)
    sources = broadcast(len(states), parallelism)
    return [[Stretch(s, 0, counts[s])] if s is not None else [] for s in sources]


def _checked(handle: OperatorStateHandle) -> bytes:
    data = handle.stream.read()
    if data[: len(_MAGIC)] != _MAGIC:
        raise CorruptState("not a stream of operator state", handle.stream.place, _ADVICE)
    version = int.from_bytes(data[len(_MAGIC) : len(_HEAD)], "big")
    require_known_format("operator state", version, OPERATOR_STREAM_FORMAT, handle.stream.place)
    return data
