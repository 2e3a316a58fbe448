import zlib

import numpy as np
import pytest
from benchmarks.snapshots.job import Job
from benchmarks.snapshots.measuring import measure
from benchmarks.snapshots.params import VALUE_BYTES, Size
from benchmarks.snapshots.records import MAX_PARALLELISM, groups_of, ordered, values_of
from benchmarks.snapshots.restoring import WrongState

from moorage_state.snapshots import CheckpointStore, LineageLog, retained
from moorage_state.stores import open_store

SMALL = Size(3_000_000, checkpoints=4, epoch_keys=10_000, samples=5_000, rounds=1)


def writes_of(keys, count):
    return np.full(len(keys), count, np.uint16)


def test_values_depend_on_the_key_and_on_how_often_it_was_written():
    keys = np.arange(500, dtype=np.int64)
    first, second = values_of(keys, writes_of(keys, 1)), values_of(keys, writes_of(keys, 2))
    assert len({*first, *second}) == 1000
    assert values_of(keys[7:8], writes_of(keys[7:8], 2)) == [second[7]]
    assert {len(value) for value in first} == {VALUE_BYTES}


def test_values_do_not_compress():
    keys = np.arange(5000, dtype=np.int64)
    raw = b"".join(values_of(keys, writes_of(keys, 1)))
    assert len(zlib.compress(raw)) > 0.99 * len(raw)


def test_key_groups_are_all_used_about_equally():
    counts = np.bincount(groups_of(np.arange(128_000, dtype=np.int64)))
    assert len(counts) == MAX_PARALLELISM
    assert counts.min() > 800
    assert counts.max() < 1200


def test_stored_keys_come_in_the_order_of_a_range_and_begin_with_their_group():
    keys = np.array([90, 5, -3, 77], np.int64)
    stored, order = ordered(keys)
    assert stored == sorted(stored)
    groups = groups_of(keys[order]).tolist()
    assert [int.from_bytes(key[:2], "big") for key in stored] == groups


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    work = tmp_path_factory.mktemp("work")
    lines: list[str] = []
    return measure(SMALL, (work / "store").as_uri(), work, lines.append), work, lines


def test_a_checkpoint_after_a_change_of_one_percent_uploads_a_part_of_the_full_one(done):
    measured, _, _ = done
    assert measured.full.bytes_uploaded == measured.full.bytes_total > 0.9 * SMALL.state_bytes
    assert len(measured.incremental) == SMALL.checkpoints
    for taken in measured.incremental:
        assert 0.005 < taken.bytes_uploaded / taken.bytes_total < 0.6


def test_each_checkpoint_has_the_pause_of_every_subtask(done):
    measured, _, _ = done
    for taken in (measured.full, *measured.incremental):
        assert len(taken.syncs) == SMALL.subtasks
        assert all(0 < sync.flush_seconds < sync.seconds for sync in taken.syncs)
        assert max(sync.seconds for sync in taken.syncs) < taken.round_trip_seconds


def test_restores_and_copies_move_the_same_bytes_in_both_orders(done):
    measured, _, _ = done
    kinds = [(transfer.cache, transfer.first) for transfer in measured.transfers]
    assert kinds == [(c, f) for c in ("cold", "warm") for f in ("copy", "restore")]
    for transfer in measured.transfers:
        assert transfer.restore_bytes == measured.incremental[-1].bytes_total
        assert transfer.copy_bytes == pytest.approx(transfer.restore_bytes, rel=0.02)
    assert measured.checked_keys == SMALL.samples


def test_old_checkpoints_are_retired_and_working_copies_removed(done):
    _, work, _ = done
    store = open_store((work / "store").as_uri())
    entries = [entry for _, entry in LineageLog.open(store).read()]
    assert len(retained(entries)) == SMALL.retain
    assert CheckpointStore(store).load_latest(entries, verify="hashes") is not None
    assert {path.name for path in work.iterdir()} == {"servers", "store"}


def test_a_restore_that_lost_writes_is_found(tmp_path, monkeypatch):
    """One whole set of changes is noted as written and never reaches the job."""
    real = Job.write
    calls = []

    def forget_the_last(self, keys, writes):
        calls.append(len(keys))
        if writes.max() < 2:
            real(self, keys, writes)

    monkeypatch.setattr(Job, "write", forget_the_last)
    size = Size(200_000, changed=0.5, checkpoints=1, samples=500, rounds=1)
    with pytest.raises(WrongState, match="restored values are wrong"):
        measure(size, (tmp_path / "store").as_uri(), tmp_path, lambda _line: None)
    assert calls[-1] == round(size.keys * 0.5)
