"""What a join costs: columns of pairs by `select`, beside a function that gives the same pairs.

    python -m benchmarks.joins [--join window interval temporal] [--rows 20000] [--epochs 6]
                               [--per-key 2 8] [--rounds 3]

Rows of two streams, ten seconds of event time in an epoch, in process without Spark: what is
counted is processor time of the subtasks and their state server, after a third of the epochs. All
pairs are compared with those of pandas, and the least of the rounds is taken. The exit status is 0
if a function costs nowhere less than columns do, and in windows twice as much.
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
from moorage import FileSink, JoinFunction, ProcessJoinFunction, Tumbling
from moorage.testing.environment import TestEnvironment
from moorage.testing.in_process import Collector, InProcessJob

WAYS = ("columns", "function")
SIZE_MS = 10_000
NEAR_MS = SIZE_MS // 2
_GOALS = {"window": 2.0, "interval": 1.0, "temporal": 1.0}
_SEED, _MOST_VALUE = 2013, 1000
_OUTPUT = "key long, n long, m long"
_BATCH_ROWS = 10_000


class Pairs(JoinFunction, ProcessJoinFunction):
    """What one writes where columns are not named."""

    def join(self, left: Any, right: Any, ctx: Any) -> Iterator[Any]:  # noqa: ARG002
        """A pair."""
        yield left.key, left.n, right.m

    process_element = join


def generate(rows: int, epochs: int, keys: int) -> list[dict[str, Any]]:
    """By epoch, the rows of both streams."""
    random = np.random.default_rng([_SEED, keys])

    def side(epoch: int) -> list[tuple[int, ...]]:
        times = np.sort(random.integers(epoch * SIZE_MS, (epoch + 1) * SIZE_MS, rows))
        columns = random.integers(0, keys, rows), random.integers(0, _MOST_VALUE, rows), times
        return list(zip(*(column.tolist() for column in columns), strict=True))

    return [{"left": side(epoch), "right": side(epoch)} for epoch in range(epochs)]


def joined(join: str, one: Any, other: Any) -> Any:
    """The join, of which is not told what is made of pairs."""
    if join == "interval":
        return one.interval_join(other).between(f"-{NEAR_MS}ms", f"{NEAR_MS}ms")
    if join == "temporal":
        return one.temporal_join(other)
    return one.join(other).window(Tumbling(f"{SIZE_MS}ms"))


def measure(join: str, way: str, epochs: list[dict[str, Any]]) -> tuple[float, pd.DataFrame]:
    """Microseconds for each row, and the pairs."""
    env = TestEnvironment()
    one, other = (
        env.read_stream(uid, "json", schema=f"key long, {value} long, at long")
        .with_event_time("at", "1s")
        .key_by("key")
        for uid, value in (("left", "n"), ("right", "m"))
    )
    pairs = joined(join, one, other)
    if way == "columns":
        made = pairs.select(uid="join", key="left.key", n="left.n", m="right.m")
    else:
        apply = pairs.process if join == "interval" else pairs.apply
        made = apply(Pairs(), uid="join", output=_OUTPUT)
    made.sink_to(FileSink("out"), uid="out")
    collector, found = Collector(), []
    env.graph.sinks[0].sink = collector
    warm, began = len(epochs) // 3, 0.0
    with InProcessJob(env.graph, clock=lambda: 0, parallelism=2) as job:
        job.planner.batch_rows = _BATCH_ROWS
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


def check(join: str, epochs: list[dict[str, Any]], found: pd.DataFrame) -> int:
    """Compare with what pandas makes of the same rows; returns how many pairs there are."""
    names = {"left": ["key", "n", "at"], "right": ["key", "m", "at"]}
    left, right = (
        pd.DataFrame([row for rows in epochs for row in rows[uid]], columns=columns)
        for uid, columns in names.items()
    )
    if join == "temporal":
        versions = right.drop_duplicates(["key", "at"], keep="last").sort_values("at")
        pairs = pd.merge_asof(left.sort_values("at"), versions, on="at", by="key").dropna()
    else:
        pairs = left.merge(right, on="key", suffixes=("", "_right"))
        apart = (pairs["at_right"] - pairs["at"]).abs() <= NEAR_MS
        same = pairs["at_right"] // SIZE_MS == pairs["at"] // SIZE_MS
        pairs = pairs[apart if join == "interval" else same]
    columns = ["key", "n", "m"]
    one, other = (some[columns].astype(np.int64).sort_values(columns) for some in (pairs, found))
    if not len(one) or not np.array_equal(one.to_numpy(), other.to_numpy()):
        raise ValueError(f"wrong pairs: join={join} found={len(other)} right={len(one)}")
    return len(one)


def main() -> int:
    """Measure both ways."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.joins", description=__doc__)
    parser.add_argument("--join", choices=_GOALS, nargs="+", default=list(_GOALS))
    parser.add_argument("--rows", type=int, default=20_000, help="rows of a side in an epoch")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--per-key", type=int, nargs="+", default=[2, 8], help="rows of a key")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    good = True
    for join in asked.join:
        for per_key in asked.per_key:
            epochs = generate(asked.rows, asked.epochs, asked.rows // per_key)
            print(f"{join}, {per_key} rows of a key on each side, load {load():.1f}", flush=True)
            least = dict.fromkeys(WAYS, float("inf"))
            for _ in range(asked.rounds):
                for way in WAYS:
                    took, found = measure(join, way, epochs)
                    pairs = check(join, epochs, found)
                    print(f"  {way}: {took:.2f} us for each row, {pairs} pairs right", flush=True)
                    least[way] = min(least[way], took)
            ratio = least["function"] / least["columns"]
            print(f"a function by columns: {ratio:.2f}", flush=True)
            good &= ratio >= _GOALS[join]
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
