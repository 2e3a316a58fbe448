"""RocksDB's state is several times what its server may use of memory."""

import contextlib
import os
import random
import resource
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from moorage_state.deltas import encode_frame
from moorage_state.rocks import RocksOptions
from moorage_state.server import ServerGroup
from moorage_state.state_backends import EmbeddedRocksDBStateBackend

MIB = 1 << 20
VALUE = 4000
PER_EPOCH = 2_500
LIMIT = 256 * MIB
OPTIONS = EmbeddedRocksDBStateBackend(
    tuned=RocksOptions(
        block_cache_bytes=64 * MIB, write_buffers_bytes=32 * MIB, write_buffer_bytes=8 * MIB
    )
)


@pytest.fixture(scope="session")
def small():
    """Only of RocksDB: state in memory is what it is."""
    return OPTIONS


@pytest.fixture
def disk():
    """A folder that is not in memory, whose files would count as memory of their writer."""
    with TemporaryDirectory(prefix="moorage-", dir="/var/tmp") as folder:
        yield Path(folder)


@contextlib.contextmanager
def limited(pid, limit):
    """Have the kernel hold the process to so many bytes; one that needs more does not go on.

    With its page cache where this test may make a cgroup, else its own memory alone.
    """
    with in_cgroup(pid, limit) as held:
        if not held:
            own_memory = status(pid, "VmData") + limit - status(pid, "VmRSS")
            resource.prlimit(pid, resource.RLIMIT_DATA, (own_memory, own_memory))
        yield


@contextlib.contextmanager
def in_cgroup(pid, limit):
    """Yields whether the process is in a cgroup of its own with this limit."""
    root = Path("/sys/fs/cgroup")
    group = root / "memory" if (root / "memory").is_dir() else root
    old = (group / "memory.limit_in_bytes").exists()
    mine = group / f"moorage-test-{os.getpid()}"
    try:
        mine.mkdir()
        name = "memory.limit_in_bytes" if old else "memory.max"
        (mine / name).write_text(str(limit))
        (mine / "cgroup.procs").write_text(str(pid))
    except OSError:
        with contextlib.suppress(OSError):
            mine.rmdir()
        yield False
        return
    try:
        yield True
    finally:
        with contextlib.suppress(OSError):
            (group / "cgroup.procs").write_text(str(pid))
        deadline = time.monotonic() + 10
        while mine.exists() and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                mine.rmdir()
            time.sleep(0.01)


def status(pid, name):
    """Bytes that the kernel counts for a process under this name."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise AssertionError(pid, name)


def resident(pid):
    """Bytes of the process's own memory, without the page cache."""
    return status(pid, "VmRSS")


def value(noise, n):
    """Bytes that do not compress, another for each key."""
    at = n * 7919 % (len(noise) - VALUE)
    return n.to_bytes(8, "big") + noise[at : at + VALUE - 8]


def grow_and_read(drive, key, disk, size):
    """Write `size` bytes of state through one server, read some of all of it; RSS over time."""
    noise = random.Random(5).randbytes(4 * MIB)
    sizes = []
    with ServerGroup(1, disk / "local", backend=OPTIONS) as group:
        (pid,) = group.pids
        with limited(pid, LIMIT), group.connect(0) as client:
            op = drive(client)
            op.open()
            count = size // VALUE
            for begin in range(0, count, PER_EPOCH):
                numbers = range(begin, min(begin + PER_EPOCH, count))
                made = op.prepare({key(n % 64, n): value(noise, n) for n in numbers})
                op.commit(made, wait=True)
                sizes.append(resident(pid))
            checkpoint = op.range.snapshot(1, op.version)
            rng = random.Random(6)
            for _ in range(20):
                some = sorted((rng.randrange(count) for _ in range(500)), key=lambda n: n % 64)
                found = op.range.get_many(op.version, [key(n % 64, n) for n in some])
                assert found == [value(noise, n) for n in some]
                sizes.append(resident(pid))
            assert group.pids == [pid]
            assert checkpoint.bytes > 0.8 * size
    return sizes


def check_flat(sizes):
    half = len(sizes) // 2
    assert max(sizes) < LIMIT
    assert max(sizes[half:]) < max(sizes[:half]) + 40 * MIB


def test_a_gigabyte_of_state_needs_no_gigabyte_of_memory(drive, key, disk):
    check_flat(grow_and_read(drive, key, disk, 1 << 30))


@pytest.mark.soak
def test_four_gigabytes_of_state_need_no_more_than_one(drive, key, disk):
    check_flat(grow_and_read(drive, key, disk, 4 << 30))


def large_epoch(drive, key, disk, size, limit):
    """One epoch that changes `size` bytes of state, through a server without room for them."""
    noise = random.Random(5).randbytes(4 * MIB)
    count, a_frame = size // VALUE, 2 * PER_EPOCH // 5
    with ServerGroup(1, disk / "local", backend=OPTIONS) as group:
        (pid,) = group.pids
        with limited(pid, limit), group.connect(0) as client:
            op = drive(client)
            op.open()
            frames = 0
            for begin in range(0, count, a_frame):
                numbers = range(begin, min(begin + a_frame, count))
                keys, values = [key(n % 64, n) for n in numbers], [value(noise, n) for n in numbers]
                op.range.stage(1, "a", encode_frame([], keys, values), frames)
                frames += 1
            made = op.range.prepare(1, "a", op.version.digest, frames)
            assert made.bytes > size
            op.commit(made, wait=True)
            peak = status(pid, "VmHWM")
            some = sorted(random.Random(6).sample(range(count), 500), key=lambda n: n % 64)
            found = op.range.get_many(op.version, [key(n % 64, n) for n in some])
            assert found == [value(noise, n) for n in some]
            assert group.pids == [pid]
    return peak


def test_an_epoch_larger_than_the_memory_of_its_server_is_applied_in_parts(drive, key, disk):
    assert large_epoch(drive, key, disk, 160 * MIB, limit=144 * MIB) < 144 * MIB
