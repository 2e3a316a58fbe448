"""Savepoints in directories: those that another driver began, and of which another has the name."""

import hashlib
from typing import Any

import pytest
from moorage_testing.checkpointed_job import Fleet, Job
from msgspec.structs import replace

from moorage.driver.requests import SavepointRequest
from moorage.engine.fleet import FleetUpload
from moorage_state.snapshots import (
    FileRef,
    RangeHandle,
    Savepoint,
    SavepointConflict,
    SavepointStore,
    manifest_digest,
)
from moorage_state.stores import MemoryStore, open_store


@pytest.fixture
def make_filed_job(make_job, tmp_path):
    """Jobs whose savepoints are directories, with one file in each range."""

    def make(objects: MemoryStore | None = None) -> Job:
        job = make_job(
            objects=objects,
            savepoint_dir=f"file://{tmp_path}",
            savepoint_url=lambda name: f"file://{tmp_path}/{name}",
        )

        def save(_id: int, _epoch: int, url: str, *_args: Any, **more: Any) -> FleetUpload:
            more["told"](1, 2)
            job.seen = job.reporter.progress
            open_store(url).put("state/count/0-127/000001.sst", b"files of this run")
            sha = hashlib.sha256(b"files of this run").hexdigest()
            name = "000001.sst"
            file = FileRef(
                name=name, key=f"state/count/0-127/{name}", size=17, sha256=sha, shared=False
            )
            saved = Fleet.save(job.fleet, _id)
            (handle,) = saved.handles["count"]
            assert isinstance(handle, RangeHandle)
            handle = replace(handle, files=[file], bytes_total=17)
            return FleetUpload({"count": [handle]}, objects=1, bytes_written=17, bytes_inline=0)

        job.fleet.save = save
        return job

    return make


def asked(job: Job, request_id: str = "s-1") -> SavepointRequest:
    request = SavepointRequest("kept", request_id=request_id)
    job.savepoint(request)
    job.settle()
    return request


def test_what_an_ended_driver_began_is_carried_on_beside_its_files(make_filed_job, tmp_path):
    begun = SavepointStore(f"file://{tmp_path}/kept", create=True)
    assert begun.begin("s-1")
    begun.store.put("state/count/0-127/000001.sst", b"files of another")
    job = make_filed_job()
    view = asked(job).wait(0)
    assert view is not None
    manifest = begun.verify(full=True)
    assert [file.key for file in manifest.files] == ["f1r0-1/state/count/0-127/000001.sst"]
    assert begun.store.get("state/count/0-127/000001.sst") == b"files of another"
    assert view.manifest_digest == begun.digest()


def test_while_it_is_written_it_is_told_how_many_servers_have_done_so(make_filed_job):
    job = make_filed_job()
    asked(job)
    (record,) = job.seen.checkpoints
    assert (record.state, record.servers) == ("InProgress", (1, 2))
    assert job.reporter.progress.checkpoints[0].state == "Completed"


def test_a_request_that_follows_a_failed_one_carries_on_under_its_attempt(make_filed_job, tmp_path):
    begun = SavepointStore(f"file://{tmp_path}/kept", create=True)
    assert begun.begin("s-1")
    job = make_filed_job()
    request = SavepointRequest("kept", attempt="s-1", request_id="s-1.1")
    job.savepoint(request)
    job.settle()
    assert request.wait(0) is not None
    assert begun.completed_by("s-1") is not None


def test_a_savepoint_that_is_complete_is_the_answer_to_its_own_request_alone(make_filed_job):
    made = make_filed_job()
    first = asked(made).wait(0)
    assert first is not None
    job = make_filed_job(made.objects)
    again = asked(job).wait(0)
    assert again is not None
    assert (again.url, again.checkpoint_id) == (first.url, first.checkpoint_id)
    assert (again.manifest_digest, again.bytes_total) == (first.manifest_digest, 17)
    assert len(job.entries(Savepoint)) == 1
    assert job.reporter.progress.last_savepoint == again
    for other, request_id in ((job, "s-2"), (make_filed_job(), "s-1")):
        with pytest.raises(SavepointConflict, match="choose another name"):
            asked(other, request_id).wait(0)


def test_of_two_drivers_that_complete_one_savepoint_the_first_has_made_it(make_filed_job, tmp_path):
    stalled = make_filed_job()
    asked(stalled)
    # It had announced the savepoint when it fell asleep, and had not made it exist.
    place = tmp_path / "kept" / "MANIFEST"
    made = place.read_bytes()
    place.unlink()
    job = make_filed_job(stalled.objects)
    ours = job.fleet.save

    def while_it_wakes(*args: Any, **kwargs: Any) -> FleetUpload:
        saved = ours(*args, **kwargs)
        place.write_bytes(made)
        return saved

    job.commit("a")
    job.fleet.save = while_it_wakes
    view = asked(job).wait(0)
    assert view is not None
    assert view.manifest_digest == SavepointStore(view.url).digest() == manifest_digest(made)
    assert (view.checkpoint_id, view.epoch) == (1, 0)
    assert [e.checkpoint_id for e in job.entries(Savepoint)] == [1, 2]


def test_another_lineages_savepoint_is_never_taken_for_ones_own(make_filed_job, tmp_path):
    asked(make_filed_job())
    place = tmp_path / "kept" / "MANIFEST"
    made = place.read_bytes()
    place.unlink()
    job = make_filed_job()
    ours = job.fleet.save
    job.fleet.save = lambda *a, **k: (ours(*a, **k), place.write_bytes(made))[0]
    with pytest.raises(SavepointConflict):
        asked(job).wait(0)
