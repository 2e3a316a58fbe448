"""Counts of many keys, with a value that is large enough to make files; few rows come out.

Arguments: how many keys, rows in an epoch.
"""

from collections.abc import Iterator
from typing import Any

from moorage import FileSink, KeyedProcessFunction, StreamEnvironment, ValueStateDescriptor


class Count(KeyedProcessFunction):
    """Keeps a count and 256 bytes that depend on the key."""

    def open(self, ctx: Any) -> None:
        """Name the state."""
        self.kept = ctx.get_state(ValueStateDescriptor("kept", "n long, pad string"))

    def process(self, row: Any, ctx: Any) -> Iterator[Any]:
        """One row; of one key in all of them comes output."""
        del row
        kept = self.kept.value()
        n = 1 if kept is None else kept.n + 1
        self.kept.update((n, f"{ctx.key * 2654435761:032x}" * 8))
        if ctx.key == 0:
            yield ctx.key, n


def build(env: StreamEnvironment) -> None:
    """Describe the job."""
    keys, rows = env.args
    ticks = env.read_stream("ticks", "rate-micro-batch", rowsPerBatch=rows).transform(
        lambda frame: frame.selectExpr(f"value * 7919 % {keys} AS key")
    )
    counts = ticks.key_by("key").process(Count(), uid="count", output="key long, n long")
    counts.sink_to(FileSink("out"), uid="out")
