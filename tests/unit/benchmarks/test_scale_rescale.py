"""What a rescale reads from the store, counted on the real restore."""

import pytest
from benchmarks.scale.rescale import _backends, _moved, _wider

from moorage_state.server import restore

ENTRIES = 2_000


@pytest.mark.parametrize("name", ["rocksdb", "hashmap"])
def test_ranges_of_one_server_read_everything_once_however_many_they_are(name, monkeypatch):
    # What lies between two files is read with them where it is little, and of so small a state it
    # is a part that shows: which files a range needs hangs on when RocksDB compacted.
    monkeypatch.setattr(restore, "_GAP_BYTES", 0)
    backend = _backends(ENTRIES)[name]
    read = [_wider(backend, ENTRIES, k, together=True)[0] for k in (1, 4)]
    # The smallest files are in the manifest itself.
    assert read == pytest.approx([1, 1], rel=0.02)


def test_only_ranges_that_move_read_anything():
    backend = _backends(ENTRIES)["hashmap"]
    read = [_moved(backend, ENTRIES, moved)[0] for moved in (0, 2)]
    assert read == pytest.approx([0, 1 / 8], rel=0.1)
