"""Asks a savepoint with SQL: DuckDB reads its Parquet files, without a job, Spark or Java.

    python query.py ../bootstrap/savepoints/initial accounts balance

Needs `pip install duckdb`. What is in the files: docs/formats.md, "Canonical files".
"""

import sys
from typing import Any

import duckdb


def largest(savepoint: str, uid: str, state: str, most: int = 10) -> list[Any]:
    """The greatest values of a value state, with their keys.

    Args:
        savepoint: the directory of a canonical savepoint; those of a job are, unless `--native`.
        uid: the operator.
        state: its value state, of a number.
        most: how many rows.
    """
    return duckdb.execute(
        "SELECT key, value FROM read_parquet(?) ORDER BY value DESC, key LIMIT ?",
        [f"{savepoint}/state/{uid}/*/{state}.parquet", most],
    ).fetchall()


def by_key_group(savepoint: str, uid: str, state: str) -> list[Any]:
    """How many keys each key group has: the groups of one range are one subtask's work."""
    return duckdb.execute(
        "SELECT key_group, count(*) FROM read_parquet(?) GROUP BY ALL ORDER BY ALL",
        [f"{savepoint}/state/{uid}/*/{state}.parquet"],
    ).fetchall()


if __name__ == "__main__":
    for row in largest(*sys.argv[1:4]):
        print(*row, sep="\t")
