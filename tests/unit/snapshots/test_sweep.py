"""Mark and sweep: what goes, what never goes, and who may not sweep any more."""

import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moorage_testing.parts import rooted
from msgspec.structs import replace

from moorage_state import failpoints
from moorage_state.errors import (
    AlreadyExists,
    CorruptState,
    Fenced,
    MoorageError,
    StoreUnavailable,
    UserError,
)
from moorage_state.snapshots import (
    AGE_FLOOR,
    CheckpointStore,
    FileRef,
    LineageLog,
    LogWriter,
    Manifest,
    Owner,
    SweepProgress,
    Swept,
    UnderWay,
    find_garbage,
    garbage_among,
    object_keys,
    retained,
    sweep,
    verify_files,
)
from moorage_state.snapshots.sweep import find_candidates
from moorage_state.stores import MemoryStore
from moorage_state.stores.base import delete_each

NewManifest = Callable[..., Manifest]
Take = Callable[..., Manifest]
Keys = Callable[..., set[str]]
NONE = timedelta(0)


def named(*manifests: Manifest) -> set[str]:
    """Everything that these checkpoints need."""
    own = {f"chk-{manifest.checkpoint_id}/MANIFEST" for manifest in manifests}
    return own.union(*(manifest.keys for manifest in manifests))


def packed(manifest: Manifest, key: str, slices: dict[str, int], store: MemoryStore) -> Manifest:
    """The same manifest, of which the first range has slices of a pack in place of its files."""
    store.put(key, b"x" * int(key.rpartition("-")[2]))
    files = [
        FileRef(name=name, key=key, offset=at, size=10, sha256="0" * 64, shared=True)
        for name, at in slices.items()
    ]
    subtasks = manifest.operators["counts"].subtasks
    first = replace(subtasks[0], files=files, bytes_total=10 * len(files))
    operator = replace(manifest.operators["counts"], subtasks=[first, subtasks[1]])
    return replace(manifest, operators={"counts": operator})


PACK = f"shared/pack-{'c' * 32}-0-100"


@pytest.mark.scenario(22)
def test_after_retirement_and_a_sweep_the_store_holds_what_live_checkpoints_name(
    keys: Keys, store: MemoryStore, writer: LogWriter, take: Take, new_manifest: NewManifest
) -> None:
    take(1, "a")
    last = take(2, "b")
    new_manifest(3, ("c", "d"), writer=writer, store=store)  # its upload was given up
    store.put("chk-3/f1r0/pack-00-0-3", b"abc")
    store.put("shared/pack-00-1-3", b"abc")
    CheckpointStore(store).retire(writer, 1)
    swept = sweep(store, writer, age_floor=NONE)
    assert swept.deleted
    assert keys() == named(last)
    verify_files(store, last, full=True)
    assert sweep(store, writer, age_floor=NONE).objects == ()


def test_a_dry_run_tells_sizes_and_deletes_nothing(
    keys: Keys, store: MemoryStore, writer: LogWriter
) -> None:
    store.put("shared/pack-00-0-3", b"abc")
    swept = sweep(store, writer, age_floor=NONE, dry_run=True)
    assert ([info.key for info in swept.objects], swept.bytes) == (["shared/pack-00-0-3"], 3)
    assert not swept.deleted
    assert keys() == {"shared/pack-00-0-3"}


FOREIGN = [
    "chk-x/f1r0/file",
    "chk-03/f1r0/file",
    "chk-3/notes.txt",
    "chk-3/f1r0x/file",
    "shared/folder/file",
    "sharedly",
    "savepoints/daily/MANIFEST",
    "savepoints/daily/shared/b-a.sst-0",
    "locks/driver",
    "mine.txt",
]


@pytest.mark.scenario(23)
def test_what_checkpoints_did_not_write_is_never_touched(
    keys: Keys, store: MemoryStore, writer: LogWriter, take: Take
) -> None:
    last = take(1)
    for key in FOREIGN:
        store.put(key, b"precious")
    sweep(store, writer, age_floor=-10 * AGE_FLOOR)
    assert keys() == named(last) | set(FOREIGN)
    assert next(iter(store.list("log/")), None) is not None


@pytest.mark.scenario(23)
def test_what_is_younger_than_the_age_floor_by_the_stores_clock_stays(
    owner: Owner, start: datetime
) -> None:
    present = [start]
    store = MemoryStore("aged", clock=lambda: present[0])
    # This machine's clock is two days ahead of the store's.
    writer = LogWriter.claim(store, owner, "me", clock=lambda: present[0] + 2 * AGE_FLOOR)
    store.put("shared/pack-00-0-3", b"abc")
    present[0] += AGE_FLOOR / 2
    assert sweep(store, writer).objects == ()
    present[0] += AGE_FLOOR / 2
    assert len(sweep(store, writer).objects) == 1


@pytest.mark.scenario(23)
@pytest.mark.parametrize("step", [timedelta(hours=25), timedelta(hours=-25)])
def test_nothing_of_a_checkpoint_under_way_goes_whatever_any_clock_says(
    keys: Keys, owner: Owner, start: datetime, step: timedelta
) -> None:
    present = [start]
    store = MemoryStore("stepped", clock=lambda: present[0])
    writer = LogWriter.claim(store, owner, "me", clock=lambda: present[0])
    upload = {f"shared/{'a' * 32}-000010.sst-{'b' * 16}", f"chk-2/f1r0/pack-{'c' * 32}-0-3"}
    for key in upload:
        store.put(key, b"abc")
    present[0] += step  # the store is this machine's disk
    known = UnderWay(checkpoint_ids=(2,))
    swept = sweep(store, writer, age_floor=-2 * AGE_FLOOR, under_way=lambda: known)
    assert (swept.objects, swept.put_off) == ((), True)
    assert keys(store) == upload
    given_up = sweep(store, writer, age_floor=-2 * AGE_FLOOR)
    assert (len(given_up.objects), given_up.put_off) == (2, False)


@pytest.mark.scenario(23)
def test_a_checkpoint_that_begins_while_a_sweep_starts_is_known_to_it(
    store: MemoryStore, writer: LogWriter
) -> None:
    """It uploads before the listing is made, so what is under way is asked for after that."""
    under_way: list[int] = []

    class Uploading:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def list(self, prefix: str, start_after: str = "") -> Any:
            under_way[:] = [1]
            store.put("shared/pack-00-0-3", b"abc")
            return store.list(prefix, start_after)

    uploading: Any = Uploading()

    def known() -> UnderWay:
        return UnderWay(checkpoint_ids=tuple(under_way))

    assert sweep(uploading, writer, age_floor=NONE, under_way=known).objects == ()


def test_what_a_checkpoint_under_way_references_stays(
    keys: Keys, store: MemoryStore, writer: LogWriter, take: Take, new_manifest: NewManifest
) -> None:
    last = take(1)
    pending = new_manifest(2, ("b",), writer=writer, store=store)
    store.put("chk-2/f1r0/pack-00-0-3", b"named by a handle that has not arrived")
    under_way = UnderWay(checkpoint_ids=[2])
    sweep(store, writer, age_floor=NONE, under_way=lambda: under_way)
    assert keys() == named(last) | object_keys(pending.handles) | {"chk-2/f1r0/pack-00-0-3"}


def test_a_base_that_is_built_on_stays_even_if_it_was_retired(
    keys: Keys, store: MemoryStore, writer: LogWriter, take: Take
) -> None:
    base = take(1, "a")
    last = take(2, "b")

    class Kept:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def delete_many(self, _keys: Collection[str]) -> dict[str, MoorageError]:
            return {}

    kept: Any = Kept()
    CheckpointStore(kept).retire(writer, 1)
    sweep(store, writer, age_floor=NONE, under_way=lambda: UnderWay(pinned=[1]))
    assert keys() == named(base, last)


@pytest.mark.scenario(22)
def test_nothing_is_swept_while_a_live_manifest_cannot_be_read(
    keys: Keys, store: MemoryStore, writer: LogWriter, take: Take
) -> None:
    take(1)
    take(2)
    store.put("shared/pack-00-0-3", b"abc")
    store.put("chk-1/MANIFEST", store.get("chk-1/MANIFEST")[:-9])
    before = keys()
    with pytest.raises(CorruptState, match="chk-1/MANIFEST"):
        sweep(store, writer, age_floor=NONE)
    store.delete("chk-1/MANIFEST")
    with pytest.raises(CorruptState, match="missing"):
        sweep(store, writer, age_floor=NONE)
    assert keys() == before - {"chk-1/MANIFEST"}


def test_a_manifest_of_a_newer_moorage_stops_the_sweep(
    keys: Keys, store: MemoryStore, writer: LogWriter, take: Take, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(1)
    store.put("shared/pack-00-0-3", b"abc")

    def refuse(*_args: object) -> Manifest:
        raise UserError("written by a newer moorage")

    monkeypatch.setattr("moorage_state.snapshots.checkpoints.decode_snapshot", refuse)
    before = keys()
    with pytest.raises(UserError):
        sweep(store, writer, age_floor=NONE)
    assert keys() == before


@pytest.mark.scenario(23)
def test_a_fenced_sweeper_deletes_nothing(
    keys: Keys, store: MemoryStore, writer: LogWriter, owner: Owner
) -> None:
    store.put("shared/pack-00-0-3", b"abc")
    LogWriter.claim(store, owner, "the next")
    with pytest.raises(Fenced):
        sweep(store, writer, age_floor=NONE)
    assert keys() == {"shared/pack-00-0-3"}


def test_a_sweeper_that_is_fenced_after_its_look_stops_before_it_deletes(
    keys: Keys, store: MemoryStore, writer: LogWriter, owner: Owner, take: Take
) -> None:
    take(1)
    store.put("shared/pack-00-0-3", b"abc")

    class TakenOver:
        """Another writer claims as soon as the live manifests have been read."""

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def get(self, key: str) -> bytes:
            data = store.get(key)
            if key == "chk-1/MANIFEST":
                LogWriter.claim(store, owner, "the next")
            return data

    taken_over: Any = TakenOver()
    with pytest.raises(Fenced):
        sweep(taken_over, writer, age_floor=NONE)
    assert "shared/pack-00-0-3" in keys()


@pytest.mark.parametrize("fault", ["before", "after"])
def test_a_checkpoint_whose_entry_is_in_doubt_is_settled_before_anything_goes(
    faulty: Any, owner: Owner, new_manifest: NewManifest, start: datetime, fault: str
) -> None:
    writer = LogWriter.claim(faulty, owner, "me")
    manifest = new_manifest(1, writer=writer, store=faulty.inner)

    def fail_at_the_entry(place: str) -> None:
        if place == "complete.after_manifest":
            faulty.fail = fault

    with failpoints.watched(fail_at_the_entry), pytest.raises(StoreUnavailable):
        CheckpointStore(faulty).complete(writer, manifest, start)
    sweep(faulty, writer, age_floor=NONE)
    verify_files(faulty, manifest, full=True)
    assert CheckpointStore(faulty).load_id(writer.entries, 1) == manifest


@pytest.mark.scenario(23)
def test_an_orphan_manifest_is_garbage_and_goes_after_the_files(
    keys: Keys, store: MemoryStore, writer: LogWriter, take: Take, new_manifest: NewManifest
) -> None:
    orphan = new_manifest(1, ("z",), store=store)
    store.put("chk-1/MANIFEST", b"of a writer that was fenced")
    last = take(2)
    swept = sweep(store, writer, age_floor=NONE)
    gone = [info.key for info in swept.objects]
    assert set(gone) == named(orphan)
    assert gone[-1] == "chk-1/MANIFEST"
    assert keys() == named(last)


def test_an_orphan_manifest_stays_until_no_checkpoint_can_take_its_id_any_more(
    keys: Keys, store: MemoryStore, writer: LogWriter, take: Take
) -> None:
    store.put("chk-2/MANIFEST", b"of a writer that was fenced")
    first = take(1)
    sweep(store, writer, age_floor=NONE)
    assert keys() == {"chk-2/MANIFEST", *named(first)}
    assert CheckpointStore(store).next_id(writer.entries) == 3
    last = take(3)
    sweep(store, writer, age_floor=NONE)
    assert keys() == named(first, last)


def test_a_sweeper_that_was_overtaken_in_its_sleep_deletes_no_manifest_of_the_present(
    store: MemoryStore,
    writer: LogWriter,
    owner: Owner,
    new_manifest: NewManifest,
    start: datetime,
) -> None:
    store.put("chk-1/MANIFEST", b"of a writer that was fenced before its entry")
    asleep: list[str] = []
    completed: list[Manifest] = []

    def others_go_on(place: str) -> None:
        if asleep:
            return
        asleep.append(place)
        second = LogWriter.claim(store, owner, "second")
        sweep(store, second, age_floor=NONE)
        third = LogWriter.claim(store, owner, "third")
        complete_next(third)

    def complete_next(writer: LogWriter) -> None:
        checkpoints = CheckpointStore(store)
        next_id = checkpoints.next_id(writer.entries)
        completed.append(new_manifest(next_id, writer=writer, store=store))
        checkpoints.complete(writer, completed[-1], start)

    with failpoints.watched(others_go_on):
        sweep(store, writer, age_floor=NONE)
    if not completed:
        complete_next(writer)
    entries = [entry for _, entry in LineageLog.open(store).read()]
    loaded = CheckpointStore(store).load_latest(entries, verify="hashes")
    assert loaded is not None
    assert [loaded.manifest] == completed


def test_an_interrupted_sweep_is_finished_by_the_next(
    keys: Keys, store: MemoryStore, writer: LogWriter, take: Take, new_manifest: NewManifest
) -> None:
    last = take(1)
    new_manifest(2, ("x", "y"), store=store)

    class Failing:
        left = 2

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def delete_many(self, keys: Collection[str]) -> dict[str, MoorageError]:
            return delete_each(self.delete, keys)

        def delete(self, key: str) -> None:
            if not self.left:
                raise StoreUnavailable("injected")
            self.left -= 1
            store.delete(key)

    failing: Any = Failing()
    with pytest.raises(StoreUnavailable):
        sweep(failing, writer, age_floor=NONE)
    sweep(store, writer, age_floor=NONE)
    assert keys() == named(last)


def test_a_tool_without_a_writer_finds_the_same(
    store: MemoryStore, writer: LogWriter, take: Take
) -> None:
    take(1)
    store.put("shared/pack-00-0-3", b"abc")

    def read() -> list[Any]:
        return [entry for _, entry in LineageLog.open(store).read()]

    found = find_garbage(store, read, age_floor=NONE)
    assert found == sweep(store, writer, age_floor=NONE, dry_run=True).objects


@pytest.mark.scenario(22)
def test_a_pack_lives_while_any_checkpoint_references_a_slice_of_it(
    keys: Keys, store: MemoryStore, writer: LogWriter, new_manifest: NewManifest, start: datetime
) -> None:
    checkpoints = CheckpointStore(store)
    for checkpoint_id, slices in ((1, {"a.sst": 0, "b.sst": 10}), (2, {"b.sst": 10})):
        made = new_manifest(checkpoint_id, writer=writer, store=store)
        checkpoints.complete(writer, packed(made, PACK, slices, store), start)
    checkpoints.retire(writer, 1)
    sweep(store, writer, age_floor=NONE)
    assert PACK in keys()
    checkpoints.complete(writer, new_manifest(3, writer=writer, store=store), start)
    checkpoints.retire(writer, 1)
    assert PACK not in keys()


def test_a_pack_that_a_pending_handle_references_survives_a_retirement(
    keys: Keys, store: MemoryStore, writer: LogWriter, new_manifest: NewManifest, start: datetime
) -> None:
    checkpoints = CheckpointStore(store)
    first = packed(new_manifest(1, writer=writer, store=store), PACK, {"a.sst": 0}, store)
    checkpoints.complete(writer, first, start)
    checkpoints.complete(writer, new_manifest(2, writer=writer, store=store), start)
    pending = packed(new_manifest(3, writer=writer, store=store), PACK, {"b.sst": 10}, store)
    checkpoints.retire(writer, 1, pending=pending.handles)
    assert PACK in keys()


def test_what_is_not_of_checkpoints_is_no_candidate_and_manifests_come_last(
    store: MemoryStore, writer: LogWriter, take: Take
) -> None:
    take(1)
    take(9)
    CheckpointStore(store).retire(writer, 1)
    for key in ("chk-8/MANIFEST", "log/1", "shared/x", "chk-8/f1r0/a"):
        store.put(key, b"")
    entries = writer.entries
    found = find_candidates(store, entries, UnderWay, NONE)
    assert [info.key for info in found.objects] == ["chk-8/MANIFEST", "chk-8/f1r0/a", "shared/x"]
    gone = [info.key for info in garbage_among(store, found.objects, entries, UnderWay())]
    assert gone == ["chk-8/f1r0/a", "shared/x", "chk-8/MANIFEST"]


class Uploads:
    """A driver's checkpoints, back to back: there is always one under way."""

    def __init__(self, writer: LogWriter, store: MemoryStore, new_manifest: NewManifest) -> None:
        self._writer, self._store, self._new = writer, store, new_manifest
        self.number, self.pinned = 2, [1]
        self.pending: Manifest | None = None

    def known(self) -> UnderWay:
        ids = [self.pending.checkpoint_id] if self.pending else []
        return UnderWay(tuple(ids), tuple(self.pinned))

    def begin(self, *shared: str) -> None:
        self.pending = self._new(self.number, shared, writer=self._writer, store=self._store)
        self.number += 1

    def complete(self, at: datetime) -> Manifest:
        made = self.pending
        assert made is not None
        CheckpointStore(self._store).complete(self._writer, made, at)
        self.pending, self.pinned = None, [made.checkpoint_id]
        return made


def test_what_a_rescale_left_goes_though_a_checkpoint_is_always_under_way(
    store: MemoryStore,
    writer: LogWriter,
    take: Take,
    new_manifest: NewManifest,
    start: datetime,
) -> None:
    take(1, "a")
    store.put("shared/left-by-compaction", b"abc")
    job = Uploads(writer, store, new_manifest)
    job.begin("a", "b")
    progress = SweepProgress()

    def sweeps() -> Swept:
        return sweep(store, writer, age_floor=NONE, under_way=job.known, progress=progress)

    swept = sweeps()
    assert (swept.objects, swept.put_off) == ((), True)
    assert sweeps().put_off  # it is still the same one
    job.complete(start)
    job.begin("b", "c")
    swept = sweeps()
    assert ([info.key for info in swept.objects], swept.put_off) == (
        ["shared/left-by-compaction"],
        False,
    )
    last = job.complete(start)
    verify_files(store, last, full=True)
    verify_files(store, CheckpointStore(store).load_id(writer.entries, 1), full=True)


def test_what_was_uploaded_while_it_was_listed_is_not_forgotten_when_that_has_completed(
    store: MemoryStore, writer: LogWriter, take: Take, new_manifest: NewManifest, start: datetime
) -> None:
    take(1, "a")
    job = Uploads(writer, store, new_manifest)
    job.begin("b")
    progress = SweepProgress()
    sweep(store, writer, age_floor=NONE, under_way=job.known, progress=progress)
    assert progress.held is not None  # files of the one under way among them
    made = job.complete(start)
    assert not sweep(store, writer, age_floor=NONE, under_way=job.known, progress=progress).objects
    verify_files(store, made, full=True)


def test_what_an_aborted_upload_left_goes_once_it_is_given_up(
    keys: Keys, store: MemoryStore, writer: LogWriter, take: Take, new_manifest: NewManifest
) -> None:
    last = take(1, "a")
    job = Uploads(writer, store, new_manifest)
    job.begin("b")
    progress = SweepProgress()
    sweep(store, writer, age_floor=NONE, under_way=job.known, progress=progress)
    job.pending = None
    sweep(store, writer, age_floor=NONE, under_way=job.known, progress=progress)
    assert keys() == named(last)


def test_a_driver_that_was_followed_deletes_nothing_that_it_held(
    keys: Keys,
    store: MemoryStore,
    writer: LogWriter,
    owner: Owner,
    take: Take,
    new_manifest: NewManifest,
) -> None:
    take(1, "a")
    store.put("shared/left", b"abc")
    job = Uploads(writer, store, new_manifest)
    job.begin("b")
    progress = SweepProgress()
    sweep(store, writer, age_floor=NONE, under_way=job.known, progress=progress)
    LogWriter.claim(store, owner, "the next")
    job.pending = None
    before = keys()
    with pytest.raises(Fenced):
        sweep(store, writer, age_floor=NONE, under_way=job.known, progress=progress)
    assert keys() == before


def test_a_base_that_the_log_does_not_know_holds_everything(
    keys: Keys, store: MemoryStore, writer: LogWriter, take: Take
) -> None:
    take(2)
    store.put("shared/left", b"abc")
    before = keys()
    swept = sweep(store, writer, age_floor=NONE, under_way=lambda: UnderWay(pinned=[1]))
    assert (swept.objects, keys()) == ((), before)


def test_sweeps_go_through_a_directory_a_section_at_a_time(
    keys: Keys, store: MemoryStore, writer: LogWriter, take: Take, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules[find_candidates.__module__]
    monkeypatch.setattr(module, "MOST_LISTED", 5)
    monkeypatch.setattr(module, "MOST_CANDIDATES", 3)
    last = take(1, "a", "b")
    for number in range(20):
        store.put(f"shared/{number:02}", b"abc")
    progress, found = SweepProgress(), []
    for _ in range(12):
        swept = sweep(store, writer, age_floor=NONE, progress=progress)
        assert len(swept.objects) <= 3
        found += [info.key for info in swept.objects]
    assert sorted(found) == [f"shared/{number:02}" for number in range(20)]
    assert keys() == named(last)


def test_of_parts_a_few_are_read_at_a_time_and_none_twice_where_nothing_is_left(
    store: MemoryStore, writer: LogWriter, new_manifest: NewManifest, start: datetime
) -> None:
    plain = new_manifest(1, writer=writer, store=store)
    root = rooted(plain, store, servers=[[0], [1]])
    CheckpointStore(store).complete(writer, root, start)
    read: list[str] = []

    class Reading:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def get(self, key: str) -> bytes:
            read.append(key)
            return store.get(key)

    reading: Any = Reading()
    assert sweep(reading, writer, age_floor=NONE).objects == ()
    assert sorted(key for key in read if "part-" in key) == sorted(p.key for p in root.parts)
    store.put("shared/left", b"abc")
    assert [i.key for i in sweep(store, writer, age_floor=NONE).objects] == ["shared/left"]
    verify_files(store, CheckpointStore(store).load_id(writer.entries, 1), full=True)


class Race:
    """Drivers of one lineage that take checkpoints, let them go and sweep, a step at a time."""

    def __init__(self, owner: Owner, new_manifest: NewManifest, start: datetime) -> None:
        self.store = MemoryStore("race")
        self._owner, self._new, self._start = owner, new_manifest, start
        self.drivers: list[Any] = []
        self.number = 0
        self.claim()

    def claim(self) -> None:
        """Another driver takes over; those before it do not know."""
        writer = LogWriter.claim(self.store, self._owner, f"driver-{len(self.drivers)}")
        newest = next(iter(retained(writer.entries)), None)
        self.drivers.append(
            SimpleNamespace(
                writer=writer,
                progress=SweepProgress(),
                pending=[],
                base=newest.checkpoint_id if newest else 0,
            )
        )

    def known(self, driver: Any) -> UnderWay:
        bases = {base for _, base in driver.pending} | {driver.base}
        ids = tuple(made.checkpoint_id for made, _ in driver.pending)
        return UnderWay(ids, tuple(bases - {0}))

    def begin(self, driver: Any, keep: Collection[str]) -> None:
        """An upload, which keeps some of what its base has and adds a file."""
        self.number += 1
        before = self.names(driver)
        names = [*sorted(before.intersection(keep)), f"n{self.number}"]
        made = self._new(self.number, names, writer=driver.writer)
        there = {f"shared/b{at}-{name}.sst-0123" for at in (0, 64) for name in before}
        for key in made.keys - there:
            self.store.put(key, f"bytes of {key}".encode())
        driver.pending.append((made, driver.base))

    def names(self, driver: Any) -> set[str]:
        """Files that the next upload may build on."""
        if not driver.base:
            return set()
        loaded = self.load(driver.writer, driver.base)
        return {file.name.removesuffix(".sst") for file in loaded.files if file.shared}

    def load(self, writer: LogWriter, checkpoint_id: int) -> Manifest:
        return CheckpointStore(self.store).load_id(writer.entries, checkpoint_id)

    def act(self, driver: Any, action: str, keep: Collection[str]) -> None:
        checkpoints = CheckpointStore(self.store)
        if action == "begin" and len(driver.pending) < 2:
            self.begin(driver, keep)
        elif action == "complete" and driver.pending:
            made, _ = driver.pending.pop(0)
            checkpoints.complete(driver.writer, made, self._start)
            driver.base = made.checkpoint_id
        elif action == "abort" and driver.pending:
            driver.pending.pop()
        elif action == "retire":
            checkpoints.retire(
                driver.writer,
                2,
                pinned=self.known(driver).pinned,
                pending=[h for made, _ in driver.pending for h in made.handles],
            )
        elif action == "sweep":
            sweep(
                self.store,
                driver.writer,
                age_floor=NONE,
                under_way=lambda: self.known(driver),
                progress=driver.progress,
            )

    def check(self) -> None:
        """Whatever the log says is there can be restored."""
        log = [entry for _, entry in LineageLog.open(self.store).read()]
        for checkpoint in retained(log):
            whole = CheckpointStore(self.store).load(checkpoint)
            verify_files(self.store, whole, full=True)


ACTIONS = ["begin", "complete", "sweep", "abort", "retire", "sweep", "begin", "complete"]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_whoever_sweeps_whenever_what_exists_can_be_restored(
    data: st.DataObject, owner: Owner, new_manifest: NewManifest, start: datetime
) -> None:
    race = Race(owner, new_manifest, start)
    for _ in range(data.draw(st.integers(4, 30))):
        action = data.draw(st.sampled_from([*ACTIONS, "claim"]))
        if action == "claim":
            race.claim()
            continue
        # Mostly the present driver; sometimes one that does not know yet that it is followed.
        driver = data.draw(st.sampled_from([*race.drivers, *race.drivers[-1:] * 4]))
        names = sorted(race.names(driver)) if driver is race.drivers[-1] else []
        keep = data.draw(st.sets(st.sampled_from(names))) if names else set()
        if driver is race.drivers[-1]:
            race.act(driver, action, keep)
        elif action != "begin":
            with suppress(Fenced, AlreadyExists):
                race.act(driver, action, keep)
        race.check()
    last = race.drivers[-1]
    last.pending.clear()
    for action in ("begin", "complete", "sweep", "sweep", "sweep"):
        race.act(last, action, ())
    race.check()
    needed = named(
        *(race.load(last.writer, c.checkpoint_id) for c in retained(last.writer.entries))
    )
    left = {info.key for prefix in ("chk-", "shared/") for info in race.store.list(prefix)}
    assert left == needed
