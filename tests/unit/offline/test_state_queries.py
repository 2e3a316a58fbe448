from pathlib import Path

import pytest

from moorage.offline.lookup import find
from moorage.offline.state_queries import count, get, list_states
from moorage.state import OperatorTables, write_savepoint
from moorage.state.snapshot_path import Found
from moorage_state.errors import UserError


@pytest.fixture(params=["native", "canonical"])
def snapshot(request: pytest.FixtureRequest, directory: Path, tmp_path: Path) -> Found:
    if request.param == "native":
        return find(str(directory))
    path = tmp_path / "canonical"
    write_savepoint(path, {"visits": OperatorTables()}, base=directory)
    return find(str(path))


def test_states_are_listed_with_their_types(snapshot):
    rows = list_states(snapshot)
    assert [(r.state, r.kind, r.map_key_type) for r in rows] == [
        ("visit", "value", None),
        ("pages", "list", None),
        ("by_day", "map", "date"),
        ("_timers", "timers", None),
    ]
    assert {r.operator_bytes for r in rows} == {
        sum(f.size for f in snapshot.snapshot.manifest.files)
    }
    if rows[0].format == "canonical":
        assert sum(r.bytes or 0 for r in rows) == rows[0].operator_bytes
    else:
        assert {r.bytes for r in rows} == {None}


def test_a_value_is_found_by_its_key(snapshot):
    found = get(snapshot, "visits/visit", "user-3")
    assert found.value == {"n": 3, "at": "2026-01-02T03:04:05Z", "note": "again"}
    assert found.key == ["user-3"]


def test_lists_maps_and_timers_come_whole_and_in_order(snapshot):
    assert get(snapshot, "visits/pages", "user-3").value == ["page-0", "page-1", "page-2"] * 2
    assert get(snapshot, "visits/by_day", "user-3").value == [
        {"key": "1969-12-31", "value": "NaN"},
        {"key": "2026-01-04", "value": 3.5},
    ]
    assert get(snapshot, "visits/_timers", "user-4").value == [4000]


def test_one_entry_of_a_map_can_be_asked_for(snapshot):
    found = get(snapshot, "visits/by_day", "user-3", "2026-01-04")
    assert found.value == [{"key": "2026-01-04", "value": 3.5}]
    assert not get(snapshot, "visits/by_day", "user-3", "2000-01-01").found


def test_a_key_that_has_nothing_is_no_error(snapshot):
    found = get(snapshot, "visits/visit", "nobody")
    assert (found.found, found.value) == (False, None)
    assert get(snapshot, "visits/pages", "user-4").value == []


@pytest.mark.parametrize(
    ("name", "map_key", "message"),
    [
        ("visits", None, "name one state of the operator.*visits/visit, visits/pages"),
        ("visits/", None, "no such state.*there are: visits/visit"),
        ("visits/seen", None, "no such state.*there are: visits/visit"),
        ("clicks/visit", None, "no such operator.*there are: visits"),
        ("visits/pages", "x", "state is no map.*leave --map-key out"),
        ("visits/by_day", "x", "map key is not of its type.*2026-01-31"),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(snapshot, name, map_key, message):
    with pytest.raises(UserError, match=message):
        get(snapshot, name, "user-3", map_key)


def test_keys_and_rows_are_counted_exactly(snapshot):
    users = [*range(40), 100]
    expected = {
        "visit": (41, 41),
        "pages": (30, sum(n % 4 for n in [*users, 1, 3])),
        "by_day": (14, 28),
        "_timers": (21, 21),
    }
    assert {c.state: (c.keys, c.rows) for c in count(snapshot, "visits")} == expected


def test_key_groups_add_up(snapshot):
    (one,) = count(snapshot, "visits/pages", by_group=True)
    assert one.groups is not None
    assert sum(g.keys for g in one.groups) == one.keys
    assert sum(g.rows for g in one.groups) == one.rows
    assert [g.key_group for g in one.groups] == sorted({g.key_group for g in one.groups})
    found = get(snapshot, "visits/pages", "user-3")
    assert found.key_group in {g.key_group for g in one.groups}
