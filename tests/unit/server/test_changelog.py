"""Checkpoints that list what was materialized before, and the deltas since."""

import errno
import random
from pathlib import Path
from typing import Any

import pytest
from moorage_testing.lives import Table

from moorage_state.canonicalspec import CanonicalSpec
from moorage_state.errors import CorruptState, LocalDiskError
from moorage_state.server import RangeHost, RestoreBase, UploadLimits, uploads
from moorage_state.server.client import LONG_OPERATIONS
from moorage_state.server.local_files import FileHashes, RangeDirectory, Snapshots
from moorage_state.server.operations import RangeSpec, StateApi, Version
from moorage_state.server.range_log import RangeLog
from moorage_state.snapshots import FileRef, Materialized, RangeHandle
from moorage_state.snapshots.object_keys import pack_size
from moorage_state.stores import MemoryStore


@pytest.fixture
def op(host, drive):
    op = drive(host)
    op.limits = UploadLimits()
    op.open()
    return op


def write(op, key, epochs=1, size=100):
    """Some writes, deletions and deleted ranges in every epoch."""
    for _ in range(epochs):
        seed = random.Random(f"{op.spec.start} {op.version.epoch}")
        span = op.spec.end - op.spec.start + 1
        low, high = op.spec.start, op.spec.end + 1
        some = [key(low + seed.randrange(span), seed.randrange(20)) for _ in range(40)]
        writes = {one: seed.randbytes(size) if seed.random() < 0.8 else None for one in some}
        begin = low + seed.randrange(span)
        ranges = [(key(begin, 3), min(key(begin + 1, 0), high.to_bytes(2, "big")))]
        op.epoch(writes, ranges)


def materialize(op, checkpoint_id):
    ranges = [RangeSpec(op.spec.uid, op.spec.start, op.spec.end)]
    return op.api.materialize_many(op.run, checkpoint_id, op.url, ranges, UploadLimits())


def local(op, tmp_path):
    root = next(tmp_path.glob(f"local*/ranges/{op.spec.uid}/{op.spec.start}-{op.spec.end}"))
    deltas = [p.name for p in [*root.glob("deltas/*/*.delta"), *root.glob("log/*.delta")]]
    return sorted(int(name[:20]) for name in deltas), sorted(p.name for p in root.glob("ckpt/*"))


def objects(op):
    root = Path(op.url.removeprefix("file://"))
    return {str(p.relative_to(root)): p.stat().st_size for p in root.rglob("*") if p.is_file()}


def test_the_first_checkpoint_is_a_copy_and_the_next_ones_list_deltas(op, key, tmp_path):
    write(op, key, 2)
    first = op.log(1)
    assert first.logged is None
    assert all(file.shared and file.inline is None for file in first.files if file.size)
    write(op, key, 3)
    before = objects(op)
    second = op.log(2)
    assert second.logged == Materialized(checkpoint_id=1, epoch=2, digest=first.digest)
    assert [int(file.name[:20]) for file in second.deltas] == [3, 4, 5]
    # One object for all deltas of a server, and its part.
    assert len(objects(op).keys() - before.keys()) == 2
    write(op, key)
    third = op.log(3)
    assert third.database_files == second.database_files
    assert third.deltas[:3] == second.deltas
    assert local(op, tmp_path) == ([3, 4, 5, 6], ["1"])


@pytest.mark.parametrize("where", ["on this volume", "from the store"])
def test_a_restore_replays_the_deltas_and_the_next_checkpoint_goes_on_from_there(
    op, key, drive, tmp_path, small, where
):
    write(op, key, 2)
    op.log(1)
    write(op, key, 3)
    op.log(2)
    expected = op.read()
    write(op, key)  # no checkpoint has it
    op.api.release_range(op.lease)
    with RangeHost(tmp_path / ("local" if where == "on this volume" else "local2"), small) as host:
        again = drive(host, run="f2r0")
        opened = again.open(op.base)
        assert opened.source == ("local" if where == "on this volume" else "store")
        assert again.version == Version(5, "")
        assert again.read() == expected
        write(again, key, 2)
        handle = again.log(3)
        assert [int(file.name[:20]) for file in handle.deltas] == [3, 4, 5, 6, 7]
        third = again.read()
    with RangeHost(tmp_path / "local3", small) as host:
        last = drive(host, run="f3r0")
        last.open(again.base)
        assert last.read() == third


def test_a_server_that_comes_back_goes_on_with_its_log(tmp_path, drive, key, small):
    with RangeHost(tmp_path / "local", small) as host:
        op = drive(host)
        op.open()
        write(op, key, 2)
        op.log(1)
        write(op, key, 2)
        op.log(2)
        write(op, key)
        expected = op.read()
    with RangeHost(tmp_path / "local", small) as op.api:
        opened = op.open()
        assert (opened.source, op.read()) == ("local", expected)
        write(op, key)
        handle = op.log(3)
        assert [int(file.name[:20]) for file in handle.deltas] == [3, 4, 5, 6]
        assert op.version.digest == handle.digest


def test_what_is_materialized_takes_the_place_of_the_deltas_before_it(op, key, tmp_path):
    write(op, key, 2)
    op.log(1)
    write(op, key, 2)
    op.log(2, "log and copy")
    write(op, key)
    assert materialize(op, 2).bytes_written > 0
    # Nothing is dropped before a checkpoint that begins with it exists.
    assert local(op, tmp_path) == ([3, 4, 5], ["1", "2"])
    handle = op.log(3)
    assert (handle.logged.checkpoint_id, handle.logged.epoch) == (2, 4)
    assert [int(file.name[:20]) for file in handle.deltas] == [5]
    assert local(op, tmp_path) == ([5], ["2"])
    expected = op.read()
    op.open(run="f2r0")
    assert op.read() == expected


def test_what_is_materialized_builds_on_no_more_small_packs_than_a_checkpoint(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(uploads, "MOST_SMALL_PACKS", 1)
    spec, store = RangeSpec("op", 0, 1), MemoryStore("packs")
    directory = RangeDirectory(tmp_path, spec)
    directory.checkpoints.mkdir(parents=True)
    snapshots = Snapshots(spec, directory, "b", FileHashes())
    table: Any = Table(tmp_path / "work")

    def take(number):
        table.changes[f"{number}"] = "x" * 1000
        snapshots.take(table, number, Version(number, ""))
        return number, store, UploadLimits()

    files: list[FileRef] = []
    for number in (1, 2):
        work = [uploads.UploadPart(snapshots, files)]
        (base,) = uploads.upload(work, "f1r0", *take(number), copies=True).handles
        files = base.files
    assert len({file.key for file in files if pack_size(file.key)}) == 2
    snapshots.begin_log().restored(base, 2)
    uploads.materialize([snapshots], "f1r0", *take(3))
    newest = snapshots.begin_log()._newest()
    assert newest is not None
    after = {file.key for file in newest.files}
    assert len(after) == 1
    assert not after & {file.key for file in files}


def test_a_copy_that_is_on_its_way_stays_through_checkpoints_and_one_of_a_savepoint_does_not(
    op, key, tmp_path
):
    write(op, key, 2)
    op.log(1)
    write(op, key)
    op.range.snapshot(2, op.version)
    spec = CanonicalSpec(
        uid=op.spec.uid,
        start=op.spec.start,
        end=op.spec.end,
        epoch=3,
        max_parallelism=64,
        key_types=("bigint",),
        states=(),
    )
    place = tmp_path / "point"
    place.mkdir()
    op.api.save_many(op.run, 2, f"file://{place}", [spec], False)
    # Nobody could be told that it was taken.
    write(op, key)
    op.log(3, "log and copy")
    assert "2" not in local(op, tmp_path)[1]
    write(op, key)
    op.log(4)
    assert materialize(op, 3).bytes_written > 0
    op.log(5)
    assert local(op, tmp_path)[1] == ["3"]


def test_what_an_aborted_checkpoint_was_the_first_to_list_no_later_one_lists(op, key):
    write(op, key, 2)
    op.log(1)
    write(op, key, 2)
    op.log(2, "log and copy")
    materialize(op, 2)
    write(op, key)
    op.begin(3)
    lost = op.upload(3)
    assert lost.logged.checkpoint_id == 2
    op.api.notify_aborted(3)
    handle = op.log(4)
    assert handle.logged.checkpoint_id == 1
    given_up = {lost.deltas[-1].key, *(file.key for file in lost.database_files)}
    of_before = {file.key for file in handle.database_files}
    assert not {file.key for file in handle.files} & (given_up - of_before)


def test_a_copy_that_failed_elsewhere_is_not_begun_with_here(op, key, tmp_path):
    write(op, key, 2)
    op.log(1)
    write(op, key, 2)
    op.log(2, "log and copy")
    assert materialize(op, 2).bytes_written > 0
    # Another server could not bring its part to the store.
    op.api.notify_aborted(2)
    write(op, key)
    handle = op.log(3)
    assert handle.logged.checkpoint_id == 1
    assert [int(file.name[:20]) for file in handle.deltas] == [3, 4, 5]
    assert local(op, tmp_path) == ([3, 4, 5], ["1"])


def test_a_completion_that_is_told_again_drops_nothing_more(op, key, tmp_path):
    write(op, key, 2)
    op.log(1)
    for number in (2, 3):
        write(op, key)
        op.log(number, "log and copy" if number == 2 else "log")
    kept = local(op, tmp_path)
    assert (kept[0], "1" in kept[1]) == ([3, 4], True)
    # Of the newest, and late ones of those before.
    for number in (3, 2, 1):
        op.api.notify_complete(number)
        assert local(op, tmp_path) == kept


def test_deltas_that_cannot_be_dropped_are_told_as_the_volumes_fault(op, key, monkeypatch):
    write(op, key, 2)
    op.log(1)
    write(op, key)
    op.log(2)
    op.open(run="f2r0")
    write(op, key)

    def refused(_path, **_options):
        raise OSError(errno.EIO, "input/output error")

    op.range.snapshot(3, op.version, "log")
    op.upload(3)
    monkeypatch.setattr(Path, "unlink", refused)
    with pytest.raises(LocalDiskError, match="drop deltas of before"):
        op.api.notify_complete(3)


def test_a_range_opened_again_while_a_checkpoint_was_finished_lists_nothing_that_went_with_it(
    op, key
):
    write(op, key, 2)
    op.log(1)
    write(op, key, 2)
    second = op.log(2, "log and copy")
    materialize(op, 2)
    write(op, key)
    op.begin(3)
    third = op.upload(3)
    assert third.logged.checkpoint_id == 2
    # Its server restarts before the manifest is written: the second one is the newest then.
    op.api.release_range(op.lease)
    op.open()
    op.finished(3, third)
    write(op, key)
    listed = {file.key for file in op.log(4).files}
    # What only the first two reference is deleted with them.
    gone = {file.key for file in second.files} - {file.key for file in third.files}
    assert gone
    assert not listed & gone


def test_where_nobody_told_how_a_checkpoint_ended_the_next_one_is_a_copy(op, key):
    write(op, key, 2)
    op.log(1)
    write(op, key)
    op.begin(2)
    op.upload(2)
    write(op, key)
    assert op.log(3).logged is None
    write(op, key)
    assert op.log(4).logged.checkpoint_id == 3


def test_a_snapshot_that_is_asked_for_again_lists_the_same(op, key):
    write(op, key, 2)
    op.log(1)
    write(op, key)
    op.begin(2)
    op.begin(2)
    assert [int(file.name[:20]) for file in op.finish(2).deltas] == [3]


def test_an_upload_that_is_asked_for_again_lists_each_delta_once(op, key):
    write(op, key, 2)
    op.log(1)
    write(op, key, 2)
    op.begin(2)
    first = op.upload(2)
    assert op.finish(2).deltas == first.deltas
    assert [int(file.name[:20]) for file in first.deltas] == [3, 4]


def test_whatever_moves_files_to_the_store_may_take_as_long_as_the_store():
    operations = vars(StateApi).items()
    asked = {n for n, one in operations if "store_url" in getattr(one, "__annotations__", {})}
    assert {"upload_many", "persist_many", "materialize_many"} <= asked & LONG_OPERATIONS


def test_a_log_is_switched_off_and_on_again(op, key):
    write(op, key, 2)
    op.log(1)
    write(op, key)
    op.log(2)
    expected = op.read()
    op.open(run="f2r0")
    handle = op.checkpoint(3)
    assert handle.logged is None
    op.open(run="f3r0")
    assert op.read() == expected
    # What belongs to one checkpoint alone is no beginning of a log.
    assert op.log(4).logged is None
    write(op, key)
    assert op.log(5).logged.checkpoint_id == 4


def test_a_log_that_may_not_build_on_what_was_restored_begins_anew(op, key):
    write(op, key, 2)
    op.log(1)
    op.base = RestoreBase(1, 2, op.base.handles)
    op.open(run="f2r0")
    write(op, key)
    assert op.log(2).logged is None


@pytest.mark.parametrize("local_too", [True, False])
def test_a_log_is_split_and_joined_at_another_parallelism(
    op, key, drive, tmp_path, small, local_too
):
    write(op, key, 2)
    op.log(1)
    write(op, key, 3)
    op.log(2)
    expected = op.read()
    op.api.release_range(op.lease)
    with RangeHost(tmp_path / ("local" if local_too else "elsewhere"), small) as other:
        ranges = [(0, 20), (21, 41), (42, 63)]
        three = [drive(other, a, b, run="f2r0") for a, b in ranges]
        for one in three:
            one.open(op.base)
        assert {k: v for one in three for k, v in one.read().items()} == expected
        for one in three:
            write(one, key, 1)
            assert one.log(3).logged is None
            write(one, key, 2)
        handles = [one.log(4) for one in three]
        assert all(handle.logged for handle in handles)
        expected = {k: v for one in three for k, v in one.read().items()}
    with RangeHost(tmp_path / "last", small) as other:
        two = [drive(other, a, b, run="f3r0") for a, b in [(0, 31), (32, 63)]]
        for one in two:
            one.open(RestoreBase(4, 8, handles, builds=True))
        assert {k: v for one in two for k, v in one.read().items()} == expected


@pytest.mark.parametrize("kind", ["flipped byte", "missing"])
def test_a_damaged_delta_in_the_store_stops_the_restore_and_is_named(
    op, key, drive, tmp_path, small, kind
):
    write(op, key, 2)
    op.log(1)
    write(op, key, 2)
    ref = op.log(2).deltas[1]
    path = Path(op.url.removeprefix("file://")) / ref.key
    data = bytearray(path.read_bytes())
    data[ref.offset + ref.size // 2] ^= 1
    path.unlink()
    if kind == "flipped byte":
        path.write_bytes(data)
    with (
        RangeHost(tmp_path / "elsewhere", small) as host,
        pytest.raises(CorruptState) as caught,
    ):
        drive(host, run="f2r0").open(op.base)
    assert ref.key in caught.value.path


@pytest.mark.parametrize("kind", ["flipped byte", "torn", "missing"])
@pytest.mark.parametrize("uploads", ["with a checkpoint", "ahead"])
def test_a_delta_that_is_damaged_before_its_upload_is_never_listed(
    op, key, drive, tmp_path, small, kind, uploads
):
    write(op, key, 2)
    op.log(1)
    write(op, key, 2)
    expected = op.read()
    path = next(tmp_path.glob("local/ranges/*/*/deltas/*/*3-*.delta"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    if kind != "missing":
        path.write_bytes(data if kind == "flipped byte" else data[:-9])
    op.begin(2)
    upload = ahead if uploads == "ahead" else lambda op: op.upload(2)
    with pytest.raises(LocalDiskError, match="a committed delta cannot be uploaded"):
        upload(op)
    op.api.notify_aborted(2)
    assert op.log(3).logged is None
    with RangeHost(tmp_path / "elsewhere", small) as host:
        again = drive(host, run="f2r0")
        again.open(op.base)
        assert again.read() == expected


def test_a_damaged_delta_on_the_volume_is_fetched_again(op, key, tmp_path):
    write(op, key, 2)
    op.log(1)
    write(op, key, 2)
    op.log(2)
    expected = op.read()
    op.api.release_range(op.lease)
    path = next(tmp_path.glob("local/ranges/*/*/deltas/*/*4-*.delta"))
    path.write_bytes(path.read_bytes()[:-3])
    assert op.open(run="f2r0").source == "store"
    assert op.read() == expected


def begins_with(log: RangeLog, checkpoint_id: int) -> int:
    listing = log.listing(checkpoint_id)
    assert listing is not None
    assert listing.base is not None
    return listing.base.materialized.checkpoint_id


def test_what_was_materialized_long_ago_and_never_listed_is_not_listed():
    now = [0.0]
    log = RangeLog(lambda: now[0])
    file = FileRef(name="1.sst", key="shared/a", size=1, sha256="0" * 64, shared=True)
    handle = RangeHandle(
        uid="a", start=0, end=1, epoch=1, digest="", backend_uuid="b", files=[file], bytes_total=1
    )
    log.restored(handle, 1)
    on, _ = log.materializing()
    log.materialized(2, Version(1, ""), [file], on)
    assert log.begin(3, Version(1, ""), {}, 1)
    assert begins_with(log, 3) == 2
    log.aborted(3)
    log.materialized(4, Version(1, ""), [file], on)
    now[0] += 7 * 3600
    assert log.begin(5, Version(1, ""), {}, 1)
    assert begins_with(log, 5) == 1


def test_a_copy_that_arrives_after_it_was_given_up_is_not_listed():
    log = RangeLog(lambda: 0.0)
    file = FileRef(name="1.sst", key="shared/a", size=1, sha256="0" * 64, shared=True)
    handle = RangeHandle(
        uid="a", start=0, end=1, epoch=1, digest="", backend_uuid="b", files=[file], bytes_total=1
    )
    log.restored(handle, 1)
    on, _ = log.materializing()
    log.aborted(2)
    log.materialized(2, Version(1, ""), [file], on)
    assert log.begin(3, Version(1, ""), {}, 1)
    assert begins_with(log, 3) == 1


def ahead(op, least_bytes=1):
    ranges = [RangeSpec(op.spec.uid, op.spec.start, op.spec.end)]
    return op.api.persist_many(op.run, op.url, ranges, UploadLimits(), least_bytes)


def test_deltas_that_were_uploaded_ahead_are_not_uploaded_with_the_checkpoint(op, key):
    write(op, key, 2)
    assert ahead(op).objects == 0  # nothing lists deltas yet
    op.log(1)
    write(op, key, 3)
    assert ahead(op, 1 << 30).objects == 0
    assert ahead(op).objects == 1
    assert ahead(op).objects == 0
    before = objects(op)
    op.log(2)
    assert [name.partition("/")[0] for name in objects(op).keys() - before.keys()] == ["chk-2"]
    expected = op.read()
    op.open(run="f2r0")
    assert op.read() == expected


def test_what_was_uploaded_ahead_and_an_aborted_checkpoint_listed_is_uploaded_again(op, key):
    write(op, key, 2)
    op.log(1)
    write(op, key, 2)
    ahead(op)
    op.begin(2)
    given_up = {file.key for file in op.upload(2).deltas}
    op.api.notify_aborted(2)
    assert not {file.key for file in op.log(3).deltas} & given_up


def test_a_log_crosses_the_wire(servers, drive, key):
    with servers.connect(0) as client:
        op = drive(client)
        op.open()
        write(op, key)
        op.log(1)
        write(op, key)
        written = ahead(op)
        assert (written.objects, written.attempts) == (1, 1)
        op.log(2, "log and copy")
        materialize(op, 2)
        write(op, key)
        assert op.log(3).logged.checkpoint_id == 2
