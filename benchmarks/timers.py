"""What timers of many keys cost: setting them, and firing them as time goes on.

    python -m benchmarks.timers [--keys 1000000] [--steps 100]

Each key sets one timer, at a time that comes at random; then time goes on in equal steps, and each
step fires what is due. Every way runs in a process of its own, so that its memory is its own. Times
are of the processor, RocksDB's own threads included. The last column says whether firing stays as
fast: the time of the last tenth of the steps by that of the first. The exit status is 0 if it is at
most twice as much everywhere and all timers fired.
"""

import argparse
import gc
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.backends import keyed_backend
from moorage_state.state_backends import EmbeddedRocksDBStateBackend, HashMapStateBackend

SPAN_MS = 10_000_000
MOST_DRIFT = 2.0
WAYS = ("hashmap", "rocksdb, HEAP", "rocksdb, ROCKSDB")


@dataclass(frozen=True, slots=True)
class Figures:
    """What one way took.

    Attributes:
        setting: timers set in a second of processor time.
        firing: timers fired in one.
        memory: bytes that the process grew by, at its largest.
        idle: seconds of one step in which nothing is due, after all has fired.
        drift: how much longer the last tenth of the steps took than the first.
        fired: how many timers fired.
    """

    setting: float
    firing: float
    memory: int
    idle: float
    drift: float
    fired: int


def measured(way: str, keys: int, steps: int) -> Figures:
    """Set and fire the timers of `keys` keys."""
    with tempfile.TemporaryDirectory(prefix="moorage-bench-") as directory:
        backend = _opened(way, Path(directory))
        rng = random.Random(1)  # noqa: S311 - the same numbers in every run
        times = [rng.randrange(SPAN_MS) for _ in range(keys)]
        timers = backend.timers()
        gc.collect()
        before, began = _resident(), time.process_time()
        for key, time_ms in enumerate(times):
            backend.set_current_key(key)
            timers.register(time_ms)
        ends = [time.process_time()]
        fired = 0
        for step in range(1, steps + 1):
            fired += timers.fire_due(SPAN_MS * step // steps, lambda _time_ms, _key: None)
            ends.append(time.process_time())
        timers.fire_due(SPAN_MS + 1, lambda _time_ms, _key: None)
        idle = time.process_time() - ends[-1]
        backend.dispose()
    took = [end - start for start, end in pairwise(ends)]
    tenth = max(1, steps // 10)
    return Figures(
        setting=keys / (ends[0] - began),
        firing=keys / (ends[-1] - ends[0]),
        memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before,
        idle=idle,
        drift=sum(took[-tenth:]) / sum(took[:tenth]),
        fired=fired,
    )


def _opened(way: str, directory: Path) -> Any:
    made = {
        "hashmap": HashMapStateBackend(),
        "rocksdb, HEAP": EmbeddedRocksDBStateBackend(timer_service="HEAP"),
        "rocksdb, ROCKSDB": EmbeddedRocksDBStateBackend(timer_service="ROCKSDB"),
    }
    return keyed_backend(made[way], directory)


def _resident() -> int:
    """Bytes in memory now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def main(arguments: list[str] | None = None) -> int:
    """Measure every way, print a table; 0 if firing stays as fast."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=100)
    given = parser.parse_args(arguments)
    print(f"keys={given.keys} steps={given.steps} load={os.getloadavg()[0]:.1f}")
    print(f"{'timers':18}{'set/s':>10}{'fired/s':>10}{'MB':>7}{'idle ms':>9}{'drift':>7}")
    good = True
    for way in WAYS:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as apart:
            found = apart.submit(measured, way, given.keys, given.steps).result()
        good = good and found.fired == given.keys and found.drift <= MOST_DRIFT
        print(
            f"{way:18}{found.setting:10,.0f}{found.firing:10,.0f}{found.memory / 1e6:7.0f}"
            f"{found.idle * 1000:9.1f}{found.drift:7.2f}"
        )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
