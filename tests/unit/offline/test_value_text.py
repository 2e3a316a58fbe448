import datetime
import decimal
import json

import pytest

from moorage.offline.value_text import json_value, parse_key, parse_value, show_value
from moorage_state.errors import UserError
from moorage_state.types import parse_type

NOON = datetime.datetime(2026, 1, 31, 12, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("ddl", "text", "value"),
    [
        ("string", '["not json', '["not json'),
        ("string", "", ""),
        ("bigint", "-7", -7),
        ("boolean", "true", True),
        ("date", "2026-01-31", datetime.date(2026, 1, 31)),
        ("timestamp", "2026-01-31T14:00:00+02:00", NOON),
        ("decimal(9,2)", "12.50", decimal.Decimal("12.50")),
        ("binary", "00ff", b"\x00\xff"),
    ],
)
def test_a_key_is_read_by_its_declared_type(ddl, text, value):
    assert parse_key([ddl], text) == (value,)


@pytest.mark.parametrize(
    ("ddl", "text", "advice"),
    [
        ("string", "\udcff", "it in UTF-8"),
        ("bigint", "seven", "a whole number"),
        ("tinyint", "300", "a whole number"),
        ("boolean", "yes", "true or false"),
        ("date", "31.1.2026", "2026-01-31"),
        ("timestamp", "2026-01-31T14:00:00", "with a time zone"),
        ("decimal(9,2)", "abc", r"12\.50"),
        ("decimal(3,2)", "1000", r"12\.50"),
        ("binary", "xyz", "hexadecimal"),
    ],
)
def test_a_key_of_another_type_is_refused_with_an_example(ddl, text, advice):
    with pytest.raises(UserError, match=f"key is not of its type: key=.*{advice}"):
        parse_key([ddl], text)


def test_a_key_of_several_columns_is_a_json_array():
    key = parse_key(["string", "int", "date", "decimal(9,2)"], '["a", 7, "2026-01-31", 1.50]')
    assert key == ("a", 7, datetime.date(2026, 1, 31), decimal.Decimal("1.50"))


@pytest.mark.parametrize("text", ["a", '"a"', '["a"]', '["a", 1, 2]', '["a", null]', '[1, "a"]'])
def test_another_shape_of_key_is_refused(text):
    with pytest.raises(UserError, match="key"):
        parse_key(["string", "int"], text)


def test_true_is_no_number():
    with pytest.raises(UserError, match="key is not of its type"):
        parse_key(["string", "int"], '["a", true]')


def test_values_become_json_that_any_program_reads():
    parsed = parse_type("struct<a:array<double>,m:map<date,binary>,t:timestamp,d:decimal(9,2)>")
    value = {
        "a": [1.5, None, float("nan"), float("-inf")],
        "m": [(datetime.date(2026, 1, 31), b"\xff")],
        "t": NOON,
        "d": decimal.Decimal("-1.50"),
    }
    plain = json_value(parsed, value)
    assert json.loads(json.dumps(plain, allow_nan=False)) == {
        "a": [1.5, None, "NaN", "-Infinity"],
        "m": {"2026-01-31": "ff"},
        "t": "2026-01-31T12:00:00Z",
        "d": "-1.50",
    }


def test_text_stands_for_itself_and_nested_values_are_json():
    assert show_value(parse_type("string"), 'say "x"') == 'say "x"'
    assert show_value(parse_type("array<string>"), ["é"]) == '["é"]'
    assert parse_value("date", "2026-01-31", "map key") == datetime.date(2026, 1, 31)
