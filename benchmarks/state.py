"""What a record costs: every kind of state on backends in process, beside dict and rocksdict.

    python -m benchmarks.state [--keys 20000] [--records 100000] [--rounds 3]

A record sets its key, reads the state and writes it; keys come at random. The plain forms do the
same with what they pack themselves: a dictionary, and rocksdict, one get and one put for a value, a
put for a list's element, a get and a put for a map's entry. Both forms of RocksDB are opened with
the same options and write without a write-ahead log; what the backend still holds is written before
the clock starts and before it stops. The goal is typed access over RocksDB at no more than twice
what plain rocksdict costs; the exit status says whether it was reached.
"""

import argparse
import gc
import os
import random
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import rocksdict

from benchmarks.backends import keyed_backend
from moorage_state.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from moorage_state.rocks import ProcessMemory, RocksOptions
from moorage_state.rocks.options import to_options
from moorage_state.state_backends import EmbeddedRocksDBStateBackend, HashMapStateBackend

GOAL = 2.0
KINDS = ("value", "struct", "list", "map", "reducing", "aggregating")
WAYS = ("dict", "hashmap", "rocksdict", "rocksdb")

_LONG = struct.Struct(">q")
_PAIR = struct.Struct(">qd")

Record = Callable[[int, int], None]
"""Takes a key and a number."""


class Opened(NamedTuple):
    """What is measured; `settle` has RocksDB know all that was written."""

    record: Record
    settle: Callable[[], Any]
    close: Callable[[], None]


def nothing() -> None:
    """Nothing is held back, or there is nothing to close."""


class Mean(AggregateFunction):
    """Sum and count of numbers."""

    def create_accumulator(self) -> Any:
        """See `AggregateFunction`."""
        return (0, 0)

    def add(self, value: Any, accumulator: Any) -> Any:
        """See `AggregateFunction`."""
        return (accumulator[0] + value, accumulator[1] + 1)

    def get_result(self, accumulator: Any) -> Any:
        """See `AggregateFunction`."""
        return accumulator[0] / accumulator[1]


def of_backend(kind: str, backend: Any) -> Record:  # noqa: C901  one small function a kind
    """One record of a kind of state on a keyed backend."""
    enter = backend.set_current_key
    if kind == "value":
        value = backend.get_state(ValueStateDescriptor("value", "long"))

        def record(key: int, n: int) -> None:
            enter(key)
            value.update((value.value() or 0) + n)

    elif kind == "struct":
        pair = backend.get_state(ValueStateDescriptor("pair", "n long, x double"))

        def record(key: int, n: int) -> None:
            enter(key)
            found = pair.value()
            pair.update((n, 0.5) if found is None else (found.n + n, found.x))

    elif kind == "list":
        items = backend.get_list_state(ListStateDescriptor("items", "long"))

        def record(key: int, n: int) -> None:
            enter(key)
            items.add(n)

    elif kind == "map":
        entries = backend.get_map_state(MapStateDescriptor("entries", "long", "long"))

        def record(key: int, n: int) -> None:
            enter(key)
            entries.put(n & 3, (entries.get(n & 3) or 0) + n)

    elif kind == "reducing":
        total = backend.get_reducing_state(ReducingStateDescriptor("total", "long", "sum"))

        def record(key: int, n: int) -> None:
            enter(key)
            total.add(n)

    else:
        descriptor = AggregatingStateDescriptor("mean", "sum long, n long", Mean())
        mean = backend.get_aggregating_state(descriptor)

        def record(key: int, n: int) -> None:
            enter(key)
            mean.add(n)

    return record


def of_dict(kind: str, table: dict[int, Any]) -> Record:
    """The same with objects in a dictionary."""
    get = table.get

    def value(key: int, n: int) -> None:
        table[key] = (get(key) or 0) + n

    def struct_(key: int, n: int) -> None:
        found = get(key)
        table[key] = (n, 0.5) if found is None else (found[0] + n, found[1])

    def items(key: int, n: int) -> None:
        table.setdefault(key, []).append(n)

    def entries(key: int, n: int) -> None:
        found = table.setdefault(key, {})
        found[n & 3] = found.get(n & 3, 0) + n

    forms = {"list": items, "map": entries, "struct": struct_, "aggregating": struct_}
    return forms.get(kind, value)


def of_rocksdict(kind: str, database: Any) -> Record:
    """The same with plain rocksdict: packed by hand, one call for each read and each write."""
    get, put = database.get, database.put
    place = 0

    def value(key: int, n: int) -> None:
        raw = _LONG.pack(key)
        found = get(raw)
        put(raw, _LONG.pack((0 if found is None else _LONG.unpack(found)[0]) + n))

    def pair(key: int, n: int) -> None:
        raw = _LONG.pack(key)
        found = get(raw)
        before = (0, 0.5) if found is None else _PAIR.unpack(found)
        put(raw, _PAIR.pack(before[0] + n, before[1]))

    def items(key: int, n: int) -> None:
        nonlocal place
        place += 1
        put(_LONG.pack(key) + _LONG.pack(place), _LONG.pack(n))

    def entries(key: int, n: int) -> None:
        raw = _LONG.pack(key) + _LONG.pack(n & 3)
        found = get(raw)
        put(raw, _LONG.pack((0 if found is None else _LONG.unpack(found)[0]) + n))

    forms = {"list": items, "map": entries, "struct": pair, "aggregating": pair}
    return forms.get(kind, value)


def measured(way: str, kind: str, keys: int, records: int, seed: int) -> float:
    """Microseconds of processor time for a record, after one for each key."""
    with tempfile.TemporaryDirectory(prefix="moorage-bench-") as directory:
        record, settle, close = _opened(way, kind, Path(directory))
        rng = random.Random(seed)  # noqa: S311 - the same numbers in every run
        given = [(rng.randrange(keys), n) for n in range(records)]
        for key in range(keys):
            record(key, 1)
        settle()
        gc.collect()
        began = time.process_time()
        for key, n in given:
            record(key, n)
        settle()
        spent = time.process_time() - began
        close()
    return spent / records * 1e6


def _opened(way: str, kind: str, directory: Path) -> Opened:
    if way == "dict":
        return Opened(of_dict(kind, {}), nothing, nothing)
    if way == "rocksdict":
        options = RocksOptions()
        database = rocksdict.Rdict(
            str(directory / "raw"), to_options(options, ProcessMemory(options))
        )
        write = rocksdict.WriteOptions()
        setattr(write, "disable_wal", True)  # noqa: B010 - a property, whatever the stub says
        database.set_write_options(write)
        return Opened(of_rocksdict(kind, database), nothing, database.close)
    factory = HashMapStateBackend() if way == "hashmap" else EmbeddedRocksDBStateBackend()
    backend = keyed_backend(factory, directory)
    # Nobody but a benchmark has to know when it is written.
    return Opened(of_backend(kind, backend), backend._settle, backend.dispose)  # noqa: SLF001


def main(arguments: list[str] | None = None) -> int:
    """Measure all, print a table; 0 if the goal was reached."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args(arguments)
    print(f"keys={given.keys} records={given.records} load={os.getloadavg()[0]:.1f}")
    print(f"{'us per record':14}" + "".join(f"{way:>11}" for way in WAYS) + "   rocksdb/rocksdict")
    worst = 0.0
    for kind in KINDS:
        rounds = [
            [measured(way, kind, given.keys, given.records, seed) for way in WAYS]
            for seed in range(given.rounds)
        ]
        costs = [statistics.median(column) for column in zip(*rounds, strict=True)]
        ratio = statistics.median(row[3] / row[2] for row in rounds)
        worst = max(worst, ratio)
        print(f"{kind:14}" + "".join(f"{cost:11.2f}" for cost in costs) + f"{ratio:13.2f}")
    print(f"goal: at most {GOAL} times plain rocksdict; worst {worst:.2f}")
    return 0 if worst <= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
