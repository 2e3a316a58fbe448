"""Flink's key hash: its golden vectors, and that columns are hashed as single keys are."""

import datetime
import decimal
import struct
from datetime import UTC

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_state.canonical import key_groups
from moorage_state.errors import UserError
from moorage_state.keygroups import (
    FLINK_MURMUR,
    KEY_HASHES,
    default_max_parallelism,
    resolved_max_parallelism,
)
from moorage_state.keyhashes import (
    bytes_hashes,
    flink_groups,
    flink_hashes,
    groups_of_hashes,
    murmur,
    utf8_hashes,
)
from moorage_state.keys import KeyCodec

VECTORS = [
    (0, 593689054, 94, 94, 31198),
    (1, 68075478, 86, 198, 16342),
    (-1, 1982413648, 80, 208, 15184),
    (42, 1134849565, 29, 685, 28189),
    (127, 1931274395, 27, 395, 26779),
    (128, 132521001, 41, 681, 7209),
    (2147483647, 1653689534, 62, 14, 19646),
    (-2147483648, 1718298732, 108, 12, 10348),
    (97, 1455541201, 81, 1, 19409),
    (-836031825, 1662039673, 121, 313, 13945),
    (97520992, 1330823394, 98, 594, 16610),
]


def plain_java_string_hash(text):
    units = struct.unpack(f"<{len(text.encode('utf-16-le')) // 2}H", text.encode("utf-16-le"))
    found = 0
    for unit in units:
        found = (31 * found + unit) & 0xFFFFFFFF
    return found - (1 << 32) if found >= 1 << 31 else found


def plain_java_bytes_hash(raw):
    found = 1
    for byte in raw:
        found = (31 * found + (byte - 256 if byte > 127 else byte)) & 0xFFFFFFFF
    return found - (1 << 32) if found >= 1 << 31 else found


def hashes_of(ddl, *keys):
    return flink_hashes([ddl])([list(keys)]).tolist()


@pytest.mark.parametrize(("code", "mixed", "of128", "of720", "of32768"), VECTORS)
def test_murmur_and_key_groups_are_those_that_flink_computes(code, mixed, of128, of720, of32768):
    column = np.array([code], np.int32)
    assert murmur(column).tolist() == [mixed]
    groups = [groups_of_hashes(column, n).tolist() for n in (128, 720, 32768)]
    assert groups == [[of128], [of720], [of32768]]


def test_all_vectors_come_out_of_one_column():
    column = np.array([row[0] for row in VECTORS], np.int32)
    assert groups_of_hashes(column, 720).tolist() == [row[3] for row in VECTORS]


@pytest.mark.parametrize(
    ("ddl", "key", "group"),
    [
        ("long", 1, 86),
        ("long", -1, 94),
        ("long", 123456789012345, 61),
        ("boolean", True, 77),
        ("int", 5, 126),
        ("string", "", 94),
        ("string", "a", 81),
        ("string", "user-1", 121),
        ("string", "flink", 98),
    ],
)
def test_typed_keys_have_the_key_groups_that_flink_gives_them(ddl, key, group):
    assert flink_groups([ddl], 128)([[key]]).tolist() == [group]
    assert key_groups([ddl], 128, FLINK_MURMUR)([(key,)]) == [group]


def test_hash_codes_are_javas():
    assert hashes_of("long", 123456789012345, -1) == [-2045923535, 0]
    assert hashes_of("boolean", True, False) == [1231, 1237]
    assert hashes_of("string", "user-1", "flink", "") == [-836031825, 97520992, 0]
    assert hashes_of("tinyint", -5) == hashes_of("smallint", -5) == hashes_of("int", -5) == [-5]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), max_size=20))
def test_strings_of_any_plane_hash_as_java_hashes_them(texts):
    assert hashes_of("string", *texts) == [plain_java_string_hash(text) for text in texts]


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_other_keys_hash_as_java_hashes_their_canonical_bytes(keys):
    assert hashes_of("binary", *keys) == [plain_java_bytes_hash(raw) for raw in keys]


@pytest.mark.parametrize(
    ("types", "key"),
    [
        (["date"], (datetime.date(2013, 1, 1),)),
        (["timestamp"], (datetime.datetime(2013, 1, 1, tzinfo=UTC),)),
        (["decimal(5,2)"], (decimal.Decimal("-1.5"),)),
        (["string", "long"], ("a", 7)),
    ],
)
def test_canonical_bytes_stand_for_keys_that_java_has_no_plain_hash_for(types, key):
    expected = plain_java_bytes_hash(KeyCodec(types).encode(key))
    assert flink_hashes(types)([[part] for part in key]).tolist() == [expected]


def test_slices_of_a_larger_buffer_are_hashed_where_they_lie():
    offsets = np.array([2, 4, 4, 7], np.int64)
    expected = [plain_java_string_hash(text) for text in ("cd", "", "efg")]
    assert utf8_hashes(b"abcdefgh", offsets).tolist() == expected
    expected = [plain_java_bytes_hash(raw) for raw in (b"cd", b"", b"efg")]
    assert bytes_hashes(b"abcdefgh", offsets).tolist() == expected
    text = "\u00e9\U0001f600x"
    raw = np.array([0, 2, 6, 7], np.int64)
    expected = [plain_java_string_hash(part) for part in text]
    assert utf8_hashes(text.encode(), raw).tolist() == expected


def test_a_null_key_has_the_group_of_hash_zero_and_disturbs_no_other():
    groups = flink_groups(["string"], 128)([["a", None, "flink"]]).tolist()
    assert groups == [81, 94, 98]
    several = flink_hashes(["string", "long"])([["a", None], [1, 2]]).tolist()
    assert several[1] == 0


def test_an_empty_column_has_no_groups():
    for types in (["string"], ["long"], ["string", "date"]):
        assert flink_groups(types, 128)([[] for _ in types]).tolist() == []


def test_groups_cover_all_of_many_keys():
    groups = flink_groups(["long"], 128)([np.arange(20_000)])
    assert set(groups.tolist()) == set(range(128))


def test_a_hash_that_is_not_known_is_refused_with_those_that_are():
    with pytest.raises(UserError, match="key_hash=md5 known=spark-xxhash64,flink-murmur"):
        key_groups(["string"], 128, "md5")


def test_each_known_hash_gives_each_key_one_group():
    for key_hash in KEY_HASHES:
        groups = key_groups(["string"], 7, key_hash)([("a",), ("b",), ("a",)])
        assert groups[0] == groups[2]
        assert all(0 <= group < 7 for group in groups)


@pytest.mark.parametrize(
    ("wanted", "restored", "expected"),
    [(None, None, 128), (None, 720, 720), (720, None, 720), (720, 720, 720)],
)
def test_a_derived_max_parallelism_is_that_of_the_snapshot(wanted, restored, expected):
    assert resolved_max_parallelism(3, wanted, restored) == expected
    assert resolved_max_parallelism(200, None, None) == default_max_parallelism(200) == 512


@pytest.mark.parametrize(
    ("parallelism", "wanted", "restored", "words"),
    [
        (3, 128, 720, "set=128 snapshot=720; set it back to 720, or leave it out"),
        (129, None, 128, "parallelism=129 maxParallelism=128; lower parallelism"),
        (0, None, None, "parallelism=0"),
        (1, 32769, None, "at most 32768"),
    ],
)
def test_a_max_parallelism_that_does_not_fit_is_refused(parallelism, wanted, restored, words):
    with pytest.raises(ValueError, match=words):
        resolved_max_parallelism(parallelism, wanted, restored)
