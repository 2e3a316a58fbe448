"""Counts rows by key, for every kind of sink: what is published can be told from what is run.

`env.args` is the directory that holds `in`, `out`, and a line in `calls` for each row handed over.
"""

from pathlib import Path

from moorage import FileSink, KeyedProcessFunction, ValueStateDescriptor


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
    events = env.read_stream("events", "parquet", schema="key long, value long", path=f"{home}/in")
    counts = events.key_by("key").process(Count(), uid="count", output="key long, count long")
    counts.sink_to(FileSink(f"{home}/out"), uid="out")

    def note(kind, tables):
        with Path(home, "calls").open("a") as file:
            for table in tables:
                file.writelines(f"{kind} {r['key']} {r['count']}\n" for r in table.to_pylist())

    counts.foreach_checkpoint(lambda tables, _info: note("checkpoint", tables), uid="by-checkpoint")
    counts.foreach_epoch(lambda table, _info: note("epoch", [table]), uid="by-epoch")
