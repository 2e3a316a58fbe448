"""Writes the savepoint that job.py begins from: balances out of a table, one for each account.

    python bootstrap.py balances.csv savepoints/initial
    moorage run job.yaml --restore savepoints/initial

The first start alone needs `--restore`: after it the job has checkpoints of its own.
"""

import sys

import pyarrow.parquet as pq
from job import BALANCE, KEY_TYPES, UID
from pyarrow import csv

from moorage.state import OperatorTables, write_savepoint


def bootstrap(table_path: str, savepoint: str) -> int:
    """Write the savepoint; gives how many accounts it has.

    Args:
        table_path: a file of Parquet or CSV with the columns account (text) and balance (a whole
            number).
        savepoint: a directory, or an address in a store, where nothing is yet.
    """
    read = csv.read_csv if table_path.endswith(".csv") else pq.read_table
    table = read(table_path).select(["account", "balance"]).rename_columns(["account", "value"])
    state = OperatorTables(key_types=KEY_TYPES, key=["account"], states=[(BALANCE, table)])
    write_savepoint(savepoint, {UID: state}, parallelism=2, max_parallelism=128)
    return int(table.num_rows)


if __name__ == "__main__":
    print(bootstrap(*sys.argv[1:]), "accounts")
