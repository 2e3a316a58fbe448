"""Keys of a store that are changed while a process uses them, as the kubelet changes a Secret."""

import logging
import pickle
import shutil
import uuid
from pathlib import Path

import pytest
from moorage_testing.s3_server import ACCESS_KEY, OTHER_ACCESS_KEY, SECRET_KEY, S3Server

from moorage_api.reserved import CREDENTIALS_DIR_ENV
from moorage_state.errors import StoreDenied
from moorage_state.mounted_secrets import mounted_secrets
from moorage_state.stores import Retries, S3Address, S3Store
from moorage_state.stores.s3 import mounted_keys
from moorage_state.stores.s3.calls import KEYS_DIR_ENV, connection_to
from moorage_state.stores.s3.mounted_keys import MountedKeys

ONCE = Retries(attempts=1)
ENDED = "ended-key-of-the-store"


def bring(directory: Path, *values: str) -> None:
    """As the kubelet does: a folder of its own, and a link that leads there from one step on."""
    folder = directory / f"..{uuid.uuid4().hex}"
    folder.mkdir()
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    for name, value in zip(names, values, strict=False):
        (folder / name).write_text(value)
    link = directory / "..next"
    link.symlink_to(folder.name)
    current = directory / "..data"
    before = current.resolve() if current.is_symlink() else None
    link.replace(directory / "..data")
    for name in names[: len(values)]:
        if not (directory / name).is_symlink():
            (directory / name).symlink_to(f"..data/{name}")
    if before is not None:
        shutil.rmtree(before)


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a pod whose variables are of keys that have ended."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ENDED)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", ENDED)
    monkeypatch.setenv(KEYS_DIR_ENV, str(tmp_path))
    return tmp_path


@pytest.fixture
def store(s3_server: S3Server, keys: Path) -> S3Store:  # noqa: ARG001  of that pod
    address = S3Address.parse(s3_server.url(f"test-{uuid.uuid4().hex}"))
    return S3Store(address, ONCE)


def test_the_operator_and_the_stores_speak_of_one_variable():
    assert KEYS_DIR_ENV == CREDENTIALS_DIR_ENV


def test_keys_that_change_are_used_from_the_next_request_on(store: S3Store, keys: Path, caplog):
    caplog.set_level(logging.DEBUG)
    bring(keys, ACCESS_KEY, SECRET_KEY)
    store.put("before", b"1")
    bring(keys, OTHER_ACCESS_KEY, SECRET_KEY)
    assert store.get("before") == b"1"
    with pytest.raises(StoreDenied):
        store.put("refused", b"2")  # the other key only reads: it is the one that is used
    bring(keys, ACCESS_KEY, SECRET_KEY)
    store.put("after", b"3")
    assert store.get("after") == b"3"
    ours = [one.getMessage() for one in caplog.records if one.name.startswith("moorage_state")]
    assert sum("taken up" in text for text in ours) == 2
    assert not any(SECRET_KEY in text or ACCESS_KEY in text for text in ours)


def test_a_large_upload_that_is_under_way_goes_on_with_the_new_keys(store: S3Store, keys: Path):
    bring(keys, ACCESS_KEY, SECRET_KEY)
    client = connection_to(store.address).client
    target = {"Bucket": store.address.bucket, "Key": f"{store.address.prefix}/large"}
    upload = client.create_multipart_upload(**target)["UploadId"]
    parts = []
    for number in (1, 2):
        body = bytes([number]) * (5 << 20)
        answer = client.upload_part(**target, UploadId=upload, PartNumber=number, Body=body)
        parts.append({"PartNumber": number, "ETag": answer["ETag"]})
        bring(
            keys, f"{ACCESS_KEY}\n", f"{SECRET_KEY}\n"
        )  # as `kubectl create --from-file` has them
    client.complete_multipart_upload(**target, UploadId=upload, MultipartUpload={"Parts": parts})
    assert store.get("large", offset=(5 << 20) - 1, length=2) == b"\x01\x02"


@pytest.mark.parametrize("values", [("", SECRET_KEY), (ACCESS_KEY,), ("k\xe9y", SECRET_KEY)])
def test_what_is_no_key_is_passed_over_with_a_word(store: S3Store, keys: Path, caplog, values):
    bring(keys, ACCESS_KEY, SECRET_KEY)
    store.put("before", b"1")
    bring(keys, *values)
    store.put("meanwhile", b"2")
    store.put("meanwhile", b"3")
    told = [one for one in caplog.records if "not taken up" in one.getMessage()]
    assert len(told) == 1
    assert str(keys) in told[0].getMessage()
    assert mounted_secrets()["store_keys"].refused
    bring(keys, ACCESS_KEY, SECRET_KEY)
    store.put("after", b"4")
    assert not mounted_secrets()["store_keys"].refused


def test_without_files_variables_count(s3_store: S3Store, tmp_path: Path, monkeypatch):
    monkeypatch.setenv(KEYS_DIR_ENV, str(tmp_path / "not there"))
    s3_store.put("key", b"1")
    assert s3_store.get("key") == b"1"


def test_keys_that_end_by_themselves_come_with_their_token(tmp_path: Path):
    bring(tmp_path, "id", "key", "token")
    found = MountedKeys.found(tmp_path)
    assert found is not None
    assert found.get_frozen_credentials()[:3] == ("id", "key", "token")
    bring(tmp_path, "id2", "key2")
    assert found.get_frozen_credentials()[:3] == ("id2", "key2", None)
    assert found.token is None


def test_keys_are_never_of_two_times(tmp_path: Path, monkeypatch):
    """The folder is replaced between one file and the next: both are read again."""
    bring(tmp_path, "id-1", "key-1")
    found = MountedKeys.found(tmp_path)
    assert found is not None
    bring(tmp_path, "id-2", "key-2")
    read, real = [], mounted_keys._value

    def reading(path: Path) -> str:
        read.append(path)
        if len(read) == 2:  # after the id, before the key
            bring(tmp_path, "id-3", "key-3")
        return real(path)

    with monkeypatch.context() as patch:
        patch.setattr(mounted_keys, "_value", reading)
        keys = found.get_frozen_credentials()
    assert keys[:2] == ("id-3", "key-3")


def test_a_store_is_still_a_value_that_holds_no_key(store: S3Store, keys: Path):
    bring(keys, ACCESS_KEY, SECRET_KEY)
    store.put("key", b"1")
    assert SECRET_KEY.encode() not in pickle.dumps(store)
    assert SECRET_KEY not in repr(store)
