"""The engine's key groups are those that look-ups of single keys compute."""

import datetime
import decimal
from datetime import UTC

import pyarrow as pa
import pytest

from moorage.engine.key_group_columns import arrow_groups
from moorage_state.canonical import key_groups
from moorage_state.keygroups import FLINK_MURMUR

MOMENT = datetime.datetime(2013, 1, 1, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("types", "columns"),
    [
        (["string"], [pa.array(["user-1", "", "\u00e9\U0001f600", "flink"])]),
        (["string"], [pa.array(["a", "bc"], pa.large_string())]),
        (["long"], [pa.array([1, -1, 123456789012345, -(1 << 63)])]),
        (["int"], [pa.array([5, -(1 << 31)], pa.int32())]),
        (["tinyint"], [pa.array([5, -128], pa.int8())]),
        (["boolean"], [pa.array([True, False])]),
        (["binary"], [pa.array([b"", b"\xff\x00"])]),
        (["date"], [pa.array([datetime.date(2013, 1, 1)])]),
        (["timestamp"], [pa.array([MOMENT], pa.timestamp("us", "America/New_York"))]),
        (["decimal(5,2)"], [pa.array([decimal.Decimal("-1.50")], pa.decimal128(5, 2))]),
        (["string", "long"], [pa.array(["a", "b"]), pa.array([1, 2])]),
    ],
)
def test_a_column_of_keys_has_the_groups_of_the_keys(types, columns):
    keys = list(zip(*(column.to_pylist() for column in columns), strict=True))
    found = arrow_groups(columns, types, 720)
    assert found.type == pa.int32()
    assert found.to_pylist() == key_groups(types, 720, FLINK_MURMUR)(keys)


def test_the_golden_keys_have_their_groups_in_a_slice_of_a_column():
    column = pa.array(["zz", "", "a", "user-1", "flink", "zz"]).slice(1, 4)
    assert arrow_groups([column], ["string"], 128).to_pylist() == [94, 81, 121, 98]


def test_a_null_key_goes_where_hash_zero_goes():
    assert arrow_groups([pa.array(["a", None])], ["string"], 128).to_pylist() == [81, 94]
    assert arrow_groups([pa.array([1, None])], ["long"], 128).to_pylist() == [86, 94]


def test_a_batch_without_rows_has_no_groups():
    for kind, ddl in ((pa.string(), "string"), (pa.int64(), "long"), (pa.date32(), "date")):
        assert arrow_groups([pa.array([], kind)], [ddl], 128).to_pylist() == []
