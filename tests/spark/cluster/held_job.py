"""Counts rows by key. While the file `hold` lies beside its input, savepoints wait in mid-upload.

`env.args` is the directory that holds `in` and `out`.
"""

import time
from pathlib import Path

from moorage import FileSink, KeyedProcessFunction, ValueStateDescriptor
from moorage.engine.fleet import RangeFleet


class Count(KeyedProcessFunction):
    """Emits (key, n) for each event."""

    def open(self, ctx):
        self.count = ctx.get_state(ValueStateDescriptor("count", "long"))

    def process(self, _row, ctx):
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield ctx.key, count


def build(env):
    """Read, count, publish."""
    (home,) = env.args
    _hold_savepoints(Path(home, "hold"))
    events = env.read_stream("events", "parquet", schema="key long, value long", path=f"{home}/in")
    counts = events.key_by("key").process(Count(), uid="count", output="key long, count long")
    counts.sink_to(FileSink(f"{home}/out"), uid="out")


def _hold_savepoints(file: Path) -> None:
    save = RangeFleet.save

    def held(*args, **kwargs):
        while file.exists():
            time.sleep(0.05)
        return save(*args, **kwargs)

    RangeFleet.save = held  # type: ignore[method-assign]  # held back
