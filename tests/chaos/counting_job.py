"""The job of the kill tests: count and sum per key, and one output row per event.

`env.args` is the directory that holds `in` and `out`, and, if events are
not in `in`, where they are.
"""

from moorage import FileSink, KeyedProcessFunction, ValueStateDescriptor


class CountAndSum(KeyedProcessFunction):
    """Emits (key, n, sum) for each event, so that lost or repeated events show in the output."""

    def open(self, ctx):
        self.count = ctx.get_state(ValueStateDescriptor("count", "long"))
        self.total = ctx.get_state(ValueStateDescriptor("total", "long"))

    def process(self, row, ctx):
        count = (self.count.value() or 0) + 1
        total = (self.total.value() or 0) + row.value
        self.count.update(count)
        self.total.update(total)
        yield ctx.key, count, total


def build(env):
    """Read, count, publish."""
    home, source = (*env.args, f"{env.args[0]}/in")[:2]
    events = env.read_stream(
        "events", "parquet", schema="key long, value long", path=source, maxFilesPerTrigger=1
    )
    counts = events.key_by("key").process(
        CountAndSum(), uid="count", output="key long, count long, total long"
    )
    counts.sink_to(FileSink(f"{home}/out"), uid="out")
