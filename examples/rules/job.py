"""Payments that a rule forbids; rules come, change and go while the job runs.

A rule is a row of a stream of its own, which every subtask sees: the most that may be paid in a
country, or null to take the rule back. Arguments: the folders with payments and with rules, as
JSON lines, and the folder for what is forbidden.
"""

from collections.abc import Iterator
from typing import Any

from moorage import (
    BroadcastContext,
    FileSink,
    KeyedBroadcastProcessFunction,
    MapStateDescriptor,
    ReadOnlyContext,
    StreamEnvironment,
)

RULES = MapStateDescriptor("rules", "string", "long")
FORBIDDEN = "user string, country string, amount long, most long"


class Forbidden(KeyedBroadcastProcessFunction):
    """Holds each payment against the rule of its country."""

    def process_broadcast_element(self, row: Any, ctx: BroadcastContext) -> None:
        """A rule comes before all payments of its epoch."""
        rules = ctx.get_broadcast_state(RULES)
        if row.most is None:
            rules.remove(row.country)
        else:
            rules.put(row.country, row.most)

    def process_element(self, row: Any, ctx: ReadOnlyContext) -> Iterator[Any]:
        """One payment."""
        most = ctx.get_broadcast_state(RULES).get(row.country)
        if most is not None and row.amount > most:
            yield ctx.key, row.country, row.amount, most


def build(env: StreamEnvironment) -> None:
    """Describe the job."""
    payments_in, rules_in, target = env.args
    payments = env.read_stream(
        "payments", "json", schema="user string, country string, amount long", path=payments_in
    )
    rules = env.read_stream("rules", "json", schema="country string, most long", path=rules_in)
    forbidden = (
        payments.key_by("user")
        .connect(rules.broadcast(RULES))
        .process(Forbidden(), uid="forbidden", output=FORBIDDEN)
    )
    forbidden.sink_to(FileSink(target), uid="out")
