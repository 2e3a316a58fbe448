"""Checkpoints of many ranges on few servers: what they cost, and that they are whole."""

import random

import pytest
from moorage_testing.parts import handles_in

from moorage.driver.local import LocalServers
from moorage.engine.fleet import RangeFleet
from moorage_state.deltas import encode_frame
from moorage_state.errors import StateSizeExceeded
from moorage_state.rocks import RocksOptions
from moorage_state.server import ServerGroup
from moorage_state.snapshots import MAX_INLINE_BYTES, worn_packs
from moorage_state.state_backends import EmbeddedRocksDBStateBackend
from moorage_state.stores import open_store

MIB = 1 << 20
SMALL = EmbeddedRocksDBStateBackend(
    tuned=RocksOptions(
        block_cache_bytes=16 * MIB, write_buffers_bytes=16 * MIB, write_buffer_bytes=MIB
    )
)


class Job:
    """An operator of many subtasks, each with one entry per subtask in `state`."""

    def __init__(self, folder, store, ranges, **limits):
        self.url = f"file://{store}"
        self.servers = ServerGroup(2, folder, backend=SMALL)
        self.fleet = RangeFleet(
            LocalServers(self.servers), ["counts"], ranges, ranges, self.url, **limits
        )
        self.clients = {a: self.servers.connect(i) for i, a in enumerate(self.servers.addresses)}
        self.epoch = 0

    def open(self, run, epoch=0, handles=None, checkpoint_id=0):
        self.epoch = epoch
        return self.fleet.open(run, epoch, handles or {}, checkpoint_id)

    def write(self, values):
        """An epoch in which these subtasks get these values."""
        self.epoch += 1
        digests = {}
        for subtask, at in enumerate(self.fleet.leased("counts")):
            keys = [key_of(subtask)] if subtask in values else []
            frame = encode_frame([], keys, [values[subtask] for _ in keys])
            opened = self.clients[at.door.address].range(at.lease)
            opened.stage(self.epoch, "a", frame, 0)
            prepared = opened.prepare(self.epoch, "a", at.version.digest, 1)
            digests["counts", subtask] = prepared.digest
        self.fleet.commit(self.epoch, digests)

    def read(self):
        found = {}
        for subtask, at in enumerate(self.fleet.leased("counts")):
            opened, keys = self.clients[at.door.address].range(at.lease), [key_of(subtask)]
            (value,) = opened.get_many(at.version, keys)
            if value is not None:
                found[subtask] = value
        return found

    def checkpoint(self, checkpoint_id, base):
        self.fleet.snapshot(checkpoint_id)
        upload = self.fleet.upload(checkpoint_id, base)
        self.fleet.complete(checkpoint_id, self.epoch, upload.handles)
        return upload

    def objects(self):
        return {info.key: info.size for info in open_store(self.url).list("")}

    def close(self):
        for client in self.clients.values():
            client.close()
        self.fleet.close()
        self.servers.close()


def key_of(subtask):
    return subtask.to_bytes(2, "big") + b"\x01" + b"only"


@pytest.fixture
def new_job(tmp_path):
    made = []
    (tmp_path / "store").mkdir()

    def new(name, ranges, **limits):
        made.append(Job(tmp_path / name, tmp_path / "store", ranges, **limits))
        return made[-1]

    yield new
    for job in made:
        job.close()


def test_a_run_goes_on_from_what_a_run_of_another_lineage_left_that_had_its_token(new_job):
    one, other = new_job("one", 2), new_job("other", 2)
    one.open("f1r0")
    one.write({0: b"zero"})
    taken = one.checkpoint(1, {})
    other.open("f1r0", one.epoch, taken.handles, 1)
    other.write({1: b"one"})
    assert other.read() == {0: b"zero", 1: b"one"}


def test_two_hundred_ranges_cost_a_handful_of_objects_and_an_increment_only_what_is_new(new_job):
    job, rng = new_job("one", 200), random.Random(1)
    job.open("f1r0")
    state = {subtask: rng.randbytes(30_000) for subtask in range(200)}
    job.write(state)
    first = job.checkpoint(1, {})
    before = job.objects()
    assert first.objects == len(before) < 20
    packed = sum(size for key, size in before.items() if "/part-" not in key)
    assert first.bytes_written == packed > 200 * 30_000
    assert first.bytes_inline <= MAX_INLINE_BYTES

    touched = {subtask: rng.randbytes(30_000) for subtask in (3, 118)}
    job.write(touched)
    second = job.checkpoint(2, first.handles)
    new = {key: size for key, size in job.objects().items() if key not in before}
    # Of each server a pack of tables, one of other files, and the part.
    assert second.objects == len(new) <= 6
    assert second.bytes_written == sum(size for key, size in new.items() if "/part-" not in key)
    # Beside the touched ranges, every range has a table of about 1 kB that holds its new version.
    assert second.bytes_written < first.bytes_written / 10

    other = new_job("other", 200)
    results = other.open("f2r0", job.epoch, second.handles, 2)
    assert {result.source for result in results} == {"store"}
    assert other.read() == state | touched


def test_what_the_driver_keeps_travels_with_the_acknowledgement_and_restores_without_a_store(
    new_job,
):
    job, rng = new_job("one", 8, max_state_size=1 << 20), random.Random(1)
    job.open("f1r0")
    state = {subtask: rng.randbytes(100_000) for subtask in range(8)}
    job.write(state)
    first = job.checkpoint(1, {})
    # In the part of each server, and nowhere else.
    assert len(job.objects()) == first.objects == len(first.parts) == 2
    assert first.bytes_written == 0
    assert first.bytes_inline > 8 * 100_000
    # The next one keeps all of it again: nothing of it can be referenced.
    second = job.checkpoint(2, first.handles)
    assert (len(job.objects()), second.bytes_inline) == (4, first.bytes_inline)

    other = new_job("other", 8)
    other.open("f2r0", job.epoch, second.handles, 2)
    assert other.read() == state
    assert other.checkpoint(3, second.handles).objects > 0


def test_an_upload_tells_what_each_server_wrote_of_it(new_job):
    job, rng = new_job("one", 4), random.Random(1)
    job.open("f1r0")
    job.write({subtask: rng.randbytes(300_000) for subtask in range(4)})
    upload = job.checkpoint(1, {})
    assert [share.place for share in upload.shares] == sorted(job.clients)
    assert sum(share.objects for share in upload.shares) == upload.objects
    written = sum(share.bytes_written for share in upload.shares)
    assert written == upload.bytes_written + upload.bytes_inline
    ranges = sorted(one for share in upload.shares for one in share.ranges)
    assert [(uid, start) for uid, start, _ in ranges] == [("counts", i) for i in range(4)]
    assert sum(size for *_, size in ranges) == upload.bytes_total


def test_what_the_driver_cannot_keep_is_refused_before_anything_is_sent(new_job):
    job, rng = new_job("one", 10, max_state_size=1 << 20), random.Random(1)
    job.open("f1r0")
    job.write({subtask: rng.randbytes(900_000) for subtask in range(10)})
    job.fleet.snapshot(1)
    with pytest.raises(StateSizeExceeded, match=rf"maximum={MAX_INLINE_BYTES} subtasks=5 largest"):
        job.fleet.upload(1, {})
    assert job.objects() == {}
    job = new_job("other", 10, max_state_size=1 << 20)
    job.open("f2r0")
    job.write({4: rng.randbytes(1_200_000)})
    job.fleet.snapshot(2)
    with pytest.raises(StateSizeExceeded, match=r"operator=counts key_groups=4-4 size=\d{7} max"):
        job.fleet.upload(2, {})


def tables(handles):
    return {file.key for handle in handles for file in handle.files if file.shared and file.key}


@pytest.mark.parametrize(("referenced", "reused"), [(12, True), (6, False)])
def test_what_is_left_of_a_worn_pack_moves_into_the_next_one(new_job, referenced, reused):
    job, rng = new_job("one", 16), random.Random(1)
    job.open("f1r0")
    job.write({subtask: rng.randbytes(30_000) for subtask in range(16)})
    first = handles_in(job.url, job.checkpoint(1, {}).handles)["counts"]
    base = sorted(first, key=lambda handle: handle.start)[:referenced]
    assert bool(worn_packs(file for one in base for file in one.files)) is not reused
    job.write({})
    second = handles_in(job.url, job.checkpoint(2, {"counts": base}).handles)["counts"]
    assert bool(tables(second) & tables(first)) is reused


def test_a_range_of_another_parallelism_builds_on_the_handles_it_came_from(new_job):
    job, rng = new_job("one", 16), random.Random(1)
    job.open("f1r0")
    state = {subtask: rng.randbytes(300_000) for subtask in range(16)}
    job.write(state)
    first = job.checkpoint(1, {})
    fleet = RangeFleet(LocalServers(job.servers), ["counts"], 2, 16, job.url)
    fleet.open("f2r0", job.epoch, first.handles, 1)
    fleet.snapshot(2)
    second = fleet.upload(2, first.handles)
    fleet.close()
    assert second.bytes_written < first.bytes_written
    one, other = (handles_in(job.url, upload.handles)["counts"] for upload in (first, second))
    assert tables(one) & tables(other)
