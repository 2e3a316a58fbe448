"""Alerts: a payment below 1 that is followed, within a minute, by one above 500 on the same card.

A timer forgets the small payment when its minute is over. Arguments: the folder with payments as
JSON lines, and the folder for alerts.
"""

from collections.abc import Iterator
from typing import Any

from moorage import (
    FileSink,
    KeyedProcessFunction,
    ProcessContext,
    RuntimeContext,
    StreamEnvironment,
    ValueStateDescriptor,
)

PAYMENTS = "card string, amount double, at timestamp"
ALERT = "card string, amount double, tried_at long"
MINUTE_MS = 60_000


class TriedFirst(KeyedProcessFunction):
    """Keeps the time of the last small payment of a card, for a minute."""

    def open(self, ctx: RuntimeContext) -> None:
        """Name the state."""
        self.tried_at = ctx.get_state(ValueStateDescriptor("tried_at", "long"))

    def process(self, row: Any, ctx: ProcessContext) -> Iterator[Any]:
        """One payment."""
        tried_at = self.tried_at.value()
        if tried_at is not None:
            ctx.timer_service().delete_event_time_timer(tried_at + MINUTE_MS)
            self.tried_at.clear()
            if row.amount > 500 and ctx.timestamp() <= tried_at + MINUTE_MS:
                yield ctx.key, row.amount, tried_at
        if row.amount < 1:
            self.tried_at.update(ctx.timestamp())
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + MINUTE_MS)

    def on_timer(self, timestamp: int, ctx: ProcessContext) -> None:
        """The minute is over."""
        del timestamp, ctx
        self.tried_at.clear()


def build(env: StreamEnvironment) -> None:
    """Describe the job."""
    source, target = env.args
    payments = env.read_stream("payments", "json", schema=PAYMENTS, path=source)
    alerts = (
        payments.with_event_time("at", max_delay="10s")
        .key_by("card")
        .process(TriedFirst(), uid="tried-first", output=ALERT)
    )
    alerts.sink_to(FileSink(target), uid="alerts")
