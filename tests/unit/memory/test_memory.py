"""State in memory: copies of it, their files, and its limit."""

import random
import threading
import time
import tracemalloc
from contextlib import closing

import pytest

from moorage_state.database import FileBytes
from moorage_state.deltas import Frame
from moorage_state.errors import (
    Bug,
    CorruptState,
    LocalDiskError,
    NewerFormat,
    Retryable,
    StateTooLarge,
    UserError,
)
from moorage_state.memory import SNAPSHOT_FILE, HeapBudget, MemoryDatabase, write_part
from moorage_state.memory.limits import ENTRY_BYTES
from moorage_state.state_backends import HashMapStateBackend


def go_on():
    return False


def key(group, n):
    return group.to_bytes(2, "big") + b"\x01" + n.to_bytes(6, "big")


def writes(groups, count, value):
    keys = [key(group, n) for group in groups for n in range(count)]
    return Frame([], keys, [value] * len(keys))


def contents(view):
    with view.cursor(b"", b"\xff\xff\xff") as cursor:
        cursor.seek(b"")
        keys, values, complete = cursor.take(b"\xff\xff\xff", 1 << 30, 1 << 50)
    assert complete
    return dict(zip(keys, values, strict=True))


@pytest.fixture
def db(tmp_path):
    database = MemoryDatabase(tmp_path / "db", HeapBudget())
    database.apply([writes(range(16), 50, b"first")], (b"\xff\xffversion", b"1"))
    yield database
    database.close()


def written(db, path):
    copy = db.checkpoint(path)
    copy.write(path, go_on)
    copy.drop()
    return path


def test_a_copy_holds_what_was_there_when_it_was_taken(db, tmp_path):
    before = contents(db)
    copy = db.checkpoint(tmp_path / "copy")
    db.apply([Frame([(key(3, 0), key(5, 0))], [key(1, 1), key(40, 1)], [None, b"new group"])])
    db.apply([writes(range(16), 60, b"second")], (b"\xff\xffversion", b"2"))
    assert contents(copy.view()) == before
    copy.write(tmp_path / "copy", go_on)
    copy.drop()
    read = MemoryDatabase(tmp_path / "copy", HeapBudget())
    assert contents(read) == before
    assert contents(db) != before


def test_only_groups_that_are_written_to_are_copied_and_each_once(db, tmp_path):
    copy = db.checkpoint(tmp_path / "copy")
    for _ in range(3):
        db.apply([writes([2, 7], 50, b"more")])
    assert db.properties()["groups-copied"] == 2
    copy.drop()
    db.apply([writes(range(16), 50, b"more")])
    assert db.properties()["groups-copied"] == 2
    assert db.properties()["views"] == 0


def test_copies_of_several_moments_do_not_disturb_each_other(db, tmp_path):
    copies, expected = [], []
    for n in range(4):
        db.apply([writes([n], 50, b"%d" % n)])
        expected.append(contents(db))
        copies.append(db.checkpoint(tmp_path / str(n)))
    copies.pop(1).drop()
    expected.pop(1)
    db.apply([writes(range(16), 50, b"last")])
    assert [contents(copy.view()) for copy in copies] == expected


def test_groups_that_come_in_any_order_are_there_in_their_own_and_views_miss_them(tmp_path):
    database = MemoryDatabase(tmp_path / "db", HeapBudget())
    groups = random.Random(1).sample(range(2000), 2000)
    database.apply([writes([group], 1, b"v") for group in groups[:1000]])
    before = database.checkpoint(tmp_path / "copy")
    with database.cursor(b"", b"\xff\xff\xff") as cursor:
        cursor.seek(b"")
        database.apply([writes([group], 1, b"v") for group in groups[1000:]])
        assert cursor.take_keys(b"\xff\xff\xff", 3000) == [key(n, 0) for n in sorted(groups[:1000])]
    assert list(contents(before.view())) == [key(n, 0) for n in sorted(groups[:1000])]
    assert list(contents(database)) == [key(n, 0) for n in range(2000)]


def test_taking_a_copy_costs_the_same_whatever_there_is(tmp_path):
    def seconds(count):
        database = MemoryDatabase(tmp_path / "db", HeapBudget())
        database.apply([writes(range(16), count, b"v")])
        best = 1.0
        for _ in range(50):
            began = time.perf_counter()
            copy = database.checkpoint(tmp_path / "copy")
            best = min(best, time.perf_counter() - began)
            copy.drop()
        return best

    assert seconds(8_000) < 50 * seconds(8) + 0.0005


def test_writes_go_on_while_a_copy_is_written(db, tmp_path):
    """Many threads' worth of interleavings: every file is one moment, and whole."""
    failures = []

    def write_out(n, copy, expected):
        try:
            copy.write(tmp_path / f"copy-{n}", lambda: time.sleep(0.0002))
            copy.drop()
            found = contents(MemoryDatabase(tmp_path / f"copy-{n}", HeapBudget()))
            assert found == expected
        except Exception as error:  # noqa: BLE001  told by the test's own thread
            failures.append(error)

    threads = []
    for n in range(12):
        expected = contents(db)
        copy = db.checkpoint(tmp_path / f"copy-{n}")
        threads.append(threading.Thread(target=write_out, args=(n, copy, expected)))
        threads[-1].start()
        for step in range(20):
            ranges = [(key(step % 16, 0), key(step % 16, step))]
            db.apply([Frame(ranges, [key(step % 16, n)], [b"%d %d" % (n, step)])])
            db.apply([writes([step % 16], 30, b"%d" % n)])
    for thread in threads:
        thread.join()
    assert failures == []
    assert db.properties()["views"] == 0


def test_a_copy_that_is_stopped_leaves_nothing(db, tmp_path):
    copy = db.checkpoint(tmp_path / "copy")
    with pytest.raises(Retryable, match="stopped"):
        copy.write(tmp_path / "copy", lambda: True)
    assert not (tmp_path / "copy").exists()
    copy.write(tmp_path / "copy", go_on)
    assert (tmp_path / "copy" / SNAPSHOT_FILE).exists()
    copy.drop()
    copy.drop()
    with pytest.raises(Bug, match="dropped"):
        copy.view()


def test_a_volume_that_refuses_is_a_disk_error(db, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    copy = db.checkpoint(tmp_path / "file" / "copy")
    with pytest.raises(LocalDiskError, match="could not write a snapshot"):
        copy.write(tmp_path / "file" / "copy", go_on)
    copy.drop()


def test_only_the_wanted_key_groups_are_read(db, tmp_path):
    path = written(db, tmp_path / "copy")
    read = MemoryDatabase(path, HeapBudget(), (4, 6))
    groups = {int.from_bytes(k[:2], "big") for k in contents(read)}
    assert groups == {4, 5, 6, 0xFFFF}
    assert read.get(b"\xff\xffversion") == b"1"


def test_the_bytes_of_other_key_groups_are_not_even_looked_at(db, tmp_path):
    path = written(db, tmp_path / "copy")
    data = bytearray((path / SNAPSHOT_FILE).read_bytes())
    data[data.index(key(9, 0)) + 20] ^= 1
    (path / SNAPSHOT_FILE).write_bytes(data)
    assert len(contents(MemoryDatabase(path, HeapBudget(), (0, 8)))) == 9 * 50 + 1
    with pytest.raises(CorruptState, match="checksum"):
        MemoryDatabase(path, HeapBudget())


@pytest.mark.parametrize("within", [(4, 6), (0, 0), (15, 15), (0, 15), (40, 50)])
def test_a_part_of_a_file_is_a_file_of_its_own(db, tmp_path, monkeypatch, within):
    monkeypatch.setattr("moorage_state.memory.files._PIECE_BYTES", 1 << 10)
    monkeypatch.setattr("moorage_state.memory.files._END_BYTES", 64)
    whole = (written(db, tmp_path / "copy") / SNAPSHOT_FILE).read_bytes()
    (tmp_path / "part").mkdir()
    source = FileBytes(lambda at, size: whole[at : at + size], len(whole), "there")
    write_part(tmp_path / "part" / SNAPSHOT_FILE, source, within)
    expected = contents(MemoryDatabase(tmp_path / "copy", HeapBudget(), within))
    assert contents(MemoryDatabase(tmp_path / "part", HeapBudget())) == expected


@pytest.mark.parametrize("at", [0, 9, 300, -1, -20, -60])
def test_damage_of_a_file_elsewhere_is_noticed_where_a_part_needs_it(db, tmp_path, at):
    whole = bytearray((written(db, tmp_path / "copy") / SNAPSHOT_FILE).read_bytes())
    whole[at] ^= 0x40
    source = FileBytes(lambda at, size: bytes(whole[at : at + size]), len(whole), "there")
    with pytest.raises((CorruptState, NewerFormat), match="there"):
        write_part(tmp_path / "part", source, (0, 3))


def test_a_large_group_is_written_in_pieces(tmp_path):
    database = MemoryDatabase(tmp_path / "db", HeapBudget())
    database.apply([writes([1], 45_000, b"v" * 200)])
    read = MemoryDatabase(written(database, tmp_path / "copy"), HeapBudget())
    assert contents(read) == contents(database)


@pytest.mark.parametrize("at", [0, 5, 9, 100, 0.5, 0.9, -1, -10, -20, -30])
def test_a_flipped_bit_is_always_noticed(db, tmp_path, at):
    path = written(db, tmp_path / "copy") / SNAPSHOT_FILE
    data = bytearray(path.read_bytes())
    data[int(len(data) * at) if isinstance(at, float) else at] ^= 0x40
    path.write_bytes(data)
    with pytest.raises((CorruptState, NewerFormat)) as caught:
        MemoryDatabase(path.parent, HeapBudget())
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("left", [0, 4, 10, 30, 1000, -1, -24, -25])
def test_a_file_that_was_cut_off_is_noticed(db, tmp_path, left):
    path = written(db, tmp_path / "copy") / SNAPSHOT_FILE
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(CorruptState, match=str(path)):
        MemoryDatabase(path.parent, HeapBudget())


def test_a_file_of_a_newer_release_is_refused(db, tmp_path):
    path = written(db, tmp_path / "copy") / SNAPSHOT_FILE
    data = bytearray(path.read_bytes())
    data[8:10] = (9).to_bytes(2, "big")
    path.write_bytes(data)
    with pytest.raises(NewerFormat, match="format=9"):
        MemoryDatabase(path.parent, HeapBudget())


def test_the_file_is_read_again_unless_it_is_consumed(db, tmp_path):
    path = written(db, tmp_path / "copy")
    MemoryDatabase(path, HeapBudget())
    assert (path / SNAPSHOT_FILE).exists()
    MemoryDatabase(path, HeapBudget(), consume=True)
    assert not (path / SNAPSHOT_FILE).exists()


# The limit.


def test_what_does_not_fit_is_refused_before_it_is_written(tmp_path):
    budget = HeapBudget(1 << 20)
    database = MemoryDatabase(tmp_path / "db", budget)
    frame = writes([1], 100, b"v" * 20_000)
    with pytest.raises(StateTooLarge) as caught:
        database.make_room(lambda: [frame], 2_000_000)
    for word in ("limit=1.0MiB", "state.backend.hashmap.memory-limit", "nothing is lost"):
        assert word in str(caught.value)
    assert contents(database) == {}


def test_a_full_database_still_takes_what_makes_it_no_larger(tmp_path):
    budget = HeapBudget(1 << 20)
    database = MemoryDatabase(tmp_path / "db", budget)
    database.apply([writes([1], 100, b"v" * 10_000)])
    same = writes([1], 100, b"w" * 10_000)
    database.make_room(lambda: [same], 1_000_000)
    cleared = Frame([(key(1, 0), key(2, 0))], [key(1, 200)], [b"x" * 500_000])
    database.make_room(lambda: [cleared], 500_000)
    with pytest.raises(StateTooLarge):
        database.make_room(lambda: [Frame([], [key(1, 200)], [b"x" * 100_000])], 100_000)


def test_databases_of_a_process_share_the_limit_and_give_back(tmp_path):
    budget = HeapBudget(1 << 20)
    one, two = (MemoryDatabase(tmp_path / name, budget) for name in "ab")
    one.apply([writes([1], 60, b"v" * 10_000)])
    frame = writes([2], 60, b"v" * 10_000)
    with pytest.raises(StateTooLarge):
        two.make_room(lambda: [frame], 600_000)
    one.close()
    one.close()
    two.make_room(lambda: [frame], 600_000)
    assert budget.used == 0


def test_a_snapshot_that_is_larger_than_the_limit_is_not_opened(db, tmp_path):
    path = written(db, tmp_path / "copy")
    budget = HeapBudget(1000)
    with pytest.raises(StateTooLarge):
        MemoryDatabase(path, budget)
    assert budget.used == 0


def test_no_limit_is_never_reached(db):
    db.make_room(pytest.fail, 1 << 60)
    with pytest.raises(UserError, match="below zero"):
        HashMapStateBackend(memory_limit=-1)


@pytest.mark.parametrize("size", [20, 100, 400])
def test_what_an_entry_costs_is_about_what_is_counted(tmp_path, size):
    count = 20_000
    tracemalloc.start()
    database = MemoryDatabase(tmp_path / "db", HeapBudget())
    before = tracemalloc.get_traced_memory()[0]
    for group in range(16):
        frame = Frame([], [key(group, n) for n in range(count // 16)], [])
        database.apply([Frame([], frame.keys, [bytes(bytearray(size)) for _ in frame.keys])])
    contents(database)
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    counted = database.size()
    assert counted == (count // 16) * 16 * (9 + size + ENTRY_BYTES)
    assert 0.6 * counted < used < 1.2 * counted


def test_a_scan_after_few_changes_copies_only_the_runs_that_they_are_in(tmp_path):
    with closing(MemoryDatabase(tmp_path / "large", HeapBudget())) as database:
        database.apply([writes([3], 100_000, b"")])
        (group,) = database._groups.values()
        before = group.ordered()
        database.apply([Frame([], [key(3, 50_000) + b"new"], [b""])])
        after = group.ordered()
    assert sum(map(len, after)) == 100_001
    assert sum(one is not other for one, other in zip(before, after, strict=True)) == 1
