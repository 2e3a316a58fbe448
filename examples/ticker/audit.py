"""Judges the ticker from outside: its newest state, and everything it has published.

    python audit.py s3://bucket/checkpoints s3://bucket/counts

Prints one line of JSON and ends with status 1 if a tick was lost or counted twice anywhere.
"""

import json
import sys
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from job import COUNTERS

import moorage.state
from moorage import FileSink
from moorage_state.stores import open_store
from moorage_state.stores.addresses import address
from moorage_state.stores.transfers import in_parallel


def judge_state(path: str) -> dict[str, Any]:
    """What the state says, by the sums that a clock without gaps must give."""
    rows = moorage.state.read(path, "counter", "seen").to_pylist()
    wrong = 0
    for row in rows:
        key, seen = row["key"], row["value"]
        ticks = (seen["last"] - key) // COUNTERS + 1
        total = sum(range(key, seen["last"] + 1, COUNTERS))
        wrong += (seen["ticks"], seen["total"], seen["wrong"]) != (ticks, total, 0)
    editions = sorted({row["value"].get("edition", 1) for row in rows})
    return {"counters": len(rows), "wrong_counters": wrong, "editions": editions}


def judge_output(path: str) -> dict[str, Any]:
    """What was published: every tick up to some moment, each once."""
    seen: dict[int, list[int]] = defaultdict(list)
    store, place = open_store(address(path)), _place(address(path))
    out = path if "://" in path else str(Path(path).absolute())
    keys = [_place(url).removeprefix(f"{place}/") for url in FileSink(out).files()]
    # A job of an hour has thousands of small files: most of the time is waiting for the store.
    for parquet in in_parallel((partial(store.get, key) for key in keys), 8):
        for row in _rows(parquet):
            seen[row["counter"]].append(row["last"])
    lost = twice = 0
    for key, values in seen.items():
        distinct = set(values)
        twice += len(values) - len(distinct)
        lost += (max(distinct) - key) // COUNTERS + 1 - len(distinct)
    return {"rows": sum(map(len, seen.values())), "lost": lost, "twice": twice}


def _rows(parquet: bytes) -> list[dict[str, Any]]:
    """The rows of a file, read without any of Arrow's threads, which `read_table` always starts.

    One that still holds a Python object when the interpreter ends takes the process with it.
    """
    file = pq.ParquetFile(pa.BufferReader(parquet))
    found: list[dict[str, Any]] = file.read(use_threads=False).to_pylist()
    return found


def _place(url: str) -> str:
    """An address without scheme (Spark says s3a) and options."""
    return url.partition("?")[0].rpartition("://")[2]


def main(arguments: list[str]) -> int:
    """Print the judgement."""
    checkpoints, out = arguments
    found = {**judge_state(checkpoints), **judge_output(out)}
    found["right"] = not (found["wrong_counters"] or found["lost"] or found["twice"])
    print(json.dumps(found))
    return 0 if found["right"] and found["counters"] == COUNTERS else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
