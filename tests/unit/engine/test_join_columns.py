"""Joins by columns: the same as a function one row at a time, of any type and in any portions."""

from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from moorage_testing.two_inputs import through_failures

from moorage import FileSink, JoinFunction, ProcessJoinFunction, Tumbling
from moorage.api import join_columns
from moorage.api.declarations import columns_of
from moorage.engine import chunk_lists, chunk_maps
from moorage.testing import KeyedHarness, SecondStream, run_job
from moorage_state.errors import UserError

JOINS: dict[str, Any] = {
    "window": lambda one, other: one.join(other).window(Tumbling("10ms")),
    "interval": lambda one, other: one.interval_join(other).between("0ms", "2ms"),
    "temporal": lambda one, other: one.temporal_join(other, outer=True),
    "latest": lambda one, other: one.temporal_join(other, time="processing", outer=True),
}
EVERY = (
    "k long, b boolean, f float, d double, day date, moment timestamp, s string, raw binary, "
    "price decimal(9,2), tags array<string>, of map<string,long>, inner struct<x:long,y:string>"
)
FULL = (
    *(True, 1.5, 2.25, date(2026, 1, 2), datetime(2026, 1, 2, 3, 4, 5, 6, UTC), "ä", b"\0\xff"),
    *(Decimal("3.50"), ["x", None], {"a": 1}, (4, "z")),
)


class Both(JoinFunction, ProcessJoinFunction):
    """All columns of a pair but keys and times."""

    def join(self, left, right, _):
        yield (*left[1:-1], *(right[1:-1] if right else [None] * (len(left) - 2)))

    process_element = join


@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize("ddl", [EVERY, "k long, b boolean, inner struct<x:long,y:string>"])
def test_columns_of_every_type_and_nulls_come_out_as_they_do_of_a_function(ddl, join):
    values = FULL if ddl == EVERY else (False, (4, None))
    nulls = [None] * len(values)
    # In two epochs, and two rows of one time: some of them wait, and are written anew with others.
    epochs: list[Any] = [
        {"left": [(1, *values, 5), (1, *nulls, 6)], "right": [(1, *values, 7)]},
        {"left": [(1, *values, 8)], "right": [(1, *nulls, 7), (2, *values, 8)]},
        {"left": [(2, *values, 9)], "right": [(1, *values, 9)]},
    ]
    declared: Any = columns_of(ddl)
    names = [name for name in declared.names if name != "k"]
    named = {f"{side}_{name}": f"{side}.{name}" for side in ("left", "right") for name in names}

    def build(env):
        one, other = (
            env.read_stream(uid, "json", schema=f"{ddl}, at long")
            .with_event_time("at", "4ms")
            .key_by("k")
            for uid in ("left", "right")
        )
        joined = JOINS[join](one, other)
        joined.select(uid="c", **named).sink_to(FileSink("columns"), uid="columns")
        kinds = {f.name: f.dataType.simpleString() for f in declared.fields}
        output = ", ".join(f"{side} {kinds[of.partition('.')[2]]}" for side, of in named.items())
        apply = joined.process if join == "interval" else joined.apply
        apply(Both(), uid="r", output=output).sink_to(FileSink("rows"), uid="rows")

    found = run_job(build, epochs)
    assert len(found["columns"]) > 3
    assert sorted(map(repr, found["columns"])) == sorted(map(repr, found["rows"]))


ROWS = "key string, n long, at long"


@pytest.mark.parametrize("join", JOINS)
def test_very_many_rows_are_gone_through_some_at_a_time(monkeypatch, join):
    def build(env):
        one, other = (
            env.read_stream(uid, "json", schema=ROWS).with_event_time("at", "5ms").key_by("key")
            for uid in ("one", "two")
        )
        pairs = JOINS[join](one, other).select(uid="j", n="left.n", m="right.n")
        pairs.sink_to(FileSink("out"), uid="out")

    chance = Random(4)
    epochs: list[Any] = [
        {
            uid: [
                (chance.choice("abcdefgh"), n, 4 * epoch + chance.randrange(8)) for n in range(40)
            ]
            for uid in ("one", "two")
        }
        for epoch in range(5)
    ]
    whole = run_job(build, epochs)["out"]
    for module, name, few in (
        (join_columns, "_MADE", 7),
        (join_columns, "MOST_ROWS", 5),
        (join_columns, "_FIRST_KEYS", 1),
        (chunk_lists, "_SCAN_ENTRIES", 2),
        (chunk_maps, "_SCAN_ENTRIES", 2),
    ):
        monkeypatch.setattr(module, name, few)
    found = through_failures(build, epochs, chance)["out"]
    assert sorted(found, key=repr) == sorted(map(tuple, whole), key=repr)
    assert len(whole) > 100


def test_the_time_of_a_pair_that_no_timestamp_can_tell_is_refused_with_what_to_do():
    def joined(left, right):
        return left.interval_join(right).between("-1h", "1h").select(uid="j", at="pair.time")

    second = SecondStream(ROWS, "key", "at")
    far = 1 << 60
    with (
        KeyedHarness(joined, ROWS, "key", event_time="at", second=second) as join,
        pytest.raises(UserError, match=f"too far away to be a timestamp: milliseconds={far}"),
    ):
        join.process(("a", 1, far), second=[("a", 2, far)])
