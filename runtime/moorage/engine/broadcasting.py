"""Broadcast rows on their way: every row once for each subtask, all in the same order.

Decides which columns carry them beside keyed rows. Called by the planner for operators that are
connected with a broadcast stream.
"""

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from moorage.engine.columns import (
    BROADCAST,
    INPUT_COLUMN,
    KIND_COLUMN,
    SOURCE_ORDER,
    TARGET_COLUMN,
    TIME_COLUMN,
    broadcast_column,
)

__all__ = ["to_all"]


def to_all(frames: Sequence[DataFrame], times: Sequence[Column], parallelism: int) -> DataFrame:
    """Rows for every subtask, numbered before they are multiplied.

    Args:
        frames: the rows of each input, of one schema.
        times: the event time of each in milliseconds; none where none is declared.
    """
    several = len(frames) > 1
    parts = []
    for index, rows in enumerate(frames):
        columns = [
            sf.col(f"`{name}`").alias(broadcast_column(i)) for i, name in enumerate(rows.columns)
        ]
        columns.append(sf.lit(BROADCAST).cast("tinyint").alias(KIND_COLUMN))
        columns.append(sf.monotonically_increasing_id().alias(SOURCE_ORDER))
        if times:
            columns.append(times[index].alias(TIME_COLUMN))
        if several:
            columns.append(sf.lit(index).alias(INPUT_COLUMN))
        parts.append(rows.select(*columns))
    targets = sf.sequence(sf.lit(0), sf.lit(parallelism - 1))
    together = reduce(DataFrame.unionByName, parts)
    return together.select("*", sf.explode(targets).alias(TARGET_COLUMN))
