"""Event time: which inputs tell it, what a subtask sees of it, and the watermarks that follow.

A clock is an input read by one column of times; read by two columns it has two, because each is as
far as its own rows. A subtask acknowledges the newest time of each clock: maxima, so that the order
of rows changes nothing. What an epoch observes counts from the next one on, so that a repeated
epoch sees the same watermark. Called by the planner, by subtasks with every batch, and by the
driver. Pure and immutable, but for what a subtask collects.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from moorage.api.functions import MAX_WATERMARK, NO_WATERMARK
from moorage.engine.columns import INPUT_COLUMN, find_column
from moorage.engine.rows import count_rows, time_column
from moorage.engine.subtask_plan import SubtaskPlan
from moorage_state.errors import UserError

if TYPE_CHECKING:
    from moorage.api.graph import Branch, JobGraph

MAX_VALUES = 1024
"""How many values of its column a clock may count by at once: each acknowledgement names them."""

Value = str | None
"""A value of the column that a clock counts by, as text; None is the null."""

_Identity = tuple[str, str | None, str]
_LOWEST = ""
_NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class InputClock:
    """How an input tells event time.

    Attributes:
        delay_ms: how far it stays behind the newest event time.
        idle_after_ms: processing time without rows that makes it, or a value, idle; None: never.
        per: the column by whose values it counts; "" for the input as one.
    """

    delay_ms: int = 0
    idle_after_ms: int | None = None
    per: str = ""


@dataclass(frozen=True, slots=True)
class JobClocks:
    """All clocks of a job.

    Attributes:
        clocks: by name, which is the input's uid where it has only one.
        feeds: by operator uid, the clock of each of its feeds; "" for inputs without event time,
            None for the outputs of operators.
        readers: by operator uid, the clocks that its watermark is the minimum of.
    """

    clocks: Mapping[str, InputClock]
    feeds: Mapping[str, tuple[str | None, ...]]
    readers: Mapping[str, frozenset[str]]

    def per(self, uid: str) -> tuple[str, ...]:
        """By feed of an operator, the column by whose values it counts."""
        return tuple(self.clocks[n].per if n else "" for n in self.feeds.get(uid, ()))

    def within_keys(self, uid: str) -> int | None:
        """How far an operator's time within a key stays behind its rows; None: it stands still."""
        found = [self.clocks[name] for name in self.readers[uid]]
        # Of two clocks, or values, a row moves only one, and no row of a key tells how far the
        # other has come; nor do rows that another operator sends when its timers fire.
        if len(found) != 1 or found[0].per or None in self.feeds[uid]:
            return None
        return found[0].delay_ms


def job_clocks(graph: "JobGraph") -> JobClocks:
    """The clocks of what `build(env)` described."""
    names = _names(graph)
    clocks: dict[str, InputClock] = {}
    for branch in _timed(graph):
        name = names[_identity(branch)]
        clocks[name] = _same(clocks.get(name), branch)
    feeds = {
        operator.uid: tuple(
            None if feed.branch is None else names.get(_identity(feed.branch), "")
            for feed in operator.feeds
        )
        for operator in graph.operators
    }
    # An operator after others goes by the clocks of all that they go by.
    readers = {
        o.uid: frozenset(name for one in o.chain for name in feeds[one.uid] if name)
        for o in graph.operators
    }
    return JobClocks(clocks, feeds, readers)


def _timed(graph: "JobGraph") -> "Iterator[Branch]":
    for operator in graph.operators:
        for feed in operator.feeds:
            if feed.branch is not None and feed.branch.event_time is not None:
                yield feed.branch


def too_many_values(clock: str, per: str, count: int) -> UserError:
    """The error where a clock would have to count by more values than it may."""
    return UserError(
        f"the column that with_event_time counts by has too many values: input={clock} per={per} "
        f"values={count} most={MAX_VALUES}; count by a column of fewer, such as the hash of "
        f"this one modulo 64; where values come to an end, idle_after lets them be forgotten"
    )


def _identity(branch: "Branch") -> _Identity:
    return branch.node.uid, branch.event_time, branch.per


def _names(graph: "JobGraph") -> dict[_Identity, str]:
    known = dict.fromkeys(map(_identity, _timed(graph)))
    inputs = [uid for uid, _, _ in known]
    return {
        one: one[0] if inputs.count(one[0]) == 1 else ":".join(str(part) for part in one if part)
        for one in known
    }


def _same(known: InputClock | None, branch: "Branch") -> InputClock:
    """The clock of readers that declare it each: the longest delay, and idle only if all say so."""
    mine = InputClock(branch.max_delay_ms, branch.idle_after_ms, branch.per)
    if known is None:
        return mine
    limits = (known.idle_after_ms, mine.idle_after_ms)
    idle = None if None in limits else max(limit for limit in limits if limit is not None)
    return InputClock(max(known.delay_ms, mine.delay_ms), idle, branch.per)


class EventTimes:
    """Of one attempt of one subtask.

    Attributes:
        newest: by clock, the newest event time in milliseconds.
        values: by clock that counts by value, the same of each value.
        late_rows: rows of inputs whose event time the watermark had reached.
    """

    def __init__(self, plan: SubtaskPlan) -> None:
        self._watermark = plan.row_watermark
        # All rows come in one epoch with the backend batch: nothing would wait for a value.
        per = () if plan.batch else plan.per
        self._inputs = tuple(zip(plan.inputs, per or ("",) * len(plan.inputs), strict=True))
        self.newest: dict[str, int] = {}
        self.values: dict[str, dict[Value, int]] = {}
        self.late_rows = 0

    def observe(self, batch: pa.RecordBatch) -> None:
        """Take note of a batch's rows, those with a null key included.

        Raises:
            UserError: there are too many values.
        """
        column = time_column(batch)
        if column is None or not any(clock for clock, _ in self._inputs):
            return
        timed = column.is_valid().to_numpy(zero_copy_only=False)
        inputs = batch.column(INPUT_COLUMN).to_numpy()
        stamps = column.fill_null(0).to_numpy()
        for index, (clock, per) in enumerate(self._inputs):
            rows = timed & (inputs == index)
            mine = stamps[rows]
            if not clock or not len(mine):
                continue
            if mine.min() <= self._watermark:
                self.late_rows += count_rows(batch, rows & (stamps <= self._watermark))
            if per:
                column = find_column(batch, per).filter(pa.array(rows))
                self._observe_values(clock, per, column, mine)
            else:
                newest = int(mine.max())
                self.newest[clock] = max(self.newest.get(clock, newest), newest)

    def _observe_values(
        self, clock: str, per: str, column: pa.Array, stamps: NDArray[np.int64]
    ) -> None:
        known = self.values.setdefault(clock, {})
        encoded: Any = pc.dictionary_encode(column, null_encoding="encode")
        # Rows by their value, so that one pass gives the newest of each.
        indices = encoded.indices.to_numpy()
        order = np.argsort(indices, kind="stable")
        starts = np.flatnonzero(np.diff(indices[order], prepend=-1))
        newest = np.maximum.reduceat(stamps[order], starts)
        for found, time_ms in zip(encoded.dictionary.to_pylist(), newest.tolist(), strict=True):
            value = None if found is None else str(found)
            known[value] = max(known.get(value, time_ms), time_ms)
        if len(known) > MAX_VALUES:
            raise too_many_values(clock, per.rpartition(".")[2], len(known))


@dataclass(frozen=True, slots=True)
class SourceTime:
    """How far an input has come, or one value of the column by which it counts.

    Attributes:
        newest: the newest event time seen, in milliseconds; None before the first.
        silent_since: the processing time since which it is known to be silent.
    """

    newest: int | None = None
    idle: bool = False
    silent_since: int | None = None

    def heard(
        self, newest: int | None, idle_after_ms: int | None, began_ms: int, ended_ms: int
    ) -> "SourceTime":
        """After an epoch, or a look at a quiet job, with this newest event time or none."""
        if newest is not None:
            since = None if idle_after_ms is None else ended_ms
            before = newest if self.newest is None else self.newest
            return SourceTime(max(newest, before), silent_since=since)
        if idle_after_ms is None:
            return self
        since = ended_ms if self.silent_since is None else self.silent_since
        return SourceTime(self.newest, self.idle or began_ms - since >= idle_after_ms, since)


@dataclass(frozen=True, slots=True)
class InputTime:
    """How far one clock has come.

    Attributes:
        whole: the input as one; of a clock that counts by value, until it has seen the first.
    """

    whole: SourceTime = SourceTime()
    values: Mapping[Value, SourceTime] = field(default_factory=dict)

    @property
    def parts(self) -> tuple[SourceTime, ...]:
        """What counts."""
        return tuple(self.values.values()) or (self.whole,)

    @property
    def idle(self) -> bool:
        """Whether it does not hold other inputs back."""
        return all(part.idle for part in self.parts)

    @property
    def newest(self) -> int | None:
        """The event time that counts; None before there is one."""
        return _slowest((part.newest, part.idle) for part in self.parts)

    def heard(
        self,
        newest: int | None,
        values: Mapping[Value, int],
        idle_after_ms: int | None,
        began_ms: int,
        ended_ms: int,
    ) -> "InputTime":
        """After an epoch, or a look at a quiet job, with these newest event times or none."""
        when = (idle_after_ms, began_ms, ended_ms)
        if not self.values and not values:
            return InputTime(self.whole.heard(newest, *when))
        known = {
            value: self.values.get(value, SourceTime()).heard(values.get(value), *when)
            for value in (*self.values, *(v for v in values if v not in self.values))
        }
        return InputTime(SourceTime(), _bounded(known))


def _bounded(values: dict[Value, SourceTime]) -> dict[Value, SourceTime]:
    """No more values than there may be: idle ones are forgotten, the longest silent first."""
    excess = len(values) - MAX_VALUES
    if excess <= 0:
        return values
    idle = [
        (one.silent_since or 0, value or "", value) for value, one in values.items() if one.idle
    ]
    gone = {value for _, _, value in sorted(idle, key=lambda entry: entry[:2])[:excess]}
    return {value: one for value, one in values.items() if value not in gone}


def _slowest(shown: Iterable[tuple[int | None, bool]]) -> int | None:
    """The time that counts among these, each of which may be idle; None where there is none yet."""
    every = list(shown)
    # As Flink's StatusWatermarkValve: the slowest of those that are not idle, once each of them has
    # shown a time; where all are idle, the furthest.
    active = [time_ms for time_ms, idle in every if not idle]
    known = [time_ms for time_ms in active or (t for t, _ in every) if time_ms is not None]
    if not known or (active and len(known) < len(active)):
        return None
    return min(known) if active else max(known)


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Event time progress of a job.

    Attributes:
        readers: by operator uid, the clocks it goes by.
        inputs: by clock, how far it has come.
        floors: by operator uid, the highest watermark that it has worked with; none goes back.
        drained: all inputs have ended: every timer is due.
    """

    clocks: Mapping[str, InputClock]
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
        reached = _slowest(self._reached(name) for name in self.readers[operator])
        return self.before(operator) if reached is None else max(self.before(operator), reached)

    def before(self, operator: str) -> int:
        """The watermark of an operator in the epoch before the next."""
        # Rows from another operator come behind this one: its timers sent some of them because of
        # the next.
        return self.floors.get(operator, NO_WATERMARK)

    def held_by(self, operator: str) -> str:
        """The clock that an operator's watermark waits for; empty where all are idle or ended."""
        shown = {name: self._reached(name) for name in sorted(self.readers[operator])}
        active = {name: reached for name, (reached, idle) in shown.items() if not idle}
        if self.drained or not active:
            return ""
        return min(active, key=lambda name: (active[name] is not None, active[name] or 0))

    @property
    def advanced(self) -> bool:
        """Whether the next epoch has a higher watermark for some operator than the one before."""
        return any(self.of(uid) > self.before(uid) for uid in self.readers)

    @property
    def idle(self) -> frozenset[str]:
        """The clocks that are idle."""
        return frozenset(name for name, one in self.inputs.items() if one.idle)

    def require_room(self, values: Mapping[str, Mapping[Value, int]]) -> None:
        """Refuse an epoch whose values are more than can count at once.

        Raises:
            UserError: that is so.
        """
        for name, observed in values.items():
            known = self.inputs.get(name, InputTime()).values
            counted = {value for value, one in known.items() if not one.idle} | observed.keys()
            if len(counted) > MAX_VALUES:
                raise too_many_values(name, self.clocks[name].per, len(counted))

    def after_epoch(
        self,
        observed: Mapping[str, int],
        began_ms: int = 0,
        ended_ms: int = 0,
        values: Mapping[str, Mapping[Value, int]] = _NONE,
    ) -> "Watermarks":
        """Progress after an epoch in which these newest event times were observed.

        Args:
            observed: by clock.
            values: the same of clocks that count by value, by value.
            began_ms, ended_ms: the epoch's processing times.
        """
        # What an input sent while the epoch ran comes in the next one: it may be silent only from
        # the end on, and is judged at a begin.
        floors = self.floors if self.drained else {uid: self.of(uid) for uid in self.readers}
        return replace(self._heard(observed, values, began_ms, ended_ms), floors=floors)

    def quiet_at(self, now_ms: int) -> "Watermarks":
        """Progress at a processing time when no input has had anything to read for a while."""
        return self._heard({}, {}, now_ms, now_ms)

    def _heard(
        self,
        observed: Mapping[str, int],
        values: Mapping[str, Mapping[Value, int]],
        began_ms: int,
        ended_ms: int,
    ) -> "Watermarks":
        inputs = {
            name: self.inputs.get(name, InputTime()).heard(
                observed.get(name), values.get(name, {}), clock.idle_after_ms, began_ms, ended_ms
            )
            for name, clock in self.clocks.items()
        }
        return replace(self, inputs=inputs)

    def _reached(self, name: str) -> tuple[int | None, bool]:
        one = self.inputs.get(name, InputTime())
        newest = one.newest
        # A row of the newest time may still come: one less, as Flink's
        # BoundedOutOfOrdernessWatermarks.
        return None if newest is None else newest - self.clocks[name].delay_ms - 1, one.idle

    def drain(self) -> "Watermarks":
        """Progress once every input has ended."""
        return replace(self, drained=True)

    def to_json(self) -> dict[str, int]:
        """What a manifest keeps: times by clock, watermarks by operator, the lowest under `""`."""
        newest = {name: t for name, one in self.inputs.items() if (t := one.newest) is not None}
        before = {uid: self.before(uid) for uid in self.readers}
        known = {uid: floor for uid, floor in before.items() if floor > NO_WATERMARK}
        return newest | known | {_LOWEST: min(before.values(), default=NO_WATERMARK)}

    def values_to_json(self) -> dict[str, Any]:
        """Of clocks that count by value: the column, and each value with time and idleness."""
        return {
            name: {
                "per": self.clocks[name].per,
                "values": [[value, part.newest, part.idle] for value, part in one.values.items()],
            }
            for name, one in self.inputs.items()
            if one.values
        }

    @classmethod
    def from_json(
        cls,
        job: JobClocks,
        stored: Mapping[str, int],
        idle: Collection[str] = (),
        operators: Collection[str] = (),
        values: Mapping[str, Any] = _NONE,
    ) -> "Watermarks":
        """Progress as a manifest kept it.

        Args:
            operators: those that the manifest has; of others no watermark was worked with.
            values: what `values_to_json` gave.
        """
        # The time for which the job did not run is no silence of an input: what was not idle has
        # its whole time again. Inputs that are gone are forgotten.
        lowest = stored.get(_LOWEST, NO_WATERMARK)
        inputs = {
            name: InputTime(
                SourceTime(stored.get(name), name in idle and clock.idle_after_ms is not None),
                _restored_values(clock, values.get(name)),
            )
            for name, clock in job.clocks.items()
        }
        known = job.readers.keys() & set(operators)
        floors = {uid: stored.get(uid, lowest) for uid in known}
        return cls(job.clocks, job.readers, inputs, floors)


def _restored_values(clock: InputClock, kept: Mapping[str, Any] | None) -> dict[Value, SourceTime]:
    # Values of another column than the one that is declared now mean something else.
    if kept is None or not clock.per or kept["per"] != clock.per:
        return {}
    may_be_idle = clock.idle_after_ms is not None
    return {
        value: SourceTime(newest, idle and may_be_idle) for value, newest, idle in kept["values"]
    }
