"""Snapshots, uploads, restores and rescales of ranges."""

import random
import threading
from dataclasses import dataclass, field

import pytest

from moorage_state.errors import (
    Bug,
    CorruptState,
    Retryable,
    StaleLease,
    StoreUnavailable,
    VersionGone,
)
from moorage_state.rocks import RocksOptions
from moorage_state.server import RangeHost, RestoreBase, Version, restore
from moorage_state.server.uploads import UploadPart, upload
from moorage_state.state_backends import EmbeddedRocksDBStateBackend, HashMapStateBackend
from moorage_state.stores import MemoryStore, open_store

only_rocksdb = pytest.mark.parametrize("small", ["rocksdb"], indirect=True)
"""About files that RocksDB makes one by one; state in memory has one file."""


def local_files(driven, tmp_path, *parts):
    root = tmp_path / "local" / "ranges" / driven.spec.uid
    root /= f"{driven.spec.start}-{driven.spec.end}"
    found = root.joinpath(*parts)
    return sorted(path.name for path in found.iterdir()) if found.is_dir() else []


@pytest.fixture
def op(host, drive, key):
    driven = drive(host)
    driven.open()
    driven.epoch({key(group, 1): b"v%d" % group for group in range(64)})
    return driven


def test_a_new_run_finds_the_checkpoint_on_this_volume(op, key):
    before = op.read()
    op.checkpoint(1)
    op.epoch({key(1, 1): b"lost with the old run"})
    result = op.open_anew(run="f1r1")
    assert (result.source, result.version) == ("local", (1, ""))
    assert op.read() == before


@pytest.mark.scenario(44)
def test_another_machine_fetches_the_checkpoint_from_the_store(op, drive, tmp_path, small):
    before = op.read()
    op.checkpoint(1)
    with RangeHost(tmp_path / "elsewhere", small) as other:
        moved = drive(other, run="f2r0")
        result = moved.open(op.base)
        assert (result.source, result.version) == ("store", (1, ""))
        assert moved.read() == before
        if not small.stored:
            assert result.bytes_restored == op.base.handles[0].bytes_total
            assert moved.open_anew(run="f2r1").source == "local"


@only_rocksdb
def test_a_volume_with_an_older_copy_fetches_only_what_is_new(op, drive, key, tmp_path, small):
    """As of a driver that stood by with an older checkpoint of the job."""
    op.checkpoint(1)
    before = op.base
    with RangeHost(tmp_path / "elsewhere", small) as other:
        beside = drive(other, run="f1r1000000")
        beside.open(before)
        beside.epoch({key(3, 1): b"dropped"})
        op.epoch({key(5, 2): b"new"})
        whole = op.checkpoint(2)
        result = beside.open_anew(op.base, run="f2r0")
        assert (result.source, result.version) == ("store", (2, ""))
        assert beside.read() == op.read()
        assert 0 < result.bytes_restored < whole.bytes_total
        copies = tmp_path / "elsewhere" / "ranges" / op.spec.uid
        assert [path.name for path in copies.glob("*/ckpt/*")] == ["2"]


@only_rocksdb
def test_an_older_copy_that_is_damaged_is_not_used(op, drive, key, tmp_path, small):
    op.checkpoint(1)
    with RangeHost(tmp_path / "elsewhere", small) as other:
        beside = drive(other, run="f1r1000000")
        beside.open(op.base)
        for path in tmp_path.glob("elsewhere/ranges/*/*/ckpt/1/*.sst"):
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.unlink()
            path.write_bytes(data)
        op.epoch({key(5, 2): b"new"})
        whole = op.checkpoint(2)
        assert beside.open_anew(op.base, run="f2r0").bytes_restored == whole.bytes_total
        assert beside.read() == op.read()


@only_rocksdb
@pytest.mark.parametrize("next_", [1, 2])
def test_what_a_fetch_had_brought_that_failed_is_not_fetched_again(
    op, drive, key, tmp_path, small, monkeypatch, next_
):
    """A checkpoint may be gone before it is fetched; the one after it has most of its tables."""
    op.checkpoint(1)
    tables, arriving = [ref for ref in op.base.handles[0].files if ref.name.endswith(".sst")], ""
    with RangeHost(tmp_path / "elsewhere", small) as other:
        beside, fetch_all = drive(other, run="f1r1000000"), restore.fetch_all

        def cut_short(store, _files, target):
            nonlocal arriving
            fetch_all(store, tables, target)
            (target / tables[0].name).with_suffix(".torn").write_bytes(b"half")
            arriving = target.name
            raise CorruptState("object of a checkpoint is missing", "chk-1", "")

        with monkeypatch.context() as patched:
            patched.setattr(restore, "fetch_all", cut_short)
            with pytest.raises(CorruptState):
                beside.open(op.base)
        assert arriving
        if next_ == 2:
            op.epoch({key(5, 2): b"new"})
            op.checkpoint(2)
        result = beside.open_anew(op.base, run="f1r1000001")
        whole = op.base.handles[0].bytes_total
        assert result.bytes_restored <= whole - sum(ref.size for ref in tables)
        assert beside.read() == op.read()
        copies = tmp_path / "elsewhere" / "ranges" / op.spec.uid
        assert [path.name for path in copies.glob("*/ckpt/*")] == [str(next_)]


def skip_if_files_stay(small):
    if small.stored:
        pytest.skip("its files stay in the store: test_files_in_the_store.py")


def fetched(monkeypatch):
    """The bytes that come from a store from here on, one number each time."""
    found: list[int] = []

    def open_counted(address):
        store = open_store(address)

        class Counted:
            def __getattr__(self, name):
                return getattr(store, name)

            def get(self, key, **kwargs):
                found.append(len(data := store.get(key, **kwargs)))
                return data

            def get_to_file(self, key, path, **kwargs):
                store.get_to_file(key, path, **kwargs)
                found.append(path.stat().st_size)

        return Counted()

    monkeypatch.setattr(restore, "open_store", open_counted)
    return found


@pytest.mark.parametrize("width", [2, 4])
def test_ranges_that_are_made_of_one_fetch_it_once(op, drive, tmp_path, small, monkeypatch, width):
    skip_if_files_stay(small)
    before, handle = op.read(), op.checkpoint(1)
    size = 64 // width
    found = fetched(monkeypatch)
    with RangeHost(tmp_path / "elsewhere", small) as other:
        parts = [drive(other, n * size, (n + 1) * size - 1, "f2r0") for n in range(width)]
        sources = [part.open(op.base).source for part in parts]
        assert sources == ["store"] + (width - 1) * ["local"]
        assert {k: v for part in parts for k, v in part.read().items()} == before
        assert sum(found) == handle.bytes_total
        # The copy goes when nobody can ask for it any more.
        for part in parts:
            part.epoch({})
            part.checkpoint(2)
        names = {path.name for path in (tmp_path / "elsewhere/ranges" / op.spec.uid).iterdir()}
        assert names == {f"{part.spec.start}-{part.spec.end}" for part in parts}


MANY_FILES = EmbeddedRocksDBStateBackend(
    tuned=RocksOptions(
        block_cache_bytes=1 << 20,
        write_buffers_bytes=4 << 20,
        write_buffer_bytes=256 << 10,
        target_file_bytes=64 << 10,
        compaction="level",
    )
)


@pytest.mark.parametrize("together", [True, False], ids=["on one server", "on one each"])
def test_a_range_fetches_the_files_that_have_its_key_groups(
    drive, key, tmp_path, monkeypatch, together
):
    rng = random.Random(1)
    with RangeHost(tmp_path / "before", MANY_FILES) as host:
        op = drive(host)
        op.open()
        for _ in range(5):
            writes = {key(group, rng.randrange(500)): rng.randbytes(200) for group in range(64)}
            for group in range(64):
                writes |= {key(group, n): rng.randbytes(100) for n in rng.sample(range(500), 100)}
            op.epoch(writes)
            op.range.snapshot(op.version.epoch, op.version)
        handle, before = op.checkpoint(9), op.read()
    total = handle.bytes_total
    assert len(handle.files) > 20
    found = fetched(monkeypatch)
    hosts = [RangeHost(tmp_path / f"after{n}", MANY_FILES) for n in range(1 if together else 4)]
    try:
        parts = [drive(hosts[n % len(hosts)], 16 * n, 16 * n + 15, "f2r0") for n in range(4)]
        restored = [part.open(op.base).bytes_restored for part in parts]
        if together:
            # Everything once: what several need comes from the copy of the first.
            assert sum(found) == total
        else:
            # Besides its part, each has what lies across: small files, and ends of large ones.
            assert sum(found) == sum(restored) < 2.2 * total
            assert max(restored) < 0.7 * total
        for number in range(10, 13):
            assert {k: v for part in parts for k, v in part.read().items()} == before
            for part in parts:
                change = {key(part.spec.start, n): rng.randbytes(100) for n in range(300)}
                part.epoch(change)
                before |= change
                part.checkpoint(number)
        # Another run begins with what these made of it.
        assert [part.open_anew(run="f2r1").source for part in parts] == 4 * ["local"]
        assert {k: v for part in parts for k, v in part.read().items()} == before
    finally:
        for host in hosts:
            host.close()


def in_memory(drive, key, tmp_path):
    """A checkpoint of 4 MB in memory, and what it has."""
    backend = HashMapStateBackend(memory_limit=64 << 20)
    with RangeHost(tmp_path / "before", backend) as host:
        op = drive(host)
        op.open()
        op.epoch({key(group, n): bytes([n]) * 1000 for group in range(64) for n in range(64)})
        return op, op.checkpoint(9), op.read(), backend


def test_ranges_of_a_state_in_memory_fetch_the_bytes_of_their_key_groups_only(
    drive, key, tmp_path, monkeypatch
):
    op, handle, before, backend = in_memory(drive, key, tmp_path)
    found = fetched(monkeypatch)
    hosts = [RangeHost(tmp_path / f"after{n}", backend) for n in range(4)]
    try:
        parts = [drive(hosts[n], 16 * n, 16 * n + 15, "f2r0") for n in range(4)]
        results = [part.open(op.base) for part in parts]
        assert {result.source for result in results} == {"store"}
        assert sum(found) == sum(result.bytes_restored for result in results)
        # The groups once, and the index with what lies before it for each.
        assert handle.bytes_total < sum(found) < handle.bytes_total + 4 * (66 << 10)
        assert len(found) <= 4 * 3
        assert {k: v for part in parts for k, v in part.read().items()} == before
        for part in parts:
            part.epoch({key(part.spec.start, 99): b"new"})
            part.checkpoint(10)
            before[key(part.spec.start, 99)] = b"new"
        assert [part.open_anew(run="f2r1").source for part in parts] == 4 * ["local"]
        assert {k: v for part in parts for k, v in part.read().items()} == before
    finally:
        for host in hosts:
            host.close()


def test_a_range_that_lies_across_two_files_in_memory_takes_its_part_of_both(
    drive, key, tmp_path, monkeypatch
):
    op, _, before, backend = in_memory(drive, key, tmp_path)
    with RangeHost(tmp_path / "two", backend) as host:
        halves = [drive(host, 32 * n, 32 * n + 31, "f2r0") for n in range(2)]
        for half in halves:
            half.open(op.base)
            half.epoch({})
        handles = [half.checkpoint(10) for half in halves]
    base = RestoreBase(10, halves[0].version.epoch, handles)
    found = fetched(monkeypatch)
    with RangeHost(tmp_path / "three", backend) as host:
        parts = [drive(host, *groups, "f3r0") for groups in ((0, 20), (21, 42), (43, 63))]
        for part in parts:
            part.open(base)
        assert {k: v for part in parts for k, v in part.read().items()} == before
    assert sum(found) < 1.1 * sum(handle.bytes_total for handle in handles)


@pytest.mark.parametrize(
    ("place", "named"), [(0.1, True), (0.9, False), ("cut off", True), ("missing", True)]
)
def test_damage_among_the_key_groups_that_are_fetched_stops_a_restore_in_memory(
    drive, key, tmp_path, place, named
):
    op, handle, _, backend = in_memory(drive, key, tmp_path)
    path = tmp_path / "store" / handle.files[0].key
    data = bytearray(path.read_bytes())
    if place == "missing":
        path.unlink()
    elif place == "cut off":
        path.write_bytes(data[:-1])
    else:
        data[int(len(data) * place)] ^= 1
        path.write_bytes(data)
    with RangeHost(tmp_path / "after", backend) as host:
        part = drive(host, 0, 15, "f2r0")
        if named:
            with pytest.raises(CorruptState) as caught:
                part.open(op.base)
            assert caught.value.path.endswith(handle.files[0].key)
        else:
            # What others need is for them to find.
            assert part.open(op.base).source == "store"


def test_what_was_fetched_for_a_neighbour_and_was_damaged_is_fetched_again(
    op, drive, tmp_path, small, monkeypatch
):
    before = op.read()
    op.checkpoint(1)
    found = fetched(monkeypatch)
    with RangeHost(tmp_path / "elsewhere", small) as other:
        left, right = (drive(other, n, n + 31, "f2r0") for n in (0, 32))
        left.open(op.base)
        once = sum(found)
        kept = tmp_path / "elsewhere" / "ranges" / op.spec.uid / "0-63" / "ckpt" / "1.parts"
        for path in kept.iterdir():
            damaged = b"x" + path.read_bytes()[1:]
            # The other link of it is open.
            path.unlink()
            path.write_bytes(damaged)
        assert right.open(op.base).source == "store"
        assert sum(found) == 2 * once
        assert left.read() | right.read() == before


@only_rocksdb
def test_what_was_fetched_at_another_parallelism_is_not_fetched_again_of_the_next_checkpoint(
    op, drive, key, tmp_path, small, monkeypatch
):
    """A checkpoint may be gone before it is fetched; and what stood by leads from a newer one."""
    op.checkpoint(1)
    tables = [ref for ref in op.base.handles[0].files if ref.name.endswith(".sst")]
    kept = tmp_path / "elsewhere" / "ranges" / op.spec.uid / "0-63" / "ckpt"
    with RangeHost(tmp_path / "elsewhere", small) as other:
        left, right = (drive(other, n, n + 31, "f1r1000000") for n in (0, 32))
        fetch_all = restore.fetch_all

        def cut_short(store, files, target):
            if [ref for ref in files if ref.name.endswith(".sst")]:
                fetch_all(store, tables, target)
                (target / "torn.sst").write_bytes(b"half")
                raise CorruptState("object of a checkpoint is missing", "chk-1", "")
            fetch_all(store, files, target)

        with monkeypatch.context() as patched:
            patched.setattr(restore, "fetch_all", cut_short)
            with pytest.raises(CorruptState):
                left.open(op.base)
        assert [path.name for path in kept.iterdir()] == ["1.parts"]
        op.epoch({key(5, 2): b"new"})
        op.checkpoint(2, op.base.handles[0].files)
        found = fetched(monkeypatch)
        left.open_anew(op.base, run="f1r1000001")
        right.open_anew(op.base, run="f1r1000001")
        new = op.base.handles[0].bytes_total - sum(ref.size for ref in tables)
        assert 0 < sum(found) <= new
        assert [path.name for path in kept.iterdir()] == ["2.parts"]
        assert left.read() | right.read() == op.read()


def test_a_range_that_is_made_of_several_fetches_each_once(op, drive, tmp_path, small, monkeypatch):
    skip_if_files_stay(small)
    before = op.read()
    op.checkpoint(1)
    with RangeHost(tmp_path / "four", small) as host:
        parts = [drive(host, 16 * n, 16 * n + 15, "f2r0") for n in range(4)]
        for part in parts:
            part.open(op.base)
            part.epoch({})
        handles = [part.checkpoint(2) for part in parts]
    base = RestoreBase(2, 2, handles)
    found = fetched(monkeypatch)
    with RangeHost(tmp_path / "two", small) as other:
        halves = [drive(other, 32 * n, 32 * n + 31, "f3r0") for n in range(2)]
        assert [half.open(base).source for half in halves] == ["store", "store"]
        assert {k: v for half in halves for k, v in half.read().items()} == before
    assert sum(found) == sum(handle.bytes_total for handle in handles)


def test_a_restored_range_goes_on_and_checkpoints_again(op, key):
    op.checkpoint(1)
    op.open(run="f1r1")
    op.epoch({key(5, 5): b"new"})
    expected = op.read()
    op.checkpoint(2, op.base.handles[0].files)
    op.open(run="f1r2")
    assert op.read() == expected
    assert op.version == (2, "")


def test_an_operator_that_the_checkpoint_does_not_know_begins_empty(host, drive):
    op = drive(host)
    result = op.open(RestoreBase(7, 30, []))
    assert (result.source, result.version) == ("empty", (30, ""))


@only_rocksdb
def test_only_content_that_the_base_lacks_is_uploaded(op, key, url):
    first = op.checkpoint(1)
    op.epoch({key(1, 2): b"more"})
    second = op.checkpoint(2, first.files)
    tables = {ref.key for ref in first.files if ref.shared}
    assert tables < {ref.key for ref in second.files if ref.shared}
    stored = {info.key for info in open_store(url).list("")}
    files = {key for key in stored if "/part-" not in key}
    assert (files, len(stored - files)) == ({ref.key for ref in first.files + second.files}, 2)


def test_a_file_is_not_skipped_because_the_store_has_it_and_nothing_is_written_over(op, url):
    first = op.checkpoint(1)
    before = {info.key: info.modified for info in open_store(url).list("")}
    second = op.checkpoint(2)
    assert {ref.key for ref in second.files}.isdisjoint({ref.key for ref in first.files})
    after = {info.key: info.modified for info in open_store(url).list("")}
    assert {key: after[key] for key in before} == before
    assert {ref.sha256 for ref in second.files if ref.shared} == {
        ref.sha256 for ref in first.files if ref.shared
    }


@only_rocksdb
def test_content_is_recognised_after_a_restore(op):
    first = op.checkpoint(1)
    op.open_anew(run="f1r1")
    second = op.checkpoint(2, first.files)
    assert second.backend_uuid != first.backend_uuid
    tables = {ref.key for ref in first.files if ref.shared}
    assert tables
    assert tables <= {ref.key for ref in second.files}


def test_private_files_of_a_base_are_not_shared(op):
    first = op.checkpoint(1)
    second = op.checkpoint(2, first.files)
    private = [{ref.key for ref in h.files if not ref.shared} for h in (first, second)]
    assert private[0].isdisjoint(private[1])


def test_epochs_after_a_snapshot_are_not_in_it(op, key):
    before = op.read()
    op.range.snapshot(1, op.version)
    op.epoch({key(1, 1): b"after"})
    handle = op.upload(1)
    op.open_anew(RestoreBase(1, 1, [handle]), run="f1r1")
    assert op.read() == before


def test_completion_drops_older_copies_and_the_deltas_it_contains(op, key, tmp_path):
    op.checkpoint(1)
    op.epoch({key(1, 1): b"2"})
    op.checkpoint(2)
    last = op.epoch({key(1, 1): b"3"})
    op.read()
    assert local_files(op, tmp_path, "ckpt") == ["2"]
    assert local_files(op, tmp_path, "deltas", "f1r0") == [f"{3:020d}-{last.digest}.delta"]


@only_rocksdb
def test_the_digests_of_files_go_with_the_last_copy_of_them(op, key, tmp_path):
    known = op.range.snapshots.hashes._known
    for n in range(1, 4):
        op.checkpoint(n)
        op.epoch({key(1, 1): b"%d" % n})
        with op.range.at(op.version) as database:
            database.flush()
            database._open().compact_range(None, None)
        # Until the next one is complete the copy has them, and a restore may begin with it.
        assert known.keys() == set(sst_in(local_files(op, tmp_path, "ckpt", str(n))))
    op.range.snapshot(4, op.version)
    op.api.notify_aborted(4)
    op.checkpoint(5)
    assert known.keys() == set(sst_in(local_files(op, tmp_path, "ckpt", "5")))


def sst_in(names):
    return [name for name in names if name.endswith(".sst")]


def test_completion_of_a_checkpoint_that_is_not_here_drops_nothing(op, tmp_path):
    op.checkpoint(1)
    op.api.notify_complete(9)
    op.api.notify_complete(1, "f0r0")
    assert local_files(op, tmp_path, "ckpt") == ["1"]


def test_an_aborted_snapshot_is_dropped_and_not_uploaded(op, tmp_path):
    op.range.snapshot(1, op.version)
    op.api.notify_aborted(1)
    op.api.notify_aborted(1)
    assert local_files(op, tmp_path, "ckpt") == []
    with pytest.raises(Retryable, match="no snapshot to upload"):
        op.upload(1)


def test_a_snapshot_taken_again_is_the_same(op):
    first = op.range.snapshot(1, op.version)
    assert op.range.snapshot(1, op.version).bytes == first.bytes


@dataclass
class HeldStore(MemoryStore):
    """Stops in the middle of an upload until it is let go."""

    entered: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self):
        super().__init__("held")

    def put_file(self, key, path):
        self.entered.set()
        assert self.go.wait(20)
        super().put_file(key, path)


def upload_to(op, store):
    snapshots = op.api._leases.get(op.lease).snapshots
    return upload([UploadPart(snapshots, [])], op.run, 1, store, op.limits)


def upload_in_background(op, store, outcome):
    def run():
        try:
            outcome.extend(upload_to(op, store).handles)
        except Retryable as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert store.entered.wait(20)
    return thread


def test_epochs_go_on_during_an_upload(op, key):
    op.range.snapshot(1, op.version)
    store = HeldStore()
    outcome: list = []
    thread = upload_in_background(op, store, outcome)
    assert op.api.busy()
    op.epoch({key(1, 1): b"meanwhile"})
    assert op.read()[key(1, 1)] == b"meanwhile"
    store.go.set()
    thread.join()
    assert outcome[0].epoch == 1
    assert not op.api.busy()


@only_rocksdb
def test_an_abort_stops_an_upload_and_then_drops_its_files(op, tmp_path):
    op.range.snapshot(1, op.version)
    store = HeldStore()
    outcome: list = []
    thread = upload_in_background(op, store, outcome)
    op.api.notify_aborted(1)
    assert local_files(op, tmp_path, "ckpt") == ["1"]
    store.go.set()
    thread.join()
    assert isinstance(outcome[0], Retryable)
    assert local_files(op, tmp_path, "ckpt") == []


def test_a_newer_checkpoint_leaves_the_files_of_a_running_upload_alone(op, tmp_path):
    op.range.snapshot(1, op.version)
    store = HeldStore()
    outcome: list = []
    thread = upload_in_background(op, store, outcome)
    known = op.range.snapshots.hashes._known
    before = set(known)
    op.checkpoint(2)
    assert local_files(op, tmp_path, "ckpt") == ["1", "2"]
    assert before <= known.keys()
    store.go.set()
    thread.join()
    assert outcome[0].epoch == 1
    assert local_files(op, tmp_path, "ckpt") == ["2"]


def test_a_store_that_lost_an_upload_is_noticed(op, monkeypatch):
    op.range.snapshot(1, op.version)
    store = MemoryStore("lossy")
    monkeypatch.setattr(store, "put_file", lambda *_: None)
    with pytest.raises(StoreUnavailable, match="does not have what was uploaded"):
        upload_to(op, store)


def rescaled(host, drive, parts, parallelism, run):
    """The same operator at another parallelism, from the newest checkpoint of `parts`."""
    base = RestoreBase(
        parts[0].base.checkpoint_id,
        parts[0].base.epoch,
        [handle for part in parts for handle in part.base.handles],
    )
    cuts = [64 * i // parallelism for i in range(parallelism + 1)]
    new = [drive(host, cuts[i], cuts[i + 1] - 1, run) for i in range(parallelism)]
    for part in new:
        part.open(base)
    return new


def whole(parts):
    return {k: v for part in parts for k, v in part.read().items()}


@pytest.mark.parametrize("local", [True, False], ids=["on this volume", "from the store"])
def test_trap_8_state_survives_one_three_two_and_five_subtasks(
    host, drive, key, tmp_path, small, local, monkeypatch
):
    found = fetched(monkeypatch)
    op = drive(host)
    op.open()
    model = {key(group, n): b"%d-%d" % (group, n) for group in range(64) for n in range(20)}
    op.epoch(model)
    op.checkpoint(1)
    parts, hosts = [op], []
    for number, parallelism in enumerate((3, 2, 5, 1), 2):
        target = host
        if not local:
            target = RangeHost(tmp_path / f"machine{number}", small)
            hosts.append(target)
        parts = rescaled(target, drive, parts, parallelism, f"f{number}r0")
        assert whole(parts) == model
        # Files that are in the store alone are read there.
        if small.identifier != "forst":
            assert bool(found) != local, "what lies on this volume is not fetched"
        for part in parts:
            change = {key(part.spec.start, 1): b"%d" % number, key(part.spec.end, 2): None}
            part.epoch(change)
            model |= change
            model = {k: v for k, v in model.items() if v is not None}
        assert whole(parts) == model
        for part in parts:
            part.range.snapshot(number, part.version)
        for part in parts:
            part.checkpoint(number)
    for other in hosts:
        other.close()


@only_rocksdb
def test_ranges_that_are_cut_anew_on_their_volume_are_made_of_hard_links(
    host, drive, key, tmp_path, monkeypatch
):
    """As while a job runs: the ranges before are let go of, and others begin from their copies."""
    parts = [drive(host, 32 * n, 32 * n + 31) for n in range(2)]
    for part in parts:
        part.open()
        first = part.spec.start
        part.epoch({key(group, 1): b"v" * 500 for group in range(first, first + 32)})
        part.checkpoint(1)
    before = whole(parts)
    for part in parts:
        host.release_range(part.spec.lease("f1r0"))
    found = fetched(monkeypatch)
    four = rescaled(host, drive, parts, 4, "f1r1")
    assert found == []
    assert whole(four) == before
    copies = {
        path.stat().st_ino
        for part in parts
        for path in (tmp_path / "local/ranges" / part.spec.uid).glob("*/ckpt/1/*.sst")
    }
    works = list((tmp_path / "local/ranges" / four[0].spec.uid).glob("*/work-*/*.sst"))
    assert len({path.parent for path in works}) == 4
    assert {path.stat().st_ino for path in works} <= copies


def test_a_completed_checkpoint_drops_the_directories_of_another_parallelism(
    host, drive, op, tmp_path
):
    op.checkpoint(1)
    parts = rescaled(host, drive, [op], 2, "f2r0")
    ranges = tmp_path / "local" / "ranges" / op.spec.uid
    assert (ranges / "0-63").exists()
    for part in parts:
        part.range.snapshot(2, part.version)
    host.notify_complete(2, parts[0].run)
    assert sorted(path.name for path in ranges.iterdir()) == ["0-31", "32-63"]


@pytest.mark.parametrize("which", [slice(0, 1), slice(1, 2), slice(0, 0)])
def test_a_rescale_without_all_handles_is_refused(host, drive, op, which):
    op.checkpoint(1)
    parts = rescaled(host, drive, [op], 2, "f2r0")
    handles = [part.checkpoint(2) for part in parts]
    if which == slice(0, 0):
        handles, which = [handles[0], handles[0], handles[1]], slice(None)
    with pytest.raises(Bug, match="do not cover"):
        drive(host, run="f3r0").open(RestoreBase(2, 1, handles[which]))


def damage(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)


def table_of(op, folder):
    copy = folder / f"ranges/{op.spec.uid}/0-63/ckpt/1"
    (path,) = (path for path in copy.iterdir() if path.suffix in {".sst", ".heap"})
    return path


@pytest.mark.scenario(44)
def test_a_damaged_local_copy_is_not_used(op, tmp_path, small):
    before = op.read()
    op.checkpoint(1)
    damage(table_of(op, tmp_path / "local"))
    assert op.open_anew(run="f1r1").source == "store"
    assert op.read() == before
    if not small.stored:
        assert op.open_anew(run="f1r2").source == "local"


@only_rocksdb
@pytest.mark.parametrize("name", ["CURRENT", "*.sst", "MANIFEST-*"])
def test_a_local_copy_that_lacks_a_file_is_not_used(op, tmp_path, name):
    op.checkpoint(1)
    next(table_of(op, tmp_path / "local").parent.glob(name)).unlink()
    assert op.open_anew(run="f1r1").source == "store"


@pytest.mark.parametrize("kind", ["flipped byte", "cut off", "missing"])
@pytest.mark.parametrize("shared", [True, False])
def test_a_damaged_object_stops_the_restore_and_is_named(op, drive, tmp_path, small, kind, shared):
    handle = op.checkpoint(1)
    ref = next(ref for ref in handle.files if ref.shared is shared or len(handle.files) == 1)
    path = tmp_path / "store" / ref.key
    if kind == "flipped byte":
        damage(path)
    elif kind == "cut off":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.unlink()
    with RangeHost(tmp_path / "elsewhere", small) as other:
        moved = drive(other, run="f2r0")
        with pytest.raises(CorruptState) as caught:
            moved.open(op.base)
        assert caught.value.path.endswith(ref.key)
        assert caught.value.advice
        with pytest.raises(CorruptState):
            moved.open()


def test_files_of_another_version_are_refused(op):
    handle = op.checkpoint(1)
    wrong = type(handle)(**{f: getattr(handle, f) for f in handle.__struct_fields__} | {"epoch": 9})
    with pytest.raises(CorruptState, match="another version"):
        op.open_anew(RestoreBase(1, 9, [wrong]), run="f1r1")


@only_rocksdb
def test_a_byte_flipped_under_an_open_database_puts_the_range_out_of_work(op, key, tmp_path):
    # More than the block that opening reads and caches.
    rng = random.Random(1)
    op.epoch({key(group, 2): rng.randbytes(2000) for group in range(64)})
    before = op.read()
    op.checkpoint(1)
    op.open_anew(run="f1r1")
    damage(table_of(op, tmp_path / "local"))  # hard-linked with the open database's file
    for _ in range(2):
        with pytest.raises(StaleLease, match="damaged"):
            op.read()
    with pytest.raises(StaleLease):
        op.prepare({key(1, 1): b"x"})
    (stats,) = op.api.stats()
    assert "damaged" in stats.error
    assert op.open().source == "store"
    assert op.read() == before


def test_a_server_that_comes_back_applies_the_committed_deltas(tmp_path, drive, key, small):
    with RangeHost(tmp_path / "local", small) as host:
        op = drive(host)
        op.open()
        op.epoch({key(1, 1): b"1"})
        op.checkpoint(1)
        op.epoch({key(1, 2): b"2"})
        op.epoch({key(1, 1): None, key(1, 3): b"3"})
        undecided = op.prepare({key(1, 4): b"4"})
    with RangeHost(tmp_path / "local", small) as host:
        op.api = host
        result = op.open()
        assert (result.source, result.version) == ("local", op.committed[-1])
        assert op.read() == {key(1, 2): b"2", key(1, 3): b"3"}
        op.commit(undecided)
        assert op.read()[key(1, 4)] == b"4"


def test_a_run_that_lost_a_server_goes_on_from_its_own_checkpoint(op, key):
    op.checkpoint(1)
    version = op.version
    op.api.release_range(op.lease)
    assert op.open().version == version
    op.epoch({key(1, 1): b"after"})
    assert op.read()[key(1, 1)] == b"after"
    op.api.release_range(op.lease)
    assert op.open().version == op.committed[-1]
    assert op.read()[key(1, 1)] == b"after"


def test_a_range_at_its_own_checkpoint_is_not_opened_again(op):
    op.checkpoint(1)
    assert op.open().source == "live"


@pytest.mark.scenario(44)
def test_foreign_and_unfinished_deltas_are_deleted_when_a_range_is_opened(
    tmp_path, drive, key, small
):
    with RangeHost(tmp_path / "local", small) as host:
        op = drive(host)
        op.open()
        op.prepare({key(1, 1): b"loser"}, attempt="b")
        op.epoch({key(1, 1): b"1"})
        op.open_anew(run="f1r1")
    folder = tmp_path / "local" / "ranges" / op.spec.uid / "0-63" / "deltas"
    (folder / "f1r1" / "00000000000000000001-x.tmp").write_bytes(b"half")
    with RangeHost(tmp_path / "local", small) as host:
        op.api = host
        op.open()
        assert [path.name for path in folder.iterdir()] == ["f1r1"]
        assert list((folder / "f1r1").iterdir()) == []


@pytest.mark.parametrize("kind", ["flipped byte", "cut off", "missing"])
def test_a_committed_delta_that_is_not_whole_means_its_version_is_gone(
    tmp_path, drive, key, small, kind
):
    with RangeHost(tmp_path / "local", small) as host:
        op = drive(host)
        op.open()
        op.epoch({key(1, 1): b"1"})
        op.epoch({key(1, 2): b"2"})
        op.read()
        path = host._leases.get(op.lease)._spool.path(op.committed[0])
    if kind == "missing":
        path.unlink()
    elif kind == "cut off":
        path.write_bytes(path.read_bytes()[:-3])
    else:
        damage(path)
    with RangeHost(tmp_path / "local", small) as host:
        op.api = host
        with pytest.raises(VersionGone):
            op.open()
        op.committed = []
        assert op.open().version == (0, "")


def test_deltas_that_do_not_follow_one_another_are_not_applied(op, key):
    op.epoch({key(1, 1): b"1"})
    op.epoch({key(1, 2): b"2"})
    op.api.release_range(op.lease)
    op.committed = op.committed[1:]
    with pytest.raises(Exception, match="does not continue"):
        op.open()


def test_two_hosts_on_one_directory_do_not_open_the_same_range(tmp_path, drive, small, op):
    with RangeHost(tmp_path / "local", small) as other:
        second = drive(other, run="f1r1")
        with pytest.raises(Retryable, match="another state server has the range open"):
            second.open()
        op.api.release_range(op.lease)
        assert second.open().version == (0, "")


def test_versions_are_plain_pairs():
    assert Version(1, "a") == (1, "a")
