"""A job that is rescaled while it runs: keyed state, a timer for each row, state of subtasks.

`env.args` is the directory that holds `out`, and that of the events.
"""

from moorage import (
    CheckpointedFunction,
    FileSink,
    KeyedProcessFunction,
    ListStateDescriptor,
    StreamEnvironment,
    ValueStateDescriptor,
)

TIMER_MS = 3000


class Counts(KeyedProcessFunction, CheckpointedFunction):
    """Counts per key, by rows and by the timers that they set; notes rows in a list."""

    def initialize_state(self, ctx):
        store = ctx.operator_state_store
        self.seen = store.get_list_state(ListStateDescriptor("seen", "struct<key:long,n:long>"))
        self.totals = store.get_union_list_state(ListStateDescriptor("totals", "long"))
        self.everybodys = sum(self.totals.get())
        self.mine = 0

    def open(self, ctx):
        self.subtask = ctx.subtask
        self.count = ctx.get_state(ValueStateDescriptor("count", "long"))
        self.fired = ctx.get_state(ValueStateDescriptor("fired", "long"))

    def process(self, row, ctx):  # noqa: ARG002
        n = (self.count.value() or 0) + 1
        self.count.update(n)
        self.seen.add((ctx.key, n))
        self.mine += 1
        service = ctx.timer_service()
        # Two rows of a key in one epoch would be one timer.
        service.register_processing_time_timer(service.current_processing_time() + TIMER_MS + n)
        yield ctx.key, n, "row"

    def on_timer(self, timestamp, ctx):  # noqa: ARG002
        n = (self.fired.value() or 0) + 1
        self.fired.update(n)
        yield ctx.key, n, "timer"

    def snapshot_state(self, ctx):  # noqa: ARG002
        taken = self.everybodys if self.subtask == 0 else 0
        self.totals.update([taken + self.mine])


def build(env: StreamEnvironment) -> None:
    home, events = env.args
    rows = env.read_stream(
        "events", "parquet", schema="key long, value long", path=events, maxFilesPerTrigger=1
    )
    counted = rows.key_by("key").process(
        Counts(), uid="count", output="key long, n long, what string"
    )
    counted.sink_to(FileSink(f"{home}/out"), uid="out")
