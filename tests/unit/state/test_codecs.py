"""Value codecs: what goes in comes out, and what is not of the type does not go in."""

# ruff: noqa: DTZ001 - times without a zone are under test

import datetime
import decimal
import enum
import math
from datetime import UTC
from typing import NamedTuple

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_state.checks import StateTypeError
from moorage_state.codecs import changes_in_place, checker, decoder, encoder, plain_type, settler
from moorage_state.types import parse_type

D = decimal.Decimal


class Point(NamedTuple):
    x: int
    y: str


class Turned(NamedTuple):
    y: str
    x: int


class Row(tuple):  # noqa: SLOT001 - as Spark's
    """As Spark's: each one says itself what its values are called."""

    __fields__: list[str]

    def __new__(cls, **values):
        made = super().__new__(cls, values.values())
        made.__fields__ = list(values)
        return made


class Colour(enum.StrEnum):
    RED = "red"


def whole(bits):
    return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def decimals(precision, scale):
    limit = 10**precision - 1
    return st.integers(-limit, limit).map(lambda n: D(f"{n}E-{scale}"))


zones = st.integers(-14 * 60, 14 * 60).map(
    lambda m: datetime.timezone(datetime.timedelta(minutes=m))
)
utc_times = st.datetimes(timezones=st.just(UTC))
texts = st.text(st.characters(exclude_categories=["Cs"]))
KEYS = {
    "tinyint": whole(8),
    "smallint": whole(16),
    "int": whole(32),
    "bigint": whole(64),
    "string": texts,
    "binary": st.binary(),
    "boolean": st.booleans(),
    "date": st.dates(),
    "timestamp": utc_times,
    "decimal(38,10)": decimals(28, 0) | decimals(38, 10),
    "decimal(5,5)": decimals(5, 5),
}
SCALARS = KEYS | {
    "double": st.floats(allow_nan=False),
    "float": st.floats(width=32, allow_nan=False),
}


def structs(fields):
    ddl = ",".join(f"f{i}:{ddl}" for i, (ddl, _) in enumerate(fields))
    return f"struct<{ddl}>", st.tuples(*(st.none() | values for _, values in fields))


def maps(key, ddl, values):
    return f"map<{key},{ddl}>", st.dictionaries(KEYS[key], st.none() | values, max_size=4)


kinds = st.recursive(
    st.sampled_from(sorted(SCALARS)).map(lambda ddl: (ddl, SCALARS[ddl])),
    lambda inner: (
        inner.map(lambda t: (f"array<{t[0]}>", st.lists(st.none() | t[1], max_size=4)))
        | st.lists(inner, min_size=1, max_size=4).map(structs)
        | st.builds(lambda key, t: maps(key, *t), st.sampled_from(sorted(KEYS)), inner)
    ),
    max_leaves=6,
)


@given(st.data())
def test_every_value_of_a_type_reads_back_equal(data):
    ddl, values = data.draw(kinds)
    value = data.draw(values)
    assert decoder(ddl)(encoder(ddl)(value)) == value


@given(st.data())
def test_what_was_read_can_be_written_and_gives_the_same_bytes(data):
    ddl, values = data.draw(kinds)
    raw = encoder(ddl)(data.draw(values))
    assert encoder(ddl)(decoder(ddl)(raw)) == raw


@given(
    st.datetimes(min_value=datetime.datetime(2, 1, 1), max_value=datetime.datetime(9998, 1, 1)),
    zones,
)
def test_a_timestamp_of_any_zone_reads_back_in_utc(naive, zone):
    value = naive.replace(tzinfo=zone)
    found = decoder("timestamp")(encoder("timestamp")(value))
    assert found == value
    assert found.tzinfo is UTC


def test_bytes_do_not_depend_on_how_a_struct_is_given():
    encode = encoder("x long, y string")
    forms = [(1, "a"), [1, "a"], {"y": "a", "x": 1}, Point(1, "a"), (np.int64(1), np.str_("a"))]
    assert {encode(form) for form in forms} == {b"\x92\x01\xa1a"}


@pytest.mark.parametrize("ddl", ["x long, y string", "x long, y string, z array<int>"])
@pytest.mark.parametrize(
    "value", [Turned("a", 1), Row(y="a", x=1), Row(x=1, y="a"), {"y": "a", "x": 1}]
)
def test_what_has_names_for_its_values_is_stored_by_them(ddl, value):
    for _ in range(2):
        assert decoder(ddl)(encoder(ddl)(value))[:2] == (1, "a")
        assert settler(ddl)(value)[:2] == (1, "a")
    nested = f"array<struct<{ddl.replace(' ', ':').replace(',:', ',')}>>"
    assert decoder(nested)(encoder(nested)([value]))[0][:2] == (1, "a")


@pytest.mark.parametrize(
    "value",
    [Point(1, "a"), Turned("a", 1), Row(x=1, y="a"), decoder("x long, y string")(b"\x92\x01\xa1a")],
)
def test_a_tuple_whose_names_the_struct_does_not_have_is_refused(value):
    for ddl in ("n long, y string", "x long, name string"):
        for refuse in (encoder(ddl, "s"), settler(ddl, "s"), checker(ddl, "s")):
            with pytest.raises(
                StateTypeError, match=r"no field \['[xy]'\]; name its values as the"
            ):
                refuse(value)


def test_a_tuple_without_a_name_for_each_value_is_refused_or_taken_by_position():
    twice = Row(x=1, y="a")
    twice.__fields__ = ["x", "x"]
    with pytest.raises(StateTypeError, match="not one name for each value"):
        encoder("x long, y string")(twice)
    assert encoder("x long, y string")((1, "a")) == encoder("x long, y string")(Point(1, "a"))


def test_structs_of_the_same_fields_have_one_named_tuple_however_they_are_declared():
    one = parse_type("x long, y string default 'a'").python
    assert one is parse_type("struct<x:bigint,y:string>").python
    assert one is parse_type("array<struct<x:int,y:string>>").children[0].python
    assert one is not parse_type("y string, x long").python


@pytest.mark.parametrize(
    ("ddl", "expected"),
    [
        ("array<int>", True),
        ("map<string,int>", True),
        ("pickle", True),
        ("a int, b struct<c:array<int>>", True),
        ("a int, b struct<c:binary>", False),
        ("timestamp", False),
    ],
)
def test_what_can_be_changed_in_place_is_known_by_its_type(ddl, expected):
    assert changes_in_place(ddl) is expected


def test_a_struct_reads_back_as_a_named_tuple():
    found = decoder("x long, y struct<z:double>")(
        encoder("x long, y struct<z:double>")({"y": (1,)})
    )
    assert found.x is None
    assert found.y.z == 1.0
    assert isinstance(found.y.z, float)


def test_a_decimal_has_one_form_whatever_its_trailing_zeros_and_the_threads_context():
    encode = encoder("decimal(38,10)")
    wide = D("1234567890123456789012345678.9")
    with decimal.localcontext(decimal.Context(prec=3, rounding=decimal.ROUND_UP, capitals=0)):
        assert encode(D("1.50")) == encode(D("1.5"))
        assert encode(D("-0")) == encode(D("0.000"))
        assert decoder("decimal(38,10)")(encode(wide)) == wide


def test_nan_and_infinity_are_doubles():
    encode, decode = encoder("double"), decoder("double")
    assert math.isnan(decode(encode(math.nan)))
    assert decode(encode(-math.inf)) == -math.inf


@pytest.mark.parametrize(
    ("ddl", "value", "python"),
    [
        ("long", np.int64(3), 3),
        ("tinyint", np.uint8(3), 3),
        ("double", np.float32(0.5), 0.5),
        ("double", 3, 3.0),
        ("double", np.int8(3), 3.0),
        ("boolean", np.bool_(True), True),
        ("string", np.str_("x"), "x"),
        ("array<long>", [np.int64(1), None], [1, None]),
        ("array<long>", (1, 2), [1, 2]),
        ("map<long,boolean>", {np.int64(1): np.bool_(False)}, {1: False}),
        (
            "timestamp",
            pd.Timestamp("2013-01-01 05:00", tz="UTC"),
            datetime.datetime(2013, 1, 1, 5, tzinfo=UTC),
        ),
    ],
)
def test_what_numpy_and_pandas_give_counts_as_the_python_value_in_it(ddl, value, python):
    found = decoder(ddl)(encoder(ddl)(value))
    assert found == python
    assert type(found) is type(python)


@pytest.mark.parametrize(
    ("ddl", "value", "words"),
    [
        ("long", "1", "bigint cannot hold '1' of Python type str"),
        ("long", 1.0, "bigint cannot hold 1.0 of Python type float"),
        ("long", np.float64(1), "bigint cannot hold 1.0 of Python type float"),
        ("long", True, "bigint cannot hold True of Python type bool"),
        ("long", None, "bigint cannot hold None of Python type NoneType"),
        ("long", 1 << 63, "outside -9223372036854775808 to 9223372036854775807"),
        ("int", 1 << 31, "outside -2147483648 to 2147483647"),
        ("tinyint", -129, "outside -128 to 127"),
        ("long", np.array([1, 2]), "of Python type ndarray"),
        ("double", "1.5", "double cannot hold '1.5' of Python type str"),
        ("double", True, "of Python type bool"),
        ("double", D(1), "of Python type Decimal"),
        ("double", 10**400, "too large"),
        ("string", b"x", "string cannot hold b'x' of Python type bytes"),
        ("string", 5, "of Python type int"),
        ("string", Colour.RED, "of Python type Colour"),
        ("string", "\ud800", "surrogates not allowed"),
        ("array<string>", ["\ud800"], "surrogates not allowed"),
        ("binary", "x", "binary cannot hold 'x' of Python type str"),
        ("binary", bytearray(b"x"), "of Python type bytearray"),
        ("boolean", 1, "boolean cannot hold 1 of Python type int"),
        ("date", datetime.datetime(2020, 1, 1), "of Python type datetime"),
        ("date", "2020-01-01", "of Python type str"),
        ("timestamp", datetime.datetime(2020, 1, 1), "give it a time zone"),
        ("timestamp", datetime.date(2020, 1, 1), "of Python type date"),
        ("timestamp", 0, "of Python type int"),
        ("timestamp", pd.NaT, "cannot hold NaT"),
        (
            "timestamp",
            datetime.datetime.max.replace(tzinfo=datetime.timezone(-datetime.timedelta(hours=1))),
            "outside the years 1 to 9999",
        ),
        ("decimal(5,2)", 1, "of Python type int"),
        ("decimal(5,2)", D("1.005"), "digits would be lost; round it first"),
        ("decimal(5,2)", D(1000), "digits would be lost"),
        ("decimal(5,2)", D("NaN"), "cannot hold Decimal\\('NaN'\\)"),
        ("decimal(5,2)", D("Infinity"), "digits would be lost"),
        ("a long, b string", (1,), "give a dict or 2 values"),
        ("a long, b string", (1, "x", 2), "give a dict or 2 values"),
        ("a long, b string", {"a": 1, "c": 2}, "no field \\['c'\\]"),
        ("a long, b string", {"a": 1, 7: 2}, "no field \\['7'\\]"),
        ("a long, b string", ("x", 1), "bigint cannot hold 'x'"),
        ("a int, b string", (1 << 40, "x"), "int cannot hold 1099511627776"),
        ("a long", 1, "give a dict or 1 values"),
        ("a long", "x", "give a dict or 1 values"),
        ("array<long>", {1, 2}, "of Python type set"),
        ("array<long>", "12", "of Python type str"),
        ("array<long>", [1, "2"], "bigint cannot hold '2'"),
        ("array<long>", None, "of Python type NoneType"),
        ("map<string,long>", [("a", 1)], "of Python type list"),
        ("map<string,long>", {1: 1}, "string cannot hold 1"),
        ("map<string,long>", {None: 1}, "string cannot hold None"),
        ("map<string,long>", {"a": 1.5}, "bigint cannot hold 1.5"),
    ],
)
def test_a_value_of_another_type_is_refused_by_state_declared_type_and_value(ddl, value, words):
    with pytest.raises(StateTypeError, match=words) as caught:
        encoder(ddl, "total")(value)
    assert f"state=total declared={ddl}" in str(caught.value)


@given(st.data())
def test_a_value_of_any_type_is_either_refused_or_kept_as_the_checker_gives_it(data):
    (ddl, _), (_, values) = data.draw(kinds), data.draw(kinds)
    value = data.draw(values)
    try:
        kept = checker(ddl)(value)
    except StateTypeError:
        with pytest.raises(StateTypeError):
            encoder(ddl)(value)
        return
    assert decoder(ddl)(encoder(ddl)(value)) == kept


def test_a_checker_refuses_the_same_and_gives_the_canonical_value():
    assert checker("decimal(5,2)")(D("1.5")) == D("1.50")
    assert checker("timestamp")(pd.Timestamp(0, tz="UTC")) == datetime.datetime(
        1970, 1, 1, tzinfo=UTC
    )
    with pytest.raises(StateTypeError, match=r"state=seen declared=long: bigint cannot hold 1\.5"):
        checker("long", "seen")(1.5)


@pytest.mark.parametrize("ddl", sorted(SCALARS))
def test_plain_values_read_back_just_as_they_were_written(ddl):
    plain = plain_type(ddl)
    if plain is None:
        assert ddl.startswith(("decimal", "timestamp"))
        return
    value = {int: 5, str: "x", bytes: b"x", bool: True, float: 0.5}.get(
        plain, datetime.date(2013, 1, 1)
    )
    found = decoder(ddl)(encoder(ddl)(value))
    assert (found, type(found)) == (value, plain)


def test_containers_are_never_plain():
    assert plain_type("a long") is plain_type("array<long>") is plain_type("map<long,long>") is None


@pytest.mark.parametrize(
    ("ddl", "value", "raw"),
    [
        ("long", 7, "07"),
        ("long", -(1 << 63), "d38000000000000000"),
        ("double", 1.5, "cb3ff8000000000000"),
        ("string", "\u00e9", "a2c3a9"),
        ("binary", b"\x00", "c40100"),
        ("boolean", True, "c3"),
        ("date", datetime.date(2013, 1, 1), "aa323031332d30312d3031"),
        ("timestamp", datetime.datetime(2013, 1, 1, 5, tzinfo=UTC), "d6ff50e26d50"),
        ("decimal(5,2)", D("1.5"), "a4312e3530"),
        ("a long, b array<string>", (None, ["x"]), "92c091a178"),
        ("map<string,long>", {"a": 1}, "81a16101"),
    ],
)
def test_the_bytes_of_format_zero_stay_what_they_are(ddl, value, raw):
    assert encoder(ddl)(value).hex() == raw


def test_bytes_of_another_type_are_not_read_as_a_value():
    with pytest.raises(msgspec.ValidationError):
        decoder("long")(encoder("string")("x"))


@pytest.mark.parametrize(
    ("ddl", "value"),
    [
        ("count long, name string", (1, "x")),
        ("count long, name string", [1, "x"]),
        ("count long, name string", {"name": "x", "count": 1}),
        ("count long, name string", (1, None)),
        ("count int, ratio double", (-(2**31), 0.5)),
        ("count int, ratio double", (7, 1)),
        ("price decimal(5,2), at timestamp", (decimal.Decimal("1.5"), None)),
        ("inner struct<a:long>", ((1,),)),
        ("array<long>", (1, 2)),
    ],
)
def test_settling_gives_what_reading_back_gives(ddl: str, value: object) -> None:
    settled, read_back = settler(ddl)(value), decoder(ddl)(encoder(ddl)(value))
    assert settled == read_back
    assert type(settled) is type(read_back)
    assert list(map(type, settled)) == list(map(type, read_back))


@pytest.mark.parametrize("value", [(1,), (1, "x", 2), (True, "x"), (2**63, "x"), ("x", 1)])
def test_settling_refuses_what_writing_refuses(value: object) -> None:
    with pytest.raises(StateTypeError, match="state=pair"):
        settler("count long, name string", "pair")(value)
