# ruff: noqa: ARG002, N802, N803 - the names of methods and arguments are Spark's
"""The job as `transformWithState` processors, in rows and in pandas.

One state call to read and one to write for each key and batch: the least that the API allows.
They emit the new count and sum after every row, as the job on Moorage does; the lean one emits one
row for each key and batch.
"""

import os
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from benchmarks.jobs.wide_values import VALUE_BYTES

__all__ = [
    "OUTPUT",
    "STATE",
    "CountAndSumPandas",
    "CountAndSumRows",
    "CountAndSumRowsLean",
    "KeepWideValues",
]

OUTPUT = "key long, count long, sum long"
STATE = "totals"


class _CountAndSum(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._totals = handle.getValueState(STATE, "count long, sum long")

    def close(self) -> None:
        pass


class CountAndSumRows(_CountAndSum):
    """Emits the new count and sum after every row."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Add the key's rows of this batch."""
        count, total = self._totals.get() or (0, 0)
        for row in rows:
            count += 1
            total += row.value
            yield Row(key=key[0], count=count, sum=total)
        self._totals.update((count, total))


class CountAndSumRowsLean(_CountAndSum):
    """Emits one row for each key and batch."""

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Add the key's rows of this batch."""
        count, total = self._totals.get() or (0, 0)
        for row in rows:
            count += 1
            total += row.value
        self._totals.update((count, total))
        yield Row(key=key[0], count=count, sum=total)


class CountAndSumPandas(_CountAndSum):
    """Emits the new counts and sums of a key's rows, one frame for each key and batch."""

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """Add the key's rows of this batch."""
        count, total = self._totals.get() or (0, 0)
        for frame in rows:
            totals = list(accumulate(frame["value"].tolist(), initial=total))[1:]
            counts = range(count + 1, count + 1 + len(totals))
            yield pd.DataFrame({"key": key[0], "count": counts, "sum": totals})
            count, total = counts[-1], totals[-1]
        self._totals.update((count, total))


class KeepWideValues(StatefulProcessor):
    """Writes ten new kilobytes for each row, as `benchmarks.jobs.wide_values` does."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """See `StatefulProcessor`."""
        self._value = handle.getValueState("value", "value binary")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Keep the value of the last row."""
        for _ in rows:
            self._value.update((os.urandom(VALUE_BYTES),))
        return iter(())

    def close(self) -> None:
        """See `StatefulProcessor`."""
