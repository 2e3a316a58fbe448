"""A disk that is slower than the writes: they wait, and nobody else does."""

import random
import threading
import time
from itertools import pairwise
from typing import Any

import pytest

from moorage_state.deltas import Frame
from moorage_state.errors import Bug, LocalDiskError
from moorage_state.rocks import Database, ProcessMemory, RocksOptions, adapter, options
from moorage_state.rocks.adapter import WriteRoom

KIB, MIB = 1 << 10, 1 << 20
SMALL = RocksOptions(
    block_cache_bytes=4 * MIB,
    write_buffers_bytes=2 * MIB,
    write_buffer_bytes=512 * KIB,
    max_write_buffers=2,
)


@pytest.fixture
def _slow_disk(monkeypatch):
    """RocksDB writes its files at 1 MiB a second, by its own limit."""

    def limited(given, memory):
        made = options.to_options(given, memory)
        made.set_ratelimiter(MIB, 100_000, 10)
        return made

    monkeypatch.setattr(adapter, "to_options", limited)


def frame(first, count, size=1000):
    keys = [number.to_bytes(8, "big") for number in range(first, first + count)]
    return Frame([], keys, [random.Random(key).randbytes(size) for key in keys])


def longest_pause(action):
    """The longest time in which another thread did not run, and how long all took."""
    beats, stop = [time.monotonic()], threading.Event()

    def beat():
        while not stop.wait(0.005):
            beats.append(time.monotonic())

    thread = threading.Thread(target=beat)
    thread.start()
    began = time.monotonic()
    action()
    seconds = time.monotonic() - began
    stop.set()
    thread.join()
    return max(b - a for a, b in pairwise(beats)), seconds


@pytest.mark.usefixtures("_slow_disk")
@pytest.mark.parametrize("databases", [1, 2])
def test_other_threads_run_while_writes_wait_for_the_disk(tmp_path, databases):
    """With two databases the budget for both is what makes writes wait."""
    memory = ProcessMemory(SMALL)
    opened = [Database(tmp_path / str(n), SMALL, memory) for n in range(databases)]
    count = 2400 // databases

    def write():
        for first in range(0, count, 300):
            for database in opened:
                database.apply([frame(first, 300)])

    pause, seconds = longest_pause(write)
    found = [database.get_many(frame(0, count).keys) for database in opened]
    for database in opened:
        database.close()
    assert found == [frame(0, count).values] * databases
    assert seconds > 0.8, "the disk is not slow enough to show anything"
    assert pause < 0.35


def test_a_large_batch_is_written_in_parts_and_in_order(tmp_path, monkeypatch):
    sizes: list[int] = []
    database = Database(tmp_path / "db", SMALL, ProcessMemory(SMALL))
    monkeypatch.setattr(
        database, "_room", type("Room", (), {"wait": lambda _self, _db, n: sizes.append(n)})()
    )
    database.apply([frame(0, 50)])
    twice = Frame([], [b"k", b"k"], [b"1" * 70 * KIB, b"2"])
    cleared = Frame([((0).to_bytes(8, "big"), (40).to_bytes(8, "big"))], [b"k"], [None])
    database.apply([frame(0, 1000), twice, cleared, frame(0, 1)], (b"marker", b"m"))
    found = database.get_many([*frame(0, 1000).keys, b"k", b"marker"])
    database.close()
    expected = [frame(0, 1).values[0], *[None] * 39, *frame(40, 960).values, None, b"m"]
    assert found == expected
    assert len(sizes) > 8
    assert max(sizes) < 3 * 64 * KIB


def test_an_error_in_the_last_frame_leaves_nothing_written(tmp_path):
    database = Database(tmp_path / "db", SMALL, ProcessMemory(SMALL))

    def frames():
        yield frame(0, 2000)
        raise Bug("the delta is damaged")

    with pytest.raises(Bug, match="the delta is damaged"):
        database.apply(frames())
    assert set(database.get_many(frame(0, 2000).keys)) == {None}
    database.close()


class Property:
    """What RocksDB would say; each sleep, and a flush, goes one step on."""

    def __init__(self, *steps):
        self.steps = list(steps)
        self.slept: list[float] = []
        self.flushed = self.asked = 0

    def property_int_value(self, name):
        self.asked += 1
        return self.steps[0].get(name.removeprefix("rocksdb."), 0)

    def sleep(self, seconds):
        self.slept.append(seconds)
        if len(self.steps) > 1:
            self.steps.pop(0)

    def flush(self):
        self.flushed += 1
        self.steps = [{}]

    def room(self, given=SMALL):
        memory: Any = ProcessMemory(given)
        return WriteRoom(given, memory, self.sleep)


FULL = {"num-immutable-mem-table": 1, "cur-size-active-mem-table": 400 * KIB}
STOPPED = {"is-write-stopped": 1}


@pytest.mark.parametrize(
    ("steps", "looks"),
    [
        ([{}], 0),
        ([STOPPED, STOPPED, {}], 2),
        ([FULL, FULL, FULL | {"num-immutable-mem-table": 0}], 2),
        ([FULL | {"cur-size-active-mem-table": 100 * KIB}], 0),
        ([FULL | {"num-immutable-mem-table": 0}], 0),
    ],
    ids=["idle", "stopped", "next buffer stops", "room left", "no buffer waits"],
)
def test_it_waits_as_long_as_a_write_would(steps, looks):
    said = Property(*steps)
    said.room().wait(said, 64 * KIB)
    assert (len(said.slept), said.flushed) == (looks, 0)


def test_after_half_a_second_it_has_all_flushed_which_waits_without_pythons_lock():
    said = Property(STOPPED)
    said.room().wait(said, 64 * KIB)
    assert sum(said.slept) == pytest.approx(0.5)
    assert said.flushed == 1


def test_a_database_that_can_write_no_more_says_so_and_is_not_waited_for():
    class Broken(Property):
        def flush(self):
            raise LocalDiskError("no space left")

    said = Broken(STOPPED)
    with pytest.raises(LocalDiskError, match="no space"):
        said.room().wait(said, 64 * KIB)


def test_rocksdb_is_not_asked_again_until_what_fitted_is_written():
    given = RocksOptions()
    said = Property({})
    room = said.room(given)
    room.wait(said, MIB)
    asked = said.asked
    for _ in range(20):
        room.wait(said, MIB)
    assert said.asked == asked
    for _ in range(20):
        room.wait(said, MIB)
    assert said.asked > asked


def test_where_rocksdb_slows_writes_down_it_waits_for_what_a_write_costs():
    said = Property({"actual-delayed-write-rate": 128 * KIB})
    room = said.room()
    room.wait(said, 64 * KIB)
    room.wait(said, 32 * KIB)
    assert said.slept == [0.5, 0.25]
