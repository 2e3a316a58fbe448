"""Ranges whose files may be in the store alone: starts, wiped volumes, rescales, savepoints."""

import random
from contextlib import closing
from dataclasses import replace

import pytest
from moorage_testing.jobs import wait_until

from moorage_state.canonicalspec import CanonicalSpec
from moorage_state.errors import StoreUnavailable
from moorage_state.forst import compaction, files
from moorage_state.keylayout import METADATA
from moorage_state.rocks import RocksOptions
from moorage_state.server import RangeHost, RestoreBase
from moorage_state.server.local_files import Snapshots
from moorage_state.server.restore import entries
from moorage_state.state_backends import ForStStateBackend
from moorage_state.stores import delete_all, open_store

KIB = 1 << 10
BACKEND = ForStStateBackend(
    cache_reserve=0,
    tuned=RocksOptions(
        block_cache_bytes=256 * KIB,
        write_buffers_bytes=1024 * KIB,
        write_buffer_bytes=256 * KIB,
        target_file_bytes=64 * KIB,
    ),
)


@pytest.fixture(autouse=True)
def small_levels(monkeypatch):
    monkeypatch.setattr(compaction, "SECOND_LEVEL_BYTES", 128 * KIB)


@pytest.fixture
def read_of_store(monkeypatch):
    """The bytes of files that were fetched."""
    found: list[int] = []
    fetch = files.read_stored

    def counted(store, ref):
        found.append(ref.size)
        return fetch(store, ref)

    monkeypatch.setattr(files, "read_stored", counted)
    return found


@pytest.fixture
def op(tmp_path, drive, key):
    """A range of about 2 MB, with a checkpoint."""
    rng = random.Random(1)
    with RangeHost(tmp_path / "first", BACKEND) as host:
        driven = drive(host)
        driven.open()
        for _ in range(8):
            writes = {key(rng.randrange(64), rng.randrange(400)): rng.randbytes(200)}
            writes |= {key(g, rng.randrange(400)): rng.randbytes(200) for g in range(64)}
            for group in range(64):
                writes |= {key(group, n): rng.randbytes(100) for n in rng.sample(range(400), 40)}
            driven.epoch(writes)
        driven.checkpoint(1)
        yield driven


def elsewhere(tmp_path, name="other", backend=BACKEND):
    return RangeHost(tmp_path / name, backend)


def settle(driven):
    """Wait for what RocksDB compacts by itself: until then old and new files are there at once."""
    rocks = driven.range._database._database
    at_work = ("rocksdb.compaction-pending", "rocksdb.num-running-compactions")
    wait_until(lambda: not any(map(rocks.property_int_value, at_work)), 60, "compactions to end")


def test_a_start_on_another_machine_fetches_little_and_reads_all(op, drive, tmp_path):
    before, total = op.read(), op.base.handles[0].bytes_total
    with elsewhere(tmp_path) as host:
        moved = drive(host, run="f2r0")
        result = moved.open(op.base)
        assert result.source == "store"
        assert result.bytes_restored < total // 20
        assert moved.read() == before


def test_a_checkpoint_after_a_start_uploads_nothing_that_the_store_has(
    op, drive, key, tmp_path, read_of_store
):
    with elsewhere(tmp_path) as host:
        moved = drive(host, run="f2r0")
        moved.open(op.base)
        fetched = len(read_of_store)
        moved.epoch({key(1, 1): b"one"})
        handle = moved.checkpoint(2, op.base.handles[0].files)
        known = {ref.key for ref in op.base.handles[0].files if ref.shared}
        new = [ref for ref in handle.files if ref.shared and ref.key not in known]
        assert sum(ref.size for ref in new) < op.base.handles[0].bytes_total // 4
        assert len(read_of_store) - fetched <= 8
        assert moved.read()[key(1, 1)] == b"one"


def test_a_checkpoint_without_a_base_is_whole(op, drive, tmp_path):
    before = op.read()
    with elsewhere(tmp_path) as host, elsewhere(tmp_path, "third") as third:
        moved = drive(host, run="f2r0")
        moved.open(op.base)
        moved.epoch({})
        handle = moved.checkpoint(2)
        assert not {r.key for r in handle.files} & {r.key for r in op.base.handles[0].files}
        again = drive(third, run="f3r0")
        again.open(RestoreBase(2, handle.epoch, [handle]))
        assert again.read() == before


def test_state_is_ten_times_larger_than_what_may_be_here(op, drive, key, tmp_path):
    model, total = op.read(), op.base.handles[0].bytes_total
    limited = replace(BACKEND, cache_limit=total // 10)
    rng = random.Random(2)
    with elsewhere(tmp_path, backend=limited) as host:
        moved = drive(host, run="f2r0")
        moved.open(op.base)
        base = op.base.handles[0].files
        for checkpoint in range(2, 6):
            for _ in range(3):
                change = {key(rng.randrange(64), n): rng.randbytes(50) for n in range(20)}
                moved.epoch(change)
                model |= change
                asked = rng.sample(sorted(model), 300)
                assert moved.range.get_many(moved.version, asked) == [model[k] for k in asked]
            base = moved.checkpoint(checkpoint, base).files
            settle(moved)
        assert moved.read() == model
        here = {p.stat().st_ino: p.stat().st_size for p in (tmp_path / "other").rglob("*.sst")}
        assert sum(here.values()) < total // 2


def test_of_files_that_no_copy_has_any_more_nothing_is_known(op, drive, key, tmp_path):
    known, base = op.range.snapshots.hashes._known, op.base.handles[0].files
    rng = random.Random(4)
    for checkpoint in (2, 4):
        before = set(known)
        op.epoch({key(rng.randrange(64), n): rng.randbytes(100) for n in range(400)})
        with op.range.at(op.version) as database:
            database.compact_slice()
        base = op.checkpoint(checkpoint, base).files
        assert before - known.keys()
        # Nothing but their names tells what these are.
        assert database.evict() > 0
        base = op.checkpoint(checkpoint + 1, base).files
    model = op.read()
    with elsewhere(tmp_path) as host:
        moved = drive(host, run="f2r0")
        moved.open(op.base)
        assert moved.read() == model


def test_a_start_from_a_warm_volume_fetches_only_what_was_replaced(op, read_of_store):
    before = op.read()
    op.open(run="f1r1")
    assert op.read() == before
    # A compaction may have replaced some since the copy was taken.
    assert sum(read_of_store) < op.base.handles[0].bytes_total // 2


def test_an_epoch_fails_while_the_store_is_away_and_the_range_goes_on(
    op, drive, key, tmp_path, monkeypatch
):
    before = op.read()
    fetch = files.read_stored

    def away(_store, ref):
        raise StoreUnavailable(f"the store does not answer: key={ref.key}")

    with elsewhere(tmp_path) as host:
        moved = drive(host, run="f2r0")
        moved.open(op.base)
        monkeypatch.setattr(files, "read_stored", away)
        with pytest.raises(StoreUnavailable, match="does not answer"):
            moved.read()
        monkeypatch.setattr(files, "read_stored", fetch)
        assert moved.read() == before
        moved.epoch({key(3, 3): b"three"})
        assert moved.read() == before | {key(3, 3): b"three"}


@pytest.mark.parametrize("together", [True, False], ids=["on one server", "on one each"])
def test_parts_of_a_range_begin_with_its_files_unread(op, drive, key, tmp_path, together):
    before = op.read()
    hosts = [elsewhere(tmp_path, f"part{n}") for n in range(1 if together else 2)]
    try:
        parts = [drive(hosts[n % len(hosts)], 32 * n, 32 * n + 31, "f2r0") for n in range(2)]
        for part in parts:
            assert part.open(op.base).bytes_restored < op.base.handles[0].bytes_total // 20
        found = {k: v for part in parts for k, v in part.read().items()}
        assert found == before
        handles = []
        for part in parts:
            part.epoch({key(part.spec.start, 1): b"new"})
            before[key(part.spec.start, 1)] = b"new"
            handles.append(part.checkpoint(2, op.base.handles[0].files))
    finally:
        for host in hosts:
            host.close()
    with elsewhere(tmp_path, "joined") as host:
        joined = drive(host, run="f3r0")
        joined.open(RestoreBase(2, handles[0].epoch, handles))
        assert joined.read() == before


def test_a_savepoint_has_what_is_away(op, drive, tmp_path):
    before = op.read()
    place = tmp_path / "savepoint"
    place.mkdir()
    with elsewhere(tmp_path) as host:
        moved = drive(host, run="f2r0")
        moved.open(op.base)
        moved.range.snapshot(2, moved.version)
        spec = CanonicalSpec(
            uid=moved.spec.uid,
            start=0,
            end=63,
            epoch=moved.version.epoch,
            max_parallelism=64,
            key_types=("string",),
            states=(),
        )
        saved = host.save_many("f2r0", 2, f"file://{place}", [spec], False)
        assert moved.read() == before
    with elsewhere(tmp_path, "from savepoint") as host:
        again = drive(host, run="f3r0")
        again.url = f"file://{place}"
        again.open(RestoreBase(2, saved.handles[0].epoch, saved.handles))
        assert again.read() == before


def test_word_of_an_older_checkpoint_that_comes_late_moves_no_file_back(
    op, drive, tmp_path, monkeypatch
):
    before, first = op.read(), op.base.handles[0]
    limited = replace(BACKEND, cache_limit=first.bytes_total // 10)
    complete = Snapshots.complete
    with elsewhere(tmp_path, backend=limited) as host:
        moved = drive(host, run="f2r0")
        moved.open(op.base)
        for checkpoint in (2, 3):  # beside each other, and each of them whole
            moved.range.snapshot(checkpoint, moved.version)
        older, _ = (moved.upload(checkpoint) for checkpoint in (2, 3))

        def held_up(snapshots, checkpoint, *more):
            taken = complete(snapshots, checkpoint, *more)
            if checkpoint == 2:
                host.notify_complete(3, moved.run)
            return taken

        monkeypatch.setattr(Snapshots, "complete", held_up)
        host.notify_complete(2, moved.run)
        delete_all(open_store(op.url), {ref.key for ref in (*first.files, *older.files) if ref.key})
        assert moved.read() == before


def test_a_range_that_did_not_hear_of_a_checkpoint_is_opened_anew_from_it(op, drive, tmp_path):
    before, first = op.read(), op.base.handles[0]
    limited = replace(BACKEND, cache_limit=first.bytes_total // 10)
    with elsewhere(tmp_path, backend=limited) as host:
        moved = drive(host, run="f2r0")
        moved.open(op.base)
        moved.epoch({})
        moved.range.snapshot(2, moved.version)
        handle = moved.upload(2)
        moved.open(RestoreBase(2, handle.epoch, [handle]), run="f2r1")
        delete_all(open_store(op.url), {ref.key for ref in first.files if ref.key})
        assert moved.read() == before


def test_a_range_that_heard_of_a_checkpoint_stays_open_for_the_next_run(op, drive, tmp_path):
    with elsewhere(tmp_path) as host:
        moved = drive(host, run="f2r0")
        moved.open(op.base)
        moved.epoch({})
        moved.checkpoint(2)
        assert moved.open(run="f2r1").source == "live"


def test_a_copy_that_is_read_follows_its_files_to_a_newer_checkpoint(op, drive, tmp_path):
    before, first = op.read(), op.base.handles[0]
    limited = replace(BACKEND, cache_limit=first.bytes_total // 10)
    with elsewhere(tmp_path, backend=limited) as host:
        moved = drive(host, run="f2r0")
        moved.open(op.base)
        moved.range.snapshot(2, moved.version)  # of a savepoint
        snapshots = moved.range.snapshots
        with (
            snapshots.uploading(2) as taken,
            snapshots.frozen() as stored,
            closing(host._databases.open_copy(taken.path, stored=stored)) as copy,
        ):
            moved.checkpoint(3)
            delete_all(open_store(op.url), {ref.key for ref in first.files if ref.key})
            frames = list(entries(copy, b"", METADATA))
    assert {k: v for f in frames for k, v in zip(f.keys, f.values, strict=True)} == before


@pytest.mark.parametrize("way", ["copy", "log"])
def test_after_its_first_checkpoint_nothing_of_what_a_job_was_restored_from_is_read(
    op, drive, key, tmp_path, way
):
    """As `claimMode: NoClaim` promises: the owner may delete all of it."""
    before, first = op.read(), op.base.handles[0]
    limited = replace(BACKEND, cache_limit=first.bytes_total // 10)
    own = tmp_path / "own"
    own.mkdir()
    with elsewhere(tmp_path, backend=limited) as host, elsewhere(tmp_path, "third") as third:
        moved = drive(host, run="f2r0")
        moved.open(op.base)
        moved.url = f"file://{own}"
        moved.epoch({key(1, 1): b"one"})
        before[key(1, 1)] = b"one"
        moved.begin(1, way)
        handle = moved.finish(1)
        delete_all(open_store(op.url), {ref.key for ref in first.files if ref.key})
        assert moved.read() == before
        moved.epoch({key(2, 2): b"two"})
        before[key(2, 2)] = b"two"
        moved.begin(2, way)
        if way == "log":
            handle = moved.finish(2)
        else:
            handle = moved.finished(2, moved.upload(2, handle.files))
        again = drive(third, run="f3r0")
        again.url = moved.url
        again.open(RestoreBase(2, handle.epoch, [handle]))
        assert again.read() == before
