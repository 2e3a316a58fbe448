"""Rows that an operator does not process: with a null key, or without an event time.

Decides which they are, counts them, and names the first. Called by the subtask for each batch, and
by its operator side for broadcast rows. Must not know where such rows go.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from moorage.engine.columns import INPUT_COLUMN, TIME_COLUMN
from moorage.engine.subtask_plan import SubtaskPlan

__all__ = ["RowFilter", "missing_times"]


class RowFilter:
    """Finds odd rows in batches of keyed rows; one for each attempt of a subtask.

    Attributes:
        null_keys: how many rows had a null in their key.
        null_rows: how many of these had nulls alone, which is what Spark makes of a line that it
            cannot read.
        bad_times: how many others had no event time where their input declares one.
        first_bad_time: names the first of them; empty where there are none.
    """

    def __init__(self, plan: SubtaskPlan) -> None:
        self._plan = plan
        self.null_keys = self.null_rows = self.bad_times = 0
        self.first_bad_time = ""

    def sort_out(
        self, batch: pa.RecordBatch
    ) -> tuple[pa.RecordBatch, Sequence[tuple[str, pa.RecordBatch]]]:
        """The rows to process, and the others with the side output that the plan has for them."""
        aside: list[tuple[str, pa.RecordBatch]] = []
        if (null := self._null_keys(batch)) is not None:
            rows, batch = _split(batch, null)
            self.null_keys += rows.num_rows
            self.null_rows += _null_rows(rows, self._plan.columns)
            aside.append((self._plan.null_keys_to, rows))
        if (missing := missing_times(batch, self._plan.time_columns)) is not None:
            self._note_bad_time(batch, int(missing.argmax()))
            rows, batch = _split(batch, missing)
            self.bad_times += rows.num_rows
            aside.append((self._plan.bad_times_to, rows))
        return batch, aside

    def _null_keys(self, batch: pa.RecordBatch) -> NDArray[np.bool_] | None:
        columns = [batch.column(name) for name in self._plan.key_columns]
        if not any(column.null_count for column in columns):
            return None
        null = np.zeros(batch.num_rows, dtype=bool)
        for column in columns:
            null |= column.is_null().to_numpy(zero_copy_only=False)
        return null

    def _note_bad_time(self, batch: pa.RecordBatch, row: int) -> None:
        if self.first_bad_time:
            return
        plan = self._plan
        values = tuple(batch.column(name)[row].as_py() for name in plan.key_columns)
        index = batch.column(INPUT_COLUMN)[row].as_py() if len(plan.time_columns) > 1 else 0
        source = f"input={plan.inputs[index]} " if plan.inputs else ""
        key = values[0] if len(values) == 1 else values
        self.first_bad_time = f"{source}column={plan.time_columns[index]} key={key!r:.100}"


def missing_times(batch: pa.RecordBatch, time_columns: Sequence[str]) -> NDArray[np.bool_] | None:
    """Which rows have no event time although their input declares one; None where all have.

    Args:
        time_columns: by position of the input the column of event time, empty for an input that
            declares none; nothing at all where no input does.
    """
    if not any(time_columns) or not batch.num_rows:
        return None
    column = batch.column(TIME_COLUMN)
    if not column.null_count:
        return None
    missing: NDArray[np.bool_] = column.is_null().to_numpy(zero_copy_only=False)
    if not all(time_columns):
        declared = np.array([bool(name) for name in time_columns])
        missing &= declared[batch.column(INPUT_COLUMN).to_numpy()]
    return missing if missing.any() else None


def _split(batch: pa.RecordBatch, odd: NDArray[np.bool_]) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    mask = pa.array(odd)
    return batch.filter(mask), batch.filter(pc.invert(mask))


def _null_rows(batch: pa.RecordBatch, columns: Sequence[str]) -> int:
    null = np.ones(batch.num_rows, dtype=bool)
    for name in columns:
        null &= batch.column(name).is_null().to_numpy(zero_copy_only=False)
    return int(null.sum())
