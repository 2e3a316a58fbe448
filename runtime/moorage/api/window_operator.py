"""The window operator: rows into windows, results out of them, one row at a time.

What Flink's `WindowOperator` does, in its order: assign, merge, drop what is late, add, ask the
trigger, and forget a window once the watermark is `allowed_lateness` past it. `window_columns` does
the usual cases by whole columns, over the same state: under `window-contents` what is kept of a
window, under `window-count` what its trigger has counted, each by (start, end); and where windows
cannot be told from their ends, under `window-set` those that a key has. `docs/windows.md` has the
formats.
"""

import datetime
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any

from moorage.api.aggregates import Aggregates
from moorage.api.functions import (
    MAX_WATERMARK,
    KeyedProcessFunction,
    OfFunction,
    ProcessContext,
    RichFunction,
    RuntimeContext,
    TimerService,
)
from moorage.api.waiting_rows import row_settler
from moorage.api.windows import (
    LAST_TIME,
    MAX_TIME,
    ByEnd,
    Early,
    ProcessWindowFunction,
    TimeWindow,
    TriggerResult,
    WindowContext,
    Windowing,
    beyond,
)
from moorage_state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from moorage_state.errors import UserError
from moorage_state.keyed import TimeDomain

CONTENTS, COUNTED, WINDOWS = "window-contents", "window-count", "window-set"
"""Names of states; they are on disk."""

NAMESPACE = ("bigint", "bigint")
"""A window in a stored key: its start and its end."""

WINDOW_SET = "array<struct<start:bigint,end:bigint,state_start:bigint,state_end:bigint>>"
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)
FIRST_KNOWN = (datetime.datetime.min.replace(tzinfo=datetime.UTC) - _EPOCH) // _MILLISECOND
LAST_KNOWN = (datetime.datetime.max.replace(tzinfo=datetime.UTC) - _EPOCH) // _MILLISECOND
"""The times of the years 1 to 9999, beyond which Python knows none."""

_END = attrgetter("end")
_EVENT, _PROCESSING = TimeDomain.EVENT_TIME, TimeDomain.PROCESSING_TIME


def closed_until(now_ms: int, watermark: int) -> int:
    """The end of the last window of processing time that gets no more rows.

    Timers come before the rows of their key, and an epoch has one time: those of a window's last
    millisecond are still to come when its timer is due. So it waits for the millisecond after it,
    as each of Flink's timers of processing time does, unless the input has ended.
    """
    return now_ms if watermark < MAX_WATERMARK else MAX_TIME


class Contents:
    """What is kept of a window's rows, and what comes out of it.

    Attributes:
        descriptor: of the state; it has `get`, `add` and `clear`, and merges.
        function: of the job's author; where there is none, one that does nothing.
    """

    descriptor: StateDescriptor
    function = RichFunction()

    def results(self, kept: Any, ctx: WindowContext) -> Iterable[Any] | None:
        """The output rows of a window that fires."""
        raise NotImplementedError


class Aggregated(Contents):
    """One accumulator; a row of key, window and aggregates comes out."""

    def __init__(self, aggregates: Aggregates, *, timed: bool) -> None:
        self.aggregates = aggregates
        self.timed = timed
        self.descriptor = AggregatingStateDescriptor(CONTENTS, aggregates.ddl, aggregates)

    def results(self, kept: Any, ctx: WindowContext) -> Iterable[Any]:
        """See `Contents`."""
        key = ctx.key if isinstance(ctx.key, tuple) else (ctx.key,)
        window = map(_instant, ctx.window) if self.timed else ()
        return [(*key, *window, *kept)]


class Reduced(Contents):
    """One row; it comes out."""

    def __init__(self, row: str, function: Callable[[Any, Any], Any]) -> None:
        self.descriptor = ReducingStateDescriptor(CONTENTS, row, function)

    def results(self, kept: Any, ctx: WindowContext) -> Iterable[Any]:  # noqa: ARG002
        """See `Contents`."""
        return [tuple(kept)]


class Collected(Contents):
    """All rows; what a function makes of them comes out."""

    def __init__(self, row: str, function: ProcessWindowFunction) -> None:
        self.function: ProcessWindowFunction = function
        self.descriptor = ListStateDescriptor(CONTENTS, row)

    def results(self, kept: Any, ctx: WindowContext) -> Iterable[Any] | None:
        """See `Contents`."""
        rows = list(kept)
        return self.function.process(ctx.key, ctx, rows) if rows else None


def _instant(time_ms: int) -> datetime.datetime:
    return _EPOCH + time_ms * _MILLISECOND


class _Turn:
    """What a trigger sees of the window whose turn it is; see `TriggerContext`."""

    def __init__(self, service: TimerService, domain: TimeDomain | None, counted: Any) -> None:
        self._service = service
        self._counted = counted
        self.domain = domain
        self.watermark = service.current_watermark()
        self.now_ms = service.current_processing_time()

    def register(self, time_ms: int, domain: TimeDomain) -> None:
        if domain is _EVENT:
            self._service.register_event_time_timer(time_ms)
        else:
            self._service.register_processing_time_timer(time_ms)

    def counted(self, most: int) -> bool:
        self._counted.add(1)
        if self._counted.get() < most:
            return False
        self._counted.clear()
        return True


class _WindowSet:
    """The windows that the current key has, each with the window whose state it goes by.

    Windows that merge go on with the state of the first of them: only that of others moves. What
    the first row or timer of a key's turn has read is there for the others.
    """

    def __init__(self, state: Any) -> None:
        self._state = state
        self._key: Any = None
        self._homes: dict[TimeWindow, TimeWindow] = {}
        # None lies in another, and others have one size: they end in the order in which they begin.
        self._in_order: list[TimeWindow] = []

    def turn_of(self, key: Any) -> None:
        """Which key is the current one."""
        if key == self._key:
            return
        stored = self._state.value() or ()
        self._homes = {TimeWindow(*one[:2]): TimeWindow(*one[2:]) for one in stored}
        self._in_order = list(self._homes)
        self._key = key

    def __contains__(self, window: TimeWindow) -> bool:
        return window in self._homes

    def all(self) -> dict[TimeWindow, TimeWindow]:
        """The windows, earliest first, as they are now."""
        return {window: self._homes[window] for window in self._in_order}

    def met_by(self, window: TimeWindow) -> list[TimeWindow]:
        """Those with which it becomes one, earliest first."""
        until = bisect_left(self._in_order, (window.end + 1,))
        first = bisect_left(self._in_order, window.start, key=_END)
        return self._in_order[first:until]

    def ending_at(self, end: int) -> dict[TimeWindow, TimeWindow]:
        """Those that end then."""
        first = bisect_left(self._in_order, end, key=_END)
        until = bisect_left(self._in_order, end + 1, key=_END)
        return {window: self._homes[window] for window in self._in_order[first:until]}

    def over_before(self, end: int) -> dict[TimeWindow, TimeWindow]:
        """Those that end before."""
        until = bisect_left(self._in_order, end, key=_END)
        found = self._in_order[:until]
        # After a change of the size there may be two sizes, and so ends that are in no order.
        return {window: self._homes[window] for window in found if window.end < end}

    def add(self, window: TimeWindow, home: TimeWindow) -> None:
        """There is another one."""
        insort(self._in_order, window)
        self._homes[window] = home
        self._state.update_when_done(self._stored)

    def remove(self, window: TimeWindow) -> TimeWindow:
        """One is gone, or has become another; gives the one whose state it went by."""
        del self._in_order[bisect_left(self._in_order, window)]
        self._state.update_when_done(self._stored)
        return self._homes.pop(window)

    def _stored(self) -> list[tuple[int, ...]] | None:
        return [(*window, *self._homes[window]) for window in self._in_order] or None


class WindowOperator(ByEnd, OfFunction, KeyedProcessFunction):
    """Puts rows into windows and gives their results."""

    def __init__(self, windows: Windowing, contents: Contents) -> None:
        super().__init__(contents.function)
        self._windows = windows
        self._what = contents
        self._assigner, self._trigger = windows.assigner, windows.trigger
        self.by_end = windows.by_end
        self._domain = windows.assigner.domain

    def open_epoch(self, ctx: RuntimeContext) -> None:
        """Get the states."""
        self._contents = ctx.get_namespaced_state(self._what.descriptor, NAMESPACE)
        self._counts: Any = None
        self._set: Any = None
        if self._trigger.counts:
            descriptor = ReducingStateDescriptor(COUNTED, "bigint", "sum")
            self._counts = ctx.get_namespaced_state(descriptor, NAMESPACE)
        if self._assigner.merges or self._trigger.wakes:
            self._set = _WindowSet(ctx.get_state(ValueStateDescriptor(WINDOWS, WINDOW_SET)))
        # The function of `reduce` is given those that come beside those that were kept.
        reduces = isinstance(self._what, Reduced)
        self._settle = row_settler(self._what.descriptor.type) if reduces else None
        super().open_epoch(ctx)

    # -- rows ----------------------------------------------------------------------------------

    def process(self, row: Any, ctx: ProcessContext) -> Iterator[Any]:
        """Add a row to its windows; results of those that fire with it."""
        service = ctx.timer_service()
        at = ctx.timestamp() if self._domain is _EVENT else service.current_processing_time()
        if at is None:
            raise UserError(
                "a row without event time has no window: declare with_event_time for every input "
                "of a union, or take time='processing'"
            )
        if not -LAST_TIME <= at <= LAST_TIME:
            raise beyond(at)
        watermark, kept = service.current_watermark(), False
        for window in self._assigner.assign(at):
            # Refused with the row: a window that is stored could never tell Python its times.
            known = FIRST_KNOWN <= window.start < window.end <= LAST_KNOWN
            if self._domain is not None and not known:
                raise beyond(at)
            if self._assigner.merges:
                home = self._merged(window, ctx)
            else:
                home = None if self._is_late(window, watermark) else (window, window)
            if home is None:
                continue
            kept = True
            yield from self._add(row, *home, ctx)
        if kept or self._domain is not _EVENT or at + self._windows.lateness_ms > watermark:
            return
        if (late := self._windows.late) is not None:
            yield late, tuple(row)
        else:
            self.late_rows_dropped += 1

    def _add(
        self, row: Any, window: TimeWindow, home: TimeWindow, ctx: ProcessContext
    ) -> Iterator[Any]:
        contents = self._contents.set_current_namespace(home)
        contents.add(row if self._settle is None else self._settle(row))
        turn = self._turn(home, ctx)
        if self._set is not None and not self._assigner.merges:
            self._remember(window, ctx.key)
        result = self._trigger.on_element(window, turn)
        yield from self._carried_out(result, window, contents, ctx)
        gone = self._gone_at(window)
        # One that is late is here for its former lateness, whose timer it goes with: a timer in the
        # past would be that of its end, and give its result once more.
        late = self._is_late(window, turn.watermark)
        if self._domain is not None and gone < MAX_TIME and not late:
            turn.register(gone, self._domain)
        if self._lateness and window.max_timestamp > turn.watermark:
            # Whatever this trigger does then: that of the next version may give results at the end.
            turn.register(window.max_timestamp, _EVENT)

    def _remember(self, window: TimeWindow, key: Any) -> None:
        self._set.turn_of(key)
        if window not in self._set:
            self._set.add(window, window)

    def _merged(
        self, window: TimeWindow, ctx: ProcessContext
    ) -> tuple[TimeWindow, TimeWindow] | None:
        """The window that a new one becomes one with, and whose state it has; None if late."""
        self._set.turn_of(ctx.key)
        met = self._set.met_by(window)
        if not met:
            if self._is_late(window, ctx.timer_service().current_watermark()):
                return None
            self._set.add(window, window)
            return window, window
        starts, ends = zip(*met, strict=True)
        whole = TimeWindow(min(window.start, *starts), max(window.end, *ends))
        if met == [whole]:
            return whole, self._set.ending_at(whole.end)[whole]
        home, *others = [self._set.remove(one) for one in met]
        self._set.add(whole, home)
        self._forget_timers(met, ctx.timer_service())
        if others:
            self._contents.merge_namespaces(home, others)
            if self._counts is not None:
                self._counts.merge_namespaces(home, others)
        self._trigger.on_merge(whole, self._turn(home, ctx))
        return whole, home

    def _forget_timers(self, gone: Iterable[TimeWindow], service: TimerService) -> None:
        for window in gone:
            for time in {window.max_timestamp, self._gone_at(window)}:
                if self._ending(time):
                    continue
                if self._domain is _EVENT:
                    service.delete_event_time_timer(time)
                else:
                    service.delete_processing_time_timer(time)

    # -- timers --------------------------------------------------------------------------------

    def on_timer(self, timestamp: int, ctx: ProcessContext) -> Iterator[Any]:
        """Results of windows that end, or whose trigger wakes; windows that are over are gone."""
        domain: Any = ctx.time_domain()
        if self._set is not None:
            self._set.turn_of(ctx.key)
        # Of a trigger that sets timers of its own any window may have set this one.
        own = self._trigger.wakes and not (type(self._trigger) is Early and domain is _EVENT)
        known = self._ending(timestamp) | (self._set.all() if own else {})
        for window, home in known.items():
            contents = self._contents.set_current_namespace(home)
            turn, at = self._turn(home, ctx), timestamp
            if domain is self._domain is _PROCESSING and window.end - 1 <= timestamp <= window.end:
                if window.end > closed_until(turn.now_ms, turn.watermark):
                    turn.register(window.end, _PROCESSING)
                    continue
                at = window.max_timestamp
            result = self._trigger.on_timer(at, domain, window, turn)
            yield from self._carried_out(result, window, contents, ctx)
            if domain is self._domain and at == self._gone_at(window):
                self._forget(window, home)
            elif domain is self._domain and at == window.max_timestamp:
                self._stay_for_late_rows(window, contents, domain, turn)
        if self._set is not None and domain is self._domain:
            # No timer finds them: they ended under another trigger, or had another lateness.
            for window, home in self._set.over_before(timestamp + 1 - self._lateness).items():
                self._forget(window, home)

    def _stay_for_late_rows(
        self, window: TimeWindow, contents: Any, domain: Any, turn: _Turn
    ) -> None:
        """Set the timer that it goes with, which is set unless the lateness was another before.

        Not of a window that holds nothing: what fires at its end may be the timer of another one.
        """
        gone = self._gone_at(window)
        if gone < MAX_TIME and any(True for _ in contents.get() or ()):
            turn.register(gone, domain)

    def _forget(self, window: TimeWindow, home: TimeWindow) -> None:
        self._contents.set_current_namespace(home).clear()
        if self._counts is not None:
            self._counts.set_current_namespace(home).clear()
        if self._set is not None and window in self._set:
            self._set.remove(window)

    def _ending(self, timestamp: int) -> dict[TimeWindow, TimeWindow]:
        """The windows that end then, or are gone then; of those that are not kept, that may."""
        # Of processing time some end a millisecond after their timer, see `closed_until`.
        before = 1 if self._domain is _PROCESSING else self._lateness
        ends = (timestamp + 1 - before, timestamp + 1)
        known: dict[TimeWindow, TimeWindow] = {}
        if self._set is not None:
            known = self._set.ending_at(ends[0]) | self._set.ending_at(ends[1])
        if not self._assigner.merges:
            # Those, too, that are in no set: they are from before the trigger was one that wakes.
            assigners = (self._assigner, *self.earlier)
            found = [one.ending_at(end) for one in assigners for end in ends]
            known |= {window: window for window in found if window is not None}
        return known

    # -- both ----------------------------------------------------------------------------------

    def _carried_out(
        self, result: TriggerResult, window: TimeWindow, contents: Any, ctx: ProcessContext
    ) -> Iterator[Any]:
        try:
            fires, purges = TriggerResult.FIRE in result, TriggerResult.PURGE in result
        except TypeError:
            raise UserError(
                f"a trigger answers with a TriggerResult: trigger={type(self._trigger).__name__} "
                f"got={result!r:.100}; return TriggerResult.CONTINUE, FIRE, PURGE or FIRE_AND_PURGE"
            ) from None
        if fires and (kept := contents.get()) is not None:
            service = ctx.timer_service()
            made = self._what.results(
                kept,
                WindowContext(
                    ctx.key,
                    window,
                    service.current_watermark(),
                    service.current_processing_time(),
                    ctx.output,
                ),
            )
            yield from made or ()
        if purges:
            contents.clear()

    def _turn(self, home: TimeWindow, ctx: ProcessContext) -> _Turn:
        counted = self._counts.set_current_namespace(home) if self._counts is not None else None
        return _Turn(ctx.timer_service(), self._domain, counted)

    @property
    def _lateness(self) -> int:
        return self._windows.lateness_ms if self._domain is _EVENT else 0

    def _gone_at(self, window: TimeWindow) -> int:
        """When nothing can change the window any more."""
        return min(MAX_TIME, window.max_timestamp + self._lateness)

    def _is_late(self, window: TimeWindow, watermark: int) -> bool:
        return self._domain is _EVENT and self._gone_at(window) <= watermark
