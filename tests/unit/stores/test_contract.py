"""What every store does; a new store joins by a new parameter of the fixture."""

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage_state.errors import (
    AlreadyExists,
    Bug,
    CorruptState,
    LocalDiskError,
    ObjectNotFound,
    UserError,
)
from moorage_state.stores import MemoryStore, ObjectStore, open_store

BAD_KEYS = [
    "",
    "/a",
    "a/",
    "a//b",
    "..",
    "a/../b",
    "./a",
    "a/.lock",
    ".tmp/x",
    "a\0b",
    "a\nb",
    "\\",
]


def test_an_object_reads_back_as_it_was_put(store: ObjectStore) -> None:
    store.put("a/b/c", b"one")
    assert store.get("a/b/c") == b"one"


def test_put_replaces_the_whole_object(store: ObjectStore) -> None:
    store.put("a", b"a long first version")
    store.put("a", b"short")
    assert store.get("a") == b"short"


def test_an_absent_object_is_not_found(store: ObjectStore) -> None:
    store.put("chk-1/MANIFEST", b"")
    for key in ("a", "chk-1", "chk-1/x", "chk-2/MANIFEST"):
        with pytest.raises(ObjectNotFound, match=key):
            store.get(key)
        assert store.head(key) is None


def test_an_empty_object_is_an_object(store: ObjectStore) -> None:
    store.put("empty", b"")
    assert store.get("empty") == b""
    assert [info.size for info in store.list("")] == [0]


def test_put_if_absent_creates_once(store: ObjectStore) -> None:
    store.put_if_absent("log/1", b"first")
    with pytest.raises(AlreadyExists, match="log/1"):
        store.put_if_absent("log/1", b"second")
    assert store.get("log/1") == b"first"


def test_put_if_absent_works_again_after_delete(store: ObjectStore) -> None:
    store.put_if_absent("log/1", b"first")
    store.delete("log/1")
    store.put_if_absent("log/1", b"second")
    assert store.get("log/1") == b"second"


@pytest.mark.scenario(26)
def test_of_racing_creators_exactly_one_wins(store: ObjectStore) -> None:
    winners: list[tuple[str, bytes]] = []
    ready = threading.Barrier(8)

    def race(me: bytes) -> None:
        ready.wait()
        for n in range(20):
            try:
                store.put_if_absent(f"log/{n}", me)
            except AlreadyExists:
                continue
            winners.append((f"log/{n}", me))

    threads = [threading.Thread(target=race, args=(b"%d" % i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(key for key, _ in winners) == sorted(f"log/{n}" for n in range(20))
    assert all(store.get(key) == me for key, me in winners)


def test_a_reader_never_sees_half_of_a_replacement(store: ObjectStore) -> None:
    versions = [bytes([n]) * 300_000 for n in range(8)]
    store.put("x", versions[0])
    seen: set[bytes] = set()
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.add(store.get("x"))

    reader = threading.Thread(target=read)
    reader.start()
    for version in versions:
        store.put("x", version)
    done.set()
    reader.join()
    assert seen <= set(versions)


def test_putting_and_deleting_in_one_folder_do_not_disturb_each_other(store: ObjectStore) -> None:
    def churn(me: int) -> None:
        for n in range(25):
            store.put(f"deep/er/{me}-{n}", b"x")
            assert store.get(f"deep/er/{me}-{n}") == b"x"
            store.delete(f"deep/er/{me}-{n}")

    failures: list[BaseException] = []

    def run(me: int) -> None:
        try:
            churn(me)
        except BaseException as error:  # noqa: BLE001 - shown by the assertion below
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert list(store.list("")) == []


def test_files_go_in_and_come_out_unchanged(store: ObjectStore, tmp_path: Path) -> None:
    source, target = tmp_path / ".source", tmp_path / ".target"
    source.write_bytes(bytes(range(256)) * 10_000)
    target.write_bytes(b"something longer that was there before" * 100_000)
    store.put_file("sst/1", source)
    store.get_to_file("sst/1", target)
    assert target.read_bytes() == source.read_bytes()


@pytest.mark.parametrize(
    ("offset", "length"), [(0, 5), (3, 4), (7, None), (0, 10), (9, 1), (10, None), (10, 0), (0, 0)]
)
def test_a_slice_is_those_bytes_of_the_object(
    store: ObjectStore, tmp_path: Path, offset: int, length: int | None
) -> None:
    data = b"0123456789"
    store.put("pack", data)
    wanted = data[offset:] if length is None else data[offset : offset + length]
    store.get_to_file("pack", tmp_path / ".x", offset=offset, length=length)
    assert store.get("pack", offset=offset, length=length) == wanted
    assert (tmp_path / ".x").read_bytes() == wanted


@pytest.mark.parametrize(("offset", "length"), [(0, 11), (9, 2), (11, None), (11, 0), (10, 1)])
def test_a_slice_beyond_the_end_of_the_object_is_corruption_and_leaves_no_file(
    store: ObjectStore, tmp_path: Path, offset: int, length: int | None
) -> None:
    store.put("pack", b"0123456789")
    with pytest.raises(CorruptState, match=r"shorter.*size=10.*path=\S*pack"):
        store.get("pack", offset=offset, length=length)
    with pytest.raises(CorruptState, match="shorter"):
        store.get_to_file("pack", tmp_path / ".x", offset=offset, length=length)
    assert not (tmp_path / ".x").exists()


def test_a_slice_of_an_absent_object_is_not_found(store: ObjectStore, tmp_path: Path) -> None:
    for offset, length in ((0, 0), (0, 1), (5, None)):
        with pytest.raises(ObjectNotFound):
            store.get("pack", offset=offset, length=length)
        with pytest.raises(ObjectNotFound):
            store.get_to_file("pack", tmp_path / ".x", offset=offset, length=length)


def test_a_slice_that_no_object_has_is_a_bug(store: ObjectStore) -> None:
    store.put("a", b"x")
    for offset, length in ((-1, None), (0, -1)):
        with pytest.raises(Bug):
            store.get("a", offset=offset, length=length)


def test_a_missing_local_file_is_a_local_error_and_stores_nothing(
    store: ObjectStore, tmp_path: Path
) -> None:
    with pytest.raises(LocalDiskError, match="nowhere"):
        store.put_file("a", tmp_path / "nowhere")
    assert store.head("a") is None


def test_an_unwritable_local_target_is_a_local_error(store: ObjectStore, tmp_path: Path) -> None:
    store.put("a", b"x")
    with pytest.raises(LocalDiskError, match="no-folder"):
        store.get_to_file("a", tmp_path / "no-folder" / "x")


def test_getting_an_absent_object_to_a_file_leaves_no_file(
    store: ObjectStore, tmp_path: Path
) -> None:
    with pytest.raises(ObjectNotFound):
        store.get_to_file("a", tmp_path / ".x")
    assert not (tmp_path / ".x").exists()


def test_head_tells_key_size_and_time(store: ObjectStore) -> None:
    store.put("a/b", b"12345")
    info = store.head("a/b")
    assert info is not None
    assert (info.key, info.size) == ("a/b", 5)
    assert abs(datetime.now(UTC) - info.modified) < timedelta(minutes=1)


def test_listing_is_by_text_prefix_in_key_order(store: ObjectStore) -> None:
    keys = ["a", "b/1", "b-1", "b/1-2/x", "b/10", "b/2/y", "b0", "c/é", "c/z"]
    for key in keys:
        store.put(key, b"")
    assert [info.key for info in store.list("")] == sorted(keys)
    assert [info.key for info in store.list("b")] == [
        "b-1", "b/1", "b/1-2/x", "b/10", "b/2/y", "b0"
    ]  # fmt: skip
    assert [info.key for info in store.list("b/1")] == ["b/1", "b/1-2/x", "b/10"]
    assert [info.key for info in store.list("b/2/")] == ["b/2/y"]
    assert list(store.list("nothing/here")) == []


def test_listing_can_start_after_a_key(store: ObjectStore) -> None:
    for key in ["b/1", "b/2/x", "b/2/y", "b/3"]:
        store.put(key, b"")
    assert [i.key for i in store.list("b/", "b/1")] == ["b/2/x", "b/2/y", "b/3"]
    assert [i.key for i in store.list("b/", "b/2/x")] == ["b/2/y", "b/3"]
    assert [i.key for i in store.list("b/", "b/2/zzz")] == ["b/3"]
    assert list(store.list("b/", "z")) == []


def test_delete_removes_one_object_and_may_be_repeated(store: ObjectStore) -> None:
    store.put("a/b", b"")
    store.put("a/c", b"")
    store.delete("a/b")
    store.delete("a/b")
    store.delete("a")
    assert [info.key for info in store.list("")] == ["a/c"]


def test_many_objects_are_removed_at_once_and_only_those(store: ObjectStore) -> None:
    for n in range(12):
        store.put(f"shared/{n}", b"x")
    gone = [f"shared/{n}" for n in range(10)]
    assert store.delete_many([*gone, "never/there"]) == {}
    assert store.delete_many(gone) == {}
    assert store.delete_many([]) == {}
    assert [info.key for info in store.list("")] == ["shared/10", "shared/11"]


def test_of_many_objects_none_goes_when_a_key_is_not_allowed(store: ObjectStore) -> None:
    store.put("a", b"x")
    with pytest.raises(UserError, match="key"):
        store.delete_many(["a", "../b"])
    assert store.get("a") == b"x"


def test_the_store_tells_the_time_by_the_clock_that_dates_its_objects(store: ObjectStore) -> None:
    before = store.now()
    store.put("a", b"x")
    info, after = store.head("a"), store.now()
    assert info is not None
    assert before <= info.modified <= after
    assert [info.key for info in store.list("")] == ["a"]


@pytest.mark.parametrize("key", BAD_KEYS)
def test_keys_that_leave_the_store_or_hide_in_it_are_refused(store: ObjectStore, key: str) -> None:
    for attempt in (
        lambda: store.get(key),
        lambda: store.put(key, b""),
        lambda: store.put_if_absent(key, b""),
        lambda: store.head(key),
        lambda: store.delete(key),
        lambda: store.delete_many([key]),
    ):
        with pytest.raises(UserError, match="key"):
            attempt()


@pytest.mark.parametrize("prefix", ["/", "/a", "../", "a/../", ".tmp/", "a/.x"])
def test_prefixes_that_leave_the_store_are_refused(store: ObjectStore, prefix: str) -> None:
    with pytest.raises(UserError):
        list(store.list(prefix))


def test_a_key_longer_than_s3_takes_is_refused(store: ObjectStore) -> None:
    with pytest.raises(UserError, match="1024"):
        store.put("/".join(["x" * 100] * 11), b"")
    with pytest.raises(UserError, match="255"):
        store.put("x" * 256, b"")


def test_the_address_of_a_store_opens_it_again(store: ObjectStore) -> None:
    store.put("a", b"here")
    assert open_store(store.url).get("a") == b"here"


_SEGMENT = st.text("ab-.0_", min_size=1, max_size=3).filter(lambda s: not s.startswith("."))
_KEYS = st.lists(_SEGMENT, min_size=1, max_size=3).map("/".join)


@given(st.sets(_KEYS, max_size=12), _KEYS)
def test_the_memory_store_lists_like_a_sorted_filter(keys: set[str], prefix: str) -> None:
    store = MemoryStore("property")
    for key in keys:
        store.put(key, b"")
    assert [i.key for i in store.list(prefix)] == sorted(k for k in keys if k.startswith(prefix))
