"""What is asked of one queryable state, and how it is written: as JSON, or in a query string.

Called by whoever takes look-ups in (the driver's endpoint, its control socket) and by the client,
which writes them. Imports neither Spark nor what reads state.
"""

import decimal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from moorage_state.errors import UserError
from moorage_state.formats import UNREADABLE

MOST_KEYS = 1_000
"""Keys of one look-up."""

MOST_BYTES = 256 << 10
"""Of one look-up as JSON."""

MOST_ENTRIES = 10_000
USUAL_ENTRIES = 1_000
"""List elements, map entries and namespaces of one key in one answer."""


class BadLookup(UserError):
    """The question is not written as it must be."""

    code = "bad_request"


@dataclass(frozen=True, slots=True)
class LookupRequest:
    """What is asked of one queryable state.

    Attributes:
        keys: of the operator's key types: out of JSON, or text as a person types it.
        typed: whether keys, map key and namespace are such text.
        map_key: only this entry of a map.
        map_key_prefix: only entries of a map whose keys begin so.
        namespace: only this one, of a state that has several for a key.
        after: the `next` of an answer that was not complete; with one key.
        limit: elements or entries of each key.
    """

    name: str
    keys: Sequence[Any]
    typed: bool = False
    map_key: Any = None
    map_key_prefix: str | None = None
    namespace: Any = None
    after: str | None = None
    limit: int = USUAL_ENTRIES

    def __post_init__(self) -> None:
        if not 0 < len(self.keys) <= MOST_KEYS:
            raise BadLookup(
                f"a look-up is of 1 to {MOST_KEYS} keys: keys={len(self.keys)}; ask several times"
            )
        if not 0 < self.limit <= MOST_ENTRIES:
            raise BadLookup(f"limit is from 1 to {MOST_ENTRIES}: limit={self.limit}")
        if self.map_key is not None and self.map_key_prefix is not None:
            raise BadLookup("one entry of a map is asked for, or those with a prefix: not both")

    def to_json(self) -> bytes:
        """As `from_json` reads it, without the name. Raises BadLookup: it is no text."""
        body = _Body(
            self.keys,
            self.typed,
            self.map_key,
            self.map_key_prefix,
            self.namespace,
            self.after,
            self.limit,
        )
        try:
            return msgspec.json.encode(body)
        except UnicodeEncodeError as error:
            raise BadLookup(
                "a key, map key or namespace holds half a character: write it in UTF-8"
            ) from error


class _Body(msgspec.Struct, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    keys: Sequence[Any]
    typed: bool = False
    map_key: Any = None
    map_key_prefix: str | None = None
    namespace: Any = None
    after: str | None = None
    limit: int = USUAL_ENTRIES


# What has a point is a decimal, whose digits all count.
_decode = msgspec.json.Decoder(_Body, float_hook=decimal.Decimal).decode


def from_json(name: str, data: bytes) -> LookupRequest:
    """The look-up that a body asks for. Raises BadLookup: naming the field."""
    try:
        body = _decode(data)
    # Text that is no UTF-8, and arrays in arrays without end, have errors of their own.
    except UNREADABLE as error:
        raise BadLookup(f"the body is not as it must be: {error}") from error
    return LookupRequest(name, *(getattr(body, field) for field in body.__struct_fields__))


_WORDS = {
    "mapKey": "map_key",
    "mapKeyPrefix": "map_key_prefix",
    "namespace": "namespace",
    "after": "after",
    "limit": "limit",
}


def from_query(name: str, pairs: Iterable[tuple[str, str]]) -> LookupRequest:
    """The look-up that a query string asks for, of text as a person types it. Raises BadLookup."""
    keys: list[str] = []
    others: dict[str, Any] = {}
    for word, text in pairs:
        if word == "key":
            keys.append(text)
        elif (field := _WORDS.get(word)) is None or field in others:
            raise BadLookup(
                f"a word of the query is not known, or there twice: word={word:.40}; there are: "
                f"key (several), {', '.join(_WORDS)}"
            )
        else:
            others[field] = text
    try:
        limit = int(others.pop("limit", USUAL_ENTRIES))
    except ValueError as error:
        raise BadLookup("limit is no number") from error
    return LookupRequest(name, keys, True, limit=limit, **others)
