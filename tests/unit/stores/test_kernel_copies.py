"""A directory's objects are copied by the kernel; whatever it does, the bytes are right."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from moorage_state.errors import LocalDiskError, StoreUnavailable
from moorage_state.stores import LocalStore, local

DATA = bytes(range(256)) * 20_000

SendFile = Callable[[int, int, int, int], int]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path / "store", create=True)
    store.put("a", DATA)
    return store


def refusing(_out: int, _in: int, _offset: int, _count: int) -> int:
    raise OSError(errno.EINVAL, "not on this file system")


def failing_halfway(out: int, source: int, offset: int, count: int) -> int:
    if offset > 200_000:
        raise OSError(errno.EIO, "broken in the middle")
    return REAL(out, source, offset, min(count, 150_001))


def in_small_pieces(out: int, source: int, offset: int, count: int) -> int:
    return REAL(out, source, offset, min(count, 70_001))


REAL: SendFile = os.sendfile


@pytest.mark.parametrize("send", [REAL, refusing, failing_halfway, in_small_pieces])
@pytest.mark.parametrize(("offset", "length"), [(0, None), (12_345, 3_000_000), (777, 0)])
def test_a_file_is_whole_however_far_the_kernel_came(
    store: LocalStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    send: SendFile,
    offset: int,
    length: int | None,
) -> None:
    monkeypatch.setattr(os, "sendfile", send)
    store.get_to_file("a", tmp_path / "x", offset=offset, length=length)
    end = len(DATA) if length is None else offset + length
    assert (tmp_path / "x").read_bytes() == DATA[offset:end]


def test_files_longer_than_one_request_to_the_kernel_are_whole(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def counting(out: int, source: int, offset: int, count: int) -> int:
        asked.append(count)
        return REAL(out, source, offset, count)

    monkeypatch.setattr(local, "_SEND_BYTES", 1_000_000)
    monkeypatch.setattr(os, "sendfile", counting)
    store.get_to_file("a", tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == DATA
    assert len(asked) == 6
    assert max(asked) == 1_000_000


def test_an_object_that_shrinks_while_it_is_copied_is_reported_and_leaves_no_file(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shrinking(out: int, source: int, offset: int, count: int) -> int:
        os.truncate(store.root / "a", 100_000)
        return REAL(out, source, offset, count)

    monkeypatch.setattr(os, "sendfile", shrinking)
    with pytest.raises(StoreUnavailable, match="object shrank while it was read"):
        store.get_to_file("a", tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_full_volume_is_the_local_sides_fault(store: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "full").symlink_to("/dev/full")
    with pytest.raises(LocalDiskError, match="cannot write local file"):
        store.get_to_file("a", tmp_path / "full")
