"""One queryable state: from keys that people or programs give to stored keys, and back to values.

Decides which stored keys a look-up reads, and what it shows of them: values as `moorage state get`
shows them, without what has expired. Called by `lookups`; reads nothing itself.
"""

import base64
import binascii
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import msgspec

from moorage.driver.lookup_requests import LookupRequest
from moorage.offline.value_text import (
    json_value,
    parse_key,
    parse_value,
    typed_key_reader,
    typed_value,
)
from moorage_state.canonical.hashing import key_groups
from moorage_state.errors import UserError
from moorage_state.evolution import reader_of
from moorage_state.keyed.expiry import has_expired, split_stamp
from moorage_state.keyed.namespaces import namespace_codec, prefixed_with_length, split_namespace
from moorage_state.keylayout import key_prefix, state_id
from moorage_state.keys import KeyCodec
from moorage_state.types import StateType, parse_type

if TYPE_CHECKING:
    from moorage.engine.kv_states import KvStateLocation

_AS_JSON_HAS_THEM = frozenset({"string", "boolean"})
_ROWS = 256


class Result(msgspec.Struct, gc=False, rename="camel"):
    """What is shown of one key."""

    key: Sequence[Any]
    key_group: int
    found: bool | None
    value: Any
    epoch: int | None
    next: str | None


@dataclass(slots=True)
class Wanted:
    """The keys of a look-up and what was found of them, each by its place in the question.

    Attributes:
        keys: as they are shown.
        under: what is read of each: one stored key, or all that begin so.
        part: how it ends, behind the key and the state.
        after: the stored key after which reading goes on, of the only key; empty for the first.
        shown: None while nothing is known.
    """

    keys: list[tuple[Any, ...]]
    groups: list[int]
    under: list[bytes]
    part: bytes
    after: bytes
    shown: list[Result | None]


class StoredState:
    """How one queryable state is stored. Safe to use from several threads."""

    def __init__(self, location: "KvStateLocation", max_parallelism: int, key_hash: str) -> None:
        self.location = location
        self.max_parallelism = max_parallelism
        self._key_hash = key_hash
        schema = location.schema
        self._id = state_id(schema.name)
        kinds = [parse_type(ddl) for ddl in location.key_types]
        self._show_key = [_shower(kind) for kind in kinds]
        self._shows_key_as_it_is = all(map(_is_plain, kinds))
        self._encode_key = KeyCodec(location.key_types).encode
        self._groups = key_groups(location.key_types, max_parallelism, key_hash)
        self._kind = parse_type(schema.type)
        # Somebody else's pickled objects are never loaded here: they are shown as their bytes.
        self._decode = reader_of(schema.type, schema.earlier, opaque=True)
        self._show = _shower(self._kind)
        self._map_kind = parse_type(schema.key_type) if schema.key_type else None
        self._map_codec = KeyCodec([schema.key_type]) if schema.key_type else None
        self._space_kinds = [parse_type(ddl) for ddl in schema.namespace_types]
        self._spaces = namespace_codec(schema.namespace_types) if schema.namespace_types else None

    def wanted(self, request: LookupRequest) -> Wanted:
        """The keys that are asked for, and where what is wanted of them is stored.

        Raises:
            UserError: a key is not of its type, or the state has no such parts.
        """
        types = self.location.key_types
        read = partial(parse_key, types) if request.typed else typed_key_reader(types)
        keys = list(map(read, request.keys))
        groups, raw = self._groups(keys), map(self._encode_key, keys)
        part = self._part(request)
        behind = self._id + part
        under = [key_prefix(group, key) + behind for group, key in zip(groups, raw, strict=True)]
        shown = keys if self._shows_key_as_it_is else list(map(self._shown_key, keys))
        wanted = Wanted(shown, groups, under, part, b"", [None] * len(keys))
        if request.after:
            wanted.after = self._after(request, wanted)
        return wanted

    def is_point(self, request: LookupRequest) -> bool:
        """Whether what is asked for is one stored key for each key."""
        if self._spaces is not None and request.namespace is None:
            return False
        if self.location.schema.kind == "map":
            return request.map_key is not None
        return self.location.schema.kind != "list"

    def show_values(
        self,
        wanted: Wanted,
        places: Iterable[int],
        raw: Iterable[bytes | None],
        epoch: int,
        now_ms: int,
    ) -> None:
        """Take in what one stored key of each has; those that `raw` is too short for stay open."""
        decode, show, forever = self._decode, self._show, self.location.schema.ttl_ms is None
        keys, groups, shown = wanted.keys, wanted.groups, wanted.shown
        for at, stored in zip(places, raw, strict=False):
            alive = stored if forever else self._alive(stored, now_ms)
            value = None
            if alive is not None:
                value = show(decode(alive))
                if self._map_codec is not None:
                    value = [self._entry(self._behind(wanted.part), value)]
            shown[at] = Result(keys[at], groups[at], alive is not None, value, epoch, None)

    def show_entries(
        self,
        wanted: Wanted,
        place: int,
        keys: Sequence[bytes],
        values: Sequence[bytes],
        epoch: int,
        now_ms: int,
        *,
        complete: bool,
        by_namespace: bool,
    ) -> None:
        """Take in what is stored under one key."""
        rows: list[tuple[bytes, Any]] = []
        at = len(wanted.under[place]) - len(wanted.part)
        for key, raw in zip(keys, values, strict=True):
            alive = self._alive(raw, now_ms)
            if alive is None:
                continue
            space, rest = split_namespace(key[at:]) if self._spaces else (b"", key[at:])
            value = self._show(self._decode(alive))
            rows.append((space, self._entry(rest, value) if self._map_codec else value))
        shown: Any = [value for _, value in rows]
        if by_namespace:
            shown = self._by_namespace(rows)
        after = None if complete else base64.urlsafe_b64encode(keys[-1][at:]).decode()
        found, group = bool(rows), wanted.groups[place]
        value = shown if found else None
        wanted.shown[place] = Result(wanted.keys[place], group, found, value, epoch, after)

    def left_out(self, wanted: Wanted, places: Iterable[int]) -> None:
        """There was no room in the answer for these keys."""
        for at in places:
            wanted.shown[at] = Result(wanted.keys[at], wanted.groups[at], None, None, None, "")

    def _shown_key(self, key: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(show(part) for show, part in zip(self._show_key, key, strict=True))

    def _alive(self, raw: bytes | None, now_ms: int) -> bytes | None:
        """The stored value without its stamp; None where there is none or its time is over."""
        ttl_ms = self.location.schema.ttl_ms
        if raw is None or ttl_ms is None:
            return raw
        stamp, value = split_stamp(raw)
        return None if has_expired(stamp, ttl_ms, now_ms) else value

    def _by_namespace(self, rows: Iterable[tuple[bytes, Any]]) -> list[dict[str, Any]]:
        found: dict[bytes, list[Any]] = {}
        for space, value in rows:
            found.setdefault(space, []).append(value)
        several = self.location.schema.kind in {"list", "map"}
        return [
            {"namespace": self._space(space), "value": values if several else values[0]}
            for space, values in found.items()
        ]

    def _space(self, raw: bytes) -> list[Any]:
        parts = self._spaces.decode(raw) if self._spaces is not None else ()
        return [json_value(k, part) for k, part in zip(self._space_kinds, parts, strict=True)]

    def _behind(self, rest: bytes) -> bytes:
        """What stands behind the namespace, if there is one."""
        return split_namespace(rest)[1] if self._spaces is not None else rest

    def _entry(self, rest: bytes, value: Any) -> dict[str, Any]:
        assert self._map_codec is not None  # noqa: S101  for the type checker
        assert self._map_kind is not None  # noqa: S101
        (key,) = self._map_codec.decode(rest)
        return {"key": json_value(self._map_kind, key), "value": value}

    def _part(self, request: LookupRequest) -> bytes:
        """What stands behind the state's id in the stored keys that are wanted."""
        part = self._namespace_part(request)
        if request.map_key is None and request.map_key_prefix is None:
            return part
        name, kind = self.location.name, self._map_kind
        if kind is None or self._map_codec is None:
            raise UserError(
                f"state is no map: queryable={name} kind={self.location.schema.kind}; leave the "
                f"map key out"
            )
        if self._spaces is not None and request.namespace is None:
            raise UserError(f"state has namespaces: queryable={name}; name the namespace, too")
        if request.map_key is not None:
            read = parse_value if request.typed else typed_value
            return part + self._map_codec.encode((read(kind.ddl, request.map_key, "map key"),))
        if kind.name not in {"string", "binary"}:
            raise UserError(
                f"only keys of text or bytes begin with others: queryable={name} "
                f"map_key_type={kind.ddl}; leave the prefix out"
            )
        first = parse_value(kind.ddl, request.map_key_prefix or "", "map key prefix")
        return part + self._map_codec.encode((first,))

    def _namespace_part(self, request: LookupRequest) -> bytes:
        if request.namespace is None:
            return b""
        types = self.location.schema.namespace_types
        if self._spaces is None:
            raise UserError(
                f"state has no namespaces: queryable={self.location.name}; leave it out"
            )
        read = partial(parse_key, types) if request.typed else typed_key_reader(types)
        return prefixed_with_length(self._spaces.encode(read(request.namespace)))

    def _after(self, request: LookupRequest, wanted: Wanted) -> bytes:
        if len(wanted.keys) > 1 or self.is_point(request):
            raise UserError(
                "a look-up goes on after an earlier one with one key, whose list, map or "
                "namespaces are read"
            )
        (under,) = wanted.under
        start = under[: len(under) - len(wanted.part)]
        try:
            after = start + base64.b64decode(request.after or "", b"-_", validate=True)
        except (binascii.Error, ValueError) as error:
            raise _not_a_place(request) from error
        if not after.startswith(under):
            raise _not_a_place(request)
        return after


def _not_a_place(request: LookupRequest) -> UserError:
    return UserError(
        f"not a place to go on after: after={request.after!r:.80}; give the `next` of an answer "
        f"to the same question"
    )


def _shower(kind: StateType) -> Callable[[Any], Any]:
    """`json_value` of one type; shorter for what JSON has as it is, and for structs of such."""
    if _is_plain(kind):
        return lambda value: value
    if kind.name == "struct" and all(map(_is_plain, kind.children)):
        with suppress(ValueError):  # a name that JSON would have to escape
            row = _row(kind.fields)
            return lambda value: row(*value)
    return lambda value: json_value(kind, value)


@lru_cache(_ROWS)
def _row(names: tuple[str, ...]) -> Callable[..., Any]:
    """What JSON encodes as an object with these fields: made in a quarter of a dict's time."""
    fields = [f"f{at}" for at in range(len(names))]
    return msgspec.defstruct("Row", fields, rename=dict(zip(fields, names, strict=True)), gc=False)


def _is_plain(kind: StateType) -> bool:
    return kind.bits is not None or kind.name in _AS_JSON_HAS_THEM
