"""Count and sum per key, as a Moorage job: what every engine of the benchmark computes.

Arguments: the directory of the input files, the directory for the output.
"""

from collections.abc import Iterator
from typing import Any

from moorage import (
    FileSink,
    KeyedProcessFunction,
    ProcessContext,
    RuntimeContext,
    ValueStateDescriptor,
)

OUTPUT = "key long, count long, sum long"


class CountAndSum(KeyedProcessFunction):
    """Emits the new count and sum after every row."""

    def open(self, ctx: RuntimeContext) -> None:
        """Get the state."""
        self.totals = ctx.get_state(ValueStateDescriptor("totals", "count long, sum long"))

    def process(self, row: Any, ctx: ProcessContext) -> Iterator[tuple[int, int, int]]:
        """Add one row."""
        count, total = self.totals.value() or (0, 0)
        count, total = count + 1, total + row.value
        self.totals.update((count, total))
        yield ctx.key, count, total


def build(env: Any) -> None:
    """Describe the job."""
    source, target = env.args
    rows = env.read_stream(
        "rows", "parquet", schema="key long, value long", path=source, maxFilesPerTrigger=1
    )
    totals = rows.key_by("key").process(CountAndSum(), uid="totals", output=OUTPUT)
    totals.sink_to(FileSink(target), uid="out")
