"""What a subtask sees of event time: the newest of each clock, by value where it counts so.

Decides what the acknowledgement says of them. Called by the subtask with every batch, before rows
are processed. Only maxima are kept, so that the order in which rows come changes nothing.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from moorage.engine.chunks import time_column
from moorage.engine.clocks import MAX_VALUES, Value, too_many_values
from moorage.engine.columns import INPUT_COLUMN
from moorage.engine.subtask_plan import SubtaskPlan

__all__ = ["EventTimes"]


class EventTimes:
    """Of one attempt of one subtask.

    Attributes:
        newest: by clock, the newest event time in milliseconds.
        values: by clock that counts by value, the same of each value.
        late_rows: rows of inputs whose event time the watermark had reached.
    """

    def __init__(self, plan: SubtaskPlan) -> None:
        self._watermark = plan.watermark
        # All rows come in one epoch with the backend batch: nothing would wait for a value.
        per = () if plan.batch else plan.per
        self._inputs = tuple(zip(plan.inputs, per or ("",) * len(plan.inputs), strict=True))
        self.newest: dict[str, int] = {}
        self.values: dict[str, dict[Value, int]] = {}
        self.late_rows = 0

    def observe(self, batch: pa.RecordBatch) -> None:
        """Take note of a batch's rows, those with a null key included.

        Raises:
            UserError: there are too many values.
        """
        column = time_column(batch)
        if column is None or not self._inputs:
            return
        timed = column.is_valid().to_numpy(zero_copy_only=False)
        inputs = batch.column(INPUT_COLUMN).to_numpy()
        stamps = column.fill_null(0).to_numpy()
        self.late_rows += int((timed & (stamps <= self._watermark)).sum())
        for index, (clock, per) in enumerate(self._inputs):
            rows = timed & (inputs == index)
            mine = stamps[rows]
            if not len(mine):
                continue
            if per:
                self._observe_values(clock, per, batch.column(per).filter(pa.array(rows)), mine)
            else:
                newest = int(mine.max())
                self.newest[clock] = max(self.newest.get(clock, newest), newest)

    def _observe_values(
        self, clock: str, per: str, column: pa.Array, stamps: NDArray[np.int64]
    ) -> None:
        known = self.values.setdefault(clock, {})
        encoded: Any = pc.dictionary_encode(column, null_encoding="encode")
        # Rows by their value, so that one pass gives the newest of each.
        indices = encoded.indices.to_numpy()
        order = np.argsort(indices, kind="stable")
        starts = np.flatnonzero(np.diff(indices[order], prepend=-1))
        newest = np.maximum.reduceat(stamps[order], starts)
        for found, time_ms in zip(encoded.dictionary.to_pylist(), newest.tolist(), strict=True):
            value = None if found is None else str(found)
            known[value] = max(known.get(value, time_ms), time_ms)
        if len(known) > MAX_VALUES:
            raise too_many_values(clock, per, len(known))
