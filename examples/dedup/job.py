"""Payments once each: the first with an id passes, copies within a day go aside to be looked at.

Where copies are only to be dropped, `key_by("id").deduplicate(uid=..., ttl="1d")` is enough.
Arguments: the folder with payments as JSON lines, and the folder for the output.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from moorage import (
    FileSink,
    KeyedProcessFunction,
    OutputTag,
    ProcessContext,
    RuntimeContext,
    StateTtlConfig,
    StreamEnvironment,
    ValueStateDescriptor,
)

PAYMENT = "id string, amount long"
COPIES = OutputTag("copies")


class First(KeyedProcessFunction):
    """Remembers an id for a day, by the clock: state does not grow with the ids there ever were."""

    def open(self, ctx: RuntimeContext) -> None:
        """Name the state."""
        day = StateTtlConfig(timedelta(days=1))
        self.seen = ctx.get_state(ValueStateDescriptor("seen", "boolean", ttl=day))

    def process(self, row: Any, ctx: ProcessContext) -> Iterator[Any]:
        """One payment."""
        del ctx
        if self.seen.value():
            yield COPIES, row
            return
        self.seen.update(True)
        yield row


def build(env: StreamEnvironment) -> None:
    """Describe the job."""
    source, target = env.args
    payments = env.read_stream("payments", "json", schema=PAYMENT, path=source)
    first = payments.key_by("id").process(
        First(), uid="first", output=PAYMENT, side_outputs=[COPIES]
    )
    first.sink_to(FileSink(f"{target}/payments"), uid="payments-out")
    first.get_side_output(COPIES).sink_to(FileSink(f"{target}/copies"), uid="copies-out")
