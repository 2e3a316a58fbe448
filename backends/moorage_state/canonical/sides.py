"""Operator state and raw state as rows: what in a range belongs to no key.

Decides how such states are named and kept apart from keyed ones in canonical files: their rows have
no key columns, and `key_group` is the first one of the subtask that had them (of raw keyed
streams: the one that the stream belongs to). Called where a database is scanned and where rows
become entries again.
"""

from collections.abc import Iterable, Iterator

from moorage_state.canonicalspec import FileMeta
from moorage_state.operator_state.layout import (
    OPERATOR_STATE,
    RAW_KEYED_STATE,
    operator_prefix,
    raw_prefix,
)

__all__ = ["SIDE_ENTRIES", "is_raw", "side_parts", "side_place", "side_prefixes"]

SIDE_ENTRIES = frozenset({OPERATOR_STATE, RAW_KEYED_STATE})
"""The kinds of stored keys that belong to no key."""


def is_raw(meta: FileMeta) -> bool:
    """Whether the state's values are a user's own bytes, which are stored as they are."""
    return meta.kind in {"raw", "raw_keyed"}


_ID_AT = 3
_REST_AT = _ID_AT + 4


def side_place(meta: FileMeta, sid: bytes) -> bytes:
    """What the stored keys of the state have behind their key group, up to their position."""
    kind = RAW_KEYED_STATE if meta.kind == "raw_keyed" else OPERATOR_STATE
    return bytes([kind]) + sid


def side_parts(stored: bytes) -> tuple[bytes, bytes]:
    """What `side_place` gives for the state of a stored key, and the position in it."""
    at = _ID_AT if stored[2] == RAW_KEYED_STATE else _REST_AT
    return stored[2:at], stored[at:]


def side_prefixes(meta: FileMeta, groups: Iterable[int]) -> Iterator[bytes]:
    """What the stored keys of rows with these key groups start with."""
    make = raw_prefix if meta.kind == "raw_keyed" else operator_prefix
    return map(make, groups)
