"""Watermarks: how far event time has come, from what each input has shown so far.

Decides the watermark an operator works with in an epoch: the minimum over the clocks it goes by of
their newest event time minus their delay minus one millisecond (Flink's
``BoundedOutOfOrdernessWatermarks``). What an epoch observes counts from the next one on, so that a
repeated epoch sees the same watermark. Pure and immutable.

An input that declares when it counts as idle does not hold the others back once it was silent for
so long. If all are idle, the furthest of them counts (as in Flink's ``StatusWatermarkValve``).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from moorage.engine.clocks import Clock, JobClocks
from moorage.functions import MAX_WATERMARK, NO_WATERMARK

__all__ = ["InputTime", "Watermarks"]

_LOWEST = ""


@dataclass(frozen=True, slots=True)
class InputTime:
    """How far one clock has come.

    Attributes:
        newest: the newest event time seen, in milliseconds; None before the first.
        idle: it does not hold the others back.
        silent_since: the processing time since which it is known to be silent.
    """

    newest: int | None = None
    idle: bool = False
    silent_since: int | None = None

    def heard(
        self, newest: int | None, idle_after_ms: int | None, began_ms: int, ended_ms: int
    ) -> "InputTime":
        """After an epoch, or a look at a quiet job, with this newest event time or none."""
        if newest is not None:
            since = None if idle_after_ms is None else ended_ms
            before = newest if self.newest is None else self.newest
            return InputTime(max(newest, before), silent_since=since)
        if idle_after_ms is None:
            return self
        since = ended_ms if self.silent_since is None else self.silent_since
        return InputTime(self.newest, self.idle or began_ms - since >= idle_after_ms, since)


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Event time progress of a job.

    Attributes:
        clocks: by name; only inputs with event time have one.
        readers: by operator uid, the clocks it goes by.
        inputs: by clock, how far it has come.
        floors: by operator uid, the highest watermark that it has worked with; none goes back.
        drained: all inputs have ended: every timer is due.
    """

    clocks: Mapping[str, Clock]
    readers: Mapping[str, Collection[str]]
    inputs: Mapping[str, InputTime] = field(default_factory=dict)
    floors: Mapping[str, int] = field(default_factory=dict)
    drained: bool = False

    @classmethod
    def at_first(cls, job: JobClocks) -> "Watermarks":
        """Progress of a job before its first epoch."""
        return cls(job.clocks, job.readers)

    def of(self, operator: str) -> int:
        """The watermark of an operator in the next epoch."""
        if self.drained:
            return MAX_WATERMARK
        inputs = [(name, self.inputs.get(name, InputTime())) for name in self.readers[operator]]
        active = [pair for pair in inputs if not pair[1].idle]
        reached = [self._reached(*pair) for pair in active or inputs]
        known = [time_ms for time_ms in reached if time_ms is not None]
        if not known or (active and len(known) < len(active)):
            return self.before(operator)
        return max(self.before(operator), min(known) if active else max(known))

    def before(self, operator: str) -> int:
        """The watermark of an operator in the epoch before the next.

        Rows from another operator come behind that one: its timers sent some of them because
        of the next.
        """
        return self.floors.get(operator, NO_WATERMARK)

    @property
    def advanced(self) -> bool:
        """Whether the next epoch has a higher watermark for some operator than the one before."""
        return any(self.of(uid) > self.before(uid) for uid in self.readers)

    @property
    def idle(self) -> frozenset[str]:
        """The clocks that are idle."""
        return frozenset(name for name, one in self.inputs.items() if one.idle)

    def after_epoch(
        self, observed: Mapping[str, int], began_ms: int = 0, ended_ms: int = 0
    ) -> "Watermarks":
        """Progress after an epoch in which these newest event times were observed.

        Args:
            observed: by clock.
            began_ms, ended_ms: the epoch's processing times. What an input sent while it ran comes
                in the next one: it may be silent only from its end on, and is judged at a begin.
        """
        floors = self.floors if self.drained else {uid: self.of(uid) for uid in self.readers}
        return replace(self._heard(observed, began_ms, ended_ms), floors=floors)

    def quiet_at(self, now_ms: int) -> "Watermarks":
        """Progress at a processing time when no input has had anything to read for a while."""
        return self._heard({}, now_ms, now_ms)

    def _heard(self, observed: Mapping[str, int], began_ms: int, ended_ms: int) -> "Watermarks":
        inputs = {
            name: self.inputs.get(name, InputTime()).heard(
                observed.get(name), clock.idle_after_ms, began_ms, ended_ms
            )
            for name, clock in self.clocks.items()
        }
        return replace(self, inputs=inputs)

    def _reached(self, name: str, one: InputTime) -> int | None:
        return None if one.newest is None else one.newest - self.clocks[name].delay_ms - 1

    def drain(self) -> "Watermarks":
        """Progress once every input has ended."""
        return replace(self, drained=True)

    def to_json(self) -> dict[str, int]:
        """What a manifest keeps.

        Newest event times by clock, watermarks by operator, and the lowest of these under `""`.
        """
        newest = {name: t for name, one in self.inputs.items() if (t := one.newest) is not None}
        before = {uid: self.before(uid) for uid in self.readers}
        known = {uid: floor for uid, floor in before.items() if floor > NO_WATERMARK}
        return newest | known | {_LOWEST: min(before.values(), default=NO_WATERMARK)}

    @classmethod
    def from_json(
        cls,
        job: JobClocks,
        stored: Mapping[str, int],
        idle: Collection[str] = (),
        operators: Collection[str] = (),
    ) -> "Watermarks":
        """Progress as a manifest kept it; inputs that are no longer there are forgotten.

        The time for which the job did not run is no silence of an input: what was not idle has its
        whole time again.

        Args:
            operators: those that the manifest has; of others no watermark was worked with.
        """
        lowest = stored.get(_LOWEST, NO_WATERMARK)
        inputs = {
            name: InputTime(stored.get(name), name in idle and clock.idle_after_ms is not None)
            for name, clock in job.clocks.items()
        }
        known = job.readers.keys() & set(operators)
        floors = {uid: stored.get(uid, lowest) for uid in known}
        return cls(job.clocks, job.readers, inputs, floors)
