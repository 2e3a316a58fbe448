"""`state get` of a state with namespaces: what the key has in each of them."""

from typing import Any

import pytest

from moorage.offline.state_queries import _value
from moorage_state.canonical import FileMeta


def meta(**changes: Any) -> FileMeta:
    facts: dict[str, Any] = {
        "uid": "u",
        "state": "s",
        "kind": "reducing",
        "type": "bigint",
        "key_types": ("string",),
        "max_parallelism": 16,
        "start": 0,
        "end": 15,
        "epoch": 1,
        "namespace_types": ("string", "int"),
    }
    return FileMeta(**(facts | changes))


def row(name: str, number: int, value: int, **more: Any) -> dict[str, Any]:
    return {"namespace_1": name, "namespace_2": number, "value": value, **more}


@pytest.mark.parametrize(
    ("kind", "first"), [("reducing", 1), ("list", [1, 2]), ("value", 1), ("aggregating", 1)]
)
def test_a_value_is_shown_by_namespace(kind: str, first: Any) -> None:
    rows = [row("a", 1, 1), row("a", 1, 2), row("b", 1, 3)]
    rows = rows if kind == "list" else [rows[0], rows[2]]
    shown = _value(meta(kind=kind), rows)
    last = [3] if kind == "list" else 3
    assert shown == [
        {"namespace": ["a", 1], "value": first},
        {"namespace": ["b", 1], "value": last},
    ]


def test_a_state_without_namespaces_is_shown_as_it_is() -> None:
    assert _value(meta(namespace_types=()), [{"value": 7}]) == 7


def test_map_entries_are_shown_by_namespace() -> None:
    shown = _value(meta(kind="map", key_type="string"), [row("a", 1, 5, map_key="x")])
    assert shown == [{"namespace": ["a", 1], "value": [{"key": "x", "value": 5}]}]
