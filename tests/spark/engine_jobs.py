"""Functions, jobs and events of the engine's tests, which more than one of them uses."""

import random
from collections import Counter

from moorage_testing.engine import Collect, input_stream

from moorage import KeyedProcessFunction, ListStateDescriptor, ValueStateDescriptor

EVENTS = "user string, amount long"


class Sum(KeyedProcessFunction):
    """Counts and sums per key, sends the running count."""

    def open(self, ctx):
        self.n = ctx.get_state(ValueStateDescriptor("n", "long"))
        self.total = ctx.get_state(ValueStateDescriptor("total", "long"))

    def process(self, row, ctx):
        n = (self.n.value() or 0) + 1
        self.n.update(n)
        self.total.update((self.total.value() or 0) + row.amount)
        yield ctx.key, n, row.amount


SUMS = "user string, n long, amount long"


class ToBucket(KeyedProcessFunction):
    """Numbers the rows of a user and sends them on to one of three buckets."""

    def open(self, ctx):
        self.n = ctx.get_state(ValueStateDescriptor("n", "long"))

    def process(self, row, ctx):
        n = (self.n.value() or 0) + 1
        self.n.update(n)
        return [{"n": n, "bucket": row.amount % 3, "user": ctx.key, "amount": row.amount}]


BUCKETED = "bucket long, user string, n long, amount long"


class Remember(KeyedProcessFunction):
    """Keeps what it sees, in the order in which it sees it."""

    def __init__(self, columns):
        self.columns = columns

    def open(self, ctx):
        self.seen = ctx.get_list_state(ListStateDescriptor("seen", "string"))

    def process(self, row, ctx):
        text = " ".join(str(getattr(row, c)) for c in self.columns)
        self.seen.add(text)
        yield str(ctx.key), text


REMEMBERED = "key string, seen string"


def summing(env):
    stream = input_stream(env, "events", EVENTS)
    sums = stream.key_by("user").process(Sum(), uid="sum", output=SUMS)
    sums.sink_to(Collect(), uid="out")


def chained(env):
    stream = input_stream(env, "events", EVENTS)
    first = stream.key_by("user").process(ToBucket(), uid="first", output=BUCKETED)
    second = first.key_by("bucket").process(
        Remember(["user", "n", "amount"]), uid="second", output=REMEMBERED
    )
    second.sink_to(Collect(), uid="out")


def some_events(seed, count=400, users=23):
    generator = random.Random(seed)
    return [(f"u{generator.randrange(users)}", generator.randrange(1000)) for _ in range(count)]


def totals(events):
    sums: Counter[str] = Counter()
    for user, amount in events:
        sums[user] += amount
    return dict(sums)


def counts(events):
    return dict(Counter(user for user, _ in events))
