"""The job of the operator-state tests: every kind of state that belongs to subtasks.

`env.args` is the directory that holds `out`, that of the events and that of the rules.
"""

from moorage import (
    CheckpointedFunction,
    FileSink,
    KeyedBroadcastProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)

RULES = MapStateDescriptor("rules", "string", "long")


class Watch(KeyedBroadcastProcessFunction, CheckpointedFunction):
    """Counts per key; notes each row in a list, how many in a union list and in raw streams."""

    def initialize_state(self, ctx):
        store = ctx.operator_state_store
        self.seen = store.get_list_state(ListStateDescriptor("seen", "struct<key:long,n:long>"))
        self.totals = store.get_union_list_state(ListStateDescriptor("totals", "long"))
        self.count = ctx.keyed_state_store.get_state(ValueStateDescriptor("count", "long"))
        self.partitions = [p.get_stream().read() for p in ctx.get_raw_operator_state_inputs()]
        self.streams = {
            p.key_group_id: p.get_stream().read() for p in ctx.get_raw_keyed_state_inputs()
        }
        self.everybodys = sum(self.totals.get())
        self.mine = 0

    def open(self, ctx):
        self.subtask = ctx.subtask

    def process_broadcast_element(self, row, ctx):
        state = ctx.get_broadcast_state(RULES)
        state.put(row.rule, (state.get(row.rule) or 0) + row.factor)

    def process_element(self, row, ctx):  # noqa: ARG002
        n = (self.count.value() or 0) + 1
        self.count.update(n)
        self.seen.add((ctx.key, n))
        self.mine += 1
        yield ctx.key, n, ctx.get_broadcast_state(RULES).get("all", 0)

    def snapshot_state(self, ctx):
        # The first subtask takes over what all have counted, and each adds its own.
        taken = self.everybodys if self.subtask == 0 else 0
        self.totals.update([taken + self.mine])
        ctx.get_raw_operator_state_output().write(str(self.mine).encode())
        out = ctx.get_raw_keyed_operator_state_output()
        for group in out.get_key_group_list():
            out.start_new_key_group(group)
            out.write(self.streams.get(group, b"") + b"." * min(1, self.mine))


def build(env):
    """Read events and rules, watch, publish."""
    home, events, rules = env.args
    rows = env.read_stream(
        "events", "parquet", schema="key long, value long", path=events, maxFilesPerTrigger=1
    )
    given = env.read_stream("rules", "json", schema="rule string, factor long", path=rules)
    watched = (
        rows.key_by("key")
        .connect(given, RULES)
        .process(Watch(), uid="count", output="key long, n long, factor long")
    )
    watched.sink_to(FileSink(f"{home}/out"), uid="out")
