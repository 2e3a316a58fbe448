"""Canonical savepoints: state as sorted Parquet files that any tool can read.

Decides the files of a key-group range, how they are made from a database, and how a database is
made from them. Called by the state server (export and restore), and by `moorage.state`, with which
people read, repair and write savepoints. Knows no Spark. See docs/formats.md, "Canonical files".
"""

from moorage_state.canonical.export import ExportedFile as ExportedFile
from moorage_state.canonical.export import export_range as export_range
from moorage_state.canonical.export import export_snapshot as export_snapshot
from moorage_state.canonical.export import handle_of as handle_of
from moorage_state.canonical.export import scan_rows as scan_rows
from moorage_state.canonical.export import upload_files as upload_files
from moorage_state.canonical.file_schema import file_name as file_name
from moorage_state.canonical.file_schema import key_columns as key_columns
from moorage_state.canonical.file_schema import namespace_columns as namespace_columns
from moorage_state.canonical.file_schema import schema_of as schema_of
from moorage_state.canonical.hashing import key_groups as key_groups
from moorage_state.canonical.reading import CanonicalFile as CanonicalFile
from moorage_state.canonical.reading import frames_of as frames_of
from moorage_state.canonical.rows import RowReader as RowReader
from moorage_state.canonical.rows import stored_id as stored_id
from moorage_state.canonicalspec import EVENT_TIME as EVENT_TIME
from moorage_state.canonicalspec import LAST_ACCESS as LAST_ACCESS
from moorage_state.canonicalspec import SIDE_KINDS as SIDE_KINDS
from moorage_state.canonicalspec import TIMER_KINDS as TIMER_KINDS
from moorage_state.canonicalspec import TIMERS as TIMERS
from moorage_state.canonicalspec import CanonicalSpec as CanonicalSpec
from moorage_state.canonicalspec import FileMeta as FileMeta
from moorage_state.canonicalspec import spec_of as spec_of
