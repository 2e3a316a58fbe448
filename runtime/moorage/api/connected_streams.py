"""Two keyed streams as the inputs of one operator, and the function over both.

Decides which streams can be connected, and what an operator over two of them cannot have. Called by
job files through `KeyedStream`, which has the methods of `Connecting`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

from moorage.api.broadcast import (
    BroadcastConnectedStream,
    BroadcastStream,
    KeyedBroadcastProcessFunction,
    broadcast_input,
)
from moorage.api.declarations import check_readable, require_instance, tags_of
from moorage.api.functions import KeyedCoProcessFunction, KeyedProcessFunction, OutputTag
from moorage.api.graph import KeyedInput
from moorage.api.interval_join import IntervalJoin
from moorage.api.misplaced import Unfinished
from moorage.api.temporal_join import TemporalJoin
from moorage.api.vectorized import KeyedBatchFunction
from moorage.api.window_join import CoGroupedStreams, JoinedStreams
from moorage_state.descriptors import MapStateDescriptor
from moorage_state.errors import UserError

if TYPE_CHECKING:
    from moorage.api.streams import DataStream, KeyedStream


class ConnectedStreams(Unfinished):
    """Two keyed streams, waiting for the function over both.

    Attributes:
        inputs: the two.
    """

    call_first = 'process(function, uid="...", output="...")'

    def __init__(self, keyed: "KeyedStream", second: KeyedInput) -> None:
        self.inputs = KeyedInput(keyed.stream, keyed.columns), second
        self._keyed = type(keyed)(keyed.stream, keyed.columns, keyed.types, second=second)

    def process(
        self,
        function: KeyedCoProcessFunction,
        *,
        uid: str,
        output: str,
        null_key: str = "fail",
        bad_time: str = "fail",
        side_outputs: Sequence[OutputTag] = (),
    ) -> "DataStream":
        """Apply a function over both streams; for the arguments see `KeyedStream.process`.

        `null_key` and `bad_time` are for rows of both, and no tags: a side output has one kind of
        rows. So the tags of `side_outputs` name their columns.

        Raises:
            UserError: it is no `KeyedCoProcessFunction`; or see `KeyedStream.process`.
        """
        require_instance("connected streams take", KeyedCoProcessFunction, uid, function)
        return self.carry_out(
            function,
            uid=uid,
            output=output,
            null_key=null_key,
            bad_time=bad_time,
            side_outputs=side_outputs,
        )

    def carry_out(
        self,
        function: KeyedProcessFunction,
        *,
        uid: str,
        output: str,
        null_key: str,
        bad_time: str,
        side_outputs: Sequence[OutputTag] = (),
    ) -> "DataStream":
        """As `process`, also for the vectorized functions that joins have."""
        odd: dict[str, Any] = {"null_key": null_key, "bad_time": bad_time}
        for argument, choice in odd.items():
            if isinstance(choice, OutputTag):
                raise UserError(
                    f"rows of two streams do not fit into one side output; say 'fail' or 'drop', "
                    f"or send them aside from each stream before: uid={uid} {argument}={choice!r}"
                )
        for tag in tags_of(uid, side_outputs):
            if tag.ddl is None:
                raise UserError(
                    f"a side output of two streams names its columns: uid={uid} tag={tag.name}; "
                    f"write OutputTag({tag.name!r}, 'user string, n long')"
                )
        return self._keyed.process(
            function,
            uid=uid,
            output=output,
            null_key=null_key,
            bad_time=bad_time,
            side_outputs=side_outputs,
        )


class Connecting:
    """The methods; mixed into `KeyedStream`."""

    @overload
    def connect(self, stream: "KeyedStream") -> ConnectedStreams: ...

    @overload
    def connect(
        self, stream: "DataStream | BroadcastStream", *descriptors: MapStateDescriptor
    ) -> BroadcastConnectedStream: ...

    def connect(
        self,
        stream: "KeyedStream | DataStream | BroadcastStream",
        *descriptors: MapStateDescriptor,
    ) -> ConnectedStreams | BroadcastConnectedStream:
        """Connect with a stream for a function over both.

        Args:
            stream: another keyed stream, whose key has the same types; then rows of both come to
                the subtask of their key. Or a stream whose rows go to every subtask and build up
                broadcast state: inputs, or what their `broadcast` gave.
            descriptors: of the broadcast states.

        Raises:
            UserError: keys are of other types, or streams of other jobs; a broadcast stream comes
                from a stateful operator, or descriptors are missing or needless.
        """
        mine, given = _keyed(self), stream
        if isinstance(given, Connecting):
            return ConnectedStreams(mine, _second(mine, _keyed(given), descriptors))
        if not isinstance(given, (BroadcastStream, type(mine.stream))):
            raise UserError(
                f"connect takes another stream: got={type(given).__name__}; give a keyed one, or "
                f"one whose rows every subtask sees, with the descriptors of its states"
            )
        side = broadcast_input(given, descriptors)
        check_readable(side.stream.schema, "connect")
        return BroadcastConnectedStream(
            type(mine)(mine.stream, mine.columns, mine.types, beside=side)
        )

    def interval_join(self, other: "KeyedStream") -> IntervalJoin:
        """Join with rows of another stream that have the key and an event time not far away.

        Args:
            other: the right side.

        Raises:
            UserError: see `connect`.
        """
        return IntervalJoin(self.connect(_other("interval_join", other)))

    def join(self, other: "KeyedStream") -> JoinedStreams:
        """Join with rows of another stream that have the key and fall into the same window.

        Args:
            other: the right side.

        Raises:
            UserError: see `connect`.
        """
        return JoinedStreams(self.connect(_other("join", other)))

    def co_group(self, other: "KeyedStream") -> CoGroupedStreams:
        """Bring all rows together that have the key and fall into the same window.

        Args:
            other: the right side.

        Raises:
            UserError: see `connect`.
        """
        return CoGroupedStreams(self.connect(_other("co_group", other)))

    def temporal_join(
        self,
        versions: "KeyedStream",
        *,
        time: str = "event",
        outer: bool = False,
        late: str | OutputTag = "drop",
    ) -> TemporalJoin:
        """Join each row with the version that holds for its key at its time.

        Args:
            versions: the right side; each of its rows holds from its time on, until the next one.
            time: "event": a row waits for the watermark, and has the version of its event time.
                "processing": it has the one that came last, at once.
            outer: rows without a version are joined with None; else they are left out.
            late: what happens to rows of event time that come when the watermark is past them:
                "drop", or a tag without columns sends them to that side output.

        Raises:
            UserError: there is no event time where it is needed; or see `connect`.
        """
        # Versions go first, so that rows of the same epoch and time find them.
        streams = _other("temporal_join", versions).connect(_keyed(self))
        return TemporalJoin(streams, time=time, outer=outer, late=late)


def check_function(uid: str, function: Any, keyed: "KeyedStream") -> None:
    """Refuse what is no function for these streams."""
    require_instance("process takes", KeyedProcessFunction, uid, function)
    if isinstance(function, KeyedBroadcastProcessFunction) and keyed.beside is None:
        raise UserError(
            f"a KeyedBroadcastProcessFunction needs a broadcast stream: uid={uid}; call "
            f"connect(stream, descriptor) before process"
        )
    if isinstance(function, KeyedCoProcessFunction) and keyed.second is None:
        raise UserError(
            f"a KeyedCoProcessFunction needs two keyed streams: uid={uid}; call "
            f"connect(other.key_by(...)) before process"
        )
    if isinstance(function, KeyedBatchFunction):
        unknown = sorted({*(function.reads or ())} - {*keyed.stream.schema.names})
        if unknown:
            raise UserError(
                f"a function reads columns that its stream has not: uid={uid} reads={unknown} "
                f"columns={keyed.stream.schema.names}"
            )


def _keyed(stream: Any) -> "KeyedStream":
    return stream  # type: ignore[no-any-return]  # it is mixed into this class alone


def _other(call: str, stream: Any) -> "KeyedStream":
    if not isinstance(stream, Connecting):
        raise UserError(
            f"{call} takes another keyed stream: got={type(stream).__name__}; call "
            f"key_by(column) on it, too"
        )
    return _keyed(stream)


def _second(
    first: "KeyedStream", second: "KeyedStream", descriptors: tuple[MapStateDescriptor, ...]
) -> KeyedInput:
    if descriptors:
        raise UserError(
            f"two keyed streams have no broadcast state; leave the descriptors out, or connect "
            f"with the stream before its key_by: descriptors={[d.name for d in descriptors]}"
        )
    if first.stream.env is not second.stream.env:
        raise UserError("streams of two jobs cannot be connected: read both from one env")
    if first.types != second.types:
        one, other = (dict(zip(k.columns, k.types, strict=True)) for k in (first, second))
        if len(one) != len(other):
            raise UserError(
                f"the keys of connected streams have different numbers of columns: "
                f"first={one} second={other}; name as many in both calls of key_by, and let a "
                f"function of process or apply compare what else must be equal"
            )
        raise UserError(
            f"the keys of connected streams have the same types; cast one in transform: "
            f"first={one} second={other}"
        )
    return KeyedInput(second.stream, second.columns)
