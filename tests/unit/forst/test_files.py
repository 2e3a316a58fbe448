"""Which files go, which come back, and what happens when they do not."""

import os
import random
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import msgspec
import pytest

from moorage_state.errors import CorruptState, LocalDiskError, ObjectNotFound, StoreUnavailable
from moorage_state.forst import CacheLimits, compaction, database, files
from moorage_state.rocks import sliced


def key(number):
    return number.to_bytes(8, "big")


def names(kept):
    return [file.name for file in kept.db._last]


def test_what_the_store_has_goes_and_comes_back(filled):
    kept = filled()
    whole = kept.cache.used
    assert kept.db.evict() == len(names(kept)) > 5
    assert kept.cache.used < whole // 20
    assert kept.scan() == kept.model
    assert kept.cache.used == whole


@pytest.mark.parametrize("entries", [1, 7])
def test_a_walk_may_come_to_an_end_anywhere_before_a_file_that_is_away(
    filled, monkeypatch, entries
):
    kept = filled()
    kept.db.evict()
    monkeypatch.setattr(database, "_CHUNK_ENTRIES", entries)
    end = b"\xff" * 9
    with kept.db.cursor(b"", end) as cursor:
        cursor.seek(b"")
        assert cursor.take_keys(end, 1 << 20) == sorted(kept.model)
    kept.db.evict()
    with kept.db.cursor(b"", end) as cursor:
        found: list[bytes] = []
        cursor.seek(b"")
        while cursor.key() is not None:
            found += cursor.take_keys(end, entries)
        assert found == sorted(kept.model)


def test_a_file_comes_back_into_the_same_inode(filled):
    kept = filled()
    path = kept.db.path / names(kept)[0]
    before = path.stat()
    kept.db.evict()
    assert path.stat().st_size == 0
    kept.db.get(key(0))
    after = path.stat()
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size)


def test_what_no_completed_checkpoint_has_stays(filled):
    kept = filled()
    kept.write({key(n): b"new" for n in range(0, 2000, 50)})
    kept.db.flush()
    kept.db.compact_slice()
    new = set(names(kept)) - {ref.name for ref in kept.refs}
    assert new
    kept.db.evict()
    assert not {file.ref.name for file in kept.ghosts} & new
    kept.checkpoint()
    kept.db.evict()
    assert {file.ref.name for file in kept.ghosts} >= new
    assert kept.scan() == kept.model


def test_a_start_fetches_what_is_read_and_nothing_else(filled):
    kept = filled()
    kept.reopen()
    assert (kept.store.gets, len(kept.ghosts)) == (0, len(names(kept)))
    assert kept.db.get(key(7)) == kept.model[key(7)]
    assert kept.store.gets == 1


def test_keys_that_are_not_there_are_not_fetched_for(filled):
    kept = filled(blocks=4 << 20)
    kept.db.get_many([key(n) for n in range(0, 2000, 100)])
    kept.db.evict()
    gets = kept.store.gets
    absent = [key(n) + b"x" for n in range(0, 2000, 100)]
    assert kept.db.get_many(absent) == [None] * 20
    assert kept.store.gets - gets <= 3  # a filter may be wrong once in a hundred keys


def test_reads_fail_while_the_store_does_not_answer_and_go_on_after(filled):
    kept = filled()
    kept.db.evict()
    kept.store.broken = True
    with pytest.raises(StoreUnavailable):
        kept.db.get_many([key(n) for n in range(0, 2000, 10)])
    with pytest.raises(StoreUnavailable):
        kept.scan()
    kept.write({key(1): b"written meanwhile"})
    kept.store.broken = False
    assert kept.scan() == kept.model


@pytest.mark.parametrize("kind", ["flipped", "cut", "missing"])
def test_an_object_that_is_damaged_is_named_and_its_bytes_are_not_used(filled, tmp_path, kind):
    kept = filled()
    kept.db.evict()
    ref = next(file.ref for file in kept.ghosts if file.ref.name == names(kept)[0])
    path = tmp_path / "store" / ref.key
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.chmod(0o600)
    if kind == "missing":
        path.unlink()
    else:
        path.write_bytes(data if kind == "flipped" else data[:-1])
    with pytest.raises(CorruptState) as caught:
        kept.db.get(key(0))
    assert ref.key in caught.value.path
    assert (kept.db.path / ref.name).stat().st_size == 0
    assert kept.db.get(key(1999)) == kept.model[key(1999)]


def test_damage_on_the_volume_is_no_ghost(filled):
    kept = filled()
    kept.reopen()
    kept.db.get(key(0))
    path = kept.db.path / names(kept)[0]
    gets = kept.store.gets
    data = bytearray(path.read_bytes())
    data[:] = bytes(len(data))
    with path.open("r+b") as file:
        file.write(data)
    with pytest.raises(CorruptState) as caught:
        kept.scan(key(100), key(150))
    assert caught.value.path == str(kept.db.path)
    assert kept.store.gets == gets


def test_the_limit_holds_and_the_window_that_is_read_stays(filled):
    kept = filled(CacheLimits(size=150 << 10, reserve=0))
    assert kept.cache.used <= 150 << 10
    for _ in range(10):
        kept.db.get_many([key(n) for n in range(200, 300)])
    gets = kept.store.gets
    kept.db.get_many([key(n) for n in range(200, 300)])
    assert kept.store.gets == gets
    assert kept.scan() == kept.model
    assert kept.cache.used <= 150 << 10


def test_what_is_read_often_is_not_washed_out_by_a_scan(filled, monkeypatch):
    monkeypatch.setattr(database, "_CHUNK_BYTES", 10 << 10)
    limits = CacheLimits(size=200 << 10, reserve=0, access_before_promote=3)
    kept = filled(limits)
    for _ in range(5):
        kept.db.get_many([key(n) for n in range(200, 300)])
    kept.scan(key(400))
    gets = kept.store.gets
    kept.db.get_many([key(n) for n in range(200, 300)])
    assert kept.store.gets == gets


def test_a_file_that_lost_its_rank_too_often_is_not_raised_again(filled):
    limits = CacheLimits(size=150 << 10, reserve=0, access_before_promote=1, promote_limit=1)
    kept = filled(limits)
    for _ in range(3):
        for low in range(0, 2000, 200):
            for _ in range(2):
                kept.db.get_many([key(n) for n in range(low, low + 100)])
    assert max(file.demotions for file in kept.db._files.files.values()) == 1


def test_the_reserve_of_the_volume_stays_free(filled, tmp_path):
    def kept_bytes():
        return sum(path.stat().st_size for path in tmp_path.glob("work-*/*.sst"))

    volume, reserve = 4 << 20, (4 << 20) - (150 << 10)
    kept = filled(CacheLimits(reserve=reserve), lambda _: volume - kept_bytes())
    assert kept_bytes() <= 150 << 10
    assert kept.scan() == kept.model
    assert kept_bytes() <= 150 << 10


def test_a_volume_that_is_full_of_new_state_refuses_writes_before_rocksdb_does(make):
    kept = make()
    kept.cache._free = lambda _: 1000
    with pytest.raises(LocalDiskError, match="not in the store yet"):
        kept.write({key(1): b"1"})
    with pytest.raises(LocalDiskError, match="not in the store yet"):
        kept.db.flush()


def test_readers_and_evictions_at_the_same_time(filled):
    kept = filled()
    stop, rounds = threading.Event(), []
    refs = [ref for ref in kept.refs if ref.name.endswith(".sst")]

    def evict():
        while not stop.is_set():
            kept.db.evict()

    def upload():
        while not stop.is_set():
            for ref in refs:
                path = kept.db.path / ref.name
                with kept.db.whole(path):
                    assert len(path.read_bytes()) == ref.size
            rounds.append(1)

    rng = random.Random(4)
    with ThreadPoolExecutor(2) as pool:
        beside = [pool.submit(evict), pool.submit(upload)]
        try:
            for _ in range(40):
                asked = [key(rng.randrange(2000)) for _ in range(100)]
                assert kept.db.get_many(asked) == [kept.model[one] for one in asked]
                assert kept.db.get(asked[0]) == kept.model[asked[0]]
            assert kept.scan() == kept.model
        finally:
            stop.set()
    assert [future.result() for future in beside] == [None, None]
    assert rounds


def test_a_copy_is_read_beside_a_database_whose_files_go(filled, tmp_path):
    kept = filled()
    kept.db.evict(lambda name: name == names(kept)[0])
    expected = dict(kept.model)
    with kept.db.frozen() as stored:
        kept.db.checkpoint(tmp_path / "exported")
        with closing(kept.open_copy(tmp_path / "exported", stored)) as exported:
            kept.write({key(n): b"later" for n in range(100)})
            assert kept.db.evict() > 5
            assert kept.scan(database=exported) == expected
    assert kept.scan() == dict(sorted(kept.model.items()))


def test_what_only_a_copy_counts_on_stays_when_a_checkpoint_is_complete_meanwhile(filled, tmp_path):
    kept = filled()
    kept.write({key(n): b"new" for n in range(0, 2000, 50)})
    kept.db.compact_slice()
    expected = dict(sorted(kept.model.items()))
    with kept.db.frozen() as stored:
        kept.db.checkpoint(tmp_path / "exported")
        with closing(kept.open_copy(tmp_path / "exported", stored)) as exported:
            kept.checkpoint()
            kept.db.evict()
            assert kept.scan(database=exported) == expected
    assert kept.db.evict() > 0


def test_a_copy_of_what_is_here_asks_the_store_for_nothing(filled, tmp_path):
    kept = filled()
    gets = kept.store.gets
    with kept.db.frozen() as stored:
        kept.db.checkpoint(tmp_path / "exported")
        with closing(kept.open_copy(tmp_path / "exported", stored)) as exported:
            assert kept.scan(database=exported) == kept.model
    assert kept.store.gets == gets


def test_an_upload_has_a_file_that_the_database_gave_up_as_a_ghost(filled, tmp_path):
    kept = filled()
    kept.db.checkpoint(tmp_path / "copy of before")
    first = kept.refs
    kept.db.evict()
    kept.write({key(n): b"new" for n in range(2000)})
    kept.settle()
    gone = [r for r in first if r.name.endswith(".sst") and not (kept.db.path / r.name).exists()]
    assert gone
    for ref in gone:
        path = tmp_path / "copy of before" / ref.name
        with kept.db.whole(path):
            assert path.stat().st_size == ref.size


def test_a_file_that_a_newer_checkpoint_has_elsewhere_is_read_from_there(filled):
    kept = filled()
    kept.db.evict()
    get = kept.store.store.get

    def moved(key, **_kwargs):
        """The older checkpoint is deleted while its file is on the way."""
        kept.refs = [
            msgspec.structs.replace(ref, key=kept.store.copied(ref.key)) for ref in kept.refs
        ]
        kept.db.located(kept.places())
        kept.store.get = get
        raise ObjectNotFound(key)

    kept.store.get = moved
    assert kept.scan() == kept.model


def test_a_file_that_lost_its_bytes_to_another_process_is_fetched_again(filled):
    kept = filled()
    kept.reopen()
    kept.scan()
    os.truncate(kept.db.path / names(kept)[3], 100)
    assert kept.scan() == kept.model


def test_writes_go_on_while_the_store_does_not_answer_a_compaction(filled, monkeypatch):
    monkeypatch.setattr(compaction, "SECOND_LEVEL_BYTES", 1 << 10)
    monkeypatch.setattr(compaction, "SECOND_LEVEL_SHARE", 1 << 20)
    kept = filled()
    kept.db.evict()
    kept.store.broken = True
    rng = random.Random(8)
    for _ in range(30):
        kept.write({key(i): rng.randbytes(100) for i in range(0, 2000, 40)})
        kept.db.flush()
    assert compaction.pressure(kept.db._database.files(), 1 << 40) > 2
    kept.store.broken = False
    assert kept.scan() == dict(sorted(kept.model.items()))


def test_the_second_level_fits_what_may_be_here(filled):
    limit = 300 << 10
    kept = filled(CacheLimits(size=limit, reserve=0))
    rng = random.Random(7)
    for _ in range(60):
        kept.write({key(rng.randrange(2000)): rng.randbytes(150) for _ in range(100)})
        kept.db.flush()
    second = sum(file.size for file in kept.db._database.files() if file.level == 1)
    assert second < limit
    assert kept.scan() == dict(sorted(kept.model.items()))


def test_it_is_time_for_a_checkpoint_when_what_none_has_takes_most_of_the_room(filled):
    kept = filled()
    kept.cache._free = lambda _: 10 << 20
    assert kept.db.properties()["crowded"] == 0
    kept.db.evict()
    kept.cache._free = lambda _: 100 << 10
    rng = random.Random(9)
    kept.cache.make_room = lambda *_args, **_kwargs: None
    kept.db._database.before_writes(lambda _: None)
    kept.write({key(n): rng.randbytes(300) for n in range(1000)})
    kept.db.flush()
    assert kept.db.properties()["crowded"] == 1
    kept.checkpoint()
    assert kept.db.properties()["crowded"] == 0


def test_no_file_is_fetched_twice_for_one_batch(filled):
    kept = filled(CacheLimits(size=150 << 10, reserve=0))
    kept.store.delay = 0.002
    gets = kept.store.gets
    for _ in range(3):
        kept.db.get_many([key(n) for n in range(2000)])
    assert kept.store.gets - gets <= 3 * len(names(kept))


def test_files_of_scattered_keys_are_fetched_beside_each_other(filled):
    kept = filled()
    kept.db.evict()
    kept.store.delay = 0.005
    asked = [file.first for file in kept.db._last]
    assert kept.db.get_many(asked) == [kept.model[one] for one in asked]
    assert kept.store.most_at_once > 2


def test_no_two_fetches_take_the_same_room(filled, monkeypatch):
    kept = filled()
    kept.db.evict()
    another, during = threading.Event(), []
    make_room, write = kept.cache.make_room, files.write_in_place
    writing = threading.Lock()

    def looked(*arguments):
        during.append(writing.locked())
        another.set()
        make_room(*arguments)

    def written(path, data):
        with writing:
            another.clear()
            another.wait(0.1)
            write(path, data)

    monkeypatch.setattr(kept.cache, "make_room", looked)
    monkeypatch.setattr(files, "write_in_place", written)
    asked = [file.first for file in kept.db._last]
    assert kept.db.get_many(asked) == [kept.model[one] for one in asked]
    assert len(during) > 5
    assert not any(during)


@pytest.fixture
def small_volume(tmp_path):
    """A file system of 3 MB, where this machine allows one."""
    place = tmp_path / "volume"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_state_is_larger_than_a_real_volume(make, small_volume):
    kept = make(CacheLimits(reserve=1 << 20), work=small_volume)
    rng = random.Random(5)
    for low in range(0, 30_000, 1500):
        kept.write({key(n): rng.randbytes(150) for n in range(low, low + 1500)})
        kept.settle()
    assert sum(ref.size for ref in kept.refs) > small_volume_bytes(small_volume)
    asked = [key(rng.randrange(30_000)) for _ in range(1000)]
    assert kept.db.get_many(asked) == [kept.model[one] for one in asked]
    assert kept.scan() == kept.model


def test_a_real_volume_that_is_full_fails_writes_in_time_and_loses_nothing(make, small_volume):
    kept = make(CacheLimits(reserve=0), work=small_volume)
    kept.write({key(1): b"kept"})
    kept.checkpoint()
    rng = random.Random(6)

    def fill():
        for low in range(0, 100_000, 500):
            kept.write({key(n): rng.randbytes(150) for n in range(low, low + 500)})

    with pytest.raises(LocalDiskError, match="not in the store yet"):
        fill()
    kept.reopen()
    assert kept.scan() == {key(1): b"kept"}


@pytest.mark.parametrize(
    "action",
    ["flush", *(pytest.param(action, marks=pytest.mark.soak) for action in ("write", "close"))],
)
def test_a_volume_that_somebody_else_fills_makes_nothing_wait_for_ever(
    make, small_volume, monkeypatch, action
):
    monkeypatch.setattr(sliced, "_MOST_ERRORS", 1)
    monkeypatch.setattr(sliced, "_CLOSE_SECONDS", 0.1)
    kept = make(CacheLimits(reserve=0), work=small_volume)
    kept.write({key(n): b"x" * 100 for n in range(500)})
    kept.checkpoint()
    kept.write({key(n): b"y" * 100 for n in range(500)})
    # As if it were filled after the look.
    monkeypatch.setattr(kept.cache, "make_room", lambda *_args, **_kwargs: None)
    kept.db._database.before_writes(lambda _: None)
    with (small_volume / "filler").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    if action == "flush":
        with pytest.raises(LocalDiskError, match="flush"):
            kept.db.flush()
    if action == "write":

        def write():
            for n in range(100):
                kept.write({key(n): b"z" * 40_000})

        with pytest.raises(LocalDiskError, match="flush"):
            write()
    kept.db.close()
    (small_volume / "filler").unlink()
    kept.reopen()
    assert kept.scan() == {key(n): b"x" * 100 for n in range(500)}


def small_volume_bytes(path):
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize
