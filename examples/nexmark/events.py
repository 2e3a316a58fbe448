"""What Nexmark's auction house sees: persons who register, auctions that open, bids.

Of every 50 events one is a person, three are auctions and the rest bids, as in Nexmark. Half of the
bids go to one hot auction, and half of the auctions are those of one hot seller. Events come out of
order by at most `DISORDER_MS`. All times are milliseconds since 1970 UTC, prices are cents.

``python events.py in 100000`` writes so many into the folder `in`.
"""

import heapq
import os
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

START_MS = 1_700_000_000_000
STEP_MS = 10
DISORDER_MS = 2_000

_FIRST_ID = 1_000
_CATEGORIES = range(10, 15)
_HOT = 40
_RECENT = 60
_PLACES = [("Phoenix", "AZ"), ("Palo Alto", "CA"), ("Boise", "ID"), ("Portland", "OR")]
_PLACES += [("Bend", "OR"), ("Seattle", "WA"), ("Cheyenne", "WY")]
_NAMES = ["Ann", "Bob", "Cleo", "Dan", "Eve", "Fay", "Gus", "Ida", "Joe", "Kim"]
_FILE_SECONDS = 1_600_000_000


class Person(NamedTuple):
    """Somebody registers."""

    id: int
    name: str
    city: str
    state: str
    at: int


class Auction(NamedTuple):
    """Something is for sale until `expires`."""

    id: int
    item: str
    seller: int
    category: int
    reserve: int
    at: int
    expires: int


class Bid(NamedTuple):
    """Somebody offers a price; maybe too late."""

    auction: int
    bidder: int
    price: int
    at: int


Event = Person | Auction | Bid
Events = dict[str, list[Event]]
KINDS: dict[str, type[Event]] = {"persons": Person, "auctions": Auction, "bids": Bid}


def generate(number: int, seed: int = 1) -> Events:
    """So many events by input, each list in the order in which its events come."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    coming: list[tuple[int, int, str, Event]] = []
    persons, auctions = 0, 0
    for n in range(number):
        at = START_MS + n * STEP_MS
        event: Event
        if n % 50 == 0:
            kind, event = "persons", _person(rng, persons, at)
            persons += 1
        elif n % 50 < 4:
            kind, event = "auctions", _auction(rng, auctions, persons, at)
            auctions += 1
        else:
            kind, event = "bids", _bid(rng, auctions, persons, at)
        heapq.heappush(coming, (at + rng.randint(0, DISORDER_MS), n, kind, event))
    found: Events = {kind: [] for kind in KINDS}
    while coming:
        _, _, kind, event = heapq.heappop(coming)
        found[kind].append(event)
    return found


def _person(rng: random.Random, nth: int, at: int) -> Person:
    return Person(_FIRST_ID + nth, f"{rng.choice(_NAMES)} {nth}", *rng.choice(_PLACES), at)


def _auction(rng: random.Random, nth: int, persons: int, at: int) -> Auction:
    category = rng.choice(_CATEGORIES)
    reserve, expires = rng.randint(100, 10_000), at + rng.randint(1_000, 30_000)
    seller = _some(rng, persons)
    return Auction(_FIRST_ID + nth, f"item {nth}", seller, category, reserve, at, expires)


def _bid(rng: random.Random, auctions: int, persons: int, at: int) -> Bid:
    price = round(100 * 10 ** (6 * rng.random()))
    return Bid(_some(rng, auctions), _some(rng, persons), price, at)


def _some(rng: random.Random, known: int) -> int:
    """The hot one of those there are, or one of the newest."""
    hot = (known - 1) // _HOT * _HOT
    return _FIRST_ID + (
        hot if rng.random() < 0.5 else rng.randrange(max(0, known - _RECENT), known)
    )


def slices(events: Events, parts: Mapping[str, int]) -> list[Events]:
    """The events cut into epochs: each input into so many parts, from the first epoch on.

    An input with fewer parts than another is ahead of it.
    """
    epochs: list[Events] = [{} for _ in range(max(parts[kind] for kind in events))]
    for kind, some in events.items():
        for n in range(parts[kind]):
            epochs[n][kind] = some[_cut(some, n, parts[kind]) : _cut(some, n + 1, parts[kind])]
    return epochs


def write(events: Events, folder: Path, parts: Mapping[str, int]) -> None:
    """The same as parquet files `folder`/<input>/<n>.parquet, whose times are their order."""
    for n, epoch in enumerate(slices(events, parts)):
        for kind, some in epoch.items():
            (folder / kind).mkdir(parents=True, exist_ok=True)
            table = pa.Table.from_pylist([event._asdict() for event in some])
            hidden, path = folder / kind / f".{n:05d}", folder / kind / f"{n:05d}.parquet"
            pq.write_table(table, hidden)
            os.utime(hidden, (_FILE_SECONDS + n, _FILE_SECONDS + n))
            hidden.rename(path)


def _cut(some: Sequence[Event], nth: int, parts: int) -> int:
    return len(some) * nth // parts


def main(arguments: Sequence[str]) -> None:
    """Write events into a folder: which, and how many."""
    folder, number = arguments
    files = max(1, int(number) // 5_000)
    write(generate(int(number)), Path(folder), dict.fromkeys(KINDS, files))


if __name__ == "__main__":
    main(sys.argv[1:])
