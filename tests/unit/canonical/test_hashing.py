"""Key groups without Spark; the values are Spark's own (tests/spark compares all key types)."""

import datetime
import decimal
from datetime import UTC

import pytest

from moorage_state.canonical import key_groups
from moorage_state.canonical.hashing import spark_xxhash64
from moorage_state.errors import UserError


def test_a_key_group_is_never_negative() -> None:
    groups = key_groups(["bigint"], 128)((n,) for n in range(-500, 500))
    assert min(groups) >= 0
    assert max(groups) <= 127
    assert len(set(groups)) == 128


def test_the_declared_type_and_not_the_value_decides_the_hash() -> None:
    assert spark_xxhash64(["int"])((1,)) != spark_xxhash64(["bigint"])((1,))
    assert spark_xxhash64(["int"])((1,)) == spark_xxhash64(["smallint"])((1,))
    short, long = decimal.Decimal("1.5"), decimal.Decimal("1.50")
    assert spark_xxhash64(["decimal(9,2)"])((short,)) == spark_xxhash64(["decimal(9,2)"])((long,))


def test_a_null_column_leaves_the_hash_of_the_others() -> None:
    assert spark_xxhash64(["int", "string"])((None, "a")) == spark_xxhash64(["string"])(("a",))


def test_times_before_1970_are_hashed() -> None:
    digest = spark_xxhash64(["date", "timestamp"])
    early = (datetime.date(1, 1, 1), datetime.datetime(1, 1, 1, tzinfo=UTC))
    assert digest(early) != digest((datetime.date(1, 1, 2), early[1]))


def test_another_hash_function_is_refused() -> None:
    with pytest.raises(UserError, match="key_hash=other"):
        key_groups(["int"], 128, "other")
