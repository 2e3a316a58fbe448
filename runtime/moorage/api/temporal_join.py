"""Temporal joins: each row of a stream with the version of something that holds at its time.

What SQL calls FOR SYSTEM_TIME AS OF: by event time a row waits until the watermark says that all
versions up to its time are known, as in Flink's `TemporalRowTimeJoinOperator`; by processing time
it has the latest one at once. Called by job files through `KeyedStream.temporal_join`.
"""

# ruff: noqa: SLF001 - a context's underscored side is the engine's, and of joins

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from moorage.api.declarations import check_flag, ddl_of, require_instance, tags_of, type_ddl
from moorage.api.functions import (
    KeyedCoProcessFunction,
    OfFunction,
    OutputTag,
    ProcessContext,
    RuntimeContext,
)
from moorage.api.join_functions import SELECT_OR_APPLY, JoinFunction, select_columns
from moorage.api.misplaced import Unfinished
from moorage.api.temporal_join_columns import LatestPairs, VersionedPairs
from moorage.api.vectorized import KeyedBatchFunction
from moorage.api.waiting_rows import (
    ROWS,
    Versions,
    WaitingRows,
    latest,
    versions,
    waiting_rows,
)
from moorage_state.errors import UserError

if TYPE_CHECKING:
    from moorage.api.connected_streams import ConnectedStreams
    from moorage.api.streams import DataStream


class LatestVersionJoin(OfFunction, KeyedCoProcessFunction):
    """Joins rows with the version that came last; versions are the first stream.

    Args:
        version: the DDL type of a version.
        outer: rows that come before any version are joined with None.
    """

    _function: JoinFunction

    def __init__(self, function: JoinFunction, version: str, *, outer: bool) -> None:
        super().__init__(function)
        self._type = version
        self._outer = outer

    def open_epoch(self, ctx: RuntimeContext) -> None:
        """Get the state."""
        self._latest = ctx.get_state(latest(self._type))
        super().open_epoch(ctx)

    def process_element1(self, row: Any, ctx: ProcessContext) -> None:  # noqa: ARG002
        """Keep a version."""
        self._latest.update(row)

    def process_element2(self, row: Any, ctx: ProcessContext) -> Iterable[Any] | None:
        """Join a row."""
        version = self._latest.value()
        if version is None and not self._outer:
            return None
        return self._function.join(row, version, ctx)


class VersionedJoin(OfFunction, KeyedCoProcessFunction):
    """Joins rows with the version of their event time; versions are the first stream.

    Args:
        row, version: the DDL types of both.
        outer: rows from before the first version are joined with None.
        late: where late rows go; None drops them.
    """

    _function: JoinFunction

    def __init__(
        self,
        function: JoinFunction,
        row: str,
        version: str,
        *,
        outer: bool,
        late: OutputTag | None,
    ) -> None:
        super().__init__(function)
        self._types = row, version
        self._outer = outer
        self._late = late

    def open_epoch(self, ctx: RuntimeContext) -> None:
        """Get the states: rows and versions by their event time."""
        row, version = self._types
        self._rows = WaitingRows(ctx.get_map_state(waiting_rows(ROWS, row)), row)
        self._versions = Versions(ctx.get_map_state(versions(version)))
        super().open_epoch(ctx)

    def process_element1(self, row: Any, ctx: ProcessContext) -> None:
        """Keep a version; a late one counts for rows that are still to come."""
        at: Any = ctx.timestamp()
        self._turn_of(ctx.key)
        self._versions.put(at, row)
        ctx.timer_service()._register_first(at)

    def process_element2(self, row: Any, ctx: ProcessContext) -> Iterator[Any]:
        """Keep a row until its time has come."""
        at: Any = ctx.timestamp()
        if at <= ctx.timer_service().current_watermark():
            if self._late is not None:
                yield self._late, tuple(row)
            else:
                self.late_rows_dropped += 1
            return
        self._turn_of(ctx.key)
        self._rows.add(at, row)
        ctx.timer_service()._register_first(at)

    def on_timer(self, timestamp: int, ctx: ProcessContext) -> Iterator[Any]:
        """Join the rows whose time has come; versions that no later row can have are forgotten."""
        self._turn_of(ctx.key)
        service = ctx.timer_service()
        # All of them: with the backend batch nothing comes of a timer that is set here.
        until = max(timestamp, service.current_watermark())
        for at in self._rows.until(until):
            version = self._versions.get(at)
            rows = self._rows.take(at)
            if version is not None or self._outer:
                for row in rows:
                    ctx._timestamp = at  # the function is told the row's time, not the timer's
                    yield from self._function.join(row, version, ctx) or ()
        for later in (self._rows.first, self._versions.forget_before(until)):
            if later is not None:
                service._register_first(later)

    def _turn_of(self, key: Any) -> None:
        self._rows.turn_of(key)
        self._versions.turn_of(key)


class TemporalJoin(Unfinished):
    """A keyed stream and versions by key, waiting to be told what is made of pairs.

    Args:
        streams: the versions, and the rows.
    """

    call_first = SELECT_OR_APPLY

    def __init__(
        self,
        streams: "ConnectedStreams",
        *,
        time: str = "event",
        outer: bool = False,
        late: "str | OutputTag" = "drop",
    ) -> None:
        versions, rows = streams.inputs
        if time not in ("event", "processing"):  # a list has no hash
            raise UserError(f"a temporal join goes by 'event' or 'processing' time: time={time!r}")
        check_flag("temporal_join", "outer", outer)
        sides = {"left": rows, "right": versions}
        untimed = [side for side, keyed in sides.items() if not keyed.stream.has_event_time]
        if time == "event" and untimed:
            raise UserError(
                f"a temporal join by event time needs it on both sides: side={untimed[0]}; call "
                f"with_event_time(column) on it before key_by, or take time='processing'"
            )
        if late != "drop" and (
            not isinstance(late, OutputTag) or late.ddl is not None or time != "event"
        ):
            raise UserError(
                f"late is 'drop', or by event time the OutputTag of a side output, without "
                f"columns: late rows go there as they came: time={time!r} late={late!r}"
            )
        self._streams = streams
        self._schemas = rows.stream.schema, versions.stream.schema
        self._types = type_ddl(rows.stream.schema), type_ddl(versions.stream.schema)
        self._versioned = time == "event"
        self._outer = outer
        self._late = late if isinstance(late, OutputTag) else None

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
        """Apply a function to each row and its version; for arguments see `ConnectedStreams`.

        Raises:
            UserError: it is no `JoinFunction`; or see `ConnectedStreams.process`.
        """
        require_instance("a temporal join takes", JoinFunction, uid, function)
        row, version = self._types
        outer = self._outer
        operator: KeyedCoProcessFunction = LatestVersionJoin(function, version, outer=outer)
        if self._versioned:
            operator = VersionedJoin(function, row, version, outer=outer, late=self._late)
        sides = [*tags_of(uid, side_outputs), *self._late_output()]
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
            named: for each column of the result one of a side: ``rate="right.rate"``.

        Raises:
            UserError: a column is not there; or see `ConnectedStreams.process`.
        """
        output = select_columns(uid, named, self._schemas)
        row, version = self._types
        outer = self._outer
        pairs: KeyedBatchFunction = LatestPairs(version, named, outer=outer)
        if self._versioned:
            pairs = VersionedPairs(row, version, named, outer=outer, late=self._late)
        return self._streams.carry_out(
            pairs,
            uid=uid,
            output=output,
            null_key=null_key,
            bad_time=bad_time,
            side_outputs=self._late_output(),
        )

    def _late_output(self) -> list[OutputTag]:
        """The side output of late rows, with their columns."""
        late = self._late
        return [] if late is None else [OutputTag(late.name, ddl_of(self._schemas[0]))]
