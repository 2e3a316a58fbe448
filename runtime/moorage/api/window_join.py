"""Joins in windows: rows of two keyed streams that fall into one window.

What Flink's `CoGroupedStreams` and `JoinedStreams` do: rows of both go into the windows of one
`WindowOperator`, which keeps each with its side. Called by job files through `KeyedStream.join` and
`co_group`.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from moorage.api.declarations import require_instance, type_ddl
from moorage.api.functions import (
    KeyedCoProcessFunction,
    OfFunction,
    OutputTag,
    ProcessContext,
    RuntimeContext,
)
from moorage.api.join_functions import (
    SELECT_OR_APPLY,
    SIDES,
    WINDOW_TIMES,
    CoGroupFunction,
    JoinFunction,
    SelectedColumns,
    select_columns,
)
from moorage.api.misplaced import OF_JOINS, Unfinished
from moorage.api.window_join_columns import WindowPairs, joins_by_column
from moorage.api.window_operator import Collected, WindowOperator
from moorage.api.windows import (
    ByEnd,
    ProcessWindowFunction,
    Trigger,
    WindowAssigner,
    WindowContext,
    Windowing,
    windowing,
)
from moorage_state.errors import UserError
from moorage_state.keyed import TimeDomain

if TYPE_CHECKING:
    from moorage.api.connected_streams import ConnectedStreams
    from moorage.api.streams import DataStream


def kept_row(rows: Sequence[str]) -> str:
    """The DDL type of what is kept of a row: itself on its side, and null on the other."""
    left, right = rows
    return f"struct<left:{left},right:{right}>"


class _Groups(OfFunction, ProcessWindowFunction):
    """A window's rows by their side."""

    _function: CoGroupFunction

    def process(self, key: Any, ctx: WindowContext, rows: list[Any]) -> Iterable[Any] | None:  # noqa: ARG002
        lefts = [row.left for row in rows if row.left is not None]
        rights = [row.right for row in rows if row.right is not None]
        return self._function.co_group(lefts, rights, ctx)


class _Pairs(OfFunction, CoGroupFunction):
    """Every pair of a window's rows."""

    _function: JoinFunction

    def co_group(self, lefts: list[Any], rights: list[Any], ctx: Any) -> Iterator[Any]:
        for left in lefts:
            for right in rights:
                yield from self._function.join(left, right, ctx) or ()


class WindowJoinOperator(ByEnd, OfFunction, KeyedCoProcessFunction):
    """Puts rows of both streams into the windows of one operator.

    Args:
        rows: of both streams, the DDL type of a row.
    """

    def __init__(self, windows: Windowing, rows: Sequence[str], function: CoGroupFunction) -> None:
        kept = Collected(kept_row(rows), _Groups(function))
        self._windows = WindowOperator(windows, kept)
        super().__init__(self._windows)
        self.by_end = self._windows.by_end

    @property
    def late_rows_dropped(self) -> int:
        """See `KeyedProcessFunction`."""
        return self._windows.late_rows_dropped

    @late_rows_dropped.setter
    def late_rows_dropped(self, count: int) -> None:
        self._windows.late_rows_dropped = count

    def open_epoch(self, ctx: RuntimeContext) -> None:
        """Get the states of the windows."""
        self._windows.earlier = self.earlier
        super().open_epoch(ctx)

    def process_element1(self, row: Any, ctx: ProcessContext) -> Iterator[Any]:
        """Add a left row to its windows."""
        return self._windows.process((row, None), ctx)

    def process_element2(self, row: Any, ctx: ProcessContext) -> Iterator[Any]:
        """Add a right row to its windows."""
        return self._windows.process((None, row), ctx)

    def on_timer(self, timestamp: int, ctx: ProcessContext) -> Iterator[Any]:
        """Results of windows that end."""
        return self._windows.on_timer(timestamp, ctx)


class CoGroupedStreams(Unfinished):
    """Two keyed streams, waiting for the windows in which their rows meet."""

    call_first = 'window(Tumbling("1h"))'
    instead = OF_JOINS

    def __init__(self, streams: "ConnectedStreams") -> None:
        self._streams = streams

    def window(
        self,
        assigner: WindowAssigner,
        *,
        trigger: Trigger | None = None,
        allowed_lateness: str = "0s",
    ) -> "CoGroupedWindows":
        """Put the rows of both into windows; for the arguments see `KeyedStream.window`.

        Rows that come when their window is gone are dropped.

        Raises:
            UserError: see `KeyedStream.window`.
        """
        found = _windowing(self._streams, assigner, trigger, allowed_lateness)
        return CoGroupedWindows(self._streams, found)


class CoGroupedWindows(Unfinished):
    """Two keyed streams in windows, waiting for the function over both."""

    call_first = 'apply(function, uid="...", output="...")'
    instead = OF_JOINS

    def __init__(self, streams: "ConnectedStreams", windows: Windowing) -> None:
        self._streams = streams
        self._windows = windows

    def apply(
        self,
        function: CoGroupFunction,
        *,
        uid: str,
        output: str,
        null_key: str = "fail",
        bad_time: str = "fail",
        side_outputs: Sequence[OutputTag] = (),
    ) -> "DataStream":
        """Apply a function to all rows of both sides in each window that fires.

        A window fires also if only one side has rows in it.

        Args:
            output: DDL of the rows that the function gives.
            null_key, bad_time, side_outputs: see `ConnectedStreams.process`.

        Raises:
            UserError: it is no `CoGroupFunction`; or see `ConnectedStreams.process`.
        """
        require_instance("co_group takes", CoGroupFunction, uid, function)
        rows = [type_ddl(keyed.stream.schema) for keyed in self._streams.inputs]
        operator = WindowJoinOperator(self._windows, rows, function)
        return self._streams.process(
            operator,
            uid=uid,
            output=output,
            null_key=null_key,
            bad_time=bad_time,
            side_outputs=side_outputs,
        )


class JoinedStreams(Unfinished):
    """Two keyed streams, waiting for the windows in which their rows are joined."""

    call_first = 'window(Tumbling("1h"))'
    instead = OF_JOINS

    def __init__(self, streams: "ConnectedStreams") -> None:
        self._streams = streams

    def window(
        self,
        assigner: WindowAssigner,
        *,
        trigger: Trigger | None = None,
        allowed_lateness: str = "0s",
    ) -> "JoinedWindows":
        """Put the rows of both into windows; see `CoGroupedStreams.window`.

        Raises:
            UserError: see `KeyedStream.window`.
        """
        found = _windowing(self._streams, assigner, trigger, allowed_lateness)
        return JoinedWindows(self._streams, found)


class JoinedWindows(Unfinished):
    """Two keyed streams in windows, waiting to be told what is made of pairs."""

    call_first = SELECT_OR_APPLY
    instead = OF_JOINS

    def __init__(self, streams: "ConnectedStreams", windows: Windowing) -> None:
        self._groups = CoGroupedWindows(streams, windows)
        self._windows = windows
        self._streams = streams
        self._domain = windows.assigner.domain
        self._times = WINDOW_TIMES if windows.assigner.domain is not None else ()

    def apply(
        self,
        function: JoinFunction,
        *,
        uid: str,
        output: str,
        null_key: str = "fail",
        bad_time: str = "fail",
        side_outputs: Sequence[OutputTag] = (),
    ) -> "DataStream":
        """Apply a function to each pair of a left and a right row in each window that fires.

        Args:
            output: DDL of the rows that the function gives.
            null_key, bad_time, side_outputs: see `ConnectedStreams.process`.

        Raises:
            UserError: it is no `JoinFunction`; or see `ConnectedStreams.process`.
        """
        require_instance("join takes", JoinFunction, uid, function)
        return self._groups.apply(
            _Pairs(function),
            uid=uid,
            output=output,
            null_key=null_key,
            bad_time=bad_time,
            side_outputs=side_outputs,
        )

    def select(
        self, *, uid: str, null_key: str = "fail", bad_time: str = "fail", **named: str
    ) -> "DataStream":
        """A row of each pair, of columns of both sides and of the window.

        With "window.end" of windows of event time among them, the event time of the result is the
        last millisecond of its window.

        Args:
            uid: the operator's stable name.
            null_key, bad_time: see `ConnectedStreams.process`.
            named: for each column of the result one of a side, ``user="left.id"``; or, of windows
                of time, "window.start" or "window.end".

        Raises:
            UserError: a column is not there; or see `ConnectedStreams.process`.
        """
        schemas = [keyed.stream.schema for keyed in self._streams.inputs]
        output = select_columns(uid, named, schemas, self._times)
        options: dict[str, Any] = {"null_key": null_key, "bad_time": bad_time}
        if joins_by_column(self._windows):
            rows = [type_ddl(schema) for schema in schemas]
            pairs = WindowPairs(self._windows, kept_row(rows), named)
            made = self._streams.carry_out(pairs, uid=uid, output=output, **options)
        else:
            selected = SelectedColumns(named, schemas)
            made = self.apply(selected, uid=uid, output=output, **options)
        if self._domain is not TimeDomain.EVENT_TIME:
            return made
        column = {given: name for name, given in named.items()}.get
        return made.timed_by(column("window.end"), shift_ms=-1, window_start=column("window.start"))


def _windowing(
    streams: "ConnectedStreams",
    assigner: WindowAssigner,
    trigger: Trigger | None,
    allowed_lateness: str,
) -> Windowing:
    found = windowing(assigner, trigger, allowed_lateness, "drop")
    for side, keyed in zip(SIDES, streams.inputs, strict=True):
        if found.assigner.domain is TimeDomain.EVENT_TIME and not keyed.stream.has_event_time:
            raise UserError(
                f"windows of event time need streams that declare it: side={side} "
                f"window={assigner!r}; call with_event_time(column) before key_by, or take "
                f"time='processing'"
            )
    return found
