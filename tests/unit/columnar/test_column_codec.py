"""Values by column: the same bytes as values one by one, and the same values back."""

import datetime
import decimal
from datetime import UTC

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from moorage_state.checks import StateTypeError
from moorage_state.codecs import decoder, encoder
from moorage_state.columnar import ColumnCodec
from moorage_state.columnar.arrow import to_arrow
from moorage_state.columnar.codec import is_columnar
from moorage_state.evolution import writer_of
from moorage_state.types import parse_type

unhurried = settings(deadline=None, suppress_health_check=list(HealthCheck))


def whole(bits):
    near = [s * (1 << n) + d for n in range(bits) for s in (1, -1) for d in (-1, 0, 1)]
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return st.integers(low, high) | st.sampled_from([n for n in near if low <= n <= high])


moments = st.datetimes(timezones=st.just(UTC)) | st.sampled_from(
    [
        datetime.datetime.fromtimestamp(s, UTC) + datetime.timedelta(microseconds=us)
        for s in (0, -1, 1, 2**32 - 1, 2**32, 2**34 - 1, 2**34)
        for us in (0, 1, 999_999)
    ]
)
FLAT = {
    "tinyint": whole(8),
    "smallint": whole(16),
    "int": whole(32),
    "bigint": whole(64),
    "float": st.floats(width=32),
    "double": st.floats(),
    "boolean": st.booleans(),
    "date": st.dates(),
    "timestamp": moments,
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
    | st.sampled_from(["x" * n for n in (31, 32, 255, 256, 65535, 65536)]),
    "binary": st.binary(max_size=40) | st.sampled_from([bytes(n) for n in (255, 256, 65536)]),
}
scalars = st.sampled_from(sorted(FLAT)).map(lambda ddl: (ddl, FLAT[ddl]))


def structs(fields):
    ddl = ",".join(f"f{i}:{ddl}" for i, (ddl, _) in enumerate(fields))
    return f"struct<{ddl}>", st.tuples(*(st.none() | values for _, values in fields))


flat = st.lists(scalars, min_size=1, max_size=20).map(structs)
few = st.lists(scalars, min_size=1, max_size=3).map(structs)
nested = st.lists(scalars | few, min_size=1, max_size=4).map(structs)
single = scalars | flat | nested | st.lists(scalars | nested, min_size=1, max_size=3).map(structs)


def lists(kind):
    ddl, values = kind
    most = st.sampled_from([1, 3, 40])
    return f"array<{ddl}>", most.flatmap(lambda n: st.lists(st.none() | values, max_size=n))


kinds = single | single.map(lists)


@unhurried
@given(st.data())
def test_a_column_has_the_bytes_that_the_codec_gives_each_value(data):
    ddl, values = data.draw(kinds)
    rows = data.draw(st.lists(st.none() | values, max_size=30))
    assert is_columnar(ddl)
    encode, decode = encoder(ddl), decoder(ddl)
    raws = [None if row is None else encode(row) for row in rows]
    codec = ColumnCodec(ddl)
    column = codec.decode(raws)
    column.validate(full=True)
    assert column.type == codec.type
    expected = to_arrow(parse_type(ddl), [None if raw is None else decode(raw) for raw in raws])
    assert repr(column.to_pylist()) == repr(expected.to_pylist())
    assert codec.encode(column) == raws


@unhurried
@given(st.data())
def test_a_slice_of_a_column_is_written_as_the_slice_it_is(data):
    ddl, values = data.draw(kinds)
    rows = data.draw(st.lists(st.none() | values, min_size=3, max_size=12))
    codec = ColumnCodec(ddl)
    raws = codec.encode(to_arrow(parse_type(ddl), rows))
    column = codec.decode(raws)
    assert codec.encode(column.slice(1, len(rows) - 2)) == raws[1:-1]
    assert codec.encode(column.slice(len(rows))) == []


@pytest.mark.parametrize(
    ("ddl", "rows"),
    [
        ("decimal(5,2)", [decimal.Decimal("1.50"), None]),
        ("array<array<long>>", [[[1], None], None, []]),
        ("array<struct<b:map<string,long>>>", [[({"a": 1},), None], None, []]),
        ("map<string,long>", [{"a": 1}, None]),
        ("a long, s struct<b:array<string>>", [(1, (["x"],)), (None, None), None]),
    ],
)
def test_other_types_go_value_by_value_with_the_same_result(ddl, rows):
    assert not is_columnar(ddl)
    codec, encode = ColumnCodec(ddl), encoder(ddl)
    raws = [None if row is None else encode(row) for row in rows]
    assert codec.encode(codec.decode(raws)) == raws


@pytest.mark.parametrize("length", [0, 1, 15, 16, 65535, 65536])
def test_lists_of_any_length_have_the_bytes_of_the_codec_of_values(length):
    ddl = "array<struct<n:int>>"
    raws = [encoder(ddl)([(n,) for n in range(length)])] * 2
    codec = ColumnCodec(ddl)
    assert codec.encode(codec.decode(raws)) == raws


def test_lists_of_an_earlier_type_are_read_as_those_of_the_last():
    first, second = "array<struct<a:int>>", "array<struct<a:int,b:string>>"
    raws = [writer_of(first)([(1,), None]), writer_of(second, (first,))([(2, "y")])]
    codec = ColumnCodec(second, (first,))
    column = codec.decode(raws)
    assert column.to_pylist() == [[{"a": 1, "b": None}, None], [{"a": 2, "b": "y"}]]
    assert codec.encode(column)[1] == raws[1]


def test_pickled_objects_are_columns_of_the_bytes_they_are():
    codec = ColumnCodec("pickle")
    raw = encoder("pickle")({"a"})
    assert codec.decode([raw, None]).to_pylist() == [raw, None]
    assert codec.encode(pa.array([raw, None], pa.binary())) == [raw, None]


def test_values_of_earlier_types_are_read_in_one_column_and_written_as_the_last():
    first, second = "a int", "a int, b string default 'x'"
    third = "b string, a double"
    raws = [
        writer_of(first)((1,)),
        None,
        writer_of(second, (first,))((2, "y")),
        writer_of(third, (first, second))(("z", 3.5)),
    ]
    codec = ColumnCodec(third, (first, second))
    column = codec.decode(raws)
    assert column.to_pylist() == [
        {"b": "x", "a": 1.0},
        None,
        {"b": "y", "a": 2.0},
        {"b": "z", "a": 3.5},
    ]
    single = writer_of(third, (first, second))
    assert codec.encode(column) == [
        single(("x", 1.0)),
        None,
        single(("y", 2.0)),
        single(("z", 3.5)),
    ]


def test_columns_of_narrower_types_and_fields_by_name_are_taken():
    codec = ColumnCodec("a long, b double, c string")
    given_ = pa.StructArray.from_arrays(
        [pa.array([1.5, None]), pa.array([1, 2], pa.int32())], names=["b", "a"]
    )
    assert codec.decode(codec.encode(given_)).to_pylist() == [
        {"a": 1, "b": 1.5, "c": None},
        {"a": 2, "b": None, "c": None},
    ]
    chunked = pa.chunked_array([[1], [2, None]])
    assert ColumnCodec("int").encode(chunked) == [b"\x01", b"\x02", None]


POINT = "struct<a:int,b:int DEFAULT 7,c:string DEFAULT 'x'>"


@pytest.mark.parametrize(
    ("ddl", "rows", "expected"),
    [
        (POINT, [{"a": 1}, None, {"a": None}], [(1, 7, "x"), None, (None, 7, "x")]),
        (f"struct<p:{POINT},q:int>", [{"p": {"b": 1}}, {}], [((None, 1, "x"), None), (None, None)]),
        (
            f"array<{POINT}>",
            [[{"c": "y", "a": 1}], None, [], [None, {"a": 2}]],
            [[(1, 7, "y")], None, [], [None, (2, 7, None)]],
        ),
        (
            f"map<string,{POINT}>",
            [[("k", {"a": 1}), ("l", None)], None, [], [("m", {"a": 3})]],
            [{"k": (1, 7, "x"), "l": None}, None, {}, {"m": (3, 7, "x")}],
        ),
    ],
)
def test_a_field_that_lacks_in_a_column_has_its_default_however_deep(ddl, rows, expected):
    whole = pa.array(rows) if "map" not in ddl else pa.array(rows, pa.map_(pa.string(), NARROW))
    codec, decode = ColumnCodec(ddl), decoder(ddl)
    for start in range(len(rows)):
        raws = codec.encode(whole.slice(start))
        assert [raw and decode(raw) for raw in raws] == expected[start:]


NARROW = pa.struct([("a", pa.int64())])


def test_a_column_takes_the_defaults_that_are_declared_and_not_those_that_are_recorded():
    codec = ColumnCodec("a int, b int default 1", (), "s", "a int, b int default 2")
    assert codec.decode(codec.encode(pa.array([{"a": 5}]))).to_pylist() == [{"a": 5, "b": 2}]


@pytest.mark.parametrize(
    ("ddl", "column", "words"),
    [
        ("int", pa.array([1 << 40]), "declared=int: a column of int64 is none of int32"),
        ("long", pa.array(["x"]), "a column of string is none of int64"),
        ("long", pa.array([1.5]), "a column of double is none of int64"),
        (
            "timestamp",
            pa.array([1_700_000_000_000]),
            r"none of timestamp.* no narrower type",
        ),
        ("timestamp", pa.array([1], pa.timestamp("us")), "no narrower type"),
        ("long", pa.array(["1"]), "no narrower type"),
        ("long", pa.array([True]), "no narrower type"),
        ("string", pa.array([1]), "no narrower type"),
        ("a timestamp", pa.array([{"a": 1}]), "no narrower type"),
        ("array<timestamp>", pa.array([[1]]), "no narrower type"),
        ("a long", pa.array([{"b": 1}]), r"no field \['b'\]"),
        ("array<struct<a:long>>", pa.array([[{"a": 1, "b": 2}]]), r"no field \['b'\]"),
        ("a struct<a:long>", pa.array([{"a": {"c": 2}}]), r"no field \['c'\]"),
        (
            "a long",
            pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]),
            "two fields of a name",
        ),
        ("long", [1, 2], "give an Arrow array, not list"),
        ("long", np.array([1]), "give an Arrow array, not ndarray"),
        ("date", pa.array([2932897], pa.int32()).view(pa.date32()), "the years 1 to 9999"),
        (
            "timestamp",
            pa.array([-(1 << 60)]).view(pa.timestamp("us", tz="UTC")),
            "the years 1 to 9999",
        ),
    ],
)
def test_a_column_of_another_type_is_refused_by_name(ddl, column, words):
    with pytest.raises(StateTypeError, match=words) as caught:
        ColumnCodec(ddl, (), "total").encode(column)
    assert "state=total declared=" in str(caught.value)


@pytest.mark.parametrize(
    ("ddl", "raw"),
    [
        ("long", b"\xa1x"),
        ("long", b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff"),
        ("long", b"\x01\x01"),
        ("long", b""),
        ("double", b"\x01"),
        ("string", b"\xa5ab"),
        ("string", b"\xa1\xff"),
        ("boolean", b"\x01"),
        ("timestamp", b"\x01"),
        ("date", b"\xa1x"),
        ("date", b"\xaa2013-99-01"),
        ("a long, b long", b"\x91\x01"),
        ("a long, b long", b"\x92\x01"),
    ],
)
def test_bytes_of_another_type_are_refused(ddl, raw):
    with pytest.raises(ValueError, match=r"value|Invalid|invalid|out of range|UTF8|parsing"):
        ColumnCodec(ddl).decode([raw])
