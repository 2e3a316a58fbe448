"""A keyed stream in windows, waiting to be told what is done with them.

What `KeyedStream.window` gives. Called by job files.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from moorage.api.aggregates import Aggregate, bound
from moorage.api.declarations import ddl_of, misfit_of, require_instance, tags_of, type_ddl
from moorage.api.misplaced import OF_WINDOWS, Unfinished
from moorage.api.window_columns import by_column
from moorage.api.window_operator import Aggregated, Collected, Contents, Reduced, WindowOperator
from moorage.api.windows import ProcessWindowFunction, Windowing
from moorage_state.errors import UserError
from moorage_state.keyed import TimeDomain

if TYPE_CHECKING:
    from moorage.api.functions import OutputTag
    from moorage.api.streams import DataStream, KeyedStream

TIME_COLUMNS = ("window_start", "window_end")


class WindowedStream(Unfinished):
    """A keyed stream whose rows are put into windows: say what is done with them."""

    call_first = 'aggregate(uid="...", n=count()), reduce or process'
    instead = OF_WINDOWS

    def __init__(self, keyed: "KeyedStream", windows: Windowing) -> None:
        self._keyed = keyed
        self._windows = windows

    def aggregate(
        self,
        *,
        uid: str,
        null_key: "str | OutputTag" = "fail",
        bad_time: "str | OutputTag" = "fail",
        **named: Aggregate,
    ) -> "DataStream":
        """One row for a window that fires: its key, `window_start`, `window_end`, the aggregates.

        Windows of `Count` and `Global` have no times, so these two columns are missing. The event
        time of a result of event-time windows is the last millisecond of its window.

        Args:
            uid: the operator's stable name.
            null_key, bad_time: see `KeyedStream.process`.
            named: for each column of the result its aggregate: `count()`, `sum_("v")`,
                `min_("v")`, `max_("v")` or `avg("v")`.

        Raises:
            UserError: there is no aggregate, or one of a column that is not there or of another
                type, or two columns have one name; or see `KeyedStream.process`.
        """
        stream = self._keyed.stream.schema
        timed = self._windows.assigner.domain is not None
        times = TIME_COLUMNS if timed else ()
        if clash := [name for name in self._keyed.columns if name.lower() in times]:
            raise UserError(
                f"results of windows have columns window_start and window_end, and the key has "
                f"one of this name: uid={uid} key={clash}; name it otherwise before key_by, in "
                f"transform or in a function, or leave window() out: results of a window are in "
                f"it already"
            )
        aggregates = bound(uid, named, stream, (*self._keyed.columns, *times))
        columns = [f"{name} timestamp" for name in times]
        columns = [ddl_of(stream, self._keyed.columns), *columns, aggregates.output]
        contents = Aggregated(aggregates, timed=timed)
        made = self._operator(contents, uid, ", ".join(columns), null_key, bad_time)
        if self._windows.assigner.domain is not TimeDomain.EVENT_TIME:
            return made
        return made.timed_by("window_end", shift_ms=-1, window_start="window_start")

    def reduce(
        self,
        function: Callable[[Any, Any], Any],
        *,
        uid: str,
        null_key: "str | OutputTag" = "fail",
        bad_time: "str | OutputTag" = "fail",
    ) -> "DataStream":
        """One row for a window that fires: its rows, reduced two by two.

        Args:
            function: of two rows, named tuples of the stream's columns; it gives such a row, or a
                tuple or a dict. It is associative and changes neither.
            null_key, bad_time: see `KeyedStream.process`.

        Raises:
            UserError: it is no function; or see `KeyedStream.process`.
        """
        if not callable(function):
            raise UserError(f"reduce takes a function of two rows: uid={uid} got={function!r:.100}")
        if why := misfit_of(function, ["one", "other"]):
            raise UserError(
                f"reduce takes a function of two rows: uid={uid} got={function!r:.100}: {why}; "
                f"write lambda one, other: ..."
            )
        stream = self._keyed.stream.schema
        contents = Reduced(type_ddl(stream), function)
        return self._operator(contents, uid, ddl_of(stream), null_key, bad_time)

    def process(
        self,
        function: ProcessWindowFunction,
        *,
        uid: str,
        output: str,
        null_key: "str | OutputTag" = "fail",
        bad_time: "str | OutputTag" = "fail",
        side_outputs: "Sequence[OutputTag]" = (),
    ) -> "DataStream":
        """What a function makes of all rows of a window that fires.

        Args:
            output: DDL of the rows that the function gives.
            null_key, bad_time, side_outputs: see `KeyedStream.process`.

        Raises:
            UserError: it is no `ProcessWindowFunction`; or see `KeyedStream.process`.
        """
        require_instance("process of a window takes", ProcessWindowFunction, uid, function)
        row = type_ddl(self._keyed.stream.schema)
        contents = Collected(row, function)
        return self._operator(contents, uid, output, null_key, bad_time, side_outputs)

    def _operator(
        self,
        contents: Contents,
        uid: str,
        output: str,
        null_key: "str | OutputTag",
        bad_time: "str | OutputTag",
        side_outputs: "Sequence[OutputTag]" = (),
    ) -> "DataStream":
        sides, late = tags_of(uid, side_outputs), self._windows.late
        if late is not None and late.ddl is not None:
            raise UserError(
                f"late rows go to a side output as they came, so it has the columns of the stream; "
                f"leave out its DDL: uid={uid} late={late.name} ddl={late.ddl!r}"
            )
        if late is not None and late not in sides:
            sides.append(late)
        by_columns = by_column(self._windows, contents, self._keyed.columns)
        function = by_columns or WindowOperator(self._windows, contents)
        return self._keyed.process(
            function,
            uid=uid,
            output=output,
            null_key=null_key,
            bad_time=bad_time,
            side_outputs=sides,
        )
