"""Key groups of whole columns of keys, as Spark and as Arrow have them.

Decides which subtask a key belongs to, by the hash that the job has. Called by the planner.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as sf
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import IntegerType

from moorage.engine.rows import column_values
from moorage_state.keygroups import FLINK_MURMUR
from moorage_state.keyhashes import flink_groups, groups_of_hashes, utf8_hashes


def key_group_column(
    key_hash: str, columns: Sequence[str], types: Sequence[str], digest: Column, most: int
) -> Column:
    """The key group of each row.

    Args:
        types: the DDL types of the key columns.
        digest: `xxhash64` of them.
        most: maxParallelism.
    """
    if key_hash != FLINK_MURMUR:
        return sf.pmod(digest, sf.lit(most)).cast("int")
    ddl = tuple(types)

    def groups(*arrays: pa.Array) -> pa.Array:
        return arrow_groups(arrays, ddl, most)

    # The stubs know only UDFs that name their kind; at run time that warns: type hints say it.
    udf: Any = arrow_udf
    hashed = udf(groups, IntegerType())
    made: Column = hashed(*(sf.col(f"`{name}`") for name in columns))
    return made


def arrow_groups(
    arrays: Sequence[pa.Array], types: Sequence[str], max_parallelism: int
) -> pa.Array:
    """The key groups of the keys in these columns under `flink-murmur`."""
    first = arrays[0]
    text = pa.types.is_string(first.type) or pa.types.is_large_string(first.type)
    if len(arrays) == 1 and text and first.null_count == 0:
        hashes = utf8_hashes(*_utf8(first))
        return pa.array(groups_of_hashes(hashes, max_parallelism), pa.int32())
    if len(arrays) == 1 and pa.types.is_integer(first.type) and first.null_count == 0:
        values: list[Any] = [first.to_numpy()]
    else:
        # A key with a null has the group of hash 0: its row is counted where it comes to.
        values = [column_values(array) for array in arrays]
    return pa.array(flink_groups(types, max_parallelism)(values), pa.int32())


def _utf8(array: pa.Array) -> tuple[bytes, Any]:
    """The bytes of a column of strings without nulls, and where each begins."""
    _, offsets_of, data_of = array.buffers()
    width = np.int64 if pa.types.is_large_string(array.type) else np.int32
    if not len(array):
        return b"", np.zeros(1, np.int64)
    offsets = np.frombuffer(offsets_of, width)[array.offset : array.offset + len(array) + 1]
    start, end = int(offsets[0]), int(offsets[-1])
    data = data_of.slice(start, end - start).to_pybytes() if data_of is not None else b""
    return data, offsets.astype(np.int64) - start
