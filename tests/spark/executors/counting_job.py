"""Count and sum per key; writes down where each subtask ran and how it reached its state.

`env.args` is the directory that holds `in`, `out` and `journal`.
"""

import json
import os
import uuid
from pathlib import Path

from moorage import FileSink, KeyedProcessFunction, ValueStateDescriptor


def executor_id():
    pid = os.getpid()
    while pid > 1:
        arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        if "--executor-id" in arguments:
            return arguments[arguments.index("--executor-id") + 1]
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return ""


class CountAndSum(KeyedProcessFunction):
    def __init__(self, journal):
        self.journal = journal

    def open(self, ctx):
        self.count = ctx.get_state(ValueStateDescriptor("count", "long"))
        self.total = ctx.get_state(ValueStateDescriptor("total", "long"))
        note = {
            "epoch": ctx._store.epoch,
            "subtask": ctx.subtask,
            "executor": executor_id(),
            "address": ctx._store.access._range._send.__self__.address,
        }
        temporary = Path(self.journal) / f".{uuid.uuid4().hex}"
        temporary.write_text(json.dumps(note))
        temporary.rename(temporary.with_name(f"{temporary.name[1:]}.json"))

    def process(self, row, ctx):
        count = (self.count.value() or 0) + 1
        total = (self.total.value() or 0) + row.value
        self.count.update(count)
        self.total.update(total)
        yield ctx.key, count, total


def build(env):
    (home,) = env.args
    events = env.read_stream(
        "events", "parquet", schema="key long, value long", path=f"{home}/in", maxFilesPerTrigger=1
    )
    counts = events.key_by("key").process(
        CountAndSum(f"{home}/journal"), uid="count", output="key long, count long, total long"
    )
    counts.sink_to(FileSink(f"{home}/out"), uid="out")
