"""The clocks of a job: which inputs tell event time, and which operators go by them.

Decides what counts as one input with event time: an input read by one column of times, however many
operators and branches of a union read it so. Read by two columns it has two clocks, because each is
as far as its own rows; and so it has where only some of its readers count by the values of a
column. Called by the planner and by the driver. Pure; reads no data.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moorage_state.errors import UserError

if TYPE_CHECKING:
    from moorage.api.graph import Branch, JobGraph

__all__ = ["MAX_VALUES", "Clock", "JobClocks", "Value", "job_clocks", "too_many_values"]

MAX_VALUES = 1024
"""How many values of its column a clock may count by at once: each acknowledgement names them."""

Value = str | None
"""A value of the column that a clock counts by, as text; None is the null."""

_Identity = tuple[str, str | None, str]


@dataclass(frozen=True, slots=True)
class Clock:
    """How an input tells event time.

    Attributes:
        delay_ms: how far it stays behind the newest event time.
        idle_after_ms: milliseconds of processing time without rows that make it idle, or each of
            its values; None: never.
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
        branches: by uid of an operator that reads inputs, the clock of each of its branches; ""
            for those without event time.
        readers: by operator uid, the clocks that its watermark is the minimum of. An operator after
            another goes by the same ones.
    """

    clocks: Mapping[str, Clock]
    branches: Mapping[str, tuple[str, ...]]
    readers: Mapping[str, frozenset[str]]

    def per(self, uid: str) -> tuple[str, ...]:
        """By branch of an operator that reads inputs, the column by whose values it counts."""
        return tuple(self.clocks[n].per if n else "" for n in self.branches.get(uid, ()))

    def within_keys(self, uid: str) -> int | None:
        """How far an operator's time within a key stays behind its rows; None: it stands still.

        Of two clocks, or values, a row moves only one, and no row of a key tells how far the other
        has come.
        """
        found = [self.clocks[name] for name in self.readers[uid]]
        if len(found) != 1 or found[0].per or uid not in self.branches:
            return None
        return found[0].delay_ms


def job_clocks(graph: "JobGraph") -> JobClocks:
    """The clocks of what `build(env)` described."""
    names = _names(graph)
    clocks: dict[str, Clock] = {}
    for branch in _timed(graph):
        name = names[_identity(branch)]
        clocks[name] = _same(clocks.get(name), branch)
    branches = {
        operator.uid: tuple(names.get(_identity(b), "") for b in operator.upstream.branches)
        for operator in graph.operators
        if operator.upstream.operator is None
    }
    readers = {o.uid: frozenset(branches[o.first.uid]) - {""} for o in graph.operators}
    return JobClocks(clocks, branches, readers)


def _timed(graph: "JobGraph") -> "Iterator[Branch]":
    for operator in graph.operators:
        yield from (b for b in operator.upstream.branches if b.event_time is not None)


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


def _same(known: Clock | None, branch: "Branch") -> Clock:
    """The clock of readers that declare it each: the longest delay, and idle only if all say so."""
    mine = Clock(branch.max_delay_ms, branch.idle_after_ms, branch.per)
    if known is None:
        return mine
    limits = (known.idle_after_ms, mine.idle_after_ms)
    idle = None if None in limits else max(limit for limit in limits if limit is not None)
    return Clock(max(known.delay_ms, mine.delay_ms), idle, branch.per)
