"""Whether two versions give the same rows: by the samples of their output that drivers tell. Pure.

Decides which rows both must have given by now. Their epochs are cut in other places, so an epoch of
one says nothing of the other; what both have in common is where their sources stood. A row counts
once the other version has read all that this one had read when it gave it, and some epochs more:
what event time brings comes with an epoch after the one that brings that time. Called by the step
Standby.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import NamedTuple

from moorage_api.driver import OutputSample
from moorage_api.lifecycle import CompareOutputs

_SETTLES = 2
"""Epochs after which what was read before them has led to all the output that it leads to."""
_HASHES = 3
"""Rows that are named for each version."""

_Leaf = int | float | str
_Position = Mapping[str, Mapping[str, _Leaf]]


class SinkRows(NamedTuple):
    """Sampled rows of a sink that both versions must have given, and those that one alone gave."""

    sink: str
    rows: int
    extra: Counter[str]  # of the new version
    lacking: Counter[str]  # of the old one

    @property
    def differing(self) -> int:
        """How many."""
        return self.extra.total() + self.lacking.total()

    def exceeds(self, percent: int) -> bool:
        """Whether more than that differ."""
        return self.differing * 100 > self.rows * percent

    @property
    def told(self) -> str:
        """What differs; rows by their hashes, since nobody said that their values may be shown."""
        both = (self.extra, "the new version alone"), (self.lacking, "the old version alone")
        parts = [
            f"{rows.total()} by {whose} (hashes {', '.join(sorted(rows)[:_HASHES])})"
            for rows, whose in both
            if rows
        ]
        text = " and ".join(parts)
        return f"of {self.rows} sampled rows of the sink {self.sink} were given {text}"


def is_sampled(sample: OutputSample | None, rules: CompareOutputs) -> bool:
    """Whether a driver tells the sample that is wanted."""
    if sample is None:
        return False
    told = (sample.percent, sample.except_columns)
    return told == (rules.sample_percent, rules.except_columns)


def not_comparable(new: OutputSample, old: OutputSample) -> str:
    """Why nothing can be said of the rows of both; empty if something can."""
    if trouble := new.trouble or old.trouble:
        return trouble
    return "" if new.start.keys() & old.start.keys() else "no input has one uid in both versions"


def compared(new: OutputSample, old: OutputSample, sinks: Iterable[str]) -> list[SinkRows]:
    """What both must have given by now, sink by sink."""
    mine, theirs = list(_counting(new, old)), list(_counting(old, new))
    found = []
    for sink in sorted(sinks):
        limit = min((one.limits[sink] for one in (new, old) if sink in one.limits), default="")
        asked, given = _rows(new, sink, limit, mine), _rows(old, sink, limit, theirs)
        extra = asked - _rows(old, sink, limit)
        lacking = given - _rows(new, sink, limit)
        found.append(SinkRows(sink, asked.total() + given.total(), extra, lacking))
    return found


def _rows(
    sample: OutputSample, sink: str, limit: str, segments: Iterable[int] | None = None
) -> Counter[str]:
    """How often each row came in these segments, or in all."""
    found: Counter[str] = Counter()
    for index in range(len(sample.segments)) if segments is None else segments:
        rows = sample.segments[index].rows.get(sink, {})
        # Hashes are texts of one length, and so are limits.
        found.update({row: count for row, count in rows.items() if row <= limit})
    return found


def _counting(mine: OutputSample, theirs: OutputSample) -> Iterator[int]:
    """The segments of one version all of whose rows the other must have given as well."""
    places = [mine.start, *(one.end for one in mine.segments)]
    epochs = [0, *accumulate(one.epochs for one in mine.segments)]
    first = 0
    if mine.since_epoch < theirs.since_epoch:
        # The other one's sample begins in the midst of it: what that gave before is not known.
        passed = (e for e, at in zip(epochs, places, strict=True) if _reached(at, theirs.start))
        first = next(passed, epochs[-1]) + _SETTLES
    over = _settled(theirs)
    for index, end in enumerate(places[1:]):
        if epochs[index] >= first and over is not None and _reached(over, end):
            yield index


def _settled(sample: OutputSample) -> _Position | None:
    """The furthest position of which all output is there; None if there is none."""
    epochs = 0
    for one in reversed(sample.segments):
        if epochs >= _SETTLES:
            return one.end
        epochs += one.epochs
    return sample.start if epochs >= _SETTLES else None


def _reached(mine: _Position, theirs: _Position) -> bool:
    """Whether all that was read at one position was read at the other, of the inputs of both."""
    return all(
        _is_no_less(mine[uid].get(path), value)
        for uid, offset in theirs.items()
        if uid in mine
        for path, value in offset.items()
    )


def _is_no_less(mine: _Leaf | None, theirs: _Leaf) -> bool:
    if isinstance(mine, (int, float)) and isinstance(theirs, (int, float)):
        return mine >= theirs
    return mine == theirs
