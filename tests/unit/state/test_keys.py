"""Canonical bytes of keys: one key, one byte string; and the layout of what is stored."""

import datetime
import decimal
from datetime import UTC
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_state.keylayout import (
    EVENT_TIMERS,
    KEYED_STATE,
    decode_time,
    encode_time,
    key_prefix,
    prefix_end,
    state_id,
    timer_entry,
    timer_parts,
)
from moorage_state.keys import KeyCodec

D = decimal.Decimal
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
GROUPS = st.integers(0, 32767)
texts = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = {
    "tinyint": st.integers(-128, 127),
    "smallint": st.integers(-(1 << 15), (1 << 15) - 1),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "bigint": INT64,
    "string": texts,
    "binary": st.binary(),
    "boolean": st.booleans(),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "decimal(38,10)": st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: D(f"{n}E-10")),
}
SORTED = ["tinyint", "smallint", "int", "bigint", "boolean", "date", "timestamp", "binary"]
columns = st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=4)


@given(st.data())
def test_every_key_reads_back_equal(data):
    types = data.draw(columns)
    key = data.draw(st.tuples(*(VALUES[t] for t in types)))
    codec = KeyCodec(types)
    assert codec.decode(codec.encode(key)) == key


@given(st.data())
def test_two_keys_have_the_same_bytes_only_if_they_are_equal(data):
    types = data.draw(columns)
    keys = st.tuples(*(VALUES[t] for t in types))
    one, other = data.draw(keys), data.draw(keys)
    encode = KeyCodec(types).encode
    assert (encode(one) == encode(other)) == (one == other)


@pytest.mark.parametrize("ddl", SORTED)
@given(data=st.data())
def test_bytes_sort_as_the_values_do(ddl, data):
    one, other = data.draw(VALUES[ddl]), data.draw(VALUES[ddl])
    encode = KeyCodec([ddl]).encode
    assert (encode((one,)) < encode((other,))) == (one < other)


@pytest.mark.parametrize(
    ("types", "key", "raw"),
    [
        (["long"], (0,), "8000000000000000"),
        (["long"], (-1,), "7fffffffffffffff"),
        (["int"], (5,), "8000000000000005"),
        (["string"], ("",), ""),
        (["string"], ("h\u00e9",), "68c3a9"),
        (["binary"], (b"\x00\xff",), "00ff"),
        (["boolean"], (True,), "8000000000000001"),
        (["date"], (datetime.date(1970, 1, 1),), "80000000000af93b"),
        (["timestamp"], (datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),), "80000000000f4240"),
        (["decimal(5,2)"], (D("-1.5"),), "2d312e3530"),
        (["decimal(10,7)"], (D("0"),), "302e30303030303030"),
        (["long", "string"], (1, "a"), "00000008800000000000000100000001" + "61"),
        (["string", "string"], ("", "a"), "000000000000000161"),
        (["string", "string"], ("a", ""), "000000016100000000"),
    ],
)
def test_the_bytes_of_keys_stay_what_they_are(types, key, raw):
    assert KeyCodec(types).encode(key).hex() == raw


def test_a_decimal_key_has_one_form_whatever_its_zeros_and_the_threads_context():
    encode = KeyCodec(["decimal(38,2)"]).encode
    with decimal.localcontext(decimal.Context(prec=2, capitals=0)):
        assert encode((D("-0.00"),)) == encode((D("0"),)) == b"0.00"
        assert encode((D("1E+2"),)) == encode((D("100.0"),)) == b"100.00"
        assert encode((D(10) ** 35,)) == b"1" + b"0" * 35 + b".00"


def test_a_timestamp_key_is_the_same_in_every_zone():
    encode = KeyCodec(["timestamp"]).encode
    noon = datetime.datetime(2013, 7, 1, 12, tzinfo=UTC)
    zone = datetime.timezone(datetime.timedelta(hours=-5))
    assert encode((noon,)) == encode((noon.astimezone(zone),))


@pytest.mark.parametrize("ddl", ["double", "float", "array<long>", "map<string,long>", "a long"])
def test_columns_without_a_canonical_form_are_refused_with_what_to_do(ddl):
    with pytest.raises(ValueError, match=r"a key column cannot be .*; cast it to a string"):
        KeyCodec(["long", ddl])


def test_a_key_with_another_number_of_columns_is_refused():
    with pytest.raises(ValueError, match="zip"):
        KeyCodec(["long", "string"]).encode((1,))


def test_manifests_record_canonical_types():
    assert KeyCodec(["long", "DECIMAL(5)", "bool"]).ddl == ["bigint", "decimal(5,0)", "boolean"]


@given(INT64, INT64)
def test_times_sort_as_numbers_and_read_back(one, other):
    assert (encode_time(one) < encode_time(other)) == (one < other)
    assert decode_time(encode_time(one)) == one
    assert len(encode_time(one)) == 8


@given(GROUPS, INT64, st.binary())
def test_a_timer_entry_reads_back_into_its_parts(group, time_ms, key):
    assert timer_parts(timer_entry(group, time_ms, key)) == (group, time_ms, key)


@given(st.lists(st.tuples(GROUPS, INT64, st.binary(max_size=3)), max_size=8))
def test_timer_entries_sort_by_key_group_time_and_key(timers):
    assert sorted(timer_entry(*t) for t in timers) == [timer_entry(*t) for t in sorted(timers)]


@given(GROUPS, st.binary(max_size=5), st.binary(max_size=5))
def test_no_keys_state_lies_under_another_keys_prefix(group, one, other):
    inner, outer = key_prefix(group, one), key_prefix(group, other)
    assert (one == other) or not inner.startswith(outer)


def test_state_and_timers_of_a_key_group_lie_apart():
    assert key_prefix(258, b"ab").hex() == "0102" + "01" + "00000002" + "6162"
    assert timer_entry(258, 0, b"ab").hex() == "0102" + "02" + "8000000000000000" + "6162"
    assert (KEYED_STATE, EVENT_TIMERS) == (1, 2)


@given(st.binary(min_size=1), st.binary())
def test_the_end_of_a_prefix_lies_behind_all_it_leads_and_nothing_else(prefix, rest):
    if not prefix.strip(b"\xff"):
        return
    end = prefix_end(prefix)
    assert prefix <= prefix + rest < end
    assert (prefix <= rest < end) == rest.startswith(prefix)


def test_a_prefix_of_nothing_but_ff_has_no_end():
    with pytest.raises(ValueError, match="has no end"):
        prefix_end(b"\xff\xff")


def test_ids_of_states_are_the_same_in_every_process():
    assert state_id("count").hex() == "64da6831"
    assert state_id("").hex() == "02cc5d05"


_KEYS = {
    "bigint": st.integers(-(2**63), 2**63 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "string": st.text(max_size=9),
}


def _of_one_type(ddl: str) -> st.SearchStrategy[tuple[str, list[tuple[int, Any]]]]:
    keys = st.tuples(st.integers(0, 32767), _KEYS[ddl])
    return st.tuples(st.just(ddl), st.lists(keys, min_size=1, max_size=20, unique=True))


@given(case=st.sampled_from(sorted(_KEYS)).flatmap(_of_one_type), runs_on=st.booleans())
def test_keys_are_put_in_the_order_they_are_stored_in_but_for_the_ends(
    case: tuple[str, list[tuple[int, Any]]], *, runs_on: bool
) -> None:
    ddl, keys = case
    codec = KeyCodec([ddl])
    each = [key_prefix(group, codec.encode((key,))) for group, key in keys]
    groups, values = np.array([g for g, _ in keys], np.int32), [k for _, k in keys]
    found = codec.ordered(groups, [values], each[0] if runs_on else b"another")
    assert found.runs_on == runs_on
    assert sorted(found.order.tolist()) == list(range(len(keys)))
    assert [each[i] for i in found.order] == found.prefixes
    first = each[:1] if runs_on and len(each) > 1 else []
    assert found.prefixes == [*first, *sorted(each[len(first) : -1]), each[-1]]


def test_keys_of_several_columns_are_put_in_order() -> None:
    codec = KeyCodec(["string", "bigint"])
    keys = [("b", -4), ("b", -5), ("a", 2)]
    each = [
        key_prefix(group, codec.encode(key)) for group, key in zip([3, 3, 1], keys, strict=True)
    ]
    found = codec.ordered(np.array([3, 3, 1]), [["b", "b", "a"], [-4, -5, 2]])
    assert found.order.tolist() == [1, 0, 2]
    assert found.prefixes == [each[1], each[0], each[2]]
