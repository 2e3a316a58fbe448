# ruff: noqa: ARG002, N802, N803 - the names of methods and arguments are Spark's
"""The job as `transformWithState` processors, in rows and in pandas.

One state call to read and one to write for each key and batch: the least that the API allows.
"""

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

__all__ = ["OUTPUT", "STATE", "CountAndSumPandas", "CountAndSumRows"]

OUTPUT = "key long, count long, sum long"
STATE = "totals"


class _CountAndSum(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._totals = handle.getValueState(STATE, "count long, sum long")

    def close(self) -> None:
        pass


class CountAndSumRows(_CountAndSum):
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
    """Emits one frame for each key and batch."""

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        """Add the key's rows of this batch."""
        count, total = self._totals.get() or (0, 0)
        for frame in rows:
            count += len(frame)
            total += int(frame["value"].sum())
        self._totals.update((count, total))
        yield pd.DataFrame({"key": [key[0]], "count": [count], "sum": [total]})
