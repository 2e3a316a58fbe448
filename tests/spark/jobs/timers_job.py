"""A job of alarms: every row sets one by the clock and one by event time; arguments: its home."""

from typing import Any

from moorage import (
    FileSink,
    KeyedProcessFunction,
    StreamEnvironment,
    TimeDomain,
    ValueStateDescriptor,
)

# Nothing has a note.
ROWS = "user string, at long, after long, note string"
ODD: dict[str, Any] = {"null_key": "drop", "bad_time": "drop"}
FIRED = "user string, what string, set_for long, fired_at long"


class Alarms(KeyedProcessFunction):
    """`after` milliseconds from now, and a hundred after the row's own time; counts its rows."""

    def open(self, ctx):
        self.rows = ctx.get_state(ValueStateDescriptor("rows", "long").queryable("alarms"))

    def process(self, row, ctx):
        self.rows.update((self.rows.value() or 0) + 1)
        service = ctx.timer_service()
        service.register_processing_time_timer(service.current_processing_time() + row.after)
        service.register_event_time_timer(row.at + 100)

    def on_timer(self, timestamp, ctx):
        by_clock = ctx.time_domain() is TimeDomain.PROCESSING_TIME
        now = ctx.timer_service().current_processing_time()
        yield ctx.key, "clock" if by_clock else "event", timestamp, now


def build(env: StreamEnvironment) -> None:
    (home,) = env.args
    busy = env.read_stream("busy", "json", schema=ROWS, path=f"{home}/busy")
    silent = env.read_stream("silent", "json", schema=ROWS, path=f"{home}/silent")
    stream = busy.with_event_time("at").union(silent.with_event_time("at", idle_after="3s"))
    fired = stream.key_by("user").process(Alarms(), uid="alarms", output=FIRED, **ODD)
    fired.sink_to(FileSink(f"{home}/out"), uid="out")
