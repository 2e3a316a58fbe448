"""Operator state kept in the process: what state backends give outside of the engine.

Decides that a snapshot's synchronous part is a copy of references to bytes that never change, so
that its asynchronous part sees nothing of what is written meanwhile. Called by
`StateBackend.create_operator_state_backend`.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from moorage_state.backends.futures import Cancellation, SnapshotFuture
from moorage_state.operator_state.schemas import OperatorStateSchema
from moorage_state.operator_state.snapshots import (
    Content,
    OperatorSnapshotResult,
    OperatorStateHandle,
    read_handles,
    write_content,
)
from moorage_state.operator_state.store import OperatorStateStore

if TYPE_CHECKING:
    from moorage_state.backends.storage import CheckpointStreamFactory

__all__ = ["DefaultOperatorStateBackend"]


class DefaultOperatorStateBackend(OperatorStateStore):
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
        super().__init__(self._restored.schemas)
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
        content = self._content()
        if not content.schemas:
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
        self._restored = Content([], {}, {})
        self._lists, self._maps = {}, {}
        self._known, self._schemas, self._declared = {}, {}, {}

    def _content(self) -> Content:
        lists = {**self._restored.lists, **{n: s.encoded() for n, s in self._lists.items()}}
        maps = {**self._restored.maps, **{n: s.encoded() for n, s in self._maps.items()}}
        return Content(self.schemas, lists, maps)

    def _load_list(self, schema: OperatorStateSchema) -> list[bytes]:
        return list(self._restored.lists.get(schema.name, []))

    def _load_map(self, schema: OperatorStateSchema) -> dict[bytes, bytes]:
        return dict(self._restored.maps.get(schema.name, {}))


def _write(
    operator: str,
    checkpoint_id: int,
    content: Content,
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
