"""Jobs with operators over two keyed streams, for tests with Spark and without."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from random import Random
from typing import Any

from moorage import (
    NO_WATERMARK,
    DataStream,
    FileSink,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    OutputTag,
    StreamEnvironment,
    ValueStateDescriptor,
)
from moorage.engine.rows import TupleReader
from moorage.testing.environment import TestEnvironment
from moorage.testing.in_process import Collector, InProcessJob, Snapshot

ORDERS = "id string, user long, amount double, at long"
SHIPS = "order string, at long, place string"
SEEN = "key string, side int, at long, n long, watermark long"
ODD = OutputTag("odd", "key string, n long")


class Tell(KeyedCoProcessFunction):
    """Counts rows of both streams in one state, and tells each with its number."""

    def open(self, ctx):
        self.n = ctx.get_state(ValueStateDescriptor("n", "long"))

    def process_element1(self, row, ctx):
        assert (row.id, row.at) == (ctx.key, ctx.timestamp())
        yield self._next(1, row.at, ctx)
        if self.n.value() % 2:
            ctx.output(ODD, (ctx.key, self.n.value()))

    def process_element2(self, row, ctx):
        assert (row.order, row.at, row.place) == (ctx.key, ctx.timestamp(), f"p{row.at}")
        ctx.timer_service().register_event_time_timer(row.at + 10)
        yield self._next(2, row.at, ctx)

    def on_timer(self, timestamp, ctx):
        yield self._next(0, timestamp, ctx)

    def _next(self, side, at, ctx):
        self.n.update((self.n.value() or 0) + 1)
        return ctx.key, side, at, self.n.value(), ctx.timer_service().current_watermark()


def both(env: StreamEnvironment) -> tuple[DataStream, DataStream]:
    orders = env.read_stream("orders", "json", schema=ORDERS).with_event_time("at", "5s")
    ships = env.read_stream("ships", "json", schema=SHIPS).with_event_time("at")
    return orders, ships


def told(env: StreamEnvironment) -> None:
    orders, ships = both(env)
    made = orders.key_by("id").connect(ships.key_by("order"))
    found = made.process(Tell(), uid="tell", output=SEEN, side_outputs=[ODD])
    found.sink_to(FileSink("out"), uid="out")
    found.get_side_output(ODD).sink_to(FileSink("odd"), uid="odd")


def order(key: str, at: int) -> tuple[str, int, float, int]:
    return key, at, float(at), at


def ship(key: str, at: int) -> tuple[str, int, str]:
    return key, at, f"p{at}"


class Sum(KeyedProcessFunction):
    """What the orders of a user came to, by order."""

    def open(self, ctx):
        self.sum = ctx.get_state(ValueStateDescriptor("sum", "double"))

    def process(self, row, ctx):  # noqa: ARG002 - as it is called
        self.sum.update((self.sum.value() or 0) + row.amount)
        yield row.id, self.sum.value(), row.at
        yield ODD, (row.id, row.at)


class Pairs(KeyedCoProcessFunction):
    """Every pair of rows of both streams."""

    def open(self, ctx):
        self.one = ctx.get_list_state(ListStateDescriptor("one", "long"))
        self.two = ctx.get_list_state(ListStateDescriptor("two", "long"))

    def process_element1(self, row, ctx):
        self.one.add(row.at)
        yield from ((ctx.key, row.at, other) for other in self.two.get())

    def process_element2(self, row, ctx):
        at = row.n if hasattr(row, "n") else row.at
        self.two.add(at)
        yield from ((ctx.key, other, at) for other in self.one.get())


PAIRS = "key string, one long, two long"


def pairs_of_outputs(env: StreamEnvironment, *leave_out: str) -> None:
    """Outputs of operators beside an input, of one operator twice, main output and side output."""
    orders, ships = both(env)
    sums = orders.key_by("user").process(
        Sum(), uid="sum", output="id string, total double, at long", side_outputs=[ODD]
    )
    odd = sums.get_side_output(ODD)
    timed = sums.with_event_time("at")
    for uid, (one, two) in {
        "mixed": (ships.key_by("order"), timed.key_by("id")),
        "sides": (timed.key_by("id"), odd.key_by("key")),
        "twice": (timed.key_by("id"), timed.key_by("id")),
        "plain": (sums.key_by("id"), ships.key_by("order")),
    }.items():
        if uid not in leave_out:
            made = one.connect(two).process(Pairs(), uid=uid, output=PAIRS)
            made.sink_to(FileSink(uid), uid=f"{uid}-out")


Epochs = Sequence[Mapping[str, Sequence[Any]]]


def through_failures(
    build: Callable[[StreamEnvironment], object],
    epochs: Epochs,
    chance: Random,
    clock: Callable[[int], int] = lambda _epoch: 0,
) -> dict[str, list[tuple[Any, ...]]]:
    """What a job sends that is killed now and then, and goes on with another number of subtasks.

    Each life begins from the last snapshot, describes the job anew, and has batches of another
    size; what was sent after the snapshot does not count.

    Args:
        clock: processing time of an epoch, by its number.
    """
    saved: tuple[int, dict[str, list[tuple[Any, ...]]], Snapshot | None] = 0, {}, None
    while True:
        begin, sent, snapshot = saved
        number, found = begin, {uid: list(rows) for uid, rows in sent.items()}
        env = TestEnvironment()
        build(env)
        collectors = {node.uid: Collector() for node in env.graph.sinks}
        readers = {node.uid: TupleReader(node.upstream.schema.names) for node in env.graph.sinks}
        for node in env.graph.sinks:
            sink: Any = collectors[node.uid]
            node.sink = sink
        times = [clock(number)]
        job = InProcessJob(
            env.graph, clock=times.pop, parallelism=chance.randint(1, 3), restore=snapshot
        )
        # A key's rows are spread over several calls, too.
        job.planner.batch_rows = chance.choice((2, 5, 10_000))
        with job:
            while number <= len(epochs):
                times[:] = [clock(number)] * 9
                if number == len(epochs):
                    job.runner.watermarks = job.runner.watermarks.drain()
                job.epoch(epochs[number] if number < len(epochs) else {})
                number += 1
                for uid, one in collectors.items():
                    rows = chain.from_iterable(map(readers[uid].rows, one.take()))
                    found.setdefault(uid, []).extend(map(tuple, rows))
                if number > len(epochs):
                    return found
                if chance.random() < 0.4:
                    saved = number, {uid: list(r) for uid, r in found.items()}, job.snapshot()
                if chance.random() < 0.2:
                    break


def watermarks(epochs: Epochs, delays: Mapping[str, int], time: int = -1) -> list[int]:
    """The watermark of each epoch of an operator over these inputs, `NO_WATERMARK` at first.

    Args:
        delays: by input; rows have their time at position `time`.
    """
    newest: dict[str, int] = {}
    found = []
    for rows in epochs:
        known = [newest[uid] - delay - 1 for uid, delay in delays.items() if uid in newest]
        found.append(min(known) if len(known) == len(delays) else NO_WATERMARK)
        for uid, some in rows.items():
            for row in some:
                newest[uid] = max(newest.get(uid, row[time]), row[time])
    # It never goes back.
    return [max(found[: i + 1]) for i in range(len(found))]
