"""The store that goes wrong on purpose does so where its plan says, and nowhere else."""

from pathlib import Path

import pytest
from moorage_testing.faulty_store import Crash, Fault, FaultyStore, Plan

from moorage_state.errors import AlreadyExists, StoreUnavailable, UserError
from moorage_state.stores import MemoryStore


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore("faulty"))


@pytest.mark.parametrize(
    ("fault", "error", "done"),
    [
        (Fault.BEFORE, StoreUnavailable, False),
        (Fault.AFTER, StoreUnavailable, True),
        (Fault.REFUSED, UserError, False),
        (Fault.CRASH_BEFORE, Crash, False),
        (Fault.CRASH_AFTER, Crash, True),
    ],
)
def test_a_fault_says_whether_the_work_was_done(
    store: FaultyStore, fault: Fault, error: type[BaseException], done: bool  # noqa: FBT001
) -> None:  # fmt: skip
    store.inject(fault, "put_if_absent", "log/")
    store.put_if_absent("other", b"")
    with pytest.raises(error):
        store.put_if_absent("log/1", b"x")
    assert (store.inner.head("log/1") is not None) is done
    if done:
        with pytest.raises(AlreadyExists):
            store.put_if_absent("log/1", b"x")


def test_a_lying_read_is_short(store: FaultyStore, tmp_path: Path) -> None:
    store.put("a", b"0123456789")
    store.inject(Fault.TRUNCATED, "get")
    store.inject(Fault.TRUNCATED, "get_to_file")
    assert store.get("a") == b"01234"
    store.get_to_file("a", tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == b"01234"
    assert store.get("a") == b"0123456789"


def test_a_listing_breaks_off_in_its_middle(store: FaultyStore) -> None:
    for n in range(4):
        store.put(f"k{n}", b"")
    store.inject(Fault.AFTER, "list")
    seen: list[str] = []
    with pytest.raises(StoreUnavailable):
        seen.extend(info.key for info in store.list(""))
    assert seen == ["k0", "k1"]
    assert [info.key for info in store.list("")] == ["k0", "k1", "k2", "k3"]


def test_the_same_seed_goes_wrong_in_the_same_places_whatever_the_random_ids() -> None:
    def run(seed: int, upload: str) -> list[Fault | None]:
        store = FaultyStore(MemoryStore("seeded"), Plan(seed, 0.5))
        for n in range(40):
            try:
                store.put(f"shared/{n % 7}-{upload}", b"")
            except StoreUnavailable:
                continue
        return [fault for _, _, fault in store.seen]

    assert run(1, "0123456789abcdef0") == run(1, "fedcba9876543210f")
    assert run(1, "0123456789abcdef0") != run(2, "0123456789abcdef0")
    assert {Fault.BEFORE, Fault.AFTER, None} == set(run(1, "0123456789abcdef0"))
