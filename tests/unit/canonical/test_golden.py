"""Canonical files on disk stay readable.

To change a layout, raise its number, go on reading the old one, and add files; none is ever
changed. Bytes are not compared: another release of Arrow writes other bytes with the same content.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from moorage_state.canonical import CanonicalSpec, export_range, frames_of
from moorage_state.rocks import Database

GOLDEN = Path(__file__).parent / "golden"


def test_the_golden_files_hold_the_state_that_they_were_made_of(
    new_database: Callable[..., Database],
    written: Any,
    spec: CanonicalSpec,
    tmp_path: Path,
    stored: Callable[..., dict[bytes, bytes]],
) -> None:
    database = new_database("db", written(12))
    if not GOLDEN.exists():
        GOLDEN.mkdir()
        export_range(database, spec, GOLDEN)
        raise AssertionError(f"wrote {GOLDEN}; look at it and run again")
    files = sorted(GOLDEN.glob("*.parquet"))
    assert [f.name for f in files] == [
        "_timers.parquet",
        "by_day.parquet",
        "pages.parquet",
        "visit.parquet",
    ]
    copy = new_database("copy")
    for frame in frames_of([(path, "") for path in files], 0, 15):
        copy.apply([frame])
    assert stored(copy) == stored(database)
    export_range(database, spec, tmp_path)
    for path in files:
        made, golden = pq.ParquetFile(tmp_path / path.name), pq.ParquetFile(path)
        assert repr(made.read().to_pylist()) == repr(golden.read().to_pylist())
        assert made.schema_arrow.equals(golden.schema_arrow, check_metadata=True)
        assert made.num_row_groups == golden.num_row_groups
        assert made.schema.equals(golden.schema)


def test_the_document_of_a_golden_file_is_the_documented_one() -> None:
    raw = pq.ParquetFile(GOLDEN / "by_day.parquet").schema_arrow.metadata[b"moorage"]
    document = json.loads(raw)
    assert next(iter(document)) == "format"
    assert document == {
        "format": 1,
        "uid": "visits",
        "state": "by_day",
        "kind": "map",
        "type": "array<double>",
        "key_type": "date",
        "key_types": ["string"],
        "key_hash": "spark-xxhash64",
        "max_parallelism": 16,
        "start": 0,
        "end": 15,
        "epoch": 7,
    }
