"""Types of state: Spark's DDL, read without Spark."""

import datetime
import decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from moorage_state.types import parse_type

SCALARS = ["tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary"]
SCALARS += ["boolean", "date", "timestamp", "decimal(10,2)"]
KEYS = [s for s in SCALARS if s not in {"float", "double"}]

types = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: (
        inner.map("array<{}>".format)
        | st.builds("map<{},{}>".format, st.sampled_from(KEYS), inner)
        | st.lists(inner, min_size=1, max_size=4).map(
            lambda ts: "struct<{}>".format(",".join(f"f{i}:{t}" for i, t in enumerate(ts)))
        )
    ),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("long", "bigint"),
        ("LONG", "bigint"),
        (" integer ", "int"),
        ("short", "smallint"),
        ("byte", "tinyint"),
        ("real", "float"),
        ("bool", "boolean"),
        ("decimal", "decimal(10,0)"),
        ("decimal(5)", "decimal(5,0)"),
        ("decimal( 38 , 38 )", "decimal(38,38)"),
        ("array < long >", "array<bigint>"),
        ("map<string,array<long>>", "map<string,array<bigint>>"),
        ("a long, b string", "struct<a:bigint,b:string>"),
        ("a: long, b: string", "struct<a:bigint,b:string>"),
        ("struct<a long,b:string>", "struct<a:bigint,b:string>"),
        ("\n  departures int,\n  last string\n", "struct<departures:int,last:string>"),
        ("array array<long>", "struct<array:array<bigint>>"),
        ("struct<Case:long>", "struct<Case:bigint>"),
    ],
)
def test_equal_types_have_one_canonical_spelling(written, canonical):
    assert parse_type(written).ddl == canonical
    assert parse_type(canonical).ddl == canonical


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("", "a Spark DDL string such as 'long'"),
        ("  ", "a Spark DDL string"),
        (
            "lng",
            r"unknown type 'lng'; did you mean long\? known types: tinyint, .*struct<name:t,...>",
        ),
        ("array", "ended where '<' was expected"),
        ("array<long", "ended where '>' was expected"),
        ("array<long>>", "did not expect '>'"),
        ("array<>", "unknown type '>'"),
        ("map<long>", "expected ',', not '>'"),
        ("map<double,long>", "a map key cannot be double"),
        ("map<array<long>,long>", "a map key cannot be array<bigint>"),
        ("struct<>", "expected a field name, not '>'"),
        ("struct<1:long>", "expected a field name, not '1'"),
        ("struct<a:long,a:string>", "two fields of one name"),
        ("a long, a long", "two fields of one name"),
        ("a long,", "ended where a field name was expected"),
        ("a long b", "did not expect 'b'"),
        ("decimal(39,0)", "1 to 38 digits"),
        ("decimal(0)", "1 to 38 digits"),
        ("decimal(2,3)", "no more behind the point"),
        ("decimal(x)", "expected a number, not 'x'"),
        ("decimal(2", "ended where '\\)' was expected"),
        ("decimal(\u0663)", "unexpected character"),
        ("`a long", "unexpected character '`'"),
        ("`` long", "unexpected character '`'"),
        ("a `long`", "unknown type '`long`'"),
        ("long!", "unexpected character '!'"),
        ("array<" * 40 + "long" + ">" * 40, "nested more than 32 deep"),
    ],
)
def test_what_is_no_type_is_refused_with_the_place_and_the_text(written, words):
    with pytest.raises(ValueError, match=words) as caught:
        parse_type(written)
    assert repr(written) in str(caught.value)


@pytest.mark.parametrize("given_", [None, 5, int, ["long"], {"a": "long"}])
def test_what_is_no_text_is_refused_by_name(given_):
    with pytest.raises(ValueError, match="a Spark DDL string such as 'long': type="):
        parse_type(given_)


def test_a_name_that_is_no_plain_word_is_spelled_in_backticks():
    spelled = "struct<`user-id`:bigint,größe:struct<`event type`:string,plain:int>>"
    spelled = spelled.replace("größe", "`größe`")
    for written in (spelled, "`user-id` long, `größe` struct<`event type` string, `plain` int>"):
        parsed = parse_type(written)
        assert (parsed.ddl, parsed.fields) == (spelled, ("user-id", "größe"))


@given(types)
def test_a_canonical_spelling_reads_back_as_itself(ddl):
    assert parse_type(ddl).ddl == ddl


@given(st.text(alphabet="ab1<>,:() \tlongarymstucdei_`", max_size=40))
@example("array<" * 5000)
@example("struct<a:" * 5000)
@example("map<int," * 5000)
@example("<")
@example("struct<<:long>")
def test_any_text_is_a_type_or_a_value_error(text):
    read_or_refuse(text)


def read_or_refuse(text):
    try:
        parsed = parse_type(text)
    except ValueError:
        return
    assert parse_type(parsed.ddl).ddl == parsed.ddl


@given(types, st.integers(0, 60), st.sampled_from(list("<>,:() x7")))
def test_a_damaged_type_is_still_a_type_or_a_value_error(ddl, at, character):
    read_or_refuse(ddl[:at] + character + ddl[at + 1 :])


def test_a_struct_is_a_named_tuple_with_fields_that_may_be_null():
    record = parse_type("n long, name string").python
    assert record(1, None)._asdict() == {"n": 1, "name": None}


def test_fields_that_python_cannot_name_are_read_by_position():
    parsed = parse_type("struct<from:string,_id:long,count:long>")
    assert parsed.fields == ("from", "_id", "count")
    assert parsed.python._fields == ("_0", "_1", "count")


@pytest.mark.parametrize(
    ("ddl", "python"),
    [
        ("long", int),
        ("double", float),
        ("string", str),
        ("binary", bytes),
        ("boolean", bool),
        ("date", datetime.date),
        ("timestamp", datetime.datetime),
        ("decimal(5,2)", decimal.Decimal),
    ],
)
def test_scalars_stand_for_python_types(ddl, python):
    assert parse_type(ddl).python is python


def test_keys_are_scalars_with_one_canonical_form():
    assert [s for s in SCALARS if parse_type(s).is_key] == KEYS
    assert not parse_type("array<long>").is_key
    assert not parse_type("a long").is_key
