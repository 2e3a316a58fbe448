"""Count and sum per key as a vectorized function: the same rows out, no Python for each of them.

Arguments: the directory of the input files, the directory for the output.
"""

from typing import Any

import numpy as np
import pyarrow as pa
from benchmarks.jobs.shared import STATE, describe

from moorage import (
    BatchContext,
    KeyedBatchFunction,
    RuntimeContext,
    ValueStateDescriptor,
)


class CountAndSum(KeyedBatchFunction):
    """Emits the new count and sum after every row."""

    def open(self, ctx: RuntimeContext) -> None:
        """Get the state."""
        self.totals = ctx.get_state(ValueStateDescriptor("totals", STATE))

    def process_batch(
        self,
        keys: pa.Array,  # noqa: ARG002 - the table has them, too
        table: pa.RecordBatch,
        ctx: BatchContext,
    ) -> pa.Table:
        """Add the rows of some keys."""
        count, total = (field.fill_null(0).to_numpy() for field in _fields(ctx, self.totals))
        values = table.column("value").to_numpy()
        sums = np.cumsum(values)
        before = sums[ctx.starts] - values[ctx.starts]
        counts = np.arange(1, len(values) + 1) - ctx.starts[ctx.key_index] + count[ctx.key_index]
        sums = sums + (total - before)[ctx.key_index]
        lasts = np.append(ctx.starts[1:], len(values)) - 1
        made = pa.StructArray.from_arrays(
            [pa.array(counts[lasts]), pa.array(sums[lasts])], names=["count", "sum"]
        )
        ctx.put_values(self.totals, made)
        return pa.table({"key": table.column("key"), "count": counts, "sum": sums})


def _fields(ctx: BatchContext, state: Any) -> list[pa.Array]:
    """The fields of a struct state, null where a key has none."""
    fields: list[pa.Array] = ctx.get_values(state).flatten()
    return fields


def build(env: Any) -> None:
    """Describe the job."""
    describe(env, CountAndSum())
