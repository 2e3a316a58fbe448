"""The next release of job_before.py: counts are wider, the greatest value is new, the last is gone.

State that the last release wrote is read by this one: fields go by their names, an int becomes a
long, a new field has its default, and one that is not named any more is left out. Nothing is
rewritten beforehand. Arguments: the folder with readings as JSON lines, and the folder for counts.
"""

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
    """Keeps other two fields for each sensor, under the same name of the state."""

    def open(self, ctx: RuntimeContext) -> None:
        """Name the state, and give its type as it is now."""
        self.seen = ctx.get_state(ValueStateDescriptor("seen", "n long, most double DEFAULT 0.0"))

    def process(self, row: Any, ctx: ProcessContext) -> Iterator[Any]:
        """One reading."""
        seen = self.seen.value()
        n, most = (0, 0.0) if seen is None else seen
        self.seen.update((n + 1, max(most, row.value)))
        yield ctx.key, n + 1, max(most, row.value)


def build(env: StreamEnvironment) -> None:
    """Describe the job: the uids are those of the last release."""
    source, target = env.args
    readings = env.read_stream(
        "readings", "json", schema="sensor string, value double", path=source
    )
    counts = readings.key_by("sensor").process(
        Readings(), uid="count", output="sensor string, n long, most double"
    )
    counts.sink_to(FileSink(target), uid="out")
