"""Windows of one size, by whole columns: which rows are in which, and what has ended.

Called by the vectorized operators over such windows.
"""

from collections.abc import Callable, Iterator, Sequence
from math import gcd
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from moorage.api.vectorized import BatchContext, DueTimers
from moorage.api.window_operator import FIRST_KNOWN, LAST_KNOWN, closed_until
from moorage.api.windows import Sliding, Windowing, beyond
from moorage_state.errors import UserError
from moorage_state.keyed import TimeDomain

Numbers = NDArray[np.int64]
_PAIRS = 1 << 19


def row_times(
    rows: int, ctx: BatchContext, reach: Callable[[int], tuple[int, int]], *, by_event: bool
) -> Numbers:
    """When each row counts.

    Args:
        reach: when the first window of a row of some time begins, and its last one ends.

    Raises:
        UserError: a row has no event time, or one that is too far away.
    """
    if not by_event:
        return np.full(rows, ctx.current_processing_time(), np.int64)
    if ctx.timestamps is None or ctx.timestamps.null_count:
        raise UserError(
            "a row without event time has no window: declare with_event_time for every input "
            "of a union, or take time='processing'"
        )
    times: Numbers = ctx.timestamps.to_numpy()
    for time_ms in (int(times.min()), int(times.max())):
        start, end = reach(time_ms)
        # Refused with the row: a window that is stored could never tell Python its times.
        if start < FIRST_KNOWN or end > LAST_KNOWN:
            raise beyond(time_ms)
    return times


def require_known(times: Numbers) -> None:
    """Refuse times that Python could not tell.

    Raises:
        UserError: one is too far away.
    """
    for time_ms in (int(times.min()), int(times.max())):
        if not FIRST_KNOWN <= time_ms <= LAST_KNOWN:
            raise UserError(
                f"a row's event time is too far away to be a timestamp: milliseconds={time_ms}; "
                f"mend its unit, or filter such rows out, before key_by"
            )


def instants(times: Numbers) -> pa.Array:
    """Milliseconds since 1970 UTC as a column of timestamps."""
    return pa.array(times * 1000).view(pa.timestamp("us", "UTC"))


def firsts_of(keys: Numbers, times: Numbers) -> Numbers:
    """Where another key or time begins."""
    changed = np.ones(len(keys), bool)
    changed[1:] = (keys[1:] != keys[:-1]) | (times[1:] != times[:-1])
    return np.flatnonzero(changed)


class Pairs(NamedTuple):
    """Rows, once for each window that they are in, by key and window.

    Attributes:
        rows: positions in the table; None: each row once, as they lie.
        keys: positions of the keys.
        starts: when each window begins.
    """

    rows: Numbers | None
    keys: Numbers
    starts: Numbers

    def where(self, wanted: NDArray[np.bool_]) -> "Pairs":
        """Some of them."""
        if wanted.all():
            return self
        rows = np.arange(len(self.keys)) if self.rows is None else self.rows
        return Pairs(rows[wanted], self.keys[wanted], self.starts[wanted])

    def firsts(self) -> Numbers:
        """Where another key or window begins."""
        return firsts_of(self.keys, self.starts)


class WindowTimes:
    """The windows of `Tumbling` and `Sliding`.

    Attributes:
        size: of a window, in milliseconds.
        domain, by_event: what they end by.
        lateness: how long they are kept after their end, in milliseconds.
    """

    def __init__(self, windows: Windowing) -> None:
        assigner: Any = windows.assigner
        self.size, self._slide = assigner.size_ms, assigner.slide_ms
        self._offset, self.domain = assigner.offset_ms, assigner.domain
        self.by_event = assigner.domain is TimeDomain.EVENT_TIME
        self.lateness = windows.lateness_ms if self.by_event else 0

    @property
    def pane(self) -> tuple[int, int] | None:
        """The length of times that have the same windows, and what is added to its multiples.

        None where times without a window may lie between them; a length of 0: all of an epoch.
        """
        if self.size < self._slide:
            return None
        if not self.by_event:
            return 0, 0
        length = gcd(self.size, self._slide)
        return length, self._offset % length

    def reach(self, time_ms: int) -> tuple[int, int]:
        """See `row_times`."""
        since = (time_ms - self._offset) % self._slide
        last = time_ms - since
        first = last - (self.size - 1 - since) // self._slide * self._slide
        return first, last + self.size

    def spans(self, rows: int) -> Iterator[range]:
        """Rows that are put into their windows at once: one in very many comes so many times."""
        step = max(1, _PAIRS // -(-self.size // self._slide))
        for first in range(0, rows, step):
            yield range(first, first + step)

    def assigned(self, key_index: Numbers, times: Numbers, watermark: int) -> Pairs:
        """Rows in those of their windows that are not gone."""
        pairs = self._all_assigned(key_index, times)
        if not self.by_event:
            return pairs
        return pairs.where(pairs.starts + (self.size - 1 + self.lateness) > watermark)

    def late(self, times: Numbers, watermark: int) -> NDArray[np.bool_] | None:
        """Rows all of whose windows are gone: the last one of a row is the last to go."""
        if not self.by_event or not len(times) or times.min() + self.lateness > watermark:
            return None
        last = times - (times - self._offset) % self._slide
        late: NDArray[np.bool_] = last + (self.size - 1 + self.lateness) <= watermark
        late |= last + self.size <= times
        late &= times + self.lateness <= watermark
        return late

    def ending(
        self, timers: DueTimers, after: int = 0, earlier: Sequence[Sliding] = ()
    ) -> tuple[Numbers, Numbers, Numbers]:
        """Keys, starts and ends of windows that may have ended `after` the timers' times.

        Args:
            earlier: what else may have windows that end.
        """
        ends = timers.times + (1 - after)
        found: list[tuple[Numbers, Numbers, Numbers]] = []
        known: list[tuple[int, int, int]] = []
        now = (self.size, self._slide, self._offset)
        for one in (now, *((e.size_ms, e.slide_ms, e.offset_ms) for e in earlier)):
            size, slide, offset = one
            starts = ends - size
            fits = (starts - offset) % slide == 0
            # A window that several of them have ends once.
            for other, its_slide, its_offset in known:
                if other == size:
                    fits &= (starts - its_offset) % its_slide != 0
            found.append((timers.key_index[fits], starts[fits], ends[fits]))
            known.append(one)
        if len(found) == 1:
            return found[0]
        index, starts, ends = (np.concatenate(some) for some in zip(*found, strict=True))
        order = np.argsort(index, kind="stable")
        return index[order], starts[order], ends[order]

    def over(
        self, timers: DueTimers, ctx: BatchContext, earlier: Sequence[Sliding]
    ) -> tuple[Numbers, Numbers, Numbers]:
        """Keys, starts and ends of windows that may have ended at the timers' times.

        Those of processing time that are in their last millisecond get a timer after it.
        """
        found = self.ending(timers, 0, earlier)
        if self.by_event:
            return found
        waited = self.ending(timers, 1, earlier)
        index, starts, ends = (np.concatenate(some) for some in zip(found, waited, strict=True))
        order = np.lexsort((ends, starts, index))
        index, starts, ends = index[order], starts[order], ends[order]
        # One that has both timers ends once.
        once = np.ones(len(index), bool)
        once[1:] = (np.diff(index) != 0) | (np.diff(starts) != 0) | (np.diff(ends) != 0)
        closed = ends <= closed_until(ctx.current_processing_time(), ctx.current_watermark())
        ctx.register_timers(index[~closed], ends[~closed], self.domain)
        once &= closed
        return index[once], starts[once], ends[once]

    def _all_assigned(self, key_index: Numbers, times: Numbers) -> Pairs:
        last = times - (times - self._offset) % self._slide
        if self.size == self._slide:
            pairs = Pairs(None, key_index, last)
        else:
            most = -(-self.size // self._slide)
            starts = last[:, None] - self._slide * np.arange(most)
            rows = np.repeat(np.arange(len(times)), most)
            pairs = Pairs(rows, key_index[rows], starts.ravel())
            pairs = pairs.where(pairs.starts > times[rows] - self.size)
        # Rows of a key come by time; then those of its tumbling windows lie together already.
        back = (pairs.starts[1:] < pairs.starts[:-1]) & (pairs.keys[1:] == pairs.keys[:-1])
        if not back.any():
            return pairs
        order = np.lexsort((pairs.starts, pairs.keys))
        rows = order if pairs.rows is None else pairs.rows[order]
        return Pairs(rows, pairs.keys[order], pairs.starts[order])
