"""Ranges whose state is in memory: the limit, killed servers, and copies between backends."""

import os
import signal

import pytest

from moorage_state import failpoints
from moorage_state.errors import Retryable, StateTooLarge
from moorage_state.rocks import RocksOptions
from moorage_state.server import RangeHost, RestoreBase, ServerGroup
from moorage_state.state_backends import EmbeddedRocksDBStateBackend, HashMapStateBackend

MIB = 1 << 20
HEAP = HashMapStateBackend()
ROCKS = EmbeddedRocksDBStateBackend(
    tuned=RocksOptions(
        block_cache_bytes=16 * MIB, write_buffers_bytes=16 * MIB, write_buffer_bytes=4 * MIB
    )
)


@pytest.fixture(scope="session")
def small():
    return HashMapStateBackend(memory_limit=MIB)


@pytest.fixture
def op(host, drive, key):
    driven = drive(host)
    driven.open()
    driven.epoch({key(group, 1): b"v%d" % group for group in range(64)})
    return driven


def test_an_epoch_that_does_not_fit_fails_and_the_range_goes_on(op, key):
    before = op.read()
    with pytest.raises(StateTooLarge, match=r"limit=1\.0MiB"):
        op.prepare({key(1, n): bytes(100_000) for n in range(20)})
    assert op.read() == before
    op.epoch({key(1, 1): b"fits"})
    assert op.read() == before | {key(1, 1): b"fits"}
    (stats,) = op.api.stats()
    assert stats.error == ""
    assert stats.properties["process-bytes"] == stats.size_bytes


def test_a_refused_attempt_leaves_nothing_that_could_be_committed(op, key, tmp_path):
    with pytest.raises(StateTooLarge):
        op.prepare({key(1, n): bytes(100_000) for n in range(20)})
    deltas = (tmp_path / "local").rglob("deltas/*/*")
    assert len(list(deltas)) == 1


def test_a_restore_that_does_not_fit_is_refused(op, drive, key, tmp_path):
    op.epoch({key(group, 1): bytes(10_000) for group in range(64)})
    op.checkpoint(1)
    with RangeHost(tmp_path / "tiny", HashMapStateBackend(memory_limit=100_000)) as other:
        moved = drive(other, run="f2r0")
        with pytest.raises(StateTooLarge):
            moved.open(op.base)
        assert other.stats() == []


@pytest.mark.parametrize("there", [HEAP, ROCKS], ids=["to hashmap", "to rocksdb"])
@pytest.mark.parametrize("here", [HEAP, ROCKS], ids=["from hashmap", "from rocksdb"])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_checkpoint_of_either_backend_restores_into_either(
    drive, key, tmp_path, here, there, parallelism
):
    model = {key(group, n): b"%d-%d" % (group, n) for group in range(64) for n in range(20)}
    with RangeHost(tmp_path / "one", here) as host, RangeHost(tmp_path / "two", there) as other:
        op = drive(host)
        op.open()
        op.epoch(model)
        op.checkpoint(1)
        cuts = [64 * i // parallelism for i in range(parallelism + 1)]
        parts = [drive(other, cuts[i], cuts[i + 1] - 1, "f2r0") for i in range(parallelism)]
        for part in parts:
            part.open(op.base)
            part.epoch({key(part.spec.start, 1): b"changed"})
            model |= {key(part.spec.start, 1): b"changed"}
        assert {k: v for part in parts for k, v in part.read().items()} == model
        for part in parts:
            part.range.snapshot(2, part.version)
        handles = [part.checkpoint(2) for part in parts]
        back = drive(host, run="f3r0")
        back.open(RestoreBase(2, parts[0].version.epoch, handles))
        assert back.read() == model


def test_the_part_of_a_checkpoint_that_epochs_wait_for_writes_no_file(op, tmp_path):
    op.range.snapshot(1, op.version)
    assert not list((tmp_path / "local").rglob("*.heap"))
    op.upload(1)
    assert len(list((tmp_path / "local").rglob("*.heap"))) == 1


def test_an_aborted_checkpoint_gives_its_memory_back(op):
    op.range.snapshot(1, op.version)
    assert op.api.stats()[0].properties["views"] == 1
    op.api.notify_aborted(1)
    assert op.api.stats()[0].properties["views"] == 0
    op.checkpoint(2)
    assert op.api.stats()[0].properties["views"] == 0


@pytest.mark.parametrize("place", [name for name in failpoints.PLACES if "upload" in name])
def test_a_server_killed_while_it_uploads_comes_back_from_deltas(
    drive, key, tmp_path, monkeypatch, place
):
    monkeypatch.setenv("MOORAGE_FAILPOINT", f"{place}:kill:1")
    with ServerGroup(1, tmp_path / "servers", backend=HashMapStateBackend()) as group:
        monkeypatch.delenv("MOORAGE_FAILPOINT")
        client = group.connect(0)
        op = drive(client)
        op.open()
        for n in range(3):
            op.epoch({key(1, n): bytes(5000)})
        before = op.read()
        with client, pytest.raises(Retryable, match="does not answer"):
            op.checkpoint(1)
        assert group.ensure_alive() == [0]
        with group.connect(0) as again:
            op.api = again
            assert op.open().version == op.version
            assert op.read() == before


def test_a_server_killed_between_checkpoints_has_its_last_copy_and_the_deltas_since(
    drive, key, tmp_path
):
    with ServerGroup(1, tmp_path / "servers", backend=HashMapStateBackend()) as group:
        client = group.connect(0)
        op = drive(client)
        op.open()
        op.epoch({key(1, 1): b"1"})
        op.checkpoint(1)
        op.epoch({key(1, 2): b"2"})
        os.kill(group.pids[0], signal.SIGKILL)
        client.close()
        group.ensure_alive()
        with group.connect(0) as again:
            op.api = again
            assert op.open().source == "local"
            assert op.read() == {key(1, 1): b"1", key(1, 2): b"2"}
