"""Broadcast streams: rows that every subtask sees, and the state that they build up.

What a user writes to connect a keyed stream with a broadcast one. Called by job files and by the
subtask.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moorage.api.declarations import require_instance
from moorage.api.functions import (
    KeyedProcessFunction,
    OutputTag,
    ProcessContext,
    TimerService,
    nowhere,
    to_be_defined,
)
from moorage.api.misplaced import Unfinished
from moorage_state.descriptors import MapStateDescriptor, StateDescriptor
from moorage_state.errors import UserError
from moorage_state.operator_state import BroadcastState, ReadOnlyBroadcastState

if TYPE_CHECKING:
    from moorage.api.streams import DataStream, KeyedStream


def _undeclared(name: str, declared: Iterable[str]) -> RuntimeError:
    return RuntimeError(
        f"broadcast state {name!r} was not declared for this function: declared="
        f"{sorted(declared)}; give its descriptor to connect or broadcast"
    )


class ReadOnlyContext(ProcessContext):
    """Handed to `process_element` and `on_timer`: broadcast state can be read only."""

    def __init__(self, timers: TimerService, states: Mapping[str, BroadcastState]) -> None:
        super().__init__(timers)
        self._broadcast = {name: ReadOnlyBroadcastState(s) for name, s in states.items()}

    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState:
        """The broadcast state of this descriptor.

        Raises:
            RuntimeError: it was not declared; and from its methods, where they would change it.
        """
        try:
            return self._broadcast[descriptor.name]
        except KeyError:
            raise _undeclared(descriptor.name, self._broadcast) from None


class BroadcastContext:
    """Handed to `process_broadcast_element`: broadcast state can be changed, there is no key."""

    def __init__(
        self,
        states: Mapping[str, BroadcastState],
        visit: Callable[[StateDescriptor, Callable[[Any, Any], object]], None],
        *,
        watermark: int,
        now_ms: int,
    ) -> None:
        self._states = states
        self._visit = visit
        self._watermark = watermark
        self._now_ms = now_ms
        self._timestamp: int | None = None
        self._emit: Callable[[OutputTag, Any], None] = nowhere

    def timestamp(self) -> int | None:
        """Event time of the row; None where none is declared for the broadcast stream."""
        return self._timestamp

    def current_watermark(self) -> int:
        """See `TimerService.current_watermark`; broadcast streams do not move it."""
        return self._watermark

    def current_processing_time(self) -> int:
        """The epoch's processing time in milliseconds since 1970 UTC."""
        return self._now_ms

    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> BroadcastState:
        """The broadcast state of this descriptor.

        Raises:
            RuntimeError: it was not declared.
        """
        try:
            return self._states[descriptor.name]
        except KeyError:
            raise _undeclared(descriptor.name, self._states) from None

    def apply_to_keyed_state(
        self, descriptor: StateDescriptor, function: Callable[[Any, Any], object]
    ) -> None:
        """Call `function(key, state)` for each key of this subtask that has something in a state.

        All keys of the operator are visited, each by the subtask that it belongs to; in no promised
        order, page by page. The function may read and change what its key has, in this state or in
        another: rows of the epoch that come after, broadcast or keyed, find it changed. It yields
        nothing; what it collects can be yielded afterwards. State that has expired counts until it
        is cleaned up.

        Raises:
            RuntimeError: called by such a function.
            UserError: the name is taken by a state of another kind or type.
        """
        self._visit(descriptor, function)

    def output(self, tag: OutputTag, row: Any) -> None:
        """Send a row to a side output, once by each subtask; see `ProcessContext.output`."""
        self._emit(tag, row)


class KeyedBroadcastProcessFunction(KeyedProcessFunction):
    """A function over a keyed stream and a broadcast one.

    In each epoch all rows of the broadcast stream come first, to every subtask in the same order:
    by event time where one is declared, then input, then as they lie in the source. So all copies
    of broadcast state are the same, as long as `process_broadcast_element` depends on nothing but
    the rows. What it yields is yielded once by each subtask.
    """

    @to_be_defined
    def process_element(self, row: Any, ctx: ReadOnlyContext) -> Iterable[Any] | None:  # noqa: ARG002
        """Handle one row of the keyed stream; see `KeyedProcessFunction.process`."""
        raise TypeError(f"{type(self).__name__} does not define process_element(row, ctx)")

    @to_be_defined
    def process_broadcast_element(self, row: Any, ctx: BroadcastContext) -> Iterable[Any] | None:  # noqa: ARG002
        """Handle one row of the broadcast stream, a named tuple of its columns."""
        raise TypeError(
            f"{type(self).__name__} does not define process_broadcast_element(row, ctx)"
        )

    def process(self, row: Any, ctx: Any) -> Iterable[Any] | None:
        """What the engine calls for a row of the keyed stream: `process_element`."""
        return self.process_element(row, ctx)


@dataclass(frozen=True, slots=True, eq=False)
class BroadcastStream:
    """A stream whose rows go to every subtask, and the states that they build up."""

    stream: "DataStream"
    descriptors: tuple[MapStateDescriptor, ...]


class BroadcastConnectedStream(Unfinished):
    """A keyed stream and a broadcast one, waiting for the function over both."""

    call_first = 'process(function, uid="...", output="...")'

    def __init__(self, keyed: "KeyedStream") -> None:
        self._keyed = keyed

    def process(
        self,
        function: KeyedBroadcastProcessFunction,
        *,
        uid: str,
        output: str,
        null_key: str | OutputTag = "fail",
        bad_time: str | OutputTag = "fail",
        side_outputs: Sequence[OutputTag] = (),
    ) -> "DataStream":
        """Apply a function over both streams; for the arguments see `KeyedStream.process`.

        Raises:
            UserError: it is no `KeyedBroadcastProcessFunction`; or see `KeyedStream.process`.
        """
        require_instance("a connected stream takes", KeyedBroadcastProcessFunction, uid, function)
        return self._keyed.process(
            function,
            uid=uid,
            output=output,
            null_key=null_key,
            bad_time=bad_time,
            side_outputs=side_outputs,
        )


def broadcast_input(
    given: "DataStream | BroadcastStream", descriptors: tuple[MapStateDescriptor, ...]
) -> BroadcastStream:
    """What `connect` was given, checked."""
    if isinstance(given, BroadcastStream):
        descriptors = (*given.descriptors, *descriptors)
        given = given.stream
    if given.operator is not None:
        raise UserError(
            f"a broadcast stream comes from inputs; the output of a stateful operator cannot be "
            f"broadcast: operator={given.operator.uid}"
        )
    strange = [d for d in descriptors if not isinstance(d, MapStateDescriptor)]
    if strange or not descriptors:
        raise UserError(
            f"a broadcast stream needs the MapStateDescriptor of each state that its rows build "
            f"up: got={strange or 'none'}; for a function over two keyed streams call "
            f"key_by(column) on the other one, too"
        )
    names = [d.name for d in descriptors]
    if len(set(names)) < len(names):
        raise UserError(f"two broadcast states have one name; rename one of them: names={names}")
    return BroadcastStream(given, descriptors)
