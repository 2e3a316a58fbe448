"""Balances of accounts, which begin with those of a table: bootstrap.py makes a savepoint of it.

Arguments: the folder with payments as JSON lines, and the folder for balances.
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

# What savepoint and job must agree on.
UID = "accounts"
KEY_TYPES = ["string"]
BALANCE = ValueStateDescriptor("balance", "bigint")


class Balance(KeyedProcessFunction):
    """Adds each payment to what the account had."""

    def open(self, ctx: RuntimeContext) -> None:
        """Name the state."""
        self.balance = ctx.get_state(BALANCE)

    def process(self, row: Any, ctx: ProcessContext) -> Iterator[Any]:
        """One payment."""
        balance = (self.balance.value() or 0) + row.amount
        self.balance.update(balance)
        yield ctx.key, balance


def build(env: StreamEnvironment) -> None:
    """Describe the job."""
    source, target = env.args
    payments = env.read_stream(
        "payments", "json", schema="account string, amount bigint", path=source
    )
    balances = payments.key_by("account").process(
        Balance(), uid=UID, output="account string, balance bigint"
    )
    balances.sink_to(FileSink(target), uid="out")
