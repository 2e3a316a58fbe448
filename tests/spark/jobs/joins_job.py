"""A job of joins, one of them of what others send; arguments: its home."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from moorage import FileSink, JoinFunction, Sliding, StreamEnvironment, Tumbling

ORDERS = "id long, amount long, at long"
PAYMENTS = "order long, paid long, at long"


class EachPair(JoinFunction):
    """What `select` of the same columns gives, by rows."""

    def join(self, left: Any, right: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        """A pair, and when its window ends."""
        end = datetime.fromtimestamp(ctx.window.end / 1000, UTC)
        yield left.id, left.amount, right.paid, end


def build(env: StreamEnvironment) -> None:
    (home,) = env.args
    orders = env.read_stream("orders", "json", schema=ORDERS, path=f"{home}/orders")
    payments = env.read_stream("payments", "json", schema=PAYMENTS, path=f"{home}/payments")
    # With a transform, as only Spark runs it.
    cents = orders.transform(lambda frame: frame.selectExpr("id", "100 * amount as amount", "at"))
    left = cents.with_event_time("at").key_by("id")
    right = payments.with_event_time("at").key_by("order")
    pairs = left.interval_join(right).between("0s", "10ms")
    named = {"id": "left.id", "amount": "left.amount", "paid": "right.paid", "at": "right.at"}
    paid = pairs.select(uid="paid", **named)
    paid.sink_to(FileSink(f"{home}/paid"), uid="paid-out")
    windows = paid.with_event_time("at").key_by("id").join(left).window(Tumbling("1s"))
    both = windows.select(uid="both", id="right.id", paid="left.paid", amount="right.amount")
    both.sink_to(FileSink(f"{home}/both"), uid="both-out")
    slides = left.join(right).window(Sliding("20ms", "10ms"))
    named = {"id": "left.id", "amount": "left.amount", "paid": "right.paid", "end": "window.end"}
    slides.select(uid="by-column", **named).sink_to(FileSink(f"{home}/by-column"), uid="columns")
    output = "id long, amount long, paid long, end timestamp"
    by_row = slides.apply(EachPair(), uid="by-row", output=output)
    by_row.sink_to(FileSink(f"{home}/by-row"), uid="rows")
    # Rows that are published are in a checkpoint.
    cents.sink_to(FileSink(f"{home}/seen"), uid="seen-out")
