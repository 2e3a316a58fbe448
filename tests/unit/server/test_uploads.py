"""Uploads of many ranges at once: merged, inlined, counted; and restores from what they wrote."""

import random
from itertools import product
from pathlib import Path

import pytest
from moorage_testing.parts import handles_of
from msgspec.structs import replace

from moorage_state import failpoints
from moorage_state.errors import CorruptState, LocalDiskError, Retryable, StoreUnavailable
from moorage_state.server import (
    RangeHost,
    RestoreBase,
    ServerGroup,
    UploadLimits,
    UploadRequest,
)
from moorage_state.server.operations import Uploaded
from moorage_state.server.restore import fetch_all, is_whole
from moorage_state.snapshots import pack_size
from moorage_state.stores import MemoryStore, Retries, open_store
from moorage_state.stores.retries import Failure

only_rocksdb = pytest.mark.parametrize("small", ["rocksdb"], indirect=True)
"""About files that RocksDB makes one by one; state in memory has one file."""

PACKED = UploadLimits(inline_range=0, inline_file=-1)
INLINE = UploadLimits()


@pytest.fixture
def ranges(host, drive):
    """Eight ranges of one operator, on one host."""
    made = [drive(host, 8 * n, 8 * n + 7) for n in range(8)]
    for part in made:
        part.open()
    return made


def fill(parts, key, size, seed=1):
    rng = random.Random(seed)
    for part in parts:
        part.epoch({key(part.spec.start, n): rng.randbytes(size) for n in range(10)})


def checkpoint(parts, checkpoint_id, limits=INLINE, base=None):
    api, run = parts[0].api, parts[0].run
    for part in parts:
        api.range(part.lease).snapshot(checkpoint_id, part.version)
    old = {h.start: h.files for h in (base.handles if base else [])}
    requests = [UploadRequest(p.spec.uid, p.spec.start, old.get(p.spec.start, [])) for p in parts]
    written = api.upload_many(run, checkpoint_id, parts[0].url, requests, limits)
    api.notify_complete(checkpoint_id)
    handles = handles_of(parts[0].url, written)
    # The part is an object as well, and not what these tests count.
    costs = (written.bytes_written, written.bytes_inline, written.attempts - 1)
    return Uploaded(handles, written.objects - 1, *costs)


def stored(parts):
    found = {info.key: info.size for info in open_store(parts[0].url).list("")}
    return {key: size for key, size in found.items() if "/part-" not in key}


def restored(uploaded, parts, drive, tmp_path, small):
    """The state as another machine finds it in the store."""
    found: dict[bytes, bytes] = {}
    with RangeHost(tmp_path / "elsewhere", small) as other:
        for part, handle in zip(parts, uploaded.handles, strict=True):
            moved = drive(other, part.spec.start, part.spec.end, "f9r0")
            moved.open(RestoreBase(1, handle.epoch, [handle]))
            found |= moved.read()
    return found


def whole(parts):
    return {k: v for part in parts for k, v in part.read().items()}


@pytest.mark.parametrize("limits", [INLINE, PACKED], ids=["inline", "packed"])
@pytest.mark.parametrize("size", [10, 5000])
def test_ranges_come_back_from_what_was_merged(ranges, drive, key, tmp_path, small, limits, size):
    fill(ranges, key, size)
    uploaded = checkpoint(ranges, 1, limits)
    assert restored(uploaded, ranges, drive, tmp_path, small) == whole(ranges)


def test_small_ranges_cost_no_object_at_all(ranges, key):
    fill(ranges, key, 10)
    uploaded = checkpoint(ranges, 1)
    assert (uploaded.objects, uploaded.bytes_written, stored(ranges)) == (0, 0, {})
    inline = [ref.inline for handle in uploaded.handles for ref in handle.files]
    assert uploaded.bytes_inline == sum(len(data) for data in inline)


def test_what_is_counted_is_what_is_stored(ranges, key):
    fill(ranges, key, 5000)
    uploaded = checkpoint(ranges, 1, PACKED)
    objects = stored(ranges)
    kinds = {ref.shared for handle in uploaded.handles for ref in handle.files}
    assert uploaded.objects == len(objects) == len(kinds)
    assert uploaded.bytes_written == sum(objects.values())
    assert objects == {name: pack_size(name) for name in objects}
    assert objects.keys() == {ref.key for h in uploaded.handles for ref in h.files}


def test_each_request_that_is_repeated_is_another_attempt(ranges, key, monkeypatch):
    fill(ranges, key, 5000)
    written = checkpoint(ranges, 1, PACKED)
    assert written.attempts == written.objects > 0
    kind = type(open_store(ranges[0].url))
    retries, put, left = Retries(sleep=lambda _seconds: None), kind.put, [3]

    def flaky(store, name, data):
        def work(_attempt):
            left[0] -= 1
            if left[0] >= 0:
                raise OSError("throttled")
            put(store, name, data)

        retries.run(work, lambda error: Failure(StoreUnavailable(str(error)), again=True))

    monkeypatch.setattr(kind, "put", flaky)
    fill(ranges, key, 5000, seed=2)
    written = checkpoint(ranges, 2, PACKED)
    assert written.attempts == written.objects + 3


def test_no_upload_passes_what_it_may_put_inline(ranges, key):
    fill(ranges, key, 1500)
    uploaded = checkpoint(ranges, 1, UploadLimits(inline_range=50_000, inline_total=60_000))
    assert 30_000 < uploaded.bytes_inline <= 60_000
    assert uploaded.objects == len({ref.shared for h in uploaded.handles for ref in h.files})


@only_rocksdb
def test_an_increment_holds_only_what_is_new(ranges, drive, key, tmp_path, small):
    fill(ranges, key, 5000)
    first = checkpoint(ranges, 1)
    before = stored(ranges)
    fill(ranges[2:3], key, 7000, seed=2)
    for part in ranges[:2] + ranges[3:]:
        part.epoch({})
    second = checkpoint(ranges, 2, base=first)
    new = stored(ranges).keys() - before.keys()
    assert len(new) == second.objects == 2
    assert second.bytes_written < 90_000 < first.bytes_written
    assert restored(second, ranges, drive, tmp_path, small) == whole(ranges)


def test_uploads_write_nothing_over_even_when_repeated(ranges, key):
    fill(ranges, key, 5000)
    first = checkpoint(ranges, 1, PACKED)
    before = stored(ranges)
    again = checkpoint(ranges, 1, PACKED)
    assert again.objects == first.objects
    assert len(stored(ranges)) == 2 * len(before)


def test_an_upload_of_a_range_that_is_not_here_writes_nothing(ranges, key):
    fill(ranges, key, 5000)
    for part in ranges[1:]:
        part.range.snapshot(1, part.version)
    requests = [UploadRequest(p.spec.uid, p.spec.start, []) for p in ranges]
    with pytest.raises(Retryable, match="no snapshot"):
        ranges[0].api.upload_many("f1r0", 1, ranges[0].url, requests, PACKED)
    assert stored(ranges) == {}
    ranges[0].range.snapshot(1, ranges[0].version)
    ranges[0].api.upload_many("f1r0", 1, ranges[0].url, requests, PACKED)


def test_an_abort_of_one_range_stops_the_upload_of_all(ranges, key):
    fill(ranges, key, 5000)

    def abort(place):
        if place == "upload.before_object":
            ranges[0].api.notify_aborted(1)

    with failpoints.watched(abort), pytest.raises(Retryable, match="upload was stopped"):
        checkpoint(ranges, 1, UploadLimits(inline_range=0, inline_file=-1, pack=60_000))
    assert not ranges[0].api.busy()


@only_rocksdb
def test_a_snapshot_that_changed_on_disk_is_not_uploaded(ranges, key, tmp_path):
    fill(ranges, key, 5000)
    checkpoint(ranges, 1, PACKED)
    for part in ranges:
        part.range.snapshot(2, part.version)
    path = next((tmp_path / "local").rglob("ckpt/2/*.sst"))
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    requests = [UploadRequest(p.spec.uid, p.spec.start, []) for p in ranges]
    with pytest.raises(LocalDiskError, match=str(path)):
        ranges[0].api.upload_many("f1r0", 2, ranges[0].url, requests, PACKED)


class CountingStore(MemoryStore):
    """Counts reads, and answers from the store at `url`."""

    def __init__(self, url):
        super().__init__("counting")
        self.real = open_store(url)
        self.reads = 0

    def get(self, key, *, offset=0, length=None):
        self.reads += 1
        return self.real.get(key, offset=offset, length=length)

    def get_to_file(self, key, path, *, offset=0, length=None):
        self.reads += 1
        self.real.get_to_file(key, path, offset=offset, length=length)


@only_rocksdb
def test_slices_that_lie_together_are_fetched_together(ranges, key, tmp_path):
    fill(ranges, key, 5000)
    fill(ranges, key, 3000, seed=2)
    for part in ranges:
        part.read()
    uploaded = checkpoint(ranges, 1, PACKED)
    store = CountingStore(ranges[0].url)
    handle = uploaded.handles[3]
    assert len(handle.files) > 4
    (tmp_path / "target").mkdir()
    fetch_all(store, handle.files, tmp_path / "target")
    assert store.reads <= 3
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "target").iterdir()}
    assert sizes == {ref.name: ref.size for ref in handle.files}


class FlakyStore(CountingStore):
    """Its first answer has other bytes."""

    def get_to_file(self, key, path, *, offset=0, length=None):
        super().get_to_file(key, path, offset=offset, length=length)
        if self.reads == 1:
            damage(path, "flipped bytes")

    def get(self, key, *, offset=0, length=None):
        data = super().get(key, offset=offset, length=length)
        return bytes(byte ^ 1 for byte in data) if self.reads == 1 else data


def test_one_bad_read_of_a_store_does_not_condemn_a_checkpoint(ranges, key, tmp_path):
    fill(ranges, key, 3000)
    handle = checkpoint(ranges, 1, PACKED).handles[3]
    (tmp_path / "target").mkdir()
    store = FlakyStore(ranges[0].url)
    fetch_all(store, handle.files, tmp_path / "target")
    assert store.reads > 1
    assert is_whole(tmp_path / "target", handle.files)


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    path.unlink()
    if how == "cut off":
        path.write_bytes(data[: len(data) // 2])
    elif how == "flipped bytes":
        path.write_bytes(bytes(byte ^ 1 for byte in data))


@pytest.mark.parametrize("how", ["missing", "cut off", "flipped bytes"])
@pytest.mark.parametrize("shared", [True, False])
def test_a_damaged_pack_stops_the_restore_and_is_named(
    ranges, drive, key, tmp_path, small, how, shared
):
    fill(ranges, key, 5000)
    uploaded = checkpoint(ranges, 1, PACKED)
    last = uploaded.handles[-1]
    name = next(ref.key for ref in last.files if ref.shared is shared or len(last.files) == 1)
    damage(tmp_path / "store" / name, how)
    with RangeHost(tmp_path / "elsewhere", small) as other:
        moved = drive(other, 56, 63, "f2r0")
        with pytest.raises(CorruptState) as caught:
            moved.open(RestoreBase(1, last.epoch, [last]))
    assert caught.value.path.endswith(name)


def test_damaged_inline_bytes_stop_the_restore(ranges, drive, key, tmp_path, small):
    fill(ranges, key, 10)
    handle = checkpoint(ranges, 1).handles[0]
    wrong = replace(handle, files=[replace(ref, sha256="0" * 64) for ref in handle.files])
    with RangeHost(tmp_path / "elsewhere", small) as other:
        moved = drive(other, 0, 7, "f2r0")
        with pytest.raises(CorruptState, match="inline in the manifest"):
            moved.open(RestoreBase(1, handle.epoch, [wrong]))


@only_rocksdb
@pytest.mark.parametrize(
    ("place", "nth"),
    [
        *product(["upload.before_object", "upload.after_object"], [1, 2]),
        ("upload.before_part", 1),
        ("upload.after_part", 1),
    ],
)
def test_a_server_killed_while_it_uploads_loses_nothing_and_leaves_only_garbage(
    drive, key, small, tmp_path, monkeypatch, place, nth
):
    monkeypatch.setenv("MOORAGE_FAILPOINT", f"{place}:kill:{nth}")
    with ServerGroup(1, tmp_path / "servers", backend=small) as group:
        monkeypatch.delenv("MOORAGE_FAILPOINT")
        client = group.connect(0)
        part = drive(client)
        part.open()
        fill([part], key, 5000)
        part.limits = PACKED
        with client, pytest.raises(Retryable, match="does not answer"):
            part.checkpoint(1)
        left = len(stored([part]))
        assert group.ensure_alive() == [0]
        with group.connect(0) as again:
            part.api = again
            assert part.open().version == part.version
            before = part.read()
            handle = part.checkpoint(2)
    assert len(stored([part])) == left + len({ref.shared for ref in handle.files})
    with RangeHost(tmp_path / "elsewhere", small) as other:
        moved = drive(other, run="f2r0")
        moved.open(RestoreBase(2, handle.epoch, [handle]))
        assert moved.read() == before
