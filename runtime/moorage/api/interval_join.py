"""Interval joins: rows of two keyed streams whose event times are not far from each other.

What Flink's `IntervalJoinOperator` does: each row waits in state for those of the other stream, and
is forgotten when the watermark says that none can come any more. Called by job files through
`KeyedStream.interval_join`.
"""

# ruff: noqa: SLF001 - a context's underscored side is the engine's, and of joins

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from moorage.api.declarations import (
    check_flag,
    ddl_of,
    parse_duration,
    require_instance,
    tags_of,
    type_ddl,
)
from moorage.api.functions import (
    KeyedCoProcessFunction,
    OfFunction,
    OutputTag,
    ProcessContext,
    RichFunction,
    RuntimeContext,
    to_be_defined,
)
from moorage.api.interval_join_columns import IntervalPairs
from moorage.api.join_functions import (
    PAIR_TIMES,
    SELECT_OR_APPLY,
    SIDES,
    select_columns,
)
from moorage.api.misplaced import Unfinished
from moorage.api.waiting_rows import INTERVAL_ROWS, WaitingRows, waiting_rows
from moorage.api.windows import MAX_TIME
from moorage_state.errors import UserError

if TYPE_CHECKING:
    from moorage.api.connected_streams import ConnectedStreams
    from moorage.api.streams import DataStream


class JoinContext:
    """Handed to a `ProcessJoinFunction` with a pair of rows.

    Attributes:
        key: the key of both.
        left_timestamp, right_timestamp: their event times in milliseconds since 1970 UTC.
    """

    def __init__(self, ctx: ProcessContext, times: Sequence[int]) -> None:
        self._ctx = ctx
        self.key = ctx.key
        self.left_timestamp, self.right_timestamp = times

    @property
    def timestamp(self) -> int:
        """The event time of the pair: the later one of both."""
        return max(self.left_timestamp, self.right_timestamp)

    def output(self, tag: OutputTag, row: Any) -> None:
        """Send a row to a side output; see `ProcessContext.output`."""
        self._ctx.output(tag, row)


class ProcessJoinFunction(RichFunction):
    """What is made of each pair that an interval join finds; it keeps no state."""

    @to_be_defined
    def process_element(self, left: Any, right: Any, ctx: JoinContext) -> Iterable[Any] | None:  # noqa: ARG002
        """Handle a pair, named tuples of their streams' columns; returns or yields output rows."""
        raise TypeError(f"{type(self).__name__} does not define process_element(left, right, ctx)")


class IntervalJoinOperator(OfFunction, KeyedCoProcessFunction):
    """Keeps the rows of both streams for as long as others may come that belong to them.

    Args:
        rows: of both streams, the DDL type of a row.
        lower, upper: how far a right row is from a left one, at the least and at the most.
        late: of both streams, where late rows go; None drops them.
    """

    _function: ProcessJoinFunction

    def __init__(
        self,
        function: ProcessJoinFunction,
        rows: Sequence[str],
        lower: int,
        upper: int,
        late: Sequence[OutputTag | None],
    ) -> None:
        super().__init__(function)
        self._types = tuple(rows)
        # Of rows of the other side, relative to one of this side.
        self._bounds = ((lower, upper), (-upper, -lower))
        self._late = tuple(late)

    def open_epoch(self, ctx: RuntimeContext) -> None:
        """Get the states: rows by their event time."""
        self._rows = [
            WaitingRows(ctx.get_map_state(waiting_rows(name, kind)), kind)
            for name, kind in zip(INTERVAL_ROWS, self._types, strict=True)
        ]
        super().open_epoch(ctx)

    def process_element1(self, row: Any, ctx: ProcessContext) -> Iterator[Any]:
        """Join a left row."""
        return self._join(0, row, ctx)

    def process_element2(self, row: Any, ctx: ProcessContext) -> Iterator[Any]:
        """Join a right row."""
        return self._join(1, row, ctx)

    def _join(self, side: int, row: Any, ctx: ProcessContext) -> Iterator[Any]:
        at: Any = ctx.timestamp()
        service = ctx.timer_service()
        if at <= service.current_watermark():
            if (tag := self._late[side]) is not None:
                yield tag, tuple(row)
            else:
                self.late_rows_dropped += 1
            return
        self._turn_of(ctx.key)
        row = self._rows[side].add(at, row)
        lower, upper = self._bounds[side]
        for when, other in self._rows[1 - side].between(at + lower, at + upper):
            met = JoinContext(ctx, (when, at) if side else (at, when))
            pair = (other, row) if side else (row, other)
            yield from self._function.process_element(*pair, met) or ()
        self._forget_at(at + max(upper, 0), ctx)

    def _forget_at(self, time_ms: int, ctx: ProcessContext) -> None:
        # A row of the end of time is forgotten with the job's input: there is no later time.
        ctx.timer_service()._register_first(min(time_ms, MAX_TIME))

    def _turn_of(self, key: Any) -> None:
        for rows in self._rows:
            rows.turn_of(key)

    def on_timer(self, timestamp: int, ctx: ProcessContext) -> None:
        """Forget the rows to which nothing belongs that is still to come."""
        self._turn_of(ctx.key)
        until = max(timestamp, ctx.timer_service().current_watermark())
        for (_, upper), rows in zip(self._bounds, self._rows, strict=True):
            rows.remove_until(until - max(upper, 0) if until < MAX_TIME else until)
            if (first := rows.first) is not None:
                self._forget_at(first + max(upper, 0), ctx)


class IntervalJoin(Unfinished):
    """Two keyed streams, waiting to be told how far apart rows may be."""

    call_first = 'between("-5m", "1h")'

    def __init__(self, streams: "ConnectedStreams") -> None:
        self._streams = streams

    def between(
        self,
        lower: str,
        upper: str,
        *,
        lower_exclusive: bool = False,
        upper_exclusive: bool = False,
        late_left: "str | OutputTag" = "drop",
        late_right: "str | OutputTag" = "drop",
    ) -> "IntervalJoined":
        """Join rows of one key where ``lower <= right's time - left's time <= upper``.

        Args:
            lower, upper: such as "-5m" and "1h".
            lower_exclusive, upper_exclusive: leave out rows that are just so far.
            late_left, late_right: what happens to rows that come when the watermark is past
                them: "drop", or a tag without columns sends them to that side output.

        Raises:
            UserError: these are no durations, or no time lies between them; a stream declares no
                event time; or a flag, `late_left` or `late_right` is none of that.
        """
        for name, keyed in zip(SIDES, self._streams.inputs, strict=True):
            if not keyed.stream.has_event_time:
                raise UserError(
                    f"an interval join needs event time on both sides: side={name}; call "
                    f"with_event_time(column) on it before key_by"
                )
        check_flag("between", "lower_exclusive", lower_exclusive)
        check_flag("between", "upper_exclusive", upper_exclusive)
        first = _signed(lower) + lower_exclusive
        last = _signed(upper) - upper_exclusive
        if first > last:
            raise UserError(
                f"no time lies in this interval: lower={lower!r} upper={upper!r} "
                f"lower_exclusive={lower_exclusive} upper_exclusive={upper_exclusive}"
            )
        late = (_late("late_left", late_left), _late("late_right", late_right))
        self._require_equal_columns(late)
        return IntervalJoined(self._streams, first, last, late)

    def _require_equal_columns(self, late: Sequence[OutputTag | None]) -> None:
        """Rows of both sides can only go to one side output if they have the same columns."""
        one, other = late
        left, right = (ddl_of(keyed.stream.schema) for keyed in self._streams.inputs)
        if one is not None and one == other and left != right:
            raise UserError(
                f"late rows go to a side output as they came, and those of the two sides have "
                f"other columns: side_output={one.name} left={left!r} right={right!r}; give each "
                f"side a tag of its own"
            )


class IntervalJoined(Unfinished):
    """An interval join, waiting to be told what is made of pairs."""

    call_first = SELECT_OR_APPLY.replace("apply", "process")

    def __init__(
        self,
        streams: "ConnectedStreams",
        lower: int,
        upper: int,
        late: Sequence[OutputTag | None],
    ) -> None:
        self._streams = streams
        self._schemas = [keyed.stream.schema for keyed in streams.inputs]
        self._rows = [type_ddl(schema) for schema in self._schemas]
        self._bounds = lower, upper
        self._late = late

    def process(
        self,
        function: ProcessJoinFunction,
        *,
        uid: str,
        output: str,
        null_key: str = "fail",
        bad_time: str = "fail",
        side_outputs: Sequence[OutputTag] = (),
    ) -> "DataStream":
        """Apply a function to each pair; for the arguments see `ConnectedStreams.process`.

        Raises:
            UserError: it is no `ProcessJoinFunction`; or see `ConnectedStreams.process`.
        """
        require_instance("an interval join takes", ProcessJoinFunction, uid, function)
        operator = IntervalJoinOperator(function, self._rows, *self._bounds, self._late)
        sides = self._with_late(tags_of(uid, side_outputs))
        return self._streams.process(
            operator,
            uid=uid,
            output=output,
            null_key=null_key,
            bad_time=bad_time,
            side_outputs=sides,
        )

    def select(
        self, *, uid: str, null_key: str = "fail", bad_time: str = "fail", **named: str
    ) -> "DataStream":
        """A row of each pair, of columns of both sides.

        Args:
            uid: the operator's stable name.
            null_key, bad_time: see `ConnectedStreams.process`.
            named: for each column of the result one of a side: ``user="left.id"``; or "pair.time",
                the later event time of both, which is that of the result then.

        Raises:
            UserError: a column is not there; or see `ConnectedStreams.process`.
        """
        output = select_columns(uid, named, self._schemas, PAIR_TIMES)
        made = self._streams.carry_out(
            IntervalPairs(self._rows, *self._bounds, self._late, named),
            uid=uid,
            output=output,
            null_key=null_key,
            bad_time=bad_time,
            side_outputs=self._with_late(()),
        )
        return made.timed_by({given: name for name, given in named.items()}.get("pair.time"))

    def _with_late(self, side_outputs: Sequence[OutputTag]) -> list[OutputTag]:
        """These, and those of late rows with their columns."""
        sides = list(side_outputs)
        for tag, schema in zip(self._late, self._schemas, strict=True):
            if tag is not None:
                side = OutputTag(tag.name, ddl_of(schema))
                # One tag may be for both sides; `between` has seen that their columns are the same.
                sides += [] if side in sides else [side]
        return sides


def _signed(text: str) -> int:
    given: Any = text
    if isinstance(given, str) and given.startswith("-"):
        return -parse_duration(given[1:])
    return parse_duration(text)


def _late(argument: str, given: Any) -> OutputTag | None:
    if given == "drop":
        return None
    if isinstance(given, OutputTag) and given.ddl is None:
        return given
    raise UserError(
        f"{argument} is 'drop', or the OutputTag of a side output, without columns: late rows go "
        f"there as they came: {argument}={given!r}"
    )
