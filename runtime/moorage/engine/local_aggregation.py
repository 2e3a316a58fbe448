"""The first of two phases of an aggregate of windows: rows are added up before the shuffle.

Each partition of the source makes one row of all its rows of a key and a pane, which are the rows
that lie in the same windows; only these travel, are sorted and go to Python. Done by the partial
half of a Spark aggregation, whose other half is never run: the subtask merges instead, into its
state. What is added up gives the same whatever the order, so the results are those of one phase.
Called by the planner.
"""

from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from moorage.api.aggregates import LOW_BITS, LocalAggregate, Part
from moorage.api.graph import OperatorNode
from moorage.api.window_columns import TimeWindows
from moorage.api.window_operator import FIRST_KNOWN, LAST_KNOWN
from moorage.engine.acks import EpochOutcome
from moorage.engine.columns import COUNT_COLUMN, NULLS_COLUMN, TIME_COLUMN

ROWS_TO_SAVE = 50_000
"""So many rows fewer on their way make up for what the plan of an epoch in two phases costs."""

EPOCHS_WITHOUT = 100
"""After one in which adding up saved less, as where each row is in a pane of its own."""

_PANE, _LATE = "_m_pane", "_m_late"
_CODE, _BETWEEN = "WholeStageCodegen", {"InputAdapter", "Sort"}


class TwoPhases:
    """Which operators add up in the next epoch, by what those before it had.

    Attributes:
        uids: of these operators.
    """

    def __init__(self) -> None:
        self.uids: set[str] = set()
        self._not_before: dict[str, int] = {}

    def take_in(self, outcome: EpochOutcome, epoch: int) -> None:
        """Take note of an epoch; one without rows, as a tick is, tells nothing."""
        for uid, (rows, read, keys) in outcome.rows_by_operator().items():
            if not rows:
                continue
            many = rows - keys >= ROWS_TO_SAVE
            if many and uid in self.uids and rows - read < ROWS_TO_SAVE:
                self._not_before[uid] = epoch + EPOCHS_WITHOUT
            if many and epoch >= self._not_before.get(uid, 0):
                self.uids.add(uid)
            else:
                self.uids.discard(uid)


def local_of(operator: OperatorNode) -> LocalAggregate | None:
    """How the rows of an operator may be added up before they travel; None where they may not."""
    function = operator.function
    if not isinstance(function, TimeWindows) or operator.reads is None:
        return None
    # Each row that an operator sends is accounted for where it arrives.
    return None if any(feed.branch is None for feed in operator.feeds) else function.local


def counted_by(operator: OperatorNode) -> tuple[str, ...]:
    """The columns of the key, and those by whose values event time counts."""
    per = (branch.per for branch in operator.upstream.branches if branch.per)
    return tuple(dict.fromkeys((*operator.key_columns, *per)))


def added_columns(operator: OperatorNode) -> tuple[str, ...]:
    """The columns that rows have which were added up, beside the engine's own."""
    local = local_of(operator)
    return (*counted_by(operator), *(local.columns if local else ()))


class LocalAggregation:
    """How the rows of one feed are added up: what is the same in each epoch, made once.

    Its rows have the columns `by`, `COUNT_COLUMN`, `NULLS_COLUMN`, `TIME_COLUMN` if there are
    times, which is the newest, and those of the sums.

    Args:
        by: the columns of the key, and what else rows are counted by.
        time: event times in milliseconds; None where none is declared.
    """

    def __init__(self, by: Sequence[str], time: Column | None, local: LocalAggregate) -> None:
        read = dict.fromkeys((*by, *(part.column for part in local.parts if part.column)))
        self._columns = [sf.col(f"`{name}`") for name in read]
        nulls = reduce(and_, (column.isNull() for column in self._columns))
        keys = [*by]
        sums = {
            COUNT_COLUMN: sf.count(sf.lit(1)),
            NULLS_COLUMN: sf.sum(sf.when(nulls, sf.lit(1))),
        }
        self._time = time
        if time is not None:
            keys.append(_LATE)
            self._columns.append(time.alias(TIME_COLUMN))
            sums[TIME_COLUMN] = sf.max(TIME_COLUMN)
        if time is not None and local.pane_ms:
            keys.append(_PANE)
            since = sf.pmod(time - sf.lit(local.offset_ms), sf.lit(local.pane_ms))
            # A time that is too far away is told with the row.
            known = time.between(sf.lit(FIRST_KNOWN), sf.lit(LAST_KNOWN))
            self._columns.append(sf.when(known, time - since).alias(_PANE))
        for part in local.parts:
            sums |= zip(part.local_columns, _sums(part), strict=True)
        self._names, self._sums = [*keys, *sums], [*sums.values()]
        self._keys = [sf.col(f"`{name}`") for name in keys]
        self._first = sf.spark_partition_id() * sf.lit(0)
        self._schema: Any = None

    def added_up(self, rows: DataFrame, watermark: int) -> DataFrame | None:
        """One row for each partition, key and pane; None where this Spark plans it otherwise.

        Args:
            watermark: late rows are added up by themselves, so that they can be counted.
        """
        columns = self._columns
        if self._time is not None:
            columns = [*columns, (self._time <= self._unfolded(watermark)).alias(_LATE)]
        grouped = rows.select(*columns).groupBy(*self._keys).agg(*self._sums)
        partial, session = _partial(grouped), rows.sparkSession
        create: Any = session._jsparkSession.internalCreateDataFrame
        if partial is None or partial.schema().size() != len(self._names):
            return None
        if self._schema is None:
            found = DataFrame(create(partial.execute(), partial.schema(), False), session)
            self._schema = found.toDF(*self._names)._jdf.schema()
        return DataFrame(create(partial.execute(), self._schema, False), session)

    def _unfolded(self, value: int) -> Column:
        """A number that Spark does not write into the code that it generates.

        It would compile that again for each other number.
        """
        return sf.get(sf.array(sf.lit(value).cast("long")), self._first)


def _sums(part: Part) -> list[Column]:
    column = sf.col(f"`{part.column}`")
    if part.op == "rows":
        return []
    if part.op == "values":
        return [sf.sum(sf.when(column.isNotNull(), sf.lit(1)))]
    if part.op != "sum":
        if part.ddl in {"float", "double"}:
            # Of 0.0 and -0.0, which are equal, it would be whichever came first.
            column += sf.lit(0.0)
        return [sf.min(column) if part.op == "min" else sf.max(column)]
    # In two halves, of which neither can grow too large, where the whole of them may.
    whole = column.cast("long")
    low = whole.bitwiseAND(sf.lit((1 << LOW_BITS) - 1))
    return [sf.sum(sf.shiftright(whole, LOW_BITS)), sf.sum(low)]


def _partial(grouped: DataFrame) -> Any:
    """The first half of the plan of an aggregation, before its rows are exchanged.

    None where there is no such half, as where the rows lie by key already.
    """
    node: Any = grouped._jdf.queryExecution().executedPlan()
    seen = False
    while "Exchange" not in (name := str(node.nodeName())):
        half = name.endswith("Aggregate")
        # Any other node, or the other half, has no exchange before it, or somebody else's.
        if (half and seen) or not (half or name in _BETWEEN or name.startswith(_CODE)):
            return None
        seen = seen or half
        node = node.children().apply(0)
    return node.children().apply(0) if seen else None
