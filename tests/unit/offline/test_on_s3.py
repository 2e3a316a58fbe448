"""The same tools on a bucket of a real S3 server, whose addresses end in options."""

import shutil
from datetime import timedelta
from pathlib import Path

import pytest

from moorage.offline.garbage import collect
from moorage.offline.listing import list_snapshots
from moorage.offline.lookup import SnapshotDirectories, find
from moorage.offline.savepoint_copy import copy
from moorage.offline.state_queries import get
from moorage.offline.verification import verify
from moorage.state import locate
from moorage_state.errors import UserError
from moorage_state.stores import LocalStore, S3Store
from moorage_state.stores.addresses import child


@pytest.fixture
def bucket(s3_store: S3Store, directory: Path) -> S3Store:
    """The checkpoint directory `chks` of a job, in a bucket."""
    store = S3Store.at(child(s3_store.url, "chks"))
    for info in LocalStore(directory).list(""):
        store.put_file(info.key, directory / info.key)
    return store


def quiet(_more: int, _total: int) -> None:
    pass


def test_a_checkpoint_goes_from_a_bucket_to_another_place_and_back(
    s3_store, bucket, directory, tmp_path, now
):
    saves = child(s3_store.url, "saves")
    found = find(child(bucket.url, "chk-3"))
    copy(found, child(saves, "sp-1"), full=True, progress=quiet)
    copy(find(child(saves, "sp-1")), str(tmp_path / "sp-2"), progress=quiet)
    shutil.rmtree(directory)
    listed = list_snapshots(SnapshotDirectories(bucket.url, saves), now)
    assert [row.path for row in listed.checkpoints] == ["chk-2", "chk-3"]
    assert [(row.name, row.standing) for row in listed.savepoints] == [("sp-1", "completed")]
    assert verify(bucket.url, full=True).damage == ()
    for place in (bucket.url, child(saves, "sp-1"), str(tmp_path / "sp-2")):
        assert get(find(place), "visits/visit", "user-3").value["note"] == "again"


def test_a_checkpoint_in_a_bucket_has_an_address_under_which_it_is_found_again(bucket):
    found = locate(child(bucket.url, "chk-3"))
    assert locate(found.path) == locate(bucket.url) == found


def test_garbage_in_a_bucket_goes_only_by_age_and_while_nobody_holds_the_lock(
    bucket, now, monkeypatch
):
    bucket.put("shared/pack-c-1-3", b"abc")
    with pytest.raises(UserError, match="younger than 24h"):
        collect(bucket, now, age=timedelta(0), delete=True)
    assert collect(bucket, now).bytes == 0
    tomorrow = bucket.now() + timedelta(days=1)
    monkeypatch.setattr(S3Store, "now", lambda _: tomorrow)
    assert collect(bucket, now).bytes == 3
    assert collect(bucket, now, delete=True).deleted == 1
    assert verify(bucket.url, full=True).damage == ()
    assert bucket.head("lock.json") is None


def test_an_empty_prefix_of_a_bucket_is_told_from_a_bucket_that_is_not_there(s3_store, now):
    listed = list_snapshots(SnapshotDirectories(child(s3_store.url, "nothing")), now)
    assert "nothing is stored here yet" in listed.warnings[0]
    missing = s3_store.url.replace("s3://moorage/", "s3://no-such-bucket/")
    with pytest.raises(UserError):
        list_snapshots(SnapshotDirectories(missing), now)
