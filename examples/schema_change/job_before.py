"""What the last release was: how often each sensor was read, and its last value. See job.py."""

from collections.abc import Iterator
from typing import Any

from moorage import (
    FileSink,
    KeyedProcessFunction,
    ProcessContext,
    RuntimeContext,
    StreamEnvironment,
    ValueStateDescriptor,
)


class Readings(KeyedProcessFunction):
    """Keeps two fields for each sensor."""

    def open(self, ctx: RuntimeContext) -> None:
        """Name the state, and give its type."""
        self.seen = ctx.get_state(ValueStateDescriptor("seen", "n int, last float"))

    def process(self, row: Any, ctx: ProcessContext) -> Iterator[Any]:
        """One reading."""
        seen = self.seen.value()
        n = 1 if seen is None else seen.n + 1
        self.seen.update((n, row.value))
        yield ctx.key, n


def build(env: StreamEnvironment) -> None:
    """Describe the job."""
    source, target = env.args
    readings = env.read_stream(
        "readings", "json", schema="sensor string, value double", path=source
    )
    counts = readings.key_by("sensor").process(
        Readings(), uid="count", output="sensor string, n int"
    )
    counts.sink_to(FileSink(target), uid="out")
