"""Chunks: rows of a batch by key, in the order that state is stored in."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.engine.columns import GROUP_COLUMN
from moorage.engine.rows import Chunk, chunk_of
from moorage_state.keylayout import key_prefix
from moorage_state.keys import KeyCodec

RUNS = st.lists(st.tuples(st.integers(-5, 5), st.integers(1, 4)), min_size=1, max_size=9).filter(
    lambda runs: len({key for key, _ in runs}) == len(runs)
)


def _batch(runs: list[tuple[int, int]], ddl: str) -> pa.RecordBatch:
    keys = [key for key, rows in runs for _ in range(rows)]
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array(keys if ddl == "int" else [f"{key}" for key in keys]),
            "at": list(range(len(keys))),
            GROUP_COLUMN: pa.array([_group(key) for key in keys], pa.int32()),
        }
    )


def _group(key: int) -> int:
    return key * 7 % 5


def _by_key(chunk: Chunk) -> list[tuple[object, list[int]]]:
    at = chunk.rows.column("at").to_pylist()
    ends = [*chunk.starts[1:], len(at)]
    return [(k, at[s:e]) for k, s, e in zip(chunk.keys, chunk.starts, ends, strict=True)]


@given(runs=RUNS, ddl=st.sampled_from(["int", "string"]), runs_on=st.booleans())
def test_a_chunk_has_the_rows_of_its_batch_by_key_as_they_came(
    runs: list[tuple[int, int]], ddl: str, *, runs_on: bool
) -> None:
    batch, codec = _batch(runs, ddl), KeyCodec([ddl])
    names = [key if ddl == "int" else f"{key}" for key, _ in runs]
    prefixes = [
        key_prefix(_group(key), codec.encode((name,)))
        for (key, _), name in zip(runs, names, strict=True)
    ]
    chunk = chunk_of(batch, ["key"], codec, prefixes[0] if runs_on else b"")
    expected: dict[object, list[int]] = {}
    for key, at in zip(
        batch.column("key").to_pylist(), batch.column("at").to_pylist(), strict=True
    ):
        expected.setdefault(key, []).append(at)
    assert dict(_by_key(chunk)) == expected
    assert chunk.runs_on == runs_on
    assert chunk.prefixes == [prefixes[names.index(key)] for key in chunk.keys]
    assert chunk.keys[-1] == names[-1]
    first = 1 if runs_on else 0
    assert chunk.keys[:first] == names[:first]
    assert chunk.prefixes[first:-1] == sorted(chunk.prefixes[first:-1])


@pytest.mark.parametrize("rows", [1, 3])
def test_keys_of_several_columns_are_tuples(rows: int) -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "b": ["y"] * rows + ["x"] * rows,
            "a": np.repeat([2, 1], rows),
            GROUP_COLUMN: pa.array([0] * 2 * rows, pa.int32()),
        }
    )
    chunk = chunk_of(batch, ["a", "b"], KeyCodec(["bigint", "string"]), b"")
    assert chunk.keys == [(2, "y"), (1, "x")]
    assert chunk.starts == [0, rows]
