"""Snapshots of every backend: two phases, what they see, who can read them, what they leave."""

import pickle
import random
import threading
from pathlib import Path

import pytest

from moorage_state.coordinator import CheckpointOptions, CheckpointType
from moorage_state.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from moorage_state.errors import CorruptState, StoreUnavailable, UserError
from moorage_state.server import local_files
from moorage_state.state_backends import (
    DriverCheckpointStorage,
    EmbeddedRocksDBStateBackend,
    FilesystemCheckpointStorage,
    HashMapStateBackend,
    SnapshotCanceled,
    StateSizeExceeded,
)
from moorage_state.stores import LocalStore, open_store

NATIVE_SAVEPOINT = CheckpointOptions(CheckpointType.SAVEPOINT)
FULL = CheckpointOptions(CheckpointType.FULL_CHECKPOINT)
COUNT = ValueStateDescriptor("count", "long")
ITEMS = ListStateDescriptor("items", "array<string>")
SEEN = MapStateDescriptor("seen", "string", "struct<n:long,tags:array<string>>")
TOTAL = ReducingStateDescriptor("total", "long", "sum")


class Mean(AggregateFunction):
    def create_accumulator(self):
        return (0, 0)

    def add(self, value, accumulator):
        return (accumulator[0] + value, accumulator[1] + 1)

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]


MEAN = AggregatingStateDescriptor("mean", "struct<sum:long,n:long>", Mean())
KEYS = [f"key-{i}" for i in range(40)]


def fill(op, keys=KEYS, step=0):
    for i, key in enumerate(keys):
        op.with_key(key)
        op.state(COUNT).update(i + step)
        op.state(ITEMS).add_all([[key], [str(step), "x"]])
        op.state(SEEN).put("a", (i + step, [key]))
        op.state(TOTAL).add(i + step)
        op.state(MEAN).add_all([i, i + 2])
        op.current.timers().register(100 * i + step)


def read(op, keys=KEYS):
    found = {}
    for key in keys:
        op.with_key(key)
        found[key] = (
            op.state(COUNT).value(),
            op.state(ITEMS).get(),
            dict(op.state(SEEN).items()),
            op.state(TOTAL).get(),
            op.state(MEAN).get(),
        )
    return found


def timers(op):
    fired = []
    for one in op.made:
        one.timers().fire_due(1 << 60, lambda time_ms, key: fired.append((time_ms, key)))
    return sorted(fired)


# -- two phases -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["checkpoint", "savepoint"])
def test_what_is_written_after_the_synchronous_part_is_not_in_the_snapshot(op, options, kind):
    fill(op)
    before = read(op)
    (future,) = op.begin(options[kind])
    fill(op, step=7)
    for key in KEYS[::2]:
        op.with_key(key)
        for descriptor in (COUNT, ITEMS, SEEN):
            op.state(descriptor).clear()
    future.run()
    op.restore([future.result(0).handle])
    assert read(op) == before
    assert timers(op) == [(100 * i, key) for i, key in enumerate(KEYS)]


def test_a_value_that_is_changed_in_place_after_the_snapshot_is_not_changed_in_it(op):
    mine = ["as given"]
    op.with_key("k")
    op.state(ITEMS).add(mine)
    op.state(SEEN).put("a", (1, mine))
    (future,) = op.begin()
    mine.append("later")
    op.state(ITEMS).get()[0].append("later")
    op.state(SEEN).get("a").tags.append("later")
    future.run()
    op.restore([future.result(0).handle])
    assert read(op, ["k"])["k"][1:3] == ([["as given"]], {"a": (1, ["as given"])})


def test_two_snapshots_at_once_see_each_its_own_moment(op):
    op.with_key("k")
    op.state(COUNT).update(1)
    op.state(ITEMS).add(["1"])
    (first,) = op.begin()
    op.state(COUNT).update(2)
    op.state(ITEMS).add(["2"])
    (second,) = op.begin()
    op.state(COUNT).update(3)
    op.state(ITEMS).add(["3"])
    second.run()
    first.run()
    for future, expected in ((first, (1, [["1"]])), (second, (2, [["1"], ["2"]]))):
        op.restore([future.result(0).handle])
        assert read(op, ["k"])["k"][:2] == expected


def test_purely_synchronous_snapshots_are_completed_when_they_are_returned(subtasks):
    op = subtasks(HashMapStateBackend(asynchronous_snapshots=False))
    fill(op)
    before = read(op)
    (future,) = op.begin()
    assert future.done
    fill(op, step=1)
    op.restore([future.result(0).handle])
    assert read(op) == before


def test_writes_go_on_while_a_snapshot_is_written_slowly(op, subtasks, monkeypatch):
    """Its files come to the store one at a time, between changes to all keys."""
    op.storage = FilesystemCheckpointStorage(str(op.path / "store"), inline_bytes=0)
    rng = random.Random(7)
    turn, through = threading.Semaphore(0), threading.Semaphore(0)
    for name in ("put", "put_file"):
        monkeypatch.setattr(LocalStore, name, _in_turns(getattr(LocalStore, name), turn, through))
    for round_ in range(4):
        fill(op, step=round_)
        before = read(op)
        futures = op.begin()
        if round_ % 2:
            futures += op.begin()  # another at the same moment
        runners = [threading.Thread(target=future.run) for future in futures]
        for runner in runners:
            runner.start()
        while any(runner.is_alive() for runner in runners):
            if through.acquire(timeout=0.01):
                change(op, rng)
                turn.release()
        for future in futures:
            other = subtasks(op.backend, storage=op.storage)
            other.restore([future.result(0).handle])
            assert read(other) == before


def _in_turns(put, turn, through):
    def waiting(*given):
        through.release()
        assert turn.acquire(timeout=60)
        put(*given)

    return waiting


def change(op, rng):
    for key in rng.sample(KEYS, 8):
        op.with_key(key)
        op.state(COUNT).update(rng.randrange(1000))
        op.state(ITEMS).add(["later"])
        op.state(SEEN).put(rng.choice("abc"), (0, ["later"]))
        op.state(SEEN).remove(rng.choice("abc"))
        if rng.random() < 0.3:
            op.state(ITEMS).clear()


# -- cancel -----------------------------------------------------------------------------------


def objects(op):
    place = op.storage.create_access("job").store_url.removeprefix("file://")
    return [p for p in Path(place).rglob("*") if p.is_file()] if Path(place).is_dir() else []


def test_a_snapshot_that_is_canceled_before_it_runs_leaves_nothing(op):
    fill(op)
    (future,) = op.begin()
    assert future.cancel()
    future.run()
    with pytest.raises(SnapshotCanceled):
        future.result(0)
    assert objects(op) == []
    fill(op, step=1)
    assert op.take()[0].state_size > 0


def test_a_snapshot_that_was_aborted_is_canceled(op):
    fill(op)
    (future,) = op.begin()
    op.made[0].notify_checkpoint_aborted(op.checkpoint_id)
    assert future.canceled


@pytest.mark.parametrize("kind", ["checkpoint", "savepoint"])
@pytest.mark.parametrize("seed", range(4))
def test_a_cancellation_amid_the_writing_leaves_nothing_half_written(op, options, kind, seed):
    op.storage = FilesystemCheckpointStorage(str(op.path / "store"), inline_bytes=0)
    rng = random.Random(seed)
    fill(op)
    for _ in range(4):
        (future,) = op.begin(options[kind])
        runner = threading.Thread(target=future.run)
        runner.start()
        threading.Event().wait(rng.random() * 0.01)
        won = future.cancel()
        runner.join(60)
        if won:
            assert objects(op) == []
        else:
            future.result(0).discard()
            assert objects(op) == []
    assert not list(op.path.rglob("snapshot-*"))


def test_disposing_cancels_what_is_not_through_and_leaves_no_files(op):
    fill(op)
    (future,) = op.begin()
    op.close()
    assert future.canceled
    assert not [p for p in (op.path / "local").rglob("*") if p.is_file()]


def test_a_store_that_does_not_answer_fails_the_snapshot_and_not_the_state(op, monkeypatch):
    op.storage = FilesystemCheckpointStorage(str(op.path / "store"), inline_bytes=0)
    fill(op)

    def refuse(*_, **__):
        raise StoreUnavailable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "put", refuse)
        patch.setattr(LocalStore, "put_file", refuse)
        (future,) = op.begin()
        future.run()
        with pytest.raises(StoreUnavailable):
            future.result(0)
    assert objects(op) == []
    before = read(op)
    op.restore(op.take())
    assert read(op) == before


# -- restore ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["checkpoint", "savepoint"])
def test_any_parallelism_restores_into_any_other(backend, subtasks, options, kind):
    op = subtasks(backend, options=options[kind])
    fill(op)
    before = read(op)
    for parallelism in (3, 8, 5, 1, 2):
        op.rescale(parallelism)
        assert read(op) == before
    assert timers(op) == [(100 * i, key) for i, key in enumerate(KEYS)]


@pytest.mark.parametrize("storage", ["driver", "filesystem"])
@pytest.mark.parametrize("to", ["hashmap", "rocksdb"])
def test_a_canonical_snapshot_of_one_backend_restores_into_another(
    backend, subtasks, options, storage, to
):
    op = subtasks(backend, 2)
    if storage == "driver":
        op.storage = DriverCheckpointStorage()
    fill(op)
    before = read(op)
    handles = op.take(options["savepoint"])
    op.close()
    other = HashMapStateBackend() if to == "hashmap" else EmbeddedRocksDBStateBackend()
    op.parallelism = 3
    op.start(handles, other)
    assert read(op) == before
    fill(op, step=5)
    assert timers(op) == sorted(
        [(100 * i, key) for i, key in enumerate(KEYS)]
        + [(100 * i + 5, key) for i, key in enumerate(KEYS)]
    )


def test_a_list_goes_on_behind_what_was_restored(op):
    op.with_key("k")
    for n in range(3):
        op.state(ITEMS).add([str(n)])
        op.restore(op.take())
        op.with_key("k")
    op.state(ITEMS).add(["last"])
    assert op.state(ITEMS).get() == [["0"], ["1"], ["2"], ["last"]]


def test_state_that_nobody_asked_for_since_the_restore_is_in_the_next_snapshot(op):
    fill(op)
    before = read(op)
    op.restore(op.take())
    op.restore(op.take())
    assert read(op) == before


def test_the_handle_travels_by_pickle_and_holds_what_it_needs(op):
    op.storage = DriverCheckpointStorage()
    fill(op)
    before = read(op)
    handles = pickle.loads(pickle.dumps(op.take()))
    DriverCheckpointStorage.forget("job")
    op.restore(handles)
    assert read(op) == before


def test_a_snapshot_in_one_backends_own_format_is_refused_by_another(subtasks):
    op = subtasks(HashMapStateBackend())
    fill(op)
    handles = op.take()
    op.close()
    with pytest.raises(UserError, match=r"written_by=hashmap readable=canonical,rocksdb"):
        op.start(handles, EmbeddedRocksDBStateBackend())
    op.made = []


def test_handles_of_other_keys_or_groups_are_refused(op):
    fill(op)
    handles = op.take()
    op.close()
    op.key_types = ("long",)
    with pytest.raises(UserError, match=r"key_types stored=\('string',\) declared=\('long',\)"):
        op.start(handles)
    op.made = []


def test_a_part_of_the_handles_is_no_snapshot(backend, subtasks):
    op = subtasks(backend, 3)
    fill(op)
    handles = op.take()
    op.close()
    op.parallelism = 1
    with pytest.raises(CorruptState, match=r"wanted=0-15 found=0-5,11-15"):
        op.start([handles[0], handles[2]])
    op.made = []


# -- what is uploaded -------------------------------------------------------------------------


@pytest.fixture
def rocks(subtasks):
    op = subtasks(EmbeddedRocksDBStateBackend())
    op.storage = FilesystemCheckpointStorage(str(op.path / "store"), inline_bytes=0)
    rng = random.Random(3)
    for i in range(3000):
        op.with_key(f"key-{i}")
        op.state(ITEMS).add([rng.randbytes(100).hex()])
    return op


def snapshot_bytes(op, options=None, *, complete=True):
    (future,) = op.begin(options)
    future.run()
    result = future.result(0)
    if complete:
        op.made[0].notify_checkpoint_complete(op.checkpoint_id)
    return result


def test_a_checkpoint_uploads_what_the_last_completed_one_does_not_have(rocks):
    whole = snapshot_bytes(rocks)
    rocks.with_key("key-1")
    rocks.state(ITEMS).add(["more"])
    second = snapshot_bytes(rocks)
    assert second.bytes_written < whole.bytes_written / 5
    assert second.state_size >= whole.state_size * 0.9
    rocks.restore([second.handle])
    rocks.with_key("key-1")
    assert rocks.state(ITEMS).get()[1:] == [["more"]]


def test_no_file_is_read_again_for_its_digest_and_none_is_known_that_is_gone(rocks, monkeypatch):
    (one,) = rocks.made
    read: list[str] = []
    digests_of = local_files.digests_of

    def noted(path):
        read.append(path.name)
        return digests_of(path)

    monkeypatch.setattr(local_files, "digests_of", noted)
    for n in range(3):
        rocks.with_key(f"key-{n}")
        rocks.state(ITEMS).add(["more"])
        snapshot_bytes(rocks)
    tables = [name for name in read if name.endswith(".sst")]
    assert len(tables) == len(set(tables)) >= 3
    one._database._below._open().compact_range(None, None)
    snapshot_bytes(rocks)
    here = {path.name for path in rocks.path.rglob("work-*/*.sst")}
    assert one._snapshots.hashes._known.keys() == here


def test_nothing_builds_on_a_checkpoint_that_was_not_told_complete(rocks):
    whole = snapshot_bytes(rocks, complete=False)
    assert snapshot_bytes(rocks).bytes_written > whole.bytes_written * 0.9


def test_a_full_checkpoint_builds_on_nothing(rocks):
    whole = snapshot_bytes(rocks)
    assert snapshot_bytes(rocks, FULL).bytes_written > whole.bytes_written * 0.9


def test_a_checkpoint_that_is_discarded_takes_no_files_from_the_one_it_builds_on(rocks):
    first = snapshot_bytes(rocks)
    second = snapshot_bytes(rocks)
    second.discard()
    rocks.restore([first.handle])
    rocks.with_key("key-2")
    assert len(rocks.state(ITEMS).get()) == 1


def test_a_native_savepoint_is_whole_within_its_own_directory(rocks):
    snapshot_bytes(rocks)
    result = snapshot_bytes(rocks, NATIVE_SAVEPOINT)
    place = Path(rocks.location(rocks.checkpoint_id).pointer.removeprefix("file://"))
    elsewhere = place.rename(place.parent.parent / "moved")
    import msgspec

    handle = msgspec.structs.replace(result.handle, store_url=f"file://{elsewhere}")
    rocks.restore([handle])
    rocks.with_key("key-2")
    assert len(rocks.state(ITEMS).get()) == 1


# -- the driver's storage ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["checkpoint", "savepoint"])
def test_state_that_is_more_than_the_driver_keeps_fails_the_snapshot(op, options, kind):
    op.storage = DriverCheckpointStorage(max_state_bytes=1000)
    fill(op)
    (future,) = op.begin(options[kind])
    future.run()
    with pytest.raises(
        StateSizeExceeded,
        match=r"size=\d+ maximum=1000 setting=state.checkpoint-storage.driver.max-state-size",
    ):
        future.result(0)
    op.storage = DriverCheckpointStorage()
    assert op.take(options[kind])[0].state_size > 1000


# -- damage -----------------------------------------------------------------------------------


def test_a_changed_byte_is_found_wherever_it_is(op):
    op.storage = FilesystemCheckpointStorage(str(op.path / "store"), inline_bytes=0)
    fill(op)
    (handle,) = op.take()
    store = open_store(handle.store_url)
    op.close()
    rng = random.Random(1)
    for ref in [ref for ref in handle.range.files if ref.key]:
        whole = store.get(ref.key)
        ours = range(ref.offset, ref.offset + ref.size)
        for at in [ours[0], ours[-1], *rng.sample(ours, 5)]:
            damaged = bytearray(whole)
            damaged[at] ^= 0x41
            store.put(ref.key, bytes(damaged))
            with pytest.raises((CorruptState, UserError)):
                op.start([handle])
        store.put(ref.key, whole[:-7])
        with pytest.raises(CorruptState):
            op.start([handle])
        store.put(ref.key, whole)
    op.start([handle])
    assert op.stored_entries() > 0
