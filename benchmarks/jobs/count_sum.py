"""Count and sum per key, as a Moorage job: what every engine of the benchmark computes.

Arguments: the directory of the input files, the directory for the output.
"""

from collections.abc import Iterator
from typing import Any

from benchmarks.jobs.shared import STATE, describe

from moorage import (
    KeyedProcessFunction,
    ProcessContext,
    RuntimeContext,
    ValueStateDescriptor,
)


class CountAndSum(KeyedProcessFunction):
    """Emits the new count and sum after every row."""

    def open(self, ctx: RuntimeContext) -> None:
        """Get the state."""
        self.totals = ctx.get_state(ValueStateDescriptor("totals", STATE))

    def process(self, row: Any, ctx: ProcessContext) -> Iterator[tuple[int, int, int]]:
        """Add one row."""
        count, total = self.totals.value() or (0, 0)
        count, total = count + 1, total + row.value
        self.totals.update((count, total))
        yield ctx.key, count, total


def build(env: Any) -> None:
    """Describe the job."""
    describe(env, CountAndSum())
