import hashlib
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from moorage_state.errors import Bug, CorruptState, Fenced, StoreUnavailable, UserError
from moorage_state.snapshots import (
    AdoptionNeeded,
    Checkpoint,
    Entry,
    Fence,
    LineageLog,
    LogWriter,
    NotOwner,
    Owner,
    Record,
    Released,
    Rescaled,
    Retire,
    Run,
    Savepoint,
    Unknown,
    log_key,
)
from moorage_state.snapshots.entries import decode_record, encode_record
from moorage_state.stores import LocalStore, MemoryStore


def claim(store: Any, owner: Owner, holder: str = "me", **options: Any) -> LogWriter:
    return LogWriter.claim(store, owner, holder, **options)


def entries(store: Any) -> list[Entry]:
    return [entry for _, entry in LineageLog.open(store).read()]


def test_a_new_lineage_gets_its_owner_and_the_first_fence(store: MemoryStore, owner: Owner) -> None:
    writer = claim(store, owner)
    assert writer.fence == 1
    assert writer.lineage
    assert entries(store) == [writer.owner, Fence(1, "me")]
    assert writer.owner.same_job(owner)


def test_numbers_are_gapless_and_every_claim_takes_the_next_fence(
    store: MemoryStore, owner: Owner
) -> None:
    first = claim(store, owner)
    first.append(Run(1, 0))
    second = claim(store, owner)
    assert second.append(Run(2, 0)) == 5
    assert [seq for seq, _ in LineageLog.open(store).read()] == [1, 2, 3, 4, 5]
    assert second.fence == 2
    assert second.lineage == first.lineage


def test_every_kind_of_entry_reads_back_as_written(
    store: MemoryStore, owner: Owner, start: datetime
) -> None:
    writer = claim(store, owner)
    written: list[Entry] = [
        Run(1, 0),
        Run(1, 1, "chk-3", explicit=True, restore_nonce=7),
        Checkpoint(1, 1, 4, "chk-4/MANIFEST", "sha256:0", 40, start),
        Retire(1, 4),
        Unknown("?hint", {"epoch": 5, "handles": [{"x": None}], "é": True}),
        Savepoint(1, 0, 9, "file:///x", "sha256:" + "0" * 64, 3, datetime(2026, 1, 2, tzinfo=UTC)),
        Rescaled(1, 2, 4, 6, 4),
        Released(1, "deleted"),
    ]
    for entry in written:
        writer.append(entry)
    assert entries(store)[2:] == written


def test_an_overtaken_writer_is_fenced_at_its_next_append_for_good(
    store: MemoryStore, owner: Owner
) -> None:
    first = claim(store, owner)
    claim(store, owner, "the other")
    before = entries(store)
    for attempt in (lambda: first.append(Run(1, 0)), first.refresh, first.settle):
        with pytest.raises(Fenced, match="holder='the other'"):
            attempt()
    assert entries(store) == before


def test_refresh_tells_a_writer_that_it_was_overtaken(store: MemoryStore, owner: Owner) -> None:
    first = claim(store, owner)
    first.refresh()
    claim(store, owner)
    with pytest.raises(Fenced):
        first.refresh()


def test_a_writer_goes_on_behind_an_entry_that_is_no_claim(
    store: MemoryStore, owner: Owner, start: datetime
) -> None:
    writer = claim(store, owner)
    claimer = Owner(owner.cluster, owner.namespace, owner.name, "uid-2", writer.lineage)
    store.put(log_key(3), encode_record(Record(3, "x", start, claimer)))
    assert writer.append(Run(1, 0)) == 4


def test_a_lost_reply_does_not_fail_a_retried_append(
    faulty: Any, owner: Owner, store: MemoryStore
) -> None:
    writer = claim(faulty, owner)
    faulty.fail = "after"
    with pytest.raises(StoreUnavailable):
        writer.append(Run(1, 0))
    assert writer._in_doubt
    assert writer._in_doubt.entry == Run(1, 0)
    assert writer.possible_entries == [*writer.entries, Run(1, 0)]
    assert writer.append(Run(1, 0)) == 3
    assert writer._in_doubt is None
    assert writer.possible_entries == writer.entries
    assert entries(store)[2:] == [Run(1, 0)]


def test_a_lost_reply_is_settled_after_a_refresh_saw_the_entry(
    faulty: Any, owner: Owner, store: MemoryStore
) -> None:
    writer = claim(faulty, owner)
    faulty.fail = "after"
    with pytest.raises(StoreUnavailable):
        writer.append(Run(1, 0))
    writer.refresh()
    assert writer.append(Run(1, 1)) == 4
    assert entries(store)[2:] == [Run(1, 0), Run(1, 1)]


def test_an_append_that_never_arrived_is_written_before_the_next(
    faulty: Any, owner: Owner, store: MemoryStore
) -> None:
    writer = claim(faulty, owner)
    faulty.fail = "before"
    with pytest.raises(StoreUnavailable):
        writer.append(Run(1, 0))
    assert writer.append(Run(1, 1)) == 4
    assert entries(store)[2:] == [Run(1, 0), Run(1, 1)]


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_append_in_doubt_is_fenced_if_another_claimed_meanwhile(
    faulty: Any, owner: Owner, store: MemoryStore, when: str
) -> None:
    writer = claim(faulty, owner)
    faulty.fail = when
    with pytest.raises(StoreUnavailable):
        writer.append(Run(1, 0))
    claim(store, owner)
    before = entries(store)
    with pytest.raises(Fenced):
        writer.append(Run(1, 1))
    assert entries(store) == before


def test_claiming_again_after_a_lost_reply_takes_the_next_fence(faulty: Any, owner: Owner) -> None:
    claim(faulty, owner)
    faulty.fail = "after"
    with pytest.raises(StoreUnavailable):
        claim(faulty, owner)
    assert claim(faulty, owner).fence == 3


def test_the_directory_of_another_job_is_refused_naming_both(
    store: MemoryStore, owner: Owner
) -> None:
    other = Owner("here", "default", "trains", "uid-1")
    lineage = claim(store, owner).lineage
    before = entries(store)
    with pytest.raises(NotOwner, match=r"owner=here/default/flights .*asking=here/default/trains"):
        claim(store, other, adopt=lineage)
    assert entries(store) == before


def test_another_uid_adopts_only_what_was_released(store: MemoryStore, owner: Owner) -> None:
    first = claim(store, owner)
    other = Owner(owner.cluster, owner.namespace, owner.name, "uid-2")
    with pytest.raises(AdoptionNeeded, match=rf"uid-1.*lineage={first.lineage}"):
        claim(store, other)
    first.append(Released(1))
    second = claim(store, other)
    assert second.lineage == first.lineage
    assert second.owner.uid == "uid-2"
    with pytest.raises(UserError, match="uid-2"):
        claim(store, owner)


def test_adoption_can_be_insisted_on(store: MemoryStore, owner: Owner) -> None:
    first = claim(store, owner)
    other = Owner(owner.cluster, owner.namespace, owner.name, "uid-2")
    with pytest.raises(AdoptionNeeded):
        claim(store, other, adopt="another-lineage")
    assert claim(store, other, adopt=first.lineage).owner.uid == "uid-2"
    with pytest.raises(Fenced):
        first.append(Run(1, 0))


def test_a_writer_that_is_fenced_off_says_so_once_before_it_raises(
    store: MemoryStore, owner: Owner
) -> None:
    said: list[str] = []
    first = claim(store, owner, fenced=said.append)
    claim(store, owner, holder="the other one")
    for _ in range(2):
        with pytest.raises(Fenced):
            first.refresh()
    assert len(said) == 1
    assert "the other one" in said[0]


def test_watching_finds_a_lost_fence_and_lets_nobody_wait_while_it_reads(
    store: MemoryStore, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = claim(store, owner)
    reading, go_on = threading.Event(), threading.Event()
    read = LineageLog.each_record

    def slow(log: LineageLog, *args: Any, **kwargs: Any) -> Iterator[Record]:
        reading.set()
        assert go_on.wait(20)
        return read(log, *args, **kwargs)

    monkeypatch.setattr(LineageLog, "each_record", slow)
    thread = threading.Thread(target=writer.watch)
    thread.start()
    assert reading.wait(20)
    assert writer.append(Run(1, 0)) == 3
    go_on.set()
    thread.join()
    claim(store, owner)
    with pytest.raises(Fenced):
        writer.watch()


def test_a_released_lineage_claimed_by_its_old_owner_is_owned_again(
    store: MemoryStore, owner: Owner
) -> None:
    claim(store, owner).append(Released(1))
    claim(store, owner)
    with pytest.raises(UserError, match="adopt"):
        claim(store, Owner(owner.cluster, owner.namespace, owner.name, "uid-2"))


@pytest.mark.parametrize("entry", [Fence(9, "x"), Owner("a", "b", "c", "d"), Run(2, 0)])
def test_a_writer_appends_only_what_is_its_own(
    store: MemoryStore, owner: Owner, entry: Entry
) -> None:
    writer = claim(store, owner)
    with pytest.raises(Bug):
        writer.append(entry)


@pytest.mark.parametrize("run", [0, 1])
def test_after_a_rescale_nothing_of_the_layout_before_is_appended(
    store: MemoryStore, owner: Owner, start: datetime, run: int
) -> None:
    writer = claim(store, owner)
    writer.append(Rescaled(1, 2, 7, 4, 2))
    of_checkpoint = Checkpoint(1, run, 8, "chk-8/MANIFEST", "sha256:0", 1, start)
    for entry in (of_checkpoint, Savepoint(1, run, 8, "file:///x", "sha256:0", 1, start)):
        with pytest.raises(Bug, match="of the layout before a rescale"):
            writer.append(entry)
    assert writer.append(replace(of_checkpoint, run=2)) == 4
    # Another driver counts its runs from the beginning.
    later = claim(store, owner)
    assert later.append(replace(of_checkpoint, fence=2, run=0, checkpoint_id=9))


def test_an_entry_that_would_not_read_back_is_never_written(
    store: MemoryStore, owner: Owner, start: datetime
) -> None:
    writer = claim(store, owner)
    naive = Checkpoint(1, 0, 1, "chk-1/MANIFEST", "sha256:0", 1, start.replace(tzinfo=None))
    for entry in (naive, Unknown("?hint", {"x": b"bytes"}), Unknown("epoch", {})):
        with pytest.raises(Bug):
            writer.append(entry)
    assert writer._in_doubt is None
    assert writer.append(Run(1, 0)) == 3


def test_a_missing_entry_in_the_middle_is_named(store: MemoryStore, owner: Owner) -> None:
    claim(store, owner).append(Run(1, 0))
    store.delete(log_key(2))
    with pytest.raises(CorruptState, match=r"entry 3 exists.*0002\.json"):
        LineageLog.open(store).read()
    with pytest.raises(CorruptState):
        claim(store, owner)


def test_a_log_gone_beside_checkpoints_is_not_a_new_lineage(
    store: MemoryStore, owner: Owner
) -> None:
    store.put("chk-3/MANIFEST", b"")
    with pytest.raises(CorruptState, match="log is missing"):
        claim(store, owner)


def test_a_folder_gone_or_blocked_is_never_an_empty_log(
    directory: LocalStore, owner: Owner, tmp_path: Any
) -> None:
    claim(directory, owner)
    (tmp_path / "log").rename(tmp_path / "log-moved")
    (tmp_path / "log").write_text("")
    with pytest.raises(UserError, match="move it away"):
        LineageLog.open(directory).read()
    directory.root.rename(tmp_path.with_name(f"{tmp_path.name}-gone"))
    with pytest.raises(StoreUnavailable, match="gone"):
        LineageLog.open(directory).read()


def test_an_entry_under_another_number_is_corrupt(store: MemoryStore, owner: Owner) -> None:
    claim(store, owner)
    store.put(log_key(3), store.get(log_key(2)))
    with pytest.raises(CorruptState, match=r"entry 2 lies under another number.*0003\.json"):
        LineageLog.open(store).read()


def test_something_foreign_in_the_log_is_named(store: MemoryStore, owner: Owner) -> None:
    claim(store, owner)
    store.put("log/00000000000000000002.json.bak", b"")
    with pytest.raises(UserError, match=r"json\.bak; move it away"):
        LineageLog.open(store).read()


@pytest.mark.scenario(26)
def test_a_listing_that_lags_hides_no_entry(store: MemoryStore, owner: Owner) -> None:
    claim(store, owner).append(Run(1, 0))
    whole = LineageLog.open(store).read()

    class Lagging:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def list(self, prefix: str, start_after: str = "") -> Any:
            return iter(list(store.list(prefix, start_after))[:-2])

    lagging: Any = Lagging()
    assert LineageLog.open(lagging).read() == whole
    assert claim(lagging, owner).fence == 2


def test_a_flipped_bit_anywhere_in_an_entry_is_found(
    store: MemoryStore, owner: Owner, start: datetime
) -> None:
    writer = claim(store, owner)
    writer.append(Checkpoint(1, 0, 1, "chk-1/MANIFEST", "sha256:0", 1, start))
    for seq in (1, 2, 3):
        good = store.get(log_key(seq))
        for position in range(len(good)):
            for bit in range(8):
                bad = bytearray(good)
                bad[position] ^= 1 << bit
                with pytest.raises(CorruptState, match="the entry"):
                    decode_record(bytes(bad), "the entry")


def test_a_damaged_entry_is_named_by_every_reader(store: MemoryStore, owner: Owner) -> None:
    claim(store, owner)
    good = store.get(log_key(2))
    for bad in (b"", good[:-1], good[:40], good + b"\n", good * 2, b"\0" * len(good)):
        store.put(log_key(2), bad)
        for attempt in (LineageLog.open(store).read, lambda: claim(store, owner)):
            with pytest.raises(CorruptState) as caught:
                attempt()
            assert caught.value.path == f"{store.url}/{log_key(2)}"
            assert "backup" in caught.value.advice


def test_an_entry_of_a_newer_format_asks_for_an_upgrade(
    start: datetime, resealed: Callable[[bytes, bytes, bytes], bytes]
) -> None:
    good = encode_record(Record(1, "a", start, Fence(1, "me")))
    newer = resealed(good, b'{"moorage-log":1,', b'{"moorage-log":2,')
    with pytest.raises(UserError, match="written by a newer moorage: path=x"):
        decode_record(newer, "x")


def test_an_entry_with_an_unknown_kind_or_field_is_refused_not_guessed(
    start: datetime, resealed: Callable[[bytes, bytes, bytes], bytes]
) -> None:
    good = encode_record(Record(1, "a", start, Fence(1, "me")))
    for old, new in ((b'"fence"', b'"fense"'), (b'"kind":"fence"', b'"kind":"fences"')):
        with pytest.raises(UserError, match=r"newer moorage.*path=x"):
            decode_record(resealed(good, old, new), "x")


@pytest.fixture
def resealed() -> Callable[[bytes, bytes, bytes], bytes]:
    """Replace bytes of an entry and give it the checksum that fits."""

    def reseal(data: bytes, old: bytes, new: bytes) -> bytes:
        head = data[: data.index(b',"sha256"')]
        assert old in head
        head = head.replace(old, new, 1)
        return head + b',"sha256":"%s"}\n' % hashlib.sha256(head).hexdigest().encode()

    return reseal
