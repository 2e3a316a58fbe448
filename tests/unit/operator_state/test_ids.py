"""Operator ids are those that Flink gives."""

import pytest

from moorage_state.operator_state.ids import operator_id


@pytest.mark.parametrize(
    ("uid", "expected"),
    [
        ("source-id", "bd9c186e89cc37a76d776844dfa8ccba"),
        ("mapper-id", "c9cecfed5cae9d489451c50e442666e3"),
        ("a", "897859f6655555855a890e51483ab5e6"),
    ],
)
def test_ids_are_those_of_flink(uid, expected):
    assert operator_id(uid) == expected


def test_long_uids_and_uids_beyond_ascii_have_ids_of_128_bits():
    ids = {operator_id("x" * n) for n in range(40)} | {operator_id("größe")}
    assert len(ids) == 41
    assert {len(one) for one in ids} == {32}
