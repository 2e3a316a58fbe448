"""Rows without end over keys that are always the same, with state of each kind, and few rows out.

`env.args` is the directory that holds `out`. What an epoch leaves behind anywhere would add up.
"""

from moorage import (
    FileSink,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)

KEYS, ROWS = 200, 400
KEPT = 20
AHEAD_MS = 2_000


class Ticks(KeyedProcessFunction):
    """Counts rows; its lists, maps and timers are as many after an hour as after a minute."""

    def open(self, ctx):
        self.count = ctx.get_state(ValueStateDescriptor("count", "long"))
        self.last = ctx.get_list_state(ListStateDescriptor("last", "long"))
        self.kinds = ctx.get_map_state(MapStateDescriptor("kinds", "long", "string"))

    def process(self, row, ctx):
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        self.kinds.put(count % KEPT, f"{row.value:064d}")
        if count % KEPT == 0:
            self.last.clear()
        self.last.add(row.value)
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + AHEAD_MS)
        if ctx.key == 0:
            yield {"key": ctx.key, "count": count}

    def on_timer(self, timestamp, _ctx):
        self.kinds.remove(timestamp % KEPT)
        return ()


def build(env):
    (home,) = env.args
    ticks = env.read_stream("ticks", "rate-micro-batch", rowsPerBatch=ROWS).transform(
        lambda frame: frame.selectExpr(f"value % {KEYS} AS key", "value")
    )
    counts = ticks.key_by("key").process(Ticks(), uid="count", output="key long, count long")
    counts.sink_to(FileSink(f"{home}/out"), uid="out")
