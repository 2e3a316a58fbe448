"""A disk slower than a job's writes, under a real server and a real sidecar: slow and right."""

import random
import threading

import pytest
from moorage_testing.jobs import wait_until

from moorage_state.deltas import encode_frame
from moorage_state.rocks import RocksOptions
from moorage_state.server import RangeSpec, ServerGroup, Version
from moorage_state.server.sidecar import Sidecar
from moorage_state.state_backends import EmbeddedRocksDBStateBackend

KIB, MIB = 1 << 10, 1 << 20
SMALL = EmbeddedRocksDBStateBackend(
    tuned=RocksOptions(
        block_cache_bytes=8 * MIB,
        write_buffers_bytes=4 * MIB,
        write_buffer_bytes=512 * KIB,
        max_write_buffers=2,
    )
)
SLOW = f"""
import sys
if "--socket" in sys.orig_argv and "moorage_state.server" in " ".join(sys.orig_argv):
    from moorage_state.rocks import adapter, options
    real = options.to_options
    def limited(given, memory):
        made = real(given, memory)
        made.set_ratelimiter({256 * KIB}, 100_000, 10)
        return made
    adapter.to_options = limited
"""
"""Found by the server's interpreter when it starts: RocksDB limits what it writes."""


@pytest.fixture
def sidecar(tmp_path, monkeypatch):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(SLOW)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    one = Sidecar(
        lambda seconds: ServerGroup(1, tmp_path / "volume", backend=SMALL, start_timeout=seconds),
        hung_seconds=2.0,
    )
    thread = threading.Thread(target=one.work)
    thread.start()
    wait_until(lambda: one._group is not None)
    yield one
    one.end()
    thread.join()


def key(number):
    return b"\0\1\1" + number.to_bytes(8, "big")


@pytest.mark.soak
def test_writes_faster_than_256_kb_a_second_are_slow_alive_and_right_and_so_is_their_replay(
    sidecar, tmp_path
):
    (tmp_path / "store").mkdir()
    group, rng = sidecar._group, random.Random(1)
    url, spec = f"file://{tmp_path}/store", RangeSpec("op", 0, 127)
    pid = group.pids[0]
    committed, version = [], Version(0, "")
    model: dict[bytes, bytes] = {}
    with group.connect(0) as client:
        client.open_range(spec, "f1r0", None, [], url)
        op = client.range(spec.lease("f1r0"))
        for epoch in range(1, 9):
            writes = {key(rng.randrange(4000)): rng.randbytes(1000) for _ in range(1500)}
            frame = encode_frame([], list(writes), list(writes.values()))
            op.stage(epoch, "a", frame, 0)
            prepared = op.prepare(epoch, "a", version.digest, 1)
            version = Version(epoch, prepared.digest)
            op.commit(*version)
            committed.append(version)
            model |= writes
            assert op.get_many(version, list(writes)) == list(writes.values())
    assert (group.pids[0], sidecar.restarts) == (pid, 0)

    group.kill(0, pid)
    wait_until(lambda: sidecar.restarts == 1)
    with group.connect(0) as client:
        opened = client.open_range(spec, "f1r0", None, committed, url)
        assert opened.version == version
        op = client.range(spec.lease("f1r0"))
        assert op.get_many(version, list(model)) == list(model.values())
    assert sidecar.restarts == 1
