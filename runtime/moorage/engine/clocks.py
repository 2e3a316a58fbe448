"""The clocks of a job: which inputs tell event time, and which operators go by them.

Decides what counts as one input with event time: an input read by one column of times, however many
operators and branches of a union read it so. Read by two columns it has two clocks, because each is
as far as its own rows. Called by the planner and by the driver. Pure; reads no data.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from moorage.graph import Branch, JobGraph

__all__ = ["Clock", "JobClocks", "job_clocks"]


@dataclass(frozen=True, slots=True)
class Clock:
    """How an input tells event time.

    Attributes:
        delay_ms: how far it stays behind the newest event time.
        idle_after_ms: milliseconds of processing time without rows that make it idle; None: never.
    """

    delay_ms: int = 0
    idle_after_ms: int | None = None


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

    def within_keys(self, uid: str) -> int | None:
        """How far an operator's time within a key stays behind its rows; None: it stands still.

        Of two clocks a row moves only one, and no row of a key tells how far the other has come.
        """
        names = self.readers[uid]
        if len(names) != 1 or uid not in self.branches:
            return None
        return self.clocks[next(iter(names))].delay_ms


def job_clocks(graph: JobGraph) -> JobClocks:
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


def _timed(graph: JobGraph) -> Iterator[Branch]:
    for operator in graph.operators:
        yield from (b for b in operator.upstream.branches if b.event_time is not None)


def _identity(branch: Branch) -> tuple[str, str | None]:
    return branch.node.uid, branch.event_time


def _names(graph: JobGraph) -> dict[tuple[str, str | None], str]:
    known = dict.fromkeys(map(_identity, _timed(graph)))
    inputs = [uid for uid, _ in known]
    return {
        (uid, column): uid if inputs.count(uid) == 1 else f"{uid}:{column}" for uid, column in known
    }


def _same(known: Clock | None, branch: Branch) -> Clock:
    """The clock of readers that declare it each: the longest delay, and idle only if all say so."""
    mine = Clock(branch.max_delay_ms, branch.idle_after_ms)
    if known is None:
        return mine
    limits = (known.idle_after_ms, mine.idle_after_ms)
    idle = None if None in limits else max(limit for limit in limits if limit is not None)
    return Clock(max(known.delay_ms, mine.delay_ms), idle)
