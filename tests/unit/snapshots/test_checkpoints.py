from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from moorage_state.errors import (
    AlreadyExists,
    Bug,
    CorruptState,
    Fenced,
    MoorageError,
    StoreDenied,
    StoreUnavailable,
    UserError,
)
from moorage_state.snapshots import (
    MAX_INLINE_BYTES,
    Checkpoint,
    CheckpointStore,
    Entry,
    Fence,
    LineageLog,
    LogWriter,
    Manifest,
    Owner,
    Retire,
    Run,
    encode_manifest,
    sweep,
    verify_files,
)
from moorage_state.snapshots.history import kept_of
from moorage_state.stores import LocalStore, MemoryStore
from moorage_state.stores.base import delete_each

NewManifest = Callable[..., Manifest]
Take = Callable[..., Manifest]
Keys = Callable[..., set[str]]
HOUR = timedelta(hours=1)


def damage(store: Any, key: str) -> None:
    data = bytearray(store.get(key))
    data[len(data) // 2] ^= 1
    store.put(key, bytes(data))


def test_a_completed_checkpoint_is_the_restore_point(
    store: MemoryStore, writer: LogWriter, take: Take
) -> None:
    manifest = take(1)
    loaded = CheckpointStore(store).load_latest(writer.entries, verify="hashes")
    assert loaded == (manifest, [])
    assert CheckpointStore(store).load_id(writer.entries, 1) == manifest


def test_what_the_driver_of_a_deleted_lineage_writes_late_is_never_restored(
    store: MemoryStore, owner: Owner, new_manifest: NewManifest, start: datetime
) -> None:
    checkpoints = CheckpointStore(store)

    def complete(writer: LogWriter, number: int) -> Manifest:
        manifest = new_manifest(number, writer=writer, store=store)
        checkpoints.complete(writer, manifest, start)
        return manifest

    asleep = LogWriter.claim(store, owner, "asleep")
    complete(asleep, 1)
    for info in list(store.list("")):
        store.delete(info.key)
    awake = LogWriter.claim(store, owner, "awake")
    own = complete(awake, 1)
    complete(asleep, 2)
    awake.refresh()
    with pytest.raises(CorruptState, match="another lineage"):
        checkpoints.load_latest(awake.entries)
    loaded = checkpoints.load_latest(awake.entries, max_fallback_age=HOUR)
    assert loaded is not None
    assert loaded.manifest == own


@pytest.mark.scenario(26)
def test_a_manifest_without_its_log_entry_is_no_checkpoint(
    store: MemoryStore, writer: LogWriter, new_manifest: NewManifest
) -> None:
    manifest = new_manifest(1, writer=writer, store=store)
    store.put("chk-1/MANIFEST", encode_manifest(manifest))
    assert CheckpointStore(store).load_latest(writer.entries) is None
    with pytest.raises(UserError, match="retained are: none"):
        CheckpointStore(store).load_id(writer.entries, 1)


def test_ids_step_over_what_an_unfinished_checkpoint_left(
    store: MemoryStore, writer: LogWriter, take: Take
) -> None:
    take(1)
    assert CheckpointStore(store).next_id(writer.entries) == 2
    store.put("chk-11/f1r0/counts/0-63/CURRENT", b"")
    store.put("chk-9/MANIFEST", b"")
    assert CheckpointStore(store).next_id(writer.entries) == 12


@pytest.mark.parametrize("fail_at", ["manifest", "log entry"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.scenario(26)
def test_completing_again_after_a_lost_reply_makes_one_checkpoint(
    faulty: Any,
    owner: Owner,
    new_manifest: NewManifest,
    start: datetime,
    fail_at: str,
    when: str,
) -> None:
    writer = LogWriter.claim(faulty, owner, "me")
    manifest = new_manifest(1, writer=writer, store=faulty)
    checkpoints = CheckpointStore(faulty)
    faulty.fail = when
    if fail_at == "log entry":
        faulty.fail = None
        faulty.put_if_absent("chk-1/MANIFEST", encode_manifest(manifest))
        real, faulty.put_if_absent = faulty.put_if_absent, None

        def fail_on_log(key: str, data: bytes) -> None:
            if key.startswith("log/"):
                faulty.fail = when
                faulty.put_if_absent = real
            real(key, data)

        faulty.put_if_absent = fail_on_log
    with pytest.raises(StoreUnavailable):
        checkpoints.complete(writer, manifest, start)
    entry = checkpoints.complete(writer, manifest, start + HOUR)
    assert [e for e in writer.entries if isinstance(e, Checkpoint)] == [entry]
    assert writer.entries == [e for _, e in LineageLog.open(faulty).read()]


def test_a_fenced_writer_completes_nothing(
    store: MemoryStore, writer: LogWriter, owner: Owner, new_manifest: NewManifest, start: datetime
) -> None:
    manifest = new_manifest(1, writer=writer, store=store)
    successor = LogWriter.claim(store, owner, "the next")
    with pytest.raises(Fenced):
        CheckpointStore(store).complete(writer, manifest, start)
    successor.refresh()
    assert CheckpointStore(store).load_latest(successor.entries) is None
    assert CheckpointStore(store).next_id(successor.entries) == 2
    other = new_manifest(1, writer=successor, store=store)
    with pytest.raises(AlreadyExists):
        CheckpointStore(store).complete(successor, other, start)


def test_ids_that_do_not_grow_and_foreign_manifests_are_bugs(
    store: MemoryStore,
    writer: LogWriter,
    take: Take,
    new_manifest: NewManifest,
    start: datetime,
) -> None:
    take(5)
    for manifest in (
        new_manifest(4, writer=writer),
        new_manifest(5, ("b",), writer=writer),
        new_manifest(6, writer=writer, fence=7),
        new_manifest(6, writer=writer, lineage="another"),
    ):
        with pytest.raises(Bug):
            CheckpointStore(store).complete(writer, manifest, start)


@pytest.mark.parametrize(
    ("key", "verify"),
    [
        ("chk-3/MANIFEST", "manifest"),
        ("chk-3/f1r0/counts/0-63/CURRENT", "hashes"),
        ("shared/b64-only3.sst-0123", "hashes"),
    ],
)
@pytest.mark.scenario(30)
def test_one_flipped_bit_is_named_and_an_older_checkpoint_serves_only_if_allowed(
    store: MemoryStore,
    writer: LogWriter,
    take: Take,
    key: str,
    verify: Any,
) -> None:
    take(1)
    second = take(2)
    take(3, "a", "only3")
    damage(store, key)
    checkpoints = CheckpointStore(store)
    with pytest.raises(CorruptState, match=r"next older is chk-2, older by 0:01:00, no") as caught:
        checkpoints.load_latest(writer.entries, verify=verify)
    assert caught.value.path == f"{store.url}/{key}"
    with pytest.raises(CorruptState, match=r"max=0:00:59"):
        checkpoints.load_latest(writer.entries, timedelta(seconds=59), verify)

    loaded = checkpoints.load_latest(writer.entries, timedelta(minutes=1), verify)
    assert loaded is not None
    assert loaded.manifest == second
    assert "chk-3 completed_at=2026-01-02T03:07:05+00:00 problem=" in loaded.warnings[0]
    assert key in loaded.warnings[0]
    assert loaded.warnings[1] == "restoring older checkpoint: path=chk-2 older_by=0:01:00"


def test_a_missing_or_cut_file_is_found_without_reading_it(
    store: MemoryStore, writer: LogWriter, take: Take
) -> None:
    manifest = take(1)
    key = manifest.files[0].key
    store.put(key, b"short")
    with pytest.raises(CorruptState, match=f"has 5 bytes, not .*{key}"):
        CheckpointStore(store).load_latest(writer.entries)
    store.delete(key)
    with pytest.raises(CorruptState, match=f"missing.*{key}"):
        CheckpointStore(store).load_latest(writer.entries)
    with pytest.raises(CorruptState, match=f"missing.*{key}"):
        verify_files(store, manifest, full=True)


def test_falling_back_skips_a_second_damaged_checkpoint_and_says_so(
    store: MemoryStore, writer: LogWriter, take: Take
) -> None:
    first = take(1)
    take(2)
    take(3)
    damage(store, "chk-3/MANIFEST")
    store.delete("chk-2/MANIFEST")
    loaded = CheckpointStore(store).load_latest(writer.entries, HOUR)
    assert loaded is not None
    assert loaded.manifest == first
    assert len(loaded.warnings) == 3


def test_when_all_are_damaged_the_newest_is_named(
    store: MemoryStore, writer: LogWriter, take: Take
) -> None:
    take(1)
    take(2)
    damage(store, "chk-1/MANIFEST")
    damage(store, "chk-2/MANIFEST")
    with pytest.raises(CorruptState, match="no older checkpoint is usable") as caught:
        CheckpointStore(store).load_latest(writer.entries, HOUR)
    assert caught.value.path.endswith("chk-2/MANIFEST")


def test_a_manifest_swapped_for_another_valid_one_is_found(
    store: MemoryStore, writer: LogWriter, take: Take
) -> None:
    take(1)
    take(2)
    store.put("chk-2/MANIFEST", store.get("chk-1/MANIFEST"))
    with pytest.raises(CorruptState, match="not the one that the log names"):
        CheckpointStore(store).load_id(writer.entries, 2)


@pytest.mark.scenario(30)
def test_a_checkpoint_that_a_person_chose_is_never_replaced(
    store: MemoryStore, writer: LogWriter, take: Take
) -> None:
    take(1)
    take(2)
    take(3)
    writer.append(Run(1, 1, "chk-2", explicit=True))
    damage(store, "chk-2/MANIFEST")
    with pytest.raises(CorruptState):
        CheckpointStore(store).load_latest(writer.entries, HOUR)


def test_falling_back_never_leaves_the_chosen_timeline(
    store: MemoryStore, writer: LogWriter, take: Take
) -> None:
    first = take(1)
    take(2)
    writer.append(Run(1, 1, "chk-1", explicit=True))
    take(3)
    damage(store, "chk-3/MANIFEST")
    loaded = CheckpointStore(store).load_latest(writer.entries, HOUR)
    assert loaded is not None
    assert loaded.manifest == first


def test_a_choice_outside_of_the_lineage_is_the_callers_business(
    store: MemoryStore, writer: LogWriter, take: Take
) -> None:
    take(1)
    for path in ("chk-7", "file:///savepoint"):
        writer.append(Run(1, 1, path, explicit=True))
        with pytest.raises(UserError, match=path):
            CheckpointStore(store).load_latest(writer.entries, HOUR)


def test_a_store_that_does_not_answer_is_no_reason_to_go_back(
    store: MemoryStore, writer: LogWriter, take: Take
) -> None:
    take(1)
    take(2)

    class Down:
        url = "memory://down"

        def get(self, key: str) -> bytes:
            if key == "chk-2/MANIFEST":
                raise StoreUnavailable("down")
            return store.get(key)

    down: Any = Down()
    with pytest.raises(StoreUnavailable):
        CheckpointStore(down).load_latest(writer.entries, HOUR)


def test_a_directory_in_a_file_system_works_like_the_twin(
    directory: LocalStore, owner: Owner, new_manifest: NewManifest, start: datetime, tmp_path: Path
) -> None:
    writer = LogWriter.claim(directory, owner, "me")
    checkpoints = CheckpointStore(directory)
    for checkpoint_id in (1, 2, 3):
        manifest = new_manifest(checkpoint_id, writer=writer, store=directory)
        checkpoints.complete(writer, manifest, start + timedelta(minutes=checkpoint_id))
    checkpoints.retire(writer, 2)
    assert sorted(path.name for path in tmp_path.glob("chk-*")) == ["chk-2", "chk-3"]
    data = bytearray((tmp_path / "chk-3/MANIFEST").read_bytes())
    data[200] ^= 4
    (tmp_path / "chk-3/MANIFEST").write_bytes(data)
    with pytest.raises(CorruptState, match=rf"path=file://{tmp_path}/chk-3/MANIFEST"):
        checkpoints.load_latest(writer.entries)
    loaded = checkpoints.load_latest(writer.entries, HOUR, "hashes")
    assert loaded is not None
    assert loaded.manifest.checkpoint_id == 2


# Files in packs, and inline

PACK = f"shared/pack-{'d' * 32}-0-100"


@pytest.fixture
def merged(store: MemoryStore, new_manifest: NewManifest) -> Manifest:
    """A checkpoint with an inline file, and one from the middle of a pack."""
    manifest = new_manifest(1, ("a",), store=store)
    subtasks = manifest.operators["counts"].subtasks
    current, table = subtasks[0].files
    store.put(PACK, b"-" * 50 + store.get(table.key) + b"-" * (50 - table.size))
    files = [
        replace(current, key="", inline=store.get(current.key)),
        replace(table, key=PACK, offset=50),
    ]
    first = replace(subtasks[0], files=files)
    operator = replace(manifest.operators["counts"], subtasks=[first, subtasks[1]])
    return replace(manifest, operators={"counts": operator})


def test_slices_of_packs_and_inline_files_are_verified(
    store: MemoryStore, merged: Manifest
) -> None:
    verify_files(store, merged)
    verify_files(store, merged, full=True)
    assert "" not in merged.keys


@pytest.mark.parametrize("found", [None, b"", b"-" * 99, b"-" * 101])
def test_a_pack_of_another_size_is_found_without_reading_it(
    store: MemoryStore, merged: Manifest, found: bytes | None
) -> None:
    store.delete(PACK)
    if found is not None:
        store.put(PACK, found)
    with pytest.raises(CorruptState, match=PACK):
        verify_files(store, merged)


def test_only_the_slice_that_is_referenced_must_be_right(
    store: MemoryStore, merged: Manifest
) -> None:
    data = bytearray(store.get(PACK))
    data[10] ^= 1
    store.put(PACK, bytes(data))
    verify_files(store, merged, full=True)
    data[60] ^= 1
    store.put(PACK, bytes(data))
    verify_files(store, merged)
    with pytest.raises(CorruptState, match=f"checksum.*{PACK}"):
        verify_files(store, merged, full=True)


def test_inline_bytes_that_do_not_match_are_found(store: MemoryStore, merged: Manifest) -> None:
    operator = merged.operators["counts"]
    first = operator.subtasks[0]
    wrong = replace(first.files[0], sha256="0" * 64)
    damaged = replace(first, files=[wrong, first.files[1]])
    operators = {"counts": replace(operator, subtasks=[damaged, operator.subtasks[1]])}
    with pytest.raises(CorruptState, match="inline"):
        verify_files(store, replace(merged, operators=operators))


def test_a_manifest_holds_only_so_much_inline(merged: Manifest) -> None:
    operator = merged.operators["counts"]
    first = operator.subtasks[0]
    large = replace(first.files[0], inline=bytes(MAX_INLINE_BYTES + 1), size=MAX_INLINE_BYTES + 1)
    too_large = replace(first, files=[large], bytes_total=large.size)
    operators = {"counts": replace(operator, subtasks=[too_large, operator.subtasks[1]])}
    with pytest.raises(Bug, match="inline"):
        encode_manifest(replace(merged, operators=operators))


# Retention


@pytest.mark.scenario(22)
def test_retiring_keeps_the_newest_and_every_file_they_need(
    keys: Keys, store: MemoryStore, writer: LogWriter, take: Take
) -> None:
    take(1, "a", "b")
    take(2, "b", "c")
    third = take(3, "c", "d")
    done = CheckpointStore(store).retire(writer, 2)
    assert done.checkpoint_ids == (1,)
    assert done.keys[-1] == "chk-1/MANIFEST"
    assert {key for key in keys() if "chk-1/" in key or "a.sst" in key} == set()
    verify_files(store, third, full=True)
    CheckpointStore(store).retire(writer, 1)
    assert keys() == {"chk-3/MANIFEST", *(file.key for file in third.files)}
    assert writer.entries[-1] == Retire(1, 2)


def test_the_chosen_restore_point_and_pinned_bases_are_kept(
    store: MemoryStore, writer: LogWriter, take: Take
) -> None:
    for checkpoint_id in range(1, 6):
        take(checkpoint_id)
    writer.append(Run(1, 1, "chk-1", explicit=True))
    done = CheckpointStore(store).retire(writer, 1, pinned=[3])
    assert done.checkpoint_ids == (2, 4)


@pytest.mark.scenario(22)
def test_files_of_a_pending_checkpoint_are_kept(
    store: MemoryStore,
    writer: LogWriter,
    take: Take,
    new_manifest: NewManifest,
) -> None:
    take(1, "a")
    take(2, "b")
    pending = new_manifest(3, ("a",), writer=writer, store=store)
    CheckpointStore(store).retire(writer, 1, pending=pending.handles)
    verify_files(store, pending, full=True)


def test_nothing_goes_while_a_checkpoint_that_stays_cannot_be_read(
    keys: Keys, store: MemoryStore, writer: LogWriter, take: Take
) -> None:
    for checkpoint_id in (1, 2, 3):
        take(checkpoint_id)
    damage(store, "chk-3/MANIFEST")
    before = keys()
    done = CheckpointStore(store).retire(writer, 1)
    assert (done.checkpoint_ids, done.keys) == ((), ())
    assert keys() == before
    take(4)
    assert CheckpointStore(store).retire(writer, 1).checkpoint_ids == (1, 2, 3)
    assert "chk-3/MANIFEST" in keys(), "what a damaged one referenced is left for a sweep"


def test_a_fenced_writer_deletes_nothing(
    keys: Keys, store: MemoryStore, writer: LogWriter, owner: Owner, take: Take
) -> None:
    take(1)
    take(2)
    LogWriter.claim(store, owner, "the next")
    before = keys()
    with pytest.raises(Fenced):
        CheckpointStore(store).retire(writer, 1)
    assert keys() == before


def test_a_fenced_writer_does_not_go_on_with_an_earlier_deletion(
    keys: Keys, store: MemoryStore, writer: LogWriter, owner: Owner, take: Take
) -> None:
    take(1)
    take(2)
    writer.append(Retire(1, 1))
    LogWriter.claim(store, owner, "the next")
    before = keys()
    with pytest.raises(Fenced):
        CheckpointStore(store).retire(writer, 1)
    assert keys() == before


def test_a_fenced_writer_brings_no_retired_checkpoint_back(
    keys: Keys, store: MemoryStore, owner: Owner, new_manifest: NewManifest, start: datetime
) -> None:
    """It stalls before it puts its manifest, and puts it where its successor deleted one."""
    stalled = LogWriter.claim(store, owner, "me")
    late = new_manifest(1, ("late",), writer=stalled, store=store)
    successor = LogWriter.claim(store, owner, "the next")
    checkpoints = CheckpointStore(store)
    for checkpoint_id in (1, 2):
        taken = new_manifest(checkpoint_id, ("a",), writer=successor, store=store)
        checkpoints.complete(successor, taken, start)
    assert checkpoints.retire(successor, 1).checkpoint_ids == (1,)
    with pytest.raises(Fenced):
        CheckpointStore(store).complete(stalled, late, start)

    third = LogWriter.claim(store, owner, "the one after")
    checkpoints = CheckpointStore(store)
    assert store.get("chk-1/MANIFEST") == encode_manifest(late)
    assert checkpoints.load_latest(third.entries, verify="hashes") == (taken, [])
    assert checkpoints.next_id(third.entries) == 3
    with pytest.raises(UserError, match="retained are: chk-2"):
        checkpoints.load_id(third.entries, 1)
    assert checkpoints.retire(third, 1).keys == ()
    sweep(store, third, age_floor=timedelta(0))
    assert keys() == {"chk-2/MANIFEST", *taken.keys}


@pytest.mark.parametrize("deletes", range(7))
def test_an_interrupted_retirement_is_finished_by_the_next_process(
    keys: Keys,
    store: MemoryStore,
    writer: LogWriter,
    owner: Owner,
    take: Take,
    deletes: int,
) -> None:
    take(1, "a")
    last = take(2, "b")

    class Dying:
        left = deletes

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def delete_many(self, keys: Collection[str]) -> dict[str, MoorageError]:
            return delete_each(self.delete, keys)

        def delete(self, key: str) -> None:
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            store.delete(key)

    dying: Any = Dying()
    try:
        CheckpointStore(dying).retire(writer, 1)
    except KeyboardInterrupt:
        assert Retire(1, 1) in writer.entries
    successor = LogWriter.claim(store, owner, "the next")
    CheckpointStore(store).retire(successor, 1)
    assert keys() == {"chk-2/MANIFEST", *(file.key for file in last.files)}
    assert successor.entries.count(Retire(1, 1)) == 1


def test_hundreds_of_objects_go_in_one_request_and_manifests_in_another(
    keys: Keys, store: MemoryStore, writer: LogWriter, new_manifest: NewManifest, start: datetime
) -> None:
    checkpoints, requests = CheckpointStore(store), []
    for checkpoint_id in (1, 2):
        files = [f"{checkpoint_id}-{n}" for n in range(150)]
        taken = new_manifest(checkpoint_id, files, writer=writer, store=store)
        checkpoints.complete(writer, taken, start)

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def delete(self, _key: str) -> None:
            raise AssertionError("one by one")

        def delete_many(self, keys: Collection[str]) -> dict[str, MoorageError]:
            requests.append(len(keys))
            return store.delete_many(keys)

    counting: Any = Counting()
    CheckpointStore(counting).retire(writer, 1)
    assert requests == [300, 2, 1], "shared ones, those of the checkpoint alone, the manifest"
    assert keys() == {"chk-2/MANIFEST", *taken.keys}


def test_a_manifest_stays_while_a_file_that_only_it_names_could_not_be_deleted(
    keys: Keys, store: MemoryStore, writer: LogWriter, take: Take
) -> None:
    first, last = take(1, "a"), take(2, "b")
    stuck = min(first.keys)

    class Refusing:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def delete_many(self, keys: Collection[str]) -> dict[str, MoorageError]:
            store.delete_many([key for key in keys if key != stuck])
            return {stuck: StoreDenied("not this one")} if stuck in keys else {}

    refusing: Any = Refusing()
    checkpoints = CheckpointStore(refusing)
    for _ in range(2):
        with pytest.raises(StoreDenied, match=f"count=1 first={stuck}: not this one"):
            checkpoints.retire(writer, 1)
    assert keys() == {"chk-1/MANIFEST", stuck, "chk-2/MANIFEST", *last.keys}
    CheckpointStore(store).retire(writer, 1)
    assert keys() == {"chk-2/MANIFEST", *last.keys}


def test_a_checkpoint_that_completes_while_older_ones_are_retired_keeps_what_it_builds_on(
    keys: Keys,
    store: MemoryStore,
    writer: LogWriter,
    take: Take,
    new_manifest: NewManifest,
    start: datetime,
) -> None:
    """The second was faster than the third, which began before it and builds on the first."""
    take(1, "a")
    take(2, "b")
    moment, pinned = writer.possible_entries, (1, 2)
    third = new_manifest(3, ("a", "c"), writer=writer, store=store)
    CheckpointStore(store).complete(writer, third, start)
    CheckpointStore(store).retire(writer, 1, pinned=pinned, entries=moment)
    verify_files(store, third, full=True)
    CheckpointStore(store).retire(writer, 1, pinned=(3,))
    assert keys() == {"chk-3/MANIFEST", *third.keys}


def test_one_checkpoint_always_stays(start: datetime) -> None:
    entries: list[Entry] = [
        Fence(1, "x"),
        Checkpoint(1, 0, 1, "chk-1/MANIFEST", "sha256:0", 1, start),
    ]
    assert kept_of(entries, 0, ()) == {1}


def test_an_unreadable_manifest_is_an_error_and_not_an_empty_start(
    directory: LocalStore, owner: Owner, new_manifest: NewManifest, start: datetime, tmp_path: Path
) -> None:
    writer = LogWriter.claim(directory, owner, "me")
    manifest = new_manifest(1, writer=writer, store=directory)
    CheckpointStore(directory).complete(writer, manifest, start)
    (tmp_path / "chk-1").rename(tmp_path / "moved")
    (tmp_path / "chk-1").write_text("")
    with pytest.raises(MoorageError, match="chk-1"):
        CheckpointStore(directory).load_latest(writer.entries, HOUR)
