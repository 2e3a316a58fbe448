"""`moorage store check`: a store that does not do what checkpoints rely on is found out."""

from datetime import UTC, datetime, timedelta

import pytest

from moorage.offline.store_check import check_store
from moorage_state.errors import StoreUnavailable, UserError
from moorage_state.stores import LocalStore, MemoryStore

NAMES = ["write and read", "create once", "large objects", "list", "delete"]


def now():
    return datetime.now(UTC)


class Forgets(MemoryStore):
    """Each of its kind does one thing wrong."""

    def get(self, key, *, offset=0, length=None):
        return super().get(key, offset=offset, length=length)[:-1]


class IgnoresConditions(MemoryStore):
    def put_if_absent(self, key, data):
        self.put(key, data)


class LosesParts(MemoryStore):
    def put_file(self, key, path):
        self.put(key, path.read_bytes()[::-1])


class ListsByCase(MemoryStore):
    def list(self, prefix, start_after=""):
        yield from sorted(super().list(prefix, start_after), key=lambda info: info.key.lower())


class KeepsDeleted(MemoryStore):
    def delete_many(self, keys):
        return super().delete_many([key for key in keys if not key.endswith("/0")])


class Refuses(MemoryStore):
    def put_if_absent(self, key, data):  # noqa: ARG002
        raise UserError("s3 store has no conditional writes: store=s3://b/x")


class Down(MemoryStore):
    def put(self, key, data):  # noqa: ARG002
        raise StoreUnavailable("the store does not answer")


def test_a_store_that_keeps_the_contract_passes_and_nothing_stays_behind(tmp_path, s3_store):
    (tmp_path / "store").mkdir()
    for store in (MemoryStore("memory"), LocalStore(tmp_path / "store"), s3_store):
        store.put("chk-1/MANIFEST", b"another's")
        report = check_store(store, now)
        assert [check.name for check in report.checks] == NAMES
        assert report.failed == []
        assert report.clock_ahead_seconds is not None
        assert abs(report.clock_ahead_seconds) < 60
        assert [info.key for info in store.list("")] == ["chk-1/MANIFEST"]


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        (Forgets, "write and read", "reads back as it was before"),
        (IgnoresConditions, "create once", "8 of 8 created one object, where one may"),
        (Refuses, "create once", "no conditional writes"),
        (LosesParts, "large objects", "a slice of a large object is wrong"),
        (ListsByCase, "list", "another order than that of the bytes"),
        (KeepsDeleted, "delete", "are still there: keys=\\['probe/[0-9a-f]+/deleted/0'\\]"),
    ],
)
def test_what_a_store_does_wrong_is_named(kind, name, words):
    failed = {check.name: check for check in check_store(kind("bad"), now).failed}
    assert name in failed
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(failed[name].problem)


def test_a_clock_that_is_ahead_is_told():
    def tomorrow():
        return now() + timedelta(days=1)

    assert check_store(MemoryStore("memory"), tomorrow).clock_ahead_seconds == pytest.approx(
        86_400, abs=60
    )


def test_where_nothing_can_be_written_nothing_else_is_tried():
    with pytest.raises(StoreUnavailable, match="does not answer"):
        check_store(Down("down"), now)
