"""One pass over input that ends: the backend batch, inside a subtask.

Rows come sorted by key, so a key's state lives from its first row to its last, and what timers are
left then fire after that one. Nothing is read from a state server and nothing is written to one:
what the epoch protocol prepares and commits is an empty delta. Called by the subtask.
"""

# ruff: noqa: SLF001 - a context's underscored side is the engine's, the rest is the user's

import logging

from moorage.api.functions import MAX_WATERMARK, KeyedProcessFunction, ProcessContext
from moorage.engine.buffers import OutputBuffer
from moorage.engine.firing import Firing
from moorage.engine.range_access import BoundRange
from moorage.engine.subtask_plan import NEVER
from moorage_state.keyed import KeyTimers
from moorage_state.keyed.access import Scan
from moorage_state.keyed.timers import NOTHING_HELD
from moorage_state.keylayout import EVENT_TIMERS

__all__ = ["FiringAtTheEnd", "NothingStored"]

_log = logging.getLogger(__name__)


class NothingStored(BoundRange):
    """A range of which every key is new, and whose writes nobody will read."""

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """See `RangeAccess`: nothing."""
        return [None] * len(keys)

    def scan_many(
        self,
        prefixes: list[bytes],
        limit_entries: int,  # noqa: ARG002  there is nothing to limit
        limit_bytes: int,  # noqa: ARG002
    ) -> list[Scan]:
        """See `RangeAccess`: nothing."""
        return [Scan([], [], complete=True) for _ in prefixes]

    def scan_from(self, prefix: bytes, after: bytes, limit: int) -> Scan:  # noqa: ARG002
        """See `RangeAccess`: nothing."""
        return Scan([], [], complete=True)

    def due_timers(
        self,
        up_to_ms: int,  # noqa: ARG002
        limit: int,  # noqa: ARG002
        after: bytes,  # noqa: ARG002
        kind: int = EVENT_TIMERS,  # noqa: ARG002
    ) -> list[bytes]:
        """See `RangeAccess`: nothing."""
        return []

    def next_timer(self, after_ms: int, kind: int) -> int | None:  # noqa: ARG002
        """None is stored."""
        return None

    def stage(self, frame: bytes) -> None:
        """Drop it: its key does not come again."""


class FiringAtTheEnd(Firing):
    """Timers that no row of a key fires do so once its rows are done.

    First those of event time, then those of processing time. `current_watermark` is `MAX_WATERMARK`
    meanwhile; before, it is what the key's rows have shown. Nothing comes after: what `on_timer`
    sets then is ignored, or a timer that always sets the next one would never let the key end.
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

    def any_due(self) -> bool:
        """See `Firing.any_due`; a key that has set no timer, as at its first row, has none."""
        return self._timers.loaded and super().any_due()

    def go_on(self) -> bool:
        """See `Firing.go_on`."""
        timers = self._timers
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
