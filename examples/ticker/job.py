"""A job that checks itself: every tick of a clock goes to one of a hundred counters.

Spark's own rate source numbers its rows 0, 1, 2, ... without end and without any server. Tick `n`
belongs to counter `n % 100`, so the ticks of counter `k` are k, k + 100, k + 200, ... and each must
be the next one. A tick that is lost or counted twice, at whatever failure, upgrade or rescale,
shows at once, and for ever, in the column `wrong`.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from moorage import (
    FileSink,
    KeyedProcessFunction,
    ProcessContext,
    RuntimeContext,
    StreamEnvironment,
    ValueStateDescriptor,
)

COUNTERS = 100
SEEN = "ticks long, total long, last long, wrong long"
SEEN_LATER = f"{SEEN}, edition long DEFAULT 1"
ENTRY = "counter long, ticks long, total long, last long, wrong long"


class Seen(NamedTuple):
    """What a counter remembers; `SEEN` says the same in Spark's words."""

    ticks: int = 0
    total: int = 0
    last: int = -1
    wrong: int = 0


class Counter(KeyedProcessFunction):
    """Counts the ticks of one counter, and those that were not the next one.

    From the second edition on it remembers a field more: what the first edition wrote is read with
    that field's default.
    """

    def __init__(self, edition: int = 1) -> None:
        self.edition = edition

    def open(self, ctx: RuntimeContext) -> None:
        """Name what is remembered of each counter."""
        remembered = SEEN if self.edition == 1 else SEEN_LATER
        self.seen = ctx.get_state(ValueStateDescriptor("seen", remembered).queryable("counters"))

    def process(self, tick: Any, ctx: ProcessContext) -> Iterator[dict[str, Any]]:
        """A tick: it must be the one after the last."""
        before = Seen(*(self.seen.value() or ())[:4])
        expected = ctx.key if before.ticks == 0 else before.last + COUNTERS
        now = Seen(
            ticks=before.ticks + 1,
            total=before.total + tick.value,
            last=max(before.last, tick.value),
            wrong=before.wrong + (tick.value != expected),
        )
        self.seen.update(now if self.edition == 1 else (*now, self.edition))
        yield {"counter": ctx.key, **now._asdict()}


def build(env: StreamEnvironment) -> None:
    """Read ticks, count them, write what every counter came to.

    Arguments: the directory for the output, ticks per second (500 if not given), and the edition
    of the job (1 if not given). The rate is for the job's whole life: Spark numbers ticks by their
    time, so another rate leaps.
    """
    out, *rest = env.args
    rate = rest[0] if rest else "500"
    # One partition: the rows of an epoch come in the order of their numbers.
    ticks = env.read_stream("ticks", "rate", rowsPerSecond=rate, numPartitions="1")
    keyed = ticks.transform(lambda f: f.withColumn("counter", F.col("value") % COUNTERS))
    counter = Counter(int(rest[1]) if len(rest) > 1 else 1)
    counts = keyed.key_by("counter").process(counter, uid="counter", output=ENTRY)
    counts.sink_to(FileSink(out), uid="counts")
