"""Values of several generations: read as the last type, whatever was rewritten on the way."""

import datetime
import decimal
import types
from datetime import UTC

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_state.codecs import decoder, encoder
from moorage_state.evolution import (
    compare,
    declared_over,
    migration,
    raw_of_latest,
    reader_of,
    writer_of,
)
from moorage_state.evolution.compatibility import SchemaOutcome
from moorage_state.types import parse_type

D = decimal.Decimal


def written(ddl, value, earlier=()):
    return writer_of(ddl, earlier)(value)


def test_a_decimal_within_a_struct_gets_the_digits_of_the_new_type():
    first, last = "struct<d:decimal(5,2),n:int>", "struct<d:decimal(7,4),n:int>"
    raw = writer_of(first)((D("1.25"), 3))
    found = reader_of(last, (first,))(raw)
    assert repr(found) == repr(reader_of(last)(writer_of(last)((D("1.25"), 3))))


@pytest.mark.parametrize(
    ("before", "value", "now", "expected"),
    [
        ("int", 7, "double", 7.0),
        ("smallint", -3, "float", -3.0),
        ("int", 7, "decimal(12,2)", D("7.00")),
        ("decimal(5,2)", D("-1.5"), "decimal(8,4)", D("-1.5000")),
        ("a int", (1,), "a int, b string", (1, None)),
        ("a int", (1,), "b string default 'it''s', a int", ("it's", 1)),
        ("a int, b string", (1, "x"), "b string", ("x",)),
        ("a int, b string", (1, "x"), "b string, a double", ("x", 1.0)),
        ("a int, b int", (None, 2), "b double, a double", (2.0, None)),
        ("s struct<x:int>", ((1,),), "s struct<x:int,y:boolean default true>", ((1, True),)),
        ("s struct<x:int>", (None,), "s struct<x:int,y:boolean default true>", (None,)),
        ("array<int>", [1, None], "array<double>", [1.0, None]),
        ("map<string,int>", {"a": 1, "b": None}, "map<string,double>", {"a": 1.0, "b": None}),
        ("array<struct<a:int>>", [(1,), None], "array<struct<b:int,a:int>>", [(None, 1), None]),
        (
            "a int",
            (1,),
            (
                "a int, d date default '2013-01-01', p decimal(5,2) default -1.5, "
                "t timestamp default '2013-01-01T00:00:00+01:00', f double default 1e3"
            ),
            (
                1,
                datetime.date(2013, 1, 1),
                D("-1.50"),
                datetime.datetime(2012, 12, 31, 23, tzinfo=UTC),
                1000.0,
            ),
        ),
    ],
)
def test_a_value_of_the_type_before_is_read_as_the_type_now(before, value, now, expected):
    assert compare(before, now).outcome is SchemaOutcome.MIGRATION
    found = reader_of(now, (before,))(written(before, value))
    assert found == expected
    assert repr(found) == repr(decoder(now)(encoder(now)(expected)))


def test_a_state_whose_type_never_changed_has_the_plain_codec():
    assert written("long", 7) == encoder("long")(7)
    assert not isinstance(reader_of("long"), types.FunctionType)  # nothing around the decoder


def test_a_value_says_of_which_generation_it_is_in_two_bytes():
    assert written("double", 1.5, ("int",)) == b"\xc1\x01" + encoder("double")(1.5)
    assert written("pickle", [1], ())[:1] == b"\x80"


def test_a_field_that_was_dropped_and_came_back_begins_with_its_default():
    a, b, c = "x int, y int", "x int", "x int, y int default 7"
    old = written(a, (1, 2))
    rewritten = written(b, reader_of(b, (a,))(old), (a,))
    assert reader_of(c, (a, b))(old) == reader_of(c, (a, b))(rewritten) == (1, 7)


def test_three_generations_lie_side_by_side():
    a, b, c = "n int", "n int, by string default 'x'", "n double, by string"
    raws = [written(a, (1,)), written(b, (2, "y"), (a,)), written(c, (3.5, "z"), (a, b))]
    read = reader_of(c, (a, b))
    assert [tuple(read(raw)) for raw in raws] == [(1.0, "x"), (2.0, "y"), (3.5, "z")]


def test_widening_after_a_migration_reads_what_was_written_before_both():
    schema: tuple[str, tuple[str, ...]] = ("struct<a:int>", ())
    for ddl in ("a int, b int default 4", "a long, b long default 4"):
        schema = declared_over("s", *schema, ddl)
    ddl, earlier = schema
    assert earlier == ("struct<a:int>",)
    assert reader_of(ddl, earlier)(written("a int", (1,))) == (1, 4)
    narrow = written("a int, b int", (1, 2), earlier)
    assert reader_of(ddl, earlier)(narrow) == (1, 2)


def test_going_back_to_an_older_checkpoint_begins_from_its_types():
    old = written("a int", (1,))
    ddl, earlier = declared_over("s", "struct<a:int>", (), "a int, c int")
    assert reader_of(ddl, earlier)(old) == (1, None)


def test_a_generation_that_there_is_not_is_not_guessed():
    read = reader_of("double", ("int",))
    with pytest.raises(ValueError, match="generation 2, and there are 2"):
        read(b"\xc1\x02\x01")
    with pytest.raises(ValueError, match="generation 0"):
        read(b"\xc1\x00\x01")
    with pytest.raises(msgspec.DecodeError):
        reader_of("double")(b"\xc1\x01\xcb" + bytes(8))


def test_pickled_objects_stay_bytes_where_they_must_not_be_loaded():
    raw = written("pickle", {"a"})
    assert reader_of("pickle", opaque=True)(raw) == raw
    assert reader_of("pickle")(raw) == {"a"}


@pytest.mark.parametrize("now", ["a int", "b string, a double default 2"])
def test_columns_of_one_type_are_made_of_values_of_all(now):
    before = ("a int, b string",) if now != "a int" else ()
    latest = raw_of_latest(now, before)
    current = written(now, {"a": 5}, before)
    assert latest(current) == encoder(now)({"a": 5})
    if before:
        assert latest(written(before[0], (1, "x"))) == encoder(now)(("x", 1))


INTS = ["tinyint", "smallint", "int", "bigint"]
NUMBERS = [*INTS, "float", "double", "decimal(10,0)", "decimal(22,3)", "decimal(19,0)"]


def values_of(ddl):
    parsed = parse_type(ddl)
    if parsed.bits is not None:
        return st.integers(-(1 << (parsed.bits - 1)), (1 << (parsed.bits - 1)) - 1)
    if parsed.name == "decimal":
        limit = 10 ** parsed.params[0] - 1
        return st.integers(-limit, limit).map(lambda n: D(n).scaleb(-parsed.params[1]))
    return st.floats(allow_nan=False, width=32)


@given(st.data())
def test_numbers_change_their_type_without_losing_anything(data):
    before, now = data.draw(st.sampled_from(NUMBERS)), data.draw(st.sampled_from(NUMBERS))
    if compare(before, now).outcome is SchemaOutcome.INCOMPATIBLE:
        return
    value = data.draw(values_of(before))
    stored = decoder(before)(encoder(before)(value))
    migrated = migration(before, now)(stored)
    assert migrated == stored
    assert repr(migrated) == repr(decoder(now)(encoder(now)(migrated)))


@given(st.lists(st.tuples(st.permutations("abc"), st.integers(1, 3)), min_size=1, max_size=4))
def test_rewriting_on_the_way_never_changes_what_is_read_at_the_end(path):
    """Each step keeps some of the fields, in some order, and adds a default to those that come."""
    first = "a int, b int, c int"
    kept = "abc"
    schema: tuple[str, tuple[str, ...]] = (parse_type(first).ddl, ())
    lazily = written(first, (1, 2, 3))
    eagerly = lazily
    for step, (order, count) in enumerate(path):
        names = [kept[0], *(n for n in order[:count] if n != kept[0])]
        ddl = ", ".join(f"{n} int default {10 * step + 7}" for n in names)
        before = schema
        schema = declared_over("s", *before, ddl)
        eagerly = written(schema[0], reader_of(*schema)(eagerly), schema[1])
        kept = "".join(names)
    assert reader_of(*schema)(lazily) == reader_of(*schema)(eagerly)
