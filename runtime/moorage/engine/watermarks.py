"""Watermarks: how far event time has come, from what each input has shown so far.

Decides the watermark an epoch works with: the minimum over the inputs that declare event time of
their newest event time minus their declared delay minus one millisecond (Flink's
``BoundedOutOfOrdernessWatermarks``). What an epoch observes counts from the next one on, so that a
repeated epoch sees the same watermark. Pure and immutable.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from moorage.functions import MAX_WATERMARK, NO_WATERMARK

__all__ = ["Watermarks"]


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Event time progress of a job.

    Attributes:
        delays: by input uid, the declared delay in milliseconds; only inputs with event time.
        newest: by input uid, the newest event time seen, in milliseconds.
        floor: the highest watermark any epoch has worked with; a watermark never goes back.
        drained: all inputs have ended: every timer is due.
    """

    delays: Mapping[str, int]
    newest: Mapping[str, int] = field(default_factory=dict)
    floor: int = NO_WATERMARK
    drained: bool = False

    @property
    def current(self) -> int:
        """The watermark of the next epoch."""
        if self.drained:
            return MAX_WATERMARK
        if not self.delays or any(uid not in self.newest for uid in self.delays):
            return self.floor
        slowest = min(self.newest[uid] - delay - 1 for uid, delay in self.delays.items())
        return max(self.floor, slowest)

    def after_epoch(self, observed: Mapping[str, int]) -> "Watermarks":
        """Progress after an epoch in which these newest event times were observed."""
        newest = dict(self.newest)
        for uid, time_ms in observed.items():
            newest[uid] = max(newest.get(uid, time_ms), time_ms)
        floor = self.floor if self.drained else self.current
        return replace(self, newest=newest, floor=floor)

    def drain(self) -> "Watermarks":
        """Progress once every input has ended."""
        return replace(self, drained=True)

    def to_json(self) -> dict[str, int]:
        """What a manifest keeps: newest event times by input, and the floor under `""`."""
        return {**self.newest, "": self.floor}

    @classmethod
    def from_json(cls, delays: Mapping[str, int], stored: Mapping[str, int]) -> "Watermarks":
        """Progress as a manifest kept it; inputs that are no longer there are forgotten."""
        newest = {uid: stored[uid] for uid in delays if uid in stored}
        return cls(delays, newest, stored.get("", NO_WATERMARK))
