"""What a canonical file says of itself: its columns and its metadata.

Decides the names and order of the columns of each kind of state and the document that every file
carries under the key `moorage`, so that a file can be read without its manifest. Pure; called by
the export, the import and by readers of single files.
"""

from typing import Any

import msgspec
import pyarrow as pa

from moorage_state.canonicalspec import (
    CANONICAL_FORMAT,
    LAST_ACCESS,
    LIST_KINDS,
    FileMeta,
)
from moorage_state.columnar.arrow import arrow_type
from moorage_state.errors import CorruptState, UserError
from moorage_state.formats import UNREADABLE, decode_document, require_known_format
from moorage_state.types import parse_type

_KEY = b"moorage"

_RARE = {"ttl_ms", "namespace_types"}
"""Fields that a document has only for the states that have them."""

_ADVICE = "restore this object from a backup, or use another savepoint"


def file_name(state: str) -> str:
    """The name of a state's file in its range's directory."""
    return f"{state}.parquet"


def key_columns(count: int) -> list[str]:
    """The columns that hold the key: `key`, or `key_1`, `key_2`, ... where there are several."""
    return ["key"] if count == 1 else [f"key_{n}" for n in range(1, count + 1)]


def row_columns(meta: FileMeta) -> list[str]:
    """The columns after those of the key."""
    if meta.kind == "timers":
        return ["kind", "time"]
    places = ["list_epoch", "list_ordinal"] if meta.kind in LIST_KINDS else []
    if meta.kind == "raw_keyed":
        places = ["piece"]
    elif meta.key_type is not None:
        places = ["map_key"]
    stamps = [LAST_ACCESS] if meta.ttl_ms is not None else []
    return [*namespace_columns(meta), *places, "value", *stamps]


def namespace_columns(meta: FileMeta) -> list[str]:
    """The columns that hold the namespace: `namespace`, or `namespace_1`, ...; usually none."""
    count = len(meta.namespace_types)
    return ["namespace"] if count == 1 else [f"namespace_{n}" for n in range(1, count + 1)]


def schema_of(meta: FileMeta) -> pa.Schema:
    """The columns of a file, without its metadata.

    Raises UserError for a type that is not known.
    """
    try:
        return pa.schema([_field("key_group", pa.int32()), *_key_fields(meta), *_row_fields(meta)])
    except ValueError as error:
        raise UserError(
            f"state has a type that this moorage does not know: uid={meta.uid} "
            f"state={meta.state} problem={error}; use the version that wrote it"
        ) from error


def with_meta(meta: FileMeta) -> pa.Schema:
    """The columns of a file and its metadata, as it is written."""
    said = msgspec.to_builtins(meta)
    # They tell whoever writes the file how to make its rows; a reader has no use for them.
    del said["earlier"], said["now_ms"], said["leaves_out_expired"]
    said = {name: value for name, value in said.items() if name not in _RARE or _says(value)}
    document = msgspec.json.encode(said)
    schema: pa.Schema = schema_of(meta).with_metadata({_KEY: document})
    return schema


def read_meta(schema: pa.Schema, path: str) -> FileMeta:
    """What the file says of itself, checked against the columns that it has.

    Raises CorruptState where it is no canonical file, or has other columns than it says; UserError
    where a newer Moorage wrote it.
    """
    raw = (schema.metadata or {}).get(_KEY)
    if raw is None:
        raise CorruptState("not a file of a canonical savepoint", path, _ADVICE)
    try:
        version = msgspec.json.decode(raw, type=_Head).format
        require_known_format("canonical file", version, CANONICAL_FORMAT, path)
        meta = decode_document(raw, FileMeta, "canonical file", path)
    except UNREADABLE as error:
        raise CorruptState(f"metadata cannot be read ({error})", path, _ADVICE) from error
    if not schema_of(meta).equals(schema):
        raise CorruptState(
            f"columns are not those of the state that the file names: state={meta.state} "
            f"columns={schema.names}",
            path,
            _ADVICE,
        )
    return meta


def _says(value: Any) -> bool:
    return value not in (None, (), [])


class _Head(msgspec.Struct):
    """The part of the document that all formats have."""

    format: int


def _field(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


def _key_fields(meta: FileMeta) -> list[pa.Field]:
    names = key_columns(len(meta.key_types))
    types = [arrow_type(parse_type(ddl)) for ddl in meta.key_types]
    return [_field(name, kind) for name, kind in zip(names, types, strict=True)]


def _row_fields(meta: FileMeta) -> list[pa.Field]:
    table = {
        "kind": pa.string(),
        "time": pa.int64(),
        "list_epoch": pa.int64(),
        "list_ordinal": pa.int64(),
        "piece": pa.int64(),
        LAST_ACCESS: pa.int64(),
        "value": arrow_type(parse_type(meta.type)),
    }
    if meta.key_type is not None:
        table["map_key"] = arrow_type(parse_type(meta.key_type))
    for name, ddl in zip(namespace_columns(meta), meta.namespace_types, strict=True):
        table[name] = arrow_type(parse_type(ddl))
    return [_field(name, table[name]) for name in row_columns(meta)]
