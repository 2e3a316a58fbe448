"""The bytes of values of every type stay what they are.

Lines are only ever added. Pickles are not here: their bytes are Python's.
"""

import datetime
import decimal
import json
import math
from datetime import UTC
from pathlib import Path

import pytest

from moorage_state.codecs import decoder
from moorage_state.columnar import ColumnCodec
from moorage_state.columnar.arrow import to_arrow
from moorage_state.evolution import reader_of, writer_of
from moorage_state.types import parse_type

GOLDEN = Path(__file__).parent / "golden-values.json"
D = decimal.Decimal
AT = datetime.datetime(2013, 1, 1, 5, 30, 0, 123456, tzinfo=UTC)
ENDS = [-(1 << 63), -(1 << 31), -32769, -129, -33, -32, -1, 0, 1, 127, 128, 256, 1 << 16, 1 << 32]
VALUES = [
    *(("tinyint", value) for value in (-128, -1, 0, 127)),
    *(("smallint", value) for value in (-32768, 0, 32767)),
    *(("int", value) for value in (-(1 << 31), 0, (1 << 31) - 1)),
    *(("bigint", value) for value in (*ENDS, (1 << 63) - 1)),
    *(("double", value) for value in (0.0, -0.0, 1.5, math.inf, math.nan)),
    ("float", 0.5),
    *(("boolean", value) for value in (True, False)),
    *(("string", value) for value in ("", "\u00e9\U0001f600", "x" * 31, "x" * 32, "x" * 256)),
    *(("binary", value) for value in (b"", b"\x00\xff", bytes(256))),
    *(("date", value) for value in (datetime.date(1, 1, 1), datetime.date(2013, 1, 1))),
    ("timestamp", AT.replace(microsecond=0)),
    ("timestamp", AT),
    ("timestamp", AT.replace(year=1)),
    ("timestamp", AT.replace(year=9999)),
    *(("decimal(5,2)", D(value)) for value in ("1.50", "0.00", "-999.99")),
    ("decimal(38,0)", D(10**38 - 1)),
    ("array<bigint>", []),
    ("array<bigint>", [1, None]),
    ("array<array<string>>", [["a"], None]),
    ("map<string,bigint>", {"a": 1, "b": None}),
    ("map<date,double>", {datetime.date(2013, 1, 1): 0.5}),
    ("struct<a:bigint,b:string>", (1, "x")),
    ("struct<a:bigint,b:string>", (None, None)),
    ("struct<s:struct<x:double>,l:array<int>>", ((1.0,), [1])),
    (f"struct<{','.join(f'f{n}:int' for n in range(16))}>", tuple(range(16))),
]
GENERATIONS = [
    ("struct<a:int>", (), (1,)),
    ("struct<a:int,b:string DEFAULT 'x'>", ("struct<a:int>",), (2, "y")),
    (
        "struct<b:string DEFAULT 'x',a:double>",
        ("struct<a:int>", "struct<a:int,b:string DEFAULT 'x'>"),
        ("z", 3.5),
    ),
]


def lines():
    made = [[ddl, [], repr(value), writer_of(ddl)(value).hex()] for ddl, value in VALUES]
    for ddl, earlier, value in GENERATIONS:
        made.append([ddl, list(earlier), repr(value), writer_of(ddl, earlier)(value).hex()])
    return made


def test_values_have_the_bytes_of_the_golden_file():
    if not GOLDEN.exists():
        GOLDEN.write_text("[\n" + ",\n".join(map(json.dumps, lines())) + "\n]\n")
        raise AssertionError(f"wrote {GOLDEN}; look at it and run again")
    assert lines() == json.loads(GOLDEN.read_text())


@pytest.mark.parametrize("line", range(len(VALUES)))
def test_the_bytes_of_the_golden_file_are_read_as_the_value(line):
    ddl, value = VALUES[line]
    raw = bytes.fromhex(json.loads(GOLDEN.read_text())[line][3])
    assert repr(tuple_of(decoder(ddl)(raw))) == repr(tuple_of(value))
    column = to_arrow(parse_type(ddl), [decoder(ddl)(raw)])
    assert repr(ColumnCodec(ddl).decode([raw]).to_pylist()) == repr(column.to_pylist())


def test_golden_values_of_earlier_generations_are_read_as_the_last_type():
    ddl, earlier, _ = GENERATIONS[-1]
    raws = [bytes.fromhex(line[3]) for line in json.loads(GOLDEN.read_text())[-3:]]
    found = [tuple(reader_of(ddl, earlier)(raw)) for raw in raws]
    assert found == [("x", 1.0), ("y", 2.0), ("z", 3.5)]


def test_every_type_has_a_golden_value():
    there = {parse_type(ddl).name for ddl, _ in VALUES}
    assert there == {
        *("tinyint", "smallint", "int", "bigint", "float", "double", "boolean", "string"),
        *("binary", "date", "timestamp", "decimal", "array", "map", "struct"),
    }


def tuple_of(value):
    """A named tuple as a plain one, at every depth."""
    if isinstance(value, tuple):
        return tuple(map(tuple_of, value))
    return [tuple_of(item) for item in value] if isinstance(value, list) else value
