"""Counts events by user, from one topic of Kafka to another, exactly once and without a jar.

`KAFKA` in the environment names the brokers; `events` has the user as its key. For each event
`counts` gets `{"user": ..., "count": 1}`, then 2, 3, ...: whoever reads it sees a count that is
missing or comes twice. `brokers.py` beside this file does.
"""

import json
import os
from collections.abc import Iterator
from typing import Any

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from moorage import (
    KafkaSink,
    KeyedProcessFunction,
    ProcessContext,
    RuntimeContext,
    StreamEnvironment,
    ValueStateDescriptor,
)


class Count(KeyedProcessFunction):
    """How many events a user has sent so far."""

    def open(self, ctx: RuntimeContext) -> None:
        """Name the state."""
        self.count = ctx.get_state(ValueStateDescriptor("count", "long"))

    def process(self, row: Any, ctx: ProcessContext) -> Iterator[tuple[str, str]]:
        """One event."""
        del row
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield ctx.key, json.dumps({"user": ctx.key, "count": count})


def build(env: StreamEnvironment) -> None:
    """Read, count, write."""
    kafka = {"kafka.bootstrap.servers": os.environ.get("KAFKA", "localhost:9092")}
    events = env.read_stream(
        "events", "moorage-kafka", subscribe="events", startingOffsets="earliest", **kafka
    )
    users = events.transform(
        lambda f: f.select(F.col("key").cast("string").alias("user"), "timestamp", "partition")
    ).with_event_time("timestamp", max_delay="5s", per="partition", idle_after="10s")
    counts = users.key_by("user").process(Count(), uid="count", output="key string, value string")
    counts.sink_to(KafkaSink("counts", **kafka), uid="counts")
