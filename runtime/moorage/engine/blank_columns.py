"""Columns of an input that are null in all of its first rows: most likely misnamed.

To Spark a column that the data does not have is one of nulls, and nothing fails. So subtasks look
at all rows of an epoch, by the counts of nulls that Arrow has, in the first epochs of a run: until
those that are committed had a hundred of an input. One that has fewer is looked at in each. Decides
which columns are told. Called by subtasks with every batch, and by the epoch runner.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from moorage.api.graph import Feed, JobGraph
from moorage.engine.columns import INPUT_COLUMN, TIME_COLUMN, stream_column
from moorage.engine.subtask_plan import SubtaskPlan

_ENOUGH = 100
"""Rows: of fewer, a column that has a value now and then may be null in all."""


class BlankColumns(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How many rows of a feed were looked at, and the columns that were null in each of them."""

    rows: int
    columns: tuple[str, ...]

    def __add__(self, other: "BlankColumns") -> "BlankColumns":
        both = tuple(name for name in self.columns if name in other.columns)
        return BlankColumns(self.rows + other.rows, both)


def merged(
    some: Mapping[int, BlankColumns], more: Mapping[int, BlankColumns]
) -> dict[int, BlankColumns]:
    """By feed, what is known after both."""
    return {**some, **{n: some[n] + new if n in some else new for n, new in more.items()}}


class BlankColumnSearch:
    """Of one attempt of one subtask.

    Attributes:
        found: by feed, of all rows so far. No row is left out, however many came: a refusal tells
            of all rows of an epoch, and which come first is not the same in each attempt.
    """

    def __init__(self, plan: SubtaskPlan) -> None:
        self._plan = plan
        self.found: dict[int, BlankColumns] = {}

    def observe(self, batch: pa.RecordBatch) -> None:
        """Take note of a batch's rows, odd ones included."""
        for feed in self._plan.blank_columns_of:
            rows = batch
            if len(self._plan.time_columns) > 1:
                rows = batch.filter(pc.equal(batch.column(INPUT_COLUMN), feed))
            if count := rows.num_rows:
                blank = (name for name, column in self._columns(feed, rows) if _is_blank(column))
                new = {feed: BlankColumns(count, tuple(dict.fromkeys(blank)))}
                self.found = merged(self.found, new)

    def _columns(self, feed: int, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.Array]]:
        plan = self._plan
        # A function may not read it, and a text that is no time is a null there alone.
        if time := plan.time_columns[feed]:
            yield time, rows.column(TIME_COLUMN)
        for side, names in enumerate(plan.streams):
            structs = rows.column(stream_column(side))
            if not _is_blank(structs):
                yield from zip(names, structs.flatten(), strict=True)
        if not plan.streams:
            yield from ((name, rows.column(name)) for name in plan.columns)


def _is_blank(column: pa.Array) -> bool:
    return bool(column.null_count == len(column))


class FirstRows:
    """What is known of the first rows that operators read of inputs, in one run.

    Attributes:
        told: by input and column, what to tell of it.
    """

    def __init__(self, graph: JobGraph) -> None:
        self.told: dict[str, str] = {}
        self._feeds = {operator.uid: operator.feeds for operator in graph.operators}
        self._found: dict[str, dict[int, BlankColumns]] = {uid: {} for uid in self._feeds}

    def to_look_at(self) -> dict[str, tuple[int, ...]]:
        """By operator uid, the feeds of which the epochs so far had too few rows."""
        return {
            uid: tuple(n for n, feed in enumerate(feeds) if self._wanted(uid, n) and _as_read(feed))
            for uid, feeds in self._feeds.items()
        }

    def take(self, uid: str, found: Mapping[int, BlankColumns]) -> None:
        """An epoch was committed, in which an operator had these by feed."""
        self._found[uid] = merged(self._found[uid], found)
        for position in found:
            if not self._wanted(uid, position):
                self._tell(self._feeds[uid][position], self._found[uid][position])

    def _wanted(self, uid: str, position: int) -> bool:
        found = self._found[uid].get(position)
        return found is None or found.rows < _ENOUGH

    def _tell(self, feed: Feed, found: BlankColumns) -> None:
        # Those of other sources have their names from the source, such as a key of Kafka.
        if feed.branch is None or feed.branch.node.files is None:
            return
        # `_corrupt_record` has a value where Spark could not read a line.
        for column in (name for name in found.columns if not name.startswith("_")):
            self.told[f"{feed.told} column={column}"] = (
                f"a column was null in all of the first rows of an input: {feed.told} "
                f"column={column} rows={found.rows}; see whether the data has it by this name: "
                f"what a record does not have is null"
            )


def _as_read(feed: Feed) -> bool:
    # A transform may leave the rows that have no value, and make columns that are to have none.
    return feed.branch is not None and not feed.branch.transforms


def are_blank(names: Sequence[str], found: BlankColumns | None) -> bool:
    """Whether one of these columns was null in all rows of an epoch, and these were several."""
    return found is not None and found.rows > 1 and not set(names).isdisjoint(found.columns)
