"""The answers to Nexmark's queries by their definitions, over all events at once.

It shares nothing with the queries: plain loops, no Moorage, no order of arrival.
``python oracle.py q5 in out`` compares what a job has written into `out`; status 1 if they differ.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq

Rows = list[tuple[Any, ...]]


def answer(query: str, events: dict[str, list[Any]]) -> Rows:
    """All rows of a query's answer, in no order that means anything."""
    return list(ANSWERS[query](events["persons"], events["auctions"], events["bids"]))


def differences(query: str, found: Iterable[Sequence[Any]], expected: Rows) -> list[str]:
    """What is missing, too many or otherwise; nothing if the answer is exact."""
    rows = [tuple(map(_plain, row)) for row in found]
    if query == "q4":
        rows, wrong = _last_averages(rows)
    else:
        wrong = []
    have, want = Counter(rows), Counter(expected)
    wrong += [f"missing {n} of {row}" for row, n in (want - have).items()]
    return wrong + [f"too many by {n}: {row}" for row, n in (have - want).items()]


def _plain(value: Any) -> Any:
    """A time as milliseconds, whatever holds it."""
    if not isinstance(value, datetime):
        return value
    aware = value if value.tzinfo else value.replace(tzinfo=UTC)
    return round(aware.timestamp() * 1000)


def _last_averages(rows: Rows) -> tuple[Rows, list[str]]:
    """Of each category the row of most auctions; each number of auctions is to be there once.

    In which order auctions of one time close is nobody's business, so averages in between are not
    compared.
    """
    by_category = defaultdict(list)
    for row in rows:
        by_category[row[0]].append(row[1:])
    wrong = [
        f"numbers of auctions are not 1 to {len(some)}: category={category}"
        for category, some in by_category.items()
        if sorted(n for n, _ in some) != list(range(1, len(some) + 1))
    ]
    return [(category, *max(some)) for category, some in by_category.items()], wrong


def _q0(_persons: Any, _auctions: Any, bids: Any) -> Iterator[Any]:
    for b in bids:
        yield b.auction, b.bidder, b.price, b.at


def _q1(_persons: Any, _auctions: Any, bids: Any) -> Iterator[Any]:
    for b in bids:
        yield b.auction, b.bidder, 908 * b.price // 1000, b.at


def _q2(_persons: Any, _auctions: Any, bids: Any) -> Iterator[Any]:
    for b in bids:
        if b.auction % 123 == 0:
            yield b.auction, b.price


def _q3(persons: Any, auctions: Any, _bids: Any) -> Iterator[Any]:
    by_id = {p.id: p for p in persons}
    for a in auctions:
        seller = by_id.get(a.seller)
        if a.category == 10 and seller is not None and seller.state in ("OR", "ID", "CA"):
            yield seller.name, seller.city, seller.state, a.id


def _sold(auctions: Any, bids: Any) -> list[tuple[Any, int]]:
    """Auctions that were sold, and for how much."""
    offers = defaultdict(list)
    for b in bids:
        offers[b.auction].append(b)
    found = []
    for a in auctions:
        prices = [b.price for b in offers[a.id] if a.at <= b.at <= a.expires]
        if prices:
            found.append((a, max(prices)))
    return found


def _q4(_persons: Any, auctions: Any, bids: Any) -> Iterator[Any]:
    prices = defaultdict(list)
    for auction, price in _sold(auctions, bids):
        prices[auction.category].append(price)
    for category, some in prices.items():
        yield category, len(some), sum(some) / len(some)


def _q5(_persons: Any, _auctions: Any, bids: Any) -> Iterator[Any]:
    windows: dict[int, Counter[int]] = defaultdict(Counter)
    for b in bids:
        for end in range(b.at - b.at % 2000 + 2000, b.at + 10_001, 2000):
            windows[end][b.auction] += 1
    for end, counted in windows.items():
        for auction, n in counted.items():
            if n == max(counted.values()):
                yield end, auction, n


def _q6(_persons: Any, auctions: Any, bids: Any) -> Iterator[Any]:
    sellers = defaultdict(list)
    for a, price in _sold(auctions, bids):
        sellers[a.seller].append((a.expires, a.id, price))
    for seller, sales in sellers.items():
        sales.sort()
        for n, (_, auction, _) in enumerate(sales):
            last = [price for _, _, price in sales[max(0, n - 9) : n + 1]]
            yield seller, auction, sum(last) / len(last)


def _q7(_persons: Any, _auctions: Any, bids: Any) -> Iterator[Any]:
    windows = defaultdict(list)
    for b in bids:
        windows[b.at - b.at % 10_000].append(b)
    for start, some in windows.items():
        highest = max(b.price for b in some)
        for b in some:
            if b.price == highest:
                yield start, b.auction, b.price, b.bidder, b.at


def _q8(persons: Any, auctions: Any, _bids: Any) -> Iterator[Any]:
    selling = {(a.seller, a.at // 10_000) for a in auctions}
    for p in persons:
        if (p.id, p.at // 10_000) in selling:
            yield p.id, p.name, p.at // 10_000 * 10_000


ANSWERS: dict[str, Callable[[Any, Any, Any], Iterator[Any]]] = {
    f"q{n}": one for n, one in enumerate((_q0, _q1, _q2, _q3, _q4, _q5, _q6, _q7, _q8))
}


def read_events(folder: Path) -> dict[str, list[Any]]:
    """The events of parquet files, by input."""
    return {
        name: [SimpleNamespace(**row) for row in pq.read_table(folder / name).to_pylist()]
        for name in ("persons", "auctions", "bids")
    }


def main(arguments: Sequence[str]) -> int:
    """Compare a query's output with its answer: the query, and the two folders."""
    query, source, target = arguments
    found = [tuple(row.values()) for row in pq.read_table(target).to_pylist()]
    wrong = differences(query, found, answer(query, read_events(Path(source))))
    for line in wrong[:20]:
        print(line)
    verdict = f"{len(wrong)} are wrong" if wrong else "all as defined"
    print(f"{query}: {len(found)} rows, {verdict}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
