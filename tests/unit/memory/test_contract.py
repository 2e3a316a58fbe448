"""What every database of a range does, whichever backend keeps it."""

import random

import pytest
from sqlite_backend import SqliteStateBackend

from moorage_state.deltas import Frame
from moorage_state.errors import Bug, CorruptState, Retryable
from moorage_state.memory import groups
from moorage_state.state_backends import (
    EmbeddedRocksDBStateBackend,
    ForStStateBackend,
    HashMapStateBackend,
)
from moorage_state.tuning import RocksOptions

MIB = 1 << 20
OPTIONS = RocksOptions(
    block_cache_bytes=16 * MIB, write_buffers_bytes=16 * MIB, write_buffer_bytes=4 * MIB
)


BACKENDS = {
    "rocksdb": EmbeddedRocksDBStateBackend(tuned=OPTIONS),
    "hashmap": HashMapStateBackend(),
    "forst": ForStStateBackend(tuned=OPTIONS, cache_reserve=0),
    "a stranger's": SqliteStateBackend(),
}


@pytest.fixture(scope="module", params=list(BACKENDS))
def shared(request):
    """A backend, and what its databases share in this process."""
    backend = BACKENDS[request.param]
    return backend, backend.process_memory()


@pytest.fixture
def db(tmp_path, shared):
    backend, memory = shared
    database = backend.open_database(tmp_path / "db", memory)
    yield database
    database.close()


def fill(database, keys, value=b"v" * 100):
    database.apply([Frame([], list(keys), [value] * len(keys))])


def number(n):
    return n.to_bytes(8, "big")


def scan(database, lower=b"", upper=b"\xff\xff", entries=1 << 30):
    with database.cursor(lower, upper) as cursor:
        cursor.seek(lower)
        return cursor.take(upper, entries, 1 << 40)


def test_puts_deletes_and_range_deletes_are_applied_in_order(db):
    db.apply([Frame([], [b"a", b"b", b"c", b"d"], [b"1", b"2", b"3", b"4"])])
    db.apply([Frame([(b"b", b"d")], [b"c", b"a"], [b"new", None])], (b"\xff\xffm", b"marker"))
    assert db.get_many([b"a", b"b", b"c", b"d"]) == [None, None, b"new", b"4"]
    assert db.get(b"\xff\xffm") == b"marker"


def test_the_last_write_of_a_key_counts_within_a_frame_and_across_frames(db):
    first = Frame([], [b"b", b"a", b"c", b"a", b"b"], [b"1", b"1", b"1", b"2", None])
    db.apply([first, Frame([(b"c", b"d")], [b"d", b"c", b"c"], [b"1", b"2", b"3"])])
    assert db.get_many([b"a", b"b", b"c", b"d"]) == [b"2", None, b"3", b"1"]


def test_an_error_while_frames_are_read_writes_nothing(db):
    def frames():
        yield Frame([], [b"a"], [b"1"])
        raise CorruptState("torn")

    with pytest.raises(CorruptState, match="torn"):
        db.apply(frames(), (b"\xff\xffm", b"marker"))
    assert db.get_many([b"a", b"\xff\xffm"]) == [None, None]


def test_empty_keys_and_values_are_kept(db):
    db.apply([Frame([], [b"", b"k"], [b"v", b""])])
    assert db.get_many([b"", b"k", b"x"]) == [b"v", b"", None]
    assert scan(db)[:2] == ([b"", b"k"], [b"v", b""])


def test_a_lookup_of_many_keys_keeps_its_order(db):
    keys = [number(n) for n in range(10_000)]
    fill(db, keys, b"x")
    assert db.get_many([*keys, b"\xf0"]) == [b"x"] * 10_000 + [None]


def test_a_cursor_takes_pages_up_to_both_limits(db):
    keys = [number(n) for n in range(100)]
    fill(db, keys)
    with db.cursor(b"", b"\xff") as cursor:
        assert cursor.seek(keys[10]) == keys[10]
        assert cursor.take(keys[50], 5, 1 << 20)[0::2] == (keys[10:15], False)
        assert cursor.take(keys[50], 99, 300)[0::2] == (keys[15:18], False)
        assert cursor.take(keys[50], 99, 1 << 20)[0::2] == (keys[18:50], True)
        assert cursor.take_keys(keys[53], 2) == keys[50:52]
        assert cursor.take_keys(keys[53], 9) == keys[52:53]
        assert cursor.seek(b"\xf0") is None


def test_a_cursor_keeps_to_its_bounds(db):
    keys = [number(n) for n in range(100)]
    fill(db, keys)
    with db.cursor(keys[10], keys[20]) as cursor:
        assert cursor.seek(b"") == keys[10]
        assert cursor.take(b"\xff", 1000, 1 << 40)[0::2] == (keys[10:20], True)
        assert cursor.key() is None
        assert cursor.seek(keys[20]) is None
        assert cursor.seek(keys[19]) == keys[19]


def test_a_cursor_does_not_see_later_writes(db):
    keys = [number(n) for n in range(200)]
    fill(db, keys[:100])
    with db.cursor(b"", b"\xff") as cursor:
        db.apply([Frame([(keys[5], keys[50])], keys[60:200], [b"later"] * 140)])
        cursor.seek(b"")
        found, values, _ = cursor.take(b"\xff", 1000, 1 << 40)
    assert (found, set(values)) == (keys[:100], {b"v" * 100})
    assert scan(db)[0] == keys[:5] + keys[50:]


def test_a_closed_database_says_so(db):
    db.close()
    db.close()
    with pytest.raises(Bug, match="closed"):
        db.get(b"a")


def test_its_size_grows_with_what_is_written(db):
    before = db.size()
    fill(db, [number(n) for n in range(2000)])
    assert db.size() > before + 200_000


def random_key(rng):
    group, kind = rng.randrange(6), rng.choice((1, 1, 1, 2))
    return bytes((0, group, kind)) + rng.randrange(40).to_bytes(rng.randint(1, 3), "big")


@pytest.mark.parametrize("seed", range(4))
def test_any_writes_and_scans_agree_with_a_sorted_dictionary(db, seed, monkeypatch):
    if seed % 2:  # many runs in a group, most changes one by one
        monkeypatch.setattr(groups, "_RUN", 4)
        monkeypatch.setattr(groups, "_FEW", 1)
        monkeypatch.setattr(groups, "_PASSED_OVER", 1)
    rng, model = random.Random(seed), dict[bytes, bytes | None]()
    for _ in range(150):
        keys = [random_key(rng) for _ in range(rng.randrange(12))]
        values = [rng.choice((None, rng.randbytes(rng.randrange(60)))) for _ in keys]
        ranges = []
        if rng.random() < 0.2:
            ranges = [tuple(sorted((random_key(rng), random_key(rng))))]
        db.apply([Frame(ranges, keys, values)])
        for low, high in ranges:
            model = {k: v for k, v in model.items() if not low <= k < high}
        model |= dict(zip(keys, values, strict=True))
        model = {k: v for k, v in model.items() if v is not None}
        check(db, rng, sorted(model.items()))


def check(db, rng, entries):
    lower, upper = sorted((random_key(rng), random_key(rng)))
    begin, end, limit = random_key(rng), random_key(rng), rng.randint(1, 9)
    expected = [(k, v) for k, v in entries if max(lower, begin) <= k < min(upper, end)]
    with db.cursor(lower, upper) as cursor:
        cursor.seek(begin)
        keys, values, complete = cursor.take(end, limit, rng.choice((40, 1 << 20)))
        assert list(zip(keys, values, strict=True)) == expected[: len(keys)]
        assert complete == (len(keys) == len(expected))
        rest = cursor.take_keys(end, 1 << 20)
        assert keys + rest == [k for k, _ in expected]
    assert db.get_many([k for k, _ in entries]) == [v for _, v in entries]


def test_a_copy_is_the_state_of_its_moment_and_opens_with_it(db, tmp_path, shared):
    backend, memory = shared
    fill(db, [number(n) for n in range(100)])
    pending = db.checkpoint(tmp_path / "copy")
    db.apply([Frame([(number(0), number(50))], [number(200)], [b"later"])], (b"\xff\xffm", b"now"))
    if pending is not None:
        with pending.view().cursor(b"", b"\xff") as cursor:
            cursor.seek(b"")
            assert cursor.take_keys(b"\xff", 1000) == [number(n) for n in range(100)]
        pending.write(tmp_path / "copy", lambda: False)
        pending.drop()
        pending.drop()
    files = {path.name: path.read_bytes() for path in (tmp_path / "copy").iterdir()}
    copy = backend.open_database(tmp_path / "copy", memory, read_only=True)
    assert scan(copy)[0] == [number(n) for n in range(100)]
    assert copy.get_many([number(7), number(200), b"\xff\xffm"]) == [b"v" * 100, None, None]
    copy.close()
    found = {path.name: path.read_bytes() for path in (tmp_path / "copy").iterdir()}
    assert {name: found.get(name) for name in files} == files
    working = backend.open_database(tmp_path / "copy", memory)
    fill(working, [number(300)])
    assert len(scan(working)[0]) == 101
    working.close()


def test_a_copy_that_is_stopped_leaves_nothing(db, tmp_path):
    fill(db, [number(n) for n in range(5000)])
    pending = db.checkpoint(tmp_path / "copy")
    if pending is None:
        pytest.skip("its copies are there at once")
    with pytest.raises(Retryable):
        pending.write(tmp_path / "copy", lambda: True)
    pending.drop()
    assert not (tmp_path / "copy").exists()


def test_files_that_are_damaged_or_absent_are_told_from_an_empty_database(db, tmp_path, shared):
    backend, memory = shared
    fill(db, [number(n) for n in range(2000)])
    db.flush()
    pending = db.checkpoint(tmp_path / "copy")
    if pending is not None:
        pending.write(tmp_path / "copy", lambda: False)
        pending.drop()
    for path in (tmp_path / "copy").iterdir():
        path.write_bytes(b"\x01" * path.stat().st_size)
    with pytest.raises(CorruptState):
        scan(backend.open_database(tmp_path / "copy", memory, read_only=True))
