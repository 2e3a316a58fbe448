"""A lineage that is deleted and begun again in its place, and copies of logs that are no more."""

import contextlib
import itertools
from collections import Counter
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

import pytest

from moorage_state import failpoints
from moorage_state.errors import CorruptState, MoorageError
from moorage_state.snapshots import (
    Checkpoint,
    LineageLog,
    LogWriter,
    NotOwner,
    Owner,
    Retire,
    Run,
    log,
    log_key,
    retained,
)
from moorage_state.snapshots.entries import decode_record
from moorage_state.snapshots.object_keys import VIEW_KEY
from moorage_state.snapshots.store_tasks import lineage_tasks
from moorage_state.snapshots.store_tasks.lineage_tasks import delete_lineage
from moorage_state.stores import MemoryStore

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SHORT = 40


@pytest.fixture(params=["begins at its first entry", "began anew"])
def began(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logs with and without marks."""
    if request.param == "began anew":
        monkeypatch.setattr(log, "COMPACT_EVERY", SHORT)


def live(store: MemoryStore, owner: Owner, count: int) -> LogWriter:
    """A driver's life: it completes checkpoints, and keeps the newest."""
    writer = LogWriter.claim(store, owner, "driver")
    writer.append(Run(writer.fence, 0))
    for one in range(1, count + 1):
        store.put(f"chk-{one}/MANIFEST", b"x")
        key = f"chk-{one}/MANIFEST"
        writer.append(Checkpoint(writer.fence, 0, one, key, "sha256:0", one, AT))
        if one > 1:
            writer.append(Retire(writer.fence, one - 1))
            store.delete(f"chk-{one - 1}/MANIFEST")
        writer.compact()
    return writer


def kept(store: MemoryStore) -> list[int]:
    """The checkpoints that a driver would find, and the command line."""
    found = [[r.entry for r in LineageLog.open(store).view().records]]
    found.append([entry for _, entry in LineageLog.open(store).read()])
    first, second = ([c.checkpoint_id for c in retained(entries)] for entries in found)
    assert first == second
    return first


def emptied(store: MemoryStore) -> None:
    for info in list(store.list("")):
        store.delete(info.key)


@pytest.mark.usefixtures("began")
@pytest.mark.parametrize("lived", [3, 60, 150])
def test_a_late_copy_of_a_lineage_that_was_deleted_is_passed_over(
    store: MemoryStore, owner: Owner, lived: int
) -> None:
    live(store, owner, 100)
    late = store.get(VIEW_KEY)
    emptied(store)
    live(store, owner, lived)
    right = kept(store)
    store.put(VIEW_KEY, late)
    assert kept(store) == right == [lived]


def test_what_lies_damaged_under_a_number_that_was_let_go_of_stops_nobody(
    store: MemoryStore, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "COMPACT_EVERY", SHORT)
    writer = live(store, owner, 6)
    late = store.get(VIEW_KEY)
    last = decode_record(late, "the copy").seq
    for number in range(1, 3 * SHORT):
        writer.append(Run(writer.fence, number))
        writer.compact()
    assert last not in {seq for seq, _ in LineageLog.open(store).read()}
    store.put(VIEW_KEY, late)
    store.put(log_key(last), b"damaged")
    assert kept(store) == [6]


@pytest.mark.parametrize("every", [8, 4096])
def test_whichever_copy_comes_late_and_whenever_nobody_reads_anything_else(
    store: MemoryStore, owner: Owner, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """Each copy of a lineage that is gone, at each step of the one that is in its place."""
    monkeypatch.setattr(log, "COMPACT_EVERY", every)
    dead: dict[bytes, None] = {}
    with failpoints.watched(lambda _: dead.update(_copy(store))):
        live(store, owner, 12)
    emptied(store)
    places: Counter[str] = Counter()

    def look(place: str) -> None:
        own = list(_copy(store))
        _put_copy(store, [])
        right = LineageLog.open(store).view()
        for one in dead:
            _put_copy(store, [one])
            found = LineageLog.open(store).view()
            assert (found.records, found.end, found.base) == (right.records, right.end, right.base)
        _put_copy(store, own)
        places[place] += 1

    with failpoints.watched(look):
        live(store, owner, 9)
    assert len(dead) >= 3
    assert set(places) == {one for one in PLACES if every == 8 or one not in OF_BEGINNINGS}


PLACES = [place for place in failpoints.PLACES if place.startswith("log.")]
OF_BEGINNINGS = ("log.before_mark", "log.after_mark", "log.before_clear")


def _copy(store: MemoryStore) -> dict[bytes, None]:
    return {store.get(VIEW_KEY): None} if store.head(VIEW_KEY) else {}


def _put_copy(store: MemoryStore, copy: list[bytes]) -> None:
    store.delete(VIEW_KEY)
    for data in copy:
        store.put(VIEW_KEY, data)


def test_an_empty_directory_with_a_copy_in_it_is_a_new_one(
    store: MemoryStore, owner: Owner
) -> None:
    live(store, owner, 30)
    for info in list(store.list("")):
        if info.key != VIEW_KEY:
            store.delete(info.key)
    other = Owner("c", "n", "another", "u")
    assert LogWriter.claim(store, other, "driver").end == 2


@pytest.mark.usefixtures("began")
def test_a_log_from_a_backup_is_read_beside_a_newer_copy(store: MemoryStore, owner: Owner) -> None:
    live(store, owner, 100)
    backup = {info.key: store.get(info.key) for info in store.list("") if info.key != VIEW_KEY}
    writer = LogWriter.claim(store, owner, "later")
    for one in range(101, 120):
        key = f"chk-{one}/MANIFEST"
        writer.append(Checkpoint(writer.fence, 0, one, key, "sha256:0", one, AT))
        writer.compact()
    newer = store.get(VIEW_KEY)
    emptied(store)
    for key, data in {**backup, VIEW_KEY: newer}.items():
        store.put(key, data)
    assert kept(store) == [100]
    LogWriter.claim(store, owner, "next")


def test_a_copy_has_the_attempt_of_its_last_entry(store: MemoryStore, owner: Owner) -> None:
    live(store, owner, 20)
    copy = decode_record(store.get(VIEW_KEY), VIEW_KEY)
    assert decode_record(store.get(log_key(copy.seq)), "").attempt == copy.attempt


class Died(BaseException):
    """The store task's pod is gone."""


def deleted(store: Any, owner: Owner) -> dict[str, Any]:
    return delete_lineage(lambda _: store, "memory://dir", owner, "task")


@pytest.mark.usefixtures("began")
def test_a_lineage_that_is_deleted_leaves_nothing_to_one_that_is_begun_in_its_place(
    store: MemoryStore, owner: Owner
) -> None:
    live(store, owner, 100)
    assert deleted(store, owner)["left"] == ""
    assert list(store.list("")) == []
    again = Owner(owner.cluster, owner.namespace, owner.name, "made again")
    writer = LogWriter.claim(store, again, "first")
    assert (writer.fence, writer.end, kept(store)) == (1, 2, [])


@pytest.mark.usefixtures("began")
@pytest.mark.parametrize("late", [False, True])
def test_a_deletion_that_dies_at_any_step_keeps_its_owner_and_can_be_taken_up_again(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, *, late: bool
) -> None:
    """With a copy that was put late, or none; whatever the step."""
    if log.COMPACT_EVERY == SHORT:
        monkeypatch.setattr(log, "COMPACT_EVERY", 8)
    whole = MemoryStore("whole")
    last = live(whole, owner, 14).end
    for one in (1, 2, 3):  # what a clearing left
        if whole.head(log_key(one)) is None:
            whole.put(log_key(one), whole.get(log_key(last)))
    objects = {info.key: whole.get(info.key) for info in whole.list("")}
    for died_at in itertools.count():
        store = MemoryStore(f"store-{died_at}")
        for key, data in objects.items():
            store.put(key, data)
        deletes = itertools.count()

        def delete(key: str, at: int = died_at, count: Any = deletes, of: Any = store) -> None:
            if next(count) == at:
                raise Died
            MemoryStore.delete(of, key)

        with monkeypatch.context() as patched:
            patched.setattr(store, "delete", delete)
            with contextlib.suppress(Died):
                deleted(store, owner)
                return
        if late:
            store.put(VIEW_KEY, objects[VIEW_KEY])
        with pytest.raises((NotOwner, CorruptState)):
            LogWriter.claim(store, Owner("c", "n", "another", "u"), "somebody else's")
        foreign = deleted(store, Owner(owner.cluster, owner.namespace, owner.name, "u2"))
        assert foreign == {"deleted": 0, "left": "foreign"}
        assert deleted(store, owner)["left"] == ""
        assert [info.key for info in store.list("")] == []
        LogWriter.claim(store, Owner("c", "n", "another", "u"), "somebody else's")


def test_a_long_lineage_is_deleted_in_few_requests_which_may_be_cut_off_in_any_order(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dies in each request in turn, with every second of its objects deleted."""
    monkeypatch.setattr(lineage_tasks, "_DELETES_PER_LOOK", 100)
    whole = MemoryStore("whole")
    live(whole, owner, 60)
    for one in range(250):
        whole.put(f"shared/pack-ab-{one}-1", b"x")
    for died_at in itertools.count():
        store = MemoryStore(f"long-{died_at}")
        for info in whole.list(""):
            store.put(info.key, whole.get(info.key))
        requests = itertools.count()
        delete = store.delete

        def many(
            keys: Collection[str], at: int = died_at, count: Any = requests, of: Any = delete
        ) -> dict[str, MoorageError]:
            dies = next(count) == at
            for key in list(keys)[:: 2 if dies else 1]:
                of(key)
            if dies:
                raise Died
            return {}

        def one_by_one(
            key: str, at: int = died_at, count: Any = requests, of: Any = delete
        ) -> None:
            if next(count) == at:
                raise Died
            of(key)

        with monkeypatch.context() as patched:
            patched.setattr(store, "delete_many", many)
            patched.setattr(store, "delete", one_by_one)
            with contextlib.suppress(Died):
                deleted(store, owner)
                assert list(store.list("")) == []
                assert next(requests) < 20
                return
        with pytest.raises((NotOwner, CorruptState)):
            LogWriter.claim(store, Owner("c", "n", "another", "u"), "somebody else's")
        assert deleted(store, owner)["left"] == ""
        assert list(store.list("")) == []
