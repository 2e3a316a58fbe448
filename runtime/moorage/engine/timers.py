"""Timers in one subtask during one epoch: which are due, and when they fire.

Finds the keys that have due timers although no row came for them, page by page. Called by the key
loop; must not know what a row is. With the backend batch, one pass over input that ends, the timers
that are left fire after their key's last row (`FiringAtTheEnd`), and nothing is read or written
(`NothingStored`).
"""

# ruff: noqa: SLF001 - a context's underscored side is the engine's, the rest is the user's

import logging
from collections.abc import Iterable, Iterator
from typing import Any

from moorage.api.functions import MAX_WATERMARK, NO_WATERMARK, KeyedProcessFunction, ProcessContext
from moorage.engine.outputs import OutputBuffer
from moorage.engine.range_access import BoundRange
from moorage.engine.subtask_plan import NEVER, UNKNOWN
from moorage_state.database import Scan
from moorage_state.keyed import KeyTimers, TimeDomain
from moorage_state.keyed.timers import NOTHING_HELD
from moorage_state.keylayout import EVENT_TIMERS, PROCESSING_TIMERS, key_prefix, timer_parts

_DUE_PAGE = 4096
_KIND = {TimeDomain.EVENT_TIME: EVENT_TIMERS, TimeDomain.PROCESSING_TIME: PROCESSING_TIMERS}
_EVENT, _PROCESSING = TimeDomain.EVENT_TIME, TimeDomain.PROCESSING_TIME
_log = logging.getLogger(__name__)


class Firing:
    """Fires the timers of a function that has `on_timer`.

    Args:
        watermark: up to which event-time timers are due, whatever the rows of their key show.
        next_timer: a processing time before which no stored timer of the range is due.

    Attributes:
        fired: how many timers fired.
        watermark: see above.
    """

    def __init__(
        self,
        function: KeyedProcessFunction,
        ctx: ProcessContext,
        timers: KeyTimers,
        out: OutputBuffer,
        watermark: int,
        next_timer: int = UNKNOWN,
    ) -> None:
        self._function = function
        self._ctx = ctx
        self._timers = timers
        self._out = out
        self._service = service = ctx.timer_service()
        self._row_watermark = service.current_watermark()
        self.watermark = self._watermark = watermark
        self._now_ms = service.current_processing_time()
        self._next_timer = next_timer
        self._by_event = self._watermark > NO_WATERMARK
        self._by_clock = next_timer <= self._now_ms
        self._event_holds_to = self._now_ms
        self._done: set[bytes] = set()
        self.fired = 0
        self._broken_off: tuple[int, TimeDomain, int, Iterator[Any]] | None = None

    def limits(self, earliest_set: int = NEVER) -> list[tuple[TimeDomain, int]]:
        """Up to which times timers fire, in the order in which they do: for vectorized functions.

        A domain of which none can be due is left out.

        Args:
            earliest_set: the earliest processing time for which rows have set a timer.
        """
        by_clock = self._by_clock or earliest_set <= self._now_ms
        found = [(_PROCESSING, self._now_ms)] if by_clock else []
        return [*found, (_EVENT, self._watermark)] if self._by_event else found

    def any_due(self) -> bool:
        """Whether the current key has due timers."""
        timers = self._timers
        # A key's timers are loaded only where one may be due: a function that sets none pays
        # nothing.
        if not (self._by_event or self._by_clock or timers.loaded):
            return False
        return timers.has_due(self._watermark, self._now_ms)

    def begin_key(self) -> None:
        """Another key is current: time within it is the epoch's."""
        self._service._watermark = self._row_watermark

    def go_on(self) -> bool:
        """Fire what is due for the current key; False if the output is full and more may be."""
        service = self._service
        service._watermark = max(service._watermark, self._watermark)
        if not self.by_clock(self._now_ms):
            return False
        return not self._by_event or self.up_to(self._watermark)

    def by_clock(self, now_ms: int) -> bool:
        """Fire the current key's processing-time timers up to a time; returns as `go_on`."""
        if self._broken_off is not None and not self._call(*self._broken_off):
            return False
        pop_due = self._timers.pop_due
        while (at := pop_due(now_ms, _PROCESSING)) is not None:
            if not self._call(at, _PROCESSING, at):
                return False
        return True

    def up_to(self, time_ms: int) -> bool:
        """Fire the current key's event-time timers up to a time; returns as `go_on`."""
        if self._broken_off is not None and not self._call(*self._broken_off):
            return False
        pop_due = self._timers.pop_due
        while (at := pop_due(time_ms)) is not None:
            if not self._call(at, _EVENT, self._event_holds_to):
                return False
        return True

    def _call(
        self, time_ms: int, domain: TimeDomain, held_to: int, left: Iterator[Any] | None = None
    ) -> bool:
        """Fire a timer, or go on with what is left of it; False if the output is full."""
        ctx, timers = self._ctx, self._timers
        ctx._timestamp, ctx._domain = time_ms, domain
        # Processing time stands still within an epoch, so a timer of it that sets itself anew for a
        # time that has come would fire for ever: what is set fires in this epoch only where it is
        # later.
        timers.held_to = held_to
        produced: Iterable[Any] | None = left
        if left is None:
            self.fired += 1
            produced = self._function.on_timer(time_ms, ctx)
        if produced is not None:
            left = self._out.extend(produced)
        self._broken_off = None if left is None else (time_ms, domain, held_to, left)
        timers.held_to = NOTHING_HELD
        ctx._domain = None
        return not self._out.full

    # -- keys without rows -----------------------------------------------------------------

    def key_done(self, prefix: bytes) -> None:
        """The current key had rows: its timers are not to be looked for again.

        To be called before its rows, or after them if it may still have timers that were due.
        """
        if self._timers.had_due(self._watermark, self._now_ms):
            self.mark_done(prefix)

    def mark_done(self, prefix: bytes) -> None:
        """A key had rows, and had timers that were due when the epoch began."""
        self._done.add(prefix)

    def pages(self, bound: BoundRange) -> Iterator[tuple[TimeDomain, dict[bytes, int]]]:
        """Keys with timers that were due when the epoch began, but for those with rows.

        By prefix the time of a timer that found the key; it may come again: see `is_first`.
        """
        if self._by_event:
            yield from self._pages_of(bound, _EVENT, self._watermark)
        if self._by_clock:
            yield from self._pages_of(bound, _PROCESSING, self._now_ms)

    def _pages_of(
        self, bound: BoundRange, domain: TimeDomain, up_to_ms: int
    ) -> Iterator[tuple[TimeDomain, dict[bytes, int]]]:
        after = b""
        while page := bound.due_timers(up_to_ms, _DUE_PAGE, after, _KIND[domain]):
            found: dict[bytes, int] = {}
            for entry in page:
                group, time_ms, key = timer_parts(entry)
                found.setdefault(key_prefix(group, key), time_ms)
            mine = sorted(found.keys() - self._done)
            if mine:
                yield domain, {prefix: found[prefix] for prefix in mine}
            if len(page) < _DUE_PAGE:
                return
            after = page[-1]

    def is_first(self, domain: TimeDomain, time_ms: int) -> bool:
        """Whether the current key is found the first time, by this timer of it."""
        return self.is_first_of(self._timers.first_stored(), domain, time_ms)

    def is_first_of(self, stored: tuple[int, int], domain: TimeDomain, time_ms: int) -> bool:
        """The same of a key whose earliest times were these when the epoch began."""
        # Its timers as the epoch found them tell, so that no list of keys is kept: its earliest
        # comes first, and event time is looked for before processing time.
        event, processing = stored
        if domain is _EVENT:
            return event == time_ms
        return processing == time_ms and not (self._by_event and event <= self._watermark)

    def next_timer(self, bound: BoundRange) -> int:
        """A processing time before which none is due once the epoch is committed."""
        stored: int | None = self._next_timer
        if self._by_clock:
            stored = bound.next_timer(self._now_ms, PROCESSING_TIMERS)
        return min(self._timers.earliest, NEVER if stored is None else stored)


class NothingStored(BoundRange):
    """A range of which every key is new, and whose writes nobody will read."""

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """See `RangeAccess`."""
        return [None] * len(keys)

    def scan_many(self, prefixes: list[bytes], *_limits: Any, **_: Any) -> list[Scan]:
        """See `RangeAccess`."""
        return [Scan([], [], complete=True) for _ in prefixes]

    def scan_from(self, *_: Any, **__: Any) -> Scan:
        """See `RangeAccess`."""
        return Scan([], [], complete=True)

    def due_timers(self, *_: Any, **__: Any) -> list[bytes]:
        """See `RangeAccess`."""
        return []

    def next_timer(self, *_: Any, **__: Any) -> int | None:
        """See `BoundRange`."""
        return None

    def stage(self, frame: bytes) -> None:
        """Drop it: its key does not come again."""


class FiringAtTheEnd(Firing):
    """Timers that no row of a key fires do so once its rows are done: event time first.

    `current_watermark` is `MAX_WATERMARK` meanwhile; before, what the key's rows have shown.
    """

    def __init__(
        self,
        function: KeyedProcessFunction,
        ctx: ProcessContext,
        timers: KeyTimers,
        out: OutputBuffer,
    ) -> None:
        super().__init__(function, ctx, timers, out, MAX_WATERMARK)
        self._now_ms = MAX_WATERMARK
        self._by_event = self._by_clock = True
        self._event_holds_to = NOTHING_HELD

    def limits(self, earliest_set: int = NEVER) -> list[tuple[TimeDomain, int]]:  # noqa: ARG002  all fire
        """See `Firing.limits`."""
        return [(_EVENT, MAX_WATERMARK), (_PROCESSING, MAX_WATERMARK)]

    def any_due(self) -> bool:
        """See `Firing.any_due`; a key that has set no timer, as at its first row, has none."""
        return self._timers.loaded and super().any_due()

    def go_on(self) -> bool:
        """See `Firing.go_on`."""
        timers = self._timers
        # Nothing comes after: a timer that always sets the next one would never let the key end.
        self._service._watermark, timers.quiesced = MAX_WATERMARK, True
        told = timers.ignored
        try:
            return self.up_to(MAX_WATERMARK) and self.by_clock(MAX_WATERMARK)
        finally:
            timers.quiesced = False
            if timers.ignored and not told:
                _log.warning(
                    "timers set at the end of their key are ignored: key=%.80r; no epoch comes "
                    "after, and this is said once",
                    self._ctx.key,
                )

    def key_done(self, prefix: bytes) -> None:
        """Nothing: no timer is stored that could be found again."""

    def next_timer(self, bound: BoundRange) -> int:  # noqa: ARG002
        """Never: no key comes again."""
        return NEVER
