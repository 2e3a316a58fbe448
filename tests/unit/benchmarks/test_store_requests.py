"""Requests are told apart as stores bill them."""

import pytest
from benchmarks.store_requests import kind


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        ("PUT", "/moorage/requests/chk-4/MANIFEST", "write"),
        ("POST", "/moorage/requests/shared/x?uploads", "write"),
        ("POST", "/moorage?delete", "delete"),
        ("GET", "/moorage?list-type=2&prefix=requests", "list"),
        ("GET", "/moorage/requests/log/00000004.json", "read"),
        ("HEAD", "/moorage/requests/shared/x", "head"),
        ("PUT", "/moorage/requests/lock.json", "lock"),
    ],
)
def test_a_request_is_of_the_kind_that_a_store_bills(method, target, expected):
    assert kind(method, target) == expected
