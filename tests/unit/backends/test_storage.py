"""Checkpoint storage: streams, where they go, and finding a snapshot again."""

import threading
from pathlib import Path

import pytest

from moorage_state.errors import CorruptState, ObjectNotFound, StoreUnavailable, UserError
from moorage_state.state_backends import (
    DriverCheckpointStorage,
    FilesystemCheckpointStorage,
    HashMapStateBackend,
    SnapshotCanceled,
    StateSizeExceeded,
    resolve_checkpoint,
)
from moorage_state.stores import LocalStore


@pytest.fixture
def storage(tmp_path):
    return FilesystemCheckpointStorage(str(tmp_path / "ck"), str(tmp_path / "sp"), inline_bytes=10)


@pytest.fixture
def factory(storage):
    return storage.create_access("job").location_for_checkpoint(3).stream_factory()


@pytest.fixture
def driver():
    yield DriverCheckpointStorage(100).create_access("job").location_for_checkpoint(3)
    DriverCheckpointStorage.forget("job")


def files(path):
    return [str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()]


def test_few_bytes_stay_in_the_handle_and_more_go_into_an_object(factory, tmp_path):
    for text, there in ((b"1234567890", 0), (b"1234567890x", 1)):
        with factory.create_checkpoint_state_output_stream() as stream:
            stream.write(text[:4])
            stream.flush()
            stream.write(memoryview(text)[4:])
            assert stream.tell() == len(text)
            handle = stream.close_and_get_handle()
        assert handle.read() == text
        assert (handle.read(2, 3), handle.size) == (text[2:5], len(text))
        assert len(files(tmp_path)) == there
    assert files(tmp_path)[0].startswith("ck/job/chk-3/")
    handle.discard()
    handle.discard()
    assert files(tmp_path) == []
    with pytest.raises(ObjectNotFound):
        handle.read()


def test_an_empty_stream_has_no_handle(factory, driver):
    for one in (factory, driver.stream_factory()):
        with one.create_checkpoint_state_output_stream() as stream:
            assert stream.close_and_get_handle() is None


@pytest.mark.parametrize("size", [5, 50])
def test_a_stream_that_is_closed_without_its_handle_leaves_nothing(factory, tmp_path, size):
    stream = factory.create_checkpoint_state_output_stream()
    stream.write(bytes(size))
    stream.close()
    stream.close()
    with pytest.raises(SnapshotCanceled):
        stream.write(b"more")
    with pytest.raises(SnapshotCanceled):
        stream.close_and_get_handle()
    assert files(tmp_path) == []


def test_a_close_amid_the_put_wins_and_the_object_goes(factory, tmp_path, monkeypatch):
    stream = factory.create_checkpoint_state_output_stream()
    stream.write(bytes(50))
    real = LocalStore.put_file

    def put_and_close(self, key, path):
        real(self, key, path)
        closer = threading.Thread(target=stream.close)
        closer.start()
        closer.join(30)

    monkeypatch.setattr(LocalStore, "put_file", put_and_close)
    with pytest.raises(SnapshotCanceled):
        stream.close_and_get_handle()
    assert files(tmp_path) == []


def test_bytes_that_changed_are_not_given_out(factory, tmp_path):
    with factory.create_checkpoint_state_output_stream() as stream:
        stream.write(bytes(50))
        handle = stream.close_and_get_handle()
    path = tmp_path / files(tmp_path)[0]
    path.write_bytes(b"\1" + bytes(49))
    with pytest.raises(CorruptState, match=r"not what was written: path=file://"):
        handle.read()
    with pytest.raises(CorruptState, match="outside of its stream"):
        handle.read(40, 20)


def test_the_driver_keeps_so_many_bytes_of_a_subtask_in_all_its_streams(driver):
    factory = driver.stream_factory()
    with factory.create_checkpoint_state_output_stream() as one:
        one.write(bytes(60))
        assert one.close_and_get_handle().data == bytes(60)
    with factory.create_checkpoint_state_output_stream() as other:
        other.write(bytes(40))
        with pytest.raises(StateSizeExceeded, match=r"size=101 maximum=100 setting=state\."):
            other.write(b"x")
    another_subtask = driver.stream_factory()
    another_subtask.create_checkpoint_state_output_stream().write(bytes(100))


def test_the_default_of_the_driver_is_5_mib():
    assert DriverCheckpointStorage().max_state_bytes == 5 * 1024 * 1024


@pytest.mark.parametrize("end", ["", "/", "/_metadata"])
def test_a_snapshot_is_found_by_its_directory_or_its_document(storage, end):
    location = storage.create_access("job").location_for_checkpoint(3)
    location.write_metadata(b"document")
    found = HashMapStateBackend().resolve_checkpoint(location.pointer + end)
    assert found.read_metadata() == b"document"
    assert found.pointer == location.pointer


def test_a_checkpoint_with_the_driver_is_found_within_the_process(driver):
    driver.write_metadata(b"document")
    assert resolve_checkpoint(driver.pointer).read_metadata() == b"document"


def test_checkpoints_and_savepoints_of_a_lineage_are_found_too(tmp_path):
    for name in ("chk-7", "my-savepoint"):
        directory = tmp_path / name
        directory.mkdir()
        (directory / "MANIFEST").write_bytes(b"manifest")
        found = resolve_checkpoint(str(directory))
        assert (found.metadata, found.read_metadata()) == ("MANIFEST", b"manifest")
        with pytest.raises(UserError, match=r"spec\.checkpoint\.retain"):
            found.dispose()


@pytest.mark.parametrize("name", ["chk-9", "no/such/place"])
def test_where_nothing_is_the_pointer_is_named(storage, tmp_path, name):
    storage.create_access("job").location_for_checkpoint(3).write_metadata(b"document")
    pointer = f"file://{tmp_path}/ck/job/{name}"
    with pytest.raises(UserError, match=name):
        resolve_checkpoint(pointer)


def test_a_snapshot_is_written_once(storage):
    location = storage.create_access("job").location_for_checkpoint(3)
    location.write_metadata(b"document")
    with pytest.raises(UserError, match="nothing was written over"):
        location.write_metadata(b"another")
    assert location.read_metadata() == b"document"


def test_a_snapshot_is_written_again_where_it_is_not_known_that_it_was(storage, monkeypatch):
    location = storage.create_access("job").location_for_checkpoint(3)
    real = LocalStore.put_if_absent

    def reply_lost(self, key, data):
        real(self, key, data)
        raise StoreUnavailable("no reply")

    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "put_if_absent", reply_lost)
        with pytest.raises(StoreUnavailable):
            location.write_metadata(b"document")
    location.write_metadata(b"document")
    assert location.read_metadata() == b"document"


def test_disposing_deletes_what_is_the_snapshots_own(storage, tmp_path):
    access = storage.create_access("job")
    for number in (1, 11):
        location = access.location_for_checkpoint(number)
        with location.stream_factory().create_checkpoint_state_output_stream() as stream:
            stream.write(bytes(50))
            stream.close_and_get_handle()
        location.write_metadata(b"document")
    access.location_for_checkpoint(1).dispose()
    assert {Path(name).parts[2] for name in files(tmp_path)} == {"chk-11"}


def test_savepoints_go_into_directories_of_their_own(storage, tmp_path):
    access = storage.create_access("job")
    one, other = access.location_for_savepoint(), access.location_for_savepoint()
    assert one.pointer != other.pointer
    assert one.pointer.startswith(f"file://{tmp_path}/sp/savepoint-job-")
    mine = access.location_for_savepoint(str(tmp_path / "mine"))
    assert mine.pointer.startswith(f"file://{tmp_path}/mine/savepoint-job-")
    with pytest.raises(UserError, match=r"setting=state\.savepoints\.dir"):
        DriverCheckpointStorage().create_access("job").location_for_savepoint()


def test_a_job_id_that_is_no_name_is_refused(storage):
    with pytest.raises(UserError, match=r"job_id='\.\./x'"):
        storage.create_access("../x")
