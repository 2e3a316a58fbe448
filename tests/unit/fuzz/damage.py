"""Ways in which bytes go wrong, as hypothesis draws them: on disks, on wires, by a hostile hand."""

import copy
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
from hypothesis import strategies as st

__all__ = ["as_json", "as_msgpack", "damaged", "rewritten"]

Edit = Callable[[bytes], bytes]

_EDGES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, (1 << 31) - 1, (1 << 32) - 1, (1 << 64) - 1)
_DEPTH = 20_000
_ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1 << 63,
    -(1 << 70),
    1e308,
    float("inf"),
    float("nan"),
    "",
    "\ud800",
    "\0",
    "../../etc",
    "x" * 70_000,
    [],
    {},
    [[]],
    {"": None},
    {"format": 10**6},
)


def _place(fraction: float, data: bytes) -> int:
    return min(int(fraction * len(data)), max(len(data) - 1, 0))


def _flipped(data: bytes, at: float, bit: int) -> bytes:
    if not data:
        return data
    place = _place(at, data)
    return data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


def _cut(data: bytes, at: float) -> bytes:
    return data[: _place(at, data)]


def _without(data: bytes, at: float, size: int) -> bytes:
    place = _place(at, data)
    return data[:place] + data[place + size :]


def _with(data: bytes, at: float, more: bytes) -> bytes:
    place = _place(at, data)
    return data[:place] + more + data[place:]


def _over(data: bytes, at: float, number: int, width: int) -> bytes:
    place = _place(at, data)
    put = (number % (1 << 8 * width)).to_bytes(width, "big")
    return data[:place] + put + data[place + width :]


def _twice(data: bytes, at: float, size: int) -> bytes:
    place = _place(at, data)
    return data[: place + size] + data[place:]


_AT = st.floats(0, 1)
_EDIT: st.SearchStrategy[Edit] = st.one_of(
    st.builds(lambda at, bit: lambda data: _flipped(data, at, bit), _AT, st.integers(0, 7)),
    st.builds(lambda at: lambda data: _cut(data, at), _AT),
    st.builds(lambda at, size: lambda data: _without(data, at, size), _AT, st.integers(1, 64)),
    st.builds(lambda at, more: lambda data: _with(data, at, more), _AT, st.binary(max_size=64)),
    st.builds(
        lambda at, number, width: lambda data: _over(data, at, number, width),
        _AT,
        st.sampled_from(_EDGES),
        st.sampled_from((1, 2, 4, 8)),
    ),
    st.builds(lambda at, size: lambda data: _twice(data, at, size), _AT, st.integers(1, 256)),
)


@st.composite
def damaged(draw: st.DrawFn, seeds: tuple[bytes, ...]) -> bytes:
    """One of the seeds with a few edits, or bytes that were never anything."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=512))
    data = draw(st.sampled_from(seeds))
    for edit in draw(st.lists(_EDIT, min_size=1, max_size=4)):
        data = edit(data)
    return data


@st.composite
def rewritten(draw: st.DrawFn, documents: tuple[Any, ...]) -> Any:
    """A document with something else in the place of one of its values, or without it."""
    document = copy.deepcopy(draw(st.sampled_from(documents)))
    odd = draw(st.one_of(st.sampled_from(_ODD), st.just(DEEP), _PLAIN))
    path = draw(st.sampled_from(list(_places(document, ()))))
    if not path:
        return odd
    parent = document
    for name in path[:-1]:
        parent = parent[name]
    if draw(st.integers(0, 4)) == 0:
        del parent[path[-1]]
    else:
        parent[path[-1]] = odd
    return document


DEEP = "\x01deep\x01"
"""Stands for arrays in arrays, more of them than a parser may follow."""

_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=5,
)


def _places(node: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    yield path
    children: Iterable[tuple[Any, Any]] = ()
    if isinstance(node, dict):
        children = node.items()
    elif isinstance(node, list):
        children = enumerate(node)
    for name, inner in children:
        yield from _places(inner, (*path, name))


def as_json(document: Any) -> bytes:
    """The document as JSON, of numbers without bound and texts without a meaning, too."""
    text = json.dumps(document, separators=(",", ":"))
    return text.replace(json.dumps(DEEP), "[" * _DEPTH + "]" * _DEPTH).encode()


def as_msgpack(document: Any) -> bytes:
    """The document as msgpack; what that cannot hold is left out."""
    deep = msgspec.msgpack.encode(DEEP)
    return msgspec.msgpack.encode(_fitting(document)).replace(deep, b"\x91" * _DEPTH + b"\x90")


def _fitting(node: Any) -> Any:
    if isinstance(node, dict):
        return {_fitting(name): _fitting(inner) for name, inner in node.items()}
    if isinstance(node, list):
        return [_fitting(inner) for inner in node]
    if isinstance(node, int):
        return max(min(node, (1 << 64) - 1), -(1 << 63))
    return node.encode(errors="replace").decode() if isinstance(node, str) else node
