"""Canonical savepoints: state as sorted Parquet files that any tool can read.

Decides the files of a key-group range, how they are made from a database, and how a database is
made from them. Called by the state server (export and restore), and by `moorage.state`, with which
people read, repair and write savepoints. Knows no Spark. See docs/formats.md, "Canonical files".
"""

from moorage_state.canonical.export import (
    ExportedFile,
    export_range,
    export_snapshot,
    handle_of,
    scan_rows,
    upload_files,
)
from moorage_state.canonical.file_schema import file_name, key_columns, namespace_columns, schema_of
from moorage_state.canonical.hashing import key_groups, spark_xxhash64
from moorage_state.canonical.reading import CanonicalFile, frames_of
from moorage_state.canonical.rows import RowBuffer, RowReader, stored_id
from moorage_state.canonicalspec import (
    EVENT_TIME,
    LAST_ACCESS,
    SIDE_KINDS,
    TIMER_KINDS,
    TIMERS,
    CanonicalSpec,
    FileMeta,
    spec_of,
)

__all__ = [
    "EVENT_TIME",
    "LAST_ACCESS",
    "SIDE_KINDS",
    "TIMERS",
    "TIMER_KINDS",
    "CanonicalFile",
    "CanonicalSpec",
    "ExportedFile",
    "FileMeta",
    "RowBuffer",
    "RowReader",
    "export_range",
    "export_snapshot",
    "file_name",
    "frames_of",
    "handle_of",
    "key_columns",
    "key_groups",
    "namespace_columns",
    "scan_rows",
    "schema_of",
    "spark_xxhash64",
    "spec_of",
    "stored_id",
    "upload_files",
]
