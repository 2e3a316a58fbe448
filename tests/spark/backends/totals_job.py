"""A job whose answer does not depend on where epochs are cut: totals of each key, at the end.

`env.args` is the directory that holds `in` and `out`.
"""

from moorage import FileSink, KeyedProcessFunction, ListStateDescriptor, ValueStateDescriptor

THE_END = 1 << 60


class Totals(KeyedProcessFunction):
    """Emits (key, count, sum, largest) once, when there is no more."""

    def open(self, ctx):
        self.count = ctx.get_state(ValueStateDescriptor("count", "long"))
        self.seen = ctx.get_list_state(ListStateDescriptor("seen", "long"))

    def process(self, row, ctx):
        self.count.update((self.count.value() or 0) + 1)
        self.seen.add(row.value)
        ctx.timer_service().register_event_time_timer(THE_END)

    def on_timer(self, timestamp, ctx):
        assert timestamp == THE_END
        assert ctx.timer_service().current_watermark() > THE_END
        seen = list(self.seen.get())
        yield ctx.key, self.count.value(), sum(seen), max(seen)


class ByCount(KeyedProcessFunction):
    """How many keys had how many events: an operator behind another one."""

    def open(self, ctx):
        self.keys = ctx.get_state(ValueStateDescriptor("keys", "long"))

    def process(self, row, ctx):
        assert row.count == ctx.key
        self.keys.update((self.keys.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(THE_END + 1)

    def on_timer(self, timestamp, ctx):
        assert timestamp > THE_END
        yield ctx.key, self.keys.value()


def build(env):
    """Read one file at a time, add up, publish."""
    (home,) = env.args
    events = env.read_stream(
        "events", "parquet", schema="key long, value long", path=f"{home}/in", maxFilesPerTrigger=1
    )
    totals = events.key_by("key").process(
        Totals(), uid="totals", output="key long, count long, total long, largest long"
    )
    totals.sink_to(FileSink(f"{home}/out"), uid="out")
    counts = totals.key_by("count").process(
        ByCount(), uid="by-count", output="count long, keys long"
    )
    counts.sink_to(FileSink(f"{home}/counts"), uid="counts")
