"""`CheckpointedFunction`: functions with state that belongs to a subtask and to no key.

What a user implements and the contexts that it is given; called at both ends of every epoch.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moorage.api.functions import to_be_defined
from moorage_state.operator_state import (
    KeyedStateCheckpointOutputStream,
    KeyGroupStatePartitionStreamProvider,
    OperatorStateCheckpointOutputStream,
    OperatorStateStore,
    RawStates,
    StatePartitionStreamProvider,
)

if TYPE_CHECKING:
    from moorage.api.functions import RuntimeContext


@dataclass(frozen=True, slots=True)
class FunctionInitializationContext:
    """Handed to `initialize_state`.

    Attributes:
        is_restored: there is state from before: the operator was in the restored snapshot, or has
            been through an epoch. False once, in the first epoch of a new operator.
        restored_checkpoint_id: the checkpoint or savepoint that the job was last restored from;
            None if it began empty.
        operator_state_store: lists and broadcast maps of the subtask.
        keyed_state_store: handles of the operator's keyed state, as `RuntimeContext` gives them.
    """

    is_restored: bool
    restored_checkpoint_id: int | None
    operator_state_store: OperatorStateStore
    keyed_state_store: "RuntimeContext"
    _raw: RawStates = field(repr=False)

    @property
    def managed_initialization_context(self) -> "FunctionInitializationContext":
        """This context: the part of it that concerns managed state has no other form."""
        return self

    def get_raw_keyed_state_inputs(self) -> Iterator[KeyGroupStatePartitionStreamProvider]:
        """The raw streams of the subtask's key groups, in the order of these.

        Each is read when its `get_stream` is called.
        """
        return self._raw.keyed_inputs()

    def get_raw_operator_state_inputs(self) -> list[StatePartitionStreamProvider]:
        """The raw streams of the operator that were given to this subtask, in order."""
        return self._raw.operator_inputs()


@dataclass(frozen=True, slots=True)
class FunctionSnapshotContext:
    """Handed to `snapshot_state`.

    Attributes:
        checkpoint_id: no checkpoint that contains what is written now has a smaller id. It is the
            id of the next one that begins. The same in every attempt of the epoch, and it does not
            go back within a run. After a failure the next run may use an id again that no completed
            checkpoint has.
        checkpoint_timestamp: the epoch's processing time, in milliseconds since 1970 UTC.
    """

    checkpoint_id: int
    checkpoint_timestamp: int
    _raw: RawStates = field(repr=False)

    def get_raw_keyed_operator_state_output(self) -> KeyedStateCheckpointOutputStream:
        """Where the raw streams of key groups go; they replace all that the subtask had.

        Without this call they stay as they are.
        """
        return self._raw.keyed_output()

    def get_raw_operator_state_output(self) -> OperatorStateCheckpointOutputStream:
        """Where the raw streams of the operator go; they replace all that the subtask had.

        Without this call they stay as they are.
        """
        return self._raw.operator_output()


class CheckpointedFunction:
    """Mixed into a keyed process function that keeps state of its subtask.

    An instance lives for one epoch, and each epoch begins as if it were restored from a checkpoint
    at the end of the one before: `initialize_state` takes up what `snapshot_state` left. What both
    do must be deterministic, as everything in a function.
    """

    @to_be_defined
    def initialize_state(self, ctx: FunctionInitializationContext) -> None:  # noqa: ARG002
        """Get state handles and take up state; called once, before `open`."""
        raise TypeError(f"{type(self).__name__} does not define initialize_state(ctx)")

    @to_be_defined
    def snapshot_state(self, ctx: FunctionSnapshotContext) -> None:  # noqa: ARG002
        """Put into state what has to last; called once, after the last row and timer.

        There is no current key here, and no output.
        """
        raise TypeError(f"{type(self).__name__} does not define snapshot_state(ctx)")
