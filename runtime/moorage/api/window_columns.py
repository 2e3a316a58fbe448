"""The window operator by whole columns: aggregates of windows that end by time, or are counted.

Does what `window_operator` does one row at a time, over the same state, for the usual cases:
`Tumbling`, `Sliding`, `Session` and `Count` with their own triggers.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from moorage.api.aggregate_columns import AggregateColumns, Column
from moorage.api.aggregates import LocalAggregate
from moorage.api.functions import OutputTag, RuntimeContext
from moorage.api.vectorized import BatchContext, DueTimers, KeyedBatchFunction
from moorage.api.window_operator import (
    CONTENTS,
    COUNTED,
    NAMESPACE,
    WINDOW_SET,
    WINDOWS,
    Aggregated,
    closed_until,
)
from moorage.api.window_times import Numbers, Pairs, WindowTimes, instants, row_times
from moorage.api.windows import (
    GLOBAL_WINDOW,
    MIN_TIME,
    AtEnd,
    ByEnd,
    Count,
    EachCount,
    Session,
    Sliding,
    TimeWindow,
    Windowing,
)
from moorage_state.columnar.arrow import arrow_type
from moorage_state.descriptors import (
    AggregatingStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from moorage_state.keyed import TimeDomain
from moorage_state.types import parse_type


def by_column(
    windows: Windowing, contents: Any, key_columns: tuple[str, ...]
) -> KeyedBatchFunction | None:
    """The operator by columns, where it can do what was asked for."""
    if not isinstance(contents, Aggregated):
        return None
    assigner, trigger = windows.assigner, windows.trigger
    if isinstance(assigner, Sliding) and type(trigger) is AtEnd:
        return TimeWindows(windows, contents, key_columns)
    if isinstance(assigner, Session) and type(trigger) is AtEnd:
        return SessionWindows(windows, contents, key_columns)
    if isinstance(assigner, Count) and isinstance(trigger, EachCount) and trigger.purge:
        return CountWindows(trigger.count, contents, key_columns)
    return None


class _Columns(KeyedBatchFunction):
    """What they have in common.

    Attributes:
        contents: handle of what is kept of windows.
    """

    def __init__(
        self, contents: Aggregated, key_columns: tuple[str, ...], late: OutputTag | None = None
    ) -> None:
        self._key_columns = key_columns
        self._aggregates = contents.aggregates
        self._columns = AggregateColumns(contents.aggregates)
        # Late rows go aside as they came.
        self.reads = contents.aggregates.columns if late is None else None

    def open(self, ctx: RuntimeContext) -> None:
        """Get the state."""
        descriptor = AggregatingStateDescriptor(CONTENTS, self._aggregates.ddl, self._aggregates)
        self.contents = ctx.get_namespaced_state(descriptor, NAMESPACE)

    def table(self, keys: pa.Array, index: Numbers, columns: dict[str, pa.Array]) -> pa.Table:
        """Rows of keys and what there is beside them."""
        mine = keys.take(pa.array(index))
        parts = [mine] if len(self._key_columns) == 1 else mine.flatten()
        return pa.table({**dict(zip(self._key_columns, parts, strict=True)), **columns})

    def timed(
        self,
        keys: pa.Array,
        index: Numbers,
        starts: Numbers,
        ends: Numbers,
        kept: Sequence[Column],
    ) -> pa.Table:
        """Results of windows."""
        times = {"window_start": instants(starts), "window_end": instants(ends)}
        return self.table(keys, index, times | self._columns.results(kept))


class TimeWindows(ByEnd, _Columns):
    """Aggregates of windows of one size."""

    def __init__(
        self, windows: Windowing, contents: Aggregated, key_columns: tuple[str, ...]
    ) -> None:
        super().__init__(contents, key_columns, windows.late)
        self._windows = WindowTimes(windows)
        self.by_end = windows.by_end
        self._late: OutputTag | None = windows.late
        self._parts = contents.aggregates.parts

    @property
    def local(self) -> LocalAggregate | None:
        """How rows may be added up before they come; None where each is needed by itself."""
        # A late row that still counts gives a result of its own.
        if self._late is not None or self._windows.lateness or self._windows.pane is None:
            return None
        if not all(part.adds_up for part in self._parts):
            return None
        return LocalAggregate(self._parts, *self._windows.pane)

    def process_batch(
        self, keys: pa.Array, table: pa.RecordBatch, ctx: BatchContext
    ) -> Iterator[Any]:
        """Add rows to their windows; results of those that are over."""
        windows = self._windows
        times = row_times(table.num_rows, ctx, windows.reach, by_event=windows.by_event)
        late = self._windows.late(times, ctx.current_watermark())
        if late is not None and self._late is None:
            counts = ctx.counts
            self.late_rows_dropped += int(late.sum() if counts is None else counts[late].sum())
        elif late is not None and late.any():
            yield self._late, table.filter(pa.array(late))
        for span in self._windows.spans(table.num_rows):
            yield from self._rows(keys, table, times, span, ctx)

    def _rows(
        self,
        keys: pa.Array,
        table: pa.RecordBatch,
        times: Numbers,
        span: range,
        ctx: BatchContext,
    ) -> Iterator[pa.Table]:
        """Add some rows to those of their windows that are not gone."""
        some, watermark = slice(span.start, span.stop), ctx.current_watermark()
        table = table.slice(span.start, len(span))
        pairs = self._windows.assigned(ctx.key_index[some], times[some], watermark)
        if self._windows.lateness and len(pairs.keys):
            over = pairs.starts + (self._windows.size - 1) <= watermark
            if over.any():
                yield self._add_late(keys, table, pairs.where(over), ctx)
                pairs = pairs.where(~over)
        self._add(table, None if ctx.counts is None else ctx.counts[some], pairs, ctx)

    def on_timers(self, keys: pa.Array, timers: DueTimers, ctx: BatchContext) -> Iterator[Any]:
        """Results of windows that end; those that are gone are forgotten."""
        windows = self._windows
        if timers.domain is not windows.domain:
            return
        index, starts, ends = windows.over(timers, ctx, self.earlier)
        if len(index):
            column = ctx.get_namespaced_values(self.contents, index, starts, ends)
            if column.null_count < len(column):
                there = np.asarray(column.is_valid())
                kept = self._columns.stored(column.filter(pa.array(there)))
                ended = ends[there]
                if windows.lateness:
                    # They are set already, unless the lateness was another when the last row came.
                    gone_at = ended + (windows.lateness - 1)
                    stays = gone_at > ctx.current_watermark()
                    ctx.register_timers(index[there][stays], gone_at[stays], windows.domain)
                yield self.timed(keys, index[there], starts[there], ended, kept)
            if windows.lateness:
                # At once: a due timer that is set again is taken for the end of another window.
                over = ends + (windows.lateness - 1) <= ctx.current_watermark()
                index, starts, ends = index[over], starts[over], ends[over]
            self._clear(index, starts, ends, ctx)
        if windows.lateness:
            self._clear(*windows.ending(timers, windows.lateness, self.earlier), ctx)

    def _clear(self, index: Numbers, starts: Numbers, ends: Numbers, ctx: BatchContext) -> None:
        nothing = pa.nulls(len(index), self._columns.type)
        ctx.put_namespaced_values(self.contents, index, starts, ends, column=nothing)

    def _add(
        self, table: pa.RecordBatch, counts: Numbers | None, pairs: Pairs, ctx: BatchContext
    ) -> None:
        firsts = pairs.firsts()
        if not len(firsts):
            return
        index, starts = pairs.keys[firsts], pairs.starts[firsts]
        kept = self._columns.of_rows(table, pairs.rows, firsts, counts)
        ends = starts + self._windows.size
        stored = ctx.get_namespaced_values(self.contents, index, starts, ends)
        if stored.null_count < len(stored):
            kept = self._columns.merged(self._columns.stored(stored), kept)
        column = self._columns.column(kept)
        ctx.put_namespaced_values(self.contents, index, starts, ends, column=column)
        if stored.null_count:
            new = np.asarray(stored.is_null())
            self._wait(index[new], starts[new], ctx)

    def _wait(self, index: Numbers, starts: Numbers, ctx: BatchContext) -> None:
        """Set the timers of new windows."""
        ends, domain = starts + (self._windows.size - 1), self._windows.domain
        ctx.register_timers(index, ends, domain)
        if self._windows.lateness:
            ctx.register_timers(index, ends + self._windows.lateness, domain)

    def _add_late(
        self, keys: pa.Array, table: pa.RecordBatch, pairs: Pairs, ctx: BatchContext
    ) -> pa.Table:
        """Add late rows that still count, with a result after each."""
        firsts, count, size = pairs.firsts(), len(pairs.keys), self._windows.size
        index, starts = pairs.keys[firsts], pairs.starts[firsts]
        ends = starts + size
        stored = ctx.get_namespaced_values(self.contents, index, starts, ends)
        each = self._columns.of_rows(table, pairs.rows, np.arange(count))
        before = self._columns.spread(self._columns.stored(stored), firsts, count)
        lengths = np.diff(firsts, append=count)
        nth = np.arange(count) - np.repeat(firsts, lengths)
        after = self._columns.running(self._columns.merged(before, each), nth)
        column = self._columns.column(self._columns.picked(after, firsts + lengths - 1))
        ctx.put_namespaced_values(self.contents, index, starts, ends, column=column)
        new = np.asarray(stored.is_null())
        gone = ends[new] - 1 + self._windows.lateness
        ctx.register_timers(index[new], gone, self._windows.domain)
        return self.timed(keys, pairs.keys, pairs.starts, pairs.starts + size, after)


class _Session(NamedTuple):
    """A session of a key while rows are added.

    Attributes:
        home: the window under which it is stored.
        parts: what it is made of: positions of groups of new rows; less than zero what is stored.
            Added to, and nothing else: what a session was made of once is how it begins.
    """

    home: TimeWindow
    parts: list[int]


_Place = tuple[int, TimeWindow]
"""The position of a key, and a window of it."""


class _Sessions:
    """The sessions of a chunk's keys, while rows are added to them.

    Attributes:
        stored: those that were there; the first one is the part -1.
        gone: those of them that went on in others.
        fired: what is made of sessions that are over and got a row: key, window, parts, and how
            many of these there were then.
    """

    def __init__(self, sets: Iterable[Any], gap_over: Callable[[int], bool]) -> None:
        self._over = gap_over
        self.stored: list[_Place] = []
        self.gone: list[_Place] = []
        self.fired: list[tuple[int, TimeWindow, list[int], int]] = []
        self.before: dict[int, list[TimeWindow]] = {}
        self.known: list[dict[TimeWindow, _Session]] = []
        self._in_order: list[list[TimeWindow]] = []
        for index, windows in enumerate(map(_window_set, sets)):
            mine: dict[TimeWindow, _Session] = {}
            for window, home in windows.items():
                self.stored.append((index, home))
                mine[window] = _Session(home, [-len(self.stored)])
            self.known.append(mine)
            self._in_order.append(sorted(mine))

    def add(self, index: int, window: TimeWindow, part: int, *, late: bool, lost: bool) -> bool:
        """Add rows that share a session, which may join others; False: it is gone already.

        Args:
            late: it is one row that came when a session of it alone would be over.
            lost: and gone.
        """
        known, in_order = self.known[index], self._in_order[index]
        # None lies in another, so they end in the order in which they begin.
        until = bisect_left(in_order, (window.end + 1,))
        first = until
        while first and in_order[first - 1].end >= window.start:
            first -= 1
        met = in_order[first:until]
        if not met and lost:
            return False
        self.before.setdefault(index, list(known))
        whole, session = window, _Session(window, [])
        if met:
            joined = [known.pop(one) for one in met]
            whole = TimeWindow(
                min(window.start, met[0].start), max(window.end, *(w.end for w in met))
            )
            session = joined[0]
            for one in joined[1:]:
                session.parts.extend(one.parts)
            self.gone += [(index, one.home) for one in joined[1:] if one.parts[0] < 0]
        session.parts.append(part)
        known[whole] = session
        in_order[first:until] = [whole]
        if late and self._over(whole.end - 1):
            self.fired.append((index, whole, session.parts, len(session.parts)))
        return True

    def changed(self) -> Iterator[tuple[int, TimeWindow, _Session]]:
        """Those that have new rows, or joined others."""
        for index in self.before:
            for window, session in self.known[index].items():
                if session.parts[-1] >= 0:
                    yield index, window, session


class SessionWindows(_Columns):
    """Aggregates of windows that end when for some time no row came."""

    def __init__(
        self, windows: Windowing, contents: Aggregated, key_columns: tuple[str, ...]
    ) -> None:
        super().__init__(contents, key_columns, windows.late)
        assigner: Any = windows.assigner
        self._gap, self._domain = assigner.gap_ms, assigner.domain
        self._by_event = assigner.domain is TimeDomain.EVENT_TIME
        self._lateness = windows.lateness_ms if self._by_event else 0
        self._late: OutputTag | None = windows.late

    def open(self, ctx: RuntimeContext) -> None:
        """Get the states."""
        super().open(ctx)
        self._set = ctx.get_state(ValueStateDescriptor(WINDOWS, WINDOW_SET))

    def _reach(self, time_ms: int) -> tuple[int, int]:
        return time_ms, time_ms + self._gap

    def process_batch(
        self, keys: pa.Array, table: pa.RecordBatch, ctx: BatchContext
    ) -> Iterator[Any]:
        """Add rows to their sessions; results of those that are over and got another row."""
        times = row_times(table.num_rows, ctx, self._reach, by_event=self._by_event)
        index = ctx.key_index
        watermark = ctx.current_watermark()
        late = np.full(len(times), self._by_event) & (times + (self._gap - 1) <= watermark)
        # Rows that come one after the other in one session are one group; late ones go alone, as
        # each of them may be dropped, or give a result.
        new = np.ones(len(times), bool)
        new[1:] = (index[1:] != index[:-1]) | late[1:] | late[:-1]
        new[1:] |= (times[1:] > times[:-1] + self._gap) | (times[1:] < times[:-1])
        firsts = np.flatnonzero(new)
        lasts = np.append(firsts[1:], len(times)) - 1
        sessions = _Sessions(ctx.get_values(self._set).to_pylist(), lambda at: at <= watermark)
        dropped: list[int] = []
        groups = zip(
            index[firsts].tolist(),
            times[firsts].tolist(),
            (times[lasts] + self._gap).tolist(),
            late[firsts].tolist(),
            strict=True,
        )
        for part, (key, start, end, is_late) in enumerate(groups):
            lost = is_late and end - 1 + self._lateness <= watermark
            window = TimeWindow(start, end)
            if not sessions.add(key, window, part, late=is_late, lost=lost):
                dropped.append(int(firsts[part]))
        if dropped and self._late is not None:
            yield self._late, table.take(pa.array(dropped))
        elif dropped:
            self.late_rows_dropped += len(dropped)
        yield from self._stored(keys, table, firsts, sessions, ctx)
        self._keep_sets(sessions.before, sessions.known, ctx)
        self._set_timers(sessions, watermark, ctx)

    def _stored(
        self,
        keys: pa.Array,
        table: pa.RecordBatch,
        firsts: Numbers,
        sessions: _Sessions,
        ctx: BatchContext,
    ) -> Iterator[pa.Table]:
        """Store what sessions have now; results of those that fired."""
        changed, fired = list(sessions.changed()), sessions.fired
        if not changed:
            return
        made = [one.parts for _, _, one in changed]
        # With those of sessions that went on in others afterwards.
        places = {id(parts): at for at, parts in enumerate(made)}
        for _, _, parts, _ in fired:
            if id(parts) not in places:
                places[id(parts)] = len(made)
                made.append(parts)
        lengths = np.fromiter(map(len, made), np.int64, len(made))
        starts = np.cumsum(lengths) - lengths
        together = self._parts(table, firsts, list(chain.from_iterable(made)), sessions, ctx)
        if fired:
            # After each row: what it was then is how what it is now begins.
            nth = np.arange(int(lengths.sum())) - np.repeat(starts, lengths)
            together = self._columns.running(together, nth)
            mine = self._columns.picked(together, (starts + lengths - 1)[: len(changed)])
        else:
            mine = self._columns.reduced(together, starts)
        if sessions.gone:
            self._put_cells(sessions.gone, pa.nulls(len(sessions.gone), self._columns.type), ctx)
        homes = [(index, one.home) for index, _, one in changed]
        self._put_cells(homes, self._columns.column(mine), ctx)
        if fired:
            index, begins, ends = _cells([(index, window) for index, window, _, _ in fired])
            at = [int(starts[places[id(parts)]]) + count - 1 for _, _, parts, count in fired]
            late = self._columns.picked(together, np.array(at, np.int64))
            yield self.timed(keys, index, begins, ends, late)

    def _parts(
        self,
        table: pa.RecordBatch,
        firsts: Numbers,
        wanted: Sequence[int],
        sessions: _Sessions,
        ctx: BatchContext,
    ) -> list[Column]:
        """What parts of sessions hold, see `_Session`: groups of rows, or what is stored."""
        parts = np.array(wanted, np.int64)
        used = np.unique(-1 - parts[parts < 0])
        kept = self._columns.of_rows(table, None, firsts)
        if len(used):
            cells = _cells([sessions.stored[at] for at in used.tolist()])
            stored = self._columns.stored(ctx.get_namespaced_values(self.contents, *cells))
            kept = self._columns.appended(kept, stored)
        # What is stored lies behind the new groups, in the order of `used`.
        places = np.where(parts < 0, len(firsts) + np.searchsorted(used, -1 - parts), parts)
        return self._columns.picked(kept, places)

    def _set_timers(self, sessions: _Sessions, watermark: int, ctx: BatchContext) -> None:
        """Set timers of new windows; those of windows that became others go."""
        set_at: list[tuple[int, int]] = []
        deleted: list[tuple[int, int]] = []
        for index, before in sessions.before.items():
            known = sessions.known[index]
            needed = {at for window in known for at in self._times_of(window)}
            old = {at for window in before for at in self._times_of(window)}
            deleted += [(index, at) for at in sorted(old - needed)]
            # Of one that got a late row only its end as such is still to come.
            over = watermark if self._by_event else MIN_TIME
            set_at += [(index, at) for at in sorted(needed - old) if at > over]
        if deleted:
            ctx.delete_timers(*_columns_of(deleted), self._domain)
        if set_at:
            ctx.register_timers(*_columns_of(set_at), self._domain)

    def _times_of(self, window: TimeWindow) -> tuple[int, ...]:
        """When it ends, and when it is gone."""
        return window.end - 1, window.end - 1 + self._lateness

    def on_timers(self, keys: pa.Array, timers: DueTimers, ctx: BatchContext) -> Iterator[Any]:
        """Results of sessions that end; those that are gone are forgotten."""
        if timers.domain is not self._domain:
            return
        positions = np.unique(timers.key_index)
        sets = ctx.get_values(self._set, positions).to_pylist()
        known = dict(zip(positions.tolist(), map(_window_set, sets), strict=True))
        watermark = ctx.current_watermark()
        closed = closed_until(ctx.current_processing_time(), watermark)
        ended, gone, waiting = self._due(known, timers, watermark, closed)
        if waiting:
            ctx.register_timers(*_columns_of(waiting), self._domain)
        gone += [(key, known[key].pop(window)) for key, window in self._left_over(known, timers)]
        if ended:
            homes = _cells([(key, home) for key, _, home in ended])
            column = ctx.get_namespaced_values(self.contents, *homes)
            there = np.asarray(column.is_valid())
            index, starts, ends = _cells([(key, window) for key, window, _ in ended])
            if self._lateness:
                # As in `TimeWindows`.
                gone_at = ends + (self._lateness - 1)
                stays = gone_at > watermark
                ctx.register_timers(index[stays], gone_at[stays], self._domain)
            kept = self._columns.stored(column.filter(pa.array(there)))
            yield self.timed(keys, index[there], starts[there], ends[there], kept)
        if gone:
            self._put_cells(gone, pa.nulls(len(gone), self._columns.type), ctx)
            changed = sorted({key for key, _ in gone})
            ctx.put_values(self._set, _set_column([known[key] for key in changed]), changed)

    def _due(
        self,
        known: Mapping[int, dict[TimeWindow, TimeWindow]],
        timers: DueTimers,
        watermark: int,
        closed: int,
    ) -> tuple[list[tuple[int, TimeWindow, TimeWindow]], list[_Place], list[tuple[int, int]]]:
        """Sessions that end, each with its home, and the homes of those that are gone.

        The latter are taken out of `known`. And by key when those end that are in their last
        millisecond, see `closed_until`.
        """
        waiting: list[tuple[int, int]] = []
        due = self._by_times(known)
        ended: list[tuple[int, TimeWindow, TimeWindow]] = []
        gone: list[_Place] = []
        for key, at in zip(timers.key_index.tolist(), timers.times.tolist(), strict=True):
            for window in due[key, at]:
                home = known[key].get(window)
                if home is None:
                    continue  # it went with its end
                end, over = self._times_of(window)
                if not self._by_event and window.end > closed:
                    waiting.append((key, window.end))
                    continue
                if at == end or not self._by_event:
                    ended.append((key, window, home))
                if at == over or over <= watermark or not self._by_event:
                    gone.append((key, home))
                    del known[key][window]
        return ended, gone, waiting

    def _left_over(
        self, known: Mapping[int, Iterable[TimeWindow]], timers: DueTimers
    ) -> list[_Place]:
        """The windows that no timer finds: they had ended when the lateness was another."""
        last = dict(zip(timers.key_index.tolist(), timers.times.tolist(), strict=True))
        return [
            (key, window)
            for key, at in last.items()
            for window in known[key]
            if self._times_of(window)[1] < at
        ]

    def _by_times(
        self, known: Mapping[int, Iterable[TimeWindow]]
    ) -> dict[tuple[int, int], list[TimeWindow]]:
        """The windows of each key by when they end, and are gone."""
        found: dict[tuple[int, int], list[TimeWindow]] = defaultdict(list)
        for key, windows in known.items():
            for window in windows:
                times = {*self._times_of(window)}
                for at in times if self._by_event else {*times, window.end}:
                    found[key, at].append(window)
        return found

    def _keep_sets(
        self, changed: Iterable[int], known: Sequence[dict[TimeWindow, _Session]], ctx: BatchContext
    ) -> None:
        index = sorted(changed)
        if index:
            sets = [{window: one.home for window, one in known[at].items()} for at in index]
            ctx.put_values(self._set, _set_column(sets), index)

    def _put_cells(self, places: Sequence[_Place], column: pa.Array, ctx: BatchContext) -> None:
        ctx.put_namespaced_values(self.contents, *_cells(places), column=column)


def _window_set(stored: Any) -> dict[TimeWindow, TimeWindow]:
    """Windows, earliest first, each with the one under which it is stored."""
    found = {}
    for one in stored or ():
        start, end, state_start, state_end = one.values()
        found[TimeWindow(start, end)] = TimeWindow(state_start, state_end)
    return found


def _set_column(sets: Sequence[Mapping[TimeWindow, TimeWindow]]) -> pa.Array:
    """The other way round; null where there is none."""
    names = ("start", "end", "state_start", "state_end")
    rows = [
        [dict(zip(names, (*window, *mine[window]), strict=True)) for window in sorted(mine)] or None
        for mine in sets
    ]
    return pa.array(rows, arrow_type(parse_type(WINDOW_SET)))


def _columns_of(pairs: Sequence[tuple[int, int]]) -> tuple[Numbers, Numbers]:
    columns = np.array(pairs, np.int64)
    return columns[:, 0], columns[:, 1]


def _cells(places: Sequence[_Place]) -> tuple[Numbers, Numbers, Numbers]:
    """Positions of keys, starts and ends."""
    flat = np.array([(index, *window) for index, window in places], np.int64).reshape(-1, 3)
    return flat[:, 0], flat[:, 1], flat[:, 2]


class CountWindows(_Columns):
    """Aggregates of so many rows of a key each."""

    def __init__(self, size: int, contents: Aggregated, key_columns: tuple[str, ...]) -> None:
        super().__init__(contents, key_columns)
        self._size = size

    def open(self, ctx: RuntimeContext) -> None:
        """Get the states."""
        super().open(ctx)
        descriptor = ReducingStateDescriptor(COUNTED, "bigint", "sum")
        self.counted = ctx.get_namespaced_state(descriptor, NAMESPACE)

    def process_batch(
        self, keys: pa.Array, table: pa.RecordBatch, ctx: BatchContext
    ) -> Iterator[Any]:
        """Add rows; results of windows that are full."""
        index = np.arange(len(keys))
        window = [np.full(len(keys), bound, np.int64) for bound in GLOBAL_WINDOW]
        before = ctx.get_namespaced_values(self.counted, index, *window).fill_null(0).to_numpy()
        # Of a window that was larger before so many may wait already: the next row fills it.
        before = np.minimum(before, self._size - 1)
        stored = ctx.get_namespaced_values(self.contents, index, *window)
        counts = np.diff(ctx.starts, append=table.num_rows)
        # The how manieth row of its key each is, those included that were counted before.
        nth = np.arange(table.num_rows) + (before - ctx.starts)[ctx.key_index]
        begins = nth % self._size == 0
        begins[ctx.starts] = True
        firsts = np.flatnonzero(begins)
        kept = self._columns.of_rows(table, None, firsts)
        # Only the first of a key goes on with what was kept.
        opening = np.flatnonzero(np.isin(firsts, ctx.starts))
        earlier = self._columns.spread(self._columns.stored(stored), opening, len(firsts))
        kept = self._columns.merged(earlier, kept)
        lengths = np.diff(firsts, append=table.num_rows)
        full = (nth[firsts] % self._size) + lengths == self._size
        whose = ctx.key_index[firsts]
        if full.any():
            done = self._columns.picked(kept, full)
            yield self.table(keys, whose[full], self._columns.results(done))
        left = (before + counts) % self._size
        last = np.append(opening[1:], len(firsts)) - 1
        column = self._columns.column(self._columns.picked(kept, last))
        empty = pa.array(np.arange(len(keys)), mask=left == 0)
        ctx.put_namespaced_values(self.contents, index, *window, column=column.take(empty))
        remaining = pa.array(left, mask=left == 0)
        ctx.put_namespaced_values(self.counted, index, *window, column=remaining)
