"""The input: Parquet files of (key, value), made once and read by every engine in the same order.

Spark's file source takes files by modification time, one per batch; so each file's is set.
"""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.params import Parameters, Shape

__all__ = ["COLUMNS", "first_files", "generate"]

COLUMNS = "key long, value long"
_FIRST_MTIME = 1_600_000_000
_MAX_VALUE = 1000


def generate(directory: Path, params: Parameters, shape: Shape) -> None:
    """Write the warm-up files and the others.

    Keys are 62-bit numbers without any order, drawn uniformly from a fixed set.
    """
    directory.mkdir(parents=True)
    random = np.random.default_rng([params.seed, shape.keys(params.rows)])
    keys = random.integers(0, 2**62, shape.keys(params.rows))
    sizes = [params.warmup_rows] * params.warmup_files + [params.rows] * params.files
    for number, rows in enumerate(sizes):
        path = directory / f"{number:05d}.parquet"
        columns = {
            "key": keys[random.integers(0, len(keys), rows)],
            "value": random.integers(0, _MAX_VALUE, rows),
        }
        pq.write_table(pa.table(columns), path, compression="zstd")
        os.utime(path, (_FIRST_MTIME + number, _FIRST_MTIME + number))


def first_files(directory: Path, count: int) -> pa.Table:
    """What the first `count` batches hold."""
    files = sorted(directory.glob("*.parquet"))
    if count > len(files):
        raise ValueError(f"more batches than files: batches={count} files={len(files)}")
    return pa.concat_tables(pq.read_table(path) for path in files[:count])
