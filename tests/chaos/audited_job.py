"""A job with every kind of state, whose last rows tell all that it has.

`env.args` is the directory that holds `in` and `out`. A row with the value `REPORT` changes nothing
and has the key's state written out; rows of the key `FLUSH` only carry event time on.
"""

from moorage_testing.audit import EVENTS, FLUSH, OUTPUT, REPORT, WINDOW_MS

from moorage import (
    CheckpointedFunction,
    FileSink,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)


class Audited(KeyedProcessFunction, CheckpointedFunction):
    def initialize_state(self, ctx):
        self.parts = ctx.operator_state_store.get_list_state(ListStateDescriptor("seen", "long"))
        self.before = self.seen = sum(self.parts.get())

    def snapshot_state(self, _ctx):
        self.parts.update([self.seen])

    def open(self, ctx):
        self.subtask = ctx.subtask
        self.count = ctx.get_state(ValueStateDescriptor("count", "long"))
        self.total = ctx.get_state(ValueStateDescriptor("total", "long"))
        self.fired = ctx.get_state(ValueStateDescriptor("fired", "long"))
        self.kept = ctx.get_list_state(ListStateDescriptor("kept", "long"))
        self.kinds = ctx.get_map_state(MapStateDescriptor("kinds", "long", "long"))

    def process(self, row, ctx):
        if row.key == FLUSH:
            return
        if row.value == REPORT:
            yield self.told("report", self.count.value() or 0, self.total.value() or 0, ctx)
            return
        self.seen += 1
        self.count.update((self.count.value() or 0) + 1)
        self.total.update((self.total.value() or 0) + row.value)
        if row.value % 10 == 0:
            self.kept.add(row.value)
        self.kinds.put(row.value % 5, self.kinds.get(row.value % 5, 0) + 1)
        timers = ctx.timer_service()
        timers.register_event_time_timer((ctx.timestamp() // WINDOW_MS + 1) * WINDOW_MS)
        yield self.told("row", self.count.value(), self.total.value(), ctx)

    def on_timer(self, timestamp, ctx):
        self.fired.update((self.fired.value() or 0) + 1)
        yield self.told("timer", self.fired.value(), timestamp, ctx)

    def told(self, event, number, amount, ctx):
        told = {"key": ctx.key, "event": event, "number": number, "amount": amount}
        if event != "report":
            return {**told, "fired": 0, "kept": [], "kinds": [], "subtask": -1, "before": 0}
        kinds = [self.kinds.get(kind, 0) for kind in range(5)]
        state = {"fired": self.fired.value() or 0, "kept": list(self.kept.get()), "kinds": kinds}
        return {**told, **state, "subtask": self.subtask, "before": self.before}


def build(env):
    (home,) = env.args
    events = env.read_stream(
        "events", "parquet", schema=EVENTS, path=f"{home}/in", maxFilesPerTrigger=1
    ).with_event_time("at")
    told = events.key_by("key").process(Audited(), uid="audited", output=OUTPUT)
    told.sink_to(FileSink(f"{home}/out"), uid="out")
