"""Rows and totals of ten-second windows, ready-made or by hand, as a Moorage job.

Arguments: the directory of the input files, that for the output, and which way.
"""

import datetime
from collections.abc import Iterator
from typing import Any

from moorage import (
    FileSink,
    KeyedProcessFunction,
    MapStateDescriptor,
    ProcessContext,
    RuntimeContext,
    Tumbling,
    count,
    sum_,
)

SIZE_MS = 10_000
OUTPUT = "key long, window_start timestamp, window_end timestamp, rows long, total long"
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Windows(KeyedProcessFunction):
    """What one writes where there are no windows."""

    def open(self, ctx: RuntimeContext) -> None:
        """Get the state."""
        descriptor = MapStateDescriptor("windows", "long", "struct<rows:long,total:long>")
        self.windows = ctx.get_map_state(descriptor)

    def process(self, row: Any, ctx: ProcessContext) -> None:
        """Add one row."""
        start = row.at - row.at % SIZE_MS
        service = ctx.timer_service()
        if start + SIZE_MS - 1 <= service.current_watermark():
            return
        known = self.windows.get(start)
        rows, total = known or (0, 0)
        self.windows.put(start, (rows + 1, total + row.value))
        if known is None:
            service.register_event_time_timer(start + SIZE_MS - 1)

    def on_timer(self, timestamp: int, ctx: ProcessContext) -> Iterator[tuple[Any, ...]]:
        """Give a window that has ended."""
        start = timestamp + 1 - SIZE_MS
        rows, total = self.windows.get(start)
        self.windows.remove(start)
        yield ctx.key, _instant(start), _instant(start + SIZE_MS), rows, total


def _instant(time_ms: int) -> datetime.datetime:
    return _EPOCH + datetime.timedelta(milliseconds=time_ms)


def build(env: Any) -> None:
    """Describe the job."""
    source, target, way = env.args
    rows = env.read_stream(
        "rows",
        "parquet",
        schema="key long, at long, value long",
        path=source,
        maxFilesPerTrigger=1,
    ).with_event_time("at")
    keyed = rows.key_by("key")
    if way == "by-hand":
        made = keyed.process(Windows(), uid="windows", output=OUTPUT)
    else:
        made = keyed.window(Tumbling("10s")).aggregate(
            uid="windows", rows=count(), total=sum_("value")
        )
    made.sink_to(FileSink(target), uid="out")
