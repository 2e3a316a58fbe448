"""What only a bucket does: addresses, large objects in parts, clients in many processes."""

import os
import pickle
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError, NoCredentialsError, ReadTimeoutError
from moorage_testing.s3_server import OTHER_ACCESS_KEY, SECRET_KEY, S3Server

from moorage_state.errors import (
    Bug,
    CorruptState,
    LocalDiskError,
    MoorageError,
    ObjectNotFound,
    StoreDenied,
    StoreUnavailable,
    UserError,
)
from moorage_state.stores import NoSuchBucket, Retries, S3Address, S3Store, open_store, store_url
from moorage_state.stores.s3.calls import connection_to, failure_of
from moorage_state.stores.s3.uploads import Source, part_size, put_source

MIB = 1 << 20
ONCE = Retries(attempts=1)


def uploads(store: S3Store) -> list[str]:
    client = connection_to(store.address).client
    found = client.list_multipart_uploads(
        Bucket=store.address.bucket, Prefix=f"{store.address.prefix}/"
    )
    return [upload["Key"] for upload in found.get("Uploads", [])]


@pytest.fixture(scope="module")
def large() -> bytes:
    """Three parts, the last of them short, and no two alike."""
    return b"".join(os.urandom(MIB) for _ in range(17)) + b"the end"


def test_a_large_object_is_written_and_read_in_parts(
    s3_store: S3Store, tmp_path: Path, large: bytes
) -> None:
    (tmp_path / "in").write_bytes(large)
    s3_store.put_file("large", tmp_path / "in")
    (tmp_path / "out").write_bytes(b"longer than what comes" * MIB)
    s3_store.get_to_file("large", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == large
    info = s3_store.head("large")
    assert info is not None
    assert info.size == len(large)
    assert uploads(s3_store) == []


def test_of_an_object_of_any_size_four_parts_are_in_memory_at_most() -> None:
    lock, held, most, sent = threading.Lock(), 0, 0, 0

    def read(_offset: int, length: int) -> bytes:
        nonlocal held, most
        with lock:
            held += 1
            most = max(most, held)
        return b"%d bytes" % length

    class Sending:
        """Takes its time for each part, and has nothing of it when it is sent."""

        connection = SimpleNamespace(pool=ThreadPoolExecutor(16))

        def run(self, what: str, _key: str, *_work: object) -> object:
            nonlocal held, sent
            if what != "upload part":
                return "the upload"
            time.sleep(0.001)
            with lock:
                held, sent = held - 1, sent + 1
            return {}

    with Sending.connection.pool:
        put_source(Sending(), "large", Source(1 << 30, read))  # type: ignore[arg-type]  # a double
    assert (most, sent) == (4, 128)


def test_large_bytes_go_in_parts_too(s3_store: S3Store, large: bytes) -> None:
    s3_store.put("large", large)
    assert s3_store.get("large") == large


@pytest.mark.parametrize("span", [(3, 17 * MIB), (5 * MIB, None), (16 * MIB, 100), (0, None)])
def test_a_slice_of_a_large_object_is_those_bytes(
    s3_store: S3Store, tmp_path: Path, large: bytes, span: tuple[int, int | None]
) -> None:
    offset, length = span
    s3_store.put("large", large)
    wanted = large[offset:] if length is None else large[offset : offset + length]
    s3_store.get_to_file("large", tmp_path / "x", offset=offset, length=length)
    assert (tmp_path / "x").read_bytes() == wanted
    assert s3_store.get("large", offset=offset, length=length) == wanted


def test_a_large_slice_beyond_the_end_is_corruption(
    s3_store: S3Store, tmp_path: Path, large: bytes
) -> None:
    s3_store.put("large", large)
    with pytest.raises(CorruptState, match="shorter"):
        s3_store.get_to_file("large", tmp_path / "x", offset=5, length=len(large))
    assert not (tmp_path / "x").exists()


def test_a_file_that_shrinks_while_it_is_sent_stores_nothing(
    s3_store: S3Store, tmp_path: Path, large: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "in"
    path.write_bytes(large)
    real = os.pread

    def pread(descriptor: int, length: int, offset: int) -> bytes:
        os.truncate(path, 9 * MIB)
        return real(descriptor, length, offset)

    monkeypatch.setattr(os, "pread", pread)
    with pytest.raises(LocalDiskError, match="shrank"):
        s3_store.put_file("large", path)
    assert s3_store.head("large") is None
    assert uploads(s3_store) == []


def test_a_full_local_disk_is_a_local_error_and_leaves_no_file(
    s3_store: S3Store, tmp_path: Path, large: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3_store.put("large", large)

    def pwrite(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(LocalDiskError, match="No space"):
        s3_store.get_to_file("large", tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_parts_grow_so_that_ten_thousand_are_enough() -> None:
    for size in (1, 17 * MIB, 80_000 * MIB, 5 << 40):
        step = part_size(size)
        assert step >= 8 * MIB
        assert step % MIB == 0
        assert -(-size // step) <= 10_000


def test_two_stores_in_one_bucket_do_not_see_each_other(s3_server: S3Server) -> None:
    name = uuid.uuid4().hex
    one, other = S3Store.at(s3_server.url(f"{name}/a")), S3Store.at(s3_server.url(f"{name}/ab"))
    one.put("x", b"1")
    other.put("y", b"2")
    assert [info.key for info in one.list("")] == ["x"]
    assert [info.key for info in other.list("")] == ["y"]


def test_markers_that_consoles_put_are_no_objects(s3_store: S3Store) -> None:
    client, address = connection_to(s3_store.address).client, s3_store.address
    client.put_object(Bucket=address.bucket, Key=f"{address.prefix}/folder/")
    s3_store.put("folder/x", b"")
    assert [info.key for info in s3_store.list("")] == ["folder/x"]


def test_a_long_listing_comes_in_order_and_whole(s3_store: S3Store) -> None:
    keys = sorted(f"k{n:04d}" for n in range(1_100))
    for key in keys:
        s3_store.put(key, b"")
    assert [info.key for info in s3_store.list("")] == keys
    assert [info.key for info in s3_store.list("k", "k0500")] == keys[501:]


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_a_server_that_boto3_is_told_of_elsewhere_lists_in_order_too(
    s3_store: S3Store, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, s3_server.endpoint)
    # Of a region that no other test has: clients are kept.
    region = variable.lower().replace("_", "-")
    where = f"{s3_server.bucket}/{s3_store.address.prefix}"
    store = S3Store.at(f"s3://{where}?region={region}&path_style=true")
    keys = ["A", "a", "b-1", "b/1"]
    for key in keys:
        store.put(key, b"")
    assert [info.key for info in store.list("")] == keys
    assert [info.key for info in store.list("", "a")] == keys[2:]


def test_a_key_that_only_fits_without_the_prefix_is_refused(s3_store: S3Store) -> None:
    key = "/".join(["x" * 200] * 5)
    with pytest.raises(UserError, match="1024"):
        s3_store.put(key, b"")


def test_a_missing_bucket_is_never_an_empty_store(s3_server: S3Server, tmp_path: Path) -> None:
    store = S3Store.at(s3_server.url("x").replace(s3_server.bucket, "no-such-bucket"))
    (tmp_path / "in").write_bytes(b"x")
    for attempt in (
        lambda: store.get("a"),
        lambda: store.get_to_file("a", tmp_path / "out"),
        lambda: store.head("a"),
        lambda: list(store.list("")),
        lambda: store.put("a", b""),
        lambda: store.put_file("a", tmp_path / "in"),
        lambda: store.put_if_absent("a", b""),
        lambda: store.delete("a"),
    ):
        with pytest.raises(UserError, match=r"bucket=no-such-bucket.*create the bucket"):
            attempt()


IN_ANOTHER_PROCESS = """
import sys
from moorage_state.errors import MoorageError
from moorage_state.stores import open_store
store = open_store(sys.argv[1])
try:
    print(store.get("a").decode())
    store.put("b", b"x")
except MoorageError as error:
    print(type(error).__name__, error, error.__cause__)
"""


def run(script: str, *arguments: str, **environment: str) -> str:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout


def test_another_process_opens_the_store_by_its_address(s3_store: S3Store) -> None:
    s3_store.put("a", b"here")
    assert run(IN_ANOTHER_PROCESS, s3_store.url) == "here\n"
    assert s3_store.get("b") == b"x"


def test_a_refusal_says_who_must_do_what_and_tells_no_secret(s3_store: S3Store) -> None:
    s3_store.put("a", b"here")
    said = run(IN_ANOTHER_PROCESS, s3_store.url, AWS_ACCESS_KEY_ID=OTHER_ACCESS_KEY)
    assert said.startswith("here\nStoreDenied s3 store refuses: operation=put bucket=moorage")
    assert "allow s3:GetObject, s3:PutObject" in said
    assert SECRET_KEY not in said


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("AWS_ACCESS_KEY_ID", "nobody", "InvalidAccessKeyId"),
        ("AWS_SECRET_ACCESS_KEY", "wrong-secret", "SignatureDoesNotMatch"),
    ],
)
def test_wrong_credentials_are_named_and_not_repeated(
    s3_store: S3Store, name: str, value: str, code: str
) -> None:
    said = run(IN_ANOTHER_PROCESS, s3_store.url, **{name: value})
    assert said.startswith("StoreDenied s3 store refuses: operation=get")
    assert f"code={code}" in said
    assert "AWS_SECRET_ACCESS_KEY" in said
    assert "wrong-secret" not in said
    assert SECRET_KEY not in said


def test_no_credentials_at_all_are_a_users_error(s3_store: S3Store) -> None:
    script = "import os\nfor n in ('AWS_ACCESS_KEY_ID', 'AWS_SECRET_ACCESS_KEY'): del os.environ[n]"
    said = run(script + IN_ANOTHER_PROCESS, s3_store.url)
    assert said.startswith("StoreDenied s3 store cannot be asked: operation=get")


FORK = """
import os, sys
from pathlib import Path
from moorage_state.stores import open_store
store, path = open_store(sys.argv[1]), Path(sys.argv[2])
store.put_file("parent", path)
child = os.fork()
store.put_file(f"{child and 'parent'}-after", path)
if child == 0:
    sys.stdout.flush()
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""


def test_a_forked_child_makes_clients_and_threads_of_its_own(
    s3_store: S3Store, tmp_path: Path, large: bytes
) -> None:
    (tmp_path / "in").write_bytes(large)
    assert run(FORK, s3_store.url, str(tmp_path / "in")) == "0\n"
    assert [i.size for i in s3_store.list("")] == [len(large)] * 3


def test_a_store_is_a_value(s3_store: S3Store) -> None:
    s3_store.put("a", b"1")
    again = pickle.loads(pickle.dumps(s3_store))
    assert again == s3_store == open_store(s3_store.url)
    assert again.get("a") == b"1"


@pytest.mark.parametrize(
    "address",
    [
        S3Address("bucket"),
        S3Address("bucket", "a/b"),
        S3Address("my.bucket", "a b#c?d%41=é&x", "https://host:9000/path", "eu-west-1", True),
        S3Address("bucket", "", "http://127.0.0.1:8333", None, True),
        S3Address("bucket", "x", None, "eu-west-1"),
    ],
)
def test_an_address_survives_being_written(address: S3Address) -> None:
    assert S3Address.parse(address.url) == address
    assert S3Address.parse(address.url).url == address.url


def test_an_address_is_written_plainly() -> None:
    address = S3Address("bucket", "a/b", "http://127.0.0.1:8333", "eu-west-1", True)
    assert address.url == (
        "s3://bucket/a/b?endpoint=http://127.0.0.1:8333&region=eu-west-1&path_style=true"
    )


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3://B_/x",
        "s3:///x",
        "s3://ab",
        "s3://a..b/x",
        "s3://user:hunter2@bucket/x",
        "s3://bucket:hunter2/x",
        "s3://bucket/../x",
        "s3://bucket//x",
        "s3://bucket/x//",
        "s3://bucket/.x",
        "s3://bucket/x#hunter2",
        "s3://bucket/x?endpoint=https://user:hunter2@host",
        "s3://bucket/x?endpoint=https://host?key=hunter2",
        "s3://bucket/x?endpoint=ftp://host",
        "s3://bucket/x?endpoint=",
        "s3://bucket/x?region=",
        "s3://bucket/x?region=Hunter2",
        "s3://bucket/x?secret_key=hunter2",
        "s3://bucket/x?hunter2",
        "s3://bucket/x?region=a&region=b",
        "s3://bucket/x?path_style=yes",
    ],
)
def test_wrong_addresses_are_refused_and_what_may_be_a_password_is_not_repeated(url: str) -> None:
    with pytest.raises(UserError) as caught:
        open_store(url)
    assert "hunter2" not in str(caught.value).lower()


@pytest.mark.parametrize("scheme", ["s3a", "s3n"])
def test_hadoops_schemes_are_refused_with_the_right_one(scheme: str) -> None:
    with pytest.raises(UserError, match=r"write s3://"):
        open_store(f"{scheme}://bucket/x")


def test_a_password_in_an_address_of_another_kind_is_not_repeated() -> None:
    with pytest.raises(UserError, match=r"https://\.\.\.") as caught:
        open_store("https://user:hunter2@host/x")
    assert "hunter2" not in str(caught.value)


def test_a_manifests_settings_become_part_of_the_address() -> None:
    assert store_url("s3://bucket/a", "http://host:1/", "r1", path_style=True) == (
        "s3://bucket/a?endpoint=http://host:1&region=r1&path_style=true"
    )
    assert store_url("s3://bucket/a") == "s3://bucket/a"
    assert store_url("file:///a", "http://host", "r1", path_style=True) == "file:///a"
    with pytest.raises(UserError, match="endpoint"):
        store_url("s3://bucket/a", "http://user:pw@host")


def test_an_endpoint_may_be_an_ipv6_address() -> None:
    url = store_url("s3://bucket/a", "http://[fd00::1]:8333", "r1", path_style=True)
    assert url == "s3://bucket/a?endpoint=http://[fd00::1]:8333&region=r1&path_style=true"
    address = S3Address.parse(url)
    assert (address.endpoint, address.url) == ("http://[fd00::1]:8333", url)
    with pytest.raises(UserError, match=r"https://\[fd00::1\]:port"):
        store_url("s3://bucket/a", "http://fd00::1:8333")


def answer(code: str, status: int) -> ClientError:
    response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(response, "PutObject")


@pytest.mark.parametrize(
    ("error", "kind", "again", "advice"),
    [
        (answer("SlowDown", 503), StoreUnavailable, True, "endpoint"),
        (answer("InternalError", 500), StoreUnavailable, True, ""),
        (answer("502", 502), StoreUnavailable, True, ""),
        (answer("RequestTimeout", 400), StoreUnavailable, True, ""),
        (answer("BadDigest", 400), StoreUnavailable, True, ""),
        (answer("ConditionalRequestConflict", 409), StoreUnavailable, True, ""),
        (answer("TooManyRequests", 429), StoreUnavailable, True, ""),
        (answer("XMinioStorageFull", 507), StoreUnavailable, False, "free space"),
        (ReadTimeoutError(endpoint_url="http://x"), StoreUnavailable, True, ""),
        (ConnectionResetError("reset"), StoreUnavailable, True, ""),
        (answer("AccessDenied", 403), StoreDenied, False, "allow s3:GetObject"),
        (answer("403", 403), StoreDenied, False, "s3:ListBucket"),
        (answer("ExpiredToken", 400), StoreDenied, False, "expired"),
        (answer("NoSuchBucket", 404), NoSuchBucket, False, "create the bucket"),
        (answer("InvalidBucketName", 400), StoreDenied, False, "correct the bucket's name"),
        (answer("PermanentRedirect", 301), StoreDenied, False, "region"),
        (answer("RequestTimeTooSkewed", 403), StoreDenied, False, "clock"),
        (answer("QuotaExceeded", 403), StoreDenied, False, "quota"),
        (answer("SomethingNew", 418), StoreDenied, False, "code=SomethingNew status=418"),
        (answer("NoSuchThing", 404), StoreDenied, False, ""),
        (NoCredentialsError(), StoreDenied, False, "credentials"),
        (answer("NoSuchKey", 404), ObjectNotFound, False, ""),
        (TypeError("ours"), Bug, False, "unexpected"),
    ],
    ids=lambda value: getattr(value, "__name__", None) or str(value)[:40],
)
def test_each_answer_means_what_its_receiver_must_do(
    error: Exception,
    kind: type[MoorageError],
    again: bool,  # noqa: FBT001
    advice: str,
) -> None:
    failure = failure_of(error, "put", S3Address("bucket", "pre"), "a/b")
    assert type(failure.error) is kind
    assert failure.again is again
    assert advice in str(failure.error)
    assert "a/b" in str(failure.error)


class CarelessServer(BaseHTTPRequestHandler):
    """Takes every condition and looks at none; or refuses them; or loses metadata."""

    way = ""
    objects: dict[str, dict[str, str]]

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.way == "refuses":
            self._answer(501)
            return
        if self.way == "loses metadata" and self.path in self.objects:
            self._answer(412)
            return
        name = "x-amz-meta-moorage-attempt"
        kept = {} if self.way == "loses metadata" else {name: self.headers[name]}
        self.objects[self.path] = kept | {"Content-Length": "1"}
        self._answer(200, {"ETag": '"x"'})

    def do_HEAD(self) -> None:
        known = self.objects.get(self.path)
        self._answer(200 if known else 404, known or {})

    def do_DELETE(self) -> None:
        self.objects.pop(self.path, None)
        self._answer(204)

    def _answer(self, status: int, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": "0"} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def careless(request: pytest.FixtureRequest) -> Iterator[tuple[S3Store, dict]]:
    # Of the real server only the credentials are used.
    request.getfixturevalue("s3_server")
    objects: dict[str, dict[str, str]] = {}
    handler = type("Handler", (CarelessServer,), {"way": request.param, "objects": objects})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    yield S3Store(S3Address("bucket", "x", endpoint, "us-east-1", True), ONCE), objects
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(
    "careless", ["ignores conditions", "refuses", "loses metadata"], indirect=True
)
def test_a_server_that_does_not_create_once_is_found_out_before_it_is_trusted(
    careless: tuple[S3Store, dict],
) -> None:
    store, objects = careless
    for _ in range(2):
        with pytest.raises(UserError, match="store has no conditional writes"):
            store.put_if_absent("log/1", b"x")
    assert objects == {}
