"""Operator state kept in the process: what state backends give outside of the engine.

Decides that a snapshot's synchronous part is a copy of references to bytes that never change, so
that its asynchronous part sees nothing of what is written meanwhile. Called by
`StateBackend.create_operator_state_backend`.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from moorage_state.operator_state.schemas import OperatorStateSchema
from moorage_state.operator_state.snapshots import (
    OperatorSnapshotResult,
    OperatorStateHandle,
    Portion,
    pack_map,
    read_handles,
    unpack_map,
    write_content,
)
from moorage_state.operator_state.states import ListChange, OperatorListState
from moorage_state.operator_state.store import OperatorStateStore
from moorage_state.state_backends.futures import Cancellation, SnapshotFuture

if TYPE_CHECKING:
    from moorage_state.state_backends.storage import CheckpointStreamFactory


class OperatorStateBackend(OperatorStateStore):
    """Operator state of one subtask, in memory. Belongs to one thread.

    Args:
        operator: the operator's uid.
        restore: the handles that `reassign` gave to this subtask.

    Raises:
        CorruptState, NewerFormat, UserError: see `read_handles`.
    """

    def __init__(self, operator: str, restore: Iterable[OperatorStateHandle] = ()) -> None:
        self.operator = operator
        self._restored = read_handles(restore)
        super().__init__([portion.schema for portion in self._restored])
        self._futures: list[SnapshotFuture[OperatorSnapshotResult]] = []

    def snapshot(
        self,
        checkpoint_id: int,
        timestamp: float,  # noqa: ARG002 - what snapshots are told
        stream_factory: "CheckpointStreamFactory",
        options: Any = None,  # noqa: ARG002 - what snapshots are told
    ) -> SnapshotFuture[OperatorSnapshotResult]:
        """Take the state as it is now; the future's `run` writes it.

        Without operator state the future is completed already.
        """
        self._futures = [future for future in self._futures if not future.done]
        # References to bytes that never change: what is written meanwhile makes new ones.
        content = self._content()
        if not content:
            return SnapshotFuture.completed(OperatorSnapshotResult())

        def write(cancellation: Cancellation) -> OperatorSnapshotResult:
            return _write(self.operator, checkpoint_id, content, stream_factory, cancellation)

        future = SnapshotFuture(write)
        self._futures.append(future)
        return future

    def dispose(self) -> None:
        """Let go of everything; snapshots that are not through are canceled. Idempotent."""
        for future in self._futures:
            future.cancel()
        self._futures = []
        self._restored = []
        self._lists, self._maps = {}, {}
        self._known, self._schemas, self._declared = {}, {}, {}
        self._written = {}

    def _content(self) -> list[Portion]:
        """All of it that is the subtask's own; what nobody asked for as it was restored."""
        own = [portion for portion in self._restored if not portion.of_others]
        content = [portion for portion in own if portion.schema.name not in self._declared]
        content += [Portion(s.schema, self._own(s)) for s in self._lists.values()]
        content += [Portion(s.schema, [pack_map(s.encoded())]) for s in self._maps.values()]
        return sorted(content, key=lambda portion: portion.schema.name)

    def _own(self, state: OperatorListState) -> list[bytes]:
        """The elements of a list that go on from here: of a union not those of other subtasks."""
        if state.schema.mode != "union":
            return state.encoded()
        change = state.change() or ListChange(cleared=False, added=[])
        portions = [p for p in self._portions(state.schema.name) if not p.of_others]
        return ([] if change.cleared else self._elements(portions)) + change.added

    def _load_list(self, schema: OperatorStateSchema) -> list[bytes]:
        return self._elements(self._portions(schema.name))

    def _elements(self, portions: Iterable[Portion]) -> list[bytes]:
        """Those of portions, in the type that is declared."""
        found: list[bytes] = []
        for portion in portions:
            convert = self.converter(portion.schema)
            found += portion.elements if convert is None else map(convert, portion.elements)
        return found

    def _load_map(self, schema: OperatorStateSchema) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        for portion in self._portions(schema.name):
            convert = self.converter(portion.schema) or bytes
            for element in portion.elements:
                found |= {key: convert(raw) for key, raw in unpack_map(element).items()}
        return found

    def _portions(self, name: str) -> list[Portion]:
        return [portion for portion in self._restored if portion.schema.name == name]


def _write(
    operator: str,
    checkpoint_id: int,
    content: list[Portion],
    factory: "CheckpointStreamFactory",
    cancellation: Cancellation,
) -> OperatorSnapshotResult:
    pieces, states = write_content(content)
    stream = factory.create_checkpoint_state_output_stream()
    forget = cancellation.register(stream.close)
    try:
        for piece in pieces:
            cancellation.check()
            stream.write(piece)
        written = stream.close_and_get_handle()
    finally:
        forget()
        stream.close()
    if written is None:
        return OperatorSnapshotResult()
    handle = OperatorStateHandle(
        operator=operator, checkpoint_id=checkpoint_id, states=states, stream=written
    )
    return OperatorSnapshotResult(handle)
