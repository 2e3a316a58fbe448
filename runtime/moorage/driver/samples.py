"""The sample of its output that a driver keeps while two versions are compared.

Decides what is said of it: which rows came between which positions of the sources. Epochs of two
versions are cut in other places, so positions are what both have in common. All of it is bounded:
few segments, each of several epochs, and few different rows. Called by the run at boundaries and
after each epoch, under its lock; costs nothing while nobody asked for a sample.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import xxhash

from moorage.driver.query import FilesTaken
from moorage.driver.requests import SampleRequest
from moorage.driver.views import SampleSegment, SampleView
from moorage.engine.samples import SampledRows, Sampling, below
from moorage.engine.sparklog import file_source_position, read_offsets
from moorage_state.formats import read_json

MOST_ROWS = 3072
"""Different rows of all sinks, each counted in every segment that has it."""
MOST_SEGMENTS = 8
FEWEST_SEGMENTS = 3
MOST_BYTES = 110_000
"""Of all positions of a report, which with all else in it may have 256 KiB."""

Position = Mapping[str, Mapping[str, int | float | str]]
"""By input uid, what its source's offset is made of: see `_flat`."""


@dataclass(slots=True)
class OutputSamples:
    """What a driver knows of its output while somebody wants to; used by one thread at a time.

    Args:
        request: from the first run on.
    """

    request: SampleRequest | None = None
    clock: Callable[[], float] = time.monotonic
    _until: float = 0.0
    _since: int = 0
    _start: Position = field(default_factory=dict)
    _limits: dict[str, int] = field(default_factory=dict)
    _segments: list[SampleSegment] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.request is not None:
            self._until = self.clock() + self.request.seconds

    @property
    def sampling(self) -> Sampling | None:
        """What the next epoch is to sample."""
        wanted = self.request
        if wanted is None:
            return None
        return Sampling(wanted.percent, wanted.except_columns, dict(self._limits))

    def ask(self, request: SampleRequest, epoch: int, at: Position) -> None:
        """At a boundary: somebody wants it. What there is of the same goes on."""
        self._until = self.clock() + request.seconds
        before, self.request = self.request, request
        if before is None or replace(before, seconds=request.seconds) != request:
            self.begin(epoch, at)

    def begin(self, epoch: int, at: Position) -> None:
        """A run begins after this epoch: what came after it before does not count."""
        self._since, self._start = epoch, at
        self._limits, self._segments = {}, []

    def committed(self, rows: Mapping[str, SampledRows], at: Position) -> None:
        """An epoch was committed, and ended there; nobody may want it any more."""
        if self.clock() >= self._until:
            self.request = None
            self.begin(0, {})
            return
        for uid, one in rows.items():
            self._limits[uid] = min(one.limit, self._limits.get(uid, one.limit))
        told = {uid: one.rows for uid, one in rows.items()}
        self._segments.append(SampleSegment(1, at, told))
        if len(self._segments) > max(self._most_segments, FEWEST_SEGMENTS):
            pairs = zip(self._segments[::2], [*self._segments[1::2], None], strict=False)
            self._segments = [a if b is None else _joined(a, b) for a, b in pairs]
        self._bound()

    @property
    def view(self) -> SampleView | None:
        """What can be said; None where nobody wants it."""
        if self.request is None:
            return None
        few = SampleView(self.request.percent, self.request.except_columns)
        if self._most_segments < FEWEST_SEGMENTS:
            return replace(few, trouble="the positions of its sources are too long")
        return replace(
            few,
            since_epoch=self._since,
            start=self._start,
            limits=dict(self._limits),
            segments=tuple(self._segments),
        )

    @property
    def _most_segments(self) -> int:
        """There is one position more than segments."""
        last = self._segments[-1].end if self._segments else self._start
        return min(MOST_SEGMENTS, MOST_BYTES // len(json.dumps(last)) - 1)

    def _bound(self) -> None:
        """No more different rows than so many; what is too much is the sink's that has most."""
        kept = {uid: [one.rows.get(uid, {}) for one in self._segments] for uid in self._limits}
        sizes = {uid: sum(map(len, parts)) for uid, parts in kept.items()}
        while sum(sizes.values()) > MOST_ROWS:
            uid = max(sizes, key=sizes.__getitem__)
            self._limits[uid] //= 2
            kept[uid] = [below(rows, self._limits[uid]) for rows in kept[uid]]
            sizes[uid] = sum(map(len, kept[uid]))
        self._segments = [
            replace(one, rows={uid: below(kept[uid][i], self._limits[uid]) for uid in kept})
            for i, one in enumerate(self._segments)
        ]


class Positions:
    """Where the sources of a run stand, by Spark's own files.

    Args:
        inputs: their uids in the order of the query, and whether each reads a directory.
    """

    def __init__(self, spark_dir: Path, inputs: Mapping[str, bool]) -> None:
        self._spark_dir = spark_dir
        self._inputs = inputs
        self._taken = {
            uid: FilesTaken(spark_dir, index)
            for index, (uid, is_files) in enumerate(inputs.items())
            if is_files
        }
        self._known: tuple[int, Position] = (-1, {})

    def after(self, batch_id: int) -> Position:
        """At the end of a batch; of nothing before the first."""
        if batch_id >= 0 and self._known[0] != batch_id:
            offsets = read_offsets(self._spark_dir, batch_id, [*self._inputs])
            self._known = batch_id, {uid: self._place(uid, at) for uid, at in offsets.items()}
        return self._known[1] if batch_id >= 0 else {uid: {} for uid in self._inputs}

    def _place(self, uid: str, offset: str | None) -> Mapping[str, int | float | str]:
        if offset is None:
            return {}
        if uid in self._taken and file_source_position(offset) is not None:
            # Its own number counts the epochs that had files.
            return {"files": self._taken[uid].count()}
        try:
            return dict(_flat(read_json(offset), ""))
        except ValueError:
            return dict(_flat(offset, ""))


def _flat(value: Any, path: str) -> list[tuple[str, int | float | str]]:
    """Numbers, and hashes of all else, each with the path to it."""
    if isinstance(value, dict):
        parts = [(str(name), one) for name, one in value.items()]
    elif isinstance(value, list):
        parts = [(str(index), one) for index, one in enumerate(value)]
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        return [(path, value)]
    else:
        # Whether it is the same is all that can be said of it; and it may be long.
        return [(path, xxhash.xxh3_64_hexdigest(repr(value).encode()))]
    return [leaf for name, one in parts for leaf in _flat(one, f"{path}/{name}")]


def _joined(one: SampleSegment, other: SampleSegment) -> SampleSegment:
    """Two that follow each other, as one."""
    rows: dict[str, Mapping[int, int]] = {
        uid: Counter(one.rows.get(uid, {})) + Counter(other.rows.get(uid, {}))
        for uid in {**one.rows, **other.rows}
    }
    return SampleSegment(one.epochs + other.epochs, other.end, rows)
