"""What only a directory does: durability, leftovers, and refusing to pass for empty."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from moorage_state.errors import MoorageError, ObjectNotFound, StoreUnavailable, UserError
from moorage_state.stores import LocalStore

_SEGMENT = st.text("ab-.0_", min_size=1, max_size=3).filter(lambda s: not s.startswith("."))
_KEYS = st.lists(_SEGMENT, min_size=1, max_size=3).map("/".join)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store", create=True)


def test_a_missing_directory_is_refused_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"does not exist.*create it"):
        LocalStore(tmp_path / "unmounted")
    assert not (tmp_path / "unmounted").exists()


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="directory"):
        LocalStore(tmp_path / "file")


def test_a_directory_that_vanished_is_unavailable_not_empty(
    store: LocalStore, tmp_path: Path
) -> None:
    store.put("a", b"")
    store.root.rename(tmp_path / "elsewhere")
    for attempt in (
        lambda: store.get("a"),
        lambda: store.head("a"),
        lambda: list(store.list("")),
        lambda: list(store.list("log/")),
        lambda: store.delete("a"),
        lambda: store.put("a", b""),
        lambda: store.put_if_absent("b", b""),
    ):
        with pytest.raises(StoreUnavailable, match="gone"):
            attempt()
    assert not store.root.exists()


def test_a_file_where_a_folder_belongs_is_an_error_not_empty(store: LocalStore) -> None:
    store.put("log", b"")
    for attempt in (
        lambda: list(store.list("log/")),
        lambda: store.get("log/1"),
        lambda: store.head("log/1"),
        lambda: store.put("log/1", b""),
        lambda: store.put_if_absent("log/1", b""),
        lambda: store.put_if_absent("log/1/2", b""),
    ):
        with pytest.raises(UserError, match="move it away"):
            attempt()


def test_a_file_in_the_place_of_the_folder_for_new_files_is_named(store: LocalStore) -> None:
    (store.root / ".tmp").write_text("")
    with pytest.raises(UserError, match="file is in the place of a directory"):
        store.put_if_absent("a", b"")


def test_a_folder_where_an_object_belongs_is_an_error_on_write(store: LocalStore) -> None:
    store.put("a/b", b"")
    with pytest.raises(UserError, match="directory is in the place of a file"):
        store.put("a", b"")
    with pytest.raises(ObjectNotFound):
        store.get("a")


@pytest.mark.skipif(os.geteuid() == 0, reason="root ignores permissions")
def test_a_folder_without_permission_is_an_error_not_empty(store: LocalStore) -> None:
    store.put("log/1", b"")
    (store.root / "log").chmod(0)
    try:
        with pytest.raises(UserError, match="permission"):
            list(store.list("log/"))
    finally:
        (store.root / "log").chmod(0o700)


def test_a_full_volume_is_unavailable_with_advice_and_leaves_nothing(store: LocalStore) -> None:
    code = """
import resource, signal, sys
from pathlib import Path
from moorage_state.errors import StoreUnavailable
from moorage_state.stores import LocalStore
store = LocalStore(Path(sys.argv[1]))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    store.put("big", b"x" * 5000)
except StoreUnavailable as error:
    print(error)
"""
    output = subprocess.run(
        [sys.executable, "-c", code, str(store.root)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    assert "volume of the store" in output
    assert list(store.list("")) == []
    assert list((store.root / ".tmp").iterdir()) == []


def test_leftovers_of_a_killed_writer_stay_hidden_and_are_swept_by_age(store: LocalStore) -> None:
    code = """
import os, signal, sys
from pathlib import Path
from moorage_state.stores import LocalStore
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
LocalStore(Path(sys.argv[1])).put_if_absent("log/1", b"half")
"""
    killed = subprocess.run(
        [sys.executable, "-c", code, str(store.root)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
        timeout=60,
    )
    assert killed.returncode == -signal.SIGKILL
    assert len(list((store.root / ".tmp").iterdir())) == 1
    assert list(store.list("")) == []
    store.put_if_absent("log/1", b"whole")
    assert [i.key for i in store.list("")] == ["log/1"]


@pytest.mark.parametrize("write", ["put", "put_if_absent"])
def test_bytes_name_and_new_folders_are_synced_before_a_write_returns(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    synced: list[str] = []
    real = os.fsync

    def record(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    getattr(store, write)("chk-1/x/MANIFEST", b"data")
    root = str(store.root)
    assert synced[0].startswith(f"{root}/.tmp/")
    assert synced[1:] == [f"{root}/chk-1/x", f"{root}/chk-1", root]


def test_delete_removes_folders_that_became_empty_but_never_the_root(store: LocalStore) -> None:
    store.put("a/b/c", b"")
    store.put("a/d", b"")
    store.delete("a/b/c")
    assert not (store.root / "a/b").exists()
    store.delete("a/d")
    assert not (store.root / "a").exists()
    (store.root / ".tmp").rmdir()
    store.put("x", b"")
    store.delete("x")
    assert store.root.is_dir()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(st.sets(_KEYS, max_size=10), _KEYS, _KEYS)
def test_a_directory_lists_like_a_sorted_filter(
    tmp_path_factory: pytest.TempPathFactory, keys: set[str], prefix: str, after: str
) -> None:
    store = LocalStore(tmp_path_factory.mktemp("listed"))
    kept: set[str] = set()
    for key in sorted(keys):
        try:
            store.put(key, b"")
        except MoorageError:
            continue
        kept.add(key)
    assume(not any(prefix.startswith(f"{key}/") for key in kept))  # a file in a folder's place
    want = sorted(k for k in kept if k.startswith(prefix) and k > after)
    assert [i.key for i in store.list(prefix, after)] == want
