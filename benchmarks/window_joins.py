"""What a join in windows costs: columns of pairs by `select`, beside a `JoinFunction`.

    python -m benchmarks.window_joins [--rows 20000] [--epochs 6] [--per-key 2 8] [--rounds 3]

Rows of ten-second windows of two streams, an epoch for each window, in process without Spark: what
is counted is processor time of the subtasks and their state server, after a third of the epochs.
All pairs are compared with those of pandas, and the least of the rounds is taken. The exit status
is 0 if a function costs at least twice what columns do.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from benchmarks.machine import load
from moorage import FileSink, JoinFunction, Tumbling
from moorage.testing.environment import TestEnvironment
from moorage.testing.in_process import Collector, InProcessJob

WAYS = ("columns", "function")
SIZE_MS = 10_000
_GOAL = 2.0
_SEED, _MOST_VALUE = 2013, 1000
_OUTPUT = "key long, n long, m long"


class Pairs(JoinFunction):
    """What one writes where columns are not named."""

    def join(self, left: Any, right: Any, ctx: Any) -> Iterator[Any]:  # noqa: ARG002
        """A pair."""
        yield left.key, left.n, right.m


def generate(rows: int, epochs: int, keys: int) -> list[dict[str, Any]]:
    """By epoch, the rows of both streams."""
    random = np.random.default_rng([_SEED, keys])

    def side(epoch: int) -> list[tuple[int, ...]]:
        times = np.sort(random.integers(epoch * SIZE_MS, (epoch + 1) * SIZE_MS, rows))
        columns = random.integers(0, keys, rows), random.integers(0, _MOST_VALUE, rows), times
        return list(zip(*(column.tolist() for column in columns), strict=True))

    return [{"left": side(epoch), "right": side(epoch)} for epoch in range(epochs)]


def measure(way: str, epochs: list[dict[str, Any]]) -> tuple[float, pd.DataFrame]:
    """Microseconds for each row, and the pairs."""
    env = TestEnvironment()
    one, other = (
        env.read_stream(uid, "json", schema=f"key long, {value} long, at long")
        .with_event_time("at")
        .key_by("key")
        for uid, value in (("left", "n"), ("right", "m"))
    )
    windows = one.join(other).window(Tumbling(f"{SIZE_MS}ms"))
    if way == "columns":
        made = windows.select(uid="join", key="left.key", n="left.n", m="right.m")
    else:
        made = windows.apply(Pairs(), uid="join", output=_OUTPUT)
    made.sink_to(FileSink("out"), uid="out")
    collector, found = Collector(), []
    env.graph.sinks[0].sink = collector
    warm, began = len(epochs) // 3, 0.0
    with InProcessJob(env.graph, clock=lambda: 0, parallelism=2) as job:
        for number, rows in enumerate([*epochs, None]):
            if number == warm:
                began = time.process_time()
            if rows is None:
                job.runner.watermarks = job.runner.watermarks.drain()
            job.epoch(rows or {})
            found += collector.take()
        spent = time.process_time() - began
    counted = sum(len(side) for rows in epochs[warm:] for side in rows.values())
    return spent * 1e6 / counted, pa.Table.from_batches(found).to_pandas()


def check(epochs: list[dict[str, Any]], found: pd.DataFrame) -> int:
    """Compare with what pandas makes of the same rows; returns how many pairs there are."""
    names = {"left": ["key", "n", "at"], "right": ["key", "m", "at"]}
    sides = [
        pd.DataFrame([row for rows in epochs for row in rows[uid]], columns=columns).assign(
            start=lambda side: side["at"] // SIZE_MS
        )
        for uid, columns in names.items()
    ]
    columns = ["key", "n", "m"]
    right = sides[0].merge(sides[1], on=["key", "start"])[columns]
    one, other = (some.sort_values(columns).to_numpy(np.int64) for some in (right, found[columns]))
    if not len(one) or not np.array_equal(one, other):
        raise ValueError(f"wrong pairs: found={len(other)} right={len(one)}")
    return len(one)


def main() -> int:
    """Measure both ways."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.window_joins", description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000, help="rows of a side in an epoch")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--per-key", type=int, nargs="+", default=[2, 8], help="rows of a key")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    good = True
    for per_key in asked.per_key:
        epochs = generate(asked.rows, asked.epochs, asked.rows // per_key)
        print(f"{per_key} rows of a key on each side, load {load():.1f}", flush=True)
        least = dict.fromkeys(WAYS, float("inf"))
        for _ in range(asked.rounds):
            for way in WAYS:
                took, found = measure(way, epochs)
                pairs = check(epochs, found)
                print(f"  {way}: {took:.2f} us for each row, {pairs} pairs right", flush=True)
                least[way] = min(least[way], took)
        ratio = least["function"] / least["columns"]
        print(f"a function by columns: {ratio:.2f}", flush=True)
        good &= ratio >= _GOAL
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
