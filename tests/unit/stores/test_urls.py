from pathlib import Path

import pytest

from moorage_state.errors import UserError
from moorage_state.stores import LocalStore, MemoryStore, open_store


def test_a_file_address_opens_a_directory(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    assert isinstance(store, LocalStore)
    assert store.root == tmp_path


def test_special_characters_survive_the_address(tmp_path: Path) -> None:
    root = tmp_path / "a b#c?d%41é"
    store = LocalStore(root, create=True)
    store.put("x", b"here")
    assert open_store(store.url).get("x") == b"here"


def test_a_missing_directory_is_made_only_on_request(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        open_store(f"file://{tmp_path}/a/b")
    open_store(f"file://{tmp_path}/a/b", create=True).put("x", b"")
    assert (tmp_path / "a/b/x").is_file()


def test_memory_stores_are_shared_by_name() -> None:
    open_store("memory://shared-by-name").put("x", b"1")
    assert open_store("memory://shared-by-name").get("x") == b"1"
    assert open_store("memory://another-name").head("x") is None
    MemoryStore.forget("shared-by-name")
    MemoryStore.forget("another-name")


@pytest.mark.parametrize(
    "url",
    [
        "", "/plain/path", "file:/one/slash", "file://relative/path", "file://", "s3:/bucket/x",
        "FILE:///x", "memory://", "memory://a/b", "http://x", "file:///a/../b",
    ],
)  # fmt: skip
def test_other_addresses_are_refused_with_what_is_supported(url: str) -> None:
    with pytest.raises(UserError, match=r"use file:///absolute/path .*s3://.* or memory://name"):
        open_store(url)
