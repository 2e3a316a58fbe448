"""Watermarks: how far event time has come, from what each input has shown so far.

Decides the watermark an epoch works with: the minimum over the inputs that declare event time of
their newest event time minus their declared delay minus one millisecond (Flink's
``BoundedOutOfOrdernessWatermarks``). What an epoch observes counts from the next one on, so that a
repeated epoch sees the same watermark. Pure and immutable.

An input that declares when it counts as idle does not hold the others back once it was silent for
so long. If all are idle, the furthest of them counts (as in Flink's ``StatusWatermarkValve``).
"""

from collections.abc import Collection, Mapping
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
        idle_after: by input uid, milliseconds of processing time without rows that make it idle;
            only inputs that declare it.
        idle: uids of the inputs that are idle.
        silent_since: by input uid, the processing time since which it is known to be silent.
    """

    delays: Mapping[str, int]
    newest: Mapping[str, int] = field(default_factory=dict)
    floor: int = NO_WATERMARK
    drained: bool = False
    idle_after: Mapping[str, int] = field(default_factory=dict)
    idle: frozenset[str] = frozenset()
    silent_since: Mapping[str, int] = field(default_factory=dict)

    @property
    def current(self) -> int:
        """The watermark of the next epoch."""
        if self.drained:
            return MAX_WATERMARK
        reached = {uid: self.newest[uid] - self.delays[uid] - 1 for uid in self.newest}
        active = self.delays.keys() - self.idle
        if active - reached.keys() or not reached:
            return self.floor
        if not active:
            return max(self.floor, *reached.values())
        return max(self.floor, min(reached[uid] for uid in active))

    def after_epoch(
        self, observed: Mapping[str, int], began_ms: int = 0, ended_ms: int = 0
    ) -> "Watermarks":
        """Progress after an epoch in which these newest event times were observed.

        Args:
            began_ms, ended_ms: the epoch's processing times. What an input sent while it ran comes
                in the next one: it may be silent only from its end on, and is judged at a begin.
        """
        newest = dict(self.newest)
        for uid, time_ms in observed.items():
            if uid in self.delays:
                newest[uid] = max(newest.get(uid, time_ms), time_ms)
        floor = self.floor if self.drained else self.current
        heard = self._heard(observed, began_ms, ended_ms)
        return replace(heard, newest=newest, floor=floor)

    def quiet_at(self, now_ms: int) -> "Watermarks":
        """Progress at a processing time when no input has had anything to read for a while."""
        return self._heard((), now_ms, now_ms)

    def _heard(self, uids: Collection[str], began_ms: int, ended_ms: int) -> "Watermarks":
        if not self.idle_after:
            return self
        silent_since, idle = dict(self.silent_since), set(self.idle)
        for uid, limit_ms in self.idle_after.items():
            if uid in uids:
                silent_since[uid] = ended_ms
                idle.discard(uid)
            elif began_ms - silent_since.setdefault(uid, ended_ms) >= limit_ms:
                idle.add(uid)
        return replace(self, silent_since=silent_since, idle=frozenset(idle))

    def drain(self) -> "Watermarks":
        """Progress once every input has ended."""
        return replace(self, drained=True)

    def to_json(self) -> dict[str, int]:
        """What a manifest keeps: newest event times by input, and the floor under `""`."""
        return {**self.newest, "": self.floor}

    @classmethod
    def from_json(
        cls,
        delays: Mapping[str, int],
        stored: Mapping[str, int],
        idle_after: Mapping[str, int] | None = None,
        idle: Collection[str] = (),
    ) -> "Watermarks":
        """Progress as a manifest kept it; inputs that are no longer there are forgotten.

        The time for which the job did not run is no silence of an input: what was not idle has its
        whole time again.
        """
        limits = idle_after or {}
        newest = {uid: stored[uid] for uid in delays if uid in stored}
        return cls(
            delays,
            newest,
            stored.get("", NO_WATERMARK),
            idle_after=limits,
            idle=frozenset(idle) & limits.keys(),
        )
