"""Aircraft logbooks: every departure out of New York in 2013, told aircraft by aircraft.

The job reads departures in the order in which they happened and keeps a logbook for each aircraft:
how often it left, how late it is in sum, its longest run of late departures, where it went last,
and how often nobody saw it for ten days. Every departure and every absence adds an entry to the
output; an aircraft's last entry is its logbook as it stands.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from moorage import (
    MAX_WATERMARK,
    FileSink,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessContext,
    RuntimeContext,
    StreamEnvironment,
    ValueStateDescriptor,
)

HERE = Path(__file__).parent
TEN_DAYS_MS = 10 * 24 * 60 * 60 * 1000
DAYS_PER_EPOCH = 10  # prepare.py writes one file per day

DEPARTURE = """
    departed timestamp, carrier string, flight int, tailnum string,
    origin string, dest string, delay int
"""
TOTALS = "departures int, delay int, late_run int, longest_late_run int, last_dest string"
ENTRY = """
    tailnum string, entry int, event string, at timestamp, departures int, delay int,
    longest_late_run int, last_dest string, visits int, absences int
"""


class Totals(NamedTuple):
    """What is summed up for an aircraft; `TOTALS` says the same in Spark's words."""

    departures: int = 0
    delay: int = 0
    late_run: int = 0
    longest_late_run: int = 0
    last_dest: str | None = None


class Logbook(KeyedProcessFunction):
    """Keeps the logbook of one aircraft."""

    def open(self, ctx: RuntimeContext) -> None:
        """Name what is remembered of each aircraft."""
        self.totals = ctx.get_state(ValueStateDescriptor("totals", TOTALS))
        self.visits = ctx.get_map_state(MapStateDescriptor("visits", "string", "int"))
        self.absences = ctx.get_list_state(ListStateDescriptor("absences", "timestamp"))
        self.deadline = ctx.get_state(ValueStateDescriptor("deadline", "long"))

    def process(self, flight: Any, ctx: ProcessContext) -> Iterator[dict[str, Any]]:
        """An aircraft departs: bring its logbook up to date."""
        so_far = self.totals.value() or Totals()
        late_run = so_far.late_run + 1 if flight.delay > 0 else 0
        self.totals.update(
            Totals(
                departures=so_far.departures + 1,
                delay=so_far.delay + flight.delay,
                late_run=late_run,
                longest_late_run=max(so_far.longest_late_run, late_run),
                last_dest=flight.dest,
            )
        )
        self.visits.put(flight.dest, self.visits.get(flight.dest, 0) + 1)
        self.expect_again(ctx)
        yield self.entry("departed", ctx)

    def expect_again(self, ctx: ProcessContext) -> None:
        """Wake up in ten days, unless the aircraft departs before."""
        timers = ctx.timer_service()
        if (deadline := self.deadline.value()) is not None:
            timers.delete_event_time_timer(deadline)
        deadline = ctx.timestamp() + TEN_DAYS_MS
        timers.register_event_time_timer(deadline)
        self.deadline.update(deadline)

    def on_timer(self, timestamp: int, ctx: ProcessContext) -> Iterator[dict[str, Any]]:
        """Ten days have passed and the aircraft has not departed."""
        if ctx.timer_service().current_watermark() == MAX_WATERMARK:
            return  # The stream has ended: nobody can tell whether the aircraft came back.
        self.absences.add(utc(timestamp))
        yield self.entry("missing", ctx)

    def entry(self, event: str, ctx: ProcessContext) -> dict[str, Any]:
        """The logbook as it stands, as a row of the output."""
        totals = self.totals.value()
        absences = len(self.absences.get())
        return {
            "tailnum": ctx.key,
            "entry": totals.departures + absences,
            "event": event,
            "at": utc(ctx.timestamp()),
            "departures": totals.departures,
            "delay": totals.delay,
            "longest_late_run": totals.longest_late_run,
            "last_dest": totals.last_dest,
            "visits": self.visits.get(totals.last_dest),
            "absences": absences,
        }


def utc(milliseconds: int) -> datetime:
    """Event time as a timestamp."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def build(env: StreamEnvironment) -> None:
    """Read departures, keep logbooks by aircraft, write their entries."""
    departures = env.read_stream(
        "departures",
        "parquet",
        schema=DEPARTURE,
        path="departures",
        maxFilesPerTrigger=DAYS_PER_EPOCH,
    ).with_event_time("departed")

    entries = departures.key_by("tailnum").process(Logbook(), uid="logbook", output=ENTRY)

    entries.sink_to(FileSink(f"{HERE}/entries"), uid="entries")
