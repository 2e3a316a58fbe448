"""How many subtasks a load needs, and when to go there: numbers and times alone. Pure.

Knows no job, no status and no Kubernetes: `autoscaler` asks it for jobs, and the simulator of
`benchmarks.autoscaler` for jobs that it makes up. docs/autoscaling.md has the formulas in words.
"""

import math
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal

Reason = Literal[
    "ScaleUp",
    "ScaleDown",
    "OutOfBounds",
    "NoRoom",
    "Measuring",
    "CoolingDown",
    "Balanced",
    "InBacklog",
    "ScaleDownDelayed",
    "Ineffective",
    "HotSubtask",
    "AtLimit",
    "EpochsTooSmall",
    "NothingDone",
]

_LEAST_SECONDS = 60.0
"""Of a window, to go up by; to go down takes the whole."""
_FULL = 0.95
"""A window is whole, by when looks at it come."""
_EFFECT = 0.1
"""The share of the hoped-for gain below which going up was in vain."""
_HOT = 0.5
"""Of the time at work, from which on epochs wait for one subtask that is at work for so long."""
_UNEVEN = 2.0
"""Times the median at work, from which on it is one that others do not share with."""
_NEAR = 1.25
"""Times as many subtasks at most, for a divisor of the key groups."""
_TINY = 1e-9


@dataclass(frozen=True, slots=True)
class Rules:
    """What is wanted; durations in seconds."""

    least: int
    most: int
    key_groups: int
    target: float  # the share of its capacity that a job uses in the end
    boundary: float  # nothing is done within target - boundary and target + boundary
    window: float
    cooldown: float  # after a change, of either kind
    down_delay: float
    catch_up: float  # in which a backlog is to be gone
    backlog: float  # of lag, above which nothing goes down
    up_factor: int  # times as many subtasks at once
    down_factor: float  # the share of them that may go at once
    pause: float  # that a change takes
    epoch_rows: int  # the most that one epoch takes


@dataclass(frozen=True, slots=True)
class Busiest:
    """The subtask that was at work for longest."""

    busy: float  # seconds of the window
    median: float  # of all subtasks of its operator
    splits: bool  # whether it has several key groups, which others could have some of


@dataclass(frozen=True, slots=True)
class Load:
    """What a stream of `width` subtasks bore in `seconds`."""

    width: int
    seconds: float
    rows: int
    epochs: int
    busy: float  # seconds in epochs
    fixed: float  # seconds that an epoch takes beside its rows
    lag: int | None = None  # rows in the sources; None where these do not say
    lag_growth: float = 0.0  # rows per second
    busiest: Busiest | None = None  # None where no operator says it

    @property
    def is_uneven(self) -> bool:
        """Whether epochs wait for one subtask, while the others have little to do."""
        one, work = self.busiest, self.busy - self.fixed * self.epochs
        return one is not None and one.busy >= max(_HOT * work, _UNEVEN * one.median, _TINY)

    @property
    def arrival(self) -> float:
        """Rows per second that come, taken or not."""
        return max(self.rows / max(self.seconds, _TINY) + self.lag_growth, 0.0)

    @property
    def rate(self) -> float:
        """The true processing rate: rows per second of work; infinite where nothing came."""
        work = self.busy - self.fixed * self.epochs
        return self.rows / max(work, _TINY) if self.rows else math.inf

    def capacity(self, epoch_rows: int) -> float:
        """Rows per second that as many subtasks can do: full epochs, one after the other."""
        return 1.0 / max(1.0 / self.rate + self.fixed / epoch_rows, _TINY)


@dataclass(frozen=True, slots=True)
class Step:
    """A change of width that was decided."""

    before: int
    after: int
    at: datetime
    rate: float  # the true processing rate before


@dataclass(frozen=True, slots=True)
class Memory:
    """What is kept from one decision to the next."""

    changed_at: datetime | None = None  # when the width was another one last
    step: Step | None = None
    low_since: datetime | None = None  # since when fewer subtasks would do
    low_most: int = 0  # the most of them that were needed in that time
    no_room_until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be done.

    Attributes:
        width: how many subtasks there are to be; as many as there are for "stay".
        needed: as the load alone says, within the rules' bounds.
        utilization: the share of the capacity that what arrives takes.
    """

    width: int
    reason: Reason
    needed: int
    utilization: float
    arrival: float
    rate: float
    memory: Memory


def judge(rules: Rules, load: Load, memory: Memory, now: datetime, room: int = 0) -> Verdict:
    """Say how many subtasks there are to be.

    Args:
        room: with executors missing, the subtasks that those which are there can run; else 0.
    """
    capacity, needed = load.capacity(rules.epoch_rows), _needed(rules, load)
    stay = Verdict(
        load.width,
        "Balanced",
        _within(rules, rules.key_groups if needed is None else needed),
        load.arrival / capacity,
        load.arrival,
        load.rate,
        memory,
    )
    said = _whatever_the_load(rules, load, stay, now, room)
    if said is not None:
        return said
    if load.seconds < min(_LEAST_SECONDS, _FULL * rules.window):
        return replace(stay, reason="Measuring")
    if not load.rows and load.lag:
        return replace(stay, reason="NothingDone")
    if not _too_much(rules, load, capacity):
        return _down(rules, load, stay, now)
    stay = replace(stay, memory=replace(memory, low_since=None, low_most=0))
    if needed is None:
        return replace(stay, reason="EpochsTooSmall")
    return _up(rules, load, stay, now, has_room=room == 0)


def _whatever_the_load(
    rules: Rules, load: Load, stay: Verdict, now: datetime, room: int
) -> Verdict | None:
    """What bounds, the time since the last change and missing room say; None for nothing."""
    memory, bounded = stay.memory, _within(rules, load.width)
    if bounded != load.width:
        return _go(stay, bounded, "OutOfBounds", now)
    if memory.changed_at is not None and now < _after(memory.changed_at, rules.cooldown):
        return replace(stay, reason="CoolingDown")
    back = max(room, memory.step.before) if memory.step is not None else load.width
    if room and back < load.width and _went_up(memory, load):
        gone = _go(stay, _within(rules, back), "NoRoom", now)
        until = _after(now, rules.down_delay)
        return replace(gone, memory=replace(gone.memory, no_room_until=until))
    return None


def _went_up(memory: Memory, load: Load) -> bool:
    step = memory.step
    return step is not None and step.before < step.after == load.width


def _needed(rules: Rules, load: Load) -> int | None:
    """Subtasks for this load, whatever the bounds; None if no number of them will do.

    With `a` seconds beside the rows, epochs of `m` rows and `r` rows per second of one subtask, so
    many subtasks do 1 / (1 / (r * subtasks) + a / m).
    """
    wanted = _wanted(rules, load, rules.target)
    if wanted <= 0 or math.isinf(load.rate):
        return 1
    spare = 1.0 / wanted - load.fixed / rules.epoch_rows
    if spare <= 0:
        return None
    return _even(load.width / (load.rate * spare), rules.key_groups, rules.most)


def _wanted(rules: Rules, load: Load, utilization: float) -> float:
    """Rows per second: what arrives at this utilization, the backlog, and that of the change."""
    backlog = (load.lag or 0) + load.arrival * rules.pause
    return load.arrival / utilization + backlog / rules.catch_up


def _even(least: float, key_groups: int, most: int) -> int:
    """The fewest subtasks whose largest has no more than its share of the key groups.

    With 128 key groups 100 subtasks do no more than 64, since some have two. A divisor of the
    number of key groups is preferred where one is near: all subtasks are alike then.
    """
    if least >= key_groups:
        return key_groups
    share = max(math.floor(key_groups / max(least, 1.0) + _TINY), 1)
    width = math.ceil(key_groups / share)
    near = range(width, min(int(width * _NEAR), most) + 1)
    return next((one for one in near if key_groups % one == 0), width)


def _within(rules: Rules, width: int) -> int:
    return max(min(width, rules.most, rules.key_groups), min(rules.least, rules.key_groups))


def _too_much(rules: Rules, load: Load, capacity: float) -> bool:
    upper = 1.0 if _in_backlog(rules, load) else min(rules.target + rules.boundary, 1.0)
    return load.arrival / upper + (load.lag or 0) / rules.catch_up > capacity


def _in_backlog(rules: Rules, load: Load) -> bool:
    return (load.lag or 0) > rules.backlog * max(load.arrival, _TINY)


def _up(rules: Rules, load: Load, stay: Verdict, now: datetime, *, has_room: bool) -> Verdict:
    memory, step = stay.memory, stay.memory.step
    if stay.needed <= load.width:
        return replace(stay, reason="AtLimit")
    if not has_room or (memory.no_room_until is not None and now < memory.no_room_until):
        return replace(stay, reason="NoRoom")
    if load.is_uneven and load.busiest is not None and not load.busiest.splits:
        # Its only key group would be another subtask's as it is.
        return replace(stay, reason="HotSubtask")
    if step is not None and _went_up(memory, load) and now < _after(step.at, rules.down_delay):
        hoped = step.rate * step.after / step.before - step.rate
        if load.rate - step.rate < _EFFECT * hoped:
            return replace(stay, reason="Ineffective")
    return _go(stay, min(stay.needed, load.width * rules.up_factor), "ScaleUp", now)


def _down(rules: Rules, load: Load, stay: Verdict, now: datetime) -> Verdict:
    memory, lower = stay.memory, max(rules.target - rules.boundary, _TINY)
    kept = replace(stay, memory=replace(memory, low_since=None, low_most=0))
    if _in_backlog(rules, load):
        return replace(kept, reason="InBacklog")
    busy = _wanted(rules, load, lower) >= load.capacity(rules.epoch_rows)
    if stay.needed >= load.width or busy:
        return kept
    if load.seconds < _FULL * rules.window:
        return replace(stay, reason="Measuring")
    since, most = memory.low_since or now, max(memory.low_most, stay.needed)
    if most >= load.width:
        # In that time there were more than now, which somebody else changed: it begins anew.
        since, most = now, stay.needed
    if now < _after(since, rules.down_delay):
        memory = replace(memory, low_since=since, low_most=most)
        return replace(stay, reason="ScaleDownDelayed", memory=memory)
    least = math.ceil(load.width * (1.0 - rules.down_factor))
    return _go(stay, max(most, least, 1), "ScaleDown", now)


def _go(stay: Verdict, width: int, reason: Reason, now: datetime) -> Verdict:
    if width == stay.width:
        return stay
    rate = 0.0 if math.isinf(stay.rate) else stay.rate
    memory = replace(
        stay.memory,
        changed_at=now,
        step=Step(stay.width, width, now, rate),
        low_since=None,
        low_most=0,
    )
    return replace(stay, width=width, reason=reason, memory=memory)


def _after(at: datetime, seconds: float) -> datetime:
    return at + timedelta(seconds=seconds)
