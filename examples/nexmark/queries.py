"""Nexmark's queries 0 to 8; each function describes one as a job's `build` would.

Each reads what it needs of three inputs and sends what it finds to the sink `out`. A query does not
say where its rows go: `env.args` are the folders of the inputs and of the output.
"""

from collections.abc import Iterator
from typing import Any

from moorage import (
    CoGroupFunction,
    DataStream,
    FileSink,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    ProcessContext,
    ProcessWindowFunction,
    RuntimeContext,
    Sliding,
    StreamEnvironment,
    Tumbling,
    ValueStateDescriptor,
    WindowContext,
    avg,
    count,
)

SCHEMAS = {
    "persons": "id long, name string, city string, state string, at long",
    "auctions": "id long, item string, seller long, category long, reserve long, at long, "
    "expires long",
    "bids": "auction long, bidder long, price long, at long",
}
CLOSED = "auction long, seller long, category long, price long, expires long"
NEAR = {"OR", "ID", "CA"}


def read(env: StreamEnvironment, name: str) -> DataStream:
    """One of the three inputs, a file in an epoch, with its event time."""
    folder, _ = env.args
    stream = env.read_stream(
        name, "parquet", schema=SCHEMAS[name], path=f"{folder}/{name}", maxFilesPerTrigger=1
    )
    return stream.with_event_time("at", max_delay="2s")


def write(env: StreamEnvironment, stream: DataStream) -> None:
    """Send the answer to the output."""
    _, target = env.args
    stream.sink_to(FileSink(target), uid="out")


# 0: all bids as they are.


def q0(env: StreamEnvironment) -> None:
    """Pass-through."""
    write(env, read(env, "bids"))


# 1: all bids, their price in euros.


class Euros(KeyedProcessFunction):
    """A price in another currency, in whole cents."""

    def process(self, row: Any, ctx: ProcessContext) -> Iterator[Any]:  # noqa: ARG002
        """Convert one price."""
        yield row._replace(price=row.price * 908 // 1000)


def q1(env: StreamEnvironment) -> None:
    """Currency conversion."""
    bids = read(env, "bids").key_by("auction")
    write(env, bids.process(Euros(), uid="euros", output=SCHEMAS["bids"]))


# 2: the bids for some auctions.


class Selected(KeyedProcessFunction):
    """Bids for every so-many-th auction."""

    def __init__(self, every: int) -> None:
        self.every = every

    def process(self, row: Any, ctx: ProcessContext) -> Iterator[Any]:  # noqa: ARG002
        """Let a bid pass, or not."""
        if row.auction % self.every == 0:
            yield row.auction, row.price


def q2(env: StreamEnvironment) -> None:
    """Selection."""
    bids = read(env, "bids").key_by("auction")
    write(env, bids.process(Selected(123), uid="selected", output="auction long, price long"))


# 3: who sells something of category 10 in Oregon, Idaho or California; at whatever time.


class NearSellers(KeyedCoProcessFunction):
    """A seller with each of their auctions; whichever comes first waits for the other."""

    def open(self, ctx: RuntimeContext) -> None:
        """Get the state."""
        self.person = ctx.get_state(ValueStateDescriptor("person", SCHEMAS["persons"]))
        self.waiting = ctx.get_list_state(ListStateDescriptor("waiting", "long"))

    def process_element1(self, auction: Any, ctx: ProcessContext) -> Iterator[Any]:  # noqa: ARG002
        """An auction: its seller is known, or it waits."""
        if auction.category != 10:
            return
        if (person := self.person.value()) is None:
            self.waiting.add(auction.id)
        elif person.state in NEAR:
            yield person.name, person.city, person.state, auction.id

    def process_element2(self, person: Any, ctx: ProcessContext) -> Iterator[Any]:  # noqa: ARG002
        """A person: their auctions waited."""
        self.person.update(person)
        if person.state in NEAR:
            for auction in self.waiting.get():
                yield person.name, person.city, person.state, auction
        self.waiting.clear()


def q3(env: StreamEnvironment) -> None:
    """Local item suggestion."""
    auctions, persons = read(env, "auctions").key_by("seller"), read(env, "persons").key_by("id")
    output = "name string, city string, state string, auction long"
    write(env, auctions.connect(persons).process(NearSellers(), uid="near", output=output))


# 4 and 6 ask what auctions were sold for: the highest bid from their opening to their end.


class Winners(KeyedCoProcessFunction):
    """An auction that closed, with its highest bid. An auction without a bid is not sold."""

    def open(self, ctx: RuntimeContext) -> None:
        """Get the state."""
        self.auction = ctx.get_state(ValueStateDescriptor("auction", SCHEMAS["auctions"]))
        self.bids = ctx.get_list_state(ListStateDescriptor("bids", "at long, price long"))

    def process_element1(self, auction: Any, ctx: ProcessContext) -> None:
        """An auction opens."""
        self.auction.update(auction)
        ctx.timer_service().register_event_time_timer(auction.expires)

    def process_element2(self, bid: Any, ctx: ProcessContext) -> None:
        """Somebody bids."""
        self.bids.add((bid.at, bid.price))
        # Its auction is known by then, or closed.
        ctx.timer_service().register_event_time_timer(bid.at)

    def on_timer(self, timestamp: int, ctx: ProcessContext) -> Iterator[Any]:
        """An auction closes; or a bid has no auction that is open."""
        auction = self.auction.value()
        if auction is None:
            self.bids.update([bid for bid in self.bids.get() if bid.at > timestamp])
        elif timestamp == auction.expires:
            prices = [b.price for b in self.bids.get() if auction.at <= b.at <= timestamp]
            if prices:
                yield ctx.key, auction.seller, auction.category, max(prices), timestamp
            self.auction.clear()
            self.bids.clear()


def closed(env: StreamEnvironment) -> DataStream:
    """Auctions with what they were sold for, at the time at which they closed."""
    auctions, bids = read(env, "auctions").key_by("id"), read(env, "bids").key_by("auction")
    winners = auctions.connect(bids).process(Winners(), uid="winners", output=CLOSED)
    return winners.with_event_time("expires")


def q4(env: StreamEnvironment) -> None:
    """Average closing price of each category; a row for each auction that closes."""
    by_category = closed(env).key_by("category")
    write(env, by_category.aggregate(uid="average", auctions=count(), price=avg("price")))


class LastTen(KeyedProcessFunction):
    """The average of the last ten prices; of auctions that close together, in order of their id."""

    def open(self, ctx: RuntimeContext) -> None:
        """Get the state."""
        self.closing = ctx.get_list_state(ListStateDescriptor("closing", CLOSED))
        self.prices = ctx.get_state(ValueStateDescriptor("prices", "array<long>"))

    def process(self, row: Any, ctx: ProcessContext) -> None:
        """Wait for those that close at the same time."""
        self.closing.add(row)
        ctx.timer_service().register_event_time_timer(ctx.timestamp())

    def on_timer(self, timestamp: int, ctx: ProcessContext) -> Iterator[Any]:
        """All auctions of this time are there."""
        rows = list(self.closing.get())
        prices = self.prices.value() or []
        for row in sorted((r for r in rows if r.expires == timestamp), key=lambda r: r.auction):
            prices = [*prices, row.price][-10:]
            yield ctx.key, row.auction, sum(prices) / len(prices)
        self.prices.update(prices)
        self.closing.update([row for row in rows if row.expires != timestamp])


def q6(env: StreamEnvironment) -> None:
    """Average selling price of the last ten auctions of each seller."""
    sellers = closed(env).key_by("seller")
    output = "seller long, auction long, price double"
    write(env, sellers.process(LastTen(), uid="last-ten", output=output))


# 5: every two seconds the auctions with the most bids in the last ten.


class Hottest(ProcessWindowFunction):
    """Of all auctions with the same window those with the most bids."""

    def process(self, key: Any, ctx: WindowContext, rows: list[Any]) -> Iterator[Any]:  # noqa: ARG002
        """The window is over."""
        most = max(row.bids for row in rows)
        for row in rows:
            if row.bids == most:
                yield key, row.auction, row.bids


def q5(env: StreamEnvironment) -> None:
    """Hot items."""
    sliding = read(env, "bids").key_by("auction").window(Sliding("10s", "2s"))
    ends = sliding.aggregate(uid="bids-of-auctions", bids=count())
    together = ends.key_by("window_end").window(Tumbling("2s"))
    output = "window_end timestamp, auction long, bids long"
    write(env, together.process(Hottest(), uid="hottest", output=output))


# 7: the highest bids of each ten seconds: first of each auction, then of all.


class Highest(ProcessWindowFunction):
    """Of the bids in a window those with the highest price, and where the window starts."""

    def process(self, key: Any, ctx: WindowContext, rows: list[Any]) -> Iterator[Any]:  # noqa: ARG002
        """The window is over."""
        highest = max(row.price for row in rows)
        for row in rows:
            if row.price == highest:
                yield ctx.window.start, row.auction, row.price, row.bidder, row.at


def q7(env: StreamEnvironment) -> None:
    """Highest bid."""
    output = "start long, auction long, price long, bidder long, at long"
    of_auctions = read(env, "bids").key_by("auction").window(Tumbling("10s"))
    highest = of_auctions.process(Highest(), uid="of-auctions", output=output)
    of_all = highest.with_event_time("at").key_by("start").window(Tumbling("10s"))
    write(env, of_all.process(Highest(), uid="of-all", output=output))


# 8: who has registered and opened an auction in the same ten seconds.


class NewSellers(CoGroupFunction):
    """A person who is new in a window and sells in it."""

    def co_group(
        self, persons: list[Any], auctions: list[Any], ctx: WindowContext
    ) -> Iterator[Any]:
        """The window is over."""
        if auctions:
            for person in persons:
                yield person.id, person.name, ctx.window.start


def q8(env: StreamEnvironment) -> None:
    """Monitor new users."""
    persons, auctions = read(env, "persons").key_by("id"), read(env, "auctions").key_by("seller")
    both = persons.co_group(auctions).window(Tumbling("10s"))
    output = "id long, name string, start long"
    write(env, both.apply(NewSellers(), uid="new-sellers", output=output))


QUERIES = {one.__name__: one for one in (q0, q1, q2, q3, q4, q5, q6, q7, q8)}
