"""Rows in and out of Arrow: what functions see, and what they may yield."""

import datetime
import decimal
from datetime import UTC
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.engine.columns import OUTPUT_COLUMNS, ack_batch, row_batch
from moorage.engine.outputs import OutputBuffer
from moorage.engine.rows import TupleReader, column_values, group_starts
from moorage_state.errors import UserError

D = decimal.Decimal
MICROS = pa.timestamp("us", tz="UTC")
POINT = pa.struct([("x", pa.int64()), ("tags", pa.map_(pa.string(), pa.int32()))])
NOON = datetime.datetime(2013, 7, 1, 12, tzinfo=UTC)


class Point(NamedTuple):
    x: int
    tags: dict[str, int]


VALUES = [
    (pa.int8(), -128),
    (pa.int16(), 5),
    (pa.int32(), 1 << 30),
    (pa.int64(), -(1 << 63)),
    (pa.float32(), 0.5),
    (pa.float64(), 0.1),
    (pa.bool_(), True),
    (pa.string(), "\u00e9"),
    (pa.large_string(), "x"),
    (pa.binary(), b"\xff"),
    (pa.date32(), datetime.date(2013, 7, 1)),
    (MICROS, NOON),
    (pa.timestamp("us"), NOON.replace(tzinfo=None)),
    (pa.decimal128(38, 10), D("1.5000000000")),
    (pa.list_(pa.int64()), [1, None]),
    (pa.map_(pa.string(), pa.int64()), {"a": 1, "b": None}),
    (POINT, {"x": 1, "tags": {"a": 1}}),
    (pa.list_(POINT), [{"x": 1, "tags": {}}, None]),
    (pa.map_(pa.string(), POINT), {"p": {"x": None, "tags": None}}),
]


def taken(kind, *values, nullable=True):
    buffer = OutputBuffer("count", pa.schema([pa.field("c", kind, nullable)]))
    buffer.extend((value,) for value in values)
    return column_values(buffer.take().column(0))


# -- in ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "value"), VALUES)
def test_a_column_becomes_python_values_with_and_without_nulls(kind, value):
    for values in ([value, value], [value, None], [None], []):
        found = column_values(pa.array(values, kind))
        assert found == values
        assert [type(v) for v in found] == [type(v) for v in values]


@pytest.mark.parametrize(("kind", "value"), VALUES)
def test_a_slice_of_a_column_is_read_like_the_column(kind, value):
    assert column_values(pa.array([None, value, value], kind).slice(1, 1)) == [value]


def test_rows_are_named_tuples_in_the_order_of_the_stream():
    batch = pa.RecordBatch.from_pydict({"engine": [0, 0], "n": [1, None], "user": ["a", "b"]})
    rows = TupleReader(["user", "n"]).rows(batch)
    assert [row._asdict() for row in rows] == [{"user": "a", "n": 1}, {"user": "b", "n": None}]


def test_columns_that_python_cannot_name_are_read_by_position():
    batch = pa.RecordBatch.from_pydict({"from": [1], "page views": [2], "count": [3]})
    (row,) = TupleReader(["from", "page views", "count"]).rows(batch)
    assert (row[0], row._1, row.count) == (1, 2, 3)


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("ab")), max_size=20))
def test_groups_start_where_any_column_changes(rows):
    numbers, names = [n for n, _ in rows], [s for _, s in rows]
    columns = [pa.array(numbers, pa.int32()), pa.array(names, pa.string())]
    expected = [i for i, row in enumerate(rows) if i == 0 or row != rows[i - 1]]
    assert group_starts(columns).tolist() == expected
    padded = [pa.concat_arrays([c.slice(0, 0), c]) for c in columns]
    assert group_starts(padded).tolist() == expected


@pytest.mark.parametrize(
    ("kind", "value", "other"),
    [
        (pa.int8(), -128, 0),
        (pa.int64(), 1 << 62, (1 << 62) + 1),
        (pa.bool_(), True, False),
        (pa.string(), "", "a"),
        (pa.binary(), b"a\x00", b"a"),
        (pa.date32(), datetime.date(2013, 7, 1), datetime.date(2013, 7, 2)),
        (MICROS, NOON, NOON + datetime.timedelta(microseconds=1)),
        (pa.decimal128(38, 10), D("1.5"), D("-1.5")),
    ],
)
def test_groups_are_found_in_columns_of_every_key_type(kind, value, other):
    column = pa.array([value, value, other, value], kind)
    assert group_starts([column]).tolist() == [0, 2, 3]
    assert group_starts([column.slice(0, 1)]).tolist() == [0]
    assert group_starts([column.slice(0, 0)]).tolist() == []


# -- out --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "value"), VALUES)
def test_what_was_read_can_be_yielded(kind, value):
    assert taken(kind, value, None) == [value, None]


@pytest.mark.parametrize(
    ("kind", "value", "stored"),
    [
        (pa.int64(), np.int64(5), 5),
        (pa.int8(), np.uint8(5), 5),
        (pa.float64(), 5, 5.0),
        (pa.float64(), np.float32(0.5), 0.5),
        (pa.bool_(), np.bool_(True), True),
        (pa.decimal128(5, 2), 5, D("5.00")),
        (pa.binary(), bytearray(b"x"), b"x"),
        (pa.list_(pa.int32()), (1, 2), [1, 2]),
        (pa.list_(pa.int32()), np.array([1, 2]), [1, 2]),
        (pa.map_(pa.string(), pa.int64()), [("a", 1)], {"a": 1}),
        (POINT, Point(1, {"a": 1}), {"x": 1, "tags": {"a": 1}}),
        (POINT, {"x": 1}, {"x": 1, "tags": None}),
        (MICROS, NOON.astimezone(datetime.timezone(datetime.timedelta(hours=2))), NOON),
    ],
)
def test_near_relations_of_a_type_are_taken(kind, value, stored):
    assert taken(kind, value) == [stored]


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (pa.int64(), 1.5, "got 1.5 of Python type float"),
        (pa.int64(), 1.0, "got 1.0 of Python type float"),
        (pa.int64(), np.float64(1), "of Python type float64"),
        (pa.int64(), True, "got True of Python type bool"),
        (pa.int64(), "1", "got '1' of Python type str"),
        (pa.int64(), 1 << 63, "too big|too large"),
        (pa.int8(), 300, "too large to fit"),
        (pa.float64(), True, "of Python type bool"),
        (pa.float64(), "1.5", "of Python type str"),
        (pa.float64(), D("1.5"), "of Python type Decimal"),
        (pa.bool_(), 1, "of Python type int"),
        (pa.string(), b"x", "of Python type bytes"),
        (pa.string(), 5, "of Python type int"),
        (pa.string(), "\ud800", "surrogates not allowed"),
        (pa.binary(), "x", "of Python type str"),
        (pa.date32(), NOON, "of Python type datetime"),
        (pa.date32(), 3, "of Python type int"),
        (MICROS, 1_700_000_000_000, "got 1700000000000 of Python type int"),
        (MICROS, datetime.date(2013, 7, 1), "of Python type date"),
        (MICROS, NOON.replace(tzinfo=None), "without a time zone"),
        (pa.decimal128(5, 2), 1.5, "of Python type float"),
        (pa.decimal128(5, 2), D("1.005"), "data loss"),
        (pa.decimal128(5, 2), D(1000), "precision"),
        (pa.list_(pa.int64()), [1, 1.5], "got 1.5 of Python type float"),
        (pa.list_(pa.int64()), 5, "of Python type int"),
        (pa.list_(pa.int64()), "12", "of Python type str"),
        (pa.list_(pa.int64()), {1}, "of Python type set"),
        (pa.map_(pa.string(), pa.int64()), {"a": "x"}, "got 'x' of Python type str"),
        (pa.map_(pa.string(), pa.int64()), {5: 1}, "got 5 of Python type int"),
        (pa.map_(pa.string(), pa.int64()), {None: 1}, "declared not null"),
        (pa.map_(pa.string(), pa.string()), ["ab", "cd"], "was expecting tuple"),
        (pa.map_(pa.string(), pa.string()), [{"a", "b"}], "with type set"),
        (POINT, {"x": 1.5}, "got 1.5 of Python type float"),
        (POINT, {"y": 1}, "no such fields: \\['y'\\]"),
        (POINT, (1,), "a struct has 2 fields"),
        (POINT, [1, {}], "of Python type list"),
        (pa.list_(POINT), [{"tags": {"a": 1.5}}], "got 1.5 of Python type float"),
    ],
)
def test_what_arrow_would_bend_or_refuse_is_refused_with_column_and_value(kind, value, words):
    with pytest.raises(UserError, match=words) as caught:
        taken(kind, None, value)
    assert "operator=count column=c declared=" in str(caught.value)


STORED, CAME = Point(3, {"b": 4}), {"tags": {"a": 2}, "x": 1}
PLAIN = STORED._asdict()


@pytest.mark.parametrize(
    ("kind", "values", "found"),
    [
        (POINT, [CAME, STORED, None, {"x": 5}], [CAME, PLAIN, None, {"x": 5, "tags": None}]),
        (POINT, [STORED, CAME], [PLAIN, CAME]),
        (pa.list_(POINT), [[STORED], None, [CAME]], [[PLAIN], None, [CAME]]),
        (pa.struct([("p", POINT)]), [{"p": STORED}, (CAME,)], [{"p": PLAIN}, {"p": CAME}]),
        (
            pa.map_(pa.string(), POINT),
            [{"a": CAME}, {"b": STORED}],
            [{"a": CAME}, {"b": PLAIN}],
        ),
    ],
)
def test_structs_of_a_column_may_be_dicts_as_in_rows_and_named_tuples_as_in_states(
    kind, values, found
):
    assert taken(kind, *values) == found


def test_a_null_in_a_column_that_is_declared_not_null_is_refused():
    assert taken(pa.int64(), 5, nullable=False) == [5]
    with pytest.raises(UserError, match="column=c declared=int64: it is declared not null"):
        taken(pa.int64(), 5, None, nullable=False)


def test_an_array_may_be_in_a_column_and_in_a_field_that_are_declared_not_null():
    kind, array = pa.list_(pa.int32()), np.array([1, 2])
    assert taken(kind, array, array, nullable=False) == [[1, 2], [1, 2]]
    with pytest.raises(UserError, match=r"column=c declared=.* it is declared not null"):
        taken(kind, array, None, nullable=False)
    field = pa.struct([pa.field("x", kind, nullable=False)])
    assert taken(field, {"x": array}, {"x": array}) == [{"x": [1, 2]}, {"x": [1, 2]}]
    with pytest.raises(UserError, match=r"column=c declared=.* it is declared not null"):
        taken(field, {"x": array}, {})


@pytest.fixture
def buffer():
    return OutputBuffer("count", pa.schema([("user", pa.string()), ("n", pa.int64())]))


@pytest.mark.parametrize("row", [("a", 1), ["a", 1], {"user": "a", "n": 1}, {"n": 1, "user": "a"}])
def test_a_row_is_a_tuple_a_list_or_a_dict(buffer, row):
    buffer.extend([row])
    assert buffer.take().to_pylist() == [{"user": "a", "n": 1}]


def test_a_list_may_be_used_again_once_it_was_yielded(buffer):
    def again():
        row = ["a", 1]
        yield row
        row[1] = 2
        yield row

    buffer.extend(again())
    assert buffer.take().column("n").to_pylist() == [1, 2]


def test_columns_missing_from_a_dict_are_null(buffer):
    buffer.extend([{"n": 1}, {}])
    assert buffer.take().to_pylist() == [{"user": None, "n": 1}, {"user": None, "n": None}]


@pytest.mark.parametrize(
    ("produced", "words"),
    [
        ([("a",)], r"tuple of 2 values or a dict: operator=count .* got=\('a',\)"),
        ([("a", 1, 2)], r"got=\('a', 1, 2\)"),
        ([("a", 1), ("a",)], r"got=\('a',\)"),
        (["ab"], "got='ab'; a single row is yielded, or returned in a list"),
        (("a", 1), "got='a'; a single row is yielded"),
        ({"user": "a", "n": 1}, "got='user'; a single row is yielded"),
        ("ab", "got='a'"),
        ([5], "got=5"),
        ([None], "got=None"),
        ([{"user", "n"}], "got={"),
        ([{"user": "a", "N": 1}], r"does not declare: operator=count columns=\['N'\]"),
        ([{5: 1}], r"columns=\['5'\]"),
    ],
)
def test_what_is_no_row_is_refused(buffer, produced, words):
    def put_through():
        buffer.extend(produced)
        buffer.take()

    with pytest.raises(UserError, match=words):
        put_through()


def test_a_returned_pair_of_pairs_of_letters_is_not_two_rows(buffer):
    with pytest.raises(UserError, match="got='ab'"):
        buffer.extend(("ab", "cd"))


def test_taking_empties_the_buffer_and_counts_on(buffer):
    buffer.extend([("a", 1)] * 3)
    assert (buffer.take().num_rows, buffer.take().num_rows) == (3, 0)
    buffer.extend([("b", 2)])
    assert buffer.take().to_pylist() == [{"user": "b", "n": 2}]
    assert buffer.total == 4


def test_a_full_buffer_says_so(buffer):
    buffer.extend([("a", 1)] * 8191)
    assert not buffer.full
    buffer.extend([("a", 1)])
    assert buffer.full


# -- engine columns ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [k for k, _ in VALUES])
def test_acks_and_rows_for_a_downstream_operator_have_one_schema(kind):
    output = pa.schema([("c", kind)])
    acks = ack_batch([b"raw", b"another"], output, 3, downstream=True)
    nulls = pa.RecordBatch.from_arrays([pa.array([None, None], kind)], ["c"])
    rows = row_batch(nulls, 3, 10, (1 << 64) - 2)
    assert acks.schema.equals(rows.schema)
    assert acks.schema.names == ["c", *OUTPUT_COLUMNS]
    assert acks.column("_m_target").to_pylist() == [3, 3]
    assert acks.column("_m_ack").to_pylist() == [b"raw", b"another"]
    assert rows.column("_m_ord").to_pylist() == [(3 << 40) + 10, (3 << 40) + 11]
    assert rows.column("_m_mark").to_pylist() == [-2, -2]


def test_the_last_operators_acks_go_to_the_driver_alone():
    batch = ack_batch([b"raw", b"another"], pa.schema([("c", pa.int64())]), 3, downstream=False)
    assert batch.to_pydict() == {"_m_ack": [b"raw", b"another"]}
