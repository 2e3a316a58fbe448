"""Count and sum per key of an endless stream, as a job whose state is asked for while it runs.

Arguments: rows per second, and how many keys they have.
"""

from collections.abc import Iterator
from typing import Any

from benchmarks.jobs.shared import STATE

from moorage import KeyedProcessFunction, ProcessContext, RuntimeContext, ValueStateDescriptor


class Totals(KeyedProcessFunction):
    """Keeps count and sum; yields nothing, so that nothing but state is paid for."""

    def open(self, ctx: RuntimeContext) -> None:
        """Get the state, by the name that it is asked for by."""
        self.totals = ctx.get_state(ValueStateDescriptor("totals", STATE).queryable("totals"))

    def process(self, row: Any, ctx: ProcessContext) -> Iterator[tuple[int]]:  # noqa: ARG002
        """Add one row."""
        count, total = self.totals.value() or (0, 0)
        self.totals.update((count + 1, total + row.value))
        yield from ()


def build(env: Any) -> None:
    """Describe the job."""
    rate, keys = env.args
    rows = env.read_stream("rows", "rate", rowsPerSecond=rate, numPartitions="2")
    keyed = rows.transform(lambda frame: frame.selectExpr(f"value % {keys} as key", "value"))
    keyed.key_by("key").process(Totals(), uid="totals", output="key long")
