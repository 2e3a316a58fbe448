"""What all subtasks read of all others costs as many messages as there are subtasks."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from moorage_testing.union_servers import UnionServers

from moorage.engine.union_lists import UnionLists
from moorage_state.errors import ServerGone, VersionMismatch
from moorage_state.server.host import UnionLists as Held


def expected(epoch, subtasks):
    return [[f"{epoch}:{n}".encode() for n in range(subtasks)]] * subtasks


def test_a_union_list_is_fetched_once_for_a_server_and_change(tmp_path):
    subtasks, servers = 24, 4
    with UnionServers.running(tmp_path / "s", subtasks, servers) as world:
        for epoch in (1, 2):
            world.write()
            world.messages.clear()
            assert world.read(f"v{epoch}") == expected(epoch, subtasks)
            # Each asks its own server; one of each asks the first one's, and one of all everybody.
            assert world.messages == {
                "union_list": subtasks + servers - 1,
                "together": servers,
                "keep_union_list": servers,
            }
        world.messages.clear()
        assert world.read("v2") == expected(2, subtasks)
        assert world.messages == {"union_list": subtasks}, "nothing has changed"
        world.forget(1)
        world.messages.clear()
        assert world.read("v2") == expected(2, subtasks)
        assert world.messages == {"union_list": subtasks + 1, "keep_union_list": 1}


def test_a_list_of_many_pages_is_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("moorage.engine.union_lists._PAGE", 1)
    with UnionServers.running(tmp_path / "s", 3, 2) as world:
        world.write()
        assert world.read("v1") == expected(1, 3)


def test_a_late_task_is_refused_and_not_told_what_came_since(tmp_path):
    with UnionServers.running(tmp_path / "s", 2, 1) as world:
        world.write()
        world.read("v1")
        late = list(world._versions)
        world.write()
        world.read("v2")
        world._versions[:] = late
        with pytest.raises(VersionMismatch):
            world.read("v1")


def test_who_was_to_bring_a_list_and_died_is_followed_by_another():
    held = Held(seconds=0.05)
    assert held.get("op", "n", "v") is None
    assert held.get("op", "n", "v") is None, "after a while"
    other: list[bytes | None] = []
    asking = threading.Thread(target=lambda: other.append(held.get("op", "n", "v")))
    asking.start()
    held.keep("op", "n", "v", b"x")
    asking.join(20)
    assert other in ([b"x"], [None])
    assert held.get("op", "n", "v") == b"x"


def test_who_asks_meanwhile_waits_for_it():
    held = Held(seconds=60)
    assert held.get("op", "n", "v") is None
    found: list[bytes | None] = []
    threads = [
        threading.Thread(target=lambda: found.append(held.get("op", "n", "v"))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    held.keep("op", "n", "v", b"x")
    for thread in threads:
        thread.join(20)
    assert found == [b"x"] * 3


def test_nothing_is_held_that_was_not_brought_whole():
    def gone(*_: object) -> None:
        raise ServerGone("it went")

    kept: list[object] = []
    client: Any = SimpleNamespace(
        union_list=lambda *_: None, keep_union_list=lambda *a: kept.append(a), lent=gone
    )
    door = SimpleNamespace(address="a")
    leased: Any = SimpleNamespace(door=door, lease=SimpleNamespace(start=0), version=(1, ""))
    with pytest.raises(ServerGone):
        UnionLists("op", "v", [leased], 0, lambda _: client).read("n")
    assert not kept
